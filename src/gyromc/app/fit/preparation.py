"""From the options of a fit to its numbers: files read, columns recognised, rows held out; nothing is fitted.

Input: a `Request`. Output: a `Prepared` fit. All that can be wrong with files and options is found here, before any computation.
"""

import dataclasses
from typing import Any

import numpy as np

from gyromc.app.fit.candidates import families_of
from gyromc.app.fit.columns import as_numbers
from gyromc.app.fit.datatable import DataTable, read_table, split_names
from gyromc.app.fit.dates import DateColumn, learn_dates
from gyromc.app.fit.design import evaluate
from gyromc.app.fit.encoding import Encoding
from gyromc.app.fit.formula import Formula, read_formula, response_of
from gyromc.app.fit.giveaways import check, giveaways
from gyromc.app.fit.priors import asked_priors
from gyromc.app.fit.recognition import complete_rows, rare_levels, recognise
from gyromc.app.fit.request import Request
from gyromc.app.fit.response import Wishes, recognise_response
from gyromc.app.fit.roles import Roles
from gyromc.app.fit.rows import DesignRows
from gyromc.checks import positive, require, whole
from gyromc.errors import InvalidInput
from gyromc.regression.problem import Prior
from gyromc.regression.scores import held_out_rows
from gyromc.show.numbers import counted

__all__ = ["Prepared", "prepare", "read_new_rows"]


