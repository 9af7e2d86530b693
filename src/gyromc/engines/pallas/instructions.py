"""What the kernel asks of a compiler beyond plain JAX: a few machine instructions, exchanges between threads, memory.

Input: tiles, arrays with one entry per thread of a block. Output: tiles. `Instructions` does everything in plain JAX, for kernels
that are interpreted; `Triton` uses Pallas' Triton lowering, `mosaic.Mosaic` its Mosaic GPU lowering. The random words are the
same in all three, and so is the order of every sum; a compiler may still join a product and a sum into one rounding.
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

_MASK = np.uint32(0xFFFF)


def multiply_high(a, b):
    """The upper 32 bits of a · b for 32-bit words, by products of halves, which fit into a word."""
    sixteen = np.uint32(16)
    a_low, a_high, b_low, b_high = a & _MASK, a >> sixteen, b & _MASK, b >> sixteen
    cross = a_high * b_low + ((a_low * b_low) >> sixteen)
    other = a_low * b_high + (cross & _MASK)
    return a_high * b_high + (cross >> sixteen) + (other >> sixteen)


class Instructions:
    """Plain JAX, for interpreted kernels."""

    unrolls = False
    """Whether rounds of the generator are unrolled; XLA would repeat unrolled rounds for every use."""
    whole = False
    """Whether a block sees the arrays of all blocks instead of its own part of them."""
    warps_per_block: int | None = None
    """How many warps a block must have; None: any power of two."""

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

    def condition(self, holds):
        """A condition on one number, as a choice between tiles needs it."""
        return holds

    def index(self, tile: tuple[int]):
        """The numbers of the threads of a block."""
        return jax.lax.broadcasted_iota(jnp.int32, tile, 0)

    def read(self, ref, row, where):
        """One number per thread of a row of a matrix; `where` holds the columns."""
        return ref[row, where]

    def write(self, ref, row, where, value) -> None:
        """Store one number per thread; threads with the same place must bring the same number."""
        ref[row, where] = value

    def refusing(self) -> contextlib.AbstractContextManager:
        """A context in which tracing a user's function raises `Unsupported` where this compiler cannot compile it."""
        return contextlib.nullcontext()

    def functions(self) -> contextlib.AbstractContextManager:
        """A context in which users' functions are traced."""
        return contextlib.nullcontext()

    def block(self):
        """The number of the block."""
        return pl.program_id(0)

    def call(self, body: Callable, inputs, shapes, num_blocks: int, warps: int) -> Callable:
        """`body` as a function of inputs and chains' arrays, of these `shapes`, that runs in every block."""
        del warps
        return _call(body, inputs, shapes, num_blocks, interpret=True)


class Triton(Instructions):
    """Pallas' Triton lowering, which JAX 0.11 calls deprecated; elementwise assembly, one instruction each."""

    unrolls = True

    def high_word(self, constant: int, x):
        signed = self._instruction(f"mul.hi.u32 $0, $1, {constant};", jax.lax.bitcast_convert_type(x, jnp.int32), "r")
        return jax.lax.bitcast_convert_type(signed, jnp.uint32)  # assembly returns signed words

    def pair(self, u, angle):
        return approximate_pair(functools.partial(self._instruction, kind="f"), u, angle)

    def exchanged(self, x, distance: int):
        return self._instruction(exchange(distance), x, "r")

    def from_thread(self, x, number: int, team: int):
        return self._instruction(broadcast(number, team), x, "r")

    def apart(self, tiles: list) -> list:
        return tiles

    def call(self, body: Callable, inputs, shapes, num_blocks: int, warps: int) -> Callable:
        from jax.experimental.pallas import triton

        parameters = triton.CompilerParams(num_warps=warps, num_stages=1)
        return _call(body, inputs, shapes, num_blocks, compiler_params=parameters)

    def _instruction(self, assembly: str, x, kind: str):
        from jax.experimental.pallas import triton

        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        [result] = triton.elementwise_inline_asm(
            assembly, args=[x], constraints=f"={kind},{kind}", pack=1, result_shape_dtypes=[shape]
        )
        return result


def approximate_pair(instruction, u, angle):
    """`Instructions.pair` by the special-function unit.

    Its absolute errors are 2⁻²² in log₂ u and 2⁻²⁰ in sin and cos, u and the angle being in range.
    """
    log2 = instruction("lg2.approx.f32 $0, $1;", u)
    square = jnp.maximum(log2 * np.float32(-2 * np.log(2)), np.float32(0))
    radius = instruction("sqrt.approx.f32 $0, $1;", square)
    cosine, sine = instruction("cos.approx.f32 $0, $1;", angle), instruction("sin.approx.f32 $0, $1;", angle)
    return radius * cosine, radius * sine


def exchange(distance: int) -> str:
    """The assembly of `Instructions.exchanged`."""
    return f"shfl.sync.bfly.b32 $0, $1, {distance}, 0x1f, 0xffffffff;"


def broadcast(number: int, team: int) -> str:
    """The assembly of `Instructions.from_thread`."""
    segments = (32 - team) << 8 | 0x1F  # a warp is cut into pieces of `team` threads
    return f"shfl.sync.idx.b32 $0, $1, {number}, {segments}, 0xffffffff;"


def _call(body: Callable, inputs, shapes, num_blocks: int, **options) -> Callable:
    """`pallas_call` with all inputs for every block, and each block's own columns of the chains' arrays."""
    chains = [pl.BlockSpec((s.shape[0], s.shape[1] // num_blocks), lambda i: (0, i)) for s in shapes]
    whole = [pl.BlockSpec(array.shape, lambda i, n=array.ndim: (0,) * n) for array in inputs]
    specs: dict[str, Any] = {"in_specs": [*whole, *chains], "out_specs": tuple(chains)}
    return pl.pallas_call(body, out_shape=tuple(shapes), grid=(num_blocks,), name="gyromc", **specs, **options)
