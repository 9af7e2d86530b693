"""report.html: one self-contained file with what the paper's §6 claims, what was measured, and what theory says.

Receives results.json's content; hands on figures (SVG, PNG, PDF, CSV) and the page. Nothing is computed here that is not in the
results, so `gyromc report DIR` rebuilds everything without sampling.
"""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gyromc
from gyromc.datasets import HEART
from gyromc.paper import claims
from gyromc.paper.cache import require_writable, write_atomically
from gyromc.paper.progress import Display
from gyromc.show.numbers import bounds, duration, number
from gyromc.show.pages import data_uri, environment, picture

__all__ = ["markdown", "render", "write_report"]

COLUMNS = {
    "smaller-error": "(i) smaller RMSE",
    "asymptotic": "(ii) RMSE/√(ηV) → 1",
    "slope": "(iii) slope → ½",
    "normality": "(iv) normal errors",
    "exact": "RMSE = exact prediction",
    "smaller-error-sgld": "beats plain SGLD",
}
"""The verdict table: claim by column, the paper's four first."""
SHORT = {claims.CONFIRMED: "confirmed", claims.UNRESOLVED: "not resolved", claims.REFUTED: "refuted"}
SIGNS = {claims.CONFIRMED: "✓", claims.UNRESOLVED: "?", claims.REFUTED: "✗"}
CLASSES = {claims.CONFIRMED: "yes", claims.UNRESOLVED: "open", claims.REFUTED: "no"}
ROLE_NAMES = {"nonreversible": "non-reversible", "reversible": "reversible baseline", "sgld": "plain SGLD"}
STATUS_CLASSES = {"holds": "yes", "certified": "yes", "confirmed": "yes", "fails": "no", "violated": "no"}


FORMATS = ("svg", "png", "pdf", "csv")


def write_report(
    results: Mapping[str, Any], directory: Path, display: Display | None = None, formats: tuple[str, ...] = FORMATS
) -> Path:
    """Draw the figures and write report.html.

    **Arguments:**

    - `results`: the content of results.json.
    - `directory`: where report.html and the folder `figures` go.
    - `display`: where progress is shown.
    - `formats`: which files to write for each figure; the page itself needs none of them.

    **Returns:** the path of report.html.
    """
    directory, display = Path(directory), display or Display()
    require_writable(directory)
    pictures: dict[str, list[dict[str, Any]]] = {}
    for name, found in results["experiments"].items():
        display.describe(f"{name}: figures")
        pictures[name] = _figures(name, found, directory / "figures", formats)
        display.advance(1.4)
    path = directory / "report.html"
    write_atomically(path, render(results, pictures))
    return path


def _figures(name: str, found: dict[str, Any], folder: Path, formats: tuple[str, ...]) -> list[dict[str, Any]]:
    """Write one experiment's panels in every format; hand on what the page shows of them."""
    from gyromc.paper.figures import panels

    shown = []
    for panel in panels(name, found):
        stem = f"{name}-{panel.kind}"
        svg = picture(panel.figure, "svg", transparent=True, metadata={"Date": None})
        content = {
            "svg": lambda svg=svg: svg,
            "png": lambda panel=panel: picture(panel.figure, "png", dpi=160),
            "pdf": lambda panel=panel: picture(panel.figure, "pdf", metadata={"CreationDate": None}),
            "csv": lambda panel=panel: _table(panel.columns, panel.rows),
        }
        for kind in formats:
            write_atomically(folder / f"{stem}.{kind}", content[kind]())
        shown.append(
            {
                "stem": stem,
                "kind": panel.kind,
                "alt": panel.alt,
                "caption": panel.caption,
                "source": data_uri(svg),
                "paper": panel.kind in ("rmse", "qq"),
            }
        )
    return shown


def _table(columns: tuple[str, ...], rows: list[tuple]) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([["" if x is None else f"{x:.9g}" if isinstance(x, float) else x for x in row] for row in rows])
    return buffer.getvalue()


def render(results: Mapping[str, Any], pictures: Mapping[str, list[dict[str, Any]]]) -> str:
    """The page as text.

    **Arguments:**

    - `results`: the content of results.json.
    - `pictures`: for each experiment its panels, as data URIs with alternative texts.
    """
    experiments = results["experiments"]
    return (
        environment("gyromc.paper")
        .get_template("report.html.j2")
        .render(
            results=results,
            experiments=experiments,
            pictures=pictures,
            columns=COLUMNS,
            verdicts={name: {c["key"]: c for c in found["claims"]} for name, found in experiments.items()},
            counts=_counts(experiments),
            z_table=_z_table(experiments),
            short=SHORT,
            signs=SIGNS,
            classes=CLASSES,
            role_names=ROLE_NAMES,
            status_classes=STATUS_CLASSES,
            heart=HEART.citation if any(f["family"] == "logistic" for f in experiments.values()) else None,
            tolerances=claims,
            version=gyromc.__version__,
            num_panels=sum(p["paper"] for shown in pictures.values() for p in shown),
        )
    )


def markdown(results: Mapping[str, Any]) -> str:
    """The verdict table as Markdown, with the command and the machine that made it."""
    where = results["environment"]
    lines = [
        f"`{results['command']}`, gyromc {where['gyromc']}, {where['processor']}, {where['cores']} cores, "
        f"{duration(results['times']['sampling'])} of sampling.",
        "",
        "| experiment | " + " | ".join(COLUMNS.values()) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for name, found in results["experiments"].items():
        verdicts = {claim["key"]: claim for claim in found["claims"]}
        cells = [
            f"{SHORT[c['verdict']]}, {number(c['value'])} {bounds(c['interval'])}".strip() if c else "–"
            for c in (verdicts.get(key) for key in COLUMNS)
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    table = _z_table(results["experiments"])
    if table:
        lines += [
            "",
            f"Exact predictions: {table['num']} cells, largest |z| {table['worst']:.2f}, mean z² {table['mean_square']:.2f}.",
        ]
    return "\n".join(lines) + "\n"


def _counts(experiments: Mapping[str, Any]) -> dict[str, dict[str, int]]:
    """How many claims of each source have each verdict."""
    counts = {source: dict.fromkeys(SHORT, 0) for source in ("paper", "beyond")}
    for found in experiments.values():
        for claim in found["claims"]:
            counts[claim["source"]][claim["verdict"]] += 1
    return counts


def _z_table(experiments: Mapping[str, Any]) -> dict[str, Any] | None:
    """z-scores against exact predictions, one row per experiment and dynamics of the paper."""
    rows = []
    for name, found in experiments.items():
        for role, cells in found["cells"].items():
            if cells[0]["z"] is not None:
                rows.append({"name": name, "role": role, "cells": cells})
    if not rows:
        return None
    every = [c["z"] for row in rows for c in row["cells"]]
    paper = [c["z"] for row in rows if row["role"] != "sgld" for c in row["cells"]]
    return {
        "rows": rows,
        "width": max(len(row["cells"]) for row in rows),
        "num": len(paper),
        "num_all": len(every),
        "worst": max(map(abs, paper)),
        "beyond": sum(abs(z) > claims.MAX_Z for z in paper),
        "mean_square": sum(z * z for z in paper) / len(paper),
    }
