"""`gyromc fit --explain`: the design matrix that a fit would use, column by column, with the prior of each coefficient.

Input: a `Prepared` fit. Output: plain values for JSON, and tables for the terminal.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from gyromc.regression.problem import GroupTerm
from gyromc.regression.standardised import INTERCEPT_SCALE, Units
from gyromc.show.numbers import counted, number
from gyromc.show.tables import Table
from gyromc.tables.encoding import CategoricalColumn, Encoding
from gyromc.tables.findings import prior_words
from gyromc.tables.preparation import Prepared
from gyromc.targets.families import FAMILIES

FIRST_ROWS = 5
MOST_SHOWN = 12  # columns in the table of first rows


def explained(prepared: Prepared, prior_scale: float) -> dict[str, Any]:
    """Return the design: each column of X with its source, coding, range and prior; group terms; the first rows."""
    encoding, rows, y = prepared.encoding, prepared.rows, prepared.y
    numbers = FAMILIES[encoding.response.model].measured
    units = Units.of(rows.X, y if numbers else None, prior_scale, encoding.intercept, weights=rows.weights)
    deviations = prior_scale * units.y_scale / units.scale
    usual = f"normal({units.y_center:.4g}, {INTERCEPT_SCALE * units.y_scale:.4g})"
    columns = [
        {
            "name": name,
            "source": source,
            "coding": _coding(encoding, source),
            "least": float(values.min()),
            "mean": float(values.mean()),
            "most": float(values.max()),
            "prior": _prior(prepared, f"normal(0, {deviation:.4g})", name),
        }
        for (name, source), values, deviation in zip(encoding.sources.items(), rows.X.T, deviations, strict=True)
    ]
    return {
        "file": prepared.table.path,
        "rows": len(rows),
        "target": encoding.response.name,
        "family": encoding.response.model,
        "reason": encoding.response.reason,
        "classes": list(encoding.response.classes),
        "formula": None if encoding.formula is None else encoding.formula.text,
        "intercept": f"{_prior(prepared, usual, 'intercept')} at the columns' means" if encoding.intercept else None,
        "columns": columns,
        "groups": [_group(prepared, group) for group in rows.groups],
        "other": encoding.roles.given,
        "offset": None if rows.offset is None else [float(x) for x in rows.offset[:FIRST_ROWS]],
        "first_rows": [[float(x) + 0.0 for x in row] for row in rows.X[:FIRST_ROWS]],
        "lines": [int(line) for line in prepared.table.lines[:FIRST_ROWS]],
        "observed": [
            encoding.response.classes[int(v)] if encoding.response.classes else float(v) for v in y[:FIRST_ROWS]
        ],
        "further": prior_words(encoding.response.model, rows.groups, prepared.priors),
        "notes": prepared.notes,
    }


def _prior(prepared: Prepared, usual: str, *names: str) -> str:
    """Return a prior as text: the one asked for under the first of some names, or the usual one."""
    asked = [prepared.priors[name] for name in names if name in prepared.priors]
    return f"{asked[0]}, asked for" if asked else usual


def _group(prepared: Prepared, group: GroupTerm) -> dict[str, Any]:
    count = len(group.columns)
    priors = [f"{name}: {_prior(prepared, 'the default', name, group.name, 'sd')}" for name in group.names[:count]]
    if count > 1:
        priors.append(f"correlations: {_prior(prepared, 'lkj(2)', f'cor({group.name})', 'cor')}")
    return {
        "name": group.name,
        "columns": list(group.columns),
        "levels": len(group.levels),
        "first": list(group.levels[:5]),
        "prior": "; ".join(priors),
    }


def _coding(encoding: Encoding, source: str) -> str:
    kinds = {feature.name: feature for feature in encoding.features}
    crossed = [kinds.get(part) for part in ([source] if encoding.formula is None else source.split(":"))]
    levels = [one for one in crossed if isinstance(one, CategoricalColumn)]
    names = ["" if encoding.formula is None else f"{one.name}: " for one in levels]
    coding = [f"{name}0 or 1, against {one.reference!r}" for name, one in zip(names, levels, strict=True)]
    return "; ".join(coding) or ("as it is" if source in kinds else "computed")


def explanation_tables(found: dict[str, Any]) -> Iterator[Table | str]:
    """Yield the tables, with an empty line after each."""
    classes = f" Classes: {', '.join(found['classes'])}." if found["classes"] else ""
    yield (
        f"{found['file']}: {counted(found['rows'], 'row')}. Family {found['family']} for {found['target']}, "
        f"{found['reason']}.{classes}\n"
    )
    rows = [
        [c["name"], c["source"], c["coding"], number(c["least"]), number(c["mean"]), number(c["most"]), c["prior"]]
        for c in found["columns"]
    ]
    notes = [f"intercept: {found['intercept']}" if found["intercept"] else "no intercept", *found["notes"]]
    notes += [found["further"]] if found["further"] else []
    notes += [f"{role}: column {name}" for role, name in found["other"].items()]
    headings = ["column", "from", "coding", "least", "mean", "most", "prior per unit"]
    left = ["column", "from", "coding", "prior per unit"]
    yield Table(headings, rows, "Design matrix", notes, left=left, style="simple")
    yield ""
    if found["groups"]:
        groups = [
            [g["name"], ", ".join(g["columns"]), str(g["levels"]), ", ".join(g["first"]), g["prior"]]
            for g in found["groups"]
        ]
        headings = ["grouped by", "effects that differ", "levels", "the first", "prior"]
        yield Table(headings, groups, "Group terms", [], left=headings, style="simple")
        yield ""
    names = [column["name"] for column in found["columns"]]
    kept = names[:MOST_SHOWN]
    rows = []
    for i, line in enumerate(found["lines"]):
        observed = found["observed"][i]
        cells = [str(line), observed if isinstance(observed, str) else number(observed)]
        cells += [number(found["offset"][i])] if found["offset"] is not None else []
        rows.append([*cells, *(number(x) for x in np.asarray(found["first_rows"][i])[: len(kept)])])
    notes = [f"the first {len(kept)} of {len(names)} columns"] if len(kept) < len(names) else []
    headings = ["line", found["target"], *(["offset"] if found["offset"] is not None else []), *kept]
    yield Table(headings, rows, "First rows", notes, left=(), style="simple")
