"""Plans as TOML files: the built-in pieces of a `Plan` by name and number (E1-E4), and nothing that is executed.

Receives a path, or the name of an experiment; hands on a `Plan`. Data come from the file itself or from a CSV file beside it.

```toml
step_size = 0.01

[target]
kind = "quadratic"
precision = [1.0, 2.0]

[dynamics]
kind = "nonreversible"
J = [[0.0, -1.0], [1.0, 0.0]]

[observables.first]
kind = "linear"
u = [1.0, 0.0]
```
"""

import difflib
import importlib
import inspect
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gyromc import dynamics, observables, oracles, targets
from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.plan import Plan

__all__ = ["find", "load", "loads"]

NUMBERS = ("step_size", "num_steps", "num_chains", "seed", "scheme", "start", "burn_in", "weighting", "dtype")
TABLES = ("target", "dynamics", "oracle", "observables")


def load(path: str | Path) -> Plan:
    """The plan in a TOML file.

    **Arguments:**

    - `path`: of the file; CSV files it names are looked for beside it.

    **Returns:** a `Plan`; `InvalidInput` names the table and the key that is wrong.
    """
    path = Path(path)
    require(path.is_file(), f"There is no plan file {str(path)!r}.")
    try:
        return loads(path.read_text(encoding="utf-8"), folder=path.parent)
    except UnicodeDecodeError:
        raise InvalidInput(f"The plan file {str(path)!r} is not UTF-8 text.") from None
    except InvalidInput as error:
        raise InvalidInput(f"{path.name}: {error}") from None


def loads(text: str, folder: str | Path = ".") -> Plan:
    """The plan in a TOML document.

    **Arguments:**

    - `text`: the document.
    - `folder`: where CSV files named in it are looked for.

    **Returns:** a `Plan`.

    ```python
    from gyromc.app.planfiles import loads
    plan = loads('''
    step_size = 0.05
    target = {kind = "cosine_perturbed", dim = 2, beta = 1.2}
    dynamics = {kind = "hfhr", alpha = 1.0, gamma = 2.0}
    oracle = {kind = "gaussian", tau = 1.0}
    observables.h = {kind = "tanh", u = [1.0, -1.0]}
    ''')
    assert plan.num_steps == 400
    ```
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidInput(f"The plan is not valid TOML: {error}.") from None
    _known(table, (*NUMBERS, *TABLES), "the plan")
    for name in ("target", "dynamics", "observables"):
        require(isinstance(table.get(name), dict), f"The plan needs a table [{name}].")
    require("step_size" in table, "The plan needs a number `step_size`.")
    target = _piece(_with_data(table["target"], Path(folder)), "target", TARGETS)
    settings = {name: table[name] for name in NUMBERS if name in table}
    if "oracle" in table:
        settings["oracle"] = _piece(table["oracle"], "oracle", ORACLES)
    chosen = {name: _piece(h, f"observables.{name}", OBSERVABLES) for name, h in table["observables"].items()}
    return Plan(
        target=target,
        dynamics=_dynamics(table["dynamics"], target),
        observables=chosen,
        **settings,  # type: ignore[arg-type]
    )


def find(what: str, step_size: float | None = None) -> Plan:
    """The plan of a file (a path ending in .toml, or any path that exists) or of an experiment in the catalogue.

    **Arguments:**

    - `what`: the path or the name.
    - `step_size`: another step size than the file's; for an experiment the default is its smallest.

    **Returns:** a `Plan`.
    """
    if what.endswith(".toml") or Path(what).is_file():
        plan = load(what)
        return plan if step_size is None else plan.replace(step_size=step_size)
    catalogue = importlib.import_module("gyromc.paper.catalogue").CATALOGUE  # a room above: only when asked for
    if what not in catalogue:
        near = difflib.get_close_matches(what, catalogue, n=3, cutoff=0.4)
        hint = f" Did you mean {', '.join(near)}?" if near else f" There are: {', '.join(catalogue)}."
        raise InvalidInput(f"{what!r} is neither a plan file (those end in .toml) nor an experiment.{hint}")
    experiment = catalogue[what]
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
    """The dynamics; `dim` is the target's unless the file says otherwise."""
    if isinstance(table, dict) and str(table.get("kind")).lower() in ("overdamped", "hfhr", "rotations"):
        table = {"dim": target.dim, **table}
    return _piece(table, "dynamics", DYNAMICS)


def _piece(table: Any, where: str, kinds: Mapping[str, Callable]):
    """The piece that a table describes: its `kind`, and that kind's own arguments."""
    require(isinstance(table, dict), f"[{where}] must be a table with a `kind`: got {table!r}.")
    table = dict(table)
    kind = table.pop("kind", None)
    names = {name.replace("_", ""): name for name in kinds}  # `LinearRegression`, as in Python, is `linear_regression`
    known = names.get(str(kind).replace("_", "").lower())
    if known is None:
        raise InvalidInput(f"[{where}] needs a `kind` of {', '.join(kinds)}: got {kind!r}.{_near(kind, kinds)}")
    kind = known
    accepted = inspect.signature(kinds[kind]).parameters
    _known(table, accepted, f"[{where}] of kind {kind!r}")
    missing = [n for n, p in accepted.items() if p.default is p.empty and n not in table]
    require(not missing, f"[{where}] of kind {kind!r} lacks {', '.join(missing)}.")
    return kinds[kind](**table)


def _known(table: Mapping[str, Any], accepted, where: str) -> None:
    for key in table:
        require(key in accepted, f"{where} has no key {key!r}.{_near(key, accepted)} It takes {', '.join(accepted)}.")


def _near(word: Any, words) -> str:
    close = difflib.get_close_matches(str(word), list(words), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""


def _with_data(table: Any, folder: Path) -> Any:
    """A regression's table with X and y read from the CSV file it names: `csv`, `response`, and `intercept` or not."""
    if not isinstance(table, dict) or "csv" not in table:
        return table
    table = dict(table)
    path, response, intercept = (
        folder / str(table.pop("csv")),
        table.pop("response", None),
        table.pop("intercept", False),
    )
    require(path.is_file(), f"[target] names the data file {str(path)!r}, which does not exist.")
    with path.open(encoding="utf-8") as lines:
        header = [name.strip() for name in lines.readline().split(",")]
        try:
            rows = np.loadtxt(lines, delimiter=",", ndmin=2)
        except ValueError as error:
            raise InvalidInput(f"The data file {path.name} must hold numbers under one header line: {error}.") from None
    require(
        response in header,
        f"[target] needs `response`, a column of {path.name}: {', '.join(header)}. Got {response!r}.",
    )
    column = header.index(response)  # type: ignore[arg-type]
    X = np.delete(rows, column, axis=1)
    X = np.concatenate([np.ones((len(X), 1)), X], axis=1) if intercept else X
    return {**table, "X": X, "y": rows[:, column]}
