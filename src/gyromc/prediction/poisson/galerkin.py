"""V(h), V_0(h), μ(h) and the first effects of the step size, from the Poisson equation, with errors.

Input: a plan whose target is separable or has one parameter, and whose dynamics couple few coordinates with those of h.
Output: a `Galerkin` value. One coordinate without rotation is integrated. Otherwise h is expanded in polynomials, and the
error adds up what another grid, a lower degree and fewer functions of the momentum change; what the variance of h that no
polynomial of the basis holds can add to V; and the spread between randomly shifted grids, which shows kinks, jumps and
oscillation between nodes.
"""

import dataclasses
import functools
import math

import numpy as np
from scipy import special

from gyromc.errors import InvalidInput
from gyromc.observables import Observable
from gyromc.plan import Plan
from gyromc.prediction.answers import Number
from gyromc.prediction.exact.chain import start_rows
from gyromc.prediction.following import SETTINGS as FOLLOW
from gyromc.prediction.following import Transient, followed
from gyromc.prediction.poisson import basis
from gyromc.prediction.poisson.basis import Axis, Generator, Solution, TooLarge, along, coefficients
from gyromc.prediction.poisson.quadrature import RESOLVED, solve_line
from gyromc.prediction.step_effects import FirstOrder, additive_noise, first_order, no_first_order


@dataclasses.dataclass(frozen=True)
class GalerkinSettings:
    """Sizes and tolerances of the expansion in polynomials."""

    degrees: tuple[int, ...] = (9, 13, 17, 21, 25, 31, 37, 45, 55)
    """Tried one after the other, until V has its digits."""
    most_coefficients: int = 300_000
    """Of a tensor basis."""
    most_work: int = 4_000_000
    """Products in one application of the generator, beyond the second degree."""
    final_nodes: int = 6_000_000
    """Of all shifted grids together, where h reads so few coordinates that each grid is small."""
    momentum_degree: int = 9
    """φ is smooth in r: this leaves less than 1e-9, but with little friction."""
    more_momentum: int = 4
    """Degrees at a time, where it leaves more."""
    little: float = 1e-6
    """Of V: fewer functions of the momentum that change so much are followed by more."""
    ratios: tuple[float, float] = (0.5, 0.95)
    """Of successive changes: a smaller one is counted as the first, a larger one as the second."""
    grids: int = 8
    """With random shifts."""
    coverage: float = 0.975
    """Of the errors from shifted grids, one-sided."""
    slope_error: float = 1e-8
    """Of the integrated bias: the target's curvature is differentiated numerically."""


SETTINGS = GalerkinSettings()


@dataclasses.dataclass(frozen=True)
class Galerkin:
    """The constants of one observable, each with its error."""

    variance: Number  # V
    reversible_variance: Number  # V_0
    expectation: Number  # μ(h)
    strictness: float  # ∫ |⟨Q∇H, ∇φ₀⟩|² dμ
    bias_slope: (
        Number | None
    )  # bias of the stationary average per unit of step size; None where there is no first order
    transient: Transient  # -φ(z₀): divided by Nη, what the start adds to an average
    floor: float  # s in N·Var = V/η + s + …
    spread: float  # the standard deviation of h
    how: str  # what was solved, for tables

    @property
    def method(self) -> str:
        """The method and its error, for tables."""
        return f"{self.how}, {self.variance.shown})"


def why_not_galerkin(plan: Plan, h: Observable) -> str | None:
    """Why the Poisson equation is not solved for this observable, or None."""
    if plan.flat_target.separable() is None and plan.dim > 1:
        return f"{type(plan.target).__name__} is not separable"
    depends = plan.model.coordinates_of(h)
    if not depends:
        return "the observable is constant"
    sizes = _sizes(plan, active(plan, depends), SETTINGS.degrees[1])
    if np.prod(sizes) > SETTINGS.most_coefficients or len(depends) > 4:
        return f"h and the dynamics couple {len(sizes)} coordinates: too many for a tensor basis"
    return None


def active(plan: Plan, depends: tuple[int, ...]) -> tuple[int, ...]:
    """The coordinates of z coupled to those of h through D and Q."""
    linked = (plan.dynamics.D != 0) | (plan.dynamics.Q != 0)
    reached = set(depends)
    while True:
        more = {int(j) for i in reached for j in np.flatnonzero(linked[i])} | reached
        if more == reached:
            return tuple(sorted(reached))
        reached = more


