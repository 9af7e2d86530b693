"""Which expressions a formula may hold: columns, numbers, arithmetic and a fixed list of functions. Nothing else is evaluated."""

import ast
import functools
import re
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.show.numbers import did_you_mean

ELEMENTWISE = {name: getattr(np, name) for name in ("log", "log2", "log10", "log1p", "exp", "sqrt", "abs")}
BASES = {"poly": ("degree",), "bs": ("df", "degree", "knots"), "ns": ("df", "knots")}
"""Functions that make several columns out of one, and the arguments that follow it."""
FUNCTIONS = (*ELEMENTWISE, "center", "scale", *BASES, "I", "C", "offset")
MOST_COLUMNS = 50  # of a basis
MOST_POWER = 20
CURVE = "For a curve write bs(…, 4)."
SUCCESSES = "Name the column of successes alone, and pass `--family binomial --trials COLUMN`."
HINTS = {"s(": CURVE, "te(": CURVE, "cbind(": SUCCESSES}


@functools.cache
def functions() -> Mapping[str, Any]:
    """Return the functions by name, as formulaic calls them; those with a memory keep it between the fit and new rows."""
    from formulaic.transforms import basis_spline, center, poly, scale
    from formulaic.transforms.cubic_spline import cubic_spline
    from formulaic.utils.stateful_transforms import stateful_transform

    @stateful_transform
    def bs(x, df=None, degree=3, knots=None, _state: Any = None):
        return basis_spline(x, df=df, degree=degree, knots=knots, extrapolation="extend", _state=_state)

    @stateful_transform
    def ns(x, df=None, knots=None, _state: Any = None):
        return cubic_spline(x, df=df, knots=knots, constraints="center", extrapolation="extend", _state=_state)

    # A comparison becomes 0 and 1.
    known = {"center": center, "scale": scale, "poly": poly, "bs": bs, "ns": ns, "I": lambda x: x.astype(float)}
    return {**ELEMENTWISE, **known, "np": SimpleNamespace(**ELEMENTWISE)}


