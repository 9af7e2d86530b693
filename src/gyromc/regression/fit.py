"""fit: Bayesian regression from a matrix of columns and a response, with every error named.

X and y in the user's units in; a `Fit` out: coefficients and predictions with Monte Carlo error and posterior standard
deviation apart. `METHODS` are the ways to compute a posterior in the order in which they are tried; each says why it does not
apply, and the last one, the solver (`gyromc.expect`), always does.
"""

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import numpy as np

from gyromc.approx.sample import SETTINGS as SAMPLES
from gyromc.approx.sample import systematic
from gyromc.checks import coverage, flag, positive, require, shown, whole
from gyromc.errors import GyromcWarning
from gyromc.observables import OnRows, linear
from gyromc.posterior import Account, PosteriorRow, PosteriorTable, weighted_quantiles
from gyromc.regression import marginal
from gyromc.regression.draws import Draws, GroupDraws, Predictions, Predictive, moments, spread_errors
from gyromc.regression.problem import GroupTerm, read
from gyromc.regression.standardised import Standardised, standardise
from gyromc.runtime.machine import require_memory
from gyromc.show.interruption import interruptible
from gyromc.show.numbers import capital, is_number
from gyromc.show.records import Column, Forwarded
from gyromc.solve.expect import expect
from gyromc.targets.families import Normal, NormalNoise
from gyromc.targets.mixed import MixedRegression

EFFORTS = {"quick": 0.05, "standard": 0.02, "thorough": 0.005}  # errors aimed at, in posterior standard deviations
LEAST_EFFORT = 1e-6  # what averages reach in a fit's time where the posterior is nearly Gaussian
SECONDS = 120.0  # that a fit may take; the error that was reached is stated


@dataclasses.dataclass(frozen=True)
class Coefficient(PosteriorRow):
    """One row of the table of coefficients, in the user's units.

    `output`: the class it is for, in a model of more than two; `std_error`, `sd_error`, `low_error`, `high_error`: the Monte
    Carlo standard errors of `mean`, `sd`, `low` and `high`, 0 where these are integrals.
    """

    name: str
    output: str | None
    mean: float
    sd: float
    low: float
    high: float
    std_error: float = 0.0
    sd_error: float = 0.0
    low_error: float = 0.0
    high_error: float = 0.0

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def label(self) -> str:
        return self.name if self.output is None else f"{self.name} ({self.output})"


@dataclasses.dataclass(frozen=True, eq=False)
class Fit(PosteriorTable[Coefficient]):
    """A fitted regression: `fit["time"].mean` and `fit.mean["time"]` are the posterior mean of a coefficient.

    - `coefficients`: by output, the intercept first; `auxiliary`: further parameters: `sigma`, `sd(time | subject)`, …
    - `groups`: by name, the deviations of each group's levels (`GroupDraws`).
    - `noise_scale`: the posterior mean of σ of a linear model, in the units of y, else None.
    - `posterior`: draws in standardised coordinates, which predict; `draws`: chains × draws × coefficients in the user's units.
    - `reason`: how it was computed; `refused`: why simpler methods did not apply, by name; `account`: what the solver did, None
      where no chain was run; `warnings`: what could not be known; `partial`: whether Ctrl-C ended it early; `ended`: where
      chains ended.
    """

    family: str
    names: tuple[str, ...]
    classes: tuple[str, ...] | None
    coefficients: tuple[Coefficient, ...]
    posterior: Draws
    target: MixedRegression
    reason: str
    level: float
    account: Account | None = None
    partial: bool = False
    auxiliary: tuple[Coefficient, ...] = ()
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    ended: Any = None

    _entry, _result = "coefficient", "fit"
    interval = Column[tuple[float, float]]("The central credible interval.")

    @property
    def rows(self) -> Mapping[str, Coefficient]:
        found = {c.label: c for c in self.coefficients}
        for row in self.auxiliary:
            found[row.label if row.label not in found else f"{row.label} (of the {self.family} model)"] = row
        return found

    @property
    def noise_scale(self) -> float | None:
        return self.auxiliary[0].mean if self.family == "linear" else None

    @property
    def draws(self) -> np.ndarray:
        return self.posterior.coefficients()

    @property
    def groups(self) -> dict[str, GroupDraws]:
        return {group.name: group for group in self.posterior.groups}

    def predict(self, X, **beside) -> Predictions:
        """What the posterior expects of y at each row of X; `offset`, `trials`, `groups` by name, as for `Draws.predictors`."""
        return self.posterior.predict(X, **beside)


