"""Gaussian approximations of a law: with mode and curvature there, or with E[∇U] = 0 and E[∇²U] = K under N(m, K⁻¹).

A target over vectors in, a `GaussianApproximation` out; exact for a Gaussian target. With many rows of data mode and curvature
do; of a skewed posterior (separable classes, counts of zero) the mean curvature says much more.
"""

import dataclasses
import math

import numpy as np
import scipy

from gyromc.errors import InvalidInput
from gyromc.targets import Target


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianApproximation:
    """N(mean, precision⁻¹); `source` says where both come from."""

    mean: np.ndarray
    precision: np.ndarray
    source: str

    def points(self, standard: np.ndarray) -> np.ndarray:
        """Points of the approximation from standard normal ones, in rows."""
        return self.mean + standard @ inverse_root(self.precision).T


def inverse_root(K: np.ndarray) -> np.ndarray:
    """Upper triangular R with RRᵀ = K⁻¹."""
    return scipy.linalg.solve_triangular(scipy.linalg.cholesky(K, lower=True), np.eye(len(K)), lower=True).T


def laplace(target: Target, mode: np.ndarray) -> GaussianApproximation:
    """Mode and Hessian there; `InvalidInput` where the Hessian is not positive definite."""
    known = target.gaussian()
    if known is not None:
        return GaussianApproximation(known[1], known[0], "exact")
    K = target.hessians(mode[None])[0]
    smallest = float(np.linalg.eigvalsh(K)[0])
    if not smallest > 0:
        raise InvalidInput(
            f"The Hessian at the mode is not positive definite (smallest eigenvalue {smallest:.3g}): no Laplace approximation."
        )
    return GaussianApproximation(mode, K, "the curvature at the mode")


def mean_curvature_fit(target: Target, center: GaussianApproximation, points: int) -> GaussianApproximation:
    """The Gaussian whose precision is the law's mean curvature over it, from an even number of points."""
    half = np.random.default_rng(0).standard_normal((points // 2, len(center.mean)))
    x, source = np.concatenate([half, -half]), f"mean curvature over {points} points"
    for _ in range(2):
        at = center.points(x)
        K = target.mean_hessian(at)
        smallest = float(np.linalg.eigvalsh(K)[0]) if np.isfinite(K).all() else math.nan
        if not smallest > 1e-14 * np.abs(K).max():
            raise InvalidInput(
                "No Gaussian describes this law: its mean curvature around the mode is not positive definite (smallest "
                f"eigenvalue {smallest:.3g}). Leave out what needs one, such as `martingale=True`, or use `gyromc.expect`."
            )
        mean = center.mean - scipy.linalg.solve(K, target.gradients(at).mean(axis=0), assume_a="pos")
        center = GaussianApproximation(mean, K, source)
    return center
