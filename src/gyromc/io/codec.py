"""Values as plain data, and back: what archives hold and what processes send each other.

Stored are plain values, arrays, members of enumerations, and frozen dataclasses or Equinox modules of a table of known classes,
or what their method `to_archive` returns (`from_archive` makes them again). Reading runs no code of the data: it makes classes of
the table only, and checks every field against its annotation (type, shape, kind of number) before it is set.
"""

import dataclasses
import enum
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, Union

import equinox as eqx
import jax
import numpy as np
from jaxtyping import jaxtyped

from gyromc.checks import require, shown

NUMBERS = "fiub"
"""The kinds of arrays that are stored: floats, whole numbers with and without a sign, truth values."""


class Packed(NamedTuple):
    """A value as plain JSON, and the arrays that it refers to by name."""

    content: Any
    arrays: Mapping[str, np.ndarray]


def known_classes(*given: type, below: Iterable[type] = ()) -> dict[str, type]:
    """A table of classes by name: those given, and all classes of gyromc that derive from those of `below`."""
    found = list(given)
    for base in below:
        if base.__module__.partition(".")[0] == __name__.partition(".")[0]:
            found += [base, *known_classes(below=base.__subclasses__()).values()]
    return {known.__name__: known for known in found}


@dataclasses.dataclass(frozen=True)
class Codec:
    """The way between values and plain data: the classes it knows by name, and how it names functions (`References`), if at all.

    ```python
    import dataclasses
    from gyromc.io.codec import Codec
    @dataclasses.dataclass(frozen=True)
    class Point:
        place: tuple[int, ...]
    codec = Codec({"Point": Point})
    assert codec.unpack(codec.pack(Point((1, 2)))) == Point((1, 2))
    ```
    """

    classes: Mapping[str, type]
    functions: Any = None

    def pack(self, value: Any) -> Packed:
        """A value as plain JSON and arrays; `InvalidInput` for what cannot be stored."""
        arrays: dict[str, np.ndarray] = {}
        return Packed(self._plain(value, arrays), arrays)

    def unpack(self, packed: Any) -> Any:
        """The value of a `content` with its `arrays`; data that `pack` did not make raise errors of many kinds."""
        return self._value(packed.content, packed.arrays)

    def _plain(self, value: Any, arrays: dict[str, np.ndarray]) -> Any:
        inside = lambda v: self._plain(v, arrays)
        name, known = type(value).__name__, self.classes.get(type(value).__name__) is type(value)
        if isinstance(value, enum.Enum) and known:
            return {"member": value.name, "of": name}
        if value is None or isinstance(value, bool | int | str):
            return value
        # Before float, which np.float64 is.
        if isinstance(value, np.generic):
            return {"scalar": value.dtype.str, "value": inside(value.item())}
        if isinstance(value, float):
            return value if math.isfinite(value) else {"number": repr(value)}
        if isinstance(value, np.ndarray | jax.Array):
            return _plain_array(value, arrays)
        if name in ("tuple", "list") and isinstance(value, tuple | list):
            return {name: [inside(v) for v in value]}
        if self.functions is not None and (names := getattr(value, "_fields", None)):
            return {"class": inside(type(value)), "fields": {key: inside(getattr(value, key)) for key in names}}
        if isinstance(value, Mapping):
            return {"pairs": [[inside(k), inside(v)] for k, v in value.items()]}
        if (own := getattr(type(value), "to_archive", None)) is not None:
            fields = own(value)
            require(known, f"A {name} cannot be saved: `{type(value).__module__}` is no module of gyromc.")
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            require(known or self.functions is not None, f"A {name} cannot be saved.")
            own = [f.name for f in dataclasses.fields(value) if f.init or isinstance(value, eqx.Module)]
            fields = {key: getattr(value, key) for key in own if hasattr(value, key)}
        else:
            require(self.functions is not None, f"A {name} cannot be saved.")
            return self.functions.pack(value)  # type: ignore[union-attr]  # required above
        stored = {key: inside(entry) for key, entry in fields.items()}
        return {"class": name if known else inside(type(value)), "fields": stored}

    def _value(self, value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
        inside = lambda v: self._value(v, arrays)
        if not isinstance(value, dict):
            return value
        if "class" in value:
            name, fields = value["class"], {key: inside(entry) for key, entry in value["fields"].items()}
            return _made(self.classes[name], fields) if isinstance(name, str) else _as_it_was(inside(name), fields)
        if "member" in value:
            return self.classes[value["of"]][value["member"]]  # type: ignore[index]  # an enumeration
        if "array" in value:
            return arrays[value["array"]]
        if "scalar" in value:
            kind = np.dtype(value["scalar"])
            if kind.kind not in NUMBERS:
                raise ValueError(f"a number of type {kind}")
            return kind.type(inside(value["value"]))
        if "texts" in value:
            return np.array(value["texts"], dtype=str).reshape(value["shape"])
        if "pairs" in value:
            return {inside(k): inside(v) for k, v in value["pairs"]}
        if "number" in value:
            return float(value["number"])
        if self.functions is not None and not {"tuple", "list"} & set(value):
            return self.functions.unpack(value)
        ((kind, entries),) = value.items()
        return {"tuple": tuple, "list": list}[kind](inside(v) for v in entries)


def _plain_array(value: np.ndarray | jax.Array, arrays: dict[str, np.ndarray]) -> Any:
    require(getattr(value.dtype, "kind", "") in tuple("OU" + NUMBERS), f"An array of {value.dtype} cannot be saved.")
    value = np.asarray(value)
    if value.dtype.kind in "OU":
        return {"texts": [str(text) for text in value.ravel()], "shape": list(value.shape)}
    arrays[f"{len(arrays)}"] = value
    return {"array": f"{len(arrays) - 1}"}


def _made(known: type, fields: dict[str, Any]) -> Any:
    """An instance of a class of the table, by its constructor where that takes these fields, with all its checks."""
    if (make := getattr(known, "from_archive", None)) is not None:
        return make(**fields)
    check_fields(known, fields)
    if set(fields) <= set(inspect.signature(known).parameters):
        return known(**fields)
    return _as_it_was(known, fields)


def _as_it_was(known: type, fields: dict[str, Any]) -> Any:
    """An instance with these fields. Those of an Equinox module are set as they were, prepared ones too, without `__init__`."""
    if not isinstance(known, type) or not issubclass(known, eqx.Module):
        return known(**fields)
    if unknown := set(fields) - {field.name for field in dataclasses.fields(known)}:
        raise ValueError(f"{known.__name__} has no field {', '.join(sorted(unknown))}")
    made = object.__new__(known)
    for key, entry in fields.items():
        object.__setattr__(made, key, entry)
    for base in known.__mro__:
        if "__check_init__" in vars(base):
            base.__check_init__(made)
    return made


def check_fields(known: type, fields: Mapping[str, Any]) -> None:
    """Raise `ValueError` where a field of a dataclass is missing or does not fit its annotation; named dimensions must agree."""
    hints = _hints(known)
    with jaxtyped("context"):
        for field in dataclasses.fields(known):
            if field.name not in fields:
                if (field.default, field.default_factory) != (dataclasses.MISSING, dataclasses.MISSING):
                    continue
                raise ValueError(f"{known.__name__} lacks its field {field.name}")
            value, hint = fields[field.name], hints[field.name]
            if not _fits(value, hint):
                wanted, got = getattr(hint, "__name__", None) or str(hint), shown(value)
                if isinstance(value, np.ndarray):
                    got = f"an array of {value.dtype}, {value.shape}"
                raise ValueError(f"{known.__name__}.{field.name} must be {wanted}: got {got}")


_hints = functools.cache(typing.get_type_hints)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of an annotated type; the shapes of arrays are those of the surrounding context."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in inner)
    if origin is Literal:
        return value in inner
    if origin is tuple:
        if not isinstance(value, tuple):
            return False
        wanted = inner[:1] * len(value) if inner[1:] == (...,) else inner
        return len(value) == len(wanted) and all(map(_fits, value, wanted))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(_fits(k, inner[0]) and _fits(v, inner[1]) for k, v in value.items())
    if Callable in (hint, origin):
        return callable(value)
    if hint in (int, float):
        good = (int, np.integer) if hint is int else (int, float, np.integer, np.floating)
        # A whole number that no float holds is none.
        held = hint is int or not isinstance(value, int) or abs(value) < 2**1023
        return isinstance(value, good) and not isinstance(value, bool) and held
    return isinstance(value, (bool, np.bool_) if hint is bool else hint)
