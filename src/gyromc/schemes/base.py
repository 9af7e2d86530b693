"""What a scheme is: one step of a chain, from its state, a stochastic gradient of H and fresh noise to the next state (E3).

The state is y = (z, m): the point z where observables and gradients are evaluated, and a memory m that some schemes need. The
noise ξ is always n standard normals, and enters last: y⁺ = a(y, ĝ) + Cξ. So every scheme works with every engine, and
`StepMatrices` holds a scheme that is linear in (y, ĝ, ξ) as three matrices for the fused engines and for the theory.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import require
from gyromc.dynamics import Dynamics


class Scheme(eqx.Module):
    """An integrator; call it with (dynamics, y, gradient, xi, eta) to make one step of one chain.

    **Arguments:**

    - `name`: for tables, messages and plan files.
    - `step`: the function that makes the step, at the top of a module, so that plans can be pickled; None in a subclass with a
      `__call__` of its own.
    - `linear`: whether the step is linear in y, gradient and ξ together. Then every engine runs it, and on Gaussian targets its
      finite-step moments are known; otherwise only `scan` runs it.
    - `memory`: how many numbers of memory the state has, for each of the n entries of z; ½ where only θ of (θ, r) has any.
    - `order`: of the bias with exact gradients.

    ```python
    import gyromc as gm
    moved = gm.schemes.euler(gm.dynamics.overdamped(1), y=1.0, gradient=1.0, xi=0.0, eta=0.25)
    print(gm.schemes.euler, moved)  # euler 0.75
    ```
    """

    name: str = eqx.field(static=True)
    function: Callable[[Dynamics, Any, Any, Any, Any], Any] | None = eqx.field(static=True, repr=False)
    linear: bool = eqx.field(static=True)
    memory: float = eqx.field(static=True)
    order: int = eqx.field(static=True)
    needs_prepared: ClassVar[bool] = False
    """Whether it makes no step before `prepared` has computed something for a plan."""

    def __init__(self, name: str, step: Callable | None, linear: bool = False, memory: float = 0, order: int = 1):
        self.name, self.function, self.linear, self.memory, self.order = name, step, linear, memory, order

    def __call__(self, dynamics: Dynamics, y, gradient, xi, eta):
        assert self.function is not None
        return self.function(dynamics, y, gradient, xi, eta)

    def why_not(self, dynamics: Dynamics, augmented: bool) -> str | None:
        """Why this scheme does not fit the dynamics, with one that does; None when it fits."""
        return None

    def prepared(self, plan: Any) -> "Scheme":
        """The scheme with what it computes once for a `gyromc.Plan`; `InvalidInput` where the plan does not allow it."""
        return self

    def state_size(self, n: int) -> int:
        """How many numbers the state y has when z has n."""
        return n + int(self.memory * n)

    @property
    def is_euler(self) -> bool:
        """Whether this is Euler-Maruyama, the paper's step."""
        return self.function is euler_step

    def __str__(self) -> str:
        return self.name


@dataclasses.dataclass(frozen=True, eq=False)
class StepMatrices:
    """One step of a linear scheme at a fixed step size: y⁺ = Ay + Bĝ(z) + Cξ, z the first n entries of y."""

    A: np.ndarray  # m × m
    B: np.ndarray  # m × n
    C: np.ndarray  # m × n

    @property
    def n(self) -> int:
        """The size of z."""
        return self.B.shape[1]

    def transition(self, P: np.ndarray) -> np.ndarray:
        """M, the map of E[y] in one step on a Gaussian target whose H has the Hessian P."""
        M = self.A.copy()
        M[:, : self.n] += self.B @ P
        return M


def step_matrices(scheme: Scheme, dynamics: Dynamics, eta: float) -> StepMatrices:
    """The matrices of a linear scheme, prepared where it needs that, in float64."""
    require(scheme.linear, f"The scheme {scheme} is not linear in state, gradient and noise: it has no matrices.")
    if scheme.is_euler:
        G = dynamics.D + dynamics.Q
        return StepMatrices(np.eye(len(G)), -eta * G, np.sqrt(2 * eta) * dynamics.root.dense())
    with jax.enable_x64(True):
        return StepMatrices(*(np.array(x, float) for x in _derivatives(scheme, dynamics, jnp.asarray(eta, float))))


@eqx.filter_jit
def _derivatives(scheme: Scheme, dynamics: Dynamics, eta) -> tuple:
    """A, B and C: the derivatives of a step by the state, the gradient and the noise."""
    step = lambda y, gradient, xi: scheme(dynamics, y, gradient, xi, eta)
    state, z = jnp.zeros(scheme.state_size(dynamics.size)), jnp.zeros(dynamics.size)
    return jax.jacfwd(step, (0, 1, 2))(state, z, z)


def euler_step(dynamics: Dynamics, y, gradient, xi, eta):
    """Drift and noise are added before they meet z. Where z is large, a drift below its last place would be rounded away on its
    own at every step; added to the noise it is only rounded up or down.
    """
    increment = jnp.sqrt(2 * eta) * dynamics.noise(xi) - eta * dynamics.drift(gradient)
    return y + increment  # E3


euler = Scheme("euler", euler_step, linear=True)
"""Euler-Maruyama, the paper's SG-GNLMC step."""
