"""fit: Bayesian regression from a matrix of columns and a response, with every error named.

Input: X and y in the user's units. Output: a `Fit`: coefficients and predictions with Monte Carlo error, posterior standard
deviation and discretisation bias kept apart. `Coefficient` is one row of its table.
"""

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gyromc.checks import coverage, flag, positive, require, whole
from gyromc.errors import GyromcWarning
from gyromc.posterior import Account
from gyromc.regression.draws import Draws, GroupDraws, Predictions, quantile_errors, sd_errors
from gyromc.regression.problem import GroupTerm, Prior, Problem, read
from gyromc.regression.sampling import Sampled, sample
from gyromc.regression.standardised import Standardised, standardise
from gyromc.show.records import Column, Records
from gyromc.targets.families import FAMILIES
from gyromc.targets.mixed import MixedRegression
from gyromc.targets.regressions import WithLikelihood

__all__ = [
    "EFFORTS",
    "FAMILIES",
    "Coefficient",
    "Fit",
    "GroupTerm",
    "Prior",
    "auxiliary",
    "coefficients",
    "fit",
    "labels",
    "relative_error",
]


@dataclasses.dataclass(frozen=True)
class Coefficient:
    """One row of the table of coefficients, in the user's units.

    **Attributes:**

    - `name`: of the column, or `intercept`; `output`: the class it is for, in a model of more than two.
    - `mean`, `sd`: of the posterior; `interval`, its ends `low` and `high`: the central credible interval.
    - `std_error`: the Monte Carlo standard error of `mean`; `ess`: how many independent draws would have the same.
    - `bias`: how large the bias is that the step size gives `mean`, as the tuner estimates it; it is not subtracted.
    - `error`: the root mean square of what `mean` is off, from both.
    - `sd_error`, `low_error`, `high_error`: Monte Carlo standard errors of `sd`, `low` and `high`; 0 where these are integrals.
    """

    name: str
    output: str | None
    mean: float
    sd: float
    low: float
    high: float
    std_error: float
    bias: float
    sd_error: float = 0.0
    low_error: float = 0.0
    high_error: float = 0.0

    @property
    def ess(self) -> float:
        return (self.sd / self.std_error) ** 2 if self.std_error > 0 else math.inf

    @property
    def error(self) -> float:
        return math.hypot(self.std_error, self.bias)

    @property
    def interval(self) -> tuple[float, float]:
        return self.low, self.high

    @property
    def label(self) -> str:
        """The name, with the class it is for where there is one."""
        return self.name if self.output is None else f"{self.name} ({self.output})"


@dataclasses.dataclass(frozen=True, eq=False)
class Fit(Records[Coefficient]):
    """A fitted regression: `fit["time"].mean` and `fit.mean["time"]` are the posterior mean of a coefficient.

    **Attributes:**

    - `family`: one of `FAMILIES`; `names`: of the columns; `classes`: of the response, or None.
    - `coefficients`: a tuple of `Coefficient`; by output, the intercept first.
    - `mean`, `sd`, `std_error`, `bias`, `error`, `interval`, `ess`: by coefficient.
    - `auxiliary`: further parameters, as rows like those of coefficients: `sigma`, `shape`, `sd(time | subject)`, …
    - `groups`: by name, the deviations of each group's levels (`GroupDraws`).
    - `noise_scale`: the posterior mean of σ of a linear model, in the units of y, else None.
    - `posterior`: draws in standardised coordinates, which predict; `draws`: the same as coefficients in the user's units,
      chains × draws × coefficients.
    - `reason`: how it was computed; `refused`: why simpler methods did not apply, by name; `account`: what the solver did, None
      where no chain was run.
    - `partial`: whether Ctrl-C ended it early.
    - `level`: of the credible intervals.
    - `predict(X)`: a `Predictions`.
    """

    family: str
    names: tuple[str, ...]
    classes: tuple[str, ...] | None
    coefficients: tuple[Coefficient, ...]
    posterior: Draws
    target: WithLikelihood | MixedRegression
    reason: str
    level: float
    account: Account | None = None
    partial: bool = False
    auxiliary: tuple[Coefficient, ...] = ()
    refused: Mapping[str, str] = dataclasses.field(default_factory=dict)

    _entry, _result = "coefficient", "fit"
    mean = Column[float]("The posterior mean.")
    sd = Column[float]("The posterior standard deviation.")
    std_error = Column[float]("The Monte Carlo standard error of `mean`.")
    interval = Column[tuple[float, float]]("The central credible interval.")
    bias = Column[float]("How large the discretisation bias of `mean` is, as estimated; it is not subtracted.")
    error = Column[float]("The root mean square error of `mean`, from `std_error` and `bias`.")
    ess = Column[float]("How many independent draws would have the same Monte Carlo error.")

    @property
    def rows(self) -> Mapping[str, Coefficient]:
        """The coefficients by name, then the further parameters."""
        found = {c.label: c for c in self.coefficients}
        for row in self.auxiliary:
            found[row.label if row.label not in found else f"{row.label} (of the {self.family} model)"] = row
        return found

    @property
    def noise_scale(self) -> float | None:
        return (
            next((row.mean for row in self.auxiliary if row.name == "sigma"), None) if self.family == "linear" else None
        )

    @property
    def draws(self) -> np.ndarray:
        return self.posterior.coefficients()

    @property
    def groups(self) -> dict[str, GroupDraws]:
        return {group.name: group for group in self.posterior.groups}

    def predict(self, X, **beside) -> Predictions:
        """What the posterior expects of y at each row of X: mean, Monte Carlo error, posterior sd and noise apart.

        `offset`, `trials` and `groups` of the rows are passed by name, as for `Draws.predictors`.
        """
        return self.posterior.predict(X, **beside)


