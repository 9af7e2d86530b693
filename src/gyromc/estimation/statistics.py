"""Averages and their errors: the estimator (E4) summed without drift, and the variance of what it returns (T3).

Receives values of observables while they stream past, averages per chain, or averages over equal stretches of each chain
("blocks"); hands on sums exact to the last float32 digit, variances of averages with their degrees of freedom, R-hat, relaxation
times and intervals. Non-reversible chains have autocorrelations with negative lobes, so nothing here truncates at a sign.
"""

import dataclasses
import functools
import math

import numpy as np
from scipy import stats

LUGSAIL_RATIO = 3  # the long batch against the short one
FEWEST_BLOCKS = 24  # fewer blocks leave no room for long and short batches
RELAXATIONS = 20  # the shortest batch, in relaxation times (T3)
LONGEST_BATCH = 1 / 8  # of the chain: beyond it the estimate has too few degrees of freedom
SHORTEST_BATCH = 1 / 16


@dataclasses.dataclass(frozen=True)
class Spread:
    """The variance of one chain's average, and how well it is known."""

    variance: float
    dof: float


def replicate_variance(averages: np.ndarray) -> Spread:
    """The variance of one chain's average, from independent chains; NaN for a single one."""
    if averages.size < 2:
        return Spread(math.nan, 0)
    return Spread(float(np.var(averages, ddof=1)), averages.size - 1)


def lugsail_variance(blocks: np.ndarray, batch: int | None = None) -> Spread:
    """The variance of one chain's average by lugsail overlapping batch means, pooled over chains (T3).

    Means over b consecutive blocks vary too little by V·τ/b to first order, τ the relaxation time; means over b/3 vary too
    little by three times that. Their combination (3 σ̂²(b) - σ̂²(b/3))/2 has no such term, whichever sign it has.

    **Arguments:**

    - `blocks`: chains × blocks, averages over equal consecutive stretches.
    - `batch`: b in blocks, a multiple of 3; left out: 20 relaxation times, between a 16th and an 8th of the chain.

    **Returns:** a `Spread`; NaN when there are too few blocks.

    ```python
    import numpy as np
    from gyromc.estimation.statistics import lugsail_variance
    blocks = np.random.default_rng(0).standard_normal((50, 96))
    found = lugsail_variance(blocks)
    assert abs(found.variance * 96 - 1) < 4 * np.sqrt(2 / found.dof)
    ```
    """
    count = blocks.shape[1]
    if count < FEWEST_BLOCKS or blocks.shape[0] == 0:
        return Spread(math.nan, 0)
    batch = lugsail_batch(count, relaxation_blocks(blocks)) if batch is None else batch
    long, short, dof = _forms(count, batch)
    plain, smaller = (float(np.sum((blocks @ form) * blocks)) / len(blocks) for form in (long, short))
    c = 1 / LUGSAIL_RATIO
    lugsail = (plain - c * smaller) / (1 - c)  # T3
    return Spread(max(lugsail, 0.5 * plain), len(blocks) * dof)


def lugsail_batch(num_blocks: int, relaxation: float) -> int:
    """The batch in blocks: 20 relaxation times (given in blocks), within the limits, a multiple of 3."""
    wanted = np.clip(RELAXATIONS * relaxation, SHORTEST_BATCH * num_blocks, LONGEST_BATCH * num_blocks)  # T3
    return LUGSAIL_RATIO * max(1, round(float(wanted) / LUGSAIL_RATIO))


