"""The Monte Carlo error of a mean over chains, and the rule that picks its method (T3); whether the chains agree.

Input: `ChainAverages`, the averages of one observable per chain and over consecutive parts of each chain ("blocks", an array of
chains × blocks). Output: a `MonteCarloError`. `run.std_error` and `estimate(run)` both use `choose`. Non-reversible chains have
autocorrelations with negative lobes, so no estimator here truncates at a sign.
"""

import dataclasses
import enum
import functools
import math
from typing import NamedTuple

import numpy as np
import scipy

from gyromc.show.records import Forwarded


@dataclasses.dataclass(frozen=True)
class ErrorSettings:
    """The numbers behind the errors of means: conventions, and limits measured by benchmarks/interval_coverage.py."""

    lugsail_ratio: int = 3  # the long batch against the short one
    fewest_blocks: int = 24  # fewer are too few for both
    batches: int = 20  # of blocks of unequal time
    relaxations: int = 20  # the shortest batch, in relaxation times
    longest_batch: float = 1 / 8  # as a share of the chain
    shortest_batch: float = 1 / 16
    half: int = 10  # relaxation times in half a chain: shorter chains are called slow
    many_chains: int = 20  # from here on the variance between chains is known well enough by itself
    short: int = 80  # relaxation times, below which batches are not both long and many
    short_alone: int = 120  # for one chain
    heavy: float = 1.2  # tail index of blocks, larger for x⁴ of a Gaussian, about 1 for the square of Student's t₃
    uneven: float = 0.04  # share of one block in the fluctuations of all
    many_blocks: int = 2000  # fewer do not tell heavy tails from light ones
    chance: float = 1e-3  # chains that disagree more than this probability allows have not mixed
    alike: float = 0.3  # correlation between halves, larger for chains of less than about five relaxation times
    slow: float = 1.2  # R-hat of chains of about ten relaxation times
    unmixed: float = 1.5  # R-hat that two chains of 20 exceed in 0.2 % of runs


SETTINGS = ErrorSettings()


class VarianceEstimate(NamedTuple):
    """The variance of one chain's average, and its degrees of freedom."""

    variance: float
    dof: float


def lugsail_variance(blocks: np.ndarray, batch: int | None = None) -> VarianceEstimate:
    """The variance of one chain's average by lugsail overlapping batch means, pooled over chains.

    Means over b consecutive blocks vary too little by V·τ/b to first order, τ the relaxation time; means over b/3 by three times
    that. (3 σ̂²(b) - σ̂²(b/3))/2 has no such term, whichever sign it has. NaN when there are too few blocks.
    """
    count = blocks.shape[1]
    if count < SETTINGS.fewest_blocks or blocks.shape[0] == 0:
        return VarianceEstimate(math.nan, 0)
    batch = lugsail_batch(count, relaxation_blocks(blocks)) if batch is None else batch
    long, short, dof = _forms(count, batch)
    plain, smaller = (float(np.sum((blocks @ form) * blocks)) / len(blocks) for form in (long, short))
    ratio = SETTINGS.lugsail_ratio
    lugsail = (ratio * plain - smaller) / (ratio - 1)  # T3
    return VarianceEstimate(max(lugsail, 0.5 * plain), len(blocks) * dof)


def lugsail_batch(num_blocks: int, relaxation: float) -> int:
    """The batch in blocks: 20 relaxation times (given in blocks), within the limits, a multiple of 3."""
    shortest, longest = SETTINGS.shortest_batch * num_blocks, SETTINGS.longest_batch * num_blocks
    wanted = np.clip(SETTINGS.relaxations * relaxation, shortest, longest)  # T3
    return SETTINGS.lugsail_ratio * max(1, round(float(wanted) / SETTINGS.lugsail_ratio))


