"""The record of one check of a model, the rule that combines checks, and the checks of the columns alone.

A correct model has p-values above 0.05 after Holm's correction over all checks in at least 95 % of data sets, whatever their
dependence; only then it is called wrong. Separation and collinearity are facts about the data: chance has no part in them.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gyromc.targets.likelihoods import ResponseKind


@dataclasses.dataclass(frozen=True)
class AdequacySettings:
    """The numbers of the checks. Sizes from which a deviation matters are conventions; the others bound time and memory."""

    chance: float = 0.05  # of calling a correct model wrong, over all checks
    most_rows: int = 3000  # that are looked at
    least_rows: int = 1000  # with many classes
    most_numbers: int = 1_500_000  # draws × rows
    least_draws: int = 500
    most_draws: int = 2048
    orders: int = 400  # in which residuals are shuffled
    fitted: float = 0.05  # share of a direction's noise that the fit follows, from which it is taken as fitted
    least_left: float = 1e-4  # share of a candidate's square that must be left without the fitted directions
    curve_share: float = 0.01  # of the residuals' variance, from which a curve or a product matters
    link_share: float = 0.005  # of the residuals' variance, from which another link does
    uneven: float = 1.3  # ratio of residual standard deviations
    product_columns: int = 16  # whose products are tried, those with the largest effects
    pairs: int = 3  # that are named
    inflated: float = 10.0  # how many times collinearity multiplies a variance
    columns: int = 4  # that are named
    first_rows: int = 1000  # of the linear program for separation
    added_rows: int = 2000
    rounds: int = 8
    close: float = 1e-7  # margins that count as zero
    overdispersed: float = 1.2  # ratio of variances, up or down
    uneven_law: float = 0.01  # squared distance from a uniform law
    degree: int = 4  # of the polynomials that see it
    mostly: float = 0.6  # of the largest mean, from which a law is called too narrow or wide whatever else it is
    level: float = 0.95  # of the predictive intervals
    share_gap: float = 0.02  # difference of shares
    groups: int = 10  # of rows with similar probabilities
    many: float = 0.05  # share of the rows, from which outliers are a matter of the law
    followed: float = 0.02  # share of its noise that a row keeps in its residual, below which the fit goes through it


SETTINGS = AdequacySettings()


class Aspect(enum.Enum):
    """What is checked; in the order in which one would act on them."""

    WEIGHTS = "weights"
    SEPARATION = "separation"
    DISPERSION = "dispersion"
    DEPENDENCE = "independent rows"
    LINK = "link"
    PROPORTIONAL = "proportional odds"
    CURVATURE = "linearity"
    SPREAD = "constant variance"
    CALIBRATION = "calibration"
    COVERAGE = "coverage"
    OUTLIERS = "outliers"
    INTERACTIONS = "interactions"
    INFLUENCE = "influential rows"
    COLLINEARITY = "collinearity"


class ModelVerdict(enum.Enum):
    """What a check says: nothing, something to look at, or that the model does not describe the data."""

    FINE = "fine"
    LOOK = "look"
    MISFIT = "misfit"


@dataclasses.dataclass(frozen=True)
class ModelCheck:
    """One check of a model; `p` is corrected for the columns or rows searched, None where chance has no part in it."""

    aspect: Aspect
    statistic: float  # how large the deviation is
    p: float | None = None  # the chance of a deviation at least as large if the model is right
    large: bool = True  # whether the deviation matters, if it is real
    details: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # names, rows and numbers for a sentence
    adjusted: float | None = None  # p, corrected for all checks
    verdict: ModelVerdict = ModelVerdict.FINE


WORTH_A_LOOK = frozenset({Aspect.INTERACTIONS})  # in which a deviation is a suggestion and no misfit


def holm(p: Sequence[float]) -> np.ndarray:
    """p-values corrected for their number by Holm's method: an error in any of them has at most the stated chance."""
    values = np.asarray(p, float)
    order = np.argsort(values, kind="stable")
    found = np.empty_like(values)
    found[order] = np.minimum(1.0, np.maximum.accumulate(values[order] * np.arange(values.size, 0, -1)))
    return found


