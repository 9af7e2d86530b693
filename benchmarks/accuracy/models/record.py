"""A posterior as the race sees it: a log density over one vector θ in Rᵈ, and the observables whose expectations are asked for.

A model is written as a function of named blocks of θ (`blocks` gives their shapes). Output: `log_density(theta)`, up to a
constant and with the Jacobians of all transforms; `observables(theta)`, a vector with `names`. Data are NumPy arrays, so JAX
reads them in the precision that is switched on.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

__all__ = ["KINDS", "Moments", "Posterior", "half_cauchy", "half_normal", "logistic", "normal"]

KINDS = ("regression", "hierarchy", "other", "hard")


@dataclasses.dataclass(frozen=True, eq=False)
class Moments:
    """Posterior mean and standard deviation of every observable, and the standard error of that mean."""

    mean: np.ndarray
    sd: np.ndarray
    error: np.ndarray
    method: str


@dataclasses.dataclass(frozen=True, eq=False)
class Posterior:
    """A model with its data.

    - `density(**blocks)`: the log density, a function of the blocks of θ by name.
    - `derived(**blocks)`: further observables by name, scalars or arrays.
    - `with_parameters`: whether every element of θ is an observable too; not where θ has symmetric modes.
    - `easier(phi)`: θ as an increasing function of φ, element by element, where chains mix better over φ; only references use it.
    - `exact()`: the moments of all observables by a formula or by quadrature, where there is one.
    """

    name: str
    kind: str
    about: str
    blocks: Mapping[str, tuple[int, ...]]
    density: Callable[..., Any]
    derived: Callable[..., Mapping[str, Any]] = lambda **blocks: {}
    start: np.ndarray | None = None
    with_parameters: bool = True
    exact: Callable[[], Moments] | None = None
    easier: Callable[[Any], Any] | None = None

    @functools.cached_property
    def dim(self) -> int:
        """The number of parameters."""
        return sum(math.prod(shape) for shape in self.blocks.values())

    @functools.cached_property
    def names(self) -> tuple[str, ...]:
        """The observables, in the order of `observables(theta)`."""
        shapes = {}

        def record(theta):
            # noted inside: JAX would return a dictionary sorted by its keys
            shapes.update({name: jnp.shape(value) for name, value in self.quantities(theta).items()})

        jax.eval_shape(record, np.zeros(self.dim))
        return tuple(label for name, shape in shapes.items() for label in _labels(name, shape))

    @property
    def first(self) -> np.ndarray:
        """Where chains start: zeros unless the model says otherwise."""
        return np.zeros(self.dim) if self.start is None else self.start

    def unpacked(self, theta) -> dict[str, Any]:
        """θ as blocks by name."""
        found, begin = {}, 0
        for name, shape in self.blocks.items():
            end = begin + math.prod(shape)
            found[name] = theta[begin:end].reshape(shape)
            begin = end
        return found

    def log_density(self, theta):
        """log p(θ | data), up to a constant."""
        return self.density(**self.unpacked(theta))

    def quantities(self, theta) -> dict[str, Any]:
        """All observables at one θ, arrays by name."""
        blocks = self.unpacked(theta)
        return (blocks if self.with_parameters else {}) | dict(self.derived(**blocks))

    def observables(self, theta):
        """All observables at one θ as a vector."""
        return jnp.concatenate([jnp.ravel(value) for value in self.quantities(theta).values()])


def _labels(name: str, shape: tuple[int, ...]) -> list[str]:
    """`name` for a scalar, `name[i, j]` for the elements of an array."""
    return [f"{name}[{', '.join(map(str, index))}]" if index else name for index in np.ndindex(*shape)]


def normal(x, scale=1.0):
    """log density of independent N(0, scale²) in all elements of x, without its constant."""
    return -0.5 * jnp.sum((x / scale) ** 2)


def half_normal(log_x, scale=1.0):
    """log density of log x for a half-normal x, without its constant; x = exp(log_x) has the Jacobian exp(log_x)."""
    return jnp.sum(log_x - 0.5 * (jnp.exp(log_x) / scale) ** 2)


def half_cauchy(log_x, scale=1.0):
    """log density of log x for a half-Cauchy x, without its constant."""
    return jnp.sum(log_x - jnp.log1p((jnp.exp(log_x) / scale) ** 2))


def logistic(y, score):
    """log likelihood of binary y with log odds `score`."""
    return jnp.sum(y * score - jnp.logaddexp(0.0, score))
