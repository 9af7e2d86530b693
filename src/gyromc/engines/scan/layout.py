"""Where the arrays of engine `scan` are: its pieces and the state of its chains, between the host and the devices.

On a mesh all chains are one array, cut along the axes "chains" and "parameters", and rows of data are cut along "data"; XLA moves
and adds what a device lacks. On a CPU chains are in blocks of one size, each moved by the same compiled program: XLA chooses by
the shape of a matrix product in which order it adds, and the size of a block depends on the plan alone, so every process and
every mesh finds the same bits. The devices of one process share its cores: its blocks are on the first.

`Feed` reads rows of a source ahead of the steps that use them: which rows a step draws depends on (seed, step, chain) alone.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from gyromc import processes
from gyromc.data import prefetched
from gyromc.engines.base import keys
from gyromc.engines.meshes import default_mesh, put, shares
from gyromc.engines.scan import threefry
from gyromc.oracles import MOST_COMPARED, Batch, Exact, Gaussian, Oracle, bounds, settled, shuffled
from gyromc.plan import Plan
from gyromc.results import EngineState
from gyromc.runtime.precision import fresh
from gyromc.targets import StreamedRegression


class Carry(NamedTuple):
    """What one step changes."""

    step: Any
    z: Any
    high: Any
    low: Any
    clock: Any
    failed_at: Any
    kept: Any
    anchors: Any = None  # of an oracle that has one for each chain


class SharedRows(eqx.Module):
    """An array with one entry for each row of the data, over the devices that share them; the last entries only fill these."""

    rows: jax.Array
    count: int = eqx.field(static=True)


def cast(tree, dtype):
    """A pytree with its floating-point arrays in the given precision; one that occurs several times is stored once."""
    made = {}

    def one(leaf):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic):
            return leaf
        if id(leaf) not in made:
            made[id(leaf)] = jnp.asarray(fresh(leaf), dtype if jnp.issubdtype(leaf.dtype, jnp.floating) else None)
        return made[id(leaf)]

    return jax.tree.map(one, tree)


def on_mesh(pieces: Any, dtype, mesh: Mesh | None) -> Any:
    """The pieces of a run in its precision, on the devices of a mesh: where it shares rows, those of the target in shares."""
    count = getattr(pieces.target, "num_data", 0)

    def shared(x, across: Mesh):
        if not eqx.is_array(x) or x.shape[:1] != (count,):
            return x
        kind = dtype if jnp.issubdtype(x.dtype, jnp.floating) else jax.dtypes.canonicalize_dtype(x.dtype)
        filled = np.pad(np.asarray(x, kind), [(0, -count % across.shape["data"]), *[(0, 0)] * (x.ndim - 1)])
        return SharedRows(put(filled, NamedSharding(across, P("data"))), count)

    if mesh is not None and "data" in shares(mesh):
        pieces = dataclasses.replace(pieces, target=jax.tree.map(lambda x: shared(x, mesh), pieces.target))
    pieces = cast(pieces, dtype)
    if mesh is None or processes.count() == 1:
        return pieces
    whole = lambda x: put(x, NamedSharding(mesh, P())) if eqx.is_array(x) else x
    return jax.tree.map(whole, pieces, is_leaf=lambda x: isinstance(x, SharedRows))


@dataclasses.dataclass(frozen=True)
class BlockSettings:
    """How many chains a block has, measured by benchmarks/blocks.py (docs/measured/blocks.json)."""

    numbers: int = 2**14  # of the states in a block: with fewer, what a step costs for any number of chains would show
    # Numbers that the gradients of a block read: a step that takes longer may as well be shared by processes.
    read: int = 2**21
    least: int = 32  # chains that read a matrix together
    large: int = 4096  # numbers of a state, from which on one chain is a block
    most: int = 64  # blocks: each is a call of the program


SETTINGS = BlockSettings()
DRAWN = (Exact.draw, Gaussian.draw, Batch.draw)  # what `drawn` knows


def in_blocks(plan: Plan, mesh: Mesh) -> bool:
    """Whether the chains of a plan are moved in blocks: not on a GPU, which needs all its chains in one program."""
    if jax.default_backend() != "cpu" or shares(mesh) or mesh.devices.flat[0].platform != "cpu":
        return False
    numbers = (plan.num_chains + block_size(plan)) * max(plan.dynamics.size, plan.dim, getattr(plan.oracle, "size", 1))
    return threefry.counts(keys(plan.seed).steps, numbers)


def block_size(plan: Plan) -> int:
    """How many chains a block has; the last one is filled with chains that are thrown away."""
    numbers, chains = plan.state_size, plan.num_chains
    # All of them, where an oracle draws in a way of its own, of which no part can be drawn alone.
    if type(plan.oracle).draw not in DRAWN:
        return chains
    read = plan.oracle.evaluations(plan.flat_target) * plan.dim
    wanted = max(SETTINGS.least, min(SETTINGS.numbers // numbers, SETTINGS.read // read))
    if numbers >= SETTINGS.large:
        wanted = 1
    count = -(-chains // max(wanted, -(-chains // SETTINGS.most)))
    return -(-chains // count)


class ChainLayout:
    """Which chains of a plan are where: the arrays of their states between host and devices; `mesh` is None for blocks."""

    def __init__(self, plan: Plan, mesh: Mesh | None):
        mesh = default_mesh(plan.num_chains) if mesh is None else mesh
        blocks, across, others = in_blocks(plan, mesh), mesh.shape["chains"], processes.count()
        self.plan, self.mesh = plan, None if blocks else mesh
        self.size = block_size(plan) if blocks else -(-plan.num_chains // across) * across
        count = -(-plan.num_chains // self.size)
        first, last = (-(-count * (processes.index() + i) // others) for i in (0, 1)) if blocks else (0, 1)
        edges = [min(block * self.size, plan.num_chains) for block in range(first, last + 1)]
        # The chains of each array that this process has, and the number of its first one: None where all chains are one array.
        self.slices = [slice(a, b) for a, b in itertools.pairwise(edges)]
        self.firsts = [None if count == 1 else jnp.asarray(own.start, jnp.uint32) for own in self.slices]
        self.none: dict[str, np.ndarray] = {}  # the rows of no chain

    def place(self, x: Any, *axes: str | None) -> jax.Array:
        """A copy on the devices, by the axis of each dimension: a step overwrites it."""
        return jnp.array(x) if self.mesh is None else put(x, NamedSharding(self.mesh, P(*axes)))

    def fill(self, rows: np.ndarray, axis: int = 0) -> np.ndarray:
        """Rows of the chains of an array, the last one repeated where chains are missing."""
        missing = self.size - rows.shape[axis]
        return np.pad(rows, [(0, missing * (i == axis)) for i in range(rows.ndim)], mode="edge") if missing else rows

    def to_device(self, state: EngineState, slots: int) -> list[Carry]:
        """The state as arrays on the devices, each with a buffer for `slots` draws."""
        plan, dtype = self.plan, np.dtype(self.plan.dtype)
        rows = {name: np.asarray(getattr(state, name), dtype) for name in ("z", "high", "low")}
        rows["failed_at"] = np.asarray(state.failed_at, np.int32)
        if plan.oracle.moving:  # before the first step there are none
            none = np.zeros((plan.num_chains, 2 * plan.dim))
            rows["anchors"] = np.asarray(none if state.anchors is None else state.anchors, dtype)
        self.none = {name: x[:0] for name, x in rows.items()}
        carries = []
        for own in self.slices:
            placed: dict[str, Any] = {name: self.place(self.fill(x[own]), "chains") for name, x in rows.items()}
            if self.mesh is not None:
                z = np.pad(self.fill(rows["z"]), [(0, 0), (0, -plan.state_size % self.mesh.shape["parameters"])])
                placed["z"] = self.place(z, "chains", "parameters")
            placed["clock"] = tuple(self.place(part) for part in np.asarray(state.clock, dtype))
            kept = self.place(np.zeros((slots, self.size, plan.dim), dtype), None, "chains") if slots else None
            carries.append(Carry(self.place(np.int32(state.step)), kept=kept, **placed))
        return carries

    def rows(self, rows: np.ndarray) -> list[Any]:
        """Rows of a chunk that were read ahead, steps × chains × …, on the devices of their chains."""
        even = self.mesh is not None and rows.shape[2] % self.mesh.shape["data"] == 0
        axes = None, "chains", "data" if even else None
        return [self.place(self.fill(rows[:, own], axis=1), *axes) for own in self.slices]

    def to_host(self, carries: list[Carry]) -> EngineState:
        """The state of all chains, on every process."""
        whole: dict[str, Any] = {}
        for name, none in self.none.items():
            own = self._own([getattr(carry, name) for carry in carries], none)
            whole[name] = own if self.mesh is not None else processes.joined(own)
        step, clock = 0, [0.0, 0.0]
        if carries:
            step, *clock = (processes.gathered(x).item() for x in (carries[0].step, *carries[0].clock))
        step, clock = processes.agree([step, clock])  # process 0 has the first block
        whole["z"] = np.ascontiguousarray(whole["z"][:, : self.plan.state_size])
        return EngineState(step=step, clock=(clock[0], clock[1]), **whole)

    def _own(self, rows: list[Any], none: np.ndarray) -> np.ndarray:
        """The rows of the chains that this process has, from those of its blocks; on a mesh, of all chains."""
        held = sum(own.stop - own.start for own in self.slices)
        return np.concatenate([*map(processes.gathered, rows)] or [none])[:held]

    def failed(self, carries: list[Carry]) -> bool:
        """Whether a chain has failed, on any process."""
        own = self._own([carry.failed_at for carry in carries], self.none["failed_at"])
        return any(processes.everyone(bool(np.any(own >= 0))))

    def kept(self, carries: list[Carry], count: int) -> np.ndarray:
        """The first `count` kept draws: draws × chains × d."""
        rows = [processes.gathered(carry.kept)[:count].swapaxes(0, 1) for carry in carries]
        own = self._own(rows, np.zeros((0, count, self.plan.dim), self.plan.dtype))
        return (own if self.mesh is not None else processes.joined(own)).swapaxes(0, 1)


def drawn(oracle: Oracle, key, target, first, count: int, dim: int, dtype) -> Any:
    """The rows of `oracle.draw(key, target, …)` for `count` chains from number `first` on; the oracle draws as one of `DRAWN`."""
    if isinstance(oracle, Gaussian):
        return threefry.normal(key, (count, dim), dtype, first * np.uint32(dim))
    if not isinstance(oracle, Batch):
        return None
    size, N = oracle.size, target.num_data
    integers = lambda bound: threefry.integers_at(key, threefry.numbers(count, size), bound, first * np.uint32(size))
    if oracle.replace:
        return integers(N)
    if size == N:
        return jnp.broadcast_to(jnp.arange(size), (count, size))
    if size > MOST_COMPARED:
        return shuffled(threefry.keys_at(key, threefry.numbers(count), first), size, N)
    return settled(integers(bounds(size, N)), N)


_BYTES, _LONGEST = 2**24, 256  # copied to the device at once, at most: bytes of rows, and steps whose rows these are


def is_fed(plan: Plan) -> bool:
    """Whether the rows of a plan's mini-batches are read ahead."""
    return isinstance(plan.flat_target, StreamedRegression) and isinstance(plan.oracle, Batch)


class Feed:
    """The rows of all steps from one on, in chunks of equal length; drawing, reading and copying have a thread each."""

    def __init__(self, plan: Plan, first: int, layout: ChainLayout):
        assert isinstance(plan.flat_target, StreamedRegression)
        assert isinstance(plan.oracle, Batch)
        self.plan, self.layout, self.source = plan, layout, plan.flat_target.by_row
        batch = plan.num_chains * plan.oracle.size
        self.length = max(1, min(_LONGEST, _BYTES // (batch * (plan.dim + 1) * np.dtype(plan.dtype).itemsize)))
        self.chunks, self.rows, self.used = prefetched(self._placed(first)), None, self.length

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
