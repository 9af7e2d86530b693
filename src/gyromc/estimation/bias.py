"""The bias that a finite step size leaves in a mean: from the theory, or from a run at a second step size.

Input: a run. Output: a `Bias` by observable, with its own error and the name of its method. With E[μ̂_η] = μ + c₁η + O(η²), two
runs of the same time at η and ρη give c₁η = (mean(ρη) - mean(η))/(ρ - 1). The transient of the start is the same in both runs, so
their difference does not show it.
"""

import dataclasses
import enum
import math

import numpy as np

from gyromc.approx.sample import DRAWS, MOST_PARAMETERS
from gyromc.checks import require
from gyromc.engines import run as run_plan
from gyromc.errors import DivergenceError, InvalidInput
from gyromc.oracles import Exact
from gyromc.plan import Plan
from gyromc.prediction.answers import UNKNOWN, Kind
from gyromc.prediction.predict import predict
from gyromc.prediction.stability import stability
from gyromc.results import Run
from gyromc.targets import SumOverData
from gyromc.targets.regressions import KnownLikelihood

HEALTHY = 0.5  # effective size of draws around the mode, as a share: below it, tails decide the bias and its error is not known
AFFORDABLE = 2e9  # numbers of data touched by a prediction from an importance sample
FIRST, EACH = 6.0, 0.3  # seconds that a prediction of a regression takes, about: in all, and per observable
OTHER = 10.0  # and of another target, per observable
SECONDS = 10.0  # a prediction may take so long, or as long as the run


class BiasSource(enum.StrEnum):
    """Where the bias comes from, besides a run or earlier estimates."""

    AUTO = "auto"
    PREDICT = "predict"
    RICHARDSON = "richardson"
    NONE = "none"


@dataclasses.dataclass(frozen=True)
class Bias:
    """The expected difference between a run's mean and μ(h).

    `error` is the part of its standard error that is independent of the run's own; in the corrected mean the run's own error
    counts `amplification` times (1 when the bias does not come from the run itself). `start` says whether the effect of the start
    is part of it.
    """

    value: float | None
    method: str
    error: float = 0.0
    amplification: float = 1.0
    dof: float = math.inf
    start: bool = False

    def std_error(self, own: float) -> float:
        """The standard error of the bias, when the run's mean has the standard error `own`."""
        return math.hypot((self.amplification - 1) * own, self.error)


def predicted(run: Run) -> dict[str, Bias]:
    """The bias of one chain's average as `predict` knows it, with its error, without a new run."""
    plan = run.plan if run.steps_done == run.plan.num_steps else run.plan.replace(num_steps=max(1, run.steps_done))
    try:
        pred = predict(plan) if _by_formula(plan) else predict(plan, sample=_sample(plan))
    except MemoryError as error:
        raise InvalidInput(
            f"a prediction with {plan.dim} parameters needs more memory than there is ({error})"
        ) from error
    found = {}
    for name, row in pred.items():
        if row.bias is None or not math.isfinite(row.bias):
            known = row.bias_method.kind is Kind.UNKNOWN and row.bias_method != UNKNOWN
            why = row.bias_method.removeprefix("unknown: ") if known else "no formula gives it"
            found[name] = _unknown(hinted(why))
            continue
        found[name] = Bias(row.bias, f"predicted, {row.bias_method}", row.bias_error, start=row.start_counted)
    return found


def predicted_or_not(run: Run) -> dict[str, Bias]:
    """As `predicted` where that takes seconds or no longer than the run; unknown biases, with the reason, elsewhere."""
    if run.plan.scheduled:
        why = "the step size is a schedule"
    elif costly := too_costly(run):
        why = f'{costly}; pass `bias="predict"` to insist, or `second_step_size=True` to measure it with a second run'
    else:
        try:
            return predicted(run)
        except InvalidInput as error:  # no mode, or one that says little about the target
            why = hinted(str(error))
    return {name: _unknown(why) for name in run}


def hinted(why: str) -> str:
    """The reason for an unknown bias, with what to do about it."""
    return f"{why.rstrip('.')}; pass `second_step_size=True` to measure it with a second run"


def _unknown(why: str) -> Bias:
    return Bias(None, f"unknown: {why}")


