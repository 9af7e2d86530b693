"""Coordinates θ = T(z): chains move in z, and users see θ (T14).

Input: a bijection with its inverse and log |det T′|. Output: frozen values that `expect` takes as `coordinates=`, and a target as
a function of z, whose potential is U(T(z)) - log |det T′(z)|. With constant D and Q in z, θ follows the complete recipe with the
state-dependent D(θ) = T′DT′ᵀ and Q(θ) = T′QT′ᵀ; its correction term Γ(θ) comes out of the chain rule and needs no code.
"""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gyromc.checks import cause, numbers, require, shown
from gyromc.errors import InvalidInput
from gyromc.evaluation import doubled, over_rows
from gyromc.precision import owned, private
from gyromc.targets import SumOverData, Target

__all__ = ["Bijection", "Compose", "Coordinates", "Linear"]

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
        return _over_last(type(self).forward, rows, self)

    def zs(self, rows: Any) -> np.ndarray:
        """T⁻¹ of vectors along the last axis, in float64."""
        return _over_last(type(self).inverse, rows, self)


class Linear(Coordinates):
    """θ = shift + Lz.

    **Arguments:**

    - `matrix`: L, nonsingular; a vector is a diagonal.
    - `shift`: a vector; left out: zeros.

    ```python
    import gyromc as gm
    scaled = gm.coordinates.Linear([2.0, 0.5], shift=[1.0, 0.0])
    assert scaled.thetas([1.0, 1.0]).tolist() == [3.0, 0.5]
    ```
    """

    matrix: Float[np.ndarray, "..."]
    inverse_matrix: Float[np.ndarray, "..."]
    shift: Float[np.ndarray, " d"]
    constant: Float[np.ndarray, ""]

    def __init__(self, matrix, shift=None):
        L = numbers(matrix, "matrix")
        require(
            L.ndim in (1, 2) and L.size > 0 and len(set(L.shape)) == 1,
            f"`matrix` must be square, or a vector for a diagonal: got shape {L.shape}.",
        )
        size = np.linalg.slogdet(np.diag(L) if L.ndim == 1 else L)[1]
        require(
            np.isfinite(size) and (L.ndim == 1 or np.linalg.cond(L) < 1e14),
            "`matrix` must be nonsingular, so that θ determines z: its determinant is 0 to rounding. Drop dependent columns.",
        )
        b = np.zeros(len(L)) if shift is None else numbers(shift, "shift")
        require(b.shape == (len(L),), f"`shift` must hold {len(L)} numbers, like `matrix`: got shape {b.shape}.")
        self.matrix, self.inverse_matrix = L, 1 / L if L.ndim == 1 else np.linalg.inv(L)
        self.shift, self.constant = b, np.asarray(size, float)

    def forward(self, z):
        return self.shift + _times(self.matrix, z)

    def inverse(self, theta):
        return _times(self.inverse_matrix, theta - self.shift)

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
    assert abs(positive.zs([1.0, 1.0])).max() == 0
    ```
    """

    to_theta: Callable
    to_z: Callable
    size: Callable | None

    def __init__(self, forward: Callable, inverse: Callable, log_det: Callable | None = None):
        for name, function in (("forward", forward), ("inverse", inverse), ("log_det", log_det)):
            optional = name == "log_det" and function is None
            require(callable(function) or optional, f"`{name}` must be a function of a vector: got {shown(function)}.")
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
    assert abs(both.zs(both.thetas([0.3]))[0] - 0.3) < 1e-12
    ```
    """

    parts: tuple[Coordinates, ...]

    def __init__(self, *maps: Coordinates):
        require(
            len(maps) > 0 and all(isinstance(one, Coordinates) for one in maps),
            f"`Compose` takes values of `gyromc.coordinates`: got {', '.join(type(one).__name__ for one in maps) or 'none'}.",
        )
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


class PulledTarget(Target):
    """A target over a vector θ as a function of z: U(T(z)) - log |det T′(z)|."""

    target: Any
    coordinates: Coordinates

    @property
    def dim(self) -> int | None:
        return self.target.dim

    def potential(self, params):
        return self.target.potential(self.coordinates.forward(params)) - self.coordinates.log_det(params)  # T14

    def gradient(self, params):
        return self._pulled(self.target.gradient, params) - jax.grad(self.coordinates.log_det)(params)

    def _pulled(self, gradient: Callable, z):
        """T′ᵀ times a gradient at T(z)."""
        theta, back = jax.vjp(self.coordinates.forward, z)
        return back(gradient(theta))[0]

    def gaussian(self):
        known = self.target.gaussian()
        if known is None or not isinstance(self.coordinates, Linear):
            return None
        L = self.coordinates.matrix
        L = np.diag(L) if L.ndim == 1 else L
        return L.T @ known[0] @ L, self.coordinates.zs(known[1])


class PulledSum(PulledTarget, SumOverData):
    """A sum over data as a function of z: the determinant belongs to the prior."""

    @property
    def num_data(self) -> int:
        return self.target.num_data

    def batch_gradient(self, params, index):
        return self._pulled(lambda theta: self.target.batch_gradient(theta, index), params)

    def prior_gradient(self, params):
        return self._pulled(self.target.prior_gradient, params) - jax.grad(self.coordinates.log_det)(params)

    def weighted_gradient(self, params, index, weight):
        weighted = lambda theta: self.target.weighted_gradient(theta, index, weight)
        return self._pulled(weighted, params) - jax.grad(self.coordinates.log_det)(params)


def pulled(target: Target, coordinates: Coordinates | None) -> Target:
    """A target over a vector θ as a function of z; the target itself without coordinates."""
    if coordinates is None:
        return target
    return (PulledSum if isinstance(target, SumOverData) else PulledTarget)(target, coordinates)


def check_coordinates(coordinates: Any, theta: np.ndarray) -> None:
    """Raise `InvalidInput` unless T and T⁻¹ invert each other at a point and log |det T′| is that of T there."""
    require(
        isinstance(coordinates, Coordinates),
        f'`coordinates` must be a value of `gyromc.coordinates`, or "learned" for `gyromc.expect`: got {shown(coordinates)}.',
    )
    d = len(theta)
    z = coordinates.zs(theta)
    fault = "`coordinates` are not a bijection at the start"
    require(np.isfinite(z).all(), f"{fault}: T⁻¹(θ) is not finite. Pass a `start` where it is defined.")
    again = coordinates.thetas(z)
    with jax.enable_x64(True):
        T = doubled(coordinates)
        size = np.asarray(_evaluated(lambda: T.log_det(jnp.asarray(z)), d))
        derived = np.asarray(_log_det(T.forward, jnp.asarray(z))) if d <= CHECKED else size
    require(np.shape(size) == (), f"`log_det` must return one number: got shape {np.shape(size)}.")
    require(size.dtype.kind in "fiu", f"`log_det` must return one number: got {shown(size.item())}.")
    off = float(np.max(np.abs(again - theta) / (1 + np.abs(theta))))
    require(off <= TOLERANCE, f"{fault}: T(T⁻¹(θ)) misses θ by {off:.3g}. Correct `inverse`, or pass another `start`.")
    require(
        np.abs(size - derived) <= TOLERANCE * (1 + np.abs(derived)),
        f"`log_det` must be log |det T′(z)|: at the start it is {size:.6g}, and the derivative of `forward` has {derived:.6g}. "
        "Leave it out, or correct it.",
    )


def _times(matrix, v):
    return matrix * v if matrix.ndim == 1 else matrix @ v


def _over_last(function: Callable, rows: Any, coordinates: Coordinates) -> np.ndarray:
    rows = numbers(rows, "rows")
    require(rows.ndim > 0, f"`rows` must be a vector, or several: got {shown(rows)}.")
    d = rows.shape[-1]
    found = _evaluated(lambda: over_rows(function, rows.reshape(-1, d), coordinates), d) if rows.size else rows
    require(found.size == rows.size, f"`coordinates` must map {d} numbers to {d}: got shape {found.shape[1:]}.")
    return found.reshape(rows.shape)


def _evaluated(compute: Callable[[], Any], d: int) -> Any:
    try:
        return compute()
    except Exception as error:
        raise InvalidInput(
            f"`coordinates` cannot be evaluated at {d} parameters: {cause(error)}. They take and return vectors of {d} numbers."
        ) from error


def _log_det(forward: Callable, z):
    return jnp.linalg.slogdet(jax.jacfwd(forward)(z))[1]
