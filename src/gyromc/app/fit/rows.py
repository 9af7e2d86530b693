"""The rows of a table as a fit takes them: X, offset, weights, trials, group terms and clusters, which are cut together.

Input: made by `Encoding.rows_of`. Output: the keyword arguments of `gyromc.regression.fit.fit` and of predictions.
"""

import dataclasses
from typing import Any

import numpy as np

from gyromc.regression.problem import GroupTerm

__all__ = ["DesignRows"]


@dataclasses.dataclass(frozen=True, eq=False)
class DesignRows:
    """What a fit has to know of each row, except the response; None where a model has no such thing."""

    X: np.ndarray
    groups: tuple[GroupTerm, ...] = ()
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
        groups = tuple(dataclasses.replace(group, Z=group.Z[rows], index=group.index[rows]) for group in self.groups)
        return DesignRows(self.X[rows], groups, **cut)

    def beside(self) -> dict[str, Any]:
        """Return what fits and predictions take beside X, by name."""
        found = {"groups": self.groups or None, "offset": self.offset, "trials": self.trials}
        return {name: value for name, value in found.items() if value is not None}
