"""How well rows are predicted: scores on held-out rows, calibration, leave-one-out cross-validation and WAIC."""

import dataclasses
import math
from typing import Any

import numpy as np
from scipy import special

from gyromc.approx.sample import HEAVY, smoothed
from gyromc.checks import number, require, shown
from gyromc.show.records import plain_attributes

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
LEAST_ROWS = 10
"""With fewer rows than this, none is held out."""


@dataclasses.dataclass(frozen=True)
class Score:
    """A mean score over held-out rows, and that of a `baseline`, the training rows' frequencies or mean, paired row by row."""

    name: str
    value: float
    std_error: float
    baseline: float
    difference: float
    difference_std_error: float
    better: str
    meaning: str

    def to_dict(self) -> dict[str, Any]:
        return plain_attributes(self, *(field.name for field in dataclasses.fields(self)))


def held_out_rows(labels: np.ndarray | None, num_rows: int, fraction: float, seed: int) -> np.ndarray:
    """Choose the held-out rows: a share of every class, so that each class stays in the training rows."""
    share = number(fraction)
    good = share is not None and 0 <= share <= 0.9
    require(good, f"The test fraction must lie between 0 (none) and 0.9: got {shown(fraction)}.")
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

    brier = lambda p: np.sum((p - hit) ** 2, axis=1)
    log_density = lambda p: np.log(np.maximum(p[np.arange(labels.size), labels], 1e-300))
    right = lambda p: (np.argmax(p, axis=1) == labels).astype(float)
    rules = (
        ("Brier score", brier, "lower", "Σ over classes of (probability − outcome)²"),
        ("log score", log_density, "higher", "mean log of the observed class's probability"),
        ("accuracy", right, "higher", "share of rows whose likeliest class is right"),
    )
    return [_paired(name, rule(probabilities), rule(shares), better, why) for name, rule, better, why in rules]


def number_scores(
    mean: np.ndarray, log_density: np.ndarray, y: np.ndarray, train: np.ndarray, counts: bool = False
) -> list[Score]:
    """RMSE and log score of predictive laws of numbers."""
    rate = max(float(train.mean()), 0.5 / train.size)
    sd = max(float(train.std(ddof=1)), 1e-300)
    normal = -0.5 * ((y - train.mean()) / sd) ** 2 - math.log(sd) - 0.5 * math.log(2 * math.pi)
    base = special.xlogy(y, rate) - rate - special.gammaln(y + 1) if counts else normal
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
        observed = {"observed": float(hit[group].mean()), "interval_95": [low, high], "rows": int(group.size)}
        points.append({"predicted": float(p[group].mean()), **observed})
    return {"kind": "classes", "points": points}


def calibration_of_intervals(below: np.ndarray, upto: np.ndarray) -> dict[str, Any]:
    """The share of observed values inside the central predictive intervals, by nominal level.

    `below`, `upto`: the distribution function just below the observed value, and at it; a jump counts with the part that is
    inside.
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
    value, baseline, of_gap = float(rows.mean()), float(base.mean()), _std_error(rows - base)
    return Score(name, value, _std_error(rows), baseline, value - baseline, of_gap, better, meaning)


def _root_mean_square(errors: np.ndarray, base: np.ndarray) -> Score:
    root, root_base = math.sqrt(np.mean(errors**2)), math.sqrt(np.mean(base**2))
    rows, base_rows = errors**2 / (2 * max(root, 1e-300)), base**2 / (2 * max(root_base, 1e-300))
    of_gap, meaning = _std_error(rows - base_rows), "root mean square of observed less predicted mean"
    return Score("RMSE", root, _std_error(rows), root_base, root - root_base, of_gap, "lower", meaning)


def _std_error(rows: np.ndarray) -> float:
    return float(rows.std(ddof=1) / math.sqrt(rows.size)) if rows.size > 1 else math.nan


def _wilson(hits: float, n: int, z: float = 1.96) -> tuple[float, float]:
    centre = (hits + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(hits * (n - hits) / n + z * z / 4)
    return max(0.0, centre - half), min(1.0, centre + half)


AT_ONCE = 2**18  # draws × rows that are weighted together: 2 MB for each array


@dataclasses.dataclass(frozen=True, eq=False)
class Loo:
    """Pareto-smoothed leave-one-out cross-validation (Vehtari, Gelman and Gabry 2017).

    - `elpd_rows`: log p(y_i | all other rows) of each row; `p_rows`: log p(y_i | all rows) less that.
    - `log_weights`: draws × rows, which turn the posterior into the one without the row; they sum to one over the draws.
    - `scale`: how many rows each of these stands for, more than 1 where a part of the rows was taken.
    """

    elpd_rows: np.ndarray
    p_rows: np.ndarray
    pareto_k: np.ndarray
    log_weights: np.ndarray
    scale: float = 1.0

    @property
    def elpd(self) -> float:
        return self.scale * float(self.elpd_rows.sum())

    @property
    def std_error(self) -> float:
        return self.scale * math.sqrt(self.elpd_rows.size * float(np.var(self.elpd_rows)))

    @property
    def p_loo(self) -> float:
        return self.scale * float(self.p_rows.sum())

    @property
    def looic(self) -> float:
        return -2 * self.elpd

    @property
    def influential(self) -> np.ndarray:
        """Rows whose k is above 0.7: without them the posterior would be another, and their elpd is not reliable."""
        rows = np.flatnonzero(self.pareto_k > HEAVY)
        return rows[np.argsort(-self.pareto_k[rows], kind="stable")]


def loo(log_density: np.ndarray, scale: float = 1.0) -> Loo:
    """Leave each row out in turn, by importance weights with a smoothed tail, from log p(y_i | θ_s), draws × rows."""
    weights = np.empty_like(log_density)
    k, elpd, full = (np.empty(log_density.shape[1]) for _ in range(3))
    at_once = max(1, AT_ONCE // len(log_density))
    for first in range(0, log_density.shape[1], at_once):  # in parts: it takes many arrays of the size of its input
        rows = slice(first, first + at_once)
        weights[:, rows], k[rows] = smoothed(-log_density[:, rows])
        elpd[rows] = np.asarray(special.logsumexp(weights[:, rows] + log_density[:, rows], axis=0))
        full[rows] = np.asarray(special.logsumexp(log_density[:, rows], axis=0)) - math.log(len(log_density))
    return Loo(elpd, full - elpd, k, weights, scale)


def paired_difference(rows: np.ndarray, others: np.ndarray, scale: float = 1.0) -> tuple[float, float]:
    """elpd of one model less that of another, from those of the same rows, and its standard error from the differences."""
    gap = rows - others
    return scale * float(gap.sum()), scale * math.sqrt(gap.size * float(np.var(gap)))


@dataclasses.dataclass(frozen=True)
class Waic:
    """The widely applicable information criterion: `elpd`, its standard error, the effective number of parameters `p_waic`."""

    elpd: float
    std_error: float
    p_waic: float

    @property
    def waic(self) -> float:
        return -2 * self.elpd


def waic(log_density: np.ndarray, scale: float = 1.0) -> Waic:
    """WAIC from log p(y_i | θ_s), draws × rows; arguments as for `loo`."""
    p = log_density.var(axis=0, ddof=1)
    rows = np.asarray(special.logsumexp(log_density, axis=0)) - math.log(len(log_density)) - p
    return Waic(scale * float(rows.sum()), scale * math.sqrt(rows.size * float(np.var(rows))), scale * float(p.sum()))
