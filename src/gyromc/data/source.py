"""Sources of rows (x, y): their interface, passes over all their blocks, sources of Python objects, and fingerprints of files.

In a pass a thread reads blocks ahead while others compute; results come in the order of the rows, whatever the number of threads.

A `FilePrint` is stored with a plan in place of the rows, and compared with the file when the plan is read. Its SHA-256 covers 64
blocks of 4096 bytes, equally spaced, the first and the last among them: a file of up to 256 KiB as a whole. Of a larger file
another header, number or order of rows and numbers computed anew are noticed; a few rows that were changed in place may not be.
"""

import abc
import collections
import concurrent.futures
import dataclasses
import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from gyromc.checks import explained, require, shown, whole
from gyromc.errors import InvalidInput
from gyromc.runtime.machine import num_threads

T = TypeVar("T")
BLOCK_NUMBERS = 2**20
"""Numbers of x in a block: some megabytes, quick to compute with and slow enough to hide a thread's start."""

PRINT_BYTES, PRINT_BLOCKS = 2**12, 64
"""The size and the number of the blocks of a file that its fingerprint covers."""
_END = object()
Block = tuple[np.ndarray, np.ndarray]  # x as a matrix, y as a vector


class RowSource(abc.ABC):
    """N rows x with their responses y."""

    num_rows: int
    """N."""
    num_columns: int
    """The length of x."""
    name: str
    """For messages."""
    reads_rows: bool = False
    """Whether single rows can be read in any order, as mini-batches need them."""

    @abc.abstractmethod
    def blocks(self, size: int) -> Iterator[Block]:
        """All rows in their order, at most `size` at a time."""

    def read(self, index: np.ndarray) -> Block:
        """The rows with these numbers, in this order; a number may occur twice."""
        remedy = "Write it to a mapped file once: `gyromc.data.store(source, folder)` returns a source that can."
        raise InvalidInput(f"Single rows of {self.name} cannot be read. {remedy}")

    def changed(self) -> str:
        """The files that were written to since the source was made, as "a, b"; empty where none was or it cannot be known."""
        return ""

    def to_archive(self) -> dict[str, Any]:
        """What is stored of the source with a plan, never its rows; `InvalidInput` for one that no file can name."""
        why = f"a {type(self).__name__} is made of Python objects, which another process could not find again"
        remedy = "Write the rows once, `source = gyromc.data.store(source, folder)`, and use that source."
        raise InvalidInput(f"A plan over {self.name} cannot be saved or checkpointed: {why}. {remedy}")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}: {self.num_rows:,} rows × {self.num_columns} columns)"


def as_block(X, y, name: str, first: int, columns: int | None = None) -> Block:
    """A block as arrays of numbers, checked: shapes that fit, nothing missing."""
    X, y = np.asarray(X), np.asarray(y)
    fits = X.ndim == 2 and y.shape == X.shape[:1] and columns in (None, X.shape[-1])
    wanted = f"rows × {columns or 'columns'} and one response a row"
    require(fits, f"{name} gave a block of shapes {X.shape} and {y.shape} at row {first}: {wanted} are needed.")
    for part, what in ((X, "x"), (y, "y")):
        found = f"{name} has {what} of type {part.dtype} at row {first}"
        require(part.dtype.kind in "fiub", f"{found}: numbers are needed. Encode texts and dates first.")
    return X, y


def most_threads() -> int:
    """How many threads read and compute: more than eight do not read faster from one disk."""
    return min(8, num_threads())


