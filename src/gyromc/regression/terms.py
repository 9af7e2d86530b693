"""What a regression takes beside columns and a response: groups of rows, and priors.

Arrays and numbers from the user in, checked values out: `GroupTerm`, whose levels have deviations of their own, and `Prior`.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gyromc.checks import numbers, positive, require, shown

__all__ = ["GroupTerm", "Prior", "read_groups", "read_priors"]

MOST_COLUMNS = 6  # of a group: beyond, correlations are too many to be told apart


@dataclasses.dataclass(frozen=True)
class Prior:
    """N(location, scale²) for a coefficient, per unit of its column; the standard deviations of a group are exponential with mean
    `scale`, and have no location.

    ```python
    from gyromc.regression.terms import Prior
    assert Prior(2.0).location == 0
    ```
    """

    scale: float
    location: float = 0.0


@dataclasses.dataclass(frozen=True, eq=False)
class GroupTerm:
    """A group of rows with deviations of their own: (1 + time | subject) has `columns` ("intercept", "time").

    **Arguments:**

    - `name`: of the grouping column, for the tables.
    - `columns`: names of what deviates.
    - `Z`: rows × columns: ones for an intercept, the column itself for a slope.
    - `index`: the level of every row as a place in `levels`; -1 for a level that is not among them, in new rows.
    - `levels`: names of the levels.

    ```python
    import numpy as np
    from gyromc.regression.terms import GroupTerm
    term = GroupTerm("subject", ("intercept",), np.ones((4, 1)), [0, 0, 1, 1], ("Ann", "Bob"))
    assert term.names == ("sd(intercept | subject)",)
    ```
    """

    name: str
    columns: tuple[str, ...]
    Z: np.ndarray
    index: np.ndarray
    levels: tuple[str, ...]

    def __post_init__(self):
        Z, columns, levels = numbers(self.Z, "Z"), tuple(map(str, self.columns)), tuple(map(str, self.levels))
        index = np.asarray(self.index)
        require(
            Z.ndim == 2 and Z.shape[1] == len(columns) and 1 <= len(columns) <= MOST_COLUMNS,
            f"`Z` of the group {self.name!r} must be rows × {len(columns)} columns, at most {MOST_COLUMNS}: got {Z.shape}.",
        )
        require(
            index.shape == Z.shape[:1] and np.issubdtype(index.dtype, np.integer),
            f"`index` of the group {self.name!r} must be one whole number for each of {len(Z)} rows: got {shown(self.index)}.",
        )
        low, high = int(index.min(initial=0)), int(index.max(initial=0))
        require(
            low >= -1 and high < len(levels),
            f"`index` of the group {self.name!r} must be places in its {len(levels)} levels: got {low} to {high}.",
        )
        require(len(set(levels)) == len(levels), f"The levels of the group {self.name!r} must differ.")
        for name, value in (("Z", Z), ("columns", columns), ("index", index.astype(np.int32)), ("levels", levels)):
            object.__setattr__(self, name, value)

    @property
    def names(self) -> tuple[str, ...]:
        """What is reported of the group: its standard deviations, then its correlations."""
        pairs = [(a, b) for i, a in enumerate(self.columns) for b in self.columns[i + 1 :]]
        return (
            *(f"sd({c} | {self.name})" for c in self.columns),
            *(f"cor({a}, {b} | {self.name})" for a, b in pairs),
        )

    def places(self, levels: Sequence[str]) -> np.ndarray:
        """The level of each row as a place in other levels; -1 where it is not among them."""
        known = {level: i for i, level in enumerate(levels)}
        return np.array([known.get(level, -1) for level in self.levels] + [-1])[self.index]


def read_groups(groups: Any, num_rows: int) -> tuple[GroupTerm, ...]:
    """The groups of a fit, checked."""
    groups = (groups,) if isinstance(groups, GroupTerm) else tuple(groups)
    for group in groups:
        require(isinstance(group, GroupTerm), f"`groups` must hold values of `GroupTerm`: got {shown(group)}.")
        require(len(group.Z) == num_rows, f"The group {group.name!r} has {len(group.Z)} rows: `X` has {num_rows}.")
        require(group.index.min(initial=0) >= 0, f"The group {group.name!r} has rows without a level (-1).")
    names = [group.name for group in groups]
    require(len(set(names)) == len(names), f"`groups` must have different names: got {', '.join(names)}.")
    return groups


def read_priors(priors: Any, columns: Sequence[str], groups: Sequence[GroupTerm]) -> dict[str, Prior]:
    """Priors by the name of a column, `intercept` or a group: a `Prior`, a scale, or (location, scale)."""
    if priors is None:
        return {}
    require(isinstance(priors, Mapping), f"`priors` must be a dictionary from names to priors: got {shown(priors)}.")
    names, found = [group.name for group in groups], {}
    for name, prior in priors.items():
        known = [*columns, "intercept", *names]
        require(name in known, f"`priors` has no column or group {shown(name)}: there are {', '.join(known)}.")
        if not isinstance(prior, Prior):
            pair: Any = prior if isinstance(prior, Sequence) and len(prior) == 2 else (0.0, prior)
            prior = Prior(pair[1], pair[0])
        prior = Prior(positive(prior.scale, f"priors[{name!r}]"), float(numbers(prior.location, f"priors[{name!r}]")))
        require(
            name not in names or prior.location == 0, f"The prior of the group {name!r} has a scale only, no location."
        )
        found[name] = prior
    return found
