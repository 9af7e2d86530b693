"""Exact moments with mini-batch noise, which depends on the state: second moments of y = (z, s, 1) follow vec Y ← Φ vec Y (T1).

Input: a `LinearChain`. Output: the exact mean and variance of the average of uᵀθ, and the factor by which second moments
shrink per step. Φ has (n+2)² rows, so N steps cost O((n+2)⁶ log N): milliseconds for n = 6, about ten seconds for n = 24.
"""

import numpy as np

from gyromc.prediction.exact.chain import LinearChain, lift

MAX_STATE = 24


def linear_moments(chain: LinearChain, u: np.ndarray, num_steps: int, burn_in: int) -> tuple[float, float]:
    """Mean (about uᵀ of the target's mean) and variance of the average of uᵀθ."""
    n, Y = chain.n, _start(chain)
    if burn_in:
        Y = np.linalg.matrix_power(_phi(chain, np.zeros(n)), burn_in) @ Y
    Y = (np.linalg.matrix_power(_phi(chain, lift(u, chain.n)), num_steps) @ Y).reshape(n + 2, n + 2)
    mean = Y[n, n + 1]
    return mean / num_steps, (Y[n, n] - mean**2) / num_steps**2


def second_moments(chain: LinearChain, num_steps: int) -> np.ndarray:
    """E[ẑẑᵀ] after `num_steps` steps, ẑ = (z, 1)."""
    n = chain.n
    keep = np.append(np.arange(n), n + 1)
    Y = np.linalg.matrix_power(_phi(chain, np.zeros(n)), num_steps) @ _start(chain)
    return Y.reshape(n + 2, n + 2)[np.ix_(keep, keep)]


def _start(chain: LinearChain) -> np.ndarray:
    """vec E[y₀y₀ᵀ] over the starts, y₀ = (z₀, 0, 1)."""
    one = np.ones((len(chain.starts), 1))
    y0 = np.concatenate([chain.starts, 0 * one, one], axis=1)
    return (y0.T @ y0 / len(y0)).ravel()


def state_noise(chain: LinearChain) -> np.ndarray:
    """η²(G_θ ⊗ G_θ)T: n × n × (d+1) × (d+1), what the oracle adds to E[zzᵀ]."""
    spread = chain.step_size * chain.G[:, : chain.d]
    return np.einsum("ip,jq,paqb->ijab", spread, spread, chain.noise, optimize=True)


def _phi(chain: LinearChain, w: np.ndarray) -> np.ndarray:
    n, d, size = chain.n, chain.d, chain.n + 2
    F = np.eye(size)
    F[:n, :n], F[n, :n] = chain.M, w
    phi = np.kron(F, F).reshape(size, size, size, size)  # T1: F⊗F
    entries = np.append(np.arange(d), n + 1)  # where ẑ = (z_θ, 1) sits in y
    phi[np.ix_(np.arange(n), np.arange(n), entries, entries)] += state_noise(chain)  # T1: f Σᵢ Lᵢ⊗Lᵢ/(bN)
    phi[:n, :n, n + 1, n + 1] += 2 * chain.step_size * chain.D
    return phi.reshape(size * size, size * size)


def second_moment_radius(chain: LinearChain) -> float:
    """The factor by which second moments shrink per step: stable below 1. ρ(M)² for additive noise."""
    if chain.additive:
        return float(np.max(np.abs(np.linalg.eigvals(chain.M))) ** 2)
    n, d = chain.n, chain.d
    block = np.kron(chain.M, chain.M).reshape(n, n, n, n)  # the zz block of Φ: E[zzᵀ] minus its fixed point in one step
    block[:, :, :d, :d] += state_noise(chain)[:, :, :d, :d]
    return float(np.max(np.abs(np.linalg.eigvals(block.reshape(n * n, n * n)))))
