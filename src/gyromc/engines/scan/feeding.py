"""Rows of a source for engine `scan`, read ahead of the steps that use them.

Input: a plan over a source with a mini-batch oracle, and the key of its random numbers. Output: the rows of the next steps, as
arrays on the device. Which rows a step draws depends on (seed, step, chain) alone, so a thread draws, reads and copies those of
the steps to come while the device computes: it waits only where rows are read more slowly than it uses them.
"""

import queue
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.data import Mapped, prefetched
from gyromc.engines.scan.layout import InBlocks, OnMesh
from gyromc.oracles import Batch
from gyromc.plan import Plan
from gyromc.targets import StreamedRegression

BYTES, LONGEST = 2**24, 256
"""What is copied to the device at once, at most: bytes of rows, and steps whose rows these are."""
BUFFERS = 6  # for the chunks that are read ahead, being read, and being copied


def is_fed(plan: Plan) -> bool:
    """Whether the rows of a plan's mini-batches are read ahead."""
    streamed = isinstance(plan.flat_target, StreamedRegression) and isinstance(plan.oracle, Batch)
    return streamed and not plan.oracle.memory(plan.dim)


class Feed:
    """The rows of all steps from one on, in chunks of equal length: `take` returns a chunk, and how much of it is left."""

    def __init__(self, plan: Plan, key: Any, first: int, layout: OnMesh | InBlocks):
        self.length = max(1, min(LONGEST, BYTES // (plan.num_chains * _bytes_a_chain(plan))))
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
    source, rows = target.sums.by_row, plan.num_chains * oracle.size
    buffers: queue.SimpleQueue | None = None
    on_cpu = isinstance(layout, InBlocks) or layout.spread.mesh.devices.flat[0].platform == "cpu"
    if not on_cpu:  # where JAX may keep a host array as it is, each needs memory of its own
        buffers = queue.SimpleQueue()
        for _ in range(BUFFERS):
            buffers.put(None)
    reading: dict[str, Any] = {}
    if isinstance(source, Mapped):
        reading["keep"] = source.keeps(rows * (plan.num_steps + plan.burn_in), oracle.size)
    with jax.enable_x64(dtype == np.float64):  # a setting of each thread
        for X, y, buffer in prefetched(_read(source, prefetched(_drawn(plan, key, first, length)), reading, buffers)):
            placed = list(zip(layout.rows(np.asarray(X, dtype)), layout.rows(np.asarray(y, dtype)), strict=True))
            if buffers is not None and buffer is not None:
                jax.block_until_ready(placed)  # then the buffer may be written again
                buffers.put(buffer)
            yield placed


def _drawn(plan: Plan, key: Any, first: int, length: int) -> Iterator[np.ndarray]:
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
