"""Galerkin's method (T2) for the Poisson equation 𝒜φ = h - μ(h), and V(h) = 2⟨ĥ, (-𝒜)⁻¹ĥ⟩ (E6).

Input: the factors of a target's law (`Axis`), D, Q and the coefficients of h. Output: a `Solution` with φ, V and the integral
that decides strict reduction. In an orthonormal basis closed under ∂ the generator (E2) is exactly -𝒜 = Σ (D-Q)_ij ∂ᵢᵀ∂ⱼ. Its
part within axes is diagonal after a change of basis on each axis, which gives the preconditioner; the rest is applied without
a matrix.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from gyromc.errors import InvalidInput
from gyromc.prediction.poisson.basis import Axis

TOLERANCE = 1e-11
MOST_ITERATIONS = 2000


@dataclasses.dataclass(frozen=True, eq=False)
class Solution:
    """φ in the axes' eigenbases, and quantities computed from it."""

    variance: float  # V
    coefficients: np.ndarray  # φ
    generator: "Generator"

    @functools.cached_property
    def gradient(self) -> dict[int, np.ndarray]:
        """∂ⱼφ for every coordinate j, in the eigenbases."""
        return {j: along(a, partial, self.coefficients) for j, (a, partial) in self.generator.partials.items()}

    def floor(self, covariance: np.ndarray) -> float:
        """μ(⟨∇φ, C∇φ⟩) for a constant matrix C: what noise of covariance C per step adds to N·Var."""
        inner = {(i, j): np.sum(a * b) for i, a in self.gradient.items() for j, b in self.gradient.items()}
        return float(sum(covariance[i, j] * value for (i, j), value in inner.items()))  # T1

    def at(self, points: np.ndarray) -> np.ndarray:
        """φ at rows of z, for axes on the line."""
        bases = [axis.basis(points[:, list(axis.coordinates)]) for axis in self.generator.axes]
        rows = []
        for row in range(len(points)):
            value = self.coefficients
            for basis, frame in zip(bases, self.generator.frames, strict=True):
                value = np.tensordot(frame.T @ basis[row], value, axes=(0, 0))
            rows.append(float(value))
        return np.array(rows)

    def change(self, h: np.ndarray) -> float:
        """By how much V changes, to first order, when h's coefficients change by these."""
        return float(-4 * np.sum(self.coefficients * self.generator.turned(h)))

    def quadratic(self, h: np.ndarray) -> float:
        """About V of these coefficients: exact without rotation where D couples no axes."""
        return float(2 * np.sum((self.generator.root * self.generator.turned(h)) ** 2))

    def strictness(self, Q: np.ndarray) -> float:
        """∫ |⟨Q∇H, ∇φ⟩|² dμ, projected on the basis."""
        return float(np.sum(self.generator.pairs(-Q, self.coefficients) ** 2))  # E7


