"""A function evaluated at many points, in float64: rows of θ in, a NumPy array out.

Points are taken some thousand at a time and padded to few different numbers, so that JAX compiles each function once. `metered`
counts the gradients that a piece of work takes.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.precision import fresh

__all__ = ["Meter", "doubled", "metered", "over_rows", "spend"]

CHUNK = 2**15
LARGE = 2**17  # numbers of an array that is put on the device once: a megabyte
POTENTIAL = 1 / 3  # of what a gradient costs


class Meter:
    """How many gradients over all the data were computed; a potential counts a third, a Hessian one for each parameter."""

    gradients: float = 0.0


_meters: contextvars.ContextVar[tuple[Meter, ...]] = contextvars.ContextVar("meters", default=())


@contextlib.contextmanager
def metered() -> Iterator[Meter]:
    """Count the gradients that are computed inside.

    ```python
    import gyromc as gm
    from gyromc.evaluation import metered
    with metered() as meter:
        gm.targets.Quadratic([1.0, 2.0]).gradients([[0.0, 0.0], [1.0, 1.0]])
    assert meter.gradients == 2
    ```
    """
    meter = Meter()
    token = _meters.set((*_meters.get(), meter))
    try:
        yield meter
    finally:
        _meters.reset(token)


def spend(gradients: float) -> None:
    """Say that so many gradients are computed."""
    for meter in _meters.get():
        meter.gradients += gradients


@eqx.filter_jit
def _mapped(function, rows, *pieces):
    return jax.vmap(lambda x: function(*pieces, x))(rows)


def doubled(tree):
    """A pytree with its floating-point arrays in float64, as new NumPy objects; large ones are on the device.

    A compiled function copies NumPy arrays to the device at every call: with a million rows that takes longer than the gradient.
    """
    return fresh(jax.tree.map(lambda x: _doubled(x) if eqx.is_inexact_array(x) else x, tree))


def _doubled(array):
    if isinstance(array, jax.Array) and array.dtype == np.float64 and array.size >= LARGE:
        return array
    array = np.asarray(array, float)
    if array.size < LARGE:
        return array
    with jax.enable_x64(True):
        return jnp.asarray(array)


def _padded_to(count: int) -> int:
    """How many rows are evaluated for `count` of them: 1, 8, 64, or the next power of two.

    One row is one row: a descent or an anchor asks for single gradients, and each may read all the data.
    """
    return next((size for size in (1, 8, 64) if count <= size), 1 << (count - 1).bit_length())


def over_rows(function: Callable, rows: np.ndarray, *pieces, chunk: int = CHUNK) -> np.ndarray:
    """`function(*pieces, row)` at every row; compiled once for a function and pieces of one structure."""
    parts = []
    with jax.enable_x64(True):
        pieces = doubled(pieces)
        for i in range(0, len(rows), chunk):
            block = np.asarray(rows[i : i + chunk], float)
            size = min(chunk, _padded_to(len(block)))
            padded = np.concatenate([block, np.broadcast_to(block[:1], (size - len(block), *block.shape[1:]))])
            parts.append(np.asarray(_mapped(function, jnp.asarray(padded), *pieces), float)[: len(block)])
    return np.concatenate(parts)
