"""Which families `--family auto`, or a list such as `poisson,negative-binomial`, stands for.

Input: a table and the user's wishes. Output: the families to compare, the simplest first.
"""

import dataclasses

import numpy as np

from gyromc.app.fit.columns import as_numbers, as_text, ordered
from gyromc.app.fit.datatable import DataTable
from gyromc.app.fit.request import FAMILIES, family_named
from gyromc.app.fit.response import NUMBERS, Wishes, recognise_response
from gyromc.checks import require

__all__ = ["families_of"]

SIMPLEST_FIRST = (
    "poisson",
    "binomial",
    "logistic",
    "negative-binomial",
    "beta-binomial",
    "linear",
    "gamma",
    "student-t",
    "ordinal",
    "softmax",
)
AUTO = "auto"


def families_of(table: DataTable, target: str, wishes: Wishes) -> tuple[str, ...]:
    """Return the families to compare, the simplest first; none where the user asks for one family or says nothing."""
    asked = wishes.model
    if asked is None or (asked != AUTO and "," not in asked):
        return ()
    found = _natural(table, target, wishes) if asked == AUTO else _listed(table, target, asked, wishes)
    return tuple(sorted(found, key=SIMPLEST_FIRST.index))


def _natural(table: DataTable, target: str, wishes: Wishes) -> tuple[str, ...]:
    """Return the families that suit the values of the target and the options given."""
    if wishes.roles.trials is not None:
        return "binomial", "beta-binomial"
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
    """Return the families that a user lists; raise where one of them does not suit the target."""
    names = [family_named(part) for part in asked.split(",") if part.strip()]
    require(AUTO not in names, f"`--family {asked}`: {AUTO} stands alone, or list the families to compare.")
    unknown = [name for name in names if name not in FAMILIES]
    require(not unknown, f"Unknown family {''.join(unknown[:1])!r}: there are {', '.join(FAMILIES)}; or {AUTO}.")
    require(len(set(names)) == len(names), f"`--family {asked}` names a family twice.")
    numeric = [name for name in names if name in NUMBERS]
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
