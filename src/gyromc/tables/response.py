"""Which family suits the target, from its values and the user's wishes; the order of its classes; the families of `auto`."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from gyromc.checks import require, shown
from gyromc.errors import InvalidInput
from gyromc.show.numbers import counted
from gyromc.tables.datatable import DataTable, adorned, as_numbers, as_text, is_dates, ordered, require_scale
from gyromc.tables.encoding import Response
from gyromc.tables.formula import Formula
from gyromc.tables.roles import NO_ROLES, DateColumn, Roles
from gyromc.targets.families import FAMILIES, family_named
from gyromc.targets.likelihoods import ResponseKind

MAX_CLASSES = 50
FEW_VALUES = 10
"""A target of at most so many different whole numbers could be counts or classes: the user has to choose."""


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
    roles: Roles = NO_ROLES
    dates: tuple[DateColumn, ...] = ()


def recognise_response(table: DataTable, target: str, wishes: Wishes) -> Response:
    """Choose the model and the classes from the target's values and the user's wishes."""
    column = table.columns[target]
    model = None if wishes.model is None else family_named(wishes.model)
    require(
        model is None or not model.startswith("quasi"),
        f"{wishes.model} is no law of the target, so that it has no posterior. Pass `--family negative-binomial` or "
        "`--family beta-binomial`, whose variance is free; or `--family poisson` or `--family binomial` with `--robust`.",
    )
    require(model in (None, *FAMILIES), f"Unknown family {shown(model)}: there are {', '.join(FAMILIES)}; or auto.")
    dates = f"The target {target!r} holds dates, such as {column.iloc[0]!s}: no model here predicts those."
    require(not is_dates(column), dates)
    values, bad = as_numbers(column)
    distinct = ordered(as_text(column))
    require(
        len(distinct) > 1,
        f"The target {target!r} has only one value, {distinct[0]!r}, in {counted(table.num_rows, 'row')}: there is nothing to "
        "learn. Check that the file holds all classes.",
    )
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
        _require_numbers(table, target, model, values, bad)
        return Response(target, model, (), reason)
    require(
        len(distinct) <= MAX_CLASSES,
        f"The target {target!r} has {len(distinct)} different values; at most {MAX_CLASSES} classes are possible. "
        "Pass `--family linear` for numbers.",
    )
    if family.cutpoints:
        require(wishes.positive is None, "`--positive` is for two classes without an order, not for an ordinal target.")
        return Response(target, model, _in_order(target, distinct, bad, wishes.order), reason)
    return _class_response(target, model, distinct, wishes.positive, reason)


def _choose_model(target: str, column, values, bad, distinct: Sequence[str]) -> tuple[str, str]:
    if len(distinct) == 2:
        return "logistic", f"chosen because {target!r} has two values"
    if bad.all():
        require(
            not adorned(column),
            f"The target {target!r} has texts such as {distinct[0]!r}, which look like numbers but are not written so. Write "
            "plain numbers (1234.5); for decimal commas pass `--decimal ,`; for classes `--family logistic`.",
        )
        require(
            len(distinct) <= MAX_CLASSES,
            f"The target {target!r} has {len(distinct)} different texts, such as {distinct[0]!r}: too many classes (at most "
            f"{MAX_CLASSES}), and no numbers. Is it the right column?",
        )
        return "softmax", f"chosen because {target!r} has {len(distinct)} classes"
    if bad.any():
        return "linear", "chosen because the target holds numbers"  # the odd ones are refused with their line
    whole = np.all(values == np.round(values))
    if whole and len(distinct) <= FEW_VALUES:
        counts = ", counts (`--family poisson,negative-binomial` compares both)" if values.min() >= 0 else ""
        raise InvalidInput(
            f"The target {target!r} holds {len(distinct)} different whole numbers ({', '.join(distinct)}): choose whether they "
            f"are classes (`--family softmax`, or in their order `--family ordinal`){counts} or measurements (`--family linear`)."
        )
    hint = "; if it counts events, pass `--family poisson`" if whole and values.min() >= 0 else ""
    return "linear", f"chosen because {target!r} holds numbers{hint}"


def _require_numbers(table: DataTable, target: str, model: str, values, bad) -> None:
    family = FAMILIES[model]
    remedy = "For classes, pass `--family logistic`." if bad.all() else "Correct it."
    needs = f"the target {target!r} must be a finite number for a {model} regression, but is"
    table.refuse(bad, target, lambda value, rows: f"{needs} {value!r} ({rows}). {remedy}")
    odd = ~family.allowed(values)
    needs = f"a {family.words.title} needs {family.needs}, but the target {target!r} is"
    remedy = "Pass `--family linear` for measurements."
    table.refuse(odd, None, lambda value, rows: f"{needs} {values[odd][0]:g} there ({rows}). {remedy}")
    if family.response is ResponseKind.NUMBERS:
        require_scale(values, f"The target {target!r}")


def _in_order(target: str, distinct: list[str], bad, order: Sequence[str]) -> tuple[str, ...]:
    """Return the classes in order: by size where they are numbers, else as `--order` lists them."""
    classes = ", ".join(map(repr, distinct[:12]))
    texts = f"The classes of {target!r} are texts ({classes}): say their order, as in `--order low,middle,high`."
    require(order or not bad.any(), texts)
    once = f"`--order` must list each class of {target!r} once ({classes}): got {', '.join(map(repr, order))}."
    require(not order or sorted(order) == sorted(distinct), once)
    return tuple(order or distinct)


def _class_response(target: str, model: str, distinct: list[str], positive: str | None, reason: str) -> Response:
    count = len(distinct)
    if positive is not None:
        its = ", ".join(map(repr, distinct))
        require(positive in distinct, f"`--positive` {positive!r} is no class of the target {target!r}: {its} are.")
        every = f"`--positive` is for two classes; {target!r} has {count}, and every class gets a probability."
        require(count == 2, every)
        distinct = [c for c in distinct if c != positive] + [positive]
    two_only = not FAMILIES[model].vector and model != "logistic"
    two = f"A {model} regression is for two classes; {target!r} has {count}. Pass `--family softmax`."
    require(not two_only or count == 2, two)
    if model == "logistic" and count > 2:
        model, reason = "softmax", f"{reason}; more than two classes: softmax"
    if model == "softmax" and count == 2:
        model, reason = "logistic", f"{reason}; two classes: logistic"
    return Response(target, model, tuple(distinct), reason)


def families_of(table: DataTable, target: str, wishes: Wishes) -> tuple[str, ...]:
    """Return the families to compare, the simplest first; none where the user asks for one family or says nothing."""
    asked = wishes.model
    if asked is None or (asked != "auto" and "," not in asked):
        return ()
    found = _natural(table, target, wishes) if asked == "auto" else _listed(table, target, asked, wishes)
    return tuple(sorted(found, key=lambda name: FAMILIES[name].rank))


def _natural(table: DataTable, target: str, wishes: Wishes) -> tuple[str, ...]:
    if wishes.roles.trials is not None:
        return "binomial", "beta-binomial"
    if wishes.roles.survival:
        return "exponential", "weibull"
    column = table.columns[target]
    if wishes.order:
        return ("ordinal", "softmax") if len(ordered(as_text(column))) > 2 else ("ordinal",)
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


def _listed(table: DataTable, target: str, asked: str, wishes: Wishes) -> tuple[str, ...]:
    names = [family_named(part) for part in asked.split(",") if part.strip()]
    require("auto" not in names, f"`--family {asked}`: auto stands alone, or list the families to compare.")
    unknown = [name for name in names if name not in FAMILIES]
    require(not unknown, f"Unknown family {shown(''.join(unknown[:1]))}: there are {', '.join(FAMILIES)}; or auto.")
    require(len(set(names)) == len(names), f"`--family {asked}` names a family twice.")
    numeric = [name for name in names if FAMILIES[name].response is not ResponseKind.CLASSES]
    require(
        len(numeric) in (0, len(names)),
        f"`--family {asked}`: {', '.join(numeric)} predict numbers, the others classes. They cannot be compared.",
    )
    if "logistic" in names and len(ordered(as_text(table.columns[target]))) > 2:
        names = list(dict.fromkeys("softmax" if name == "logistic" else name for name in names))
    for name in names:
        order = wishes.order if name == "ordinal" else ()
        recognise_response(table, target, dataclasses.replace(wishes, model=name, order=order))
    return tuple(names)
