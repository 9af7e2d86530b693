"""Averages and their errors: the estimator (E4) summed without drift, and the variance of what it returns.

Receives values of observables while they stream past, or averages per chain; hands on sums exact to the last float32 digit,
standard errors, intervals and the estimated V of (E6).
"""

import math

import numpy as np
from scipy import stats


def two_sum(high, low, value):
    """Add `value` to the unevaluated sum high + low, which carries twice the digits of its parts.

    Knuth's error-free transformation gives high + value = total + error exactly; the parts are then renormalised, so that
    `low` stays below half a unit in the last place of `high` and does not collect rounding errors of its own.
    """
    total = high + value
    shadow = total - high
    error = (high - (total - shadow)) + (value - shadow)
    low = low + error
    renormalised = total + low
    return renormalised, low - (renormalised - total)


def batch_length(num_steps: int, at_most: int = 128) -> int:
    """The smallest power of two that cuts `num_steps` into at most `at_most` batches.

    Powers of two, so that the batches of a longer run are unions of those of a shorter one.
    """
    return 1 << max(0, math.ceil(math.log2(num_steps / at_most)))


def replicate_variance(averages: np.ndarray) -> tuple[float, int]:
    """The variance of one chain's average, from independent chains, and its degrees of freedom."""
    return float(np.var(averages, ddof=1)), averages.size - 1


def batch_means_variance(batch_averages: np.ndarray, num_batches: int = 20) -> tuple[float, int]:
    """The variance of one chain's average from averages over equal, consecutive stretches of it.

    Neighbours are first merged until about `num_batches` are left: long stretches are nearly independent.

    **Arguments:**

    - `batch_averages`: chains × batches.

    **Returns:** the variance and its degrees of freedom; NaN when there are fewer than two batches.
    """
    merge = max(1, batch_averages.shape[1] // num_batches)
    kept = batch_averages.shape[1] // merge
    if kept < 2:
        return math.nan, 0
    merged = batch_averages[:, : kept * merge].reshape(-1, kept, merge).mean(axis=2)
    within = merged - merged.mean(axis=1, keepdims=True)
    dof = merged.shape[0] * (kept - 1)
    return float(np.sum(within**2) / dof / kept), dof


def interval(mean: float, std_error: float, level: float, dof: int) -> tuple[float, float]:
    """The two-sided Student interval of the given level around a mean."""
    half = float(stats.t.ppf(0.5 + level / 2, dof)) * std_error if dof > 0 else math.nan
    return mean - half, mean + half
