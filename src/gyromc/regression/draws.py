"""A posterior as draws of θ, and what it predicts about new rows: E[h] ≈ the mean of h(θ_s) over draws.

Input: draws from independent chains, and rows. Output: predictions in the user's units, with the Monte Carlo error (which more
steps reduce), the posterior standard deviation (which more data reduce) and the noise of one observation (which nothing reduces)
apart; the law of y at rows, draw by draw (`Predictive`); and Monte Carlo errors of standard deviations and quantiles. Plain
arrays, so that they can be pickled.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special

from gyromc.checks import numbers, require
from gyromc.io.archive import known_classes
from gyromc.posterior import weighted_quantiles
from gyromc.regression.averages import (
    Averages,
    against_first,
    averages,
    class_averages,
    in_parts,
    linear_averages,
)
from gyromc.regression.problem import GroupTerm, of_rows
from gyromc.regression.standardised import Units
from gyromc.targets import families
from gyromc.targets.likelihoods import Likelihood, ResponseKind, library

__all__ = [
    "MOST_DRAWS",
    "POSTERIOR_CLASSES",
    "Draws",
    "GroupDraws",
    "Predictions",
    "Predictive",
    "ResponseKind",
    "check_posterior",
    "quantile_errors",
    "sd_errors",
    "weighted_ends",
]

REACH = 3.0  # errors of the share, up and down: over fewer draws the slope would be mostly noise
MOST_REACH = 0.6  # of the share itself


def _between(values: np.ndarray) -> np.ndarray:
    """The standard error of the mean of values, chains × draws × …, from the means of the chains."""
    by_chain = values.mean(axis=1)
    return by_chain.std(axis=0, ddof=1) / np.sqrt(len(by_chain))


def sd_errors(draws: np.ndarray) -> np.ndarray:
    """The standard error of the standard deviation of draws, chains × draws × …"""
    squares = (draws - draws.mean(axis=(0, 1))) ** 2
    sd = np.sqrt(squares.mean(axis=(0, 1)))
    return _between(squares) / (2 * np.maximum(sd, 1e-300))  # d√v = dv/(2√v)


def quantile_errors(draws: np.ndarray, levels: Sequence[float]) -> np.ndarray:
    """The standard errors of quantiles of draws, chains × draws × numbers: levels × numbers.

    The share of draws below a quantile has an error that the chains show; quantiles a few such errors up and down give its slope.
    """
    flat, found = draws.reshape(-1, draws.shape[-1]), []
    for level in levels:
        quantile = np.quantile(flat, level, axis=0, method="hazen")
        error = _between(draws <= quantile)
        reach = np.minimum(REACH * error, MOST_REACH * min(level, 1 - level)) + 1 / len(flat)
        columns = zip(flat.T, np.stack([level - reach, level + reach], axis=1), strict=True)
        apart = [np.diff(np.quantile(column, np.clip(both, 0, 1), method="hazen"))[0] for column, both in columns]
        found.append(error * apart / (2 * reach))
    return np.array(found).reshape(len(levels), draws.shape[-1])


def weighted_ends(values: np.ndarray, weights: np.ndarray, levels: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """Quantiles of weighted draws, chains × draws × numbers, and their standard errors: levels × numbers each.

    The weights make the means of the numbers and of their squares right. So the error of a share of draws below a quantile is
    what the chains show of it beside their own means and mean squares.
    """
    chains, p, found = len(values), np.asarray(levels), []
    for x in np.moveaxis(values, -1, 0):
        z = (x - x.mean()) / max(float(x.std()), 1e-300)
        known = np.column_stack([np.ones(chains), z.mean(axis=1), (z**2).mean(axis=1)])
        ends = weighted_quantiles(x, weights, p)
        below = np.mean(x[..., None] <= ends, axis=1)
        left = below - known @ np.linalg.lstsq(known, below, rcond=None)[0]
        error = np.sqrt(np.sum(left**2, axis=0) / (chains - known.shape[1]) / chains)
        reach = np.minimum(REACH * error, MOST_REACH * np.minimum(p, 1 - p)) + 1 / x.size
        apart = weighted_quantiles(x, weights, p + reach) - weighted_quantiles(x, weights, p - reach)
        found.append((ends, error * apart / (2 * reach)))
    ends, errors = np.array(found).reshape(-1, 2, p.size).transpose(1, 2, 0)
    return ends, errors


AT_ONCE = 2_000_000  # numbers held while predicting


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """What the posterior expects of y at some rows: vectors, or rows × classes of probabilities.

    **Attributes:**

    - `mean`: E[y | x], for classes their probabilities.
    - `std_error`: the Monte Carlo standard error of `mean`; more effort makes it smaller.
    - `sd`: the posterior standard deviation of E[y | x, θ]; more data make it smaller.
    - `noise`: the standard deviation of y about E[y | x, θ]; nothing makes it smaller.
    """

    mean: np.ndarray
    std_error: np.ndarray
    sd: np.ndarray
    noise: np.ndarray

    @property
    def predictive_sd(self) -> np.ndarray:
        """The predictive standard deviation of one observation: of its mean and noise together."""
        return np.hypot(self.sd, self.noise)

    def plot(self, rows: int = 30) -> Any:
        """Draw a Matplotlib figure: the mean of each row, the interval of that mean (thick) and of one observation (thin), 95 %.

        For classes the probability of the last one, with the interval of the mean alone.
        """
        from gyromc.extras import needs

        with needs("plots", "`plot`"):
            from gyromc.show.plots import interval_plot
        classes = self.mean.ndim > 1
        last = lambda values: np.asarray(values)[:rows, -1] if classes else np.asarray(values)[:rows]
        mean, sd = last(self.mean), last(self.sd)
        ends = lambda deviation: mean[:, None] + 1.96 * np.stack([-deviation, deviation], axis=1)
        known = [ends(sd).clip(0, 1), None] if classes else [ends(last(self.predictive_sd)), ends(sd)]
        return interval_plot([f"row {i + 1}" for i in range(len(mean))], mean, *known)


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

    def parameters(self) -> np.ndarray:
        """Standard deviations, then correlations, as in `GroupTerm.names`: chains × draws × numbers, NumPy's or JAX's."""
        xp, k = library(self.root), len(self.columns)
        covariance = self.root @ xp.swapaxes(self.root, -1, -2)
        sd = [xp.sqrt(covariance[..., i, i]) for i in range(k)]
        pairs = itertools.combinations(range(k), 2)
        return xp.stack([*sd, *(covariance[..., i, j] / (sd[i] * sd[j]) for i, j in pairs)], axis=-1)

    def added(self, term: GroupTerm) -> Callable[[slice, Any], np.ndarray]:
        """What the group adds to the linear predictors of some of the term's rows, chains × draws × rows, in a precision.

        A level that was not fitted has deviations of its own, drawn from their law: the same for all its rows.
        """
        place, b = term.places(self.levels), self.deviations
        new, of_new = np.unique(term.index[place < 0], return_inverse=True)
        if new.size:
            noise = np.random.default_rng(0).standard_normal((*b.shape[:2], len(new), b.shape[3]))
            b = np.concatenate([b, noise @ np.swapaxes(self.root, -1, -2)], axis=2)
            place = place.copy()
            place[place < 0] = len(self.levels) + of_new

        def at(rows: slice, dtype: Any) -> np.ndarray:
            Z, own = term.Z[rows].astype(dtype, copy=False), b.astype(dtype, copy=False)[:, :, place[rows]]
            return functools.reduce(np.add, [own[..., k] * Z[:, k] for k in range(Z.shape[1])])

        return at


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
    def num_columns(self) -> int:
        """How many columns a row has, the intercept's not counted."""
        return len(self.units.scale)

    def coefficients(self) -> np.ndarray:
        """The draws as coefficients in the user's units: chains × draws × coefficients."""
        T, offset = self.units.coefficients(self.likelihood.basis)
        return self.theta @ T.T + offset

    def further(self) -> Any:
        """The likelihood's further parameters, then those of groups, in the user's units: chains × draws × numbers.

        Cutpoints are raised from the columns' means to where all columns are zero.
        """
        raised = self.coefficients() @ self.units.center if self.likelihood.cutpoints else 0.0
        found = [(values + raised)[..., None] for values in self.given] + [group.parameters() for group in self.groups]
        return library(self.theta).concatenate([self.theta[..., :0], *found], axis=-1)

    def average(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The mean over draws of values, chains × draws × …, and its standard error from the variance between chains."""
        mean = np.mean(values, axis=(0, 1))
        return mean, _between(values - mean)

    def thinned(self, count: int) -> "Draws":
        """At most about so many draws, evenly spaced in every chain."""
        step = max(1, -(-self.count // count))
        return self._each(lambda values: values[:, ::step])

    def predict(self, X, **beside) -> Predictions:
        """What the posterior expects of y at each row of X; `beside` as for `predictors`."""
        X = self._columns(X)
        beside = self._read(len(X), **beside)
        measured = self.likelihood.measured
        if measured and not self.groups:
            return Predictions(*self._linear(X, **beside))
        draws = self if measured else self.single()  # a mean of 10⁶ with an sd of 1 needs double precision
        if self.likelihood.vector:
            odds, chains = against_first(self.theta, self.likelihood.basis), len(self.theta)
            part = lambda rows: class_averages(odds, chains, self.units.rows(X[rows]).astype(np.float32))
        else:
            part = lambda rows: self._averages(draws, X, rows, beside)
        return Predictions(*in_parts(part, len(X), self.count * getattr(self.likelihood, "num_classes", 1)))

    def log_densities(self, X, y: np.ndarray, **beside) -> np.ndarray:
        """log p(y | x) at each row, θ averaged out: for classes the log of the predictive probability of the class that came."""
        X, found = self._columns(X), []
        beside = self._read(len(X), **beside)
        at_once = max(1, AT_ONCE // (self.count * (self.likelihood.outputs + 1)))
        for first in range(0, max(1, len(X)), at_once):
            rows = slice(first, first + at_once)
            t, given = self._predictors(X, rows, **beside)
            densities = self.likelihood.log_density(t, y[rows], *given)
            found.append(special.logsumexp(densities, axis=(0, 1)) - np.log(self.count))
        return np.concatenate(found)

    def predictors(
        self, X, *, offset=None, trials=None, censored=None, groups=()
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """(t, given): what `likelihood` takes for the law of y at the rows of X, for every draw, in the user's units.

        `t` is chains × draws × rows (× q where a row has several linear predictors), and each of `given` broadcasts with chains
        × draws × rows. So `likelihood.sample(rng, t, *given)` are responses as the posterior expects them.

        **Arguments:**

        - `X`: rows × columns, as in the fit.
        - `offset`, `trials`, `censored`: one number per row; offset and `censored` are 0 where they are left out.
        - `groups`: a `GroupTerm` for every group of the fit, by name. A level that the fit has not seen gets a
          deviation drawn from the law of the levels.
        """
        X = self._columns(X)
        beside = self._read(len(X), offset=offset, trials=trials, censored=censored, groups=groups)
        return self._predictors(X, slice(0, len(X)), **beside)

    def single(self) -> "Draws":
        """The same draws in single precision."""
        return self._each(lambda array: array.astype(np.float32))

    def _each(self, change: Callable[[np.ndarray], np.ndarray]) -> "Draws":
        """The draws with every array of them changed, chains × draws × …."""
        groups = tuple(
            dataclasses.replace(g, deviations=change(g.deviations), root=change(g.root)) for g in self.groups
        )
        given = tuple(change(values) for values in self.given)
        return dataclasses.replace(self, theta=change(self.theta), given=given, groups=groups)

    def _averages(self, draws: "Draws", X: np.ndarray, rows: slice, beside: dict[str, Any]) -> Averages:
        """Averages of some rows over these draws; over the draws in double precision where the numbers are too large."""
        found = averages(self.likelihood, *draws._predictors(X, rows, **beside))
        # In single precision eᵗ is infinite from t = 88 on, and its square from 44 on.
        if draws is self or all(np.isfinite(values).all() for values in found):
            return found
        return averages(self.likelihood, *self._predictors(X, rows, **beside))

    def _linear(self, X: np.ndarray, offset=None, **_: Any) -> Averages:
        """Predictions where the mean is the linear predictor, in closed form."""
        before = self.units.known(X) + (0.0 if offset is None else offset)
        given = tuple(g[..., None] for g in self.given)
        variance = self.likelihood.variance(np.zeros((*self.theta.shape[:2], 1)), *given)
        return linear_averages(self.theta, self.units.rows(X), before, self.units.y_scale, float(variance.mean()))

    def _read(self, num_rows: int, offset=None, trials=None, censored=None, groups=()) -> dict[str, Any]:
        """What belongs to the rows beside X, checked, with groups placed."""
        require(
            trials is not None or "trials" not in self.likelihood.known,
            "Counts of successes need `trials`, one number for each row of `X`.",
        )
        given = {"trials": trials, "censored": np.zeros(num_rows) if censored is None else censored}
        terms, added = {term.name: term for term in groups}, []
        for group in self.groups:
            name, term = group.name, terms.get(group.name)
            require(
                term is not None,
                f"`groups` has no term for the group {name!r} of the fit. Pass a `GroupTerm`; index -1 stands for a new level.",
            )
            assert term is not None
            require(
                term.columns == group.columns and len(term.Z) == num_rows,
                f"The group {name!r} must have the columns {', '.join(group.columns)} for {num_rows} rows.",
            )
            added.append(group.added(term))
        known = tuple(of_rows(given[name], name, num_rows) for name in self.likelihood.known)
        return {"offset": of_rows(offset, "offset", num_rows), "known": known, "groups": tuple(added)}

    def _columns(self, X) -> np.ndarray:
        X = numbers(X, "X")
        require(
            X.ndim == 2 and X.shape[1] == self.num_columns,
            f"`X` must have {self.num_columns} columns, as in the fit: got shape {X.shape}.",
        )
        return X

    def _predictors(
        self, X: np.ndarray, rows: slice, offset=None, known=(), groups=()
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """(t, given) at some of the rows, in the precision of `theta`."""
        dtype = self.theta.dtype
        Z = self.units.rows(X[rows]).astype(dtype, copy=False)
        if self.likelihood.vector:
            blocks = self.theta.reshape(*self.theta.shape[:2], self.likelihood.outputs, -1)
            return np.swapaxes(blocks @ Z.T, -1, -2), ()
        before = self.units.known(X[rows]) + (0.0 if offset is None else offset[rows])
        t = dtype.type(self.units.y_scale) * (self.theta @ Z.T)
        t += np.asarray(before, dtype)
        for group in groups:
            t += group(rows, dtype)
        return t, (*(k[rows].astype(dtype, copy=False) for k in known), *(g[..., None] for g in self.given))


MOST_DRAWS = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class Predictive:
    """The law of y at n rows under each of S draws.

    **Attributes:**

    - `likelihood`: the model of y; `t`, `given`: what it takes for each draw and row: S × n (× q), and arrays that broadcast with
      S × n.
    - `mean`: E[y | θ_s], S × n; for more than two classes their probabilities, S × n × C.
    - `variance`: of y given θ_s, of the same shape.

    ```python
    import numpy as np
    from gyromc.regression.fit import fit
    from gyromc.regression.draws import Predictive
    X, y = np.arange(12.0)[:, None], np.arange(12) % 2
    law = Predictive.of(fit(X, y, "logistic", effort="quick").posterior, X)
    assert law.mean.shape == law.replicate(np.random.default_rng(0)).shape == (law.num_draws, 12)
    np.testing.assert_allclose(np.exp(law.log_density(y)), np.where(y == 1, law.mean, 1 - law.mean))
    ```
    """

    likelihood: Likelihood
    t: np.ndarray
    given: tuple[np.ndarray, ...] = ()

    @classmethod
    def of(cls, posterior: Draws, X, most_draws: int = MOST_DRAWS, **beside: Any) -> "Predictive":
        """The law of y at the rows of X, under at most about `most_draws` draws, evenly spaced in every chain.

        `beside`: what `Draws.predictors` takes beside X.
        """
        t, given = posterior.thinned(most_draws).predictors(X, **beside)
        chains, draws = t.shape[:2]
        # What broadcasts with chains × draws × rows, as what broadcasts with S × rows; what has no draws stays.
        by_draw = lambda g: np.broadcast_to(g, (chains, draws, g.shape[-1])).reshape(chains * draws, -1)
        given = tuple(g if g.ndim < 2 else by_draw(g) for g in given)
        return cls(posterior.likelihood, t.reshape(chains * draws, *t.shape[2:]), given)

    @property
    def num_draws(self) -> int:
        """S."""
        return self.t.shape[0]

    @property
    def num_rows(self) -> int:
        """The number of rows n."""
        return self.t.shape[1]

    @property
    def kind(self) -> ResponseKind:
        """Whether y is a number, a count or a class."""
        return self.likelihood.response

    @functools.cached_property
    def mean(self) -> np.ndarray:
        return self.likelihood.mean(self.t, *self.given)

    @functools.cached_property
    def variance(self) -> np.ndarray:
        given = self.given if self.mean.ndim == 2 else tuple(g[..., None] for g in self.given)
        return np.broadcast_to(self.likelihood.variance(self.mean, *given), self.mean.shape)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        """log p(y_i | θ_s), S × n."""
        return self.likelihood.log_density(self.t, y, *self.given)

    def cdf(self, y: np.ndarray) -> np.ndarray:
        """P(Y_i ≤ y_i | θ_s), S × n."""
        return self.likelihood.cdf(y, self.t, *self.given)

    def completed(self, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The responses, those that are censored drawn from their law beyond y, under one of the draws: n."""
        if "censored" not in self.likelihood.known:
            return y
        s = int(rng.integers(self.num_draws))
        given = tuple(g if g.ndim < 2 else g[s % len(g)] for g in self.given)
        return self.likelihood.completed(rng, self.t[s], y, *given)

    def replicate(self, rng: np.random.Generator) -> np.ndarray:
        """One response for each draw and row, S × n: data as they would come if the model were right."""
        return self.likelihood.sample(rng, self.t, *self.given)


POSTERIOR_CLASSES = known_classes(Draws, GroupDraws, Units, *families.LIKELIHOODS)
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
