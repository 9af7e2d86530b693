"""A scalar function from JAX to the vectors of this engine: how a user's own loss (its slope ∂ loss/∂t) gets into the loop (E3).

Receives a function of numbers written with `jax.numpy`; hands on the same formula as a function for Numba, by its jaxpr, or
says which operation it does not know. So a subclass of `GeneralizedLinear` is written once, in JAX, for every engine.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from gyromc.engines.lanes import functions, vectors

BINARY = {
    "add": "{} + {}",
    "sub": "{} - {}",
    "mul": "{} * {}",
    "div": "{} / {}",
    "max": "maximum({}, {})",
    "min": "minimum({}, {})",
}
UNARY = {
    "neg": "-{}",
    "exp": "exp({})",
    "log": "log({})",
    "log1p": "log({} + 1.0)",
    "sin": "sin({})",
    "cos": "cos({})",
    "tanh": "tanh({})",
    "logistic": "logistic({})",
    "sqrt": "sqrt({})",
    "square": "{0} * {0}",
    "abs": "maximum({0}, -{0})",
    "convert_element_type": "{}",
    "stop_gradient": "{}",
    "copy": "{}",
}
INNER = ("jaxpr", "call_jaxpr")
MAX_POWER = 16


class Untranslatable(ValueError):
    """An operation that vectors do not have; the message names it."""


def translated(function: Callable, num_arguments: int) -> Callable:
    """The function as plain Python source on vectors, compiled by `functions.inlined`.

    **Arguments:**

    - `function`: of scalars, written with `jax.numpy`.
    - `num_arguments`: how many it takes.
    """
    number = jax.ShapeDtypeStruct((), np.float32)
    closed = jax.make_jaxpr(function)(*[number] * num_arguments)
    names = [f"x{i}" for i in range(num_arguments)]
    lines: list[str] = []
    (result,) = _emit(closed.jaxpr, [float(c) for c in closed.consts], names, lines)
    body = "".join(f"    {line}\n" for line in lines)
    source = f"def formula({', '.join(names)}):\n{body}    return x0 * 0.0 + {result}\n"  # a vector also where it is constant
    names_in_scope: dict[str, Any] = {
        **{name: getattr(functions, name) for name in ("exp", "log", "sin", "cos", "tanh", "logistic", "sqrt")},
        "maximum": vectors.maximum,
        "minimum": vectors.minimum,
    }
    exec(source, names_in_scope)
    return functions.inlined(names_in_scope["formula"])


def _emit(jaxpr, constants: list, arguments: list[str], lines: list[str]) -> list[str]:
    """Write one line per operation; hands on the names of the results."""
    value = {var: repr(c) for var, c in zip(jaxpr.constvars, constants, strict=True)}
    value.update(zip(jaxpr.invars, arguments, strict=True))

    def read(atom) -> str:
        return f"({float(atom.val)!r})" if hasattr(atom, "val") else value[atom]

    for equation in jaxpr.eqns:
        inputs, name = [read(atom) for atom in equation.invars], equation.primitive.name
        inner = next((equation.params[key] for key in INNER if key in equation.params), None)
        if inner is not None:
            results = _emit(inner.jaxpr, [float(c) for c in inner.consts], inputs, lines)
            value.update(zip(equation.outvars, results, strict=True))
            continue
        target = f"v{len(lines)}"
        lines.append(f"{target} = {_formula(name, equation.params, inputs)}")
        value[equation.outvars[0]] = target
    return [read(atom) for atom in jaxpr.outvars]


def _formula(name: str, params: dict, inputs: list[str]) -> str:
    if name == "integer_pow" and 1 <= params["y"] <= MAX_POWER:
        return " * ".join(inputs * params["y"])
    for table in (BINARY, UNARY):
        if name in table:
            return table[name].format(*inputs)
    raise Untranslatable(f"the operation `{name}`")
