"""The bias that a finite step size leaves in a mean: from the theory, or from pairs of chains that share their noise.

Richardson extrapolation runs pairs of chains at η and η/2 that are driven by the same noise: two steps at η/2 use normals ξ₁, ξ₂;
the one step at η beside them uses (ξ₁ + ξ₂)/√2 and the first one's mini-batch, so that most of the noise cancels in the
difference of their averages. With E[μ̂_η] = μ + cη^p the bias at η is 2^p/(2^p - 1) times that difference.
"""

import dataclasses
import enum
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.approx.sample import DRAWS, MOST_PARAMETERS
from gyromc.checks import require
from gyromc.engines import scan
from gyromc.engines.base import initial_state, two_sum
from gyromc.engines.scan import threefry
from gyromc.errors import InvalidInput
from gyromc.oracles import Exact
from gyromc.plan import Plan
from gyromc.prediction.answers import UNKNOWN, Kind
from gyromc.prediction.predict import predict
from gyromc.prediction.stability import stability
from gyromc.results import Run
from gyromc.show.interruption import interruptible
from gyromc.targets import SumOverData
from gyromc.targets.regressions import KnownLikelihood


@dataclasses.dataclass(frozen=True)
class BiasSettings:
    """What a prediction may cost, and how pairs of chains run."""

    healthy: float = 0.5  # effective size of draws around the mode, as a share, below which tails decide the bias
    affordable: float = 2e9  # numbers of data touched by a prediction from an importance sample
    first: float = 6.0  # seconds that a prediction of a regression takes, about …
    each: float = 0.3  # … and those of each observable
    other: float = 10.0  # seconds per observable of another target
    seconds: float = 10.0  # what a prediction may take, or as long as the run
    at_once: int = 4096  # coarse steps between two looks at Ctrl-C
    fewest: int = 8  # pairs
    most: int = 512
    next_term: float = 2.0  # of the expansion against this one, per η over the largest stable step size


SETTINGS = BiasSettings()


class BiasSource(enum.StrEnum):
    """Where the bias comes from, besides earlier estimates."""

    AUTO = "auto"
    PREDICT = "predict"
    RICHARDSON = "richardson"
    NONE = "none"


@dataclasses.dataclass(frozen=True)
class Bias:
    """The expected difference between a run's mean and μ(h), None where it is not known."""

    value: float | None
    method: str
    error: float = 0.0  # its standard error
    dof: float = math.inf  # of the error
    start: bool = False  # whether the effect of the start is part of it


def predicted(run: Run) -> dict[str, Bias]:
    """The bias of one chain's average as `predict` knows it, with its error, without a new run."""
    plan, sample = run.plan, None
    if run.steps_done != plan.num_steps:
        plan = plan.replace(num_steps=max(1, run.steps_done))
    try:
        if not _by_formula(plan):
            # Draws around the mode, resampled by their weights: with a sample no Poisson equation is solved, which can take a
            # minute.
            drawn = plan.model.importance_sample()
            uneven = drawn.why_not_even(SETTINGS.healthy)
            require(uneven is None, f"The weights of the draws around the mode are uneven: {uneven}.")
            sample = drawn.theta[np.random.default_rng(0).choice(len(drawn.theta), len(drawn.theta), p=drawn.weights)]
        pred = predict(plan, sample=sample)
    except MemoryError as error:
        needs = f"a prediction with {plan.dim} parameters needs more memory than there is ({error})"
        raise InvalidInput(needs) from error
    found = {}
    for name, row in pred.items():
        how = row.bias_method
        if row.bias is not None and math.isfinite(row.bias):
            found[name] = Bias(row.bias, f"predicted, {how}", row.bias_error, start=row.start_counted)
        else:
            known = how.kind is Kind.UNKNOWN and how != UNKNOWN
            found[name] = unknown(how.removeprefix("unknown: ") if known else "no formula gives it", plan)
    return found


def unknown(why: str, plan: Plan) -> Bias:
    """A bias that is not known, with the reason and what to do about it."""
    return Bias(None, f"unknown: {hinted(why, plan)}")


def hinted(why: str, plan: Plan) -> str:
    """The reason for an unknown bias, with what to do about it."""
    if plan.scheduled or plan.oracle.moving:
        return f"{why.rstrip('.')}; keep draws, and `gyromc.check` tests whether there is one"
    return f'{why.rstrip(".")}; pass `bias="richardson"` to measure it with pairs of chains'


def order_of_bias(plan: Plan) -> int:
    """The power of η that the bias is in proportion to: the scheme's order with exact gradients, 1 with noisy ones."""
    return plan.scheme.order if isinstance(plan.oracle, Exact) else 1


def _by_formula(plan: Plan) -> bool:
    return plan.flat_target.gaussian() is not None or plan.flat_target.separable() is not None


