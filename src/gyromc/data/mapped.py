"""Two .npy files, X.npy and y.npy, that are read where they are.

Passes over all rows read blocks into buffers. Single rows come from a memory map where many are read, else from reads of one row
each: a page of a file that was touched through a map counts as resident memory of the process, although the system takes it back
when it needs it, and one row can make two megabytes resident. `release` gives all pages back. `store` writes any other source as
such files, in one pass.
"""

import concurrent.futures
import functools
import mmap
import os
import shutil
import tempfile
import threading
import weakref
from pathlib import Path

import numpy as np

from gyromc.checks import cause, one_of, read_path, require, whole
from gyromc.data.source import FilePrint, RowSource, block_rows, file_print, most_threads, prefetched
from gyromc.errors import InvalidInput
from gyromc.show.files import require_writable
from gyromc.show.progress import say

AROUND = 2**21
"""Bytes that can become resident when one byte is touched: Linux maps large pages of its cache as a whole."""
RESIDENT = 2**28  # bytes
KEEP = 1.0
"""With more single rows to read than this times N, all pages are kept."""
SMALL = 64
"""So they are with more rows in a batch than this: to read them one by one would take most of a step."""
LEAST_AT_ONCE = 2**11
"""Rows that a thread reads at once."""


class Mapped(RowSource):
    """X.npy (rows × columns, float32 or float64) and y.npy (one number a row), never read into memory as a whole.

    **Arguments:**

    - `X`, `y`: the paths of the files, as `np.save` writes them.
    - `resident`: the most bytes of them that become resident while few single rows are read, in batches of at most 64 and fewer
      in all than there are: rows are then read one by one, and pages that were touched are given back. `None`: pages stay.

    ```python
    import tempfile
    from pathlib import Path
    import numpy as np
    import gyromc as gm
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "X.npy"), np.arange(6.0).reshape(3, 2))
        np.save(Path(folder, "y.npy"), np.array([0, 1, 1]))
        source = gm.data.Mapped(Path(folder, "X.npy"), Path(folder, "y.npy"))
        assert source.num_rows == 3 and source.read(np.array([2]))[0].tolist() == [[4.0, 5.0]]
    ```
    """

    reads_rows = True

    def __init__(self, X: str | Path, y: str | Path, resident: int | None = RESIDENT):
        self.name = str(X)
        self._X, self._y = _File(X), _File(y)
        require(self._X.shape[:1] != (0,), f"{X} has no rows.")
        require(
            len(self._X.shape) == 2 and min(self._X.shape) > 0 and self._X.dtype in (np.float32, np.float64),
            f"{X} must hold a matrix of float32 or float64, one row per observation: it has shape {self._X.shape} and type "
            f"{self._X.dtype}. Convert it: `np.save(path, X.astype(np.float32))`, or `gyromc.data.store`.",
        )
        require(
            self._y.shape == self._X.shape[:1] and self._y.dtype.kind in "fiub",
            f"{y} must hold one number per row of {X}, which has {self._X.shape[0]} rows: it has shape {self._y.shape} and type "
            f"{self._y.dtype}.",
        )
        self.num_rows, self.num_columns = self._X.shape
        self.resident = None if resident is None else whole(resident, "resident", least=AROUND)

    # By what way rows are read changes no number.
    NOT_COMPARED = ("resident",)

    def to_archive(self):
        return {"X": self._X.fingerprint(), "y": self._y.fingerprint(), "resident": self.resident}

    @classmethod
    def from_archive(cls, X: FilePrint, y: FilePrint, resident: int | None) -> "Mapped":
        """The source of a stored plan; `InvalidInput` where a file is missing or another one."""
        for before in (X, y):
            before.require_there()
            before.require_same(_File(before.path).fingerprint())
        return cls(X.path, y.path, resident)

    @property
    def X(self) -> np.ndarray:
        """The matrix, mapped: reading an entry reads the file."""
        return self._X.map()

    @property
    def y(self) -> np.ndarray:
        """The responses, mapped."""
        return self._y.map()

    @property
    def rows_resident(self) -> int | None:
        """How many single rows may be read before `release`; None: any number."""
        return None if self.resident is None else max(1, self.resident // AROUND)

    @property
    def descriptor(self) -> int:
        """The open file of X, for single reads at `offset` and beyond; -1 where the system has no `pread`."""
        return self._X.file.fileno() if hasattr(os, "pread") else -1

    @property
    def offset(self) -> int:
        """Where the numbers of X begin in its file."""
        return self._X.offset

    def blocks(self, size):
        for first in range(0, self.num_rows, size):
            count = min(size, self.num_rows - first)
            yield self._X.rows(first, count), self._y.rows(first, count)

    def keeps(self, rows: int, batch: int) -> bool:
        """Whether rows come from the map, its pages kept: large batches, and more rows in all than there are."""
        return self.resident is None or batch > SMALL or rows > KEEP * self.num_rows

    def read(self, index, keep: bool = False):
        """The rows with these numbers; `keep`: through the map, by several threads where they are many."""
        index = np.asarray(index)
        shape, flat = index.shape, index.ravel()
        inside = not flat.size or (flat.min() >= 0 and flat.max() < self.num_rows)
        require(inside, f"Rows of {self.name} have the numbers 0 to {self.num_rows - 1}: got others.")
        if not (keep or self.resident is None) and self.descriptor >= 0:
            return self._X.single(flat).reshape(*shape, -1), self._y.single(flat).reshape(shape)
        X, y = np.empty((len(flat), self.num_columns), self._X.dtype), np.empty(len(flat), self._y.dtype)
        at_once = max(LEAST_AT_ONCE, -(-len(flat) // (4 * most_threads())))

        def part(i: int) -> None:
            np.take(self.X, flat[i : i + at_once], axis=0, out=X[i : i + at_once], mode="clip")
            np.take(self.y, flat[i : i + at_once], out=y[i : i + at_once], mode="clip")

        list((_pool().map if len(flat) > at_once else map)(part, range(0, len(flat), at_once)))
        return X.reshape(*shape, -1), y.reshape(shape)

    def release(self) -> None:
        """Give back all pages that were touched; they stay in the system's cache of files until it needs the memory."""
        self._X.release()
        self._y.release()

    def changed(self):
        return ", ".join(str(file.path) for file in (self._X, self._y) if file.written() != file.written_first)

    def check_size(self) -> None:
        """Raise `InvalidInput` where a file is shorter than its header says: reading a page that is missing ends the process."""
        self._X.check_size()
        self._y.check_size()


@functools.cache
def _pool() -> concurrent.futures.ThreadPoolExecutor:
    """The threads that read single rows."""
    return concurrent.futures.ThreadPoolExecutor(most_threads(), thread_name_prefix="rows")


class _File:
    """One .npy file: read in blocks, or mapped."""

    def __init__(self, path: str | Path):
        self.path = read_path(path)
        require(self.path.is_file(), f"There is no file {path}.")
        self.file = self.path.open("rb")
        try:
            version = np.lib.format.read_magic(self.file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            self.shape, fortran, self.dtype = read(self.file)
        except Exception as error:  # NumPy reads a header as Python code: it may raise anything
            raise InvalidInput(f"{path} is no .npy file as `np.save` writes it: {cause(error)}") from None
        require(
            (not fortran or len(self.shape) < 2) and not self.dtype.hasobject and self.dtype.isnative,
            f"{path} must hold numbers row after row: it is in Fortran's order, of another byte order, or holds objects. "
            "Save it with `np.save(path, np.ascontiguousarray(X, np.float32))`.",
        )
        self.offset = self.file.tell()
        self.row_numbers = int(np.prod(self.shape[1:], dtype=np.int64))
        self.mapped: np.memmap | None = None
        self.lock = threading.Lock()
        self.written_first = self.written()
        self.check_size()

    def check_size(self) -> None:
        needed = self.offset + int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        found = os.fstat(self.file.fileno()).st_size
        require(
            found >= needed,
            f"{self.path} is cut off: {found:,} bytes, and its header needs {needed:,}. Write it again.",
        )

    def written(self) -> tuple[int, int]:
        """The size of the file, and when it was written to."""
        found = os.fstat(self.file.fileno())
        return found.st_size, found.st_mtime_ns

    def fingerprint(self) -> FilePrint:
        with self.lock:
            return file_print(self.file, self.path, self.shape, str(self.dtype))

    def rows(self, first: int, count: int) -> np.ndarray:
        """Rows as a new array, by reading: nothing is mapped."""
        out = np.empty((count, *self.shape[1:]), self.dtype)
        at = self.offset + first * self.row_numbers * self.dtype.itemsize
        with self.lock:
            self.file.seek(at)
            read = self.file.readinto(out.reshape(-1).view(np.uint8).data)
        require(
            read == out.nbytes,
            f"{self.path} ended while rows {first} to {first + count} were read: it was changed. Start again.",
        )
        return out

    def single(self, index: np.ndarray) -> np.ndarray:
        """Rows by number, each by one read: nothing is mapped."""
        size = self.row_numbers * self.dtype.itemsize
        places = self.offset + index.astype(np.int64) * size
        content = b"".join([os.pread(self.file.fileno(), size, place) for place in places.tolist()])
        require(
            len(content) == size * len(index),
            f"{self.path} ended while single rows were read: it was changed. Start again.",
        )
        return np.frombuffer(content, self.dtype).reshape(len(index), *self.shape[1:])

    def map(self) -> np.ndarray:
        if self.mapped is None:
            # Of the open file: another one may have its name by now.
            with self.lock:
                self.mapped = np.memmap(self.file, self.dtype, "r", self.offset, self.shape)  # type: ignore[arg-type]  # NumPy takes open files too
        return self.mapped.view(np.ndarray)

    def release(self) -> None:
        own = getattr(self.mapped, "_mmap", None)
        if own is not None and hasattr(own, "madvise"):
            own.madvise(mmap.MADV_DONTNEED)


def store(source: RowSource, folder: str | Path, dtype: str = "float32", resident: int | None = RESIDENT) -> Mapped:
    """Write all rows to `folder`/X.npy and y.npy, and return them as a source; one pass, nothing is held in memory.

    **Arguments:**

    - `source`: the rows.
    - `folder`: where to; it is made if it does not exist, and files of these names in it are replaced when all is written.
    - `dtype`: `"float32"` or `"float64"`, of X and y.
    - `resident`: as for `Mapped`.

    ```python
    import tempfile
    import numpy as np
    import gyromc as gm
    with tempfile.TemporaryDirectory() as folder:
        kept = gm.data.store(gm.data.Batches([(np.eye(2), [1, 0])], num_rows=2), folder)
        assert kept.num_rows == 2 and kept.read(np.array([0]))[1].tolist() == [1.0]
    ```
    """
    folder, kind = read_path(folder), np.dtype(one_of(dtype, ("float32", "float64"), "dtype"))
    require(isinstance(source, RowSource), f"`source` must be one of `gyromc.data`: got {type(source).__name__}.")
    require_writable(folder)
    N, d = source.num_rows, source.num_columns
    needed, free = N * (d + 1) * kind.itemsize, shutil.disk_usage(folder).free
    require(
        needed < free,
        f"{source.name} needs {needed:,} bytes on disk, and {folder} has {free:,} left. Name another folder.",
    )
    unfinished = folder / "X.npy.part", folder / "y.npy.part"
    with unfinished[0].open("wb") as x_file, unfinished[1].open("wb") as y_file:
        for file, shape in ((x_file, (N, d)), (y_file, (N,))):
            described = {"descr": np.lib.format.dtype_to_descr(kind), "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, described)
        for X, y in prefetched(source.blocks(block_rows(d))):
            x_file.write(np.ascontiguousarray(X, kind).data)
            y_file.write(np.ascontiguousarray(y, kind).data)
    for part in unfinished:
        part.replace(part.with_suffix(""))
    return Mapped(folder / "X.npy", folder / "y.npy", resident)


def random_access(source: RowSource) -> RowSource:
    """The source itself where it reads single rows; otherwise a copy in a temporary folder, deleted when it is no longer used.

    The folder is made where `tempfile` makes them: the environment variable `TMPDIR` says where.
    """
    if source.reads_rows:
        return source
    folder = tempfile.mkdtemp(prefix="gyromc-rows-")
    size = source.num_rows * (source.num_columns + 1) * 4
    say(f"writing {source.name} to {folder}, {size / 1e9:.2g} GB, since mini-batches read single rows")
    try:
        kept = store(source, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(kept, shutil.rmtree, folder, ignore_errors=True)
    return kept
