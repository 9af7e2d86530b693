"""A user's JAX function as straight-line arithmetic on tiles, for use inside a kernel of the fused engines.

`unroll` takes a function of small arrays, for one chain, and returns the same function of arrays of *tiles*, one tile (a block
of chains) per entry: a GPU kernel holds only tiles whose sizes are powers of two. So a matrix product becomes sums of products of
tiles, and indexing happens while tracing. Constant entries stay numbers: products with zero and one are dropped. A tile is a JAX
array in `pallas`; in `lanes`, which passes its own `operation`, it is a vector of the code that is written.
"""

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


_ELEMENTWISE = """
    abs acos acosh add add_any and asin asinh atan atan2 atanh cbrt ceil clamp convert_element_type copy cos cosh
    div eq exp exp2 expm1 floor ge gt integer_pow is_finite le log log1p logistic lt max min mul ne neg not
    one_minus_square or pow rem rsqrt select_n sign sin sinh sqrt square stop_gradient sub tan tanh xor
"""
_MOVING = """
    broadcast_in_dim dynamic_slice dynamic_update_slice expand_dims gather reshape rev slice squeeze transpose
    concatenate pad split stack unstack
"""
_OPERATORS: dict[str, Callable] = {
    **dict.fromkeys(("add", "add_any"), lambda x, y: y if _is(x, 0) else x if _is(y, 0) else x + y),
    "sub": lambda x, y: x if _is(y, 0) else -y if _is(x, 0) else x - y,
    "mul": lambda x, y: np.float32(0) if _is(x, 0) or _is(y, 0) else y if _is(x, 1) else x if _is(y, 1) else x * y,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
}
_REDUCTIONS = {
    "reduce_sum": "add",
    "reduce_prod": "mul",
    **{f"reduce_{name}": name for name in ("max", "min", "and", "or")},
}


def unroll(function: Callable, *shapes, operation: Callable[[Any], Callable] | None = None) -> Callable:
    """`function` of arrays of the given shapes, for one chain, as a function of object arrays of tiles or numbers.

    `operation` returns, for an equation between single entries, the function of tiles and numbers that it stands for.
    """
    closed = jax.make_jaxpr(function)(*shapes)

    def unrolled(*args):
        [result] = _Interpreter(operation or _operation).run(closed.jaxpr, closed.consts, args)
        return result

    return unrolled


def _is(x, number: float) -> bool:
    return _constant(x) and bool(x == number)


def _constant(x) -> bool:
    return isinstance(x, np.generic | float | int)


def entries(items, shape: tuple[int, ...]) -> np.ndarray:
    """An object array of the given shape with these entries; filled one by one, since NumPy would unpack tiles."""
    items = list(items)
    out = np.empty(len(items), object)
    for i, item in enumerate(items):
        out[i] = item
    return out.reshape(shape)


def _entries(array) -> np.ndarray:
    array = np.asarray(array)
    return entries(array.reshape(-1), array.shape)


def _numbers(arg: np.ndarray, var) -> np.ndarray:
    """An object array of numbers as an array of the variable's type."""
    return np.asarray(arg.tolist(), var.aval.dtype).reshape(arg.shape)


def _evaluate(eqn, arrays) -> list[np.ndarray]:
    """The results of an equation between constants, computed while tracing, on the CPU."""
    with jax.ensure_compile_time_eval(), jax.default_device(jax.devices("cpu")[0]):
        results = eqn.primitive.bind(*map(jnp.asarray, arrays), **eqn.params)
        return [np.asarray(result) for result in (results if eqn.primitive.multiple_results else [results])]


