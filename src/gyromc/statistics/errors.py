"""The Monte Carlo error of a mean over chains, and the one rule that picks the method it comes from.

Input: `ChainAverages`, the averages of one observable per chain and per block. Output: a `MonteCarloError`, the standard error
with its degrees of freedom, its method and the reason for that method. `run.std_error` and `estimate(run)` both use `choose`.
"""

import dataclasses
import enum
import functools
import math

import numpy as np
import scipy

from gyromc.checks import coverage
from gyromc.show.records import Forwarded
from gyromc.statistics import variances
from gyromc.statistics.variances import Spread

MANY_CHAINS = 20  # from here on the spread between chains is known well enough by itself
SHORT = 80  # relaxation times: shorter chains have no batches that are both long and many
SHORT_ALONE = (
    120  # for one chain, whose length is less well known: below it, intervals for squares cover less than 93 %
)
HEAVY = 1.2  # tail index of blocks: larger for x⁴ of a Gaussian, about 1 for the square of Student's t₃
UNEVEN = 0.04  # share of one block in the fluctuations of all
MANY_BLOCKS = 2000  # fewer do not tell heavy tails from light ones
CHANCE = 1e-3  # chains that disagree more than this probability allows have not mixed
ALIKE = 0.3  # correlation between the halves of chains: larger where a chain has less than about five relaxation times
SLOW = 1.2  # R-hat of chains of about ten relaxation times
UNMIXED = 1.5  # R-hat that two chains of 20 relaxation times exceed in 0.2 % of runs, more chains never


class ErrorMethod(enum.StrEnum):
    """Where a Monte Carlo error comes from."""

    REPLICATE = "replicate chains"
    LUGSAIL = "lugsail batch means"
    BATCH_MEANS = "batch means"
    PLUG_IN = "plug-in"


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
    """The averages of one observable, per chain and over consecutive stretches of each chain ("blocks")."""

    averages: np.ndarray  # one per chain; NaN for a chain that failed
    blocks: np.ndarray  # the chains that did not fail × blocks
    covered: float = 1.0  # the share of the averaged time in the blocks: the last stretch may be shorter than a block
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
        return variances.split_r_hat(self.blocks)

    @property
    def enough_blocks(self) -> bool:
        """Whether lugsail batch means can be formed: blocks of equal time, and enough of them."""
        return self.durations is None and self.blocks.shape[1] >= variances.FEWEST_BLOCKS

    @functools.cached_property
    def length(self) -> float:
        """How many relaxation times one chain lasts; infinite when the blocks show no correlation, NaN with too few blocks."""
        if not self.enough_blocks:
            return math.nan
        relaxation = variances.relaxation_blocks(self.blocks)
        return self.blocks.shape[1] / relaxation if relaxation > 0 else math.inf

    @functools.cached_property
    def drift(self) -> tuple[float, float]:
        """The average over the first half of the chains less that over the second, and its standard error; NaN where unknown."""
        half = self.blocks.shape[1] // 2
        if not half or self.durations is not None:
            return math.nan, math.nan
        by_chain = self.blocks[:, :half].mean(axis=1) - self.blocks[:, -half:].mean(axis=1)
        if len(by_chain) >= MANY_CHAINS:
            return float(by_chain.mean()), float(by_chain.std(ddof=1)) / math.sqrt(len(by_chain))
        return float(by_chain.mean()), 2 * self.std_error if self.enough_blocks else math.nan

    @functools.cached_property
    def tail(self) -> tuple[float, float]:
        """The tail index of the blocks, and the share of the largest in their fluctuations; NaN with too few blocks."""
        return variances.tail(self.blocks) if self.blocks.size >= MANY_BLOCKS else (math.nan, math.nan)

    @property
    def uneven(self) -> bool:
        """Whether few blocks make up most of the fluctuations: heavy tails, or a rare event."""
        index, share = self.tail
        return index < HEAVY and share > UNEVEN

    @functools.cached_property
    def disagree(self) -> bool:
        """Whether the chains have not mixed; False where that cannot be tested.

        Tests: the halves of each chain are alike (many chains), R-hat is larger than slow chains explain (any number), and
        the chains differ by more than the fluctuations within them explain (few chains; with many, halves must be alike too).
        """
        correlation, chance = variances.halves_correlation(self.blocks)
        alike = correlation > ALIKE
        if alike and chance < CHANCE:
            return True
        if self.r_hat > SLOW and variances.slowness(self.blocks) < CHANCE:
            return True
        if not self.enough_blocks or len(self.good) < 2:
            return False
        testable = alike or len(self.good) < MANY_CHAINS
        return self.r_hat > UNMIXED or (testable and variances.disagreement(self.blocks) < CHANCE)


