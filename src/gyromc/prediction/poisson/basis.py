"""Polynomials orthonormal under the target's own law, with exact derivative matrices (T2), and observables on their grids.

Input: a plan whose target separates, and the coordinates that matter. Output: an `Axis` for each: nodes that resolve its law,
weights, polynomials and the matrix of ∂ in the basis; and values of h on the product of the nodes. Nodes are equispaced: the
trapezoidal rule converges very fast for smooth decaying densities.

`Generator` takes axes, D and Q, and returns for the coefficients of h a `Solution` of the Poisson equation 𝒜φ = h - μ(h) with
V(h) = 2⟨ĥ, (-𝒜)⁻¹ĥ⟩ (E6). In an orthonormal basis closed under ∂ the generator (E2) is exactly -𝒜 = Σ (D-Q)_ij ∂ᵢᵀ∂ⱼ. Its part
within axes is diagonal after a change of basis on each axis, which gives the preconditioner; the rest needs no matrix.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.sparse import linalg as sparse

from gyromc.errors import InvalidInput
from gyromc.observables import Observable
from gyromc.plan import Plan

SPACING = 0.2  # nodes, in standard deviations
FINEST = 0.02
NODES_PER_DEGREE = 4
SETTLED = 1e-11
Curve = Callable[[np.ndarray], np.ndarray]
NEGLIGIBLE = 45.0  # e⁻⁴⁵ of the density's maximum, polynomials counted


class TooLarge(InvalidInput):
    """A basis or a grid beyond what is computed."""


@dataclasses.dataclass(frozen=True, eq=False)
class Axis:
    """One coordinate of z, with a basis of L² of its law."""

    coordinate: int
    nodes: np.ndarray  # m points
    weights: np.ndarray  # m, summing to one
    values: np.ndarray  # m × n: the orthonormal basis at the nodes, the constant first
    derivative: np.ndarray  # n × n: ∂ of basis function j has coefficients [:, j]
    energy: Curve  # of the law, at points
    basis: Curve  # the functions at points, like `values`

    def expand(self, values: np.ndarray) -> np.ndarray:
        """Coefficients of a function given at the nodes."""
        return self.values.T @ (self.weights * values)

    def shifted(self, share: float, count: int = 1) -> "Axis":
        """The same basis on nodes shifted by a share of the step between them; `count` of them for each."""
        inner = (np.arange(count) + share) / count * (self.nodes[1] - self.nodes[0])
        nodes = (self.nodes[:, None] + inner).ravel()
        return dataclasses.replace(self, nodes=nodes, weights=_normalised(self.energy(nodes)), values=self.basis(nodes))


def line(
    coordinate: int, potential: Curve, slope: Curve, degree: int, around: tuple[float, float], spacing: float = SPACING
) -> Axis:
    """The basis of degree 0 … `degree` for the law e^{-v} on the line; `around` is a guess of its center and scale."""
    mean, sd = location_and_scale(potential, *around)
    low, high = _extent(potential, mean, sd, degree)
    step = min(spacing * sd, (high - low) / (NODES_PER_DEGREE * degree))
    t, weights = _resolved(potential, low, high, step, FINEST * sd)
    values = _orthonormal((t - mean) / sd, weights, degree)
    stiffness = values.T @ (values * (weights * slope(t))[:, None])
    derivative = np.triu(stiffness, 1)  # T2: ⟨p_m, p_n′⟩ = ⟨p_m, v′p_n⟩ for m < n, else 0
    table = values.T @ (values * (weights * (t - mean) / sd)[:, None])
    basis = lambda points: _recursion(table, (points - mean) / sd)
    return Axis(coordinate, t, weights, values, derivative, potential, basis)


def _resolved(potential: Curve, low: float, high: float, step: float, finest: float) -> tuple[np.ndarray, np.ndarray]:
    """Equispaced nodes and weights; the nodes are made denser until a shift by half a step does not show in the mass."""
    while True:
        t = np.linspace(low, high, int(np.ceil((high - low) / step)) + 1)
        energy, between = potential(t), potential(t[:-1] + (t[1] - t[0]) / 2)
        density, other = np.exp(np.min(energy) - energy), np.exp(np.min(energy) - between)
        if abs(density.sum() - other.sum()) <= SETTLED * density.sum() or step < finest:
            return t, density / density.sum()
        step /= 2


def _recursion(table: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Orthonormal polynomials at points from the matrix of multiplication by x."""
    p = np.ones((len(table), len(x)))
    for n in range(1, len(table)):
        below = p[n - 2] * table[n - 2, n - 1] if n > 1 else 0.0
        p[n] = ((x - table[n - 1, n - 1]) * p[n - 1] - below) / table[n, n - 1]
    return p.T


