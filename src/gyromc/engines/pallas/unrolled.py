"""A user's JAX function as straight-line arithmetic on tiles, for use inside a kernel.

`unroll` takes a function of small arrays, for one chain, and returns the same function of arrays of *tiles*, one tile (a block
of chains) per entry. A GPU kernel holds only tiles whose sizes are powers of two, so a vector of d = 3 parameters becomes three
tiles, a matrix product becomes sums of products of tiles, and indexing happens while tracing. Constant entries stay numbers:
products with zero and one are dropped.
"""

import contextlib
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

MOST_OPERATIONS = 20_000
"""A function that unrolls to more operations than this is left to the other engines."""


class Unsupported(Exception):
    """The function has an operation that cannot be unrolled; the message names it."""


_ELEMENTWISE = frozenset(
    [
        "abs",
        "acos",
        "acosh",
        "add",
        "add_any",
        "and",
        "asin",
        "asinh",
        "atan",
        "atan2",
        "atanh",
        "cbrt",
        "ceil",
        "clamp",
        "convert_element_type",
        "copy",
        "cos",
        "cosh",
        "div",
        "eq",
        "exp",
        "exp2",
        "expm1",
        "floor",
        "ge",
        "gt",
        "integer_pow",
        "is_finite",
        "le",
        "log",
        "log1p",
        "logistic",
        "lt",
        "max",
        "min",
        "mul",
        "ne",
        "neg",
        "not",
        "one_minus_square",
        "or",
        "pow",
        "rem",
        "rsqrt",
        "select_n",
        "sign",
        "sin",
        "sinh",
        "sqrt",
        "square",
        "stop_gradient",
        "sub",
        "tan",
        "tanh",
        "xor",
    ]
)
_MOVING = frozenset(
    [
        "broadcast_in_dim",
        "dynamic_slice",
        "dynamic_update_slice",
        "expand_dims",
        "gather",
        "reshape",
        "rev",
        "slice",
        "squeeze",
        "transpose",
        "concatenate",
        "split",
        "stack",
        "unstack",
    ]
)
_OPERATORS: dict[str, Callable] = {
    "add": lambda x, y: y if _is(x, 0) else x if _is(y, 0) else x + y,
    "add_any": lambda x, y: y if _is(x, 0) else x if _is(y, 0) else x + y,
    "sub": lambda x, y: x if _is(y, 0) else -y if _is(x, 0) else x - y,
    "mul": lambda x, y: np.float32(0) if _is(x, 0) or _is(y, 0) else y if _is(x, 1) else x if _is(y, 1) else x * y,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
}


def unroll(function: Callable, *shapes) -> Callable:
    """`function` of arrays with the given shapes as a function of object arrays of tiles, returning one.

    **Arguments:**

    - `function`: of arrays, for one chain, returning an array.
    - `shapes`: one `jax.ShapeDtypeStruct` per argument.

    **Returns:** a function taking and returning NumPy object arrays of those shapes, whose entries are tiles or numbers.
    """
    closed = jax.make_jaxpr(function)(*shapes)

    def unrolled(*args):
        [result] = _Interpreter().run(closed.jaxpr, closed.consts, args)
        return result

    return unrolled


def _is(x, number: float) -> bool:
    return _constant(x) and bool(x == number)


def _constant(x) -> bool:
    return not isinstance(x, jax.Array)


def entries(items, shape: tuple[int, ...]) -> np.ndarray:
    """An object array of the given shape with these entries; filled one by one, since NumPy would unpack tiles."""
    items = list(items)
    out = np.empty(len(items), object)
    for i, item in enumerate(items):
        out[i] = item
    return out.reshape(shape)


def _entries(array) -> np.ndarray:
    """A concrete array as an object array of its numbers."""
    array = np.asarray(array)
    return entries(array.reshape(-1), array.shape)


@contextlib.contextmanager
def _evaluated_now():
    """Evaluate operations between constants while tracing, on the CPU."""
    with jax.ensure_compile_time_eval(), jax.default_device(jax.devices("cpu")[0]):
        yield


