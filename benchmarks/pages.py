"""What the studies share: their command line, their files of records, and the text between two markers of a page."""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import gyromc as gm
from gyromc.checks import require

__all__ = ["coverage_options", "markdown", "replace_between", "save_rows", "study_of_models"]


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
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(records, indent=1))


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
    known = {key(row): row for row in (json.loads(path.read_text())["rows"] if path.exists() else [])}
    known |= {key(row): row for row in rows}
    everything = sorted(known.values(), key=place) if place else list(known.values())
    result = {"level": 0.95, "gyromc": gm.__version__, "rows": everything}
    path.write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
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
