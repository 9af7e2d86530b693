"""Coordinates learned from draws: which parameters change location and scale of others, and which margins are bent.

Input: draws. Output: a `Learned` bijection that makes them look normal. Everything is a regression: scales by maximum likelihood
of normal residuals, margins by a line through arcsinh of normal quantiles, so nothing is compiled and nothing is searched for.
"""

import dataclasses
from statistics import NormalDist
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from gyromc.checks import numbers, require
from gyromc.coordinates.maps import Coordinates

__all__ = ["Learned", "funnel_shaped", "learn"]


class Learned(Coordinates):
    """Coordinates from draws, made by `learn`: some, the drivers, move and scale others; margins are straightened.

    θ_i = v_i exp(B_i·z) + A_i·z over the drivers' z, with v_i = m_i + s_i sinh((arcsinh z_i - ε_i)/δ_i). Drivers have A = B = 0.
    """

    margins: Float[np.ndarray, "4 d"]
    drivers: Int[np.ndarray, "d k"]
    shifts: Float[np.ndarray, "d k"]
    scales: Float[np.ndarray, "d k"]

    def _moved(self, z):
        driving = z[self.drivers]
        return jnp.sum(self.shifts * driving, axis=1), jnp.sum(self.scales * driving, axis=1)

    def forward(self, z):
        m, s, delta, epsilon = self.margins
        shift, log_scale = self._moved(z)
        return (m + s * jnp.sinh((jnp.arcsinh(z) - epsilon) / delta)) * jnp.exp(log_scale) + shift

    def inverse(self, theta):
        shift, log_scale = self._moved(_straightened(self.margins, theta, jnp))
        return _straightened(self.margins, (theta - shift) * jnp.exp(-log_scale), jnp)

    def log_det(self, z):
        _, s, delta, epsilon = self.margins
        inner = (jnp.arcsinh(z) - epsilon) / delta
        margin = jnp.log(s / delta) + jnp.log(jnp.cosh(inner)) - 0.5 * jnp.log1p(z**2)
        return jnp.sum(margin + self._moved(z)[1])


@dataclasses.dataclass(frozen=True)
class LearningSettings:
    """The numbers of `learn`.

    - `points`: draws that are used; more change nothing that matters.
    - `drivers`, `least`: of a coordinate's scale at most, and as many more of its shift; and the correlation from which on
      another coordinate is one: with log |θ_i - median| for the scale, with θ_i for the shift.
    - `funnel`: the same correlation from which on two coordinates with one driver are called a funnel. On thirty
      posteriors it was above for funnels and centred groups, and below for non-centred ones.
    - `iterations`: of Fisher scoring, which ends in a few.
    - `ridge`: shrinks shifts and scales, in units of a draw's own information.
    - `steepest`, `outlier`: bounds of a scale's coefficient and of a squared residual, so that no few draws decide.
    - `quantiles`, `widths`: at which margins are compared with normal ones, and scales s that are tried, in interquantile ranges.
    - `bent`, `better`: mean squared distance of a standardised margin's quantiles from normal ones from which on it is
      straightened, if that leaves less than this part of it. Straightened without need, the neck of a funnel that few draws have
      seen ends up in a heavy tail of z.
    """

    points: int = 4000
    drivers: int = 2
    least: float = 0.2
    funnel: float = 0.3
    iterations: int = 12
    ridge: float = 0.01
    steepest: float = 3.0
    outlier: float = 20.0
    quantiles: int = 400
    widths: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)
    bent: float = 0.02
    better: float = 0.5


LEARNING = LearningSettings()


