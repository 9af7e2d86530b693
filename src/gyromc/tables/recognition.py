"""Decides from all values of a column whether it holds numbers or categories; returns an `Encoding`."""

import dataclasses
import re
import shlex
from collections.abc import Sequence

import numpy as np

from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.show.numbers import counted, listed
from gyromc.tables.datatable import (
    MAX_COLUMNS,
    DataTable,
    adorned,
    as_numbers,
    as_text,
    is_dates,
    ordered,
    require_scale,
)
from gyromc.tables.encoding import CategoricalColumn, Encoding, GroupFactor, NumericColumn
from gyromc.tables.formula import FormulaDesign, read_formula
from gyromc.tables.response import Wishes, recognise_response

MAX_LEVELS = 50
"""A text column with more categories than this is refused unless `--categorical` names it."""
FEW_ROWS = 3  # with fewer rows a level's coefficient is mostly the prior's
MOST_PROBLEMS = 12
FEW_VALUES = 10  # with so few rows, different texts in all of them need not be identifiers


def complete_rows(table: DataTable, target: str, impute: bool, drop: bool = False) -> tuple[DataTable, tuple[str, ...]]:
    """Return the rows that have a target value and, if `impute` lets others be left out, a note that says how many."""
    missing = table.columns[target].isna().to_numpy()
    require(not missing.all(), f"The target {target!r} of {table.path} has no values at all.")
    if drop:
        lacks = {name: column.isna().to_numpy() for name, column in table.columns.items()}
        lacks = {name: mask for name, mask in lacks.items() if mask.any() and not mask.all()}
        if not lacks:
            return table, ()
        gone = np.any(list(lacks.values()), axis=0)
        most = sorted(lacks.items(), key=lambda pair: -pair[1].sum())
        some = listed([f"{name} ({mask.sum()})" for name, mask in most])
        every = f"Every row of {table.path} lacks a value: {some}. `--drop` the columns that lack most."
        require(not gone.all(), every)
        note = f"{counted(int(gone.sum()), 'row')} of {table.num_rows} left out, since values are missing: {some}."
        return table.take(np.flatnonzero(~gone)), (note,)
    if not missing.any():
        return table, ()
    others = "".join(f" Besides: {text}" for text in _missing(table, [name for name in table.names if name != target]))
    require(
        impute,
        f"The target {target!r} lacks {counted(int(missing.sum()), 'value')}, the first at {table.place(missing)}. Remove those "
        f"rows, or pass `--impute`, which leaves them out (a target is never made up).{others}",
    )
    note = f"{counted(int(missing.sum()), 'row')} without a target left out."
    return table.take(np.flatnonzero(~missing)), (note,)


def recognise(table: DataTable, target: str, wishes: Wishes | None = None, train: np.ndarray | None = None) -> Encoding:
    """Decide what every column is; medians and most frequent categories come from the rows `train`, levels from all."""
    wishes = Wishes() if wishes is None else wishes
    train = np.arange(table.num_rows) if train is None else train
    for name in (*wishes.categorical, *wishes.reference):
        table.require_column(name, "--categorical" if name in wishes.categorical else "--reference")
    response, formula = recognise_response(table, target, wishes), wishes.formula
    taken = (target, *wishes.roles.columns)
    names = [name for name in table.names if name not in taken] if formula is None else list(formula.predictors)
    require(names or formula, f"{table.path} has no column besides the target {target!r}: nothing to predict it from.")
    dropped = {name: reason for name in names if (reason := _useless(table, name, wishes.impute)) is not None}
    reasons = "; ".join(f"{name} is {reason}" for name, reason in dropped.items())
    available = [name for name in table.names if name not in wishes.roles.columns and name not in dropped]
    if formula is None:
        names = [name for name in names if name not in dropped]
        require(names, f"No column is left to predict {target!r} from: {reasons}.")
    elif dropped:
        first = next(iter(dropped))
        require(
            re.search(r"(?<![\w.`)])\.(?![\w.])", formula.text),  # the sign for all other columns
            f"Column {first!r} of the formula is {dropped[first]}: it predicts nothing. Remove it from the formula.",
        )
        formula = read_formula(formula.text, available)
        names = list(formula.predictors)
    if formula is not None:
        wishes = dataclasses.replace(wishes, categorical=(*wishes.categorical, *formula.categorical))
    features = _features(table, names, wishes, train)
    encoding = Encoding(features, response, tuple(dropped.items()), roles=wishes.roles, dates=wishes.dates)
    if formula is not None:
        for one in features:
            text = (
                f"The formula computes with {one.name!r}, which holds categories. Use it as it is, without a function."
            )
            require(isinstance(one, NumericColumn) or one.name not in formula.numeric, text)
        frame = encoding.frame(table) or {"": np.zeros(table.num_rows)}
        factors = tuple(GroupFactor.learn(table, group.factor) for group in formula.groups)
        design = FormulaDesign.learn(formula, available, frame)
        encoding = dataclasses.replace(encoding, formula=design, factors=factors)
    _require_names(encoding.names, table.path)
    return encoding


