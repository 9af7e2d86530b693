"""The threads of a block: which chain each of them works on, its random numbers, and sums over the threads of one chain.

Input: how chains are laid out on the GPU. Output: tiles, arrays with one entry per thread of the block. The threads of a team
share one chain and lie side by side in a warp.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from gyromc.engines.pallas import philox
from gyromc.engines.pallas.lowering import Lowering, instructions


@dataclasses.dataclass(frozen=True)
class Layout:
    """How chains are laid out on the GPU; it never changes the numbers."""

    chains: int  # per block
    warps: int  # of 32 threads, per block
    interpret: bool = False
    lowering: Lowering = Lowering.TRITON  # what compiles the kernel, unless it is interpreted


class Team:
    """The threads of one block, in teams of `size`; `key` is the seed in two words, `first` the number of the first chain."""

    def __init__(self, layout: Layout, size: int, key: tuple, first):
        self.size, self.key, self.machine = size, key, instructions(layout.lowering, layout.interpret)
        self.tile, block = (layout.chains * size,), self.machine.block()
        index = self.machine.index(self.tile)
        local = index >> (size.bit_length() - 1)  # the chain within the block
        chain = local + block * layout.chains
        self.chain = (chain + first).astype(jnp.uint32)
        self.thread = None if size == 1 else index & (size - 1)
        # The columns of a chain in the states y, and of a thread in the sums.
        self.at = chain if self.machine.whole else local
        self.own = index + block * self.tile[0] if self.machine.whole else slice(None)

    def total(self, x):
        """The sum over a team, in each of its threads, by exchanges over doubling distances."""
        for distance in (1 << i for i in range(self.size.bit_length() - 1)):
            x = x + self.machine.exchanged(x, distance)
        return x

    def number(self, draw):
        """The number of a thread's draw: the threads of a team take turns."""
        return draw if self.thread is None else draw * self.size + self.thread

    def words(self, k, number, stream: int):
        """Four random words: draw number `number` of step k."""
        full = lambda x: jnp.broadcast_to(jnp.asarray(x).astype(jnp.uint32), self.tile)
        return philox.random_words(self.key, (full(k), self.chain, full(number), full(stream)), self.machine)

    def normals(self, k, count: int, stream: int) -> list:
        """The normals of step k: each thread draws some of them and has zeros for the others."""
        rounds = pl.cdiv(pl.cdiv(count, 4), self.size)
        drawn = [philox.normals(self.words(k, self.number(c), stream), self.machine) for c in range(rounds)]
        xi = []
        for i in range(count):
            c, owner = divmod(i // 4, self.size)
            x = drawn[c][i % 4]
            xi.append(x if self.thread is None else jnp.where(self.thread == owner, x, np.float32(0)))
        return self.machine.apart(xi)

    def everywhere(self, xi: list) -> list:
        """The result of `normals` with all numbers in every thread."""
        if self.thread is None:
            return xi
        return self.machine.apart(
            [self.machine.from_thread(x, i // 4 % self.size, self.size) for i, x in enumerate(xi)]
        )