def choose(averages: ChainAverages) -> tuple[ErrorMethod, str]:
    """The method for the error and the reason, from the number of chains, their length and whether they agree.

    Many chains: their spread. Few chains: batch means within them if each is long and they agree, else their spread. One chain:
    batch means. The plug-in is never chosen here: it needs draws, and `estimate(run, method="plug-in")` asks for it.
    """
    chains = len(averages.good)
    if chains >= MANY_CHAINS:
        return ErrorMethod.REPLICATE, f"{chains} independent chains"
    if not averages.enough_blocks:
        few = "too few steps for lugsail batch means" if averages.durations is None else "the step size is a schedule"
        return (ErrorMethod.REPLICATE, few) if chains > 1 else (ErrorMethod.BATCH_MEANS, f"one chain; {few}")
    if chains <= 1:
        return ErrorMethod.LUGSAIL, "one chain"
    if averages.length < SHORT:
        return (
            ErrorMethod.REPLICATE,
            f"a chain lasts only {averages.length:.0f} relaxation times, too short for batch means",
        )
    if averages.disagree:
        return ErrorMethod.REPLICATE, "the chains disagree by more than the fluctuations within them explain"
    return ErrorMethod.LUGSAIL, f"{chains} chains are few, each is long, and they agree"


def monte_carlo_error(averages: ChainAverages, method: ErrorMethod, reason: str = "asked for") -> MonteCarloError:
    """The error of the mean over chains, by any method but the plug-in; NaN with 0 degrees of freedom on too little data.

    Lugsail becomes plain batch means where blocks are too few or unequal.
    """
    chains = len(averages.good)
    if not chains:
        return MonteCarloError(math.nan, 0, 0, method, reason)
    if method is ErrorMethod.REPLICATE:
        return of_mean(variances.replicate_variance(averages.good), chains, method, reason)
    if method is ErrorMethod.LUGSAIL and not averages.enough_blocks:
        method, reason = ErrorMethod.BATCH_MEANS, f"{reason}; too few equal blocks for lugsail"
    if method is ErrorMethod.LUGSAIL:
        found = variances.lugsail_variance(averages.blocks)
    else:
        equal = np.ones(averages.blocks.shape[1])
        durations = equal if averages.durations is None else averages.durations
        weights = equal if averages.weights is None else averages.weights
        found = variances.scheduled_variance(averages.blocks, durations, weights)
    return of_mean(dataclasses.replace(found, variance=found.variance * averages.covered), chains, method, reason)


def of_mean(found: Spread, chains: int, method: ErrorMethod, reason: str) -> MonteCarloError:
    """The error of the mean over chains from the variance of one chain's average."""
    variance, dof = (found.variance, found.dof) if found.variance >= 0 else (math.nan, 0)
    return MonteCarloError(variance, chains, dof, method, reason)


def check_level(level: float) -> None:
    """Raise `InvalidInput` unless `level` is a coverage between 0 and 1."""
    coverage(level)


def student_interval(mean: float, std_error: float, level: float, dof: float) -> tuple[float, float]:
    """The two-sided Student interval of the given level around a mean; NaN with no degrees of freedom."""
    half = float(scipy.special.stdtrit(dof, 0.5 + level / 2)) * std_error if dof > 0 else math.nan
    return mean - half, mean + half


def combined_dof(*parts: tuple[float, float]) -> float:
    """The degrees of freedom of a sum of independent variances, each (variance, dof), by Welch and Satterthwaite."""
    total = sum(v for v, _ in parts)
    spent = sum(v**2 / dof for v, dof in parts if v > 0)
    return total**2 / spent if spent > 0 else math.inf
