"""Results with one row per name, read by row or by column: `result["x"].mean` and `result.mean["x"]` are the same number."""

import functools
import operator
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar

import numpy as np

from gyromc.checks import shown
from gyromc.errors import InvalidInput
from gyromc.show.numbers import plain

Row = TypeVar("Row")
Value = TypeVar("Value")


class UnknownName(InvalidInput, KeyError):
    """A name that a result does not have."""

    __str__ = Exception.__str__


def plain_attributes(row: object, *names: str) -> dict[str, Any]:
    """Some attributes of a row by name, for JSON: NaN and infinities become None, pairs lists, enumerations text."""

    def of(value: Any) -> Any:
        if isinstance(value, tuple):
            return [plain(x) for x in value]
        if isinstance(value, bool | np.bool_):
            return bool(value)
        return str(value) if isinstance(value, str) else plain(value)

    return {name: of(getattr(row, name)) for name in names}


class Records(Mapping[str, Row]):
    """A mapping of names to `rows`, whose attributes a subclass lists as `Column`s; `_entry` and `_result` are for messages."""

    rows: Mapping[str, Row]
    _entry: ClassVar[str] = "observable"
    _result: ClassVar[str] = "result"

    def __getitem__(self, name: str) -> Row:
        if not isinstance(name, str) or name not in self.rows:
            raise UnknownName(f"No {self._entry} {shown(name)} in this {self._result}: it has {', '.join(self.rows)}.")
        return self.rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    # By identity: a mapping would be equal to a dictionary, and have no hash.
    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]  # that of `Mapping` is None


class Column(functools.cached_property[dict[str, Value]]):
    """One attribute of all rows of a `Records`, by name. It is computed when first read, then stored."""

    def __init__(self, doc: str):
        super().__init__(lambda of: {name: getattr(row, str(self.attrname)) for name, row in of.rows.items()})
        self.__doc__ = doc


class Forwarded(functools.cached_property[Value]):
    """An attribute of a part of an object, such as `error.std_error`, read under its own name."""

    def __init__(self, path: str, doc: str):
        super().__init__(operator.attrgetter(path))
        self.__doc__ = doc
