"""The axes of a plan's target, and an observable on their grids.

Input: a plan and the coordinates that matter. Output: an `Axis` for each, or one for a target of two parameters that does not
separate, with nodes that resolve the law; and values of h on the product of the nodes.
"""

import functools

import numpy as np

from gyromc.errors import InvalidInput
from gyromc.observables import Observable
from gyromc.plan import Plan
from gyromc.prediction.poisson.basis import Axis, Curve, TooLarge, line, plane

MOST_NODES = 12_000_000
MOST_PLANE_NODES = 40_000
MOST_SIDE = 1000
MOST_NUMBERS = 4_000_000


def axes_of(plan: Plan, chosen, degree: int, spacing: float) -> list[Axis]:
    """The axes of the parameters among the chosen coordinates."""
    if plan.flat_target.separable() is None and plan.dim == 2:
        return [_plane_axis(plan, degree, spacing)]
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


def _plane_axis(plan: Plan, degree: int, spacing: float) -> Axis:
    """The basis of a target of two parameters, on a grid in the coordinates of its Laplace approximation."""
    center = plan.model.laplace
    root = np.linalg.inv(np.linalg.cholesky(center.precision)).T
    energy_of = lambda x: plan.flat_target.potentials(center.mean + x @ root.T)
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
        masses = [
            np.sum(np.exp(np.minimum(np.min(energy) - part, 700.0))) for part in (energy, energy_of(x[near] + step / 2))
        ]
        if near.sum() > 4 * (degree + 1) ** 2 and abs(masses[0] - masses[1]) < 1e-9 * masses[0]:
            return plane((0, 1), center.mean + x[near] @ root.T, plan.flat_target.potentials, degree, step * root.T)
        if near.sum() > MOST_PLANE_NODES:
            break
    raise TooLarge("The target is far narrower than its curvature at the mode says: no grid resolves it.")


def _square(reach: float, count: int) -> np.ndarray:
    """A grid of count × count points on [-reach, reach]², one row each."""
    side = np.linspace(-reach, reach, count)
    return np.stack(np.meshgrid(side, side, indexing="ij"), axis=-1).reshape(-1, 2)


def on_grid(plan: Plan, h: Observable, axes: list[Axis], most: int = MOST_NODES) -> np.ndarray:
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
