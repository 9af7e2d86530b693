"""Likelihoods of regressions as functions of the linear predictors t: -log p(y | t), its derivatives, and the law of y.

Input: linear predictors t, … × rows (… × rows × q for `Categorical`), responses y, and what else the law of y depends on
(`given`: a noise scale, a shape, …), as arrays that broadcast with … × rows. Output: arrays of the same kind: one formula serves
NumPy arrays (mode finding, predictions: nothing to compile) and JAX arrays (a sampler's gradients); `sample` and `cdf` are for
NumPy arrays.
"""

import abc
import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

__all__ = ["Bernoulli", "Canonical", "Categorical", "Likelihood", "Normal", "Poisson", "contrasts", "library"]

Values = Any  # a NumPy or a JAX array


def library(t) -> Any:
    """NumPy for NumPy arrays, JAX for everything else."""
    return np if isinstance(t, np.ndarray | np.generic) else jnp


def sigmoid(t):
    """1/(1 + e⁻ᵗ)."""
    return special.expit(t) if library(t) is np else jax.nn.sigmoid(t)


def log_sigmoid(t):
    """-log(1 + e⁻ᵗ)."""
    return special.log_expit(t) if library(t) is np else jax.nn.log_sigmoid(t)


@dataclasses.dataclass(frozen=True)
class Likelihood(abc.ABC):
    """A model of y given its linear predictors."""

    @property
    def outputs(self) -> int:
        """q, the number of linear predictors of a row."""
        return 1

    @property
    def basis(self) -> np.ndarray:
        """The matrix from the weights of the linear predictors to those of the classes; [[1]] for scalar models."""
        return np.eye(1)

    @property
    def known(self) -> tuple[str, ...]:
        """Names of what is given for every row, before the further parameters."""
        return ()

    @property
    def auxiliary(self) -> tuple[str, ...]:
        """Names of further parameters, in the order in which they are `given`."""
        return ()

    def natural(self, u: Values) -> tuple[Values, ...]:
        """The further parameters from numbers that are standard normal a priori, … × parameters; each of shape …."""
        return ()

    def in_units(self, given: tuple[Values, ...], y_scale: float) -> tuple[Values, ...]:
        """The further parameters for y in the user's units, from those for y/y_scale."""
        return given

    @property
    def discrete(self) -> bool:
        """Whether y is a whole number, so that its distribution function has jumps."""
        return True

    @abc.abstractmethod
    def loss(self, t: Values, y: Values, *given: Values) -> Values:
        """-log p(y | t), up to a constant in t and what is given: … × rows."""

    @abc.abstractmethod
    def mean(self, t: Values, *given: Values) -> Values:
        """E[y | t]: … × rows, or … × rows × C probabilities of the classes."""

    @abc.abstractmethod
    def variance(self, mean: Values, *given: Values) -> Values:
        """The variance of y given its mean; of each class's indicator, for classes."""

    @abc.abstractmethod
    def sample(self, rng: np.random.Generator, t: np.ndarray, *given: Values) -> np.ndarray:
        """One y for each linear predictor: … × rows."""

    @abc.abstractmethod
    def cdf(self, y: Values, t: np.ndarray, *given: Values) -> np.ndarray:
        """P(Y ≤ y | t): … × rows; for classes the probability of the classes 0 … y."""

    def log_density(self, t: Values, y: Values, *given: Values) -> Values:
        """log p(y | t), constants included: … × rows."""
        return -self.loss(t, y, *given) - self.constant(y, *given)

    def constant(self, y: np.ndarray, *given: Values) -> np.ndarray:
        """-log p(y | t) minus `loss`."""
        return np.zeros(len(y))

    def start(self, y: np.ndarray) -> np.ndarray:
        """The linear predictors that fit y best without x."""
        return np.zeros(self.outputs)


class Canonical(Likelihood):
    """A model without further parameters whose loss is convex in t: its derivatives are known."""

    @abc.abstractmethod
    def slope(self, t: Values, y: Values) -> Values:
        """∂ loss/∂t, of t's shape."""

    @abc.abstractmethod
    def curvature(self, t: Values) -> Values:
        """∂² loss/∂t², independent of y in these models: of t's shape, or … × rows × q × q."""


@dataclasses.dataclass(frozen=True)
class Normal(Canonical):
    """y = t + N(0, 1); with `given` a noise scale σ, y = t + N(0, σ²)."""

    @property
    def discrete(self):
        return False

    def loss(self, t, y, *given):
        if not given:
            return 0.5 * (t - y) ** 2
        return 0.5 * ((t - y) / given[0]) ** 2 + library(t).log(given[0])

    def slope(self, t, y):
        return t - y

    def curvature(self, t):
        return library(t).ones_like(t)

    def mean(self, t, *given):
        return t

    def variance(self, mean, *given):
        one = library(mean).ones_like(mean)
        return one * given[0] ** 2 if given else one

    def sample(self, rng, t, *given):
        return rng.normal(t, *given)

    def cdf(self, y, t, *given):
        return special.ndtr((y - t) / given[0] if given else y - t)

    def constant(self, y, *given):
        return np.full(len(y), 0.5 * np.log(2 * np.pi))


