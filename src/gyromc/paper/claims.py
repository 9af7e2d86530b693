"""The claims of the paper's §6 as values: a quantity, a relation, an interval and a verdict; and the statistics they rest on.

Input: errors μ̂ - μ of R chains and predictions of one experiment. A claim about the limit η → 0 is judged at the smallest η run:
confirmed when its interval lies within the tolerance, refuted when the interval lies outside and smaller steps do not bring it
nearer, and otherwise not resolved. All resampling is seeded.
"""

import dataclasses
import enum
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special


def rmse(errors: np.ndarray) -> tuple[float, float]:
    """√mean(e²) and its standard error, by the delta method."""
    square = errors**2
    value = math.sqrt(square.mean())
    return value, float(square.std(ddof=1) / math.sqrt(square.size) / (2 * value))


class Bootstrap:
    """Resampled chains: the same `draws` resamples for every dynamics, so that comparisons are paired."""

    def __init__(self, num_chains: int, draws: int = 2000, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.weights = rng.multinomial(num_chains, np.full(num_chains, 1 / num_chains), size=draws).astype(np.float32)

    def rmse(self, errors: np.ndarray, column: int = 0) -> np.ndarray:
        """RMSE of each resample of chains (× observables), without failed chains; each `column` is resampled independently."""
        alive = np.isfinite(errors)
        square = np.where(alive, errors, 0.0) ** 2
        weights = np.roll(self.weights, column, axis=0)
        scale = square.max() or 1.0
        sums = weights @ (square / scale).astype(np.float32)
        return np.sqrt(sums.astype(float) * scale / np.maximum(weights @ alive.astype(np.float32), 1))


def interval(resamples: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """The central interval of resampled values."""
    low, high = np.quantile(resamples, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def rmse_ratio(
    ours: np.ndarray, theirs: np.ndarray, bootstrap: Bootstrap, column: int = 0, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ratio of two RMSEs and the ends of its paired bootstrap interval; a chain that failed in one is left out of both."""
    both = np.isfinite(ours) & np.isfinite(theirs)
    ours, theirs = np.where(both, ours, np.nan), np.where(both, theirs, np.nan)
    ratio = np.sqrt(np.nanmean(ours**2, axis=0) / np.nanmean(theirs**2, axis=0))
    resamples = bootstrap.rmse(ours, column) / bootstrap.rmse(theirs, column)
    low, high = np.quantile(resamples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return ratio, low, high


def slope(step_sizes, values: np.ndarray) -> np.ndarray | float:
    """The least-squares slope of log(values) against log(step_sizes), for each resample along the first axis."""
    result = np.polyfit(np.log(step_sizes), np.log(values).T, 1)[0]
    return float(result) if np.ndim(result) == 0 else result


def normality(z: np.ndarray, scale_known: bool) -> dict[str, Any]:
    """The p-value of normalised errors as N(0, 1), and the line through the Q-Q plot with 95 % intervals.

    Kolmogorov-Smirnov detects a wrong location, scale or shape; where the scale was estimated from the same errors, Shapiro-Wilk
    tests the shape.
    """
    # When it is used: it takes long to import.
    from scipy import stats

    z = np.sort(z[np.isfinite(z)])
    test = stats.kstest(z, "norm") if scale_known else stats.shapiro(z)
    slope, intercept = map(float, np.polyfit(normal_scores(z.size), z, 1))
    half_mean = float(1.96 * z.std() / math.sqrt(z.size))
    half_slope = half_mean / math.sqrt(2)
    return {
        "p": float(test.pvalue),
        "slope": slope,
        "slope_interval": (slope - half_slope, slope + half_slope),
        "intercept": intercept,
        "intercept_interval": (intercept - half_mean, intercept + half_mean),
    }


def normal_scores(n: int) -> np.ndarray:
    """The quantiles of N(0, 1) for the Q-Q plot of n sorted values."""
    return special.ndtri((np.arange(1, n + 1) - 0.5) / n)


@functools.lru_cache(maxsize=16)
def quantile_band(n: int, level: float = 0.95, simulations: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """A band that holds all of n sorted N(0, 1) values with probability `level`: their Beta laws at one simulated local level."""
    rng = np.random.default_rng(n)
    i = np.arange(1, n + 1)
    ordered = np.sort(rng.random((simulations, n)), axis=1)
    below = special.betainc(i, n + 1 - i, ordered)
    local = np.quantile(np.min(np.minimum(below, 1 - below), axis=1), 1 - level)
    low, high = (special.ndtri(special.betaincinv(i, n + 1 - i, at)) for at in (local, 1 - local))
    return low, high


class Judgement(enum.StrEnum):
    """The verdict on a claim, the worst first."""

    REFUTED = "refuted"
    UNRESOLVED = "not resolved at this sample size"
    HOLDS_HERE = "holds at the step sizes run"
    CONFIRMED = "confirmed"


class Reach(enum.StrEnum):
    """What a claim speaks about."""

    CELLS = "the cells run"
    EVERY = "every step size"
    LIMIT = "the limit of small step sizes"


REFUTED, UNRESOLVED, HOLDS_HERE, CONFIRMED = Judgement
RATIO_TOLERANCE = 0.10
SLOPE_TOLERANCE = 0.05
SLOPE_POINTS = 4
QQ_TOLERANCE = 0.10
MAX_Z = 4.0

Errors = Mapping[str, Sequence[np.ndarray]]
"""By dynamics: one array over chains for each step size."""
Cells = Mapping[tuple[str, float], float]
"""By (dynamics, step size)."""


@dataclasses.dataclass(frozen=True)
class Item:
    """One number behind a claim: for which dynamics or step size, its value, interval and verdict."""

    where: str
    value: float
    interval: tuple[float, float] | None
    verdict: Judgement
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement about one experiment, the number that decides it and the verdict.

    `source` is `paper` for the paper's own claims, `beyond` for others.
    """

    key: str
    statement: str
    source: str
    relation: str
    value: float
    interval: tuple[float, float] | None
    level: str
    verdict: Judgement
    items: tuple[Item, ...]
    reach: Reach


def judged_at(claim: Claim, step_sizes: Sequence[float], published: Sequence[float]) -> Claim:
    """A claim whose verdict says no more than the step sizes that were run can decide.

    Without all published step sizes, a claim about all of them, or about the limit, at most holds at those that were run; without
    the smallest they do not refute a limit either.
    """
    missing = set(published) - set(step_sizes)
    open_limit = claim.reach is Reach.LIMIT and min(published) in missing

    def decided(verdict: Judgement) -> Judgement:
        if missing and claim.reach is not Reach.CELLS and verdict is CONFIRMED:
            return HOLDS_HERE
        return UNRESOLVED if open_limit and verdict is REFUTED else verdict

    items = tuple(dataclasses.replace(item, verdict=decided(item.verdict)) for item in claim.items)
    return dataclasses.replace(claim, verdict=decided(claim.verdict), items=items)


STATEMENTS = {
    "smaller-error": (
        "At every step size the non-reversible RMSE is below that of {rival}{about}.",
        "RMSE ratio < 1",
        "95 %, paired bootstrap, simultaneous over step sizes",
        Reach.EVERY,
    ),
    "asymptotic": (
        "RMSE/√(ηV) tends to 1 as η decreases.",
        f"→ 1 within {RATIO_TOLERANCE:g}",
        "95 %, bootstrap, at the smallest η",
        Reach.LIMIT,
    ),
    "slope": (
        "The log-log slope of the RMSE tends to ½.",
        f"→ ½ within {SLOPE_TOLERANCE:g}",
        "95 %, bootstrap, over the {count} smallest η",
        Reach.LIMIT,
    ),
    "normality": (
        "At the smallest step size the errors divided by {by} are standard normal.",
        f"p > 0.01, Q-Q line within {QQ_TOLERANCE:g} of y = x",
        "Q-Q slope, 95 %; {test}",
        Reach.LIMIT,
    ),
    "exact": (
        "RMSE equals the exact finite-step prediction in all {count} cells (χ² = {chi2:.1f} on {count}, p = {p:.2g}).",
        f"|z| ≤ {MAX_Z:g}",
        "largest |z| = {largest:.2f}, {where}",
        Reach.CELLS,
    ),
    "even-bias": (
        "The bias of the even observable {name}, hidden from odd ones by symmetry, equals its exact prediction.",
        f"|z| ≤ {MAX_Z:g}",
        "largest |z| = {largest:.2f}, {where}",
        Reach.CELLS,
    ),
}
"""By kind of claim: the statement, the relation that decides it, how its interval is made, and what it speaks about."""


def _claim(kind: str, source: str, judged: Sequence[tuple[Item, float]], key: str | None = None, **words: Any) -> Claim:
    """A claim of the items with their distance from holding: the one with the worst verdict, or furthest from it, decides."""
    order = list(Judgement)
    worst, _ = max(judged, key=lambda pair: (-order.index(pair[0].verdict), pair[1]))
    statement, relation, level, reach = STATEMENTS[kind]
    return Claim(
        key=key or kind,
        statement=statement.format(**words),
        source=source,
        relation=relation,
        value=worst.value,
        interval=worst.interval,
        level=level.format(**words),
        verdict=worst.verdict,
        items=tuple(item for item, _ in judged),
        reach=reach,
    )


def _limit(
    where: str, value: float, bounds: tuple[float, float], goal: float, tolerance: float,
    earlier: float | None, at: str, exact: float | None,
) -> tuple[Item, float]:  # fmt: skip
    """Judge "→ goal": confirmed inside the tolerance, refuted outside unless smaller steps bring it nearer by a fifth.

    `earlier` is the value `at` larger steps. A value that equals the exact finite-step prediction does not refute a limit.
    """
    low, high = bounds
    away = low > goal + tolerance or high < goal - tolerance
    stuck = earlier is not None and abs(value - goal) >= 0.8 * abs(earlier - goal)
    foretold = exact is not None and low <= exact <= high
    if goal - tolerance <= low and high <= goal + tolerance:
        verdict = CONFIRMED
    else:
        verdict = REFUTED if away and stuck and not foretold else UNRESOLVED
    notes = [] if earlier is None else [f"{earlier:.3f} {at}"]
    notes += [] if exact is None else [f"exact theory at these step sizes: {exact:.3f}"]
    return Item(where, value, bounds, verdict, "; ".join(notes)), abs(value - goal)


def smaller_error(
    errors: Errors, etas: Sequence[float], bootstrap: Bootstrap, baseline: str = "reversible",
    key: str = "smaller-error", source: str = "paper", about: str = "",
) -> Claim:  # fmt: skip
    """(i) At every η the RMSE is below the baseline's: paired bootstrap intervals, simultaneous over the step sizes."""
    level = 1 - 0.05 / len(etas)
    judged = []
    for k, eta in enumerate(etas):
        ours, theirs = errors["nonreversible"][k], errors[baseline][k]
        ratio, low, high = map(float, rmse_ratio(ours, theirs, bootstrap, k, level))
        verdict = CONFIRMED if high < 1 else REFUTED if low > 1 else UNRESOLVED
        judged.append((Item(f"η = {eta:g}", ratio, (low, high), verdict), ratio))
    rival = "plain SGLD" if baseline == "sgld" else "the reversible baseline"
    return _claim("smaller-error", source, judged, key, rival=rival, about=about)


def asymptotic(
    errors: Errors, etas: Sequence[float], variances: Mapping[str, float], bootstrap: Bootstrap,
    source: str, exact_rmse: Mapping[str, Sequence[float]],
) -> Claim:  # fmt: skip
    """(ii) RMSE/√(ηV) → 1."""
    judged = []
    for role, V in variances.items():
        ratios = [float(np.sqrt(np.nanmean(e**2) / (eta * V))) for e, eta in zip(errors[role], etas, strict=True)]
        bounds = interval(bootstrap.rmse(errors[role][-1], len(etas) - 1) / np.sqrt(etas[-1] * V))
        earlier = ratios[-2] if len(ratios) > 1 else None
        predicted = exact_rmse[role][-1] / math.sqrt(etas[-1] * V) if role in exact_rmse else None
        at, before = f"{role}, η = {etas[-1]:g}", "at the step size before"
        judged.append(_limit(at, ratios[-1], bounds, 1.0, RATIO_TOLERANCE, earlier, before, predicted))
    return _claim("asymptotic", source, judged)


def half_slope(
    errors: Errors, etas: Sequence[float], bootstrap: Bootstrap, source: str, exact_rmse: Mapping[str, Sequence[float]]
) -> Claim:
    """(iii) The log-log slope of the RMSE tends to ½, judged over the smallest step sizes."""
    last = range(max(0, len(etas) - SLOPE_POINTS), len(etas))
    small = [etas[k] for k in last]
    judged = []
    for role, series in errors.items():
        values = np.array([np.sqrt(np.nanmean(e**2)) for e in series])
        resampled = np.stack([bootstrap.rmse(series[k], k) for k in last], axis=1)
        bounds = interval(np.asarray(slope(small, resampled)))
        earlier = float(slope(etas[:2], values[:2])) if len(etas) > 2 else None
        predicted = float(slope(small, np.array(exact_rmse[role])[last])) if role in exact_rmse else None
        value, before = float(slope(small, values[last])), "over the two largest step sizes"
        judged.append(_limit(role, value, bounds, 0.5, SLOPE_TOLERANCE, earlier, before, predicted))
    return _claim("slope", source, judged, count=len(small))


def normal_errors(found: Mapping[str, Mapping[str, Any]]) -> Claim:
    """(iv) Normalised errors are standard normal, by the test of `normality` and by the line through the Q-Q plot."""
    judged = []
    for role, n in found.items():
        p, (low, high) = n["p"], n["intercept_interval"]
        near = max(abs(x) for x in (n["slope_interval"][0] - 1, n["slope_interval"][1] - 1, low, high)) <= QQ_TOLERANCE
        verdict = REFUTED if p < 1e-3 else CONFIRMED if p > 1e-2 and near else UNRESOLVED
        note = f"p = {p:.3g}, intercept {n['intercept']:+.3f} [{low:+.3f}, {high:+.3f}]"
        judged.append((Item(role, n["slope"], n["slope_interval"], verdict, note), -p))
    first = found["nonreversible"]
    known, estimated = "Kolmogorov-Smirnov against N(0, 1)", "Shapiro-Wilk, location and scale estimated"
    return _claim("normality", "paper", judged, by=first["by"], test=known if first["scale_known"] else estimated)


def exact(z_scores: Cells, values: Cells, kind: str = "exact", name: str = "") -> Claim:
    """A value equals its exact prediction in every cell, within `MAX_Z` standard errors: the RMSE, or the bias of `name`."""
    judged = []
    for (role, eta), z in z_scores.items():
        verdict = CONFIRMED if abs(z) <= MAX_Z else REFUTED
        judged.append((Item(f"{role}, η = {eta:g}", values[role, eta], None, verdict, f"z = {z:+.2f}"), abs(z)))
    worst, largest = max(judged, key=lambda pair: pair[1])
    chi2 = float(np.sum(np.square(list(z_scores.values()))))
    words = {"count": len(judged), "chi2": chi2, "p": float(special.chdtrc(len(judged), chi2)), "name": name}
    return _claim(kind, "beyond", judged, largest=largest, where=worst.where, **words)
