"""Products of normalised Hermite polynomials in several variables, and polynomials in that basis.

Input: exponents and points. Output: values, gradients and Hessians. ∂ᵢ of a product is √power times the product with that power
lowered by one, so derivatives are exact matrices ("ladders") on coefficients.
"""

import dataclasses
import functools
import itertools
import math

import numpy as np
from scipy import sparse


def count(dimension: int, degree: int) -> int:
    """The number of products of a total degree from 1 up to `degree`."""
    return math.comb(dimension + degree, degree) - 1


def multi_indices(dimension: int, degree: int) -> np.ndarray:
    """The exponents of all products of total degree 0 … `degree`, one row each."""
    rows = []
    for p in range(degree + 1):
        for chosen in itertools.combinations_with_replacement(range(dimension), p):
            rows.append(np.bincount(np.array(chosen, int), minlength=dimension))
    return np.array(rows)


def hermite(x: np.ndarray, powers: np.ndarray) -> np.ndarray:
    """Π_j He_{power_j}(x_j)/√(power_j!) at points (points × functions)."""
    top = int(powers.max(initial=1))
    table = np.ones((top + 1, *x.T.shape))
    table[1] = x.T
    for p in range(1, top):
        table[p + 1] = (table[1] * table[p] - math.sqrt(p) * table[p - 1]) / math.sqrt(p + 1)
    values = np.ones((len(powers), len(x)))
    for j in range(x.shape[1]):
        involved = np.flatnonzero(powers[:, j])
        values[involved] *= table[powers[involved, j], j]
    return values.T


def ladders(powers: np.ndarray) -> list[sparse.csr_array]:
    """For every variable j the matrix of ∂ⱼ on products: ∂ⱼ product b = Σ_a [a, b] product a. The set must be closed under ∂."""
    index = {tuple(row): k for k, row in enumerate(powers.tolist())}
    size, down = len(powers), []
    for j in range(powers.shape[1]):
        here = np.flatnonzero(powers[:, j])
        below = [index[(*row[:j], row[j] - 1, *row[j + 1 :])] for row in powers[here].tolist()]
        down.append(sparse.csr_array((np.sqrt(powers[here, j]), (np.array(below, int), here)), (size, size)))
    return down


@dataclasses.dataclass(frozen=True, eq=False)
class Polynomial:
    """Σ c_k Π_j He_{power_kj}(x_j)/√(power_kj!), x = (W(θ - center), r): a solution φ of the Poisson equation."""

    powers: np.ndarray  # functions × n, the constant's first
    center: np.ndarray  # of θ
    whitening: np.ndarray  # W
    coefficients: np.ndarray

    @functools.cached_property
    def _slope_coefficients(self) -> np.ndarray:
        """n × functions: the coefficients of ∂ⱼ in whitened coordinates."""
        return np.stack([step @ self.coefficients for step in self._down])

    @functools.cached_property
    def _down(self) -> list[sparse.csr_array]:
        return ladders(self.powers)

    @functools.cached_property
    def _lift(self) -> np.ndarray:
        n, d = self.powers.shape[1], len(self.center)
        lift = np.eye(n)
        lift[:d, :d] = self.whitening
        return lift

    def _basis(self, z: np.ndarray) -> np.ndarray:
        x = np.array(z, float)
        x[:, : len(self.center)] = (x[:, : len(self.center)] - self.center) @ self.whitening.T
        return hermite(x, self.powers)

    def values(self, z: np.ndarray) -> np.ndarray:
        """φ at every row."""
        return self._basis(z) @ self.coefficients

    def gradients(self, z: np.ndarray) -> np.ndarray:
        """∇φ at every row."""
        return self._basis(z) @ self._slope_coefficients.T @ self._lift

    def hessians(self, z: np.ndarray) -> np.ndarray:
        """∇²φ at every row."""
        twice = np.stack([[step @ c for step in self._down] for c in self._slope_coefficients])  # n × n × functions
        curve = np.tensordot(self._basis(z), twice, axes=(1, 2))
        return np.einsum("pi,spq,qj->sij", self._lift, curve, self._lift, optimize=True)
