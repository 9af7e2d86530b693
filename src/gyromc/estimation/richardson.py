"""Richardson extrapolation: the bias at η from pairs of chains at two step sizes that are driven by the same noise.

Input: a plan. Output: by observable the mean over pairs of (average at the coarse step size - average at the fine one), with its
standard error. Two steps at η/2 use normals ξ₁, ξ₂; the one step at η beside them uses (ξ₁ + ξ₂)/√2 and the first one's
mini-batch, so that most of the noise cancels in the difference. With E[μ̂_η] = μ + cη^p the bias at η is 2^p/(2^p - 1) times it.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import require
from gyromc.engines import scan
from gyromc.engines.base import initial_state, two_sum
from gyromc.engines.scan import threefry
from gyromc.estimation.bias import Bias, largest_step_size, order_of_bias
from gyromc.oracles.moments import why_no_moments
from gyromc.plan import Plan
from gyromc.show.interruption import interruptible
from gyromc.targets.separable import why_not_in_jax

CHUNK = 4096  # coarse steps between two looks at Ctrl-C
FEWEST, MOST = 8, 512  # pairs
NEXT_TERM = 2.0  # the next term of the expansion against this one, per η over the largest stable step size


class _Pairs(NamedTuple):
    """What a coarse step and the two fine steps beside it change; the sums are of coarse less fine values."""

    step: Any
    fine: Any
    coarse: Any
    high: Any
    low: Any


@dataclasses.dataclass(frozen=True)
class Difference:
    """The mean over pairs of (coarse average - fine average), its standard error, and how many pairs there were."""

    mean: float
    std_error: float
    pairs: int


def extrapolated(plan: Plan, names: Sequence[str]) -> dict[str, Bias]:
    """The bias of the plan's averages, without the effect of the start, which the chains of a pair share."""
    order = order_of_bias(plan)
    factor, share = 2**order / (2**order - 1), plan.eta / largest_step_size(plan)
    how = f"Richardson: pairs of chains at η and η/2 with the same noise, order {order}"
    found = {}
    for name, pairs in differences(plan, names).items():
        value = factor * pairs.mean
        error = math.hypot(factor * pairs.std_error, NEXT_TERM * share * value)
        found[name] = Bias(value, how, error, dof=pairs.pairs - 1)
    return found


def differences(plan: Plan, names: Sequence[str]) -> dict[str, Difference]:
    """Run the pairs for as many steps as the plan has; `InvalidInput` where they diverge."""
    reason = why_not_in_jax(plan.flat_target) or why_no_moments(plan.oracle)
    require(reason is None, f'`bias="richardson"` cannot pair chains here: {reason}.')
    count = max(FEWEST, min(MOST, plan.num_chains))
    plan = plan.replace(
        observables={name: plan.observables[name] for name in names},
        num_chains=count,
        seed=(plan.seed + 0x9E3779B97F4A7C15) % 2**63,  # other random numbers than the run's
        start=_start(plan, count),
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
                count = min(left, CHUNK)
                pairs = jax.block_until_ready(_advance(coarse, fine, pairs, jnp.asarray(count, jnp.int32)))
                left -= count
        if interrupted:
            raise KeyboardInterrupt
    averages = (np.asarray(pairs.high, float) + np.asarray(pairs.low, float)) / plan.num_steps
    require(
        bool(np.all(np.isfinite(averages))),
        "The pairs of chains for Richardson's extrapolation diverged: take a smaller `step_size`.",
    )
    R = len(averages)
    spread = averages.std(axis=0, ddof=1) / math.sqrt(R)
    return {name: Difference(float(averages[:, j].mean()), float(spread[j]), R) for j, name in enumerate(names)}


def _start(plan: Plan, count: int) -> Any:
    """The plan's start for another number of chains: rows of their own are used again from the first on."""
    theta = plan.starts.theta
    if plan.starts.draw is not None or theta is None or len(theta) == 1:
        return plan.start
    return np.resize(theta, (count, theta.shape[1]))


@eqx.filter_jit(donate="none")
def _advance(coarse: scan.Pieces, fine: scan.Pieces, pairs: _Pairs, num_steps) -> _Pairs:
    return jax.lax.fori_loop(0, num_steps, lambda _, p: _step(coarse, fine, p), pairs)


def _step(coarse: scan.Pieces, fine: scan.Pieces, pairs: _Pairs) -> _Pairs:
    """Two fine steps and the coarse step beside them."""
    dtype, n, k = pairs.fine.dtype, coarse.dynamics.size, pairs.step
    R = pairs.fine.shape[0]
    one, two, rows, others = jax.random.split(jax.random.fold_in(coarse.key, k), 4)
    xi = [threefry.normal(key, (R, n), dtype) for key in (one, two)]
    zeta = [coarse.oracle.draw(key, coarse.target, R, coarse.dim, dtype) for key in (rows, others)]
    values, after = _moved(coarse, pairs.coarse, zeta[0], (xi[0] + xi[1]) / math.sqrt(2))
    first, middle = _moved(fine, pairs.fine, zeta[0], xi[0])
    second, last = _moved(fine, middle, zeta[1], xi[1])
    counted = jnp.where(k >= coarse.burn_in, values - (first + second) / 2, 0)
    return _Pairs(k + 1, last, after, *two_sum(pairs.high, pairs.low, counted))


def _moved(pieces: scan.Pieces, y, zeta, xi):
    """The observables, less their martingale where there is one, and the state after one step."""
    values, after = scan.moved(pieces, y, zeta, xi, pieces.step_size)
    return values if pieces.martingale is None else values - pieces.martingale.increments(after, xi), after
