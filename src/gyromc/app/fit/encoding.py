"""Converts a table into a design matrix X and a response y.

Input: a `DataTable`. Output: numbers, one column of X per numeric column and one per category that is not the reference. An
`Encoding` is stored with the results, so that new rows are encoded exactly as the old ones were.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from gyromc.app.fit.columns import as_numbers, as_text
from gyromc.app.fit.datatable import DataTable
from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.show.numbers import counted

__all__ = ["CategoricalColumn", "Encoding", "NumericColumn", "Response"]


@dataclasses.dataclass(frozen=True)
class NumericColumn:
    """A column of numbers, used unchanged.

    **Attributes:**

    - `name`: of the column.
    - `fill`: replaces a missing value; `None`: missing values are refused.
    - `note`: a remark for the reader.
    """

    name: str
    fill: float | None = None
    note: str = ""

    kind = "numeric"

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its columns in X."""
        return (self.name,)

    def encode(self, table: DataTable) -> np.ndarray:
        """Return its columns of X."""
        values, bad = as_numbers(table.columns[self.name])
        if bad.any():
            row = int(np.flatnonzero(bad)[0])
            raise InvalidInput(
                f"{table.path}, {table.place(row)}: column {self.name!r} is numeric, but holds "
                f"{table.columns[self.name].iloc[row]!r}. Correct it, or leave it empty and pass `--impute`."
            )
        missing = np.isnan(values)
        if missing.any():
            values = np.where(missing, _fill(self, table, missing), values)
        return values[:, None]


@dataclasses.dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories: one column of zeros and ones per level that is not the reference.

    **Attributes:**

    - `name`: of the column; `levels`: all that occur, in order.
    - `reference`: the level whose effect is in the intercept: its rows are all zeros.
    - `fill`: replaces a missing value; `None`: missing values are refused.
    - `note`: a remark for the reader.
    """

    name: str
    levels: tuple[str, ...]
    reference: str
    fill: str | None = None
    note: str = ""

    kind = "categorical"

    @property
    def shown(self) -> tuple[str, ...]:
        """The levels that have a column of their own."""
        return tuple(level for level in self.levels if level != self.reference)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its columns in X."""
        return tuple(f"{self.name}[{level}]" for level in self.shown)

    def encode(self, table: DataTable) -> np.ndarray:
        """Return its columns of X; a level that the fitted data do not have is refused."""
        values = as_text(table.columns[self.name])
        missing = values.isna().to_numpy()
        if missing.any():
            values = values.fillna(_fill(self, table, missing))
        new = ~values.isin(self.levels).to_numpy()
        if new.any():
            row = int(np.flatnonzero(new)[0])
            raise InvalidInput(
                f"{table.path}, {table.place(row)}: column {self.name!r} has the category {values.iloc[row]!r}, which the "
                f"fitted data do not have ({counted(int(new.sum()), 'row')} like that). Known: {_some(self.levels)}. "
                "The fit knows nothing about it: correct the value, or remove the row."
            )
        return np.column_stack([values.eq(level).to_numpy(float) for level in self.shown])


@dataclasses.dataclass(frozen=True)
class Response:
    """The target column.

    **Attributes:**

    - `name`: of the column.
    - `model`: `linear`, `logistic`, `softmax` or `poisson`.
    - `classes`: the labels in order, for `logistic` the positive one last; empty for numbers.
    - `reason`: why that model, in a sentence.
    """

    name: str
    model: str
    classes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def positive(self) -> str | None:
        """The class whose probability a logistic regression gives."""
        return self.classes[-1] if self.model == "logistic" else None

    def encode(self, table: DataTable) -> np.ndarray:
        """Return numbers, or the places of the labels in `classes`."""
        column = table.columns[self.name]
        if not self.classes:
            return as_numbers(column)[0]
        places = {label: i for i, label in enumerate(self.classes)}
        return as_text(column).map(places).to_numpy(int)


@dataclasses.dataclass(frozen=True)
class Encoding:
    """The map from a table to (X, y).

    **Attributes:**

    - `features`: the columns used, in order; `response`: the target.
    - `dropped`: columns left out, each with the reason; `notes`: what was done to the rows.
    """

    features: tuple[NumericColumn | CategoricalColumn, ...]
    response: Response
    dropped: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of X's columns."""
        return tuple(name for feature in self.features for name in feature.outputs)

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns a table must have to be predicted for."""
        return tuple(feature.name for feature in self.features)

    def design(self, table: DataTable) -> np.ndarray:
        """Return X: one row per row of the table, no column for the intercept.

        **Arguments:**

        - `table`: with at least the columns in `needs`, in any order.
        """
        for name in self.needs:
            table.require_column(name, "needed by the fit")
        return np.column_stack([feature.encode(table) for feature in self.features])

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, kind and treatment of each column of the file."""
        found = []
        for f in self.features:
            if isinstance(f, CategoricalColumn):
                became = f"{counted(len(f.levels), 'level')}: {_some(f.levels)}; reference {f.reference!r}"
            else:
                became = "" if f.note else "as it is"
            found.append((f.name, f.kind, "; ".join(part for part in (became, f.note) if part)))
        return found + [(name, "dropped", reason) for name, reason in self.dropped]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {
            "features": [{"kind": f.kind, **dataclasses.asdict(f)} for f in self.features],
            "response": dataclasses.asdict(self.response),
            "dropped": [list(pair) for pair in self.dropped],
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, value: dict[str, Any]) -> "Encoding":
        """Return the encoding that `to_dict` described.

        ```python
        from gyromc.app.fit.encoding import CategoricalColumn, Encoding, NumericColumn, Response
        features = NumericColumn("age"), CategoricalColumn("sex", ("f", "m"), "f")
        encoding = Encoding(features, Response("ill", "logistic", ("no", "yes")))
        assert Encoding.from_dict(encoding.to_dict()) == encoding
        ```
        """
        kinds = {"numeric": NumericColumn, "categorical": CategoricalColumn}
        features = tuple(kinds[entry["kind"]](**_fields(entry)) for entry in value["features"])
        dropped = tuple((name, reason) for name, reason in value["dropped"])
        return cls(features, Response(**_fields(value["response"])), dropped, tuple(value["notes"]))


def _some(texts: Sequence[str], most: int = 6) -> str:
    return ", ".join(map(repr, texts[:most])) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def _fill(feature: NumericColumn | CategoricalColumn, table: DataTable, missing: np.ndarray) -> Any:
    """Return what replaces the missing values; raise where they are refused."""
    row = int(np.flatnonzero(missing)[0])
    require(
        feature.fill is not None,
        f"{table.path}: column {feature.name!r} lacks {counted(int(missing.sum()), 'value')}, the first at {table.place(row)}. "
        "Fill them in, remove those rows, or fit with `--impute`.",
    )
    return feature.fill


def _fields(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a column or response, with tuples for JSON's lists."""
    return {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items() if k != "kind"}
