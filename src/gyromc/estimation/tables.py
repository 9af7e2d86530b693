"""`Estimates` for people and for machines: a Rich table, HTML, plain text, a dictionary for JSON (errors of E4).

Receives `Estimates`; hands on text. No number is made here.
"""

import html
import io
import math
from typing import Any


def as_dict(found) -> dict[str, Any]:
    """Everything as plain values; NaN and infinities become None."""
    return {
        **found.run.plan.summary(),
        "level": found.level,
        "steps_done": found.run.steps_done,
        "gradient_evaluations": found.gradient_evaluations,
        "divergences": found.divergences,
        "observables": {name: _one(row) for name, row in found.items()},
        "notes": list(found.notes),
    }


def _one(row) -> dict[str, Any]:
    words = {key: getattr(row, key) for key in ("method", "reason", "bias_method", "verdict")}
    numbers = (
        "mean",
        "std_error",
        "dof",
        "bias",
        "bias_error",
        "corrected_mean",
        "corrected_error",
        "variance",
        "r_hat",
    )
    values = {key: _plain(getattr(row, key)) for key in (*numbers, "ess", "ess_per_gradient")}
    ends = {key: [_plain(end) for end in getattr(row, key)] for key in ("interval", "corrected", "recommended")}
    flags = {key: getattr(row, key) for key in ("bias_matters", "bias_dominates")}
    return {**values, **ends, **words, **flags}


def _plain(value) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _short(value, digits: int = 3) -> str:
    return "?" if value is None or not math.isfinite(value) else f"{value:.{digits}g}"


def _ends(pair) -> str:
    return "?" if not math.isfinite(pair[0]) else f"[{pair[0]:.5g}, {pair[1]:.5g}]"


def _columns(found) -> tuple[str, ...]:
    share = f"{100 * found.level:g} %"
    return ("observable", "mean", "std. error", f"{share} interval", "bias", f"{share} corrected", "R-hat", "ESS")


def _cells(row) -> list[str]:
    bias = "?" if row.bias is None else f"{row.bias:.2g} ± {row.bias_error:.1g}"
    marks = ("", " ←") if row.bias_matters else (" ←", "")
    return [
        row.name,
        _short(row.mean, 6),
        _short(row.std_error, 2),
        _ends(row.interval) + marks[0],
        bias,
        _ends(row.corrected) + marks[1],
        _short(row.r_hat, 4),
        _short(row.ess),
    ]


def _lines(found) -> list[str]:
    run = found.run
    lines = [
        f"{run.plan.num_chains} chains × {run.steps_done} steps, {found.gradient_evaluations:.3g} gradients; ← take this one"
    ]
    for row in found.values():
        lines.append(
            f"{row.name}: error by {row.method} ({row.reason}), {_short(row.dof)} degrees of freedom; {row.verdict}"
        )
    return lines + [f"WARNING: {note}" for note in found.notes]


def as_rich(found):
    """The numbers as a table, the methods and verdicts below it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    plan = found.run.plan
    table = Table(title=f"{plan.dynamics.name} on {type(plan.target).__name__}", title_justify="left")
    for column in _columns(found):
        table.add_column(column, justify="left" if column == "observable" else "right")
    for row in found.values():
        table.add_row(*(Text(cell) for cell in _cells(row)))
    return Group(table, Text("\n".join(_lines(found))))


def as_text(found) -> str:
    """The table without colours."""
    from rich.console import Console

    buffer = io.StringIO()
    Console(file=buffer, width=130, color_system=None).print(as_rich(found))
    return buffer.getvalue().rstrip()


def as_html(found) -> str:
    """The table for a notebook."""
    head = "".join(f"<th>{html.escape(c)}</th>" for c in _columns(found))
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in _cells(row)) + "</tr>" for row in found.values()
    )
    lines = "<br>".join(html.escape(line) for line in _lines(found))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{lines}</p>"