Rows = list[tuple[str, str | None]]  # the coefficients' names and outputs


def labels(problem: Problem) -> Rows:
    """The coefficients' names and outputs, in the table's order."""
    one = [*(["intercept"] if problem.intercept else []), *problem.names]
    several = problem.classes is not None and problem.likelihood.outputs > 1
    outputs = problem.classes if several and problem.classes is not None else [None]
    return [(name, output) for output in outputs for name in one]


def coefficients(sampled: Sampled, rows: Rows, level: float) -> tuple[Coefficient, ...]:
    """The table of coefficients."""
    posterior, ends = sampled.posterior, ((1 - level) / 2, (1 + level) / 2)
    if sampled.exact is None:
        low, high = posterior.quantiles(ends)
        errors = _errors(sampled, posterior.coefficients(), ends)
    else:
        offset = posterior.units.coefficients(posterior.likelihood.basis)[1]
        low, high = (sampled.exact.quantiles(end) + offset for end in ends)
        errors = np.zeros((3, len(rows)))
    columns = sampled.mean, sampled.sd, low, high, sampled.std_error, sampled.bias, *errors
    return tuple(
        Coefficient(name, output, *(float(v) for v in values))
        for (name, output), *values in zip(rows, *columns, strict=True)
    )


def _errors(sampled: Sampled, draws: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
    """The Monte Carlo errors of sd, low and high end of draws, chains × draws × numbers: 3 × numbers."""
    return sampled.scarcity * np.concatenate([sd_errors(draws)[None], quantile_errors(draws, ends)])


def auxiliary(sampled: Sampled, problem: Problem, level: float) -> tuple[Coefficient, ...]:
    """The further parameters: σ of a linear model, those of other families, standard deviations and correlations of groups."""
    ends = (1 - level) / 2, (1 + level) / 2
    if sampled.exact is not None:
        unit = sampled.posterior.units.y_scale
        mean, sd, low, high = (unit * v for v in sampled.exact.sigma(ends))
        return (Coefficient("sigma", None, mean, sd, low, high, std_error=0.0, bias=0.0),)
    found = []
    for i, (name, draws) in enumerate(sampled.further.items()):
        mean, error = sampled.averages.get(name) or sampled.posterior.average(draws)
        if problem.likelihood.cutpoints and problem.classes is not None and i < len(problem.classes) - 1:
            name = f"{problem.classes[i]} | {problem.classes[i + 1]}"
        sd, (low, high) = float(draws.std()), np.quantile(draws, ends, method="hazen")
        errors = _errors(sampled, draws[..., None], ends)[:, 0].tolist()
        found.append(Coefficient(name, None, float(mean), sd, float(low), float(high), float(error), 0.0, *errors))
    return tuple(found)


EFFORTS = {"quick": 0.05, "standard": 0.02, "thorough": 0.005}
"""Errors aimed at, bias included, in posterior standard deviations."""
LEAST_EFFORT = 1e-6  # what averages reach in a fit's time where the posterior is nearly Gaussian


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
) -> Fit:
    """Bayesian regression of y on the columns of X.

    The prior is N(0, prior_scale²) for each coefficient per standard deviation of its column (and of y, for linear and student-t
    models; for the difference between any two classes, in a softmax model), N(0, 10²) for the intercept at the columns' means. A
    column of two values counts as if both were equally frequent: half their distance takes the place of its standard deviation.
    The noise σ of a linear model is unknown, its logarithm uniform a priori, and integrated out: independent draws without a
    chain. The priors of other further parameters are listed in `gyromc.targets.families`; standard deviations of groups are
    exponential with mean 1 per standard deviation of their column (and of y).

    **Arguments:**

    - `X`: rows × columns of finite numbers.
    - `y`: measurements (`"linear"`, `"student-t"`, positive for `"gamma"`), 0 and 1 (`"logistic"`), classes 0 … C-1
      (`"softmax"`, in their order for `"ordinal"`), counts (`"poisson"`, `"negative-binomial"`; `"binomial"` and
      `"beta-binomial"` with `trials`).
    - `family`: one of `FAMILIES`.
    - `groups`: a `GroupTerm` for each grouping of the rows whose levels have deviations of their own.
    - `offset`: a known part of each linear predictor; `weights`: how many times each row counts.
    - `trials`: of each row, for `"binomial"` and `"beta-binomial"`; `censored`: 1 where a time (`"exponential"`, `"weibull"`) is
      only known to be longer, else 0.
    - `priors`: by the name of a column, `intercept` or a group: a `Prior`, its scale, or (location, scale), per unit of the
      column.
    - `prior_scale`: the prior's standard deviation for all other coefficients.
    - `intercept`: whether there is one; without it columns are scaled but not centred. An ordinal model has cutpoints instead.
    - `names`, `classes`: of the columns and of the response's values, for the tables.
    - `effort`: `"quick"`, `"standard"`, `"thorough"`, or the error of posterior means to aim at, bias included, as a fraction of
      the posterior standard deviations (0.05, 0.02, 0.005).
    - `level`: of the credible intervals.
    - `num_chains`, `num_draws`: how many draws of equal weight to keep, for intervals and predictions, and in how many groups
      that are nearly independent of each other.
    - `seed`, `progress`: as for `gyromc.expect`.

    **Returns:** a `Fit`.

    ```python
    import numpy as np
    from gyromc.regression.fit import fit
    X = np.arange(20.0)[:, None]
    found = fit(X, 3.0 + 0.5 * X[:, 0] + np.cos(X[:, 0]), effort="quick", names=["time"])
    assert found["time"].low < 0.5 < found["time"].high and found.mean["time"] == found["time"].mean
    assert found.predict([[30.0]]).mean.shape == (1,)
    ```
    """
    level = coverage(level)
    num_chains = whole(num_chains, "num_chains", least=2)
    seed = whole(seed, "seed", least=0)
    about = {"names": names, "classes": classes, "intercept": flag(intercept, "intercept"), "priors": priors}
    by_row = {"groups": groups, "offset": offset, "weights": weights, "trials": trials, "censored": censored}
    problem = read(X, y, family, prior_scale=positive(prior_scale, "prior_scale"), **about, **by_row)
    standard = standardise(problem)
    texts = [name if output is None else f"{name} ({output})" for name, output in labels(problem)]
    error = relative_error(effort)
    sampled = sample(standard, texts, error, progress, num_chains, num_draws, seed, problem.groups)
    if sampled.warnings:
        warnings.warn(" ".join(sampled.warnings), GyromcWarning, stacklevel=2)
    return _fit_of(sampled, standard, problem, level)


def relative_error(effort: str | float) -> float:
    """The error that an effort stands for, in posterior standard deviations."""
    if isinstance(effort, str) and effort in EFFORTS:
        return EFFORTS[effort]
    found = positive(effort, "effort")
    require(
        found >= LEAST_EFFORT,
        f"`effort` must be at least {LEAST_EFFORT:g}, in posterior standard deviations: got {found:g}, which no run reaches. "
        f"`thorough` is {EFFORTS['thorough']:g}.",
    )
    return found


def _fit_of(sampled: Sampled, standard: Standardised, problem: Problem, level: float) -> Fit:
    """The `Fit` of a sampled posterior."""
    return Fit(
        family=problem.family,
        names=problem.names,
        classes=problem.classes,
        coefficients=coefficients(sampled, labels(problem), level),
        posterior=sampled.posterior,
        target=standard.target,
        reason=sampled.reason,
        level=level,
        account=sampled.account,
        partial=sampled.interrupted,
        auxiliary=auxiliary(sampled, problem, level),
        refused=sampled.refused,
    )
