"""Engine `scan`: any target JAX can differentiate, all chains as one array over all devices, one compiled loop.

`Session` takes a plan and the state of its chains and moves them by a number of steps. Random numbers depend on (seed, step,
chain) alone, so results do not depend on how the steps are cut into chunks, and a run can be continued exactly.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gyromc.checks import require_memory
from gyromc.dynamics import Dynamics
from gyromc.engines import threefry
from gyromc.engines.feeding import Feed, is_fed
from gyromc.engines.state import initial_state, keys, two_sum
from gyromc.martingale import Martingale, martingale
from gyromc.observables import Observable, Ridge
from gyromc.oracles import Batch, Oracle
from gyromc.plan import Plan
from gyromc.precision import fresh
from gyromc.results import EngineState
from gyromc.schemes import Scheme
from gyromc.targets import Target
from gyromc.targets.separable import why_not_in_jax

__all__ = ["Session", "initial_state", "why_not"]

MAX_STEPS = 2**31 - 1
BLOCK = 128
MANY = 16  # observables


def why_not(plan: Plan) -> str | None:
    """Why this engine cannot run the plan, or None."""
    reason, steps = why_not_in_jax(plan.flat_target), plan.num_steps + plan.burn_in
    if reason is None and steps > MAX_STEPS:
        return f"it counts at most {MAX_STEPS} steps and the plan has {steps}: continue a shorter run"
    return reason


class Pieces(eqx.Module):
    """A plan's pieces in the run's precision: what the loop reads and never changes."""

    target: Target
    oracle: Oracle
    dynamics: Dynamics
    observables: tuple[Observable, ...]
    unravel: Callable
    step_size: Any
    key: Any
    burn_in: Any
    bound: Any
    thin: Any
    scheme: Scheme
    martingale: Martingale | None
    weighting: str = eqx.field(static=True)
    dim: int = eqx.field(static=True)


class Carry(NamedTuple):
    """What one step changes."""

    step: Any
    z: Any
    high: Any
    low: Any
    clock: Any
    failed_at: Any
    kept: Any
    anchors: Any  # what the oracle keeps for each chain, or None


def make_pieces(plan: Plan, bound: float, thin: int | None) -> Pieces:
    """Cast the plan's pieces to the run's precision."""
    dtype = jnp.dtype(plan.dtype)
    parts = plan.flat_target, plan.prepared_oracle, plan.dynamics, tuple(plan.observables.values()), plan.unravel
    scheme, correction = cast((plan.prepared_scheme, martingale(plan) if plan.martingale else None), dtype)
    return Pieces(
        *cast(parts, dtype),
        step_size=plan.step_size if plan.scheduled else jnp.asarray(plan.step_size, dtype),
        key=keys(plan.seed).steps,
        burn_in=jnp.asarray(plan.burn_in, jnp.int32),
        bound=jnp.asarray(bound, dtype),
        thin=None if thin is None else jnp.asarray(thin, jnp.int32),
        scheme=scheme,
        martingale=correction,
        weighting=plan.weighting,
        dim=plan.dim,
    )


def cast(tree, dtype):
    """A pytree with its floating-point arrays in the given precision; whole numbers and functions stay as they are.

    An array that occurs several times is stored once.
    """
    made = {}

    def one(leaf):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = jnp.asarray(fresh(leaf), dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else None)
        return made[id(leaf)]

    return jax.tree.map(one, tree)


def step_memory(plan: Plan) -> tuple[int, int]:
    """The bytes a step needs: (the state and all temporary memory; three times the state: itself, a gradient and noise).

    The first comes from XLA's analysis of the compiled loop; nothing is run. Data are not counted.
    """
    with _full_precision():
        counts = jnp.asarray(1, jnp.int32), jnp.asarray(0, jnp.int32)
        carry = _to_device(initial_state(plan), plan, 0)
        lowered: Any = advance.lower(make_pieces(plan, 1e8, None), carry, *counts)
        memory = lowered.compile().compiled.memory_analysis()
    return memory.temp_size_in_bytes + carry.z.nbytes, 3 * carry.z.nbytes


class ScanSession:
    """The chains of one plan on the device."""

    def __init__(self, plan: Plan, state: EngineState, sane_range: float, thin: int | None, slots: int):
        self.pieces = make_pieces(plan, sane_range, thin)
        _check_randomness(self.pieces, plan)
        self.carry = _to_device(state, plan, slots)
        self.feed = None
        if is_fed(plan):
            rows = NamedSharding(self.carry.z.sharding.mesh, P(None, "chains"))
            self.feed = Feed(plan, self.pieces.key, state.step, lambda x: jax.device_put(x, rows))
        else:
            self.advance(0)  # making no step compiles

    def advance(self, num_steps: int, first_slot: int = 0) -> None:
        if self.feed is not None:
            self._advance_fed(num_steps, first_slot)
            return
        counts = jnp.asarray(num_steps, jnp.int32), jnp.asarray(first_slot, jnp.int32)
        with _full_precision():
            self.carry = jax.block_until_ready(advance(self.pieces, self.carry, *counts))

    def _advance_fed(self, num_steps: int, first_slot: int) -> None:
        """The same with rows that were read ahead; the next chunk is copied to the device while it computes."""
        assert self.feed is not None
        slot = jnp.asarray(first_slot, jnp.int32)
        with _full_precision():
            while num_steps > 0:
                rows, first, count = self.feed.take(num_steps)
                counts = jnp.asarray(first, jnp.int32), jnp.asarray(count, jnp.int32)
                self.carry = advance_fed(self.pieces, rows, self.carry, *counts, slot)
                num_steps -= count
            jax.block_until_ready(self.carry)

    def failed(self) -> bool:
        return bool(np.any(np.asarray(self.carry.failed_at) >= 0))

    def kept(self, count: int) -> np.ndarray:
        return np.array(self.carry.kept[:count])

    def sums(self) -> tuple[np.ndarray, float]:
        state = self.state()
        return state.sums, sum(state.clock)

    def state(self) -> EngineState:
        host = jax.device_get(self.carry._replace(kept=None))
        clock = float(host.clock[0]), float(host.clock[1])
        return EngineState(int(host.step), host.z, host.high, host.low, clock, host.failed_at, anchors=host.anchors)


Session = ScanSession  # the name in `protocol.Engine`


def _check_randomness(pieces: Pieces, plan: Plan) -> None:
    """Raise `InvalidInput` when the oracle's randomness for one step, with the bits it is made from, does not fit into memory."""
    arguments = pieces.key, pieces.target, plan.num_chains, plan.dim, jnp.dtype(plan.dtype)
    zeta = jax.eval_shape(lambda: pieces.oracle.draw(*arguments))
    size = 3 * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(zeta))
    remedy = "Use fewer chains" + (" or smaller batches." if isinstance(plan.oracle, Batch) else ".")
    require_memory(size, f"The randomness of `{plan.oracle.name}` for one step of {plan.num_chains} chains", remedy)


