"""The tables of coefficients and further parameters, for the terminal and the page, from the content of fit.json.

Rows of several classes are grouped by class. The errors of the computation are said once, in a sentence: those of means, spreads
and interval ends, in posterior spreads; for each coefficient they are in coefficients.csv and behind a fold of the page.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gyromc.show.numbers import bounds, number
from gyromc.show.tables import Cell, Table

__all__ = ["by_class", "coefficient_table", "error_sentence", "parameter_table"]

MOST_COEFFICIENTS = 60
ERRORS = {"Monte Carlo error": "std_error", "step-size bias": "bias"}
"""Columns that are left out where all are zero: integrals have no Monte Carlo error, and without a chain there is no bias."""
Rows = Sequence[Mapping[str, Any]]


def by_class(rows: Rows) -> Iterator[tuple[str | None, list[Mapping[str, Any]]]]:
    """Yield each class with its rows; None where there is no class."""
    for name, some in itertools.groupby(rows, key=lambda row: row["class"]):
        yield name, list(some)


def error_sentence(rows: Rows) -> str:
    """Return how large the errors of the computation are at most, in posterior spreads.

    ```python
    from gyromc.app.fit.coefficient_tables import error_sentence
    row = {"std": 2.0, "std_error": 0.02, "bias": 0.0, "std_std_error": 0.03, "interval_std_error": [0.1, 0.08]}
    assert "means 1 %, spreads 1.5 %, interval ends 5 %" in error_sentence([row])
    ```
    """
    sizes = {
        "means": [row["std_error"] / max(row["std"], 1e-300) for row in rows],
        "spreads": [row["std_std_error"] / max(row["std"], 1e-300) for row in rows],
        "interval ends": [max(row["interval_std_error"]) / max(row["std"], 1e-300) for row in rows],
    }
    if not any(any(some) for some in sizes.values()):
        return "Means, spreads and interval ends are integrals: they have no Monte Carlo error."
    parts = [f"{name} {number(100 * max(some), 2)} %" for name, some in sizes.items()]
    return f"Monte Carlo errors of {', '.join(parts)} of the posterior spread, at most."


def coefficient_table(results: Mapping[str, Any]) -> Table:
    """Return the coefficients for the terminal; those whose interval holds zero are dim."""
    every = results["coefficients"]
    by_clarity = sorted(every, key=lambda c: abs(c["mean"]) / max(c["std"], 1e-300), reverse=True)
    clearest = {c["label"] for c in by_clarity[:MOST_COEFFICIENTS]}
    shown = [c for c in every if c["label"] in clearest]
    errors = _errors(every)
    columns = ["coefficient", "mean", "95\u00a0% credible interval", "posterior spread", *errors]
    rows: list[list[Cell]] = []
    for name, some in by_class(shown):
        if name is not None:
            rows.append([(str(name), "bold"), *[""] * (len(columns) - 1)])
        for c in some:
            low, high = c["interval_95"]
            first = c["label"] if name is None else f"  {c['name']}"
            style = "" if low > 0 or high < 0 else "dim"
            rows.append([(text, style) for text in [first, *_cells(c, errors)]])
    notes = [error_sentence(every), results["model"]["prior"], results["model"]["noise"] or ""]
    if len(shown) < len(every):
        notes.insert(0, f"the clearest {len(shown)} of {len(every)}; all are in coefficients.csv")
    return Table(columns, rows, "Coefficients, in the units of the file", list(filter(None, notes)), style="simple")


def parameter_table(parameters: Rows) -> Table:
    """Return the further parameters for the terminal."""
    errors = [name for name in _errors(parameters) if name != "step-size bias"]
    rows = [[p["name"], *_cells(p, errors)] for p in parameters]
    columns = ["parameter", "mean", "95\u00a0% credible interval", "posterior spread", *errors]
    return Table(columns, rows, "Further parameters", [], style="simple")


def _errors(rows: Rows) -> list[str]:
    return [name for name, key in ERRORS.items() if any(row[key] for row in rows)]


def _cells(c: Mapping[str, Any], errors: Sequence[str]) -> list[str]:
    found = [number(c["mean"], 4), bounds(c["interval_95"]), number(c["std"])]
    return [*found, *(number(c[ERRORS[name]], 2) for name in errors)]
