"""Which expressions a formula may hold: a fixed list of functions, arithmetic and columns. Nothing else is ever evaluated.

Input: the text of one factor of a formula, such as `bs(age, 4)`. Output: the columns that it reads, or `InvalidInput`.
"""

import ast
import functools
import re
from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.show.numbers import did_you_mean

ELEMENTWISE = {
    "log": np.log,
    "log2": np.log2,
    "log10": np.log10,
    "log1p": np.log1p,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "abs": np.abs,
}
"""Functions of one column or of arithmetic with columns."""
BASES = {"poly": ("degree",), "bs": ("df", "degree", "knots"), "ns": ("df", "knots")}
"""Functions that make several columns out of one, and the arguments that follow it."""
FUNCTIONS = (*ELEMENTWISE, "center", "scale", *BASES, "I", "C", "offset")
MOST_COLUMNS = 50  # of a basis
MOST_POWER = 20
ARITHMETIC = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.UAdd, ast.USub)
COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
HINTS = {
    "s(": "For a curve write bs(…, 4).",
    "te(": "For a curve write bs(…, 4).",
    "cbind(": "Name the column of successes alone, and pass `--family binomial --trials COLUMN`.",
}


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

    def identity(x):
        return x.astype(float)  # so that a comparison becomes 0 and 1

    known = {"center": center, "scale": scale, "poly": poly, "bs": bs, "ns": ns, "I": identity}
    return {**ELEMENTWISE, **known, "np": SimpleNamespace(**ELEMENTWISE)}


def columns_of(expression: str, known: Collection[str]) -> tuple[str, ...]:
    """Return the columns that an expression reads; raise unless it holds only columns, numbers, arithmetic and `FUNCTIONS`."""
    text, quoted = unquoted(expression)
    checker = _Checker(expression, known, quoted)
    checker.check(_tree(text, expression), outermost=True)
    require(checker.found, f"`{expression}` in the formula reads no column. Leave it out.")
    return tuple(dict.fromkeys(checker.found))


def special_call(expression: str) -> tuple[str, str] | None:
    """Return "C" and the column of `C(column)`, "offset" and what is inside `offset(…)`, or None for anything else."""
    text, quoted = unquoted(expression)
    tree = _tree(text, expression)
    name = tree.func.id if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) else ""
    if not isinstance(tree, ast.Call) or name not in ("C", "offset"):
        return None
    only = tree.args[0] if len(tree.args) == 1 and not tree.keywords else None
    if name == "C" and not isinstance(only, ast.Name):
        remedy = "write `C(column)`, and choose its reference with `--reference COLUMN=LEVEL`"
        raise InvalidInput(f"`{expression}` in the formula: {remedy}.")
    if only is None:
        raise InvalidInput(
            f"`{expression}` in the formula: `offset` takes one expression, such as offset(log(exposure))."
        )
    inside = ast.unparse(only)
    for placeholder, column in quoted.items():
        inside = inside.replace(placeholder, column if name == "C" else f"`{column}`")
    return name, inside


def unquoted(expression: str) -> tuple[str, dict[str, str]]:
    """Return an expression with a placeholder for each name in backticks, and the names."""
    quoted: dict[str, str] = {}

    def place(match: re.Match[str]) -> str:
        quoted[f"quoted_{len(quoted)}_"] = match[1]
        return f"quoted_{len(quoted) - 1}_"

    return re.sub("`([^`]+)`", place, expression), quoted


