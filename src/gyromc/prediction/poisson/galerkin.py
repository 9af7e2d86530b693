"""V(h), V_0(h), μ(h) and the first effects of the step size, from the Poisson equation, with errors.

Input: a plan whose target is separable (and whose dynamics couple few coordinates with those of h) or has at most two parameters.
Output: a `Galerkin` value. One coordinate without rotation is integrated. Otherwise h is expanded in polynomials, and the error adds
up what another grid, a lower degree and fewer functions of the momentum change; what the variance of h that no polynomial of the basis
holds can add to V; and the spread between randomly shifted grids, which shows kinks, jumps and oscillation between nodes.
"""

import dataclasses
import functools
import math

import numpy as np
from scipy import stats

from gyromc.errors import InvalidInput
from gyromc.observables import Observable
from gyromc.oracles import Gaussian
from gyromc.plan import Plan
from gyromc.prediction.arrival import NEAR, arrive, mean_step, some_starts
from gyromc.prediction.exact.chain import start_rows
from gyromc.prediction.methods import Number
from gyromc.prediction.poisson.basis import SPACING, Axis, Curve, TooLarge, line, plane
from gyromc.prediction.poisson.equation import Generator, Solution, along, coefficients
from gyromc.prediction.poisson.explicit import solve_line
from gyromc.prediction.poisson.panels import RESOLVED

DEGREES = (9, 13, 17, 21, 25, 31, 37, 45, 55)
MOST_COEFFICIENTS = 300_000
MOST_NODES = 12_000_000
MOST_ON_PLANE = 400  # functions
MOST_PLANE_NODES = 40_000
MOST_SIDE = 1000
FINAL_NODES = 6_000_000  # of all shifted grids together, where h reads so few coordinates that each grid is small
MOMENTUM_DEGREE = 9  # φ is smooth in r: this leaves less than 1e-9
GRIDS = 8  # with random shifts
COVERAGE = 0.975


@dataclasses.dataclass(frozen=True)
class Galerkin:
    """The constants of one observable, each with its error."""

    variance: Number  # V
    reversible_variance: Number  # V_0
    expectation: Number  # μ(h)
    strictness: float  # ∫ |⟨Q∇H, ∇φ₀⟩|² dμ
    bias_slope: float | None  # bias of the stationary average per unit of step size; None where it is not computed
    transient: float | None  # -φ(z₀): divided by Nη, the bias due to the start
    floor: float  # s in N·Var = V/η + s + …
    spread: float  # the standard deviation of h
    how: str  # what was solved, for tables

    @property
    def method(self) -> str:
        """The method and its error, for tables."""
        return f"{self.how}, {self.variance.shown})"


def why_not_galerkin(plan: Plan, h: Observable) -> str | None:
    """Why the Poisson equation is not solved for this observable, or None."""
    if plan.flat_target.separable() is None and plan.dim > 2:
        return f"{type(plan.target).__name__} is not separable and has more than two parameters"
    depends = plan.model.coordinates_of(h)
    if not depends:
        return "the observable is constant"
    sizes = _sizes(plan, active(plan, depends), DEGREES[1])
    if np.prod(sizes) > MOST_COEFFICIENTS or len(depends) > 4:
        return f"h and the dynamics couple {len(sizes)} coordinates: too many for a tensor basis"
    return None


def active(plan: Plan, depends: tuple[int, ...]) -> tuple[int, ...]:
    """The coordinates of z coupled to those of h through D and Q; all of θ if the target does not separate."""
    linked = (plan.dynamics.D != 0) | (plan.dynamics.Q != 0)
    if plan.flat_target.separable() is None:
        linked[: plan.dim, : plan.dim] = True
    reached = set(depends)
    while True:
        more = {int(j) for i in reached for j in np.flatnonzero(linked[i])} | reached
        if more == reached:
            return tuple(sorted(reached))
        reached = more


