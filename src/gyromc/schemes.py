"""One step of a chain: from z_k, a gradient of H and fresh noise to z_{k+1}.

Receives a dynamics (D, Q), the state and its stochastic gradient ĝ = (∇̂U(θ), r); hands on the next state. A new scheme is a
function with the signature of `euler` and an entry in `SCHEMES`.
"""

import jax.numpy as jnp

from gyromc.dynamics import Dynamics

__all__ = ["SCHEMES", "euler"]


def euler(dynamics: Dynamics, z, gradient, xi, eta):
    """Euler-Maruyama, the paper's SG-GNLMC step.

    Drift and noise are added up before they meet z: where z is large, a drift below its last place would be rounded away alone,
    step after step, while together with the noise it is only rounded up or down.
    """
    increment = jnp.sqrt(2 * eta) * dynamics.noise(xi) - eta * dynamics.drift(gradient)
    return z + increment  # E3


SCHEMES = {"euler": euler}
"""The schemes by the name a plan gives them."""