def from_step_sizes(
    difference: float, error: float, dof: float, ratio: float, relative_step: float = 0.0, order: int = 1
) -> Bias:
    """The bias cη^p at η from the mean at `ratio`·η, with its `error` and `dof`, minus the mean at η; p is the order.

    `relative_step` is η over the largest stable step size, the likely size of the second order against the first, which the
    extrapolation gets wrong by `ratio` times itself.
    """
    power = ratio**order
    value = difference / (power - 1)
    error = math.hypot(error / abs(power - 1), ratio * relative_step * value)
    return Bias(value, f"two step sizes, η and {ratio:g}η", error, power / (power - 1), dof)


def measured(run: Run, names: list[str]) -> dict[str, Bias]:
    """The biases from a second run of the same time at another step size; unknown, with the reason, where there can be none."""
    if run.plan.scheduled:
        return {name: _unknown("the step size is a schedule") for name in names}
    plan = run.plan
    ratio = 0.5 if 2 * plan.eta > 0.8 * largest_step_size(plan) else 2.0  # half where twice is unstable
    other = plan.replace(
        step_size=ratio * plan.eta,
        num_steps=max(1, round(run.steps_done / ratio)),
        burn_in=round(plan.burn_in / ratio),
        observables={name: plan.observables[name] for name in names},
        seed=(plan.seed + 0x5DEECE66D) % 2**63,  # other random numbers
    )
    try:
        return from_runs(run, run_plan(other, engine=run.engine), names)
    except DivergenceError as error:
        return {name: _unknown(f"at {ratio:g}η {error}") for name in names}


def from_runs(run: Run, other: Run, names: list[str]) -> dict[str, Bias]:
    """The biases of a run from another run of the same model at another constant step size."""
    mine, theirs = run.plan, other.plan
    require(
        not mine.scheduled and not theirs.scheduled and mine.eta != theirs.eta,
        "`bias` takes a run of the same model at another constant step size: these two have "
        f"{'schedules' if mine.scheduled or theirs.scheduled else 'the same step size'}.",
    )
    missing = set(names) - set(other)
    require(not missing, f"The run given as `bias` lacks the observables {', '.join(sorted(missing))}.")
    ratio, relative, order = theirs.eta / mine.eta, mine.eta / largest_step_size(mine), order_of_bias(mine)
    rows = {name: other[name] for name in names}
    gaps = {name: row.mean - run[name].mean for name, row in rows.items()}
    return {
        name: from_step_sizes(gaps[name], row.std_error, row.dof, ratio, relative, order) for name, row in rows.items()
    }


def largest_step_size(plan: Plan) -> float:
    """The largest stable step size; infinite where nothing is known of it."""
    found = stability(plan)
    return math.inf if found is None or not found.largest_step_size > 0 else found.largest_step_size


def order_of_bias(plan: Plan) -> int:
    """The power of η that the bias is in proportion to: the scheme's order with exact gradients, 1 with noisy ones."""
    return plan.scheme.order if isinstance(plan.oracle, Exact) else 1


def _by_formula(plan: Plan) -> bool:
    return plan.flat_target.gaussian() is not None or plan.flat_target.separable() is not None


def _sample(plan: Plan) -> np.ndarray:
    """Draws around the mode, resampled by their weights: with a sample no Poisson equation is solved, which can take a minute."""
    drawn = plan.model.importance_sample()
    uneven = drawn.why_not_even(HEALTHY)
    require(uneven is None, f"The weights of the draws around the mode are uneven: {uneven}.")
    return drawn.theta[np.random.default_rng(0).choice(len(drawn.theta), len(drawn.theta), p=drawn.weights)]


def too_costly(run: Run) -> str | None:
    """Why a prediction would take much longer than the run, or None; decided before anything is computed."""
    plan = run.plan
    if plan.dim > MOST_PARAMETERS:
        return f"not predicted with more than {MOST_PARAMETERS} parameters (here {plan.dim})"
    if _by_formula(plan):
        return None
    touched = plan.dim * DRAWS * (plan.target.num_data if isinstance(plan.target, SumOverData) else 1)
    if touched > AFFORDABLE:
        return f"a prediction would touch {touched:.1g} numbers of the data (at most {AFFORDABLE:.0e})"
    known, count = isinstance(plan.flat_target, KnownLikelihood), len(plan.observables)
    seconds = FIRST + EACH * count if known else OTHER * count
    if seconds > max(SECONDS, run.wall_time):
        return f"a prediction would take about {seconds:.0f} s, and the run took {run.wall_time:.2g} s"
    return None
