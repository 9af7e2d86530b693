"""A Gaussian fit to a law: mean m and precision K with E[∇U] = 0 and E[∇²U] = K under N(m, K⁻¹).

A target over vectors and its Laplace approximation in, a `GaussianFit` out. For many rows of data mode and curvature there would
do; where the posterior is skewed (separable classes, counts of zero) the curvature at the mode says little about where the
posterior lies, and its mean over the posterior much.
"""

import dataclasses
import math

import numpy as np
import scipy

from gyromc.errors import InvalidInput
from gyromc.shape.laplace import Laplace, inverse_root
from gyromc.targets import Target

__all__ = ["GaussianFit", "mean_curvature_fit"]


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianFit:
    """N(mean, precision⁻¹) with the law's own mean and covariance, as far as `source` knows them."""

    mean: np.ndarray
    precision: np.ndarray
    source: str


def mean_curvature_fit(target: Target, center: Laplace, points: int) -> GaussianFit:
    """The Gaussian whose precision is the law's mean curvature over it, from an even number of points."""
    half = np.random.default_rng(0).standard_normal((points // 2, len(center.mode)))
    x, m, K = np.concatenate([half, -half]), center.mode, center.precision
    for _ in range(2):
        at = m + x @ inverse_root(K).T
        K = target.mean_hessian(at)
        smallest = float(np.linalg.eigvalsh(K)[0]) if np.isfinite(K).all() else math.nan
        if not smallest > 1e-14 * np.abs(K).max():
            raise InvalidInput(
                "No Gaussian describes this law: its mean curvature around the mode is not positive definite (smallest "
                f"eigenvalue {smallest:.3g}). Leave out what needs one, such as `martingale=True`, or use `gyromc.expect`."
            )
        m = m - scipy.linalg.solve(K, target.gradients(at).mean(axis=0), assume_a="pos")
    return GaussianFit(m, K, f"mean curvature over {points} points")
