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

from gyromc.app.fit.choosing import chosen_family
from gyromc.app.fit.preparation import Prepared, prepare
from gyromc.app.fit.quotable import effect_findings
from gyromc.app.fit.report import FILES, write
from gyromc.app.fit.request import Request
from gyromc.app.fit.robustness import robust_findings, with_robust
from gyromc.app.fit.rows import DesignRows
from gyromc.app.fit.saved import FittedModel
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.memory import release_memory
from gyromc.show.files import require_output, results_folder
from gyromc.show.interruption import Interruption, interruptible
from gyromc.show.numbers import counted, listed
from gyromc.show.progress import Progress, progress

__all__ = ["Request", "effort_of", "study"]

PATIENCE = 1.0  # seconds that Ctrl-C may wait for the end of a stage


def study(request: Request, say: Callable[[str], object] = lambda text: None) -> tuple[Path, dict[str, Any]]:
    """Do all that `gyromc fit` does. After Ctrl-C nothing is written and `KeyboardInterrupt` is raised."""
    began, started = time.perf_counter(), datetime.datetime.now(datetime.UTC)
    inputs = (request.data, request.predict)
    require_output(request.save, "--save", *inputs)
    prepared = prepare(request)
    for note in prepared.notes:
        say(note)
    if not prepared.given_away["good"]:
        say(f"warning: {prepared.given_away['sentence']}")
    out = request.directory
    with interruptible(patience=PATIENCE) as stop, progress() as shown, results_folder(out, FILES, *inputs) as folder:
        watch = _Watch(say, stop, shown)
        results, tables, model = _findings(request, prepared, watch)
        results["data"]["notes"] = prepared.notes
        results["checks"].append(prepared.given_away)
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
        if request.save is not None:
            model.save(request.save)
    return request.directory, results


@dataclasses.dataclass(frozen=True)
class _Watch:
    """Shows each stage and the steps made; raises `KeyboardInterrupt` between them after Ctrl-C."""

    say: Callable[[str], object]
    stop: Interruption
    shown: Progress

    def stage(self, text: str) -> None:
        self.stop.check()
        release_memory()  # what the last stage took
        self.say(text)
        self.shown.describe(text)

    def advance(self, steps: int) -> None:
        self.stop.check()
        self.shown.advance(steps)


def _findings(
    request: Request, prepared: Prepared, watch: _Watch
) -> tuple[dict[str, Any], dict[str, Any], FittedModel]:
    """Make both fits; return the content of fit.json, the tables beside it, and the model to save."""
    from gyromc.app.fit import findings
    from gyromc.app.fit.adequacy import adequacy

    spent = {}
    if len(prepared.families) > 1:
        watch.stage(f"comparing families: {', '.join(prepared.families)}")
    began = time.perf_counter()
    prepared, families = chosen_family(request, prepared)
    if families is not None:
        spent["comparing"] = time.perf_counter() - began
    table, encoding, train, test = prepared.table, prepared.encoding, prepared.train, prepared.test
    X, y = prepared.rows.X, prepared.y
    held_out = judged = None
    if test.size:
        watch.stage(f"fitting {counted(train.size, 'row')}, to judge on {test.size}")
        judged, spent["judging"] = _fit(request, prepared, prepared.rows.take(train), y[train], watch)
        held_out = findings.held_out(judged, encoding, prepared.rows.take(test), y[test], y[train])
    watch.stage(f"fitting {'all ' if test.size else ''}{counted(table.num_rows, 'row')}")
    fit, spent["fitting"] = _fit(request, prepared, prepared.rows, y, watch)
    tables: dict[str, Any] = {"coefficients.csv": findings.coefficient_table(fit)}
    robust = None
    if request.robust or request.cluster is not None:
        robust = robust_findings(fit, prepared.rows, y, request.cluster)
        tables["coefficients.csv"] = with_robust(tables["coefficients.csv"], robust)
    predictions = []
    if judged is not None:
        tables["held_out.csv"] = found = findings.predictions(
            judged, encoding, table.take(test), prepared.rows.take(test), y[test]
        )
        predictions.append(findings.part("held_out.csv", encoding, found, train.size, new=False))
    if prepared.new is not None:
        tables["predictions.csv"] = found = findings.predictions(fit, encoding, *prepared.new, y=None)
        predictions.insert(0, findings.part("predictions.csv", encoding, found, table.num_rows, new=True))
    results = findings.results(fit, encoding, table, X, request.prior_scale)
    asked = [f"{name} N({p.location:g}, {p.scale:g}²)" for name, p in prepared.priors.items() if name in encoding.names]
    asked += [
        f"{name} exponential with mean {p.scale:g}" for name, p in prepared.priors.items() if name not in encoding.names
    ]
    if asked:
        results["model"]["prior"] += f" Asked for, per unit of the column: {listed(asked, 8)}."
    results["effects"] = effect_findings(fit, encoding, X, prepared.rows.beside())
    watch.stage("checking the model")
    results["adequacy"] = adequacy(
        fit, encoding, table, X, y, held_out, request.command, prepared.rows.beside(), prepared.rows.weights
    )
    model = FittedModel.of(fit, encoding, _about(request, prepared))
    found = {"held_out": held_out, "predictions": predictions, "robust": robust, "families": families, "times": spent}
    return {**results, **found}, tables, model


def _about(request: Request, prepared: Prepared) -> dict[str, Any]:
    """Return what a saved model says about itself."""
    return {
        "file": Path(request.data).name,
        "rows": prepared.table.num_rows,
        "formula": request.formula,
        "target": prepared.encoding.response.name,
        "family": prepared.encoding.response.model,
        "command": request.command,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _fit(request: Request, prepared: Prepared, rows: DesignRows, y: np.ndarray, watch: _Watch):
    """Return a fit and the seconds it took; raise `KeyboardInterrupt` after Ctrl-C."""
    from gyromc.regression.fit import fit

    encoding = prepared.encoding
    began = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", GyromcWarning)
        found = fit(
            rows.X,
            y,
            encoding.response.model,
            prior_scale=request.prior_scale,
            intercept=encoding.intercept,
            names=encoding.names,
            classes=encoding.response.classes or None,
            effort=effort_of(request),
            seed=request.seed,
            progress=watch.advance,
            priors=prepared.priors or None,
            weights=rows.weights,
            **rows.beside(),
        )
    if found.partial:
        raise KeyboardInterrupt
    watch.stop.check()
    for warning in caught:
        watch.say(f"warning: {warning.message}")
    return found, time.perf_counter() - began


def effort_of(request: Request) -> str | float:
    """The effort asked for: a name, or the error wanted."""
    from gyromc.regression.fit import EFFORTS

    if request.effort in EFFORTS:
        return request.effort
    try:
        return float(request.effort)
    except ValueError:
        known = ", ".join(EFFORTS)
        raise InvalidInput(
            f"`--effort` is one of {known}, or the relative error wanted: got {request.effort!r}."
        ) from None
