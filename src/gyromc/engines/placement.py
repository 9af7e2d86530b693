"""Where the arrays of engine `scan` are: its pieces and the state of its chains, between the host and a mesh of devices.

Input: a plan, its state on the host and a mesh. Output: the same as arrays on devices (`on_mesh`, `OnMesh.to_device`), and the
state on the host again (`OnMesh.to_host`), whole on every process. Chains are cut along the axis "chains", rows along "data" and
"parameters", states along "parameters"; everything else is whole on every device.
"""

import dataclasses
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from gyromc import processes
from gyromc.engines.meshes import ROWS, ChainMesh, default_mesh, put, shares
from gyromc.engines.parts import Parts
from gyromc.engines.shards import require_shared, shared, why_not_shared
from gyromc.plan import Plan
from gyromc.precision import fresh
from gyromc.results import EngineState

__all__ = ["Carry", "OnMesh", "cast", "on_mesh", "spread_over"]


class Carry(NamedTuple):
    """What one step changes."""

    step: Any
    z: Any  # chains × state, or chains × parts × part of the state
    high: Any
    low: Any
    clock: Any
    failed_at: Any  # of each chain, or of each of its parts
    kept: Any
    anchors: Any  # what the oracle keeps for each chain, or None


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


def spread_over(mesh: Mesh | None, plan: Plan) -> ChainMesh:
    """How the chains of a plan lie on a mesh; raises `InvalidInput` where the mesh shares rows and the target has none."""
    spread = ChainMesh(default_mesh(plan.num_chains) if mesh is None else mesh, plan.num_chains)
    if "data" in shares(spread.mesh):
        require_shared(plan.flat_target, plan.oracle, "data")
    return spread


def on_mesh(pieces: Any, plan: Plan, spread: ChainMesh | None) -> Any:
    """The pieces of a run with its target, on the devices: shared rows in shares, operators for parts in parts."""
    dtype, target = jnp.dtype(plan.dtype), plan.flat_target
    where = lambda p: p.target
    if spread is None:
        return eqx.tree_at(where, pieces, cast(target, dtype), is_leaf=lambda x: x is None)
    rows = None
    if spread.rows > 1 and why_not_shared(target, plan.oracle) is None:
        held = shared(target, spread.rows)
        rows = jax.tree.map(lambda x: put(_rounded(x, dtype), spread.sharding(ROWS)), held.rows)
        target = dataclasses.replace(held, rows=())
    own = pieces.by_part
    pieces = eqx.tree_at(where, pieces, cast(target, dtype), is_leaf=lambda x: x is None)
    if own is not None:
        pieces = eqx.tree_at(lambda p: p.by_part, pieces, None)
    if processes.count() > 1:
        pieces = jax.tree.map(lambda x: put(x, spread.sharding()) if eqx.is_array(x) else x, pieces)
    if rows:
        pieces = eqx.tree_at(where, pieces, dataclasses.replace(pieces.target, rows=rows))
    if own is not None:
        operators = jax.tree.map(lambda x: _by_part(x, spread), own)
        pieces = eqx.tree_at(lambda p: p.by_part, pieces, operators, is_leaf=lambda x: x is None)
    return pieces


def _rounded(x: np.ndarray, dtype) -> np.ndarray:
    """A host array in the precision of the run, or as JAX would take whole numbers."""
    kind = dtype if np.issubdtype(x.dtype, np.floating) else jax.dtypes.canonicalize_dtype(x.dtype)
    return np.asarray(x, kind)


def _by_part(x: Any, spread: ChainMesh) -> Any:
    """An array of an operator in parts, one row on each device; other arrays of a scheme are copied."""
    if not eqx.is_array(x):
        return x
    rows = x.ndim > 0 and x.shape[0] == spread.parts
    return put(x, spread.sharding("parameters") if rows else spread.sharding())