@dataclasses.dataclass(frozen=True, eq=False)
class Prepared:
    """A fit before it is computed.

    - `table`: the rows with a target; `encoding`: what its columns become; `rows`, `y`: the same as numbers.
    - `train`, `test`: the numbers of the rows to fit and to judge on, before all are fitted.
    - `new`: the table and the numbers of new rows to predict for, or None.
    - `notes`: what the user should know; `given_away`: the check for columns that give the target away.
    - `priors`: those that the user asks for, by coefficient or group.
    - `families`: those to be compared, the simplest first; the encoding has the first of them until then.
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


def prepare(request: Request) -> Prepared:
    """Read the files of a request and decide what its columns are."""
    whole(request.seed, "seed", least=0)
    positive(request.prior_scale, "prior_scale")
    target, roles = _target(request), _roles(request)
    table, formula, dates = _read(request, target, roles)
    table, left_out = complete_rows(table, target, request.impute)
    wishes = _wishes(request, table, target, formula, roles, dates)
    families = families_of(table, target, wishes)
    if families:
        wishes = dataclasses.replace(wishes, model=families[0])
    response = recognise_response(table, target, wishes)
    y = response.encode(table)
    test = held_out_rows(y if response.classes else None, table.num_rows, request.test_fraction, request.seed)
    train = np.setdiff1d(np.arange(table.num_rows), test)
    encoding = recognise(table, target, wishes, train)
    rows = encoding.rows_of(table)
    _require_trials(table, rows, y)
    if request.robust or request.cluster is not None:
        _require_robust(rows, families or (encoding.response.model,))
    new, about_new = None, []
    if request.predict is not None:  # before anything is computed: a wrong file is known at once
        new = read_new_rows(request.predict, encoding, encoding_of_text(request))
        about_new = encoding.notes(new[0])
    notes = [*table.notes, *(date.note for date in dates), *left_out, *rare_levels(table, encoding, rows.X), *about_new]
    if not test.size and request.test_fraction > 0:
        notes.append(f"{counted(table.num_rows, 'row')} are too few to hold any out: no scores.")
    priors = asked_priors(request.prior, encoding.sources, [group.name for group in rows.groups], encoding.intercept)
    given_away = check(giveaways(table, encoding, y, rows.X), target)
    return Prepared(table, encoding, rows, y, train, test, new, notes, given_away, priors, families)


def encoding_of_text(request: Request) -> dict[str, Any]:
    """Return how the files of a request are written."""
    return {"encoding": request.encoding, "decimal": request.decimal}


def read_new_rows(path: str, encoding: Encoding, text: dict[str, Any]) -> tuple[DataTable, DesignRows]:
    """Read the columns that an encoding needs, and nothing else; return the rows and their numbers."""
    needs = encoding.needs
    table = read_table(path, needs[:1], keep=needs, role="needed by the fit", **text)
    return table, encoding.rows_of(table, fitted=False)


def _target(request: Request) -> str:
    """The column to predict, from `--target` or the formula."""
    both = request.target is not None and request.formula is not None
    require(
        (request.target is None) != (request.formula is None),
        "Say what to predict: either `--target COLUMN`, from all other columns, or `--formula 'y ~ x1 + x2'`"
        f"{f': got both, {request.target!r} and {request.formula!r}' if both else ''}.",
    )
    if request.target is not None:
        return request.target
    require(
        not request.columns and not request.drop,
        "`--columns` and `--drop` go with `--target`: a formula says itself which columns it uses (`y ~ . - id`).",
    )
    assert request.formula is not None
    return response_of(request.formula)


def _roles(request: Request) -> Roles:
    return Roles(request.weights, request.offset, request.exposure, request.trials, request.cluster)


def _read(request: Request, target: str, roles: Roles) -> tuple[DataTable, Formula | None, tuple[DateColumn, ...]]:
    """Read the table; with a formula, only the columns that it uses, and the response where that has to be computed."""
    options = {**encoding_of_text(request), "sheet": request.sheet}
    if request.formula is None:
        keep = (target, *(name for name in roles.columns if name != target))
        table = read_table(request.data, request.columns, request.drop, keep, **options)
        table, dates = _dated(table, request)
        return table, None, dates
    text = request.formula
    made = {f"{name}_{part}": name for name in request.dates for part in ("year", "month", "weekday", "days")}

    def used(names) -> list[str]:
        every = [*(name for name in names if name not in roles.columns and name not in request.dates), *made]
        found = read_formula(text, every)
        columns = [*found.response.columns, *found.predictors, *found.grouping]
        return [*dict.fromkeys(made.get(name, name) for name in columns), *roles.columns]

    table = read_table(request.data, keep=roles.columns, role="its role", choose=used, **options)
    table, dates = _dated(table, request)
    formula = read_formula(text, [name for name in table.names if name not in roles.columns])
    if formula.response.text in formula.response.columns:
        return table, formula, dates
    return _with_response(table, formula), formula, dates


def _dated(table: DataTable, request: Request) -> tuple[DataTable, tuple[DateColumn, ...]]:
    dates = learn_dates(table, [name for name in split_names(request.dates, table.names)])
    for date in dates:
        table = date.apply(table)
    return table, dates


def _with_response(table: DataTable, formula: Formula) -> DataTable:
    """Return the table with the values of a response such as log(y) as one more column."""
    from gyromc.app.fit.columns import pandas_module

    frame = {}
    for name in formula.response.columns:
        values, bad = as_numbers(table.columns[name])
        if bad.any():
            raise InvalidInput(
                f"{table.path}, {table.place(bad)}: the response `{formula.response.text}` needs numbers, but {name!r} is "
                f"{table.columns[name][bad].iloc[0]!r}. Correct it."
            )
        frame[name] = values
    values = evaluate(formula.response, frame)
    wrong = ~np.isfinite(values) & ~np.any([np.isnan(column) for column in frame.values()], axis=0)
    if wrong.any():
        raise InvalidInput(
            f"{table.path}, {table.place(wrong)}: the response `{formula.response.text}` is {values[wrong][0]:g} there "
            f"({counted(int(wrong.sum()), 'row')} like that). Change the response, or remove those rows."
        )
    columns = {**table.columns, formula.response.text: pandas_module().Series(values)}
    return dataclasses.replace(table, columns=columns)


def _wishes(
    request: Request,
    table: DataTable,
    target: str,
    formula: Formula | None,
    roles: Roles,
    dates: tuple[DateColumn, ...],
) -> Wishes:
    """Return what the user asks of the columns, with lists of names split."""
    reference = {}
    for text in request.reference:
        column, sign, level = text.partition("=")
        require(sign, f"`--reference` takes COLUMN=LEVEL: got {text!r}.")
        reference[column] = level
    categorical = split_names(request.categorical, table.names)
    require(target not in categorical, f"{target!r} is the target: for classes pass `--family logistic`.")
    require(
        request.family is None or request.model is None or request.family == request.model,
        f"`--family {request.family}` and `--model {request.model}` differ: pass `--family` alone.",
    )
    family = request.family or request.model
    order = tuple(part.strip() for part in request.order.split(",")) if request.order else ()
    return Wishes(
        model=family,
        impute=request.impute,
        categorical=tuple(categorical),
        positive=request.positive,
        reference=reference,
        order=order,
        formula=formula,
        roles=roles,
        dates=dates,
    )


def _require_robust(rows: DesignRows, families: tuple[str, ...]) -> None:
    """Raise where there are no robust spreads, before anything is fitted."""
    group = rows.groups[0].name if rows.groups else ""
    require(
        not rows.groups,
        f"`--robust` and `--cluster` are for models without group terms. Leave (… | {group}) out and pass `--cluster {group}`; "
        "or leave the option out: a group term is itself a model of rows that depend on each other.",
    )
    require(
        "softmax" not in families,
        "`--robust` and `--cluster` are for one linear predictor; a softmax regression has one for each class. Leave the option "
        "out, or compare two classes at a time with `--family logistic`.",
    )


def _require_trials(table: DataTable, rows: DesignRows, y: np.ndarray) -> None:
    if rows.trials is not None and np.any(y > rows.trials):
        more = y > rows.trials
        raise InvalidInput(
            f"{table.path}, {table.place(more)}: {y[more][0]:g} successes of {rows.trials[more][0]:g} trials. Correct the row."
        )
