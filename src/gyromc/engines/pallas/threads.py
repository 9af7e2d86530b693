"""The threads of a block: the instructions that they have beyond plain JAX, their random numbers, their teams.

Random words, standard normals and row numbers are functions of (seed, chain, step, draw) alone. The generator is Philox4x32-10
(Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011): the seed is the key, and the counter is (step,
chain, draw, stream). It has no state, so a run does not depend on how chains and steps are divided. One key has 2¹²⁸ counters of
four words each; one chain's step has 2³² of them per stream.
"""

import dataclasses
import functools
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

_MASK = np.uint32(0xFFFF)


def why_no_triton() -> str | None:
    """Why no kernel can be compiled for JAX's default GPU, or None."""
    if importlib.util.find_spec("jax.experimental.pallas.triton") is None:
        return f"JAX {jax.__version__} has no Triton lowering of Pallas"
    capability = float(getattr(jax.devices()[0], "compute_capability", 0))
    return f"it needs compute capability 8.0, and the GPU has {capability}" if capability < 8 else None


def multiply_high(a, b):
    """The upper 32 bits of a · b for 32-bit words, by products of halves, which fit into a word."""
    sixteen = np.uint32(16)
    a_low, a_high, b_low, b_high = a & _MASK, a >> sixteen, b & _MASK, b >> sixteen
    cross = a_high * b_low + ((a_low * b_low) >> sixteen)
    other = a_low * b_high + (cross & _MASK)
    return a_high * b_high + (cross >> sixteen) + (other >> sixteen)


class Interpreted:
    """Instructions in plain JAX, for kernels that are interpreted; tiles are arrays with one entry per thread of a block."""

    def high_word(self, constant: int, x):
        """The upper 32 bits of constant · x."""
        return multiply_high(np.uint32(constant), x)

    def pair(self, u, angle):
        """Two standard normals from u in (0, 1) and an angle in [-π, π), by Box and Muller."""
        radius = jnp.sqrt(np.float32(-2) * jnp.log(u))
        return radius * jnp.cos(angle), radius * jnp.sin(angle)

    def exchanged(self, x, distance: int):
        """The value of the thread at `distance` (a power of two below 32) in the same warp."""
        return x[jnp.arange(x.size) ^ distance]

    def from_thread(self, x, number: int, team: int):
        """The value of thread `number` of the same team, for teams of `team` threads side by side in a warp."""
        return x[jnp.arange(x.size) // team * team + number]

    def apart(self, tiles: list) -> list:
        """The same tiles; when interpreting, this keeps XLA from computing them again for every use."""
        return list(jax.lax.optimization_barrier(tuple(tiles)))

    def options(self, warps: int) -> dict[str, Any]:
        return {"interpret": True}


class Triton(Interpreted):
    """Pallas' Triton lowering, which JAX 0.11 calls deprecated; elementwise assembly, one instruction each."""

    def high_word(self, constant: int, x):
        signed = self._instruction(f"mul.hi.u32 $0, $1, {constant};", jax.lax.bitcast_convert_type(x, jnp.int32), "r")
        return jax.lax.bitcast_convert_type(signed, jnp.uint32)  # assembly returns signed words

    def pair(self, u, angle):
        """By the special-function unit: the absolute errors are 2⁻²² in log₂ u and 2⁻²⁰ in sin and cos."""
        log2 = self._instruction("lg2.approx.f32 $0, $1;", u)
        square = jnp.maximum(log2 * np.float32(-2 * np.log(2)), np.float32(0))
        radius = self._instruction("sqrt.approx.f32 $0, $1;", square)
        cosine, sine = (self._instruction(f"{name}.approx.f32 $0, $1;", angle) for name in ("cos", "sin"))
        return radius * cosine, radius * sine

    def exchanged(self, x, distance: int):
        return self._instruction(f"shfl.sync.bfly.b32 $0, $1, {distance}, 0x1f, 0xffffffff;", x, "r")

    def from_thread(self, x, number: int, team: int):
        segments = (32 - team) << 8 | 0x1F  # a warp is cut into pieces of `team` threads
        return self._instruction(f"shfl.sync.idx.b32 $0, $1, {number}, {segments}, 0xffffffff;", x, "r")

    def apart(self, tiles: list) -> list:
        return tiles

    def options(self, warps: int) -> dict[str, Any]:
        from jax.experimental.pallas import triton

        return {"compiler_params": triton.CompilerParams(num_warps=warps, num_stages=1)}

    def _instruction(self, assembly: str, x, kind: str = "f"):
        from jax.experimental.pallas import triton

        shapes = {"pack": 1, "result_shape_dtypes": [jax.ShapeDtypeStruct(x.shape, x.dtype)]}
        return triton.elementwise_inline_asm(assembly, args=[x], constraints=f"={kind},{kind}", **shapes)[0]


NOISE, ROWS, ORACLE = 0, 1, 2
"""The streams, the last word of the counter: a scheme's noise, mini-batches and a Gaussian oracle's noise share no number."""
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
PLAIN = Interpreted()


def random_words(key, counter, machine: Interpreted = PLAIN):
    """Four random words for every counter (four words), by ten rounds of Philox4x32."""

    def one_round(_, words):
        c0, c1, c2, c3, k0, k1 = words
        high0, low0 = machine.high_word(_MULTIPLIERS[0], c0), c0 * np.uint32(_MULTIPLIERS[0])
        high1, low1 = machine.high_word(_MULTIPLIERS[1], c2), c2 * np.uint32(_MULTIPLIERS[1])
        bumped = k0 + np.uint32(_WEYL[0]), k1 + np.uint32(_WEYL[1])
        return high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0, *bumped

    words = (*counter, *key)
    if isinstance(machine, Triton):
        return functools.reduce(lambda words, number: one_round(number, words), range(_ROUNDS), words)[:4]
    # XLA would repeat unrolled rounds for every use.
    return jax.lax.fori_loop(0, _ROUNDS, one_round, words)[:4]


def normals(words, machine: Interpreted = PLAIN):
    """As many independent standard normals as words, by Box and Muller; |ξ| ≤ 6.77.

    In a compiled kernel a normal is off by less than 10⁻⁵, except where the radius is under 0.02 (2 in 10⁴ of them), where it is
    off by less than 6 · 10⁻⁴. Users' functions are compiled to full float32.
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

    @property
    def machine(self) -> Interpreted:
        return PLAIN if self.interpret else Triton()


class Team:
    """The threads of one block, in teams of `size`; `key` is the seed in two words, `first` the number of the first chain."""

    def __init__(self, layout: Layout, size: int, key: tuple, first):
        self.size, self.key, self.machine = size, key, layout.machine
        self.tile = (layout.chains * size,)
        index = jax.lax.broadcasted_iota(jnp.int32, self.tile, 0)
        self.at = index >> (size.bit_length() - 1)  # the chain within the block
        self.chain = (self.at + pl.program_id(0) * layout.chains + first).astype(jnp.uint32)
        self.thread = None if size == 1 else index & (size - 1)

    def total(self, x):
        for distance in (1 << i for i in range(self.size.bit_length() - 1)):
            x = x + self.machine.exchanged(x, distance)
        return x

    def number(self, draw):
        """The number of a thread's draw, row or column: the threads of a team take turns."""
        return draw if self.thread is None else draw * self.size + self.thread

    def words(self, k, number, stream: int):
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
        everyone = (self.machine.from_thread(x, i // 4 % self.size, self.size) for i, x in enumerate(xi))
        return self.machine.apart(list(everyone))
