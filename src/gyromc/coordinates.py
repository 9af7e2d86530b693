"""Coordinates θ = T(z): chains move in z, and users see θ (T14).

Input: a bijection with its inverse and log |det T′|. Output: frozen values that `expect` and `Plan` take as `coordinates=`, and a
target as a function of z, whose potential is U(T(z)) - log |det T′(z)|. With constant D and Q in z, θ follows the complete recipe
with the state-dependent D(θ) = T′DT′ᵀ and Q(θ) = T′QT′ᵀ; its correction term Γ(θ) comes out of the chain rule and needs no code.
"""

import abc
import dataclasses
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from gyromc.checks import explained, numbers, require, shown
from gyromc.runtime.evaluation import doubled, over_rows
from gyromc.runtime.precision import owned, private
from gyromc.targets import SumOverData, Target

__all__ = ["Bijection", "Compose", "Coordinates", "Learned", "Linear", "learn"]

Vector = Float[Array, " d"]

CHECKED = 64  # parameters up to which a user's log |det T′| is compared with the derivative of T: d³ operations
TOLERANCE = 1e-6  # of these comparisons, in float64: what an iterated inverse leaves


class Coordinates(eqx.Module):
    """A bijection θ = T(z) of Rᵈ."""

    @abc.abstractmethod
    def forward(self, z: Vector) -> Vector:
        """θ = T(z)."""

    @abc.abstractmethod
    def inverse(self, theta: Vector) -> Vector:
        """z = T⁻¹(θ)."""

    @abc.abstractmethod
    def log_det(self, z: Vector) -> Float[Array, ""]:
        """log |det T′(z)|."""

    def thetas(self, rows: Any) -> np.ndarray:
        """T of vectors along the last axis, in float64."""
        return self._over_last(type(self).forward, rows)

    def zs(self, rows: Any) -> np.ndarray:
        """T⁻¹ of vectors along the last axis, in float64."""
        return self._over_last(type(self).inverse, rows)

    def _over_last(self, function: Callable, rows: Any) -> np.ndarray:
        rows = numbers(rows, "rows")
        require(rows.ndim > 0, f"`rows` must be a vector, or several: got {shown(rows)}.")
        d = rows.shape[-1]
        with _evaluating(d):
            found = over_rows(function, rows.reshape(-1, d), self) if rows.size else rows
        require(found.size == rows.size, f"`coordinates` must map {d} numbers to {d}: got shape {found.shape[1:]}.")
        return found.reshape(rows.shape)


class Linear(Coordinates):
    """θ = shift + Lz.

    **Arguments:**

    - `matrix`: L, nonsingular; a vector is a diagonal.
    - `shift`: a vector; left out: zeros.

    ```python
    import gyromc as gm
    scaled = gm.coordinates.Linear([2.0, 0.5], shift=[1.0, 0.0])
    print(scaled.thetas([1.0, 1.0]).tolist())  # [3.0, 0.5]
    ```
    """

    matrix: Float[np.ndarray, "..."]
    inverse_matrix: Float[np.ndarray, "..."]
    shift: Float[np.ndarray, " d"]
    constant: Float[np.ndarray, ""]

    def __init__(self, matrix, shift=None):
        L = numbers(matrix, "matrix")
        square = L.ndim in (1, 2) and L.size > 0 and len(set(L.shape)) == 1
        require(square, f"`matrix` must be square, or a vector for a diagonal: got shape {L.shape}.")
        size = np.linalg.slogdet(np.diag(L) if L.ndim == 1 else L)[1]
        regular = np.isfinite(size) and (L.ndim == 1 or np.linalg.cond(L) < 1e14)
        why = "so that θ determines z: its determinant is 0 to rounding"
        require(regular, f"`matrix` must be nonsingular, {why}. Drop dependent columns.")
        b = np.zeros(len(L)) if shift is None else numbers(shift, "shift")
        require(b.shape == (len(L),), f"`shift` must hold {len(L)} numbers, like `matrix`: got shape {b.shape}.")
        self.matrix, self.inverse_matrix = L, 1 / L if L.ndim == 1 else np.linalg.inv(L)
        self.shift, self.constant = b, np.asarray(size, float)

    def forward(self, z):
        return self.shift + (self.matrix * z if self.matrix.ndim == 1 else self.matrix @ z)

    def inverse(self, theta):
        away, back = theta - self.shift, self.inverse_matrix
        return back * away if back.ndim == 1 else back @ away

    def log_det(self, z):
        return jnp.asarray(self.constant, z.dtype)