def _sizes(plan: Plan, coordinates: tuple[int, ...], degree: int) -> list[int]:
    """The number of basis functions on each axis."""
    return [1 + (degree if i < plan.dim else min(degree, SETTINGS.momentum_degree)) for i in coordinates]


def solve(plan: Plan, h: Observable, digits: int = 6) -> Galerkin:
    """Solve the Poisson equation of one observable, raising the degree until V and V_0 have `digits` digits or a size limit.

    Raises `InvalidInput` with the reason where `why_not_galerkin` returns one.

    ```python
    import gyromc as gm
    from gyromc.prediction.poisson.galerkin import solve
    h = gm.observables.tanh([1.0])
    plan = gm.Plan(target=gm.targets.CosinePerturbed(1, 0.5), dynamics=gm.dynamics.overdamped(1),
                   observables={"h": h}, step_size=0.1)
    assert solve(plan, h).variance == solve(plan, h).reversible_variance
    ```
    """
    reason = why_not_galerkin(plan, h)
    if reason is not None:
        raise InvalidInput(f"The Poisson equation cannot be solved here: {reason}.")
    depends = plan.model.coordinates_of(h)
    chosen = active(plan, depends)
    if len(chosen) == 1:
        return _explicit(plan, h, chosen[0])
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


def _explicit(plan: Plan, h: Observable, k: int) -> Galerkin:
    """The equation of one coordinate, by integration."""
    potential, around = basis.potentials(plan)[k], basis.guessed_scales(plan)[k]
    D, noise, starts = float(plan.dynamics.D[k, k]), additive_noise(plan)[k, k], start_rows(plan)[:, k]
    found = solve_line(functools.partial(basis.values_along, plan, h, k), potential, D, around, starts)
    slope = basis.slope_along(plan, k, found.panels.nodes.ravel()).reshape(found.panels.nodes.shape)
    with_curvature, bend = found.curvature_integral(slope)
    start, bias_slope = Transient.of(-found.at(starts), drawn=False), None
    if (order := first_order(plan)) is not None and not no_first_order(plan):
        value = -(order.drift * D**2 * with_curvature + (noise - order.less[k, k]) * bend) / 2
        bias_slope = Number(float(value), SETTINGS.slope_error * abs(value))
    return Galerkin(
        variance=found.variance,
        reversible_variance=found.variance,
        expectation=found.expectation,
        strictness=0.0,
        bias_slope=bias_slope,
        transient=start,
        floor=float(noise * found.mean(found.slope**2)),
        spread=math.sqrt(found.mean((found.panels.values[0] - found.expectation.value) ** 2)),
        how=f"integration ({found.panels.low.size} panels",
    )


@dataclasses.dataclass(frozen=True, eq=False)
class Level:
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
    last, center = levels[-1], levels[-1].expectation
    parts, seconds = _shifted_expansions(plan, h, last.used, center)
    if not np.any(seconds):
        raise InvalidInput("The observable is constant wherever it was evaluated.")
    c = np.mean(parts, axis=0)
    reach = special.stdtrit(len(parts) - 1, SETTINGS.coverage) / math.sqrt(len(parts))
    spread = lambda x: float(reach * np.std(x, ddof=1))
    missing = float(seconds.mean()) - float(np.sum(c**2)) + spread(seconds)
    final, change = _with_momentum(plan, chosen, last, c, missing)
    gaps = np.maximum(_gaps(levels), change)
    away = [_placed(final.axes, last.used, part - c) for part in parts]
    noise = [
        spread([s.change(x) for x in away]) + sum(map(s.quadratic, away)) / (len(away) * (len(away) - 1))
        for s in (final.moving, final.still)
    ]
    errors = gaps + final.left_out + noise + RESOLVED * final.values
    covariance, slopes = additive_noise(plan), None
    if (order := first_order(plan)) is not None and not no_first_order(plan):
        slopes = [_bias_slope(plan, x.moving, x.axes, covariance, order) for x in (final, levels[-2])]
    mu_error = spread(parts[(..., *(0,) * c.ndim)]) + RESOLVED * math.sqrt(seconds.mean())
    return Galerkin(
        variance=Number(final.moving.variance, float(errors[0])),
        reversible_variance=Number(final.still.variance, float(errors[1])),
        expectation=Number(final.expectation, mu_error),
        strictness=final.still.strictness(plan.dynamics.Q),
        bias_slope=None if slopes is None else Number(slopes[0], abs(slopes[0] - slopes[1])),
        transient=_transient(plan, h, final),
        floor=final.moving.floor(covariance),
        spread=math.sqrt(seconds.mean()),
        how=f"galerkin (degree {last.degree}",
    )


