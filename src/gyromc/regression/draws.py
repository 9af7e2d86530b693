"""A posterior as draws of θ, and what it says about new rows: E[h] ≈ the mean of h(θ_s) over draws.

Draws from independent chains in; predictions in the user's units out: the expectation, its Monte Carlo error (which more steps
reduce), its posterior spread (which more data reduce) and the noise of one observation (which nothing reduces), each apart. Plain
arrays, so that it can be pickled.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special

from gyromc.checks import numbers, require
from gyromc.errors import InvalidInput
from gyromc.io.codec import known_classes
from gyromc.records import Renamed
from gyromc.regression.averages import (
    Averages,
    against_first,
    averages,
    class_averages,
    finite,
    in_parts,
    linear_averages,
)
from gyromc.regression.terms import GroupTerm
from gyromc.regression.units import Units
from gyromc.targets.families import StudentT
from gyromc.targets.likelihoods import Categorical, Likelihood, Normal

__all__ = ["POSTERIOR_CLASSES", "Draws", "GroupDraws", "Predictions", "check_posterior"]

AT_ONCE = 2_000_000  # numbers held while predicting


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """What the posterior expects of y at some rows: vectors, or rows × classes of probabilities.

    **Attributes:**

    - `mean`: E[y | x], for classes their probabilities.
    - `std_error`: the Monte Carlo standard error of `mean`; more effort makes it smaller.
    - `spread`: the posterior standard deviation of E[y | x, θ]; more data make it smaller.
    - `noise`: the standard deviation of y about E[y | x, θ]; nothing makes it smaller.
    """

    mean: np.ndarray
    std_error: np.ndarray
    spread: np.ndarray
    noise: np.ndarray

    mc_error = Renamed("std_error")

    @property
    def sd(self) -> np.ndarray:
        """The predictive standard deviation of one observation: spread and noise together."""
        return np.hypot(self.spread, self.noise)


@dataclasses.dataclass(frozen=True, eq=False)
class GroupDraws:
    """Draws of a group's deviations, in the user's units.

    **Attributes:**

    - `name`, `columns`, `levels`: as in the `GroupTerm` that was fitted.
    - `deviations`: chains × draws × levels × columns.
    - `root`: chains × draws × columns × columns, the Cholesky factor of the covariance of a level's deviations.
    """

    name: str
    columns: tuple[str, ...]
    levels: tuple[str, ...]
    deviations: Float[np.ndarray, "chains draws levels k"]
    root: Float[np.ndarray, "chains draws k k"]

    @property
    def mean(self) -> np.ndarray:
        """Posterior means: levels × columns."""
        return self.deviations.mean(axis=(0, 1))

    @property
    def sd(self) -> np.ndarray:
        """Posterior standard deviations: levels × columns."""
        return self.deviations.std(axis=(0, 1))

    def spreads(self) -> np.ndarray:
        """Standard deviations, then correlations, as in `GroupTerm.names`: chains × draws × numbers."""
        covariance = self.root @ np.swapaxes(self.root, -1, -2)
        sd = np.sqrt(np.einsum("...ii->...i", covariance))
        k = len(self.columns)
        pairs = [(i, j) for i in range(k) for j in range(i + 1, k)]
        found = [covariance[..., i, j] / (sd[..., i] * sd[..., j]) for i, j in pairs]
        return np.concatenate([sd, *(c[..., None] for c in found)], axis=-1)

    def placed(self, term: GroupTerm) -> "PlacedGroup":
        """The group for new rows. A level that was not fitted has deviations of its own, drawn from their law: the same for all
        its rows.
        """
        place, b = term.places(self.levels), self.deviations
        new, of_new = np.unique(term.index[place < 0], return_inverse=True)
        if new.size:
            noise = np.random.default_rng(0).standard_normal((*b.shape[:2], len(new), b.shape[3]))
            b = np.concatenate([b, noise @ np.swapaxes(self.root, -1, -2)], axis=2)
            place = place.copy()
            place[place < 0] = len(self.levels) + of_new
        return PlacedGroup(b, place, term.Z)


@dataclasses.dataclass(frozen=True, eq=False)
class PlacedGroup:
    """A group for some rows: `deviations` of levels, the `place` of each row among these, and the columns `Z` that deviate."""

    deviations: np.ndarray
    place: np.ndarray
    Z: np.ndarray

    def at(self, rows: slice, dtype: Any) -> np.ndarray:
        """What the group adds to the linear predictors: chains × draws × rows."""
        b = self.deviations.astype(dtype, copy=False)
        place, Z = self.place[rows], self.Z[rows].astype(dtype, copy=False)
        return functools.reduce(np.add, [b[:, :, place, k] * Z[:, k] for k in range(Z.shape[1])])


@dataclasses.dataclass(frozen=True, eq=False)
class Draws:
    """Draws of θ, all of the same weight.

    **Attributes:**

    - `likelihood`, `units`: the model, and how standardised columns belong to the user's.
    - `theta`: chains × draws × coefficients, in standardised coordinates.
    - `given`: what else the law of y depends on (σ of a linear model, …), each chains × draws, in the user's units.
    - `groups`: the deviations of groups.
    """

    likelihood: Likelihood
    units: Units
    theta: Float[np.ndarray, "chains draws size"]
    given: tuple[Float[np.ndarray, "chains draws"], ...] = ()
    groups: tuple[GroupDraws, ...] = ()

    @property
    def count(self) -> int:
        """How many draws there are, of all chains."""
        return self.theta.shape[0] * self.theta.shape[1]

    @property
    def weights(self) -> np.ndarray:
        """Ones, chains × draws: earlier versions weighted draws."""
        return np.ones(self.theta.shape[:2])

    @property
    def num_columns(self) -> int:
        """How many columns a row has, the intercept's not counted."""
        return len(self.units.scale)

    def coefficients(self) -> np.ndarray:
        """The draws as coefficients in the user's units: chains × draws × coefficients."""
        T, offset = self.units.coefficients(self.likelihood.basis)
        return self.theta @ T.T + offset

    def average(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean over draws of values, chains × draws × …, and its standard error from the spread between chains."""
        mean = np.mean(values, axis=(0, 1))
        by_chain = np.mean(values - mean, axis=1)
        return mean, np.sqrt(np.sum(by_chain**2, axis=0) / (len(by_chain) - 1) / len(by_chain))

    def spreads(self) -> np.ndarray:
        """The posterior standard deviation of each coefficient."""
        draws = self.coefficients()
        return np.sqrt(self.average((draws - self.average(draws)[0]) ** 2)[0])

    def quantiles(self, levels: Sequence[float]) -> np.ndarray:
        """Quantiles of each coefficient: levels × coefficients."""
        draws = self.coefficients()
        return np.quantile(draws.reshape(-1, draws.shape[-1]), levels, axis=0, method="hazen")

    def thinned(self, count: int) -> "Draws":
        """At most about so many draws, evenly spaced in every chain."""
        step = max(1, -(-self.count // count))
        groups = tuple(
            dataclasses.replace(g, deviations=g.deviations[:, ::step], root=g.root[:, ::step]) for g in self.groups
        )
        given = tuple(g[:, ::step] for g in self.given)
        return dataclasses.replace(self, theta=self.theta[:, ::step], given=given, groups=groups)

    def predict(self, X, **beside) -> Predictions:
        """What the posterior expects of y at each row of X; `beside` as for `predictors`."""
        X = self._columns(X)
        beside = self._read(len(X), **beside)
        measured = isinstance(self.likelihood, Normal | StudentT)
        if measured and not self.groups:
            return Predictions(*self._linear(X, **beside))
        draws = self if measured else self.single()  # a mean of 10⁶ with a spread of 1 needs double precision
        if isinstance(self.likelihood, Categorical):
            odds, chains = against_first(self.theta, self.likelihood.basis), len(self.theta)
            part = lambda rows: class_averages(odds, chains, self.units.rows(X[rows]).astype(np.float32))
        else:
            part = lambda rows: self._averages(draws, X, rows, beside)
        return Predictions(*in_parts(part, len(X), self.count * getattr(self.likelihood, "num_classes", 1)))

    def log_densities(self, X, y: np.ndarray, **beside) -> np.ndarray:
        """log p(y | x) at each row, θ averaged out: for classes the log of the predictive probability of the class that came."""
        X, found = self._columns(X), []
        beside = self._read(len(X), **beside)
        for rows in self._chunks(len(X)):
            t, given = self._predictors(X, rows, **beside)
            densities = self.likelihood.log_density(t, y[rows], *given)
            found.append(special.logsumexp(densities, axis=(0, 1)) - np.log(self.count))
        return np.concatenate(found)

    def predictors(self, X, *, offset=None, trials=None, groups=()) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """(t, given): what `likelihood` takes for the law of y at the rows of X, for every draw, in the user's units.

        `t` is chains × draws × rows (× q where a row has several linear predictors), and each of `given` broadcasts with chains
        × draws × rows. So `likelihood.sample(rng, t, *given)` are responses as the posterior expects them.

        **Arguments:**

        - `X`: rows × columns, as in the fit.
        - `offset`, `trials`: one number per row; the offset is 0 where it is left out.
        - `groups`: a `GroupTerm` for every group of the fit, by name. A level that the fit has not seen gets a
          deviation drawn from the law of the levels.
        """
        X = self._columns(X)
        beside = self._read(len(X), offset=offset, trials=trials, groups=groups)
        return self._predictors(X, slice(0, len(X)), **beside)

    def single(self) -> "Draws":
        """The same draws in single precision."""
        groups = tuple(
            dataclasses.replace(g, deviations=np.float32(g.deviations), root=np.float32(g.root)) for g in self.groups
        )
        given = tuple(np.float32(g) for g in self.given)
        return dataclasses.replace(self, theta=np.float32(self.theta), given=given, groups=groups)

    def _averages(self, draws: "Draws", X: np.ndarray, rows: slice, beside: dict[str, Any]) -> Averages:
        """Averages of some rows over these draws; over the draws in double precision where the numbers are too large."""
        found = averages(self.likelihood, *draws._predictors(X, rows, **beside))
        if draws is self or finite(found):
            return found
        return averages(self.likelihood, *self._predictors(X, rows, **beside))

    def _linear(self, X: np.ndarray, offset=None, **_: Any) -> Averages:
        """Predictions where the mean is the linear predictor, in closed form."""
        before = self.units.known(X) + (0.0 if offset is None else offset)
        given = tuple(g[..., None] for g in self.given)
        variance = self.likelihood.variance(np.zeros((*self.theta.shape[:2], 1)), *given)
        return linear_averages(self.theta, self.units.rows(X), before, self.units.y_scale, float(variance.mean()))

    def _read(self, num_rows: int, offset=None, trials=None, groups=()) -> dict[str, Any]:
        """What belongs to the rows beside X, checked, with groups placed."""
        require(
            trials is not None or not self.likelihood.known,
            "Counts of successes need `trials`, one number for each row of `X`.",
        )
        return {
            "offset": None if offset is None else _of_rows(offset, "offset", num_rows),
            "trials": None if trials is None else _of_rows(trials, "trials", num_rows),
            "groups": tuple(group.placed(_term_of(group, groups, num_rows)) for group in self.groups),
        }

    def _columns(self, X) -> np.ndarray:
        X = numbers(X, "X")
        require(
            X.ndim == 2 and X.shape[1] == self.num_columns,
            f"`X` must have {self.num_columns} columns, as in the fit: got shape {X.shape}.",
        )
        return X

    def _chunks(self, num_rows: int) -> list[slice]:
        at_once = max(1, AT_ONCE // (self.count * max(self.likelihood.outputs + 1, 2)))
        return [slice(first, first + at_once) for first in range(0, max(1, num_rows), at_once)]

    def _predictors(
        self, X: np.ndarray, rows: slice, offset=None, trials=None, groups=()
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """(t, given) at some of the rows, in the precision of `theta`."""
        dtype = self.theta.dtype
        Z = self.units.rows(X[rows]).astype(dtype, copy=False)
        if self.likelihood.outputs > 1:
            blocks = self.theta.reshape(*self.theta.shape[:2], self.likelihood.outputs, -1)
            return np.swapaxes(blocks @ Z.T, -1, -2), ()
        before = self.units.known(X[rows]) + (0.0 if offset is None else offset[rows])
        t = dtype.type(self.units.y_scale) * (self.theta @ Z.T)
        t += np.asarray(before, dtype)
        for group in groups:
            t += group.at(rows, dtype)
        known = () if trials is None else (trials[rows].astype(dtype, copy=False),)
        return t, (*known, *(g[..., None] for g in self.given))


def _of_rows(values, name: str, num_rows: int) -> np.ndarray:
    values = numbers(values, name)
    fits = values.shape == (num_rows,)
    require(fits, f"`{name}` must have one entry per row of `X` ({num_rows}): got shape {values.shape}.")
    return values


def _term_of(group: GroupDraws, terms: Sequence[GroupTerm], num_rows: int) -> GroupTerm:
    """The term of new rows for a fitted group."""
    for term in terms:
        if term.name == group.name:
            fits = term.columns == group.columns and len(term.Z) == num_rows
            require(
                fits, f"The group {group.name!r} must have the columns {', '.join(group.columns)} for {num_rows} rows."
            )
            return term
    raise InvalidInput(
        f"`groups` has no term for the group {group.name!r} of the fit. Pass a `GroupTerm`; index -1 stands for a new level."
    )


POSTERIOR_CLASSES = known_classes(Draws, GroupDraws, Units, below=[Likelihood])
"""The classes that a stored posterior is made of, by name: what a saved file may hold, and nothing else."""


def check_posterior(found: Any) -> None:
    """Raise `ValueError` where the parts of a stored posterior do not fit each other."""
    shape = found.theta.shape
    columns = found.likelihood.outputs * found.units.rows(np.zeros((1, found.num_columns))).shape[1]
    groups = all(
        group.deviations.shape == (*shape[:2], len(group.levels), len(group.columns)) for group in found.groups
    )
    if shape[2] != columns or not groups:
        raise ValueError("the draws of the posterior do not have the shape of the model")
