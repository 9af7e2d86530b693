"""The threads of a block: which chain each of them works on, its random numbers, and sums over the threads of one chain.

Input: how chains are laid out on the GPU. Output: tiles, arrays with one entry per thread of the block. The threads of a team
share one chain and lie side by side in a warp.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from gyromc.engines.pallas import philox


@dataclasses.dataclass(frozen=True)
class Layout:
    """How chains are laid out on the GPU; it never changes the numbers."""

    chains: int  # per block
    warps: int  # of 32 threads, per block
    interpret: bool = False


class Team:
    """The threads of one block, in teams of `size`; `key` is the seed in two words."""

    def __init__(self, layout: Layout, size: int, key: tuple):
        self.size, self.key, self.native = size, key, not layout.interpret
        self.tile = (layout.chains * size,)
        self.index = jax.lax.broadcasted_iota(jnp.int32, self.tile, 0)
        self.local = self.index // size  # the chain within the block
        self.chain = (self.local + pl.program_id(0) * layout.chains).astype(jnp.uint32)
        self.thread = None if size == 1 else self.index % size

    def total(self, x):
        """The sum over a team, in each of its threads, by exchanges over doubling distances."""
        for distance in (1 << i for i in range(self.size.bit_length() - 1)):
            x = x + (philox.exchanged(x, distance) if self.native else x[jnp.arange(x.size) ^ distance])
        return x

    def apart(self, tiles: list) -> list:
        """The same tiles; when interpreting, this keeps XLA from computing them again for every use."""
        return tiles if self.native else list(jax.lax.optimization_barrier(tuple(tiles)))

    def own(self, draw):
        """The number of a thread's draw: the threads of a team take turns."""
        return draw if self.thread is None else draw * self.size + self.thread

    def words(self, k, number, stream: int):
        """Four random words: draw number `number` of step k."""
        full = lambda x: jnp.broadcast_to(jnp.asarray(x).astype(jnp.uint32), self.tile)
        return philox.random_words(self.key, (full(k), self.chain, full(number), full(stream)), self.native)

    def normals(self, k, count: int, stream: int) -> list:
        """The normals of step k: each thread draws some of them and has zeros for the others."""
        rounds = pl.cdiv(pl.cdiv(count, 4), self.size)
        drawn = [philox.normals(self.words(k, self.own(c), stream), self.native) for c in range(rounds)]
        xi = []
        for i in range(count):
            c, owner = divmod(i // 4, self.size)
            x = drawn[c][i % 4]
            xi.append(x if self.thread is None else jnp.where(self.thread == owner, x, np.float32(0)))
        return self.apart(xi)

    def everywhere(self, xi: list) -> list:
        """The result of `normals` with all numbers in every thread."""
        if self.thread is None:
            return xi
        return self.apart([self._from_thread(x, i // 4 % self.size) for i, x in enumerate(xi)])

    def _from_thread(self, x, number: int):
        if self.native:
            return philox.from_thread(x, number, self.size)
        return x[jnp.arange(x.size) // self.size * self.size + number]
