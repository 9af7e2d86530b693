"""Weighted samples of a law, made around its mode without any chain, and whether they represent the law.

`why_not_trusted` returns None, or why a sample does not represent the law: a small effective size, a few draws that dominate,
mass beyond all draws, or a mode that is missed. `expectation` is a reference that shares nothing with a sampler. The tail of
weights is a generalised Pareto law; Zhang and Stephens' (2009) estimate of its shape k is an average over the profile likelihood,
so that thousands of samples are fitted at once. A mean with weights of shape k is reliable below `HEAVY`.
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import scipy

from gyromc.approx import secondmoments
from gyromc.approx.modes import GaussianApproximation, Modes, inverse_root
from gyromc.targets import Target

DRAWS = 20_000  # of an importance sample
MOST_PARAMETERS = 60  # for importance sampling

HEAVY = 0.7  # shape of the tail of weights, from which means are not reliable
LEAST_TAIL = 5  # values that a tail must have to be fitted
PRIOR_COUNT, PRIOR_SHAPE = 10, 0.5  # Vehtari et al. (2024): a shape from few values is drawn towards 1/2
AT_ONCE = 2**19  # numbers held while fitting: 4 MB


@dataclasses.dataclass(frozen=True)
class SampleSettings:
    """The numbers of importance samples and of what makes them trusted."""

    # Of the proposal, a mixture of Gaussians: standard deviations against the approximation's …
    scales: tuple[float, ...] = (1.05, 2.0)
    shares: tuple[float, ...] = (0.75, 0.25)  # … and what part each Gaussian is
    blocks: int = 20  # of draws, for errors
    scramblings: int = 16  # independent Sobol sequences
    pilot_power: int = 13  # log₂ of the pilot's points
    even_share: float = 0.1  # the least effective size, as a share of the draws
    per_parameter: int = 20  # effective draws that a covariance needs
    fit_share: float = 0.3  # the same as a share of those draws of a Gaussian fit that get weights
    beyond: float = 0.05  # share of fourth moments that may lie where nothing was drawn
    farthest: float = 8  # lines are followed so many times as far as the farthest draw …
    inside: int = 49  # … with so many points within that draw …
    outside: int = 16  # … and on either side beyond it
    noticed: float = 0.01  # share of the law, from which a mode must have its draws
    thinned: float = 4  # times less than its Gaussian holds


SETTINGS = SampleSettings()


def effective_size(weights: np.ndarray) -> float:
    """The effective sample size of draws with weights that sum to one."""
    return 1 / float(np.sum(weights**2))


def systematic(weights: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Indices of so many draws of equal weight, in their order, by systematic resampling."""
    ends = np.cumsum(weights)
    ticks = (np.arange(count) + rng.random()) / count * ends[-1]
    return np.searchsorted(ends, ticks).clip(max=len(ends) - 1)


def tail_count(num_draws: int) -> int:
    """How many of the largest weights belong to the tail: a fifth of the draws, at most 3√draws."""
    return int(min(0.2 * num_draws, 3 * np.sqrt(num_draws)))


