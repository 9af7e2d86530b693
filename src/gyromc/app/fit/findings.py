"""The findings of a fit as plain values: the parts of fit.json and the rows of its tables.

Input: a `Fit` and the encoding of its table. Output: dictionaries and rows, under the names of the user's columns. Posterior
spread, Monte Carlo error and step-size bias are separate everywhere.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from gyromc.app.fit.datatable import DataTable
from gyromc.app.fit.encoding import Encoding
from gyromc.app.fit.wording import model_words
from gyromc.regression.fit import Fit
from gyromc.regression.scores import calibration_of_classes, calibration_of_intervals, class_scores, number_scores
from gyromc.show.numbers import counted

__all__ = ["coefficient_table", "coefficients", "held_out", "part", "predictions", "results"]

TRACED, TRACE_CHAINS = 4, 4
AT_ONCE = 500  # rows whose predictive mixtures are held at a time


def results(
    fit: Fit, encoding: Encoding, table: DataTable, X: np.ndarray, rows: list[dict[str, Any]], prior_scale: float
) -> dict[str, Any]:
    """Return the parts of fit.json that come from the fit to all rows.

    **Arguments:**

    - `fit`, `encoding`, `table`, `X`: the fit, and what it was fitted to.
    - `rows`: its coefficients.
    - `prior_scale`: of the prior.
    """
    from gyromc.app.fit.diagnostics import checkup
    from gyromc.show.pages import machine

    slopes = [c for c in rows if c["name"] != "intercept"]
    return {
        "data": {
            "file": Path(table.path).name,
            "path": table.path,
            "rows": table.num_rows,
            "predictors": len(encoding.names),
            "notes": list(encoding.notes),
        },
        "model": model_words(encoding.response, prior_scale, fit.noise_scale),
        "encoding": encoding.to_dict(),
        "columns": [list(row) for row in encoding.rows()],
        "coefficients": rows,
        "summary": {
            "coefficients": len(slopes),
            "sure": sum(c["interval_95"][0] > 0 or c["interval_95"][1] < 0 for c in slopes),
        },
        "sampler": _sampler(fit),
        "checks": checkup(fit, X, prior_scale),
        "trace": _trace(fit, rows),
        "environment": machine(),
    }


def coefficients(fit: Fit, encoding: Encoding, X: np.ndarray) -> list[dict[str, Any]]:
    """Return the coefficients in the user's units, and per standard deviation of their column."""
    spread = dict(zip(encoding.names, X.std(axis=0), strict=True))
    found = []
    for c in fit.coefficients:
        scale = spread.get(c.name) if c.name != "intercept" else None
        found.append(
            {
                "label": c.name if c.output is None else f"{c.output}: {c.name}",
                "name": c.name,
                "class": c.output,
                "mean": c.mean,
                "std": c.sd,
                "interval_95": [c.low, c.high],
                "std_error": c.std_error,
                "bias": c.bias,
                "effective_size": c.effective_size if math.isfinite(c.effective_size) else None,
                "standardised": None
                if scale is None
                else {"mean": scale * c.mean, "interval_95": [scale * c.low, scale * c.high]},
            }
        )
    return found


