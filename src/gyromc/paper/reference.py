"""π(h) for a logistic posterior without any sampler of this package: importance sampling around the mode (E6 needs μ(h)).

Receives a target and points; hands on posterior predictive probabilities with standard errors. The proposal is a multivariate t,
first around the mode with the curvature there, then with the mean and covariance so found; its draws are scrambled Sobol points,
and the error comes from the spread between independent scramblings.
"""

import dataclasses
import math

import numpy as np
from scipy import special, stats
from scipy.stats import qmc

from gyromc.targets import LogisticRegression

__all__ = ["Reference", "predictive_reference"]

SCRAMBLINGS = 16


@dataclasses.dataclass(frozen=True, eq=False)
class Reference:
    """π(h) at each point, its standard error, and how good the proposal was (effective over drawn)."""

    mean: np.ndarray
    std_error: np.ndarray
    num_draws: int
    efficiency: float
    mode: np.ndarray


def predictive_reference(
    target: LogisticRegression, points: np.ndarray, num_draws: int = 2**17, seed: int = 0, dof: float = 30.0
) -> Reference:
    """Posterior predictive probabilities ∫ 1/(1 + e^{-xᵀθ}) π(dθ) by self-normalised importance sampling.

    **Arguments:**

    - `target`: a logistic posterior.
    - `points`: one row x per prediction.
    - `num_draws`: how many θ, over 16 scramblings of a power of two each.
    - `seed`: of the scramblings.
    - `dof`: degrees of freedom of the proposal.

    **Returns:** a `Reference`.
    """
    mode, K = _laplace(target)
    seeds = np.random.SeedSequence(seed).spawn(SCRAMBLINGS + 1)
    theta, w = _weighted(target, mode, np.linalg.cholesky(np.linalg.inv(K)), 13, seeds[-1], dof)
    center = w @ theta / w.sum()
    root = np.linalg.cholesky((theta - center).T * w @ (theta - center) / w.sum())
    power = max(1, math.ceil(math.log2(num_draws / SCRAMBLINGS)))
    means, efficiency = [], []
    for scrambling in seeds[:-1]:
        theta, w = _weighted(target, center, root, power, scrambling, dof)
        means.append(w @ special.expit(theta @ points.T) / w.sum())
        efficiency.append(w.sum() ** 2 / np.sum(w**2) / w.size)
    spread = np.std(means, axis=0, ddof=1) / math.sqrt(SCRAMBLINGS)
    return Reference(np.mean(means, axis=0), spread, SCRAMBLINGS << power, float(np.mean(efficiency)), mode)


def _laplace(target: LogisticRegression) -> tuple[np.ndarray, np.ndarray]:
    """The mode and the Hessian there, by Newton's method: U is convex."""
    X, y, theta = np.asarray(target.X), np.asarray(target.y), np.zeros(target.dim)
    while True:
        p = special.expit(X @ theta)
        K = (X.T * (p * (1 - p))) @ X + float(target.prior_precision) * np.eye(target.dim)
        step = np.linalg.solve(K, X.T @ (p - y) + float(target.prior_precision) * theta)
        theta = theta - step * min(1.0, 2.0 / np.linalg.norm(step))  # long steps are cut, so that it cannot overshoot
        if np.linalg.norm(step) < 1e-10:
            return theta, K


def _weighted(target, center, root, power: int, seed, dof: float) -> tuple[np.ndarray, np.ndarray]:
    """2^power draws of the proposal and their weights exp(-U)/proposal, scaled to a maximum of 1."""
    d = center.size
    u = qmc.Sobol(d + 1, scramble=True, rng=np.random.default_rng(seed)).random_base2(power)
    u = np.clip(u, 1e-12, 1 - 1e-12)
    e = special.ndtri(u[:, :d]) / np.sqrt(stats.chi2.ppf(u[:, d:], dof) / dof)
    theta = center + e @ root.T
    X = np.asarray(target.X)
    t = theta @ X.T
    U = np.sum(np.maximum(t, 0) + np.log(1 + np.exp(-np.abs(t))), axis=1) - theta @ (X.T @ target.y)
    U += 0.5 * float(target.prior_precision) * np.sum(theta**2, axis=1)
    log_weight = -U + 0.5 * (dof + d) * np.log1p(np.sum(e**2, axis=1) / dof)
    return theta, np.exp(log_weight - log_weight.max())