@dataclasses.dataclass(frozen=True)
class Bernoulli(Canonical):
    """P(y = 1) = 1/(1 + e⁻ᵗ)."""

    def loss(self, t, y, *given):
        if library(t) is np:  # several times as fast as `np.logaddexp`, which takes one number at a time
            return np.maximum(t, 0.0) + np.log1p(np.exp(-np.abs(t))) - y * t
        return library(t).logaddexp(0.0, t) - y * t

    def slope(self, t, y):
        return sigmoid(t) - y

    def curvature(self, t):
        return self.variance(sigmoid(t))

    def mean(self, t, *given):
        return sigmoid(t)

    def variance(self, mean, *given):
        return mean * (1 - mean)

    def sample(self, rng, t, *given):
        return (rng.random(np.shape(t)) < sigmoid(t)).astype(float)

    def cdf(self, y, t, *given):
        return np.where(y < 0, 0.0, np.where(y < 1, sigmoid(-t), 1.0))


@dataclasses.dataclass(frozen=True)
class Poisson(Canonical):
    """y ~ Poisson(eᵗ)."""

    def loss(self, t, y, *given):
        return library(t).exp(t) - y * t

    def slope(self, t, y):
        return library(t).exp(t) - y

    def curvature(self, t):
        return library(t).exp(t)

    def mean(self, t, *given):
        return library(t).exp(t)

    def variance(self, mean, *given):
        return mean

    def sample(self, rng, t, *given):
        return rng.poisson(np.exp(t)).astype(float)

    def cdf(self, y, t, *given):
        return np.where(y < 0, 0.0, special.pdtr(np.maximum(y, 0), np.exp(t)))

    def constant(self, y, *given):
        return special.gammaln(y + 1)

    def start(self, y):
        return np.log(y.mean(keepdims=True) + 0.5 / len(y))


@dataclasses.dataclass(frozen=True)
class Categorical(Canonical):
    """P(y = c) ∝ e^{(Bt)_c}, B the orthonormal `contrasts` of the classes.

    **Arguments:**

    - `num_classes`: C; a row has C-1 linear predictors.
    """

    num_classes: int

    @property
    def outputs(self) -> int:
        return self.num_classes - 1

    @functools.cached_property
    def basis(self) -> np.ndarray:
        return contrasts(self.num_classes)

    def loss(self, t, y, *given):
        weights = t @ self._basis(t).T
        numpy = library(t)
        label = numpy.broadcast_to(numpy.asarray(y, dtype=int)[:, None], (*weights.shape[:-1], 1))
        own = numpy.take_along_axis(weights, label, axis=-1)[..., 0]
        total = special.logsumexp(weights, axis=-1) if numpy is np else jax.nn.logsumexp(weights, axis=-1)
        return total - own

    def slope(self, t, y):
        hit = y[:, None] == library(t).arange(self.num_classes)
        return (self.mean(t) - hit) @ self._basis(t)

    def curvature(self, t):
        p, B = self.mean(t), self._basis(t)
        middle, squares = p @ B, (B[:, :, None] * B[:, None, :]).reshape(self.num_classes, -1)
        return (p @ squares).reshape(*t.shape, self.outputs) - middle[..., :, None] * middle[..., None, :]

    def mean(self, t, *given):
        weights = t @ self._basis(t).T
        if library(t) is jnp:
            return jax.nn.softmax(weights, axis=-1)
        columns = np.moveaxis(weights, -1, 0)  # a few long arrays are quicker than many short ones
        p = np.exp(columns - functools.reduce(np.maximum, columns))
        return np.moveaxis(p / functools.reduce(np.add, p), 0, -1)

    def variance(self, mean, *given):
        return mean * (1 - mean)

    def sample(self, rng, t, *given):
        below = np.cumsum(self.mean(t), axis=-1)[..., :-1]
        return np.sum(rng.random((*below.shape[:-1], 1)) > below, axis=-1).astype(float)

    def cdf(self, y, t, *given):
        return np.sum(self.mean(t) * (np.arange(self.num_classes) <= np.asarray(y)[..., None]), axis=-1)

    def _basis(self, t):
        return self.basis.astype(t.dtype)


def contrasts(count: int) -> np.ndarray:
    """B: an orthonormal basis, in columns, of the vectors of `count` numbers that sum to zero (Helmert's).

    ```python
    from gyromc.targets.likelihoods import contrasts
    assert abs(contrasts(3).sum(axis=0)).max() < 1e-15
    ```
    """
    B = np.zeros((count, count - 1))
    for k in range(1, count):
        B[:k, k - 1], B[k, k - 1] = -1 / np.sqrt(k * (k + 1)), k / np.sqrt(k * (k + 1))
    return B
