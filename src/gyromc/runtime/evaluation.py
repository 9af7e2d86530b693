"""A function evaluated at many points, in float64: rows of θ in, a NumPy array out.

Points are taken some thousand at a time and padded to few different numbers, so that JAX compiles each function once.
`indices_read` says which entries of a vector a function reads.
"""

import collections
import functools
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from gyromc.checks import require
from gyromc.runtime.machine import why_no_jax
from gyromc.runtime.precision import fresh

CHUNK = 2**15
LARGE = 2**17  # numbers of an array that is put on the device once: a megabyte
# Of one function, that stay in memory: each takes up to 5 MB, and no call needs more than some twenty.
MOST_PROGRAMS = 64
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
    """A pytree with its floating-point arrays in float64, as new NumPy objects; large ones are on the device."""

    def one(array):
        if not eqx.is_inexact_array(array) or (isinstance(array, jax.Array) and array.dtype == np.float64):
            return array
        array = np.asarray(array, float)
        # A compiled function would copy it to the device at every call: a million rows take longer than the gradient.
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


MOVING = {
    "slice", "squeeze", "reshape", "transpose", "broadcast_in_dim", "concatenate", "rev", "expand_dims", "copy", "copy_p",
    "gather", "dynamic_slice", "dynamic_update_slice", "pad", "split", "stack", "unstack",
}  # fmt: skip
ELEMENTWISE = {
    "abs", "acos", "acosh", "add", "and", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "ceil", "clamp",
    "convert_element_type", "cos", "cosh", "digamma", "div", "eq", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1",
    "floor", "ge", "gt", "integer_pow", "is_finite", "le", "lgamma", "log", "log1p", "logistic", "lt", "max", "min",
    "mul", "ne", "neg", "nextafter", "not", "or", "pow", "real", "reduce_precision", "rem", "round", "rsqrt",
    "select_n", "sign", "sin", "sinh", "sqrt", "square", "stop_gradient", "sub", "tan", "tanh", "xor",
}  # fmt: skip
REDUCING = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_or", "reduce_and", "argmax", "argmin"}
CALLING = {"pjit", "jit", "closed_call", "custom_jvp_call", "custom_vjp_call", "remat", "checkpoint"}


def indices_read(function: Callable, size: int) -> tuple[int, ...]:
    """The entries of a vector of `size` numbers that a scalar function of it can depend on; too many rather than too few.

    They come from the function's computation and not from its derivatives: a function that is flat where one looks still
    depends on what decides where it is flat. Operations that move entries are followed entry by entry, all others are taken to
    mix everything they read.
    """
    with jax.enable_x64(True):
        closed = jax.make_jaxpr(function)(jax.ShapeDtypeStruct((size,), jnp.float64))
        marks = _follow(closed.jaxpr, closed.consts, [np.eye(size, dtype=bool)], size)
    found = np.concatenate([mark.reshape(-1, size) for mark in marks]).any(axis=0)
    return tuple(np.flatnonzero(found).tolist())


def _follow(jaxpr, consts, marks: list[np.ndarray], size: int) -> list[np.ndarray]:
    """The marks of a jaxpr's outputs: an array of the output's shape and one more axis over the entries of θ."""
    known = dict(zip(jaxpr.invars, marks, strict=True))
    values = dict(zip(jaxpr.constvars, consts, strict=True))

    def mark_of(atom) -> np.ndarray:
        if not isinstance(atom, Literal) and atom in known:
            return known[atom]
        aval: Any = atom.aval
        return np.zeros((*aval.shape, size), bool)

    for equation in jaxpr.eqns:
        inputs, calls = [mark_of(atom) for atom in equation.invars], equation.primitive.name in CALLING
        closed = (p for p in equation.params.values() if calls and hasattr(p, "jaxpr") and hasattr(p, "consts"))
        inner = next(closed, None)
        if inner is not None and len(inner.jaxpr.invars) == len(inputs):
            outputs = _follow(inner.jaxpr, inner.consts, inputs, size)
        elif not any(mark.any() for mark in inputs):
            outputs = [np.zeros((*out.aval.shape, size), bool) for out in equation.outvars]
        else:
            outputs = _one(equation, inputs, values, size)
        known.update(zip(equation.outvars, outputs, strict=True))
    return [mark_of(atom) for atom in jaxpr.outvars]


def _one(equation, inputs: list[np.ndarray], values: dict, size: int) -> list[np.ndarray]:
    name, [first, *others] = equation.primitive.name, equation.outvars
    shape = first.aval.shape
    if name in MOVING and (moved := _moved(equation, inputs, values)) is not None:
        return moved
    if not others and name in REDUCING:
        return [np.asarray(inputs[0].any(axis=tuple(equation.params["axes"])))]
    if not others and name in ELEMENTWISE:
        return [np.logical_or.reduce([np.broadcast_to(mark, (*shape, size)) for mark in inputs])]
    everything = np.logical_or.reduce([mark.reshape(-1, size).any(axis=0) for mark in inputs])
    return [np.broadcast_to(everything, (*out.aval.shape, size)) for out in equation.outvars]


def _moved(equation, inputs: list[np.ndarray], values: dict) -> list[np.ndarray] | None:
    """The marks moved as the operation moves entries; None where an index is itself computed."""
    count = num_moved(equation)
    indices = [atom.val if isinstance(atom, Literal) else values.get(atom) for atom in equation.invars[count:]]
    found = None if any(index is None for index in indices) else sources(equation, indices)
    if found is None:
        return None
    pool = np.concatenate([mark.reshape(-1, mark.shape[-1]) for mark in inputs[:count]])
    return [pool[places] for places in found]


def num_moved(equation) -> int:
    """How many of the arguments of an operation it moves; the others say where to."""
    count = len(equation.invars)
    return {"dynamic_update_slice": 2, "pad": 2, "concatenate": count, "stack": count}.get(equation.primitive.name, 1)


def sources(equation, indices) -> list[np.ndarray] | None:
    """Where the entries of the results come from, as places among all entries that an operation moves to `indices`.

    None where one comes from beyond the end of an array.
    """
    shapes = [atom.aval.shape for atom in equation.invars[: num_moved(equation)]]
    edges = np.cumsum([0, *map(math.prod, shapes)])
    spans = zip(edges[:-1], edges[1:], shapes, strict=True)
    places = [np.arange(a, b, dtype=np.int32).reshape(shape) for a, b, shape in spans]
    found = evaluated(equation, (*places, *indices))
    return found if all(np.all((taken >= 0) & (taken < edges[-1])) for taken in found) else None


def evaluated(equation, arrays) -> list[np.ndarray]:
    """The results of an operation on constants, computed while tracing, on the CPU."""
    with jax.ensure_compile_time_eval(), jax.default_device(jax.devices("cpu")[0]):
        results = equation.primitive.bind(*map(jnp.asarray, arrays), **equation.params)
        return [np.asarray(result) for result in (results if equation.primitive.multiple_results else [results])]