def _full_precision():
    """Matrix products in full float32, unless JAX was configured otherwise: GPUs round them to three digits (tf32)."""
    settings: Any = jax.config  # JAX adds its settings at run time
    return jax.default_matmul_precision(settings.jax_default_matmul_precision or "highest")


def _to_device(state: EngineState, plan: Plan, slots: int) -> Carry:
    """The state as device arrays, chains spread evenly over all devices, with a buffer for `slots` draws."""
    dtype = jnp.dtype(plan.dtype)
    devices = jax.local_devices()
    count = math.gcd(len(devices), plan.num_chains)
    mesh = Mesh(np.array(devices[:count]), ("chains",))
    rows, columns, copies = (NamedSharding(mesh, spec) for spec in (P("chains"), P(None, "chains"), P()))
    z, high, low, failed_at = jax.device_put((state.z, state.high, state.low, state.failed_at), rows)
    step, *clock = jax.device_put((np.int32(state.step), *np.asarray(state.clock, dtype)), copies)
    kept = jnp.zeros((slots, plan.num_chains, plan.dim), dtype, device=columns) if slots else None
    anchors = None
    if memory := plan.oracle.memory(plan.dim):  # before the first step there is none
        empty = np.zeros((plan.num_chains, memory), dtype)
        anchors = jax.device_put(empty if state.anchors is None else np.asarray(state.anchors, dtype), rows)
    return Carry(step, z, high, low, tuple(clock), failed_at, kept, anchors)


@eqx.filter_jit(donate="all-except-first")
def advance(pieces: Pieces, carry: Carry, num_steps, first_slot) -> Carry:
    """Move every chain by `num_steps` steps; slot 0 stores draw number `first_slot`."""

    def step(_, c):
        return _step(pieces, c, first_slot)

    if jax.default_backend() != "cpu":  # a loop of unknown length asks the host after every turn
        blocks, num_steps = num_steps // BLOCK, num_steps % BLOCK
        carry = jax.lax.fori_loop(0, blocks, lambda _, c: jax.lax.fori_loop(0, BLOCK, step, c), carry)
    return jax.lax.fori_loop(0, num_steps, step, carry)


@eqx.filter_jit
def advance_fed(pieces: Pieces, rows, carry: Carry, first, count, first_slot) -> Carry:
    """The same with given rows, steps × chains × …: those from `first` on."""

    def step(i, c):
        own = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, first + i, keepdims=False), rows)
        return _step(pieces, c, first_slot, own)

    return jax.lax.fori_loop(0, count, step, carry)


