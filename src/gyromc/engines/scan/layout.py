"""Where the arrays of engine `scan` are: its pieces and the state of its chains, between the host and the devices.

Input: a plan, its state on the host and a mesh. Output: the same as arrays on devices, and the state on the host again, whole on
every process. There are two layouts with the same methods.

`OnMesh`: all chains are one array. They are cut along the axis "chains" of a mesh, rows along "data" and "parameters", states
along "parameters"; everything else is whole on every device.

`InBlocks`: on a CPU, chains in blocks of one size, each moved by the same compiled program: the same bits whatever the mesh.
XLA chooses by the shape of a matrix product in which order it adds, and the number of chains is part of that shape. The size of
a block depends on the plan alone, so every process and every mesh runs one program, for other blocks. `drawn` makes the part of
an oracle's randomness that belongs to the chains of a block. The devices of one process share its cores and memory: its blocks
are on its first device, and XLA computes several of them at a time. A GPU needs all its chains in one program: there, and where
rows or parameters are shared, is no block.

`Feed`: rows of a source, read ahead of the steps that use them. Which rows a step draws depends on (seed, step, chain) alone, so
a thread draws, reads and copies those of the steps to come while the device computes: it waits only where rows are read more
slowly than it uses them.
"""

import dataclasses
import queue
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from gyromc import processes
from gyromc.data import Mapped, prefetched
from gyromc.engines.base import keys
from gyromc.engines.meshes import ROWS, ChainMesh, default_mesh, put, shares
from gyromc.engines.scan import threefry
from gyromc.engines.scan.sharding import Parts, require_shared, shared, why_not_shared
from gyromc.oracles import Batch, Exact, Gaussian, Oracle
from gyromc.oracles.base import MOST_COMPARED, bounds, settled, shuffled
from gyromc.plan import Plan
from gyromc.precision import fresh
from gyromc.results import EngineState
from gyromc.targets import StreamedRegression


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


@dataclasses.dataclass(frozen=True)
class BlockSettings:
    """How many chains a block has, measured by benchmarks/blocks.py (docs/measured/blocks.json)."""

    numbers: int = 2**14
    """Of the states in a block: with fewer, what a step costs for any number of chains would show."""
    read: int = 2**21
    """Numbers that the gradients of a block read: a step that takes longer may as well be shared by processes."""
    least: int = 32
    """Chains that read a matrix together, at least."""
    large: int = 4096
    """Numbers of a state, from which on one chain is a block."""
    most: int = 64
    """Blocks: each is a call of the program."""


SETTINGS = BlockSettings()
DRAWN = (Exact.draw, Gaussian.draw, Batch.draw)  # what `drawn` knows


def in_blocks(plan: Plan, spread: ChainMesh) -> bool:
    """Whether the chains of a plan are moved in blocks."""
    if jax.default_backend() != "cpu" or shares(spread.mesh) or spread.mesh.devices.flat[0].platform != "cpu":
        return False
    numbers = (plan.num_chains + block_size(plan)) * max(plan.dynamics.size, plan.dim, getattr(plan.oracle, "size", 1))
    return threefry.counts(keys(plan.seed).steps, numbers)