@functools.lru_cache(maxsize=256)
def _forms(count: int, batch: int) -> tuple[np.ndarray, np.ndarray, float]:
    """The two quadratic forms of overlapping batch means, and the degrees of freedom of their combination."""
    long, short = _batch_means_form(count, batch), _batch_means_form(count, batch // LUGSAIL_RATIO)
    both = long - short / LUGSAIL_RATIO
    return long, short, float(np.trace(both) ** 2 / np.sum(both * both))  # Satterthwaite, for independent blocks


def _batch_means_form(count: int, batch: int) -> np.ndarray:
    """A with yᵀAy the overlapping-batch-means estimate of Var(ȳ), unbiased for independent blocks."""
    starts = np.arange(count - batch + 1)[:, None]
    place = np.arange(count)[None]
    means = np.where((place >= starts) & (place < starts + batch), 1 / batch, 0.0) - 1 / count
    return batch / ((count - batch) * len(starts)) * means.T @ means


@functools.lru_cache(maxsize=1)
def _decay_table() -> tuple[np.ndarray, np.ndarray]:
    """(x, ρ): the lag-1 correlation of averages over stretches of x relaxation times of an exponential autocorrelation."""
    x = np.geomspace(1e-4, 50.0, 2000)
    return x, (1 - np.exp(-x)) ** 2 / (2 * (x - 1 + np.exp(-x)))


def relaxation_blocks(blocks: np.ndarray) -> float:
    """The relaxation time in blocks: the slowest decay that any autocorrelation of the blocks shows.

    An autocorrelation e^{-t/τ}, averaged over blocks, has a known correlation at every lag; each lag with a correlation beyond
    four standard errors (Bartlett's, which grow with the correlations at shorter lags) and beyond the bias of the mean's removal,
    of either sign, is read as such a decay, and the slowest counts. 0 when none is.

    **Arguments:**

    - `blocks`: chains × blocks.
    """
    chains, count = blocks.shape
    away = blocks - blocks.mean(axis=1, keepdims=True)
    spectrum = np.abs(np.fft.rfft(away, 2 * count, axis=1)) ** 2
    products = np.fft.irfft(spectrum.sum(axis=0))[:count]  # Σ y_i y_{i+lag}, by lag
    if not products[0] > 0:
        return 0.0
    lags = np.arange(1, count // 4 + 1)
    rho = np.abs(products[lags]) / products[0] * count / (count - lags)
    before = np.append(0.0, rho[:-1])
    chance = np.sqrt((1 + 2 * np.cumsum(before**2)) / (chains * (count - lags)))
    removal = (1 + 2 * np.cumsum(before)) / count
    x, first = _decay_table()
    slowest = 0.0
    for lag in lags[rho > 4 * chance + removal]:
        decay = first * np.exp(-(lag - 1) * x)
        slowest = max(slowest, 1 / float(np.interp(-min(rho[lag - 1], 1.0), -decay, x)))
    return slowest


def split_r_hat(blocks: np.ndarray) -> float:
    """Split R-hat: do the halves of all chains agree as well as the blocks within them? 1 when they do.

    Blocks take the place of draws; being averages, they make it stricter than R-hat over single draws.

    **Arguments:**

    - `blocks`: chains × blocks.

    ```python
    import numpy as np
    from gyromc.estimation.statistics import split_r_hat
    blocks = np.random.default_rng(0).standard_normal((4, 100))
    assert split_r_hat(blocks) < 1.05 < split_r_hat(blocks + np.arange(4)[:, None])
    ```
    """
    halves = _halves(blocks)
    n = halves.shape[1]
    if n < 2:
        return math.nan
    within = float(np.mean(np.var(halves, axis=1, ddof=1)))
    between = float(np.var(halves.mean(axis=1), ddof=1))
    if within == 0:
        return 1.0 if between == 0 else math.inf
    return math.sqrt((n - 1) / n + between / within)


def disagreement(blocks: np.ndarray) -> float:
    """The probability that half-chains of converged chains differ as much as these do: small means not converged.

    Their variance is compared with what lugsail batch means within the chains promise, by an F test.

    **Arguments:**

    - `blocks`: chains × blocks; NaN when there are too few blocks.
    """
    promised = lugsail_variance(blocks)
    if not promised.dof or not promised.variance > 0:
        return math.nan
    means = _halves(blocks).mean(axis=1)
    between = float(np.var(means, ddof=1)) / (2 * promised.variance)
    return float(stats.f.sf(between, len(means) - 1, promised.dof))


def _halves(blocks: np.ndarray) -> np.ndarray:
    half = blocks.shape[1] // 2
    return np.concatenate([blocks[:, :half], blocks[:, blocks.shape[1] - half :]])


def scheduled_variance(blocks: np.ndarray, durations: np.ndarray, weights: np.ndarray, num_batches: int = 20) -> Spread:
    """The variance of one chain's weighted average when the step size is a schedule: blocks of unequal time.

    A block that lasts t varies by V/t (E6), so Σ t (block - mean)²/(batches - 1) estimates V.

    **Arguments:**

    - `blocks`: chains × blocks, weighted averages; `durations`: the time each lasts; `weights`: what each counts in the average.
    """
    ends = np.unique(np.linspace(0, blocks.shape[1], min(num_batches, blocks.shape[1]) + 1).astype(int))
    if len(ends) < 3:
        return Spread(math.nan, 0)
    t, w = (np.add.reduceat(part, ends[:-1]) for part in (durations, weights))
    merged = np.add.reduceat(blocks * weights, ends[:-1], axis=1) / w
    away = merged - (merged @ w / w.sum())[:, None]
    V = float(np.sum(away**2 * t)) / (blocks.shape[0] * (len(t) - 1))
    return Spread(V * float(np.sum(w**2 / t)) / w.sum() ** 2, blocks.shape[0] * (len(t) - 1))


def interval(mean: float, std_error: float, level: float, dof: float) -> tuple[float, float]:
    """The two-sided Student interval of the given level around a mean."""
    half = float(stats.t.ppf(0.5 + level / 2, dof)) * std_error if dof > 0 else math.nan
    return mean - half, mean + half


def combined_dof(*parts: tuple[float, float]) -> float:
    """The degrees of freedom of a sum of independent variances, each (variance, dof), by Welch and Satterthwaite."""
    total = sum(v for v, _ in parts)
    spent = sum(v**2 / dof for v, dof in parts if v > 0)
    return total**2 / spent if spent > 0 else math.inf