def too_costly(run: Run) -> str | None:
    """Why a prediction is not made, or would take much longer than the run; None where it is made."""
    plan = run.plan
    if plan.scheduled:
        return "the step size is a schedule"
    insist = 'pass `bias="predict"` to insist'
    if plan.dim > MOST_PARAMETERS:
        return f"not predicted with more than {MOST_PARAMETERS} parameters (here {plan.dim}); {insist}"
    if _by_formula(plan):
        return None
    touched = plan.dim * DRAWS * (plan.target.num_data if isinstance(plan.target, SumOverData) else 1)
    if touched > SETTINGS.affordable:
        most = f"at most {SETTINGS.affordable:.0e}"
        return f"a prediction would touch {touched:.1g} numbers of the data ({most}); {insist}"
    known, count = isinstance(plan.flat_target, KnownLikelihood), len(plan.observables)
    seconds = SETTINGS.first + SETTINGS.each * count if known else SETTINGS.other * count
    if seconds > max(SETTINGS.seconds, run.wall_time):
        return f"a prediction would take about {seconds:.0f} s, and the run took {run.wall_time:.2g} s; {insist}"
    return None


def extrapolated(run: Run) -> dict[str, Bias]:
    """The bias of averages of as many steps as the run made, without the effect of the start, which a pair shares."""
    plan = run.plan.replace(num_steps=run.steps_done)
    require(not plan.oracle.moving, f'`bias="richardson"` cannot pair chains here: {plan.oracle.name} keeps anchors.')
    require(not plan.scheduled, '`bias="richardson"` cannot pair chains here: the step size is a schedule.')
    order, stable = order_of_bias(plan), stability(plan)
    factor = 2**order / (2**order - 1)
    share = plan.eta / stable.largest_step_size if stable is not None and stable.largest_step_size > 0 else 0.0
    how = f"Richardson: pairs of chains at η and η/2 with the same noise, order {order}"
    R = max(SETTINGS.fewest, min(SETTINGS.most, plan.num_chains))
    theta, start = plan.starts.theta, plan.start
    if theta is not None and len(theta) > 1:  # rows of the plan's own are used again from the first on
        start = np.resize(np.asarray(start, float), (R, theta.shape[1]))
    # other random numbers than the run's
    seed = (plan.seed + 0x9E3779B97F4A7C15) % 2**63
    plan = plan.replace(num_chains=R, seed=seed, start=start).knowing(plan.model)
    half = plan.replace(step_size=plan.eta / 2)
    with jax.enable_x64(plan.dtype == "float64"):
        coarse, fine = (scan.make_pieces(p, math.inf, None) for p in (plan, half))
        first = initial_state(plan)
        z, sums = jnp.asarray(first.z), jnp.zeros((R, len(plan.observables)), first.high.dtype)
        pairs: Any = jnp.asarray(0, jnp.int32), z, z, sums, sums
        with interruptible("stopping; no bias is estimated") as interrupted:
            left = plan.num_steps + plan.burn_in
            while left and not interrupted:
                steps = min(left, SETTINGS.at_once)
                pairs = jax.block_until_ready(_advance_pairs(coarse, fine, pairs, jnp.asarray(steps, jnp.int32)))
                left -= steps
        if interrupted:
            raise KeyboardInterrupt
    *_, high, low = pairs
    averages = (np.asarray(high, float) + np.asarray(low, float)) / plan.num_steps
    finite = bool(np.all(np.isfinite(averages)))
    require(finite, "The pairs of chains for Richardson's extrapolation diverged: take a smaller `step_size`.")
    found = {}
    for name, column in zip(plan.observables, averages.T, strict=True):
        value, spread = factor * float(column.mean()), factor * float(column.std(ddof=1)) / math.sqrt(R)
        found[name] = Bias(value, how, math.hypot(spread, SETTINGS.next_term * share * value), dof=R - 1)
    return found


@eqx.filter_jit(donate="none")
def _advance_pairs(coarse: scan.Pieces, fine: scan.Pieces, pairs: tuple, num_steps) -> tuple:
    """So many coarse steps, each with two fine ones. `pairs`: the step, fine and coarse states, two parts of the sums of gaps."""
    n, (R, _), dtype = coarse.dynamics.size, pairs[1].shape, pairs[1].dtype

    def corrected(pieces, y, zeta, xi):
        """The observables, less their martingale where there is one, and the state after one step."""
        values, after = scan.moved(pieces, y, zeta, xi, pieces.step_size)
        return values if pieces.martingale is None else values - pieces.martingale.increments(after, xi), after

    def step(_, pairs):
        k, fine_state, coarse_state, high, low = pairs
        one, two, rows, others = jax.random.split(jax.random.fold_in(coarse.key, k), 4)
        xi = [threefry.normal(key, (R, n), dtype) for key in (one, two)]
        zeta = [coarse.oracle.draw(key, coarse.target, R, coarse.dim, dtype) for key in (rows, others)]
        values, after = corrected(coarse, coarse_state, zeta[0], (xi[0] + xi[1]) / math.sqrt(2))
        first, middle = corrected(fine, fine_state, zeta[0], xi[0])
        second, last = corrected(fine, middle, zeta[1], xi[1])
        counted = jnp.where(k >= coarse.burn_in, values - (first + second) / 2, 0)
        return k + 1, last, after, *two_sum(high, low, counted)

    return jax.lax.fori_loop(0, num_steps, step, pairs)