class _Interpreter:
    def __init__(self, operation: Callable[[Any], Callable]):
        self.operation, self.operations = operation, 0

    def run(self, jaxpr, consts, args) -> list[np.ndarray]:
        values: dict[Any, np.ndarray] = dict(zip(jaxpr.constvars, map(_entries, consts), strict=True))
        values.update(zip(jaxpr.invars, args, strict=True))
        read = lambda v: _entries(v.val) if hasattr(v, "val") else values[v]
        for eqn in jaxpr.eqns:
            values.update(zip(eqn.outvars, self.equation(eqn, [read(v) for v in eqn.invars]), strict=True))
        return [read(v) for v in jaxpr.outvars]

    def equation(self, eqn, args) -> list[np.ndarray]:
        name = eqn.primitive.name
        if all(_constant(x) for arg in args for x in arg.flat):
            numbers = [_numbers(arg, v) for arg, v in zip(args, eqn.invars, strict=True)]
            return [_entries(result) for result in _evaluate(eqn, numbers)]
        if name in _ELEMENTWISE.split():
            return [self.elementwise(eqn, args)]
        if name in _REDUCTIONS:
            return [self.reduce(eqn, *args)]
        if name in _MOVING.split():
            return _move(eqn, args)
        handler = getattr(self, f"_{name.replace('-', '_')}", None)
        if handler is not None:
            return [handler(eqn, *args)]
        inner = eqn.params.get("jaxpr", eqn.params.get("call_jaxpr"))
        if inner is None or name in ("while", "scan", "cond"):
            raise Unsupported(f"the operation `{name}`")
        return self.run(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), args)

    def count(self, more: int = 1) -> None:
        self.operations += more
        if self.operations > MOST_OPERATIONS:
            raise Unsupported(f"more than {MOST_OPERATIONS} operations per step when unrolled")

    def elementwise(self, eqn, args) -> np.ndarray:
        operate = self.operation(eqn)
        shape = eqn.outvars[0].aval.shape
        self.count(math.prod(shape))
        columns = [np.broadcast_to(arg, shape).reshape(-1) for arg in args]
        return entries((operate(*row) for row in zip(*columns, strict=True)), shape)

    def reduce(self, eqn, array) -> np.ndarray:
        axes, operate = eqn.params["axes"], _OPERATORS[_REDUCTIONS[eqn.primitive.name]]
        kept = [a for a in range(array.ndim) if a not in axes]
        shape = tuple(array.shape[a] for a in kept)
        rows = array.transpose(*kept, *axes).reshape(math.prod(shape), -1)
        self.count(rows.size)
        return entries((functools.reduce(operate, row) for row in rows), shape)

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

    def _scatter_add(self, eqn, array, indices, updates):
        """The gradient of indexing; where each update goes is found by scattering a single one."""
        where, zeros = _numbers(indices, eqn.invars[1]), np.zeros(array.shape, np.float32)
        out, pool = array.reshape(-1).copy(), updates.reshape(-1)
        for i, update in enumerate(pool):
            one = (np.arange(pool.size) == i).astype(np.float32).reshape(updates.shape)
            for p in np.flatnonzero(_evaluate(eqn, (zeros, where, one))[0]):
                self.count()
                out[p] = _OPERATORS["add"](out[p], update)
        return out.reshape(array.shape)

    def _cumsum(self, eqn, array):
        self.count(array.size)
        order = (lambda entries: np.flip(entries, eqn.params["axis"])) if eqn.params["reverse"] else np.copy
        add = np.frompyfunc(_OPERATORS["add"], 2, 1)
        return order(add.accumulate(order(array), axis=eqn.params["axis"], dtype=object))


def _operation(eqn) -> Callable:
    if eqn.primitive.name in _OPERATORS:
        return _OPERATORS[eqn.primitive.name]

    def operate(*args):
        shape = next((x.shape for x in args if not _constant(x)), ())
        tiles = [jnp.full(shape, x, v.aval.dtype) if _constant(x) else x for x, v in zip(args, eqn.invars, strict=True)]
        return eqn.primitive.bind(*tiles, **eqn.params)

    return operate


def _move(eqn, args) -> list[np.ndarray]:
    """A primitive that only moves entries: apply it to their positions, then read the entries from there."""
    name = eqn.primitive.name
    moved = {"dynamic_update_slice": 2, "pad": 2, "concatenate": len(args), "stack": len(args)}.get(name, 1)
    if not all(_constant(x) for arg in args[moved:] for x in arg.flat):
        raise Unsupported(f"`{name}` at positions that depend on the parameters")
    positions, start = [], 0
    for arg in args[:moved]:
        positions.append(np.arange(start, start + arg.size, dtype=np.int32).reshape(arg.shape))
        start += arg.size
    indices = [_numbers(arg, v) for arg, v in zip(args[moved:], eqn.invars[moved:], strict=True)]
    results = _evaluate(eqn, (*positions, *indices))
    if any(taken.size and (taken.min() < 0 or taken.max() >= start) for taken in results):
        raise Unsupported(f"`{name}` beyond the end of an array")
    pool = np.concatenate([arg.reshape(-1) for arg in args[:moved]])
    return [pool[taken.reshape(-1)].reshape(taken.shape) for taken in results]
