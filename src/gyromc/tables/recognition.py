"""What the columns of a table are, from all their values and the user's wishes: numbers or categories, and the target's family.

An ambiguous column is refused, not guessed: the error names column, line, value and remedy.
"""

import dataclasses
import re
import shlex
from collections.abc import Mapping, Sequence

import numpy as np

from gyromc.checks import require, shown
from gyromc.errors import InvalidInput
from gyromc.show.numbers import counted, listed
from gyromc.tables import datatable
from gyromc.tables.datatable import DataTable, adorned, as_numbers, as_text, is_dates, ordered, require_scale
from gyromc.tables.encoding import CategoricalColumn, DateColumn, Encoding, GroupFactor, NumericColumn, Response, Roles
from gyromc.tables.formula import Formula, FormulaDesign, read_formula
from gyromc.targets.families import FAMILIES, family_named
from gyromc.targets.likelihoods import ResponseKind

MAX_LEVELS, MAX_CLASSES = 50, 50  # of a text column that `--categorical` does not name, and of a target
PLAIN = "Write plain numbers (1234.5); for decimal commas pass `--decimal ,`;"
FEW_ROWS = 3  # with fewer rows a level's coefficient is mostly the prior's
MOST_PROBLEMS = 12
Feature = NumericColumn | CategoricalColumn
FEW_VALUES = 10  # different texts in so few rows need not be identifiers; so few whole numbers may be counts or classes


@dataclasses.dataclass(frozen=True)
class Wishes:
    """What the user asks of the columns, as the options of `request.Request` say it; `reference` has levels by column."""

    model: str | None = None
    impute: bool = False
    categorical: tuple[str, ...] = ()
    positive: str | None = None
    reference: Mapping[str, str] = dataclasses.field(default_factory=dict)
    order: tuple[str, ...] = ()
    formula: Formula | None = None
    roles: Roles = dataclasses.field(default_factory=Roles)
    dates: tuple[DateColumn, ...] = ()


def complete_rows(table: DataTable, target: str, impute: bool, drop: bool = False) -> tuple[DataTable, tuple[str, ...]]:
    """Return the rows that have a target value and, if `impute` lets others be left out, a note that says how many."""
    empty = datatable.pandas_module().DataFrame(dict(table.columns)).isna()
    gone = empty[target].to_numpy()
    require(not gone.all(), f"The target {target!r} of {table.path} has no values at all.")
    note = "without a target left out."
    if drop:
        lacking = empty.loc[:, empty.any() & ~empty.all()]
        gone = lacking.any(axis=1).to_numpy()
        most = lacking.sum().sort_values(ascending=False, kind="stable")
        some = listed([f"{name} ({count})" for name, count in most.items()])
        every = f"Every row of {table.path} lacks a value: {some}. `--drop` the columns that lack most."
        require(not gone.all(), every)
        note = f"of {table.num_rows} left out, since values are missing: {some}."
    elif gone.any():
        others = "".join(f" Besides: {text}" for text in _missing(table, [n for n in table.columns if n != target]))
        lacks = f"The target {target!r} lacks {counted(int(gone.sum()), 'value')}, the first at {table.place(gone)}."
        require(impute, f"{lacks} Remove those rows, or pass `--impute`, which leaves them out.{others}")
    if not gone.any():
        return table, ()
    return table.take(np.flatnonzero(~gone)), (f"{counted(int(gone.sum()), 'row')} {note}",)