def judged(checks: Sequence[ModelCheck]) -> tuple[ModelCheck, ...]:
    """The checks with their verdicts, in the order of `Aspect`."""
    # A check with a p-value is a misfit where that is below 0.05 after the correction for all checks and its deviation is large;
    # it is worth a look where only the first holds. A check without one keeps its verdict. Suggestions cannot call a model wrong
    # and do not count in the correction of those that can; they themselves are corrected for the number of all.
    tested = [(check, check.p) for check in checks if check.p is not None]
    strict = [(check, p) for check, p in tested if check.aspect not in WORTH_A_LOOK]
    corrected = dict(zip((check.aspect for check, _ in strict), holm([p for _, p in strict]), strict=True))
    found = [check for check in checks if check.p is None]
    for check, p in tested:
        adjusted = float(corrected.get(check.aspect, min(1.0, len(tested) * p)))
        verdict = ModelVerdict.FINE
        if adjusted < SETTINGS.chance:
            verdict = ModelVerdict.MISFIT if check.large and check.aspect in corrected else ModelVerdict.LOOK
        found.append(dataclasses.replace(check, adjusted=adjusted, verdict=verdict))
    return tuple(sorted(found, key=lambda check: list(Aspect).index(check.aspect)))


def collinearity(X: np.ndarray, sources: Sequence[str], weights: np.ndarray | None = None) -> ModelCheck | None:
    """Columns that the others nearly determine, by the largest variance inflation factor; None with fewer than two."""
    w = np.ones(len(X)) / len(X) if weights is None else weights / weights.sum()
    away = X - w @ X
    kept = np.flatnonzero(X.std(axis=0) > 0)
    groups: dict[str, list[int]] = {}
    for place, j in enumerate(kept.tolist()):
        groups.setdefault(sources[j], []).append(place)
    if len(groups) < 2 or len(X) < 3:
        return None
    Z = np.sqrt(w)[:, None] * away[:, kept] / np.sqrt(w @ away[:, kept] ** 2)
    R = Z.T @ Z
    values, vectors = np.linalg.eigh(R)
    inverse = (vectors / np.maximum(values, 1e-14 * values[-1])) @ vectors.T
    # 1/(1 - R²), for the levels of one column together Fox and Monette's, per level.
    factors = {}
    for source, places in groups.items():
        block = np.ix_(places, places)
        inflated = np.linalg.slogdet(R[block])[1] + np.linalg.slogdet(inverse[block])[1]
        factors[source] = float(np.exp(min(700.0, inflated / len(places))))
    worst = sorted((source for source in factors if factors[source] > SETTINGS.inflated), key=lambda s: -factors[s])
    condition = float(np.sqrt(values[-1] / max(values[0], 1e-300)))
    details = {"columns": worst, "condition": condition, "exact": bool(values[0] < 1e-12 * values[-1])}
    verdict = ModelVerdict.LOOK if worst else ModelVerdict.FINE
    return ModelCheck(Aspect.COLLINEARITY, max(factors.values()), details=details, verdict=verdict)


