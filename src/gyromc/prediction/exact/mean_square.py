"""Stability of second moments under noise that grows with the state: Y ← MYMᵀ + η²G_θΓ(Y)G_θᵀ for Y = E[zzᵀ], M = I - ηA (T1).

Input: A, G and the oracle's noise Γ, for a state of any size. Output: the factor by which second moments change per step, and
the largest step size at which they stay bounded. The map is Φ₀ + Φ₁ with Φ₀(Y) = MYMᵀ, and both parts keep matrices positive, so
Φ₀ + Φ₁ has radius r exactly when (r - Φ₀)⁻¹Φ₁, which acts on d × d matrices, has radius 1. Memory is O(n²).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import linalg, optimize
from scipy.sparse import linalg as sparse

from gyromc.prediction.exact.noise import Noise

SMALL = 6  # parameters: the map is formed as a matrix
SAME = 1e-8  # relative change of the power iteration at which it stops
MOST_TURNS = 100
DEFECTIVE = 1e6  # condition number of the eigenvectors of A, above which they are not used


def largest_stable_step(A: np.ndarray) -> float:
    """sup of the η for which ρ(I - ηA) < 1; 0 when A has an eigenvalue with real part ≤ 0."""
    return limit_of_mean(np.linalg.eigvals(A))


def limit_of_mean(rates: np.ndarray) -> float:
    """`largest_stable_step` from the eigenvalues of A."""
    real = np.real(rates)
    return 0.0 if real.min() <= 0 else float(np.min(2 * real / np.abs(rates) ** 2))  # |1 - ηλ| < 1


def radius_of_mean(rates: np.ndarray, step_size: float) -> float:
    """ρ(I - ηA)² from the eigenvalues of A."""
    return float(np.max(np.abs(1 - step_size * rates)) ** 2)


@dataclasses.dataclass(frozen=True, eq=False)
class MeanSquare:
    """Second moments of a linear chain whose noise grows with the state."""

    A: np.ndarray
    G: np.ndarray
    noise: Noise
    _last: dict = dataclasses.field(default_factory=dict)  # where the next power iteration begins

    def radius(self, step_size: float) -> float:
        """The factor by which second moments change per step: stable below 1."""
        least = radius_of_mean(self.rates, step_size) + 1e-14
        if self._gain(step_size, least * (1 + 1e-9)) <= 1:
            return least
        most = 2 * least
        while self._gain(step_size, most) > 1:
            most *= 2
        rest = lambda r: 1 / self._gain(step_size, r) - 1
        return _root(rest, least * (1 + 1e-9), most)

    def limit(self) -> float:
        """The largest step size at which second moments stay bounded."""
        mean = limit_of_mean(self.rates)
        if mean == 0 or self._gain(mean * (1 - 1e-9), 1.0) <= 1:
            return mean
        low = mean / 2
        while self._gain(low, 1.0) > 1:
            low /= 2
        return _root(lambda eta: 1 / self._gain(eta, 1.0) - 1, low, min(2 * low, mean * (1 - 1e-9)))

    @functools.cached_property
    def _eigen(self) -> tuple[np.ndarray, np.ndarray]:
        return np.linalg.eig(self.A)

    @property
    def rates(self) -> np.ndarray:
        """The eigenvalues of A."""
        return self._eigen[0]

    @functools.cached_property
    def _inverse(self) -> np.ndarray | None:
        """The inverse of the matrix of eigenvectors; None where A has none, or nearly so."""
        V = self._eigen[1]
        return None if np.linalg.cond(V) > DEFECTIVE else np.linalg.inv(V)

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
        map_: Any = sparse.LinearOperator((d * d, d * d), matvec=lambda y: apply(y.reshape(d, d)).ravel(), dtype=float)  # type: ignore[call-issue]
        return float(np.abs(sparse.eigs(map_, 1, v0=Y.ravel(), return_eigenvectors=False)[0]))

    def _apply(self, step_size: float, r: float, Y: np.ndarray) -> np.ndarray:
        spread = step_size * self.G[:, : len(Y)]
        added = spread @ self.noise.growth((Y + Y.T) / 2) @ spread.T  # T1
        if self._inverse is None:
            M = np.eye(len(self.A)) - step_size * self.A
            return linalg.solve_discrete_lyapunov(M / np.sqrt(r), added / r, method="bilinear")[: len(Y), : len(Y)]
        V, m = self._eigen[1], 1 - step_size * self.rates
        inner = (self._inverse @ added @ self._inverse.conj().T) / (r - m[:, None] * m.conj())
        return (V @ inner @ V.conj().T).real[: len(Y), : len(Y)]


def _root(excess: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that changes its sign once is 0, to nine digits."""
    return float(optimize.brentq(excess, low, high, xtol=1e-9 * low))  # type: ignore[arg-type]