def recognise(table: DataTable, target: str, wishes: Wishes, train: np.ndarray | None = None) -> Encoding:
    """Decide what every column is; medians and most frequent categories come from the rows `train`, levels from all."""
    train = np.arange(table.num_rows) if train is None else train
    for name in (*wishes.categorical, *wishes.reference):
        table.require_column(name, "--categorical" if name in wishes.categorical else "--reference")
    response, formula = recognise_response(table, target, wishes), wishes.formula
    taken = (target, *wishes.roles.columns)
    names = [name for name in table.columns if name not in taken] if formula is None else list(formula.predictors)
    require(names or formula, f"{table.path} has no column besides the target {target!r}: nothing to predict it from.")
    dropped = {name: reason for name in names if (reason := _useless(table, name, wishes.impute)) is not None}
    reasons = "; ".join(f"{name} is {reason}" for name, reason in dropped.items())
    available = [name for name in table.columns if name not in wishes.roles.columns and name not in dropped]
    if formula is None:
        names = [name for name in names if name not in dropped]
        require(names, f"No column is left to predict {target!r} from: {reasons}.")
    elif dropped:
        name, reason = next(iter(dropped.items()))
        every = re.search(r"(?<![\w.`)])\.(?![\w.])", formula.text)  # the sign for all other columns
        require(every, f"Column {name!r} of the formula is {reason}: it predicts nothing. Remove it from the formula.")
        formula = read_formula(formula.text, available)
        names = list(formula.predictors)
    if formula is not None:
        wishes = dataclasses.replace(wishes, categorical=(*wishes.categorical, *formula.categorical))
    features = _features(table, names, wishes, train)
    encoding = Encoding(features, response, tuple(dropped.items()), roles=wishes.roles, dates=wishes.dates)
    if formula is not None:
        for one in features:
            text = f"The formula computes with {one.name!r}, which holds categories. Use it without a function."
            require(isinstance(one, NumericColumn) or one.name not in formula.numeric, text)
        factors = tuple(GroupFactor.learn(table, group.factor) for group in formula.groups)
        design = FormulaDesign.learn(formula, available, encoding.frame(table))
        encoding = dataclasses.replace(encoding, formula=design, factors=factors)
    names = encoding.names
    require(
        names or encoding.intercept, "The formula has neither a column nor an intercept: for a mean alone write y ~ 1."
    )
    called = f"A column of {table.path} is called 'intercept', as the constant. Rename it, or pass `--drop intercept`."
    require("intercept" not in names, called)
    twice = next((name for name in names if names.count(name) > 1), None)
    require(twice is None, f"Two coefficients would be called {twice!r}. Rename a column of {table.path}.")
    many = f"The columns become {len(names)} coefficients; at most {datatable.MAX_COLUMNS} are possible. `--drop` some."
    require(len(names) <= datatable.MAX_COLUMNS, many)
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
    few = f"fewer than {FEW_ROWS} rows have {'; '.join(found)}. These levels are kept, and their coefficients are mostly what the"
    note = f"{few} prior says: join them with others if they are not of interest.{''.join(references)}"
    return [note] if found else []


def _features(table: DataTable, names: Sequence[str], wishes: Wishes, train: np.ndarray) -> tuple[Feature, ...]:
    """Recognise each column; one error lists all that is wrong with any of them."""
    features, problems = [], []
    for name in names:
        try:
            features.append(_feature(table, name, wishes, train))
        except InvalidInput as problem:
            problems.append(str(problem))
    if not wishes.impute:
        problems += _missing(table, names)
    many = [f"{len(problems)} problems with {table.path}:", *(f"- {p}" for p in problems[:MOST_PROBLEMS])]
    many += [f"… and {len(problems) - MOST_PROBLEMS} more."] if len(problems) > MOST_PROBLEMS else []
    require(not problems, "\n".join(many if len(problems) > 1 else problems))
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
    lacking = {name: count for name in names if (count := int(table.columns[name].isna().sum()))}
    if not lacking:
        return []
    name = next(iter(lacking))
    some = listed([f"{n} ({c})" for n, c in sorted(lacking.items(), key=lambda pair: -pair[1])], 10)
    first = table.place(table.columns[name].isna().to_numpy())
    lacks = f"{table.path} lacks values in {counted(len(lacking), 'column')} (of {table.num_rows} rows): {some}; the first of"
    remedy = "Fill them in, `--drop` the columns, or pass `--missing drop` (leaves these rows out) or `--impute`"
    return [f"{lacks} {name!r} at {first}. {remedy} (median of numbers, most frequent category)."]


