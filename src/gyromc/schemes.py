"""Integration schemes: one step of a chain, from z_k, a gradient of H and fresh noise to z_{k+1} (E3).

A scheme is a value: a name and a step function. Its input is a dynamics (D, Q), the state z, its stochastic gradient
ĝ = (∇̂U(θ), r), standard normals ξ and the step size η; its output is the next state. To add a scheme, write a function with the
signature of `_euler` and a `Scheme` with an entry in `SCHEMES`.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from gyromc.checks import one_of
from gyromc.dynamics import Dynamics

__all__ = ["SCHEMES", "Scheme", "euler", "find"]


@dataclasses.dataclass(frozen=True)
class Scheme:
    """An integrator; call it with (dynamics, z, gradient, xi, eta) to make one step of one chain.

    **Arguments:**

    - `name`: what tables, messages and plan files call it.
    - `step`: the function that makes the step; define it at the top of a module, so that plans can be pickled.

    ```python
    import gyromc as gm
    moved = gm.schemes.euler(gm.dynamics.overdamped(1), z=1.0, gradient=1.0, xi=0.0, eta=0.25)
    assert str(gm.schemes.euler) == "euler" and float(moved) == 0.75
    ```
    """

    name: str
    step: Callable[[Dynamics, Any, Any, Any, Any], Any] = dataclasses.field(repr=False)

    def __call__(self, dynamics: Dynamics, z, gradient, xi, eta):
        return self.step(dynamics, z, gradient, xi, eta)

    @property
    def is_euler(self) -> bool:
        """Whether this is Euler-Maruyama, the only scheme whose finite-step moments and bias the predictions know."""
        return self == euler

    def __str__(self) -> str:
        return self.name


def _euler(dynamics: Dynamics, z, gradient, xi, eta):
    """Drift and noise are added before they meet z. Where z is large, a drift below its last place would be rounded away on its
    own at every step; added to the noise it is only rounded up or down.
    """
    increment = jnp.sqrt(2 * eta) * dynamics.noise(xi) - eta * dynamics.drift(gradient)
    return z + increment  # E3


euler = Scheme("euler", _euler)
"""Euler-Maruyama, the paper's SG-GNLMC step."""

SCHEMES = {scheme.name: scheme for scheme in (euler,)}
"""The schemes by name."""


def find(scheme: str | Scheme) -> Scheme:
    """The scheme of that name, or the scheme itself; raises `InvalidInput` for anything else."""
    if isinstance(scheme, Scheme):
        return scheme
    return SCHEMES[one_of(scheme, SCHEMES, "scheme", " A value of `gyromc.schemes` works too.")]
