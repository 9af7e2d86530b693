"""Weighing a family of samplers by short trials at falling step sizes: bias and variance as functions of η.

A family and the circumstances of a tuning in, a `Ladder` out. The mean of an observable at step size η is μ + cη^p, p the
scheme's order; trials at several η, and posterior points at η = 0 where these can be trusted, give μ and c with their errors.
N·Var is measured at each rung. Then the best η for a budget minimises b(η)² + v(η)/N, bias and variance together.
"""

import dataclasses
import functools
import math

import numpy as np

from gyromc.plan import Plan
from gyromc.tuning.families import Family
from gyromc.tuning.survey import Survey
from gyromc.tuning.trial import Trial, trial

__all__ = ["Circumstances", "Ladder", "Rung", "climb"]

TIME, SETTLE = (
    4.0,
    (1.0, 3.0),
)  # how long a trial averages and settles, in relaxation times: from trusted points, and from others
LEAST_STEPS, MOST_STEPS = 8, 100
MOST_RUNGS = 8
PLAUSIBLE = 0.05  # bias at the largest step size, in posterior standard deviations
WILD = 0.3  # posterior standard deviations of bias, beyond which a rung only says: too large
FINE = 48
CHAINS = 20  # of a run, for the share of its ends
HOPELESS = 1.5  # times the error of a family that was tried before


@dataclasses.dataclass(frozen=True, eq=False)
class Circumstances:
    """What all trials of one tuning share.

    - `base`: a plan with target, observables and oracle; `survey`: what is known of the law; `noise`: the oracle's covariance.
    - `spread`: the posterior standard deviation of each observable; `reference`, `reference_error`: its mean from the survey's
      points, infinite error where these cannot be trusted.
    - `left`: N·Var that exact gradients would leave to independent draws, in posterior sds.
    - `seed`; `chains`: how many in a trial; `sure`: whether the error must be known, not only small.
    """

    base: Plan
    survey: Survey
    noise: np.ndarray
    spread: np.ndarray
    reference: np.ndarray
    reference_error: np.ndarray
    left: float
    seed: int
    chains: int = 16
    sure: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Rung:
    """One trial: in posterior standard deviations of each observable, about the reference."""

    eta: float
    mean: np.ndarray
    std_error: np.ndarray
    per_gradient: np.ndarray
    ends: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Ladder:
    """The trials of one family; `given_up` are step sizes at which chains diverged or went far off."""

    family: Family
    rungs: tuple[Rung, ...]
    given_up: tuple[float, ...]
    reference_error: np.ndarray
    sure: bool = False

    @functools.cached_property
    def _slope(self) -> tuple[np.ndarray, np.ndarray]:
        """c of each observable and its variance, by weighted least squares over the rungs and the reference.

        Before any trial the bias at the largest stable step size is taken as N(0, PLAUSIBLE²): where chains mix so slowly that
        trials say nothing, a bias that could be anything would call for steps far too small.
        """
        p = self.family.order
        x = np.array([*(rung.eta**p for rung in self.rungs), 0.0])
        y = np.array([*(rung.mean for rung in self.rungs), np.zeros_like(self.reference_error)])
        w = 1 / np.array([*(rung.std_error**2 for rung in self.rungs), self.reference_error**2])
        total = w.sum(axis=0)
        center = (w * x[:, None]).sum(axis=0) / total
        spread = (w * (x[:, None] - center) ** 2).sum(axis=0)
        before = (max(x) / PLAUSIBLE) ** 2
        return (w * (x[:, None] - center) * y).sum(axis=0) / (spread + before), 1 / (spread + before)

    def bias(self, eta: float) -> np.ndarray:
        """The bias of each observable at η, as estimated, in posterior standard deviations."""
        return self._slope[0] * eta**self.family.order

    def bias_error(self, eta: float) -> np.ndarray:
        """The standard error of `bias`."""
        return np.sqrt(self._slope[1]) * eta**self.family.order

    def squared_bias(self, eta: float) -> np.ndarray:
        """The square of each bias less what its own error adds; where that leaves nothing, the mean over all observables.

        Where the error must be known, what each bias may be: its square and its variance.
        The mean of M squares, each known to √2 times its variance, is known to √(2/M) times their mean: no bias is taken as
        smaller than that.
        """
        c, variance = self._slope
        if self.sure:
            return (c**2 + variance) * eta ** (2 * self.family.order)
        unseen = min(1.0, math.sqrt(2 / len(c))) * float(np.mean(variance))
        pooled = max(float(np.mean(c**2 - variance)), unseen)
        own = np.maximum(c**2 - variance, 0.0)
        share = own / (own + variance)  # 1 where the bias is seen well
        return (share * own + (1 - share) * pooled) * eta ** (2 * self.family.order)

    def per_gradient(self, eta: float) -> np.ndarray:
        """N·Var of each observable at η: between rungs by interpolation of logarithms, below them as 1/η."""
        rungs = sorted(self.rungs, key=lambda rung: rung.eta)
        known = np.log([rung.eta for rung in rungs])
        x = min(math.log(eta), known[-1])
        if x <= known[0]:
            return rungs[0].per_gradient * rungs[0].eta / eta
        k = int(np.searchsorted(known, x))
        share = (x - known[k - 1]) / (known[k] - known[k - 1])
        low, high = (np.log(np.maximum(rungs[i].per_gradient, 1e-300)) for i in (k - 1, k))
        return np.exp((1 - share) * low + share * high)

    def boundary(self, eta: float, gradients: float, chains: int = CHAINS) -> np.ndarray:
        """What the two ends of every chain add to the squared error of each observable: 2 Var φ over the steps squared."""
        nearest = min(self.rungs, key=lambda rung: abs(math.log(rung.eta / eta)))
        ends = nearest.ends * (nearest.eta / eta) ** 2  # φ is about h/η
        return 2 * ends * chains / gradients**2

    def squared_error(self, eta: float, gradients: float) -> np.ndarray:
        """The expected squared error of each observable."""
        return self.squared_bias(eta) + self.per_gradient(eta) / gradients + self.boundary(eta, gradients)

    def rmse(self, gradients: float) -> float:
        """At the best step size: the root mean square over observables, in posterior standard deviations."""
        return math.sqrt(float(np.mean(self.squared_error(self.best(gradients), gradients))))

    def best(self, gradients: float) -> float:
        """The step size with the smallest mean squared error, not above the largest rung."""
        low, high = min(rung.eta for rung in self.rungs), max(rung.eta for rung in self.rungs)
        grid = np.geomspace(low / 4, high, FINE)
        return float(grid[np.argmin([float(np.mean(self.squared_error(eta, gradients))) for eta in grid])])