def _with_momentum(plan: Plan, chosen, last: Level, c: np.ndarray, missing: float) -> tuple[Level, np.ndarray]:
    """The last level with the coefficients c and all functions of the momentum, and what further ones may change.

    With little friction φ is rough in the momentum. Then functions are added, a few degrees at a time, as far as the size bears;
    what is left is the sum of the changes that would follow if each were the same part of the one before.
    """
    positions = [axis for axis in last.axes if axis.coordinate < plan.dim]

    def solved(degree: int) -> Level:
        axes = positions + basis.momentum_axes(plan, chosen, degree)
        return _solved(plan, axes, last.used, last.degree, last.expectation, c, missing)

    final = solved(SETTINGS.momentum_degree)
    change = np.abs(final.values - last.values)
    if len(final.axes) == len(positions) or np.all(change <= SETTINGS.little * final.values):
        return final, change
    found = [solved(SETTINGS.momentum_degree - SETTINGS.more_momentum), final]
    own, momenta = math.prod(axis.values.shape[1] for axis in positions), len(final.axes) - len(positions)
    for degree in range(
        SETTINGS.momentum_degree + SETTINGS.more_momentum, max(SETTINGS.degrees), SETTINGS.more_momentum
    ):
        if own * (degree + 1) ** momenta > SETTINGS.most_coefficients or np.all(
            _gaps(found) <= SETTINGS.little * found[-1].values
        ):
            break
        found.append(solved(degree))
    latest, ratio = _gaps(found), SETTINGS.ratios[1]
    if len(found) > 2:
        ratio = np.clip(latest / np.maximum(_gaps(found[:-1]), 1e-300), *SETTINGS.ratios)
    return found[-1], latest * ratio / (1 - ratio)  # a geometric series


def _transient(plan: Plan, h: Observable, level: Level) -> Transient:
    """Σ_k η(h(z_k) - μ(h)) from the plan's starts: followed until they are where polynomials hold."""
    places = [axis.coordinate for axis in level.axes]
    centers = np.array([axis.weights @ axis.nodes for axis in level.axes])
    scales = np.sqrt([axis.weights @ (axis.nodes - m) ** 2 for axis, m in zip(level.axes, centers, strict=True)])

    def inside(z):
        return np.all(np.abs(z[:, places] - centers) <= FOLLOW.near * scales, axis=1)

    def values(z):
        return plan.model.values(h, z[:, : plan.dim]) - level.expectation

    return followed(plan).transient(inside, values, lambda z: -level.moving.at(z))


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


def _bias_slope(plan: Plan, solution: Solution, axes: list[Axis], noise: np.ndarray, order: FirstOrder) -> float:
    """lim (π_η(h) - μ(h))/η = ½μ(⟨∇φ, G∇²H Q∇H⟩ - tr(∇²φ G∇²H D) - tr(∇²φ (GΣGᵀ - less))), H separable.

    The first two terms are Euler's and those of balanced noise; a scheme of second order has the last one only.
    """
    noise = noise - order.less
    D, Q = plan.dynamics.D, plan.dynamics.Q
    G, generator = D + Q, solution.generator
    place = {axis.coordinate: number for number, axis in enumerate(axes)}
    slope, curvature = {}, {}
    for k, number in place.items():
        axis = axes[number]
        t, momentum = axis.nodes, k >= plan.dim
        slope[number] = axis.expand(t if momentum else basis.slope_along(plan, k, t))
        points = np.repeat(t[:, None], plan.dim, axis=1)
        curvature[number] = axis.expand(np.ones_like(t) if momentum else plan.flat_target.hessians(points)[:, k, k])
    total = 0.0
    G = G if order.drift else np.zeros_like(G)
    for j, first in solution.gradient.items():
        for k in place:
            for l in place:
                if G[j, k] and Q[k, l] and k != l:
                    factors = {place[k]: curvature[place[k]], place[l]: slope[place[l]]}
                    total += G[j, k] * Q[k, l] * generator.mean(first, factors)
        for i, (number, partial) in generator.partials.items():
            if not (np.any(G[j] * D[:, i]) or noise[j, i]):
                continue
            second = along(number, partial, first)
            total -= noise[j, i] * generator.mean(second, {})
            total -= sum(
                G[j, k] * D[k, i] * generator.mean(second, {place[k]: curvature[place[k]]})
                for k in place
                if G[j, k] * D[k, i]
            )
    return total / 2