def fit(
    X,
    y,
    family: str = "linear",
    *,
    groups: Sequence[GroupTerm] = (),
    offset=None,
    weights=None,
    trials=None,
    censored=None,
    priors: Mapping[str, Any] | None = None,
    prior_scale: float = 2.5,
    intercept: bool = True,
    names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    effort: str | float = "standard",
    level: float = 0.95,
    num_chains: int = 64,
    num_draws: int = 2048,
    seed: int = 0,
    progress: bool | None = False,
    before: Fit | None = None,
) -> Fit:
    """Bayesian regression of y on the columns of X.

    The prior is N(0, prior_scale²) for each coefficient per standard deviation of its column (and of y, for linear and
    student-t models; for the difference between any two classes, in a softmax model), N(0, 10²) for the intercept at the
    columns' means. A column of two values counts as if both were equally frequent. The noise σ of a linear model is integrated
    out. The priors of other further parameters are those of `FAMILIES[family].further`; standard deviations of groups are
    exponential with mean 1 per standard deviation of their column (and of y).

    **Arguments:**

    - `X`: rows × columns; `y`: numbers, counts, or classes 0 … C-1.
    - `family`: one of `FAMILIES`.
    - `groups`: a `GroupTerm` for each grouping of the rows whose levels have deviations of their own.
    - `offset`: a known part of each linear predictor; `weights`: how many times each row counts.
    - `trials`: of each row, for `"binomial"` and `"beta-binomial"`; `censored`: 1 where a time (`"exponential"`, `"weibull"`)
      is only known to be longer, else 0.
    - `priors`: by the name of a column, `intercept`, a further parameter (`sigma`, `shape`, …), a group, `sd(column | group)`
      or `cor(group)`: a text such as `"student_t(3, 0, 2.5)"`, a `Prior`, a scale, or (location, scale), in the units of y per
      unit of the column; that of the intercept is for columns at their means. `prior_scale`: for all other coefficients.
    - `intercept`: whether there is one; without it columns are scaled but not centred. An ordinal model has cutpoints instead.
    - `names`, `classes`: of the columns and of the response's values, for the tables.
    - `effort`: `"quick"`, `"standard"`, `"thorough"`, or the error of means to aim at, in posterior standard deviations.
    - `level`: of the credible intervals; `seed`, `progress`: as for `gyromc.expect`.
    - `num_draws`: how many draws of equal weight to keep; `num_chains`: in how many groups that are nearly independent.
    - `before`: the same model fitted with other weights: its chains go on where they ended, which saves most of the warm-up.

    ```python
    import numpy as np
    from gyromc.regression.fit import fit
    X = np.arange(20.0)[:, None]
    found = fit(X, 3.0 + 0.5 * X[:, 0] + np.cos(X[:, 0]), effort="quick", names=["time"])
    print(round(found.mean["time"], 2), found.predict([[30.0]]).mean.round())  # 0.5 [18.]
    ```
    """
    options: dict[str, Any] = {"level": coverage(level), "num_chains": whole(num_chains, "num_chains", least=2)}
    options |= {"num_draws": num_draws, "seed": whole(seed, "seed", least=0), "progress": progress}
    about = {"names": names, "classes": classes, "intercept": flag(intercept, "intercept"), "priors": priors}
    by_row = {"groups": groups, "offset": offset, "weights": weights, "trials": trials, "censored": censored}
    problem = read(X, y, family, prior_scale=positive(prior_scale, "prior_scale"), **about, **by_row)
    options |= {"classes": problem.classes, "groups": problem.groups, "before": before and before.ended}
    found = solve(standardise(problem), problem.names, relative_error(effort), **options)
    if found.warnings:
        warnings.warn(" ".join(found.warnings), GyromcWarning, stacklevel=2)
    return found