def _feature(table: DataTable, name: str, wishes: Wishes, train: np.ndarray) -> Feature:
    column = table.columns[name]
    if is_dates(column):
        parts = f"Pass `--dates {name}` for year, month, weekday and days since the first, or `--drop {name}`."
        raise InvalidInput(f"Column {name!r} holds dates or times, such as {column.dropna().iloc[0]!s}. {parts}")
    if name in wishes.categorical or name in wishes.reference:
        return _categorical(table, name, wishes, train, forced=True)
    values, bad = as_numbers(column)
    if not bad.any():
        return _numeric(name, values, wishes, train)
    # A column that is nearly numeric is not treated as categories.
    texts, count, known = as_text(column[bad]), int(bad.sum()), int(column.notna().sum())
    here, first = f"{table.path}, {table.place(bad)}: column {name!r}", repr(texts.iloc[0])
    if adorned(texts) and texts.nunique() > 2:
        looks = f"{here} has {first}, which looks like a number but is not written as one ({count} of {known} values)."
        raise InvalidInput(f"{looks} {PLAIN} for codes `--categorical {name}`.")
    like = f"is numeric in {known - count} rows, but holds {first} here ({counted(count, 'value')} like that)"
    remedy = f"Correct it; leave it empty and pass `--impute`; or pass `--categorical {name}` if these are codes."
    require(2 * count > known, f"{here} {like}. {remedy}")
    return _categorical(table, name, wishes, train, forced=False)


def _numeric(name: str, values: np.ndarray, wishes: Wishes, train: np.ndarray) -> NumericColumn:
    known = values[~np.isnan(values)]
    require_scale(known, f"Column {name!r}")
    distinct, missing = np.unique(known), values.size - known.size
    notes, fill = [], None
    if wishes.impute:
        seen = values[train][~np.isnan(values[train])]
        fill = float(np.median(seen if seen.size else known))
        notes += [f"{counted(missing, 'missing value')} replaced by {fill:.6g}, the median"] if missing else []
    if 2 < distinct.size <= 6 and np.all(distinct == np.round(distinct)):
        notes.append(f"only {', '.join(f'{v:g}' for v in distinct)}: if these are codes, pass `--categorical {name}`")
    elif distinct.size == values.size > FEW_VALUES and np.array_equal(known, np.arange(known.size) + known[0]):
        notes.append(f"counts the rows: an index? If so, pass `--drop {name}`")
    return NumericColumn(name, fill, "; ".join(notes), float(known.min()), float(known.max()))


def _categorical(table: DataTable, name: str, wishes: Wishes, train: np.ndarray, forced: bool) -> CategoricalColumn:
    column = as_text(table.columns[name])
    levels, known = ordered(column.dropna()), int(column.notna().sum())
    identifies = f"such as {levels[0]!r}: it identifies rows and cannot predict. Pass `--drop {name}`."
    few = forced or len(levels) < known or known <= FEW_VALUES
    require(few, f"Column {name!r} has a different text in every row, {identifies}")
    many = f"{len(levels)} different texts in {known} rows, such as {levels[0]!r} and {levels[-1]!r}"
    remedy = f"Pass `--drop {name}`, group the rare ones, or pass `--categorical {name}`."
    most = f"Column {name!r} has {many}; at most {MAX_LEVELS} are treated as categories. {remedy}"
    require(forced or len(levels) <= MAX_LEVELS, most)
    reference = wishes.reference.get(name, levels[0])
    its = ", ".join(map(repr, levels[:12]))
    require(reference in levels, f"`--reference {name}={reference}`: {name!r} has no such level. Its levels: {its}.")
    plainly = "categories, though they look like numbers: write those plainly (1000, 31)"
    notes, fill, missing = [plainly] if not forced and adorned(column.dropna()) else [], None, len(column) - known
    if wishes.impute:
        seen = column.iloc[train].dropna()
        fill = str((seen if len(seen) else column.dropna()).mode().iloc[0])
        notes += [f"{counted(missing, 'missing value')} replaced by {fill!r}, the most frequent"] if missing else []
    return CategoricalColumn(name, tuple(levels), reference, fill, "; ".join(notes))


