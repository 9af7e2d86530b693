"""What a user passes to a regression, read and checked: X, y, the family, names, groups of rows, priors."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gyromc.checks import numbers, one_of, require, shown
from gyromc.errors import InvalidInput
from gyromc.targets.base import of_rows, read_rows
from gyromc.targets.families import FAMILIES, Normal, NormalNoise
from gyromc.targets.likelihoods import Likelihood, ResponseKind
from gyromc.targets.priors import Domain, Prior, read_priors

MOST_COLUMNS = 6  # of a group: beyond, correlations are too many to be told apart


@dataclasses.dataclass(frozen=True, eq=False)
class GroupTerm:
    """A group of rows with deviations of their own: (1 + time | subject) has `columns` ("intercept", "time").

    - `Z`: rows × columns: ones for an intercept, the column itself for a slope.
    - `index`: the level of every row as a place in `levels`; -1 for a level that is not among them, in new rows.
    """

    name: str
    columns: tuple[str, ...]
    Z: np.ndarray
    index: np.ndarray
    levels: tuple[str, ...]

    def __post_init__(self):
        Z, columns, levels = numbers(self.Z, "Z"), tuple(map(str, self.columns)), tuple(map(str, self.levels))
        index, of = np.asarray(self.index), f"of the group {self.name!r} must"
        k = len(columns)
        fits = Z.ndim == 2 and Z.shape[1] == k and 1 <= k <= MOST_COLUMNS
        require(fits, f"`Z` {of} be rows × {k} columns, at most {MOST_COLUMNS}: got {Z.shape}.")
        fits = index.shape == Z.shape[:1] and np.issubdtype(index.dtype, np.integer)
        require(fits, f"`index` {of} be one whole number for each of {len(Z)} rows: got {shown(self.index)}.")
        low, high = int(index.min(initial=0)), int(index.max(initial=0))
        inside = low >= -1 and high < len(levels)
        require(inside, f"`index` {of} be places in its {len(levels)} levels: got {low} to {high}.")
        require(len(set(levels)) == len(levels), f"The levels {of} differ.")
        for name, value in {"Z": Z, "columns": columns, "index": index.astype(np.int32), "levels": levels}.items():
            object.__setattr__(self, name, value)

    @property
    def names(self) -> tuple[str, ...]:
        pairs = itertools.combinations(self.columns, 2)
        sds = (f"sd({c} | {self.name})" for c in self.columns)
        return (*sds, *(f"cor({a}, {b} | {self.name})" for a, b in pairs))

    def places(self, levels: Sequence[str]) -> np.ndarray:
        """The level of each row as a place in other levels; -1 where it is not among them."""
        known = {level: i for i, level in enumerate(levels)}
        return np.array([known.get(level, -1) for level in self.levels] + [-1])[self.index]


def cut(beside: Mapping[str, Any] | None, rows: np.ndarray) -> dict[str, Any]:
    """Some of the rows of what stands beside X: arrays by row, and groups, whose arrays `Z` and `index` are by row."""
    found = {}
    for name, value in (beside or {}).items():
        if value is not None and name == "groups":
            found[name] = tuple(dataclasses.replace(group, Z=group.Z[rows], index=group.index[rows]) for group in value)
        elif value is not None:
            found[name] = np.asarray(value)[rows]
    return found


def read_groups(groups: Any, num_rows: int) -> tuple[GroupTerm, ...]:
    """The groups of a fit, checked."""
    groups = groups if isinstance(groups, list | tuple) else (groups,)
    for group in groups:
        require(isinstance(group, GroupTerm), f"`groups` must hold values of `GroupTerm`: got {shown(group)}.")
        require(len(group.Z) == num_rows, f"The group {group.name!r} has {len(group.Z)} rows: `X` has {num_rows}.")
        require(group.index.min(initial=0) >= 0, f"The group {group.name!r} has rows without a level (-1).")
    names = [group.name for group in groups]
    require(len(set(names)) == len(names), f"`groups` must have different names: got {', '.join(names)}.")
    return tuple(groups)


def settable(
    likelihood: Any, columns: Sequence[str], intercept: bool, groups: Sequence[GroupTerm]
) -> dict[str, Domain]:
    """What may be given a prior, by name: coefficients first, then further parameters, then those of groups."""
    # `sd` and `cor` stand for those of all groups, a group's name for its `sd`. A column goes before what has the same name.
    further = NormalNoise.further if likelihood.name == Normal.name else likelihood.further
    found: dict[str, Domain] = {one.name: one.domain for one in further}
    for group in groups:
        found |= dict.fromkeys(("sd", group.name, *group.names[: len(group.columns)]), Domain.POSITIVE)
        if len(group.columns) > 1:
            found |= dict.fromkeys(("cor", f"cor({group.name})"), Domain.CORRELATIONS)
    found |= dict.fromkeys((*columns, *(["intercept"] if intercept else [])), Domain.REAL)
    return found


def of_family(priors: Mapping[str, Any] | None, family: str) -> dict[str, Any]:
    """The priors without those of further parameters that only other families have."""
    every = {one.name for known in (*FAMILIES.values(), NormalNoise) for one in known.further}
    own = settable(FAMILIES[family], (), False, ())
    return {name: prior for name, prior in (priors or {}).items() if name in own or name not in every}


@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """A regression as the user poses it, checked; `known`: what the likelihood is given for every row."""

    family: str
    likelihood: Likelihood
    X: np.ndarray
    y: np.ndarray
    names: tuple[str, ...]
    classes: tuple[str, ...] | None
    intercept: bool
    prior_scale: float
    priors: dict[str, Prior]
    offset: np.ndarray | None = None
    weights: np.ndarray | None = None
    known: tuple[np.ndarray, ...] = ()
    groups: tuple[GroupTerm, ...] = ()


def read(X, y, family: str, *, names, classes, intercept: bool, prior_scale: float, **beside: Any) -> Problem:
    """The problem that a user's arguments pose."""
    one_of(family, tuple(FAMILIES), "family")
    X, y = read_rows(X, y)
    names = tuple(f"x{j}" for j in range(X.shape[1])) if names is None else _texts(names, "names")
    each, what = len(names) == len(set(names)) == X.shape[1], f"({X.shape[1]}), each another: got {shown(list(names))}"
    require(each, f"`names` must have one entry per column of `X` {what}.")
    given = by_row(len(X), **{name: beside.get(name) for name in ("weights", "offset", "trials", "censored")})
    weights, offset, known = given.pop("weights"), given.pop("offset"), _known(y, FAMILIES[family], given)
    classes, seen = None if classes is None else _texts(classes, "classes"), int(y.max()) + 1
    likelihood = FAMILIES[family].made(seen if classes is None else len(classes))
    if likelihood.response is ResponseKind.CLASSES:
        count = getattr(likelihood, "num_classes", 2)
        require(count >= seen, f"`y` holds class {seen - 1}, but `classes` names {count}: classes are counted from 0.")
        classes = tuple(map(str, range(count))) if classes is None else classes
        require(len(classes) == count, f"`classes` must name the {count} values of `y`: got {len(classes)}.")
    else:
        require(classes is None, f"`classes` is for a response that is a class: got it with {family}.")
    groups = read_groups(beside["groups"], len(X))
    scalar = not likelihood.vector
    require(scalar or not groups, f"Groups are not available for the family {family}: leave `groups` out.")
    if weights is not None:
        require(weights.min() >= 0 and weights.max() > 0, "`weights` must not be negative, and some must be positive.")
    require(scalar or offset is None, f"`offset` is not available for the family {family}: leave it out.")
    intercept = intercept and not likelihood.cutpoints
    priors = read_priors(beside["priors"], settable(likelihood, names, intercept, groups))
    centred = all(prior.law == "normal" and not prior["location"] for prior in priors.values())
    other = "for the difference of two classes there is no other"
    require(scalar or centred, f"Priors of the family {family} are normal(0, scale): {other}.")
    about = family, likelihood, X, y, names, classes, intercept, prior_scale, priors
    return Problem(*about, offset, weights, known, groups)


