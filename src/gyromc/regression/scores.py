"""Scores of predictions on held-out rows, against a baseline, and calibration.

Input: predictive probabilities, or means and log densities, and the observed responses. Output: mean scores with standard
errors over rows, paired with those of a baseline without predictors, and the numbers of a calibration plot.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from gyromc.checks import require

__all__ = [
    "Score",
    "calibration_of_classes",
    "calibration_of_intervals",
    "class_scores",
    "held_out_rows",
    "number_scores",
]

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LEAST_ROWS = 10
"""With fewer rows than this, none is held out."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A mean score over held-out rows, with that of the baseline.

    **Attributes:**

    - `name`, `meaning`: what it is; `better`: `lower` or `higher`.
    - `value`, `std_error`: over the held-out rows.
    - `baseline`: the same for predictions from the training rows' frequencies or mean alone.
    - `difference`, `difference_std_error`: `value` less `baseline`, paired row by row.
    """

    name: str
    value: float
    std_error: float
    baseline: float
    difference: float
    difference_std_error: float
    better: str
    meaning: str

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; what is not finite becomes None."""
        return {
            k: (v if not isinstance(v, float) or math.isfinite(v) else None)
            for k, v in dataclasses.asdict(self).items()
        }


def held_out_rows(labels: np.ndarray | None, num_rows: int, fraction: float, seed: int) -> np.ndarray:
    """Choose the held-out rows: a share of every class, so that each class stays in the training rows."""
    require(0 <= fraction <= 0.9, f"The test fraction must lie between 0 (none) and 0.9: got {fraction:g}.")
    if fraction == 0 or num_rows < LEAST_ROWS:
        return np.zeros(0, int)
    rng = np.random.default_rng(seed)
    groups = [np.arange(num_rows)] if labels is None else [np.flatnonzero(labels == c) for c in np.unique(labels)]
    chosen = [rng.choice(g, min(math.ceil(fraction * g.size), g.size - 1), replace=False) for g in groups]
    return np.sort(np.concatenate(chosen))


def class_scores(probabilities: np.ndarray, labels: np.ndarray, train: np.ndarray) -> list[Score]:
    """Brier score, log score and accuracy of predictive probabilities."""
    num_classes = probabilities.shape[1]
    hit = labels[:, None] == np.arange(num_classes)
    shares = (np.bincount(train, minlength=num_classes) + 0.5) / (train.size + 0.5 * num_classes)
    shares = np.broadcast_to(shares, probabilities.shape)

    def brier(p):
        return np.sum((p - hit) ** 2, axis=1)

    def log_density(p):
        return np.log(np.maximum(p[np.arange(labels.size), labels], 1e-300))

    def right(p):
        return (np.argmax(p, axis=1) == labels).astype(float)

    return [
        _paired(
            "Brier score", brier(probabilities), brier(shares), "lower", "Σ over classes of (probability − outcome)²"
        ),
        _paired(
            "log score",
            log_density(probabilities),
            log_density(shares),
            "higher",
            "mean log of the observed class's probability",
        ),
        _paired(
            "accuracy", right(probabilities), right(shares), "higher", "share of rows whose likeliest class is right"
        ),
    ]


def number_scores(
    mean: np.ndarray, log_density: np.ndarray, y: np.ndarray, train: np.ndarray, counts: bool = False
) -> list[Score]:
    """RMSE and log score of predictive laws of numbers."""
    from scipy import stats  # when it is used: it takes long to import

    rate = max(float(train.mean()), 0.5 / train.size)
    base = (
        stats.poisson.logpmf(y, rate) if counts else stats.norm.logpdf(y, train.mean(), max(train.std(ddof=1), 1e-300))
    )
    return [
        _root_mean_square(y - mean, y - train.mean()),
        _paired("log score", log_density, base, "higher", "mean log of the predictive density at what was observed"),
    ]


def calibration_of_classes(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Predicted probabilities in groups of similar size, with the observed frequencies."""
    classes = probabilities.shape[1]
    judged = range(classes - 1, classes) if classes == 2 else range(classes)
    p = np.concatenate([probabilities[:, c] for c in judged])
    hit = np.concatenate([labels == c for c in judged]).astype(float)
    order = np.argsort(p, kind="stable")
    groups = np.array_split(order, int(np.clip(p.size // 10, 2, 10)))
    points = []
    for group in groups:
        low, high = _wilson(hit[group].sum(), group.size)
        points.append(
            {"predicted": float(p[group].mean()), "observed": float(hit[group].mean()), "interval_95": [low, high],
             "rows": int(group.size)}
        )  # fmt: skip
    return {"kind": "classes", "points": points}


def calibration_of_intervals(below: np.ndarray, upto: np.ndarray) -> dict[str, Any]:
    """The share of observed values inside the central predictive intervals, by nominal level.

    **Arguments:**

    - `below`, `upto`: the predictive distribution function just below the observed value, and at it; equal for a continuous law.
      A jump counts with the part of it that the interval holds.
    """
    points, n = [], below.size
    for level in LEVELS:
        low, high = (1 - level) / 2, (1 + level) / 2
        jump = upto - below
        inside = np.clip(np.minimum(upto, high) - np.maximum(below, low), 0, None)
        held = np.where(jump > 0, inside / np.where(jump > 0, jump, 1), (upto >= low) & (upto <= high))
        share = float(held.mean())
        ends = _wilson(share * n, n)
        points.append({"predicted": level, "observed": share, "interval_95": list(ends), "rows": n})
    return {"kind": "intervals", "points": points}


def _paired(name: str, rows: np.ndarray, base: np.ndarray, better: str, meaning: str) -> Score:
    return Score(
        name, float(rows.mean()), _std_error(rows), float(base.mean()), float((rows - base).mean()), _std_error(rows - base),
        better, meaning,
    )  # fmt: skip


def _root_mean_square(errors: np.ndarray, base: np.ndarray) -> Score:
    """RMSE; its standard error by the delta method."""
    root, root_base = math.sqrt(np.mean(errors**2)), math.sqrt(np.mean(base**2))
    rows = errors**2 / (2 * max(root, 1e-300))
    base_rows = base**2 / (2 * max(root_base, 1e-300))
    return Score(
        "RMSE", root, _std_error(rows), root_base, root - root_base, _std_error(rows - base_rows), "lower",
        "root mean square of observed less predicted mean",
    )  # fmt: skip


def _std_error(rows: np.ndarray) -> float:
    return float(rows.std(ddof=1) / math.sqrt(rows.size)) if rows.size > 1 else math.nan


def _wilson(hits: float, n: int, z: float = 1.96) -> tuple[float, float]:
    """Wilson's 95 % interval of a share."""
    centre = (hits + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(hits * (n - hits) / n + z * z / 4)
    return max(0.0, centre - half), min(1.0, centre + half)
