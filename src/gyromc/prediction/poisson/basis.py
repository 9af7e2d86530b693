"""Polynomials orthonormal under the target's own law, with exact derivative matrices (T2), and observables on their grids.

An `Axis` has equispaced nodes that resolve the law of one coordinate. `Generator` takes axes, D and Q, and returns for the
coefficients of h a `Solution` of the Poisson equation 𝒜φ = h - μ(h) with V(h) = 2⟨ĥ, (-𝒜)⁻¹ĥ⟩ (E6). In an orthonormal basis
closed under ∂ the generator (E2) is exactly -𝒜 = Σ (D-Q)_ij ∂ᵢᵀ∂ⱼ. Its part within axes is diagonal after a change of basis on
each axis, which gives the preconditioner.
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
    i: int, potential: Curve, slope: Curve, degree: int, around: tuple[float, float], spacing: float = SPACING
) -> Axis:
    """The basis of degree 0 … `degree` for the law e^{-v} of coordinate i; `around` is a guess of its center and scale."""
    mean, sd = location_and_scale(potential, *around)
    # To where p²e^{-v} is negligible for polynomials p up to the degree.
    reach, lowest = np.arange(0.0, 400.0, 0.25), np.min(potential(mean + sd * np.linspace(-3, 3, 61)))
    deep = lowest + NEGLIGIBLE + 2 * degree * np.log1p(reach) / 1.5
    low, high = ends(lambda t: np.nan_to_num(potential(t), nan=np.inf), mean, sd * reach, deep)
    step = min(spacing * sd, (high - low) / (NODES_PER_DEGREE * degree))
    # Made denser until a shift by half a step does not show in the mass.
    while True:
        t = np.linspace(low, high, int(np.ceil((high - low) / step)) + 1)
        energy, between = potential(t), potential(t[:-1] + (t[1] - t[0]) / 2)
        density, other = np.exp(np.min(energy) - energy), np.exp(np.min(energy) - between)
        if abs(density.sum() - other.sum()) <= SETTLED * density.sum() or step < FINEST * sd:
            break
        step /= 2
    weights = density / density.sum()
    values = np.ones((len(t), degree + 1))
    for n in range(1, degree + 1):  # by the Lanczos recursion, orthogonalised twice
        fresh, before = (t - mean) / sd * values[:, n - 1], values[:, :n]
        for _ in range(2):
            fresh = fresh - before @ (before.T @ (weights * fresh))
        values[:, n] = fresh / np.sqrt(weights @ fresh**2)
    stiffness = values.T @ (values * (weights * slope(t))[:, None])
    derivative = np.triu(stiffness, 1)  # T2: ⟨p_m, p_n′⟩ = ⟨p_m, v′p_n⟩ for m < n, else 0
    table = values.T @ (values * (weights * (t - mean) / sd)[:, None])  # of multiplication

    def basis(points: np.ndarray) -> np.ndarray:
        x = (points - mean) / sd
        p = np.ones((len(table), len(x)))
        for n in range(1, len(table)):
            below = p[n - 2] * table[n - 2, n - 1] if n > 1 else 0.0
            p[n] = ((x - table[n - 1, n - 1]) * p[n - 1] - below) / table[n, n - 1]
        return p.T

    return Axis(i, t, weights, values, derivative, potential, basis)


def ends(potential: Curve, mean: float, reach: np.ndarray, depth: Any) -> tuple[float, float]:
    """The first points on either side beyond which v is deeper than `depth`, at distances `reach` from the mean."""
    last = lambda t: np.flatnonzero(~(potential(t) > depth))[-1]
    left, right = (float(t[min(last(t) + 1, len(t) - 1)]) for t in (mean - reach, mean + reach))
    return left, right


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
    why = "tails too heavy for polynomials, or no finite integral"
    raise InvalidInput(f"A one-dimensional factor of the target has {why}.")


MOST_NODES = 12_000_000
MOST_NUMBERS = 4_000_000


def axes_of(plan: Plan, chosen, degree: int, spacing: float) -> list[Axis]:
    """The axes of the parameters among the chosen coordinates."""
    energies, guesses = potentials(plan), guessed_scales(plan)
    slope = lambda i: functools.partial(slope_along, plan, i)
    return [line(i, energies[i], slope(i), degree, guesses[i], spacing) for i in chosen if i < plan.dim]


def momentum_axes(plan: Plan, chosen, degree: int) -> list[Axis]:
    """The axes of the momenta among the chosen coordinates of z."""
    normal = functools.partial(line, potential=lambda t: t**2 / 2, slope=lambda t: t, around=(0.0, 1.0))
    return [normal(i, degree=degree) for i in chosen if i >= plan.dim]


def potentials(plan: Plan) -> list[Curve]:
    """The potential of every coordinate, for a target that separates or has one parameter."""
    known = plan.flat_target.separable()
    if known is None:
        return [lambda t: plan.flat_target.potentials(t[:, None])]

    def padded(function: Curve, t: np.ndarray) -> np.ndarray:
        """Called with few different numbers of points: JAX compiles for each."""
        more = max(256, 1 << (len(t) - 1).bit_length()) - len(t)
        return np.asarray(function(np.append(t, np.full(more, t[-1]))))[: len(t)]

    return [functools.partial(padded, v) for v in known]


def guessed_scales(plan: Plan) -> list[tuple[float, float]]:
    """A guess of the center and the scale of every coordinate."""
    if plan.flat_target.separable() is not None and plan.flat_target.gaussian() is None:
        return [(0.0, 1.0)] * plan.dim
    center = plan.model.laplace
    return [(float(m), float(p) ** -0.5) for m, p in zip(center.mean, np.diag(center.precision), strict=True)]


def along_axis(plan: Plan, k: int, t: np.ndarray, function: Curve) -> np.ndarray:
    """A function of rows of θ at points with one coordinate given and the others zero, in blocks."""
    parts = np.array_split(t, 1 + len(t) * plan.dim // MOST_NUMBERS)
    return np.concatenate([function(part[:, None] * (np.arange(plan.dim) == k)) for part in parts])


def slope_along(plan: Plan, k: int, t: np.ndarray) -> np.ndarray:
    """v_k′, from the target's own gradient."""
    return along_axis(plan, k, t, lambda rows: plan.flat_target.gradients(rows)[:, k])


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

    def at(self, points: np.ndarray) -> np.ndarray:
        """φ at rows of z."""
        bases = [axis.basis(points[:, axis.coordinate]) for axis in self.generator.axes]
        values = np.zeros(len(points))
        for row in range(len(points)):
            value = self.coefficients
            for basis, frame in zip(bases, self.generator.frames, strict=True):
                value = np.tensordot(frame.T @ basis[row], value, axes=(0, 0))
            values[row] = value
        return values


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
        """Σ matrix_ij ∂ᵢᵀ∂ⱼ f for f with coefficients x."""
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
        """A rate at which what no polynomial represents decays at least: eigenvalues up to n/2 of degree n have converged."""
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

        def coupled(matrix: np.ndarray, y: np.ndarray) -> np.ndarray:
            """(I+B)y, B the part of the generator with this matrix, divided by the preconditioner on both sides."""
            y = y.reshape(self.shape)
            return (y + self.root * self.pairs(matrix, self.root * y)).ravel()

        # By least squares: the condition number of I+B is at most (1+‖B‖)/min sym, a few, usually.
        size: Any = (right.size, right.size)
        products = {"matvec": functools.partial(coupled, C), "rmatvec": functools.partial(coupled, C.T)}
        one_plus_B: Any = sparse.LinearOperator(size, dtype=float, **products)  # type: ignore[call-issue]  # incomplete stubs
        limits: Any = {"atol": 0.0, "btol": TOLERANCE, "conlim": 0.0, "iter_lim": MOST_ITERATIONS}
        y, reason, *_ = sparse.lsqr(one_plus_B, right.ravel(), **limits)
        if reason > 1:  # 0: the right side is 0, 1: solved
            raise InvalidInput("The Poisson equation did not converge: Q is very large against D. Scale it down.")
        y = y.reshape(right.shape)
        return Solution(float(2 * np.sum(right * y)), -self.root * y, self)  # E6, T2


def along(axis: int, matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The matrix applied to one index of a tensor."""
    return np.moveaxis(np.tensordot(matrix, x, axes=(1, axis)), 0, axis)


def coefficients(axes: Sequence[Axis], values: np.ndarray) -> np.ndarray:
    """⟨ψ, h⟩ for every product ψ of the axes' bases; `values` is h on the product of the axes' nodes."""
    for number, axis in enumerate(axes):
        values = along(number, (axis.values * axis.weights[:, None]).T, values)
    return values
