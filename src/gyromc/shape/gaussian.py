"""A Gaussian fit to a law: mean m and precision K with E[∇U] = 0 and E[∇²U] = K under N(m, K⁻¹).

A target over vectors and its Laplace approximation in, a `GaussianFit` out. For many rows of data mode and curvature there would
do; where the posterior is skewed (separable classes, counts of zero) the curvature at the mode says little about where the
posterior lies, and its mean over the posterior much.
"""

import dataclasses

import numpy as np
import scipy

from gyromc.shape.laplace import Laplace, inverse_root
from gyromc.shape.near_mode import NearMode
from gyromc.targets import Target

__all__ = ["GaussianFit", "mean_curvature_fit", "nearest_gaussian"]

ROUNDS = 30


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianFit:
    """N(mean, precision⁻¹) with the law's own mean and covariance, as far as `source` knows them."""

    mean: np.ndarray
    precision: np.ndarray
    source: str


def nearest_gaussian(target: Target | NearMode, center: Laplace, points: int) -> Laplace:
    """About the Gaussian with the law's mean gradient and mean curvature, from the mode on by damped fixed-point steps.

    For convex U: where classes are nearly separable, the curvature at the mode is far from its mean, and undamped steps diverge.
    """
    m, K = center.mode, center.precision
    half = np.random.default_rng(0).standard_normal((points // 2, len(m)))
    x = np.concatenate([half, -half])
    for _ in range(ROUNDS):
        R = inverse_root(K)
        at = m + x @ R.T
        curved, push = target.mean_hessian(at), target.gradients(at).mean(axis=0)
        spectrum = np.linalg.eigvalsh(R.T @ curved @ R)
        if spectrum[0] > 0.8 and spectrum[-1] < 1.25 and np.linalg.norm(R.T @ push) < 0.2:
            break
        K = (K + curved) / 2
        m = m - 0.5 * scipy.linalg.solve(K, push, assume_a="pos")
    return Laplace(m, K)


def mean_curvature_fit(target: Target | NearMode, center: Laplace, points: int) -> GaussianFit:
    """The Gaussian whose precision is the law's mean curvature over it, from an even number of points."""
    half = np.random.default_rng(0).standard_normal((points // 2, len(center.mode)))
    x, m, K = np.concatenate([half, -half]), center.mode, center.precision
    for _ in range(2):
        at = m + x @ inverse_root(K).T
        K = target.mean_hessian(at)
        m = m - scipy.linalg.solve(K, target.gradients(at).mean(axis=0), assume_a="pos")
    return GaussianFit(m, K, f"mean curvature over {points} points")
