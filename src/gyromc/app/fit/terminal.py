"""A fit in the terminal: its tables as Rich draws them, from the content of fit.json (E4).

Receives findings; hands on tables: columns, coefficients, predictions, scores, and what to think of the computation.
"""

from collections.abc import Iterator
from typing import Any

from gyromc.app.fit.wording import cell
from gyromc.show.numbers import bounds, number, plus_minus

__all__ = ["tables"]

SHOWN = 6  # predictions
MOST_COEFFICIENTS = 60


def tables(results: dict[str, Any]) -> Iterator[Any]:
    """The tables of a fit.

    **Arguments:**

    - `results`: the content of fit.json.
    """
    data, model = results["data"], results["model"]
    yield _plain(
        f"{data['file']}: {data['rows']} rows. {model['title'].capitalize()} of {model['target']}, {model['reason']}."
    )
    yield _columns(results)
    yield _coefficients(results)
    for part in results["predictions"]:
        yield _predictions(part)
    if results["held_out"] is not None:
        yield _scores(results)
    yield _checks(results)


def _table(title: str, *columns: str, left: int = 1):
    from rich import box
    from rich.table import Table

    table = Table(title=title, title_justify="left", caption_justify="left", box=box.SIMPLE_HEAD, title_style="bold")
    table.pad_edge, table.collapse_padding = False, True
    for i, name in enumerate(columns):
        if i < left:
            table.add_column(name, overflow="fold", min_width=4 if left > 1 else 14)
        else:  # numbers stay on one line; so that they fit, their headings do not
            table.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True, vertical="top")
    return table


def _columns(results: dict[str, Any]):
    data, model = results["data"], results["model"]
    table = _table("Columns", "column", "kind", "what became of it", left=3)
    for row in results["columns"]:
        table.add_row(*map(_plain, row))
    notes = list(data["notes"])
    if model["positive"] is not None:
        notes.append(f"probabilities are those of {model['target']} = {model['positive']}")
    table.caption = _plain("\n".join(notes)) or None
    return table


def _coefficients(results: dict[str, Any]):
    table = _table(
        "Coefficients, in the units of the file", "coefficient", "mean", "95 % credible interval", "posterior spread",
        "Monte Carlo error", "step-size bias",
    )  # fmt: skip
    shown = results["coefficients"]
    if len(shown) > MOST_COEFFICIENTS:
        clearest = sorted(shown, key=lambda c: abs(c["mean"]) / max(c["std"], 1e-300), reverse=True)[:MOST_COEFFICIENTS]
        shown = [c for c in shown if c in clearest]
    for c in shown:
        sure = c["interval_95"][0] > 0 or c["interval_95"][1] < 0
        cells = [number(c["mean"], 4), _plain(bounds(c["interval_95"])), number(c["std"]), number(c["std_error"], 2)]
        table.add_row(_plain(c["label"]), *cells, number(c["bias"], 2), style=None if sure else "dim")
    lines = [results["model"]["prior"]]
    if len(shown) < len(results["coefficients"]):
        lines.insert(0, f"the clearest {len(shown)} of {len(results['coefficients'])}; all are in coefficients.csv")
    if results["model"]["noise"]:
        lines.append(results["model"]["noise"])
    table.caption = _plain("\n".join(lines))
    return table


def _predictions(part: dict[str, Any]):
    names = [_heading(name) for name in part["columns"]]
    table = _table(_plain(part["title"]), *map(_plain, names), left=0)
    for row in part["first"][:SHOWN]:
        table.add_row(*(_plain(cell(name, value)) for name, value in zip(part["columns"], row, strict=True)))
    table.caption = _plain(f"the first {min(SHOWN, part['rows'])} of {part['rows']}; all are in {part['file']}")
    return table


def _heading(name: str) -> str:
    return name.replace("_", " ").replace("monte carlo", "Monte Carlo")


def _scores(results: dict[str, Any]):
    held = results["held_out"]
    title = f"Judged on {held['rows']} held-out rows, fitted to {held['trained_on']}"
    table = _table(title, "score", "model", "baseline", "difference", "verdict")
    for s in held["scores"]:
        value = plus_minus(s["value"], s["std_error"])
        difference = plus_minus(s["difference"], s["difference_std_error"])
        table.add_row(s["name"], value, number(s["baseline"]), difference, s["verdict"])
    table.caption = f"± is one standard error over rows; the baseline predicts from {held['baseline']} alone"
    return table


def _checks(results: dict[str, Any]):
    table = _table("Can the numbers be trusted?", "", "check", "finding", left=3)
    for check in results["checks"]:
        table.add_row(
            "[green]fine[/]" if check["good"] else "[yellow]look[/]", check["name"], _plain(check["sentence"])
        )
    return table


def _plain(text: str) -> str:
    """Text in which brackets are brackets and no markup."""
    return text.replace("[", r"\[")
