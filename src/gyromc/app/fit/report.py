"""The files of a fit: fit.json, its tables as CSV, and report.html.

Input: the findings of a study. Output: files in a folder; the page shows what fit.json holds and nothing else.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gyromc.show.files import ResultsFile, csv_text, write_atomically

__all__ = ["FILES", "RESULTS", "render", "write"]

RESULTS = ResultsFile("fit.json", "gyromc.fit", 1, "gyromc fit … --out {directory}")
FILES = (RESULTS.name, "report.html", "coefficients.csv", "held_out.csv", "predictions.csv")
"""All files that a fit may write."""


def write(
    results: Mapping[str, Any], tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[Any]]]], folder: Path
) -> dict[str, Any]:
    """Write fit.json, report.html, and the columns and rows of each CSV file; return what a reader of fit.json gets."""
    saved = RESULTS.save(results, folder)
    for name, (columns, rows) in tables.items():
        write_atomically(folder / name, csv_text(columns, rows))
    write_atomically(folder / "report.html", render(saved))
    return saved


def render(results: Mapping[str, Any]) -> str:
    """Return the page as text, from the content of fit.json."""
    from gyromc.app.fit.figures import pictures
    from gyromc.app.fit.wording import cell, heading
    from gyromc.show.pages import environment

    template = environment("gyromc.app.fit").get_template("fit.html.j2")
    return template.render(results=results, pictures=pictures(dict(results)), zip=zip, cell=cell, heading=heading)
