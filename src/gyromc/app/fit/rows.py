"""The rows of a table as a fit takes them: X, offset, weights, trials, group terms and clusters, which are cut together.

Input: made by `Encoding.rows_of`. Output: the keyword arguments of `gyromc.regression.fit.fit` and of predictions.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

__all__ = ["DesignRows", "GroupRows"]


@dataclasses.dataclass(frozen=True, eq=False)
class GroupRows:
    """A group term of some rows: the columns `Z` whose effects differ between `levels`; `index` is −1 for an unknown level."""

    name: str
    columns: tuple[str, ...]
    Z: np.ndarray
    index: np.ndarray
    levels: tuple[str, ...]

    def take(self, rows: np.ndarray) -> "GroupRows":
        """Return the same for some rows."""
        return dataclasses.replace(self, Z=self.Z[rows], index=self.index[rows])


@dataclasses.dataclass(frozen=True, eq=False)
class DesignRows:
    """What a fit has to know of each row, except the response; None where a model has no such thing."""

    X: np.ndarray
    groups: tuple[GroupRows, ...] = ()
    offset: np.ndarray | None = None
    weights: np.ndarray | None = None
    trials: np.ndarray | None = None
    clusters: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.X)

    def take(self, rows: np.ndarray) -> "DesignRows":
        """Return some of the rows."""
        cut = {
            name: None if value is None else value[rows]
            for name, value in ((field, getattr(self, field)) for field in ("offset", "weights", "trials", "clusters"))
        }
        return DesignRows(self.X[rows], tuple(group.take(rows) for group in self.groups), **cut)

    def extras(self, names: Sequence[str] = ("groups", "offset", "weights", "trials")) -> dict[str, Any]:
        """Return what there is besides X, by name."""
        found = {name: getattr(self, name) for name in names}
        return {name: value for name, value in found.items() if value is not None and (name != "groups" or value)}