def learn(draws: Any) -> Learned:
    """Coordinates in which draws look normal: log-scales that move and scale other parameters, and bent margins.

    For funnels, where the scale of some parameters is another parameter: `gm.expect` learns them itself where it sees one.

    **Arguments:**

    - `draws`: an array whose last axis are the parameters, at least 100 draws.

    ```python
    import gyromc as gm, numpy as np
    rng = np.random.default_rng(0)
    v = rng.normal(size=2000)
    funnel = np.column_stack([v, np.exp(v) * rng.normal(size=2000)])
    z = gm.coordinates.learn(funnel).zs(funnel)
    assert abs(np.corrcoef(z[:, 0], np.log(abs(z[:, 1])))[0, 1]) < 0.1
    ```
    """
    rows = numbers(draws, "draws")
    require(rows.ndim > 1 and rows.size, f"`draws` must have parameters along the last axis: got shape {rows.shape}.")
    rows = rows.reshape(-1, rows.shape[-1])
    require(
        len(rows) >= 100 and np.abs(rows).max() < 1e100 and bool(np.all(rows.std(axis=0) > 0)),
        f"`draws` must be at least 100 that differ in every parameter, of numbers below 1e100: got {len(rows)}.",
    )
    rows = rows[:: max(1, len(rows) // LEARNING.points)]
    d = rows.shape[1]
    z = np.clip(_straightened(_margins(rows), rows), -6, 6)
    own = _drivers(rows, z)
    free = np.array([not own[i] for i in range(d)])
    drivers, most = np.zeros((d, 2 * LEARNING.drivers), int), 2 * LEARNING.drivers
    shifts, scales, rest = np.zeros((d, most)), np.zeros((d, most)), rows.copy()
    for i in np.flatnonzero(~free):
        mine = own[i] + _shifting(rows[:, i], z, own[i], free)
        driving, k = z[:, mine], len(mine)
        drivers[i, :k] = mine
        shifts[i, :k], scales[i, :k] = _shift_and_scale(rows[:, i], driving)
        rest[:, i] = (rows[:, i] - driving @ shifts[i, :k]) * np.exp(-driving @ scales[i, :k])
    return Learned(_margins(rest), drivers, shifts, scales)


def driving_strength(rows: np.ndarray, z: np.ndarray | None = None) -> np.ndarray:
    """How far each coordinate (row) changes the scale of another (column): |corr(z_j, log |θ_i - median|)|."""
    z = np.clip(_straightened(_margins(rows), rows), -6, 6) if z is None else z
    away = np.log(np.abs(rows - np.median(rows, axis=0)) / rows.std(axis=0) + 1e-4)
    standard = lambda x: (x - x.mean(axis=0)) / x.std(axis=0)
    strength = np.abs(standard(z).T @ standard(away)) / len(rows)
    np.fill_diagonal(strength, 0.0)
    return strength


def funnel_shaped(draws: np.ndarray) -> bool:
    """Whether one coordinate changes the scale of two others or more, and none changes its own.

    In a neural network all weights change each other's scales: learned coordinates made its errors four times larger.
    """
    strength = driving_strength(draws[:: max(1, len(draws) // LEARNING.points)])
    strong = strength > LEARNING.funnel
    one_way = strong & (strength > 2 * strength.T)
    j = int(np.argmax(one_way.sum(axis=1)))
    return bool(one_way[j].sum() >= max(2, 0.8 * strong[j].sum()) and strength[:, j].max() < LEARNING.funnel)


def _drivers(rows: np.ndarray, z: np.ndarray) -> list[list[int]]:
    """For each coordinate the drivers that change its scale; a driver has none itself."""
    strength = driving_strength(rows, z)
    strength[strength < LEARNING.least] = 0.0
    total = np.sum(strength**2, axis=1)
    found: list[list[int]] = [[] for _ in total]
    driving = np.zeros(len(total), bool)
    for j in np.argsort(-total):
        if total[j] == 0 or found[j]:
            continue
        for i in np.flatnonzero((strength[j] > 0) & ~driving):
            if i != j and len(found[i]) < LEARNING.drivers:
                found[i].append(int(j))
                driving[j] = True
    return found


def _shifting(x: np.ndarray, z: np.ndarray, own: list[int], free: np.ndarray) -> list[int]:
    """Coordinates without drivers that move x: the largest correlations after what its own drivers explain, weighted by them."""
    driving = z[:, own]
    a, b = _shift_and_scale(x, driving)
    weight = np.exp(-np.clip(driving @ b - np.min(driving @ b), 0, 30))
    rest = (x - driving @ a) * weight
    others = np.array([j for j in np.flatnonzero(free) if j not in own], int)
    inner = z[:, others] * weight[:, None]
    size = np.sqrt(np.sum(inner**2, axis=0) * np.sum((rest - rest.mean()) ** 2))
    linked = np.abs((rest - rest.mean()) @ inner) / np.where(size > 0, size, 1.0)
    order = np.argsort(-linked)[: LEARNING.drivers]
    return [int(others[k]) for k in order if linked[k] > LEARNING.least]


def _shift_and_scale(x: np.ndarray, driving: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a and b of x ≈ x₀ + a·z + exp(b₀ + b·z)·noise by maximum likelihood: least squares and Fisher scoring in turns."""
    design = np.column_stack([np.ones(len(x)), driving])
    ridge = LEARNING.ridge * len(x) * np.diag([0.0] + [1.0] * driving.shape[1])
    information = design.T @ design + ridge
    log_size = np.log(np.abs(x - np.median(x)) + 1e-9 * x.std())
    # E log |noise| of a standard normal is -0.635
    b = np.linalg.solve(information, design.T @ (log_size + 0.635))
    a = np.zeros_like(b)
    for _ in range(LEARNING.iterations):
        log_scale = np.clip(design @ b, -30, 30)
        weight = np.exp(-2 * (log_scale - log_scale.min()))
        a = np.linalg.solve((design.T * weight) @ design + ridge * weight.mean(), design.T @ (weight * x))
        square = np.minimum((x - design @ a) ** 2 * np.exp(-2 * log_scale), LEARNING.outlier)
        b = b + np.linalg.solve(information, design.T @ (square - 1) / 2)
    return a[1:], np.clip(b[1:], -LEARNING.steepest, LEARNING.steepest)


def _margins(rows: np.ndarray) -> np.ndarray:
    """m, s, δ, ε of every margin: arcsinh of normal quantiles is linear in arcsinh((θ - m)/s), with coefficients δ and ε."""
    n, d = rows.shape
    pick = np.linspace(0, n - 1, min(n, LEARNING.quantiles)).astype(int)
    normal = np.array([NormalDist().inv_cdf((i + 0.5) / n) for i in pick])[:, None]
    found, ordered = np.arcsinh(normal), np.sort(rows, axis=0)[pick]
    center, sd = rows.mean(axis=0), rows.std(axis=0)
    best = np.stack([center, sd, np.ones(d), np.zeros(d)])
    straight = np.mean(((ordered - center) / sd - normal) ** 2, axis=0)
    least = np.where(straight > LEARNING.bent, LEARNING.better * straight, 0.0)
    middle = np.median(rows, axis=0)
    width = (np.quantile(rows, 0.84, axis=0) - np.quantile(rows, 0.16, axis=0)) / 2
    for factor in LEARNING.widths:
        s = np.where(width > 0, width, sd) * factor
        u = np.arcsinh((ordered - middle) / s)
        away = u - u.mean(axis=0)
        delta = np.sum(away * found, axis=0) / np.sum(away**2, axis=0)
        epsilon = found.mean() - delta * u.mean(axis=0)
        rest = np.mean((np.sinh(delta * u + epsilon) - normal) ** 2, axis=0)
        best = np.where(rest < least, np.stack([middle, s, delta, epsilon]), best)
        least = np.minimum(least, rest)
    return best


def _straightened(margins, theta, xp: Any = np):
    """z of a margin: sinh(δ arcsinh((θ - m)/s) + ε)."""
    m, s, delta, epsilon = margins
    return xp.sinh(delta * xp.arcsinh((theta - m) / s) + epsilon)
