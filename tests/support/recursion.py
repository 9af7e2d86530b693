"""Exact moments of a chain's average on a Gaussian target for every linear scheme, from the matrices of its step.

Input: a plan with y⁺ = Ay + Bĝ + Cξ (`plan.step_matrices`), a Gaussian target, exact or Gaussian gradients, linear observables.
Output: the mean and the variance of an average, with or without its martingale (T9). `step_matrices` is the only code shared with
the engines.
"""

import numpy as np

from gyromc.oracles import Gaussian


def start(plan) -> np.ndarray:
    """y before the first step, the same for all chains: z, and an empty memory."""
    y = np.zeros(plan.state_size)
    y[: plan.dim] = plan.starts.theta[0]
    if plan.starts.r is not None:
        y[plan.dim : plan.dynamics.size] = plan.starts.r[0]
    return y


def affine_step(plan) -> tuple[np.ndarray, np.ndarray]:
    """M and b of E[y⁺ | y] = My + b."""
    K, mean = plan.target.gaussian()
    P = np.eye(plan.dynamics.size)
    P[: plan.dim, : plan.dim] = K
    step = plan.step_matrices
    M = step.A + np.pad(step.B @ P, ((0, 0), (0, plan.state_size - plan.dynamics.size)))
    return M, -step.B[:, : plan.dim] @ K @ mean


def moments(plan, u, correction=None, spread=None) -> tuple[float, float]:
    """E and Var of N⁻¹ Σ (uᵀθ_k - cᵀξ_k) over the kept states; `correction` is c, `spread` the covariance of θ₀, left out: 0.

    With x = (y, sum), x⁺ = Fx + f + Lω, ω all the normals of a step, so the mean and the covariance of x obey linear recursions.
    """
    (M, b), step, m, d = affine_step(plan), plan.step_matrices, plan.state_size, plan.dim
    tau = float(plan.oracle.tau) if isinstance(plan.oracle, Gaussian) else 0.0
    L = np.zeros((m + 1, step.C.shape[1] + d))
    L[:m] = np.concatenate([step.C, tau * step.B[:, :d]], axis=1)
    F, f = np.zeros((m + 1, m + 1)), np.append(b, 0.0)
    F[:m, :m] = M
    mean, covariance = np.append(start(plan), 0.0), np.zeros((m + 1, m + 1))
    if spread is not None:
        covariance[:d, :d] = spread
    for k in range(plan.burn_in + plan.num_steps):
        if k == plan.burn_in:  # the sum begins here
            F[m, m], F[m, :d] = 1.0, u
            L[m, : step.C.shape[1]] = 0.0 if correction is None else -np.asarray(correction)
        mean, covariance = F @ mean + f, F @ covariance @ F.T + L @ L.T
    return mean[m] / plan.num_steps, covariance[m, m] / plan.num_steps**2
