"""The findings of a `Fit` as plain values: the parts of fit.json and the rows of its tables.

Posterior spread, Monte Carlo error and step-size bias are separate everywhere.
"""

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.app.fit.adequacy import coverage
from gyromc.app.fit.datatable import DataTable
from gyromc.app.fit.diagnostics import checkup, label
from gyromc.app.fit.encoding import Encoding
from gyromc.app.fit.response import COUNTS
from gyromc.app.fit.rows import DesignRows
from gyromc.app.fit.wording import model_words
from gyromc.regression.adequacy.laws import averaged, distribution
from gyromc.regression.draws import Predictive
from gyromc.regression.fit import Coefficient, Fit
from gyromc.regression.scores import calibration_of_classes, calibration_of_intervals, class_scores, number_scores
from gyromc.show.numbers import counted
from gyromc.show.pages import machine

__all__ = ["coefficient_table", "held_out", "part", "predictions", "results"]

Rows = tuple[list[str], list[list[Any]]]
"""The columns and rows of a table."""
TRACED, TRACE_CHAINS = 4, 4
AT_ONCE = 500  # rows whose predictive mixtures are held at a time
COEFFICIENT_COLUMNS = {
    "name": "name",
    "class": "output",
    "mean": "mean",
    "posterior_spread": "sd",
    "low_95": "low",
    "high_95": "high",
    "monte_carlo_error": "std_error",
    "step_size_bias": "bias",
    "spread_error": "sd_error",
    "low_error": "low_error",
    "high_error": "high_error",
}
"""The columns of coefficients.csv, and the attributes of a `Coefficient` that they show."""


def results(fit: Fit, encoding: Encoding, table: DataTable, X: np.ndarray, prior_scale: float) -> dict[str, Any]:
    """Return the parts of fit.json that come from the fit to all rows."""
    rows = _coefficients(fit, encoding, X)
    slopes = [c for c in rows if c["name"] != "intercept"]
    return {
        "data": {
            "file": Path(table.path).name,
            "path": table.path,
            "rows": table.num_rows,
            "predictors": len(encoding.names),
        },
        "model": model_words(encoding.response, prior_scale, fit.noise_scale),
        "encoding": {**dataclasses.asdict(encoding), "notes": []},  # nothing notes rows here; schema 1 has the key
        "columns": encoding.rows(),
        "coefficients": rows,
        "parameters": [_row(c) for c in fit.auxiliary],
        "summary": {
            "coefficients": len(slopes),
            "sure": sum(c["interval_95"][0] > 0 or c["interval_95"][1] < 0 for c in slopes),
        },
        "sampler": _sampler(fit),
        "checks": checkup(fit, X, prior_scale),
        "trace": _trace(fit, rows),
        "environment": machine(),
    }


def _coefficients(fit: Fit, encoding: Encoding, X: np.ndarray) -> list[dict[str, Any]]:
    """Return the coefficients in the user's units, and per standard deviation of their column."""
    spread = dict(zip(encoding.names, X.std(axis=0), strict=True))
    found = []
    for c in fit.coefficients:
        scale = spread.get(c.name) if c.name != "intercept" else None
        standardised = None
        if scale is not None:
            standardised = {"mean": scale * c.mean, "interval_95": [scale * c.low, scale * c.high]}
        found.append({**_row(c), "standardised": standardised})
    return found


def _row(c: Coefficient) -> dict[str, Any]:
    """Return a coefficient or a further parameter as plain values."""
    return {
        "label": label(c),
        "name": c.name,
        "class": c.output,
        "mean": c.mean,
        "std": c.sd,
        "interval_95": [c.low, c.high],
        "std_error": c.std_error,
        "bias": c.bias,
        "std_std_error": c.sd_error,
        "interval_std_error": [c.low_error, c.high_error],
        "effective_size": c.ess if math.isfinite(c.ess) else None,
    }


def coefficient_table(fit: Fit) -> Rows:
    """Return columns and rows of coefficients.csv."""
    names = dict(COEFFICIENT_COLUMNS)
    if fit.coefficients[0].output is None:
        del names["class"]
    rows = (*fit.coefficients, *fit.auxiliary)
    return list(names), [[getattr(c, attribute) for attribute in names.values()] for c in rows]


def held_out(fit: Fit, encoding: Encoding, rows: DesignRows, y: np.ndarray, train: np.ndarray) -> dict[str, Any]:
    """Compute scores and calibration on rows that the fit has not seen."""
    X, beside = rows.X, rows.beside()
    mean = fit.predict(X, **beside).mean
    if encoding.response.classes:
        p = _probabilities(mean)
        scores, calibration = class_scores(p, y, train), calibration_of_classes(p, y)
        baseline = "how frequent the classes are"
    else:
        counts = encoding.response.model in COUNTS
        scores = number_scores(mean, fit.posterior.log_densities(X, y, **beside), y, train, counts)
        calibration = calibration_of_intervals(*_distribution(fit, rows, y))
        baseline = "the mean count" if counts else "mean and standard deviation"
    return {
        "rows": int(y.size),
        "trained_on": int(train.size),
        "baseline": f"{baseline} in the training rows",
        "scores": [{**s.to_dict(), "verdict": _verdict(s)} for s in scores],
        "calibration": calibration,
        "coverage": coverage(fit, X, y, beside, rows.weights),
    }


