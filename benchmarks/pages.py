"""What the studies share: their command line, their files of records, and the text between two markers of a page."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from gyromc.checks import require
from gyromc.show.files import write_atomically
from gyromc.show.pages import machine

__all__ = [
    "coverage_options",
    "markdown",
    "measured_rows",
    "replace_between",
    "save_rows",
    "study_of_models",
    "write_measured",
]

ENVIRONMENT, OTHERS = "environment", "other_environments"


def write_measured(path: Path, found: dict | list, extended: bool = False) -> None:
    """Write results as JSON, with the machine and the versions that made them as `environment`; a list is stored as `rows`.

    `extended`: the file may hold results of earlier runs. Machines of those that are not this one stay in it, as
    `other_environments`; null is one that was not recorded.
    """
    here, before = machine(), []
    if extended and path.exists():
        old = json.loads(path.read_text(encoding="utf-8"))
        old = old if isinstance(old, dict) else {}
        before = [old.get(ENVIRONMENT), *old.get(OTHERS, [])]
    others = [one for k, one in enumerate(before) if one != here and one not in before[:k]]
    plain = found if isinstance(found, dict) else {"rows": found}
    content = {name: value for name, value in plain.items() if name not in (ENVIRONMENT, OTHERS)}
    content = {ENVIRONMENT: here, **({OTHERS: others} if others else {}), **content}
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def measured_rows(path: Path | None) -> list[dict]:
    """The rows of a file of results; none where there is no file."""
    if path is None or not path.exists():
        return []
    found = json.loads(path.read_text(encoding="utf-8"))
    return found["rows"] if isinstance(found, dict) else found


def study_of_models(
    description: str, counts: dict[str, int], models: Callable, measured: Callable, line: Callable
) -> None:
    """Measure every model, or the one named by `--only`; print `line(record)` for each, and write all records to `--out`.

    `models(only)` returns models by name, `measured(name, model, options)` a record that JSON can hold. `counts` are the whole
    numbers that can be set, by name, with their defaults.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only")
    for name, default in counts.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    records = []
    for name, model in models(options.only).items():
        records.append(measured(name, model, options))
        print(line(records[-1]), flush=True)
    if options.out:
        write_measured(options.out, records)


def coverage_options(description: str, runs: int) -> argparse.ArgumentParser:
    """The command line of a study of coverage: the number of runs, and where the results go."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=runs)
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--page", type=Path, help="a Markdown page with the two markers")
    return parser


def save_rows(path: Path, rows: list[dict], fields: tuple[str, ...], place: Callable | None = None) -> list[dict]:
    """Replace the rows that agree in `fields` with new ones, so that an interrupted study keeps the others; returns all of them.

    They are sorted by `place(row)`; without it they stay in the order in which they were first measured.
    """
    key = lambda row: tuple(row[field] for field in fields)
    known = {key(row): row for row in measured_rows(path)}
    known |= {key(row): row for row in rows}
    everything = sorted(known.values(), key=place) if place else list(known.values())
    write_measured(path, {"level": 0.95, "rows": everything}, extended=True)
    return everything


def replace_between(page: Path, name: str, content: str) -> None:
    """Put the content between `<!-- name: begin -->` and `<!-- name: end -->`; `InvalidInput` where a marker is missing."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    text = page.read_text(encoding="utf-8")
    require(
        text.count(begin) == 1 and text.count(end) == 1 and text.index(begin) < text.index(end),
        f"{page} must have the markers {begin} and {end}, once each and in this order. Add them where the text belongs.",
    )
    before, rest = text.split(begin)
    page.write_text(f"{before}{begin}\n\n{content}\n\n{end}{rest.split(end)[1]}", encoding="utf-8")


def markdown(columns: list[str], rows: list[list[str]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are aligned to the left, the others to the right."""
    lines = [columns, ["---"] * left + ["---:"] * (len(columns) - left), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