class OnMesh:
    """The chains of one plan as one array over a mesh: their state between host and devices."""

    def __init__(self, plan: Plan, spread: ChainMesh):
        self.plan, self.spread = plan, spread
        self.parts = Parts(plan.dim, spread.parts) if spread.parts > 1 else None
        self.firsts = [None]  # one array, of all chains

    def to_device(self, state: EngineState, slots: int) -> list[Carry]:
        """The state as device arrays, with a buffer for `slots` draws."""
        return [_to_device(state, self.plan, slots, self.spread, self.parts)]

    def rows(self, rows: np.ndarray) -> list[Any]:
        """Rows of a chunk, steps × chains × …, on the devices of their chains, shared over the axes of the data."""
        more = -rows.shape[2] % self.spread.rows
        if more:
            rows = np.pad(rows, [(0, more if axis == 2 else 0) for axis in range(rows.ndim)])
        return [put(self.spread.fill(rows, axis=1), self.spread.sharding(None, "chains", ROWS))]

    def to_host(self, carries: list[Carry]) -> EngineState:
        """The state of all chains on the host, without those that fill the last device."""
        return _to_host(carries[0], self.spread, self.parts)

    def failed(self, carries: list[Carry]) -> bool:
        """Whether a chain has failed, on any process."""
        return bool(processes.gathered(_any_failed(carries[0].failed_at, self.spread.chains)))

    def kept(self, carries: list[Carry], count: int) -> np.ndarray:
        """The first `count` kept draws: draws × chains × d."""
        kept = carries[0].kept
        kept = processes.gathered(kept if processes.count() > 1 else kept[:count])[:count, : self.spread.chains]
        return np.array(kept if self.parts is None else self.parts.joined(kept))


@eqx.filter_jit
def _any_failed(failed_at, chains: int):
    """Whether one of the first so many chains has failed."""
    return jnp.any(failed_at[:chains] >= 0)


def _to_device(state: EngineState, plan: Plan, slots: int, spread: ChainMesh, parts: Parts | None) -> Carry:
    dtype, d = jnp.dtype(plan.dtype), plan.dim
    by_chain, by_part = spread.sharding("chains"), spread.sharding("chains", "parameters")

    def states(rows: np.ndarray):
        rows = spread.fill(np.asarray(rows, dtype))
        return put(rows, by_chain) if parts is None else put(parts.split(rows), by_part)

    high, low = (put(spread.fill(x), by_chain) for x in (state.high, state.low))
    failed_at = spread.fill(np.asarray(state.failed_at, np.int32))
    if parts is not None:
        failed_at = np.repeat(failed_at[:, None], parts.count, axis=1)
    failed_at = put(failed_at, by_chain if parts is None else by_part)
    step, *clock = (put(x, spread.sharding()) for x in (np.int32(state.step), *np.asarray(state.clock, dtype)))
    kept, anchors = None, None
    if slots:
        shape = (slots, spread.filled, *((d,) if parts is None else (parts.count, parts.length)))
        axes = (None, "chains") if parts is None else (None, "chains", "parameters")
        kept = jnp.zeros(shape, dtype, device=spread.sharding(*axes))
    if memory := plan.oracle.memory(d):  # before the first step there is none
        anchors = states(np.zeros((plan.num_chains, memory)) if state.anchors is None else state.anchors)
    return Carry(step, states(state.z), high, low, tuple(clock), failed_at, kept, anchors)


def _to_host(carry: Carry, spread: ChainMesh, parts: Parts | None) -> EngineState:
    whole = lambda x: processes.gathered(x)[: spread.chains]
    joined = lambda x: x if parts is None else np.ascontiguousarray(parts.joined(x))
    failed_at, anchors = whole(carry.failed_at), None if carry.anchors is None else joined(whole(carry.anchors))
    if parts is not None:
        first = np.where(failed_at < 0, np.iinfo(np.int32).max, failed_at).min(axis=1)
        failed_at = np.where(np.any(failed_at >= 0, axis=1), first, -1).astype(np.int32)
    step, *clock = (processes.gathered(x) for x in (carry.step, *carry.clock))
    sums, clock = (whole(carry.high), whole(carry.low)), (float(clock[0]), float(clock[1]))
    return EngineState(int(step), joined(whole(carry.z)), *sums, clock, failed_at, anchors=anchors)
