"""π(h) for a logistic posterior without any sampler of this package: importance sampling around the mode (E6 needs μ(h)).

Receives a target and points; hands on posterior predictive probabilities with standard errors. The proposal is a multivariate t, first around
the mode with the curvature there, then with the mean and covariance so found; its draws are scrambled Sobol points, and the error
comes from the spread between independent scramblings.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special, stats
from scipy.stats import qmc

from gyromc.mode import find_mode
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
    mode = find_mode(target, np.zeros(target.dim))
    with jax.enable_x64(True):
        K = np.asarray(jax.hessian(target.potential)(jnp.asarray(mode)), float)
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


def _weighted(target, center, root, power: int, seed, dof: float) -> tuple[np.ndarray, np.ndarray]:
    """2^power draws of the proposal and their weights exp(-U)/proposal, scaled to a maximum of 1."""
    d = center.size
    u = qmc.Sobol(d + 1, scramble=True, rng=np.random.default_rng(seed)).random_base2(power)
    u = np.clip(u, 1e-12, 1 - 1e-12)
    e = special.ndtri(u[:, :d]) / np.sqrt(stats.chi2.ppf(u[:, d:], dof) / dof)
    theta = center + e @ root.T
    t = theta @ np.asarray(target.X).T
    U = np.sum(np.logaddexp(0.0, t) - target.y * t, axis=1)
    U += 0.5 * float(target.prior_precision) * np.sum(theta**2, axis=1)
    log_weight = -U + 0.5 * (dof + d) * np.log1p(np.sum(e**2, axis=1) / dof)
    return theta, np.exp(log_weight - log_weight.max())
