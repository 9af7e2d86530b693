"""The claims of the paper's §6 as values: a quantity, a relation, an interval and a verdict; and the statistics they rest on.

Input: errors μ̂ - μ of R chains and predictions of one experiment. A claim about the limit η → 0 is judged at the smallest η run:
confirmed when its interval lies within the tolerance, refuted when the interval lies outside and smaller steps do not bring it
nearer, and otherwise not resolved. Intervals are those of the delta method.
"""

import dataclasses
import enum
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

Interval = tuple[float, float]
Errors = Mapping[str, Sequence[np.ndarray]]
"""By dynamics: one array over chains for each step size; NaN for a chain that failed."""
Cells = Mapping[tuple[str, float], float]
"""A number by dynamics and step size."""


def rmse(errors: np.ndarray) -> tuple[float, float]:
    """√mean(e²) over the chains that did not fail, and its standard error."""
    square = errors[np.isfinite(errors)] ** 2
    value = math.sqrt(square.mean())
    return value, float(square.std(ddof=1) / math.sqrt(square.size) / (2 * value))


def rmse_interval(errors: np.ndarray, unit: float = 1.0) -> Interval:
    """A 95 % interval of the RMSE in some unit."""
    value, se = rmse(errors)
    half = math.exp(1.96 * se / value)
    return value / half / unit, value * half / unit


def rmse_ratio(ours: np.ndarray, theirs: np.ndarray, level: float = 0.95) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The ratio of two RMSEs of errors (chains × observables) and its paired interval; a chain that failed in one is left out."""
    squares = np.where(np.isfinite(ours) & np.isfinite(theirs), [ours**2, theirs**2], np.nan)
    means = np.nanmean(squares, axis=1)
    ratio = np.sqrt(means[0] / means[1])
    influence = squares[0] / means[0] - squares[1] / means[1]
    se = np.nanstd(influence, axis=0, ddof=1) / np.sqrt(np.isfinite(influence).sum(axis=0)) / 2
    half = np.exp(special.ndtri((1 + level) / 2) * se)
    return ratio, ratio / half, ratio * half


def slope(step_sizes: Sequence[float], values: Sequence[float], std_errors: Sequence[float]) -> tuple[float, float]:
    """The least-squares slope of log(values) against log(step_sizes), and its standard error."""
    x = np.log(step_sizes) - np.mean(np.log(step_sizes))
    weights = x / np.sum(x**2)
    return float(weights @ np.log(values)), float(np.linalg.norm(weights * np.divide(std_errors, values)))


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
    UNRESOLVED = "not resolved"
    HOLDS_HERE = "true so far"
    CONFIRMED = "confirmed"


REFUTED, UNRESOLVED, HOLDS_HERE, CONFIRMED = Judgement
RATIO_TOLERANCE = 0.10
SLOPE_TOLERANCE = 0.05
SLOPE_POINTS = 4
QQ_TOLERANCE = 0.10
MAX_Z = 4.0


@dataclasses.dataclass(frozen=True)
class Item:
    """One number behind a claim: for which dynamics or step size, its value, interval and verdict."""

    where: str
    value: float
    interval: Interval | None
    verdict: Judgement
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Claim:
    """A statement about one experiment (`source`: `paper`, or `beyond` it), the number that decides it and the verdict."""

    key: str
    statement: str
    source: str
    relation: str
    value: float
    interval: Interval | None
    level: str
    verdict: Judgement
    items: tuple[Item, ...]


def judged_at(claim: Claim, step_sizes: Sequence[float], published: Sequence[float]) -> Claim:
    """A claim whose verdict says no more than the step sizes that were run can decide.

    Without all published step sizes, a claim about all of them, or about the limit, at most holds at those that were run; without
    the smallest they do not refute a limit either.
    """
    missing = set(published) - set(step_sizes)
    open_limit = claim.key in ("asymptotic", "slope", "normality") and min(published) in missing

    def decided(verdict: Judgement) -> Judgement:
        if missing and claim.key not in ("exact", "even-bias") and verdict is CONFIRMED:
            return HOLDS_HERE
        return UNRESOLVED if open_limit and verdict is REFUTED else verdict

    items = tuple(dataclasses.replace(item, verdict=decided(item.verdict)) for item in claim.items)
    return dataclasses.replace(claim, verdict=decided(claim.verdict), items=items)


def _claim(key: str, statement: str, source: str, relation: str, level: str, judged: list[tuple[Item, float]]) -> Claim:
    """A claim of the items with their distance from holding: the one with the worst verdict, or furthest from it, decides."""
    order = list(Judgement)
    worst, _ = max(judged, key=lambda pair: (-order.index(pair[0].verdict), pair[1]))
    items = tuple(item for item, _ in judged)
    return Claim(key, statement, source, relation, worst.value, worst.interval, level, worst.verdict, items)


def _limit(
    where: str, value: float, bounds: Interval, goal: float, tolerance: float,
    earlier: float | None, at: str, exact: float | None,
) -> tuple[Item, float]:  # fmt: skip
    """Judge "→ goal": confirmed inside the tolerance, refuted outside unless smaller steps bring it nearer by a fifth.

    `earlier` is the value `at` larger steps. A value that equals the exact finite-step prediction does not refute a limit.
    """
    low, high = bounds
    away = low > goal + tolerance or high < goal - tolerance
    stuck = earlier is not None and abs(value - goal) >= 0.8 * abs(earlier - goal)
    foretold = exact is not None and low <= exact <= high
    verdict = REFUTED if away and stuck and not foretold else UNRESOLVED
    if goal - tolerance <= low and high <= goal + tolerance:
        verdict = CONFIRMED
    notes = [] if earlier is None else [f"{earlier:.3f} {at}"]
    notes += [] if exact is None else [f"exact theory at these step sizes: {exact:.3f}"]
    return Item(where, value, bounds, verdict, "; ".join(notes)), abs(value - goal)


def smaller_error(errors: Errors, etas: Sequence[float], kind: str = "", about: str = "") -> Claim:
    """(i) At every η the RMSE is below the baseline's, by paired intervals; `kind` ends the key of a claim beyond the paper."""
    judged, sgld = [], kind == "-sgld"
    for eta, ours, theirs in zip(etas, errors["nonreversible"], errors["sgld" if sgld else "reversible"], strict=True):
        ratio, low, high = map(float, rmse_ratio(ours, theirs, 1 - 0.05 / len(etas)))
        verdict = CONFIRMED if high < 1 else REFUTED if low > 1 else UNRESOLVED
        judged.append((Item(f"η = {eta:g}", ratio, (low, high), verdict), ratio))
    rival = "plain SGLD" if sgld else "the reversible baseline"
    statement = f"At every step size the non-reversible RMSE is below that of {rival}{about}."
    level = "95 %, paired, simultaneous over step sizes"
    return _claim(f"smaller-error{kind}", statement, "beyond" if kind else "paper", "RMSE ratio < 1", level, judged)


