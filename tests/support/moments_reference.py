"""Exact moments of time averages by brute force: the recursions behind T1, one step at a time and in no clever order.

Written apart from `gyromc.prediction`, so that an engine is checked against something that shares no code with it.
"""

import numpy as np


def additive(D, Q, K, m, eta, N, u, z0, tau=0.0):
    """Mean and variance of uᵀ(z_0 + … + z_{N-1})/N, and the mean of (uᵀz_k)² over k, for U = ½(θ-m)ᵀK(θ-m)."""
    n, d = len(D), len(K)
    G = D + Q
    P = np.eye(n)
    P[:d, :d] = K
    center = np.concatenate([m, np.zeros(n - d)])
    M = np.eye(n) - eta * G @ P
    W = 2 * eta * D + (eta * tau) ** 2 * G[:, :d] @ G[:, :d].T
    F = np.block([[M, np.zeros((n, n))], [np.eye(n), np.eye(n)]])  # (z, s) ← (Mz + noise, s + z)
    mean = np.concatenate([z0 - center, np.zeros(n)])
    cov, noise = np.zeros((2 * n, 2 * n)), np.zeros((2 * n, 2 * n))
    noise[:n, :n] = W
    squares = 0.0
    for _ in range(N):
        squares += u @ cov[:n, :n] @ u + (u @ (mean[:n] + center)) ** 2
        mean, cov = F @ mean, F @ cov @ F.T + noise
    return u @ center + u @ mean[n:] / N, u @ cov[n:, n:] @ u / N**2, squares / N


def minibatch(X, y, prior_precision, D, Q, b, eta, N, u, z0):
    """Mean and mean square of uᵀ(z_0 + … + z_{N-1})/N - uᵀm_N for linear regression with mini-batches drawn with replacement."""
    n, (rows, d) = len(D), X.shape
    G = D + Q
    K = X.T @ X + prior_precision * np.eye(d)
    mode = np.linalg.solve(K, X.T @ y)
    P = np.eye(n)
    P[:d, :d] = K
    size = 2 * n + 1  # (z, s, 1), z centred at the mode
    F = np.zeros((size, size))
    F[:n, :n] = np.eye(n) - eta * G @ P
    F[n : 2 * n, :n] = F[n : 2 * n, n : 2 * n] = np.eye(n)
    F[-1, -1] = 1
    deviations = []
    for x, response in zip(X, y, strict=True):
        L = np.zeros((size, size))
        L[:n, :d] = -eta * G[:, :d] @ (rows * np.outer(x, x) - X.T @ X)
        L[:n, -1] = -eta * G[:, :d] @ (rows * (x @ mode - response) * x + prior_precision * mode)
        deviations.append(L)
    state = np.concatenate([z0, np.zeros(n), [1.0]])
    state[:d] -= mode
    Y = np.outer(state, state)
    for _ in range(N):
        spread = sum(L @ Y @ L.T for L in deviations) / (b * rows)
        Y = F @ Y @ F.T + spread
        Y[:n, :n] += 2 * eta * D
    return u @ Y[n : 2 * n, -1] / N, u @ Y[n : 2 * n, n : 2 * n] @ u / N**2
