"""From a chosen sampler to a plan: chains, steps, burn-in and starts; and how fast it runs on this machine."""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gyromc import engines
from gyromc.checks import require
from gyromc.errors import DivergenceError, InvalidInput
from gyromc.flat import identity
from gyromc.plan import Plan
from gyromc.tuning.ladder import Circumstances, Ladder
from gyromc.tuning.survey import Survey

__all__ = ["needed_burn_in", "sized", "steps_per_second"]

CHAINS = (64, 32, 20, 8, 4, 2, 1)
ENOUGH_CHAINS = 20  # from which on errors come from the chains' own averages
BURN_IN = (3.0, 10.0)  # relaxation times, from posterior points and from others
WASTED = (0.1, 0.4)  # share of burn-in and boundary that many chains may cost, and of burn-in that fewer may
MOST_BURNT = (0.2, 0.5)  # share of a chain, from posterior points and from others
LEAST_STEPS = 20
ILL_CONDITIONED = 1e5  # condition number from which on chains run in float64
MOST_STEPS = 2**31 - 1
TIMED_STEPS = 50


def sized(ladder: Ladder, around: Circumstances, eta: float, steps: float, chains: int | None = None) -> Plan:
    """The plan of a family at a step size: as many chains as burn-in and boundary allow, starting at the survey's points."""
    found, plan = around.survey, None
    while plan is None:  # a step size rounded up can lie beyond the limit
        plan = ladder.family.plan(around.base, found, around.noise, float(f"{eta:.3g}"))
        eta *= 0.98
    burn_in = needed_burn_in(found, plan.eta)
    require(
        burn_in + LEAST_STEPS <= MOST_STEPS,
        f"No plan can be recommended: the step size would have to be {plan.eta:.2g}, and relaxing takes more steps than can be "
        "counted. The posterior is far from Gaussian: use NUTS, or write the model with less dependence.",
    )
    chains = _chains(ladder, plan.eta, steps, burn_in, found) if chains is None else chains
    burn_in = min(burn_in, math.ceil(MOST_BURNT[0 if found.trusted else 1] * steps / chains))
    placed = plan.replace(
        num_chains=chains,
        num_steps=int(np.clip(round(steps / chains) - burn_in, LEAST_STEPS, MOST_STEPS - burn_in)),
        burn_in=burn_in,
        start=_start(found, chains, around.seed),
        dtype="float64" if np.linalg.cond(found.fit.precision) > ILL_CONDITIONED else None,
    )
    return placed.knowing(found.model)


def needed_burn_in(found: Survey, eta: float) -> int:
    """Steps until a chain has forgotten its start."""
    return math.ceil(BURN_IN[0 if found.trusted else 1] / eta)


def _chains(ladder: Ladder, eta: float, steps: float, burn_in: int, found: Survey) -> int:
    ends = eta**2 * max(float(np.mean(ladder.per_gradient(eta))), 1e-12)
    least = ENOUGH_CHAINS if found.trusted else 1
    for chains in CHAINS:
        own = steps / chains
        wasted = burn_in / own + (2 / (ends * own) if chains > ENOUGH_CHAINS else 0.0)
        if wasted <= WASTED[0 if chains > ENOUGH_CHAINS else 1] or chains <= least:
            return chains
    raise AssertionError("one chain is always possible")


def _start(found: Survey, chains: int, seed: int) -> Any:
    """One point of the survey per chain; a function that draws one of them for a target over a pytree."""
    rows, model = found.starts(chains, seed), found.model
    if model.unravel is identity:
        return rows
    return _Drawn(jnp.asarray(found.starts(max(chains, 64), seed)), model.unravel)


@dataclasses.dataclass(frozen=True, eq=False)
class _Drawn:
    """A start that draws one of some rows."""

    rows: Any
    unravel: Callable

    def __call__(self, key):
        return self.unravel(self.rows[jax.random.randint(key, (), 0, len(self.rows))])


def steps_per_second(plan: Plan) -> float | None:
    """Steps of all chains per second, from a short run; None where it diverged."""
    short = plan.replace(num_steps=min(TIMED_STEPS, plan.num_steps), burn_in=0)
    try:
        engines.run(short, progress=False)
        began = time.perf_counter()
        engines.run(short, progress=False)
    except (DivergenceError, InvalidInput):
        return None
    return short.num_chains * short.num_steps / max(time.perf_counter() - began, 1e-6)
