"""All steps of `gyromc fit`: read, encode, hold rows out, fit, judge, fit again to all rows, predict, write.

Input: a `Request` with the user's options. Output: a directory of results, and the content of its fit.json.
"""

import dataclasses
import datetime
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.app.fit.datatable import DataTable, read_table, split_names
from gyromc.app.fit.encoding import Encoding
from gyromc.app.fit.giveaways import check, giveaways
from gyromc.app.fit.recognition import complete_rows, recognise
from gyromc.app.fit.report import FILES, write
from gyromc.app.fit.request import Request
from gyromc.app.fit.response import Wishes, recognise_response
from gyromc.checks import positive, require, whole
from gyromc.errors import GyromcWarning
from gyromc.regression.scores import held_out_rows
from gyromc.show.files import results_folder
from gyromc.show.interruption import Interruption, interruptible
from gyromc.show.numbers import counted
from gyromc.show.progress import Progress, progress

__all__ = ["Request", "study"]

PATIENCE = 1.0  # seconds that Ctrl-C may wait for the end of a stage


def study(request: Request, say: Callable[[str], object] = lambda text: None) -> tuple[Path, dict[str, Any]]:
    """Do all that `gyromc fit` does. After Ctrl-C nothing is written and `KeyboardInterrupt` is raised."""
    began, started = time.perf_counter(), datetime.datetime.now(datetime.UTC)
    whole(request.seed, "seed", least=0)
    positive(request.prior_scale, "prior_scale")
    text = {"encoding": request.encoding, "decimal": request.decimal}
    table = read_table(request.data, request.columns, request.drop, (request.target,), **text)
    table, left_out = complete_rows(table, request.target, request.impute)
    wishes = _wishes(request, table)
    response = recognise_response(table, request.target, wishes)
    y = response.encode(table)
    test = held_out_rows(y if response.classes else None, table.num_rows, request.test_fraction, request.seed)
    train = np.setdiff1d(np.arange(table.num_rows), test)
    encoding = recognise(table, request.target, wishes, train)
    new = None
    if request.predict is not None:  # before anything is computed: a wrong file is known at once
        needs = encoding.needs
        rows = read_table(request.predict, needs[:1], keep=needs, role="needed by the fit", **text)  # and nothing else
        new = rows, encoding.design(rows)
    notes = [*table.notes, *left_out]
    if not test.size and request.test_fraction > 0:
        notes.append(f"{counted(table.num_rows, 'row')} are too few to hold any out: no scores.")
    for note in notes:
        say(note)
    given_away = check(giveaways(table, encoding, y), request.target)
    if not given_away["good"]:
        say(f"warning: {given_away['sentence']}")
    out = request.directory
    with interruptible(patience=PATIENCE) as stop, progress() as shown, results_folder(out, FILES) as folder:
        watch = _Watch(say, stop, shown)
        results, tables = _findings(request, table, encoding, (train, test), y, new, watch)
        results["data"]["notes"] = notes
        results["checks"].append(given_away)
        whole_time = {"started": started.isoformat(timespec="seconds"), "wall": time.perf_counter() - began}
        results = {
            "command": request.command,
            "settings": dataclasses.asdict(request),
            **results,
            "files": ["fit.json", "report.html", *tables],
            "times": whole_time | results["times"],
        }
        watch.stage("writing the report")
        results = write(results, tables, folder)
        stop.check()
    return request.directory, results


def _wishes(request: Request, table: DataTable) -> Wishes:
    """Return what the user asks of the columns, with lists of names split."""
    reference = {}
    for text in request.reference:
        column, sign, level = text.partition("=")
        require(sign, f"`--reference` takes COLUMN=LEVEL: got {text!r}.")
        reference[column] = level
    categorical = split_names(request.categorical, table.names)
    require(
        request.target not in categorical, f"{request.target!r} is the target: for classes pass `--model logistic`."
    )
    return Wishes(request.model, request.impute, tuple(categorical), request.positive, reference)


@dataclasses.dataclass(frozen=True)
class _Watch:
    """Shows each stage and the steps made; raises `KeyboardInterrupt` between them after Ctrl-C."""

    say: Callable[[str], object]
    stop: Interruption
    shown: Progress

    def stage(self, text: str) -> None:
        self.stop.check()
        self.say(text)
        self.shown.describe(text)

    def advance(self, steps: int) -> None:
        self.stop.check()
        self.shown.advance(steps)


def _findings(
    request: Request, table: DataTable, encoding: Encoding, split, y, new, watch: _Watch
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make both fits; return the content of fit.json and the tables beside it."""
    from gyromc.app.fit import findings
    from gyromc.app.fit.adequacy import adequacy

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
    tables: dict[str, Any] = {"coefficients.csv": findings.coefficient_table(fit)}
    predictions = []
    if judged is not None:
        tables["held_out.csv"] = found = findings.predictions(judged, encoding, table.take(test), X[test], y[test])
        predictions.append(findings.part("held_out.csv", encoding, found, train.size, new=False))
    if new is not None:
        tables["predictions.csv"] = found = findings.predictions(fit, encoding, *new, y=None)
        predictions.insert(0, findings.part("predictions.csv", encoding, found, table.num_rows, new=True))
    results = findings.results(fit, encoding, table, X, request.prior_scale)
    watch.stage("checking the model")
    results["adequacy"] = adequacy(fit, encoding, table, X, y, held_out, request.command)
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
    if found.partial:
        raise KeyboardInterrupt
    watch.stop.check()
    for warning in caught:
        watch.say(f"warning: {warning.message}")
    return found, time.perf_counter() - began
