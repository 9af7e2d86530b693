"""Step sizes by a bias budget: how much wider than the target a chain's law is on a Gaussian, and the η that keeps it in bounds.

Matrices of a sampler, a precision matrix and the oracle's noise in, numbers out. On a Gaussian target the stationary covariance
of Euler-Maruyama is exact, so one root finder serves every dynamics.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy import linalg

from gyromc.plan import Plan
from gyromc.prediction.corrections import oracle_covariances
from gyromc.prediction.exact.chain import augment
from gyromc.prediction.exact.mean_square import largest_stable_step

__all__ = ["burn_in_steps", "largest_root", "plan_step_size", "variance_excess"]

NOISE_POINTS = 16


def variance_excess(D: np.ndarray, Q: np.ndarray, precision: np.ndarray, noise: np.ndarray, step_size: float) -> float:
    """By which factor, minus one, the chain's θ-covariance exceeds K⁻¹ in its worst direction on a Gaussian (T1)."""
    d, G = len(precision), D + Q
    M = np.eye(len(G)) - step_size * G @ augment(precision, len(G) > d)
    W = 2 * step_size * D + step_size**2 * G[:, :d] @ noise @ G[:, :d].T
    covariance = linalg.solve_discrete_lyapunov(M, W)[:d, :d]  # T1
    root = linalg.cholesky(precision)
    return float(np.linalg.eigvalsh(root @ covariance @ root.T)[-1]) - 1


def largest_root(excess: Callable[[float], float], budget: float, limit: float, tolerance: float = 1e-12) -> float:
    """The largest η below `limit` with excess(η) < budget, by bisection; excess grows with η."""
    low, high = 0.0, limit
    while high - low > tolerance * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < budget else (low, middle)
    return low


def plan_step_size(plan: Plan, budget: float) -> float:
    """η, to three digits, at which θ-variances are off by `budget` on a Gaussian with the plan's curvature and oracle noise."""
    center, D, Q = plan.model.laplace, plan.dynamics.D, plan.dynamics.Q
    rng = np.random.default_rng(0)
    around = linalg.solve_triangular(linalg.cholesky(center.precision), rng.standard_normal((plan.dim, NOISE_POINTS)))
    noise = oracle_covariances(plan, center.mode + around.T).mean(axis=0)
    limit = 0.99 * largest_stable_step((D + Q) @ augment(center.precision, plan.augmented))
    found = largest_root(lambda eta: variance_excess(D, Q, center.precision, noise, eta), budget, limit, tolerance=1e-3)
    return float(f"{found:.3g}")


def burn_in_steps(rate: float, step_size: float, relaxations: float) -> int:
    """Steps that last so many relaxation times 1/rate."""
    return math.ceil(relaxations / (rate * step_size))
