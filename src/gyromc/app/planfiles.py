"""Plans as TOML files: the built-in pieces of a `Plan` by name and number. Nothing in a file is executed.

Input: a path, or the name of an experiment. Output: a `Plan`. Data come from the file itself, from a CSV file or from .npy files
beside it; functions are named `module:function` and imported only where that was allowed. Messages say the line and the key.
docs/prediction.md has examples, docs/scale.md all kinds.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.app.kinds import DATA, KINDS, PLAN, TYPES, PieceKind, Type, kind_named
from gyromc.app.tomllines import key_lines
from gyromc.checks import flag, require, shown
from gyromc.csvfile import read_numbers
from gyromc.errors import InvalidInput
from gyromc.paper.catalogue import CATALOGUE
from gyromc.plan import Plan
from gyromc.references import find_function
from gyromc.stepsizes import read_step_size
from gyromc.targets import Group

__all__ = ["find", "is_plan_file", "load", "loads"]

PLAIN: dict[Type, type | tuple[type, ...]] = {
    Type.NUMBER: (int, float),
    Type.WHOLE: int,
    Type.FLAG: bool,
    Type.TEXT: str,
    Type.FILE: str,
    Type.WEIGHTING: str,
    Type.PRECISION: str,
}
NUMERIC = (Type.NUMBERS, Type.PARAMETERS, Type.STEP_SIZE, Type.START, Type.OPERATOR, Type.CURVATURE)
COUNTED = ("overdamped", "hfhr", "rotations")  # dynamics whose `dim` is the target's unless the file gives another


def load(path: str | Path, allow_import: bool = False) -> Plan:
    """Read the plan in a TOML file; paths of data files in it are relative to its folder."""
    path = Path(path)
    require(_is_file(path), f"There is no plan file {shown(str(path))}.")
    try:
        text = path.read_text(encoding="utf-8")
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
    except ValueError as error:  # of TOML, or a number of thousands of digits
        raise InvalidInput(f"The plan is not valid TOML: {error}.") from None
    return _Reader(text, Path(folder), allow_import).plan(table)


def is_plan_file(what: str) -> bool:
    """Whether the name is that of a plan file: a path ending in .toml, or any path that exists."""
    return what.endswith(".toml") or _is_file(Path(what))


def find(what: str, step_size: float | None = None, allow_import: bool = False) -> Plan:
    """Return the plan of a file (a path ending in .toml, or any path that exists) or of an experiment in the catalogue.

    `step_size` replaces the file's step size; an experiment's smallest is the default.
    """
    step_size = None if step_size is None else read_step_size(step_size)
    if is_plan_file(what):
        plan = load(what, allow_import)
        return plan if step_size is None else plan.replace(step_size=step_size)
    if what not in CATALOGUE:
        near = difflib.get_close_matches(what, CATALOGUE, n=3, cutoff=0.4)
        hint = f" Did you mean {', '.join(near)}?" if near else f" There are: {', '.join(CATALOGUE)}."
        raise InvalidInput(f"{what!r} is neither a plan file (those end in .toml) nor an experiment.{hint}")
    experiment = CATALOGUE[what]
    return experiment.plan(step_size=min(experiment.step_sizes) if step_size is None else step_size)


class _Reader:
    """One reading of a plan file."""

    def __init__(self, text: str, folder: Path, allow_import: bool):
        self.text, self.folder, self.allow_import = text, folder, allow_import

    def plan(self, table: dict[str, Any]) -> Plan:
        """The plan of the whole document."""
        self.known(table, PLAN, "the plan", ())
        for name in (name for name, required in PLAN.items() if required):
            if name == "step_size":
                self.check(name in table, "The plan needs a number `step_size`.", ())
            else:
                self.check(isinstance(table.get(name), dict), f"The plan needs a table [{name}].", (name,))
        fields = {}
        for name, given in table.items():
            if name == "dynamics" and isinstance(given, dict) and str(given.get("kind")).lower() in COUNTED:
                target = fields.get("target") or self.value(Type.TARGET, table["target"], ("target",))
                fields["target"] = target
                given = ({} if target.dim is None else {"dim": target.dim}) | given
            if name not in fields:
                fields[name] = self.value(TYPES[name], given, (name,))
        return self.made(Plan, fields, ())

    def value(self, wanted: Type, given: Any, path: tuple) -> Any:
        """What stands for an argument of this type."""
        if wanted in PLAIN:
            right = isinstance(given, PLAIN[wanted]) and (wanted is Type.FLAG or not isinstance(given, bool))
            self.check(right, f"`{path[-1]}` must be {wanted.value}: got {shown(given)}.", path)
            if wanted is Type.FILE:
                given = self.folder / str(given)
                self.check(_is_file(given), f"The file {shown(str(given))} does not exist.", path)
            return given
        if wanted is Type.FUNCTION or (wanted in (Type.STEP_SIZE, Type.START) and isinstance(given, str)):
            named = not isinstance(given, str) or ":" in given
            self.check(named, f"`{path[-1]}` must be {wanted.value}: got {shown(given)}.", path)
            return self.function(wanted, given, path)
        if wanted is Type.OBSERVABLES:
            return {name: self.value(Type.OBSERVABLE, h, (*path, name)) for name, h in given.items()}
        if wanted is Type.GROUPS:
            self.check(isinstance(given, list), f"`{path[-1]}` must be {wanted.value}: got {shown(given)}.", path)
            group = PieceKind("group", Group)
            return tuple(self.arguments(group, entry, (*path, i)) for i, entry in enumerate(given))
        if wanted in (Type.SCHEME, Type.CURVATURE) and isinstance(given, str):
            return given
        if wanted in NUMERIC and not (isinstance(given, dict) and "kind" in given):
            return self.numbers(wanted, given, path)
        if wanted is Type.TARGET:
            given = self.with_data(given, path)
        return self.piece(given, path, KINDS[Type.OPERATOR if wanted is Type.CURVATURE else wanted])

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
        missing = [name for name, required in kind.arguments.items() if required and name not in given]
        self.check(not missing, f"{where} lacks {', '.join(missing)}.", path)
        read = {
            name: value if isinstance(value, np.ndarray) else self.value(TYPES[name], value, (*path, name))
            for name, value in given.items()
        }
        return self.made(kind.make, read, path)

    def made(self, make: Any, arguments: dict[str, Any], path: tuple) -> Any:
        """What a function returns; an error in it gets the line of the argument that it names."""
        try:
            return make(**arguments)
        except InvalidInput as error:
            named = [(name,) for name in re.findall(r"`(\w+)", str(error)) if name in arguments]
            among = [
                ("observables", name)
                for name in arguments.get("observables", ())
                if f"Observable {name!r}" in str(error)
            ]
            raise self.error(str(error), (*path, *(among or named or [()])[0])) from None

    def function(self, wanted: Type, given: Any, path: tuple) -> Any:
        self.check(isinstance(given, str), f"`{path[-1]}` must be {wanted.value}: got {shown(given)}.", path)
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
        good = isinstance(given, list) or (isinstance(given, int | float) and not isinstance(given, bool))
        self.check(good and _numeric(given), f"`{path[-1]}` must be {wanted.value}: got {shown(given)}.", path)
        return given

    def stored(self, name: Any, path: tuple) -> np.ndarray:
        """The array of a .npy file, which holds numbers alone."""
        place = self.folder / str(name)
        self.check(_is_file(place), f"The file {shown(str(place))} does not exist.", path)
        try:
            found = np.load(place, allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise self.error(f"{place} cannot be read as an array of numbers ({error}).", path) from None
        self.check(
            isinstance(found, np.ndarray) and found.dtype.kind in "fiub", f"{place} holds no array of numbers.", path
        )
        return found

    def with_data(self, table: Any, path: tuple) -> Any:
        """Replace a regression's `csv`, `response` and `intercept` by the X and y that the CSV file holds."""
        if not isinstance(table, dict) or "csv" not in table:
            return table
        rest = {name: value for name, value in table.items() if name not in DATA}
        read = {
            name: self.value(TYPES[name], table[name], (*path, name)) for name in ("csv", "intercept") if name in table
        }
        place, intercept = self.folder / read["csv"], flag(read.get("intercept", False), "intercept")
        self.check(
            _is_file(place), f"[target] names the data file {shown(str(place))}, which does not exist.", (*path, "csv")
        )
        names, rows = read_numbers(place, place.name)
        response = table.get("response")
        if response not in names:
            listed = f"[target] needs `response`, a column of {place.name}: {', '.join(names)}. Got {shown(response)}."
            raise self.error(listed, (*path, "response"))
        column = names.index(response)
        X = np.delete(rows, column, axis=1)
        X = np.concatenate([np.ones((len(X), 1)), X], axis=1) if intercept else X
        return {**rest, "X": X, "y": rows[:, column]}

    def known(self, table: Mapping[str, Any], accepted: Mapping[str, Any], where: str, path: tuple) -> None:
        for key in table:
            listed = f"{where} has no key {key!r}.{_near(key, accepted)} It takes {', '.join(accepted)}."
            self.check(key in accepted, listed, (*path, key))

    def check(self, condition: object, message: str, path: tuple) -> None:
        if not condition:
            raise self.error(message, path)

    def error(self, message: str, path: tuple) -> InvalidInput:
        """The error with the line and the key in front; the nearest table's where the key itself is missing."""
        if message.startswith("line "):
            return InvalidInput(message)
        lines = key_lines(self.text)
        while path and path not in lines:
            path = path[:-1]
        return InvalidInput(f"line {lines[path]}, key `{'.'.join(map(str, path))}`: {message}" if path else message)


def _is_file(path: Path) -> bool:
    """Whether there is such a file; False for a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _numeric(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_numeric, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def _near(word: Any, words) -> str:
    close = difflib.get_close_matches(str(word), list(words), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
