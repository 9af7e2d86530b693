"""Mini-batches for a regression: how many rows a gradient needs so that its noise stays a small part of the bias budget."""

import math

import numpy as np

from gyromc.oracles import ControlVariate, Exact, Oracle
from gyromc.shape.gaussian import GaussianApproximation
from gyromc.targets import SoftmaxRegression
from gyromc.targets.regressions import WithLikelihood

__all__ = ["choose_oracle"]

LARGE_DATA = 4000  # rows from which on mini-batches pay
MOST_ROWS = 2000  # looked at
POINTS = 16
LEAST_BATCH = 32


def choose_oracle(
    target: WithLikelihood,
    mode: np.ndarray,
    shape: GaussianApproximation,
    step_size: float,
    budget: float,
    seed: int,
) -> tuple[Oracle, float]:
    """All rows, or mini-batches anchored at the mode, and the variance of their noise on ∇U in whitened coordinates."""
    N, q = target.num_data, target.likelihood.outputs
    if N < LARGE_DATA or target.gaussian() is not None:
        return Exact(), 0.0
    rows = np.random.default_rng(seed).choice(N, min(N, MOST_ROWS), replace=False)
    X, y = target.X[rows], target.y[rows]
    center = target.likelihood.slope(target.predictors(mode, X), y)
    total = np.zeros((target.dim, target.dim))
    for theta in shape.draws(POINTS, seed + 2):
        excess = (target.likelihood.slope(target.predictors(theta, X), y) - center).reshape(len(rows), q)
        terms = (excess[:, :, None] * X[:, None, :]).reshape(len(rows), -1) @ shape.root
        terms = terms - terms.mean(axis=0)
        total += terms.T @ terms / len(rows)
    one = N**2 * total / POINTS  # the variance of a batch of one, in whitened coordinates
    size = (
        math.ceil(float(np.linalg.eigvalsh(one)[-1]) * step_size / (0.2 * budget) / 16) * 16
    )  # excess ≈ η(1 + noise)/2
    if (40 if isinstance(target, SoftmaxRegression) else 4) * size > N:  # the fast engine has no batches of a softmax
        return Exact(), 0.0
    size = max(LEAST_BATCH, size)
    return ControlVariate(size, center=mode), float(np.trace(one)) / target.dim / size