def by_row(num_rows: int, **given: Any) -> dict[str, np.ndarray | None]:
    """Numbers for each row by their names, checked; None for those that are not given."""
    return {name: None if values is None else of_rows(values, name, num_rows) for name, values in given.items()}


def _known(y: np.ndarray, family: type[Likelihood], given: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """What the family is given for every row, after refusing responses that it cannot have."""
    for name, values in given.items():
        fits = " and ".join(other for other, known in FAMILIES.items() if name in known.known)
        right = values is None or name in family.known
        require(right, f"`{name}` is for the families {fits}: got it with {family.name}.")
    trials, censored = given["trials"], given["censored"]
    counted = trials is not None or "trials" not in family.known
    require(counted, f"The family {family.name} needs `trials`, one number for each row.")
    family.require(y)
    if trials is not None:
        odd = np.flatnonzero((trials < y) | (trials < 1) | (trials != np.round(trials)))
        if odd.size:
            first = f"row {odd[0]} has {trials[odd[0]]:g} ({odd.size} rows differ)"
            least = "whole numbers of at least 1 and at least `y`"
            raise InvalidInput(f"`trials` must be {least}: {first}. Correct these rows.")
    if censored is not None:
        binary = np.all((censored == 0) | (censored == 1))
        require(binary, "`censored` must be 1 where a time is censored, and 0 elsewhere.")
        require(not np.all(censored), "Every time is censored: without an event there is nothing to learn.")
    if family.response is ResponseKind.CLASSES:
        every = f"every row is {y[0]:g}. There is nothing to tell apart"
        require(np.unique(y).size >= 2, f"`y` must hold at least two classes: {every}.")
    given["censored"] = np.zeros(len(y)) if censored is None else censored
    return tuple(np.asarray(given[name]) for name in family.known)


def _texts(given, name: str) -> tuple[str, ...]:
    given = given.tolist() if hasattr(given, "tolist") else given
    good = isinstance(given, list | tuple) and all(isinstance(text, str | int | float) for text in given)
    require(good, f"`{name}` must be a list of texts or numbers: got {shown(given)}.")
    return tuple(map(str, given))
