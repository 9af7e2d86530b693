"""Random observables with kinks, jumps and oscillation on random targets, with μ(h) and V(h) from independent fine grids.

`line_case`, `plane_case` and `space_case` return a `Case`: a plan, μ, V and the errors of these two. One dimension: the
explicit solution of the Poisson equation on a grid of 400,000 points. Two: bilinear finite elements on two grids. Three: the
Hermite series of a ridge function of a Gaussian.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from scipy import sparse
from scipy.sparse import linalg as sparse_linalg

import gyromc as gm


@dataclasses.dataclass(frozen=True)
class Case:
    text: str
    plan: gm.Plan
    mean: float
    mean_error: float
    variance: float
    variance_error: float


def profile(rng) -> tuple[str, Callable]:
    """A random function of one number."""
    c, s, w = rng.normal(), np.exp(rng.uniform(0, 5)), rng.uniform(1, 30)
    found = {
        f"step at {c:.2f}": lambda t: jnp.where(t > c, 1.0, 0.0),
        f"kink at {c:.2f}": lambda t: jnp.abs(t - c),
        f"ramp from {c:.2f}": lambda t: jnp.maximum(t - c, 0.0),
        f"cos {w:.1f}t": lambda t: jnp.cos(w * t + c),
        f"tanh {s:.1f}(t - {c:.2f})": lambda t: jnp.tanh(s * (t - c)),
        f"t + cos({w:.1f}t)/2": lambda t: t + 0.5 * jnp.cos(w * t),
        f"square wave {w / 5:.1f}": lambda t: jnp.sign(jnp.sin(w / 5 * t + c)),
        f"bump of width {1 / s:.3f} at {c:.2f}": lambda t: jnp.exp(-((s * (t - c)) ** 2) / 2),
        f"t² below {c:.2f}": lambda t: jnp.where(t < c, t**2, 0.0),
        f"sin {w:.1f}t above {c:.2f}": lambda t: jnp.where(t > c, jnp.sin(w * t), 0.0),
    }
    return list(found.items())[rng.integers(len(found))]


def on_array(function: Callable, t: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(jax.jit(jax.vmap(function))(jnp.asarray(t)), float)


def line_truth(h: Callable, U: Callable, D: float = 1.0, reach: float = 14.0, count: int = 400_001):
    """μ, V and their errors: the explicit solution at a grid and at every other point of it, plus half a cell at every jump."""
    found = []
    for stride in (1, 2):
        x = np.linspace(-reach, reach, count)[::stride] + 1e-6 / stride
        step, values, energy = x[1] - x[0], on_array(h, x), on_array(U, x)
        p = np.exp(np.min(energy) - energy)
        p /= p.sum() * step
        mu = float(np.sum(p * values) * step)
        source = (values - mu) * p * step
        from_left, from_right = np.cumsum(source) - source / 2, np.cumsum(source[::-1])[::-1] - source / 2
        flux = np.where(np.cumsum(p) * step < 0.5, from_left, -from_right)
        near = p > 1e-30
        found.append((mu, 2 * float(np.sum(flux[near] ** 2 / p[near])) * step / D))
        phi = np.cumsum(np.where(near, flux / np.maximum(p, 1e-30), 0.0)) * step / D
        phi -= np.sum(p * phi) * step
        jumps = np.flatnonzero(np.abs(np.diff(values)) > 0.02 * np.ptp(values))
        placed = p[jumps] * np.abs(np.diff(values)[jumps]) * step / 2
        cells = placed.sum(), 4 * float(np.sum(placed * np.abs(phi[jumps])))
    (mu, V), (mu_2, V_2) = found
    return mu, abs(mu - mu_2) + cells[0], V, abs(V - V_2) + cells[1]


def plane_truth(h: Callable, U: Callable, D, Q, box, count: int = 220):
    """μ, V and their errors: bilinear finite elements on two grids."""
    fine, coarse = (_elements(h, U, D, Q, box, n) for n in (count, count // 2))
    return fine[0], abs(fine[0] - coarse[0]), fine[1], abs(fine[1] - coarse[1])


def _elements(h, U, D, Q, box, count: int, inner: int = 5) -> tuple[float, float]:
    (a, b), (c, d) = box
    dx, dy = (b - a) / count, (d - c) / count
    i, j = (index.ravel() for index in np.meshgrid(np.arange(count), np.arange(count), indexing="ij"))
    centers = np.stack([a + (i + 0.5) * dx, c + (j + 0.5) * dy], axis=1)
    energy = on_array(U, centers)
    near = energy - energy.min() < 40
    i, j, centers, density = i[near], j[near], centers[near], np.exp(energy.min() - energy[near])
    s = (np.arange(inner) + 0.5) / inner
    u, v = (part.ravel() for part in np.meshgrid(s, s))
    points = centers[:, None] + np.stack([(u - 0.5) * dx, (v - 0.5) * dy], axis=1)
    weight = np.exp(energy.min() - on_array(U, points.reshape(-1, 2))).reshape(len(i), -1) / inner**2
    shape = np.stack([(1 - u) * (1 - v), u * (1 - v), (1 - u) * v, u * v], axis=1)
    load, mass = (weight * on_array(h, points.reshape(-1, 2)).reshape(weight.shape)) @ shape, weight @ shape
    total = mass.sum()
    mu = load.sum() / total
    slopes = lambda u, v: np.array([[-(1 - v), 1 - v, -v, v], [-(1 - u), -u, 1 - u, u]]) / np.array([[dx], [dy]])
    gauss = 0.5 + np.array([-0.5, 0.5]) / np.sqrt(3)
    element = sum(slopes(u, v).T @ (D - Q) @ slopes(u, v) for u in gauss for v in gauss) / 4
    corners = np.stack([(i + p) * (count + 1) + j + q for p, q in ((0, 0), (1, 0), (0, 1), (1, 1))], axis=1)
    used, place = np.unique(corners, return_inverse=True)
    place = place.reshape(corners.shape)
    rows, columns = np.repeat(place, 4, axis=1), np.tile(place, (1, 4))
    entries = (density[:, None] * element.ravel()).ravel() / density.sum()
    A = sparse.csc_array((entries, (rows.ravel(), columns.ravel())), (len(used), len(used)))
    right = np.bincount(place.ravel(), ((load - mu * mass) / total).ravel(), len(used))
    weights = np.bincount(place.ravel(), (mass / total).ravel(), len(used))
    keep = np.arange(len(used)) != int(np.argmax(weights))  # constants are a null space: φ is 0 at one node
    x = sparse_linalg.spsolve(A[keep][:, keep], right[keep])
    return float(mu), float(2 * right[keep] @ x)


def ridge_truth(rho: Callable, u, P, D, Q, terms: int = 300):
    """μ, V and their errors for ρ(uᵀθ) on N(0, P⁻¹): Hermite coefficients on a dense grid, r(t)ⁿ on a dense grid in time."""
    K = np.linalg.inv(P)
    sd = float(np.sqrt(u @ K @ u))
    x = np.linspace(-12, 12, 200_001) + 1e-6
    w = np.exp(-(x**2) / 2) * (x[1] - x[0]) / np.sqrt(2 * np.pi)
    values = on_array(rho, sd * x)
    mu = float(w @ values)
    variance = float(w @ (values - mu) ** 2)
    values, squares, below, here = w * (values - mu), [], np.zeros_like(x), np.ones_like(x)
    for n in range(terms):
        below, here = here, (x * here - np.sqrt(n) * below) / np.sqrt(n + 1)
        squares.append(float(values @ here) ** 2)
    A = (D + Q) @ P
    rates, vectors = np.linalg.eig(A)
    t = np.concatenate([[0.0], np.geomspace(1e-6, 45 / rates.real.min(), 60_000)])
    r = np.real((u @ vectors) * np.linalg.solve(vectors, K @ u) @ np.exp(-np.outer(rates, t))) / sd**2
    cov, tail = np.zeros_like(t), np.abs(r) ** (terms + 1)
    for c in squares[::-1]:
        cov = (cov + c) * r
    V, beyond = 2 * np.trapezoid(cov, t), 2 * np.trapezoid(tail, t) * max(variance - sum(squares), 0.0)
    return mu, 1e-4 * np.sqrt(variance), float(V), float(beyond + 1e-4 * V)


def plan_for(target, dynamics, function, dim: int) -> gm.Plan:
    h = gm.observables.function(function)
    return gm.Plan(
        target=target, dynamics=dynamics, observables={"h": h}, step_size=0.01, num_steps=1000, start=np.full(dim, 0.1)
    )


def line_case(rng) -> Case:
    text, rho = profile(rng)
    beta, b, k = rng.uniform(-1.5, 1.5), rng.uniform(0.5, 2.0), rng.integers(4)
    if k == 0:
        target, U = gm.targets.CosinePerturbed(1, beta), lambda t: t**2 / 2 + beta * jnp.cos(t)
    elif k == 1:
        target, U = gm.targets.Separable(lambda t: (t**2 - b) ** 2, [0.2]), lambda t: 0.1 * t**2 + (t**2 - b) ** 2
    elif k == 2:
        U = lambda t: jnp.exp(t) - b * t + 0.1 * t**2
        target = gm.targets.LogDensity(lambda x: -U(x[0]))
    else:
        U = lambda t: -jnp.logaddexp(-((t - b) ** 2) / 2, -((t + b) ** 2) / 0.5 + beta)
        target = gm.targets.LogDensity(lambda x: -U(x[0]))
    truth = line_truth(rho, U)
    return Case(f"1 d, {k}, {text}", plan_for(target, gm.dynamics.overdamped(1), lambda x: rho(x[0]), 1), *truth)


def plane_case(rng) -> Case:
    (text, rho), (text_2, rho_2) = profile(rng), profile(rng)
    beta, b, k = rng.uniform(-1.5, 1.5), rng.uniform(0.3, 1.5), rng.integers(4)
    a = rng.normal(size=2)
    if rng.random() < 0.5:
        h, text = (lambda x: rho(a[0] * x[0] + a[1] * x[1])), f"{text} along a line"
    else:
        h, text = (lambda x: rho(x[0]) * rho_2(x[1])), f"{text} times {text_2}"
    J = rng.choice([0.0, 1.0, 3.0]) * np.array([[0.0, -1.0], [1.0, 0.0]])
    box = ((-9.0, 9.0), (-9.0, 9.0))
    if k == 0:
        target = gm.targets.CosinePerturbed(2, beta)
        U = lambda x: jnp.sum(x**2 / 2 + beta * jnp.cos(x))
    elif k == 1:
        target = gm.targets.Separable(lambda t: (t**2 - b) ** 2, [0.2, 0.2])
        U, box = (lambda x: jnp.sum(0.1 * x**2 + (x**2 - b) ** 2)), ((-3.3, 3.3), (-3.3, 3.3))
    elif k == 2:
        P = np.array([[1.5, beta / 2], [beta / 2, 1.0]])
        target, U = gm.targets.Quadratic(P), lambda x: x @ P @ x / 2
    else:
        U = lambda x: x[0] ** 2 / 2 + 2 * (x[1] - b * x[0] ** 2 / 2) ** 2
        target, box = gm.targets.LogDensity(lambda x: -U(x)), ((-6.0, 6.0), (-4.0, 4.0 + 18 * b))
    truth = plane_truth(h, U, np.eye(2), J, box)
    dynamics = gm.dynamics.nonreversible(J) if J.any() else gm.dynamics.overdamped(2)
    return Case(f"2 d, {k}, J = {J[1, 0]:.0f}, {text}", plan_for(target, dynamics, h, 2), *truth)


def space_case(rng) -> Case:
    text, rho = profile(rng)
    P, u = np.eye(3) + 0.3 * np.cov(rng.normal(size=(3, 6))), rng.normal(size=3)
    Q = rng.normal(size=(3, 3))
    Q = (Q - Q.T) * rng.integers(2)
    dynamics = gm.dynamics.nonreversible(Q) if Q.any() else gm.dynamics.overdamped(3)
    truth = ridge_truth(rho, u, P, np.eye(3), Q)
    return Case(f"3 d, {text}", plan_for(gm.targets.Quadratic(P), dynamics, lambda x: rho(jnp.vdot(u, x)), 3), *truth)


def momentum_case(rng) -> Case:
    """A Gaussian target of one or two parameters with momenta, or with D and Q that couple everything."""
    text, rho = profile(rng)
    d, kind = int(rng.integers(1, 3)), int(rng.integers(3))
    u = rng.normal(size=d)
    n = 2 * d
    if kind == 0:
        dynamics = gm.dynamics.hfhr(d, rng.uniform(0.3, 2.0), rng.uniform(0.5, 3.0))
    elif kind == 1:
        dynamics = gm.dynamics.gaul(rng.uniform(0.5, 2.0, d), a=1.0, gamma=2.0)
    else:
        root, Q = rng.normal(size=(n, n)), rng.normal(size=(n, n))
        dynamics = gm.dynamics.general(0.5 * np.eye(n) + root @ root.T / n, Q - Q.T)
    lifted = np.concatenate([u, np.zeros(d)])
    truth = ridge_truth(rho, lifted, np.eye(n), dynamics.D, dynamics.Q)
    plan = plan_for(gm.targets.CosinePerturbed(d, 0.0), dynamics, lambda x: rho(jnp.vdot(u, x)), d)
    return Case(f"momenta, {d} d, {kind}, {text}", plan, *truth)
