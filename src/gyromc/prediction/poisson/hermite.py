"""Products of normalised Hermite polynomials in several variables, and polynomials in that basis.

Input: exponents and points. Output: values, gradients and Hessians. ∂ᵢ of a product is √power times the product with that power
lowered by one, so derivatives are exact matrices on coefficients.
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


def derivative_matrices(powers: np.ndarray) -> list[sparse.csr_array]:
    """For every variable j the matrix of ∂ⱼ on products: ∂ⱼ product b = Σ_a [a, b] product a. The set must be closed under ∂."""
    index = {tuple(row): k for k, row in enumerate(powers.tolist())}
    size, down = len(powers), []
    for j in range(powers.shape[1]):
        here = np.flatnonzero(powers[:, j])
        below = [index[(*row[:j], row[j] - 1, *row[j + 1 :])] for row in powers[here].tolist()]
        down.append(sparse.csr_array((np.sqrt(powers[here, j]), (np.array(below, int), here)), (size, size)))
    return down


@dataclasses.dataclass(frozen=True, eq=False)
class Products:
    """The functions Π_j He_{power_kj}(x_j)/√(power_kj!) of z = (θ, r), with x = (W(θ - center), r)."""

    powers: np.ndarray  # functions × n, the constant's first
    center: np.ndarray  # of θ
    whitening: np.ndarray  # W
    _seen: dict = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def down(self) -> list[sparse.csr_array]:
        """The derivatives in x as matrices on coefficients."""
        return derivative_matrices(self.powers)

    @functools.cached_property
    def lift(self) -> np.ndarray:
        """∂x/∂z."""
        n, d = self.powers.shape[1], len(self.center)
        lift = np.eye(n)
        lift[:d, :d] = self.whitening
        return lift

    def at(self, z: np.ndarray) -> np.ndarray:
        """All functions at every row; those at the last two sets of rows are kept."""
        if id(z) not in self._seen:
            x = np.array(z, float)
            x[:, : len(self.center)] = (x[:, : len(self.center)] - self.center) @ self.whitening.T
            while len(self._seen) > 1:
                self._seen.pop(next(iter(self._seen)))
            self._seen[id(z)] = z, hermite(x, self.powers)
        return self._seen[id(z)][1]


@dataclasses.dataclass(frozen=True, eq=False)
class Polynomial:
    """Σ c_k ψ_k: a solution φ of the Poisson equation."""

    products: Products
    coefficients: np.ndarray

    @functools.cached_property
    def _slope_coefficients(self) -> np.ndarray:
        """n × functions: the coefficients of ∂ⱼ in whitened coordinates."""
        return np.stack([step @ self.coefficients for step in self.products.down])

    def values(self, z: np.ndarray) -> np.ndarray:
        """φ at every row."""
        return self.products.at(z) @ self.coefficients

    def gradients(self, z: np.ndarray) -> np.ndarray:
        """∇φ at every row."""
        return self.products.at(z) @ self._slope_coefficients.T @ self.products.lift

    def hessians(self, z: np.ndarray) -> np.ndarray:
        """∇²φ at every row."""
        lift, down = self.products.lift, self.products.down
        twice = np.stack([step @ self._slope_coefficients.T for step in down])  # n × functions × n
        twice = np.einsum("pi,pfq,qj->fij", lift, twice, lift, optimize=True)
        return np.tensordot(self.products.at(z), twice, axes=1)

    def second_derivatives(self, z: np.ndarray, D: np.ndarray) -> np.ndarray:
        """tr(D∇²φ) at every row."""
        inner = self.products.lift @ D @ self.products.lift.T
        mixed = inner @ self._slope_coefficients
        total = np.sum([step @ row for step, row in zip(self.products.down, mixed, strict=True)], axis=0)
        return self.products.at(z) @ total
