"""The Laplace approximation: U near its mode is ½(θ-m)ᵀK(θ-m), m the mode and K the Hessian there.

A target over vectors and its mode in, a `Laplace` out; exact for a Gaussian target.
"""

import dataclasses

import numpy as np
import scipy

from gyromc.errors import InvalidInput
from gyromc.targets import Target

__all__ = ["Laplace", "inverse_root", "laplace"]


@dataclasses.dataclass(frozen=True, eq=False)
class Laplace:
    """N(mode, precision⁻¹)."""

    mode: np.ndarray
    precision: np.ndarray


def laplace(target: Target, mode: np.ndarray) -> Laplace:
    """Mode and Hessian; `InvalidInput` where the Hessian is not positive definite."""
    known = target.gaussian()
    if known is not None:
        return Laplace(known[1], known[0])
    K = target.hessians(mode[None])[0]
    smallest = float(np.linalg.eigvalsh(K)[0])
    if not smallest > 0:
        raise InvalidInput(
            f"The Hessian at the mode is not positive definite (smallest eigenvalue {smallest:.3g}): no Laplace approximation."
        )
    return Laplace(mode, K)


def inverse_root(K: np.ndarray) -> np.ndarray:
    """Upper triangular R with RRᵀ = K⁻¹."""
    return scipy.linalg.solve_triangular(scipy.linalg.cholesky(K, lower=True), np.eye(len(K)), lower=True).T
