"""Balanced noise (T7): draw only the noise that the gradients do not already bring.

z⁺ = z - ηGĝ + W^{1/2}ξ with G = D+Q, W = 2ηD - η²GSGᵀ and S = E[ĝĝᵀ] under the posterior. One step from the posterior keeps its
covariance, for every target, unbiased oracle, constant (D, Q) and η with W ⪰ 0; on a Gaussian the stationary law is exact. With
Q = 0 and D the inverse Fisher matrix this is stochastic gradient Fisher scoring (Ahn, Korattikara and Welling 2012).
"""

from typing import Any

import numpy as np
import scipy

from gyromc.checks import require
from gyromc.dynamics import Dynamics
from gyromc.errors import InvalidInput
from gyromc.operators import (
    Blocks,
    Dense,
    Diagonal,
    Operator,
    Rotations,
    Scaled,
    as_operator,
    symmetrised,
)
from gyromc.schemes.base import Scheme
from gyromc.schemes.moments import gradient_moments

MOST_DENSE = 2000  # entries of z, up to which matrices are formed


class Balanced(Scheme):
    """Euler's step with balanced noise; `root` is W^{1/2}, which `prepared` computes for a plan."""

    second_moment: Operator | None
    root: Operator | None

    def __init__(self, second_moment: Operator | None = None, root: Operator | None = None):
        super().__init__("balanced", None, linear=True, needs_prepared=True)
        self.second_moment, self.root = second_moment, root

    def why_not(self, dynamics, augmented):
        S = self.second_moment
        sizes = (dynamics.size // 2, dynamics.size) if augmented else (dynamics.size,)
        if S is None or S.size in sizes:
            return None
        return f"`S` acts on {S.size} numbers, and the gradient has {' or '.join(map(str, sizes))}: pass an `S` of that size"

    def prepared(self, plan):
        S, d = self.second_moment, plan.dim
        if S is None:
            S = as_operator(gradient_moments(plan).second, "S")
        if S.size < plan.dynamics.size:  # r is its own gradient
            S = Blocks(S, Scaled(0.0, d), Scaled(0.0, d), Scaled(1.0, d))
        return Balanced(self.second_moment, noise_root(plan.dynamics, S, plan.eta))

    def __call__(self, dynamics, y, gradient, xi, eta):
        root = self.root
        if root is None:
            raise InvalidInput("`balanced` needs a plan that says what D, Q and η are: use it in `gyromc.Plan`.")
        return y + (root(xi) - eta * dynamics.drift(gradient))  # T7


def balanced(S: Any = None) -> Scheme:
    """Euler's step with only the noise that the gradients do not already bring.

    **Arguments:**

    - `S`: E[ĝĝᵀ], the second moment of the stochastic gradients of U under the posterior: a number per parameter (a diagonal), or
      a matrix. Left out: computed from the model and the oracle when a plan is run or predicted, then frozen.

    **Returns:** a `Scheme`.

    ```python
    import gyromc as gm
    plan = gm.Plan(target=gm.targets.Quadratic([1.0, 4.0]), dynamics=gm.dynamics.general([1.0, 0.25], 0), step_size=0.8,
                   observables={"x²": gm.observables.square([1.0, 0.0])}, scheme=gm.schemes.balanced(), num_steps=200)
    assert abs(gm.predict(plan).bias["x²"]) < 0.01
    ```
    """
    return Balanced(None if S is None else symmetrised(as_operator(S, "S"), +1, "S"))


def noise_root(dynamics: Dynamics, S: Operator, eta: float) -> Operator:
    """W^{1/2} for W = 2ηD - η²GSGᵀ, in the structure of D, Q and S; `InvalidInput` with the largest step where W is not ⪰ 0."""
    found = _coordinatewise(dynamics, S, eta)
    if found is not None:
        return found
    n = dynamics.size
    require(
        n <= MOST_DENSE,
        f"Balanced noise with full matrices takes at most {MOST_DENSE} numbers in the state: this one has {n}. Give D, Q and S "
        "as diagonals, or Q as `gyromc.dynamics.rotations`.",
    )
    D, G = dynamics.D, dynamics.D + dynamics.Q
    W = 2 * eta * D - eta**2 * G @ S.dense() @ G.T  # T7
    eigenvalues, basis = np.linalg.eigh((W + W.T) / 2)
    scale = float(np.max(np.abs(np.linalg.eigvalsh(2 * eta * D))))
    if eigenvalues[0] < -1e-12 * scale:
        largest = 2 / float(scipy.linalg.eigh(G @ S.dense() @ G.T, D, eigvals_only=True)[-1])
        _too_large(eta, largest)
    if eigenvalues[0] > 1e-9 * scale:
        return Dense(np.linalg.cholesky((W + W.T) / 2))
    return Dense((basis * np.sqrt(np.maximum(eigenvalues, 0))) @ basis.T)


def _coordinatewise(dynamics: Dynamics, S: Operator, eta: float) -> Operator | None:
    """Where D and S are diagonal and Q pairs coordinates that S and D treat alike or is 0: numbers per coordinate."""
    D, Q = dynamics.diffusion, dynamics.rotation
    d, s = D.entries(), S.entries()
    if d is None or s is None:
        return None
    alike = lambda x, n: np.array_equal(x[: n - n % 2 : 2], x[1:n:2])
    if Q.is_zero():
        rates: Any = 0.0
    elif isinstance(Q, Rotations) and alike(d, Q.n) and alike(s, Q.n):
        rates = np.concatenate([np.repeat(Q.rates, 2), np.zeros(Q.n % 2)])
    else:
        return None
    W = 2 * eta * d - eta**2 * (d**2 + rates**2) * s
    largest = 2 / np.max((d + rates**2 / d) * s)
    if np.min(W) < -1e-12 * np.max(2 * eta * d):
        _too_large(eta, float(largest))
    return Diagonal(np.sqrt(np.maximum(np.broadcast_to(W, (dynamics.size,)), 0.0)))


def _too_large(eta: float, largest: float) -> None:
    raise InvalidInput(
        f"`balanced` needs W = 2ηD - η²GSGᵀ positive semidefinite, and step_size = {eta:g} is too large for it: the gradients "
        f"bring more noise than the scheme may draw. Take `step_size` at most {largest:.4g}; larger batches or a control variate "
        "allow more."
    )
