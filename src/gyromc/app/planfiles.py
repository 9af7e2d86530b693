"""Plans as TOML files: the built-in pieces of a `Plan` by name and number. Nothing in a file is executed.

Input: a path, or the name of an experiment. Output: a `Plan`. Data come from the file itself or from a CSV file beside it;
docs/prediction.md has examples.
"""

import difflib
import functools
import inspect
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gyromc import dynamics, observables, oracles, schemes, targets
from gyromc.checks import flag, require, shown
from gyromc.csvfile import read_numbers
from gyromc.errors import InvalidInput
from gyromc.paper.catalogue import CATALOGUE
from gyromc.plan import Plan
from gyromc.stepsizes import read_step_size

__all__ = ["find", "is_plan_file", "load", "loads"]

NUMBERS = (
    "step_size",
    "num_steps",
    "num_chains",
    "seed",
    "scheme",
    "start",
    "burn_in",
    "weighting",
    "dtype",
    "martingale",
)
TABLES = ("target", "dynamics", "oracle", "observables")


def load(path: str | Path) -> Plan:
    """Read the plan in a TOML file; paths of CSV files in it are relative to its folder."""
    path = Path(path)
    require(_is_file(path), f"There is no plan file {shown(str(path))}.")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InvalidInput(f"The plan file {str(path)!r} is not UTF-8 text.") from None
    try:
        return loads(text, folder=path.parent)
    except InvalidInput as error:
        raise InvalidInput(f"{path.name}: {error}") from None


def loads(text: str, folder: str | Path = ".") -> Plan:
    """Read the plan in a TOML document; `InvalidInput` names the table and the key that is wrong."""
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise InvalidInput("The plan is not valid TOML here: it is nested too deeply.") from None
    except ValueError as error:  # of TOML, or a number of thousands of digits
        raise InvalidInput(f"The plan is not valid TOML: {error}.") from None
    _known(table, (*NUMBERS, *TABLES), "the plan")
    for name in ("target", "dynamics", "observables"):
        require(isinstance(table.get(name), dict), f"The plan needs a table [{name}].")
    require("step_size" in table, "The plan needs a number `step_size`.")
    target = _piece(_with_data(table["target"], Path(folder)), "target", TARGETS)
    settings: dict[str, Any] = {name: table[name] for name in NUMBERS if name in table}
    if isinstance(table.get("scheme"), dict):
        settings["scheme"] = _piece(table["scheme"], "scheme", SCHEMES)
    if "oracle" in table:
        settings["oracle"] = _piece(table["oracle"], "oracle", ORACLES)
    chosen = {name: _piece(h, f"observables.{name}", OBSERVABLES) for name, h in table["observables"].items()}
    return Plan(target=target, dynamics=_dynamics(table["dynamics"], target), observables=chosen, **settings)


def is_plan_file(what: str) -> bool:
    """Whether the name is that of a plan file: a path ending in .toml, or any path that exists."""
    return what.endswith(".toml") or _is_file(Path(what))


def find(what: str, step_size: float | None = None) -> Plan:
    """Return the plan of a file (a path ending in .toml, or any path that exists) or of an experiment in the catalogue.

    `step_size` replaces the file's step size; an experiment's smallest is the default.
    """
    step_size = None if step_size is None else read_step_size(step_size)
    if is_plan_file(what):
        plan = load(what)
        return plan if step_size is None else plan.replace(step_size=step_size)
    if what not in CATALOGUE:
        near = difflib.get_close_matches(what, CATALOGUE, n=3, cutoff=0.4)
        hint = f" Did you mean {', '.join(near)}?" if near else f" There are: {', '.join(CATALOGUE)}."
        raise InvalidInput(f"{what!r} is neither a plan file (those end in .toml) nor an experiment.{hint}")
    experiment = CATALOGUE[what]
    return experiment.plan(step_size=min(experiment.step_sizes) if step_size is None else step_size)


