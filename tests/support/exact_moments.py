"""Exact mean and variance of a chain's average after finitely many steps, for linear models: what engines are tested against.

With y = (z, s, 1), s the running sum of uᵀθ, a step is y⁺ = A y + ε with E[ε | y] = 0, so the second moment obeys
M⁺ = A M Aᵀ + E[Cov(ε | y)]; a mini-batch's covariance is a quadratic form in y, so nothing is approximated.
"""

import numpy as np

from gyromc.oracles import Gaussian, Minibatch


def average_moments(plan) -> tuple[float, float, np.ndarray]:
    """(mean, variance) of one chain's average of the plan's single linear observable, and E[z zᵀ] after the last step."""
    d, n, eta = plan.dim, plan.dynamics.size, plan.step_size
    [h] = plan.observables.values()
    P, mean = plan.target.gaussian()
    G = plan.dynamics.D + plan.dynamics.Q
    H = np.zeros((n, n + 2))
    H[:d, :d], H[:d, -1] = P, -P @ mean
    H[d:, d:n] = np.eye(n - d)
    A = np.eye(n + 2)
    A[:n] -= eta * G @ H
    A[n, :d] = h.direction
    oracle = G[:, :d] * eta
    M = np.zeros((n + 2, n + 2))
    M[-1, -1] = 1
    for _ in range(plan.num_steps):
        noise = 2 * eta * plan.dynamics.D
        if isinstance(plan.oracle, Gaussian):
            noise = noise + float(plan.oracle.tau) ** 2 * oracle @ oracle.T
        if isinstance(plan.oracle, Minibatch):
            noise = noise + oracle @ _batch_covariance(plan, M) @ oracle.T
        M = A @ M @ A.T
        M[:n, :n] += noise
    total = M[n, -1]
    N = plan.num_steps
    return total / N, (M[n, n] - total**2) / N**2, M[:n, :n]


def _batch_covariance(plan, M: np.ndarray) -> np.ndarray:
    """E[Cov(ĝ | θ)] for rows drawn with replacement: (N²/b) (E[x xᵀ e²] - E[ḡ ḡᵀ]), e = xᵀθ - y."""
    X, y = plan.target.design
    N, d = X.shape
    errors = np.zeros((N, len(M)))
    errors[:, :d], errors[:, -1] = X, -y
    squares = np.einsum("ia,ab,ib->i", errors, M, errors)
    mean_gradient = X.T @ errors / N
    return N**2 / plan.oracle.size * ((X.T * squares) @ X / N - mean_gradient @ M @ mean_gradient.T)