def rare_levels(table: DataTable, encoding: Encoding, X: np.ndarray) -> list[str]:
    """Name the levels and combinations of levels with fewer than `FEW_ROWS` rows, and what is done about them."""
    found, references = [], []
    for feature in encoding.features:
        if isinstance(feature, CategoricalColumn):
            counts = as_text(table.columns[feature.name]).value_counts()
            rare = [level for level in feature.levels if counts[level] < FEW_ROWS]
            some = listed([f"{level!r} ({counted(int(counts[level]), 'row')})" for level in rare], 5)
            found += [f"{feature.name!r}: {some}"] if rare else []
            if feature.reference in rare:
                option = f"pass `--reference {shlex.quote(f'{feature.name}={counts.index[0]}')}`."
                reference = f" {feature.reference!r} is the reference of {feature.name!r}"
                references.append(f"{reference}, so that all its coefficients are uncertain: {option}")
    crossed = [(name, int(np.count_nonzero(X[:, i]))) for i, name in enumerate(encoding.names) if ":" in name]
    few = [f"{name} ({counted(count, 'row')})" for name, count in crossed if "[" in name and count < FEW_ROWS]
    found += [f"combinations {listed(few, 5)}"] if few else []
    note = (
        f"fewer than {FEW_ROWS} rows have {'; '.join(found)}. These levels are kept, and their coefficients are mostly what the "
        f"prior says: join them with others if they are not of interest.{''.join(references)}"
    )
    return [note] if found else []


def _require_names(names: Sequence[str], path: str) -> None:
    called = (
        f"A column of {path} is called 'intercept', the name of the constant. Rename it, or pass `--drop intercept`."
    )
    require("intercept" not in names, called)
    twice = next((name for name in names if names.count(name) > 1), None)
    require(twice is None, f"Two coefficients would be called {twice!r}. Rename a column of {path}.")
    many = f"The columns become {len(names)} coefficients; at most {MAX_COLUMNS} are possible. `--drop` some."
    require(len(names) <= MAX_COLUMNS, many)


def _features(
    table: DataTable, names: Sequence[str], wishes: Wishes, train: np.ndarray
) -> tuple[NumericColumn | CategoricalColumn, ...]:
    """Recognise each column; one error lists all that is wrong with any of them."""
    features, problems = [], []
    for name in names:
        try:
            features.append(_feature(table, name, wishes, train))
        except InvalidInput as problem:
            problems.append(str(problem))
    if not wishes.impute:
        problems += _missing(table, names)
    if len(problems) > 1:
        more = [f"… and {len(problems) - MOST_PROBLEMS} more."] if len(problems) > MOST_PROBLEMS else []
        lines = [f"{len(problems)} problems with {table.path}:", *(f"- {p}" for p in problems[:MOST_PROBLEMS]), *more]
        raise InvalidInput("\n".join(lines))
    require(not problems, "".join(problems))
    return tuple(features)


def _useless(table: DataTable, name: str, impute: bool) -> str | None:
    known = table.columns[name].dropna()
    if known.empty:
        return "empty"
    full, texts = len(known) == table.num_rows, as_text(known)
    if texts.nunique() == 1 and (impute or full):
        return f"constant ({texts.iloc[0]!r} in every row{'' if full else ' that has a value'})"
    return None


def _missing(table: DataTable, names: Sequence[str]) -> list[str]:
    counts = {name: int(table.columns[name].isna().sum()) for name in names}
    lacking = {name: count for name, count in counts.items() if count}
    if not lacking:
        return []
    name = next(iter(lacking))
    some = listed([f"{n} ({c})" for n, c in sorted(lacking.items(), key=lambda pair: -pair[1])], 10)
    first = table.place(table.columns[name].isna().to_numpy())
    return [
        f"{table.path} lacks values in {counted(len(lacking), 'column')} (of {table.num_rows} rows): {some}; the first of "
        f"{name!r} at {first}. Fill them in, `--drop` the columns, or pass `--missing drop` (leaves these rows out) or "
        "`--impute` (median of numbers, most frequent category)."
    ]


