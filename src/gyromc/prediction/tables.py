"""A `Prediction` for people and for machines: Rich tables, HTML, plain text, and a dictionary for JSON.

Receives a `Prediction`; hands on text. No number is made here.
"""

import html
import io
import math
from typing import Any


def as_dict(pred) -> dict[str, Any]:
    """Everything as plain values; NaN and infinities become None."""
    plan = pred.plan
    per_name = {}
    for name in plan.observables:
        strict = pred.strict_reduction[name]
        per_name[name] = {
            "variance": _plain(pred.variance[name]),
            "reversible_variance": _plain(pred.reversible_variance[name]),
            "method": pred.method[name],
            "expectation": _plain(pred.expectation[name]),
            "expectation_method": pred.expectation_method[name],
            "rmse": _plain(pred.rmse[name]),
            "rmse_method": pred.rmse_method[name],
            "std": _plain(pred.std[name]),
            "bias": _plain(pred.bias[name]),
            "bias_method": pred.bias_method[name],
            "strict_reduction": None
            if strict is None
            else {"strict": strict.strict, "integral": _plain(strict.integral), "ratio": _plain(strict.ratio)},
        }
    return {
        **plan.summary(),
        "observables": per_name,
        "stable": pred.stable,
        "stability_radius": _plain(pred.stability_radius),
        "largest_step_size": _plain(pred.largest_step_size),
        "verdicts": [
            {
                "name": v.name,
                "status": v.status,
                "sentence": v.sentence,
                "numbers": {k: _plain(x) for k, x in v.numbers.items()},
            }
            for v in pred.verdicts
        ],
        "notes": list(pred.notes),
    }


def _plain(value) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    return int(value) if isinstance(value, int) else float(value)


def _title(pred) -> str:
    plan = pred.plan
    eta = plan.eta_text
    pieces = f"{plan.dynamics.name} on {type(plan.target).__name__}, {plan.oracle.name} gradients"
    return f"{pieces}, η = {eta}, N = {plan.num_steps}"


def _rows(pred) -> list[list[str]]:
    rows = []
    for name in pred.plan.observables:
        V, V0, strict = pred.variance[name], pred.reversible_variance[name], pred.strict_reduction[name]
        better = "" if strict is None else f"{strict.ratio:.4g}{' (strict)' if strict.strict else ''}"
        rows.append(
            [
                name,
                _short(pred.expectation[name]),
                f"{V:.7g}",
                f"{V0:.7g}",
                better,
                pred.method[name],
                f"{pred.rmse[name]:.5g}",
                _short(pred.bias[name]),
                f"{pred.std[name]:.5g}",
                pred.rmse_method[name],
            ]
        )
    return rows


COLUMNS = ("observable", "μ(h)", "V", "V_0", "V/V_0", "V known by", "RMSE", "bias", "std", "error known by")


def _short(value: float | None) -> str:
    return "?" if value is None else f"{value:.5g}"


def _stability_line(pred) -> str:
    if pred.stability is None:
        return "stability: not known"
    word = "stable" if pred.stable else "UNSTABLE"
    return (
        f"{word}: second moments × {pred.stability_radius:.6g} per step, largest step size {pred.largest_step_size:.4g} "
        f"({pred.stability.how})"
    )


def as_rich(pred):
    """Two tables: the numbers, and the verdicts."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    numbers = Table(title=_title(pred), title_justify="left")
    for column in COLUMNS:
        numbers.add_column(column, justify="left" if column.endswith("by") or column == "observable" else "right")
    for row in _rows(pred):
        numbers.add_row(*(Text(cell) for cell in row))
    judged = Table(title="Assumptions", title_justify="left")
    for column in ("assumption", "verdict", "why"):
        judged.add_column(column)
    colour = {"holds": "green", "not certified": "yellow", "fails": "red"}
    for v in pred.verdicts:
        judged.add_row(Text(v.name), Text(v.status, style=colour[v.status]), Text(v.sentence))
    lines = [_stability_line(pred), *(f"note: {note}" for note in pred.notes)]
    return Group(numbers, Text("\n".join(lines)), judged)


def as_text(pred) -> str:
    """The tables without colours."""
    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=150, color_system=None).print(as_rich(pred))
    return buffer.getvalue().rstrip()


def as_html(pred) -> str:
    """The tables for a notebook."""

    def table(head, rows) -> str:
        top = "".join(f"<th>{html.escape(c)}</th>" for c in head)
        body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in row) + "</tr>" for row in rows)
        return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"

    judged = table(("assumption", "verdict", "why"), [(v.name, v.status, v.sentence) for v in pred.verdicts])
    notes = "".join(f"<li>{html.escape(note)}</li>" for note in pred.notes)
    return (
        f"<p><b>{html.escape(_title(pred))}</b></p>{table(COLUMNS, _rows(pred))}<p>{html.escape(_stability_line(pred))}</p>"
        f"{f'<ul>{notes}</ul>' if notes else ''}{judged}"
    )