class Bijection(Coordinates):
    """A bijection of your own, written with `jax.numpy`.

    **Arguments:**

    - `forward`, `inverse`: T and T⁻¹, functions of one vector.
    - `log_det`: z ↦ log |det T′(z)|; left out: from the derivative of `forward`, in d³ operations a step.

    ```python
    import gyromc as gm, jax.numpy as jnp
    positive = gm.coordinates.Bijection(jnp.exp, jnp.log, log_det=jnp.sum)
    print(positive.zs([1.0, 1.0]).tolist())  # [0.0, 0.0]
    ```
    """

    to_theta: Callable
    to_z: Callable
    size: Callable | None

    def __init__(self, forward: Callable, inverse: Callable, log_det: Callable | None = None):
        given = {"forward": forward, "inverse": inverse, **({} if log_det is None else {"log_det": log_det})}
        for name, function in given.items():
            require(callable(function), f"`{name}` must be a function of a vector: got {shown(function)}.")
        self.to_theta, self.to_z = owned(forward), owned(inverse)
        self.size = None if log_det is None else owned(log_det)

    def forward(self, z):
        return private(self.to_theta)(z)

    def inverse(self, theta):
        return private(self.to_z)(theta)

    def log_det(self, z):
        return _log_det(self.forward, z) if self.size is None else private(self.size)(z)


class Compose(Coordinates):
    """T = T₁ ∘ T₂ ∘ …: the last map is applied to z first.

    ```python
    import gyromc as gm, jax.numpy as jnp
    both = gm.coordinates.Compose(gm.coordinates.Bijection(jnp.exp, jnp.log, jnp.sum), gm.coordinates.Linear([2.0]))
    print(both.zs(both.thetas([0.3])).round(3).tolist())  # [0.3]
    ```
    """

    parts: tuple[Coordinates, ...]

    def __init__(self, *maps: Coordinates):
        came = ", ".join(type(one).__name__ for one in maps) or "none"
        good = len(maps) > 0 and all(isinstance(one, Coordinates) for one in maps)
        require(good, f"`Compose` takes values of `gyromc.coordinates`: got {came}.")
        self.parts = maps

    def forward(self, z):
        for one in reversed(self.parts):
            z = one.forward(z)
        return z

    def inverse(self, theta):
        for one in self.parts:
            theta = one.inverse(theta)
        return theta

    def log_det(self, z):
        total = jnp.zeros((), z.dtype)
        for one in reversed(self.parts):
            total, z = total + one.log_det(z), one.forward(z)
        return total


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
    """The numbers of `learn`."""

    points: int = 4000  # draws that are used
    drivers: int = 2  # of a coordinate's scale at most, and as many more of its shift
    # The correlation from which on another coordinate is a driver: with log |θ_i - median| for the scale, with θ_i for the shift.
    least: float = 0.2
    # The correlation from which on two coordinates with one driver are a funnel: on thirty posteriors it was above for funnels
    # and centred groups, and below for non-centred ones.
    funnel: float = 0.3
    iterations: int = 12  # of Fisher scoring
    ridge: float = 0.01  # in units of a draw's own information
    steepest: float = 3.0  # bounds a scale's coefficient …
    outlier: float = 20.0  # … and this a squared residual, so that no few draws decide
    quantiles: int = 400  # at which margins are compared with normal ones
    widths: tuple[float, ...] = (0.1, 0.3, 1.0, 3.0, 10.0)  # scales s that are tried, in interquantile ranges
    # Mean squared distance of a margin's quantiles from normal ones from which on it is straightened, if that leaves less than
    # the part `better` of it. Straightened without need, the neck of a funnel ends up in a heavy tail of z.
    bent: float = 0.02
    better: float = 0.5


LEARNING = LearningSettings()


