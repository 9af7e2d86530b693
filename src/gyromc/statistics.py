"""The Monte Carlo error of a mean over chains: the variance of one chain's average, and the rule that picks the method (T3).

Input: `ChainAverages`, the averages of one observable per chain and over consecutive parts of each chain ("blocks", an array of
chains × blocks). Output: a `MonteCarloError`, the standard error with its degrees of freedom, its method and the reason for that
method; and whether the chains agree, as split R-hat and as a probability. `run.std_error` and `estimate(run)` both use `choose`.
Non-reversible chains have autocorrelations with negative lobes, so no estimator here truncates at a sign.
"""

import dataclasses
import enum
import functools
import math

import numpy as np
import scipy

from gyromc.show.records import Forwarded


@dataclasses.dataclass(frozen=True)
class ErrorSettings:
    """The numbers behind the errors of means: conventions, and limits measured by benchmarks/interval_coverage.py."""

    lugsail_ratio: int = 3
    """The long batch against the short one."""
    fewest_blocks: int = 24
    """Fewer are too few for both long and short batches."""
    relaxations: int = 20
    """The shortest batch, in relaxation times."""
    longest_batch: float = 1 / 8
    """Of the chain: beyond it the estimate has too few degrees of freedom."""
    shortest_batch: float = 1 / 16
    """Of the chain."""
    half: int = 10
    """Relaxation times in half a chain: shorter chains are called slow."""
    many_chains: int = 20
    """From here on the variance between chains is known well enough by itself."""
    short: int = 80
    """Relaxation times: shorter chains have no batches that are both long and many."""
    short_alone: int = 120
    """For one chain, whose length is less well known: with less, intervals for squares cover less than 93 %."""
    heavy: float = 1.2
    """Tail index of blocks: larger for x⁴ of a Gaussian, about 1 for the square of Student's t₃."""
    uneven: float = 0.04
    """Share of one block in the fluctuations of all."""
    many_blocks: int = 2000
    """Fewer do not tell heavy tails from light ones."""
    chance: float = 1e-3
    """Chains that disagree more than this probability allows have not mixed."""
    alike: float = 0.3
    """Correlation between the halves of chains: larger where a chain has less than about five relaxation times."""
    slow: float = 1.2
    """R-hat of chains of about ten relaxation times."""
    unmixed: float = 1.5
    """R-hat that two chains of 20 relaxation times exceed in 0.2 % of runs, more chains never."""


SETTINGS = ErrorSettings()


@dataclasses.dataclass(frozen=True)
class VarianceEstimate:
    """The variance of one chain's average, and how well it is known."""

    variance: float
    dof: float


def lugsail_variance(blocks: np.ndarray, batch: int | None = None) -> VarianceEstimate:
    """The variance of one chain's average by lugsail overlapping batch means, pooled over chains.

    Means over b consecutive blocks vary too little by V·τ/b to first order, τ the relaxation time; means over b/3 vary too
    little by three times that. Their combination (3 σ̂²(b) - σ̂²(b/3))/2 has no such term, whichever sign it has. b is a
    multiple of 3, left out: `lugsail_batch`. NaN when there are too few blocks.
    """
    count = blocks.shape[1]
    if count < SETTINGS.fewest_blocks or blocks.shape[0] == 0:
        return VarianceEstimate(math.nan, 0)
    batch = lugsail_batch(count, relaxation_blocks(blocks)) if batch is None else batch
    long, short, dof = _forms(count, batch)
    plain, smaller = (float(np.sum((blocks @ form) * blocks)) / len(blocks) for form in (long, short))
    c = 1 / SETTINGS.lugsail_ratio
    lugsail = (plain - c * smaller) / (1 - c)  # T3
    return VarianceEstimate(max(lugsail, 0.5 * plain), len(blocks) * dof)


def lugsail_batch(num_blocks: int, relaxation: float) -> int:
    """The batch in blocks: 20 relaxation times (given in blocks), within the limits, a multiple of 3."""
    shortest, longest = SETTINGS.shortest_batch * num_blocks, SETTINGS.longest_batch * num_blocks
    wanted = np.clip(SETTINGS.relaxations * relaxation, shortest, longest)  # T3
    return SETTINGS.lugsail_ratio * max(1, round(float(wanted) / SETTINGS.lugsail_ratio))


