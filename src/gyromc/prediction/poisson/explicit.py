"""The Poisson equation 𝒜φ = h - μ(h) of one coordinate without rotation, solved by integration.

Input: the law e^{-v} of one coordinate, D > 0 and a function h of it. Output: a `Line`: μ(h), V, φ, and the errors of the
quadrature. From D(pφ′)′ = p(h - μ), with p the density: φ′ = F/(Dp), F(x) = ∫₋∞ˣ (h - μ)p, and V = 2∫ Dφ′²p. Kinks and jumps
of h need no basis.
"""

import dataclasses
import functools
import math

import numpy as np
from scipy import interpolate

from gyromc.errors import InvalidInput
from gyromc.prediction.methods import Number
from gyromc.prediction.poisson.basis import NEGLIGIBLE, Curve, location_and_scale
from gyromc.prediction.poisson.panels import RESOLVED, Panels, refined, slope_matrix, uneven

FIRST_PANELS = 128
DEEPEST = 600.0  # energy above the minimum, where e^{-v} is still a normal number


@dataclasses.dataclass(frozen=True, eq=False)
class Line:
    """h and the law on panels of the line, with the solution φ."""

    panels: Panels  # values: h, v up to a constant
    D: float
    expectation: Number
    variance: Number

    @functools.cached_property
    def density(self) -> np.ndarray:
        """p at the nodes."""
        return _density(self.panels)

    @functools.cached_property
    def slope(self) -> np.ndarray:
        """φ′ at the nodes."""
        return _flux(self.panels, self.density, self.expectation.value) / (self.D * self.density)

    def mean(self, values: np.ndarray) -> float:
        """The expectation of something given at the nodes."""
        return float(np.sum(self.panels.weights * self.density * values))

    def curvature_integral(self, slope: np.ndarray) -> tuple[float, float]:
        """μ(φ″v″) and μ(φ″), with v′ given at the nodes."""
        curvature = slope @ slope_matrix().T / self.panels.half  # v″
        bend = (self.panels.values[0] - self.expectation.value) / self.D + slope * self.slope  # φ″
        return self.mean(bend * curvature), self.mean(bend)

    def at(self, points: np.ndarray) -> np.ndarray:
        """φ at some points, with μ(φ) = 0; NaN where the panels do not reach."""
        phi = self.panels.running(self.slope)
        nodes, first = np.unique(self.panels.nodes.ravel(), return_index=True)
        curve = interpolate.CubicHermiteSpline(nodes, phi.ravel()[first], self.slope.ravel()[first], extrapolate=False)
        return curve(points) - self.mean(phi)


def _density(panels: Panels) -> np.ndarray:
    density = np.exp(-panels.values[1])
    return density / np.sum(panels.weights * density)


def _flux(panels: Panels, density: np.ndarray, mu: float) -> np.ndarray:
    """F at the nodes, summed from the nearer end, where nothing cancels."""
    source = density * (panels.values[0] - mu)
    left = panels.running(density) < 0.5
    return np.where(left, panels.running(source), -panels.running(source, from_right=True))


def solve_line(h: Curve, potential: Curve, D: float, around: tuple[float, float], reached: np.ndarray) -> Line:
    """Solve for one coordinate; `around` guesses the law's center and scale, `reached` are points where φ will be asked for."""
    low, high, lowest = _ends(potential, *location_and_scale(potential, *around), reached)
    functions = lambda t: (h(t), potential(t) - lowest)
    panels, found, gap = refined(functions, functools.partial(_integrals, D), uneven(low, high, FIRST_PANELS), local=3)
    if not np.all(np.isfinite(found)):
        raise InvalidInput("The observable is NaN or infinite where the target has mass.")
    mass, first, second, V = found
    if not np.ptp(panels.values[0]) > 0:
        raise InvalidInput("The observable is constant wherever it was evaluated.")
    error = (gap[1] + abs(first / mass) * gap[0] + RESOLVED * math.sqrt(mass * second)) / mass
    return Line(panels, D, Number(float(first / mass), float(error)), Number(float(V), float(gap[3] + RESOLVED * V)))


def _integrals(D: float, panels: Panels) -> np.ndarray:
    """Over every panel: e^{-v}, he^{-v}, h²e^{-v} and 2Dφ′²p."""
    (h, energy), p, w = panels.values, _density(panels), panels.weights
    raw, mu = np.exp(-energy), float(np.sum(w * p * h))
    parts = raw, h * raw, h**2 * raw, 2 * _flux(panels, p, mu) ** 2 / (D * p)  # E6
    return np.stack([np.sum(w * part, axis=1) for part in parts], axis=1)


def _ends(potential: Curve, mean: float, sd: float, reached: np.ndarray) -> tuple[float, float, float]:
    """Where the density is negligible against its maximum and its values at the points to be reached; the lowest energy."""
    x = np.concatenate([np.arange(0.0, 40.0, 0.25), 40.0 * 1.1 ** np.arange(60)])
    lowest = float(np.min(potential(mean + sd * np.linspace(-4, 4, 161))))
    outer = potential(reached) - lowest if len(reached) else np.zeros(1)
    deep = NEGLIGIBLE + float(np.max(outer[outer < DEEPEST - NEGLIGIBLE], initial=0.0))
    ends = []
    for sign in (-1, 1):
        t = mean + sign * sd * x
        inside = np.flatnonzero(~(potential(t) - lowest > deep))
        ends.append(float(t[min(inside[-1] + 1, len(x) - 1)]))
    return ends[0], ends[1], lowest