def learn(draws: Any) -> Learned:
    """Coordinates in which draws look normal: log-scales that move and scale other parameters, and bent margins.

    For funnels; `gm.expect` learns them itself where it sees one.

    **Arguments:** `draws`: an array whose last axis are the parameters, at least 100 draws.

    ```python
    import gyromc as gm, numpy as np
    rng = np.random.default_rng(0)
    v = rng.normal(size=2000)
    funnel = np.column_stack([v, np.exp(v) * rng.normal(size=2000)])
    z = gm.coordinates.learn(funnel).zs(funnel)
    print(abs(np.corrcoef(z[:, 0], np.log(abs(z[:, 1])))[0, 1]) < 0.1)  # True
    ```
    """
    rows = numbers(draws, "draws")
    require(rows.ndim > 1 and rows.size, f"`draws` must have parameters along the last axis: got shape {rows.shape}.")
    rows = rows.reshape(-1, rows.shape[-1])
    good = len(rows) >= 100 and np.abs(rows).max() < 1e100 and bool(np.all(rows.std(axis=0) > 0))
    wanted = "at least 100 that differ in every parameter, of numbers below 1e100"
    require(good, f"`draws` must be {wanted}: got {len(rows)}.")
    rows = rows[:: max(1, len(rows) // LEARNING.points)]
    d = rows.shape[1]
    z = np.clip(_straightened(_margins(rows), rows), -6, 6)
    own = _drivers(rows, z)
    free, most = np.array([not mine for mine in own]), 2 * LEARNING.drivers
    drivers, shifts, scales, rest = np.zeros((d, most), int), np.zeros((d, most)), np.zeros((d, most)), rows.copy()
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
    """Whether one coordinate changes the scale of two others or more, and none changes its own, as weights of networks do."""
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


class PulledTarget(Target):
    """A target over a vector θ as a function of z: U(T(z)) - log |det T′(z)|."""

    target: Any
    coordinates: Coordinates

    dim = property(lambda self: self.target.dim)

    def potential(self, params):
        return self.target.potential(self.coordinates.forward(params)) - self.coordinates.log_det(params)  # T14

    def gradient(self, params):
        return self._pulled(self.target.gradient, params)

    def _pulled(self, gradient: Callable, z, with_determinant: bool = True):
        """T′ᵀ times a gradient at T(z), less that of log |det T′|."""
        theta, back = jax.vjp(self.coordinates.forward, z)
        found = back(gradient(theta))[0]
        return found - jax.grad(self.coordinates.log_det)(z) if with_determinant else found

    def gaussian(self):
        known = self.target.gaussian()
        if known is None or not isinstance(self.coordinates, Linear):
            return None
        L = self.coordinates.matrix
        L = np.diag(L) if L.ndim == 1 else L
        return L.T @ known[0] @ L, self.coordinates.zs(known[1])


class PulledSum(PulledTarget, SumOverData):
    """A sum over data as a function of z: the determinant belongs to the prior."""

    num_data = property(lambda self: self.target.num_data)

    def batch_gradient(self, params, index):
        return self._pulled(lambda theta: self.target.batch_gradient(theta, index), params, with_determinant=False)

    def prior_gradient(self, params):
        return self._pulled(self.target.prior_gradient, params)

    def weighted_gradient(self, params, index, weight):
        return self._pulled(lambda theta: self.target.weighted_gradient(theta, index, weight), params)


def pulled(target: Target, coordinates: Coordinates | None) -> Target:
    """A target over a vector θ as a function of z; the target itself without coordinates."""
    if coordinates is None:
        return target
    return (PulledSum if isinstance(target, SumOverData) else PulledTarget)(target, coordinates)


def check_coordinates(coordinates: Any, theta: np.ndarray) -> None:
    """Raise `InvalidInput` unless T and T⁻¹ invert each other at a point and log |det T′| is that of T there."""
    wanted = 'a value of `gyromc.coordinates`, or "learned" for `gyromc.expect`'
    require(isinstance(coordinates, Coordinates), f"`coordinates` must be {wanted}: got {shown(coordinates)}.")
    d, z = len(theta), coordinates.zs(theta)
    fault = "`coordinates` are not a bijection at the start"
    require(np.isfinite(z).all(), f"{fault}: T⁻¹(θ) is not finite. Pass a `start` where it is defined.")
    off = float(np.max(np.abs(coordinates.thetas(z) - theta) / (1 + np.abs(theta))))
    with jax.enable_x64(True), _evaluating(d):
        T = doubled(coordinates)
        size = np.asarray(T.log_det(jnp.asarray(z)))
        derived = np.asarray(_log_det(T.forward, jnp.asarray(z))) if d <= CHECKED else size
    require(np.shape(size) == (), f"`log_det` must return one number: got shape {np.shape(size)}.")
    require(size.dtype.kind in "fiu", f"`log_det` must return one number: got {shown(size.item())}.")
    require(off <= TOLERANCE, f"{fault}: T(T⁻¹(θ)) misses θ by {off:.3g}. Correct `inverse`, or pass another `start`.")
    found = f"at the start it is {size:.6g}, and the derivative of `forward` has {derived:.6g}"
    same = np.abs(size - derived) <= TOLERANCE * (1 + np.abs(derived))
    require(same, f"`log_det` must be log |det T′(z)|: {found}. Leave it out, or correct it.")


def _evaluating(d: int):
    remedy = f"They take and return vectors of {d} numbers."
    return explained(f"`coordinates` cannot be evaluated at {d} parameters", remedy)


_log_det = lambda forward, z: jnp.linalg.slogdet(jax.jacfwd(forward)(z))[1]
