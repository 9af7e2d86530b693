"""Chains in blocks of one size, each moved by the same compiled program: the same bits whatever the mesh.

Input: a plan. Output: how many chains a block has (`block_size`), and `InBlocks`, which copies the state of every block to the
device and back. XLA chooses by the shape of a matrix product in which order it adds, and the number of chains is part of that
shape. The size of a block depends on the plan alone, so every process and every mesh runs one program, for other blocks. `drawn`
makes the part of an oracle's randomness that belongs to the chains of a block.

On a CPU the devices of one process share its cores and memory. Its blocks are on its first device, and XLA computes several of
them at a time. A GPU needs all its chains in one program: there, and where rows or parameters are shared, is no block.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gyromc import processes
from gyromc.engines import threefry
from gyromc.engines.meshes import ChainMesh, shares
from gyromc.engines.placement import Carry
from gyromc.engines.state import keys
from gyromc.oracles import Batch, Exact, Gaussian, Oracle
from gyromc.oracles.batches import MOST_COMPARED, bounds, settled, shuffled
from gyromc.plan import Plan
from gyromc.results import EngineState

__all__ = ["InBlocks", "block_size", "drawn", "in_blocks"]

NUMBERS = 2**14  # of the states in a block: with fewer, what a step costs for any number of chains would show
READ = 2**21  # numbers that the gradients of a block read: a step that takes longer may as well be shared by processes
LEAST = 32  # chains that read a matrix together, at least
LARGE = 4096  # numbers of a state, from which on one chain is a block
MOST = 64  # blocks: each is a call of the program
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
    wanted = 1 if numbers >= LARGE else max(LEAST, min(NUMBERS // numbers, READ // read))
    count = -(-chains // max(wanted, -(-chains // MOST)))
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
