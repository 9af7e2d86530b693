"""Scores of predictions on rows a fit has not seen: averages over rows of Brier score, log density and error (E4's h, by row).

Receives a posterior and rows with their responses; hands on each score with its standard error over rows, beside that of a
baseline that knows the responses of the fit but no columns.
"""

import numpy as np
from scipy import special

from gyromc.checks import numbers, require
from gyromc.fitting.families import Linear, Poisson, Softmax
from gyromc.fitting.posterior import Posterior

__all__ = ["scores"]


def scores(posterior: Posterior, y_fit: np.ndarray, X, y) -> dict[str, dict[str, float]]:
    """Scores by name: `fit`, its standard error over rows `error`, and `baseline`.

    **Arguments:**

    - `posterior`: what predicts.
    - `y_fit`: the responses of the fit as its problem holds them: the baseline predicts their mean or their frequencies.
    - `X`, `y`: rows that were not in the fit, in the user's units.

    **Returns:** for classes `brier` (Σ_c (p_c - 1{y = c})², small is good), `log_score` (mean log density, large is good) and
    `accuracy`; for numbers `rmse`, `log_score`, and `coverage_95`, how often y lies within 1.96 predictive standard deviations.

    ```python
    import numpy as np
    from gyromc.fitting.regression import fit
    X = np.linspace(-1, 1, 40)[:, None]
    found = fit(X, (X[:, 0] > 0.1).astype(float), "logistic", effort="quick")
    assert found.scores(X, X[:, 0] > 0.1)["brier"]["fit"] < 0.2
    ```
    """
    y = numbers(y, "y")
    require(y.ndim == 1 and y.size > 0, f"`y` must be a vector with at least one entry: got shape {y.shape}.")
    prediction, density = posterior.predict(X), posterior.log_densities(X, y)
    require(len(y) == len(density), f"`y` must have one entry per row of `X` ({len(density)}): got {len(y)}.")
    family, units = posterior.family, posterior.units
    if isinstance(family, Linear | Poisson):
        known = units.y_center + units.y_scale * units.noise * y_fit if isinstance(family, Linear) else y_fit
        inside = np.abs(y - prediction.mean) <= 1.96 * prediction.sd
        if isinstance(family, Linear):
            sd = max(float(known.std()), 1e-300)
            base = -0.5 * ((y - known.mean()) / sd) ** 2 - np.log(sd * np.sqrt(2 * np.pi))
        else:
            rate = known.mean() + 0.5 / len(known)
            base = y * np.log(rate) - rate - special.gammaln(y + 1)
        return {
            "rmse": _root((y - prediction.mean) ** 2, (y - known.mean()) ** 2),
            "log_score": _score(density, base),
            "coverage_95": _score(inside.astype(float), np.full(len(y), 0.95)),
        }
    count = family.num_classes if isinstance(family, Softmax) else 2
    p = prediction.mean if isinstance(family, Softmax) else np.stack([1 - prediction.mean, prediction.mean], axis=1)
    came = y[:, None] == np.arange(count)
    require(
        np.all(came.sum(axis=1) == 1),
        f"`y` must hold the fit's classes, 0 to {count - 1}: got {sorted(set(y[came.sum(axis=1) != 1]))[:5]}.",
    )
    often = np.bincount(y_fit.astype(int), minlength=count) / len(y_fit)
    return {
        "brier": _score(np.sum((p - came) ** 2, axis=1), np.sum((often - came) ** 2, axis=1)),
        "log_score": _score(density, np.log(np.maximum(came @ often, 0.5 / len(y_fit)))),
        "accuracy": _score((p.argmax(axis=1) == y).astype(float), (often.argmax() == y).astype(float)),
    }


def _score(values: np.ndarray, baseline: np.ndarray) -> dict[str, float]:
    error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")
    return {"fit": float(values.mean()), "error": error, "baseline": float(baseline.mean())}


def _root(squares: np.ndarray, baseline: np.ndarray) -> dict[str, float]:
    """Root mean squares; the error by the delta method."""
    found = _score(squares, baseline)
    root = float(np.sqrt(found["fit"]))
    return {
        "fit": root,
        "error": found["error"] / (2 * root) if root > 0 else 0.0,
        "baseline": found["baseline"] ** 0.5,
    }
