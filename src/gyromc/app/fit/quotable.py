"""Ratios, average changes and contrasts of a fit as plain values for fit.json, and as a table.

Input: a fit with its encoding and rows, or the part `effects` of fit.json. Output: that part, and the cells of its table.
"""

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from gyromc.app.fit.encoding import Encoding
from gyromc.show.numbers import bounds, number
from gyromc.show.tables import Table

if TYPE_CHECKING:
    from gyromc.regression.effects import Effect
    from gyromc.regression.fit import Fit

__all__ = ["effect_cells", "effect_findings", "effect_table"]

TITLE = "What goes with what"
MOST_SHOWN = 40
CLOSE, CLOSEST = 0.005, 1e-12  # distances of a ratio from 1 between which its digits are counted from 1


def effect_findings(fit: "Fit", encoding: Encoding, X: np.ndarray, beside: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the part of fit.json on effects; None where there is none to tell beside the coefficients."""
    from gyromc.regression.effects import RATIOS, changeable, effects

    references = {column.name: getattr(column, "reference", None) for column in encoding.features}
    known = {name: reference for name, reference in references.items() if reference is not None}
    sources = list(encoding.sources.values())
    found = effects(fit, X, sources, known, beside)
    if not found:
        return None
    alone = changeable(fit.names, sources, X)
    return {
        "ratio": RATIOS.get(fit.model),
        "target": encoding.response.name,
        "rows": [_plain(one) for one in found],
        "left_out": [source for source in dict.fromkeys(sources) if source not in alone],
    }


def _plain(effect: "Effect") -> dict[str, Any]:
    listed = lambda interval: None if interval is None else list(interval)
    return {
        "name": effect.name,
        "ratio": effect.ratio,
        "ratio_interval_95": listed(effect.ratio_interval),
        "change": effect.change,
        "change_interval_95": listed(effect.change_interval),
    }


def effect_cells(found: Mapping[str, Any]) -> tuple[list[str], list[list[str]], list[str]]:
    """Return columns, rows and notes of the table."""
    some = {key: any(row[key] is not None for row in found["rows"]) for key in ("ratio", "change")}
    heads = {"ratio": found["ratio"], "change": "average change"}
    columns = ["change of the row"]
    for key in (key for key in some if some[key]):
        columns += [heads[key], "95\u00a0% interval"]
    rows = []
    for row in found["rows"][:MOST_SHOWN]:
        cells = [row["name"]]
        for key in (key for key in some if some[key]):
            cells += (_ratio if key == "ratio" else _number)(row[key], row[f"{key}_interval_95"])
        rows.append(cells)
    notes = []
    if some["change"]:
        notes.append(f"the average change is that of the expected {found['target']}, over the rows, all else as it is")
    if found["left_out"]:
        notes.append(f"left out, since they cannot be changed alone: {', '.join(found['left_out'])}")
    if len(found["rows"]) > MOST_SHOWN:
        notes.append(f"the first {MOST_SHOWN} of {len(found['rows'])}; all are in fit.json")
    return columns, rows, notes


def _number(value: float | None, interval: Sequence[float] | None) -> list[str]:
    return [number(value, 3), bounds(interval)]


def _ratio(value: float | None, interval: Sequence[float] | None) -> list[str]:
    """A ratio and its interval; close to 1 with as many digits as show how far from 1 they are, and not `1 [1, 1]`."""
    away = 0.0 if value is None or interval is None else max(abs(x - 1) for x in (value, *interval))
    if value is None or interval is None or not CLOSEST < away < CLOSE:
        return _number(value, interval)
    low, middle, high = (f"{x:.{1 - math.floor(math.log10(away))}f}" for x in (interval[0], value, interval[1]))
    return [middle, f"[{low}, {high}]"]


def effect_table(found: Mapping[str, Any]) -> Table:
    """Return the table for the terminal."""
    columns, rows, notes = effect_cells(found)
    return Table(columns, rows, TITLE, notes, left=(columns[0],), style="simple")