@functools.lru_cache(maxsize=256)
def _forms(count: int, batch: int) -> tuple[np.ndarray, np.ndarray, float]:
    """The quadratic forms yᵀAy of overlapping batch means, long and short, and the degrees of freedom of their combination."""

    def form(batch: int) -> np.ndarray:
        starts = np.arange(count - batch + 1)[:, None]
        place = np.arange(count)[None]
        means = np.where((place >= starts) & (place < starts + batch), 1 / batch, 0.0) - 1 / count
        return batch / ((count - batch) * len(starts)) * means.T @ means

    long, short = form(batch), form(batch // SETTINGS.lugsail_ratio)
    both = long - short / SETTINGS.lugsail_ratio
    return long, short, float(np.trace(both) ** 2 / np.sum(both * both))  # Satterthwaite, for independent blocks


def relaxation_blocks(blocks: np.ndarray) -> float:
    """The relaxation time in blocks: the slowest decay e^{-t/τ} that any autocorrelation of the blocks shows; 0 where none does.

    Lags count whose correlation, of either sign, is beyond four standard errors (Bartlett's) and the bias of the mean's removal.
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
    x, slowest = np.geomspace(1e-4, 50.0, 2000), 0.0
    first = (1 - np.exp(-x)) ** 2 / (2 * (x - 1 + np.exp(-x)))  # lag-1 correlation of averages over x relaxation times
    for lag in lags[rho > 4 * chance + removal]:
        decay = first * np.exp(-(lag - 1) * x)
        slowest = max(slowest, 1 / float(np.interp(-min(rho[lag - 1], 1.0), -decay, x)))
    return slowest


def scheduled_variance(blocks: np.ndarray, durations: np.ndarray, weights: np.ndarray) -> VarianceEstimate:
    """The variance of one chain's weighted average over blocks of unequal time: one that lasts t varies by V/t."""
    ends = np.unique(np.linspace(0, blocks.shape[1], min(SETTINGS.batches, blocks.shape[1]) + 1).astype(int))
    if len(ends) < 3:
        return VarianceEstimate(math.nan, 0)
    t, w = (np.add.reduceat(part, ends[:-1]) for part in (durations, weights))
    merged = np.add.reduceat(blocks * weights, ends[:-1], axis=1) / w
    away = merged - (merged @ w / w.sum())[:, None]
    V = float(np.sum(away**2 * t)) / (blocks.shape[0] * (len(t) - 1))
    return VarianceEstimate(V * float(np.sum(w**2 / t)) / w.sum() ** 2, blocks.shape[0] * (len(t) - 1))


class ErrorMethod(enum.StrEnum):
    """Where a Monte Carlo error comes from."""

    REPLICATE = "replicate chains"
    LUGSAIL = "lugsail batch means"
    BATCH_MEANS = "batch means"


@dataclasses.dataclass(frozen=True)
class MonteCarloError:
    """The standard error of the mean over chains, and where it comes from."""

    variance: float  # of one chain's average
    chains: int  # how many were averaged
    dof: float  # degrees of freedom of the variance
    method: ErrorMethod
    reason: str  # for that method

    @property
    def std_error(self) -> float:
        """The standard error of the mean over chains; NaN where it is unknown."""
        return math.sqrt(self.variance / self.chains) if self.dof else math.nan


class WithError:
    """What follows from a `mean` and its Monte Carlo `error`, the same for a run's rows and for estimates."""

    mean: float
    error: MonteCarloError
    level: float = 0.95  # of `interval`
    posterior_variance: float = math.nan  # Var_μ(h)

    std_error = Forwarded[float]("error.std_error", "The Monte Carlo standard error of `mean`, without the bias.")
    dof = Forwarded[float]("error.dof", "The degrees of freedom of `std_error`.")
    method = Forwarded[ErrorMethod]("error.method", "Where `std_error` comes from.")
    reason = Forwarded[str]("error.reason", "Why that method.")

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.mean:.6g} ± {self.std_error:.2g}, by {self.method}>"

    @property
    def interval(self) -> tuple[float, float]:
        """The Student interval of `mean`, of the given `level`; the bias is not part of it."""
        return student_interval(self.mean, self.std_error, self.level, self.dof)

    @property
    def ess(self) -> float:
        """How many independent draws have the same error, Var_μ(h) over the error squared; NaN where Var_μ(h) is not known."""
        return self.posterior_variance / self.std_error**2 if self.std_error > 0 else math.nan


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ChainAverages(WithError):
    """The averages of one observable, per chain and over blocks."""

    averages: np.ndarray  # one per chain; NaN for a chain that failed
    blocks: np.ndarray  # the chains that did not fail × blocks
    covered: float = 1.0  # the share of the averaged time in the blocks: the last part may be shorter than a block
    durations: np.ndarray | None = None  # for a scheduled step size: the time each block lasts …
    weights: np.ndarray | None = None  # … and its weight in the average

    @functools.cached_property
    def good(self) -> np.ndarray:
        """The averages of the chains that did not fail."""
        return self.averages[~np.isnan(self.averages)]

    @functools.cached_property
    def mean(self) -> float:
        """The mean over the chains that did not fail."""
        return float(np.mean(self.good)) if self.good.size else math.nan

    @functools.cached_property
    def error(self) -> MonteCarloError:
        """The Monte Carlo error of `mean`, by the method that `choose` picks."""
        return monte_carlo_error(self, *choose(self))

    @functools.cached_property
    def r_hat(self) -> float:
        """Split R-hat over the blocks, stricter than over draws: 1 when all halves agree; NaN for fewer than four blocks."""
        between, within, n = self._spread
        if n < 2 or within == 0:
            return math.nan if n < 2 else 1.0 if between == 0 else math.inf
        return math.sqrt((n - 1) / n + between / within)

    @functools.cached_property
    def _halves(self) -> np.ndarray:
        """The blocks of both halves of all chains: 2 × chains × blocks."""
        half, count = self.blocks.shape[1] // 2, self.blocks.shape[1]
        return np.stack([self.blocks[:, :half], self.blocks[:, count - half :]])

    @functools.cached_property
    def _spread(self) -> tuple[float, float, int]:
        """The variance of averages over half chains, that of blocks within them, and the number of those."""
        # Where every chain failed there is nothing to compare.
        n = self._halves.shape[2] if len(self.good) else 0
        within = float(np.mean(np.var(self._halves, axis=2, ddof=1))) if n > 1 else math.nan
        return float(np.var(self._halves.mean(axis=2), ddof=1)) if n else math.nan, within, n

    @property
    def enough_blocks(self) -> bool:
        """Whether lugsail batch means can be formed: blocks of equal time, and enough of them."""
        return self.durations is None and self.blocks.shape[1] >= SETTINGS.fewest_blocks

    @functools.cached_property
    def length(self) -> float:
        """How many relaxation times one chain lasts; NaN with too few blocks."""
        if not self.enough_blocks:
            return math.nan
        relaxation = relaxation_blocks(self.blocks)
        return self.blocks.shape[1] / relaxation if relaxation > 0 else math.inf

    @functools.cached_property
    def drift(self) -> tuple[float, float]:
        """The average over the first halves less that over the second, and its standard error; NaN where unknown."""
        if not self._halves.size or self.durations is not None:
            return math.nan, math.nan
        by_chain = -np.diff(self._halves.mean(axis=2), axis=0)[0]
        if len(by_chain) >= SETTINGS.many_chains:
            return float(by_chain.mean()), float(by_chain.std(ddof=1)) / math.sqrt(len(by_chain))
        return float(by_chain.mean()), 2 * self.std_error if self.enough_blocks else math.nan

    @functools.cached_property
    def tail(self) -> tuple[float, float]:
        """Hill's tail index of the blocks, from the largest 5 %, and the share of the largest square; NaN with too few blocks."""
        if self.blocks.size < SETTINGS.many_blocks:
            return math.nan, math.nan
        away = np.sort(np.abs(self.blocks - self.blocks.mean()).ravel())[::-1]
        top = away.size // 20
        if not away[0] > 0:
            return math.inf, 0.0
        with np.errstate(divide="ignore"):
            spread = float(np.mean(np.log(away[:top] / away[top])))
        return 1 / spread if spread > 0 else math.inf, float(away[0] ** 2 / np.sum(away**2))

    @property
    def uneven(self) -> bool:
        """Whether few blocks make up most of the fluctuations: heavy tails, or a rare event."""
        index, share = self.tail
        return index < SETTINGS.heavy and share > SETTINGS.uneven

    @functools.cached_property
    def disagree(self) -> bool:
        """Whether the chains have not mixed: their halves are alike, or R-hat is larger than slow chains or chance explain."""
        (between, within, n), free = self._spread, len(self.blocks) - 2
        if free > 0 and n and np.all(np.ptp(self._halves.mean(axis=2), axis=1) > 0):
            # near 1 for stuck chains
            r = min(float(np.corrcoef(self._halves.mean(axis=2))[0, 1]), 1 - 1e-15)
            chance = scipy.special.stdtr(free, -r * math.sqrt(free / (1 - r * r)))
            if r > SETTINGS.alike and chance < SETTINGS.chance:
                return True
        if self.r_hat > SETTINGS.slow and within > 0:
            # Averages over x relaxation times of an exponential autocorrelation have the variance s(x).
            long, short = (2 * (x - 1 + math.exp(-x)) / x**2 for x in (SETTINGS.half, SETTINGS.half / n))
            ratio, count = between / within * n / (n - 1) * (short - long) / long, 2 * len(self.blocks)
            if scipy.special.fdtrc(count - 1, count * min(n - 1, SETTINGS.half), ratio) < SETTINGS.chance:
                return True
        return self.enough_blocks and len(self.good) > 1 and self.r_hat > SETTINGS.unmixed


