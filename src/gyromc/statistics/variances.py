"""The variance of one chain's average: from independent chains, or from blocks within chains by lugsail batch means (T3).

Input: averages per chain, or averages over consecutive stretches of each chain ("blocks"), an array of chains × blocks. Output: a
`Spread`, the variance with its degrees of freedom; and whether the chains agree, as split R-hat and as a probability.
Non-reversible chains have autocorrelations with negative lobes, so no estimator here truncates at a sign.
"""

import dataclasses
import functools
import math

import numpy as np
import scipy

LUGSAIL_RATIO = 3  # the long batch against the short one
FEWEST_BLOCKS = 24  # fewer are too few for both long and short batches
RELAXATIONS = 20  # the shortest batch, in relaxation times
LONGEST_BATCH = 1 / 8  # of the chain: beyond it the estimate has too few degrees of freedom
SHORTEST_BATCH = 1 / 16
HALF = 10  # relaxation times in half a chain: shorter chains are called slow


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
    """The variance of one chain's average by lugsail overlapping batch means, pooled over chains.

    Means over b consecutive blocks vary too little by V·τ/b to first order, τ the relaxation time; means over b/3 vary too
    little by three times that. Their combination (3 σ̂²(b) - σ̂²(b/3))/2 has no such term, whichever sign it has. b is a
    multiple of 3, left out: `lugsail_batch`. NaN when there are too few blocks.
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


def scheduled_variance(blocks: np.ndarray, durations: np.ndarray, weights: np.ndarray, num_batches: int = 20) -> Spread:
    """The variance of one chain's weighted average when the step size is a schedule: blocks of unequal time.

    A block that lasts t varies by V/t, so Σ t (block - mean)²/(batches - 1) estimates V. `blocks` are weighted averages.
    """
    ends = np.unique(np.linspace(0, blocks.shape[1], min(num_batches, blocks.shape[1]) + 1).astype(int))
    if len(ends) < 3:
        return Spread(math.nan, 0)
    t, w = (np.add.reduceat(part, ends[:-1]) for part in (durations, weights))
    merged = np.add.reduceat(blocks * weights, ends[:-1], axis=1) / w
    away = merged - (merged @ w / w.sum())[:, None]
    V = float(np.sum(away**2 * t)) / (blocks.shape[0] * (len(t) - 1))
    return Spread(V * float(np.sum(w**2 / t)) / w.sum() ** 2, blocks.shape[0] * (len(t) - 1))


def split_r_hat(blocks: np.ndarray) -> float:
    """Split R-hat: do the halves of all chains agree as well as the blocks within them? 1 when they do.

    Blocks take the place of draws; being averages, they make it stricter than R-hat over single draws. NaN when there are fewer
    than four blocks.
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

    An F test compares their variance with the variance that lugsail batch means find within the chains. NaN when there are too
    few blocks.
    """
    within = lugsail_variance(blocks)
    if not within.dof or not within.variance > 0:
        return math.nan
    means = _halves(blocks).mean(axis=1)
    between = float(np.var(means, ddof=1)) / (2 * within.variance)
    return float(scipy.special.fdtrc(len(means) - 1, within.dof, between))


def halves_correlation(blocks: np.ndarray) -> tuple[float, float]:
    """The correlation over chains between the averages of their halves, and its probability for chains that have mixed.

    Near 0 for mixed chains, near 1 for stuck ones; one-sided. NaN for fewer than three chains or two blocks, or equal averages.
    """
    half, chains = blocks.shape[1] // 2, len(blocks)
    if chains < 3 or half < 1:
        return math.nan, math.nan
    first, second = np.split(_halves(blocks).mean(axis=1), 2)
    if not np.ptp(first) > 0 or not np.ptp(second) > 0:
        return math.nan, math.nan
    r = min(float(np.corrcoef(first, second)[0, 1]), 1 - 1e-15)
    return r, float(scipy.special.stdtr(chains - 2, -r * math.sqrt((chains - 2) / (1 - r * r))))


def slowness(blocks: np.ndarray) -> float:
    """The probability that halves of ten relaxation times differ as much as these do, against the blocks within them.

    An F test of R-hat, for any number of chains. The averages over x relaxation times of an exponential autocorrelation have the
    variance s(x). NaN for fewer than four blocks.
    """
    halves = _halves(blocks)
    n, within = halves.shape[1], float(np.mean(np.var(halves, axis=1, ddof=1))) if halves.shape[1] > 1 else 0.0
    if not within > 0:
        return math.nan
    long, short = (2 * (x - 1 + math.exp(-x)) / x**2 for x in (HALF, HALF / n))
    ratio = float(np.var(halves.mean(axis=1), ddof=1)) / within * n / (n - 1) * (short - long) / long
    return float(scipy.special.fdtrc(len(halves) - 1, len(halves) * min(n - 1, HALF), ratio))


def tail(blocks: np.ndarray) -> tuple[float, float]:
    """Hill's tail index of the blocks' distances from their mean, from the largest 5 %, and the share of the largest square."""
    away = np.sort(np.abs(blocks - blocks.mean()).ravel())[::-1]
    top = max(8, away.size // 20)
    if not away[0] > 0:
        return math.inf, 0.0
    with np.errstate(divide="ignore"):
        spread = float(np.mean(np.log(away[:top] / away[top])))
    return 1 / spread if spread > 0 else math.inf, float(away[0] ** 2 / np.sum(away**2))


def _halves(blocks: np.ndarray) -> np.ndarray:
    half = blocks.shape[1] // 2
    return np.concatenate([blocks[:, :half], blocks[:, blocks.shape[1] - half :]])
