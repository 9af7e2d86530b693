"""Stability of second moments under noise that grows with the state: Y ← MYMᵀ + B_θΓ(Y)B_θᵀ for Y = E[yyᵀ] (T1).

Input: a scheme's M and B_θ as functions of η (for Euler I - ηA and -ηG_θ) and the oracle's noise Γ, for a state of any size.
Output: the factor by which second moments change per step, and the largest step size at which they stay bounded. The map is
Φ₀ + Φ₁ with Φ₀(Y) = MYMᵀ, and both parts keep matrices positive, so Φ₀ + Φ₁ has radius r exactly when (r - Φ₀)⁻¹Φ₁, which acts on
d × d matrices, has radius 1. Memory is O(m²).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import linalg, optimize
from scipy.sparse import linalg as sparse

from gyromc.dynamics import Dynamics
from gyromc.prediction.exact.chain import Noise
from gyromc.schemes import Scheme, step_matrices

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


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """y ← M(η)y + B(η)δ of a linear scheme on H with the Hessian P; Euler's for one that is not linear, and for balanced noise.

    For Euler, M = I - ηA, and the eigenvalues of A are enough for every η. `noise`: that of δ where it grows with the state.
    """

    scheme: Scheme
    dynamics: Dynamics
    P: np.ndarray
    noise: Noise | None = None
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

    def _matrices(self, step_size: float) -> tuple[np.ndarray, np.ndarray]:
        """M and B."""
        if self.euler:
            return np.eye(len(self.A)) - step_size * self.A, -step_size * (self.dynamics.D + self.dynamics.Q)
        if self._last.get("at") != step_size:
            step = step_matrices(self.scheme, self.dynamics, step_size)
            self._last.update(at=step_size, matrices=(step.transition(self.P), step.B), eigen=None)
        return self._last["matrices"]

    def _eigen(self, step_size: float) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Eigenvalues and eigenvectors of M, and the inverse of these: None where M has no basis of them, or nearly so."""
        M, _ = self._matrices(step_size)
        if self._last.get("eigen") is None:
            values, vectors = np.linalg.eig(self.A if self.euler else M)
            inverse = None if np.linalg.cond(vectors) > DEFECTIVE else np.linalg.inv(vectors)
            self._last["eigen"] = values, vectors, inverse
        values, vectors, inverse = self._last["eigen"]
        return 1 - step_size * values if self.euler else values, vectors, inverse

    def _of_mean(self, step_size: float) -> float:
        """ρ(M)²."""
        values = 1 - step_size * self.rates if self.euler else np.linalg.eigvals(self._matrices(step_size)[0])
        return float(np.max(np.abs(values)) ** 2)

    def radius(self, step_size: float) -> float:
        """The factor by which second moments change per step: stable below 1."""
        least = self._of_mean(step_size)
        if self.noise is None:
            return least
        least = (least + 1e-14) * (1 + 1e-9)
        if self._gain(step_size, least) <= 1:
            return least
        most = 2 * least
        while self._gain(step_size, most) > 1:
            most *= 2
        return _root(lambda r: 1 / self._gain(step_size, r) - 1, least, most)

    def limit(self) -> float:
        """The largest step size at which second moments stay bounded; 0 where A does not contract."""
        mean = self._limit_of_mean()
        if self.noise is None or mean == 0 or self._gain(mean * (1 - 1e-9), 1.0) <= 1:
            return mean
        low = mean / 2
        while self._gain(low, 1.0) > 1:
            low /= 2
        return _root(lambda eta: 1 / self._gain(eta, 1.0) - 1, low, min(2 * low, mean * (1 - 1e-9)))

    def _limit_of_mean(self) -> float:
        """The step size up to which ρ(M) < 1: for others than Euler tried in growing steps from his, then by bisection."""
        low = limit_of_mean(self.rates)
        if self.euler or low == 0:
            return low
        for _ in range(MOST_TRIED):
            if self._of_mean(low) < 1:
                break
            low /= 2
        for _ in range(MOST_TRIED):
            if self._of_mean(LONGER * low) >= 1:
                return _root(lambda eta: np.log(self._of_mean(eta)), low, LONGER * low)
            low *= LONGER
        return float("inf")

    def _gain(self, step_size: float, r: float) -> float:
        """The radius of (r - Φ₀)⁻¹Φ₁."""
        assert self.noise is not None
        d = len(self.noise.constant)
        apply = functools.partial(self._apply, step_size, r)
        if d <= SMALL:
            columns = [apply(E).ravel() for E in np.eye(d * d).reshape(-1, d, d)]
            return float(np.max(np.abs(np.linalg.eigvals(np.array(columns)))))
        Y, before = self._last.get("Y", np.eye(d)), 0.0  # where the last power iteration ended
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
        assert self.noise is not None
        (M, B), (m, V, inverse) = self._matrices(step_size), self._eigen(step_size)
        spread = B[:, : len(Y)]  # B_θ
        added = spread @ self.noise.growth((Y + Y.T) / 2) @ spread.T  # T1
        if inverse is None:
            solved = linalg.solve_discrete_lyapunov(M / np.sqrt(r), added / r, method="bilinear")
            return solved[: len(Y), : len(Y)]
        inner = (inverse @ added @ inverse.conj().T) / (r - m[:, None] * m.conj())
        return (V @ inner @ V.conj().T).real[: len(Y), : len(Y)]


def _root(excess: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that changes its sign once is 0, to nine digits."""
    return float(optimize.brentq(excess, low, high, xtol=1e-9 * low))  # type: ignore[arg-type]  # a number: `full_output` is off