def coefficient_table(rows: list[dict[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of coefficients.csv."""
    classes = rows[0]["class"] is not None
    columns = [
        "name",
        *(["class"] if classes else []),
        "mean",
        "posterior_spread",
        "low_95",
        "high_95",
        "monte_carlo_error",
        "step_size_bias",
    ]
    return columns, [
        [
            c["name"],
            *([c["class"]] if classes else []),
            c["mean"],
            c["std"],
            *c["interval_95"],
            c["std_error"],
            c["bias"],
        ]
        for c in rows
    ]


def held_out(fit: Fit, encoding: Encoding, X: np.ndarray, y: np.ndarray, train: np.ndarray) -> dict[str, Any]:
    """Compute scores and calibration on rows that the fit has not seen."""
    model = encoding.response.model
    if encoding.response.classes:
        p = _probabilities(fit, X)
        scores, calibration = class_scores(p, y, train), calibration_of_classes(p, y)
        baseline = "how frequent the classes are"
    else:
        mean = fit.predict(X).mean
        counts = model == "poisson"
        scores = number_scores(mean, fit.posterior.log_densities(X, y), y, train, counts)
        calibration = calibration_of_intervals(*_distribution(fit, X, y))
        baseline = "the mean count" if counts else "mean and standard deviation"
    return {
        "rows": int(y.size),
        "trained_on": int(train.size),
        "baseline": f"{baseline} in the training rows",
        "scores": [{**s.to_dict(), "verdict": _verdict(s)} for s in scores],
        "calibration": calibration,
    }


def _verdict(score) -> str:
    """Judge the model against its baseline, at two standard errors of the paired difference."""
    gain = score.difference if score.better == "higher" else -score.difference
    if not math.isfinite(score.difference_std_error) or abs(gain) <= 2 * score.difference_std_error:
        return "not clearly better" if gain >= 0 else "not clearly worse"
    return "better" if gain > 0 else "worse"


def _probabilities(fit: Fit, X: np.ndarray) -> np.ndarray:
    mean = fit.predict(X).mean
    return mean if mean.ndim == 2 else np.column_stack([1 - mean, mean])


def _distribution(fit: Fit, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the predictive distribution function just below y, and at y."""
    if fit.model == "linear":
        found = fit.predict(X)
        at = stats.norm.cdf(y, found.mean, found.sd)
        return at, at
    draws, w = fit.draws.reshape(-1, X.shape[1] + 1), fit.weights.ravel() / fit.weights.sum()
    below, upto = [], []
    for first in range(0, y.size, AT_ONCE):
        rows, part = X[first : first + AT_ONCE], y[first : first + AT_ONCE, None]
        rates = np.exp(draws[:, 0] + rows @ draws[:, 1:].T)
        below.append(stats.poisson.cdf(part - 1, rates) @ w)
        upto.append(stats.poisson.cdf(part, rates) @ w)
    return np.concatenate(below), np.concatenate(upto)


def predictions(
    fit: Fit, encoding: Encoding, table: DataTable, X: np.ndarray, y: np.ndarray | None
) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of a table of predictions; `y` where it was observed."""
    found, classes = fit.predict(X), encoding.response.classes
    columns: dict[str, Sequence[Any]] = {table.unit: table.lines.tolist()}
    if y is not None:
        columns["observed"] = [classes[k] for k in y] if classes else y.tolist()
    if encoding.response.model == "logistic":
        columns["predicted"] = [classes[int(p > 0.5)] for p in found.mean]
    elif classes:
        columns["predicted"] = [classes[k] for k in found.mean.argmax(axis=1)]
    if found.mean.ndim == 1:
        columns["probability" if classes else "mean"] = found.mean.tolist()
        columns["posterior_spread"], columns["monte_carlo_error"] = found.spread.tolist(), found.std_error.tolist()
    else:
        for k, label in enumerate(classes):
            columns[f"probability[{label}]"] = found.mean[:, k].tolist()
            columns[f"posterior_spread[{label}]"] = found.spread[:, k].tolist()
            columns[f"monte_carlo_error[{label}]"] = found.std_error[:, k].tolist()
    if not classes:
        columns["noise"] = found.noise.tolist()
    if encoding.response.model == "linear":
        columns["low_95"] = (found.mean - 1.96 * found.sd).tolist()
        columns["high_95"] = (found.mean + 1.96 * found.sd).tolist()
    return list(columns), [list(row) for row in zip(*columns.values(), strict=True)]


def part(
    file: str, encoding: Encoding, columns: list[str], rows: list[list[Any]], fitted: int, new: bool
) -> dict[str, Any]:
    """Return what a page shows of a table of predictions: of several classes only the likeliest."""
    response = encoding.response
    what = "the mean"
    if response.classes:
        what = (
            f"the probability of {response.positive}" if response.positive else "the probability of the likeliest class"
        )
    first = rows[:10]
    if response.model == "softmax":
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


def _likeliest(columns: list[str], rows: list[list[Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return the same table with the probability of the predicted class only."""
    kept = [name for name in columns if not name.endswith("]")]
    kinds = ["probability", "posterior_spread", "monte_carlo_error"]
    found = []
    for row in rows:
        cells = dict(zip(columns, row, strict=True))
        found.append([*(cells[name] for name in kept), *(cells[f"{kind}[{cells['predicted']}]"] for kind in kinds)])
    return [*kept, *kinds], found


def _sampler(fit: Fit) -> dict[str, Any]:
    plan, run = fit.choice.plan, fit.run
    return {
        **plan.summary(),
        "steps_done": run.steps_done,
        "engine": run.engine,
        "engine_reason": run.engine_reason,
        "gradient_evaluations": run.gradient_evaluations,
        "wall_time": run.wall_time,
        "compile_time": run.compile_time,
        "reason": fit.choice.reason,
        "shown": {
            "sampler": fit.choice.reason,
            "work": f"{run.gradient_evaluations:.3g} gradients in {run.wall_time:.1f} s (compiling {run.compile_time:.1f} s) "
            f"by engine {run.engine}",
        },
    }


def _trace(fit: Fit, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the stored states of a few chains for the coefficients that stand out most, the intercept first."""
    draws = fit.draws
    slopes = sorted(
        (i for i, c in enumerate(rows) if c["name"] != "intercept"),
        key=lambda i: -abs(rows[i]["mean"]) / max(rows[i]["std"], 1e-300),
    )
    chosen = [*(i for i, c in enumerate(rows) if c["name"] == "intercept")][:1] + slopes[: TRACED - 1]
    steps = (np.arange(draws.shape[1]) * fit.choice.thin).tolist()
    return {
        "thin": fit.choice.thin,
        "steps": steps,
        "parameters": [
            {"label": rows[i]["label"], "chains": np.round(draws[:TRACE_CHAINS, :, i], 9).tolist()} for i in chosen
        ],
    }