def _verdict(score) -> str:
    """Judge the model against its baseline, at two standard errors of the paired difference."""
    gain = score.difference if score.better == "higher" else -score.difference
    if not math.isfinite(score.difference_std_error) or abs(gain) <= 2 * score.difference_std_error:
        return "not clearly better" if gain >= 0 else "not clearly worse"
    return "better" if gain > 0 else "worse"


def _probabilities(mean: np.ndarray) -> np.ndarray:
    """Return rows × classes, also for a logistic model, which predicts one probability."""
    return mean if mean.ndim == 2 else np.column_stack([1 - mean, mean])


def _distribution(fit: Fit, rows: DesignRows, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the predictive distribution function just below y, and at y."""
    parts = []
    for chosen in np.array_split(np.arange(y.size), -(-y.size // AT_ONCE)):
        part = rows.take(chosen)
        law = Predictive.of(fit.posterior, part.X, **part.beside())
        parts.append(averaged(distribution(law, y[chosen])))
    below, upto = zip(*parts, strict=True)
    return np.concatenate(below), np.concatenate(upto)


def predictions(fit: Any, encoding: Encoding, table: DataTable, design: DesignRows, y: np.ndarray | None) -> Rows:
    """Return columns and rows of a table of predictions; `y` where it was observed. `fit` may be a posterior alone."""
    found, classes = fit.predict(design.X, **design.beside()), encoding.response.classes
    columns: dict[str, Sequence[Any]] = {table.unit: table.lines.tolist()}
    if y is not None:
        columns["observed"] = [classes[k] for k in y] if classes else y.tolist()
    if classes:
        columns["predicted"] = [classes[k] for k in _probabilities(found.mean).argmax(axis=1)]
    kinds = {
        "probability" if classes else "mean": found.mean,
        "posterior_spread": found.spread,
        "monte_carlo_error": found.std_error,
    }
    if found.mean.ndim == 1:
        columns |= {kind: values.tolist() for kind, values in kinds.items()}
    else:
        for k, name in enumerate(classes):
            columns |= {f"{kind}[{name}]": values[:, k].tolist() for kind, values in kinds.items()}
    if not classes:
        columns["noise"] = found.noise.tolist()
    if encoding.response.model == "linear":
        columns["low_95"] = (found.mean - 1.96 * found.sd).tolist()
        columns["high_95"] = (found.mean + 1.96 * found.sd).tolist()
    return list(columns), [list(row) for row in zip(*columns.values(), strict=True)]


def part(file: str, encoding: Encoding, table: Rows, fitted: int, new: bool) -> dict[str, Any]:
    """Return what a page shows of a table of predictions: of several classes only the likeliest."""
    response, (columns, rows) = encoding.response, table
    what = f"the probability of {response.positive or 'the likeliest class'}" if response.classes else "the mean"
    first = rows[:10]
    if len(response.classes) > 2:
        columns, first = _likeliest(columns, first)
    return {
        "title": f"Predictions for {counted(len(rows), 'new row' if new else 'held-out row')}",
        "file": file,
        "sentence": f"From the fit to {counted(fitted, 'row')}{'' if new else ' that did not include them'}.",
        "what": what,
        "noise_shown": "noise" in columns,
        "rows": len(rows),
        "columns": columns,
        "first": first,
    }


def _likeliest(columns: list[str], rows: list[list[Any]]) -> Rows:
    """Return the same table with the probability of the predicted class only."""
    kept = [name for name in columns if not name.endswith("]")]
    kinds = ["probability", "posterior_spread", "monte_carlo_error"]
    found = []
    for row in rows:
        cells = dict(zip(columns, row, strict=True))
        found.append([*(cells[name] for name in kept), *(cells[f"{kind}[{cells['predicted']}]"] for kind in kinds)])
    return [*kept, *kinds], found


def _sampler(fit: Fit) -> dict[str, Any]:
    if fit.run is None:
        work = f"{fit.posterior.count} independent draws in closed form"
        shown = {"sampler": fit.reason, "work": work}
        return {"num_chains": len(fit.draws), "gradient_evaluations": 0, "reason": fit.reason, "shown": shown}
    plan, run = fit.run.plan, fit.run
    return {
        **plan.summary(),
        "steps_done": run.steps_done,
        "engine": run.engine,
        "engine_reason": run.engine_reason,
        "gradient_evaluations": run.gradient_evaluations,
        "wall_time": run.wall_time,
        "compile_time": run.compile_time,
        "reason": fit.reason,
        "shown": {
            "sampler": fit.reason,
            "work": f"{run.gradient_evaluations:.3g} gradients in {run.wall_time:.1f} s (compiling {run.compile_time:.1f} s) "
            f"by engine {run.engine}",
        },
    }


def _trace(fit: Fit, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the stored states of a few chains for the coefficients that stand out most, the intercept first."""
    draws = fit.draws
    slopes = [i for i, c in enumerate(rows) if c["name"] != "intercept"]
    slopes.sort(key=lambda i: -abs(rows[i]["mean"]) / max(rows[i]["std"], 1e-300))
    parameters = [
        {"label": rows[i]["label"], "chains": np.round(draws[:TRACE_CHAINS, :, i], 9).tolist()}
        for i in [*(i for i, c in enumerate(rows) if c["name"] == "intercept"), *slopes][:TRACED]
    ]
    options = None if fit.run is None else fit.run.options
    thin = 1 if options is None or options.thin is None else options.thin  # independent draws follow each other
    steps = np.arange(draws.shape[1]) * thin
    return {"thin": thin, "steps": steps.tolist(), "parameters": parameters}
