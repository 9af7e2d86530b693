"""The mode of a target: where ∇U = 0, for control variates and Laplace approximations.

Receives a target over vectors and a start; hands on a minimiser of U, found in float64.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import optimize

from gyromc.errors import InvalidInput
from gyromc.targets import Target


def find_mode(target: Target, start: np.ndarray, tolerance: float = 1e-6) -> np.ndarray:
    """A minimiser of U near `start`, by L-BFGS and then Newton steps where the Hessian is small enough to form.

    **Arguments:**

    - `target`: over vectors.
    - `start`: where to begin.
    - `tolerance`: how large |∇U| may be left, relative to its size at the start.
    """
    known = target.gaussian()
    if known is not None:
        return known[1]
    with jax.enable_x64(True):
        value_and_gradient = jax.jit(jax.value_and_grad(target.potential))
        first = float(np.abs(np.asarray(value_and_gradient(jnp.asarray(start, float))[1])).max())
        found = optimize.minimize(
            lambda x: tuple(np.asarray(v, float) for v in value_and_gradient(jnp.asarray(x))),
            np.asarray(start, float),
            jac=True,
            method="L-BFGS-B",
            options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-10},
        )
        x = found.x
        if x.size <= 500:
            x = _newton(target, x)
        left = float(np.abs(np.asarray(value_and_gradient(jnp.asarray(x))[1])).max())
    if not np.all(np.isfinite(x)) or left > tolerance * max(1.0, first):
        raise InvalidInput(
            f"No mode was found: |∇U| is still {left:.3g} after {found.nit} iterations. "
            "Pass `center`, or check that the target has a maximum."
        )
    return x


def _newton(target: Target, x: np.ndarray) -> np.ndarray:
    gradient, hessian = jax.jit(jax.grad(target.potential)), jax.jit(jax.hessian(target.potential))
    for _ in range(5):
        g, K = np.asarray(gradient(jnp.asarray(x))), np.asarray(hessian(jnp.asarray(x)))
        if np.linalg.eigvalsh(K)[0] <= 0:
            break
        moved = x - np.linalg.solve(K, g)
        if not np.linalg.norm(np.asarray(gradient(jnp.asarray(moved)))) < np.linalg.norm(g):
            break
        x = moved
    return x