def _tree(text: str, expression: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise InvalidInput(
            f"`{expression}` in the formula cannot be read. Put names with blanks or signs in backticks: `my column`."
        ) from None


class _Checker:
    """Walks over the tree of an expression; `found` are the columns in it."""

    def __init__(self, text: str, known: Collection[str], quoted: Mapping[str, str]):
        self.text, self.known, self.quoted = text, known, quoted
        self.found: list[str] = []

    def check(self, node: ast.expr, outermost: bool = False) -> None:
        match node:
            case ast.Name(id=name):
                self._column(self.quoted.get(name, name))
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                require(abs(value) < 1e15, f"`{self.text}` in the formula: {value:g} is too large a number.")
            case ast.UnaryOp(op=op, operand=inside) if isinstance(op, ARITHMETIC):
                self.check(inside)
            case ast.BinOp(left=left, op=op, right=right) if isinstance(op, ARITHMETIC):
                self.check(left)
                power = _number(right) if isinstance(op, ast.Pow) else None
                require(
                    not isinstance(op, ast.Pow) or (power is not None and 0 < abs(power) <= MOST_POWER),
                    f"`{self.text}` in the formula: a power is a number of at most {MOST_POWER}, such as I(x**2).",
                )
                self.check(right)
            case ast.Compare(left=left, ops=[op], comparators=[right]) if isinstance(op, COMPARISONS):
                self.check(left)
                self.check(right)
            case ast.Call():
                self._function(node, outermost)
            case _:
                self._refuse(ast.unparse(node))

    def _column(self, name: str) -> None:
        if name not in self.known:
            if name in FUNCTIONS:
                raise InvalidInput(f"`{name}` in the formula is a function: write {name}(column).")
            hint = did_you_mean(name, sorted(self.known), "Columns:")
            raise InvalidInput(f"The formula uses {name!r}, which is no column of the data. {hint}")
        self.found.append(name)

    def _function(self, node: ast.Call, outermost: bool) -> None:
        name = self._name(node.func)
        if name in BASES:
            self._basis(name, node, outermost)
            return
        if name in ("C", "offset"):
            where = "alone: C(column)" if name == "C" else "as a term of its own: offset(log(exposure))"
            raise InvalidInput(f"`{self.text}` in the formula: `{name}` stands {where}.")
        require(
            len(node.args) == 1 and not node.keywords,
            f"`{self.text}` in the formula: `{name}` takes one column or expression.",
        )
        self.check(node.args[0])

    def _name(self, func: ast.expr) -> str:
        """The name of a function of the list; `np.log` is read as `log`."""
        if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "np":
            if func.attr in ELEMENTWISE:
                return func.attr
        elif isinstance(func, ast.Name) and func.id in FUNCTIONS:
            require(
                func.id not in self.known,
                f"The data has a column {func.id!r}, which is also a function of the formula. Rename the column.",
            )
            return func.id
        return self._refuse(f"{ast.unparse(func)}(…)")

    def _basis(self, name: str, node: ast.Call, outermost: bool) -> None:
        require(
            outermost,
            f"`{self.text}` in the formula: `{name}` makes several columns and must be the outermost function.",
        )
        takes = BASES[name]
        require(
            node.args and len(node.args) - 1 <= len(takes) and all(k.arg in takes for k in node.keywords),
            f"`{self.text}` in the formula: `{name}` takes a column, then {', '.join(takes)}.",
        )
        self.check(node.args[0])
        given = dict(zip(takes, node.args[1:], strict=False)) | {str(k.arg): k.value for k in node.keywords}
        for key, value in given.items():
            if key == "knots":
                good = isinstance(value, ast.List | ast.Tuple) and None not in map(_number, value.elts)
                takes_it = "a list of numbers, such as knots=[10, 20]"
            else:
                good = isinstance(value, ast.Constant) and type(value.value) is int and 1 <= value.value <= MOST_COLUMNS
                takes_it = f"a whole number from 1 to {MOST_COLUMNS}"
            require(good, f"`{self.text}` in the formula: `{key}` is {takes_it}.")
        require(
            given,
            f"`{self.text}` in the formula: say how many columns, such as {name}({ast.unparse(node.args[0])}, 4).",
        )

    def _refuse(self, what: str) -> str:
        hint = next((f" {hint}" for sign, hint in HINTS.items() if what.startswith(sign)), "")
        raise InvalidInput(
            f"`{self.text}` in the formula: {what} is not allowed.{hint} A formula may use columns, numbers, "
            f"arithmetic inside I(…), and the functions {', '.join(FUNCTIONS)}."
        )


def _number(node: ast.expr) -> float | None:
    """The value of a number, with or without a minus sign; None for anything else."""
    inner = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    return float(str(inner.value)) if isinstance(inner, ast.Constant) and type(inner.value) in (int, float) else None
