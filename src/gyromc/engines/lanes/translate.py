"""A user's scalar function as Numba code on vectors, for the slopes of custom losses and potentials.

`translated` takes a function of numbers written with `jax.numpy` and writes the operations of its jaxpr as Python source for
Numba; `on_vectors` takes a Numba function. Both raise `Untranslatable` for an operation that vectors do not have. So a subclass
of `GeneralizedLinear` is written once, in JAX, for every engine.
"""

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import jax
import numba
import numpy as np
from numba.core.errors import NumbaError

from gyromc.engines.lanes import functions, vectors

OPERATORS = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/", "and": "&", "or": "|"}
FUNCTIONS = {
    **{"max": "maximum", "min": "minimum", "lt": "less", "le": "at_most", "eq": "equal", "ne": "unequal"},
    **{name: name for name in ("exp", "log", "sin", "cos", "tanh", "logistic", "sqrt")},
}
FORMULAS = {
    "gt": "less({1}, {0})",
    "ge": "at_most({1}, {0})",
    "neg": "-{}",
    "log1p": "log({} + 1.0)",
    "expm1": "exp({}) - 1.0",
    "rsqrt": "1.0 / sqrt({})",
    "cosh": "(exp({0}) + exp(-{0})) * 0.5",
    "sinh": "(exp({0}) - exp(-{0})) * 0.5",
    "sign": "selected(less(0.0, {0}), 1.0, 0.0) - selected(less({0}, 0.0), 1.0, 0.0)",
    "square": "{0} * {0}",
    "abs": "maximum({0}, -{0})",
    **{name: "{}" for name in ("convert_element_type", "stop_gradient", "copy")},
}
"""Operations of a jaxpr as Python source: as operators, and as functions and formulas of `vectors` and `functions`."""
MAX_POWER = 16


class Untranslatable(ValueError):
    """The function uses an operation that vectors do not have; the message names it."""


def translated(function: Callable, num_arguments: int) -> Callable:
    """A JAX function of scalars as a Numba function of vectors."""
    number = jax.ShapeDtypeStruct((), np.float32)
    closed = jax.make_jaxpr(function)(*[number] * num_arguments)
    names = [f"x{i}" for i in range(num_arguments)]
    lines: list[str] = []
    (result,) = map(_written, _emit(closed.jaxpr, [np.asarray(c) for c in closed.consts], names, lines))
    body = "".join(f"    {line}\n" for line in lines)
    # x0 · 0 makes a vector of the result even if it is constant.
    return _compiled(f"def formula({', '.join(names)}):\n{body}    return x0 * 0.0 + {result}\n")


@functools.lru_cache(maxsize=64)
def _compiled(source: str) -> Callable:
    """The function `formula` of a source text; cached, so that the loop for it is compiled once."""
    scope: dict[str, Any] = {**vars(vectors), **vars(functions), "inf": math.inf, "nan": math.nan}
    exec(source, scope)
    return functions.inlined(scope["formula"])


@functools.lru_cache(maxsize=64)
def on_vectors(function: Callable, num_arguments: int) -> Callable:
    """A user's Numba function of scalars as one of vectors; raises `Untranslatable` when Numba cannot compile it."""
    inner = functions.inlined(getattr(function, "py_func", function))
    names = ", ".join(f"x{i}" for i in range(num_arguments))
    scope: dict[str, Any] = {"inner": inner}
    exec(f"def whole({names}):\n    return x0 * 0.0 + inner({names})\n", scope)  # a vector even if it is constant
    ready = functions.inlined(scope["whole"])
    loads = ", ".join("load(x, 0)" for _ in range(num_arguments))
    scope.update(ready=ready, load=vectors.load, store=vectors.store)
    exec(f"def probe(x):\n    store(x, 0, ready({loads}))\n", scope)
    try:
        numba.njit(scope["probe"]).compile((numba.float32[::1],))  # type: ignore[attr-defined]  # types lack it
    except NumbaError as error:
        unknown = re.findall(r">>> (\w+)\(", str(error))
        what = f"`{unknown[0]}`" if unknown else "something"
        raise Untranslatable(
            f"a Numba function with {what} that vectors do not have: write it without branches, or pass a JAX function"
        ) from None
    return ready


def _emit(jaxpr, constants: list, arguments: list, lines: list[str]) -> list:
    """Append one line per operation; returns the results as names, or as numbers where these are constant."""
    value = dict(zip(jaxpr.constvars, constants, strict=True))
    value.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom):
        return np.asarray(atom.val) if hasattr(atom, "val") else value[atom]

    for equation in jaxpr.eqns:
        inputs, name = [read(atom) for atom in equation.invars], equation.primitive.name
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        if inner is not None:
            results = _emit(inner.jaxpr, [np.asarray(c) for c in inner.consts], inputs, lines)
            value.update(zip(equation.outvars, results, strict=True))
        elif not any(isinstance(x, str) for x in inputs):
            kinds = [atom.aval.dtype for atom in equation.invars]
            numbers = [jax.numpy.asarray(x, kind) for x, kind in zip(inputs, kinds, strict=True)]
            value[equation.outvars[0]] = np.asarray(equation.primitive.bind(*numbers, **equation.params))
        elif name == "select_n" and not isinstance(inputs[0], str):
            value[equation.outvars[0]] = inputs[1 + int(inputs[0])]
        else:
            lines.append(f"v{len(lines)} = {_formula(name, equation.params, [_written(x) for x in inputs])}")
            value[equation.outvars[0]] = f"v{len(lines) - 1}"
    return [read(atom) for atom in jaxpr.outvars]


def _written(x) -> str:
    """A name, or a number as Python writes it; a truth value as the mask of a comparison."""
    if isinstance(x, str):
        return x
    return f"less(x0 * 0.0, {float(x)!r})" if x.dtype == bool else f"({float(x)!r})"


def _formula(name: str, params: dict, inputs: list[str]) -> str:
    """One operation as Python source."""
    if name == "integer_pow" and 1 <= abs(params["y"]) <= MAX_POWER:
        product = " * ".join(inputs * abs(params["y"]))
        return product if params["y"] > 0 else f"1.0 / ({product})"
    if name == "select_n" and len(inputs) == 3:
        return "selected({0}, {2}, {1})".format(*inputs)
    if name in OPERATORS:
        return f" {OPERATORS[name]} ".join(inputs)
    if name in FUNCTIONS:
        return f"{FUNCTIONS[name]}({', '.join(inputs)})"
    if name in FORMULAS:
        return FORMULAS[name].format(*inputs)
    raise Untranslatable(f"the operation `{name}`")
