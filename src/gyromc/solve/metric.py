"""The metric of the chains: a matrix B with B Bᵀ near the covariance of the law, from draws and gradients together.

Input: states of chains and ∇U there. Output: a `Metric` whose coordinates B⁻¹θ make the law round. The covariance is the matrix C
with C·cov(∇U)·C = cov(θ), the geometric mean of cov(θ) and the inverse of cov(∇U). On a Gaussian ∇U = P(θ - m), and C = P⁻¹
holds exactly for any points, also before the chains have mixed; elsewhere it weighs the width of the bulk and its curvature.
"""

import abc
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float

__all__ = ["DenseMetric", "LowRankMetric", "Metric", "fitted_metric"]

Rows = Float[np.ndarray, "n d"]


class Metric(eqx.Module):
    """A linear map B from round coordinates to θ."""

    @abc.abstractmethod
    def push(self, rows: Float[Array | np.ndarray, "n d"]) -> Any:
        """B times every row."""

    @abc.abstractmethod
    def pull(self, rows: Float[Array | np.ndarray, "n d"]) -> Any:
        """Bᵀ times every row."""

    @abc.abstractmethod
    def covariance(self) -> Float[np.ndarray, "d d"]:
        """B Bᵀ."""


class DenseMetric(Metric):
    """B as a matrix."""

    root: Float[Array | np.ndarray, "d d"]

    def push(self, rows):
        return rows @ self.root.T

    def pull(self, rows):
        return rows @ self.root

    def covariance(self):
        return np.asarray(self.root) @ np.asarray(self.root).T


class LowRankMetric(Metric):
    """B = S(I + V R Vᵀ): a diagonal S, and R in the span of a few orthonormal directions V."""

    scale: Float[Array | np.ndarray, " d"]
    basis: Float[Array | np.ndarray, "d k"]
    extra: Float[Array | np.ndarray, "k k"]

    def push(self, rows):
        return (rows + rows @ self.basis @ self.extra @ self.basis.T) * self.scale

    def pull(self, rows):
        rows = rows * self.scale
        return rows + rows @ self.basis @ self.extra @ self.basis.T

    def covariance(self):
        root = self.push(np.eye(len(self.scale)))
        return root.T @ root


def fitted_metric(theta: Rows, gradient: Rows, most_dense: int, rank: int = 0) -> DenseMetric | LowRankMetric:
    """The metric from points and gradients: dense up to `most_dense` parameters, beyond with `rank` directions of its own.

    Both covariances are shrunk to their diagonals by the share d/n of noise in them; with `rank` 0 beyond `most_dense`, or with
    too few points, a diagonal is left.
    """
    n, d = theta.shape
    wide, steep = theta.std(axis=0), gradient.std(axis=0)
    known = (wide > 0) & (steep > 0) & np.isfinite(wide) & np.isfinite(steep)
    # √(sd(θ)/sd(∇U)) is exact on a Gaussian without correlations
    scale = np.sqrt(np.where(known, wide, 1.0) / np.where(known, steep, 1.0))
    wide, steep = (theta - theta.mean(axis=0)) / scale, (gradient - gradient.mean(axis=0)) * scale
    if d <= most_dense:
        covariance = _geometric_mean(_shrunk(wide, d / n), _shrunk(steep, d / n))
        covariance *= np.outer(scale, scale)
        covariance[np.diag_indices(d)] *= 1 + 1e-12
        return DenseMetric(np.linalg.cholesky(covariance))
    if rank == 0:
        return LowRankMetric(scale, np.zeros((d, 1)), np.zeros((1, 1)))
    kept = min(rank, n // 8)
    directions = [np.linalg.svd(x[:: max(1, n // (8 * kept))], full_matrices=False)[2][:kept] for x in (wide, steep)]
    basis = np.linalg.qr(np.concatenate(directions).T)[0]
    inside = _geometric_mean(*(_shrunk(x @ basis, basis.shape[1] / n) for x in (wide, steep)))
    values, vectors = np.linalg.eigh(inside)
    extra = (vectors * (np.sqrt(values) - 1)) @ vectors.T
    return LowRankMetric(scale, basis, extra)


def _shrunk(rows: Rows, noise: float) -> np.ndarray:
    """A covariance with a part of it replaced by its diagonal."""
    share = min(0.5, noise)
    found = rows.T @ rows / len(rows)
    diagonal = np.diag(found).copy()
    found *= 1 - share
    found[np.diag_indices_from(found)] = np.maximum(diagonal, 1e-12 * diagonal.max() + 1e-300)
    return found


def _geometric_mean(wide: np.ndarray, steep: np.ndarray) -> np.ndarray:
    """The positive definite C with C·steep·C = wide."""
    values, vectors = np.linalg.eigh(wide)
    values = np.maximum(values, 1e-14 * values[-1])
    root = (vectors * np.sqrt(values)) @ vectors.T
    inner, turn = np.linalg.eigh(root @ steep @ root)
    inner = np.maximum(inner, 1e-14 * inner[-1])
    found = root @ ((turn / np.sqrt(inner)) @ turn.T) @ root
    return (found + found.T) / 2
