"""A posterior as draws of θ, and what it predicts about new rows: E[h] ≈ the mean of h(θ_s) over draws.

Input: draws from independent chains, and rows. Output: predictions in the user's units, with the Monte Carlo error (which more
steps reduce), the posterior standard deviation (which more data reduce) and the noise of one observation (which nothing reduces)
apart; and the law of y at rows, draw by draw (`Predictive`). Plain arrays, so that they can be pickled. The same of the prior.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import special

from gyromc.checks import numbers, require
from gyromc.errors import InvalidInput
from gyromc.extras import needs
from gyromc.io.archive import known_classes
from gyromc.posterior import weighted_quantiles
from gyromc.regression.marginal import ENDS, log_prior
from gyromc.regression.problem import GroupTerm, Problem
from gyromc.regression.standardised import Units, standardise
from gyromc.runtime.machine import num_threads
from gyromc.show.records import Forwarded
from gyromc.targets.base import of_rows
from gyromc.targets.families import LIKELIHOODS, NormalNoise
from gyromc.targets.functions import library
from gyromc.targets.likelihoods import Likelihood, ResponseKind

AT_ONCE = 2**18  # numbers of a part of the rows: 1 MiB in single precision
MOST_THREADS, LEAST_PARTS = 4, 16  # a thread has so many parts at least
MOST_DRAWS = 1000
REACH = 3.0  # errors of the share, up and down: over fewer draws the slope would be mostly noise
MOST_REACH = 0.6  # of the share itself

Averages = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]  # mean, std_error, sd and noise, as in `Predictions`


def spread_errors(values: np.ndarray, weights: np.ndarray | None, levels: Sequence[float]) -> np.ndarray:
    """Standard errors of the sd and of quantiles of draws, chains × draws × numbers: (1 + levels) × numbers."""
    # The share of draws below a quantile has an error that the chains show; quantiles a few such errors away give its slope.
    # Weights make means and mean squares right: then the error of a share is what the chains show of it beside their own.
    chains, p, found = len(values), np.asarray(levels), []
    equal = np.ones(values.shape[:2])
    for x in np.moveaxis(values, -1, 0):
        z = (x - x.mean()) / max(float(x.std()), 1e-300)
        known = np.column_stack([np.ones(chains), z.mean(axis=1), (z**2).mean(axis=1)])
        sd_error = x.std() * known[:, 2].std(ddof=1) / np.sqrt(chains) / 2  # d√v = dv/(2√v)
        known, w = (known[:, :1], equal) if weights is None else (known, weights)
        below = np.mean(x[..., None] <= weighted_quantiles(x, w, p), axis=1)
        left = below - known @ np.linalg.lstsq(known, below, rcond=None)[0]
        error = np.sqrt(np.sum(left**2, axis=0) / (chains - known.shape[1]) / chains)
        reach = np.minimum(REACH * error, MOST_REACH * np.minimum(p, 1 - p)) + 1 / x.size
        apart = weighted_quantiles(x, w, p + reach) - weighted_quantiles(x, w, p - reach)
        found.append([sd_error, *(error * apart / (2 * reach))])
    return np.reshape(found, (-1, 1 + len(p))).T


@dataclasses.dataclass(frozen=True, eq=False)
class Predictions:
    """What the posterior expects of y at some rows: vectors, or rows × classes of probabilities.

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
        """The predictive standard deviation of one observation, from its mean and noise."""
        return np.hypot(self.sd, self.noise)

    def plot(self, rows: int = 30) -> Any:
        """Draw a Matplotlib figure: each row's mean with 95 % intervals, its own (thick) and one observation's (thin)."""
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
    """Draws of a group's deviations, in the user's units; `name`, `columns`, `levels` as in the `GroupTerm` that was fitted."""

    name: str
    columns: tuple[str, ...]
    levels: tuple[str, ...]
    deviations: Float[np.ndarray, "chains draws levels k"]
    root: Float[np.ndarray, "chains draws k k"]  # the Cholesky factor of the covariance of a level's deviations

    @property
    def mean(self) -> np.ndarray:
        return self.deviations.mean(axis=(0, 1))

    @property
    def sd(self) -> np.ndarray:
        return self.deviations.std(axis=(0, 1))

    def parameters(self) -> np.ndarray:
        """Standard deviations, then correlations, as in `GroupTerm.names`: chains × draws × numbers, NumPy's or JAX's."""
        xp, k = library(self.root), len(self.columns)
        covariance = self.root @ xp.swapaxes(self.root, -1, -2)
        sd = [xp.sqrt(covariance[..., i, i]) for i in range(k)]
        pairs = itertools.combinations(range(k), 2)
        return xp.stack([*sd, *(covariance[..., i, j] / (sd[i] * sd[j]) for i, j in pairs)], axis=-1)

    def added(self, term: GroupTerm) -> Callable[[slice, Any], np.ndarray]:
        """What the group adds to the linear predictors of some of the term's rows, chains × draws × rows, in a precision."""
        place, b = term.places(self.levels), self.deviations
        new, of_new = np.unique(term.index[place < 0], return_inverse=True)
        # A level that was not fitted has deviations of its own, drawn from their law: the same for all its rows.
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
    """Draws of θ, all of the same weight: `theta`, chains × draws × coefficients, in the standardised coordinates of `units`."""

    likelihood: Likelihood
    units: Units
    theta: Float[np.ndarray, "chains draws size"]
    given: tuple[Float[np.ndarray, "chains draws"], ...] = ()  # what else the law of y depends on (σ, …)
    groups: tuple[GroupDraws, ...] = ()

    @property
    def count(self) -> int:
        return self.theta.shape[0] * self.theta.shape[1]

    @property
    def num_columns(self) -> int:
        return len(self.units.scale)

    def coefficients(self) -> np.ndarray:
        """The draws as coefficients in the user's units: chains × draws × coefficients."""
        T, offset = self.units.coefficients(self.likelihood.basis)
        return self.theta @ T.T + offset

    def further(self) -> Any:
        """The likelihood's further parameters, then those of groups, in the user's units; cutpoints at columns of zero."""
        raised = self.coefficients() @ self.units.center if self.likelihood.cutpoints else 0.0
        found = [(values + raised)[..., None] for values in self.given] + [group.parameters() for group in self.groups]
        return library(self.theta).concatenate([self.theta[..., :0], *found], axis=-1)

    def thinned(self, count: int) -> "Draws":
        return self._each(lambda values: values[:, :: max(1, -(-self.count // count))])

    def predict(self, X, **beside) -> Predictions:
        """What the posterior expects of y at each row of X; `beside` as for `predictors`."""
        given, measured = self._read(X, **beside), self.likelihood.measured
        if measured and not self.groups:
            return self._linear(**given)
        # Single precision has an error of 10⁻⁶ of a value, but a mean of 10⁶ with an sd of 1 needs double precision.
        draws = self if measured else self._each(lambda array: array.astype(np.float32))

        def part(rows: slice) -> Averages:
            with np.errstate(over="ignore", invalid="ignore"):
                found = draws._averages(rows, given)
                # In single precision eᵗ is infinite from t = 88 on, and its square from 44 on.
                return found if all(np.isfinite(values).all() for values in found) else self._averages(rows, given)

        slices = self._parts(given, getattr(self.likelihood, "num_classes", 1))
        with ThreadPoolExecutor(min(num_threads(), MOST_THREADS, len(slices) // LEAST_PARTS + 1)) as pool:
            return Predictions(*map(np.concatenate, zip(*pool.map(part, slices), strict=True)))

    def log_densities(self, X, y: np.ndarray, **beside) -> np.ndarray:
        """log p(y | x) at each row, θ averaged out: for classes the log of the predictive probability of the class that came."""
        given, found = self._read(X, **beside), []
        for rows in self._parts(given, self.likelihood.outputs + 1):
            t, known = self._predictors(rows, **given)
            densities = self.likelihood.log_density(t, y[rows], *known)
            found.append(special.logsumexp(densities, axis=(0, 1)) - np.log(self.count))
        return np.concatenate(found)

    def predictors(self, X, **beside) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """(t, given): what `likelihood` takes for the law of y at the rows of X, for every draw, in the user's units.

        `t` is chains × draws × rows (× q where a row has several linear predictors), and each of `given` broadcasts with chains
        × draws × rows. So `likelihood.sample(rng, t, *given)` are responses as the posterior expects them.

        - `X`: rows × columns, as in the fit.
        - `offset`, `trials`, `censored`: one number per row; offset and `censored` are 0 where they are left out.
        - `groups`: a `GroupTerm` for every group of the fit. A level that it has not seen gets a deviation drawn from their law.
        """
        return self._predictors(slice(None), **self._read(X, **beside))

    def _each(self, change: Callable[[np.ndarray], np.ndarray]) -> "Draws":
        each = lambda g: dataclasses.replace(g, deviations=change(g.deviations), root=change(g.root))
        given, groups = tuple(map(change, self.given)), tuple(map(each, self.groups))
        return dataclasses.replace(self, theta=change(self.theta), given=given, groups=groups)

    def _parts(self, given: dict[str, Any], numbers: int) -> list[slice]:
        """Parts of the rows, which have so many numbers for each draw."""
        size = max(1, AT_ONCE // (self.count * numbers))
        return [slice(first, first + size) for first in range(0, max(1, len(given["X"])), size)]

    def _averages(self, rows: slice, given: dict[str, Any]) -> Averages:
        likelihood = self.likelihood
        if likelihood.vector:
            blocks = self.theta.reshape(self.count, likelihood.outputs, -1)
            weights = np.tensordot(likelihood.basis.astype(blocks.dtype), blocks, (1, 1))  # classes × draws × columns
            chances = special.softmax(weights @ self.units.rows(given["X"][rows]).T.astype(blocks.dtype), axis=0)
            return _class_averages(chances.reshape(len(chances), *self.theta.shape[:2], -1))
        t, known = self._predictors(rows, **given)
        means = likelihood.mean(t, *known)
        if means.ndim > t.ndim:
            return _class_averages(np.moveaxis(means, -1, 0))
        # Before the moments, which overwrite the means.
        noise = likelihood.variance(means, *known).mean(axis=(0, 1), dtype=float)
        mean, error, variance = moments(means)
        return mean, error, np.sqrt(variance), np.sqrt(noise)

    def _linear(self, X: np.ndarray, offset, **_: Any) -> Predictions:
        chains, rows, scale = len(self.theta), self.units.rows(X), self.units.y_scale
        by_chain = self.theta.mean(axis=1)
        center = by_chain.mean(axis=0)
        apart = (by_chain - center) / np.sqrt(chains * (chains - 1))
        root: Any = np.linalg.qr((self.theta - center).reshape(self.count, -1) / np.sqrt(self.count), mode="r")
        noise = self.likelihood.variance(np.zeros(self.theta.shape[:2]), *self.given).mean()
        error, sd = (scale * np.linalg.norm(rows @ directions.T, axis=1) for directions in (apart, root))
        mean = self.units.known(X) + offset + scale * (rows @ center)
        return Predictions(mean, error, sd, np.full(len(rows), np.sqrt(noise)))

    def _read(self, X, offset=None, trials=None, censored=None, groups=()) -> dict[str, Any]:
        """Rows and what belongs to them, checked, with groups placed: arguments of `_predictors`."""
        X, d = numbers(X, "X"), self.num_columns
        require(X.ndim == 2 and X.shape[1] == d, f"`X` must have {d} columns, as in the fit: got shape {X.shape}.")
        counted = trials is not None or "trials" not in self.likelihood.known
        require(counted, "Counts of successes need `trials`, one number for each row of `X`.")
        given = {"trials": trials, "censored": np.zeros(len(X)) if censored is None else censored}
        terms, added = {term.name: term for term in groups}, []
        for group in self.groups:
            name, term = group.name, terms.get(group.name)
            if term is None:
                what = "Pass a `GroupTerm`; index -1 stands for a new level."
                raise InvalidInput(f"`groups` has no term for the group {name!r} of the fit. {what}")
            fits, what = term.columns == group.columns and len(term.Z) == len(X), f"columns {', '.join(group.columns)}"
            require(fits, f"The group {name!r} must have the {what} for {len(X)} rows.")
            added.append(group.added(term))
        known = tuple(of_rows(given[name], name, len(X)) for name in self.likelihood.known)
        offset = np.zeros(len(X)) if offset is None else of_rows(offset, "offset", len(X))
        return {"X": X, "offset": offset, "known": known, "groups": added}

    def _predictors(
        self, rows: slice, X: np.ndarray, offset, known, groups
    ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """(t, given) at some of the rows, in the precision of `theta`."""
        dtype = self.theta.dtype
        Z = self.units.rows(X[rows]).astype(dtype, copy=False)
        if self.likelihood.vector:
            blocks = self.theta.reshape(*self.theta.shape[:2], self.likelihood.outputs, -1)
            return np.swapaxes(blocks @ Z.T, -1, -2), ()
        t = dtype.type(self.units.y_scale) * (self.theta @ Z.T)
        t += np.asarray(self.units.known(X[rows]) + offset[rows], dtype)
        for group in groups:
            t += group(rows, dtype)
        return t, (*(k[rows].astype(dtype, copy=False) for k in known), *(g[..., None] for g in self.given))


def moments(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Mean of (… ×) chains × draws × rows over draws, its standard error by chains, the variance; `values` is overwritten."""
    # Sums over draws are products with a row of ones, which is quicker.
    chains, draws = values.shape[-3:-1]
    ones = np.ones((1, draws), values.dtype)
    by_chain = (ones @ values)[..., 0, :] / draws
    mean = by_chain.mean(axis=-2, dtype=float, keepdims=True)
    error = np.sqrt(np.sum((by_chain - mean) ** 2, axis=-2) / (chains - 1) / chains)
    values -= mean.astype(values.dtype)[..., None, :]
    np.multiply(values, values, out=values)
    variance = (ones @ values)[..., 0, :].sum(axis=-2, dtype=float) / (chains * draws)
    return mean[..., 0, :], error, variance


def _class_averages(chances: np.ndarray) -> Averages:
    """Averages of probabilities, classes × chains × draws × rows, which are overwritten: each rows × classes."""
    mean, error, variance = (found.T for found in moments(chances))
    noise = np.maximum(mean * (1 - mean) - variance, 0.0)  # E[p(1 - p)]
    return mean / mean.sum(axis=1, keepdims=True), error, np.sqrt(variance), np.sqrt(noise)


@dataclasses.dataclass(frozen=True, eq=False)
class Predictive:
    """The law of y at n rows under each of S draws: `t` and `given` are what the likelihood takes, S × n (× q)."""

    # `mean`: E[y | θ_s], S × n; for more than two classes their probabilities, S × n × C. `variance` likewise: of y given θ_s.
    likelihood: Likelihood
    t: np.ndarray
    given: tuple[np.ndarray, ...] = ()
    kind = Forwarded[ResponseKind]("likelihood.response", "What a response is.")

    @classmethod
    def of(cls, posterior: Draws, X, most_draws: int = MOST_DRAWS, **beside: Any) -> "Predictive":
        """The law of y at the rows of X, under at most about `most_draws` draws; `beside` as for `Draws.predictors`."""
        t, given = posterior.thinned(most_draws).predictors(X, **beside)
        chains, draws = t.shape[:2]
        # What broadcasts with chains × draws × rows, as what broadcasts with S × rows; what has no draws stays.
        by_draw = lambda g: np.broadcast_to(g, (chains, draws, g.shape[-1])).reshape(chains * draws, -1)
        given = tuple(g if g.ndim < 2 else by_draw(g) for g in given)
        return cls(posterior.likelihood, t.reshape(chains * draws, *t.shape[2:]), given)

    @property
    def num_draws(self) -> int:
        return self.t.shape[0]

    @functools.cached_property
    def mean(self) -> np.ndarray:
        return self.likelihood.mean(self.t, *self.given)

    @functools.cached_property
    def variance(self) -> np.ndarray:
        given = self.given if self.mean.ndim == 2 else tuple(g[..., None] for g in self.given)
        return np.broadcast_to(self.likelihood.variance(self.mean, *given), self.mean.shape)

    def log_density(self, y: np.ndarray) -> np.ndarray:
        return self.likelihood.log_density(self.t, y, *self.given)

    def cdf(self, y: np.ndarray) -> np.ndarray:
        return self.likelihood.cdf(y, self.t, *self.given)

    def completed(self, y: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        """The responses, those that are censored drawn from their law beyond y, under one of the draws: n."""
        if "censored" not in self.likelihood.known:
            return y
        s = int(rng.integers(self.num_draws))
        given = tuple(g if g.ndim < 2 else g[s % len(g)] for g in self.given)
        return self.likelihood.completed(rng, self.t[s], y, *given)

    def replicate(self, rng: np.random.Generator) -> np.ndarray:
        return self.likelihood.sample(rng, self.t, *self.given)


POSTERIOR_CLASSES = known_classes(Draws, GroupDraws, Units, *LIKELIHOODS)  # what a saved file may hold


MOST_LOG = 30.0  # of an expected count: NumPy draws none beyond e^43
LEVELS = (np.arange(41) + 0.5) / 41  # of the quantiles of a picture
PRIOR_DRAWS = 40  # of a picture


def prior_responses(problem: Problem, count: int, seed: int = 0) -> np.ndarray:
    """Responses at the rows of a problem for so many independent draws of all parameters from their priors: count × rows."""
    standard, rng, shape = standardise(problem), np.random.default_rng(seed), (1, count)
    target, units = standard.target, standard.units
    theta = rng.normal(0.0, float(target.prior_precision) ** -0.5, (*shape, target.num_coefficients))
    for j, prior in target.coefficient_priors.items():
        theta[..., j] = prior.draw(rng, shape)
    likelihood = target.likelihood
    if problem.family == "linear" and not isinstance(likelihood, NormalNoise):
        grid = np.linspace(*ENDS, 2000)
        chances = special.softmax(log_prior(grid, standard.noise_prior))
        given = (np.exp(rng.choice(grid, shape, p=chances)) * units.y_scale,)
    else:
        asked = {name: prior for name, prior in target.priors if not name.isdigit()}
        given = likelihood.in_units(likelihood.drawn(rng, shape, asked), units.y_scale)
    groups = []
    for term, group in zip(problem.groups, target.groups, strict=True):
        root, deviations = (units.y_scale * values for values in group.drawn(rng, shape))
        groups.append(GroupDraws(term.name, term.columns, term.levels, deviations, root))
    beside = dict(zip(problem.likelihood.known, problem.known, strict=True))
    drawn = Draws(likelihood, units, theta, given, tuple(groups))
    law = Predictive.of(drawn, problem.X, count, offset=problem.offset, groups=problem.groups, **beside)
    law = dataclasses.replace(law, t=np.minimum(law.t, MOST_LOG)) if law.likelihood.discrete else law
    with np.errstate(over="ignore"):
        return law.replicate(np.random.default_rng([seed, 1]))


def prior_findings(problem: Problem, seed: int = 0) -> dict[str, Any]:
    """What a picture of the prior predictive law shows: quantiles, or shares of classes; how many draws are `inside` the data."""
    drawn, y = prior_responses(problem, PRIOR_DRAWS, seed), problem.y
    if problem.classes is not None:
        shares = lambda values: [float(np.mean(values == c)) for c in range(len(problem.classes or ()))]
        return {"classes": list(problem.classes), "observed": shares(y), "draws": [shares(row) for row in drawn]}
    quantiles = lambda values: [float(f"{x:.5g}") for x in np.quantile(np.nan_to_num(values, posinf=1e300), LEVELS)]
    inside = float(np.mean((drawn >= y.min()) & (drawn <= y.max())))
    return {"levels": LEVELS.tolist(), "observed": quantiles(y), "draws": [*map(quantiles, drawn)], "inside": inside}
