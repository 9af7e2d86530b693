"""Rows in files: two .npy files, X.npy and y.npy, that are read where they are; and Parquet files.

Passes over all rows read blocks into buffers. Single rows come from a memory map, whose pages count as resident memory of the
process; those of large files are given back while rows are read. `store` writes any other source as .npy files, in one pass.
"""

import concurrent.futures
import dataclasses
import functools
import mmap
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.checks import explained, one_of, read_path, require
from gyromc.data.source import FilePrint, RowSource, block_rows, file_print, most_threads, prefetched
from gyromc.errors import InvalidInput
from gyromc.extras import needs
from gyromc.show.files import require_writable
from gyromc.show.progress import say


@dataclasses.dataclass(frozen=True)
class FileSettings:
    """The constants of reading files."""

    resident: int = 2**29
    """Bytes of a mapped file that may stay resident. Convention: half a gigabyte."""
    around: int = 2**21
    """Bytes that can become resident when one is touched. Measured: Linux maps large pages of its cache as a whole."""
    least_at_once: int = 2**11
    """Rows that a thread reads at once."""
    buffer: int = 2**20
    """Bytes of a column of a Parquet file that are read at once; else a whole group of rows would be."""


SETTINGS = FileSettings()


class Mapped(RowSource):
    """X.npy (rows × columns, float32 or float64) and y.npy (one number a row), never read into memory as a whole.

    **Arguments:** `X`, `y`: the paths of the files, as `np.save` writes them.

    ```python
    import tempfile
    from pathlib import Path
    import numpy as np
    import gyromc as gm
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder, "X.npy"), np.arange(6.0).reshape(3, 2))
        np.save(Path(folder, "y.npy"), np.array([0, 1, 1]))
        source = gm.data.Mapped(Path(folder, "X.npy"), Path(folder, "y.npy"))
        print(source.num_rows, source.read(np.array([2]))[0].tolist())  # 3 [[4.0, 5.0]]
    ```
    """

    reads_rows = True

    def __init__(self, X: str | Path, y: str | Path):
        self.name = str(X)
        self._X, self._y = _File(X), _File(y)
        self.X, self.y = self._X.array, self._y.array
        found = lambda array: f"it has shape {array.shape} and type {array.dtype}"
        remedy = "Convert it: `np.save(path, X.astype(np.float32))`, or `gyromc.data.store`."
        wanted = "a matrix of float32 or float64, one row per observation"
        good = self.X.ndim == 2 and self.X.dtype in (np.float32, np.float64)
        require(good, f"{X} must hold {wanted}: {found(self.X)}. {remedy}")
        self.num_rows, self.num_columns = self.X.shape
        good = self.y.shape == (self.num_rows,) and self.y.dtype.kind in "fiub"
        require(good, f"{y} must hold one number per row of {X}, which has {self.num_rows} rows: {found(self.y)}.")

    def to_archive(self):
        return {"X": self._X.fingerprint(), "y": self._y.fingerprint()}

    @classmethod
    def from_archive(cls, X: FilePrint, y: FilePrint) -> "Mapped":
        for before in (X, y):
            before.require_same(lambda path: _File(path).fingerprint())
        return cls(X.path, y.path)

    def blocks(self, size):
        for first in range(0, self.num_rows, size):
            count = min(size, self.num_rows - first)
            yield self._X.rows(first, count), self._y.rows(first, count)

    def read(self, index):
        index = np.asarray(index)
        shape, flat = index.shape, index.ravel()
        inside = not flat.size or (flat.min() >= 0 and flat.max() < self.num_rows)
        require(inside, f"Rows of {self.name} have the numbers 0 to {self.num_rows - 1}: got others.")
        X, y = np.empty((len(flat), self.num_columns), self.X.dtype), np.empty(len(flat), self.y.dtype)
        at_once = max(SETTINGS.least_at_once, -(-len(flat) // (4 * most_threads())))
        places, is_large = np.arange(len(flat)), self.is_large()
        if is_large:
            # In the order of the file: some rows then make a part of it resident, those of all threads half the budget.
            places, budget = np.argsort(flat), SETTINGS.resident // (2 * most_threads())
            at_once = max(1, budget // SETTINGS.around, len(flat) * budget // (self.X.nbytes + self.y.nbytes))

        def part(i: int) -> None:
            own = places[i : i + at_once]
            X[own], y[own] = self.X[flat[own]], self.y[flat[own]]
            if is_large:
                self.release()

        list((_pool().map if len(flat) > at_once else map)(part, range(0, len(flat), at_once)))
        return X.reshape(*shape, -1), y.reshape(shape)

    def is_large(self) -> bool:
        """Whether pages of it may not stay resident."""
        return self.X.nbytes + self.y.nbytes > SETTINGS.resident

    def opened(self) -> tuple[int, int]:
        """The open file of X, as the system counts them, and where its numbers begin."""
        return self._X.file.fileno(), self._X.offset

    def release(self) -> None:
        """Give all pages that were touched back; they stay in the system's cache of files until it needs the memory."""
        for file in (self._X, self._y):
            if hasattr(mmap, "MADV_DONTNEED"):
                file.mapped.madvise(mmap.MADV_DONTNEED)

    def changed(self):
        return ", ".join(str(file.path) for file in (self._X, self._y) if file.written() != file.written_first)

    def check_size(self) -> None:
        """Raise `InvalidInput` where a file is shorter than its header says: reading a page that is missing ends the process."""
        self._X.check_size()
        self._y.check_size()


_pool = functools.cache(lambda: concurrent.futures.ThreadPoolExecutor(most_threads(), thread_name_prefix="rows"))


class _File:
    """One .npy file: read in blocks, and mapped; another one may have its name later."""

    def __init__(self, path: str | Path):
        self.path = read_path(path)
        require(self.path.is_file(), f"There is no file {path}.")
        self.file = self.path.open("rb")
        # NumPy reads a header as Python code: it may raise anything.
        with explained(f"{path} is no .npy file as `np.save` writes it", "Write it again."):
            version = np.lib.format.read_magic(self.file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            self.shape, fortran, self.dtype = read(self.file)
        good = (not fortran or len(self.shape) < 2) and not self.dtype.hasobject and self.dtype.isnative
        why = "it is in Fortran's order, of another byte order, or holds objects"
        remedy = "Save it with `np.save(path, np.ascontiguousarray(X, np.float32))`."
        require(good, f"{path} must hold numbers row after row: {why}. {remedy}")
        self.offset, self.lock = self.file.tell(), threading.Lock()
        self.written_first = self.written()
        self.check_size()
        require(0 not in self.shape, f"{path} has no rows.")
        mapped = np.memmap(self.file, self.dtype, "r", self.offset, self.shape)  # type: ignore[call-overload]  # NumPy takes open files too
        self.mapped, self.array = mapped._mmap, mapped.view(np.ndarray)  # type: ignore[attr-defined]  # NumPy's own map

    def check_size(self) -> None:
        needed = self.offset + int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize
        found, _ = self.written()
        cut = f"{self.path} is cut off: {found:,} bytes, and its header needs {needed:,}. Write it again."
        require(found >= needed, cut)

    def written(self) -> tuple[int, int]:
        found = os.fstat(self.file.fileno())
        return found.st_size, found.st_mtime_ns

    def fingerprint(self) -> FilePrint:
        with self.lock:
            return file_print(self.file, self.path, self.shape, str(self.dtype))

    def rows(self, first: int, count: int) -> np.ndarray:
        """Rows as a new array, by reading: no page becomes resident."""
        out = np.empty((count, *self.shape[1:]), self.dtype)
        with self.lock:
            self.file.seek(self.offset + first * out[:1].nbytes)
            read = self.file.readinto(out.reshape(-1).view(np.uint8).data)
        ended = f"{self.path} ended while rows {first} to {first + count} were read: it was changed. Start again."
        require(read == out.nbytes, ended)
        return out


def store(source: RowSource, folder: str | Path, dtype: str = "float32") -> Mapped:
    """Write all rows to `folder`/X.npy and y.npy, and return them as a source; one pass, nothing is held in memory.

    **Arguments:** `source`: the rows; `folder`: where to; it is made if it does not exist, and files of these names in it are
    replaced when all is written; `dtype`: `"float32"` or `"float64"`, of X and y.

    ```python
    import tempfile
    import numpy as np
    import gyromc as gm
    with tempfile.TemporaryDirectory() as folder:
        kept = gm.data.store(gm.data.Batches([(np.eye(2), [1, 0])], num_rows=2), folder)
        print(kept.num_rows, kept.read(np.array([0]))[1].tolist())  # 2 [1.0]
    ```
    """
    folder, kind = read_path(folder), np.dtype(one_of(dtype, ("float32", "float64"), "dtype"))
    require(isinstance(source, RowSource), f"`source` must be one of `gyromc.data`: got {type(source).__name__}.")
    require_writable(folder)
    N, d = source.num_rows, source.num_columns
    needed, free = N * (d + 1) * kind.itemsize, shutil.disk_usage(folder).free
    full = f"{source.name} needs {needed:,} bytes on disk, and {folder} has {free:,} left. Name another folder."
    require(needed < free, full)
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
    return Mapped(folder / "X.npy", folder / "y.npy")


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


class Parquet(RowSource):
    """The rows of a Parquet file, read with pyarrow (the extra `data`); never as a whole.

    **Arguments:** `path`: of the file; `response`: the name of the column that is y; `columns`: those that are x, in this order;
    left out: all others.

    ```python
    import tempfile
    from pathlib import Path
    import pyarrow
    import pyarrow.parquet
    import gyromc as gm
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rows.parquet")
        pyarrow.parquet.write_table(pyarrow.table({"a": [1.0, 2.0], "b": [0, 3], "y": [0, 1]}), path)
        source = gm.data.Parquet(path, response="y")
        (X, y), = source.blocks(10)
        print(source.columns, X.tolist(), y.tolist())  # ('a', 'b') [[1.0, 0.0], [2.0, 3.0]] [0, 1]
    ```
    """

    def __init__(self, path: str | Path, response: str, columns: Sequence[str] | None = None):
        arrow = pyarrow()
        self.name, self.path = str(path), read_path(path)
        require(self.path.is_file(), f"There is no file {path}.")
        with explained(f"{path} cannot be read as Parquet", "Write it again."):
            file = arrow.parquet.ParquetFile(self.path)
        with file:
            schema, self.num_rows = file.schema_arrow, file.metadata.num_rows
        require(self.num_rows > 0, f"{path} has no rows.")
        others = (name for name in schema.names if name != response)
        self.response, self.columns = response, tuple(others if columns is None else columns)
        self.num_columns = len(self.columns)
        missing = [name for name in (response, *self.columns) if name not in schema.names]
        require(not missing, f"{path} has no column {', '.join(missing)}: it has {', '.join(schema.names[:30])}.")
        require(self.columns, f"{path} has no column besides {response!r}: x needs one at least.")
        numeric = arrow.types.is_integer, arrow.types.is_floating, arrow.types.is_boolean
        for name in (response, *self.columns):
            kind = schema.field(name).type
            found = f"The column {name!r} of {path} holds {kind}: x and y must be numbers or truth values."
            require(any(is_one(kind) for is_one in numeric), f"{found} Leave it out, or write it as numbers.")

    def to_archive(self):
        return {"file": _parquet_print(self.path), "response": self.response, "columns": self.columns}

    @classmethod
    def from_archive(cls, file: FilePrint, response: str, columns: tuple[str, ...]) -> "Parquet":
        file.require_same(_parquet_print)
        return cls(file.path, response, columns)

    def blocks(self, size):
        arrow, names, first = pyarrow(), [*self.columns, self.response], 0
        with arrow.parquet.ParquetFile(self.path, pre_buffer=False, buffer_size=SETTINGS.buffer) as file:
            for batch in file.iter_batches(batch_size=size, columns=names):
                for name in names:
                    if batch.column(name).null_count:
                        row = first + int(np.argmax(np.asarray(batch.column(name).is_null())))
                        missing = f"The column {name!r} of {self.name} has missing values, the first in row {row}."
                        raise InvalidInput(f"{missing} Drop or fill those rows.")
                *columns, y = (batch.column(name).to_numpy(zero_copy_only=False) for name in names)
                kind = np.result_type(*columns, y, np.float32)
                yield np.stack(columns, axis=1, dtype=kind, casting="unsafe"), y
                first += batch.num_rows
                del batch, columns, y
        # It keeps as much as a group of rows takes.
        arrow.default_memory_pool().release_unused()


def _parquet_print(path: str | Path) -> FilePrint:
    with open(path, "rb") as file:
        return file_print(file, path, (), "parquet")


def pyarrow() -> Any:
    """The package, or `InvalidInput` that says how to install it."""
    with needs("data", "Reading Parquet files"):
        import pyarrow
        import pyarrow.parquet
        import pyarrow.types
    return pyarrow
