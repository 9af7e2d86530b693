"""Where the arrays of engine `scan` are: its pieces and the state of its chains, between the host and the devices.

Input: a plan, its state on the host and a mesh. Output: the same as arrays on devices, and the state on the host again, whole on
every process. A `ChainLayout` is one of two.

On a mesh all chains are one array. They are cut along the axis "chains" of the mesh, rows along "data" and "parameters", states
along "parameters"; everything else is whole on every device.

On a CPU chains are in blocks of one size, each moved by the same compiled program: the same bits whatever the mesh.
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
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from gyromc import processes
from gyromc.data import prefetched
from gyromc.engines.base import keys
from gyromc.engines.meshes import ROWS, ChainMesh, default_mesh, put, shares
from gyromc.engines.scan import threefry
from gyromc.engines.scan.sharding import Parts, require_shared, shared, why_not_shared
from gyromc.oracles import MOST_COMPARED, Batch, Exact, Gaussian, Oracle, bounds, settled, shuffled
from gyromc.plan import Plan
from gyromc.precision import fresh
from gyromc.results import EngineState
from gyromc.targets import StreamedRegression

NEVER = np.iinfo(np.int32).max  # the step at which a chain fails that has not failed


class Carry(NamedTuple):
    """What one step changes."""

    step: Any
    z: Any  # chains × state, or chains × parts × part of the state
    high: Any
    low: Any
    clock: Any
    failed_at: Any  # of each chain, or of each of its parts
    kept: Any


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


def on_mesh(pieces: Any, plan: Plan, spread: ChainMesh | None, by_part: Any = None) -> Any:
    """The pieces of a run with its target, on the devices: shared rows in shares, operators `by_part` in parts."""
    dtype, target = jnp.dtype(plan.dtype), plan.flat_target
    if spread is None:
        return dataclasses.replace(pieces, target=cast(target, dtype))
    rows = None
    if spread.rows > 1 and why_not_shared(target, plan.oracle) is None:
        held = shared(target, spread.rows)
        # Whole numbers as JAX would take them.
        kind = lambda x: dtype if np.issubdtype(x.dtype, np.floating) else jax.dtypes.canonicalize_dtype(x.dtype)
        rows = jax.tree.map(lambda x: put(np.asarray(x, kind(x)), spread.sharding(ROWS)), held.rows)
        target = dataclasses.replace(held, rows=())
    pieces = dataclasses.replace(pieces, target=cast(target, dtype))
    if processes.count() > 1:
        pieces = jax.tree.map(lambda x: put(x, spread.sharding()) if eqx.is_array(x) else x, pieces)
    if rows:
        pieces = dataclasses.replace(pieces, target=dataclasses.replace(pieces.target, rows=rows))
    return dataclasses.replace(pieces, by_part=jax.tree.map(lambda x: _by_part(x, spread), by_part))


def _by_part(x: Any, spread: ChainMesh) -> Any:
    """An array of an operator in parts, one row on each device; other arrays of a scheme are copied."""
    if not eqx.is_array(x):
        return x
    rows = x.ndim > 0 and x.shape[0] == spread.parts
    return put(x, spread.sharding("parameters") if rows else spread.sharding())


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


class ChainLayout:
    """Which chains of a plan are where: the arrays of their states between host and devices."""

    def __init__(self, plan: Plan, spread: ChainMesh):
        blocks, self.plan = in_blocks(plan, spread), plan
        self.spread = None if blocks else spread
        self.parts = Parts(plan.dim, spread.parts) if not blocks and spread.parts > 1 else None
        self.size = block_size(plan) if blocks else spread.filled
        count, others = -(-plan.num_chains // self.size), processes.count()
        first, last = (-(-count * (processes.index() + i) // others) for i in (0, 1)) if blocks else (0, 1)
        edges = [min(block * self.size, plan.num_chains) for block in range(first, last + 1)]
        # The chains of each array that this process has, and the number of its first one: None where all chains are one array.
        self.slices = [slice(a, b) for a, b in itertools.pairwise(edges)]
        self.firsts = [None if count == 1 else jnp.asarray(own.start, jnp.uint32) for own in self.slices]
        self.none: dict[str, np.ndarray] = {}  # the rows of no chain

    def fill(self, rows: np.ndarray, axis: int = 0) -> np.ndarray:
        """Rows of the chains of an array, the last one repeated where chains are missing."""
        missing = self.size - rows.shape[axis]
        return np.pad(rows, [(0, missing * (i == axis)) for i in range(rows.ndim)], mode="edge") if missing else rows

    def to_device(self, state: EngineState, slots: int) -> list[Carry]:
        """The state as arrays on the devices, each with a buffer for `slots` draws."""
        dtype = np.dtype(self.plan.dtype)
        rows = {name: np.asarray(getattr(state, name), dtype) for name in ("z", "high", "low")}
        rows["failed_at"] = np.asarray(state.failed_at, np.int32)
        self.none = {name: x[:0] for name, x in rows.items()}
        return [self._carry({name: self.fill(x[own]) for name, x in rows.items()}, state, slots) for own in self.slices]

    def _carry(self, rows: dict[str, np.ndarray], state: EngineState, slots: int) -> Carry:
        dtype, shape, axes = np.dtype(self.plan.dtype), (slots, self.size, self.plan.dim), (None, "chains")
        if self.parts is not None:
            shape, axes = (slots, self.size, self.parts.count, self.parts.length), (None, "chains", "parameters")
            rows["failed_at"] = np.repeat(rows["failed_at"][:, None], self.parts.count, axis=1)
            rows["z"] = self.parts.split(rows["z"])
        whole = ("high", "low") if self.parts is not None else rows
        placed = {name: self._place(x, "chains" if name in whole else axes[1:]) for name, x in rows.items()}
        kept = None
        if slots:
            kept = jnp.zeros(shape, dtype, device=None if self.spread is None else self.spread.sharding(*axes))
        clock = tuple(self._place(part) for part in np.asarray(state.clock, dtype))
        return Carry(self._place(np.int32(state.step)), clock=clock, kept=kept, **placed)

    def _place(self, x: Any, axes: Any = ()) -> Any:
        """A copy on the devices: a step overwrites it."""
        axes = (axes,) if isinstance(axes, str) else axes
        return jnp.array(x) if self.spread is None else put(x, self.spread.sharding(*axes))

    def rows(self, rows: np.ndarray) -> list[Any]:
        """Rows of a chunk that were read ahead, steps × chains × …, on the devices of their chains.

        Rows of zeros, without effect, make a batch a multiple of the devices that share it.
        """
        if self.spread is None:
            return [jnp.asarray(self.fill(rows[:, own], axis=1)) for own in self.slices]
        more = -rows.shape[2] % self.spread.rows
        rows = np.pad(rows, [(0, more * (axis == 2)) for axis in range(rows.ndim)]) if more else rows
        return [put(self.fill(rows, axis=1), self.spread.sharding(None, "chains", ROWS))]

    def to_host(self, carries: list[Carry]) -> EngineState:
        """The state of all chains, on every process, without those that fill an array."""
        whole: dict[str, Any] = {name: self._whole(name, carries) for name in self.none}
        if self.parts is not None:
            whole["z"] = self.parts.joined(whole["z"])
            whole["failed_at"] = np.where(whole["failed_at"] < 0, NEVER, whole["failed_at"]).min(axis=1)
            whole["failed_at"] = np.where(whole["failed_at"] == NEVER, -1, whole["failed_at"]).astype(np.int32)
        step, clock = 0, [0.0, 0.0]
        if carries:
            step, *clock = (processes.gathered(x).item() for x in (carries[0].step, *carries[0].clock))
        step, clock = processes.agree([step, clock])  # process 0 has the first block
        return EngineState(step=step, clock=(clock[0], clock[1]), **whole)

    def _whole(self, name: str, carries: list[Carry]) -> np.ndarray:
        """The rows of all chains."""
        if self.spread is not None:
            return processes.gathered(getattr(carries[0], name))[: self.spread.chains]
        return processes.joined(self._own([np.asarray(getattr(c, name)) for c in carries], self.none[name]))

    def _own(self, rows: list[np.ndarray], none: np.ndarray) -> np.ndarray:
        """The rows of the chains that this process has, from those of its blocks."""
        return np.concatenate([none, *rows])[: sum(own.stop - own.start for own in self.slices)]

    def failed(self, carries: list[Carry]) -> bool:
        """Whether a chain has failed, on any process."""
        if self.spread is not None:
            return bool(processes.gathered(_any_failed(carries[0].failed_at, self.spread.chains)))
        own = self._own([np.asarray(c.failed_at) for c in carries], self.none["failed_at"])
        return any(processes.everyone(bool(np.any(own >= 0))))

    def kept(self, carries: list[Carry], count: int) -> np.ndarray:
        """The first `count` kept draws: draws × chains × d."""
        if self.spread is not None:
            kept = carries[0].kept
            kept = processes.gathered(kept if processes.count() > 1 else kept[:count])[:count, : self.spread.chains]
            return np.array(kept if self.parts is None else self.parts.joined(kept))
        if not count:
            return np.zeros((0, self.plan.num_chains, self.plan.dim), self.plan.dtype)
        none = np.zeros((0, count, self.plan.dim), self.plan.dtype)
        own = self._own([np.asarray(c.kept[:count]).swapaxes(0, 1) for c in carries], none)
        return processes.joined(own).swapaxes(0, 1)


@eqx.filter_jit
def _any_failed(failed_at, chains: int):
    """Whether one of the first so many chains has failed."""
    return jnp.any(failed_at[:chains] >= 0)


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


def is_fed(plan: Plan) -> bool:
    """Whether the rows of a plan's mini-batches are read ahead."""
    return isinstance(plan.flat_target, StreamedRegression) and isinstance(plan.oracle, Batch)


