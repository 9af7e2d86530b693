"""The threads of a block, and the compiler that makes their kernel: Pallas' Triton lowering or its Mosaic GPU lowering.

`choose_lowering` takes what was asked for and returns a `Lowering`; `why_no_lowering` says why there is none on this machine.

`Team` takes how chains are laid out on the GPU and returns tiles, arrays with one entry per thread of the block: which chain a
thread works on, its random numbers, and sums over the threads of one chain, which lie side by side in a warp. Random words,
standard normals and row numbers are functions of (seed, chain, step, draw) alone. The generator is Philox4x32-10 (Salmon, Moraes,
Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011): the seed is the key, and the counter is (step, chain, draw,
stream). It has no state, so a run does not depend on how chains and steps are divided. One key has 2¹²⁸ counters of four words
each; one chain's step has 2³² of them per stream.
"""

import dataclasses
import enum
import functools
import importlib.util
import os
import warnings

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from gyromc.checks import one_of
from gyromc.engines.pallas.instructions import Instructions, Triton, multiply_high
from gyromc.errors import GyromcWarning


class Lowering(enum.StrEnum):
    """The compilers."""

    TRITON = "triton"
    MOSAIC = "mosaic"


CAPABILITY = {Lowering.TRITON: 8.0, Lowering.MOSAIC: 9.0}
"""The least compute capability of a GPU that each compiler supports."""
VARIABLE = "GYROMC_PALLAS_LOWERING"
_MODULES = {
    Lowering.TRITON: "jax.experimental.pallas.triton",
    Lowering.MOSAIC: "jax.experimental.pallas.mosaic_gpu",
}


def instructions(lowering: Lowering, interpret: bool) -> Instructions:
    """The instructions of a compiler, or plain JAX for an interpreted kernel."""
    if interpret:
        return Instructions()
    if lowering is Lowering.TRITON:
        return Triton()
    from gyromc.engines.pallas.mosaic import Mosaic

    return Mosaic()


def in_this_jax(lowering: Lowering) -> bool:
    """Whether the installed JAX has this lowering."""
    return importlib.util.find_spec(_MODULES[lowering]) is not None


def choose_lowering(asked: str | Lowering | None = None) -> Lowering:
    """The lowering asked for, here or by the environment variable; left out: Triton where JAX has it, else Mosaic."""
    asked = asked or os.environ.get(VARIABLE) or None
    if asked is None and in_this_jax(Lowering.TRITON):
        return Lowering.TRITON
    if asked is None:
        _say_once(jax.__version__)
        return Lowering.MOSAIC
    return Lowering(one_of(asked, tuple(Lowering), f"lowering` or `{VARIABLE}"))


@functools.cache
def _say_once(version: str) -> None:
    """Warn, once in a process, that the default lowering is not there."""
    warnings.warn(
        f"JAX {version} has no Triton lowering of Pallas: the engine `pallas` compiles its kernels with Mosaic GPU. "
        f"Chains are the same up to rounding. Set `{VARIABLE}=mosaic` to turn this warning off.",
        GyromcWarning,
        stacklevel=2,
    )


def why_no_lowering(asked: str | Lowering | None = None) -> str | None:
    """Why no kernel can be compiled for JAX's default GPU, or None."""
    lowering = choose_lowering(asked)
    others = "" if in_this_jax(Lowering.TRITON) else f"JAX {jax.__version__} has no Triton lowering, and "
    if not in_this_jax(lowering):
        return f"JAX {jax.__version__} has no Pallas lowering `{lowering}`"
    capability = float(getattr(jax.devices()[0], "compute_capability", 0))
    if capability < CAPABILITY[lowering]:
        return f"{others}the lowering `{lowering}` needs compute capability {CAPABILITY[lowering]}, and the GPU has {capability}"
    return None


NOISE, ROWS, ORACLE = 0, 1, 2
"""The streams, the last word of the counter: a scheme's noise, mini-batches and a Gaussian oracle's noise share no number."""
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
PLAIN = Instructions()


def random_words(key, counter, machine: Instructions = PLAIN):
    """Four random words for every counter (four words), by ten rounds of Philox4x32."""

    def one_round(_, words):
        c0, c1, c2, c3, k0, k1 = words
        high0, low0 = machine.high_word(_MULTIPLIERS[0], c0), c0 * np.uint32(_MULTIPLIERS[0])
        high1, low1 = machine.high_word(_MULTIPLIERS[1], c2), c2 * np.uint32(_MULTIPLIERS[1])
        bumped = k0 + np.uint32(_WEYL[0]), k1 + np.uint32(_WEYL[1])
        return high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0, *bumped

    words = (*counter, *key)
    if not machine.unrolls:
        return jax.lax.fori_loop(0, _ROUNDS, one_round, words)[:4]
    for number in range(_ROUNDS):
        words = one_round(number, words)
    return words[:4]


def normals(words, machine: Instructions = PLAIN):
    """As many independent standard normals as words, by Box and Muller; |ξ| ≤ 6.77.

    A compiled kernel uses the special-function unit: a normal is then off by less than 10⁻⁵, except where the radius is under
    0.02 (2 in 10⁴ of them), where it is off by less than 6 · 10⁻⁴. Users' functions are compiled to full float32.
    """
    drawn: list = []
    for a, b in zip(words[::2], words[1::2], strict=True):
        u = a.astype(jnp.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
        angle = jax.lax.bitcast_convert_type(b, jnp.int32).astype(jnp.float32) * np.float32(np.pi * 2.0**-31)
        drawn += machine.pair(u, angle)
    return tuple(drawn)


def row_numbers(word, num_rows: int):
    """A row number from 0 to num_rows - 1, uniform up to num_rows / 2³²."""
    return multiply_high(np.uint32(num_rows), word).astype(jnp.int32)


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
        return random_words(self.key, (full(k), self.chain, full(number), full(stream)), self.machine)

    def normals(self, k, count: int, stream: int) -> list:
        """The normals of step k: each thread draws some of them and has zeros for the others."""
        rounds = pl.cdiv(pl.cdiv(count, 4), self.size)
        drawn = [normals(self.words(k, self.number(c), stream), self.machine) for c in range(rounds)]
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
