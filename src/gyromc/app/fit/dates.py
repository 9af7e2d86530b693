"""Dates as predictors: year, month, weekday and days since the first, as columns of a table.

Input: a table and the names of columns with dates. Output: the table with four columns in place of each, and what new rows need:
the first day and the format.
"""

import dataclasses

from gyromc.app.fit.columns import pandas_module
from gyromc.app.fit.datatable import DataTable
from gyromc.checks import require
from gyromc.errors import InvalidInput

__all__ = ["PARTS", "DateColumn", "learn_dates"]

PARTS = ("year", "month", "weekday", "days")
FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%b-%Y", "%d %b %Y", "%d %B %Y")
"""Formats in the order in which they are tried; a time after the date is left out."""


@dataclasses.dataclass(frozen=True)
class DateColumn:
    """A column of dates, its format (None for typed dates) and the day from which days are counted."""

    name: str
    format: str | None
    first: str

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the columns that it becomes."""
        return tuple(f"{self.name}_{part}" for part in PARTS)

    @property
    def note(self) -> str:
        """What became of it."""
        written = f" (read as {self.format})" if self.format else ""
        return f"{self.name!r}{written} becomes {', '.join(self.outputs)}; days are counted from {self.first}."

    def apply(self, table: DataTable) -> DataTable:
        """Return the table with the four columns in place of the dates."""
        pandas = pandas_module()
        table.require_column(self.name, "--dates")
        taken = [name for name in self.outputs if name in table.columns]
        require(not taken, f"`--dates {self.name}` would make a second column {taken[:1]}. Rename that one.")
        days = _parsed(table, self.name, self.format)
        made = {
            "year": days.dt.year.astype(float),
            "month": days.dt.month_name().str[:3].astype("str"),
            "weekday": days.dt.day_name().str[:3].astype("str"),
            "days": (days - pandas.Timestamp(self.first)).dt.days.astype(float),
        }
        columns = {}
        for name, column in table.columns.items():
            new = {f"{self.name}_{part}": made[part] for part in PARTS} if name == self.name else {name: column}
            columns |= new
        return dataclasses.replace(table, columns=columns)


def learn_dates(table: DataTable, names: list[str]) -> tuple[DateColumn, ...]:
    """Find the format and the first day of each column of dates."""
    found = []
    for name in names:
        table.require_column(name, "--dates")
        known = table.columns[name].dropna()
        require(len(known), f"`--dates {name}`: the column is empty.")
        format = None if _typed(known) else _format(table, name, known)
        found.append(DateColumn(name, format, _parsed(table, name, format).min().date().isoformat()))
    return tuple(found)


def _typed(column) -> bool:
    return pandas_module().api.types.is_datetime64_any_dtype(column)


def _day(column):
    """The texts of dates without the time of the day."""
    return column.str.replace(r"[T ]\d{1,2}:\d{2}.*$", "", regex=True)


def _format(table: DataTable, name: str, known) -> str:
    """Return the only format that reads all values; two that do, such as 03/04/2024, are refused."""
    pandas = pandas_module()
    if not pandas.api.types.is_string_dtype(known):
        raise InvalidInput(f"`--dates {name}`: the column holds numbers such as {known.iloc[0]!s}, no dates.")
    days = _day(known)
    fits = [f for f in FORMATS if pandas.to_datetime(days, format=f, errors="coerce").notna().all()]
    if len(fits) == 1:
        return fits[0]
    if not fits:
        best = max(FORMATS, key=lambda f: pandas.to_datetime(days, format=f, errors="coerce").notna().sum())
        wrong = (
            pandas.to_datetime(_day(table.columns[name]), format=best, errors="coerce").isna()
            & table.columns[name].notna()
        )
        raise InvalidInput(
            f"{table.path}, {table.place(wrong.to_numpy())}: {table.columns[name][wrong].iloc[0]!r} in {name!r} is no date like "
            "the others. Write dates as 2024-03-31."
        )
    raise InvalidInput(
        f"`--dates {name}`: {days.iloc[0]!r} could be read as {' or '.join(fits)}, and so could all others. Write dates as "
        "2024-03-31."
    )


def _parsed(table: DataTable, name: str, format: str | None):
    """Return the days as timestamps; missing ones stay missing."""
    pandas = pandas_module()
    column = table.columns[name]
    if format is None:
        require(
            _typed(column), f"{table.path}: column {name!r} held typed dates in the fitted data, and holds none here."
        )
        return column.dt.tz_localize(None).dt.normalize() if column.dt.tz is not None else column.dt.normalize()
    texts = column.astype("str").where(column.notna(), None) if not pandas.api.types.is_string_dtype(column) else column
    days = pandas.to_datetime(_day(texts), format=format, errors="coerce")
    wrong = (days.isna() & column.notna()).to_numpy()
    if wrong.any():
        raise InvalidInput(
            f"{table.path}, {table.place(wrong)}: {column[wrong].iloc[0]!r} in {name!r} is no date of the format {format}. "
            "Correct it."
        )
    return days
