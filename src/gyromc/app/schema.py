"""The JSON Schema of plan files, for editors that check and complete TOML: written from `kinds`, by which files are read."""

from typing import Any

from gyromc.app.kinds import DATA, KINDS, PLAN, TYPES, PieceKind, Type
from gyromc.plan import WEIGHTINGS, Plan
from gyromc.targets import Group

__all__ = ["plan_schema"]

DRAFT = "https://json-schema.org/draft/2020-12/schema"
FUNCTION = {"type": "string", "pattern": r"^[^:\s]+:[^:\s]+$"}
NUMBERS = {"$ref": "#/$defs/numbers"}


def plan_schema() -> dict[str, Any]:
    """Return the schema as plain values.

    ```python
    from gyromc.app.schema import plan_schema
    assert "target" in plan_schema()["required"]
    ```
    """
    plan = PieceKind("plan", Plan)
    array = {"type": "array", "items": {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/array"}]}}
    stored = {
        "type": "object",
        "properties": {"npy": {"type": "string"}},
        "required": ["npy"],
        "additionalProperties": False,
    }
    definitions = {
        "array": array,
        "stored": stored,
        "numbers": {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/array"}, {"$ref": "#/$defs/stored"}]},
        "parameters": {"anyOf": [NUMBERS, {"type": "object", "additionalProperties": {"$ref": "#/$defs/parameters"}}]},
        "function": FUNCTION,
        **{
            wanted.name.lower(): {"anyOf": [_piece(wanted, kind) for kind in kinds.values()]}
            for wanted, kinds in KINDS.items()
        },
    }
    return {
        "$schema": DRAFT,
        "title": "A plan file of gyromc",
        "type": "object",
        "properties": {name: {**_type(TYPES[name]), "description": plan.meaning(name)} for name in PLAN},
        "required": [name for name, required in PLAN.items() if required],
        "additionalProperties": False,
        "$defs": definitions,
    }


def _piece(wanted: Type, kind: PieceKind) -> dict[str, Any]:
    """The table of one kind."""
    table = _table(kind, ("dim",) if wanted is Type.DYNAMICS else ())
    names = sorted({kind.name, kind.python_name})
    table["properties"] = {"kind": {"enum": names}, **table["properties"]}
    table["required"] = ["kind", *table["required"]]
    if wanted is Type.TARGET and {"X", "y"} <= set(kind.arguments):  # data may come from a CSV file
        table["properties"] |= {name: _type(TYPES[name]) for name in DATA}
        table["required"] = [name for name in table["required"] if name not in ("X", "y")]
        table["anyOf"] = [{"required": ["X", "y"]}, {"required": ["csv", "response"]}]
    return table


def _table(kind: PieceKind, left_out: tuple[str, ...] = ()) -> dict[str, Any]:
    properties = {name: {**_type(TYPES[name]), "description": kind.meaning(name)} for name in kind.arguments}
    return {
        "title": kind.name,
        "description": kind.about,
        "type": "object",
        "properties": properties,
        "required": [name for name, required in kind.arguments.items() if required and name not in left_out],
        "additionalProperties": False,
    }


def _type(wanted: Type) -> dict[str, Any]:
    """What may stand for an argument."""
    refer = lambda name: {"$ref": f"#/$defs/{name}"}
    schemes = {"enum": list(KINDS[Type.SCHEME])}
    return {
        Type.NUMBER: {"type": "number"},
        Type.WHOLE: {"type": "integer"},
        Type.FLAG: {"type": "boolean"},
        Type.TEXT: {"type": "string"},
        Type.FILE: {"type": "string"},
        Type.NUMBERS: NUMBERS,
        Type.FUNCTION: refer("function"),
        Type.PARAMETERS: refer("parameters"),
        Type.STEP_SIZE: {"anyOf": [{"type": "number"}, refer("function")]},
        Type.START: {"anyOf": [refer("parameters"), refer("function")]},
        Type.OPERATOR: {"anyOf": [NUMBERS, refer("operator")]},
        Type.CURVATURE: {"anyOf": [NUMBERS, refer("operator"), {"enum": ["diagonal", "matrix-free"]}]},
        Type.SCHEME: {"anyOf": [schemes, refer("scheme")]},
        Type.TARGET: refer("target"),
        Type.DYNAMICS: refer("dynamics"),
        Type.ORACLE: refer("oracle"),
        Type.OBSERVABLES: {"type": "object", "minProperties": 1, "additionalProperties": refer("observable")},
        Type.LIKELIHOOD: refer("likelihood"),
        Type.GROUPS: {"type": "array", "items": _table(PieceKind("group", Group))} if wanted is Type.GROUPS else {},
        Type.WEIGHTING: {"enum": list(WEIGHTINGS)},
        Type.PRECISION: {"enum": ["float32", "float64"]},
    }[wanted]
