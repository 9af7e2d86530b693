"""The normals ξ of (E3), in one pass: JAX's own numbers without the room and the time its generator takes on a CPU.

Receives a key; hands on exactly what `jax.random.normal` would. JAX lowers its generator (Threefry-2x32 with 20 rounds: Salmon,
Moraes, Dror and Shaw, 2011) on CPUs to a loop of passes over whole arrays, which hold three times what they return and which
nothing can be fused with. Written out as arithmetic on counters it is part of the step itself, and no random number need be
stored.
"""

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["normal"]

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def normal(key, shape: tuple[int, ...], dtype):
    """Standard normals, `jax.random.normal(key, shape, dtype)` to the last bit.

    **Arguments:**

    - `key`: of JAX.
    - `shape`, `dtype`: float32 or float64.

    ```python
    import jax
    import numpy as np
    from gyromc.engines.threefry import normal
    key = jax.random.key(0)
    assert np.array_equal(normal(key, (5,), "float32"), jax.random.normal(key, (5,), "float32"))
    ```
    """
    dtype, size = np.dtype(dtype), int(np.prod(shape))
    if not _known(key, size):
        return jax.random.normal(key, shape, dtype)
    words = jax.random.key_data(key)
    counter = jax.lax.iota(jnp.uint32, size).reshape(shape)
    high, low = _threefry(words[0], words[1], jnp.zeros(shape, jnp.uint32), counter)
    if dtype == np.float32:
        bits = ((high ^ low) >> 9) | np.uint32(0x3F800000)  # a float between 1 and 2
    else:
        whole = (high.astype(jnp.uint64) << np.uint64(32)) | low.astype(jnp.uint64)
        bits = (whole >> np.uint64(12)) | np.uint64(0x3FF0000000000000)
    one = dtype.type(1)
    least = np.nextafter(-one, dtype.type(0))
    uniform = (jax.lax.bitcast_convert_type(bits, dtype) - one) * (one - least) + least
    return dtype.type(np.sqrt(2)) * jax.lax.erf_inv(jnp.maximum(least, uniform))


def _known(key, size: int) -> bool:
    """Whether these are the numbers JAX would give here, and worth giving: on GPUs JAX has a kernel of its own."""
    return (
        jax.default_backend() == "cpu"
        and 0 < size < 2**32
        and jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]
        and str(jax.random.key_impl(key)) == "threefry2x32"
    )


def _threefry(first, second, x, y):
    """The block cipher: two words of key, two of counter, two of output; 20 rounds, a word of key every four."""
    keys = (first, second, first ^ second ^ np.uint32(PARITY))
    x, y = x + keys[0], y + keys[1]
    for i in range(5):
        for r in ROTATIONS[i % 2]:
            x = x + y
            y = ((y << r) | (y >> (32 - r))) ^ x
        x, y = x + keys[(i + 1) % 3], y + keys[(i + 2) % 3] + np.uint32(i + 1)
    return x, y
