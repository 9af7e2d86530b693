"""From a `DataTable` to a response y and a matrix X: the `Encoding` that `recognition` learns, and the `DesignRows` it makes."""

import collections
import dataclasses
import functools
from collections.abc import Collection
from typing import Any

import numpy as np

from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.regression.problem import GroupTerm, cut
from gyromc.show.numbers import counted, listed
from gyromc.tables.datatable import DataTable, as_numbers, as_text, ordered, pandas_module
from gyromc.tables.formula import FormulaDesign
from gyromc.targets.families import FAMILIES
from gyromc.targets.likelihoods import LinkFunction

RULES = {
    "weights": ("a number of 0 or more", lambda x: x >= 0),
    "offset": ("a finite number", np.isfinite),
    "exposure": ("a positive number", lambda x: x > 0),
    "trials": ("a whole number of 1 or more", lambda x: (x >= 1) & (x == np.round(x))),
    "censored": ("0 or 1", lambda x: (x == 0) | (x == 1)),
    "event": ("0 or 1", lambda x: (x == 0) | (x == 1)),
}
PREDICTING = ("offset", "exposure", "trials")  # roles whose columns new rows must have
PARTS = ("year", "month", "weekday", "days")
# In the order in which they are tried; a time after the date is left out.
FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%b-%Y", "%d %b %Y", "%d %B %Y")


@dataclasses.dataclass(frozen=True, eq=False)
class DesignRows:
    """What a fit has to know of each row, except the response; None where a model has no such thing."""

    X: np.ndarray
    groups: tuple[GroupTerm, ...] = ()
    offset: np.ndarray | None = None
    weights: np.ndarray | None = None
    trials: np.ndarray | None = None
    censored: np.ndarray | None = None
    clusters: np.ndarray | None = None

    def take(self, rows: np.ndarray) -> "DesignRows":
        return DesignRows(**cut({field.name: getattr(self, field.name) for field in dataclasses.fields(self)}, rows))

    def beside(self) -> dict[str, Any]:
        """Return what fits and predictions take beside X, by name."""
        found = {"groups": self.groups or None, "offset": self.offset, "trials": self.trials, "censored": self.censored}
        return {name: value for name, value in found.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class NumericColumn:
    """A column of numbers, used unchanged, from `low` to `high`; `fill` replaces a missing value, which None refuses."""

    kind: str = dataclasses.field(default="numeric", init=False)
    name: str
    fill: float | None = None
    note: str = ""
    low: float | None = None
    high: float | None = None

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.name,)

    @property
    def treatment(self) -> str:
        return self.note or "as it is"

    def values(self, table: DataTable) -> np.ndarray:
        values, bad = as_numbers(table.columns[self.name])
        remedy = "Correct it, or leave it empty and pass `--impute`."
        table.refuse(bad, f"column {self.name!r} is numeric, but holds", remedy, table.columns[self.name])
        missing = np.isnan(values)
        return np.where(missing, _fill(self, table, missing), values) if missing.any() else values


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
        return tuple(level for level in self.levels if level != self.reference)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{self.name}[{level}]" for level in self.shown)

    @property
    def treatment(self) -> str:
        known = f"{counted(len(self.levels), 'level')}: {listed(list(map(repr, self.levels)))}"
        return f"{known}; reference {self.reference!r}{f'; {self.note}' if self.note else ''}"

    def values(self, table: DataTable) -> Any:
        """Return its categories as a pandas Categorical, the reference first; a level that was not fitted is refused."""
        values = as_text(table.columns[self.name])
        missing = values.isna().to_numpy()
        if missing.any():
            values = values.fillna(_fill(self, table, missing))
        known = f"Known: {listed(list(map(repr, self.levels)))}. Correct the value, or remove the row."
        new = ~values.isin(self.levels).to_numpy()
        table.refuse(new, f"column {self.name!r} has the category", f"The fitted data do not have it. {known}", values)
        return pandas_module().Categorical(values, categories=[self.reference, *self.shown])


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
        return self.censored is not None or self.event is not None

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.given.values()))

    def require(self, target: str, model: str) -> None:
        known, logs = FAMILIES[model].known, [name for name, one in FAMILIES.items() if one.link is LinkFunction.LOG]
        for role, name in self.given.items():
            require(name != target, f"`--{role} {name}`: that is the target itself.")
        counts = f"`--exposure` multiplies an expected count: it suits {', '.join(logs)}, not {model}. Use `--offset`."
        require(self.exposure is None or model in logs, counts)
        successes = "`--trials` is for counts of successes: pass `--family binomial` or `--family beta-binomial`"
        require(self.trials is None or "trials" in known, f"{successes}, not {model}.")
        needed = f"The family {model} needs the number of trials of each row: pass `--trials COLUMN`."
        require(self.trials is not None or "trials" not in known, needed)
        times = "`--censored` and `--event` are for times: pass `--family weibull` or `--family exponential`"
        require(not self.survival or "censored" in known, f"{times}, not {model}.")
        require(not (self.censored and self.event), "`--event` says the opposite of `--censored`. Pass one of them.")

    def numbers(self, table: DataTable, roles: Collection[str]) -> dict[str, np.ndarray]:
        """Return the numbers of those of the roles that a column has."""
        found = {}
        for role, name in [(role, name) for role, name in self.given.items() if role in roles]:
            table.require_column(name, f"--{role}")
            found[role], bad = as_numbers(table.columns[name])
            what, rule = RULES[role]
            wrong = bad | np.isnan(found[role]) | ~rule(np.nan_to_num(found[role], nan=1.0))
            text = f"`--{role} {name}` must be {what}, but is"
            table.refuse(wrong, text, "Correct it, or remove the row.", table.columns[name])
        return found


