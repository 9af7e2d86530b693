"""Weights that remove Euler-Maruyama's bias from draws of a regression's posterior.

Draws of θ and the width that the step size adds to a Gaussian in, weights with mean 1 out.
"""

import numpy as np
from scipy import linalg

from gyromc.shape.gaussian import GaussianApproximation
from gyromc.targets.regressions import WithLikelihood

__all__ = ["bias_weights"]

MOST_WORK = 2e7  # draws × rows × linear predictors looked at for the weights


def bias_weights(
    target: WithLikelihood, shape: GaussianApproximation, theta: np.ndarray, inflation: float
) -> np.ndarray:
    """Weights of draws of θ: chains × draws, with mean 1.

    With D = K⁻¹ and Q = 0 the chain's law is exp(-U)(1 + η f) to first order, f = ¼∇UᵀD∇U - ½tr(D∇²U) (the bias of
    all observables at once), so exp(-ηf) removes it; on a Gaussian exp(-ηf) is exact for every η. η enters by way of the
    `inflation` that it causes on a Gaussian, η/4 = ½(1 - 1/inflation), which counts mini-batches and momentum in.
    """
    rows = theta.reshape(-1, target.dim)
    if len(rows) * target.num_data * target.likelihood.outputs > MOST_WORK:
        f = np.sum(linalg.solve_triangular(shape.root, (rows - shape.mean).T) ** 2, axis=0)
    else:
        chunk = max(1, int(1e6 // target.num_data))
        f = np.concatenate([_excess(target, shape, rows[i : i + chunk]) for i in range(0, len(rows), chunk)])
    log_weights = -0.5 * (1 - 1 / inflation) * (f - f.mean())
    weights = np.exp(log_weights - log_weights.max())
    return (weights / weights.mean()).reshape(theta.shape[:-1])


def _excess(target: WithLikelihood, shape: GaussianApproximation, theta: np.ndarray) -> np.ndarray:
    """4f = ∇UᵀK⁻¹∇U - 2 tr(K⁻¹∇²U), up to a constant."""
    slope = target.gradients(theta) @ shape.root
    q, p = target.likelihood.outputs, target.X.shape[1]
    K_inverse = (shape.root @ shape.root.T).reshape(q, p, q, p)
    leverage = np.stack(
        [
            np.einsum("ni,ij,nj->n", target.X, K_inverse[a, :, b], target.X, optimize=True)
            for a in range(q)
            for b in range(q)
        ],
        axis=1,
    ).reshape(target.num_data, q, q)
    trace = np.einsum(
        "snab,nab->s",
        target.likelihood.curvature(target.predictors(theta)).reshape(len(theta), -1, q, q),
        leverage,
        optimize=True,
    )
    return np.sum(slope**2, axis=1) - 2 * trace