def choose(averages: ChainAverages) -> tuple[ErrorMethod, str]:
    """The method and the reason: batch means within one chain, or a few that are long and agree, else what chains differ by."""
    chains = len(averages.good)
    if chains >= SETTINGS.many_chains:
        return ErrorMethod.REPLICATE, f"{chains} independent chains"
    if not averages.enough_blocks:
        few = "too few steps for lugsail batch means" if averages.durations is None else "the step size is a schedule"
        return (ErrorMethod.REPLICATE, few) if chains > 1 else (ErrorMethod.BATCH_MEANS, f"one chain; {few}")
    if chains <= 1:
        return ErrorMethod.LUGSAIL, "one chain"
    if averages.length < SETTINGS.short:
        reason = f"a chain lasts only {averages.length:.0f} relaxation times, too short for batch means"
        return ErrorMethod.REPLICATE, reason
    if averages.disagree:
        return ErrorMethod.REPLICATE, "the chains disagree by more than the fluctuations within them explain"
    return ErrorMethod.LUGSAIL, f"{chains} chains are few, each is long, and they agree"


def monte_carlo_error(averages: ChainAverages, method: ErrorMethod, reason: str = "asked for") -> MonteCarloError:
    """The error of the mean over chains; lugsail becomes plain batch means where blocks are too few or unequal."""
    chains, equal = len(averages.good), np.ones(averages.blocks.shape[1])
    if method is ErrorMethod.LUGSAIL and not averages.enough_blocks:
        method, reason = ErrorMethod.BATCH_MEANS, f"{reason}; too few equal blocks for lugsail"
    variance, dof = math.nan, 0.0
    if method is ErrorMethod.REPLICATE and chains > 1:
        variance, dof = float(np.var(averages.good, ddof=1)), chains - 1
    elif method is not ErrorMethod.REPLICATE and chains:
        t, w = (equal if x is None else x for x in (averages.durations, averages.weights))
        by_lugsail, blocks = method is ErrorMethod.LUGSAIL, averages.blocks
        found = lugsail_variance(blocks) if by_lugsail else scheduled_variance(blocks, t, w)
        variance, dof = found.variance * averages.covered, found.dof
    return MonteCarloError(variance, chains, dof if variance >= 0 else 0, method, reason)


def student_interval(mean: float, std_error: float, level: float, dof: float) -> tuple[float, float]:
    """The two-sided Student interval of the given level around a mean; NaN with no degrees of freedom."""
    half = float(scipy.special.stdtrit(dof, 0.5 + level / 2)) * std_error if dof > 0 else math.nan
    return mean - half, mean + half
