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
from gyromc.results import Run
from gyromc.targets import SumOverData
from gyromc.theory.laplace import DRAWS
from gyromc.theory.prediction import predict
from gyromc.theory.routes import MOST_PARAMETERS
from gyromc.theory.stability import stability

METHODS = ("auto", "predict", "step sizes", "none")
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

    To first order in η a remainder of order η is left out: relative to the bias it is taken as η over the largest stable step
    size, which is what it is for a Gaussian target, and counted as an error.
    """
    plan = run.plan.replace(num_steps=max(1, run.steps_done))
    pred = predict(plan)
    limit = pred.largest_step_size
    found = {}
    for name, value in pred.bias.items():
        method = pred.bias_method[name]
        if value is None or not math.isfinite(value):
            found[name] = Bias(None, "unknown: no formula gives it")
            continue
        first_order = method.startswith("first order") and limit > 0
        remainder = abs(value) * plan.step_size / limit if first_order else 0.0
        found[name] = Bias(value, f"predicted, {method}", math.hypot(pred.bias_error[name], remainder))
    return found


def from_step_sizes(mean: float, coarse_mean: float, coarse_error: float, coarse_dof: float, ratio: float) -> Bias:
    """The bias at η from a mean at `ratio`·η, by extrapolation to first order.

    ```python
    from gyromc.intervals.bias import from_step_sizes
    assert from_step_sizes(1.1, 1.2, 0.01, 30, 2.0).value - 0.1 < 1e-12
    ```
    """
    return Bias(
        value=(coarse_mean - mean) / (ratio - 1),
        method=f"two step sizes, η and {ratio:g}η",
        error=coarse_error / abs(ratio - 1),
        amplification=ratio / (ratio - 1),
        dof=coarse_dof,
    )


def second_run(run: Run, names: list[str]) -> tuple[Run | None, str]:
    """The same time at twice the step size (half of it where twice is unstable), with other random numbers; or None and why."""
    plan, steps = run.plan, run.steps_done
    if callable(plan.step_size):
        return None, "unknown: the step size is a schedule"
    try:
        limit = stability(plan)
    except InvalidInput:
        limit = None
    ratio = 0.5 if limit is not None and 2 * plan.step_size > 0.8 * limit.largest_step_size else 2.0
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


def affordable(plan: Plan) -> bool:
    """Whether a prediction takes seconds: by formula, or from an importance sample that touches not too many data."""
    if plan.flat_target.gaussian() is not None or plan.flat_target.separable() is not None:
        return True
    data = plan.target.num_data if isinstance(plan.target, SumOverData) else 1
    return plan.dim <= MOST_PARAMETERS and float(np.prod([data, plan.dim, DRAWS], dtype=float)) <= AFFORDABLE
