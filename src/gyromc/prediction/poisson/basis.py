"""Polynomials orthonormal under the target's own law, with exact derivative matrices (T2).

Input: a one-dimensional potential, or a law on the plane. Output: an `Axis`: nodes, weights, polynomials and the matrices of ∂ in
the basis. Nodes are equispaced: the trapezoidal rule converges very fast for smooth decaying densities.
"""

import dataclasses
from collections.abc import Callable

import numpy as np

from gyromc.errors import InvalidInput

SPACING = 0.2  # nodes, in standard deviations
Curve = Callable[[np.ndarray], np.ndarray]
NEGLIGIBLE = 45.0  # e⁻⁴⁵ of the density's maximum, polynomials counted


@dataclasses.dataclass(frozen=True, eq=False)
class Axis:
    """A factor of the target's law with a basis of L²: one coordinate of z, or two that do not separate."""

    coordinates: tuple[int, ...]
    nodes: np.ndarray  # m × k points
    weights: np.ndarray  # m, summing to one
    values: np.ndarray  # m × n: the orthonormal basis at the nodes, the constant first
    derivatives: np.ndarray  # k × n × n: ∂_i of basis function j has coefficients [i, :, j]
    recursion: tuple[float, float, np.ndarray] | None = None  # location, scale, x·p_n in the basis; on the line only

    def expand(self, values: np.ndarray) -> np.ndarray:
        """Coefficients of a function given at the nodes."""
        return self.values.T @ (self.weights * values)

    def at(self, point: float) -> np.ndarray:
        """The basis at one point of the line."""
        assert self.recursion is not None
        location, scale, table = self.recursion
        x, p = (point - location) / scale, [1.0]
        for n in range(1, self.values.shape[1]):
            below = p[n - 2] * table[n - 2, n - 1] if n > 1 else 0.0
            p.append(((x - table[n - 1, n - 1]) * p[n - 1] - below) / table[n, n - 1])
        return np.array(p)


def line(
    coordinate: int, potential: Curve, slope: Curve, degree: int, around: tuple[float, float], spacing: float = SPACING
) -> Axis:
    """The basis of degree 0 … `degree` for the law e^{-v} on the line; `around` is a guess of its center and scale."""
    mean, sd = location_and_scale(potential, *around)
    low, high = _extent(potential, mean, sd, degree)
    t = np.linspace(low, high, int(np.ceil((high - low) / (spacing * sd))) + 1)
    weights = _normalised(potential(t))
    values = _orthonormal((t - mean) / sd, weights, degree)
    stiffness = values.T @ (values * (weights * slope(t))[:, None])
    derivative = np.triu(stiffness, 1)  # T2: ⟨p_m, p_n′⟩ = ⟨p_m, v′p_n⟩ for m < n, else 0
    table = values.T @ (values * (weights * (t - mean) / sd)[:, None])
    return Axis((coordinate,), t[:, None], weights, values, derivative[None], (mean, sd, table))


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
            return (
                (mean, sd) if sd > 5 * step else location_and_scale(potential, mean, step)
            )  # a scale guessed too large
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


def plane(coordinates: tuple[int, int], nodes: np.ndarray, weights: np.ndarray, degree: int) -> Axis:
    """The basis of total degree up to `degree` for a law on the plane given on a grid of nodes (m × 2).

    Products are orthogonalised; derivatives come from differentiating the recursion and projecting, which is exact because the
    space is closed under ∂.
    """
    center = weights @ nodes
    scatter = (nodes - center).T @ ((nodes - center) * weights[:, None])
    white = np.linalg.inv(np.linalg.cholesky(scatter))
    x = (nodes - center) @ white.T
    count = (degree + 1) * (degree + 2) // 2
    values, slopes = np.ones((len(x), count)), np.zeros((2, len(x), count))
    place = {(0, 0): 0}
    for n in range(1, degree + 1):
        for i in range(n + 1):
            power, k = (n - i, i), len(place)
            axis = 0 if power[0] > 0 else 1
            parent = place[(power[0] - (axis == 0), power[1] - (axis == 1))]
            fresh = x[:, axis] * values[:, parent]
            grad = x[:, axis] * slopes[:, :, parent]
            grad[axis] += values[:, parent]
            for _ in range(2):
                overlap = values[:, :k].T @ (weights * fresh)
                fresh = fresh - values[:, :k] @ overlap
                grad = grad - slopes[:, :, :k] @ overlap
            size = np.sqrt(weights @ fresh**2)
            values[:, k], slopes[:, :, k] = fresh / size, grad / size
            place[power] = k
    in_white = np.stack([values.T @ (slope * weights[:, None]) for slope in slopes])
    derivatives = np.einsum("wi,wmn->imn", white, in_white)  # chain rule: x = white (z - center)
    return Axis(coordinates, nodes, weights, values, derivatives)