@dataclasses.dataclass(frozen=True)
class DateColumn:
    """A column of dates, its format and the day from which days are counted."""

    name: str
    format: str | None
    first: str

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(f"{self.name}_{part}" for part in PARTS)

    @property
    def note(self) -> str:
        made = f"{self.name!r} (read as {self.format}) becomes {', '.join(self.outputs)}"
        return f"{made}; days are counted from {self.first}."

    def apply(self, table: DataTable) -> DataTable:
        # Files of earlier versions have no format for typed dates.
        pandas, format = pandas_module(), self.format or FORMATS[0]
        table.require_column(self.name, "--dates")
        taken = [name for name in self.outputs if name in table.columns]
        require(not taken, f"`--dates {self.name}` would make a second column {taken[:1]}. Rename that one.")
        texts = _days(table, self.name)
        days = pandas.to_datetime(texts, format=format, errors="coerce")
        wrong = (days.isna() & texts.notna()).to_numpy()
        table.refuse(wrong, f"the date {self.name!r} is", f"It is no date of the format {format}. Correct it.", texts)
        texts = (names.str[:3].astype("str") for names in (days.dt.month_name(), days.dt.day_name()))
        since = (days - pandas.Timestamp(self.first)).dt.days.astype(float)
        new = dict(zip(self.outputs, (days.dt.year.astype(float), *texts, since), strict=True))
        columns = {}
        for name, column in table.columns.items():
            columns |= new if name == self.name else {name: column}
        return dataclasses.replace(table, columns=columns)


def learn_dates(table: DataTable, names: list[str]) -> tuple[DateColumn, ...]:
    """Find the only format that reads all values of each column of dates, and its first day; two that do are refused."""
    pandas, found = pandas_module(), []
    for name in names:
        table.require_column(name, "--dates")
        every = _days(table, name)
        known = every.dropna()
        require(len(known), f"`--dates {name}`: the column is empty.")
        read = {f: pandas.to_datetime(every, format=f, errors="coerce") for f in FORMATS}
        fits = [f for f, days in read.items() if days.notna().sum() == len(known)]
        # Refuses nothing where a format reads all.
        best = max(read.values(), key=lambda days: days.notna().sum())
        remedy = "It is no date like the others. Write dates as 2024-03-31."
        table.refuse((best.isna() & every.notna()).to_numpy(), f"`--dates {name}` reads", remedy, every)
        several = f"`--dates {name}`: {known.iloc[0]!r} could be read as {' or '.join(fits)}, and so could all others."
        require(len(fits) == 1, f"{several} Write dates as 2024-03-31.")
        found.append(DateColumn(name, fits[0], read[fits[0]].min().date().isoformat()))
    return tuple(found)


def _days(table: DataTable, name: str):
    return as_text(table.columns[name]).str.replace(r"[T ]\d{1,2}:\d{2}.*$", "", regex=True)


@dataclasses.dataclass(frozen=True)
class Response:
    """The target column: its model and why, and the labels of its classes, for `logistic` the positive one last."""

    name: str
    model: str
    classes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def positive(self) -> str | None:
        family = FAMILIES[self.model]
        return self.classes[-1] if self.classes and not family.vector and not family.cutpoints else None

    def encode(self, table: DataTable) -> np.ndarray:
        """Return numbers, or the places of the labels in `classes`."""
        column = table.columns[self.name]
        if not self.classes:
            return as_numbers(column)[0]
        return as_text(column).map({label: i for i, label in enumerate(self.classes)}).to_numpy(int)


