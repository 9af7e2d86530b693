"""V(h), V_0(h), μ(h) and the first effects of the step size, from the Poisson equation, with errors.

Input: a plan whose target is separable or has one parameter, and whose dynamics couple few coordinates with those of h. Output: a
`Galerkin` value. h is expanded in polynomials; the error adds up what another grid, a lower degree and fewer functions of the
momentum change, what the variance of h outside the basis can add to V, and the spread between randomly shifted grids, which shows
kinks, jumps and oscillation between nodes.

One coordinate alone is integrated: any h, with jumps, kinks, oscillation and high barriers. With the law p ∝ e^{-v} and D > 0,
from D(pφ′)′ = p(h - μ): φ′ = F/(Dp), F(x) = ∫₋∞ˣ (h - μ)p, and V = 2∫ Dφ′²p. `solve_line` returns a `Line` with μ(h), V, φ and
errors. Panels of a Gauss-Lobatto rule are divided until nothing changes.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.polynomial import legendre
from scipy import interpolate, special
from scipy.sparse import csgraph

from gyromc.errors import InvalidInput
from gyromc.observables import Observable
from gyromc.plan import Plan
from gyromc.prediction.answers import RESOLVED, Number
from gyromc.prediction.exact.chain import start_rows
from gyromc.prediction.poisson import basis
from gyromc.prediction.poisson.basis import Axis, Curve, Generator, Solution, TooLarge, along, coefficients
from gyromc.prediction.step_effects import FOLLOW, Transient, additive_noise, brought, drifts, followed, has_slope


@dataclasses.dataclass(frozen=True)
class GalerkinSettings:
    """Sizes and tolerances of the expansion in polynomials."""

    degrees: tuple[int, ...] = (9, 13, 17, 21, 25, 31, 37, 45, 55)  # tried one after the other, until V has its digits
    most_coefficients: int = 300_000  # of a tensor basis
    most_work: int = 4_000_000  # products in one application of the generator, beyond the second degree
    final_nodes: int = 6_000_000  # of all shifted grids together, where each is small
    momentum_degree: int = 9  # φ is smooth in r, so that this leaves less than 1e-9, but with little friction: then …
    more_momentum: int = 4  # … so many more at a time
    little: float = 1e-6  # until they change this share of V
    ratios: tuple[float, float] = (0.5, 0.95)  # of successive changes, the smallest and largest counted
    grids: int = 8  # with random shifts
    coverage: float = 0.975  # of the errors from them, one-sided
    slope_error: float = 1e-8  # share of an integrated bias, for which v' is differentiated numerically


SETTINGS = GalerkinSettings()


class Galerkin(NamedTuple):
    """The constants of one observable, each with its error."""

    variance: Number  # V
    reversible_variance: Number  # V_0
    expectation: Number  # μ(h)
    strictness: float  # ∫ |⟨Q∇H, ∇φ₀⟩|² dμ
    bias_slope: Number | None  # of the stationary average per unit of step size; None for schemes without a first order
    transient: Transient  # -φ(z₀): divided by Nη, what the start adds to an average
    spread: float  # the standard deviation of h
    method: str  # with the error of V


def solvable(plan: Plan, h: Observable) -> bool:
    """Whether the target separates, and h and the dynamics couple few enough coordinates for a tensor basis."""
    if plan.flat_target.separable() is None and plan.dim > 1:
        return False
    depends = plan.model.coordinates_of(h)
    sizes = _sizes(plan, active(plan, depends), SETTINGS.degrees[1])
    return 0 < len(depends) <= 4 and math.prod(sizes) <= SETTINGS.most_coefficients


def active(plan: Plan, depends: tuple[int, ...]) -> list[int]:
    """The coordinates of z coupled to those of h through D and Q."""
    _, group = csgraph.connected_components((plan.dynamics.D != 0) | (plan.dynamics.Q != 0))
    return np.flatnonzero(np.isin(group, group[list(depends)])).tolist()


def _sizes(plan: Plan, coordinates: list[int], degree: int) -> list[int]:
    """The number of basis functions on each axis."""
    return [1 + (degree if i < plan.dim else min(degree, SETTINGS.momentum_degree)) for i in coordinates]


@np.errstate(divide="ignore", invalid="ignore")  # wells that hardly communicate have a rate of 0: V is not resolved
def solve(plan: Plan, h: Observable, digits: int = 6) -> Galerkin:
    """Solve for one observable, raising the degree until V and V_0 have `digits` digits or a size limit."""
    depends = plan.model.coordinates_of(h)
    chosen = active(plan, depends)
    if len(chosen) == 1:
        return _integrated(plan, h, chosen[0])
    levels: list[Level] = []
    evaluated = 0
    for number, degree in enumerate(SETTINGS.degrees):
        spacing = 1.25 * basis.SPACING * 0.963**number  # no two levels share their nodes
        try:
            levels.append(_level(plan, h, depends, chosen, degree, spacing, basis.MOST_NODES - evaluated))
        except TooLarge:
            if len(levels) < 2:
                raise
            break
        evaluated += math.prod(len(axis.weights) for axis in levels[-1].used)
        if len(levels) > 1 and np.all(_gaps(levels) + levels[-1].left_out <= 0.5 * 10.0**-digits * levels[-1].values):
            break
    return _finished(plan, h, chosen, levels)


def _integrated(plan: Plan, h: Observable, k: int) -> Galerkin:
    """The equation of one coordinate."""
    potential, around = basis.potentials(plan)[k], basis.guessed_scales(plan)[k]
    D, starts, slope = float(plan.dynamics.D[k, k]), start_rows(plan)[:, k], None
    values = lambda t: basis.along_axis(plan, k, t, functools.partial(plan.model.values, h))
    found = solve_line(values, potential, D, around, starts)
    mu, away = found.expectation, found.panels.values[0] - found.expectation.value
    if has_slope(plan):
        force = basis.slope_along(plan, k, found.panels.nodes.ravel()).reshape(found.density.shape)
        bend = away / D + force * found.slope  # φ″
        curved = found.mean(bend * (force @ SLOPES.T / found.panels.half))  # by v″
        noise = (additive_noise(plan) - brought(plan))[k, k]
        value = -(drifts(plan) * D**2 * curved + noise * found.mean(bend)) / 2
        slope = Number(float(value), SETTINGS.slope_error * abs(value))
    V, deviation = found.variance, math.sqrt(found.mean(away**2))
    method = f"integration ({len(found.density)} panels, {V.shown})"
    return Galerkin(V, V, mu, 0.0, slope, Transient.of(-found.at(starts), drawn=False), deviation, method)


class Level(NamedTuple):
    """The equation at one polynomial degree, on one grid."""

    axes: list[Axis]
    used: list[Axis]  # those that h reads
    degree: int
    expectation: float
    moving: Solution
    still: Solution  # with Q = 0
    left_out: float  # a bound on what the variance of h outside the basis adds to V and V_0

    @property
    def values(self) -> np.ndarray:
        """V and V_0."""
        return np.array([self.moving.variance, self.still.variance])


def _gaps(levels: list[Level]) -> np.ndarray:
    """The changes of V and V_0 between the last two levels."""
    return np.abs(levels[-1].values - levels[-2].values)


def _level(plan: Plan, h: Observable, depends, chosen, degree: int, spacing: float, most: int) -> Level:
    sizes = _sizes(plan, chosen, degree)
    work = math.prod(sizes) * sum(sizes)  # of one application of the generator, about
    if math.prod(sizes) > SETTINGS.most_coefficients or (degree > SETTINGS.degrees[1] and work > SETTINGS.most_work):
        raise TooLarge(f"{' × '.join(map(str, sizes))} functions are too many for a tensor basis.")
    axes = basis.axes_of(plan, chosen, degree, spacing if len(depends) < 4 else 2 * spacing)
    used = [axis for axis in axes if axis.coordinate in depends]
    values = basis.on_grid(plan, h, used, most)
    center = _mean(used, values)
    c, second = coefficients(used, values - center), _mean(used, (values - center) ** 2)
    axes += basis.momentum_axes(plan, chosen, SETTINGS.momentum_degree - 2)
    return _solved(plan, axes, used, degree, center, c, second - float(np.sum(c**2)))


def _solved(plan: Plan, axes, used, degree: int, center: float, c: np.ndarray, missing: float) -> Level:
    """The level with the coefficients c of h - center in the used axes, which miss so much of its variance."""
    D, Q = plan.dynamics.D, plan.dynamics.Q
    tensor = _placed(axes, used, c)
    moving = Generator(axes, D, Q).solve(tensor)
    still = Generator(axes, D, np.zeros_like(Q)).solve(tensor) if np.any(Q) else moving
    rate = still.generator.slowest_left_out([axes.index(axis) for axis in used], degree)
    left_out = 2 * max(missing, RESOLVED * float(np.sum(c**2))) / rate  # V - V_n = 2⟨r, (-𝒜₀)⁻¹r⟩, r outside the basis
    return Level(axes, used, degree, center + float(c.flat[0]), moving, still, left_out)


def _placed(axes, used, c: np.ndarray) -> np.ndarray:
    """Coefficients in the used axes as coefficients in all axes."""
    tensor = np.zeros([axis.values.shape[1] for axis in axes])
    tensor[tuple(slice(None) if axis in used else 0 for axis in axes)] = c
    return tensor


def _mean(axes: list[Axis], values: np.ndarray) -> float:
    for axis in axes:
        values = np.tensordot(axis.weights, values, axes=(0, 0))
    return float(values)


def _finished(plan: Plan, h: Observable, chosen, levels: list[Level]) -> Galerkin:
    """The last level again, with h averaged over shifted grids, all momentum functions, and every error added up."""
    last = levels[-1]
    parts, seconds = _shifted_expansions(plan, h, last.used, last.expectation)
    if not np.any(seconds):
        raise InvalidInput("The observable is constant wherever it was evaluated.")
    c = np.mean(parts, axis=0)
    reach = special.stdtrit(len(parts) - 1, SETTINGS.coverage) / math.sqrt(len(parts))
    spread = lambda x: float(reach * np.std(x, ddof=1))
    missing = float(seconds.mean()) - float(np.sum(c**2)) + spread(seconds)
    final, change = _with_momentum(plan, chosen, last, c, missing)
    noise = []
    for s in (final.moving, final.still):
        turned = [s.generator.turned(_placed(final.axes, last.used, part - c)) for part in parts]
        # By how much V changes, to first order; and V of what changes, exact without rotation where D couples no axes.
        first = spread([-4 * np.sum(s.coefficients * x) for x in turned])
        second = sum(2 * np.sum((s.generator.root * x) ** 2) for x in turned)
        noise.append(first + second / (len(parts) * (len(parts) - 1)))
    errors = np.maximum(_gaps(levels), change) + final.left_out + noise + RESOLVED * final.values
    slope = None
    if has_slope(plan):
        value, lower = (_bias_slope(plan, level) for level in (final, levels[-2]))
        slope = Number(value, abs(value - lower))
    places = [axis.coordinate for axis in final.axes]
    centers = np.array([axis.weights @ axis.nodes for axis in final.axes])
    scales = np.sqrt([axis.weights @ (axis.nodes - m) ** 2 for axis, m in zip(final.axes, centers, strict=True)])
    still, deviation = final.still, math.sqrt(seconds.mean())
    mu = Number(final.expectation, spread(parts[(..., *(0,) * c.ndim)]) + RESOLVED * deviation)
    strict = float(np.sum(still.generator.pairs(-plan.dynamics.Q, still.coefficients) ** 2))  # E7
    # Followed until chains are where polynomials hold.
    inside = lambda z: np.all(np.abs(z[:, places] - centers) <= FOLLOW.near * scales, axis=1)
    values = lambda z: plan.model.values(h, z[:, : plan.dim]) - mu.value
    start = followed(plan).transient(inside, values, lambda z: -final.moving.at(z))
    V, V0 = (Number(s.variance, float(error)) for s, error in zip((final.moving, still), errors, strict=True))
    return Galerkin(V, V0, mu, strict, slope, start, deviation, f"galerkin (degree {last.degree}, {V.shown})")


def _with_momentum(plan: Plan, chosen, last: Level, c: np.ndarray, missing: float) -> tuple[Level, np.ndarray]:
    """The last level with coefficients c and more functions of the momentum, and a geometric series of the changes left out."""
    positions, found = [axis for axis in last.axes if axis.coordinate < plan.dim], [last]
    own, momenta = math.prod(axis.values.shape[1] for axis in positions), len(last.axes) - len(positions)
    for degree in range(SETTINGS.momentum_degree, max(SETTINGS.degrees), SETTINGS.more_momentum):
        if len(found) > 1 and own * (degree + 1) ** momenta > SETTINGS.most_coefficients:
            break
        axes = positions + basis.momentum_axes(plan, chosen, degree)
        found.append(_solved(plan, axes, last.used, last.degree, last.expectation, c, missing))
        if not momenta or np.all(_gaps(found) <= SETTINGS.little * found[-1].values):
            return found[-1], _gaps(found)
    ratio: Any = SETTINGS.ratios[1]
    if len(found) > 2:
        ratio = np.clip(_gaps(found) / np.maximum(_gaps(found[:-1]), 1e-300), *SETTINGS.ratios)
    return found[-1], _gaps(found) * ratio / (1 - ratio)


def _shifted_expansions(plan: Plan, h: Observable, used: list[Axis], center: float) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of h - center and its second moment, once for every grid with its own random shift."""
    size = math.prod(len(axis.weights) for axis in used)
    grids = int(np.clip(basis.MOST_NODES // size, 3, SETTINGS.grids))
    denser = int(np.clip((SETTINGS.final_nodes / (grids * size)) ** (1 / len(used)), 1, 32))
    rng, parts, seconds = np.random.default_rng(0), [], []
    strata = [(rng.permutation(grids) + rng.random(grids)) / grids for _ in used]
    for shifts in zip(*strata, strict=True):  # along every coordinate the shifts cover a step evenly
        axes = [axis.shifted(share, denser) for axis, share in zip(used, shifts, strict=True)]
        values = basis.on_grid(plan, h, axes) - center
        parts.append(coefficients(axes, values))
        seconds.append(_mean(axes, values**2))
    return np.array(parts), np.array(seconds)


def _bias_slope(plan: Plan, level: Level) -> float:
    """lim (π_η(h) - μ(h))/η = ½μ(⟨∇φ, G∇²H Q∇H⟩ - tr(∇²φ G∇²H D) - tr(∇²φ (GΣGᵀ - GSGᵀ))), H separable; S = 0 for Euler."""
    noise, solution, generator = additive_noise(plan) - brought(plan), level.moving, level.moving.generator
    D, Q, place, slope, curvature = plan.dynamics.D, plan.dynamics.Q, {}, {}, {}
    G, total = drifts(plan) * (D + Q), 0.0
    for number, axis in enumerate(level.axes):
        k, t, place[axis.coordinate] = axis.coordinate, axis.nodes, number
        diagonal = np.repeat(t[:, None], plan.dim, axis=1)
        slope[number] = axis.expand(t if k >= plan.dim else basis.slope_along(plan, k, t))
        curved = np.ones_like(t) if k >= plan.dim else plan.flat_target.hessians(diagonal)[:, k, k]
        curvature[number] = axis.expand(curved)
    for j, (number, partial) in generator.partials.items():
        first = along(number, partial, solution.coefficients)  # ∂ⱼφ
        for k in place:
            for l in place:
                if G[j, k] and Q[k, l] and k != l:
                    factors = {place[k]: curvature[place[k]], place[l]: slope[place[l]]}
                    total += G[j, k] * Q[k, l] * generator.mean(first, factors)
        for i, (other, along_i) in generator.partials.items():
            if np.any(G[j] * D[:, i]) or noise[j, i]:
                second = along(other, along_i, first)
                total -= noise[j, i] * generator.mean(second, {})
                curved = {k: G[j, k] * D[k, i] for k in place if G[j, k] * D[k, i]}
                total -= sum(c * generator.mean(second, {place[k]: curvature[place[k]]}) for k, c in curved.items())
    return float(total) / 2


# --- one coordinate, integrated

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
    mean, sd = basis.location_and_scale(potential, *around)
    lowest = float(np.min(potential(mean + sd * np.linspace(-4, 4, 161))))
    # To where the density is negligible against its maximum and its values at the points to be reached.
    outer = potential(reached) - lowest
    reach = np.concatenate([np.arange(0.0, 40.0, 0.25), 40.0 * 1.1 ** np.arange(60)])
    deep = basis.NEGLIGIBLE + float(np.max(outer[outer < DEEPEST - basis.NEGLIGIBLE], initial=0.0))
    low, high = basis.ends(potential, mean, sd * reach, lowest + deep)
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
