"""Stability of second moments under noise that grows with the state: Y ← MYMᵀ + B_θΓ(Y)B_θᵀ for Y = E[yyᵀ] (T1).

Input: a scheme's M and B_θ as functions of η (for Euler I - ηA and -ηG_θ) and the oracle's noise Γ, for a state of any size.
Output: the factor by which second moments change per step, and the largest step size at which they stay bounded. The map is
Φ₀ + Φ₁ with Φ₀(Y) = MYMᵀ, and both parts keep matrices positive, so Φ₀ + Φ₁ has radius r exactly when (r - Φ₀)⁻¹Φ₁, which acts on
d × d matrices, has radius 1. Memory is O(m²).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import linalg, optimize
from scipy.sparse import linalg as sparse

from gyromc.dynamics import Dynamics
from gyromc.prediction.exact.chain import Noise
from gyromc.schemes import Scheme

SMALL = 6  # parameters: the map is formed as a matrix
SAME = 1e-8  # relative change of the power iteration at which it stops
MOST_TURNS = 100
DEFECTIVE = 1e6  # condition number of the eigenvectors of M, above which they are not used
LONGER = 1.25  # factor between step sizes that are tried on the way to the limit
MOST_TRIED = 120


def largest_stable_step(A: np.ndarray) -> float:
    """sup of the η for which ρ(I - ηA) < 1; 0 when A has an eigenvalue with real part ≤ 0."""
    return limit_of_mean(np.linalg.eigvals(A))


def limit_of_mean(rates: np.ndarray) -> float:
    """`largest_stable_step` from the eigenvalues of A."""
    real = np.real(rates)
    return 0.0 if real.min() <= 0 else float(np.min(2 * real / np.abs(rates) ** 2))  # |1 - ηλ| < 1


class Eigenmodes(NamedTuple):
    """M of one step size, and its eigenvalues and eigenvectors; the inverse of these is None where M has none, or nearly so."""

    M: np.ndarray
    values: np.ndarray
    vectors: np.ndarray
    inverse: np.ndarray | None


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """y ← M(η)y + B(η)δ of a linear scheme on H with the Hessian P; Euler's for one that is not linear, and for balanced noise.

    For Euler, M = I - ηA, and the eigenvalues of A are enough for every η.
    """

    scheme: Scheme
    dynamics: Dynamics
    P: np.ndarray
    _last: dict = dataclasses.field(default_factory=dict)  # of the step size looked at last

    @property
    def euler(self) -> bool:
        """Whether the steps are Euler's."""
        return self.scheme.is_euler or not self.scheme.linear or self.scheme.needs_prepared

    @functools.cached_property
    def A(self) -> np.ndarray:
        """The drift of the diffusion, (D+Q)P."""
        return (self.dynamics.D + self.dynamics.Q) @ self.P

    @functools.cached_property
    def rates(self) -> np.ndarray:
        """The eigenvalues of A."""
        return np.linalg.eigvals(self.A)

    @functools.cached_property
    def _images(self) -> Callable:
        n = self.dynamics.size
        m = self.scheme.state_size(n)

        def images(eta):
            step = lambda y, g: self.scheme(self.dynamics, y, g, jnp.zeros(n), eta)
            A = jax.vmap(lambda y: step(y, jnp.zeros(n)))(jnp.eye(m))
            return A.T, jax.vmap(lambda g: step(jnp.zeros(m), g))(jnp.eye(n)).T

        return jax.jit(images)

    def _matrices(self, step_size: float) -> tuple[np.ndarray, np.ndarray]:
        """M and B."""
        if self.euler:
            return np.eye(len(self.A)) - step_size * self.A, -step_size * (self.dynamics.D + self.dynamics.Q)
        if self._last.get("at") != step_size:
            with jax.enable_x64(True):
                A, B = (np.array(x, float) for x in self._images(jnp.asarray(step_size, float)))
            A[:, : len(self.P)] += B @ self.P
            self._last.update(at=step_size, matrices=(A, B), eigen=None)
        return self._last["matrices"]

    def modes(self, step_size: float) -> Eigenmodes:
        """M and its eigenvectors."""
        M, _ = self._matrices(step_size)
        if self._last.get("eigen") is None:
            values, vectors = np.linalg.eig(self.A if self.euler else M)
            inverse = None if np.linalg.cond(vectors) > DEFECTIVE else np.linalg.inv(vectors)
            self._last["eigen"] = values, vectors, inverse
        values, vectors, inverse = self._last["eigen"]
        return Eigenmodes(M, 1 - step_size * values if self.euler else values, vectors, inverse)

    def spread(self, step_size: float, d: int) -> np.ndarray:
        """B_θ."""
        return self._matrices(step_size)[1][:, :d]

    def radius(self, step_size: float) -> float:
        """ρ(M)²."""
        values = 1 - step_size * self.rates if self.euler else np.linalg.eigvals(self._matrices(step_size)[0])
        return float(np.max(np.abs(values)) ** 2)

    def limit(self) -> float:
        """The step size up to which ρ(M) < 1: for others than Euler tried in growing steps from his, then by bisection."""
        low = limit_of_mean(self.rates)
        if self.euler:
            return low
        for _ in range(MOST_TRIED):
            if low == 0 or self.radius(low) < 1:
                break
            low /= 2
        if low == 0:
            return 0.0
        for _ in range(MOST_TRIED):
            if self.radius(LONGER * low) >= 1:
                return _root(lambda eta: np.log(self.radius(eta)), low, LONGER * low)
            low *= LONGER
        return float("inf")