class Generator:
    """-𝒜 on the tensor product of the axes' bases, in eigenbases of its part within each axis."""

    def __init__(self, axes: Sequence[Axis], D: np.ndarray, Q: np.ndarray):
        self.axes, self.D, self.Q = tuple(axes), D, Q
        self.frames, self.spectra, self.partials = [], [], {}
        for number, axis in enumerate(self.axes):
            own = list(axis.coordinates)
            within = np.einsum("ij,imk,jml->kl", D[np.ix_(own, own)], axis.derivatives, axis.derivatives, optimize=True)
            spectrum, frame = np.linalg.eigh((within + within.T) / 2)
            frame[:, 0], spectrum[0] = np.eye(len(spectrum))[0], 0.0  # the constant, exactly
            self.frames.append(frame)
            self.spectra.append(spectrum)
            for i, partial in zip(own, axis.derivatives, strict=True):
                self.partials[i] = (number, frame.T @ partial @ frame)
        self.shape = tuple(len(s) for s in self.spectra)
        total = functools.reduce(np.add.outer, self.spectra)
        total.flat[0] = np.inf  # constants: 𝒜1 = 0, and φ has mean zero
        self.root = 1 / np.sqrt(total)

    def pairs(self, matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Σ matrix_ij ∂ᵢᵀ∂ⱼ f for f with coefficients x; with -Q that is ⟨Q∇H, ∇f⟩, projected on the basis."""
        moved = {j: along(a, partial, x) for j, (a, partial) in self.partials.items() if np.any(matrix[:, j])}
        result = np.zeros_like(x)
        for i, (a, partial) in self.partials.items():
            terms = [matrix[i, j] * moved[j] for j in moved if matrix[i, j]]
            if terms:
                result += along(a, partial.T, functools.reduce(np.add, terms))  # E2
        return result

    def mean(self, x: np.ndarray, factors: dict[int, np.ndarray]) -> float:
        """μ(f·Π g_a) for f with coefficients x and functions g_a of single axes, in polynomial coefficients."""
        for number, frame in enumerate(self.frames):
            x = np.tensordot(frame.T @ factors[number], x, axes=(0, 0)) if number in factors else x[0]
        return float(x)

    def turned(self, h: np.ndarray) -> np.ndarray:
        """Coefficients in the polynomial basis, in the eigenbases."""
        for number, frame in enumerate(self.frames):
            h = along(number, frame.T, h)
        return h

    def slowest_left_out(self, numbers: Sequence[int], degree: int) -> float:
        """A rate at which what no polynomial of those axes represents decays at least.

        The basis of degree n holds the slowest functions; eigenvalues up to n/2 of it are taken to have converged.
        """
        own = [i for axis in self.axes for i in axis.coordinates]
        scale = np.sqrt(np.diag(self.D)[own])
        coupling = np.linalg.eigvalsh(self.D[np.ix_(own, own)] / np.outer(scale, scale))[0]  # D ⪰ coupling·diag D
        return float(coupling * min(np.sort(self.spectra[number])[degree // 2] for number in numbers))

    def solve(self, h: np.ndarray) -> Solution:
        """φ with 𝒜φ = h - μ(h), from h's coefficients in the polynomial basis."""
        right = self.root * self.turned(h)
        right.flat[0] = 0.0
        home = np.array([self.partials[i][0] if i in self.partials else -1 - i for i in range(len(self.D))])
        C = np.where(home[:, None] == home, -self.Q, self.D - self.Q)  # what is not in the preconditioner
        if not np.any(C):
            return Solution(float(2 * np.sum(right * right)), -self.root * right, self)  # E6, T2
        one_plus_B = lambda y: y + self.root * self.pairs(C, self.root * y)
        transposed = lambda y: y + self.root * self.pairs(C.T, self.root * y)
        y = _least_squares(one_plus_B, transposed, right)
        return Solution(float(2 * np.sum(right * y)), -self.root * y, self)  # E6, T2


def _least_squares(apply: Callable, transposed: Callable, right: np.ndarray) -> np.ndarray:
    """(I+B)⁻¹ right by conjugate gradients on (I+B)ᵀ(I+B), whose condition number is at most (1+‖B‖)²/min sym: a few, usually."""
    y, left = np.zeros_like(right), right.copy()
    if not np.any(right):
        return y
    gradient = transposed(left)
    direction, size = gradient, float(np.sum(gradient**2))
    goal = (TOLERANCE * float(np.linalg.norm(right))) ** 2
    for _ in range(MOST_ITERATIONS):
        image = apply(direction)
        step = size / float(np.sum(image**2))
        y += step * direction
        left -= step * image
        if float(np.sum(left**2)) <= goal:
            return y
        gradient = transposed(left)
        before, size = size, float(np.sum(gradient**2))
        direction = gradient + (size / before) * direction
    raise InvalidInput("The Poisson equation did not converge: Q is very large against D. Scale it down.")


def along(axis: int, matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The matrix applied to one index of a tensor."""
    return np.moveaxis(np.tensordot(matrix, x, axes=(1, axis)), 0, axis)


def coefficients(axes: Sequence[Axis], values: np.ndarray) -> np.ndarray:
    """⟨ψ, h⟩ for every product ψ of the axes' bases; `values` is h on the product of the axes' nodes."""
    for number, axis in enumerate(axes):
        values = along(number, (axis.values * axis.weights[:, None]).T, values)
    return values
