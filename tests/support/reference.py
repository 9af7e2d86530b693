"""Exact moments of a chain's average by the slowest, plainest route: one step at a time, every mini-batch enumerated.

Independent of `gyromc.prediction`: it shares no formula with it, only the definition of the step (E3) and of the average (E4).
"""

import itertools

import numpy as np

import gyromc as gm


def moments(plan, u):
    """(mean, variance) of (1/N) Σ uᵀθ_k for a plan with a Gaussian target, a constant step and start."""
    n, d = plan.dynamics.size, plan.dim
    G, D, eta = plan.dynamics.D + plan.dynamics.Q, plan.dynamics.D, plan.step_size
    pad = np.zeros((n, d))
    pad[:d] = np.eye(d)

    def affine(K, c):
        """The step for a gradient Kθ + c of U, on (z, s, 1), where s collects uᵀθ."""
        H = np.zeros((n, n))
        H[:d, :d] = K
        H[d:, d:] = np.eye(n - d)
        F = np.zeros((n + 2, n + 2))
        F[:n, :n] = np.eye(n) - eta * G @ H
        F[:n, -1] = -eta * G @ pad @ c
        F[n, :d], F[n, n], F[-1, -1] = u, 1, 1
        return F

    W = 2 * eta * D
    target, oracle = plan.target, plan.oracle
    if isinstance(oracle, gm.oracles.Minibatch):
        N, b = target.num_data, oracle.size
        prior = float(target.prior_precision) * np.eye(d)
        steps = []
        every = itertools.product(range(N), repeat=b) if oracle.replace else itertools.combinations(range(N), b)
        for batch in every:
            X, y = target.X[list(batch)], target.y[list(batch)]
            steps.append(affine(N / b * X.T @ X + prior, -N / b * X.T @ y))
    else:
        P, m = target.gaussian()
        steps = [affine(P, -P @ m)]
        if isinstance(oracle, gm.oracles.Gaussian):
            W = W + (eta * float(oracle.tau)) ** 2 * (G @ pad) @ (G @ pad).T

    y = np.zeros(n + 2)
    y[:d], y[-1] = plan.starts.theta[0], 1
    if plan.starts.r is not None:
        y[d:n] = plan.starts.r[0]
    Y = np.outer(y, y)
    for k in range(plan.burn_in + plan.num_steps):
        if k == plan.burn_in:  # begin the sum here
            Y[n, :], Y[:, n] = 0, 0
        Y = np.mean([F @ Y @ F.T for F in steps], axis=0)
        Y[:n, :n] += W
    mean = Y[n, -1] / plan.num_steps
    return mean, Y[n, n] / plan.num_steps**2 - mean**2


def z_scores(averages, mean, variance):
    """How many standard errors the sample's mean and variance are off; the fourth moment is the sample's own."""
    R = averages.size
    centred = averages - averages.mean()
    second = centred @ centred / (R - 1)
    spread = np.sqrt((np.mean(centred**4) - second**2) / R)
    return (averages.mean() - mean) / np.sqrt(variance / R), (second - variance) / spread
