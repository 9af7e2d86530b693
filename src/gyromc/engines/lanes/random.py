"""Random numbers for vectors of chains: words, standard normals and row numbers from the state of sixteen generators.

Each chain has its own stream of xoshiro128++ (128 bits of state, period 2¹²⁸ - 1; its authors, Blackman and Vigna, report that
it passes BigCrush), whose initial state is SplitMix64's output for (seed, chain). A stream depends on the seed and the chain's
number alone, so threads, blocks and chunks do not change a result; its state is stored with the run, so a run continues exactly.
Two of R streams of T words overlap with a probability of at most R²T/2¹²⁸ (10⁶ chains, 10¹² words each: 3·10⁻¹⁵).

Normals come in pairs by Box and Muller's formula. In float32 the radius uses one word of 32 bits and reaches 6.7 standard
deviations; in float64 two words, and 9.4.
"""

import math
from typing import Any

import numpy as np
from numba.extending import overload

from gyromc.engines.lanes.functions import cos_small, inlined, log, sin_small
from gyromc.engines.lanes.vectors import (
    bits,
    from_bits,
    maximum,
    scaled_down,
    signed_to_float,
    sqrt,
    unsigned_to_float,
    widened,
)

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mixed(x: np.ndarray) -> np.ndarray:
    """SplitMix64's output function: a bijection of 64 bits in which every bit of the input affects all of the output."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def streams(seed: int, num_chains: int) -> np.ndarray:
    """The initial states, num_chains × 4 words; more chains leave the first streams as they are."""
    with np.errstate(over="ignore"):
        origin = _mixed(np.array([seed, seed ^ 0x5851F42D4C957F2D], np.uint64) + GOLDEN)
        counter = np.arange(1, num_chains + 1, dtype=np.uint64)[:, None] * GOLDEN
        words = _mixed(_mixed(origin) + counter)
    return np.ascontiguousarray(words).view(np.uint32).reshape(num_chains, 4)


@inlined
def _rotated(x, count):
    return (x << count) | (x >> (32 - count))


@inlined
def next_word(s):
    """xoshiro128++: the next states of the generators, and a word of 32 random bits from each."""
    a, b, c, d = s
    word = _rotated(a + d, 7) + a
    t = b << 9
    c = c ^ a
    d = d ^ b
    b = b ^ c
    a = a ^ d
    c = c ^ t
    d = _rotated(d, 11)
    return (a, b, c, d), word


@inlined
def next_index(s, count):
    """Row numbers from 0 to count - 1; no two probabilities differ by more than a factor 1 + count/2³²."""
    s, word = next_word(s)
    return s, scaled_down(word, count)


def normal_pair(s, like) -> Any:
    """Two vectors of independent standard normals, in the precision of the array `like`."""
    raise NotImplementedError("for Numba code on vectors")


@overload(normal_pair, jit_options={"forceinline": True, "error_model": "numpy"})
def _normal_pair(s, like):
    width = like.dtype.bitwidth
    next_bits = next_word if width == 32 else next_wide
    unit, half_turn, sign = 2.0**-width, math.pi / 2 * 2.0 ** (1 - width), 1 << (width - 1)

    def pair(s, like):
        s, first = next_bits(s)
        s, second = next_bits(s)
        u = (unsigned_to_float(first) + 0.5) * unit  # in (0, 1], with a fine grid near 0, where the tails are
        radius = sqrt(maximum(log(u) * -2.0, 0.0))
        angle = signed_to_float(second << 1) * half_turn  # half a turn; the top bit chooses the half
        radius = from_bits(bits(radius) ^ (second & sign))
        return s, radius * sin_small(angle), radius * cos_small(angle)

    return pair


@inlined
def next_wide(s):
    """A word of 64 random bits from each generator."""
    s, high = next_word(s)
    s, low = next_word(s)
    return s, (widened(high) << 32) | widened(low)
