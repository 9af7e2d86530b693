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
LEAST_ROWS = 10  # with fewer, none is held out
_std_error = lambda rows: float(rows.std(ddof=1) / math.sqrt(rows.size)) if rows.size > 1 else math.nan


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
    what = "mean log of the predictive density at what was observed"
    log_score = _paired("log score", log_density, base, "higher", what)
    # The error of a root is that of the mean square over twice the root.
    squares, base = (y - mean) ** 2, (y - train.mean()) ** 2
    root, root_base = math.sqrt(np.mean(squares)), math.sqrt(np.mean(base))
    rows, base = squares / (2 * max(root, 1e-300)), base / (2 * max(root_base, 1e-300))
    of_gap, meaning = _std_error(rows - base), "root mean square of observed less predicted mean"
    return [Score("RMSE", root, _std_error(rows), root_base, root - root_base, of_gap, "lower", meaning), log_score]


def calibration_of_classes(probabilities: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Predicted probabilities in groups of similar size, with the observed frequencies."""
    classes = probabilities.shape[1]
    judged = range(classes - 1, classes) if classes == 2 else range(classes)
    p = np.concatenate([probabilities[:, c] for c in judged])
    hit = np.concatenate([labels == c for c in judged]).astype(float)
    groups = np.array_split(np.argsort(p, kind="stable"), int(np.clip(p.size // 10, 2, 10)))
    points = [_point(float(p[group].mean()), float(hit[group].mean()), int(group.size)) for group in groups]
    return {"kind": "classes", "points": points}


def calibration_of_intervals(below: np.ndarray, upto: np.ndarray) -> dict[str, Any]:
    """The share of observed values in predictive intervals, from the distribution functions just below them and at them."""
    points, n = [], below.size
    for level in LEVELS:
        low, high = (1 - level) / 2, (1 + level) / 2
        # A jump counts with the part that is inside.
        jump = upto - below
        inside = np.clip(np.minimum(upto, high) - np.maximum(below, low), 0, None)
        held = np.where(jump > 0, inside / np.where(jump > 0, jump, 1), (upto >= low) & (upto <= high))
        points.append(_point(level, float(held.mean()), n))
    return {"kind": "intervals", "points": points}


def _point(predicted: float, share: float, n: int) -> dict[str, Any]:
    """A point of a curve of calibration: a share of n rows, with Wilson's interval."""
    z = 1.96
    centre = (share * n + z * z / 2) / (n + z * z)
    half = z / (n + z * z) * math.sqrt(n * share * (1 - share) + z * z / 4)
    ends = [max(0.0, centre - half), min(1.0, centre + half)]
    return {"predicted": predicted, "observed": share, "interval_95": ends, "rows": n}


def _paired(name: str, rows: np.ndarray, base: np.ndarray, better: str, meaning: str) -> Score:
    value, baseline, of_gap = float(rows.mean()), float(base.mean()), _std_error(rows - base)
    return Score(name, value, _std_error(rows), baseline, value - baseline, of_gap, better, meaning)


AT_ONCE = 2**18  # draws × rows that are weighted together: 2 MB for each array


@dataclasses.dataclass(frozen=True, eq=False)
class Loo:
    """Pareto-smoothed leave-one-out cross-validation (Vehtari, Gelman and Gabry 2017)."""

    elpd: float
    std_error: float
    p_loo: float  # the effective number of parameters
    elpd_rows: np.ndarray  # log p(y_i | all other rows) of each row
    pareto_k: np.ndarray
    log_weights: np.ndarray  # draws × rows, of the posterior without the row: over the draws they sum to one
    scale: float = 1.0  # how many rows each of these stands for, more than 1 where a part of the rows was taken

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
    return Loo(*total(elpd, scale), total(full - elpd, scale)[0], elpd, k, weights, scale)


def total(rows: np.ndarray, scale: float = 1.0) -> tuple[float, float]:
    """The sum of rows of which each stands for so many, and its standard error: of elpd, or of a difference of two."""
    return scale * float(rows.sum()), scale * math.sqrt(rows.size * float(np.var(rows)))


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
    return Waic(*total(rows, scale), total(p, scale)[0])
