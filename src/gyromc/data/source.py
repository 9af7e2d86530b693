"""The interface of a source of rows (x, y)."""

import abc
from collections.abc import Iterator
from typing import Any

import numpy as np

from gyromc.checks import require
from gyromc.errors import InvalidInput

__all__ = ["Block", "RowSource", "as_block"]

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
