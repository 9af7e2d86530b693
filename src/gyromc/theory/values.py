"""Values, gradients and Hessians of a plan's functions at many points, in float64 (E6 needs h, T3 its sample, §4 the Hessians).

Receives a plan and rows of θ; hands on NumPy arrays. Points are taken some thousand at a time.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.observables import Observable, Ridge
from gyromc.plan import Plan

CHUNK = 2**15


def over_rows(function: Callable, rows: np.ndarray, chunk: int = CHUNK) -> np.ndarray:
    """`function` of one θ, at every row."""
    with jax.enable_x64(True):
        mapped = jax.jit(jax.vmap(function))
        parts = [np.asarray(mapped(jnp.asarray(rows[i : i + chunk], float)), float) for i in range(0, len(rows), chunk)]
    return np.concatenate(parts)


def observable_values(plan: Plan, h: Observable, rows: np.ndarray) -> np.ndarray:
    """h at every row of θ."""
    return over_rows(lambda theta: h(plan.unravel(theta)), rows)


def observable_gradient(plan: Plan, h: Observable, theta: np.ndarray) -> np.ndarray:
    """∇h at one θ."""
    return over_rows(jax.grad(lambda t: h(plan.unravel(t)).astype(float)), theta[None])[0]


def gradients(plan: Plan, rows: np.ndarray) -> np.ndarray:
    """∇U at every row."""
    return over_rows(plan.flat_target.gradient, rows)


def hessians(plan: Plan, rows: np.ndarray, chunk: int = 512) -> np.ndarray:
    """∇²U at every row."""
    return over_rows(jax.hessian(plan.flat_target.potential), rows, chunk)


def support(plan: Plan, h: Observable, spread: float = 3.0, points: int = 64) -> tuple[int, ...]:
    """The coordinates of θ that h depends on: known for a ridge, else where ∇h is not zero at some of 64 random points."""
    if isinstance(h, Ridge):
        return tuple(int(i) for i in np.flatnonzero(h.direction))
    rows = spread * np.random.default_rng(0).standard_normal((points, plan.dim))
    slopes = over_rows(jax.grad(lambda t: h(plan.unravel(t)).astype(float)), rows)
    return tuple(int(i) for i in np.flatnonzero(np.any(slopes != 0, axis=0)))