def relative_error(effort: str | float) -> float:
    """The error that an effort stands for, in posterior standard deviations."""
    if isinstance(effort, str):
        if effort in EFFORTS:
            return EFFORTS[effort]
        require(is_number(effort), f"`effort` is one of {', '.join(EFFORTS)}, or an error: got {shown(effort)}.")
        effort = float(effort)
    found = positive(effort, "effort")
    least = f"at least {LEAST_EFFORT:g}, in posterior standard deviations"
    reached = f"got {found:g}, which no run reaches. `thorough` is {EFFORTS['thorough']:g}."
    require(found >= LEAST_EFFORT, f"`effort` must be {least}: {reached}")
    return found


def solve(standard: Standardised, names: Sequence[str], error: float, **options: Any) -> Fit:
    """The posterior of a standardised regression, with errors of about `error` posterior sds or less; `options` as of `fit`."""
    question = _Question(standard, tuple(names), error, **options)
    refused: dict[str, str] = {}
    count, dim = math.prod(question.shape), standard.target.dim
    require_memory(8 * count * dim, f"{count:,} draws of {dim:,} parameters", "Take fewer.")
    for name, method in METHODS.items():
        found = method(question)
        if isinstance(found, Fit):
            return dataclasses.replace(found, refused=refused)
        refused[name] = found
    raise AssertionError("the solver takes every regression")


@dataclasses.dataclass(frozen=True, eq=False)
class _Question:
    """What `solve` was asked."""

    standard: Standardised
    names: tuple[str, ...]
    error: float
    classes: tuple[str, ...] | None = None
    groups: tuple[GroupTerm, ...] = ()
    level: float = 0.95
    num_chains: int = 64
    num_draws: int = 2048
    seed: int = 0
    progress: bool | None = False
    before: Any = None
    target = Forwarded[MixedRegression]("standard.target", "The posterior in standardised coordinates.")

    @property
    def shape(self) -> tuple[int, int]:
        return self.num_chains, math.ceil(whole(self.num_draws, "num_draws", least=1) / self.num_chains)

    @property
    def map(self) -> tuple[np.ndarray, np.ndarray]:
        """(T, t₀): the coefficients in the user's units are Tθ + t₀."""
        return self.standard.units.coefficients(self.target.likelihood.basis)

    @property
    def ends(self) -> tuple[float, float]:
        return (1 - self.level) / 2, (1 + self.level) / 2

    @property
    def coefficients(self) -> list[tuple[str, str | None]]:
        one = [*(["intercept"] if self.standard.units.intercept else []), *self.names]
        outputs = self.classes if self.classes is not None and len(self.target.likelihood.basis) > 1 else [None]
        return [(name, output) for output in outputs for name in one]

    @property
    def further(self) -> list[tuple[str, str | None]]:
        """Those of the further parameters: σ where it was integrated out, else as `Draws.further` orders them."""
        likelihood = self.target.likelihood
        names = ["sigma"] if isinstance(likelihood, Normal) else list(likelihood.auxiliary)
        if likelihood.cutpoints and self.classes is not None:
            names = [f"{low} | {high}" for low, high in itertools.pairwise(self.classes)]
        return [(name, None) for name in (*names, *(name for term in self.groups for name in term.names))]

    def fit(self, posterior: Draws, columns: Sequence[np.ndarray], reason: str, **more: Any) -> Fit:
        """The fit with its table; `columns`: the numbers of `Coefficient`, each for coefficients and further parameters."""
        labels, numbers = [*self.coefficients, *self.further], np.transpose(columns).tolist()
        rows = tuple(Coefficient(*label, *row) for label, row in zip(labels, numbers, strict=True))
        first = len(self.coefficients)
        about = {"family": self.target.likelihood.name, "names": self.names, "classes": self.classes, "reason": reason}
        tables = {"coefficients": rows[:first], "auxiliary": rows[first:]}
        return Fit(**about, **tables, posterior=posterior, target=self.target, level=self.level, **more)


