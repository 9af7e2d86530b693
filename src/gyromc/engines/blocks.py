"""Chains in blocks of one size, each moved by the same compiled program: the same bits whatever the mesh.

Input: a plan. Output: how many chains a block has (`block_size`), and `InBlocks`, which copies the state of every block to the
device and back. XLA chooses by the shape of a matrix product in which order it adds, and the number of chains is part of that
shape. The size of a block depends on the plan alone, so every process and every mesh runs one program, for other blocks. `drawn`
makes the part of an oracle's randomness that belongs to the chains of a block.

On a CPU the devices of one process share its cores and memory. Its blocks are on its first device, and XLA computes several of
them at a time. A GPU needs all its chains in one program: there, and where rows or parameters are shared, is no block.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gyromc import processes
from gyromc.engines import threefry
from gyromc.engines.meshes import ChainMesh, shares
from gyromc.engines.placement import Carry
from gyromc.engines.state import keys
from gyromc.oracles import Batch, Gaussian, Oracle
from gyromc.oracles.batches import MOST_COMPARED, bounds, settled, shuffled
from gyromc.plan import Plan
from gyromc.results import EngineState

__all__ = ["InBlocks", "block_size", "drawn", "in_blocks"]

NUMBERS = 8192  # of the states in a block: with fewer, what a step costs for any number of chains would show
LEAST = 32  # chains that read a matrix together, at least
LARGE = 4096  # numbers of a state, from which on one chain is a block
MOST = 64  # blocks: each is a call of the program


def in_blocks(plan: Plan, spread: ChainMesh) -> bool:
    """Whether the chains of a plan are moved in blocks."""
    if jax.default_backend() != "cpu" or shares(spread.mesh) or spread.mesh.devices.flat[0].platform != "cpu":
        return False
    numbers = (plan.num_chains + block_size(plan)) * max(plan.dynamics.size, plan.dim, getattr(plan.oracle, "size", 1))
    return threefry.counts(keys(plan.seed).steps, numbers)


def block_size(plan: Plan) -> int:
    """How many chains a block has; the last one is filled with chains that are thrown away."""
    numbers, chains = plan.state_size, plan.num_chains
    wanted = 1 if numbers >= LARGE else max(LEAST, NUMBERS // numbers)
    count = -(-chains // max(wanted, -(-chains // MOST)))
    return -(-chains // count)


class InBlocks:
    """The chains of one plan in blocks: which of them this process has, and their states between host and device."""

    def __init__(self, plan: Plan):
        self.plan, self.size = plan, block_size(plan)
        count, others = -(-plan.num_chains // self.size), processes.count()
        first, last = (-(-count * (processes.index() + i) // others) for i in (0, 1))
        self.own = slice(first * self.size, min(last * self.size, plan.num_chains))
        self.firsts = [None if count == 1 else jnp.asarray(b * self.size, jnp.uint32) for b in range(first, last)]
        self.begun: EngineState | None = None

    def slices(self) -> list[slice]:
        """The chains of each block of this process."""
        return [slice(a, min(a + self.size, self.own.stop)) for a in range(self.own.start, self.own.stop, self.size)]

    def fill(self, rows: np.ndarray, axis: int = 0) -> np.ndarray:
        """Rows of the chains of a block, the last one repeated where chains are missing."""
        missing = self.size - rows.shape[axis]
        return np.pad(rows, [(0, missing if i == axis else 0) for i in range(rows.ndim)], mode="edge")

    def to_device(self, state: EngineState, slots: int) -> list[Carry]:
        """The state of every block as arrays on the device, each with a buffer for `slots` draws."""
        self.begun = self._with_anchors(state)
        return [self._carry(own, slots) for own in self.slices()]

    def _with_anchors(self, state: EngineState) -> EngineState:
        memory = self.plan.oracle.memory(self.plan.dim)
        if not memory or state.anchors is not None:
            return state
        return dataclasses.replace(state, anchors=np.zeros((self.plan.num_chains, memory), self.plan.dtype))

    def _carry(self, own: slice, slots: int) -> Carry:
        state, dtype = self.begun, jnp.dtype(self.plan.dtype)
        assert state is not None
        placed = lambda rows, kind=dtype: jnp.array(
            self.fill(np.asarray(rows[own], kind))
        )  # copied: a step overwrites it
        return Carry(
            step=jnp.array(state.step, jnp.int32),
            z=placed(state.z),
            high=placed(state.high),
            low=placed(state.low),
            clock=tuple(jnp.array(part, dtype) for part in state.clock),
            failed_at=placed(state.failed_at, np.int32),
            kept=jnp.zeros((slots, self.size, self.plan.dim), dtype) if slots else None,
            anchors=None if state.anchors is None else placed(state.anchors),
        )

    def rows(self, rows: np.ndarray) -> list[Any]:
        """Rows of a chunk that were read ahead, steps × chains × …, for every block on the device."""
        return [jnp.asarray(self.fill(rows[:, own], axis=1)) for own in self.slices()]

    def to_host(self, carries: list[Carry]) -> EngineState:
        """The state of all chains, on every process."""
        names = ("z", "high", "low", "failed_at", *(() if self._begun.anchors is None else ("anchors",)))
        whole = {name: processes.joined(self._own(name, carries)) for name in names}
        step, clock = 0, [0.0, 0.0]
        if carries:
            step, clock = int(carries[0].step), [float(part) for part in carries[0].clock]
        step, clock = processes.agree([step, clock])  # process 0 has the first block
        return EngineState(step=step, clock=(clock[0], clock[1]), **whole)

    @property
    def _begun(self) -> EngineState:
        assert self.begun is not None
        return self.begun

    def _own(self, name: str, carries: list[Carry]) -> np.ndarray:
        """The rows of this process's chains."""
        before = np.asarray(getattr(self._begun, name))
        none = np.zeros((0, *before.shape[1:]), np.int32 if name == "failed_at" else self.plan.dtype)
        return np.concatenate([none, *(np.asarray(getattr(c, name)) for c in carries)])[
            : self.own.stop - self.own.start
        ]

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


def drawn(oracle: Oracle, key, target, first, count: int, chains: int, dim: int, dtype) -> Any:
    """`oracle.draw(key, target, chains, …)` for the chains from `first` on, `count` of them; those beyond `chains` get any."""
    draw = type(oracle).draw
    if draw is Gaussian.draw:
        return threefry.normal_at(key, _numbers(count, dim), dtype, first * np.uint32(dim))
    if draw is Batch.draw and isinstance(oracle, Batch):
        size, N = oracle.size, target.num_data
        integers = lambda bound: threefry.integers_at(key, _numbers(count, size), bound, first * np.uint32(size))
        if oracle.replace:
            return integers(N)
        if size == N:
            return jnp.broadcast_to(jnp.arange(size), (count, size))
        if size > MOST_COMPARED:
            return shuffled(threefry.keys_at(key, jax.lax.iota(jnp.uint32, count), first), size, N)
        return settled(integers(bounds(size, N)), N)
    every = oracle.draw(key, target, chains, dim, dtype)
    own = jnp.minimum(first + jax.lax.iota(jnp.uint32, count), np.uint32(chains - 1)).astype(jnp.int32)
    return jax.tree.map(lambda x: x[own], every)


def _numbers(count: int, size: int):
    """0, 1, 2, … as rows of `size`."""
    return jax.lax.iota(jnp.uint32, count * size).reshape(count, size)
