"""A fit to a Parquet file that is too large for memory: the coefficients from all rows, the checks from a sample."""

import dataclasses
import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gyromc.checks import require
from gyromc.data import Parquet
from gyromc.data.files import pyarrow
from gyromc.runtime.machine import free_memory, release_memory
from gyromc.show.files import ResultsFile, csv_text, results_folder, write_atomically
from gyromc.show.numbers import number
from gyromc.show.tables import Table
from gyromc.tables.datatable import split_names
from gyromc.tables.findings import coefficient_table
from gyromc.tables.request import Request
from gyromc.targets.regressions import BY_FAMILY

LARGE = 100_000_000  # numbers in a Parquet file, beyond which it is not read into memory
TIMES = 10  # a CSV file takes about so many times its size in memory
RESULTS = ResultsFile("fit.json", "gyromc.fit-large", 2, "gyromc fit … --out {directory}")
REPORT = "sample_report.html"
FILES = (RESULTS.name, "coefficients.csv", REPORT)
TAKEN = {"data", "target", "family", "out", "columns", "drop", "test_fraction", "prior_scale", "effort", "seed"}
TAKEN |= {"encoding", "decimal", "sheet"}
"""The options of a request that need not have all rows in memory."""


def is_large(request: Request) -> bool:
    """Whether a request's file is a Parquet file that is not read into memory; `InvalidInput` for a CSV file beyond it."""
    path = Path(request.data)
    if not path.is_file():
        return False  # what reads it says so
    with path.open("rb") as file:
        first = file.read(4)
    if first != b"PAR1":
        size = path.stat().st_size
        memory = f"{path} has {size / 1e9:.2g} GB: as CSV it is read into memory, and there is not enough of it."
        remedy = "Write it as Parquet (DuckDB, Polars and pandas with `chunksize` do), which is read in pieces."
        require(size * TIMES < free_memory() or first[:2] == b"PK", f"{memory} {remedy}")
        return False
    try:
        with pyarrow().parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns = len(split_names(request.columns, names)) or len(names) - len(split_names(request.drop, names))
            return file.metadata.num_rows * columns >= LARGE
    except (pyarrow().ArrowInvalid, OSError):
        return False


def _source(request: Request) -> Parquet:
    """The rows, after refusing what cannot be done without all of them in memory."""
    for name in (field.name for field in dataclasses.fields(request)):
        large = f"{request.data} has {LARGE:,} numbers or more, so that it is read in pieces"
        remedy = "Leave it out, take fewer `--columns`, or fit a sample of the rows."
        rows = f"{large}, and `--{name}` needs all rows in memory. {remedy}"
        require(name in TAKEN or not getattr(request, name), rows)
    known = f"of the families only {', '.join(BY_FAMILY)} are: got {request.family!r}."
    require(request.family in (None, "auto", *BY_FAMILY), f"{request.data} is read in pieces, and {known}")
    target = request.target or ""
    require(target, "Say what to predict: `--target COLUMN`.")
    with pyarrow().parquet.ParquetFile(request.data) as file:
        names = file.schema_arrow.names
    only, drop = split_names(request.columns, names), split_names(request.drop, names)
    unknown = [name for name in (target, *only, *drop) if name not in names]
    require(not unknown, f"{request.data} has no column {', '.join(unknown)}: it has {', '.join(names[:30])}.")
    return Parquet(request.data, target, [name for name in only or names if name not in (*drop, target)])


def large_study(request: Request, say: Callable[[str], object] = lambda text: None) -> tuple[Path, dict[str, Any]]:
    """Fit a large Parquet file and write the results."""
    import jax

    from gyromc.regression.fit import relative_error
    from gyromc.regression.streamed import fit_streamed

    began, started = time.perf_counter(), datetime.datetime.now(datetime.UTC)
    source = _source(request)
    say(f"{request.data}: {source.num_rows:,} rows, read in pieces; the model is checked on a sample of them")
    with results_folder(request.directory, FILES, request.data) as folder:
        asked = {"prior_scale": request.prior_scale, "error": relative_error(request.effort), "seed": request.seed}
        family = None if request.family == "auto" else request.family
        found = fit_streamed(source, family, names=source.columns, say=say, **asked)
        spent = time.perf_counter() - began
        jax.clear_caches()  # programs of the passes, which the sample does not use
        release_memory()
        checked = _check_sample(request, found, source, folder, say)
        columns, rows = coefficient_table(found.coefficients)
        write_atomically(folder / "coefficients.csv", csv_text(columns, rows))
        started = started.isoformat(timespec="seconds")
        results = {
            "command": request.command,
            "settings": dataclasses.asdict(request),
            "data": {"file": request.data, "rows": source.num_rows, "columns": list(source.columns)},
            "model": {"family": found.family, "target": request.target, "reason": found.reason},
            "coefficients": [dict(zip(columns, row, strict=True)) for row in rows],
            "warnings": list(found.warnings),
            "sample": checked,
            "files": [RESULTS.name, "coefficients.csv", *([REPORT] if "report" in checked else [])],
            "times": {"started": started, "fitting": spent, "wall": time.perf_counter() - began},
        }
        results = RESULTS.save(results, folder)
    return request.directory, results


def _check_sample(request: Request, found, source: Parquet, folder: Path, say) -> dict[str, Any]:
    """The ordinary fit of the sampled rows: what its checks say, and its report as a file of the folder."""
    from gyromc.tables.report import render, verdicts
    from gyromc.tables.study import Watch, computed

    X, y = found.sample
    say(f"checking the model on {len(y):,} rows, drawn at random")
    columns = {name: X[:, j] for j, name in enumerate(source.columns)} | {request.target: y}
    chosen = list(source.columns) if request.columns or request.drop else []
    model, _ = computed(dataclasses.replace(request, columns=chosen, drop=[], family=found.family), columns, Watch())
    results = model.results or {}
    write_atomically(folder / REPORT, render(results))
    return {"rows": len(y), "verdicts": verdicts(results), "held_out": results["held_out"], "report": REPORT}


def large_tables(results: dict[str, Any]) -> list[Table | str]:
    """The tables that the command prints."""
    data, model = results["data"], results["model"]
    names = ("name", "mean", "sd", "low_95", "high_95", "monte_carlo_error")
    rows = [[c["name"], *(number(c[name], 6) for name in names[1:])] for c in results["coefficients"]]
    head = f"{data['file']}: {data['rows']:,} rows. {model['family'].capitalize()} regression of {model['target']}.\n"
    sample = results["sample"]
    title = f"On a sample of {sample['rows']:,} rows, with a fit of its own:"
    said = "\n".join([title, *sample["verdicts"], *results["warnings"]])
    return [head, Table(names, rows, title="Coefficients"), "", model["reason"] + "\n", said + "\n"]
