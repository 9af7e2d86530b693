"""Plans as TOML files: the pieces of a `Plan` by name and number. Nothing in a file is executed.

Input: a path or a text. Output: a `Plan`. A table with a `kind` is a piece, with the arguments that it has in Python. Data come
from the file itself, from a CSV file or from .npy files beside it; functions are named `module:function` and imported only where
that was allowed. Messages say the line and the key. docs/scale.md has an example and all kinds.
"""

import functools
import inspect
import json
import os
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gyromc import coordinates, data, dynamics, observables, oracles, schemes, targets
from gyromc.checks import explained, flag, numbers, read_path, require, shown
from gyromc.data.csvfile import read_numbers
from gyromc.errors import InvalidInput
from gyromc.io.functions import find_function
from gyromc.oracles import ControlVariate
from gyromc.plan import WEIGHTINGS, Plan
from gyromc.schemes import Balanced
from gyromc.show.numbers import did_you_mean
from gyromc.targets import families


def streamed_regression(X_file, y_file, family: str, prior_scale: float = 1.0) -> targets.StreamedRegression:
    """A regression over the rows of two .npy files, which stay on disk."""
    return targets.StreamedRegression(data.Mapped(X_file, y_file), family, prior_scale)


def _named(*makers: Callable) -> dict[str, Callable]:
    """Functions and classes by their names in files."""
    return {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", make.__name__).lower(): make for make in makers}


def _public(module: Any, base: type) -> dict[str, Callable]:
    """The classes of a module that derive from a class and can be made, or the functions that are annotated to return one."""
    found = [getattr(module, name) for name in sorted(module.__all__)]
    classes = [one for one in found if isinstance(one, type) and issubclass(one, base) and not inspect.isabstract(one)]
    makers = [one for one in found if inspect.isfunction(one) and one.__annotations__.get("return") is base]
    return _named(*(makers or classes))


KINDS: dict[str, Mapping[str, Callable]] = {
    "target": {**_public(targets, targets.Target), "streamed_regression": streamed_regression},
    "dynamics": {
        **_public(dynamics, dynamics.Dynamics),
        "rotations": lambda dim, rate=1.0: dynamics.nonreversible(dynamics.rotations(dim, rate)),
    },
    "oracle": _public(oracles, oracles.Oracle),
    "coordinates": _named(coordinates.Linear, coordinates.Bijection),
    "observable": _public(observables, observables.Observable),
    "likelihood": _named(*families.LIKELIHOODS),
    "scheme": {name: functools.partial(schemes.find, name) for name in schemes.SCHEMES} | _named(schemes.balanced),
    **{key: {"rotations": dynamics.rotations} for key in ("J", "K", "C", "D", "Q", "S", "preconditioner")},
}
"""The kinds of pieces, by the argument that they stand for and by name; what makes each."""
TABLES = ("target", "dynamics", "oracle", "coordinates", "observable", "likelihood")
"""The arguments that are always a table with a `kind`; others may be numbers, or a name."""
FUNCTION = re.compile(r"[\w.]+:[\w.]+")


def load(path: str | Path, allow_import: bool = False) -> Plan:
    """Read the plan in a TOML file; paths of data files in it are relative to its folder."""
    path = read_path(path)
    require(os.path.isfile(path), f"There is no plan file {shown(str(path))}.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(f"The plan file {str(path)!r} is not UTF-8 text.") from None
    try:
        return loads(text, path.parent, allow_import)
    except InvalidInput as error:
        raise InvalidInput(f"{path.name}{', ' if str(error).startswith('line ') else ': '}{error}") from None


def loads(text: str, folder: str | Path = ".", allow_import: bool = False) -> Plan:
    """Read the plan in a TOML document; `InvalidInput` gives the line and the key that are wrong."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise InvalidInput("The plan is not valid TOML here: it is nested too deeply.") from None
    # Of TOML, or a number of thousands of digits.
    except ValueError as error:
        raise InvalidInput(f"The plan is not valid TOML: {error}.") from None
    try:
        return _Reader(Path(folder), allow_import).plan(table)
    except _AtKey as error:
        # The nearest table's where the key itself is missing.
        path = error.path[: _depth(table, error.path)]
        where = f"line {line_of(text, path)}, key `{'.'.join(map(str, path))}`: " if path else ""
        raise InvalidInput(f"{where}{error}") from None


class _AtKey(InvalidInput):
    """An error at a key of the file."""

    def __init__(self, message: str, path: tuple):
        super().__init__(message)
        self.path = path


def line_of(text: str, path: tuple) -> int:
    """The line of a key of a TOML document, which `tomllib` does not tell; `path` is such as `("target", "groups", 0, "Z")`."""
    lines = text.split("\n")
    first = found = 0
    for number, line in enumerate(lines):
        if not any(str(name) in line for name in path if isinstance(name, str)):
            continue
        # The lines before, and this one's key without its value: where both are TOML, this line begins a statement.
        before = "\n".join(lines[:number])
        stub = line if line.lstrip().startswith("[") else f"{line.partition('=')[0]} = 0"
        try:
            known, now = (_depth(tomllib.loads(document), path) for document in (before, f"{before}\n{stub}"))
        except ValueError:
            continue
        if known > found:
            break
        if now > found:
            first, found = number, now
    # What is left of the path are keys of inline tables, in the lines of that statement.
    place = sum(len(line) + 1 for line in lines[:first])
    for key in path[found:]:
        if isinstance(key, str) and (inner := re.compile(rf"[\"']?{re.escape(key)}[\"']?\s*[=.]").search(text, place)):
            place = inner.start()
    return text.count("\n", 0, place) + 1


def _depth(table: Any, path: tuple) -> int:
    """How many keys of a path there are in a table."""
    for depth, key in enumerate(path):
        try:
            table = table[key]
        except (KeyError, IndexError, TypeError):
            return depth
    return len(path)


class _Reader:
    """Reads one plan file. `path` is that of a key, such as `("target", "groups", 0, "Z")`."""

    def __init__(self, folder: Path, allow_import: bool):
        self.folder, self.allow_import = folder, allow_import

    def plan(self, table: dict[str, Any]) -> Plan:
        """The plan of the whole document."""
        _known(table, inspect.signature(Plan).parameters, "The plan", ())
        for name in ("target", "dynamics", "observables"):
            require(isinstance(table.get(name), dict), f"The plan needs a table [{name}].")
        require("step_size" in table, "The plan needs a number `step_size`.")
        fields = {"target": self.value(table["target"], ("target",))}
        given = table["dynamics"]
        make, dim = self.maker(given, ("dynamics",), "dynamics"), fields["target"].dim
        if dim is not None and "dim" in inspect.signature(make).parameters:
            table = {**table, "dynamics": {"dim": dim, **given}}
        fields |= {name: self.value(table[name], (name,)) for name in table if name != "target"}
        return self.made(Plan, fields, ())

    def value(self, given: Any, path: tuple) -> Any:
        """What is passed for an argument: a piece, a function, an array, or what stands there."""
        try:
            return self._value(given, path)
        except InvalidInput as error:
            raise error if isinstance(error, _AtKey) else _AtKey(str(error), path) from None

    def _value(self, given: Any, path: tuple) -> Any:
        name = path[-1]
        if path == ("observables",):
            return {h: self.piece(table, (name, h), "observable") for h, table in given.items()}
        if name in TABLES or (name in KINDS and isinstance(given, dict) and "kind" in given):
            return self.piece(given, path, name)
        if isinstance(given, dict):
            if set(given) == {"npy"}:
                return self.stored(given["npy"])
            found = {key: self.value(entry, (*path, key)) for key, entry in given.items()}
            return {key: numbers(x, key) if isinstance(x, int | float | list) else x for key, x in found.items()}
        if name in ("X_file", "y_file"):
            return self.file(given)
        if name == "groups" and isinstance(given, list):
            return tuple(self.arguments(targets.Group, "group", entry, (*path, i)) for i, entry in enumerate(given))
        if isinstance(given, str) and (name == "start" or FUNCTION.fullmatch(given)):
            remedy = "Add `--allow-import` (in Python `allow_import=True`) if you trust the file and the module."
            return find_function(given, self.allow_import, {}, remedy)
        # NumPy would take truth values for numbers.
        good = not isinstance(given, list) or not re.search("True|False", str(given))
        require(good, f"`{name}` must hold numbers: got {shown(given)}.")
        return given

    def piece(self, given: Any, path: tuple, argument: str) -> Any:
        """The piece that a table describes by its `kind` and that kind's own arguments."""
        make = self.maker(given, path, argument)
        rest = {name: value for name, value in given.items() if name != "kind"}
        if argument == "target" and "csv" in rest:
            named = {name: rest.pop(name) for name in ("csv", "response", "intercept") if name in rest}
            rest |= self.made(self.rows, named, path)
        return self.arguments(make, given["kind"], rest, path)

    def maker(self, given: Any, path: tuple, argument: str) -> Callable:
        """What makes the kind of a table; `LinearRegression`, as in Python, is `linear_regression`."""
        where, among = ".".join(map(str, path)), KINDS[argument]
        if not isinstance(given, dict):
            raise _AtKey(f"[{where}] must be a table with a `kind`: got {shown(given)}.", path)
        kind, plain = given.get("kind"), {name.replace("_", ""): make for name, make in among.items()}
        make = plain.get(str(kind).replace("_", "").lower())
        if make is None:
            hint = did_you_mean(str(kind), list(among), "There are:", 1) if kind else ""
            said = f"[{where}] needs a `kind` of {', '.join(among)}: got {shown(kind)}. {hint}"
            raise _AtKey(said, (*path, "kind"))
        return make

    def arguments(self, make: Callable, kind: str, given: Any, path: tuple) -> Any:
        """What a kind makes of its arguments."""
        where = f"[{'.'.join(map(str, path))}] of kind {kind!r}"
        require(isinstance(given, dict), f"{where} must be a table: got {shown(given)}.")
        taken = {name: p for name, p in inspect.signature(make).parameters.items() if p.kind is not p.VAR_KEYWORD}
        _known(given, taken, where, path)
        missing = [name for name, p in taken.items() if p.default is p.empty and name not in given]
        require(not missing, f"{where} lacks {', '.join(missing)}.")
        return self.made(make, {name: self.value(entry, (*path, name)) for name, entry in given.items()}, path)

    def made(self, make: Callable, arguments: dict[str, Any], path: tuple) -> Any:
        """What a function returns; an error in it gets the key of the argument that it names."""
        try:
            return make(**arguments)
        except InvalidInput as error:
            text = str(error)
            named = [(name,) for name in re.findall(r"`(\w+)", text) if name in arguments]
            among = [("observables", h) for h in arguments.get("observables", ()) if f"Observable {h!r}" in text]
            raise _AtKey(text, (*path, *(among or named or [()])[0])) from None

    def file(self, name: Any, said: str = "The file") -> Path:
        """The path of a file that exists, from the folder of the plan file on."""
        place = self.folder / str(name)
        require(os.path.isfile(place), f"{said} {shown(str(place))} does not exist, or is no file.")
        return place

    def stored(self, name: Any) -> np.ndarray:
        """The array of a .npy file, which holds numbers alone."""
        place = self.file(name)
        with explained(f"{place} cannot be read as an array of numbers", "Save it with `np.save`."):
            found = np.load(place, allow_pickle=False)
        require(isinstance(found, np.ndarray) and found.dtype.kind in "fiub", f"{place} holds no array of numbers.")
        return found

    def rows(self, csv: Any, response: Any = None, intercept: Any = False) -> dict[str, np.ndarray]:
        """The X and y of a regression whose table names a CSV file."""
        intercept, place = flag(intercept, "intercept"), self.file(csv, "`csv`:")
        names, rows = read_numbers(place, place.name)
        listed = f"[target] needs `response`, a column of {place.name}: {', '.join(names)}. Got {shown(response)}."
        require(response in names, listed)
        column = names.index(response)
        X = np.delete(rows, column, axis=1)
        return {"X": np.column_stack([np.ones(len(X)), X]) if intercept else X, "y": rows[:, column]}


def _known(table: Mapping[str, Any], accepted: Iterable[str], where: str, path: tuple) -> None:
    for key in table:
        if key not in accepted:
            hint = did_you_mean(key, list(accepted), "It takes", 1)
            raise _AtKey(f"{where} has no key {key!r}. {hint}", (*path, key))


def text_of(plan: Plan, source: Path, destination: Path) -> str:
    """A plan with dense dynamics, tuned from the file `source`, as the TOML text of a file `destination`."""
    given = tomllib.loads(source.read_text(encoding="utf-8-sig"))
    target = dict(given["target"])
    if "csv" in target:
        data = (source.parent / str(target["csv"])).resolve()
        target["csv"] = os.path.relpath(data, destination.resolve().parent)
    kept = ("num_steps", "num_chains", "burn_in", "seed", "dtype", "martingale")
    scheme: dict[str, Any] = {"kind": plan.scheme.name}
    if isinstance(plan.scheme, Balanced):
        assert plan.scheme.second_moment is not None
        scheme["S"] = plan.scheme.second_moment.dense()
    # A tuning chooses from these two.
    oracle, Q = {"kind": "exact"}, plan.dynamics.Q
    if isinstance(plan.oracle, ControlVariate):
        numbers_of = {"size": plan.oracle.size, "order": plan.oracle.order}
        oracle = {"kind": "control_variate", **numbers_of, "center": np.asarray(plan.oracle.center, float)}
    dynamics_of = {"kind": "general", "D": plan.dynamics.D, "Q": Q if np.any(Q) else 0}
    table = {"step_size": plan.eta, **{name: getattr(plan, name) for name in kept}}
    table |= {"start": np.asarray(plan.start, float), "target": target, "dynamics": dynamics_of}
    table |= {"scheme": scheme, "oracle": oracle, "observables": given["observables"]}
    lines = (f"{name} = {_value(value)}\n" for name, value in table.items())
    return f"# gyromc tune {source.name}\n{''.join(lines)}"


def _value(value: Any) -> str:
    """A value as TOML: the text of JSON, but for numbers that are not finite, and one letter that TOML forbids in texts."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{_value(key)} = {_value(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, float):
        return repr(value)
    require(isinstance(value, str | int), f"A plan file holds no {type(value).__name__}.")
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# --- their JSON Schema, from the kinds and their signatures

NUMBER, WHOLE, TEXT, FLAG = ({"type": name} for name in ("number", "integer", "string", "boolean"))
_refer = lambda name: {"$ref": f"#/$defs/{name}"}
_any_of = lambda *schemas: {"anyOf": list(schemas)}
NUMBERS, PARAMETERS, FUNCTIONS = map(_refer, ("numbers", "parameters", "function"))
BY_ANNOTATION = {int: WHOLE, float: NUMBER, bool: FLAG, str: TEXT, Callable: FUNCTIONS}
BY_NAME: dict[str, dict[str, Any]] = {
    **{name: _refer(name) if name in TABLES else _any_of(NUMBERS, _refer(name)) for name in KINDS},
    "scheme": _any_of({"enum": list(schemes.SCHEMES)}, _refer("scheme")),
    "observables": {"type": "object", "minProperties": 1, "additionalProperties": _refer("observable")},
    "groups": {"type": "array", "items": _refer("group")},
    "priors": {"type": ["string", "array", "object"]},
    "step_size": _any_of(NUMBER, FUNCTIONS),
    "start": _any_of(PARAMETERS, FUNCTIONS),
    **dict.fromkeys(("data", "center"), PARAMETERS),
    **dict.fromkeys(("X_file", "y_file", "correlations"), TEXT),
    "dim": WHOLE,
    "weighting": {"enum": list(WEIGHTINGS)},
    "dtype": {"enum": ["float32", "float64"]},
}
"""What may stand for arguments of these names; for others the annotation says it, and where that does not, they are numbers."""


def plan_schema() -> dict[str, Any]:
    """The JSON Schema of plan files as plain values, with which editors check and complete TOML."""
    definitions = {
        "array": {"type": "array", "items": _any_of(NUMBER, _refer("array"))},
        "stored": {"type": "object", "properties": {"npy": TEXT}, "required": ["npy"], "additionalProperties": False},
        "numbers": _any_of(NUMBER, _refer("array"), _refer("stored")),
        "parameters": _any_of(NUMBERS, {"type": "object", "additionalProperties": PARAMETERS}),
        "function": {"type": "string", "pattern": f"^{FUNCTION.pattern}$"},
        "group": _table(targets.Group),
        **{name: _any_of(*(_piece(name, *kind) for kind in kinds.items())) for name, kinds in KINDS.items()},
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **_table(Plan), "$defs": definitions}


def _piece(argument: str, kind: str, make: Callable) -> dict[str, Any]:
    """The table of one kind, which `LinearRegression` names too; the target gives `dim`, and a CSV file X and y."""
    found = _table(make)
    found["properties"]["kind"] = {"enum": sorted({kind, kind.title().replace("_", "")})}
    left_out = {"dim"} if argument == "dynamics" else set()
    if argument == "target" and {"X", "y"} <= set(found["required"]):
        left_out = {"X", "y"}
        found["properties"] |= {"csv": TEXT, "response": TEXT, "intercept": FLAG}
        found["anyOf"] = [{"required": ["X", "y"]}, {"required": ["csv", "response"]}]
    return {**found, "title": kind, "required": ["kind", *(name for name in found["required"] if name not in left_out)]}


def _table(make: Callable) -> dict[str, Any]:
    """The table of a function's arguments, with what its docstring says of them."""
    taken = [p for p in inspect.signature(make).parameters.values() if p.kind is not p.VAR_KEYWORD]
    said, properties = inspect.getdoc(make) or "", {}
    for p in taken:
        among = [one for one in typing.get_args(p.annotation) or (p.annotation,) if one is not types.NoneType]
        schema = BY_NAME.get(p.name) or (BY_ANNOTATION.get(among[0]) if len(among) == 1 else None) or NUMBERS
        words = re.search(rf"^- [^:\n]*`{p.name}`[^:\n]*: (.*?)(?=^- |^$|\Z)", said, re.M | re.S)
        properties[p.name] = {**schema, "description": " ".join(words[1].split())} if words else schema
    required = [p.name for p in taken if p.default is p.empty]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
