"""Engine `scan`: any target JAX can differentiate, many chains as one array, one compiled loop.

Random numbers depend on (seed, step, chain) alone, so results do not depend on how the steps are cut into chunks, and a run can
be continued exactly. `layout` says where the chains are and which of them are computed together.
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from gyromc.dynamics import Dynamics
from gyromc.engines.base import initial_state, keys, two_sum
from gyromc.engines.scan import threefry
from gyromc.engines.scan.layout import Carry, ChainLayout, Feed, SharedRows, cast, drawn, is_fed, on_mesh
from gyromc.engines.suitability import scan as why_not
from gyromc.flat import Moved
from gyromc.observables import PROFILES, Observable, ridge_of
from gyromc.oracles import Batch, Oracle
from gyromc.plan import Plan
from gyromc.prediction.martingale import Martingale, martingale
from gyromc.results import EngineState
from gyromc.runtime.evaluation import Programs
from gyromc.runtime.machine import require_memory
from gyromc.schemes import Scheme
from gyromc.targets import Target

__all__ = ["Session", "cast", "initial_state", "open_session", "why_not"]

BLOCK = 128
MANY = 16  # ridges, beyond which those of one profile are one matrix product: each on its own takes 26 ms to compile


class Stacked(eqx.Module):
    """Ridge observables of one profile, at rows of θ."""

    directions: Any  # d × observables
    profile: str = eqx.field(static=True)

    def __call__(self, rows):
        return PROFILES[self.profile](rows @ self.directions)


class Pieces(eqx.Module):
    """A plan's pieces in the run's precision: what the loop reads and never changes."""

    target: Target
    oracle: Oracle
    dynamics: Dynamics
    observables: tuple[Observable | Stacked, ...]
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
    size: int = eqx.field(static=True)
    chains: int = eqx.field(static=True)
    order: Any = None  # the places of the observables among those that are computed; None: as they come

    def observed(self, theta):
        """The observables at rows of θ: rows × observables."""
        each = lambda h: _each_chain(lambda t: h(self.unravel(t)), theta)
        if self.order is None:
            return jnp.stack([each(h) for h in self.observables], axis=1)
        # Ridges are functions of a vector: in other coordinates, of θ = T(z).
        rows = _each_chain(self.unravel, theta)
        found = [h(rows) if isinstance(h, Stacked) else each(h)[:, None] for h in self.observables]
        return jnp.concatenate(found, axis=1)[:, self.order]


def _stacked(observables: tuple[Observable, ...]) -> tuple[tuple[Observable | Stacked, ...], np.ndarray | None]:
    """The observables as they are computed, and the place of each among them; None where none is moved."""
    ridges = {i: ridge for i, h in enumerate(observables) if (ridge := ridge_of(h)) is not None}
    if len(ridges) <= MANY:
        return observables, None
    found: list[Observable | Stacked] = []
    order: list[int] = []
    for profile in PROFILES:
        if members := [i for i, ridge in ridges.items() if ridge.profile == profile]:
            found.append(Stacked(np.stack([ridges[i].direction for i in members], axis=1), profile))
            order += members
    others = [i for i in range(len(observables)) if i not in ridges]
    return (*found, *(observables[i] for i in others)), np.argsort([*order, *others])


def make_pieces(plan: Plan, bound: float, thin: int | None, mesh: Mesh | None = None) -> Pieces:
    """Cast the plan's pieces to the run's precision, and copy them to the devices of a mesh."""
    dtype = jnp.dtype(plan.dtype)
    observables, order = _stacked(tuple(plan.observables.values()))
    parts = plan.flat_target, plan.prepared_oracle, plan.dynamics, observables, plan.unravel
    pieces = Pieces(
        *parts,
        step_size=plan.step_size if plan.scheduled else np.asarray(plan.step_size),
        key=keys(plan.seed).steps,
        burn_in=np.int32(plan.burn_in),
        bound=np.asarray(bound),
        thin=None if thin is None else np.int32(thin),
        scheme=plan.prepared_scheme,
        martingale=martingale(plan) if plan.martingale else None,
        weighting=plan.weighting,
        dim=plan.dim,
        size=plan.state_size,
        chains=plan.num_chains,
        order=order,
    )
    return on_mesh(pieces, dtype, mesh)


class ScanSession:
    """The chains of one plan on the devices of a mesh, one of `read_mesh`; left out: `default_mesh`."""

    def __init__(
        self, plan: Plan, state: EngineState, sane_range: float, thin: int | None, slots: int, mesh: Mesh | None = None
    ):
        self.layout = ChainLayout(plan, mesh)
        pieces = make_pieces(plan, sane_range, thin, self.layout.mesh)
        # The oracle's randomness for one step, with the bits it is made from.
        arguments = plan.flat_target, plan.num_chains, plan.dim, jnp.dtype(plan.dtype)
        zeta = jax.eval_shape(lambda: pieces.oracle.draw(pieces.key, *arguments))
        size = 3 * sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(zeta))
        remedy = "Use fewer chains" + (" or smaller batches." if isinstance(plan.oracle, Batch) else ".")
        require_memory(size, f"The randomness of `{plan.oracle.name}` for one step of {plan.num_chains} chains", remedy)
        # What is not an array in the pieces is hashed once, not in every call.
        self.program, self.arrays = LOOPS.of(pieces)
        self.carries = self.layout.to_device(state, slots)
        self.feed = Feed(plan, state.step, self.layout) if is_fed(plan) else None
        if self.feed is None:
            self.advance(0)  # making no step compiles

    def advance(self, num_steps: int, first_slot: int = 0) -> None:
        slot, feed = jnp.asarray(first_slot, jnp.int32), self.feed
        # Matrix products in full float32, unless JAX was configured otherwise: GPUs round them to three digits (tf32).
        settings: Any = jax.config  # JAX adds its settings at run time
        with jax.default_matmul_precision(settings.jax_default_matmul_precision or "highest"):
            if feed is None:
                self._move(jnp.asarray(num_steps, jnp.int32), slot)
            while feed is not None and num_steps > 0:
                rows, first, count = feed.take(num_steps)  # the next ones are read and copied while the device computes
                self._move(jnp.asarray(count, jnp.int32), slot, rows, jnp.asarray(first, jnp.int32))
                num_steps -= count
            jax.block_until_ready(self.carries)

    def _move(self, count, slot, rows: list | None = None, first_row=None) -> None:
        """Start the program for every array of chains; JAX computes several at a time."""
        for i, (carry, first) in enumerate(zip(self.carries, self.layout.firsts, strict=True)):
            own = None if rows is None else (rows[i], first_row)
            self.carries[i] = self.program(self.arrays, carry, first, count, slot, own)

    def failed(self) -> bool:
        return self.layout.failed(self.carries)

    def kept(self, count: int) -> np.ndarray:
        return self.layout.kept(self.carries, count)

    def state(self) -> EngineState:
        return self.layout.to_host(self.carries)


open_session = Session = ScanSession


def _advance(pieces: Pieces, carry: Carry, first, num_steps, first_slot, rows) -> Carry:
    """Move the chains from number `first` on (None: all) by `num_steps` steps; slot 0 stores draw number `first_slot`.

    `rows`: those that were read ahead, steps × chains × …, and the place of the first step's among them.
    """
    # Inside a program XLA leaves shared rows where they are.
    is_shared = lambda x: isinstance(x, SharedRows)
    pieces = jax.tree.map(lambda x: x.rows[: x.count] if is_shared(x) else x, pieces, is_leaf=is_shared)

    def step(i, c):
        if rows is None:
            return _step(pieces, c, first, first_slot)
        own = jax.tree.map(lambda x: jax.lax.dynamic_index_in_dim(x, rows[1] + i, keepdims=False), rows[0])
        return _step(pieces, c, first, first_slot, own)

    if rows is None and jax.default_backend() != "cpu":  # a loop of unknown length asks the host after every turn
        blocks, num_steps = num_steps // BLOCK, num_steps % BLOCK
        carry = jax.lax.fori_loop(0, blocks, lambda _, c: jax.lax.fori_loop(0, BLOCK, step, c), carry)
    return jax.lax.fori_loop(0, num_steps, step, carry)


LOOPS = Programs(_advance, donate=1)


def _step(pieces: Pieces, carry: Carry, first, first_slot, zeta=None) -> Carry:
    """Observe every chain, add to the sums, and make one step; `first` as above, `zeta`: the oracle's randomness, where given."""
    k, y, dtype = carry.step, carry.z[:, : pieces.size], carry.z.dtype
    z = y[:, : pieces.dynamics.size]
    key_noise, key_oracle = jax.random.split(jax.random.fold_in(pieces.key, k))
    eta = pieces.step_size(k) if callable(pieces.step_size) else pieces.step_size
    eta = jnp.asarray(eta, dtype)
    if zeta is None and first is not None:
        zeta = drawn(pieces.oracle, key_oracle, pieces.target, first, len(z), pieces.dim, dtype)
    elif zeta is None:
        zeta = pieces.oracle.draw(key_oracle, pieces.target, pieces.chains, pieces.dim, dtype)
        if more := len(z) - pieces.chains:  # those that fill the last device repeat the last chain's
            zeta = jax.tree.map(lambda x: jnp.pad(x, [(0, more)] + [(0, 0)] * (x.ndim - 1), mode="edge"), zeta)
    xi = threefry.normal(key_noise, z.shape, dtype, None if first is None else first * np.uint32(z.shape[1]))
    anchors: Any = carry.anchors
    if anchors is not None:
        oracle: Any = pieces.oracle
        anew = lambda theta: _each_chain(lambda t: oracle.anchor_at(pieces.target, t), theta).astype(dtype)
        anchors = jax.lax.cond(k % oracle.refresh == 0, anew, lambda _: anchors, z[:, : pieces.dim])
    values, after = moved(pieces, y, zeta, xi, eta, anchors)
    insane = ~(jnp.max(jnp.abs(z), axis=-1) <= pieces.bound) | ~jnp.all(jnp.isfinite(values), axis=1)
    failed_at = jnp.where((carry.failed_at < 0) & insane, k, carry.failed_at)
    counted = k >= pieces.burn_in
    weight = eta if pieces.weighting == "step_size" else jnp.ones((), dtype)
    clock = two_sum(carry.clock[0], carry.clock[1], jnp.where(counted, eta, 0))
    kept = carry.kept
    if kept is not None:  # θ goes to its slot of the buffer if this step is to be kept
        forward = jax.vmap(pieces.unravel.coordinates.forward) if isinstance(pieces.unravel, Moved) else lambda z: z
        since = k - pieces.burn_in
        slot, due = since // pieces.thin - first_slot, counted & (since % pieces.thin == 0)
        store = lambda buffer: buffer.at[slot].set(forward(z[:, : pieces.dim]))
        kept = jax.lax.cond(due, store, lambda buffer: buffer, kept)
    if pieces.martingale is not None:
        values = jnp.concatenate([values, pieces.martingale.increments(after, xi)], axis=1)
    high, low = two_sum(carry.high, carry.low, jnp.where(counted, weight * values, 0))  # E4: z_0 counts
    after = jnp.pad(after, [(0, 0), (0, carry.z.shape[1] - pieces.size)])  # to equal parts for all devices
    return Carry(k + 1, after, high, low, clock, failed_at, kept, anchors)


def moved(pieces: Pieces, y, zeta, xi, eta, anchors=None):
    """The observables at the state of every chain, and the state after one step with the given randomness."""
    q, n = pieces.dim, pieces.dynamics.size

    def gradient(theta, s, anchor):
        oracle: Any = pieces.oracle
        return (oracle if anchor is None else oracle.anchored(anchor)).gradient(pieces.target, theta, s)

    values, g = pieces.observed(y[:, :q]), _each_chain(gradient, y[:, :q], zeta, anchors)
    if n > q:
        g = jnp.concatenate([g, y[:, q:n]], axis=-1)  # ∇H = (∇U, r)
    after = _each_chain(lambda y, g, x: pieces.scheme(pieces.dynamics, y, g, x, eta), y, g, xi)
    return values.astype(y.dtype), after.astype(y.dtype)


def _each_chain(function: Callable, *arrays):
    """Map `function` over the chains; a single chain keeps plain matrix products, which are faster than batches of one."""
    if arrays[0].shape[0] > 1:
        return jax.vmap(function)(*arrays)
    return function(*jax.tree.map(lambda a: a[0], arrays))[None]