def block_size(plan: Plan) -> int:
    """How many chains a block has; the last one is filled with chains that are thrown away.

    All of them, where an oracle draws in a way of its own, of which no part can be drawn alone.
    """
    numbers, chains = plan.state_size, plan.num_chains
    if type(plan.oracle).draw not in DRAWN:
        return chains
    read = plan.oracle.evaluations(plan.flat_target) * plan.dim
    wanted = max(SETTINGS.least, min(SETTINGS.numbers // numbers, SETTINGS.read // read))
    if numbers >= SETTINGS.large:
        wanted = 1
    count = -(-chains // max(wanted, -(-chains // SETTINGS.most)))
    return -(-chains // count)


class InBlocks:
    """The chains of one plan in blocks: which of them this process has, and their states between host and device."""

    def __init__(self, plan: Plan):
        self.plan, self.size = plan, block_size(plan)
        count, others = -(-plan.num_chains // self.size), processes.count()
        first, last = (-(-count * (processes.index() + i) // others) for i in (0, 1))
        self.own = slice(*(min(edge * self.size, plan.num_chains) for edge in (first, last)))
        self.firsts = [None if count == 1 else jnp.asarray(b * self.size, jnp.uint32) for b in range(first, last)]
        self.none: dict[str, np.ndarray] = {}  # the rows of no chain

    def slices(self) -> list[slice]:
        """The chains of each block of this process."""
        return [slice(a, min(a + self.size, self.own.stop)) for a in range(self.own.start, self.own.stop, self.size)]

    def fill(self, rows: np.ndarray, axis: int = 0) -> np.ndarray:
        """Rows of the chains of a block, the last one repeated where chains are missing."""
        missing = self.size - rows.shape[axis]
        more = [(0, missing if i == axis else 0) for i in range(rows.ndim)]
        return np.pad(rows, more, mode="edge") if missing else rows

    def to_device(self, state: EngineState, slots: int) -> list[Carry]:
        """The state of every block as arrays on the device, each with a buffer for `slots` draws."""
        plan, dtype = self.plan, np.dtype(self.plan.dtype)
        rows = {name: np.asarray(getattr(state, name), dtype) for name in ("z", "high", "low")}
        rows["failed_at"] = np.asarray(state.failed_at, np.int32)
        if memory := plan.oracle.memory(plan.dim):  # before the first step there is none
            none = np.zeros((plan.num_chains, memory))
            rows["anchors"] = np.asarray(none if state.anchors is None else state.anchors, dtype)
        self.none = {name: np.zeros((0, *x.shape[1:]), x.dtype) for name, x in rows.items()}
        carries = []
        for own in self.slices():
            placed: dict[str, Any] = {name: jnp.array(self.fill(x[own])) for name, x in rows.items()}
            placed.setdefault("anchors", None)  # all are copies: a step overwrites them
            kept = jnp.zeros((slots, self.size, plan.dim), dtype) if slots else None
            clock = tuple(jnp.array(part, dtype) for part in state.clock)
            carries.append(Carry(step=jnp.array(state.step, jnp.int32), clock=clock, kept=kept, **placed))
        return carries

    def rows(self, rows: np.ndarray) -> list[Any]:
        """Rows of a chunk that were read ahead, steps × chains × …, for every block on the device."""
        return [jnp.asarray(self.fill(rows[:, own], axis=1)) for own in self.slices()]

    def to_host(self, carries: list[Carry]) -> EngineState:
        """The state of all chains, on every process."""
        whole: dict[str, Any] = {name: processes.joined(self._own(name, carries)) for name in self.none}
        step, clock = 0, [0.0, 0.0]
        if carries:
            step, clock = int(carries[0].step), [float(part) for part in carries[0].clock]
        step, clock = processes.agree([step, clock])  # process 0 has the first block
        return EngineState(step=step, clock=(clock[0], clock[1]), **whole)

    def _own(self, name: str, carries: list[Carry]) -> np.ndarray:
        """The rows of this process's chains."""
        rows = np.concatenate([self.none[name], *(np.asarray(getattr(c, name)) for c in carries)])
        return rows[: self.own.stop - self.own.start]

    def failed(self, carries: list[Carry]) -> bool:
        """Whether a chain has failed, on any process."""
        return any(processes.everyone(bool(np.any(self._own("failed_at", carries) >= 0))))

    def kept(self, carries: list[Carry], count: int) -> np.ndarray:
        """The first `count` kept draws: draws × chains × d."""
        none = np.zeros((0, count, self.plan.dim), self.plan.dtype)
        if not count:
            return np.zeros((0, self.plan.num_chains, self.plan.dim), self.plan.dtype)
        own = np.concatenate([none, *(np.asarray(c.kept[:count]).swapaxes(0, 1) for c in carries)])
        return processes.joined(own[: self.own.stop - self.own.start]).swapaxes(0, 1)


def drawn(oracle: Oracle, key, target, first, count: int, dim: int, dtype) -> Any:
    """The rows of `oracle.draw(key, target, …)` for `count` chains from number `first` on; the oracle draws as one of `DRAWN`."""
    if isinstance(oracle, Gaussian):
        return threefry.normal_at(key, _numbers(count, dim), dtype, first * np.uint32(dim))
    if not isinstance(oracle, Batch):
        return None
    size, N = oracle.size, target.num_data
    integers = lambda bound: threefry.integers_at(key, _numbers(count, size), bound, first * np.uint32(size))
    if oracle.replace:
        return integers(N)
    if size == N:
        return jnp.broadcast_to(jnp.arange(size), (count, size))
    if size > MOST_COMPARED:
        return shuffled(threefry.keys_at(key, jax.lax.iota(jnp.uint32, count), first), size, N)
    return settled(integers(bounds(size, N)), N)


def _numbers(count: int, size: int):
    """0, 1, 2, … as rows of `size`."""
    return jax.lax.iota(jnp.uint32, count * size).reshape(count, size)


_BYTES, _LONGEST = 2**24, 256
"""What is copied to the device at once, at most: bytes of rows, and steps whose rows these are."""
_BUFFERS = 6  # for the chunks that are read ahead, being read, and being copied


def is_fed(plan: Plan) -> bool:
    """Whether the rows of a plan's mini-batches are read ahead."""
    streamed = isinstance(plan.flat_target, StreamedRegression) and isinstance(plan.oracle, Batch)
    return streamed and not plan.oracle.memory(plan.dim)


class Feed:
    """The rows of all steps from one on, in chunks of equal length: `take` returns a chunk, and how much of it is left."""

    def __init__(self, plan: Plan, key: Any, first: int, layout: OnMesh | InBlocks):
        self.length = max(1, min(_LONGEST, _BYTES // (plan.num_chains * _bytes_a_chain(plan))))
        self.chunks = prefetched(_chunks(plan, key, first, self.length, layout))
        self.rows: Any = None
        self.used = self.length

    def take(self, most: int) -> tuple[Any, int, int]:
        """(rows, the first step's place among them, the number of steps), for at most so many steps."""
        if self.used == self.length:
            self.rows, self.used = next(self.chunks), 0
        first, count = self.used, min(most, self.length - self.used)
        self.used += count
        return self.rows, first, count


def _bytes_a_chain(plan: Plan) -> int:
    assert isinstance(plan.oracle, Batch)
    return plan.oracle.size * (plan.dim + 1) * np.dtype(plan.dtype).itemsize


def _chunks(
    plan: Plan, key: Any, first: int, length: int, layout: OnMesh | InBlocks
) -> Iterator[list[tuple[Any, Any]]]:
    """X (steps × chains × b × d) and y of every chunk, for every block of chains, on the devices.

    Rows of zeros, without effect, make b a multiple. Drawing, reading and copying have a thread each.
    """
    target, oracle, dtype = plan.flat_target, plan.oracle, np.dtype(plan.dtype)
    assert isinstance(target, StreamedRegression)
    assert isinstance(oracle, Batch)
    source, rows = target.by_row, plan.num_chains * oracle.size
    buffers: queue.SimpleQueue | None = None
    on_cpu = isinstance(layout, InBlocks) or layout.spread.mesh.devices.flat[0].platform == "cpu"
    if not on_cpu:  # where JAX may keep a host array as it is, each needs memory of its own
        buffers = queue.SimpleQueue()
        for _ in range(_BUFFERS):
            buffers.put(None)
    reading: dict[str, Any] = {}
    if isinstance(source, Mapped):
        reading["keep"] = source.keeps(rows * (plan.num_steps + plan.burn_in), oracle.size)
    with jax.enable_x64(dtype == np.float64):  # a setting of each thread
        for X, y, buffer in prefetched(
            _read(source, prefetched(_drawn_ahead(plan, key, first, length)), reading, buffers)
        ):
            placed = list(zip(layout.rows(np.asarray(X, dtype)), layout.rows(np.asarray(y, dtype)), strict=True))
            if buffers is not None and buffer is not None:
                jax.block_until_ready(placed)  # then the buffer may be written again
                buffers.put(buffer)
            yield placed


def _drawn_ahead(plan: Plan, key: Any, first: int, length: int) -> Iterator[np.ndarray]:
    """The numbers of the rows of every chunk, steps × chains × b."""
    target, oracle, dtype = plan.flat_target, plan.oracle, np.dtype(plan.dtype)
    host = jax.local_devices(backend="cpu")[0]  # drawing on a busy device would wait for its steps

    def draw(key, step):
        return oracle.draw(jax.random.split(jax.random.fold_in(key, step))[1], target, plan.num_chains, plan.dim, dtype)

    with jax.enable_x64(dtype == np.float64), jax.default_device(host):
        drawn, key = jax.jit(jax.vmap(draw, (None, 0))), jax.device_put(key, host)
        for step in range(first, plan.num_steps + plan.burn_in, length):
            yield np.asarray(drawn(key, jnp.arange(step, step + length, dtype=jnp.int32)))


def _read(
    source: Any, indices: Iterator[np.ndarray], reading: dict[str, Any], buffers: queue.SimpleQueue | None
) -> Iterator[tuple[Any, Any, Any]]:
    """X and y of every chunk, and the buffer they are in; memory that is written again costs no new pages."""
    for index in indices:
        buffer = None
        if buffers is not None and isinstance(source, Mapped) and reading["keep"]:
            buffer = buffers.get() or source.buffer(index.size)
            X, y = source.read(index, **reading, out=buffer)
        else:
            X, y = source.read(index, **reading)
        yield X, y, buffer