def _closed_form(question: _Question) -> Fit | str:
    standard, target = question.standard, question.target
    if isinstance(target.likelihood, NormalNoise):
        return "priors of coefficients are not normal" if target.priors else "groups have variances of their own"
    if not isinstance(target.likelihood, Normal):
        return f"the family {target.likelihood.name} has no closed form"
    (T, offset), scale = question.map, float(target.prior_precision) ** -0.5
    found = marginal.Integrated(target.X, target.y, scale, T, standard.count, standard.noise_prior)
    theta, sigma = found.draws(np.random.default_rng(question.seed), question.shape)
    mean, sd = marginal.mixture_moments(*found.mixture)
    ends = [marginal.mixture_quantiles(*found.mixture, end) + offset for end in question.ends]
    unit = standard.units.y_scale
    noise = unit * found.sigma(question.ends)
    return question.fit(
        Draws(target.likelihood, standard.units, theta, (unit * sigma,)),
        list(np.column_stack([[mean + offset, sd, *ends], noise])),
        "Independent draws: given σ the posterior is Gaussian, and p(σ | y) is known in closed form. Means, standard "
        "deviations and intervals of the coefficients are integrals over σ, by quadrature; no chain was run.",
    )


def _marginal(question: _Question) -> Fit | str:
    if not isinstance(question.target.likelihood, NormalNoise):
        return "coefficients cannot be integrated out unless the noise is normal"
    if question.target.coefficient_priors:
        return "coefficients cannot be integrated out unless their priors are normal"
    left, settings = marginal.Marginal(question.target), marginal.SETTINGS
    if left.dim > settings.most_numbers:
        return f"{left.dim} standard deviations and correlations are more than {settings.most_numbers}"
    if left.size > settings.most_size:
        return f"{left.size} coefficients and deviations are more than {settings.most_size}"
    (T, offset), target = question.map, question.target.centred([True] * len(question.groups))
    left = marginal.Marginal(target)
    found = left.sample(T, math.prod(question.shape), question.seed, question.ends)
    share = found.effective / settings.rounds[-1]
    if share < SAMPLES.even_share:
        return f"the effective sample size of the draws of the variances is {found.effective:.0f}"
    theta = found.theta.reshape(*question.shape, -1)
    posterior = _draws(question, target, theta, rng=np.random.default_rng(question.seed))
    further = posterior.further()
    mean, error, variance = moments(further.copy())
    # Draws that were picked from fewer independent ones have the errors of those.
    scarcity = max(1.0, posterior.count / found.effective) ** 0.5
    ends = np.quantile(further, question.ends, axis=(0, 1), method="hazen")
    errors = [scarcity * error, *(scarcity * spread_errors(further, None, question.ends))]
    of_further = [mean, np.sqrt(variance), *ends, *errors]
    errors = [found.std_error, scarcity * spread_errors(posterior.coefficients(), None, ())[0], *found.end_errors]
    of_coefficients = [found.mean + offset, found.sd, *(found.ends + offset), *errors]
    return question.fit(
        posterior,
        [np.concatenate(both) for both in zip(of_coefficients, of_further, strict=True)],
        "Independent draws: given σ and the groups' standard deviations and correlations, coefficients and deviations are "
        f"Gaussian and were integrated out. The {left.dim} remaining parameters were drawn by importance sampling; the "
        f"effective sample size is {100 * share:.0f} % of the draws.",
    )