@dataclasses.dataclass(frozen=True, eq=False)
class MeanSquare:
    """Second moments of a linear chain whose noise grows with the state."""

    steps: Steps
    noise: Noise
    _last: dict = dataclasses.field(default_factory=dict)  # where the next power iteration begins

    def radius(self, step_size: float) -> float:
        """The factor by which second moments change per step: stable below 1."""
        least = self.steps.radius(step_size) + 1e-14
        if self._gain(step_size, least * (1 + 1e-9)) <= 1:
            return least
        most = 2 * least
        while self._gain(step_size, most) > 1:
            most *= 2
        rest = lambda r: 1 / self._gain(step_size, r) - 1
        return _root(rest, least * (1 + 1e-9), most)

    def limit(self) -> float:
        """The largest step size at which second moments stay bounded."""
        mean = self.steps.limit()
        if mean == 0 or self._gain(mean * (1 - 1e-9), 1.0) <= 1:
            return mean
        low = mean / 2
        while self._gain(low, 1.0) > 1:
            low /= 2
        return _root(lambda eta: 1 / self._gain(eta, 1.0) - 1, low, min(2 * low, mean * (1 - 1e-9)))

    def _gain(self, step_size: float, r: float) -> float:
        """The radius of (r - Φ₀)⁻¹Φ₁."""
        d = len(self.noise.constant)
        apply = functools.partial(self._apply, step_size, r)
        if d <= SMALL:
            columns = [apply(E).ravel() for E in np.eye(d * d).reshape(-1, d, d)]
            return float(np.max(np.abs(np.linalg.eigvals(np.array(columns)))))
        Y, before = self._last.get("Y", np.eye(d)), 0.0
        for _ in range(MOST_TURNS):
            Y = apply(Y)
            size = float(np.linalg.norm(Y))
            if size == 0:
                return 0.0
            Y /= size
            if abs(size - before) <= SAME * size:
                self._last["Y"] = Y
                return size
            before = size
        flat = lambda y: apply(y.reshape(d, d)).ravel()
        map_: Any = sparse.LinearOperator((d * d, d * d), matvec=flat, dtype=float)  # type: ignore[call-issue]  # incomplete stubs
        return float(np.abs(sparse.eigs(map_, 1, v0=Y.ravel(), return_eigenvectors=False)[0]))

    def _apply(self, step_size: float, r: float, Y: np.ndarray) -> np.ndarray:
        spread, modes = self.steps.spread(step_size, len(Y)), self.steps.modes(step_size)
        added = spread @ self.noise.growth((Y + Y.T) / 2) @ spread.T  # T1
        if modes.inverse is None:
            M = modes.M / np.sqrt(r)
            return linalg.solve_discrete_lyapunov(M, added / r, method="bilinear")[: len(Y), : len(Y)]
        V, m = modes.vectors, modes.values
        inner = (modes.inverse @ added @ modes.inverse.conj().T) / (r - m[:, None] * m.conj())
        return (V @ inner @ V.conj().T).real[: len(Y), : len(Y)]


def _root(excess: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that changes its sign once is 0, to nine digits."""
    return float(optimize.brentq(excess, low, high, xtol=1e-9 * low))  # type: ignore[arg-type]  # a number: `full_output` is off
