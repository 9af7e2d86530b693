"""Second and third moments of the oracle's noise δ = ĝ - ∇U at given points, for any target.

Input: a plan and rows of θ. Output: arrays with one entry per row. For mini-batches they are averages over the data, at most
`MOST_DATA` of them. Where the noise is quadratic in θ, `exact.noise` knows more.
"""

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.evaluation import over_rows
from gyromc.oracles import Batch, ControlVariate, Exact, Gaussian
from gyromc.plan import Plan
from gyromc.targets import SumOverData

MOST_DATA = 2000


def oracle_covariances(plan: Plan, rows: np.ndarray) -> np.ndarray:
    """Σ(θ) = E[δδᵀ | θ] at every row: rows × d × d."""
    d, oracle = plan.dim, plan.prepared_oracle
    if isinstance(oracle, Exact | Gaussian):
        tau = float(oracle.tau) if isinstance(oracle, Gaussian) else 0.0
        return np.broadcast_to(tau**2 * np.eye(d), (len(rows), d, d))
    return _over_data(plan, rows, 2)


def oracle_third_moments(plan: Plan, rows: np.ndarray) -> np.ndarray:
    """E[δ⊗δ⊗δ | θ] at every row: rows × d × d × d, zero for noise that is symmetric."""
    if isinstance(plan.oracle, Exact | Gaussian):
        return np.broadcast_to(0.0, (len(rows), *(plan.dim,) * 3))
    return _over_data(plan, rows, 3)


def _over_data(plan: Plan, rows: np.ndarray, order: int) -> np.ndarray:
    """Moments of a mean of b draws from the data: those of one draw, divided by b^(order-1).

    For distinct rows the second has the exact factor (N-b)/(N-1); the third has one that is smaller, so it is an upper bound.
    """
    oracle, target = plan.prepared_oracle, plan.flat_target
    assert isinstance(oracle, Batch)
    assert isinstance(target, SumOverData)
    N = target.num_data
    picked = np.arange(N) if N <= MOST_DATA else np.random.default_rng(0).choice(N, MOST_DATA, replace=False)
    center = np.asarray(oracle.center, float) if isinstance(oracle, ControlVariate) else None
    scale = np.asarray(oracle.noise_factor(N) * N**order / (oracle.size ** (order - 1) * len(picked)))
    moment = _second if order == 2 else _third
    return over_rows(moment, rows, target, center, picked, scale, chunk=256)


def _second(target, center, picked, scale, theta):
    terms = _deviations(target, center, picked, theta)
    return scale * terms.T @ terms


def _third(target, center, picked, scale, theta):
    terms = _deviations(target, center, picked, theta)
    return scale * jnp.einsum("pi,pj,pk->ijk", terms, terms, terms)


def _deviations(target, center, picked, theta):
    """∇ℓ_i, less that at the center of a control variate, minus its mean."""

    def one(i):
        g = target.batch_gradient(theta, i[None])
        return g if center is None else g - target.batch_gradient(center, i[None])

    terms = jax.vmap(one)(jnp.asarray(picked))
    return terms - terms.mean(axis=0)
