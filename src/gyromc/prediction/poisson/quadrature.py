"""The Poisson equation of one coordinate without rotation, integrated: any h, with jumps, kinks, oscillation and high barriers.

Input: the law p ∝ e^{-v} of one coordinate, D > 0 and h. From D(pφ′)′ = p(h - μ): φ′ = F/(Dp), F(x) = ∫₋∞ˣ (h - μ)p, and
V = 2∫ Dφ′²p. Output: a `Line` with μ(h), V, φ and errors. Panels of a Gauss-Lobatto rule are divided until nothing changes.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.polynomial import legendre
from scipy import interpolate

from gyromc.errors import InvalidInput
from gyromc.prediction.answers import RESOLVED, Number
from gyromc.prediction.poisson.basis import NEGLIGIBLE, Curve, ends, location_and_scale

ORDER = 16  # nodes in a panel
FIRST_PANELS = 128
MOST_PANELS = 8192
MOST_ROUNDS = 80
SETTLED = 1e-14  # change of an integral by dividing one panel, as a share of the integral of its size
DEEPEST = 600.0  # energy above the minimum, where e^{-v} is still a normal number


def _lobatto() -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a rule that includes both ends, so that no jump hides between the last node and the end."""
    highest = np.eye(ORDER)[-1]
    slope, curvature = legendre.legder(highest), legendre.legder(highest, 2)
    inner = np.real(legendre.legroots(slope))  # real, whatever type NumPy gives them
    inner -= legendre.legval(inner, slope) / legendre.legval(inner, curvature)
    nodes = np.concatenate([[-1.0], inner, [1.0]])
    return nodes, 2 / (ORDER * (ORDER - 1) * legendre.legval(nodes, highest) ** 2)


NODES, WEIGHTS = _lobatto()
TO_LEGENDRE = np.linalg.inv(legendre.legvander(NODES, ORDER - 1))
# Integrals from -1 to each node.
RUNNING = legendre.legval(NODES, legendre.legint(np.eye(ORDER), lbnd=-1)).T @ TO_LEGENDRE
SLOPES = legendre.legval(NODES, legendre.legder(np.eye(ORDER))).T @ TO_LEGENDRE
# A panel is divided at a node: both rules would place a jump beside the middle wrongly by the same amount.
SPLIT = (1 + NODES[ORDER // 2]) / 2


@dataclasses.dataclass(frozen=True, eq=False)
class Panels:
    """Adjacent intervals between edges, with functions given at `ORDER` nodes of each."""

    edges: np.ndarray
    values: tuple[np.ndarray, ...] = ()  # each panels × ORDER

    @property
    def half(self) -> np.ndarray:
        """Half the widths, as a column."""
        return np.diff(self.edges)[:, None] / 2

    @property
    def nodes(self) -> np.ndarray:
        """Panels × ORDER."""
        return (self.edges[:-1] + self.edges[1:])[:, None] / 2 + self.half * NODES

    @property
    def weights(self) -> np.ndarray:
        """Panels × ORDER; they sum to the length."""
        return self.half * WEIGHTS

    def of(self, functions: Callable) -> "Panels":
        """The panels with the values of functions, which map points to a tuple of arrays."""
        return Panels(self.edges, tuple(v.reshape(-1, ORDER) for v in functions(self.nodes.ravel())))

    def running(self, values: np.ndarray, from_right: bool = False) -> np.ndarray:
        """The integral from the left end to every node; from every node to the right end with `from_right`."""
        totals = np.sum(self.weights * values, axis=1)
        inside = self.half * (values @ RUNNING.T)
        if not from_right:
            return inside + (np.cumsum(totals) - totals)[:, None]
        return (np.cumsum(totals[::-1])[::-1])[:, None] - inside


def refined(functions: Callable, integrals: Callable, edges: np.ndarray, local: int = 1) -> tuple[Panels, Any, Any]:
    """Panels on which integrals have settled, those integrals, and their errors: the changes under the last division.

    `integrals` maps `Panels` to an array with a row for each. The first `local` columns depend on the panel alone; the others use
    the integrals over other panels too, and are looked at once the local ones have settled.
    """
    for _ in range(MOST_ROUNDS):
        middles = edges[:-1] + SPLIT * np.diff(edges)
        panels, finer = (Panels(e).of(functions) for e in (edges, np.sort(np.append(edges, middles))))
        fine = integrals(finer)
        both, size = fine[0::2] + fine[1::2], np.sum(np.abs(fine), axis=0)
        gap = np.abs(integrals(panels) - both)
        bad = np.any(~(gap[:, :local] <= SETTLED * size[:local]), axis=1)
        bad = bad if np.any(bad) else np.any(~(gap <= RESOLVED / 10 * size), axis=1)
        if not np.any(bad) or len(middles) + np.sum(bad) > MOST_PANELS:
            break
        edges = np.sort(np.append(edges, middles[bad]))
    return finer, both.sum(axis=0), gap.sum(axis=0) + RESOLVED * size


@dataclasses.dataclass(frozen=True, eq=False)
class Line:
    """h and the law on panels of the line, with the solution φ."""

    panels: Panels  # values: h, v up to a constant
    expectation: Number
    variance: Number
    density: np.ndarray  # p at the nodes
    slope: np.ndarray  # φ′ at the nodes

    def mean(self, values: np.ndarray) -> float:
        """The expectation of something given at the nodes."""
        return float(np.sum(self.panels.weights * self.density * values))

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
    mean, sd = location_and_scale(potential, *around)
    lowest = float(np.min(potential(mean + sd * np.linspace(-4, 4, 161))))
    # To where the density is negligible against its maximum and its values at the points to be reached.
    outer = potential(reached) - lowest
    reach = np.concatenate([np.arange(0.0, 40.0, 0.25), 40.0 * 1.1 ** np.arange(60)])
    deep = NEGLIGIBLE + float(np.max(outer[outer < DEEPEST - NEGLIGIBLE], initial=0.0))
    low, high = ends(potential, mean, sd * reach, lowest + deep)
    # of different widths, so that no regular pattern of h is hidden by the nodes
    inner = np.arange(1, FIRST_PANELS) + np.random.default_rng(0).uniform(-0.25, 0.25, FIRST_PANELS - 1)
    edges = low + (high - low) * np.concatenate([[0.0], inner, [FIRST_PANELS]]) / FIRST_PANELS
    functions = lambda t: (h(t), potential(t) - lowest)

    def integrals(panels: Panels) -> np.ndarray:
        """Over every panel: e^{-v}, he^{-v}, h²e^{-v} and 2Dφ′²p."""
        (h, energy), p, w = panels.values, _density(panels), panels.weights
        raw, mu = np.exp(-energy), float(np.sum(w * p * h))
        parts = raw, h * raw, h**2 * raw, 2 * _flux(panels, p, mu) ** 2 / (D * p)  # E6
        return np.stack([np.sum(w * part, axis=1) for part in parts], axis=1)

    panels, found, gap = refined(functions, integrals, edges, local=3)
    if not np.all(np.isfinite(found)):
        raise InvalidInput("The observable is NaN or infinite where the target has mass.")
    mass, first, second, V = found
    if not np.ptp(panels.values[0]) > 0:
        raise InvalidInput("The observable is constant wherever it was evaluated.")
    error = (gap[1] + abs(first / mass) * gap[0] + RESOLVED * math.sqrt(mass * second)) / mass
    mu, density = Number(float(first / mass), float(error)), _density(panels)
    slope = _flux(panels, density, mu.value) / (D * density)
    return Line(panels, mu, Number(float(V), float(gap[3] + RESOLVED * V)), density, slope)
