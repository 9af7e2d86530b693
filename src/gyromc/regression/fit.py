"""fit: Bayesian regression from a matrix of columns and a response, with every error named.

X and y in the user's units in; a `Fit` out: coefficients and predictions with Monte Carlo error, posterior spread and
discretisation bias kept apart. Inside, columns are standardised, the sampler and its step size are chosen by `gyromc.tune`, and
the run is made longer where the errors come out larger than asked for.
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np

from gyromc.checks import coverage, flag, numbers, one_of, positive, require, shown, whole
from gyromc.engines.choice import ENGINES
from gyromc.errors import GyromcWarning
from gyromc.regression.fitted import Coefficient, Fit
from gyromc.regression.posing import Posed, pose
from gyromc.regression.sampling import Sampled, sample
from gyromc.targets.likelihoods import Bernoulli, Categorical, Likelihood, Normal, Poisson

__all__ = ["EFFORTS", "MODELS", "Coefficient", "Fit", "fit", "relative_error"]

MODELS = ("linear", "logistic", "softmax", "poisson")
EFFORTS = {"quick": 0.05, "standard": 0.02, "thorough": 0.005}
"""Errors aimed at, bias included, in posterior standard deviations."""
DYNAMICS = ("reversible", "rotating")  # what `dynamics` could be
Labels = tuple[tuple[str, ...], tuple[str, ...] | None]  # of the columns, and of the classes where there are any
Rows = list[tuple[str, str | None]]  # the coefficients' names and outputs


def fit(
    X,
    y,
    model: str = "linear",
    *,
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

    The prior is N(0, prior_scale²) for each coefficient per standard deviation of its column (and of y, for a linear model; for
    the difference between any two classes, in a softmax model), N(0, 10²) for the intercept at the columns' means. A column of
    two values counts as if both were equally frequent: half their distance takes the place of its standard deviation. The noise
    σ of a linear model is unknown, its logarithm uniform a priori, and integrated out: independent draws without a chain.

    **Arguments:**

    - `X`: rows × columns of finite numbers.
    - `y`: measurements (`"linear"`), 0 and 1 (`"logistic"`), classes 0 … C-1 (`"softmax"`), counts (`"poisson"`).
    - `model`: one of `MODELS`.
    - `prior_scale`: the prior's standard deviation.
    - `intercept`: whether there is one; without it columns are scaled but not centred.
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
    level, intercept = coverage(level), flag(intercept, "intercept")
    one_of(engine, ("auto", *ENGINES), "engine")
    options = {
        "num_chains": whole(num_chains, "num_chains", least=2),
        "num_draws": num_draws,
        "seed": whole(seed, "seed", least=0),
    }
    check_dynamics(dynamics)
    posed, labels = _posed(X, y, model, positive(prior_scale, "prior_scale"), intercept, names, classes)
    rows = _rows(labels, intercept)
    names = [name if output is None else f"{name} ({output})" for name, output in rows]
    sampled = sample(posed, names, relative_error(effort), engine, progress, **options)
    if sampled.warnings:
        warnings.warn(" ".join(sampled.warnings), GyromcWarning, stacklevel=2)
    return _fit_of(sampled, posed, model, labels, rows, level)


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


def _posed(X, y, model: str, prior_scale: float, intercept: bool, names, classes) -> tuple[Posed, Labels]:
    """The regression in standardised columns, and the names of its columns and classes."""
    names, classes = _texts(names, "names"), _texts(classes, "classes")
    X, y, likelihood = _data(X, y, model, None if classes is None else len(classes))
    labels = _labels(X, names, likelihood, classes)
    return pose(X, y, likelihood, prior_scale, intercept), labels


def _fit_of(sampled: Sampled, posed: Posed, model: str, labels: Labels, rows: Rows, level: float) -> Fit:
    """The `Fit` of a sampled posterior."""
    return Fit(
        model=model,
        names=labels[0],
        classes=labels[1],
        coefficients=_table(sampled, rows, level),
        posterior=sampled.posterior,
        target=posed.target,
        reason=sampled.reason,
        level=level,
        tuned=sampled.tuned,
        run=sampled.run,
        auxiliary=_auxiliary(sampled, level),
    )


def _data(X, y, model: str, num_classes: int | None) -> tuple[np.ndarray, np.ndarray, Likelihood]:
    """X and y as numbers that suit the model."""
    one_of(model, MODELS, "model")
    X, y = numbers(X, "X"), numbers(y, "y")
    require(
        X.ndim == 2 and X.shape[0] > 0,
        f"`X` must be a matrix with one row per observation: got shape {X.shape}.",
    )
    require(y.shape == X.shape[:1], f"`y` must have one entry per row of `X` ({X.shape[0]}): got shape {y.shape}.")
    if model == "linear":
        return X, y, Normal()
    if model == "poisson":
        return X, y, Poisson()
    seen = np.unique(y)
    require(
        seen.size >= 2,
        f"`y` must hold at least two classes: every row is {seen[0]:g}. There is nothing to tell apart.",
    )
    if model == "logistic":
        return X, y, Bernoulli()
    return X, y, Categorical(num_classes or int(seen[-1]) + 1)


def _texts(given, name: str) -> list[str] | None:
    """A list of names or classes as texts."""
    if given is None:
        return None
    given = given.tolist() if hasattr(given, "tolist") else given
    require(
        isinstance(given, Sequence) and not isinstance(given, str | bytes),
        f"`{name}` must be a list of texts: got {shown(given)}.",
    )
    plain = isinstance(given, Sequence) and all(isinstance(text, str | int | float) for text in given)
    require(plain, f"`{name}` must be texts or numbers: got {shown(given)}.")
    return [str(text) for text in given]


def _labels(X: np.ndarray, names, likelihood: Likelihood, classes) -> Labels:
    """Names of columns and classes."""
    names = [f"x{j}" for j in range(X.shape[1])] if names is None else names
    require(
        len(names) == X.shape[1], f"`names` must have one entry per column of `X` ({X.shape[1]}): got {len(names)}."
    )
    if isinstance(likelihood, Categorical | Bernoulli):
        count = likelihood.num_classes if isinstance(likelihood, Categorical) else 2
        classes = [str(c) for c in range(count)] if classes is None else classes
        require(len(classes) == count, f"`classes` must name the {count} values of `y`: got {len(classes)}.")
        return tuple(names), tuple(classes)
    require(classes is None, "`classes` is for a logistic or softmax model.")
    return tuple(names), None


def _rows(labels: Labels, intercept: bool) -> Rows:
    """The coefficients' names and outputs, in the table's order."""
    one = [*(["intercept"] if intercept else []), *labels[0]]
    outputs = [None] if labels[1] is None or len(labels[1]) == 2 else labels[1]
    return [(name, output) for output in outputs for name in one]


def _table(sampled: Sampled, rows: Rows, level: float) -> tuple[Coefficient, ...]:
    """The table of coefficients."""
    posterior, ends = sampled.posterior, ((1 - level) / 2, (1 + level) / 2)
    if sampled.exact is None:
        spreads, (low, high) = posterior.spreads(), posterior.quantiles(ends)
    else:
        offset = posterior.units.coefficients(posterior.likelihood.basis)[1]
        spreads, (low, high) = sampled.exact.moments()[1], (sampled.exact.quantiles(end) + offset for end in ends)
    columns = sampled.mean, spreads, low, high, sampled.std_error, sampled.bias
    return tuple(
        Coefficient(name, output, *(float(v) for v in values))
        for (name, output), *values in zip(rows, *columns, strict=True)
    )


def _auxiliary(sampled: Sampled, level: float) -> tuple[Coefficient, ...]:
    """The further parameters: σ of a linear model."""
    if sampled.exact is None:
        return ()
    unit = sampled.posterior.units.y_scale
    mean, sd, low, high = (unit * v for v in sampled.exact.sigma(((1 - level) / 2, (1 + level) / 2)))
    return (Coefficient("sigma", None, mean, sd, low, high, std_error=0.0, bias=0.0),)
