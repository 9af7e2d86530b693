"""Samplers in whitened coordinates: how many gradients each needs at equal bias on a Gaussian with precision K (T4).

The spectrum of K in; out the merit Φ = λ_max(E_θθ)(V̄₁ + 2V̄₂)/2 of samplers whose whitened drift Ã = P^{1/2}(D+Q)P^{1/2} falls
into 1 × 1 and 2 × 2 blocks. There Euler-Maruyama's covariance is I + ηE with ÃE + EÃᵀ = ÃÃᵀ, V̄₁ is the mean V of linear
observables and V̄₂ that of quadratic ones. Φ = 1 for D = K⁻¹; half of it means half the gradients for the same error.
"""

import dataclasses

import numpy as np
from scipy import linalg

from gyromc.dynamics import gaul

__all__ = ["REVERSIBLE", "ROTATING", "Block", "merits"]


@dataclasses.dataclass(frozen=True, eq=False)
class Block:
    """One whitened coordinate, with its momentum or without: dx = -Gx dt + √(2 sym G) dB, the same for all coordinates.

    **Arguments:**

    - `G`: 1 × 1 on x, or 2 × 2 on (x, r).
    - `name`: of the sampler that is this block in whitened coordinates.
    """

    G: np.ndarray
    name: str

    @property
    def D(self) -> np.ndarray:
        """The symmetric part of G."""
        return (self.G + self.G.T) / 2

    @property
    def linear(self) -> float:
        """V of x itself."""
        inverse = np.linalg.inv(self.G)
        return float(2 * (inverse @ self.D @ inverse.T)[0, 0])  # E8 with P = I

    @property
    def square(self) -> float:
        """V of x², per unit of its variance."""
        h = np.zeros_like(self.G)
        h[0, 0] = 1.0
        return float(2 * linalg.solve_continuous_lyapunov(self.G.T, h)[0, 0])

    @property
    def merit(self) -> float:
        """Φ."""
        E = linalg.solve_continuous_lyapunov(self.G, self.G @ self.G.T)  # T4
        return float(E[0, 0] * (self.linear + 2 * self.square) / 2)


REVERSIBLE = Block(np.eye(1), "preconditioned SGLD (D = K⁻¹)")
ROTATING = Block(np.array([[2.0, -1.0], [1.0, 0.2]]), "SGHFHRMC, preconditioned")
"""HFHR with α = 2, γ = 0.2: beside D = K⁻¹, 2.4 times fewer gradients for posterior means, 1.4 times more for spreads."""


GAUL_A, GAUL_GAMMA = (0.25, 0.5, 1.0, 2.0, 4.0), (0.1, 0.2, 0.5, 1.0, 2.0)


def merits(spectrum: np.ndarray) -> dict[str, float]:
    """Φ of the candidates on a Gaussian whose precision has these eigenvalues."""
    spectrum = np.sort(np.asarray(spectrum, float))
    plain = [np.array([[x]]) for x in spectrum]
    return {
        "SGLD (D = I)": _merit(plain),
        "SGNLMC (D = I, J pairing neighbours)": _merit(_paired(spectrum)),
        REVERSIBLE.name: REVERSIBLE.merit,
        ROTATING.name: ROTATING.merit,
        "SGGAULMC, preconditioned": min(_gaul(a, gamma).merit for a in GAUL_A for gamma in GAUL_GAMMA),
    }


def _gaul(a: float, gamma: float) -> Block:
    """GAUL in a whitened coordinate."""
    dynamics = gaul(np.eye(1), a, gamma)
    return Block(dynamics.D + dynamics.Q, "SGGAULMC, preconditioned")


def _paired(spectrum: np.ndarray) -> list[np.ndarray]:
    """Ã with neighbouring eigenvalues rotated into each other, the largest left alone when their number is odd (T4)."""
    even = spectrum[: len(spectrum) // 2 * 2].reshape(-1, 2)
    blocks = [np.array([[x]]) for x in spectrum[2 * len(even) :]]
    for a, b in even:
        turn = np.sqrt(max(0.0, spectrum[-1] / ((a + b) / 2) - 1) * a * b)
        blocks.append(np.array([[a, -turn], [turn, b]]))
    return blocks


def _merit(blocks: list[np.ndarray]) -> float:
    """Φ for θ-space dynamics with these blocks of Ã."""
    worst = max(float(np.linalg.eigvalsh(linalg.solve_continuous_lyapunov(A, A @ A.T))[-1]) for A in blocks)
    linear = 2 * sum(float(np.trace(np.linalg.inv(A))) for A in blocks) / sum(map(len, blocks))
    mu = np.concatenate([np.linalg.eigvals(A) for A in blocks])
    sums = 1 / (mu[:, None] + mu[None, :])
    square = 2 * float(np.mean(sums[np.triu_indices(len(mu))]).real)
    return worst * (linear + 2 * square) / 2  # T4
