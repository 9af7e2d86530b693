"""The exact mean and variance of the average of (uᵀθ)² along a linear chain with additive Gaussian noise (T9: less a martingale).

Input: a `LinearChain`. Output: two numbers. Conditional means and variances of a quadratic ẑᵀaẑ, ẑ = (z, 1), are quadratics
again: for a run of steps from z with sum S, both E[S | z] and Var[S | z] are quadratics in z, and two runs compose. N steps cost
O(log N) products of matrices with (n+1)(n+2)/2 rows. The increments of a martingale are quadratic in the state and the noise, so
they only change what one step begins with. Here z stands for the whole state, a scheme's memory included.
"""

from typing import NamedTuple

import numpy as np

from gyromc.prediction.exact.chain import LinearChain, lift, power
from gyromc.prediction.exact.increments import Increment
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
    chain: LinearChain, u: np.ndarray, shift: float, num_steps: int, burn_in: int, less: Increment | None = None
) -> tuple[float, float, np.ndarray]:
    """Mean and variance of the average of (uᵀz + shift)², and its mean from each start; `less`: a martingale to subtract."""
    direction = np.append(lift(u, chain.size), shift)
    size, short = chain.size + 1, Symmetric(chain.size + 1)
    one = _one_step(chain, short.vector(np.outer(direction, direction)))
    whole = power(_compose, one if less is None else _less(chain, one, less), num_steps)
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
    size = chain.size + 1
    M, W = np.eye(size), np.zeros((size, size))
    M[:-1, :-1], W[:-1, :-1] = chain.M, chain.W
    L = Symmetric(size).map(np.kron(M.T, M.T) + _constants(W))
    return Stretch(M, W, L, np.zeros_like(L), h, np.zeros_like(h))


def _less(chain: LinearChain, one: Stretch, increment: Increment) -> Stretch:
    """One step whose sum is h less ψ = (Lẑ)ᵀw + wᵀRw - tr R: E[ψ | z] = 0, so that E[S | z] stays."""
    entering = np.concatenate([chain.C, chain.spread @ _root(chain.noise.constant)], axis=1)
    L, R = increment.forms(chain.M, entering)
    E = np.concatenate([entering, np.zeros((1, entering.shape[1]))])
    N, short = L.T @ E.T, Symmetric(len(one.M))
    K = -(np.kron(N, one.M.T) + np.kron(one.M.T, N)) - 2 * _constants(E @ R @ E.T)  # T9: Cov(-ψ, g(last) | z)
    v = L.T @ L
    v[-1, -1] += 2 * np.sum(R * R)
    return one._replace(K=short.map(K), v=short.vector(v))


def _root(covariance: np.ndarray) -> np.ndarray:
    """A symmetric root of a covariance, which may be singular."""
    values, basis = np.linalg.eigh(covariance)
    return (basis * np.sqrt(np.maximum(values, 0.0))) @ basis.T


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