class Feed:
    """The rows of all steps from one on, in chunks of equal length: `take` returns a chunk, and how much of it is left.

    Drawing, reading and copying have a thread each.
    """

    def __init__(self, plan: Plan, first: int, layout: ChainLayout):
        assert isinstance(plan.flat_target, StreamedRegression)
        assert isinstance(plan.oracle, Batch)
        self.plan, self.layout, self.source = plan, layout, plan.flat_target.by_row
        batch = plan.num_chains * plan.oracle.size
        self.length = max(1, min(_LONGEST, _BYTES // (batch * (plan.dim + 1) * np.dtype(plan.dtype).itemsize)))
        self.chunks = prefetched(self._placed(first))
        self.rows: Any = None
        self.used = self.length

    def take(self, most: int) -> tuple[Any, int, int]:
        """(rows, the first step's place among them, the number of steps), for at most so many steps."""
        if self.used == self.length:
            self.rows, self.used = next(self.chunks), 0
        first, count = self.used, min(most, self.length - self.used)
        self.used += count
        return self.rows, first, count

    def _placed(self, first: int) -> Iterator[list[tuple[Any, Any]]]:
        """X (steps × chains × b × d) and y of every chunk, for every block of chains, on the devices."""
        dtype = np.dtype(self.plan.dtype)
        read = (self.source.read(index) for index in prefetched(self._drawn(first)))
        # A setting of each thread.
        with jax.enable_x64(dtype == np.float64):
            for pair in prefetched(read):
                yield list(zip(*(self.layout.rows(np.asarray(part, dtype)) for part in pair), strict=True))

    def _drawn(self, first: int) -> Iterator[np.ndarray]:
        """The numbers of the rows of every chunk, steps × chains × b."""
        plan, dtype, length = self.plan, np.dtype(self.plan.dtype), self.length
        # Drawing on a busy device would wait for its steps.
        host = jax.local_devices(backend="cpu")[0]

        def draw(key, step):
            key = jax.random.split(jax.random.fold_in(key, step))[1]
            return plan.oracle.draw(key, plan.flat_target, plan.num_chains, plan.dim, dtype)

        with jax.enable_x64(dtype == np.float64), jax.default_device(host):
            drawn, key = jax.jit(jax.vmap(draw, (None, 0))), jax.device_put(keys(plan.seed).steps, host)
            for step in range(first, plan.num_steps + plan.burn_in, length):
                yield np.asarray(drawn(key, jnp.arange(step, step + length, dtype=jnp.int32)))
