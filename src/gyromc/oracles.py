"""Gradient oracles: ĝ with E[ĝ | θ] = ∇U(θ), the stochastic gradient in (E3).

Receives a target; hands on unbiased gradients. Randomness is drawn apart from its use (`draw`, then `gradient`), so that it is
fresh for every step and chain and an engine decides where it comes from.
"""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import require, whole
from gyromc.targets import SumOverData, Target

__all__ = ["ControlVariate", "Exact", "Gaussian", "Minibatch", "Oracle"]


class Oracle(eqx.Module):
    """An unbiased gradient of U, and the randomness it uses."""

    def check(self, target: Target) -> None:
        """Raise `InvalidInput` when this oracle cannot serve the target."""

    def prepared(self, target: Any, dim: int) -> "Oracle":
        """The oracle with what it precomputes for this target (θ a vector of `dim` entries)."""
        return self

    @abc.abstractmethod
    def draw(self, key, target: Any, num_chains: int, dim: int, dtype) -> Any:
        """ζ for one step of every chain, chains along the first axis."""

    @abc.abstractmethod
    def gradient(self, target: Any, theta, zeta) -> Any:
        """ĝ(θ, ζ) for one chain."""

    def evaluations(self, target: Target) -> int:
        """How many data terms one gradient touches (1 for a target that is no sum)."""
        return target.num_data if isinstance(target, SumOverData) else 1


class Exact(Oracle):
    """The full gradient ∇U.

    ```python
    import gyromc as gm
    oracle = gm.oracles.Exact()
    ```
    """

    def draw(self, key, target, num_chains, dim, dtype):
        return None

    def gradient(self, target, theta, zeta):
        return target.gradient(theta)


class Gaussian(Oracle):
    """∇U(θ) + τζ, ζ ~ N(0, I).

    **Arguments:**

    - `tau`: τ ≥ 0.

    ```python
    import gyromc as gm
    oracle = gm.oracles.Gaussian(1.0)
    ```
    """

    tau: np.ndarray

    def __init__(self, tau: float):
        value = np.asarray(tau, float)
        require(value.ndim == 0 and np.isfinite(value) and value >= 0, f"`tau` must be a number ≥ 0: got {tau!r}.")
        self.tau = value

    def draw(self, key, target, num_chains, dim, dtype):
        return jax.random.normal(key, (num_chains, dim), dtype)

    def gradient(self, target, theta, zeta):
        return target.gradient(theta) + self.tau * zeta


class Minibatch(Oracle):
    """(N/b) Σ_{i∈B} ∇ℓ_i(θ) + ∇prior(θ), B drawn uniformly with replacement; the prior's gradient is exact.

    **Arguments:**

    - `size`: b, from 1 to 10⁹.

    ```python
    import gyromc as gm
    oracle = gm.oracles.Minibatch(32)
    ```
    """

    size: int = eqx.field(static=True)

    def __init__(self, size: int):
        self.size = whole(size, "size", least=1, most=10**9)

    def check(self, target):
        _require_sum(self, target)

    def draw(self, key, target, num_chains, dim, dtype):
        return jax.random.randint(key, (num_chains, self.size), 0, target.num_data)

    def gradient(self, target, theta, zeta):
        return target.weighted_gradient(theta, zeta, target.num_data / self.size)

    def evaluations(self, target):
        return self.size


class ControlVariate(Oracle):
    """A mini-batch anchored at a point c: ∇U(c) + (N/b) Σ_{i∈B} [∇ℓ_i(θ) - ∇ℓ_i(c)] + ∇prior(θ) - ∇prior(c).

    Near c, where the posterior sits when c is its mode, almost no oracle noise is left.

    **Arguments:**

    - `size`: b, from 1 to 10⁹.
    - `center`: c, shaped like the parameters; the mode, found by optimisation, when left out.

    ```python
    import gyromc as gm
    oracle = gm.oracles.ControlVariate(32)
    ```
    """

    size: int = eqx.field(static=True)
    center: Any
    anchor: Any

    def __init__(self, size: int, center=None):
        self.size = whole(size, "size", least=1, most=10**9)
        self.center = center
        self.anchor = None

    def check(self, target):
        _require_sum(self, target)

    def prepared(self, target, dim):
        from gyromc.mode import find_mode

        if self.center is None:
            center = find_mode(target, np.zeros(dim))
        else:
            center = np.concatenate([np.ravel(np.asarray(x, float)) for x in jax.tree.leaves(self.center)])
        require(
            center.shape == (dim,) and np.all(np.isfinite(center)),
            f"`center` must hold {dim} finite numbers, like the parameters: got {center.size}.",
        )
        with jax.enable_x64(True):
            theta = jnp.asarray(center)
            anchor = target.gradient(theta) - target.prior_gradient(theta)
        bound = eqx.tree_at(
            lambda o: (o.center, o.anchor), self, (center, np.asarray(anchor)), is_leaf=lambda x: x is None
        )
        return bound

    def draw(self, key, target, num_chains, dim, dtype):
        return jax.random.randint(key, (num_chains, self.size), 0, target.num_data)

    def gradient(self, target, theta, zeta):
        scale = target.num_data / self.size
        difference = target.batch_gradient(theta, zeta) - target.batch_gradient(self.center, zeta)
        return self.anchor + scale * difference + target.prior_gradient(theta)

    def evaluations(self, target):
        return 2 * self.size


def _require_sum(oracle: Oracle, target: Target) -> None:
    require(
        isinstance(target, SumOverData),
        f"`{type(oracle).__name__}` needs a target that is a sum over data (LinearRegression, LogisticRegression, "
        f"FiniteSum): got {type(target).__name__}. Use `Exact()` or `Gaussian(tau)`, or write the target as a FiniteSum.",
    )
