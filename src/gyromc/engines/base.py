"""What an engine must provide, and what all engines start from and sum with.

An engine is a module, or any object, with three functions: `why_not`, `initial_state` and `open_session`. A session holds the
chains of one plan and moves all of them by a number of steps; `gyromc.engines.loop` does the rest.
"""

import copy
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from gyromc.checks import require
from gyromc.flat import Start, ravel
from gyromc.plan import Plan
from gyromc.results import EngineState

BY_CHAIN = ("z", "high", "low", "failed_at", "generator")  # the fields of a state with one row per chain


class Session(Protocol):
    """The chains of one plan while they run."""

    def advance(self, num_steps: int, first_slot: int = 0) -> None:
        """Move every chain by `num_steps` steps; states kept on the way go to slots, draw number `first_slot` to slot 0."""
        ...

    def failed(self) -> bool:
        """Whether any chain has failed so far."""
        ...

    def kept(self, count: int) -> np.ndarray:
        """The draws in the first `count` slots: draws × chains × d."""
        ...

    def state(self) -> EngineState:
        """The state of all chains, as arrays on the host."""
        ...


class Engine(Protocol):
    """A module, or any object, that runs plans; `mesh` is one of `meshes.read_mesh`."""

    def why_not(self, plan: Plan, mesh: Any = None) -> str | None:
        """Why this engine cannot run the plan on this mesh, or None when it can."""
        ...

    def initial_state(self, plan: Plan) -> EngineState:
        """The state of all chains before the first step."""
        ...

    def open_session(
        self, plan: Plan, state: EngineState, sane_range: float, thin: int | None, slots: int, mesh: Any = None
    ) -> Session:
        """Prepare and compile everything, without making a step.

        A chain with a coordinate beyond `sane_range` has failed. Every `thin`-th state after burn-in is kept (None: no state);
        one call of `advance` stores at most `slots` of them.
        """
        ...


class Keys(NamedTuple):
    """The JAX keys of a run."""

    start: Any
    steps: Any


def keys(seed: int) -> Keys:
    """The keys that belong to a seed; all of its 63 bits count."""
    key = jax.random.key(np.uint32(seed & 0xFFFFFFFF), impl="threefry2x32")
    return Keys(*jax.random.split(jax.random.fold_in(key, np.uint32(seed >> 32))))


def initial_state(plan: Plan) -> EngineState:
    """All chains at the start: z_0 = (θ₀, r₀) with an empty memory, nothing summed."""
    R, d, starts, dtype = plan.num_chains, plan.dim, plan.starts, np.dtype(plan.dtype)
    z = np.zeros((R, plan.state_size), dtype)
    if starts.draw is None:
        z[:, :d] = starts.theta
    else:
        draw, each = starts.draw, jax.random.split(keys(plan.seed).start, R)
        z[:, :d] = np.asarray(jax.jit(jax.vmap(lambda key: ravel(draw(key), dtype)))(each))
    if plan.augmented and starts.r is not None:
        z[:, d : 2 * d] = starts.r
    # Of the observables, then of their martingales.
    sums = np.zeros((R, len(plan.observables) * (2 if plan.martingale else 1)), dtype)
    return EngineState(0, z, sums, sums.copy(), (0.0, 0.0), failed_at=np.full(R, -1, np.int32))


def with_chains(plan: Plan, num_chains: int) -> Plan:
    """The same pieces for fewer chains, whatever its `start`: the state says where they are."""
    part = copy.copy(plan)
    object.__setattr__(part, "num_chains", num_chains)
    return part


def check_state(state: EngineState, engine: Engine, plan: Plan) -> None:
    """Raise `InvalidInput` where a stored state lacks the arrays that an engine moves: compiled loops trust their sizes."""
    one = with_chains(plan, 1)
    object.__setattr__(one, "starts", Start(np.zeros((1, plan.dim))))
    begun = engine.initial_state(one)
    for name in BY_CHAIN:
        found, like = getattr(state, name), getattr(begun, name)
        wanted = None if like is None else (like.dtype, (plan.num_chains, *like.shape[1:]))
        fits = wanted == (None if found is None else (found.dtype, found.shape))
        require(fits, f"The state of the run does not fit its plan: `{name}` has another type or shape. Start anew.")


def two_sum(high, low, value):
    """Add `value` to the unevaluated sum high + low, which carries twice the digits of its parts, and renormalise these."""
    # Knuth's error-free transformation: high + value = total + error exactly.
    total = high + value
    shadow = total - high
    low = low + ((high - (total - shadow)) + (value - shadow))
    renormalised = total + low
    return renormalised, low - (renormalised - total)