def generalised_pareto(excesses: np.ndarray, prior_count: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """k and σ of the density (1 + kx/σ)^(-1/k - 1)/σ, x > 0, for each sorted row of excesses; the prior counts as so many."""
    count = excesses.shape[1]
    points = 30 + int(np.sqrt(count))
    at_once = max(1, AT_ONCE // (points * count))
    parts = np.array_split(excesses, max(1, -(-len(excesses) // at_once)))
    steps, averages = 1 - np.sqrt(points / (np.arange(points) + 0.5)), []
    # b = -k/σ of each row, averaged over its profile likelihood on Zhang and Stephens' grid.
    for x in parts:
        grid = 1 / x[:, -1:] + steps / (3 * x[:, int(count / 4 + 0.5) - 1, None])
        k = np.mean(np.log1p(-grid[:, :, None] * x[:, None, :]), axis=2)
        log_likelihood = count * (np.log(-grid / k) - k - 1)
        averages.append(np.sum(scipy.special.softmax(log_likelihood, axis=1) * grid, axis=1))
    b = np.concatenate(averages)
    k = np.mean(np.log1p(-b[:, None] * excesses), axis=1)
    sigma = -k / b
    return (count * k + prior_count * PRIOR_SHAPE) / (count + prior_count), sigma


def smoothed(log_weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Importance weights with the tail replaced by quantiles of its Pareto law (Vehtari et al. 2024), and the shapes k.

    Log weights are draws × samples, those returned sum to one over the draws. k of a sample is -inf where all its weights are
    equal, infinity where it has too few draws for a tail.
    """
    logs = np.ascontiguousarray((log_weights - log_weights.max(axis=0)).T)
    samples, draws = logs.shape
    tail = tail_count(draws)
    k = np.full(samples, np.inf if tail < LEAST_TAIL else -np.inf)
    if tail >= LEAST_TAIL:
        order = np.argpartition(logs, draws - tail - 1, axis=1)[:, draws - tail - 1 :]
        top = np.take_along_axis(logs, order, axis=1)
        within = np.argsort(top, axis=1)
        order, top = np.take_along_axis(order, within, axis=1), np.exp(np.take_along_axis(top, within, axis=1))
        cutoff, excesses = top[:, :1], top[:, 1:] - top[:, :1]
        fitted = excesses[:, int(tail / 4 + 0.5) - 1] > 0  # equal weights have no tail
        k[fitted], sigma = generalised_pareto(np.maximum(excesses[fitted], 1e-300), PRIOR_COUNT)
        shape = np.where(np.abs(k[fitted]) < 1e-12, 1e-12, k[fitted])[:, None]
        levels = (np.arange(tail) + 0.5) / tail
        quantiles = sigma[:, None] * np.expm1(-shape * np.log1p(-levels)) / shape  # of the law, -σ log(1 - p) at k = 0
        replaced = np.minimum(0.0, np.log(cutoff[fitted] + quantiles))
        part = logs[fitted]
        np.put_along_axis(part, order[fitted, 1:], replaced, axis=1)
        logs[fitted] = part
    return (logs - scipy.special.logsumexp(logs, axis=1, keepdims=True)).T, k


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Points of θ with weights that sum to one, and their effective sample size."""

    theta: np.ndarray
    weights: np.ndarray
    effective_size: float
    source: str
    target: Target | None = dataclasses.field(default=None, repr=False)  # for `mean_curvature` alone

    @classmethod
    def even(cls, theta: np.ndarray, source: str, target: Target) -> "Sample":
        """Draws of equal weight."""
        return cls(theta, np.full(len(theta), 1 / len(theta)), float(len(theta)), source, target)

    def mean_curvature(self) -> secondmoments.MatrixEstimate:
        """E[∇²U] = E[∇U∇Uᵀ] and its error, from the gradients: the better of two estimates, exact on a Gaussian."""
        assert self.target is not None
        missing = -len(self.theta) % SETTINGS.blocks  # filled up by points of weight 0 at the end of the last block
        arrays = self.theta - self.weights @ self.theta, self.target.gradients(self.theta), self.weights
        theta, gradients, weights = (
            np.concatenate([x, np.zeros((missing, *x.shape[1:]))]).reshape(SETTINGS.blocks, -1, *x.shape[1:])
            for x in arrays
        )
        found = secondmoments.sums(theta, gradients, weights=weights)
        estimates = secondmoments.gradient_square(found), secondmoments.curvature(found)
        return min(estimates, key=lambda estimate: estimate.relative_error)

    def mean(self, values: np.ndarray) -> tuple[float, float]:
        """The expectation of something given at the points, and its standard error."""
        center, count = float(self.weights @ values), SETTINGS.blocks
        terms = self.weights * (values - center)
        blocks = np.array([part.sum() for part in np.array_split(terms, count)])  # draws of a chain are correlated
        return center, float(np.sqrt(max(np.sum(terms**2), np.sum(blocks**2) * count / (count - 1))))

    def largest_share(self, values: np.ndarray) -> float:
        """The share of one draw in the squared standard error of the mean of something given at the points."""
        terms = (self.weights * (values - self.weights @ values)) ** 2
        return float(np.max(terms) / np.sum(terms)) if np.any(terms) else 0.0

    @functools.cached_property
    def tail_index(self) -> float:
        """The shape k of a Pareto law fitted to the largest weights times squared distances: means are reliable below 0.7."""
        size = np.sort(self.weights * self.square_distances(self.theta))
        count = tail_count(len(size))
        beyond = size[-count:] - size[-count - 1]
        return float(generalised_pareto(beyond[None, beyond > 0])[0][0])

    def why_not_even(self, share: float = SETTINGS.even_share, needed: float = 0.0) -> str | None:
        """Why its effective size is below this share of the draws or what is needed, or few draws dominate; None otherwise."""
        count, d = self.theta.shape
        size = f"the effective sample size of {count} draws is {self.effective_size:.0f}"
        if not self.effective_size >= share * count:
            return size
        if not self.effective_size >= needed:
            return f"{size}, and {d} parameters need {needed:.0f}"
        dominated = f"a few draws dominate, the tail index of the weights is {self.tail_index:.2g}"
        return dominated if self.tail_index > HEAVY else None

    def square_distances(self, points: np.ndarray) -> np.ndarray:
        """Squared distances of points from the sample's mean, in its standard deviations."""
        mean, root = self.moments()
        away = scipy.linalg.solve_triangular(root, (points - mean).T, lower=True, check_finite=False)
        return np.sum(away**2, axis=0)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and lower Cholesky factor of the covariance."""
        away = self.theta - (mean := self.weights @ self.theta)
        return mean, scipy.linalg.cholesky((away.T * self.weights) @ away, lower=True)


def importance_sample(target: Target, center: GaussianApproximation, draws: int = DRAWS, seed: int = 0) -> Sample:
    """A weighted sample of a law, proposed by its Gaussian approximation, a little inflated, with wide tails."""
    rng = np.random.default_rng(seed)
    d, scales, shares = len(center.mean), np.array(SETTINGS.scales), np.array(SETTINGS.shares)

    def around(mean: np.ndarray, root: np.ndarray, draws: int) -> Sample:
        """Draws of a mixture of N(mean, s² root rootᵀ), weighted to the law."""
        half = rng.standard_normal((draws // 2, d)) * rng.choice(scales, (draws // 2, 1), p=shares)
        x = np.stack([half, -half], axis=1).reshape(-1, d)  # antithetic: odd moments of the proposal are exact
        exponents = -0.5 * np.sum(x**2, axis=1)[:, None] / scales**2 - d * np.log(scales)
        return _weighted(target, mean + x @ root.T, np.asarray(scipy.special.logsumexp(exponents, axis=1, b=shares)))

    mean, root = center.mean, inverse_root(center.precision)
    pilot = around(mean, root, draws // 4)
    if pilot.effective_size > 20 * d:  # the mode is not the mean: propose from the pilot's own moments
        mean, root = pilot.moments()
    return around(mean, root, draws)


def _weighted(target: Target, theta: np.ndarray, log_proposal: np.ndarray) -> Sample:
    """The points with weights exp(-U)/proposal."""
    log_weight = -target.potentials(theta) - log_proposal
    weights = scipy.special.softmax(np.where(np.isfinite(log_weight), log_weight, -np.inf))
    size = effective_size(weights)
    return Sample(theta, weights, size, f"{len(theta)} draws around the mode, effective size {size:.0f}", target)


@dataclasses.dataclass(frozen=True, eq=False)
class Expectation:
    """Expectations, their standard errors, and how good the proposal was (effective over drawn)."""

    mean: np.ndarray
    std_error: np.ndarray
    num_draws: int
    efficiency: float


def expectation(
    target: Target,
    center: GaussianApproximation,
    values: Callable[[np.ndarray], np.ndarray],
    num_draws: int = 2**17,
    seed: int = 0,
) -> Expectation:
    """∫ values(θ) μ(dθ), by scrambled Sobol points of a multivariate t at the mode, then at the mean and covariance so found."""
    from scipy.stats import qmc  # when it is used: it takes longer to import than all other parts of SciPy together

    d, dof = center.mean.size, 30.0

    def scrambled(mean: np.ndarray, root: np.ndarray, power: int, seed: np.random.SeedSequence) -> Sample:
        """2^power Sobol points of the multivariate t, weighted to the law."""
        u = qmc.Sobol(d + 1, scramble=True, rng=np.random.default_rng(seed)).random_base2(power)
        u = np.clip(u, 1e-12, 1 - 1e-12)
        e = scipy.special.ndtri(u[:, :d]) / np.sqrt(2 * scipy.special.gammaincinv(dof / 2, u[:, d:]) / dof)
        return _weighted(target, mean + e @ root.T, -0.5 * (dof + d) * np.log1p(np.sum(e**2, axis=1) / dof))

    seeds = np.random.SeedSequence(seed).spawn(SETTINGS.scramblings + 1)
    root = np.linalg.cholesky(np.linalg.inv(center.precision))
    mean, root = scrambled(center.mean, root, SETTINGS.pilot_power, seeds[-1]).moments()
    power = max(1, math.ceil(math.log2(num_draws / SETTINGS.scramblings)))
    drawn = (scrambled(mean, root, power, scrambling) for scrambling in seeds[:-1])
    means, sizes = zip(*((one.weights @ values(one.theta), one.effective_size) for one in drawn), strict=True)
    error = np.std(means, axis=0, ddof=1) / math.sqrt(SETTINGS.scramblings)
    return Expectation(np.mean(means, axis=0), error, SETTINGS.scramblings << power, float(np.mean(sizes)) / 2**power)


def why_not_trusted(target: Target, sample: Sample, modes: Callable[[], Modes]) -> str | None:
    """Why a sample does not represent the target, or None."""
    uneven = sample.why_not_even(needed=SETTINGS.per_parameter * sample.theta.shape[1])
    if uneven is not None:
        return uneven
    # The share of ∫ r⁴ e^{-U} that lies beyond the farthest draw: the largest over lines through the mean.
    mean, root = sample.moments()
    reach = math.sqrt(np.max(sample.square_distances(sample.theta)))
    out = np.geomspace(1, SETTINGS.farthest, SETTINGS.outside + 1)
    r = reach * np.concatenate([-out[:0:-1], np.linspace(-1, 1, SETTINGS.inside), out[1:]])
    energy = target.potentials((mean + r[:, None, None] * root.T).reshape(-1, len(mean))).reshape(len(r), -1)
    energy = np.where(np.isfinite(energy), energy, np.inf)
    mass = np.exp(np.min(energy, axis=0) - energy) * r[:, None] ** 4
    parts = (mass[1:] + mass[:-1]) / 2 * np.diff(r)[:, None]
    beyond = np.abs(r[1:] + r[:-1]) / 2 > reach
    share = float(np.max(parts[beyond].sum(axis=0) / parts.sum(axis=0)))
    if share > SETTINGS.beyond:
        return f"its tails are too light, {100 * share:.2g} % of a fourth moment lie beyond all draws"
    return why_a_mode_is_missed(sample, modes())


def why_a_mode_is_missed(sample: Sample, modes: Modes) -> str | None:
    """Which mode lies outside the draws, or has draws that weigh far less than its Gaussian; None where there is none."""
    if not modes.several:
        return None
    d, count = sample.theta.shape[1], len(modes.found)
    away = sample.square_distances(np.array([center.mean for center in modes.found]))
    if np.max(away) > d + 4 * math.sqrt(2 * d):
        return f"the target has {count} modes, and the draws miss one of them"
    half = 2 * scipy.special.gammaincinv(d / 2, 0.5)  # the median of χ²: a squared radius that holds half of a Gaussian
    for center, share in zip(modes.found, modes.shares, strict=True):
        gap = sample.theta - center.mean
        held = float(sample.weights[np.sum((gap @ center.precision) * gap, axis=1) <= half].sum())
        if share > SETTINGS.noticed and SETTINGS.thinned * held < share / 2:
            return f"the target has {count} modes, and the draws hold {200 * held:.2g} % at one that has {100 * share:.2g} %"
    return None


def why_not_fitting(
    fit: GaussianApproximation, checked: int, target: Target, sample: Sample, modes: Callable[[], Modes]
) -> str | None:
    """Why draws of a Gaussian fit do not represent the target, or None: `checked` of them get importance weights."""
    theta = sample.theta[:checked]
    exponents = 0.5 * np.sum(((theta - fit.mean) @ fit.precision) * (theta - fit.mean), axis=1)
    size = effective_size(scipy.special.softmax(exponents - target.potentials(theta)))
    if not size >= SETTINGS.fit_share * checked:
        return f"the effective sample size of {checked} draws of the Gaussian fit is {size:.0f}"
    return why_a_mode_is_missed(sample, modes())
