"""Sources of rows (x, y): their interface, passes over all their blocks, and their files as a few numbers.

`over_blocks` computes a function of every block. A thread reads blocks ahead while others compute, so that reading and computing
overlap; results come in the order of the rows, so that sums do not depend on the number of threads.

A `FilePrint` (path, size, shape, type and a fingerprint) is stored with a plan in place of the rows, and compared with the file
when the plan is read. The fingerprint is the SHA-256 of 64 blocks of 4096 bytes, the first and the last and 62 equally spaced
between them: a file of up to 256 KiB is covered as a whole. Of a larger file another header, another number of rows, rows in
another order and numbers computed anew are noticed; a few rows that were changed in place between two blocks are not.
"""

import abc
import collections
import concurrent.futures
import dataclasses
import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator
from pathlib import Path
from typing import IO, Any, ClassVar, TypeVar

import numpy as np

from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.machine import num_threads

T = TypeVar("T")
BLOCK_NUMBERS = 2**20
"""Numbers of x in a block: some megabytes, quick to compute with and slow enough to hide a thread's start."""
AHEAD = 2
"""Blocks that are read before they are asked for."""
MOST_THREADS = 8
"""More do not read faster from one disk."""
PRINT_BYTES, PRINT_BLOCKS = 2**12, 64
"""The size and the number of the blocks of a file that its fingerprint covers."""
_END = object()
Block = tuple[np.ndarray, np.ndarray]
"""Some rows: x as a matrix, y as a vector."""


class RowSource(abc.ABC):
    """N rows x with their responses y.

    **Attributes:**

    - `num_rows`: N.
    - `num_columns`: the length of x.
    - `name`: of the source, for messages.
    - `reads_rows`: whether single rows can be read in any order, as mini-batches need them.
    """

    num_rows: int
    num_columns: int
    name: str
    reads_rows: bool = False

    @abc.abstractmethod
    def blocks(self, size: int) -> Iterator[Block]:
        """All rows in their order, at most `size` at a time."""

    def read(self, index: np.ndarray) -> Block:
        """The rows with these numbers, in this order; a number may occur twice."""
        raise InvalidInput(
            f"Single rows of {self.name} cannot be read. Write it to a mapped file once: "
            "`gyromc.data.store(source, folder)` returns a source that can."
        )

    def changed(self) -> str:
        """The files that were written to since the source was made, as "a, b"; empty where none was or it cannot be known."""
        return ""

    def to_archive(self) -> dict[str, Any]:
        """What is stored of the source with a plan, never its rows; `InvalidInput` for one that no file can name."""
        raise InvalidInput(
            f"A plan over {self.name} cannot be saved or checkpointed: a {type(self).__name__} is made of Python objects, which "
            "another process could not find again. Write the rows once, `source = gyromc.data.store(source, folder)`, and use "
            "that source."
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}: {self.num_rows:,} rows × {self.num_columns} columns)"


def as_block(X, y, name: str, first: int, columns: int | None = None) -> Block:
    """A block as arrays of numbers, checked: shapes that fit, nothing missing."""
    X, y = np.asarray(X), np.asarray(y)
    fits = X.ndim == 2 and y.shape == X.shape[:1] and columns in (None, X.shape[1] if X.ndim == 2 else None)
    wanted = "rows × columns and one response a row" if columns is None else f"rows × {columns} and one response a row"
    require(fits, f"{name} gave a block of shapes {X.shape} and {y.shape} at row {first}: {wanted} are needed.")
    for part, what in ((X, "x"), (y, "y")):
        require(
            part.dtype.kind in "fiub",
            f"{name} has {what} of type {part.dtype} at row {first}: numbers are needed. Encode texts and dates first.",
        )
    return X, y


def most_threads() -> int:
    """How many threads read and compute."""
    return min(MOST_THREADS, num_threads())


def block_rows(columns: int) -> int:
    """How many rows a block has."""
    return max(1, BLOCK_NUMBERS // columns)


def prefetched(items: Iterable[T], ahead: int = AHEAD) -> Iterator[T]:
    """The same items, made by a thread that is up to `ahead` of them in front of the reader; its errors are raised here.

    ```python
    from gyromc.data import prefetched
    assert list(prefetched(range(5), ahead=2)) == [0, 1, 2, 3, 4]
    ```
    """
    source, waiting, pool = iter(items), collections.deque(), concurrent.futures.ThreadPoolExecutor(1)
    try:
        for _ in range(ahead):
            waiting.append(pool.submit(next, source, _END))
        while (item := waiting.popleft().result()) is not _END:
            waiting.append(pool.submit(next, source, _END))
            yield item
    # Also where the reader stops early; settings of JAX that a generator made are undone in the thread that they are of.
    finally:
        for future in waiting:
            future.cancel()
        if isinstance(source, Generator):
            pool.submit(source.close)
        pool.shutdown()


def over_blocks(source: RowSource, function: Callable[..., T], rows: int | None = None) -> Iterator[T]:
    """`function(X, y)` of every block, in the order of the blocks; computed by as many threads as there are processors."""
    threads, waiting = most_threads(), collections.deque()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for X, y in prefetched(source.blocks(rows or block_rows(source.num_columns))):
            waiting.append(pool.submit(function, X, y))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@dataclasses.dataclass(frozen=True)
class FilePrint:
    """What is stored of a file: where it was, its `size` in bytes, what it holds, and the SHA-256 of some of its blocks."""

    path: str
    size: int
    shape: tuple[int, ...]
    dtype: str
    sha256: str

    # The same file elsewhere holds the same rows.
    NOT_COMPARED: ClassVar[tuple[str, ...]] = ("path",)

    def require_there(self) -> None:
        """Raise `InvalidInput` where there is no file at the path."""
        require(
            Path(self.path).is_file(),
            f"There is no file {self.path}, whose rows the stored plan reads. Put it back, or say where it is now: "
            f'`gyromc.load(path, data={{"{self.path}": "…"}})`.',
        )

    def require_same(self, now: "FilePrint") -> None:
        """Raise `InvalidInput` with what differs where the file is another one now."""
        names = [field.name for field in dataclasses.fields(self) if field.name not in self.NOT_COMPARED]
        pairs = {name: (getattr(self, name), getattr(now, name)) for name in names}
        changed = [f"{name} {before} → {after}" for name, (before, after) in pairs.items() if before != after]
        require(
            not changed,
            f"{now.path} is not the file that the stored plan read: {', '.join(changed)}. Restore it, or run the plan anew.",
        )


def file_print(file: IO[bytes], path: str | Path, shape: tuple[int, ...], dtype: str) -> FilePrint:
    """Read some blocks of an open file; `InvalidInput` where it ends before its size."""
    size, found = os.fstat(file.fileno()).st_size, hashlib.sha256()
    # All of a small file, else equally spaced from the first byte to the last.
    places = range(0, size, PRINT_BYTES)
    if size > PRINT_BYTES * PRINT_BLOCKS:
        places = [i * (size - PRINT_BYTES) // (PRINT_BLOCKS - 1) for i in range(PRINT_BLOCKS)]
    for place in places:
        file.seek(place)
        block = file.read(PRINT_BYTES)
        if len(block) != min(PRINT_BYTES, size - place):
            raise InvalidInput(f"{path} ended at byte {place + len(block):,} of {size:,}: it was changed. Start again.")
        found.update(block)
    return FilePrint(os.path.abspath(path), size, tuple(shape), dtype, found.hexdigest())
