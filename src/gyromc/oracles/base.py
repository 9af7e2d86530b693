"""The interface of a gradient oracle, and the oracles that read all the data: `Exact` and `Gaussian`."""

import abc
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Float

from gyromc.checks import EXTREME, numbers, require, shown
from gyromc.targets import SumOverData, Target


class Oracle(eqx.Module):
    """An unbiased gradient of U, and the randomness it uses."""

    def check(self, target: Target) -> None:
        """Raise `InvalidInput` when this oracle cannot be used with the target."""

    def prepared(self, model: Any) -> "Oracle":
        """The oracle with what it precomputes for a `gyromc.Model`."""
        return self

    @abc.abstractmethod
    def draw(self, key, target: Any, num_chains: int, dim: int, dtype) -> Any:
        """ζ for one step of every chain, chains along the first axis."""

    @abc.abstractmethod
    def gradient(self, target: Any, theta, zeta) -> Any:
        """ĝ(θ, ζ) for one chain."""

    @property
    def name(self) -> str:
        """The name in tables and messages."""
        return type(self).__name__

    def evaluations(self, target: Target) -> int:
        """How many data terms one gradient reads (1 for a target that is not a sum)."""
        return target.num_data if isinstance(target, SumOverData) else 1

    def gradients(self, steps: int) -> int:
        """How many gradients so many steps of one chain compute."""
        return steps

    def memory(self, dim: int) -> int:
        """How many numbers the oracle keeps for each chain between steps, for engines that can keep them.

        An oracle that keeps some has `refresh`, `anchor_at` and `anchored`, as `ControlVariate` has.
        """
        return 0


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

    tau: Float[np.ndarray, ""]

    def __init__(self, tau: float):
        self.tau = numbers(tau, "tau")
        require(self.tau.ndim == 0 and self.tau >= 0, f"`tau` must be a number ≥ 0: got {shown(tau)}.")
        require(self.tau < EXTREME, f"`tau` must be below {EXTREME:g}, so that float64 holds τ²: got {shown(tau)}.")

    def draw(self, key, target, num_chains, dim, dtype):
        return jax.random.normal(key, (num_chains, dim), dtype)

    def gradient(self, target, theta, zeta):
        return target.gradient(theta) + self.tau * zeta
