"""Rows from Python objects: a sequence of records, and anything that yields batches."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from gyromc.checks import cause, require, shown, whole
from gyromc.data.source import RowSource, as_block
from gyromc.errors import InvalidInput


class Sequenced(RowSource):
    """A sequence whose items are records, such as a Grain data source or a PyTorch dataset: `len(records)`, `records[i]`.

    **Arguments:**

    - `records`: the sequence.
    - `pair`: a function from a record to (x, y); left out: a record is such a pair.
    - `name`: for messages.

    ```python
    import numpy as np
    import gyromc as gm
    source = gm.data.Sequenced([{"x": [1.0, 2.0], "y": 1}, {"x": [0.0, 3.0], "y": 0}], pair=lambda r: (r["x"], r["y"]))
    assert source.num_rows == 2 and source.read(np.array([1, 1]))[0].tolist() == [[0.0, 3.0], [0.0, 3.0]]
    ```
    """

    reads_rows = True

    def __init__(
        self, records: Sequence[Any], pair: Callable[[Any], tuple[Any, Any]] | None = None, name: str = "the records"
    ):
        self.records, self.pair, self.name = records, pair or (lambda record: record), name
        require(
            hasattr(records, "__len__") and hasattr(records, "__getitem__"),
            f"`records` must be a sequence, with `len(records)` and `records[i]`: got {shown(records)}.",
        )
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
        try:
            pairs = [self.pair(self.records[i]) for i in numbers]
            X, y = np.asarray([np.asarray(x) for x, _ in pairs]), np.asarray([np.asarray(y) for _, y in pairs])
        except (TypeError, ValueError, LookupError) as error:
            raise InvalidInput(f"A record of {self.name} cannot be read as a pair (x, y): {cause(error)}.") from error
        return as_block(X, y, self.name, next(iter(numbers)), columns)


class Batches(RowSource):
    """Anything that yields batches (X, y) and can be iterated again, such as a PyTorch DataLoader; rows come in its order.

    A pass reads each row as often as the iterable yields it: it must yield all N rows once, in any order, in every iteration.
    What comes as a batch is not taken for a random mini-batch, since nothing is known of how the iterable chooses it: chains read
    rows that are drawn uniformly from a copy on disk, which `random_access` makes.

    **Arguments:**

    - `batches`: the iterable, or a function without arguments that returns an iterator.
    - `num_rows`: N, declared; an iteration that has another number raises an error.
    - `name`: for messages.

    ```python
    import numpy as np
    import gyromc as gm
    source = gm.data.Batches([(np.ones((2, 3)), [0, 1]), (np.zeros((1, 3)), [1])], num_rows=3)
    assert source.num_columns == 3 and len(list(source.blocks(10))) == 2
    ```
    """

    def __init__(self, batches: Iterable | Callable[[], Iterable], num_rows: int, name: str = "the batches"):
        require(
            callable(batches) or isinstance(batches, Iterable),
            f"`batches` must yield pairs (X, y), or be a function that returns what does: got {shown(batches)}.",
        )
        again = batches if callable(batches) else lambda: iter(batches)
        self.name, self.num_rows = name, whole(num_rows, "num_rows", least=1)
        require(
            callable(batches) or iter(batches) is not batches,
            f"{name} can be iterated once only. Pass what makes the iterator, such as the DataLoader itself or a function.",
        )
        self._again: Callable[[], Iterable] = again
        made = again()
        require(
            isinstance(made, Iterable), f"`batches` must return what yields pairs (X, y): it returned {shown(made)}."
        )
        first = next(iter(made), None)
        require(first is not None, f"{name} yield nothing.")
        X, _ = self._pair(first, 0, None)
        self.num_columns = X.shape[1]

    def blocks(self, size):
        first = 0
        for item in self._again():
            X, y = self._pair(item, first, self.num_columns)
            for i in range(0, len(X), size):
                yield X[i : i + size], y[i : i + size]
            first += len(X)
            require(
                first <= self.num_rows,
                f"{self.name} yield more than the {self.num_rows:,} rows declared as `num_rows`.",
            )
        require(first == self.num_rows, f"{self.name} yield {first:,} rows, and `num_rows` declares {self.num_rows:,}.")

    def _pair(self, item: Any, first: int, columns: int | None):
        require(
            isinstance(item, tuple | list) and len(item) == 2,
            f"{self.name} must yield pairs (X, y): got {type(item).__name__} at row {first}.",
        )
        return as_block(item[0], item[1], self.name, first, columns)