def _solved(question: _Question) -> Fit:
    full = question.target
    lift, prior_scale = _spanned(full), float(full.prior_precision) ** -0.5
    of_one_output = lift[: full.X.shape[1], : lift.shape[1] // full.likelihood.outputs]
    target = eqx.tree_at(lambda t: t.X, full, full.X @ of_one_output).in_good_coordinates()
    (every, offset), further = question.map, question.further
    T = every @ lift
    wide = np.pad(T, ((0, 0), (0, target.dim - T.shape[1])))
    # A number before each name: no two are the same then.
    labels = [name if output is None else f"{name} ({output})" for name, output in question.coefficients]
    names = [f"{i}: {label}" for i, label in enumerate(labels)]
    asked: dict[str, Any] = dict(zip(names, map(linear, wide), strict=True))
    if further:
        asked["further"] = OnRows(lambda theta: _draws(question, target, theta, lift).further())
    with warnings.catch_warnings(), interruptible() as stop:
        warnings.simplefilter("ignore", GyromcWarning)  # they are in the answer
        # Chains of a fit to rows that span other directions have other coordinates.
        before = question.before if question.before and question.before.theta.shape[1] == target.dim else None
        options: dict[str, Any] = {
            "seconds": SECONDS,
            "seed": question.seed,
            "progress": question.progress,
            "start": before,
        }
        found = expect(target, asked, question.error, **options)
    # Draws of equal weight, in the order of the chains: each group of draws comes from one chain.
    picked = systematic(found.weights.ravel(), math.prod(question.shape), np.random.default_rng(question.seed))
    theta = found.draws.reshape(-1, target.dim)[picked].reshape(*question.shape, -1)
    posterior = _draws(question, target, theta, lift, np.random.default_rng(question.seed))
    # Directions without data follow their prior.
    prior = np.random.default_rng(question.seed).normal(0.0, prior_scale, posterior.theta.shape)
    posterior = dataclasses.replace(posterior, theta=posterior.theta + prior - prior @ lift @ lift.T)
    unseen = prior_scale**2 * np.maximum(0.0, np.sum(every**2, axis=1) - np.sum(T**2, axis=1))
    # Variances of weighted draws: the zero-mean functions that made the weights sharpen them too.
    weights, values = found.weights / found.weights.sum(), found.values_at_draws
    variance = np.einsum("cd,cdk->k", weights, (values - np.einsum("cd,cdk->k", weights, values)) ** 2)
    shift, unseen = (np.concatenate([part, np.zeros(len(further))]) for part in (offset, unseen))
    if unseen.any():  # the solver's draws have no part in these directions
        kept = np.concatenate([posterior.coefficients(), posterior.further()], axis=-1)
        ends = np.quantile(kept, question.ends, axis=(0, 1), method="hazen")
        spread = spread_errors(kept, None, question.ends)
    else:
        each = [weighted_quantiles(x, weights, question.ends) for x in np.moveaxis(values, -1, 0)]
        ends, spread = np.transpose(each) + shift, spread_errors(values, weights, question.ends)
    means, errors = (np.array([getattr(row, name) for row in found.values()]) for name in ("mean", "std_error"))
    columns = [means + shift, np.sqrt(variance + unseen), *ends, errors, *spread]
    about = {"account": found.account, "warnings": tuple(found.warnings), "partial": bool(stop), "ended": found.ended}
    return question.fit(posterior, columns, f"{capital(found.account.sentence())}.", **about)


METHODS: dict[str, Callable[[_Question], Fit | str]] = {
    "closed form": _closed_form,
    "importance sample of the variances": _marginal,
    "solver": _solved,
}
"""By name: a `Fit`, or a sentence why there is none."""


def _draws(question: _Question, target: MixedRegression, theta: Any, lift: np.ndarray | None = None, rng=None) -> Draws:
    """θ, … × dim, NumPy's or JAX's, in the user's units; `lift`: from the coefficients of `target` to all."""
    # Without a generator, which draws those that were integrated out, the groups have no deviations.
    units, likelihood, beta = question.standard.units, target.likelihood, target.parts(theta)[0]
    deviations = [np.zeros(0)] * len(question.groups) if rng is None else target.deviations(theta, rng)
    parts, unit = zip(question.groups, deviations, target.roots(theta), strict=True), units.y_scale
    groups = tuple(GroupDraws(of.name, of.columns, of.levels, unit * b, unit * root) for of, b, root in parts)
    given = likelihood.in_units(target.given(theta), unit)
    return Draws(likelihood, units, beta if lift is None else beta @ lift.T, given, groups)


def _spanned(target: MixedRegression) -> np.ndarray:
    """An orthonormal basis, in columns, of the directions of the coefficients in which rows have entries."""
    if target.coefficient_priors:
        return np.eye(target.num_coefficients)
    values, vectors = np.linalg.eigh(target.X.T @ target.X)
    kept = values > 1e-13 * max(float(values.max(initial=0.0)), np.finfo(float).tiny)
    kept[-1:] = True
    return np.kron(np.eye(target.likelihood.outputs), np.eye(len(kept)) if kept.all() else vectors[:, kept])


ROBUST_STEP = 1e-4  # of the linear predictor, for differences


def robust_sd(
    fit: Fit,
    X: np.ndarray,
    y: np.ndarray,
    clusters: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    **beside: Any,
) -> np.ndarray:
    """Return the standard deviation of each coefficient that holds where the model's own variance of y is wrong."""
    # The sandwich H⁻¹ (Σ g gᵀ) H⁻¹, H the curvature of the potential at the posterior mean, prior included, g the slope of -log
    # p(y | t) times the standardised row, summed over the rows of a cluster: a number for each row, rows of one cluster may
    # depend on each other. The factors for few rows are those of R's and Stata's defaults: n/(n − k), and G/(G − 1) · (n − 1)/(n
    # − k) for G clusters. Further parameters are held at their posterior means.
    posterior, likelihood = fit.posterior, fit.posterior.likelihood
    of = "Robust standard deviations are for models"
    require(not posterior.groups, f"{of} without groups. Fit without them and pass `clusters`.")
    require(likelihood.outputs == 1, f"{of} with one linear predictor, not for several classes.")
    # The posterior with one draw, its mean.
    center = {"theta": posterior.theta.mean(axis=(0, 1), keepdims=True)}
    center["given"] = tuple(np.mean(g, keepdims=True, axis=(0, 1)) for g in posterior.given)
    law = Predictive.of(dataclasses.replace(posterior, **center), X, **beside)
    h = ROBUST_STEP * max(1.0, posterior.units.y_scale)
    low, mid, high = (-dataclasses.replace(law, t=law.t + d).log_density(y)[0] for d in (-h, 0.0, h))
    w = np.ones(len(y)) if weights is None else weights
    slope, curvature = w * (high - low) / (2 * h), np.maximum(w * (high - 2 * mid + low) / h**2, 0.0)
    rows = posterior.units.y_scale * posterior.units.rows(X)  # ∂t/∂θ
    H = (rows * curvature[:, None]).T @ rows + float(fit.target.prior_precision) * np.eye(rows.shape[1])
    scores = rows * slope[:, None]
    n, k = len(y), rows.shape[1]
    factor = n / max(n - k, 1)
    if clusters is not None:
        names, place = np.unique(clusters, return_inverse=True)
        require(len(names) > 1, "Cluster-robust standard deviations need two clusters or more: there is one.")
        summed = np.zeros((len(names), k))
        np.add.at(summed, place, scores)
        scores, factor = summed, len(names) / (len(names) - 1) * (n - 1) / max(n - k, 1)
    half = np.linalg.solve(H, scores.T)
    T, _ = posterior.units.coefficients(likelihood.basis)
    return np.sqrt(np.maximum(np.diag(factor * T @ (half @ half.T) @ T.T), 0.0))
