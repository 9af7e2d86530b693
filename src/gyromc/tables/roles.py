"""Columns that are no plain predictors: weights, offset, exposure, trials and clusters of the rows, and dates."""

import dataclasses

import numpy as np

from gyromc.checks import require
from gyromc.tables.datatable import DataTable, as_numbers, as_text, pandas_module, text_dtype
from gyromc.targets.families import FAMILIES
from gyromc.targets.likelihoods import LinkFunction

RULES = {
    "weights": ("a number of 0 or more", lambda x: x >= 0),
    "offset": ("a finite number", lambda x: np.isfinite(x)),
    "exposure": ("a positive number", lambda x: x > 0),
    "trials": ("a whole number of 1 or more", lambda x: (x >= 1) & (x == np.round(x))),
    "censored": ("0 or 1", lambda x: (x == 0) | (x == 1)),
    "event": ("0 or 1", lambda x: (x == 0) | (x == 1)),
}


@dataclasses.dataclass(frozen=True)
class Roles:
    """The column of each role, or None."""

    weights: str | None = None
    offset: str | None = None
    exposure: str | None = None
    trials: str | None = None
    cluster: str | None = None
    censored: str | None = None
    event: str | None = None

    @property
    def given(self) -> dict[str, str]:
        return {role: name for role, name in dataclasses.asdict(self).items() if name is not None}

    @property
    def survival(self) -> bool:
        """Whether times may be censored."""
        return self.censored is not None or self.event is not None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.given.values()))

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns that new rows must have to be predicted for."""
        return tuple(name for name in (self.offset, self.exposure, self.trials) if name is not None)

    def require(self, target: str, model: str) -> None:
        family, logs = FAMILIES[model], [name for name, known in FAMILIES.items() if known.link is LinkFunction.LOG]
        for role, name in self.given.items():
            require(name != target, f"`--{role} {name}`: that is the target itself.")
        counts = f"`--exposure` multiplies an expected count: it suits {', '.join(logs)}, not {model}. Use `--offset`."
        require(self.exposure is None or family.link is LinkFunction.LOG, counts)
        successes = "pass `--family binomial` or `--family beta-binomial`"
        has_trials = "trials" in family.known
        require(self.trials is None or has_trials, f"`--trials` is for counts of successes: {successes}, not {model}.")
        needed = f"The family {model} needs the number of trials of each row: pass `--trials COLUMN`."
        require(self.trials is not None or not has_trials, needed)
        times = "pass `--family weibull` or `--family exponential`"
        censored = f"`--censored` and `--event` are for times: {times}, not {model}."
        require(not self.survival or "censored" in family.known, censored)
        require(not (self.censored and self.event), "`--event` says the opposite of `--censored`. Pass one of them.")

    def numbers(self, table: DataTable, role: str) -> np.ndarray | None:
        """Return the numbers of a role, None where no column has it."""
        name = self.given.get(role)
        if name is None:
            return None
        table.require_column(name, f"--{role}")
        values, bad = as_numbers(table.columns[name])
        what, rule = RULES[role]
        wrong = bad | np.isnan(values) | ~rule(np.where(np.isnan(values), 1.0, values))
        text = f"`--{role} {name}` must be {what}, but is"
        table.refuse(wrong, text, "Correct it, or remove the row.", table.columns[name])
        return values

    def censoring(self, table: DataTable) -> np.ndarray | None:
        """Return 1 where the time is censored and 0 where the event was seen."""
        event = self.numbers(table, "event")
        return self.numbers(table, "censored") if event is None else 1 - event

    def total_offset(self, table: DataTable) -> np.ndarray | None:
        """Return the offset, the logarithm of the exposure added to it."""
        offset, exposure = self.numbers(table, "offset"), self.numbers(table, "exposure")
        if exposure is None:
            return offset
        return np.log(exposure) if offset is None else offset + np.log(exposure)

    def clusters(self, table: DataTable) -> np.ndarray | None:
        if self.cluster is None:
            return None
        table.require_column(self.cluster, "--cluster")
        texts = as_text(table.columns[self.cluster])
        lacks = f"{table.path}: `--cluster {self.cluster}` lacks values. Fill them in, or remove those rows."
        require(not texts.isna().any(), lacks)
        return np.unique(texts.to_numpy(str), return_inverse=True)[1]


NO_ROLES = Roles()


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
        return tuple(f"{self.name}_{part}" for part in PARTS)

    @property
    def note(self) -> str:
        written = f" (read as {self.format})" if self.format else ""
        return f"{self.name!r}{written} becomes {', '.join(self.outputs)}; days are counted from {self.first}."

    def apply(self, table: DataTable) -> DataTable:
        table.require_column(self.name, "--dates")
        taken = [name for name in self.outputs if name in table.columns]
        require(not taken, f"`--dates {self.name}` would make a second column {taken[:1]}. Rename that one.")
        days = _parsed(table, self.name, self.format)
        made = {
            "year": days.dt.year.astype(float),
            "month": days.dt.month_name().str[:3].astype("str"),
            "weekday": days.dt.day_name().str[:3].astype("str"),
            "days": (days - pandas_module().Timestamp(self.first)).dt.days.astype(float),
        }
        new = dict(zip(self.outputs, made.values(), strict=True))
        columns = {}
        for name, column in table.columns.items():
            columns |= new if name == self.name else {name: column}
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
    """Texts without the time after a date."""
    return column.str.replace(r"[T ]\d{1,2}:\d{2}.*$", "", regex=True)


def _format(table: DataTable, name: str, known) -> str:
    """Return the only format that reads all values; two that do, such as 03/04/2024, are refused."""
    pandas = pandas_module()
    texts = pandas.api.types.is_string_dtype(known)
    require(texts, f"`--dates {name}`: the column holds numbers such as {known.iloc[0]!s}, no dates.")
    days = _day(known)
    read = {f: pandas.to_datetime(days, format=f, errors="coerce").notna() for f in FORMATS}
    fits = [f for f, good in read.items() if good.all()]
    if not fits:
        best = max(read.values(), key=lambda good: good.sum())
        wrong = np.isin(np.arange(table.num_rows), known[~best].index)
        remedy = "It is no date like the others. Write dates as 2024-03-31."
        table.refuse(wrong, f"`--dates {name}` reads", remedy, table.columns[name])
    several = f"`--dates {name}`: {days.iloc[0]!r} could be read as {' or '.join(fits)}, and so could all others."
    require(len(fits) == 1, f"{several} Write dates as 2024-03-31.")
    return fits[0]


def _parsed(table: DataTable, name: str, format: str | None):
    """Return the days as timestamps; missing ones stay missing."""
    column = table.columns[name]
    if format is None:
        none = f"{table.path}: column {name!r} held typed dates in the fitted data, and holds none here."
        require(_typed(column), none)
        return column.dt.tz_localize(None).dt.normalize()
    texts = column.astype(text_dtype()).where(column.notna(), None)
    days = pandas_module().to_datetime(_day(texts), format=format, errors="coerce")
    wrong = (days.isna() & column.notna()).to_numpy()
    table.refuse(wrong, f"the date {name!r} is", f"It is no date of the format {format}. Correct it.", column)
    return days
