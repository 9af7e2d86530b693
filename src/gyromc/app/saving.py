"""A tuned plan as a plan file: target and observables as they stand in the file that was tuned, everything else from the plan.

Input: a plan with dense dynamics and the path of the file that it was tuned from. Output: TOML text that `planfiles.loads` reads.
"""

import math
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.app.planfiles import is_plan_file
from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.oracles import ControlVariate, Exact, Oracle
from gyromc.plan import Plan
from gyromc.schemes.balanced import Balanced

__all__ = ["require_saveable", "text_of"]


def require_saveable(what: str) -> None:
    """Raise `InvalidInput` unless a plan file was named: an experiment's target has no form in a file."""
    require(
        is_plan_file(what),
        f"`--save` needs a plan file to take target and observables from: {what!r} is an experiment. Write its target into a "
        "plan file, or use `gyromc.tune` in Python.",
    )


def text_of(plan: Plan, source: Path, destination: Path) -> str:
    """The plan as TOML; a data file named in `source` is named relative to the folder of `destination`."""
    given = tomllib.loads(source.read_text(encoding="utf-8"))
    target = dict(given["target"])
    if "csv" in target:
        data = (source.parent / str(target["csv"])).resolve()
        target["csv"] = os.path.relpath(data, destination.resolve().parent)
    Q = plan.dynamics.Q
    table = {
        "step_size": plan.eta,
        "num_steps": plan.num_steps,
        "num_chains": plan.num_chains,
        "burn_in": plan.burn_in,
        "seed": plan.seed,
        "dtype": plan.dtype,
        "martingale": plan.martingale,
        "start": np.asarray(plan.start, float),
        "target": target,
        "dynamics": {"kind": "general", "D": plan.dynamics.D, "Q": Q if np.any(Q) else 0},
        "scheme": _scheme(plan),
        "oracle": _oracle(plan.oracle),
        "observables": given["observables"],
    }
    lines = [f"# gyromc tune {source.name}"]
    for name in sorted(table, key=lambda name: isinstance(table[name], dict)):  # tables after numbers
        lines += _entry((name,), table[name])
    return "\n".join(lines) + "\n"


def _scheme(plan: Plan) -> dict[str, Any]:
    """The scheme by name; for balanced noise with its second moment of gradients."""
    if isinstance(plan.scheme, Balanced):
        assert plan.scheme.second_moment is not None
        return {"kind": "balanced", "S": plan.scheme.second_moment.dense()}
    return {"kind": plan.scheme.name}


def _oracle(oracle: Oracle) -> dict[str, Any]:
    """The oracle by name, one of those that a tuning chooses from."""
    if isinstance(oracle, Exact):
        return {"kind": "exact"}
    if isinstance(oracle, ControlVariate):
        center = np.asarray(oracle.center, float)
        return {"kind": "control_variate", "size": oracle.size, "order": oracle.order, "center": center}
    raise InvalidInput(f"`--save` knows no plan file for the oracle {oracle.name}. Use `gyromc.tune` in Python.")


def _entry(path: tuple[str, ...], value: Any) -> list[str]:
    """The lines of a key and its value; a dictionary becomes a table of its own."""
    if not isinstance(value, Mapping):
        return [f"{_text(path[-1])} = {_value(value)}"]
    plain = {name: x for name, x in value.items() if not isinstance(x, Mapping)}
    lines = ["", f"[{'.'.join(map(_text, path))}]"] if plain or not value else []
    for name, x in plain.items():
        lines += _entry((*path, name), x)
    for name, x in value.items():
        if isinstance(x, Mapping):
            lines += _entry((*path, name), x)
    return lines


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, np.ndarray):
        return _value(value.tolist())
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else {math.inf: "inf", -math.inf: "-inf"}.get(value, "nan")
    require(isinstance(value, int), f"A plan file holds no {type(value).__name__}.")
    return str(value)


def _text(text: str) -> str:
    """A string or key of TOML, in quotes, with what TOML forbids in it escaped."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(f"\\u{ord(c):04x}" if ord(c) < 32 or ord(c) == 127 else c for c in escaped) + '"'
