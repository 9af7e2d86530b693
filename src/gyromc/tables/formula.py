"""A formula in R's notation and the matrix that it makes. Only arithmetic and a fixed list of functions are evaluated."""

import ast
import dataclasses
import functools
import itertools
import math
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple, NoReturn

import numpy as np

from gyromc.checks import require, shown
from gyromc.errors import InvalidInput
from gyromc.extras import needs
from gyromc.show.numbers import did_you_mean
from gyromc.tables.datatable import pandas_module

Names = tuple[str, ...]
MOST_TERMS = 100_000  # that formulaic makes of a formula in a second, before it drops those that are the same
DEEPEST = 50  # brackets inside one another: parsers and we ourselves read them by recursion
CONSTANTS = ("1", "Intercept")  # what formulaic calls the constant, also where a column has that name
EXAMPLE = "y ~ x1 * x2 + C(region) + (1 | subject)"
QUOTED = "^`([^`]+)`$"
ELEMENTWISE = {name: getattr(np, name) for name in ("log", "log2", "log10", "log1p", "exp", "sqrt", "abs")}
# Functions that make several columns out of one, and the arguments that follow it.
BASES = {"poly": ("degree",), "bs": ("df", "degree", "knots"), "ns": ("df", "knots")}
FUNCTIONS = (*ELEMENTWISE, "center", "scale", *BASES, "I", "C", "offset")
SIGNS = (ast.UAdd, ast.USub, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
MOST_COLUMNS = 50  # of a basis
MOST_POWER = 20
CURVE = "For a curve write bs(…, 4)."
SUCCESSES = "Name the column of successes alone, and pass `--family binomial` and `--trials COLUMN`."
HINTS = {"s(": CURVE, "te(": CURVE, "cbind(": SUCCESSES}


@functools.cache
def formulaic_module() -> Any:
    """Return formulaic; raise `InvalidInput` with the install command where it is missing."""
    with needs("fit", "`--formula`"):
        import formulaic
    return formulaic


class Terms(NamedTuple):
    """Terms that make columns of a matrix, as formulaic knows them: `C(column)` replaced by the column, no intercept."""

    terms: tuple[Any, ...]
    intercept: bool
    columns: tuple[str, ...]
    categorical: tuple[str, ...]
    numeric: tuple[str, ...]


class GroupPart(NamedTuple):
    """`(terms | factor)`: each level of the grouping columns has its own deviation; `correlated` is False for `||`."""

    factor: tuple[str, ...]
    terms: Terms
    correlated: bool


class Expression(NamedTuple):
    """An expression of numbers, checked, and the columns that it reads."""

    text: str
    columns: tuple[str, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class Formula:
    """A formula: the response, the common `terms` and those of each of the `groups`, offsets; and the columns of each use."""

    text: str
    response: Expression
    terms: tuple[Terms, ...]
    groups: tuple[GroupPart, ...]
    offsets: tuple[Expression, ...]
    predictors: tuple[str, ...]
    grouping: tuple[str, ...]
    categorical: tuple[str, ...]
    numeric: tuple[str, ...]


def response_of(text: str) -> str:
    """Return the response of a formula as it is written, without the backticks of a name; nothing else is read."""
    require(len(text) <= 10_000, f"The formula is {len(text)} characters long; at most 10000 are read.")
    sides = _split(text, "~")
    one = f"A formula has one `~` between the response and the terms, as in `{EXAMPLE}`: got {shown(text)}."
    require(len(sides) == 2 and all(map(str.strip, sides)), one)
    return re.sub(QUOTED, r"\1", sides[0].strip())


def read_formula(text: str, columns: Sequence[str]) -> Formula:
    """Read a formula about a table with these columns."""
    name = response_of(text)
    response = Expression(name, (name,) if name in columns else columns_of(name, columns))
    others = [name for name in columns if name not in response.columns]
    # R's factor(…) and as.factor(…) are C(…), its ^ is **, and splines::bs(…) is bs(…).
    right = re.sub(r"(?<![\w.`])(splines|stats|base)::", "", _split(text, "~")[1])
    if "factor" not in columns:
        right = re.sub(r"(?<![\w.`])(as\.)?factor\s*\(", "C(", right)
    powers = {place for place, letter, _ in _letters(right) if letter == "^"}
    right = "".join("**" if place in powers else letter for place, letter in enumerate(right))
    for name in response.columns:
        both = re.search(rf"(?<![\w.`]){re.escape(name)}(?![\w.(`])|`{re.escape(name)}`", right)
        require(not both, f"The response {name!r} stands on both sides of the formula: it would predict itself.")
    _refuse_signs(right, others)
    outside = "".join(letter for _, letter, depth in _letters(right) if depth == 0)
    if power := re.search(r"([^\W\d][\w.]*)\s*(\^|\*\*)\s*[\d.]+", outside):
        raise InvalidInput(f"`{power[0]}` in a formula is {power[1]} itself: for its square write I({power[1]}**2).")
    rest, found = _without_groups(right)
    for part in (rest, *(inside.rpartition("|")[0].rstrip("|") for inside in found)):
        many = f"`{_brief(part.strip())}` stands for more than {MOST_TERMS:,} products of terms. Take a smaller power."
        require(_most_terms(part.replace("**", "^"), len(others)) <= MOST_TERMS, many)
    groups = tuple(group for inside in found for group in _groups(inside, others))
    terms, offsets = _terms(rest if rest.strip() else "1", others)
    every = terms, *(group.terms for group in groups)
    predictors = [name for one in (*every, *offsets) for name in one.columns]
    grouping = [name for group in groups for name in group.factor]
    categorical = [name for one in every for name in one.categorical]
    numeric = [name for one in every for name in one.numeric] + [name for one in offsets for name in one.columns]
    uses = (tuple(dict.fromkeys(names)) for names in (predictors, grouping, categorical, numeric))
    return Formula(text, response, every, groups, offsets, *uses)


def _refuse_signs(right: str, columns: Collection[str]) -> None:
    """Raise at the names that formulaic takes for signs, in backticks too: it would drop a column or the constant."""
    require("``" not in right, "The formula has an empty name: ``.")
    plain = "".join(letter for _, letter, _ in _letters(right))
    everything = re.search(r"(?<![\w.)])\.(?![\w.(])", plain) is not None
    for name in ("1", "Intercept", "~", "."):
        used = f"`{name}`" in right
        if name in CONSTANTS and name in columns:
            used = used or everything or bool(name.isalpha() and re.search(rf"\b{name}\b", plain))
        require(
            not used, f"A column called {name!r} cannot be used in a formula, where it has another meaning. Rename it."
        )


def _most_terms(text: str, width: int) -> float:
    """How many terms are multiplied out at most, before equal ones are dropped; powers are written with `^`, `.` is `width`."""
    for sign in "+-":
        if len(parts := _split(text, sign)) > 1:
            return sum(_most_terms(part, width) for part in parts)
    for sign in "*/:":
        if len(parts := _split(text, sign)) > 1:
            return min(math.prod(_most_terms(part, width) + (sign != ":") for part in parts), math.inf)
    base, *powers = (part.strip() for part in _split(text, "^"))
    inside = base[1:-1] if base.startswith("(") and base.endswith(")") else ""
    found = _most_terms(inside, width) if inside else float(width if base == "." else 1)
    for power in powers:
        count = float(power) if re.fullmatch(r"\d{1,9}", power) else 1.0
        found = math.inf if found > 1 and count * math.log(found) > 50 else found**count
    return found


def _brief(text: str) -> str:
    """What a message quotes of a text."""
    return text if len(text) <= 100 else f"{text[:100]}…"


def _split(text: str, sign: str) -> list[str]:
    """Split at a sign outside brackets, quotes and backticks."""
    places = [place for place, letter, depth in _letters(text) if letter == sign and depth == 0]
    return [text[before + 1 : place] for before, place in itertools.pairwise([-1, *places, len(text)])]


def _letters(text: str) -> Iterator[tuple[int, str, int]]:
    """Yield each letter outside quotes with its place and the number of brackets around it; brackets count as inside."""
    depth, quote = 0, ""
    for place, letter in enumerate(text):
        if quote or letter in "`'\"":
            quote = "" if letter == quote else quote or letter
            continue
        if letter in "([{":
            depth += 1
            require(depth <= DEEPEST, f"The formula has more than {DEEPEST} brackets inside one another.")
        yield place, letter, depth
        if letter in ")]}":
            depth -= 1
            require(depth >= 0, f"The formula has a bracket that was never opened: {shown(text.strip())}.")
    require(depth == 0 and not quote, f"The formula has a bracket or quote that is not closed: {shown(text.strip())}.")


def _without_groups(text: str) -> tuple[str, list[str]]:
    """Return the terms without `(… | …)`, and what was inside each of those."""
    kept, found = "", []
    signs = [place for place, letter, depth in _letters(text) if depth == 0 and letter in "+-"]
    for part in (text[first:end] for first, end in itertools.pairwise([0, *signs, len(text)])):
        bars = [depth for _, letter, depth in _letters(part) if letter == "|"]
        if not bars:
            kept += part
            continue
        where = "with the grouping column" if min(bars) == 0 else "that are a term of their own"
        require(set(bars) == {1}, f"`|` stands in brackets {where}, as in `{EXAMPLE}`: got {shown(text.strip())}.")
        term = part.strip().removeprefix("+").strip()
        ends = [place for place, letter, depth in _letters(term) if depth == 1 and letter == ")"]
        alone = f"A group term stands alone and is added with `+`, as in `{EXAMPLE}`: got {shown(term)}."
        require(term.startswith("(") and ends == [len(term) - 1], alone)
        found.append(term[1:-1])
    return kept.strip().removeprefix("+"), found


def _groups(inside: str, columns: Sequence[str]) -> list[GroupPart]:
    """Read what is inside `(terms | factor)`; `a/b` right of the bar stands for the factors a and a:b."""
    left, _, right = inside.rpartition("|")
    factors: list[tuple[str, ...]] = []
    for part in _split(right, "/"):
        names = tuple(re.sub(QUOTED, r"\1", text.strip()) for text in _split(part, ":"))
        for name in names:
            remedy = "Join columns by `:` or `/`; for two factors write two terms: (1 | a) + (1 | b)."
            require(name in columns, f"The formula groups by {name!r}, which is no column that can group. {remedy}")
        factors.append((*factors[-1], *names) if factors else names)
    correlated, left, simple = not left.endswith("|"), left.removesuffix("|").strip(), f"(1 | {factors[0][0]})"
    require("|" not in left, f"A group term has one bar: got ({inside}).")
    require(left, f"A group term needs something left of the bar, such as {simple}: got ({inside}).")
    terms, offsets = _terms(left, columns)
    require(not offsets, f"An offset cannot differ between groups: got ({inside}).")
    require(terms.terms or terms.intercept, f"The group term ({inside}) has no terms: write {simple}.")
    return [GroupPart(factor, terms, correlated) for factor in factors]


def _terms(text: str, columns: Sequence[str]) -> tuple[Terms, tuple[Expression, ...]]:
    """Read terms; return them and the offsets among them. Nothing is evaluated."""
    formulaic = formulaic_module()
    try:
        parsed = list(formulaic.Formula(text, _context={"__formulaic_variables_available__": list(columns)}))
    except formulaic.errors.FormulaicError as error:
        message = _brief(str(error).strip().splitlines()[0])
        raise InvalidInput(f"The formula cannot be read at {shown(text.strip())}: {message}") from None
    except (SyntaxError, TypeError, ValueError, KeyError, RecursionError, MemoryError, AttributeError):
        remedy = f"Write it as in `{EXAMPLE}`, with the functions {', '.join(FUNCTIONS)}."
        raise InvalidInput(f"The formula cannot be read at {shown(text.strip())}. {remedy}") from None
    types, intercept = formulaic.parser.types, False
    kept, offsets, reads, categorical, numeric = [], [], [], [], []
    for term in parsed:
        factors = [factor for factor in term.factors if factor.expr != "1"]
        intercept = intercept or not factors
        for i, factor in enumerate(factors):
            # What formulaic would evaluate instead of looking up a column.
            code = factor.eval_method.value == "python"
            name, inside = (code and special_call(factor.expr)) or ("", factor.expr)
            if name == "offset" and len(factors) == 1:
                offsets.append(Expression(inside, columns_of(inside, columns)))
                factors = []
                break
            if name == "C":
                factors[i] = types.Factor(inside, eval_method="lookup")
                categorical.append(inside)
            computed = code and name != "C"
            names = columns_of(factor.expr if computed else f"`{inside}`", columns)
            reads += names
            numeric += names if computed else []
        if factors:
            kept.append(types.Term(factors))
    both = sorted(set(categorical) & set(numeric))
    require(not both, f"The formula uses {', '.join(map(repr, both))} as categories and as numbers. Keep one of them.")
    unique = [tuple(dict.fromkeys(some)) for some in (kept, reads, categorical, numeric)]
    return Terms(unique[0], intercept, *unique[1:]), tuple(offsets)


@dataclasses.dataclass(frozen=True)
class FormulaDesign:
    """A formula and what it remembers of the fitted rows."""

    text: str
    columns: tuple[str, ...]
    names: tuple[str, ...]
    sources: tuple[str, ...]
    intercept: bool
    group_columns: tuple[tuple[str, ...], ...]
    memory: tuple[Any, ...]

    @classmethod
    def learn(cls, formula: Formula, columns: Sequence[str], frame: Mapping[str, Any]) -> "FormulaDesign":
        _, names, sources, memory = zip(*(_evaluated(terms, None, frame) for terms in formula.terms), strict=True)
        own = (("intercept",) * group.terms.intercept for group in formula.groups)
        of_groups = tuple(first + further for first, further in zip(own, names[1:], strict=True))
        return cls(formula.text, tuple(columns), names[0], sources[0], formula.terms[0].intercept, of_groups, memory)

    @functools.cached_property
    def formula(self) -> Formula:
        return read_formula(self.text, self.columns)

    @functools.cached_property
    def reads(self) -> dict[str, list[Names]]:
        """The columns of the table that each common term reads, factor by factor."""
        known = self.formula.predictors
        of = lambda one: (one.expr,) if one.eval_method.value == "lookup" else columns_of(one.expr, known)
        return {str(term): list(map(of, term.factors)) for term in self.formula.terms[0].terms}

    def check(self, predictors: Collection[str]) -> None:
        """Raise an error where what was remembered is not what the formula needs, or it names other columns than these."""
        remembered, every = [_restored(memory) for memory in self.memory], self.formula.terms
        known = {name for terms in every for name in terms.columns} <= set(predictors)
        require(known and len(remembered) == len(every), "The formula needs what is not in the file.")

    def matrix(self, frame: Mapping[str, Any]) -> np.ndarray:
        return _evaluated(self.formula.terms[0], self.memory[0], frame)[0]

    def group_matrices(self, frame: Mapping[str, Any]) -> Iterator[tuple[GroupPart, Names, np.ndarray]]:
        """Yield each group term, the names of its columns, and these, ones for its intercept first."""
        for group, names, memory in zip(self.formula.groups, self.group_columns, self.memory[1:], strict=True):
            values = _evaluated(group.terms, memory, frame)[0]
            yield group, names, np.pad(values, ((0, 0), (int(group.terms.intercept), 0)), constant_values=1.0)

    def offsets(self, frame: Mapping[str, Any]) -> list[np.ndarray]:
        return [evaluate(offset, frame) for offset in self.formula.offsets]


def evaluate(expression: Expression, frame: Mapping[str, Any]) -> np.ndarray:
    """Return the values of an expression without memory, such as the response or an offset."""
    name = expression.columns[0]
    if expression.text == name:
        return np.asarray(frame[name], float)
    types = formulaic_module().parser.types
    term = types.Term([types.Factor(expression.text, eval_method="python")])
    values = _evaluated(Terms((term,), False, expression.columns, (), expression.columns), None, frame)[0]
    require(values.shape[1] == 1, f"`{expression.text}` makes {values.shape[1]} columns where one is needed.")
    return values[:, 0]


def _evaluated(terms: Terms, memory: Any, frame: Mapping[str, Any]) -> tuple[np.ndarray, Names, Names, Any]:
    """The columns that terms make, but not the intercept's: values, names, sources, and what to remember for other rows."""
    if not terms.terms:
        return np.zeros((len(next(iter(frame.values()))), 0)), (), (), _plain({})
    formulaic = formulaic_module()
    types = formulaic.parser.types
    one = [types.Term([types.Factor("1", eval_method="literal")])] if terms.intercept else []
    data = pandas_module().DataFrame({name: frame[name] for name in terms.columns})
    known = {} if memory is None else {"transform_state": _restored(memory)}
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")  # what is not finite is refused with its line
            formula = formulaic.Formula([*one, *terms.terms], _ordering="none")
            spec = formulaic.ModelSpec.from_spec(formula, na_action="ignore", output="numpy", **known)
            found = spec.get_model_matrix(data, context=functions())
    except InvalidInput:
        raise
    except Exception as error:  # formulaic passes on what a function raised
        cause = error.__cause__ or error
        raise InvalidInput(f"The formula cannot be computed: {str(cause).strip().splitlines()[0]}") from error
    named = [(name, str(part.term)) for part in found.model_spec.structure for name in part.columns]
    kept = [i for i, (name, _) in enumerate(named) if name != "Intercept"]
    # `region[north]` for formulaic's `region[T.north]`
    names = tuple(named[i][0].replace("[T.", "[") for i in kept)
    sources = tuple(named[i][1] for i in kept)
    return np.asarray(found, float)[:, kept], names, sources, _plain(found.model_spec.transform_state)


def _plain(value: Any) -> Any:
    """Return a memory as lists, numbers and texts; dictionaries as lists of pairs, since their keys may be numbers."""
    if isinstance(value, Mapping):
        return {"pairs": [[_plain(k), _plain(v)] for k, v in value.items()]}
    if isinstance(value, np.ndarray):
        return {"array": value.tolist()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value.item() if isinstance(value, np.generic) else value


def _restored(value: Any) -> Any:
    if isinstance(value, Mapping):
        if "array" in value:
            return np.array(value["array"], float)
        return {_restored(k): _restored(v) for k, v in value["pairs"]}
    return [_restored(v) for v in value] if isinstance(value, list | tuple) else value


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
    where = f"`{_brief(expression)}` in the formula"
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
                    raise InvalidInput(f"The formula uses {shown(name)}, which is no column of the data. {hint}")
                found[name] = None
            case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
                require(abs(value) < 1e15, f"{where}: {value:g} is too large a number.")
            case ast.BinOp(left=left, op=ast.Pow(), right=right):
                power = _number(right)
                good = power is not None and 0 < abs(power) <= MOST_POWER
                require(good, f"{where}: a power is a number of at most {MOST_POWER}, such as I(x**2).")
                inside = [left]
            case ast.UnaryOp(op=sign) | ast.BinOp(op=sign) | ast.Compare(ops=[sign]) if isinstance(sign, SIGNS):
                inside = [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
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
    where = f"`{_brief(expression)}` in the formula"
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
    quoted = {f"quoted_{i}_": name for i, name in enumerate(re.findall("`([^`]+)`", expression))}
    places = iter(quoted)
    text = re.sub("`[^`]+`", lambda _: next(places), expression).strip()
    try:
        return ast.parse(text, mode="eval").body, quoted
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        remedy = "Put names with blanks or signs in backticks: `my column`."
        raise InvalidInput(f"`{_brief(expression)}` in the formula cannot be read. {remedy}") from None


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
    may = f"A formula may use columns, numbers, arithmetic inside I(…), and the functions {', '.join(FUNCTIONS)}."
    raise InvalidInput(f"{where}: {_brief(what)} is not allowed.{hint} {may}")


def _number(node: ast.expr) -> float | None:
    """The value of a number, with or without a minus sign; None for anything else."""
    inner = node.operand if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) else node
    return float(str(inner.value)) if isinstance(inner, ast.Constant) and type(inner.value) in (int, float) else None
