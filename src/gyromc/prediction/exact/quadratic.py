"""The exact mean and variance of the average of (uᵀθ)² along a linear chain with additive Gaussian noise.

Input: a `LinearChain`. Output: two numbers. Conditional means and variances of a quadratic ẑᵀaẑ, ẑ = (z, 1), are quadratics
again: for a run of steps from z with sum S, both E[S | z] and Var[S | z] are quadratics in z, and two runs compose. N steps cost
O(log N) products of matrices with (n+1)(n+2)/2 rows.
"""

from typing import NamedTuple

import numpy as np

from gyromc.prediction.exact.chain import LinearChain, lift, power
from gyromc.prediction.exact.symmetric import Symmetric

MAX_STATE = 20


class Stretch(NamedTuple):
    """Several steps of the chain from a state z, and the sum S of h over them; quadratics in short form."""

    M: np.ndarray  # the last state has mean M ẑ …
    W: np.ndarray  # … and covariance W
    L: np.ndarray  # g ↦ E[g(last) | z]
    K: np.ndarray  # g ↦ Cov(S, g(last) | z)
    a: np.ndarray  # E[S | z]
    v: np.ndarray  # Var[S | z]


def square_moments(
    chain: LinearChain, u: np.ndarray, shift: float, num_steps: int, burn_in: int
) -> tuple[float, float, np.ndarray]:
    """Mean and variance of the average of (uᵀz + shift)², and its mean from each start."""
    direction = np.append(lift(u, chain.n), shift)
    size, short = chain.n + 1, Symmetric(chain.n + 1)
    one = _one_step(chain, short.vector(np.outer(direction, direction)))
    whole = power(_compose, one, num_steps)
    a, v = short.matrix(whole.a), short.matrix(whole.v)
    M, W = np.eye(size), np.zeros((size, size))
    if burn_in:
        before = power(_compose, one, burn_in)
        M, W = before.M, before.W
    rows = np.concatenate([chain.starts, np.ones((len(chain.starts), 1))], axis=1) @ M.T
    # Given the start, the first averaged state is Gaussian with mean `rows` and covariance W.
    expected = np.sum((rows @ a) * rows, axis=1) + np.sum(a * W)
    gradient = 2 * rows @ a
    inner = np.sum((rows @ v) * rows, axis=1) + np.sum(v * W)
    outer = np.sum((gradient @ W) * gradient, axis=1) + 2 * np.sum((a @ W) * (W @ a))
    variance = (np.mean(inner + outer) + np.var(expected)) / num_steps**2
    return float(np.mean(expected)) / num_steps, float(variance), expected / num_steps


def _one_step(chain: LinearChain, h: np.ndarray) -> Stretch:
    size = chain.n + 1
    M, W = np.eye(size), np.zeros((size, size))
    M[:-1, :-1], W[:-1, :-1] = chain.M, chain.W
    L = Symmetric(size).map(np.kron(M.T, M.T) + _constants(W))
    return Stretch(M, W, L, np.zeros_like(L), h, np.zeros_like(h))


def _compose(p: Stretch, q: Stretch) -> Stretch:
    """First p, then q."""
    B = _covariances(p, q.a)
    return Stretch(
        M=q.M @ p.M,
        W=q.M @ p.W @ q.M.T + q.W,
        L=p.L @ q.L,
        K=p.L @ q.K + (p.K + B) @ q.L,
        a=p.a + p.L @ q.a,
        v=p.v + p.L @ q.v + B @ q.a + 2 * p.K @ q.a,
    )


def _covariances(p: Stretch, a: np.ndarray) -> np.ndarray:
    """g ↦ Cov(a(last), g(last) | z) for symmetric g, the last state of p being Gaussian given z."""
    short = Symmetric(len(p.M))
    a = short.matrix(a)
    X = p.M.T @ a @ p.W
    cross = 2 * (np.kron(X, p.M.T) + np.kron(p.M.T, X))
    return short.map(cross + 2 * _constants(p.W @ a @ p.W))


def _constants(W: np.ndarray) -> np.ndarray:
    """g ↦ the constant quadratic tr(Wg)."""
    full = np.zeros((W.size, W.size))
    full[-1] = W.ravel()
    return full
