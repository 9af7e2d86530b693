"""The JSON Schema of plan files, with which editors check and complete TOML, from the kinds and their signatures."""

import inspect
import re
import types
import typing
from collections.abc import Callable
from typing import Any

from gyromc import schemes, targets
from gyromc.io.planfiles import KINDS, TABLES
from gyromc.plan import WEIGHTINGS, Plan

NUMBER, WHOLE, TEXT, FLAG = ({"type": name} for name in ("number", "integer", "string", "boolean"))


def _refer(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def _any_of(*schemas: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": list(schemas)}


NUMBERS, PARAMETERS, FUNCTION = map(_refer, ("numbers", "parameters", "function"))
BY_ANNOTATION = {int: WHOLE, float: NUMBER, bool: FLAG, str: TEXT, Callable: FUNCTION}
BY_NAME: dict[str, dict[str, Any]] = {
    **{name: _refer(name) if name in TABLES else _any_of(NUMBERS, _refer(name)) for name in KINDS},
    "scheme": _any_of({"enum": list(schemes.SCHEMES)}, _refer("scheme")),
    "observables": {"type": "object", "minProperties": 1, "additionalProperties": _refer("observable")},
    "groups": {"type": "array", "items": _refer("group")},
    "priors": {"type": ["string", "array", "object"]},
    "step_size": _any_of(NUMBER, FUNCTION),
    "start": _any_of(PARAMETERS, FUNCTION),
    **dict.fromkeys(("data", "center"), PARAMETERS),
    **dict.fromkeys(("X_file", "y_file", "correlations"), TEXT),
    "dim": WHOLE,
    "weighting": {"enum": list(WEIGHTINGS)},
    "dtype": {"enum": ["float32", "float64"]},
}
"""What may stand for arguments of these names; for others the annotation says it, and where that does not, they are numbers."""


def plan_schema() -> dict[str, Any]:
    """The JSON Schema of plan files as plain values."""
    definitions = {
        "array": {"type": "array", "items": _any_of(NUMBER, _refer("array"))},
        "stored": {"type": "object", "properties": {"npy": TEXT}, "required": ["npy"], "additionalProperties": False},
        "numbers": _any_of(NUMBER, _refer("array"), _refer("stored")),
        "parameters": _any_of(NUMBERS, {"type": "object", "additionalProperties": PARAMETERS}),
        "function": {"type": "string", "pattern": r"^[\w.]+:[\w.]+$"},
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
