"""Rows of a source for engine `scan`, read ahead of the steps that use them.

Input: a plan over a source with a mini-batch oracle, and the key of its random numbers. Output: the rows of the next steps, as
arrays on the device. Which rows a step draws depends on (seed, step, chain) alone, so a thread draws, reads and copies those of
the steps to come while the device computes: it waits only where rows are read more slowly than it uses them.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.data import Mapped, prefetched
from gyromc.engines.meshes import ROWS, ChainMesh, put
from gyromc.oracles import Batch
from gyromc.plan import Plan
from gyromc.targets import StreamedRegression

__all__ = ["Feed", "is_fed"]

BYTES = 2**24  # of rows that are copied to the device at once
LONGEST = 256  # steps whose rows these are, at most


def is_fed(plan: Plan) -> bool:
    """Whether the rows of a plan's mini-batches are read ahead."""
    streamed = isinstance(plan.flat_target, StreamedRegression) and isinstance(plan.oracle, Batch)
    return streamed and not plan.oracle.memory(plan.dim)


class Feed:
    """The rows of all steps from one on, in chunks of equal length: `take` returns a chunk, and how much of it is left."""

    def __init__(self, plan: Plan, key: Any, first: int, spread: ChainMesh):
        self.length = max(1, min(LONGEST, BYTES // (plan.num_chains * _bytes_a_chain(plan))))
        self.chunks = prefetched(_chunks(plan, key, first, self.length, spread))
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


def _chunks(plan: Plan, key: Any, first: int, length: int, spread: ChainMesh) -> Iterator[tuple[Any, Any]]:
    """X (steps × chains × b × d) and y of every chunk, on the devices; rows of zeros, without effect, make b a multiple."""
    target, oracle, R, dtype = plan.flat_target, plan.oracle, plan.num_chains, np.dtype(plan.dtype)
    assert isinstance(target, StreamedRegression)
    assert isinstance(oracle, Batch)
    source, total = target.sums.by_row, plan.num_steps + plan.burn_in
    kept = {"keep": True} if isinstance(source, Mapped) and source.keeps(R * oracle.size * total, oracle.size) else {}
    host = jax.local_devices(backend="cpu")[0]  # drawing on a busy device would wait for its steps

    def draw(key, step):
        return oracle.draw(jax.random.split(jax.random.fold_in(key, step))[1], target, R, plan.dim, dtype)

    with jax.enable_x64(dtype == np.float64), jax.default_device(host):
        drawn, key = jax.jit(jax.vmap(draw, (None, 0))), jax.device_put(key, host)
        for step in range(first, total, length):
            index = np.asarray(drawn(key, jnp.arange(step, step + length, dtype=jnp.int32)))
            X, y = source.read(index, **kept)
            yield _placed(np.asarray(X, dtype), spread), _placed(np.asarray(y, dtype), spread)


def _placed(rows: np.ndarray, spread: ChainMesh) -> Any:
    """Rows of a chunk on the devices of their chains, shared over the axes of the data."""
    more = -rows.shape[2] % spread.rows
    if more:
        rows = np.pad(rows, [(0, more if axis == 2 else 0) for axis in range(rows.ndim)])
    return put(spread.fill(rows, axis=1), spread.sharding(None, "chains", ROWS))
