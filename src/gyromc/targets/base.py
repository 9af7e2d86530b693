"""The interface of a target: the potential U of the law μ ∝ exp(-H), H(θ, r) = U(θ) + ½|r|²."""

import abc
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, Int

from gyromc.checks import numbers, require
from gyromc.runtime.evaluation import CHUNK, over_rows

Params = Any
Theta = Float[Array | np.ndarray, " d"]
Scalar = Float[Array | np.ndarray, ""]

MOST_PRODUCTS = 1_000_000  # data × directions in which gradients are differentiated at once

# Functions of a target and a point, for `over_rows`, which compiles each once.
_potential = lambda target, theta: target.potential(theta)
_gradient = lambda target, theta: target.gradient(theta)
_hessian = lambda target, theta: jax.hessian(target.potential)(theta)
_data_product = lambda target, theta, direction: target.data_product(theta, direction)


class Target(eqx.Module):
    """A potential U(θ); the parameters may be a vector or any pytree of arrays."""

    @abc.abstractmethod
    def potential(self, params: Params) -> Scalar:
        """U(θ), up to a constant."""

    def gradient(self, params: Params) -> Params:
        """∇U(θ)."""
        return jax.grad(self.potential)(params)

    @property
    def dim(self) -> int | None:
        """The number of parameters, or None when only the start determines it."""
        return None

    def gaussian(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(precision matrix, mean) when the target is Gaussian, else None."""
        return None

    def separable(self) -> tuple[Callable, ...] | None:
        """The one-dimensional potentials v_i with U(θ) = Σ v_i(θ_i), or None."""
        return None

    def points_at_once(self, products: int) -> int:
        """At how many points a function is evaluated together that takes so many products with the data."""
        return CHUNK

    def potentials(self, points: np.ndarray) -> np.ndarray:
        """U at every point, in float64; for targets over vectors."""
        return over_rows(_potential, points, self, chunk=self.points_at_once(1))

    def gradients(self, points: np.ndarray) -> np.ndarray:
        """∇U at every point, in float64; for targets over vectors."""
        return over_rows(_gradient, points, self, chunk=self.points_at_once(2))

    def hessians(self, points: np.ndarray) -> np.ndarray:
        """∇²U at every point, in float64; for targets over vectors."""
        return over_rows(_hessian, points, self, chunk=min(512, self.points_at_once(np.shape(points)[-1])))

    def mean_hessian(self, points: np.ndarray) -> np.ndarray:
        """The mean of ∇²U over the points."""
        return self.hessians(points).mean(axis=0)

    def reported(self, draws: Params) -> Params:
        """Draws (chains × draws × …) as shown to users: the parameters themselves, unless a target converts them."""
        return draws

    def log_likelihoods(self, params: Params) -> dict[str, Any] | None:
        """The log likelihood of every observation, by name of the data; None where the target does not know it."""
        return None


class SumOverData(Target):
    """U(θ) = Σ_i ℓ_i(θ) + prior(θ), for mini-batch oracles."""

    @property
    @abc.abstractmethod
    def num_data(self) -> int:
        """N, the number of terms."""

    @abc.abstractmethod
    def batch_gradient(self, params: Params, index: Int[Array, " b"]) -> Params:
        """Σ_{i ∈ index} ∇ℓ_i(θ), counted with multiplicity."""

    @abc.abstractmethod
    def prior_gradient(self, params: Params) -> Params:
        """The gradient of the prior's part of U."""

    def weighted_gradient(self, params: Params, index: Int[Array, " b"], weight: float) -> Params:
        """weight · Σ_{i ∈ index} ∇ℓ_i(θ) plus the prior's gradient."""
        parts = self.batch_gradient(params, index), self.prior_gradient(params)
        return jax.tree.map(lambda likelihood, prior: weight * likelihood + prior, *parts)

    def remainder(self, theta: Theta, center: Theta, index: Int[Array, " b"], order: int) -> Theta:
        """Σ_{i ∈ index} of ∇ℓ_i(θ) less its Taylor polynomial, ∇ℓ_i(c) or with order 2 ∇ℓ_i(c) + ∇²ℓ_i(c)(θ-c)."""
        here, terms = self.batch_gradient(theta, index), lambda c: self.batch_gradient(c, index)
        if order == 1:
            return here - terms(center)
        there, along = jax.jvp(terms, (center,), (theta - center,))
        return here - there - along

    def data_product(self, theta: Theta, direction: Theta) -> Theta:
        """Σ_i ∇²ℓ_i(θ) times a direction, from all the data, for targets over vectors."""
        return jax.jvp(lambda t: self.gradient(t) - self.prior_gradient(t), (theta,), (direction,))[1]

    def data_hessian(self, theta: np.ndarray) -> np.ndarray:
        """Σ_i ∇²ℓ_i(θ) as a matrix, in float64, for targets over vectors."""
        chunk = max(1, min(512, MOST_PRODUCTS // self.num_data))
        return over_rows(_data_product, np.eye(len(theta)), self, np.asarray(theta, float), chunk=chunk)


def of_rows(values, name: str, num_rows: int) -> np.ndarray:
    """A number for each row."""
    values = numbers(values, name)
    fits, each = values.shape == (num_rows,), f"`{name}` must have one entry per row of `X`"
    require(fits, f"{each}: X has {num_rows} rows, {name} has shape {values.shape}.")
    return values


def read_rows(X, y, least: tuple[int, int] = (1, 0)) -> tuple[np.ndarray, np.ndarray]:
    """X as a matrix with a row for each observation, of at least this shape, y as a vector."""
    X = numbers(X, "X")
    fits = X.ndim == 2 and np.all(np.array(X.shape) >= least)
    require(fits, f"`X` must be a matrix with one row per observation: got shape {X.shape}.")
    return X, of_rows(y, "y", len(X))