def _step(pieces: Pieces, carry: Carry, first_slot, zeta=None) -> Carry:
    """Observe the state of every chain, add to the sums, and make one step; `zeta`: the oracle's randomness, where given."""
    k, y = carry.step, carry.z
    z, dtype = y[:, : pieces.dynamics.size], y.dtype
    key_noise, key_oracle = jax.random.split(jax.random.fold_in(pieces.key, k))
    eta = pieces.step_size(k) if callable(pieces.step_size) else pieces.step_size
    eta = jnp.asarray(eta, dtype)
    if zeta is None:
        zeta = pieces.oracle.draw(key_oracle, pieces.target, z.shape[0], pieces.dim, dtype)
    xi = threefry.normal(key_noise, z.shape, dtype)
    anchors = _refresh(pieces, carry)
    values, after = moved(pieces, y, zeta, xi, eta, anchors)

    size = jnp.max(jnp.abs(z), axis=1)
    insane = ~(size <= pieces.bound) | ~jnp.all(jnp.isfinite(values), axis=1)
    failed_at = jnp.where((carry.failed_at < 0) & insane, k, carry.failed_at)
    counted = k >= pieces.burn_in
    weight = eta if pieces.weighting == "step_size" else jnp.ones((), dtype)
    clock = two_sum(carry.clock[0], carry.clock[1], jnp.where(counted, eta, 0))
    kept = _keep(pieces, carry, z[:, : pieces.dim], counted, first_slot)

    if pieces.martingale is not None:
        values = jnp.concatenate([values, pieces.martingale.increments(after, xi)], axis=1)
    high, low = two_sum(carry.high, carry.low, jnp.where(counted, weight * values, 0))  # E4: z_0 counts
    return Carry(k + 1, after, high, low, clock, failed_at, kept, anchors)


def _refresh(pieces: Pieces, carry: Carry):
    """The chains' anchors, set to their states in every m-th step."""
    if carry.anchors is None:
        return None
    oracle: Any = pieces.oracle
    anew = lambda: _each_chain(lambda t: oracle.anchor_at(pieces.target, t), carry.z[:, : pieces.dim])
    return jax.lax.cond(
        carry.step % oracle.refresh == 0, lambda: anew().astype(carry.anchors.dtype), lambda: carry.anchors
    )


def moved(pieces: Pieces, y, zeta, xi, eta, anchors=None):
    """The observables at the state of every chain, and the state after one step with the given randomness."""
    z = y[:, : pieces.dynamics.size]
    theta = z[:, : pieces.dim]
    values = observed(pieces, theta)
    oracle: Any = pieces.oracle
    if anchors is None:
        gradient = _each_chain(lambda t, s: oracle.gradient(pieces.target, t, s), theta, zeta)
    else:
        gradient = _each_chain(lambda t, s, a: oracle.anchored(a).gradient(pieces.target, t, s), theta, zeta, anchors)
    if z.shape[1] > pieces.dim:
        gradient = jnp.concatenate([gradient, z[:, pieces.dim :]], axis=1)  # ∇H = (∇U, r)
    step = lambda y, g, x: pieces.scheme(pieces.dynamics, y, g, x, eta)
    after = _each_chain(step, y, gradient, xi).astype(y.dtype)
    return values.astype(y.dtype), after


def observed(pieces: Pieces, theta):
    """The observables at rows of θ: rows × observables; many linear ones by one matrix product, which compiles in no time."""
    every = pieces.observables
    directions = [jnp.asarray(h.direction) for h in every if isinstance(h, Ridge) and h.is_linear]
    if len(directions) == len(every) > MANY:
        return theta @ jnp.stack(directions, axis=1)
    return jnp.stack([_each_chain(lambda t, h=h: h(pieces.unravel(t)), theta) for h in every], axis=1)


def _keep(pieces: Pieces, carry: Carry, theta, counted, first_slot):
    """The buffer of kept draws, with θ in its slot if this step is to be kept."""
    if carry.kept is None:
        return None
    since = carry.step - pieces.burn_in
    slot = since // pieces.thin - first_slot
    due = counted & (since % pieces.thin == 0)
    return jax.lax.cond(due, lambda buffer: buffer.at[slot].set(theta), lambda buffer: buffer, carry.kept)


def _each_chain(function: Callable, *arrays):
    """Map `function` over the chains; a single chain keeps plain matrix products, which are faster than batches of one."""
    if arrays[0].shape[0] > 1:
        return jax.vmap(function)(*arrays)
    return function(*jax.tree.map(lambda a: a[0], arrays))[None]