TARGETS: dict[str, Callable] = {
    "quadratic": targets.Quadratic,
    "cosine_perturbed": targets.CosinePerturbed,
    "linear_regression": targets.LinearRegression,
    "logistic_regression": targets.LogisticRegression,
    "poisson_regression": targets.PoissonRegression,
    "softmax_regression": targets.SoftmaxRegression,
}
ORACLES: dict[str, Callable] = {
    "exact": oracles.Exact,
    "gaussian": oracles.Gaussian,
    "minibatch": oracles.Minibatch,
    "control_variate": oracles.ControlVariate,
}
SCHEMES: dict[str, Callable] = {
    **{name: functools.partial(schemes.find, name) for name in schemes.SCHEMES},
    "balanced": schemes.balanced,
}
DYNAMICS: dict[str, Callable] = {
    "overdamped": dynamics.overdamped,
    "nonreversible": dynamics.nonreversible,
    "rotations": lambda dim, rate=1.0: dynamics.nonreversible(dynamics.rotations(dim, rate)),
    "hfhr": dynamics.hfhr,
    "gaul": dynamics.gaul,
    "general": dynamics.general,
}
OBSERVABLES: dict[str, Callable] = {
    "linear": observables.linear,
    "square": observables.square,
    "tanh": observables.tanh,
    "predictive": lambda x, label=1: observables.predictive(x, label=label),
    "brier": lambda x, y: observables.brier(x, y),
    "entropy": lambda x: observables.entropy(x),
}


def _dynamics(table: Any, target: targets.Target):
    """Build the dynamics; `dim` is the target's unless the file gives another."""
    if isinstance(table, dict) and str(table.get("kind")).lower() in ("overdamped", "hfhr", "rotations"):
        table = {"dim": target.dim, **table}
    return _piece(table, "dynamics", DYNAMICS)


def _piece(table: Any, where: str, kinds: Mapping[str, Callable]):
    """Build the piece that a table describes by its `kind` and that kind's own arguments."""
    require(isinstance(table, dict), f"[{where}] must be a table with a `kind`: got {shown(table)}.")
    table = dict(table)
    given = table.pop("kind", None)
    names = {name.replace("_", ""): name for name in kinds}  # `LinearRegression`, as in Python, is `linear_regression`
    kind = names.get(str(given).replace("_", "").lower(), "")
    require(kind, f"[{where}] needs a `kind` of {', '.join(kinds)}: got {shown(given)}.{_near(given, kinds)}")
    accepted = inspect.signature(kinds[kind]).parameters
    _known(table, accepted, f"[{where}] of kind {kind!r}")
    missing = [n for n, p in accepted.items() if p.default is p.empty and n not in table]
    require(not missing, f"[{where}] of kind {kind!r} lacks {', '.join(missing)}.")
    return kinds[kind](**table)


def _is_file(path: Path) -> bool:
    """Whether there is such a file; False for a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _known(table: Mapping[str, Any], accepted, where: str) -> None:
    for key in table:
        require(key in accepted, f"{where} has no key {key!r}.{_near(key, accepted)} It takes {', '.join(accepted)}.")


def _near(word: Any, words) -> str:
    close = difflib.get_close_matches(str(word), list(words), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _with_data(table: Any, folder: Path) -> Any:
    """Replace a regression's `csv`, `response` and `intercept` by the X and y that the CSV file holds."""
    if not isinstance(table, dict) or "csv" not in table:
        return table
    table = dict(table)
    path, response = folder / str(table.pop("csv")), table.pop("response", None)
    intercept = flag(table.pop("intercept", False), "intercept")
    require(_is_file(path), f"[target] names the data file {shown(str(path))}, which does not exist.")
    names, rows = read_numbers(path, path.name)
    if response not in names:
        raise InvalidInput(
            f"[target] needs `response`, a column of {path.name}: {', '.join(names)}. Got {shown(response)}."
        )
    column = names.index(response)
    X = np.delete(rows, column, axis=1)
    X = np.concatenate([np.ones((len(X), 1)), X], axis=1) if intercept else X
    return {**table, "X": X, "y": rows[:, column]}