def recognise_response(table: DataTable, target: str, wishes: Wishes) -> Response:
    """Choose the model and the classes from the target's values and the user's wishes."""
    column = table.columns[target]
    model = None if wishes.model is None else family_named(wishes.model)
    no_law = f"{wishes.model} is no law of the target, so that it has no posterior."
    remedy = "Pass `--family negative-binomial` or `--family beta-binomial`; or `--family poisson` with `--robust`."
    require(model is None or not model.startswith("quasi"), f"{no_law} {remedy}")
    require(model in (None, *FAMILIES), f"Unknown family {shown(model)}: there are {', '.join(FAMILIES)}; or auto.")
    dates = f"The target {target!r} holds dates, such as {column.iloc[0]!s}: no model here predicts those."
    require(not is_dates(column), dates)
    values, bad = as_numbers(column)
    distinct = ordered(as_text(column))
    one = f"The target {target!r} has only one value, {distinct[0]!r}, in {counted(table.num_rows, 'row')}"
    require(len(distinct) > 1, f"{one}: there is nothing to learn. Check that the file holds all classes.")
    reason = "asked for" if model is None or model == wishes.model else f"asked for as {wishes.model}"
    if model == "binomial" and wishes.roles.trials is None and len(distinct) == 2:
        model, reason = "logistic", "asked for as binomial; a row is one trial"
    if model is None and wishes.roles.survival:
        model, reason = "weibull", "chosen because times may be censored"
    if model is None:
        model, reason = _choose_model(target, column, values, bad, distinct)
    wishes.roles.require(target, model)
    require(not wishes.order or model == "ordinal", f"`--order` is for `--family ordinal`, not for {model}.")
    family = FAMILIES[model]
    if family.response is not ResponseKind.CLASSES:
        require(wishes.positive is None, f"`--positive` names a class, but a {model} regression has none.")
        remedy = "For classes, pass `--family logistic`." if bad.all() else "Correct it."
        needs = f"the target {target!r} must be a finite number for a {model} regression, but is"
        table.refuse(bad, needs, remedy, column)
        needs = f"a {family.words.title} needs {family.needs}, but the target {target!r} is"
        table.refuse(~family.allowed(values), needs, "Pass `--family linear` for measurements.", values)
        if family.response is ResponseKind.NUMBERS:
            require_scale(values, f"The target {target!r}")
        return Response(target, model, (), reason)
    many = f"The target {target!r} has {len(distinct)} different values; at most {MAX_CLASSES} classes are possible."
    require(len(distinct) <= MAX_CLASSES, f"{many} Pass `--family linear` for numbers.")
    if family.cutpoints:
        require(wishes.positive is None, "`--positive` is for two classes without an order, not for an ordinal target.")
        order, classes = wishes.order, ", ".join(map(repr, distinct[:12]))
        texts = f"The classes of {target!r} are texts ({classes}): say their order, as in `--order low,middle,high`."
        require(order or not bad.any(), texts)
        once = f"`--order` must list each class of {target!r} once ({classes}): got {', '.join(map(repr, order))}."
        require(not order or sorted(order) == sorted(distinct), once)
        return Response(target, model, tuple(order or distinct), reason)
    return _class_response(target, model, distinct, wishes.positive, reason)


def _choose_model(target: str, column, values, bad, distinct: Sequence[str]) -> tuple[str, str]:
    if len(distinct) == 2:
        return "logistic", f"chosen because {target!r} has two values"
    if bad.all():
        looks = f"The target {target!r} has texts such as {distinct[0]!r}, which look like numbers"
        require(not adorned(column), f"{looks} but are not written so. {PLAIN} for classes `--family logistic`.")
        many = f"too many classes (at most {MAX_CLASSES}), and no numbers. Is it the right column?"
        texts = f"The target {target!r} has {len(distinct)} different texts, such as {distinct[0]!r}"
        require(len(distinct) <= MAX_CLASSES, f"{texts}: {many}")
        return "softmax", f"chosen because {target!r} has {len(distinct)} classes"
    if bad.any():
        return "linear", "chosen because the target holds numbers"  # the odd ones are refused with their line
    whole = np.all(values == np.round(values))
    if whole and len(distinct) <= FEW_VALUES:
        counts = ", counts (`--family poisson,negative-binomial` compares both)" if values.min() >= 0 else ""
        holds = f"The target {target!r} holds {len(distinct)} different whole numbers ({', '.join(distinct)})"
        classes = f"classes (`--family softmax`, or in their order `--family ordinal`){counts}"
        raise InvalidInput(f"{holds}: choose whether they are {classes} or measurements (`--family linear`).")
    hint = "; if it counts events, pass `--family poisson`" if whole and values.min() >= 0 else ""
    return "linear", f"chosen because {target!r} holds numbers{hint}"


