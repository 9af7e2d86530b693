"""From the options of a fit to its numbers: files read, columns recognised, rows held out, priors read; nothing is fitted.

All that can be wrong with files and options is found here, before any computation. Columns that give the target away (copies,
recodings) are named: a model with such a column scores well and says nothing about rows whose target is not known.
"""

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.checks import positive, require, shown, whole
from gyromc.errors import InvalidInput
from gyromc.regression.adequacy.residuals import FEW_LEVELS
from gyromc.regression.problem import GroupTerm, settable
from gyromc.regression.scores import held_out_rows
from gyromc.show.numbers import counted, did_you_mean, listed
from gyromc.tables.datatable import DataTable, as_numbers, as_text, is_dates, pandas_module, read_table, split_names
from gyromc.tables.encoding import PARTS, DateColumn, DesignRows, Encoding, NumericColumn, Roles, learn_dates
from gyromc.tables.formula import Formula, evaluate, read_formula, response_of
from gyromc.tables.recognition import Wishes, complete_rows, families_of, rare_levels, recognise, recognise_response
from gyromc.tables.request import Request
from gyromc.targets.families import FAMILIES
from gyromc.targets.priors import Prior

MOST_BYTES = 20_000_000  # of a file that is read a second time for the columns that a model leaves out
MOST_UNUSED, MOST_GROUPS = 12, 100  # such columns, and levels of one
FEW = 5  # rows in which anything agrees by chance
ENOUGH = 20  # rows that are in one order by chance once in 20!/2
ROUNDING = 1e-6  # of a standard deviation, in a copy written with fewer digits
Names = Sequence[str]


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A fit before it is computed: its rows, of which `test` are held out first, new rows, checks, priors and columns left out.

    The encoding has the first of the `families` to be compared, which begin with the simplest.
    """

    table: DataTable
    encoding: Encoding
    rows: DesignRows
    y: np.ndarray
    train: np.ndarray
    test: np.ndarray
    new: tuple[DataTable, DesignRows] | None
    notes: list[str]
    given_away: dict[str, Any]
    priors: dict[str, Prior]
    families: tuple[str, ...] = ()
    unused: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


def prepare(request: Request, data: Any = None) -> Prepared:
    """Read the files of a request, or the data frame that stands for its file, and decide what its columns are."""
    whole(request.seed, "seed", least=0)
    positive(request.prior_scale, "prior_scale")
    target, data = _target(request), request.data if data is None else data
    roles = Roles(**{field.name: getattr(request, field.name) for field in dataclasses.fields(Roles)})
    table, formula, dates = _read(request, data, target, roles)
    require(request.missing in (None, "drop"), f"`--missing` takes drop: got {shown(request.missing)}.")
    table, left_out = complete_rows(table, target, request.impute, request.missing == "drop")
    wishes = _wishes(request, table, target, formula=formula, roles=roles, dates=dates)
    families = families_of(table, target, wishes)
    if families:
        wishes = dataclasses.replace(wishes, model=families[0])
    response = recognise_response(table, target, wishes)
    y = response.encode(table)
    share = 0.0 if roles.survival else request.test_fraction  # scores of censored times would not be those of times
    test = held_out_rows(y if response.classes else None, table.num_rows, share, request.seed)
    train = np.setdiff1d(np.arange(table.num_rows), test)
    encoding = recognise(table, target, wishes, train)
    rows = encoding.rows_of(table)
    if rows.trials is not None and np.any(more := y > rows.trials):
        table.refuse(more, f"{y[more][0]:g} successes of {rows.trials[more][0]:g} trials", "Correct the row.")
    possible = families or (encoding.response.model,)
    if request.robust or request.cluster is not None:
        both = "`--robust` and `--cluster` are for"
        group = rows.groups[0].name if rows.groups else ""
        remedy = f"Leave (… | {group}) out and pass `--cluster {group}`; or leave the option out."
        require(not rows.groups, f"{both} models without group terms. {remedy}")
        remedy = "Leave the option out, or compare two classes at a time with `--family logistic`."
        each = "one linear predictor; a softmax regression has one for each class"
        require("softmax" not in possible, f"{both} {each}. {remedy}")
    new, about_new = None, []
    if request.predict is not None:  # before anything is computed: a wrong file is known at once
        needs = encoding.needs
        lines = read_table(request.predict, needs[:1], keep=needs, role="needed by the fit", **request.text)
        new, about_new = (lines, encoding.rows_of(lines, fitted=False)), encoding.notes(lines)
    notes = [*table.notes, *(date.note for date in dates), *left_out, *rare_levels(table, encoding, rows.X), *about_new]
    if roles.survival and request.test_fraction > 0:
        notes.append("no rows are held out, since times may be censored: LOO judges the predictions.")
    elif not test.size and request.test_fraction > 0:
        notes.append(f"{counted(table.num_rows, 'row')} are too few to hold any out: no scores.")
    priors = asked_priors(request.prior, encoding.sources, rows.groups, encoding.intercept, possible)
    checked = giveaway_check(table, encoding, y, rows.X), priors, families, _unused(request, data, table)
    return Prepared(table, encoding, rows, y, train, test, new, notes, *checked)


def _unused(request: Request, data: Any, table: DataTable) -> dict[str, np.ndarray]:
    """Return the columns that the fit leaves out: levels as whole numbers, others as numbers; none of large or odd files."""
    if isinstance(data, str) and Path(data).exists() and Path(data).stat().st_size > MOST_BYTES:
        return {}
    try:
        others = lambda names: [name for name in names if name not in table.columns]
        rest = read_table(data, choose=others, **request.text, sheet=request.sheet)
    except InvalidInput:  # a column that the model does not read may hold anything
        return {}
    rest = rest.take(np.searchsorted(rest.lines, table.lines))
    found: dict[str, np.ndarray] = {}
    # Dropped on purpose: only rows that depend on each other are worth a word.
    dropped = split_names(request.drop, rest.columns)
    for name, column in list(rest.columns.items())[:MOST_UNUSED]:
        if is_dates(column) or column.isna().any():
            continue
        values, bad = as_numbers(column)
        codes, levels = pandas_module().factorize(as_text(column))
        whole = bad.any() or bool(np.all(values == np.round(values)))
        numeric = not bad.any() and name not in dropped and not (whole and len(levels) == table.num_rows)
        if whole and (FEW_LEVELS if name in dropped else 2) <= len(levels) <= min(MOST_GROUPS, table.num_rows // 2):
            found[name] = codes.astype(int)
        elif numeric and len(levels) > 2:
            found[name] = values
    return found


def _target(request: Request) -> str:
    both = f": got both, {request.target!r} and {request.formula!r}" if request.target and request.formula else ""
    either = f"either `--target COLUMN`, from all other columns, or `--formula 'y ~ x1 + x2'`{both}."
    require((request.target is None) != (request.formula is None), f"Say what to predict: {either}")
    if request.formula is None:
        return str(request.target)
    itself = "`--columns` and `--drop` go with `--target`: a formula says itself which columns it uses (`y ~ . - id`)."
    require(not request.columns and not request.drop, itself)
    return response_of(request.formula)


def _read(
    request: Request, data: Any, target: str, roles: Roles
) -> tuple[DataTable, Formula | None, tuple[DateColumn, ...]]:
    """Read the table; with a formula, only the columns that it uses, and a response such as log(y) as one more column."""
    options = {**request.text, "sheet": request.sheet}
    named, text = {name: f"--{role}" for role, name in roles.given.items()}, request.formula
    made = {f"{name}_{part}": name for name in request.dates for part in PARTS}

    def used(names) -> list[str]:
        assert text is not None
        every = [*(name for name in names if name not in roles.columns and name not in request.dates), *made]
        found = read_formula(text, every)
        columns = [*found.response.columns, *found.predictors, *found.grouping]
        return [*dict.fromkeys(made.get(name, name) for name in columns), *roles.columns]

    if text is None:
        keep = (target, *(name for name in roles.columns if name != target))
        table = read_table(data, request.columns, request.drop, keep, role={**named, target: "target"}, **options)
    else:
        table = read_table(data, keep=roles.columns, role=named, choose=used, **options)
    dates = learn_dates(table, split_names(request.dates, table.columns))
    for date in dates:
        table = date.apply(table)
    if text is None:
        return table, None, dates
    formula = read_formula(text, [name for name in table.columns if name not in roles.columns])
    response, frame = formula.response, {}
    if response.text in response.columns:
        return table, formula, dates
    for name in response.columns:
        frame[name], bad = as_numbers(table.columns[name])
        needs = f"the response `{response.text}` needs numbers, but {name!r} is"
        table.refuse(bad, needs, "Correct it.", table.columns[name])
    values = evaluate(response, frame)
    wrong = ~np.isfinite(values) & ~np.any(np.isnan(list(frame.values())), axis=0)
    table.refuse(wrong, f"the response `{response.text}` is", "Change the response, or remove those rows.", values)
    columns = {**table.columns, response.text: pandas_module().Series(values)}
    return dataclasses.replace(table, columns=columns), formula, dates


def _wishes(request: Request, table: DataTable, target: str, **learned: Any) -> Wishes:
    """What the user asks of the columns, with lists of names split; `learned` are formula, roles and dates."""
    reference = {}
    for text in request.reference:
        column, sign, level = text.partition("=")
        require(sign, f"`--reference` takes COLUMN=LEVEL: got {shown(text)}.")
        reference[column] = level
    categorical = split_names(request.categorical, table.columns)
    require(target not in categorical, f"{target!r} is the target: for classes pass `--family logistic`.")
    order = tuple(part.strip() for part in request.order.split(",")) if request.order else ()
    asked = {"model": request.family, "impute": request.impute, "positive": request.positive}
    return Wishes(**asked, categorical=tuple(categorical), reference=reference, order=order, **learned)


def asked_priors(
    texts: Names, sources: Mapping[str, str], groups: Sequence[GroupTerm], intercept: bool, families: Names
) -> dict[str, Prior]:
    """Return the priors by name; what is named itself goes before its term, that before `all`."""
    domains = {}
    for family in reversed(families):
        domains |= settable(FAMILIES[family], list(sources), intercept, groups)
    named = {name: (2, [name]) for name in domains}
    for column, source in sources.items():
        if source not in sources:  # a term of several columns goes before a parameter of its name
            rank, columns = named.get(source, (2, []))
            named[source] = 1, [*(columns if rank == 1 else []), column]
    named.setdefault("all", (0, list(sources)))
    found: dict[tuple[int, str], Prior] = {}
    for text in texts:
        name, sign, form = text.rpartition("=")
        name = name.strip()
        require(sign and name, f"`--prior` takes NAME=LAW, as in 'age=normal(0, 1)': got {shown(text)}.")
        prior = Prior.read(form, f"`--prior {text}`: the law")
        hint = did_you_mean(name, list(named), "There are")
        require(name in named, f"`--prior` names {name!r}, which is no coefficient, parameter, term or group. {hint}")
        rank, targets = named[name]
        for target in targets:
            prior.require(domains[target], f"`--prior {text}`: {target}")
            require((rank, target) not in found, f"`--prior` names {target} twice. Keep one of them.")
            found[rank, target] = prior
    return {target: found[rank, target] for rank, target in sorted(found, key=lambda key: key[0])}


def giveaway_check(table: DataTable, encoding: Encoding, y: np.ndarray, X: np.ndarray) -> dict[str, Any]:
    """Return the row of the table of checks on columns that determine the target in all rows, alone or together."""
    found, numeric, target = {}, not encoding.response.classes, encoding.response.name
    for feature in encoding.features:
        known = table.columns[feature.name].notna().to_numpy()
        column, own = table.columns[feature.name][known], y[known]
        if len(own) < FEW:
            continue
        codes, targets = (pandas_module().factorize(values)[0].astype(np.int64) for values in (column, own))
        levels, values = codes.max() + 1, targets.max() + 1
        repeated = len(own) >= FEW * levels or (levels == values and 2 * levels <= len(own))
        alone = levels > 1 and repeated and len(np.unique(codes * values + targets)) == levels
        how = "has only one value of the target with each of its own" if alone else None
        if numeric and isinstance(feature, NumericColumn):
            x = as_numbers(column)[0]
            steps = np.diff(own[np.argsort(x, kind="stable")])
            if _determined(x[:, None], own):
                how = "is the target, shifted or rescaled or as it is, in every row"
            elif len(x) >= ENOUGH and len(np.unique(x)) == len(x) and (np.all(steps > 0) or np.all(steps < 0)):
                how = "is in the order of the target in every row"
        if how:
            found[feature.name] = f"{feature.name!r} {how}"
    drops = " ".join(f"`--drop {shlex.quote(name)}`" for name in list(found)[:5] or ["COLUMN"])
    if not found and numeric and _determined(X, y):
        found[""] = "a linear combination of the columns equals the target in every row"
    meaning = f"If that comes from {target!r} itself, scores and coefficients mean nothing: pass {drops}."
    none = f"none is a copy or a recoding of {target!r}."
    sentence = f"{listed(list(found.values()), 5)}. {meaning}" if found else none
    return {"name": "columns that give the target away", "good": not found, "sentence": sentence}


def _determined(X: np.ndarray, y: np.ndarray) -> bool:
    """Whether a linear combination of the columns equals y, in more rows than that takes."""
    if not X.shape[1] or len(y) < X.shape[1] + FEW or y.std() == 0:
        return False
    scale = X.std(axis=0)
    Z, v = (X - X.mean(axis=0)) / np.where(scale > 0, scale, 1.0), (y - y.mean()) / y.std()
    return bool(np.max(np.abs(v - Z @ np.linalg.lstsq(Z, v, rcond=None)[0])) < ROUNDING)
