"""The bias that a finite step size leaves in a mean: from the theory, from a run at a second step size, or from paired chains.

Input: a run. Output: a `Bias` by observable, with its own error and the name of its method. With E[μ̂_η] = μ + c₁η + O(η²), two
runs of the same time at η and ρη give c₁η = (mean(ρη) - mean(η))/(ρ - 1). The transient of the start is the same in both runs, so
their difference does not show it.

Richardson extrapolation runs pairs of chains at η and η/2 that are driven by the same noise: two steps at η/2 use normals ξ₁, ξ₂;
the one step at η beside them uses (ξ₁ + ξ₂)/√2 and the first one's mini-batch, so that most of the noise cancels in the
difference of their averages. With E[μ̂_η] = μ + cη^p the bias at η is 2^p/(2^p - 1) times that difference.
"""

import dataclasses
import enum
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.approx.sample import DRAWS, MOST_PARAMETERS
from gyromc.checks import require
from gyromc.engines import run as run_plan
from gyromc.engines import scan
from gyromc.engines.base import initial_state, two_sum
from gyromc.engines.scan import threefry
from gyromc.errors import DivergenceError, InvalidInput
from gyromc.oracles import Exact
from gyromc.oracles.moments import why_no_moments
from gyromc.plan import Plan
from gyromc.prediction.answers import UNKNOWN, Kind
from gyromc.prediction.predict import predict
from gyromc.prediction.stability import stability
from gyromc.results import Run
from gyromc.show.interruption import interruptible
from gyromc.targets import SumOverData
from gyromc.targets.regressions import KnownLikelihood
from gyromc.targets.separable import why_not_in_jax

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


PAIRED_STEPS = 4096  # coarse steps between two looks at Ctrl-C
FEWEST_PAIRS, MOST_PAIRS = 8, 512  # pairs
NEXT_TERM = 2.0  # the next term of the expansion against this one, per η over the largest stable step size


class _Pairs(NamedTuple):
    """What a coarse step and the two fine steps beside it change; the sums are of coarse less fine values."""

    step: Any
    fine: Any
    coarse: Any
    high: Any
    low: Any


def extrapolated(plan: Plan, names: Sequence[str]) -> dict[str, Bias]:
    """The bias of the plan's averages, without the effect of the start, which the chains of a pair share."""
    order = order_of_bias(plan)
    factor, share = 2**order / (2**order - 1), plan.eta / largest_step_size(plan)
    how = f"Richardson: pairs of chains at η and η/2 with the same noise, order {order}"
    averages = _differences(plan, names)
    R, found = len(averages), {}
    for name, column in zip(names, averages.T, strict=True):
        value, spread = factor * float(column.mean()), factor * float(column.std(ddof=1)) / math.sqrt(R)
        found[name] = Bias(value, how, math.hypot(spread, NEXT_TERM * share * value), dof=R - 1)
    return found


def _differences(plan: Plan, names: Sequence[str]) -> np.ndarray:
    """Coarse less fine averages, pairs × observables, of as many steps as the plan has; `InvalidInput` where they diverge."""
    reason = why_not_in_jax(plan.flat_target) or why_no_moments(plan.oracle)
    require(reason is None, f'`bias="richardson"` cannot pair chains here: {reason}.')
    count = max(FEWEST_PAIRS, min(MOST_PAIRS, plan.num_chains))
    plan = plan.replace(
        observables={name: plan.observables[name] for name in names},
        num_chains=count,
        seed=(plan.seed + 0x9E3779B97F4A7C15) % 2**63,  # other random numbers than the run's
        start=_paired_start(plan, count),
    ).knowing(plan.model)
    half = plan.replace(step_size=plan.eta / 2)
    with jax.enable_x64(plan.dtype == "float64"):
        coarse, fine = (scan.make_pieces(p, math.inf, None) for p in (plan, half))
        start = initial_state(plan)
        z, sums = jnp.asarray(start.z), jnp.zeros((count, len(names)), start.high.dtype)
        pairs = _Pairs(jnp.asarray(0, jnp.int32), z, z, sums, sums)
        with interruptible("stopping; no bias is estimated") as interrupted:
            left = plan.num_steps + plan.burn_in
            while left and not interrupted:
                count = min(left, PAIRED_STEPS)
                pairs = jax.block_until_ready(_advance_pairs(coarse, fine, pairs, jnp.asarray(count, jnp.int32)))
                left -= count
        if interrupted:
            raise KeyboardInterrupt
    averages = (np.asarray(pairs.high, float) + np.asarray(pairs.low, float)) / plan.num_steps
    require(
        bool(np.all(np.isfinite(averages))),
        "The pairs of chains for Richardson's extrapolation diverged: take a smaller `step_size`.",
    )
    return averages


def _paired_start(plan: Plan, count: int) -> Any:
    """The plan's start for another number of chains: rows of their own are used again from the first on."""
    theta = plan.starts.theta
    if theta is None or len(theta) == 1:
        return plan.start
    rows = np.asarray(plan.start, float)
    return np.resize(rows, (count, rows.shape[1]))


@eqx.filter_jit(donate="none")
def _advance_pairs(coarse: scan.Pieces, fine: scan.Pieces, pairs: _Pairs, num_steps) -> _Pairs:
    return jax.lax.fori_loop(0, num_steps, lambda _, p: _pair_step(coarse, fine, p), pairs)


def _pair_step(coarse: scan.Pieces, fine: scan.Pieces, pairs: _Pairs) -> _Pairs:
    """Two fine steps and the coarse step beside them."""
    dtype, n, k = pairs.fine.dtype, coarse.dynamics.size, pairs.step
    R = pairs.fine.shape[0]
    one, two, rows, others = jax.random.split(jax.random.fold_in(coarse.key, k), 4)
    xi = [threefry.normal(key, (R, n), dtype) for key in (one, two)]
    zeta = [coarse.oracle.draw(key, coarse.target, R, coarse.dim, dtype) for key in (rows, others)]
    values, after = _corrected_step(coarse, pairs.coarse, zeta[0], (xi[0] + xi[1]) / math.sqrt(2))
    first, middle = _corrected_step(fine, pairs.fine, zeta[0], xi[0])
    second, last = _corrected_step(fine, middle, zeta[1], xi[1])
    counted = jnp.where(k >= coarse.burn_in, values - (first + second) / 2, 0)
    return _Pairs(k + 1, last, after, *two_sum(pairs.high, pairs.low, counted))


def _corrected_step(pieces: scan.Pieces, y, zeta, xi):
    """The observables, less their martingale where there is one, and the state after one step."""
    values, after = scan.moved(pieces, y, zeta, xi, pieces.step_size)
    return values if pieces.martingale is None else values - pieces.martingale.increments(after, xi), after