@dataclasses.dataclass(frozen=True)
class GroupFactor:
    """The columns that a group term groups by, and the levels of the fitted rows: "a:b" for two columns."""

    columns: tuple[str, ...]
    levels: tuple[str, ...]

    @property
    def name(self) -> str:
        return ":".join(self.columns)

    @classmethod
    def learn(cls, table: DataTable, columns: tuple[str, ...]) -> "GroupFactor":
        found = cls(columns, ())
        levels = tuple(ordered(found.labels(table)))
        message = f"The grouping column {found.name!r} has one level only, {levels[0]!r}: there are no groups."
        require(len(levels) > 1, message)
        return cls(columns, levels)

    def labels(self, table: DataTable) -> Any:
        """Return the level of each row; a missing one is refused."""
        texts = [as_text(table.columns[name]) for name in self.columns]
        for name, column in zip(self.columns, texts, strict=True):
            remedy = "Fill it in, or remove the row."
            table.refuse(column.isna().to_numpy(), f"the grouping column {name!r} lacks a value", remedy)
        return functools.reduce(lambda left, right: left + ":" + right, texts)

    def index(self, table: DataTable) -> np.ndarray:
        """Return the place of each row's level, −1 for one that the fitted rows do not have."""
        return pandas_module().Index(self.levels).get_indexer(self.labels(table))


