"""The tables of a fit in the terminal: columns, coefficients, predictions, scores, diagnostics."""

from collections.abc import Iterator
from typing import Any

from gyromc.app.fit.wording import cell, heading
from gyromc.show.numbers import bounds, number, plus_minus
from gyromc.show.tables import Table

__all__ = ["tables"]

SHOWN = 6  # predictions
MOST_COEFFICIENTS = 60


def tables(results: dict[str, Any]) -> Iterator[Table | str]:
    """Yield the tables of a fit, with an empty line after each, from the content of fit.json."""
    data, model = results["data"], results["model"]
    yield (
        f"{data['file']}: {data['rows']} rows. {model['title'].capitalize()} of {model['target']}, {model['reason']}.\n"
    )
    parts = [_columns(results), _coefficients(results), *map(_predictions, results["predictions"])]
    if results["held_out"] is not None:
        parts.append(_scores(results["held_out"]))
    for table in [*parts, _checks(results)]:
        yield table
        yield ""


def _columns(results: dict[str, Any]) -> Table:
    model, notes = results["model"], list(results["data"]["notes"])
    if model["positive"] is not None:
        notes.append(f"probabilities are those of {model['target']} = {model['positive']}")
    columns = ["column", "kind", "what became of it"]
    return Table(columns, results["columns"], "Columns", notes, left=columns, style="simple")


def _coefficients(results: dict[str, Any]) -> Table:
    every = results["coefficients"]
    by_clarity = sorted(every, key=lambda c: abs(c["mean"]) / max(c["std"], 1e-300), reverse=True)
    shown = [c for c in every if len(every) <= MOST_COEFFICIENTS or c in by_clarity[:MOST_COEFFICIENTS]]
    rows = []
    for c in shown:
        low, high = c["interval_95"]
        cells = [c["label"], number(c["mean"], 4), bounds((low, high)), number(c["std"]), number(c["std_error"], 2)]
        rows.append([(text, "" if low > 0 or high < 0 else "dim") for text in [*cells, number(c["bias"], 2)]])
    notes = [results["model"]["prior"], results["model"]["noise"] or ""]
    if len(shown) < len(every):
        notes.insert(0, f"the clearest {len(shown)} of {len(every)}; all are in coefficients.csv")
    columns = [
        "coefficient",
        "mean",
        "95\u00a0% credible interval",
        "posterior spread",
        "Monte Carlo error",
        "step-size bias",
    ]
    title = "Coefficients, in the units of the file"
    return Table(columns, rows, title, list(filter(None, notes)), style="simple")


def _predictions(part: dict[str, Any]) -> Table:
    rows = [list(map(cell, part["columns"], row)) for row in part["first"][:SHOWN]]
    notes = [f"the first {min(SHOWN, part['rows'])} of {part['rows']}; all are in {part['file']}"]
    return Table(list(map(heading, part["columns"])), rows, part["title"], notes, left=(), style="simple")


def _scores(held: dict[str, Any]) -> Table:
    rows = [
        [
            s["name"],
            plus_minus(s["value"], s["std_error"]),
            number(s["baseline"]),
            plus_minus(s["difference"], s["difference_std_error"]),
            s["verdict"],
        ]
        for s in held["scores"]
    ]
    title = f"Judged on {held['rows']} held-out rows, fitted to {held['trained_on']}"
    notes = [f"± is one standard error over rows; the baseline predicts from {held['baseline']} alone"]
    return Table(["score", "model", "baseline", "difference", "verdict"], rows, title, notes, style="simple")


def _checks(results: dict[str, Any]) -> Table:
    signs = {True: ("fine", "green"), False: ("look", "yellow")}
    rows = [[signs[check["good"]], check["name"], check["sentence"]] for check in results["checks"]]
    columns = ["", "check", "finding"]
    return Table(columns, rows, "Can the numbers be trusted?", left=columns, style="simple")
