"""A posterior as draws of θ, and what it says about new rows: E[h] ≈ the mean of h(θ_s) over draws.

Draws from independent chains in; predictions in the user's units out: the expectation, its Monte Carlo error (which more steps
reduce), its posterior spread (which more data reduce) and the noise of one observation (which nothing reduces), each apart. Plain
arrays, so that it can be pickled.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy import special

from gyromc.checks import numbers, require
from gyromc.errors import InvalidInput
from gyromc.records import Renamed
from gyromc.regression.terms import GroupTerm
from gyromc.regression.units import Units
from gyromc.targets.likelihoods import Likelihood

__all__ = ["Draws", "GroupDraws", "Predictions"]

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
    deviations: np.ndarray
    root: np.ndarray

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

    def at(self, term: GroupTerm, rows: slice) -> np.ndarray:
        """What the group adds to the linear predictors of new rows: chains × draws × rows.

        A level that was not fitted has deviations of its own, drawn from their law: the same for all its rows.
        """
        place, Z = term.places(self.levels), term.Z[rows]
        new = sorted({level for level, p in zip(term.index, place, strict=True) if p < 0})
        b = self.deviations
        if new:
            noise = np.random.default_rng(0).standard_normal((*b.shape[:2], len(new), b.shape[3]))
            b = np.concatenate([b, noise @ np.swapaxes(self.root, -1, -2)], axis=2)
            fresh = {level: len(self.levels) + i for i, level in enumerate(new)}
            place = np.array([p if p >= 0 else fresh[level] for level, p in zip(term.index, place, strict=True)])
        return np.sum(b[:, :, place[rows]] * Z, axis=-1)


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
    theta: np.ndarray
    given: tuple[np.ndarray, ...] = ()
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
        parts = [self._predict(*self._predictors(X, rows, **beside)) for rows in self._chunks(len(X))]
        return Predictions(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def log_densities(self, X, y: np.ndarray, **beside) -> np.ndarray:
        """log p(y | x) at each row, θ averaged out: for classes the log of the predictive probability of the class that came."""
        X, found = self._columns(X), []
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
        return self._predictors(X, slice(0, len(X)), offset=offset, trials=trials, groups=groups)

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
        """(t, given) at some of the rows."""
        Z = self.units.rows(X[rows])
        if self.likelihood.outputs > 1:
            blocks = self.theta.reshape(*self.theta.shape[:2], self.likelihood.outputs, -1)
            return np.swapaxes(blocks @ Z.T, -1, -2), ()
        t = self.units.known(X[rows]) + self.units.y_scale * (self.theta @ Z.T)
        if offset is not None:
            t = t + _of_rows(offset, "offset", len(X))[rows]
        known = ()
        if self.likelihood.known:
            require(trials is not None, "The family beta-binomial needs `trials`, one number for each row of `X`.")
            known = (_of_rows(trials, "trials", len(X))[rows],)
        for group in self.groups:
            t = t + group.at(_term_of(group, groups, len(X)), rows)
        return t, (*known, *(g[..., None] for g in self.given))

    def _predict(self, t: np.ndarray, given: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        means = self.likelihood.mean(t, *given)
        mean, error = self.average(means)
        variance = np.maximum(0.0, self.average((means - mean) ** 2)[0])
        noise = self.average(self.likelihood.variance(means, *given))[0]
        return mean, error, np.sqrt(variance), np.sqrt(noise)


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