class _Interpreter:
    """Evaluates a jaxpr entry by entry, counting operations."""

    def __init__(self):
        self.operations = 0

    def run(self, jaxpr, consts, args) -> list[np.ndarray]:
        values: dict[Any, np.ndarray] = {}
        for var, const in zip(jaxpr.constvars, consts, strict=True):
            values[var] = _entries(const)
        for var, arg in zip(jaxpr.invars, args, strict=True):
            values[var] = arg
        read = lambda v: _entries(v.val) if hasattr(v, "val") else values[v]  # noqa: E731
        for eqn in jaxpr.eqns:
            results = self.equation(eqn, [read(v) for v in eqn.invars])
            for var, result in zip(eqn.outvars, results, strict=True):
                values[var] = result
        return [read(v) for v in jaxpr.outvars]

    def equation(self, eqn, args) -> list[np.ndarray]:
        name = eqn.primitive.name
        if all(_constant(x) for arg in args for x in arg.flat):
            return self.fold(eqn, args)
        if name in _ELEMENTWISE:
            return [self.elementwise(eqn, args)]
        if name in _MOVING:
            return _move(eqn, args)
        handler = getattr(self, f"_{name.replace('-', '_')}", None)
        if handler is not None:
            return [handler(eqn, *args)]
        inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        if inner is None or name in ("while", "scan", "cond"):
            raise Unsupported(f"the operation `{name}`")
        return self.run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), args)

    def fold(self, eqn, args) -> list[np.ndarray]:
        """Evaluate an equation between constants."""
        numbers = [np.asarray(arg.tolist(), v.aval.dtype).reshape(v.aval.shape) for arg, v in zip(args, eqn.invars)]  # noqa: B905
        with _evaluated_now():
            results = eqn.primitive.bind(*map(jnp.asarray, numbers), **eqn.params)
        return [_entries(r) for r in (results if eqn.primitive.multiple_results else [results])]

    def count(self, more: int = 1) -> None:
        self.operations += more
        if self.operations > MOST_OPERATIONS:
            raise Unsupported(f"more than {MOST_OPERATIONS} operations per step when unrolled")

    def elementwise(self, eqn, args) -> np.ndarray:
        operate = _OPERATORS.get(eqn.primitive.name) or _binding(eqn)
        shape = eqn.outvars[0].aval.shape
        self.count(math.prod(shape))
        columns = [np.broadcast_to(arg, shape).reshape(-1) for arg in args]
        return entries((operate(*row) for row in zip(*columns, strict=True)), shape)

    def reduce(self, eqn, array, operation: str) -> np.ndarray:
        axes, operate = eqn.params["axes"], _OPERATORS[operation]
        kept = [a for a in range(array.ndim) if a not in axes]
        shape = tuple(array.shape[a] for a in kept)
        rows = array.transpose(*kept, *axes).reshape(math.prod(shape), -1)
        self.count(rows.size)
        return entries((functools.reduce(operate, row) for row in rows), shape)

    def _reduce_sum(self, eqn, array):
        return self.reduce(eqn, array, "add")

    def _reduce_prod(self, eqn, array):
        return self.reduce(eqn, array, "mul")

    def _reduce_max(self, eqn, array):
        return self.reduce(eqn, array, "max")

    def _reduce_min(self, eqn, array):
        return self.reduce(eqn, array, "min")

    def _reduce_and(self, eqn, array):
        return self.reduce(eqn, array, "and")

    def _reduce_or(self, eqn, array):
        return self.reduce(eqn, array, "or")

    def _dot_general(self, eqn, left, right):
        (lc, rc), (lb, rb) = eqn.params["dimension_numbers"]
        lk = [a for a in range(left.ndim) if a not in (*lc, *lb)]
        rk = [a for a in range(right.ndim) if a not in (*rc, *rb)]
        batch = math.prod(left.shape[a] for a in lb)
        inner = math.prod(left.shape[a] for a in lc)
        x = left.transpose(*lb, *lk, *lc).reshape(batch, -1, inner)
        y = right.transpose(*rb, *rk, *rc).reshape(batch, -1, inner)
        add, multiply = _OPERATORS["add"], _OPERATORS["mul"]
        sums = []
        for b, i, j in np.ndindex(batch, x.shape[1], y.shape[1]):
            self.count(2 * inner)
            sums.append(functools.reduce(add, map(multiply, x[b, i], y[b, j])))
        return entries(sums, eqn.outvars[0].aval.shape)

    def _pad(self, eqn, array, value):
        shape = eqn.outvars[0].aval.shape
        out = entries([value[()]] * math.prod(shape), shape)
        for index in np.ndindex(array.shape):
            place = tuple(
                low + i * (1 + inside) for i, (low, _, inside) in zip(index, eqn.params["padding_config"], strict=True)
            )
            if all(0 <= p < size for p, size in zip(place, out.shape, strict=True)):
                out[place] = array[index]
        return out

    def _scatter_add(self, eqn, array, indices, updates):
        """The gradient of indexing; where each update goes is found by scattering a single one."""
        where = np.asarray(indices.tolist(), eqn.invars[1].aval.dtype).reshape(indices.shape)
        out, pool = array.reshape(-1).copy(), updates.reshape(-1)
        for i, update in enumerate(pool):
            one = (np.arange(pool.size) == i).astype(np.float32).reshape(updates.shape)
            with _evaluated_now():
                inputs = map(jnp.asarray, (np.zeros(array.shape, np.float32), where, one))
                hit = np.flatnonzero(np.asarray(eqn.primitive.bind(*inputs, **eqn.params)))
            for p in hit:
                self.count()
                out[p] = _OPERATORS["add"](out[p], update)
        return out.reshape(array.shape)

    def _cumsum(self, eqn, array):
        axis, out = eqn.params["axis"], array.copy()
        order = np.flip(out, axis) if eqn.params["reverse"] else out
        lines = np.moveaxis(order, axis, 0)
        for i in range(1, lines.shape[0]):
            for index in np.ndindex(lines.shape[1:]):
                self.count()
                lines[(i, *index)] = _OPERATORS["add"](lines[(i - 1, *index)], lines[(i, *index)])
        return out


