"""E[∇²U] from points of a law with their gradients g = ∇U, and its error.

Under the law E[ggᵀ] = E[∇²U] and E[(θ-m)gᵀ] = I (Stein's identity), so that E[ggᵀ] may be divided by the sample's own E[(θ-m)gᵀ]:
on a Gaussian the quotient is exact for any points, elsewhere it keeps its limit. Errors come from leaving out one block of points
at a time.
"""

import dataclasses
import functools

import numpy as np


@dataclasses.dataclass(frozen=True, eq=False)
class MatrixEstimate:
    """A symmetric matrix, and independent deviations of it (k × d × d) whose squares add up to its variance."""

    matrix: np.ndarray
    deviations: np.ndarray

    @functools.cached_property
    def directions(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues and eigenvectors."""
        return np.linalg.eigh(self.matrix)

    @functools.cached_property
    def relative_errors(self) -> np.ndarray:
        """For every eigenvector v the standard error of vᵀAv over vᵀAv; infinite where that is not positive."""
        if not np.all(np.isfinite(self.matrix)) or not np.all(np.isfinite(self.deviations)):
            return np.full(len(self.matrix), np.inf)
        sizes, basis = self.directions
        spread = np.sqrt(np.sum(np.einsum("iv,kij,jv->kv", basis, self.deviations, basis, optimize=True) ** 2, axis=0))
        return np.where(sizes > 0, spread / np.where(sizes > 0, sizes, 1.0), np.inf)

    @property
    def relative_error(self) -> float:
        """The largest relative standard error along an eigenvector."""
        return float(np.max(self.relative_errors))

    def plus(self, other: "MatrixEstimate") -> "MatrixEstimate":
        """The sum of two independent estimates."""
        return MatrixEstimate(self.matrix + other.matrix, np.concatenate([self.deviations, other.deviations]))


@dataclasses.dataclass(frozen=True, eq=False)
class BlockSums:
    """Sums over blocks of points, the first axis of each array: weights, θ, g, θθᵀ, θgᵀ, ggᵀ."""

    weight: np.ndarray
    theta: np.ndarray
    g: np.ndarray
    square: np.ndarray
    cross: np.ndarray
    g_square: np.ndarray

    def central(self, without: int | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cov(θ), Cov(θ, g) and Cov(g) over all blocks, or over all but one."""
        less = 0.0 if without is None else 1.0
        weight, *parts = (array.sum(axis=0) - less * array[without or 0] for array in vars(self).values())
        theta, g, square, cross, g_square = (part / weight for part in parts)
        return square - np.outer(theta, theta), cross - np.outer(theta, g), g_square - np.outer(g, g)

    def jackknife(self, estimate) -> MatrixEstimate:
        """A function of the three covariances, with deviations from leaving out one block at a time."""
        count = len(self.weight)
        left = np.array([estimate(*self.central(i)) for i in range(count)])
        with np.errstate(invalid="ignore"):  # infinite where there is no quotient
            return MatrixEstimate(estimate(*self.central()), np.sqrt((count - 1) / count) * (left - left.mean(axis=0)))


def sums(
    theta: np.ndarray, g: np.ndarray, other: np.ndarray | None = None, weights: np.ndarray | None = None
) -> BlockSums:
    """Sums over blocks × points × d; `other`: a second gradient at each point, whose own noise leaves no share in products."""
    second = g if other is None else other
    w = np.ones((*theta.shape[:2], 1)) if weights is None else weights[:, :, None]
    mean, turned = (g + second) / 2, np.swapaxes(w * theta, 1, 2)
    products = np.swapaxes(w * g, 1, 2) @ second
    plain = w.sum(axis=(1, 2)), (w * theta).sum(axis=1), (w * mean).sum(axis=1)
    return BlockSums(*plain, turned @ theta, turned @ mean, (products + np.swapaxes(products, 1, 2)) / 2)


def gradient_square(found: BlockSums) -> MatrixEstimate:
    """E[ggᵀ], which is E[∇²U] under the law."""
    return found.jackknife(lambda square, cross, g_square: g_square)


def curvature(found: BlockSums) -> MatrixEstimate:
    """The symmetric part of E[ggᵀ] E[(θ-m)gᵀ]⁻¹: E[∇²U] under the law, and ∇²U itself for any points of a Gaussian."""

    def quotient(square: np.ndarray, cross: np.ndarray, g_square: np.ndarray) -> np.ndarray:
        try:
            found = np.linalg.solve(cross.T, g_square.T).T
        except np.linalg.LinAlgError:
            return np.full_like(g_square, np.inf)
        return (found + found.T) / 2

    return found.jackknife(quotient)


def over_blocks(matrices: np.ndarray) -> MatrixEstimate:
    """The mean of independent matrices, with its error."""
    count, mean = len(matrices), np.mean(matrices, axis=0)
    return MatrixEstimate(mean, (matrices - mean) / np.sqrt(count * (count - 1)))
