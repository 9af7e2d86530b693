"""What the fused engines `lanes` and `pallas` compile of a plan alike, in float64: its step, and the rows of control variates.

A step of a scheme that is linear in its noise, with y = (z, the scheme's memory) and ĝ = (∇̂U, r), is

    y⁺ = (z, 0) + kept·y + scale·G·ĝ + noise·ξ + oracle·ζ
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.oracles import ControlVariate, Gaussian
from gyromc.plan import Plan
from gyromc.prediction.martingale import symmetric_root
from gyromc.runtime.evaluation import doubled
from gyromc.targets import GeneralizedLinear


class LinearStep(NamedTuple):
    """The matrices of a step."""

    kept: np.ndarray  # A of the scheme, less I in the rows of z
    scale: float
    G: np.ndarray  # scale·G is B of the scheme
    noise: np.ndarray
    oracle: np.ndarray | None  # for d normals ζ of a Gaussian oracle, where it has its own


def linear_step(plan: Plan) -> LinearStep:
    """The step of a linear scheme; the noise of a Gaussian oracle and the scheme's are drawn as one Gaussian where that can be.

    It cannot be where a martingale is summed, which is made of the scheme's own ξ, or where the scheme has a memory, which would
    have to hold the oracle's noise as well: the oracle then has d normals of its own.
    """
    n, d = plan.dynamics.size, plan.dim
    if plan.scheme.is_euler:
        kept, scale, G = np.zeros((n, n)), -plan.eta, plan.dynamics.D + plan.dynamics.Q
    else:
        kept, scale, G = plan.step_matrices.A.copy(), 1.0, plan.step_matrices.B
        kept[:n, :n] -= np.eye(n)
    tau = float(plan.oracle.tau) if isinstance(plan.oracle, Gaussian) else None
    if plan.martingale or plan.state_size > n:
        return LinearStep(kept, scale, G, plan.step_matrices.C, None if tau is None else scale * tau * G[:, :d])
    if tau is None and not plan.scheme.is_euler:
        return LinearStep(kept, scale, G, plan.step_matrices.C, None)
    W = 2 * plan.eta * plan.dynamics.D if plan.scheme.is_euler else plan.step_matrices.C @ plan.step_matrices.C.T
    if tau is not None:
        W = W + (scale * tau) ** 2 * G[:, :d] @ G[:, :d].T  # T1: independent Gaussian noises
    try:
        return LinearStep(kept, scale, G, np.linalg.cholesky(W), None)
    except np.linalg.LinAlgError:  # singular, for balanced noise at its largest step size
        return LinearStep(kept, scale, G, symmetric_root(W), None)


class Center(NamedTuple):
    """A control variate that uses the whole of K: it adds gradient + K(θ - point) to a step's gradient, besides prior and rows.

    A row (x, y) with t = xᵀθ is multiplied by slope(t, y) - slope, at order 2 less change · (t - predictor) as well.
    """

    point: np.ndarray
    gradient: np.ndarray
    curvature: np.ndarray | None  # K; None at order 1
    slope: np.ndarray  # of every row at the point
    change: np.ndarray  # the derivative of the slope
    predictor: np.ndarray  # xᵀ point


def center_of(oracle: ControlVariate, target: GeneralizedLinear | None = None) -> Center:
    """A prepared control variate; without a target, for rows that are not in memory, there is nothing of the rows."""
    K = oracle.operator.dense() if oracle.order == 2 and oracle.operator is not None else None
    point = np.asarray(oracle.center, float)
    X, y = (np.zeros((0, len(point))), np.zeros(0)) if target is None else target.design
    t = np.asarray(X, float) @ point
    slope = change = t
    if target is not None:
        with jax.enable_x64(True):
            wide = doubled(target)
            of_predictor = lambda t: wide.slope(t, jnp.asarray(np.asarray(y, float)))
            slope, change = jax.jvp(of_predictor, (jnp.asarray(t),), (jnp.ones(len(t)),))
    return Center(point, np.asarray(oracle.anchor, float), K, np.asarray(slope), np.asarray(change), t)
