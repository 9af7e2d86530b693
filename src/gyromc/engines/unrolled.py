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

from gyromc.runtime.evaluation import ELEMENTWISE, MOVING, evaluated, num_moved, sources

MOST_OPERATIONS = 20_000
"""A function that unrolls to more operations than this is left to the other engines."""


class Unsupported(Exception):
    """The function has an operation that cannot be unrolled; the message names it."""


# A GPU's kernels have none of those that are left out.
_ELEMENTWISE = {"add_any", "copy", "one_minus_square"} | ELEMENTWISE.difference(
    ("digamma", "erf", "erf_inv", "erfc", "lgamma", "nextafter", "real", "reduce_precision", "round")
)
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
    return lambda *args: _Interpreter(operation or _operation).run(closed.jaxpr, closed.consts, args)[0]


def _is(x, number: float) -> bool:
    return _constant(x) and bool(x == number)


def _constant(x) -> bool:
    return isinstance(x, np.generic | float | int)


def entries(items, shape: tuple[int, ...]) -> np.ndarray:
    """An object array of the given shape with these entries; filled one by one, since NumPy would unpack tiles."""
    out = np.empty(math.prod(shape), object)
    for i, item in enumerate(items):
        out[i] = item
    return out.reshape(shape)


def _entries(array) -> np.ndarray:
    array = np.asarray(array)
    return entries(array.reshape(-1), array.shape)


def _numbers(arg: np.ndarray, var) -> np.ndarray:
    """An object array of numbers as an array of the variable's type."""
    return np.asarray(arg.tolist(), var.aval.dtype).reshape(arg.shape)


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
            return [_entries(result) for result in evaluated(eqn, numbers)]
        if name in _ELEMENTWISE:
            return [self.elementwise(eqn, args)]
        if name in _REDUCTIONS:
            return [self.reduce(eqn, *args)]
        if name in MOVING:
            return _move(eqn, args)
        if handler := getattr(self, f"_{name.replace('-', '_')}", None):
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
            for p in np.flatnonzero(evaluated(eqn, (zeros, where, one))[0]):
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
    """A primitive that only moves entries."""
    count = num_moved(eqn)
    if not all(_constant(x) for arg in args[count:] for x in arg.flat):
        raise Unsupported(f"`{eqn.primitive.name}` at positions that depend on the parameters")
    found = sources(eqn, [_numbers(arg, v) for arg, v in zip(args[count:], eqn.invars[count:], strict=True)])
    if found is None:
        raise Unsupported(f"`{eqn.primitive.name}` beyond the end of an array")
    pool = np.concatenate([arg.reshape(-1) for arg in args[:count]])
    return [pool[taken.reshape(-1)].reshape(taken.shape) for taken in found]
