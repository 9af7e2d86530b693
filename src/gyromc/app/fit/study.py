"""All steps of `gyromc fit`: read, encode, hold rows out, fit, judge, fit again to all rows, predict, write.

Input: a `Request` with the user's options. Output: a directory of results, and the content of its fit.json.
"""

import dataclasses
import datetime
import shlex
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.app.fit.datatable import DataTable, read_table
from gyromc.app.fit.encoding import Encoding
from gyromc.app.fit.recognition import complete_rows, recognise
from gyromc.app.fit.report import FILES, write
from gyromc.app.fit.response import Wishes, recognise_response
from gyromc.checks import positive, require, whole
from gyromc.errors import GyromcWarning
from gyromc.regression.scores import held_out_rows
from gyromc.show.files import results_folder
from gyromc.show.interruption import Interruption, interruptible
from gyromc.show.numbers import counted
from gyromc.show.progress import Progress, progress

__all__ = ["Request", "study"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """The options of `gyromc fit`.

    **Arguments:**

    - `data`: a CSV or Parquet file; `target`: the column to predict; `predict`: a file of new rows, or None.
    - `out`: the directory of results; `results/fit-NAME` when None.
    - `model`, `impute`, `categorical`, `positive`, `reference` (`COLUMN=LEVEL`): as in `response.Wishes`.
    - `columns`, `drop`, `encoding`, `decimal`: as in `datatable.read_table`.
    - `test_fraction`: the share of rows held out.
    - `prior_scale`, `effort`, `seed`: as in `regression.fit`.
    """

    data: str
    target: str
    model: str | None = None
    predict: str | None = None
    out: str | None = None
    columns: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    reference: tuple[str, ...] = ()
    positive: str | None = None
    impute: bool = False
    test_fraction: float = 0.25
    prior_scale: float = 2.5
    effort: str = "standard"
    seed: int = 0
    encoding: str = "utf-8"
    decimal: str = "."

    @property
    def directory(self) -> Path:
        """The directory of the results."""
        return Path(self.out) if self.out is not None else Path("results") / f"fit-{Path(self.data).stem}"

    @property
    def command(self) -> str:
        """The command line with the same options."""
        parts = ["gyromc fit", shlex.quote(self.data), "--target", shlex.quote(self.target)]
        for field in dataclasses.fields(self)[2:]:
            value = getattr(self, field.name)
            option = f"--{field.name.replace('_', '-')}"
            if value is True:
                parts.append(option)
            elif isinstance(value, tuple):
                parts += [f"{option} {shlex.quote(text)}" for text in value]
            elif value != field.default:
                parts.append(f"{option} {shlex.quote(str(value))}")
        return " ".join(parts)

    def wishes(self, table: DataTable) -> Wishes:
        """Return the user's wishes, with lists of columns split."""
        pairs = [text.partition("=") for text in self.reference]
        for text, (_, sign, _) in zip(self.reference, pairs, strict=True):
            require(sign, f"`--reference` takes COLUMN=LEVEL: got {text!r}.")
        names = [n for text in self.categorical for n in ([text] if text in table.names else text.split(","))]
        reference = {column: level for column, _, level in pairs}
        categorical = tuple(name.strip() for name in names)
        require(self.target not in categorical, f"{self.target!r} is the target: for classes pass `--model logistic`.")
        return Wishes(self.model, self.impute, categorical, self.positive, reference)


def study(request: Request, say: Callable[[str], object] = lambda text: None) -> tuple[Path, dict[str, Any]]:
    """Do all that `gyromc fit` does. After Ctrl-C nothing is written and `KeyboardInterrupt` is raised.

    **Arguments:**

    - `request`: the options.
    - `say`: called with each remark.

    **Returns:** the directory that was written, and the content of its fit.json.
    """
    began, started = time.perf_counter(), datetime.datetime.now(datetime.UTC)
    whole(request.seed, "seed", least=0)
    positive(request.prior_scale, "prior_scale")
    table = read_table(
        request.data,
        request.columns,
        request.drop,
        (request.target,),
        encoding=request.encoding,
        decimal=request.decimal,
    )
    table, left_out = complete_rows(table, request.target, request.impute)
    wishes = request.wishes(table)
    response = recognise_response(table, request.target, wishes)
    y = response.encode(table)
    test = held_out_rows(y if response.classes else None, table.num_rows, request.test_fraction, request.seed)
    train = np.setdiff1d(np.arange(table.num_rows), test)
    encoding = recognise(table, request.target, wishes, train)
    new = _new_rows(request, encoding)  # before anything is computed: a wrong file is known at once
    notes = (*table.notes, *left_out, *_split_note(request, table, test))
    for note in notes:
        say(note)
    with interruptible() as stop, progress() as shown, results_folder(request.directory, FILES) as folder:
        watch = _Watch(say, stop, shown)
        results, tables = _findings(request, table, encoding, (train, test), y, new, watch)
        results = {
            "command": request.command,
            "settings": {f.name: getattr(request, f.name) for f in dataclasses.fields(request)},
            **results,
            "files": ["fit.json", "report.html", *tables],
            "times": {
                "started": started.isoformat(timespec="seconds"),
                "wall": time.perf_counter() - began,
                **results["times"],
            },
        }
        results["data"]["notes"] = [*notes, *results["data"]["notes"]]
        watch.stage("writing the report")
        results = write(results, tables, folder)
        stop.check()
    return request.directory, results


@dataclasses.dataclass(frozen=True)
class _Watch:
    """Shows each stage and the steps made; raises `KeyboardInterrupt` between them after Ctrl-C."""

    say: Callable[[str], object]
    stop: Interruption
    shown: Progress

    def stage(self, text: str) -> None:
        """A new stage begins."""
        self.stop.check()
        self.say(text)
        self.shown.describe(text)

    def advance(self, steps: int) -> None:
        """So many steps were made."""
        self.stop.check()
        self.shown.advance(steps)


def _new_rows(request: Request, encoding: Encoding) -> tuple[DataTable, np.ndarray] | None:
    """Read and encode the rows to predict for."""
    if request.predict is None:
        return None
    needs = encoding.needs
    options = {"encoding": request.encoding, "decimal": request.decimal}
    table = read_table(request.predict, needs[:1], keep=needs, role="needed by the fit", **options)  # and nothing else
    return table, encoding.design(table)


def _split_note(request: Request, table: DataTable, test: np.ndarray) -> list[str]:
    if test.size or request.test_fraction == 0:
        return []
    return [f"{counted(table.num_rows, 'row')} are too few to hold any out: no scores."]


def _findings(
    request: Request, table: DataTable, encoding: Encoding, split, y, new, watch: _Watch
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make both fits; return the content of fit.json and the tables beside it."""
    from gyromc.app.fit import findings

    train, test = split
    X = encoding.design(table)
    spent = {}
    held_out = judged = None
    if test.size:
        watch.stage(f"fitting {counted(train.size, 'row')}, to judge on {test.size}")
        judged, spent["judging"] = _fit(request, encoding, X[train], y[train], watch)
        held_out = findings.held_out(judged, encoding, X[test], y[test], y[train])
    watch.stage(f"fitting {'all ' if test.size else ''}{counted(table.num_rows, 'row')}")
    fit, spent["fitting"] = _fit(request, encoding, X, y, watch)
    coefficients = findings.coefficients(fit, encoding, X)
    tables: dict[str, Any] = {"coefficients.csv": findings.coefficient_table(coefficients)}
    predictions = []
    if judged is not None:
        columns, rows = findings.predictions(judged, encoding, table.take(test), X[test], y[test])
        tables["held_out.csv"] = (columns, rows)
        predictions.append(findings.part("held_out.csv", encoding, columns, rows, train.size, new=False))
    if new is not None:
        columns, rows = findings.predictions(fit, encoding, new[0], new[1], None)
        tables["predictions.csv"] = (columns, rows)
        predictions.insert(0, findings.part("predictions.csv", encoding, columns, rows, table.num_rows, new=True))
    results = findings.results(fit, encoding, table, X, coefficients, request.prior_scale)
    return {**results, "held_out": held_out, "predictions": predictions, "times": spent}, tables


def _fit(request: Request, encoding: Encoding, X: np.ndarray, y: np.ndarray, watch: _Watch):
    """Return a fit and the seconds it took; raise `KeyboardInterrupt` after Ctrl-C."""
    from gyromc.regression.fit import EFFORTS, fit

    effort: Any = request.effort
    if effort not in EFFORTS:
        try:
            effort = float(effort)
        except ValueError:
            require(False, f"`--effort` is one of {', '.join(EFFORTS)}, or the relative error wanted: got {effort!r}.")
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GyromcWarning)
        found = fit(
            X,
            y,
            encoding.response.model,
            prior_scale=request.prior_scale,
            names=encoding.names,
            classes=encoding.response.classes or None,
            effort=effort,
            seed=request.seed,
            progress=watch.advance,
        )
    if found.run.partial:
        raise KeyboardInterrupt
    watch.stop.check()
    for warning in caught:
        watch.say(f"warning: {warning.message}")
    return found, time.perf_counter() - began
