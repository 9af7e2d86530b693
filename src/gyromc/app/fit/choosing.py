"""The choice of a family by leave-one-out cross-validation, for `--family auto` or a list of families.

Input: a prepared fit. Output: the fit with the chosen family; the comparison as plain values for fit.json (the part `families`)
and as a table.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from gyromc.app.fit.preparation import Prepared
from gyromc.app.fit.request import Request
from gyromc.app.fit.response import COUNTS
from gyromc.show.numbers import counted, number, plus_minus
from gyromc.show.tables import Table

__all__ = ["chosen_family", "family_cells", "family_note", "family_table"]

TITLE = "Which family?"


def chosen_family(request: Request, prepared: Prepared) -> tuple[Prepared, dict[str, Any] | None]:
    """Compare the families on the rows that are not held out; return the fit with the chosen one, and the comparison."""
    families, encoding = prepared.families, prepared.encoding
    if not families:
        return prepared, None
    if len(families) == 1:
        return _with_family(prepared, families[0], f"the only natural family for {encoding.response.name!r}"), None
    from gyromc.regression.comparing import compare

    rows = prepared.rows.take(prepared.train)
    found = compare(
        rows.X,
        prepared.y[prepared.train],
        families,
        weights=rows.weights,
        seed=request.seed,
        prior_scale=request.prior_scale,
        intercept=encoding.intercept,
        names=encoding.names,
        classes=encoding.response.classes or None,
        priors=prepared.priors or None,
        **rows.beside(),
    )
    values = {
        "chosen": found.chosen,
        "reason": found.reason,
        "rows": found.rows,
        "of_rows": found.of_rows,
        "candidates": [{**dataclasses.asdict(one), "clearly_worse": one.clearly_worse} for one in found.candidates],
    }
    return _with_family(prepared, found.chosen, f"chosen because {found.reason}"), values


def _with_family(prepared: Prepared, family: str, reason: str) -> Prepared:
    response = dataclasses.replace(prepared.encoding.response, model=family, reason=reason)
    return dataclasses.replace(prepared, encoding=dataclasses.replace(prepared.encoding, response=response))


def family_cells(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return columns and rows of the table of families, from the part `families` of fit.json; the best first."""
    columns = ["family", "elpd", "difference", "effective parameters", ""]
    rows = []
    for one in sorted(found["candidates"], key=lambda one: (one["elpd"] is None, -(one["elpd"] or 0.0))):
        if one["elpd"] is None:
            rows.append([one["family"], "–", "–", "–", f"not fitted: {one['refused']}"])
            continue
        best = one["difference"] == 0
        gap = "–" if best else plus_minus(one["difference"], one["difference_std_error"])
        verdict = "clearly worse" if one["clearly_worse"] else "not clearly worse"
        words = ["chosen" if one["family"] == found["chosen"] else verdict]
        words += [f"{counted(one['heavy'], 'row')} with k > 0.7"] if one["heavy"] else []
        elpd = plus_minus(one["elpd"], one["std_error"])
        rows.append([one["family"], elpd, gap, number(one["p_loo"]), "; ".join(words)])
    return columns, rows


def family_note(found: Mapping[str, Any]) -> str:
    """Return how the family was chosen."""
    sample = f" ({found['rows']} of them, drawn at random)" if found["rows"] < found["of_rows"] else ""
    counts = {one["family"] for one in found["candidates"]}
    rounded = (
        " Laws of numbers count with the probability of the numbers within ½."
        if counts & set(COUNTS) and counts - set(COUNTS)
        else ""
    )
    return (
        f"The elpd is the log density of the {found['of_rows']} rows that are not held out{sample}, each left out in turn, from "
        "short runs; the difference is that to the best, ± one standard error. The simplest family is taken that is not worse "
        f"than the best by more than 4 and two standard errors, with all rows or without the one that differs most.{rounded}"
    )


def family_table(found: Mapping[str, Any]) -> Table:
    """Return the table for the terminal."""
    columns, rows = family_cells(found)
    return Table(columns, rows, TITLE, [family_note(found)], left=(columns[0], columns[-1]), style="simple")
