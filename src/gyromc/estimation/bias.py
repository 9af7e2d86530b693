"""The bias a step size leaves in a mean, beside its Monte Carlo error: from the theory, or from a second step size (E3, T1).

Receives a run; hands on a `Bias` by observable, with its own error and the name of the method. With E[μ̂_η] = μ + c₁η + O(η²),
two runs of the same time at η and ρη give c₁η = (mean(ρη) - mean(η))/(ρ - 1); the start's transient is the same in both and is
not seen by their difference.
"""

import dataclasses
import math

import numpy as np

from gyromc.checks import require
from gyromc.engines import run as run_plan
from gyromc.errors import DivergenceError, InvalidInput
from gyromc.plan import Plan
from gyromc.prediction.predict import predict
from gyromc.prediction.routes import MOST_PARAMETERS
from gyromc.prediction.stability import stability
from gyromc.results import Run
from gyromc.shape.importance import DRAWS
from gyromc.targets import SumOverData

METHODS = ("auto", "predict", "step sizes", "none")
EXACT = ("exact finite-step", "finite-step law")
HEALTHY = 0.5  # effective size of draws around the mode, as a share: below it, tails decide the bias and its error is not known
AFFORDABLE = 2e9  # numbers of data touched by a prediction from an importance sample


@dataclasses.dataclass(frozen=True)
class Bias:
    """The expected difference between a run's mean and μ(h).

    `error` is the part of its standard error that is independent of the run's own; in the corrected mean the run's own error
    counts `amplification` times (1 when the bias does not come from the run itself).
    """

    value: float | None
    method: str
    error: float = 0.0
    amplification: float = 1.0
    dof: float = math.inf

    def std_error(self, own: float) -> float:
        """The standard error of the bias, when the run's mean has the standard error `own`."""
        return math.hypot((self.amplification - 1) * own, self.error)


def predicted(run: Run) -> dict[str, Bias]:
    """The bias of one chain's average as `predict` knows it, without a new run.

    What is not exact leaves out a remainder: relative to the bias it is taken as η over the largest stable step size, which is
    what the term of second order in η is for a Gaussian target, and counted as an error.
    """
    plan = run.plan if run.steps_done == run.plan.num_steps else run.plan.replace(num_steps=max(1, run.steps_done))
    pred = predict(plan) if _by_formula(plan) else predict(plan, sample=_sample(plan))
    limit = pred.largest_step_size
    found = {}
    for name, value in pred.bias.items():
        method = pred.bias_method[name]
        if value is None or not math.isfinite(value):
            found[name] = Bias(None, "unknown: no formula gives it")
            continue
        known = method in EXACT or not limit > 0
        remainder = 0.0 if known else abs(value) * plan.eta / limit
        found[name] = Bias(value, f"predicted, {method}", math.hypot(pred.bias_error[name], remainder))
    return found


def predicted_or_not(run: Run) -> dict[str, Bias]:
    """As `predicted` where that takes seconds; unknown biases, with the reason, elsewhere."""
    if not affordable(run.plan):
        return {name: Bias(None, "unknown: a prediction would take too long") for name in run.plan.observables}
    try:
        return predicted(run)
    except InvalidInput as error:  # no mode, or one that says little about the target
        return {name: Bias(None, f"unknown: {error}") for name in run.plan.observables}


def from_step_sizes(difference: float, error: float, dof: float, ratio: float, relative_step: float = 0.0) -> Bias:
    """The bias at η from a mean at `ratio`·η, by extrapolation to first order.

    **Arguments:**

    - `difference`: the mean at `ratio`·η minus the mean at η.
    - `error`, `dof`: standard error of the former, and its degrees of freedom.
    - `relative_step`: η over the largest stable step size, the likely size of the second order against the first, which the
      extrapolation gets wrong by `ratio` times itself.

    ```python
    from gyromc.estimation.bias import from_step_sizes
    assert abs(from_step_sizes(0.1, 0.01, 30, 2.0).value - 0.1) < 1e-12
    ```
    """
    value = difference / (ratio - 1)
    return Bias(
        value=value,
        method=f"two step sizes, η and {ratio:g}η",
        error=math.hypot(error / abs(ratio - 1), ratio * relative_step * value),
        amplification=ratio / (ratio - 1),
        dof=dof,
    )


def second_run(run: Run, names: list[str]) -> tuple[Run | None, str]:
    """The same time at twice the step size (half of it where twice is unstable), with other random numbers; or None and why."""
    plan, steps = run.plan, run.steps_done
    if plan.scheduled:
        return None, "unknown: the step size is a schedule"
    ratio = 0.5 if 2 * plan.step_size > 0.8 * largest_step_size(plan) else 2.0
    other = plan.replace(
        step_size=ratio * plan.step_size,
        num_steps=max(1, round(steps / ratio)),
        burn_in=round(plan.burn_in / ratio),
        observables={name: plan.observables[name] for name in names},
        seed=(plan.seed + 0x5DEECE66D) % 2**63,
    )
    try:
        return run_plan(other, engine=run.engine), ""
    except DivergenceError as error:
        return None, f"unknown: at {ratio:g}η {error}"


def largest_step_size(plan: Plan) -> float:
    """The largest stable step size; infinite where nothing is known of it."""
    try:
        found = stability(plan)
    except InvalidInput:  # a target whose mode cannot be found
        return math.inf
    return math.inf if found is None or not found.largest_step_size > 0 else found.largest_step_size


def ratio_of(run: Run, other: Run, names: list[str]) -> float:
    """How many times larger the other run's step size is; checks that the two can be compared."""
    mine, theirs = run.plan.step_size, other.plan.step_size
    require(
        not callable(mine) and not callable(theirs) and mine != theirs,
        "`bias` takes a run of the same model at another constant step size: these two have "
        f"{'the same step size' if mine == theirs else 'schedules'}.",
    )
    missing = set(names) - set(other.plan.observables)
    require(not missing, f"The run given as `bias` lacks the observables {', '.join(sorted(missing))}.")
    return float(theirs) / float(mine)  # type: ignore[arg-type]


def _by_formula(plan: Plan) -> bool:
    return plan.flat_target.gaussian() is not None or plan.flat_target.separable() is not None


def _sample(plan: Plan) -> np.ndarray:
    """Draws around the mode, resampled by their weights: with a sample no Poisson equation is solved, which can take a minute."""
    drawn = plan.model.importance_sample()
    require(
        drawn.effective_size > HEALTHY * len(drawn.weights),
        f"The bias cannot be predicted: {len(drawn.weights)} draws around the mode are worth {drawn.effective_size:.0f}. "
        'Pass `bias="step sizes"`.',
    )
    return drawn.theta[np.random.default_rng(0).choice(len(drawn.theta), len(drawn.theta), p=drawn.weights)]


def affordable(plan: Plan) -> bool:
    """Whether a prediction takes seconds: by formula, or from an importance sample that touches not too many data."""
    if _by_formula(plan):
        return True
    data = plan.target.num_data if isinstance(plan.target, SumOverData) else 1
    return plan.dim <= MOST_PARAMETERS and float(np.prod([data, plan.dim, DRAWS], dtype=float)) <= AFFORDABLE