def _sizes(plan: Plan, coordinates: tuple[int, ...], degree: int) -> list[int]:
    """The number of basis functions on each axis."""
    momentum = [min(degree, MOMENTUM_DEGREE) + 1 for i in coordinates if i >= plan.dim]
    if plan.flat_target.separable() is None and plan.dim == 2:
        return [(degree + 1) * (degree + 2) // 2, *momentum]
    return [degree + 1] * sum(i < plan.dim for i in coordinates) + momentum


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
    for number, degree in enumerate(DEGREES):
        spacing = 1.25 * SPACING * 0.963**number  # no two levels share their nodes
        try:
            levels.append(_level(plan, h, depends, chosen, degree, spacing, MOST_NODES - evaluated))
        except TooLarge:
            if len(levels) < 2:
                raise
            break
        evaluated += math.prod(len(axis.weights) for axis in levels[-1].used)
        if len(levels) > 1 and np.all(_gaps(levels) + levels[-1].left_out <= 0.5 * 10.0**-digits * levels[-1].values):
            break
    return _finished(plan, h, chosen, levels)


def noise_covariance(plan: Plan) -> np.ndarray:
    """What an additive oracle adds to the covariance of the drift, per η²; other oracles are left out."""
    G, tau = (plan.dynamics.D + plan.dynamics.Q)[:, : plan.dim], 0.0
    if isinstance(plan.oracle, Gaussian):
        tau = float(plan.oracle.tau)
    return tau**2 * G @ G.T


def _explicit(plan: Plan, h: Observable, k: int) -> Galerkin:
    """The equation of one coordinate, by integration."""
    potential, around = _potentials(plan)[k], _around(plan)[k]
    D, noise, starts = float(plan.dynamics.D[k, k]), noise_covariance(plan)[k, k], start_rows(plan)[:, k]
    found = solve_line(lambda t: plan.model.values(h, _rows(plan, k, t)), potential, D, around, starts)
    slope = _slope(plan, k, found.panels.nodes.ravel()).reshape(found.panels.nodes.shape)
    with_curvature, bend = found.curvature_integral(slope)
    start = float(np.mean(found.at(starts)))
    return Galerkin(
        variance=found.variance,
        reversible_variance=found.variance,
        expectation=found.expectation,
        strictness=0.0,
        bias_slope=-(D**2 * with_curvature + noise * bend) / 2,
        transient=None if math.isnan(start) else -start,
        floor=noise * found.mean(found.slope**2),
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
    if np.prod(sizes) > MOST_COEFFICIENTS or max(sizes) > MOST_ON_PLANE:
        raise TooLarge(f"{' × '.join(map(str, sizes))} functions are too many for a tensor basis.")
    axes = _axes(plan, chosen, degree, spacing if len(depends) < 4 else 2 * spacing)
    used = [axis for axis in axes if set(axis.coordinates) & set(depends)]
    values = _on_grid(plan, h, used, most)
    center = _mean(used, values)
    c, second = coefficients(used, values - center), _mean(used, (values - center) ** 2)
    axes += _momentum_axes(plan, chosen, MOMENTUM_DEGREE - 2)
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
    axes = [axis for axis in last.axes if axis.coordinates[0] < plan.dim]
    axes += _momentum_axes(plan, chosen, MOMENTUM_DEGREE)
    parts, seconds = _shifted_expansions(plan, h, last.used, center)
    c = np.mean(parts, axis=0)
    reach = stats.t.ppf(COVERAGE, len(parts) - 1) / math.sqrt(len(parts))
    spread = lambda x: float(reach * np.std(x, ddof=1))  # noqa: E731
    missing = float(seconds.mean()) - float(np.sum(c**2)) + spread(seconds)
    final = _solved(plan, axes, last.used, last.degree, center, c, missing)
    gaps = np.maximum(_gaps(levels), np.abs(final.values - last.values))
    away = [_placed(axes, last.used, part - c) for part in parts]
    noise = [
        spread([s.change(x) for x in away]) + sum(map(s.quadratic, away)) / (len(away) * (len(away) - 1))
        for s in (final.moving, final.still)
    ]
    errors = gaps + final.left_out + noise + RESOLVED * final.values
    separate, covariance = plan.flat_target.separable() is not None, noise_covariance(plan)
    return Galerkin(
        variance=Number(final.moving.variance, float(errors[0])),
        reversible_variance=Number(final.still.variance, float(errors[1])),
        expectation=Number(
            final.expectation, spread(parts[(...,) + (0,) * c.ndim]) + RESOLVED * math.sqrt(seconds.mean())
        ),
        strictness=final.still.strictness(plan.dynamics.Q),
        bias_slope=_bias_slope(plan, final.moving, axes, covariance) if separate else None,
        transient=_transient(plan, h, final) if separate else None,
        floor=final.moving.floor(covariance),
        spread=math.sqrt(seconds.mean()),
        how=f"galerkin (degree {last.degree}",
    )


def _transient(plan: Plan, h: Observable, level: Level) -> float | None:
    """Σ_k η(E h(z_k) - μ(h)) from the plan's starts; None where they do not arrive where polynomials hold."""
    places = [axis.coordinates[0] for axis in level.axes]
    centers = np.array([axis.weights @ axis.nodes[:, 0] for axis in level.axes])
    scales = np.sqrt([axis.weights @ (axis.nodes[:, 0] - m) ** 2 for axis, m in zip(level.axes, centers, strict=True)])
    inside = lambda z: np.all(np.abs(z[:, places] - centers) <= NEAR * scales, axis=1)  # noqa: E731
    values = lambda z: plan.model.values(h, z[:, : plan.dim]) - level.expectation  # noqa: E731
    found = arrive(some_starts(plan), inside, mean_step(plan), values, plan.num_steps)
    return None if found is None else float(np.mean(plan.eta * found[0] - level.moving.at(found[1])))


def _shifted_expansions(plan: Plan, h: Observable, used: list[Axis], center: float) -> tuple[np.ndarray, np.ndarray]:
    """Coefficients of h - center and its second moment, once for every grid with its own random shift."""
    size = math.prod(len(axis.weights) for axis in used)
    on_lines = all(len(axis.coordinates) == 1 for axis in used)
    grids = int(np.clip(MOST_NODES // size, 3, GRIDS)) if on_lines else GRIDS // 2  # the basis of a plane takes long
    denser = int(np.clip((FINAL_NODES / (grids * size)) ** (1 / len(used)), 1, 32)) if on_lines else 1
    rng, parts, seconds = np.random.default_rng(0), [], []
    for _ in range(grids):
        axes = [axis.shifted(rng.random(len(axis.coordinates)), denser) for axis in used]
        values = _on_grid(plan, h, axes) - center
        parts.append(coefficients(axes, values))
        seconds.append(_mean(axes, values**2))
    return np.array(parts), np.array(seconds)


def _axes(plan: Plan, chosen, degree: int, spacing: float) -> list[Axis]:
    """The axes of the parameters among the chosen coordinates."""
    if plan.flat_target.separable() is None and plan.dim == 2:
        return [_plane_axis(plan, degree, spacing)]
    potentials, around = _potentials(plan), _around(plan)
    slopes = [functools.partial(_slope, plan, i) for i in range(plan.dim)]
    return [line(i, potentials[i], slopes[i], degree, around[i], spacing) for i in chosen if i < plan.dim]


def _momentum_axes(plan: Plan, chosen, degree: int) -> list[Axis]:
    normal = functools.partial(line, potential=lambda t: t**2 / 2, slope=lambda t: t, around=(0.0, 1.0))
    return [normal(i, degree=degree) for i in chosen if i >= plan.dim]


def _potentials(plan: Plan) -> list[Curve]:
    """The potential of every coordinate, for a target that separates or has one parameter."""
    known = plan.flat_target.separable()
    if known is None:
        return [lambda t: plan.flat_target.potentials(t[:, None])]
    return [functools.partial(_padded, v) for v in known]


def _padded(function: Curve, t: np.ndarray) -> np.ndarray:
    """The function at points, called with few different numbers of points: JAX compiles for each."""
    more = max(256, 1 << (len(t) - 1).bit_length()) - len(t)
    return np.asarray(function(np.append(t, np.full(more, t[-1]))))[: len(t)]


def _around(plan: Plan) -> list[tuple[float, float]]:
    """A guess of the center and the scale of every coordinate."""
    if plan.flat_target.separable() is not None and plan.flat_target.gaussian() is None:
        return [(0.0, 1.0)] * plan.dim
    center = plan.model.laplace
    return [(float(m), float(p) ** -0.5) for m, p in zip(center.mode, np.diag(center.precision), strict=True)]


def _rows(plan: Plan, k: int, t: np.ndarray) -> np.ndarray:
    """Points with one coordinate given and the others zero."""
    rows = np.zeros((len(t), plan.dim))
    rows[:, k] = t
    return rows


def _slope(plan: Plan, i: int, t: np.ndarray) -> np.ndarray:
    """v_i′, from the target's own gradient."""
    return plan.flat_target.gradients(np.repeat(t[:, None], plan.dim, axis=1))[:, i]


def _plane_axis(plan: Plan, degree: int, spacing: float) -> Axis:
    """The basis of a target of two parameters, on a grid in the coordinates of its Laplace approximation."""
    center = plan.model.laplace
    root = np.linalg.inv(np.linalg.cholesky(center.precision)).T
    energy_of = lambda x: plan.flat_target.potentials(center.mode + x @ root.T)  # noqa: E731
    for reach in 2.0 ** np.arange(3, 8):
        coarse = 65 if reach < 16 else 257
        energy = energy_of(_square(reach, coarse)).reshape(coarse, coarse)
        edge = np.concatenate([energy[0], energy[-1], energy[:, 0], energy[:, -1]])
        if np.min(edge) - np.min(energy) > 45 + degree * np.log(reach):
            break
    else:
        raise InvalidInput("The target's tails are too heavy for polynomials, or exp(-U) has no finite integral.")
    for refinement in range(6):
        count = int(2 * reach / spacing * 1.6**refinement) + 1
        if count > MOST_SIDE:
            break
        x, step = _square(reach, count), 2 * reach / (count - 1)
        energy = energy_of(x)
        near = energy - np.min(energy) < 45 + degree * np.log(reach)
        masses = [np.sum(np.exp(np.min(energy) - part)) for part in (energy, energy_of(x[near] + step / 2))]
        if near.sum() > 4 * (degree + 1) ** 2 and abs(masses[0] - masses[1]) < 1e-9 * masses[0]:
            return plane((0, 1), center.mode + x[near] @ root.T, plan.flat_target.potentials, degree, step * root.T)
        if near.sum() > MOST_PLANE_NODES:
            break
    raise TooLarge("The target is far narrower than its curvature at the mode says: no grid resolves it.")


def _square(reach: float, count: int) -> np.ndarray:
    """A grid of count × count points on [-reach, reach]², one row each."""
    side = np.linspace(-reach, reach, count)
    return np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)


def _on_grid(plan: Plan, h: Observable, axes: list[Axis], most: int = MOST_NODES) -> np.ndarray:
    """h on the product of the nodes of the axes it reads."""
    counts = [len(axis.weights) for axis in axes]
    if np.prod(counts) > most:
        raise TooLarge(f"The observable reads {len(axes)} coordinates: too many for a grid that resolves the target.")
    rows = np.zeros((int(np.prod(counts)), plan.dim))
    grid = np.meshgrid(*map(np.arange, counts), indexing="ij", copy=False)
    for axis, index in zip(axes, grid, strict=True):
        rows[:, list(axis.coordinates)] = axis.nodes[index.ravel()]
    values = plan.model.values(h, rows).reshape(counts)
    if not np.all(np.isfinite(values)):
        raise InvalidInput("The observable is NaN or infinite where the target has mass.")
    return values


def _bias_slope(plan: Plan, solution: Solution, axes: list[Axis], noise: np.ndarray) -> float:
    """lim (π_η(h) - μ(h))/η = ½μ(⟨∇φ, G∇²H Q∇H⟩ - tr(∇²φ G∇²H D) - tr(∇²φ GΣGᵀ)) for Euler-Maruyama, H separable."""
    D, Q = plan.dynamics.D, plan.dynamics.Q
    G, generator = D + Q, solution.generator
    place = {axis.coordinates[0]: number for number, axis in enumerate(axes)}
    slope, curvature = {}, {}
    for k, number in place.items():
        axis = axes[number]
        t = axis.nodes[:, 0]
        momentum = k >= plan.dim
        slope[number] = axis.expand(t if momentum else _slope(plan, k, t))
        points = np.repeat(t[:, None], plan.dim, axis=1)
        curvature[number] = axis.expand(np.ones_like(t) if momentum else plan.flat_target.hessians(points)[:, k, k])
    total = 0.0
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