def _normalised(energy: np.ndarray) -> np.ndarray:
    density = np.exp(np.min(energy) - energy)
    return density / density.sum()


def location_and_scale(potential: Curve, center: float, scale: float) -> tuple[float, float]:
    """Mean and standard deviation of e^{-v}; the search widens until the density is negligible on both sides."""
    for reach in 2.0 ** np.arange(3, 13):
        t = center + scale * np.linspace(-reach, reach, 4001)
        energy = potential(t)
        if min(energy[0], energy[-1]) - energy.min() > NEGLIGIBLE:
            weights = _normalised(energy)
            mean = float(weights @ t)
            sd, step = float(np.sqrt(weights @ (t - mean) ** 2)), float(t[1] - t[0])
            if sd > 5 * step:
                return mean, sd
            # The scale was guessed too large.
            return location_and_scale(potential, mean, step)
    raise InvalidInput(
        "A one-dimensional factor of the target has tails too heavy for polynomials, or no finite integral."
    )


def _extent(potential: Curve, mean: float, sd: float, degree: int) -> tuple[float, float]:
    """Where p² e^{-v} is negligible for polynomials up to `degree`."""
    x = np.arange(0.0, 400.0, 0.25)
    ends = []
    for sign in (-1, 1):
        t = mean + sign * sd * x
        excess = potential(t) - np.min(potential(mean + sd * np.linspace(-3, 3, 61))) - 2 * degree * np.log1p(x) / 1.5
        beyond = np.flatnonzero(excess < NEGLIGIBLE)
        ends.append(float(t[min(beyond[-1] + 1, len(x) - 1)]))
    return ends[0], ends[1]


def _orthonormal(x: np.ndarray, weights: np.ndarray, degree: int) -> np.ndarray:
    """Orthonormal polynomials at the nodes by the Lanczos recursion, orthogonalised twice."""
    basis = np.ones((len(x), degree + 1))
    for n in range(1, degree + 1):
        fresh = x * basis[:, n - 1]
        for _ in range(2):
            fresh = fresh - basis[:, :n] @ (basis[:, :n].T @ (weights * fresh))
        basis[:, n] = fresh / np.sqrt(weights @ fresh**2)
    return basis


MOST_NODES = 12_000_000
MOST_NUMBERS = 4_000_000


def axes_of(plan: Plan, chosen, degree: int, spacing: float) -> list[Axis]:
    """The axes of the parameters among the chosen coordinates."""
    energies, guesses = potentials(plan), guessed_scales(plan)
    slopes = [functools.partial(slope_along, plan, i) for i in range(plan.dim)]
    return [line(i, energies[i], slopes[i], degree, guesses[i], spacing) for i in chosen if i < plan.dim]


def momentum_axes(plan: Plan, chosen, degree: int) -> list[Axis]:
    """The axes of the momenta among the chosen coordinates of z."""
    normal = functools.partial(line, potential=lambda t: t**2 / 2, slope=lambda t: t, around=(0.0, 1.0))
    return [normal(i, degree=degree) for i in chosen if i >= plan.dim]


def potentials(plan: Plan) -> list[Curve]:
    """The potential of every coordinate, for a target that separates or has one parameter."""
    known = plan.flat_target.separable()
    if known is None:
        return [lambda t: plan.flat_target.potentials(t[:, None])]
    return [functools.partial(_padded, v) for v in known]


def _padded(function: Curve, t: np.ndarray) -> np.ndarray:
    """The function at points, called with few different numbers of points: JAX compiles for each."""
    more = max(256, 1 << (len(t) - 1).bit_length()) - len(t)
    return np.asarray(function(np.append(t, np.full(more, t[-1]))))[: len(t)]


def guessed_scales(plan: Plan) -> list[tuple[float, float]]:
    """A guess of the center and the scale of every coordinate."""
    if plan.flat_target.separable() is not None and plan.flat_target.gaussian() is None:
        return [(0.0, 1.0)] * plan.dim
    center = plan.model.laplace
    return [(float(m), float(p) ** -0.5) for m, p in zip(center.mean, np.diag(center.precision), strict=True)]


def values_along(plan: Plan, h: Observable, k: int, t: np.ndarray) -> np.ndarray:
    """h at points with one coordinate given and the others zero."""
    return np.concatenate(
        [plan.model.values(h, part[:, None] * (np.arange(plan.dim) == k)) for part in _blocks(plan, t)]
    )