def _binding(eqn) -> Callable:
    """The primitive as a function of tiles; numbers among its arguments are converted to tiles."""

    def operate(*args):
        shape = next(x.shape for x in args if not _constant(x)) if not all(map(_constant, args)) else ()
        tiles = [jnp.full(shape, x, v.aval.dtype) if _constant(x) else x for x, v in zip(args, eqn.invars, strict=True)]
        return eqn.primitive.bind(*tiles, **eqn.params)

    return operate


def _move(eqn, args) -> list[np.ndarray]:
    """A primitive that only moves entries: apply it to their positions, then read the entries from there."""
    name = eqn.primitive.name
    moved = {"dynamic_update_slice": 2, "concatenate": len(args), "stack": len(args)}.get(name, 1)
    if not all(_constant(x) for arg in args[moved:] for x in arg.flat):
        raise Unsupported(f"`{name}` at positions that depend on the parameters")
    positions, start = [], 0
    for arg in args[:moved]:
        positions.append(np.arange(start, start + arg.size, dtype=np.int32).reshape(arg.shape))
        start += arg.size
    indices = [np.asarray(arg.tolist(), v.aval.dtype) for arg, v in zip(args[moved:], eqn.invars[moved:], strict=True)]
    with _evaluated_now():
        results = eqn.primitive.bind(*map(jnp.asarray, (*positions, *indices)), **eqn.params)
        results = [np.asarray(r) for r in (results if eqn.primitive.multiple_results else [results])]
    if any(taken.size and (taken.min() < 0 or taken.max() >= start) for taken in results):
        raise Unsupported(f"`{name}` beyond the end of an array")
    pool = np.concatenate([arg.reshape(-1) for arg in args[:moved]])
    return [pool[taken.reshape(-1)].reshape(taken.shape) for taken in results]
