"""Importance sampling around a mode: weighted points of a law, without any chain.

A target over vectors and its Laplace approximation in; out a `Sample`, weighted points whose effective size says how good the
proposal was, or an expectation with an error from independent repetitions (`expectation`).
"""

import dataclasses
import functools
import math
from collections.abc import Callable

import numpy as np
import scipy

from gyromc.errors import InvalidInput
from gyromc.shape import secondmoments
from gyromc.shape.laplace import Laplace
from gyromc.shape.pareto import generalised_pareto, tail_count
from gyromc.shape.secondmoments import MatrixEstimate
from gyromc.targets import Target

__all__ = ["DRAWS", "Expectation", "Sample", "expectation", "importance_sample"]

PROPOSAL = (
    (1.05, 0.75),
    (2.0, 0.25),
)  # standard deviations, against the approximation's, and their shares of the draws
DRAWS = 20_000
BLOCKS = 20
SCRAMBLINGS = 16
PILOT_POWER = 13


@dataclasses.dataclass(frozen=True, eq=False)
class Sample:
    """Points of θ with weights that sum to one, and the size of an unweighted sample worth as much.

    With a `target` it also knows the gradients at its points, computed when first asked for and kept.
    """

    theta: np.ndarray
    weights: np.ndarray
    effective_size: float
    source: str
    target: Target | None = dataclasses.field(default=None, repr=False)

    @functools.cached_property
    def gradients(self) -> np.ndarray:
        """∇U at every point; `InvalidInput` where the sample does not know its target."""
        if self.target is None:
            raise InvalidInput(
                "This sample does not know its target: make it with `Model.sample_of` to have gradients."
            )
        return self.target.gradients(self.theta)

    def covariance(self, with_gradients: bool = False) -> MatrixEstimate:
        """Cov(θ) and its error; with gradients, the better of two estimates, exact on a Gaussian."""
        found = self._sums if with_gradients else self._blocks(np.zeros_like(self.theta))
        plain = secondmoments.variances(found)
        return secondmoments.better(plain, secondmoments.covariance(found)) if with_gradients else plain

    def mean_curvature(self) -> MatrixEstimate:
        """E[∇²U] = E[∇U∇Uᵀ] and its error, from the gradients: the better of two estimates, exact on a Gaussian."""
        return secondmoments.better(secondmoments.gradient_square(self._sums), secondmoments.curvature(self._sums))

    @functools.cached_property
    def _sums(self) -> secondmoments.BlockSums:
        return self._blocks(self.gradients)

    def _blocks(self, gradients: np.ndarray) -> secondmoments.BlockSums:
        """Sums over `BLOCKS` blocks of points in their order, points of weight 0 at the end of the last."""
        missing = -len(self.theta) % BLOCKS
        filled = lambda x: np.concatenate([x, np.zeros((missing, *x.shape[1:]))]).reshape(BLOCKS, -1, *x.shape[1:])
        away = self.theta - self.weights @ self.theta
        return secondmoments.sums(filled(away), filled(gradients), weights=filled(self.weights))

    def mean(self, values: np.ndarray) -> tuple[float, float]:
        """The expectation of something given at the points, and its standard error."""
        center = float(self.weights @ values)
        terms = self.weights * (values - center)
        blocks = np.array([part.sum() for part in np.array_split(terms, BLOCKS)])  # draws of a chain are correlated
        return center, float(np.sqrt(max(np.sum(terms**2), np.sum(blocks**2) * BLOCKS / (BLOCKS - 1))))

    def largest_share(self, values: np.ndarray) -> float:
        """The share of one draw in the squared standard error of the mean of something given at the points."""
        terms = (self.weights * (values - self.weights @ values)) ** 2
        return float(np.max(terms) / np.sum(terms)) if np.any(terms) else 0.0

    @functools.cached_property
    def tail_index(self) -> float:
        """The shape k of a Pareto law fitted to the largest weights times squared distances: means are reliable below 0.7."""
        mean, root = self.moments()
        size = self.weights * np.sum(
            scipy.linalg.solve_triangular(root, (self.theta - mean).T, lower=True) ** 2, axis=0
        )
        size.sort()
        count = tail_count(len(size))
        beyond = size[-count:] - size[-count - 1]
        return float(generalised_pareto(beyond[None, beyond > 0])[0][0])

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and lower Cholesky factor of the covariance."""
        mean = self.weights @ self.theta
        away = self.theta - mean
        return mean, scipy.linalg.cholesky((away.T * self.weights) @ away, lower=True)


def importance_sample(target: Target, center: Laplace, draws: int = DRAWS, seed: int = 0) -> Sample:
    """A weighted sample of a law, proposed by its Laplace approximation, a little inflated, with wide tails."""
    rng = np.random.default_rng(seed)
    d = len(center.mode)
    mean, root = center.mode, scipy.linalg.solve_triangular(scipy.linalg.cholesky(center.precision), np.eye(d))
    pilot = _around(target, mean, root, draws // 4, rng)
    if pilot.effective_size > 20 * d:  # the mode is not the mean: propose from the pilot's own moments
        mean, root = pilot.moments()
    return _around(target, mean, root, draws, rng)


def _around(target: Target, mean: np.ndarray, root: np.ndarray, draws: int, rng: np.random.Generator) -> Sample:
    """Draws of a mixture of N(mean, s² root rootᵀ) with the scales and shares of `PROPOSAL`, weighted to the law."""
    d, scales, shares = len(mean), np.array([s for s, _ in PROPOSAL]), np.array([p for _, p in PROPOSAL])
    half = rng.standard_normal((draws // 2, d)) * rng.choice(scales, (draws // 2, 1), p=shares)
    x = np.stack([half, -half], axis=1).reshape(-1, d)  # antithetic: odd moments of the proposal are exact
    exponents = -0.5 * np.sum(x**2, axis=1)[:, None] / scales**2 - d * np.log(scales)
    return _weighted(target, mean + x @ root.T, np.asarray(scipy.special.logsumexp(exponents, axis=1, b=shares)))


def _weighted(target: Target, theta: np.ndarray, log_proposal: np.ndarray) -> Sample:
    """The points with weights exp(-U)/proposal."""
    log_weight = -target.potentials(theta) - log_proposal
    log_weight = np.where(np.isfinite(log_weight), log_weight, -np.inf)
    weights = np.exp(log_weight - np.max(log_weight))
    weights /= weights.sum()
    size = 1 / float(np.sum(weights**2))
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
    center: Laplace,
    values: Callable[[np.ndarray], np.ndarray],
    num_draws: int = 2**17,
    seed: int = 0,
    dof: float = 30.0,
) -> Expectation:
    """∫ values(θ) μ(dθ), by scrambled Sobol points of a multivariate t: a reference that shares nothing with a sampler.

    The proposal sits at the mode with the curvature there, then at the mean and covariance so found; the error comes from the
    spread between independent scramblings.
    """
    seeds = np.random.SeedSequence(seed).spawn(SCRAMBLINGS + 1)
    root = np.linalg.cholesky(np.linalg.inv(center.precision))
    mean, root = _scrambled(target, center.mode, root, PILOT_POWER, seeds[-1], dof).moments()
    power = max(1, math.ceil(math.log2(num_draws / SCRAMBLINGS)))
    means, efficiency = [], []
    for scrambling in seeds[:-1]:
        drawn = _scrambled(target, mean, root, power, scrambling, dof)
        means.append(drawn.weights @ values(drawn.theta))
        efficiency.append(drawn.effective_size / len(drawn.weights))
    spread = np.std(means, axis=0, ddof=1) / math.sqrt(SCRAMBLINGS)
    return Expectation(np.mean(means, axis=0), spread, SCRAMBLINGS << power, float(np.mean(efficiency)))


def _scrambled(target: Target, mean: np.ndarray, root: np.ndarray, power: int, seed, dof: float) -> Sample:
    """2^power Sobol points of the multivariate t, weighted to the law."""
    from scipy.stats import qmc  # when it is used: it takes longer to import than all other parts of SciPy together

    d = mean.size
    u = qmc.Sobol(d + 1, scramble=True, rng=np.random.default_rng(seed)).random_base2(power)
    u = np.clip(u, 1e-12, 1 - 1e-12)
    e = scipy.special.ndtri(u[:, :d]) / np.sqrt(2 * scipy.special.gammaincinv(dof / 2, u[:, d:]) / dof)
    log_proposal = -0.5 * (dof + d) * np.log1p(np.sum(e**2, axis=1) / dof)
    return _weighted(target, mean + e @ root.T, log_proposal)
