"""The Gaussian nearest to a law: mean m and precision K with E[∇U] = 0 and E[∇²U] = K under N(m, K⁻¹).

A target over vectors and its Laplace approximation in, a `GaussianApproximation` out: for starting points, D and step sizes. For
many rows of data mode and curvature there would do; where the posterior is skewed (separable classes, counts of zero) the
curvature at the mode says little about where the posterior lies, and its mean over the posterior much.
"""

import dataclasses

import numpy as np
from scipy import linalg

from gyromc.shape.laplace import Laplace, inverse_root
from gyromc.targets import Target

__all__ = ["GaussianApproximation", "GaussianFit", "mean_curvature_fit", "nearest_gaussian"]

POINTS, INSPECTED = 256, 2  # points to average over; the curvature of every second one is looked at by itself
ROUNDS = 30


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianApproximation:
    """N(m, K⁻¹), and how far the law is from it.

    **Attributes:**

    - `mean`, `precision`: m and K; `root`: upper triangular R with RRᵀ = K⁻¹.
    - `steepest`: the law's largest curvature, its root mean square over the Gaussian, in units of K's; 1 on a Gaussian.
    """

    mean: np.ndarray
    precision: np.ndarray
    root: np.ndarray
    steepest: float

    def draws(self, count: int, seed: int) -> np.ndarray:
        """Points of it: count × dim."""
        return self.mean + np.random.default_rng(seed).standard_normal((count, len(self.mean))) @ self.root.T


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianFit:
    """N(mean, precision⁻¹) with the law's own mean and covariance, as far as `source` knows them."""

    mean: np.ndarray
    precision: np.ndarray
    source: str


def nearest_gaussian(target: Target, center: Laplace, seed: int = 0, refine: bool = True) -> GaussianApproximation:
    """The Gaussian with the law's mean gradient and mean curvature, from the mode on by damped fixed-point steps."""
    m, K = center.mode, center.precision
    if target.gaussian() is not None or not refine:
        return GaussianApproximation(m, K, inverse_root(K), 1.0)
    half = np.random.default_rng(seed).standard_normal((POINTS // 2, len(m)))
    x = np.concatenate([half, -half])
    for _ in range(ROUNDS):
        R = inverse_root(K)
        points = m + x @ R.T
        curved, push = target.mean_hessian(points), target.gradients(points).mean(axis=0)
        spectrum = np.linalg.eigvalsh(R.T @ curved @ R)
        if spectrum[0] > 0.8 and spectrum[-1] < 1.25 and np.linalg.norm(R.T @ push) < 0.2:
            break
        K = (K + curved) / 2
        m = m - 0.5 * linalg.solve(K, push, assume_a="pos")
    R = inverse_root(K)
    tops = [np.linalg.eigvalsh(R.T @ curvature @ R)[-1] for curvature in target.hessians(m + x[::INSPECTED] @ R.T)]
    return GaussianApproximation(m, K, R, max(1.0, float(np.sqrt(np.mean(np.square(tops))))))


def mean_curvature_fit(target: Target, center: Laplace, points: int) -> GaussianFit:
    """The Gaussian whose precision is the law's mean curvature over it, from an even number of points."""
    half = np.random.default_rng(0).standard_normal((points // 2, len(center.mode)))
    x, m, K = np.concatenate([half, -half]), center.mode, center.precision
    for _ in range(2):
        at = m + x @ inverse_root(K).T
        K = target.mean_hessian(at)
        m = m - linalg.solve(K, target.gradients(at).mean(axis=0), assume_a="pos")
    return GaussianFit(m, K, f"mean curvature over {points} points")
