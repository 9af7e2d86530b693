"""Converts a `DataTable` into a response y and a matrix X: a column per number, and per category but the reference."""

import dataclasses
from typing import Any

import numpy as np

from gyromc.app.fit.columns import as_numbers, as_text
from gyromc.app.fit.datatable import DataTable
from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.show.numbers import counted, listed

__all__ = ["CategoricalColumn", "Encoding", "NumericColumn", "Response"]


@dataclasses.dataclass(frozen=True)
class NumericColumn:
    """A column of numbers, used unchanged; `fill` replaces a missing value, which is refused where that is None."""

    kind: str = dataclasses.field(default="numeric", init=False)
    name: str
    fill: float | None = None
    note: str = ""

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its columns in X."""
        return (self.name,)

    @property
    def treatment(self) -> str:
        """What became of the column."""
        return self.note or "as it is"

    def encode(self, table: DataTable) -> np.ndarray:
        """Return its columns of X."""
        column = table.columns[self.name]
        values, bad = as_numbers(column)
        if bad.any():
            raise InvalidInput(
                f"{table.path}, {table.place(bad)}: column {self.name!r} is numeric, but holds {column[bad].iloc[0]!r}. "
                "Correct it, or leave it empty and pass `--impute`."
            )
        missing = np.isnan(values)
        if missing.any():
            values = np.where(missing, _fill(self, table, missing), values)
        return values[:, None]


@dataclasses.dataclass(frozen=True)
class CategoricalColumn:
    """A column of categories: one column of zeros and ones per level, none for the reference, whose effect is the intercept's."""

    kind: str = dataclasses.field(default="categorical", init=False)
    name: str
    levels: tuple[str, ...]
    reference: str
    fill: str | None = None
    note: str = ""

    @property
    def shown(self) -> tuple[str, ...]:
        """The levels that have a column of their own."""
        return tuple(level for level in self.levels if level != self.reference)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of its columns in X."""
        return tuple(f"{self.name}[{level}]" for level in self.shown)

    @property
    def treatment(self) -> str:
        """What became of the column."""
        text = f"{counted(len(self.levels), 'level')}: {self._known()}; reference {self.reference!r}"
        return f"{text}; {self.note}" if self.note else text

    def encode(self, table: DataTable) -> np.ndarray:
        """Return its columns of X; a level that the fitted data do not have is refused."""
        values = as_text(table.columns[self.name])
        missing = values.isna().to_numpy()
        if missing.any():
            values = values.fillna(_fill(self, table, missing))
        new = ~values.isin(self.levels).to_numpy()
        if new.any():
            raise InvalidInput(
                f"{table.path}, {table.place(new)}: column {self.name!r} has the category {values[new].iloc[0]!r}, which the "
                f"fitted data do not have ({counted(int(new.sum()), 'row')} like that). Known: {self._known()}. "
                "The fit knows nothing about it: correct the value, or remove the row."
            )
        return np.column_stack([values.eq(level).to_numpy(float) for level in self.shown])

    def _known(self) -> str:
        return listed([repr(level) for level in self.levels])


@dataclasses.dataclass(frozen=True)
class Response:
    """The target column: its model and why, and the labels of its classes, for `logistic` the positive one last."""

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
    """The map from a table to (X, y); `dropped` has the columns left out, each with the reason."""

    features: tuple[NumericColumn | CategoricalColumn, ...]
    response: Response
    dropped: tuple[tuple[str, str], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of X's columns."""
        return tuple(name for feature in self.features for name in feature.outputs)

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns a table must have to be predicted for."""
        return tuple(feature.name for feature in self.features)

    def design(self, table: DataTable) -> np.ndarray:
        """Return X: one row per row of the table, no column for the intercept."""
        for name in self.needs:
            table.require_column(name, "needed by the fit")
        return np.column_stack([feature.encode(table) for feature in self.features])

    def rows(self) -> list[tuple[str, str, str]]:
        """Return name, kind and treatment of each column of the file."""
        used = [(feature.name, feature.kind, feature.treatment) for feature in self.features]
        return used + [(name, "dropped", reason) for name, reason in self.dropped]


def _fill(feature: NumericColumn | CategoricalColumn, table: DataTable, missing: np.ndarray) -> Any:
    """Return what replaces the missing values; raise where they are refused."""
    require(
        feature.fill is not None,
        f"{table.path}: column {feature.name!r} lacks {counted(int(missing.sum()), 'value')}, the first at "
        f"{table.place(missing)}. Fill them in, remove those rows, or fit with `--impute`.",
    )
    return feature.fill
