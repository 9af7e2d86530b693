"""fit: Bayesian regression from a matrix of columns and a response, with every error named.

X and y in the user's units in; a `Fit` out: coefficients and predictions with Monte Carlo error, posterior spread and
discretisation bias kept apart. Inside, columns are standardised; linear models are integrated, and for the others the sampler and
its step size are chosen by `gyromc.tune`, and the run is made longer where the errors come out larger than asked for.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gyromc.checks import coverage, flag, one_of, positive, require, whole
from gyromc.engines.choice import ENGINES
from gyromc.errors import GyromcWarning
from gyromc.regression.fitted import Coefficient, Fit
from gyromc.regression.posing import Posed, pose_problem
from gyromc.regression.reading import FAMILIES, Problem, read
from gyromc.regression.sampled import Sampled
from gyromc.regression.sampling import sample
from gyromc.regression.tables import auxiliary, coefficients, labels
from gyromc.regression.terms import GroupTerm, Prior

__all__ = ["EFFORTS", "FAMILIES", "MODELS", "Coefficient", "Fit", "GroupTerm", "Prior", "fit", "relative_error"]

MODELS = FAMILIES
EFFORTS = {"quick": 0.05, "standard": 0.02, "thorough": 0.005}
"""Errors aimed at, bias included, in posterior standard deviations."""
DYNAMICS = ("reversible", "rotating")  # what `dynamics` could be


def fit(
    X,
    y,
    family: str | None = None,
    *,
    model: str | None = None,
    groups: Sequence[GroupTerm] = (),
    offset=None,
    weights=None,
    trials=None,
    priors: Mapping[str, Any] | None = None,
    prior_scale: float = 2.5,
    intercept: bool = True,
    names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    effort: str | float = "standard",
    level: float = 0.95,
    num_chains: int = 64,
    num_draws: int = 2048,
    dynamics: str | None = None,
    seed: int = 0,
    engine: str = "auto",
    progress: bool | Callable[[int], object] | None = False,
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
    - `family`: one of `FAMILIES`, linear where it is left out; `model` is its older name.
    - `groups`: a `GroupTerm` for each grouping of the rows whose levels have deviations of their own.
    - `offset`: a known part of each linear predictor; `weights`: how many times each row counts.
    - `trials`: of each row, for `"binomial"` and `"beta-binomial"`.
    - `priors`: by the name of a column, `intercept` or a group: a `Prior`, its scale, or (location, scale), per unit of the
      column.
    - `prior_scale`: the prior's standard deviation for all other coefficients.
    - `intercept`: whether there is one; without it columns are scaled but not centred. An ordinal model has cutpoints instead.
    - `names`, `classes`: of the columns and of the response's values, for the tables.
    - `effort`: `"quick"`, `"standard"`, `"thorough"`, or the error of posterior means to aim at, bias included, as a fraction of
      the posterior standard deviations (0.05, 0.02, 0.005).
    - `level`: of the credible intervals.
    - `num_chains`, `num_draws`: independent chains (64 cost no more than one), and how many nearly independent states to keep
      at least, for spreads, intervals and predictions.
    - `dynamics`: not used any more; the sampler is chosen by `gyromc.tune`.
    - `seed`, `engine`, `progress`: as for `gyromc.run`.

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
    require(family is None or model is None, "`model` is the older name of `family`: pass one of them.")
    if model is not None:
        warnings.warn("`model` is now called `family`.", DeprecationWarning, stacklevel=2)
    level, intercept = coverage(level), flag(intercept, "intercept")
    one_of(engine, ("auto", *ENGINES), "engine")
    options = {
        "num_chains": whole(num_chains, "num_chains", least=2),
        "num_draws": num_draws,
        "seed": whole(seed, "seed", least=0),
    }
    check_dynamics(dynamics)
    problem = read(
        X,
        y,
        next((given for given in (family, model) if given is not None), "linear"),
        names=names,
        classes=classes,
        intercept=intercept,
        prior_scale=positive(prior_scale, "prior_scale"),
        groups=groups,
        offset=offset,
        weights=weights,
        trials=trials,
        priors=priors,
    )
    posed = pose_problem(problem)
    rows = labels(problem)
    texts = [name if output is None else f"{name} ({output})" for name, output in rows]
    sampled = sample(posed, texts, relative_error(effort), engine, progress, groups=problem.groups, **options)
    if sampled.warnings:
        warnings.warn(" ".join(sampled.warnings), GyromcWarning, stacklevel=2)
    return _fit_of(sampled, posed, problem, level)


def relative_error(effort: str | float) -> float:
    """The error that an effort stands for, in posterior standard deviations."""
    return EFFORTS[effort] if isinstance(effort, str) and effort in EFFORTS else positive(effort, "effort")


def check_dynamics(dynamics: str | None, stacklevel: int = 3) -> None:
    """Warn where a sampler is asked for: it is chosen by `gyromc.tune` now."""
    if dynamics is None:
        return
    one_of(dynamics, DYNAMICS, "dynamics", " Leave it out.")
    message = "`dynamics` is not used any more: the sampler is chosen by `gyromc.tune`. Leave it out."
    warnings.warn(message, DeprecationWarning, stacklevel=stacklevel)


def _fit_of(sampled: Sampled, posed: Posed, problem: Problem, level: float) -> Fit:
    """The `Fit` of a sampled posterior."""
    return Fit(
        model=problem.family,
        names=problem.names,
        classes=problem.classes,
        coefficients=coefficients(sampled, labels(problem), level),
        posterior=sampled.posterior,
        target=posed.target,
        reason=sampled.reason,
        level=level,
        tuned=sampled.tuned,
        run=sampled.run,
        auxiliary=auxiliary(sampled, problem, level),
    )