def slope_along(plan: Plan, i: int, t: np.ndarray) -> np.ndarray:
    """v_i′, from the target's own gradient."""
    parts = (np.repeat(part[:, None], plan.dim, axis=1) for part in _blocks(plan, t))
    return np.concatenate([plan.flat_target.gradients(rows)[:, i] for rows in parts])


def _blocks(plan: Plan, t: np.ndarray) -> list[np.ndarray]:
    """Points in blocks of at most `MOST_NUMBERS` numbers as rows of θ."""
    return np.array_split(t, 1 + len(t) * plan.dim // MOST_NUMBERS)


def on_grid(plan: Plan, h: Observable, axes: list[Axis], most: int = MOST_NODES) -> np.ndarray:
    """h on the product of the nodes of the axes it reads."""
    counts = [len(axis.weights) for axis in axes]
    if np.prod(counts) > most:
        raise TooLarge(f"The observable reads {len(axes)} coordinates: too many for a grid that resolves the target.")
    rows = np.zeros((int(np.prod(counts)), plan.dim))
    grid = np.meshgrid(*map(np.arange, counts), indexing="ij", copy=False)
    for axis, index in zip(axes, grid, strict=True):
        rows[:, axis.coordinate] = axis.nodes[index.ravel()]
    values = plan.model.values(h, rows).reshape(counts)
    if not np.all(np.isfinite(values)):
        raise InvalidInput("The observable is NaN or infinite where the target has mass.")
    return values


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
        """φ at rows of z."""
        bases = [axis.basis(points[:, axis.coordinate]) for axis in self.generator.axes]
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
            i, partial = axis.coordinate, axis.derivative
            spectrum, frame = np.linalg.eigh(D[i, i] * partial.T @ partial)
            frame[:, 0], spectrum[0] = np.eye(len(spectrum))[0], 0.0  # the constant, exactly
            self.frames.append(frame)
            self.spectra.append(spectrum)
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
        own = [axis.coordinate for axis in self.axes]
        scale = np.sqrt(np.diag(self.D)[own])
        coupling = np.linalg.eigvalsh(self.D[np.ix_(own, own)] / np.outer(scale, scale))[0]  # D ⪰ coupling·diag D
        return float(coupling * min(np.sort(self.spectra[number])[degree // 2] for number in numbers))

    def solve(self, h: np.ndarray) -> Solution:
        """φ with 𝒜φ = h - μ(h), from h's coefficients in the polynomial basis."""
        right = self.root * self.turned(h)
        right.flat[0] = 0.0
        C = self.D - self.Q - np.diag(np.diag(self.D))  # what is not in the preconditioner
        if not np.any(C):
            return Solution(float(2 * np.sum(right * right)), -self.root * right, self)  # E6, T2
        one_plus_B, transposed = (functools.partial(self._coupled, matrix) for matrix in (C, C.T))
        y = _least_squares(one_plus_B, transposed, right)
        return Solution(float(2 * np.sum(right * y)), -self.root * y, self)  # E6, T2

    def _coupled(self, matrix: np.ndarray, y: np.ndarray) -> np.ndarray:
        """(I+B)y, B the part of the generator with this matrix, divided by the preconditioner on both sides."""
        y = y.reshape(self.shape)
        return (y + self.root * self.pairs(matrix, self.root * y)).ravel()


def _least_squares(apply: Callable, transposed: Callable, right: np.ndarray) -> np.ndarray:
    """(I+B)⁻¹ right by least squares: the condition number of I+B is at most (1+‖B‖)/min sym, a few, usually."""
    size: Any = (right.size, right.size)
    one_plus_B: Any = sparse.LinearOperator(size, matvec=apply, rmatvec=transposed, dtype=float)  # type: ignore[call-issue]  # incomplete stubs
    y, reason, *_ = sparse.lsqr(
        one_plus_B, right.ravel(), atol=0.0, btol=TOLERANCE, conlim=0.0, iter_lim=MOST_ITERATIONS
    )
    if reason > 1:  # 0: the right side is 0, 1: solved
        raise InvalidInput("The Poisson equation did not converge: Q is very large against D. Scale it down.")
    return y.reshape(right.shape)


def along(axis: int, matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The matrix applied to one index of a tensor."""
    return np.moveaxis(np.tensordot(matrix, x, axes=(1, axis)), 0, axis)


def coefficients(axes: Sequence[Axis], values: np.ndarray) -> np.ndarray:
    """⟨ψ, h⟩ for every product ψ of the axes' bases; `values` is h on the product of the axes' nodes."""
    for number, axis in enumerate(axes):
        values = along(number, (axis.values * axis.weights[:, None]).T, values)
    return values