def climb(family: Family, around: Circumstances, gradients: float, beat: float = math.inf) -> Ladder | None:
    """Trials from the largest step size down, until the best one for the budget is among them; None where all diverged.

    `beat` is the RMSE of another family: one that stays far above it is not followed to its end.
    """
    eta = family.first_step(around.survey, around.noise)
    rungs: list[Rung] = []
    given_up: list[float] = []
    start = around.survey.starts(around.chains, around.seed)
    for k in range(MOST_RUNGS):
        found = _tried(family, around, eta, start, around.seed + 7 * k)
        if found is None:
            given_up.append(eta)
        else:
            rung = _rung(around, eta, found)
            known = np.isfinite(around.reference_error).all()
            if known and math.sqrt(float(np.mean(rung.mean**2))) > WILD + 3 * math.sqrt(
                float(np.mean(rung.std_error**2))
            ):
                given_up.append(eta)
            else:
                rungs.append(rung)
            if not around.survey.trusted:
                start = found.ended
        if len(rungs) >= 2:
            ladder = Ladder(family, tuple(rungs[-3:]), tuple(given_up), around.reference_error, around.sure)
            if ladder.best(gradients) >= 0.6 * eta or ladder.rmse(gradients) > HOPELESS * beat:
                return ladder
        eta /= 2
    if not rungs:
        return None
    if len(rungs) < 2 and not np.isfinite(around.reference_error).all():
        return None
    return Ladder(family, tuple(rungs[-3:]), tuple(given_up), around.reference_error, around.sure)


def _tried(family: Family, around: Circumstances, eta: float, start: np.ndarray, seed: int) -> Trial | None:
    plan = family.plan(around.base, around.survey, around.noise, eta)
    if plan is None:
        return None
    settle = SETTLE[0 if around.survey.trusted else 1]
    steps = min(MOST_STEPS, max(LEAST_STEPS, math.ceil(TIME / eta)))
    return trial(plan, around.survey.fit, start, steps, min(MOST_STEPS, math.ceil(settle / eta)), seed)


def _rung(around: Circumstances, eta: float, found: Trial) -> Rung:
    spread = around.spread
    error = np.maximum(found.std_error / spread, 1e-9)  # on a Gaussian nothing is left to chance
    return Rung(
        eta, (found.mean - around.reference) / spread, error, found.per_gradient / spread**2, found.ends / spread**2
    )