def _class_response(target: str, model: str, distinct: list[str], positive: str | None, reason: str) -> Response:
    count = len(distinct)
    if positive is not None:
        its = ", ".join(map(repr, distinct))
        require(positive in distinct, f"`--positive` {positive!r} is no class of the target {target!r}: {its} are.")
        every = f"`--positive` is for two classes; {target!r} has {count}, and every class gets a probability."
        require(count == 2, every)
        distinct = [c for c in distinct if c != positive] + [positive]
    two = f"A {model} regression is for two classes; {target!r} has {count}. Pass `--family softmax`."
    require(count == 2 or FAMILIES[model].vector or model == "logistic", two)
    if model == "logistic" and count > 2:
        model, reason = "softmax", f"{reason}; more than two classes: softmax"
    elif model == "softmax" and count == 2:
        model, reason = "logistic", f"{reason}; two classes: logistic"
    return Response(target, model, tuple(distinct), reason)


def families_of(table: DataTable, target: str, wishes: Wishes) -> tuple[str, ...]:
    """Return the families to compare, the simplest first; none where the user asks for one family or says nothing."""
    asked, names = wishes.model or "", []
    if asked == "auto":
        names = [*_natural(table, target, wishes)]
    elif "," in asked:
        names = [family_named(part) for part in asked.split(",") if part.strip()]
        require("auto" not in names, f"`--family {asked}`: auto stands alone, or list the families to compare.")
        unknown = [name for name in names if name not in FAMILIES]
        require(not unknown, f"Unknown family {shown(''.join(unknown[:1]))}: there are {', '.join(FAMILIES)}; or auto.")
        require(len(set(names)) == len(names), f"`--family {asked}` names a family twice.")
        numeric = [name for name in names if FAMILIES[name].response is not ResponseKind.CLASSES]
        mixed = (
            f"`--family {asked}`: {', '.join(numeric)} predict numbers, the others classes. They cannot be compared."
        )
        require(len(numeric) in (0, len(names)), mixed)
        if "logistic" in names and as_text(table.columns[target]).nunique() > 2:
            names = list(dict.fromkeys("softmax" if name == "logistic" else name for name in names))
        for name in names:
            order = wishes.order if name == "ordinal" else ()
            recognise_response(table, target, dataclasses.replace(wishes, model=name, order=order))
    return tuple(sorted(names, key=lambda name: FAMILIES[name].rank))


def _natural(table: DataTable, target: str, wishes: Wishes) -> tuple[str, ...]:
    if wishes.roles.trials is not None:
        return "binomial", "beta-binomial"
    if wishes.roles.survival:
        return "exponential", "weibull"
    column = table.columns[target]
    if wishes.order:
        return ("ordinal", "softmax") if as_text(column).nunique() > 2 else ("ordinal",)
    values, bad = as_numbers(column)
    counts = not bad.any() and bool(np.all(values == np.round(values)) and values.min() >= 0)
    if wishes.roles.exposure is not None:
        return ("poisson", "negative-binomial") if counts else ("gamma",)
    first = recognise_response(table, target, dataclasses.replace(wishes, model=None)).model
    if first != "linear":
        return (first,)
    if counts:
        return "poisson", "negative-binomial", "linear", "student-t"
    return ("linear", "student-t", "gamma") if not bad.any() and values.min() > 0 else ("linear", "student-t")