def asymptotic(
    errors: Errors, etas: Sequence[float], variances: Mapping[str, float], source: str,
    exact_rmse: Mapping[str, Sequence[float]],
) -> Claim:  # fmt: skip
    """(ii) RMSE/√(ηV) → 1."""
    judged = []
    for role, V in variances.items():
        units = [math.sqrt(eta * V) for eta in etas]
        ratios = [rmse(e)[0] / unit for e, unit in zip(errors[role], units, strict=True)]
        bounds = rmse_interval(errors[role][-1], units[-1])
        earlier = ratios[-2] if len(ratios) > 1 else None
        predicted = exact_rmse[role][-1] / units[-1] if role in exact_rmse else None
        at, before = f"{role}, η = {etas[-1]:g}", "at the step size before"
        judged.append(_limit(at, ratios[-1], bounds, 1.0, RATIO_TOLERANCE, earlier, before, predicted))
    statement, relation = "RMSE/√(ηV) tends to 1 as η decreases.", f"→ 1 within {RATIO_TOLERANCE:g}"
    return _claim("asymptotic", statement, source, relation, "95 %, at the smallest η", judged)


def half_slope(errors: Errors, etas: Sequence[float], source: str, exact_rmse: Mapping[str, Sequence[float]]) -> Claim:
    """(iii) The log-log slope of the RMSE tends to ½, judged over the smallest step sizes."""
    small = etas[-SLOPE_POINTS:]
    judged = []
    for role, series in errors.items():
        values, std_errors = zip(*map(rmse, series), strict=True)
        value, se = slope(small, values[-SLOPE_POINTS:], std_errors[-SLOPE_POINTS:])
        earlier = slope(etas[:2], values[:2], std_errors[:2])[0] if len(etas) > 2 else None
        exact = exact_rmse.get(role)
        predicted = slope(small, exact[-SLOPE_POINTS:], [0.0] * len(small))[0] if exact else None
        bounds, before = (value - 1.96 * se, value + 1.96 * se), "over the two largest step sizes"
        judged.append(_limit(role, value, bounds, 0.5, SLOPE_TOLERANCE, earlier, before, predicted))
    statement, relation = "The log-log slope of the RMSE tends to ½.", f"→ ½ within {SLOPE_TOLERANCE:g}"
    return _claim("slope", statement, source, relation, f"95 %, over the {len(small)} smallest η", judged)


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
    statement = f"At the smallest step size the errors divided by {first['by']} are standard normal."
    relation = f"p > 0.01, Q-Q line within {QQ_TOLERANCE:g} of y = x"
    level = f"Q-Q slope, 95 %; {known if first['scale_known'] else estimated}"
    return _claim("normality", statement, "paper", relation, level, judged)


def exact(z_scores: Cells, values: Cells, even: str | None = None) -> Claim:
    """A value equals its prediction in every cell, within `MAX_Z` standard errors: the RMSE, or the bias of `even`."""
    judged = []
    for (role, eta), z in z_scores.items():
        verdict = CONFIRMED if abs(z) <= MAX_Z else REFUTED
        judged.append((Item(f"{role}, η = {eta:g}", values[role, eta], None, verdict, f"z = {z:+.2f}"), abs(z)))
    (worst, largest), count = max(judged, key=lambda pair: pair[1]), len(judged)
    chi2 = float(np.sum(np.square(list(z_scores.values()))))
    law = f"(χ² = {chi2:.1f} on {count}, p = {special.chdtrc(count, chi2):.2g})"
    key, statement = "exact", f"RMSE equals the exact finite-step prediction in all {count} cells {law}."
    if even is not None:
        key = "even-bias"
        statement = f"The bias of the even observable {even}, hidden from odd ones by symmetry, equals its prediction."
    level = f"largest |z| = {largest:.2f}, {worst.where}"
    return _claim(key, statement, "beyond", f"|z| ≤ {MAX_Z:g}", level, judged)
