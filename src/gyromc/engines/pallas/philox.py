"""Random numbers inside the kernel: words, standard normals and row numbers, as functions of (seed, chain, step, draw) alone.

The input is counters as arrays of 32-bit words. The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random
numbers: as easy as 1, 2, 3", 2011): the seed is the key, and the counter is (step, chain, draw, stream). It has no state, so a
run does not depend on how chains and steps are divided. One key has 2¹²⁸ counters of four words each; one chain's step has 2³²
of them per stream.
"""

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.engines.pallas.instructions import Instructions, multiply_high

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
    pairs = [_pair(a, b, machine) for a, b in zip(words[::2], words[1::2], strict=True)]
    return tuple(x for pair in pairs for x in pair)


def _pair(a, b, machine: Instructions):
    u = a.astype(jnp.float32) * np.float32(2.0**-32) + np.float32(2.0**-33)
    angle = jax.lax.bitcast_convert_type(b, jnp.int32).astype(jnp.float32) * np.float32(np.pi * 2.0**-31)
    return machine.pair(u, angle)


def row_numbers(word, num_rows: int):
    """A row number from 0 to num_rows - 1, uniform up to num_rows / 2³²."""
    return multiply_high(np.uint32(num_rows), word).astype(jnp.int32)
