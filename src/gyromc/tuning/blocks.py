"""Samplers in whitened coordinates: how many gradients each needs at equal bias on a Gaussian with precision K (T4).

The spectrum of K in; out the merit Φ = λ_max(E_θθ)(V̄₁ + 2V̄₂)/2 of samplers whose whitened drift Ã = P^{1/2}(D+Q)P^{1/2} falls
into 1 × 1 and 2 × 2 blocks. There Euler-Maruyama's covariance is I + ηE with ÃE + EÃᵀ = ÃÃᵀ, V̄₁ is the mean V of linear
observables and V̄₂ that of quadratic ones. Φ = 1 for D = K⁻¹; half of it means half the gradients for the same error.
"""

import dataclasses

import numpy as np
from scipy import linalg

from gyromc.dynamics import Dynamics
from gyromc.operators import Blocks, Scaled, as_operator
from gyromc.prediction.exact.mean_square import largest_stable_step
from gyromc.tuning.step_size import largest_root, variance_excess

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
    def rate(self) -> float:
        """How fast the slowest direction forgets where it was, per unit of time."""
        return float(np.linalg.eigvals(self.G).real.min())

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

    def inflation(self, step_size: float, noise: float = 0.0) -> float:
        """The variance of x under Euler-Maruyama, on a standard normal target with oracle noise of the given variance on ∇U."""
        return 1 + variance_excess(self.D, self.G - self.D, np.eye(1), np.full((1, 1), noise), step_size)

    def step_size(self, excess: float) -> float:
        """η at which the variance of x is 1 + excess."""
        return largest_root(lambda eta: self.inflation(eta) - 1, excess, largest_stable_step(self.G))

    def dynamics(self, root: np.ndarray) -> Dynamics:
        """The block in every direction of x = R⁻¹(θ - m), written in θ; R is the root, RRᵀ = K⁻¹."""
        D = as_operator(self.G[0, 0] * root @ root.T, "D")
        zero = Scaled(0.0, len(root))
        if len(self.G) == 1:
            return Dynamics(D, zero, self.name, augmented=False)
        turn, friction = float(self.G[1, 0]), float(self.G[1, 1])
        diffusion = Blocks(D, zero, zero, Scaled(friction, len(root)))
        rotation = Blocks(zero, as_operator(-turn * root, "Q"), as_operator(turn * root.T, "Q"), zero)
        return Dynamics(diffusion, rotation, self.name, augmented=True)


REVERSIBLE = Block(np.eye(1), "preconditioned SGLD (D = K⁻¹)")
ROTATING = Block(np.array([[2.0, -1.0], [1.0, 0.2]]), "SGHFHRMC, preconditioned")
"""HFHR with α = 2, γ = 0.2: beside D = K⁻¹, 2.4 times fewer gradients for posterior means, 1.4 times more for spreads."""


def merits(spectrum: np.ndarray) -> dict[str, float]:
    """Φ of the candidates on a Gaussian whose precision has these eigenvalues."""
    spectrum = np.sort(np.asarray(spectrum, float))
    plain = [np.array([[x]]) for x in spectrum]
    return {
        "SGLD (D = I)": _merit(plain),
        "SGNLMC (D = I, J pairing neighbours)": _merit(_paired(spectrum)),
        REVERSIBLE.name: REVERSIBLE.merit,
        ROTATING.name: ROTATING.merit,
    }


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
