"""Values, gradients and Hessians of a plan's functions at many points, in float64 (E6 needs h, T3 its sample, §4 the Hessians).

Receives a plan and rows of θ; hands on NumPy arrays. Points are taken some thousand at a time, in few different numbers, so
that JAX compiles each function once.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.observables import Observable, Ridge
from gyromc.plan import Plan

CHUNK = 2**15


@eqx.filter_jit
def _mapped(function, rows, *pieces):
    return jax.vmap(lambda x: function(*pieces, x))(rows)


def over_rows(function: Callable, rows: np.ndarray, *pieces, chunk: int = CHUNK) -> np.ndarray:
    """`function(*pieces, row)` at every row; compiled once for a function and pieces of one structure."""
    parts = []
    with jax.enable_x64(True):
        pieces = jax.tree.map(lambda x: np.asarray(x, float) if eqx.is_inexact_array(x) else x, pieces)
        for i in range(0, len(rows), chunk):
            block = np.asarray(rows[i : i + chunk], float)
            room = min(chunk, max(64, 1 << (len(block) - 1).bit_length()))
            padded = np.concatenate([block, np.broadcast_to(block[:1], (room - len(block), *block.shape[1:]))])
            parts.append(np.asarray(_mapped(function, jnp.asarray(padded), *pieces), float)[: len(block)])
    return np.concatenate(parts)


def _h(h, unravel, theta):
    return jnp.asarray(h(unravel(theta)), float)


def _grad_h(h, unravel, theta):
    return jax.grad(lambda t: _h(h, unravel, t))(theta)


def _potential(target, theta):
    return target.potential(theta)


def _gradient(target, theta):
    return target.gradient(theta)


def _hessian(target, theta):
    return jax.hessian(target.potential)(theta)


def observable_values(plan: Plan, h: Observable, rows: np.ndarray) -> np.ndarray:
    """h at every row of θ."""
    return over_rows(_h, rows, h, plan.unravel)


def observable_gradients(plan: Plan, h: Observable, rows: np.ndarray) -> np.ndarray:
    """∇h at every row of θ."""
    return over_rows(_grad_h, rows, h, plan.unravel)


def potentials(plan: Plan, rows: np.ndarray) -> np.ndarray:
    """U at every row."""
    return over_rows(_potential, rows, plan.flat_target)


def gradients(plan: Plan, rows: np.ndarray) -> np.ndarray:
    """∇U at every row."""
    return over_rows(_gradient, rows, plan.flat_target)


def hessians(plan: Plan, rows: np.ndarray, chunk: int = 512) -> np.ndarray:
    """∇²U at every row."""
    return over_rows(_hessian, rows, plan.flat_target, chunk=chunk)


def support(plan: Plan, h: Observable, spread: float = 3.0, points: int = 64) -> tuple[int, ...]:
    """The coordinates of θ that h depends on: known for a ridge, else where ∇h is not zero at some of 64 random points."""
    if isinstance(h, Ridge):
        return tuple(int(i) for i in np.flatnonzero(h.direction))
    slopes = observable_gradients(plan, h, spread * np.random.default_rng(0).standard_normal((points, plan.dim)))
    return tuple(int(i) for i in np.flatnonzero(np.any(slopes != 0, axis=0)))
