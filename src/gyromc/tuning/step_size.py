"""Step sizes by a bias budget: how much wider than the target a chain's law is on a Gaussian, and the η that keeps it in bounds.

Matrices of a sampler, a precision matrix and the oracle's noise in, numbers out. On a Gaussian target the stationary covariance
of Euler-Maruyama is exact, so one root finder serves every dynamics.
"""

import math
import warnings
from collections.abc import Callable

import numpy as np
from scipy import linalg

__all__ = ["burn_in_steps", "for_varying_curvature", "largest_root", "variance_excess"]

MILD, MOST_SMALLER = 1.2, 30.0  # how much curvature may vary before steps become smaller, and how much smaller at most


def variance_excess(D: np.ndarray, Q: np.ndarray, precision: np.ndarray, noise: np.ndarray, step_size: float) -> float:
    """By which factor, minus one, the chain's θ-covariance exceeds K⁻¹ in its worst direction on a Gaussian (T1)."""
    d = len(precision)
    root = linalg.cholesky(precision)
    whiten = np.eye(len(D))
    whiten[:d, :d] = root  # in x = Rθ, RᵀR = K, the target is standard normal and no entry is large
    D, G = whiten @ D @ whiten.T, whiten @ (D + Q) @ whiten.T
    spread = linalg.solve_triangular(root, linalg.solve_triangular(root, noise, trans=1).T, trans=1)
    W = 2 * step_size * D + step_size**2 * G[:, :d] @ spread @ G[:, :d].T
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        try:
            covariance = linalg.solve_discrete_lyapunov(np.eye(len(G)) - step_size * G, W)  # T1
        except RuntimeWarning:  # too close to the limit of stability to be solved
            return math.inf
    return float(np.linalg.eigvalsh(covariance[:d, :d])[-1]) - 1


def largest_root(excess: Callable[[float], float], budget: float, limit: float, tolerance: float = 1e-12) -> float:
    """The largest η below `limit` with excess(η) < budget, by bisection; excess grows with η."""
    low, high = 0.0, limit
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < budget else (low, middle)
    return low


def for_varying_curvature(step_size: float, steepest: float) -> float:
    """A step size that suits a Gaussian, made smaller by `steepest / MILD`, at most `MOST_SMALLER` times, and never larger.

    `steepest` is the law's curvature in units of the Gaussian's (its root mean square).
    """
    return step_size / max(1.0, min(steepest / MILD, MOST_SMALLER))


def burn_in_steps(rate: float, step_size: float, relaxations: float) -> int:
    """Steps that last so many relaxation times 1/rate."""
    return math.ceil(relaxations / (rate * step_size))
