"""Linear maps that are diagonal but for a few directions, in O(nk) memory: E = diag(scale)(I + V diag(gains) Vᵀ), and EEᵀ.

Input: n numbers, k orthonormal directions and a gain for each. Output: operators for `gyromc.dynamics.hfhr(preconditioner=…)`.
"""

from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Float

from gyromc.checks import require
from gyromc.operators import Dense, Operator, positive_definite

__all__ = ["DiagonalLowRank", "Gram"]


class DiagonalLowRank(Operator):
    """E = diag(scale)(I + V diag(gains) Vᵀ), V = `basis` of n × k with orthonormal columns; Eᵀ where `turned`. O(nk) memory.

    **Arguments:**

    - `scale`: n numbers, none of them 0.
    - `basis`: n × k.
    - `gains`: k numbers above -1.

    ```python
    import numpy as np
    from gyromc.stretches import Gram, DiagonalLowRank
    E = DiagonalLowRank(np.array([1.0, 2.0]), np.array([[0.6], [0.8]]), np.array([-0.5]))
    assert np.allclose(Gram(E).dense(), E.dense() @ E.dense().T)
    ```
    """

    scale: Float[np.ndarray, " n"]
    basis: Float[np.ndarray, "n k"]
    gains: Float[np.ndarray, " k"]
    turned: bool = eqx.field(static=True, default=False)

    @property
    def size(self) -> int:
        return self.scale.shape[0]

    def __call__(self, v):
        v = self.scale * v if self.turned else v
        v = v + self.basis @ (self.gains * (v @ self.basis))
        return v if self.turned else self.scale * v

    def dense(self):
        basis = np.asarray(self.basis, float)
        E = np.asarray(self.scale, float)[:, None] * (np.eye(self.size) + (basis * self.gains) @ basis.T)
        return E.T if self.turned else E

    def cholesky(self):
        return Dense(self.dense()).cholesky()

    def transposed(self):
        return DiagonalLowRank(self.scale, self.basis, self.gains, not self.turned)

    def times(self, factor):
        return DiagonalLowRank(factor * self.scale, self.basis, self.gains, self.turned)

    def is_zero(self):
        return not np.any(self.scale)

    def difference(self, other, sign):
        if not isinstance(other, DiagonalLowRank) or self.turned == other.turned:
            return None
        pairs = ((self.basis, other.basis), (self.gains, other.gains))
        if not all(a is b or np.array_equal(a, b) for a, b in pairs):
            return None
        return float(np.abs(self.scale - sign * other.scale).max()) * (1 + float(np.abs(self.gains).max(initial=0.0)))


class Gram(Operator):
    """factor · EEᵀ for a `DiagonalLowRank` E: symmetric positive definite, diagonal plus low rank in the coordinates θ/scale."""

    root: DiagonalLowRank
    factor: Float[np.ndarray, ""] = eqx.field(
        converter=lambda x: np.asarray(x, float) if np.isscalar(x) else x, default=1.0
    )

    def __post_init__(self):
        n, k = self.root.size, len(self.root.gains)
        require(
            np.shape(self.root.basis) == (n, k) and not self.root.turned,
            f"`basis` must have a row for each of the {n} entries of `scale` and a column for each of the {k} gains: got shape "
            f"{np.shape(self.root.basis)}.",
        )
        gap = np.abs(self.root.basis.T @ self.root.basis - np.eye(k)).max(initial=0.0)
        require(
            gap < 1e-3, f"The columns of `basis` must be orthonormal: they are off by {gap:.3g}. Use `numpy.linalg.qr`."
        )
        positive_definite(
            min(float(self.factor), float(np.min(self.root.scale**2)), 1 + float(np.min(self.root.gains, initial=0.0)))
        )

    @property
    def size(self) -> int:
        return self.root.size

    def __call__(self, v):
        inner: Any = self.root.transposed()(v)
        return self.factor * self.root(inner)

    def dense(self):
        E = self.root.dense()
        return self.factor * E @ E.T

    def cholesky(self):
        return self.root.times(float(np.sqrt(self.factor)))

    def transposed(self):
        return self

    def times(self, factor):
        return Gram(self.root, factor * float(self.factor))

    def asymmetry(self, sign):
        return (0.0, (0, 0)) if sign > 0 else super().asymmetry(sign)

    def is_zero(self):
        return False
