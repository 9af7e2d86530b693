"""The pieces of a plan file: the kinds there are, what makes them, what their arguments are, and the JSON Schema of it all.

The kinds are the public classes and functions of `targets`, `dynamics`, `oracles`, `observables`, `schemes` and the families of
`targets`; a class named `LinearRegression` is the kind `linear_regression`. The arguments of a kind, which of them are required
and what they mean come from the function that makes the piece and its docstring. What may stand in a file for an argument
follows from its annotation, or from `NAMED` where that says too little. `plan_schema` is for editors that check and complete
TOML.
"""

import dataclasses
import enum
import functools
import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from gyromc import coordinates, data, dynamics, observables, oracles, schemes, targets
from gyromc.plan import WEIGHTINGS, Plan
from gyromc.targets import Group, families

DRAFT = "https://json-schema.org/draft/2020-12/schema"


def _refer(name: str) -> dict[str, str]:
    return {"$ref": f"#/$defs/{name}"}


def _any_of(*schemas: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": list(schemas)}


class Type(enum.Enum):
    """What may stand in a file: the words of messages, the JSON Schema, and the arguments that it stands for by their name."""

    NUMBER = "a number", {"type": "number"}
    WHOLE = "a whole number", {"type": "integer"}, "dim"
    FLAG = "true or false", {"type": "boolean"}
    TEXT = "a text", {"type": "string"}
    FILE = "the path of a file, from the folder of the plan file on", {"type": "string"}, "X_file y_file"
    NUMBERS = 'a number, an array of numbers, or {npy = "file.npy"}', _refer("numbers")
    FUNCTION = 'a function as "module:function"', _refer("function")
    PARAMETERS = "numbers, or a table of them", _refer("parameters"), "data center"
    STEP_SIZE = (
        'a number, or a schedule as "module:function"',
        _any_of({"type": "number"}, _refer("function")),
        "step_size",
    )
    START = (
        'numbers, a table of them, or a function as "module:function"',
        _any_of(_refer("parameters"), _refer("function")),
        "start",
    )
    OPERATOR = (
        "numbers, or a table with a `kind`",
        _any_of(_refer("numbers"), _refer("operator")),
        "J K C D Q S preconditioner",
    )
    CURVATURE = (
        "diagonal or matrix-free",
        {"type": "string", "enum": ["diagonal", "matrix-free"]},
        "curvature",
    )
    SCHEME = (
        "the name of a scheme, or a table with a `kind`",
        _any_of({"enum": list(schemes.SCHEMES)}, _refer("scheme")),
        "scheme",
    )
    TARGET = "a table with a `kind` of target", _refer("target"), "target"
    DYNAMICS = "a table with a `kind` of dynamics", _refer("dynamics"), "dynamics"
    ORACLE = "a table with a `kind` of oracle", _refer("oracle"), "oracle"
    COORDINATES = "a table with a `kind` of coordinates", _refer("coordinates"), "coordinates"
    OBSERVABLE = "a table with a `kind` of observable", _refer("observable")
    OBSERVABLES = (
        "a table of observables, by name",
        {"type": "object", "minProperties": 1, "additionalProperties": _refer("observable")},
        "observables",
    )
    LIKELIHOOD = "a table with a `kind` of likelihood", _refer("likelihood"), "likelihood"
    GROUPS = (
        "an array of tables with Z, index, num_levels and scale",
        {"type": "array", "items": _refer("group")},
        "groups",
    )
    PRIORS = (
        'a prior as "normal(0, 1)", or a table or an array of such texts',
        {"anyOf": [{"type": "string"}, {"type": "array"}, {"type": "object"}]},
        "priors correlations",
    )
    WEIGHTING = "uniform or step_size", {"type": "string", "enum": list(WEIGHTINGS)}, "weighting"
    PRECISION = "float32 or float64", {"type": "string", "enum": ["float32", "float64"]}, "dtype"

    def __init__(self, words: str, schema: dict[str, Any], names: str = ""):
        self.words, self.schema, self.names = words, schema, names.split()

    @property
    def plain(self) -> type | tuple[type, ...] | None:
        """The type of a value that stands for itself; None for tables, functions and arrays."""
        return IN_PYTHON.get(self.schema.get("type", ""))


IN_PYTHON: dict[str, type | tuple[type, ...]] = {"number": (int, float), "integer": int, "boolean": bool, "string": str}
"""The plain types of JSON Schema."""
NAMED = {name: wanted for wanted in Type for name in wanted.names}
"""What may stand for arguments of these names, wherever they are."""
PLAIN = {int: Type.WHOLE, float: Type.NUMBER, bool: Type.FLAG, str: Type.TEXT, Callable: Type.FUNCTION}
"""What may stand for arguments with these annotations; for all others numbers."""
DATA = {"csv": Type.TEXT, "response": Type.TEXT, "intercept": Type.FLAG}
"""What a target may give in place of `X` and `y`: a CSV file, its column of responses, and whether to add a column of ones."""


@dataclasses.dataclass(frozen=True)
class PieceKind:
    """One kind of piece: its name in files, and the function that makes it."""

    name: str
    make: Callable

    @functools.cached_property
    def _parameters(self) -> list[inspect.Parameter]:
        found = inspect.signature(self.make).parameters.values()
        return [parameter for parameter in found if parameter.kind is not parameter.VAR_KEYWORD]

    @functools.cached_property
    def arguments(self) -> dict[str, Type]:
        """The names of the arguments, and what may stand for each."""
        return {p.name: NAMED.get(p.name) or _type_of(p.annotation) for p in self._parameters}

    @functools.cached_property
    def required(self) -> list[str]:
        """The arguments without a default."""
        return [p.name for p in self._parameters if p.default is p.empty]

    def meaning(self, argument: str) -> str:
        """What the docstring says of an argument."""
        text = inspect.getdoc(self.make) or ""
        for names, words in re.findall(r"^- ((?:`\w+`(?:, )?)+): (.*?)(?=^- |^$|\Z)", text, re.M | re.S):
            if f"`{argument}`" in names:
                return " ".join(words.split())
        return ""

    def schema(self, left_out: tuple[str, ...] = ()) -> dict[str, Any]:
        """The table of this kind as JSON Schema, without its `kind`; arguments that are `left_out` are not required."""
        return {
            "title": self.name,
            "description": (inspect.getdoc(self.make) or "").split("\n")[0],
            "type": "object",
            "properties": {n: {**t.schema, "description": self.meaning(n)} for n, t in self.arguments.items()},
            "required": [name for name in self.required if name not in left_out],
            "additionalProperties": False,
        }


def _type_of(annotation: Any) -> Type:
    """What may stand for an argument with this annotation; a None beside a type is the argument left out."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        among = [one for one in typing.get_args(annotation) if one is not types.NoneType]
        annotation = among[0] if len(among) == 1 else None
    return PLAIN.get(typing.get_origin(annotation) or annotation, Type.NUMBERS)


def rotations(dim, rate=1.0) -> dynamics.Dynamics:
    """D = I and Q = blockdiag(rate [[0, -1], [1, 0]]), without a matrix.

    **Arguments:**

    - `dim`: the number of parameters; left out: the target's.
    - `rate`: one number, or one for each pair.
    """
    return dynamics.nonreversible(dynamics.rotations(dim, rate))


def streamed_regression(X_file, y_file, family: str, prior_scale: float = 1.0) -> targets.StreamedRegression:
    """A regression over the rows of two .npy files, which stay on disk.

    **Arguments:**

    - `X_file`: rows × columns, float32 or float64.
    - `y_file`: one number a row.
    - `family`: linear, logistic or poisson.
    - `prior_scale`: σ₀ > 0 of the prior N(0, σ₀² I).
    """
    return targets.StreamedRegression(data.Mapped(X_file, y_file), family, prior_scale)


def _kinds(*makers: Callable, **named: Callable) -> dict[str, PieceKind]:
    """Kinds by name: of classes and functions by their own, `LinearRegression` as `linear_regression`, and those named."""
    own = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", make.__name__).lower(): make for make in makers}
    return {name: PieceKind(name, make) for name, make in {**own, **named}.items()}


def _public(module: Any, base: type) -> list[Callable]:
    """The classes of a module that derive from a class and can be made, and the functions that are annotated to return one."""
    found = [getattr(module, name) for name in module.__all__]
    classes = [one for one in found if isinstance(one, type) and issubclass(one, base) and not inspect.isabstract(one)]
    makers = [one for one in found if inspect.isfunction(one) and one.__annotations__.get("return") is base]
    return makers or classes


_SCHEMES = {name: functools.partial(schemes.find, name) for name in schemes.SCHEMES}
KINDS: dict[Type, Mapping[str, PieceKind]] = {
    Type.TARGET: _kinds(*_public(targets, targets.Target), streamed_regression=streamed_regression),
    Type.DYNAMICS: _kinds(*_public(dynamics, dynamics.Dynamics), rotations=rotations),
    Type.ORACLE: _kinds(*_public(oracles, oracles.Oracle)),
    Type.COORDINATES: _kinds(coordinates.Linear, coordinates.Bijection),
    Type.OBSERVABLE: _kinds(*_public(observables, observables.Observable)),
    Type.SCHEME: _kinds(**{**_SCHEMES, "balanced": schemes.balanced}),
    Type.OPERATOR: _kinds(rotations=dynamics.rotations),
    Type.LIKELIHOOD: _kinds(*families.LIKELIHOODS),
}
"""The kinds of pieces, by what they are and by name."""
PLAN, GROUP = PieceKind("plan", Plan), PieceKind("group", Group)


def kind_named(given: Any, among: Mapping[str, PieceKind]) -> PieceKind | None:
    """The kind of a name; `LinearRegression`, as in Python, is `linear_regression`."""
    names = {name.replace("_", ""): kind for name, kind in among.items()}
    return names.get(str(given).replace("_", "").lower())


def plan_schema() -> dict[str, Any]:
    """Return the JSON Schema of plan files as plain values."""
    npy = {
        "type": "object",
        "properties": {"npy": {"type": "string"}},
        "required": ["npy"],
        "additionalProperties": False,
    }
    table = {"type": "object", "additionalProperties": _refer("parameters")}
    definitions = {
        "array": {"type": "array", "items": {"anyOf": [{"type": "number"}, _refer("array")]}},
        "stored": npy,
        "numbers": {"anyOf": [{"type": "number"}, _refer("array"), _refer("stored")]},
        "parameters": {"anyOf": [_refer("numbers"), table]},
        "function": {"type": "string", "pattern": r"^[^:\s]+:[^:\s]+$"},
        "group": GROUP.schema(),
        **{
            wanted.name.lower(): {"anyOf": [_piece_schema(wanted, kind) for kind in kinds.values()]}
            for wanted, kinds in KINDS.items()
        },
    }
    return {"$schema": DRAFT, **PLAN.schema(), "title": "A plan file of gyromc", "$defs": definitions}


def _piece_schema(wanted: Type, kind: PieceKind) -> dict[str, Any]:
    """The table of one kind; the data of a target may come from a CSV file."""
    from_file = wanted is Type.TARGET and {"X", "y"} <= set(kind.arguments)
    left_out = ("dim",) if wanted is Type.DYNAMICS else ("X", "y") if from_file else ()
    table = kind.schema(left_out)
    names = sorted({kind.name, kind.name.title().replace("_", "")})
    table["properties"] = {"kind": {"enum": names}, **table["properties"]}
    table["required"] = ["kind", *table["required"]]
    if from_file:
        table["properties"] |= {name: one.schema for name, one in DATA.items()}
        table["anyOf"] = [{"required": ["X", "y"]}, {"required": ["csv", "response"]}]
    return table
