"""The increments of the martingale control variate (T9) as a table of terms for the loop.

Input: a plan. Output: `Increments`: rows to multiply with (y⁺, s, ξ), and for every observable the terms of

    ψ = Σ_t u_t (cross_t v_t - square_t u_t + linear_t) - constant,   u_t a product with ξ, v_t a product with y⁺.

A product is computed once for all terms that use its direction: often the noise of a quadratic term is parallel to that of the
linear term, and its direction to the observable's own. The constant is E[Σ_t …] for the rows and numbers as they are rounded, so
that ψ has mean zero whatever was shared or rounded.
"""

from typing import NamedTuple

import numpy as np

from gyromc.martingale import martingale
from gyromc.observables import Ridge
from gyromc.plan import Plan

PARALLEL = 1e-6  # sine of the angle up to which two directions are one
NEGLIGIBLE = 1e-9  # of a row's largest entry: smaller ones are left out


class Increments(NamedTuple):
    """Rows over (y, s, ξ), the observables' own first, and the terms; `noise` and `state` are numbers of rows."""

    rows: np.ndarray
    start: np.ndarray  # where an observable's terms begin
    noise: np.ndarray
    state: np.ndarray
    cross: np.ndarray
    square: np.ndarray
    linear: np.ndarray
    constant: np.ndarray  # one per observable


def observables_alone(plan: Plan) -> Increments:
    """The observables' directions as rows, and no increments."""
    none, index = np.zeros(0), np.zeros(0, int)
    return Increments(_directions(plan), np.zeros(1, int), index, index, none, none, none, none)


def increments(plan: Plan) -> Increments:
    """The table for a plan with `martingale=True`; numbers are rounded to its precision."""
    found, own = martingale(plan), _directions(plan)
    m, d, n = plan.state_size, plan.dim, plan.dynamics.size
    state, noise = _Rows(np.pad(own, ((0, 0), (0, m - d)))), _Rows(np.zeros((0, n)))
    start, terms = [0], []
    for j in range(len(own)):
        linear, of_noise = found.linear[j], []
        for t in np.flatnonzero(found.owner == j):
            w, g = state.place(found.direction[t])
            u, f = noise.place(g * state.rows[w] @ plan.step_matrices.C)
            size = found.weight[t]  # T9: λ f u (2(g v - o) - f u) - …
            of_noise.append([u, w, 2 * size * f * g, size * f * f, -2 * size * f * found.offset[t]])
        if np.any(linear):
            u, f = noise.place(linear)
            same = [term for term in of_noise if term[0] == u]
            if same:
                same[0][4] += f
            else:
                of_noise.append([u, 0, 0.0, 0.0, f])
        terms += of_noise
        start.append(len(terms))
    return _table(plan, state.rows, noise.rows, np.array(start), np.reshape(terms, (-1, 5)))


def _directions(plan: Plan) -> np.ndarray:
    return np.stack([np.asarray(h.direction, float) for h in plan.observables.values() if isinstance(h, Ridge)])


def _table(plan: Plan, state: np.ndarray, noise: np.ndarray, start: np.ndarray, terms: np.ndarray) -> Increments:
    """All of it rounded to the plan's precision, with constants that fit what was rounded."""
    rounded = lambda x: np.asarray(x).astype(plan.dtype).astype(float)
    m, d, n = plan.state_size, plan.dim, plan.dynamics.size
    u, w = terms[:, 0].astype(int), terms[:, 1].astype(int)
    state, noise, cross, square = map(rounded, (state, noise, terms[:, 2], terms[:, 3]))
    drawn = (state @ plan.step_matrices.C)[w] if len(w) else np.zeros((0, n))
    mean = cross * np.sum(noise[u] * drawn, axis=1) - square * np.sum(noise[u] ** 2, axis=1)
    each = np.add.reduceat(np.append(mean, 0.0), start[:-1]) * (np.diff(start) > 0)
    rows = np.zeros((len(state) + len(noise), m + d + n))
    rows[: len(state), :m], rows[len(state) :, m + d :] = state, noise
    return Increments(rows, start, len(state) + u, w, cross, square, rounded(terms[:, 4]), each)


class _Rows:
    """Directions found so far, of which no two found later are parallel."""

    def __init__(self, rows: np.ndarray):
        self.rows = rows

    def place(self, direction: np.ndarray) -> tuple[int, float]:
        """The number of the row parallel to a direction, added where there is none, and the factor: direction = factor · row."""
        direction = np.where(np.abs(direction) > NEGLIGIBLE * np.max(np.abs(direction)), direction, 0.0)
        squares = np.sum(self.rows**2, axis=1)
        factors = (self.rows @ direction) / np.where(squares > 0, squares, 1.0)
        away = np.linalg.norm(direction - factors[:, None] * self.rows, axis=1)
        near = np.flatnonzero(away <= PARALLEL * np.linalg.norm(direction))
        if len(near):
            return int(near[0]), float(factors[near[0]])
        self.rows = np.concatenate([self.rows, direction[None]])
        return len(self.rows) - 1, 1.0