@dataclasses.dataclass(frozen=True)
class Encoding:
    """The map from a table to (X, y): columns or what a `formula` makes of them, left-out columns, roles, parts of dates."""

    features: tuple[NumericColumn | CategoricalColumn, ...]
    response: Response
    dropped: tuple[tuple[str, str], ...] = ()
    formula: FormulaDesign | None = None
    factors: tuple[GroupFactor, ...] = ()
    roles: Roles = dataclasses.field(default_factory=Roles)
    dates: tuple[DateColumn, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        names = (name for feature in self.features for name in feature.outputs)
        return tuple(names) if self.formula is None else self.formula.names

    @property
    def sources(self) -> dict[str, str]:
        """The column of the file, or the term of the formula, that each column of X comes from."""
        if self.formula is not None:
            return dict(zip(self.formula.names, self.formula.sources, strict=True))
        return {name: feature.name for feature in self.features for name in feature.outputs}

    @property
    def intercept(self) -> bool:
        return self.formula is None or self.formula.intercept

    @property
    def needs(self) -> tuple[str, ...]:
        """The columns a file must have to be predicted for."""
        made = {name: date.name for date in self.dates for name in date.outputs}
        groups = [name for factor in self.factors for name in factor.columns]
        roles = [name for role, name in self.roles.given.items() if role in PREDICTING]
        every = [*(feature.name for feature in self.features), *groups, *roles]
        return tuple(dict.fromkeys(made.get(name, name) for name in every))

    def dated(self, table: DataTable) -> DataTable:
        """Return a table with parts of dates in place of dates."""
        for date in self.dates:
            table = date.apply(table) if date.name in table.columns else table
        return table

    def frame(self, table: DataTable) -> dict[str, Any]:
        """Return what a formula computes with; it tells the number of rows where that is nothing, too."""
        return {feature.name: feature.values(table) for feature in self.features} or {"": np.zeros(table.num_rows)}

    def rows_of(self, table: DataTable, fitted: bool = True) -> DesignRows:
        """Return all that a fit takes of each row; for new rows, `fitted=False`, no weights and clusters."""
        table = self.dated(table)
        groups = [name for factor in self.factors for name in factor.columns]
        for name in [*(feature.name for feature in self.features), *groups]:
            table.require_column(name, "needed by the fit")
        frame, terms = self.frame(table), ()
        numbers = self.roles.numbers(table, RULES if fitted else PREDICTING)
        offsets = [numbers["offset"]] if "offset" in numbers else []
        offsets += [np.log(numbers["exposure"])] if "exposure" in numbers else []
        if self.formula is None:
            columns = []
            for one in self.features:
                values = frame[one.name]
                numeric = isinstance(one, NumericColumn)
                columns += [values] if numeric else [np.asarray(values == level, float) for level in one.shown]
            X = np.column_stack(columns)
        else:
            X = self.formula.matrix(frame)
            for row, column in np.argwhere(~np.isfinite(X))[:1]:
                term = self.formula.sources[column]
                used = [name for name in self.formula.columns if name in term and name in table.columns]
                shown = listed([f"{name} = {table.columns[name].iloc[row]}" for name in used], 3)
                where = f"{table.path}, {table.place(np.array([row]))}: `{term}` is {X[row, column]:g} there"
                every = f"and in {counted(int(np.sum(~np.isfinite(X).all(axis=1))), 'row')} altogether"
                remedy = "Change the term, as in log1p(x), or remove those rows."
                raise InvalidInput(f"{where}{f' ({shown})' if used else ''}, {every}. {remedy}")
            for own in self.formula.offsets(frame):
                table.refuse(~np.isfinite(own), "the formula's offset is not finite", "Correct it.")
                offsets.append(own)
            terms = self._groups(table, frame, fitted)
        offset, clusters = np.sum(offsets, axis=0) if offsets else None, None
        if fitted and (cluster := self.roles.cluster) is not None:
            table.require_column(cluster, "--cluster")
            texts = as_text(table.columns[cluster])
            lacks = f"{table.path}: `--cluster {cluster}` lacks values. Fill them in, or remove those rows."
            require(not texts.isna().any(), lacks)
            clusters = np.unique(texts.to_numpy(str), return_inverse=True)[1]
        censored = 1 - numbers["event"] if "event" in numbers else numbers.get("censored")
        return DesignRows(X, terms, offset, numbers.get("weights"), numbers.get("trials"), censored, clusters)

    def _groups(self, table: DataTable, frame: dict[str, Any], fitted: bool) -> tuple[GroupTerm, ...]:
        assert self.formula is not None
        found: list[GroupTerm] = []
        seen: collections.Counter[str] = collections.Counter()
        for factor, (group, columns, Z) in zip(self.factors, self.formula.group_matrices(frame), strict=True):
            if fitted:
                index, levels = factor.index(table), factor.levels
            # Each level of new rows is a group of its own where the fitted rows lack it.
            else:
                index, own = pandas_module().factorize(factor.labels(table))
                levels = tuple(map(str, own))
            for block in [slice(None)] if group.correlated else [slice(i, i + 1) for i in range(len(columns))]:
                # The second term of a factor `g` is called `g.1`, as in lme4.
                name = f"{factor.name}.{seen[factor.name]}" if seen[factor.name] else factor.name
                seen[factor.name] += 1
                found.append(GroupTerm(name, columns[block], Z[:, block], index, levels))
        return tuple(found)

    def notes(self, table: DataTable) -> list[str]:
        """Say what is unusual about new rows: values outside the fitted range, unknown levels of a grouping column."""
        table, found = self.dated(table), []
        words = lambda count, one, many: f"{counted(count, 'new row')} {one if count == 1 else many}"
        for one in self.features:
            if isinstance(one, NumericColumn) and one.low is not None and one.high is not None:
                values = one.values(table)
                if outside := int(np.sum((values < one.low) | (values > one.high))):
                    bounds = f"({one.low:.6g} to {one.high:.6g}): those predictions extrapolate."
                    found.append(f"{words(outside, 'lies', 'lie')} outside the fitted range of {one.name!r} {bounds}")
        for factor in dict.fromkeys(self.factors):
            if unknown := int(np.sum(factor.index(table) < 0)):
                drawn = "predicted for a new level, drawn from the distribution of levels."
                level = f"a level of {factor.name!r} that the fitted rows do not have"
                found.append(f"{words(unknown, 'has', 'have')} {level}: {drawn}")
        return found

    def rows(self) -> list[tuple[str, str, str]]:
        used = [(feature.name, feature.kind, feature.treatment) for feature in self.features]
        used += [(one.name, "grouping", counted(len(one.levels), "level")) for one in dict.fromkeys(self.factors)]
        used += [(name, role, "no predictor") for role, name in self.roles.given.items()]
        return used + [(name, "dropped", reason) for name, reason in self.dropped]


def _fill(feature: NumericColumn | CategoricalColumn, table: DataTable, missing: np.ndarray) -> Any:
    lacks = f"{table.path}: column {feature.name!r} lacks {counted(int(missing.sum()), 'value')}"
    remedy = "Fill them in, remove those rows, or fit with `--impute`."
    require(feature.fill is not None, f"{lacks}, the first at {table.place(missing)}. {remedy}")
    return feature.fill
