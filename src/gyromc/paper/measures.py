"""Statistics of replicated averages with intervals: RMSE, its ratios and slope, and tests of normality.

Input: errors μ̂ - μ of R chains. Output: estimates with bootstrap intervals. All resampling is seeded, so a report rebuilt
from the same averages has the same digits.
"""

import dataclasses
import functools
import math

import numpy as np
from scipy import special

__all__ = ["Bootstrap", "Normality", "anderson_darling", "normality", "quantile_band", "rmse", "rmse_ratio", "slope"]


def rmse(errors: np.ndarray) -> tuple[float, float]:
    """Return √mean(e²) and its standard error, by the delta method."""
    square = errors**2
    value = math.sqrt(square.mean())
    return value, float(square.std(ddof=1) / math.sqrt(square.size) / (2 * value))


class Bootstrap:
    """Resampled chains: the same `draws` resamples for every dynamics, so that comparisons are paired."""

    def __init__(self, num_chains: int, draws: int = 2000, seed: int = 0):
        rng = np.random.default_rng(seed)
        self.weights = rng.multinomial(num_chains, np.full(num_chains, 1 / num_chains), size=draws).astype(np.float32)
        self.orders = [rng.permutation(draws) for _ in range(32)]  # independent resampling at each step size

    def rmse(self, errors: np.ndarray, column: int = 0) -> np.ndarray:
        """RMSE of each resample; failed chains (NaN) are omitted. Each `column` has an independent resampling.

        Errors are an array over chains, or chains × observables.
        """
        alive = np.isfinite(errors)
        square = np.where(alive, errors, 0.0) ** 2
        weights = self.weights[self.orders[column % len(self.orders)]]
        scale = square.max() or 1.0
        sums = weights @ (square / scale).astype(np.float32)
        return np.sqrt(sums.astype(float) * scale / np.maximum(weights @ alive.astype(np.float32), 1))


def interval(resamples: np.ndarray, level: float = 0.95) -> tuple[float, float]:
    """Return the central interval of resampled values."""
    low, high = np.quantile(resamples, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def rmse_ratio(
    ours: np.ndarray, theirs: np.ndarray, bootstrap: Bootstrap, column: int = 0, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the ratio of two RMSEs and the ends of its paired bootstrap interval.

    Errors are an array over chains, or chains × observables; a chain that failed in one of them (NaN) is left out of both.
    """
    both = np.isfinite(ours) & np.isfinite(theirs)
    ours, theirs = np.where(both, ours, np.nan), np.where(both, theirs, np.nan)
    ratio = np.sqrt(np.nanmean(ours**2, axis=0) / np.nanmean(theirs**2, axis=0))
    resamples = bootstrap.rmse(ours, column) / bootstrap.rmse(theirs, column)
    low, high = np.quantile(resamples, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return ratio, low, high


def slope(step_sizes, values: np.ndarray) -> np.ndarray | float:
    """Return the least-squares slope of log(values) against log(step_sizes), for each resample along the first axis."""
    x = np.log(np.asarray(step_sizes, float))
    x = x - x.mean()
    result = np.log(values) @ x / (x @ x)
    return float(result) if np.ndim(result) == 0 else result


@dataclasses.dataclass(frozen=True)
class Normality:
    """Two tests of normality, and the line through the Q-Q plot with 95 % intervals."""

    num: int
    ks_statistic: float
    ks_p: float
    ad_statistic: float
    ad_p: float
    slope: float
    slope_interval: tuple[float, float]
    intercept: float
    intercept_interval: tuple[float, float]


def normality(z: np.ndarray) -> Normality:
    """Test normalised errors against N(0, 1).

    Kolmogorov-Smirnov against N(0, 1) detects a wrong location, scale or shape; Anderson-Darling, with mean and variance
    estimated, only a wrong shape.
    """
    from scipy import stats  # when it is used: it takes long to import

    z = np.sort(z[np.isfinite(z)])
    n = z.size
    ks = stats.kstest(z, "norm")
    statistic, p = anderson_darling(z)
    slope, intercept = map(float, np.polyfit(normal_scores(n), z, 1))
    half_slope, half_mean = float(1.96 * z.std() / math.sqrt(2 * n)), float(1.96 * z.std() / math.sqrt(n))
    return Normality(
        num=n,
        ks_statistic=float(ks.statistic),
        ks_p=float(ks.pvalue),
        ad_statistic=statistic,
        ad_p=p,
        slope=slope,
        slope_interval=(slope - half_slope, slope + half_slope),
        intercept=intercept,
        intercept_interval=(intercept - half_mean, intercept + half_mean),
    )


def normal_scores(n: int) -> np.ndarray:
    """The quantiles of N(0, 1) for the Q-Q plot of n sorted values."""
    return special.ndtri((np.arange(1, n + 1) - 0.5) / n)


def anderson_darling(z: np.ndarray) -> tuple[float, float]:
    """Return the Anderson-Darling statistic for normality with mean and variance estimated, and its p-value.

    The p-value is Stephens' approximation for that case, good to about 10⁻³.
    """
    z = np.sort(z)
    n = z.size
    u = np.clip(special.ndtr((z - z.mean()) / z.std(ddof=1)), 1e-300, 1 - 1e-16)
    i = np.arange(1, n + 1)
    a = float(-n - np.mean((2 * i - 1) * (np.log(u) + np.log1p(-u[::-1])))) * (1 + 0.75 / n + 2.25 / n**2)
    if a >= 0.6:
        p = math.exp(1.2937 - 5.709 * a + 0.0186 * a**2) if a < 13 else 0.0
    elif a >= 0.34:
        p = math.exp(0.9177 - 4.279 * a - 1.38 * a**2)
    elif a >= 0.2:
        p = 1 - math.exp(-8.318 + 42.796 * a - 59.938 * a**2)
    else:
        p = 1 - math.exp(-13.436 + 101.14 * a - 223.73 * a**2)
    return a, min(1.0, max(0.0, p))


@functools.lru_cache(maxsize=16)
def quantile_band(n: int, level: float = 0.95, simulations: int = 600) -> tuple[np.ndarray, np.ndarray]:
    """Return a band that holds all of n sorted N(0, 1) values with probability `level`.

    Each order statistic has a Beta law; one local level for all of them is found by (seeded) simulation.
    """
    rng = np.random.default_rng(n)
    i = np.arange(1, n + 1)
    ordered = np.sort(rng.random((simulations, n)), axis=1)
    below = special.betainc(i, n + 1 - i, ordered)
    local = np.quantile(np.min(np.minimum(below, 1 - below), axis=1), 1 - level)
    low, high = (special.ndtri(special.betaincinv(i, n + 1 - i, at)) for at in (local, 1 - local))
    return low, high
