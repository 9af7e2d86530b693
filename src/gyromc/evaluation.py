"""A function evaluated at many points, in float64: rows of θ in, a NumPy array out.

Points are taken some thousand at a time and padded to few different numbers, so that JAX compiles each function once.
`entries_read` says which entries of a vector a function reads.
"""

import collections
import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import require
from gyromc.machine import why_no_jax
from gyromc.precision import fresh

__all__ = ["Programs", "compiled", "doubled", "entries_read", "over_rows"]

CHUNK = 2**15
LARGE = 2**17  # numbers of an array that is put on the device once: a megabyte
MOST_PROGRAMS = (
    64  # of one function, that stay in memory: each takes up to 5 MB, and no call needs more than some twenty
)
ARRAYS = (jax.Array, np.ndarray, np.generic)


class Programs:
    """`function(tree, *arguments)` compiled by JAX: arrays in the pytree are traced, and all else is part of the program.

    JAX keeps what is part of a program for the life of the process, users' functions with all that they refer to. Here each
    program is a function of arrays alone, and the one that was not used for the longest time goes when there are too many.
    `donate`: the place of an argument after the tree, from 1, whose memory the program may use.
    """

    def __init__(self, function: Callable, donate: int | None = None):
        self.function, self.donate = function, () if donate is None else (donate,)
        self.made: collections.OrderedDict[tuple, Any] = collections.OrderedDict()

    def of(self, tree: Any) -> tuple[Any, list]:
        """The program for a tree, and the arrays of it that are the program's first argument."""
        reason = why_no_jax()
        require(reason is None, f"This cannot be computed: {reason}.")
        leaves, structure = jax.tree.flatten(tree)
        arrays = [x if isinstance(x, ARRAYS) else None for x in leaves]
        static = structure, *(None if isinstance(x, ARRAYS) else x for x in leaves)

        def traced(arrays, *arguments):
            structure, *others = static
            leaves = [other if x is None else x for other, x in zip(others, arrays, strict=True)]
            return self.function(jax.tree.unflatten(structure, leaves), *arguments)

        program = self.made.pop(static, None) or jax.jit(traced, donate_argnums=self.donate)
        self.made[static] = program
        while len(self.made) > MOST_PROGRAMS:
            self.made.popitem(last=False)
        return program, arrays


def compiled(function: Callable) -> Callable:
    """`function` of pytrees compiled by JAX; of its programs, those that were used last are kept."""
    programs = Programs(lambda args: function(*args))

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        program, arrays = programs.of(args)
        return program(arrays)

    return call


@compiled
def _mapped(function, rows, *pieces):
    return jax.vmap(lambda x: function(*pieces, x))(rows)


def doubled(tree):
    """A pytree with its floating-point arrays in float64, as new NumPy objects; large ones are on the device.

    A compiled function copies NumPy arrays to the device at every call: with a million rows that takes longer than the gradient.
    """

    def one(array):
        if not eqx.is_inexact_array(array) or (isinstance(array, jax.Array) and array.dtype == np.float64):
            return array
        array = np.asarray(array, float)
        if array.size < LARGE:
            return array
        with jax.enable_x64(True):
            return jnp.asarray(array)

    return fresh(jax.tree.map(one, tree))


def over_rows(function: Callable, rows: np.ndarray, *pieces, chunk: int = CHUNK) -> np.ndarray:
    """`function(*pieces, row)` at every row; compiled once for a function and pieces of one structure."""
    parts = []
    with jax.enable_x64(True):
        pieces = doubled(pieces)
        for i in range(0, len(rows), chunk):
            block = np.asarray(rows[i : i + chunk], float)
            # one row is one row: a descent or an anchor asks for single gradients, and each may read all the data
            padded_to = next((size for size in (1, 8, 64) if len(block) <= size), 1 << (len(block) - 1).bit_length())
            size = min(chunk, padded_to)
            padded = np.concatenate([block, np.broadcast_to(block[:1], (size - len(block), *block.shape[1:]))])
            parts.append(np.asarray(_mapped(function, jnp.asarray(padded), *pieces), float)[: len(block)])
    return np.concatenate(parts)


def entries_read(values: Callable, size: int) -> tuple[int, ...]:
    """The entries of a vector of `size` numbers on which a function depends; `values` evaluates it at rows.

    At points from 0.1 to 1000 in size, each entry is set to another number, and to NaN, which arithmetic passes on: only what
    a function reads by a comparison alone, and in a rare region, could be missed.
    """
    rng, sizes = np.random.default_rng(0), np.repeat([0.1, 1.0, 10.0, 100.0, 1000.0], 12)
    rows = sizes[:, None] * rng.standard_normal((len(sizes), size))
    others = np.stack([rng.permutation(sizes) * rng.standard_normal(len(sizes)), np.full(len(sizes), np.nan)])
    before, found = np.tile(values(rows), 2), []
    for i in range(size):
        changed = np.stack([rows, rows])
        changed[:, :, i] = others
        if not np.array_equal(values(changed.reshape(-1, size)), before, equal_nan=True):
            found.append(i)
    return tuple(found)
