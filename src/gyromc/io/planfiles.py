"""Plans as TOML files: the built-in pieces of a `Plan` by name and number. Nothing in a file is executed.

Input: a path or a text. Output: a `Plan`. Data come from the file itself, from a CSV file or from .npy files beside it;
functions are named `module:function` and imported only where that was allowed. Messages say the line and the key. `text_of`
writes a tuned plan: target and observables as they stand in the file that was tuned, everything else from the plan.
docs/scale.md has an example and all kinds.
"""

import difflib
import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.checks import read_path, require, shown
from gyromc.data.csvfile import read_numbers
from gyromc.errors import InvalidInput
from gyromc.io.functions import find_function
from gyromc.io.kinds import DATA, GROUP, KINDS, PLAN, PieceKind, Type, kind_named
from gyromc.oracles import ControlVariate, Exact
from gyromc.plan import Plan
from gyromc.schemes import Balanced

NUMERIC = (Type.NUMBERS, Type.PARAMETERS, Type.STEP_SIZE, Type.START, Type.OPERATOR)
COUNTED = ("overdamped", "hfhr", "rotations")
"""Dynamics whose `dim` is the target's unless the file gives another."""


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
    """Read the plan in a TOML document; `InvalidInput` gives the line and the key that is wrong."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise InvalidInput("The plan is not valid TOML here: it is nested too deeply.") from None
    # Of TOML, or a number of thousands of digits.
    except ValueError as error:
        raise InvalidInput(f"The plan is not valid TOML: {error}.") from None
    return _Reader(text, table, Path(folder), allow_import).plan()


def line_of(text: str, path: tuple) -> int:
    """The line of a key of a TOML document, which `tomllib` does not tell; `path` is such as `("target", "groups", 0, "Z")`.

    ```python
    from gyromc.io.planfiles import line_of
    assert line_of("a = 1\\n[b]\\nc = {d = 2}", ("b", "c", "d")) == 3
    ```
    """
    lines = text.split("\n")
    names = [key for key in path if isinstance(key, str)]
    first = found = 0
    for number, line in enumerate(lines):
        if not any(name in line for name in names):
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
        inside = (isinstance(table, dict) and key in table) or (isinstance(table, list) and key in range(len(table)))
        if not inside:
            return depth
        table = table[key]
    return len(path)


class _Reader:
    """One reading of a plan file."""

    def __init__(self, text: str, table: dict[str, Any], folder: Path, allow_import: bool):
        self.text, self.table, self.folder, self.allow_import = text, table, folder, allow_import

    def plan(self) -> Plan:
        """The plan of the whole document."""
        table = self.table
        self.known(table, PLAN.arguments, "the plan", ())
        for name in PLAN.required:
            if name == "step_size":
                self.check(name in table, "The plan needs a number `step_size`.", ())
            else:
                self.check(isinstance(table.get(name), dict), f"The plan needs a table [{name}].", (name,))
        fields = {}
        for name, given in table.items():
            if name == "dynamics" and str(given.get("kind")).lower() in COUNTED:
                target = fields.get("target") or self.value(Type.TARGET, table["target"], ("target",))
                fields["target"] = target
                given = ({} if target.dim is None else {"dim": target.dim}) | given
            if name not in fields:
                fields[name] = self.value(PLAN.arguments[name], given, (name,))
        return self.made(Plan, fields, ())

    def value(self, wanted: Type, given: Any, path: tuple) -> Any:
        """What stands for an argument of this type."""
        if wanted.plain is not None:
            return self.plain(wanted, given, path)
        if wanted is Type.FUNCTION or (wanted in (Type.STEP_SIZE, Type.START) and isinstance(given, str)):
            return self.function(wanted, given, path)
        if wanted is Type.OBSERVABLES:
            return {name: self.value(Type.OBSERVABLE, h, (*path, name)) for name, h in given.items()}
        if wanted is Type.GROUPS:
            self.right(isinstance(given, list), wanted, given, path)
            return tuple(self.arguments(GROUP, entry, (*path, i)) for i, entry in enumerate(given))
        if wanted is Type.PRIORS or (wanted is Type.SCHEME and isinstance(given, str)):
            return given
        if wanted in NUMERIC and not (isinstance(given, dict) and "kind" in given):
            return self.numbers(wanted, given, path)
        if wanted is Type.TARGET:
            given = self.with_data(given, path)
        return self.piece(given, path, KINDS[wanted])

    def plain(self, wanted: Type, given: Any, path: tuple) -> Any:
        """A number, a text or a truth value; 1.0 is a whole number, as in JSON Schema."""
        if wanted is Type.WHOLE and isinstance(given, float) and given.is_integer():
            given = int(given)
        right = isinstance(given, wanted.plain or ()) and (wanted is Type.FLAG or not isinstance(given, bool))
        self.right(right, wanted, given, path)
        return self.file(given, path) if wanted is Type.FILE else given

    def file(self, name: Any, path: tuple) -> Path:
        """The path of a file that exists, from the folder of the plan file on."""
        place = self.folder / str(name)
        self.check(os.path.isfile(place), f"The file {shown(str(place))} does not exist.", path)
        return place

    def piece(self, given: Any, path: tuple, among: Mapping[str, PieceKind]) -> Any:
        """The piece that a table describes by its `kind` and that kind's own arguments."""
        where = ".".join(map(str, path))
        self.check(isinstance(given, dict), f"[{where}] must be a table with a `kind`: got {shown(given)}.", path)
        kind, name = kind_named(given.get("kind"), among), given.get("kind")
        if kind is None:
            hint = f" got {shown(name)}.{_near(name, among)}"
            raise self.error(f"[{where}] needs a `kind` of {', '.join(among)}:{hint}", (*path, "kind"))
        return self.arguments(kind, {key: value for key, value in given.items() if key != "kind"}, path)

    def arguments(self, kind: PieceKind, given: Any, path: tuple) -> Any:
        """What a kind makes of its arguments."""
        where = f"[{'.'.join(map(str, path))}] of kind {kind.name!r}"
        self.check(isinstance(given, dict), f"{where} must be a table: got {shown(given)}.", path)
        self.known(given, kind.arguments, where, path)
        missing = [name for name in kind.required if name not in given]
        self.check(not missing, f"{where} lacks {', '.join(missing)}.", path)
        read = {
            name: value if isinstance(value, np.ndarray) else self.value(kind.arguments[name], value, (*path, name))
            for name, value in given.items()
        }
        return self.made(kind.make, read, path)

    def made(self, make: Any, arguments: dict[str, Any], path: tuple) -> Any:
        """What a function returns; an error in it gets the line of the argument that it names."""
        try:
            return make(**arguments)
        except InvalidInput as error:
            text = str(error)
            named = [(name,) for name in re.findall(r"`(\w+)", text) if name in arguments]
            among = [("observables", h) for h in arguments.get("observables", ()) if f"Observable {h!r}" in text]
            raise self.error(text, (*path, *(among or named or [()])[0])) from None

    def function(self, wanted: Type, given: Any, path: tuple) -> Any:
        """The function of a name, which is imported where that is allowed."""
        self.right(isinstance(given, str) and ":" in given, wanted, given, path)
        remedy = "Add `--allow-import` (in Python `allow_import=True`) if you trust the file and the module."
        try:
            return find_function(given, self.allow_import, {}, remedy)
        except InvalidInput as error:
            raise self.error(str(error), path) from None

    def numbers(self, wanted: Type, given: Any, path: tuple) -> Any:
        """Numbers as they stand, those of a .npy file, or a table of such."""
        if isinstance(given, dict) and set(given) == {"npy"}:
            return self.stored(given["npy"], path)
        if isinstance(given, dict) and wanted in (Type.PARAMETERS, Type.START):
            found = {name: self.numbers(wanted, value, (*path, name)) for name, value in given.items()}
            return {name: np.asarray(x, float) if isinstance(x, int | float | list) else x for name, x in found.items()}
        self.right(_numeric(given), wanted, given, path)
        return given

    def stored(self, name: Any, path: tuple) -> np.ndarray:
        """The array of a .npy file, which holds numbers alone."""
        place = self.file(name, path)
        try:
            found = np.load(place, allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise self.error(f"{place} cannot be read as an array of numbers ({error}).", path) from None
        numeric = isinstance(found, np.ndarray) and found.dtype.kind in "fiub"
        self.check(numeric, f"{place} holds no array of numbers.", path)
        return found

    def with_data(self, table: Any, path: tuple) -> Any:
        """Replace a regression's `csv`, `response` and `intercept` by the X and y that the CSV file holds."""
        if not isinstance(table, dict) or "csv" not in table:
            return table
        rest = {name: value for name, value in table.items() if name not in DATA}
        plain = ("csv", "intercept")
        read = {name: self.value(DATA[name], table[name], (*path, name)) for name in plain if name in table}
        place = self.folder / read["csv"]
        missing = f"[target] names the data file {shown(str(place))}, which does not exist."
        self.check(os.path.isfile(place), missing, (*path, "csv"))
        names, rows = read_numbers(place, place.name)
        response = table.get("response")
        if response not in names:
            listed = f"[target] needs `response`, a column of {place.name}: {', '.join(names)}. Got {shown(response)}."
            raise self.error(listed, (*path, "response"))
        column = names.index(response)
        X = np.delete(rows, column, axis=1)
        if read.get("intercept", False):
            X = np.concatenate([np.ones((len(X), 1)), X], axis=1)
        return {**rest, "X": X, "y": rows[:, column]}

    def known(self, table: Mapping[str, Any], accepted: Iterable[str], where: str, path: tuple) -> None:
        for key in table:
            listed = f"{where} has no key {key!r}.{_near(key, accepted)} It takes {', '.join(accepted)}."
            self.check(key in accepted, listed, (*path, key))

    def right(self, condition: object, wanted: Type, given: Any, path: tuple) -> None:
        self.check(condition, f"`{path[-1]}` must be {wanted.words}: got {shown(given)}.", path)

    def check(self, condition: object, message: str, path: tuple) -> None:
        if not condition:
            raise self.error(message, path)

    def error(self, message: str, path: tuple) -> InvalidInput:
        """The error with the line and the key in front; the nearest table's where the key itself is missing."""
        if message.startswith("line "):
            return InvalidInput(message)
        path = path[: _depth(self.table, path)]
        where = f"line {line_of(self.text, path)}, key `{'.'.join(map(str, path))}`: " if path else ""
        return InvalidInput(where + message)


def _numeric(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_numeric, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _near(word: Any, words: Iterable[str]) -> str:
    close = difflib.get_close_matches(str(word), list(words), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def text_of(plan: Plan, source: Path, destination: Path) -> str:
    """A plan with dense dynamics, tuned from the file `source`, as the TOML text of a file `destination`.

    A data file named in `source` is named relative to the folder of `destination`.
    """
    given = tomllib.loads(source.read_text(encoding="utf-8-sig"))
    target = dict(given["target"])
    if "csv" in target:
        data = (source.parent / str(target["csv"])).resolve()
        target["csv"] = os.path.relpath(data, destination.resolve().parent)
    numbers = ("num_steps", "num_chains", "burn_in", "seed", "dtype", "martingale")
    scheme: dict[str, Any] = {"kind": plan.scheme.name}
    if isinstance(plan.scheme, Balanced):
        assert plan.scheme.second_moment is not None
        scheme["S"] = plan.scheme.second_moment.dense()
    Q, given_by = plan.dynamics.Q, plan.oracle
    # One of those that a tuning chooses from.
    require(
        isinstance(given_by, Exact | ControlVariate),
        f"`--save` knows no plan file for the oracle {given_by.name}. Use `gyromc.tune` in Python.",
    )
    oracle: dict[str, Any] = {"kind": "exact"}
    if isinstance(given_by, ControlVariate):
        center = np.asarray(given_by.center, float)
        oracle = {"kind": "control_variate", "size": given_by.size, "order": given_by.order, "center": center}
    table = {
        "step_size": plan.eta,
        **{name: getattr(plan, name) for name in numbers},
        "start": np.asarray(plan.start, float),
        "target": target,
        "dynamics": {"kind": "general", "D": plan.dynamics.D, "Q": Q if np.any(Q) else 0},
        "scheme": scheme,
        "oracle": oracle,
        "observables": given["observables"],
    }
    lines = [f"# gyromc tune {source.name}"]
    for name, value in sorted(table.items(), key=lambda entry: isinstance(entry[1], Mapping)):
        if isinstance(value, Mapping):
            lines += ["", f"[{name}]", *(f"{_value(key)} = {_value(entry)}" for key, entry in value.items())]
        else:
            lines.append(f"{name} = {_value(value)}")
    return "\n".join(lines) + "\n"


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
