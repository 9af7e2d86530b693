"""Standard normals ξ on a CPU: `jax.random.normal` to the last bit, with less memory and time; and any part of what JAX draws.

On CPUs JAX lowers its generator (Threefry-2x32 with 20 rounds: Salmon, Moraes, Dror and Shaw, 2011) to a loop over whole arrays,
which takes three times the memory of its result. Here it is plain arithmetic on counters, which XLA fuses into the step. For
narrow states JAX's loop is used: XLA vectorises the arithmetic along a row alone.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p

NARROW = 32  # numbers of a chain up to which JAX's loop is faster (measured: 2.4 times with 3 numbers, even with 64)
ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def numbers(*shape: int):
    """0, 1, 2, … in this shape."""
    return jax.lax.iota(jnp.uint32, math.prod(shape)).reshape(shape)


def normal(key, shape: tuple[int, ...], dtype, first=None):
    """Standard normals in float32 or float64, `jax.random.normal(key, shape, dtype)` to the last bit.

    With `first`, those from this number on of all that are drawn from a key for which `counts` is true. It is a single number:
    added apart from the others, it leaves XLA nothing to store for all steps of a loop.
    """
    # On GPUs JAX has a kernel of its own.
    if first is None and (jax.default_backend() != "cpu" or not counts(key, math.prod(shape))):
        return jax.random.normal(key, shape, np.dtype(dtype))
    counter, first = numbers(*shape), 0 if first is None else first
    dtype, narrow = np.dtype(dtype), counter.shape[-1] <= NARROW
    if dtype == np.float32:
        bits = (_bits_at(key, counter, 32, first, narrow) >> 9) | np.uint32(0x3F800000)  # a float between 1 and 2
    else:
        bits = (_bits_at(key, counter, 64, first, narrow) >> np.uint64(12)) | np.uint64(0x3FF0000000000000)
    one = dtype.type(1)
    least = np.nextafter(-one, dtype.type(0))
    uniform = (jax.lax.bitcast_convert_type(bits, dtype) - one) * (one - least) + least
    return dtype.type(np.sqrt(2)) * jax.lax.erf_inv(jnp.maximum(least, uniform))


def integers_at(key, counter, bound, first=0):
    """The integers below `bound` with the numbers `first` + `counter`, of all that `jax.random.randint` draws for such a key."""
    kind = jax.dtypes.canonicalize_dtype(int)
    width = 8 * kind.itemsize
    span = jnp.asarray(bound, kind).astype(f"uint{width}")
    high, low = (_bits_at(half, counter, width, first) % span for half in jax.random.split(key))
    root = jnp.asarray(2 ** (width // 2), span.dtype) % span
    return ((high * (root * root % span) + low) % span).astype(kind)


def keys_at(key, counter, first=0):
    """The keys with the numbers `first` + `counter`, of all that `jax.random.split` makes of such a key."""
    return jax.random.wrap_key_data(jnp.stack(_threefry(key, counter, first), axis=-1), impl="threefry2x32")


def _bits_at(key, counter, width: int, first, narrow: bool = False):
    """32 or 64 random bits for each counter."""
    if narrow:
        counter = counter + jnp.asarray(first, jnp.uint32)
        high, low = threefry2x32_p.bind(*jax.random.key_data(key), jnp.zeros_like(counter), counter)
    else:
        high, low = _threefry(key, counter, first)
    if width == 32:
        return high ^ low
    return (high.astype(jnp.uint64) << np.uint64(32)) | low.astype(jnp.uint64)


def counts(key, size: int) -> bool:
    """Whether the code below computes what JAX would: the k-th number depends on the key and on k alone."""
    settings: Any = jax.config  # JAX adds its settings at run time
    known = settings.jax_threefry_partitionable and str(jax.random.key_impl(key)) == "threefry2x32"
    return 0 < size < 2**32 and known


def _threefry(key, counter, first):
    """The block cipher: two words of key and two of counter to two of output, in 20 rounds; a key word is added every four."""
    one, two = (jax.random.key_data(key)[i] for i in (0, 1))
    keys = (one, two, one ^ two ^ np.uint32(PARITY))
    x, y = jnp.zeros(counter.shape, jnp.uint32) + keys[0], counter + (keys[1] + jnp.asarray(first, jnp.uint32))
    for i in range(5):
        for r in ROTATIONS[i % 2]:
            x = x + y
            y = ((y << r) | (y >> (32 - r))) ^ x
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x, y
