"""Exact moments with mini-batch noise, which depends on the state: second moments of ŷ = (y, 1) follow vec Y ← Φ vec Y (T1).

Input: a `LinearChain`. Output: second moments of the state, and mean and covariance of the average of y over N steps. Since
E[y_l | y_k] = M^{l-k}y_k, all covariances between steps follow from Y_k. Two runs of steps compose to a longer one, so N steps
cost O(n⁶ log N), once for all observables: milliseconds for n = 6, about a second for n = 24.
"""

from typing import NamedTuple

import numpy as np

from gyromc.prediction.exact.chain import LinearChain, power
from gyromc.prediction.exact.symmetric import Symmetric

MAX_STATE = 24


class Sums(NamedTuple):
    """m steps from second moments Y, in short form, with Φ their map over one step."""

    M: np.ndarray  # M^m
    B: np.ndarray  # Σ_{i=1..m} M^i
    Phi: np.ndarray  # Φ^m
    X: np.ndarray  # Σ_{k<m} Φ^k
    U: np.ndarray  # Σ_{k<m} M^{m-1-k} Φ^k, y-block: n × n × short
    Z: np.ndarray  # Σ_{k<m} (Σ_{i=1..m-1-k} M^i) Φ^k, y-block


def _compose(p: Sums, q: Sums) -> Sums:
    """First p, then q."""
    return Sums(
        M=q.M @ p.M,
        B=p.B + p.M @ q.B,
        Phi=q.Phi @ p.Phi,
        X=p.X + q.X @ p.Phi,
        U=_times(q.M, p.U) + q.U @ p.Phi,
        Z=p.Z + _times(q.B, p.U) + q.Z @ p.Phi,
    )


def _times(M: np.ndarray, block: np.ndarray) -> np.ndarray:
    return (M @ block.reshape(len(M), -1)).reshape(block.shape)


class StateAverage(NamedTuple):
    """Mean and covariance of the average of y, and the map from y₀ to its mean."""

    mean: np.ndarray
    covariance: np.ndarray
    of_start: np.ndarray


def average_moments(chain: LinearChain, num_steps: int, burn_in: int) -> StateAverage:
    """Mean and covariance of the average of y over `num_steps` states."""
    n, short = chain.size, Symmetric(chain.size + 1)
    Phi, start = _phi(chain), short.vector(_start(chain))
    if burn_in:
        start = np.linalg.matrix_power(Phi, burn_in) @ start
    pick = np.eye((n + 1) ** 2).reshape(n + 1, n + 1, -1)[:n, :n]
    block = short.inputs(pick)
    total = power(_compose, Sums(chain.M, chain.M, Phi, np.eye(len(Phi)), block, 0 * block), num_steps)
    same, ahead = short.matrix(total.X @ start), total.Z @ start
    mean = same[:-1, -1]  # of Σ y_k
    covariance = (same[:-1, :-1] + ahead + ahead.T - np.outer(mean, mean)) / num_steps**2
    of_start = (np.eye(n) + total.B - total.M) @ np.linalg.matrix_power(chain.M, burn_in) / num_steps
    return StateAverage(mean / num_steps, covariance, of_start)


def second_moments(chain: LinearChain, num_steps: int) -> np.ndarray:
    """E[ŷŷᵀ] after `num_steps` steps, ŷ = (y, 1)."""
    short = Symmetric(chain.size + 1)
    return short.matrix(np.linalg.matrix_power(_phi(chain), num_steps) @ short.vector(_start(chain)))


def _start(chain: LinearChain) -> np.ndarray:
    """E[ŷ₀ŷ₀ᵀ] over the starts."""
    rows = np.concatenate([chain.starts, np.ones((len(chain.starts), 1))], axis=1)
    return rows.T @ rows / len(rows)


def _phi(chain: LinearChain) -> np.ndarray:
    n, d, size = chain.size, chain.d, chain.size + 1
    F = np.eye(size)
    F[:n, :n] = chain.M
    phi = np.kron(F, F).reshape(size, size, size, size)  # T1: F⊗F
    entries = np.append(np.arange(d), n)  # where (θ, 1) sits in ŷ
    noise = np.einsum("ip,jq,paqb->ijab", chain.spread, chain.spread, chain.noise.tensor, optimize=True)
    phi[np.ix_(np.arange(n), np.arange(n), entries, entries)] += noise  # T1: f Σᵢ Lᵢ⊗Lᵢ/(bN)
    phi[:n, :n, n, n] += chain.drawn
    return Symmetric(size).map(phi.reshape(size * size, size * size))
