"""The folder of a fit: report.html, fit.json and tables, whole or not at all (SPEC §5 for what its observables mean).

Receives the findings of a study; hands on a directory. Everything is written beside it first and moved into place at the end, so
that a reader never sees half of it and an interrupted run changes nothing.
"""

import contextlib
import csv
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gyromc.checks import require
from gyromc.errors import InvalidInput

__all__ = ["SCHEMA", "SCHEMA_VERSION", "render", "results_folder", "write"]

SCHEMA = "gyromc.fit"
SCHEMA_VERSION = 1
RESULTS = "fit.json"
FILES = (RESULTS, "report.html", "coefficients.csv", "held_out.csv", "predictions.csv")
"""All that a fit writes."""


@contextlib.contextmanager
def results_folder(path: str | Path) -> Iterator[Path]:
    """An empty folder to write into, which becomes `path` when all went well and vanishes when not.

    **Arguments:**

    - `path`: the directory to be; an earlier fit there is replaced, anything else is left alone and refused.

    ```python
    from pathlib import Path
    from gyromc.app.fit.report import results_folder
    with results_folder("out") as folder:
        (folder / "fit.json").write_text("{}")
    assert Path("out/fit.json").exists()
    ```
    """
    path = Path(path)
    require(not path.is_file(), f"{path} is a file: pass a directory with `--out`.")
    others = sorted(entry.name for entry in path.iterdir() if entry.name not in FILES) if path.exists() else []
    require(not others, f"{path} holds other files ({', '.join(others[:3])}): pass another directory with `--out`.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise InvalidInput(f"Cannot write beside {path}: {error.strerror or error}. Pass `--out` elsewhere.") from None
    try:
        yield folder
        os.chmod(folder, 0o755)
        _swap(folder, path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _swap(folder: Path, path: Path) -> None:
    """Put a finished folder where an older one may be."""
    if not path.exists():
        os.rename(folder, path)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    os.rename(path, old / path.name)
    try:
        os.rename(folder, path)
    except OSError:
        os.rename(old / path.name, path)  # what was there is there again
        old.rmdir()
        raise
    shutil.rmtree(old, ignore_errors=True)


def write(
    results: Mapping[str, Any], tables: Mapping[str, tuple[Sequence[str], Sequence[Sequence[Any]]]], folder: Path
) -> None:
    """Write fit.json, the tables and report.html.

    **Arguments:**

    - `results`: the content of fit.json.
    - `tables`: columns and rows of each CSV file, by its name.
    - `folder`: where.
    """
    (folder / RESULTS).write_text(json.dumps(results, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    for name, (columns, rows) in tables.items():
        with (folder / name).open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(columns)
            writer.writerows(
                [["" if x is None else f"{x:.9g}" if isinstance(x, float) else x for x in r] for r in rows]
            )
    (folder / "report.html").write_text(render(json.loads((folder / RESULTS).read_text())))  # what the file says


def render(results: Mapping[str, Any]) -> str:
    """The page as text.

    **Arguments:**

    - `results`: the content of fit.json.
    """
    from gyromc.app.fit.figures import panels
    from gyromc.app.fit.wording import cell
    from gyromc.show.pages import environment

    template = environment("gyromc.app.fit").get_template("fit.html.j2")
    return template.render(results=results, panels=panels(dict(results)), zip=zip, cell=cell)