def _feature(table: DataTable, name: str, wishes: Wishes, train: np.ndarray) -> NumericColumn | CategoricalColumn:
    column = table.columns[name]
    if is_dates(column):
        raise InvalidInput(
            f"Column {name!r} holds dates or times, such as {column.dropna().iloc[0]!s}. Pass `--dates {name}` for year, month, "
            f"weekday and days since the first, turn them into numbers that mean something, or pass `--drop {name}`."
        )
    if name in wishes.categorical or name in wishes.reference:
        return _categorical(table, name, wishes, train, forced=True)
    values, bad = as_numbers(column)
    if not bad.any():
        return _numeric(name, values, wishes, train)
    # A column that is nearly numeric is not treated as categories.
    texts, count, known = as_text(column[bad]), int(bad.sum()), int(column.notna().sum())
    here, first = f"{table.path}, {table.place(bad)}: column {name!r}", repr(texts.iloc[0])
    if adorned(texts) and texts.nunique() > 2:
        raise InvalidInput(
            f"{here} has {first}, which looks like a number but is not written as one ({count} of {known} values). Write plain "
            f"numbers (1234.5); for decimal commas pass `--decimal ,`; for codes `--categorical {name}`."
        )
    require(
        2 * count > known,
        f"{here} is numeric in {known - count} rows, but holds {first} here ({counted(count, 'value')} like that). Correct it; "
        f"leave it empty and pass `--impute`; or pass `--categorical {name}` if these are codes.",
    )
    return _categorical(table, name, wishes, train, forced=False)


def _numeric(name: str, values: np.ndarray, wishes: Wishes, train: np.ndarray) -> NumericColumn:
    known = values[~np.isnan(values)]
    require_scale(known, f"Column {name!r}")
    distinct = np.unique(known)
    note = ""
    if 2 < distinct.size <= 6 and np.all(distinct == np.round(distinct)):
        note = f"only {', '.join(f'{v:g}' for v in distinct)}: if these are codes, pass `--categorical {name}`"
    elif distinct.size == values.size > FEW_VALUES and np.array_equal(known, np.arange(known.size) + known[0]):
        note = f"counts the rows: an index? If so, pass `--drop {name}`"
    fill = None
    if wishes.impute:
        seen = values[train][~np.isnan(values[train])]
        fill = float(np.median(seen if seen.size else known))
        note = "; ".join(filter(None, (_imputed(values.size - known.size, f"{fill:.6g}, the median"), note)))
    return NumericColumn(name, fill, note, float(known.min()), float(known.max()))


def _imputed(count: int, by: str) -> str:
    return f"{counted(count, 'missing value')} replaced by {by}" if count else ""


def _categorical(table: DataTable, name: str, wishes: Wishes, train: np.ndarray, forced: bool) -> CategoricalColumn:
    column = as_text(table.columns[name])
    levels, known = ordered(column.dropna()), int(column.notna().sum())
    require(
        forced or len(levels) < known or known <= FEW_VALUES,
        f"Column {name!r} has a different text in every row, such as {levels[0]!r}: it identifies rows and cannot predict. "
        f"Pass `--drop {name}`.",
    )
    require(
        forced or len(levels) <= MAX_LEVELS,
        f"Column {name!r} has {len(levels)} different texts in {known} rows, such as {levels[0]!r} and {levels[-1]!r}; "
        f"at most {MAX_LEVELS} are treated as categories. Pass `--drop {name}`, group the rare ones, or pass "
        f"`--categorical {name}`.",
    )
    reference = wishes.reference.get(name, levels[0])
    its = ", ".join(map(repr, levels[:12]))
    require(reference in levels, f"`--reference {name}={reference}`: {name!r} has no such level. Its levels: {its}.")
    plainly = "categories, though they look like numbers: write those plainly (1000, 31)"
    notes, fill = [plainly] if not forced and adorned(column.dropna()) else [], None
    if wishes.impute:
        seen = column.iloc[train].dropna()
        fill = str((seen if len(seen) else column.dropna()).mode().iloc[0])
        notes.append(_imputed(len(column) - known, f"{fill!r}, the most frequent"))
    return CategoricalColumn(name, tuple(levels), reference, fill, "; ".join(filter(None, notes)))