def columns_of(expression: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the columns that an expression reads; raise unless it holds only columns, numbers, arithmetic and `FUNCTIONS`."""
    where = f"`{expression}` in the formula"
    tree, quoted = _tree(expression)
    found: dict[str, None] = {}
    waiting = [tree]
    while waiting:
        node = waiting.pop(0)
        inside: list[ast.expr] = []
        match node:
            case ast.Name(id=name):
                name = quoted.get(name, name)
                if name not in known:
                    require(name not in FUNCTIONS, f"`{name}` in the formula is a function: write {name}(column).")
                    hint = did_you_mean(name, sorted(known), "Columns:")
                    raise InvalidInput(f"The formula uses {name!r}, which is no column of the data. {hint}")
                found[name] = None
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                require(abs(value) < 1e15, f"{where}: {value:g} is too large a number.")
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                power = _number(right)
                good = power is not None and 0 < abs(power) <= MOST_POWER
                require(good, f"{where}: a power is a number of at most {MOST_POWER}, such as I(x**2).")
                inside = [left]
            case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
                inside = [operand]
            case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.Div(), right=right):
                inside = [left, right]
            case ast.Compare(ops=[ast.Lt() | ast.LtE() | ast.Gt() | ast.GtE() | ast.Eq() | ast.NotEq()]):
                inside = [node.left, *node.comparators]
            case ast.Call():
                inside = [_argument(node, where, known, outermost=node is tree)]
            case _:
                _refuse(where, ast.unparse(node))
        waiting = [*inside, *waiting]
    require(found, f"{where} reads no column. Leave it out.")
    return tuple(found)


def special_call(expression: str) -> tuple[str, str] | None:
    """Return "C" and the column of `C(column)`, "offset" and what is inside `offset(…)`, or None for anything else."""
    tree, quoted = _tree(expression)
    if not isinstance(tree, ast.Call) or not isinstance(tree.func, ast.Name) or tree.func.id not in ("C", "offset"):
        return None
    name, only = tree.func.id, tree.args[0] if len(tree.args) == 1 and not tree.keywords else None
    where = f"`{expression}` in the formula"
    remedy = f"{where}: write `C(column)`, and choose its reference with `--reference COLUMN=LEVEL`."
    require(name != "C" or isinstance(only, ast.Name), remedy)
    if only is None:
        raise InvalidInput(f"{where}: `offset` takes one expression, such as offset(log(exposure)).")
    inside = ast.unparse(only)
    for placeholder, column in quoted.items():
        inside = inside.replace(placeholder, column if name == "C" else f"`{column}`")
    return name, inside


def _tree(expression: str) -> tuple[ast.expr, dict[str, str]]:
    """An expression as a tree with a placeholder for each name in backticks, and these names."""
    quoted: dict[str, str] = {}

    def place(match: re.Match[str]) -> str:
        quoted[f"quoted_{len(quoted)}_"] = match[1]
        return f"quoted_{len(quoted) - 1}_"

    text = re.sub("`([^`]+)`", place, expression).strip()
    try:
        return ast.parse(text, mode="eval").body, quoted
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        remedy = "Put names with blanks or signs in backticks: `my column`."
        raise InvalidInput(f"`{expression}` in the formula cannot be read. {remedy}") from None


def _argument(node: ast.Call, where: str, known: Collection[str], outermost: bool) -> ast.expr:
    """Check the call of a function; return its first argument."""
    match node.func:
        case ast.Attribute(value=ast.Name(id="np"), attr=name) if name in ELEMENTWISE:
            pass
        case ast.Name(id=name) if name in FUNCTIONS:
            require(name not in known, f"The column {name!r} is also a function of the formula. Rename it.")
        case func:
            _refuse(where, f"{ast.unparse(func)}(…)")
    require(name != "C", f"{where}: `C` stands alone: C(column).")
    require(name != "offset", f"{where}: `offset` stands as a term of its own: offset(log(exposure)).")
    if name not in BASES:
        require(len(node.args) == 1 and not node.keywords, f"{where}: `{name}` takes one column or expression.")
        return node.args[0]
    require(outermost, f"{where}: `{name}` makes several columns and must be the outermost function.")
    takes = BASES[name]
    good = node.args and len(node.args) - 1 <= len(takes) and all(k.arg in takes for k in node.keywords)
    require(good, f"{where}: `{name}` takes a column, then {', '.join(takes)}.")
    given = dict(zip(takes, node.args[1:], strict=False)) | {str(k.arg): k.value for k in node.keywords}
    for key, value in given.items():
        good = isinstance(value, ast.Constant) and type(value.value) is int and 1 <= value.value <= MOST_COLUMNS
        wanted = f"a whole number from 1 to {MOST_COLUMNS}"
        if key == "knots":
            good = isinstance(value, ast.List | ast.Tuple) and None not in map(_number, value.elts)
            wanted = "a list of numbers, such as knots=[10, 20]"
        require(good, f"{where}: `{key}` is {wanted}.")
    require(given, f"{where}: say how many columns, such as {name}({ast.unparse(node.args[0])}, 4).")
    return node.args[0]


def _refuse(where: str, what: str) -> NoReturn:
    hint = next((f" {hint}" for sign, hint in HINTS.items() if what.startswith(sign)), "")
    raise InvalidInput(
        f"{where}: {what} is not allowed.{hint} A formula may use columns, numbers, arithmetic inside I(…), and the "
        f"functions {', '.join(FUNCTIONS)}."
    )


def _number(node: ast.expr) -> float | None:
    """The value of a number, with or without a minus sign; None for anything else."""
    inner = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    return float(str(inner.value)) if isinstance(inner, ast.Constant) and type(inner.value) in (int, float) else None