def block_rows(columns: int) -> int:
    """How many rows a block has."""
    return max(1, BLOCK_NUMBERS // columns)


def prefetched(items: Iterable[T], ahead: int = 2) -> Iterator[T]:
    """The same items, made by a thread that is up to `ahead` of them in front of the reader; its errors are raised here.

    ```python
    from gyromc.data import prefetched
    print(list(prefetched(range(5), ahead=2)))  # [0, 1, 2, 3, 4]
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
    with concurrent.futures.ThreadPoolExecutor(most_threads()) as pool:
        blocks = source.blocks(rows or block_rows(source.num_columns))
        for computed in prefetched((pool.submit(function, X, y) for X, y in blocks), most_threads()):
            yield computed.result()


@dataclasses.dataclass(frozen=True)
class FilePrint:
    """What is stored of a file: where it was, its `size` in bytes, what it holds, and the SHA-256 of some of its blocks."""

    # The same file elsewhere holds the same rows.
    path: str = dataclasses.field(compare=False)
    size: int
    shape: tuple[int, ...]
    dtype: str
    sha256: str

    def require_same(self, read: "Callable[[str], FilePrint]") -> None:
        """Raise `InvalidInput` where the file is missing, or with what differs where it is another one now."""
        remedy = f'Put it back, or say where it is now: `gyromc.load(path, data={{"{self.path}": "…"}})`.'
        require(Path(self.path).is_file(), f"There is no file {self.path}, whose rows the stored plan reads. {remedy}")
        now, other = read(self.path), "is not the file that the stored plan read"
        pairs = {f.name: (getattr(self, f.name), getattr(now, f.name)) for f in dataclasses.fields(self) if f.compare}
        changed = [f"{name} {before} → {after}" for name, (before, after) in pairs.items() if before != after]
        require(not changed, f"{now.path} {other}: {', '.join(changed)}. Restore it, or run the plan anew.")


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
        ended = f"{path} ended at byte {place + len(block):,} of {size:,}: it was changed. Start again."
        require(len(block) == min(PRINT_BYTES, size - place), ended)
        found.update(block)
    return FilePrint(os.path.abspath(path), size, tuple(shape), dtype, found.hexdigest())


class Sequenced(RowSource):
    """A sequence whose items are records, such as a Grain data source or a PyTorch dataset: `len(records)`, `records[i]`.

    **Arguments:** `records`: the sequence; `pair`: a function from a record to (x, y), left out where a record is such a pair;
    `name`: for messages.

    ```python
    import numpy as np
    import gyromc as gm
    source = gm.data.Sequenced([{"x": [1.0, 2.0], "y": 1}, {"x": [0.0, 3.0], "y": 0}], pair=lambda r: (r["x"], r["y"]))
    print(source.num_rows, source.read(np.array([1, 1]))[0].tolist())  # 2 [[0.0, 3.0], [0.0, 3.0]]
    ```
    """

    reads_rows = True

    def __init__(self, records: Sequence[Any], pair: Callable[[Any], Any] | None = None, name: str = "the records"):
        self.records, self.pair, self.name = records, pair or (lambda record: record), name
        sequence = hasattr(records, "__len__") and hasattr(records, "__getitem__")
        require(sequence, f"`records` must be a sequence, with `len(records)` and `records[i]`: got {shown(records)}.")
        self.num_rows = len(records)
        require(self.num_rows > 0, f"{name} are empty: one at least is needed.")
        self.num_columns = self._rows(range(1), None)[0].shape[1]

    def blocks(self, size):
        for first in range(0, self.num_rows, size):
            yield self._rows(range(first, min(first + size, self.num_rows)), self.num_columns)

    def read(self, index):
        index = np.asarray(index)
        X, y = self._rows([int(i) for i in index.ravel()], self.num_columns)
        return X.reshape(*index.shape, -1), y.reshape(index.shape)

    def _rows(self, numbers: Iterable[int], columns: int | None):
        with explained(f"A record of {self.name} cannot be read as a pair (x, y)", "Pass `pair`, which makes it one."):
            pairs = [self.pair(self.records[i]) for i in numbers]
            X, y = np.asarray([np.asarray(x) for x, _ in pairs]), np.asarray([np.asarray(y) for _, y in pairs])
        return as_block(X, y, self.name, next(iter(numbers)), columns)


class Batches(RowSource):
    """Anything that yields batches (X, y) and can be iterated again, such as a PyTorch DataLoader; rows come in its order.

    A pass reads each row as often as the iterable yields it: it must yield all N rows once, in any order, in every iteration.
    What comes as a batch is not taken for a random mini-batch, since nothing is known of how the iterable chooses it: chains read
    rows that are drawn uniformly from a copy on disk, which `random_access` makes.

    **Arguments:** `batches`: the iterable, or a function without arguments that returns an iterator; `num_rows`: N, declared, so
    that an iteration that has another number raises an error; `name`: for messages.

    ```python
    import numpy as np
    import gyromc as gm
    source = gm.data.Batches([(np.ones((2, 3)), [0, 1]), (np.zeros((1, 3)), [1])], num_rows=3)
    print(source.num_columns, len(list(source.blocks(10))))  # 3 2
    ```
    """

    def __init__(self, batches: Iterable | Callable[[], Iterable], num_rows: int, name: str = "the batches"):
        self._again: Callable[[], Iterable] = batches if callable(batches) else lambda: batches
        self.name, self.num_rows = name, whole(num_rows, "num_rows", least=1)
        made, given = self._again(), "yield pairs (X, y), or be a function that returns what does: got"
        said = "return what yields pairs (X, y): it returned" if callable(batches) else given
        require(isinstance(made, Iterable), f"`batches` must {said} {shown(made)}.")
        remedy = "Pass what makes the iterator, such as the DataLoader itself or a function."
        require(callable(batches) or iter(made) is not made, f"{name} can be iterated once only. {remedy}")
        first = next(iter(made), None)
        require(first is not None, f"{name} yield nothing.")
        self.num_columns = self._pair(first, 0, None)[0].shape[1]

    def blocks(self, size):
        first = 0
        for item in self._again():
            X, y = self._pair(item, first, self.num_columns)
            for i in range(0, len(X), size):
                yield X[i : i + size], y[i : i + size]
            first += len(X)
            more = f"{self.name} yield more than the {self.num_rows:,} rows declared as `num_rows`."
            require(first <= self.num_rows, more)
        require(first == self.num_rows, f"{self.name} yield {first:,} rows, and `num_rows` declares {self.num_rows:,}.")

    def _pair(self, item: Any, first: int, columns: int | None):
        pair = isinstance(item, tuple | list) and len(item) == 2
        require(pair, f"{self.name} must yield pairs (X, y): got {type(item).__name__} at row {first}.")
        return as_block(item[0], item[1], self.name, first, columns)
