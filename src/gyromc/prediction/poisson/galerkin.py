"""V(h), V_0(h), μ(h) and the first effects of the step size, by Galerkin's method, to a given number of digits.

Input: a plan whose target is separable (and whose dynamics couple few coordinates with those of h) or has at most two parameters.
Output: a `Galerkin` value with an error estimate: the difference between two polynomial degrees.
"""

import dataclasses
import functools

import numpy as np

from gyromc.errors import InvalidInput
from gyromc.observables import Observable
from gyromc.oracles import Gaussian
from gyromc.plan import Plan
from gyromc.prediction.exact.chain import start_rows
from gyromc.prediction.poisson.basis import SPACING, Axis, line, plane
from gyromc.prediction.poisson.equation import Generator, Solution, along, coefficients

DEGREES = (9, 13, 17, 21, 25, 31, 37, 45, 55)
MOST_COEFFICIENTS = 300_000
MOST_NODES = 12_000_000
MOMENTUM_DEGREE = 9  # φ is smooth in r: this leaves less than 1e-9


@dataclasses.dataclass(frozen=True)
class Galerkin:
    """The constants of one observable."""

    variance: float  # V
    reversible_variance: float  # V_0
    expectation: float  # μ(h)
    strictness: float  # ∫ |⟨Q∇H, ∇φ₀⟩|² dμ
    degree: int
    error: float  # of V and V_0: the difference from the previous degree
    bias_slope: float | None  # bias of the stationary average per unit of step size; None where it is not computed
    transient: float | None  # -φ(z₀): divided by Nη, the bias due to the start
    floor: float  # s in N·Var = V/η + s + …
    spread: float  # the standard deviation of h

    @property
    def method(self) -> str:
        """The method and its error, for tables."""
        return f"galerkin (degree {self.degree}, ±{self.error:.0e})".replace("e-0", "e-")


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
    chosen, before = active(plan, depends), None
    for degree in DEGREES:
        if before is not None and np.prod(_sizes(plan, chosen, degree)) > MOST_COEFFICIENTS:
            break
        now = _at_degree(plan, h, depends, chosen, degree)
        if before is not None:
            gaps = now.variance - before.variance, now.reversible_variance - before.reversible_variance
            now = dataclasses.replace(now, error=max(*map(abs, gaps), 1e-15))
        before = now
        if now.error <= 0.5 * 10.0**-digits * now.variance:
            break
    assert before is not None
    return before


def _at_degree(plan: Plan, h: Observable, depends, chosen, degree: int) -> Galerkin:
    axes = _axes(plan, chosen, degree, len(depends))
    values, used = _on_grid(plan, h, depends, axes)
    c = coefficients(used, values)
    places = [axes.index(axis) for axis in used]
    h_tensor = np.zeros([axis.values.shape[1] for axis in axes])
    h_tensor[tuple(slice(None) if number in places else 0 for number in range(len(axes)))] = c
    D, Q = plan.dynamics.D, plan.dynamics.Q
    moving = Generator(axes, D, Q).solve(h_tensor)
    still = Generator(axes, D, np.zeros_like(Q)).solve(h_tensor) if np.any(Q) else moving
    separate = plan.flat_target.separable() is not None
    G, tau = (D + Q)[:, : plan.dim], float(plan.oracle.tau) if isinstance(plan.oracle, Gaussian) else 0.0
    noise = tau**2 * G @ G.T  # what an additive oracle adds to the drift's covariance; others are left out
    return Galerkin(
        variance=moving.variance,
        reversible_variance=still.variance,
        expectation=float(c.flat[0]),
        strictness=still.strictness(Q),
        degree=degree,
        error=np.inf,
        bias_slope=_bias_slope(plan, moving, axes, noise) if separate else None,
        transient=-float(np.mean([moving.at(z) for z in start_rows(plan)[:100]])) if separate else None,
        floor=moving.floor(noise),
        spread=float(np.sqrt(np.sum(c.ravel()[1:] ** 2))),
    )


def _axes(plan: Plan, chosen, degree: int, dimensions: int) -> list[Axis]:
    normal = functools.partial(line, potential=lambda t: t**2 / 2, slope=lambda t: t, around=(0.0, 1.0))
    momenta = [normal(i, degree=min(degree, MOMENTUM_DEGREE)) for i in chosen if i >= plan.dim]
    potentials, around = plan.flat_target.separable(), [(0.0, 1.0)] * plan.dim
    if potentials is None and plan.dim == 2:
        return [_plane_axis(plan, degree), *momenta]
    if potentials is None or plan.flat_target.gaussian() is not None:
        center = plan.model.laplace
        around = [(float(m), float(p) ** -0.5) for m, p in zip(center.mode, np.diag(center.precision), strict=True)]
    if potentials is None:
        potentials = [lambda t: plan.flat_target.potentials(np.asarray(t)[:, None])]
    spacing = SPACING if dimensions < 4 else 2 * SPACING
    slopes = [functools.partial(_slope, plan, i) for i in range(plan.dim)]
    theta = [line(i, potentials[i], slopes[i], degree, around[i], spacing) for i in chosen if i < plan.dim]
    return [*theta, *momenta]


def _slope(plan: Plan, i: int, t: np.ndarray) -> np.ndarray:
    """v_i′, from the target's own gradient."""
    return plan.flat_target.gradients(np.repeat(t[:, None], plan.dim, axis=1))[:, i]


def _plane_axis(plan: Plan, degree: int) -> Axis:
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
    x = _square(reach, int(2 * reach / 0.1) + 1)
    energy = energy_of(x)
    near = energy - np.min(energy) < 45 + degree * np.log(reach)
    if near.sum() < 4 * (degree + 1) ** 2:
        raise InvalidInput("The target is far narrower than its curvature at the mode says: no grid resolves it.")
    density = np.exp(np.min(energy) - energy[near])
    return plane((0, 1), center.mode + x[near] @ root.T, density / density.sum(), degree)


def _square(reach: float, count: int) -> np.ndarray:
    """A grid of count × count points on [-reach, reach]², one row each."""
    side = np.linspace(-reach, reach, count)
    return np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)


def _on_grid(plan: Plan, h: Observable, depends, axes: list[Axis]) -> tuple[np.ndarray, list[Axis]]:
    """h on the product of the nodes of the axes it depends on, and those axes."""
    used = [axis for axis in axes if set(axis.coordinates) & set(depends)]
    counts = [len(axis.weights) for axis in used]
    if np.prod(counts) > MOST_NODES:
        raise InvalidInput(f"The observable depends on {len(used)} coordinates: too many for a grid.")
    rows = np.zeros((int(np.prod(counts)), plan.dim))
    grid = np.meshgrid(*map(np.arange, counts), indexing="ij", copy=False)
    for axis, index in zip(used, grid, strict=True):
        rows[:, list(axis.coordinates)] = axis.nodes[index.ravel()]
    return plan.model.values(h, rows).reshape(counts), used


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
