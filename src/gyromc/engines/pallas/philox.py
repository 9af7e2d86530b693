"""Random numbers inside the kernel: words, standard normals and row numbers, as functions of (seed, chain, step, draw) alone.

The input is counters as arrays of 32-bit words. The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random
numbers: as easy as 1, 2, 3", 2011): the seed is the key, and the counter is (step, chain, draw, stream). It has no state, so a
run does not depend on how chains and steps are divided. One key has 2¹²⁸ counters of four words each; one chain's step has 2³²
of them per stream.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas import triton

NOISE, ROWS, ORACLE = 0, 1, 2
"""The streams, the last word of the counter: a scheme's noise, mini-batches and a Gaussian oracle's noise share no number."""
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_MASK = np.uint32(0xFFFF)


def high_word(constant: int, x, native: bool):
    """The upper 32 bits of constant · x; one machine instruction in a native kernel."""
    if native:
        signed = _instruction(f"mul.hi.u32 $0, $1, {constant};", jax.lax.bitcast_convert_type(x, jnp.int32), "=r,r")
        return jax.lax.bitcast_convert_type(signed, jnp.uint32)  # assembly returns signed words
    return multiply_high(np.uint32(constant), x)


def multiply_high(a, b):
    """The upper 32 bits of a · b for 32-bit words, by products of halves, which fit into a word."""
    sixteen = np.uint32(16)
    a_low, a_high, b_low, b_high = a & _MASK, a >> sixteen, b & _MASK, b >> sixteen
    cross = a_high * b_low + ((a_low * b_low) >> sixteen)
    other = a_low * b_high + (cross & _MASK)
    return a_high * b_high + (cross >> sixteen) + (other >> sixteen)


def random_words(key, counter, native: bool):
    """Four random words for every counter (four words), by ten rounds of Philox4x32."""

    def one_round(_, words):
        c0, c1, c2, c3, k0, k1 = words
        high0, low0 = high_word(_MULTIPLIERS[0], c0, native), c0 * np.uint32(_MULTIPLIERS[0])
        high1, low1 = high_word(_MULTIPLIERS[1], c2, native), c2 * np.uint32(_MULTIPLIERS[1])
        bumped = k0 + np.uint32(_WEYL[0]), k1 + np.uint32(_WEYL[1])
        return high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0, *bumped

    words = (*counter, *key)
    if not native:
        # A loop, since XLA would repeat unrolled rounds for every use.
        return jax.lax.fori_loop(0, _ROUNDS, one_round, words)[:4]
    for number in range(_ROUNDS):
        words = one_round(number, words)
    return words[:4]


def normals(words, native: bool):
    """As many independent standard normals as words, by Box and Muller; |ξ| ≤ 6.77.

    A native kernel uses the special-function unit: a normal is then off by less than 10⁻⁵, except where the radius is under 0.02
    (2 in 10⁴ of them), where it is off by less than 6 · 10⁻⁴. Users' functions are compiled to full float32.
    """
    pairs = [_pair(a, b, native) for a, b in zip(words[::2], words[1::2], strict=True)]
    return tuple(x for pair in pairs for x in pair)


def _pair(a, b, native: bool):
    u = a.astype(jnp.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    angle = jax.lax.bitcast_convert_type(b, jnp.int32).astype(jnp.float32) * np.float32(np.pi * 2.0**-31)
    if not native:
        radius = jnp.sqrt(np.float32(-2) * jnp.log(u))
        return radius * jnp.cos(angle), radius * jnp.sin(angle)
    # The special-function unit: absolute errors of 2⁻²² in log₂ u and 2⁻²⁰ in sin and cos, u and the angle being in range.
    log2 = _instruction("lg2.approx.f32 $0, $1;", u, "=f,f")
    square = jnp.maximum(log2 * np.float32(-2 * np.log(2)), np.float32(0))
    radius = _instruction("sqrt.approx.f32 $0, $1;", square, "=f,f")
    cosine = _instruction("cos.approx.f32 $0, $1;", angle, "=f,f")
    sine = _instruction("sin.approx.f32 $0, $1;", angle, "=f,f")
    return radius * cosine, radius * sine


def row_numbers(word, num_rows: int):
    """A row number from 0 to num_rows - 1, uniform up to num_rows / 2³²."""
    return multiply_high(np.uint32(num_rows), word).astype(jnp.int32)


def exchanged(x, distance: int):
    """The value of the thread at `distance` (a power of two below 32) in the same warp."""
    return _instruction(f"shfl.sync.bfly.b32 $0, $1, {distance}, 0x1f, 0xffffffff;", x, "=r,r")


def from_thread(x, number: int, team: int):
    """The value of thread `number` of the same team, for teams of `team` threads side by side in a warp."""
    segments = (32 - team) << 8 | 0x1F  # a warp is cut into pieces of `team` threads
    return _instruction(f"shfl.sync.idx.b32 $0, $1, {number}, {segments}, 0xffffffff;", x, "=r,r")


def _instruction(assembly: str, x, constraints: str):
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    [result] = triton.elementwise_inline_asm(
        assembly, args=[x], constraints=constraints, pack=1, result_shape_dtypes=[shape]
    )
    return result