@functools.lru_cache(maxsize=256)
def _forms(count: int, batch: int) -> tuple[np.ndarray, np.ndarray, float]:
    """The two quadratic forms of overlapping batch means, and the degrees of freedom of their combination."""
    long, short = _batch_means_form(count, batch), _batch_means_form(count, batch // SETTINGS.lugsail_ratio)
    both = long - short / SETTINGS.lugsail_ratio
    return long, short, float(np.trace(both) ** 2 / np.sum(both * both))  # Satterthwaite, for independent blocks


def _batch_means_form(count: int, batch: int) -> np.ndarray:
    """A with yᵀAy the overlapping-batch-means estimate of Var(ȳ), unbiased for independent blocks."""
    starts = np.arange(count - batch + 1)[:, None]
    place = np.arange(count)[None]
    means = np.where((place >= starts) & (place < starts + batch), 1 / batch, 0.0) - 1 / count
    return batch / ((count - batch) * len(starts)) * means.T @ means


@functools.lru_cache(maxsize=1)
def _decay_table() -> tuple[np.ndarray, np.ndarray]:
    """(x, ρ): the lag-1 correlation of averages over x relaxation times of an exponential autocorrelation."""
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


def scheduled_variance(
    blocks: np.ndarray, durations: np.ndarray, weights: np.ndarray, num_batches: int = 20
) -> VarianceEstimate:
    """The variance of one chain's weighted average when the step size is a schedule: blocks of unequal time.

    A block that lasts t varies by V/t, so Σ t (block - mean)²/(batches - 1) estimates V. `blocks` are weighted averages.
    """
    ends = np.unique(np.linspace(0, blocks.shape[1], min(num_batches, blocks.shape[1]) + 1).astype(int))
    if len(ends) < 3:
        return VarianceEstimate(math.nan, 0)
    t, w = (np.add.reduceat(part, ends[:-1]) for part in (durations, weights))
    merged = np.add.reduceat(blocks * weights, ends[:-1], axis=1) / w
    away = merged - (merged @ w / w.sum())[:, None]
    V = float(np.sum(away**2 * t)) / (blocks.shape[0] * (len(t) - 1))
    return VarianceEstimate(V * float(np.sum(w**2 / t)) / w.sum() ** 2, blocks.shape[0] * (len(t) - 1))


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
    long, short = (2 * (x - 1 + math.exp(-x)) / x**2 for x in (SETTINGS.half, SETTINGS.half / n))
    ratio = float(np.var(halves.mean(axis=1), ddof=1)) / within * n / (n - 1) * (short - long) / long
    return float(scipy.special.fdtrc(len(halves) - 1, len(halves) * min(n - 1, SETTINGS.half), ratio))


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


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ChainAverages(WithError):
    """The averages of one observable, per chain and over consecutive parts of each chain ("blocks")."""

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
        """Split R-hat over the blocks: 1 when the halves of all chains agree; NaN when there are too few blocks."""
        return split_r_hat(self.blocks)

    @property
    def enough_blocks(self) -> bool:
        """Whether lugsail batch means can be formed: blocks of equal time, and enough of them."""
        return self.durations is None and self.blocks.shape[1] >= SETTINGS.fewest_blocks

    @functools.cached_property
    def length(self) -> float:
        """How many relaxation times one chain lasts; infinite when the blocks show no correlation, NaN with too few blocks."""
        if not self.enough_blocks:
            return math.nan
        relaxation = relaxation_blocks(self.blocks)
        return self.blocks.shape[1] / relaxation if relaxation > 0 else math.inf

    @functools.cached_property
    def drift(self) -> tuple[float, float]:
        """The average over the first half of the chains less that over the second, and its standard error; NaN where unknown."""
        half = self.blocks.shape[1] // 2
        if not half or self.durations is not None:
            return math.nan, math.nan
        by_chain = self.blocks[:, :half].mean(axis=1) - self.blocks[:, -half:].mean(axis=1)
        if len(by_chain) >= SETTINGS.many_chains:
            return float(by_chain.mean()), float(by_chain.std(ddof=1)) / math.sqrt(len(by_chain))
        return float(by_chain.mean()), 2 * self.std_error if self.enough_blocks else math.nan

    @functools.cached_property
    def tail(self) -> tuple[float, float]:
        """The tail index of the blocks, and the share of the largest in their fluctuations; NaN with too few blocks."""
        return tail(self.blocks) if self.blocks.size >= SETTINGS.many_blocks else (math.nan, math.nan)

    @property
    def uneven(self) -> bool:
        """Whether few blocks make up most of the fluctuations: heavy tails, or a rare event."""
        index, share = self.tail
        return index < SETTINGS.heavy and share > SETTINGS.uneven

    @functools.cached_property
    def disagree(self) -> bool:
        """Whether the chains have not mixed; False where that cannot be tested.

        Tests: the halves of each chain are alike (many chains), R-hat is larger than slow chains explain (any number), and
        the chains differ by more than the fluctuations within them explain (few chains; with many, halves must be alike too).
        """
        correlation, chance = halves_correlation(self.blocks)
        alike = correlation > SETTINGS.alike
        if alike and chance < SETTINGS.chance:
            return True
        if self.r_hat > SETTINGS.slow and slowness(self.blocks) < SETTINGS.chance:
            return True
        if not self.enough_blocks or len(self.good) < 2:
            return False
        testable = alike or len(self.good) < SETTINGS.many_chains
        return self.r_hat > SETTINGS.unmixed or (testable and disagreement(self.blocks) < SETTINGS.chance)


def choose(averages: ChainAverages) -> tuple[ErrorMethod, str]:
    """The method for the error and the reason, from the number of chains, their length and whether they agree.

    Many chains: their spread. Few chains: batch means within them if each is long and they agree, else their spread. One chain:
    batch means.
    """
    chains = len(averages.good)
    if chains >= SETTINGS.many_chains:
        return ErrorMethod.REPLICATE, f"{chains} independent chains"
    if not averages.enough_blocks:
        few = "too few steps for lugsail batch means" if averages.durations is None else "the step size is a schedule"
        return (ErrorMethod.REPLICATE, few) if chains > 1 else (ErrorMethod.BATCH_MEANS, f"one chain; {few}")
    if chains <= 1:
        return ErrorMethod.LUGSAIL, "one chain"
    if averages.length < SETTINGS.short:
        return (
            ErrorMethod.REPLICATE,
            f"a chain lasts only {averages.length:.0f} relaxation times, too short for batch means",
        )
    if averages.disagree:
        return ErrorMethod.REPLICATE, "the chains disagree by more than the fluctuations within them explain"
    return ErrorMethod.LUGSAIL, f"{chains} chains are few, each is long, and they agree"


def monte_carlo_error(averages: ChainAverages, method: ErrorMethod, reason: str = "asked for") -> MonteCarloError:
    """The error of the mean over chains; NaN with 0 degrees of freedom on too little data.

    Lugsail becomes plain batch means where blocks are too few or unequal.
    """
    chains = len(averages.good)
    if not chains:
        return MonteCarloError(math.nan, 0, 0, method, reason)
    if method is ErrorMethod.REPLICATE:
        variance = float(np.var(averages.good, ddof=1)) if chains > 1 else math.nan
        return of_mean(VarianceEstimate(variance, chains - 1), chains, method, reason)
    if method is ErrorMethod.LUGSAIL and not averages.enough_blocks:
        method, reason = ErrorMethod.BATCH_MEANS, f"{reason}; too few equal blocks for lugsail"
    if method is ErrorMethod.LUGSAIL:
        found = lugsail_variance(averages.blocks)
    else:
        equal = np.ones(averages.blocks.shape[1])
        durations = equal if averages.durations is None else averages.durations
        weights = equal if averages.weights is None else averages.weights
        found = scheduled_variance(averages.blocks, durations, weights)
    return of_mean(dataclasses.replace(found, variance=found.variance * averages.covered), chains, method, reason)


def of_mean(found: VarianceEstimate, chains: int, method: ErrorMethod, reason: str) -> MonteCarloError:
    """The error of the mean over chains from the variance of one chain's average."""
    variance, dof = (found.variance, found.dof) if found.variance >= 0 else (math.nan, 0)
    return MonteCarloError(variance, chains, dof, method, reason)


def student_interval(mean: float, std_error: float, level: float, dof: float) -> tuple[float, float]:
    """The two-sided Student interval of the given level around a mean; NaN with no degrees of freedom."""
    half = float(scipy.special.stdtrit(dof, 0.5 + level / 2)) * std_error if dof > 0 else math.nan
    return mean - half, mean + half


def combined_dof(*parts: tuple[float, float]) -> float:
    """The degrees of freedom of a sum of independent variances, each (variance, dof), by Welch and Satterthwaite."""
    total = sum(v for v, _ in parts)
    spent = sum(v**2 / dof for v, dof in parts if v > 0)
    return total**2 / spent if spent > 0 else math.inf