def separation(X: np.ndarray, y: np.ndarray, names: Sequence[str], kind: ResponseKind) -> ModelCheck | None:
    """Whether a sum of columns tells classes apart without an error, or marks rows of zeros only: no likelihood is largest."""
    if kind is ResponseKind.NUMBERS or len(X) < 2:
        return None
    sd = X.std(axis=0)
    kept = np.flatnonzero(sd > 0)
    Z = np.column_stack([np.ones(len(X)), (X[:, kept] - X[:, kept].mean(axis=0)) / sd[kept]])
    weights = _separating(Z, y, kind)
    if weights is None:
        return ModelCheck(Aspect.SEPARATION, 0.0, details={"columns": []})
    for j in range(1, Z.shape[1]):  # one column with the intercept is the commonest case, and the easiest to name
        alone = _separating(Z[:, [0, j]], y, kind)
        if alone is not None:
            weights = np.zeros((len(alone), Z.shape[1]))
            weights[:, [0, j]] = alone
            break
    size = np.abs(weights[:, 1:]).max(axis=0)
    order = [j for j in np.argsort(-size, kind="stable") if size[j] > 1e-3 * size.max()]
    # Of the rows that the sum places beyond doubt.
    share = float(np.mean(_margins(Z, y, kind, weights).max(axis=1) > SETTINGS.close))
    named = [names[int(kept[j])] for j in order[: SETTINGS.columns]]
    details = {"columns": named, "more": len(order) - len(named)}
    return ModelCheck(Aspect.SEPARATION, share, details=details, verdict=ModelVerdict.LOOK)


def _separating(Z: np.ndarray, y: np.ndarray, kind: ResponseKind) -> np.ndarray | None:
    """Weights, outputs × columns, of a sum that separates all rows; None where there are none."""
    # They maximise the sum of all margins where none may be negative. Rows that break this are added until there are none.
    rows = np.arange(len(y))
    if len(y) > SETTINGS.added_rows:
        rows = np.sort(np.random.default_rng(0).choice(len(y), SETTINGS.first_rows, replace=False))
    for _ in range(SETTINGS.rounds):
        weights = _program(Z[rows], y[rows], kind)
        if weights is None:
            return None
        margins = _margins(Z, y, kind, weights)
        broken = np.flatnonzero(margins.min(axis=1) < -SETTINGS.close * 10)
        if not broken.size:
            return weights
        rows = np.union1d(rows, broken[np.argsort(margins[broken].min(axis=1))[: SETTINGS.added_rows]])
    return None


def _margins(Z: np.ndarray, y: np.ndarray, kind: ResponseKind, weights: np.ndarray) -> np.ndarray:
    """rows × conditions: by how much each row is on its side; none may be negative."""
    sums = Z @ weights.T
    if kind is ResponseKind.COUNTS:
        return np.where(y[:, None] > 0, -np.abs(sums), -sums)
    if len(weights) == 1:
        return np.where(y[:, None] > 0, sums, -sums)
    own = np.take_along_axis(sums, y.astype(int)[:, None], axis=1)
    return (own - sums)[np.arange(len(weights)) != y[:, None]].reshape(len(y), -1)


def _program(Z: np.ndarray, y: np.ndarray, kind: ResponseKind) -> np.ndarray | None:
    n, d = Z.shape
    outputs = int(y.max()) + 1 if kind is ResponseKind.CLASSES and y.max() > 1 else 1
    equal = None
    if kind is ResponseKind.COUNTS:
        A, equal = -Z[y <= 0], Z[y > 0]
    elif outputs == 1:
        A = np.where(y[:, None] > 0, Z, -Z)
    else:
        label = y.astype(int)
        blocks = np.zeros((n, outputs, outputs, d))  # row, other class, class, column
        blocks[np.arange(n), :, label] += Z[:, None, :]
        blocks[:, np.arange(outputs), np.arange(outputs)] -= Z[:, None, :]
        A = blocks[np.arange(outputs) != label[:, None]].reshape(-1, outputs * d)
    if not len(A):
        return None
    from scipy import optimize  # here, since it takes a while to import

    limits = {"A_ub": -A, "b_ub": np.zeros(len(A)), "bounds": (-1.0, 1.0)}
    if equal is not None:
        limits |= {"A_eq": equal, "b_eq": np.zeros(len(equal))}
    found = optimize.linprog(-A.sum(axis=0) / len(A), **limits, method="highs")
    if found.x is None or -found.fun < 1e-6:
        return None
    return found.x.reshape(outputs, d)
