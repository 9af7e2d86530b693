"""Linear maps on Rⁿ that need no n × n matrix for D and Q; entries are float64 NumPy arrays, which an engine casts."""

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from gyromc.checks import numbers, require
from gyromc.errors import InvalidInput
from gyromc.runtime.machine import require_memory


class Operator(eqx.Module):
    """A linear map on Rⁿ."""

    @property
    def size(self) -> int:
        """The dimension n, that of the first array."""
        return jax.tree.leaves(self)[0].shape[0]

    @abc.abstractmethod
    def __call__(self, v: Float[Array, " n"]) -> Float[Array, " n"]:
        """The image of `v`."""

    @abc.abstractmethod
    def dense(self) -> np.ndarray:
        """The n × n matrix, in float64."""

    def cholesky(self) -> "Operator":
        """L with L Lᵀ equal to this map, lower triangular; `InvalidInput` unless positive definite."""
        return Dense(self.dense()).cholesky()

    def entries(self) -> np.ndarray | None:
        """The n numbers of a diagonal map; None for another."""
        return None

    def transposed(self) -> "Operator":
        """The transposed map."""
        return Dense(self.dense().T.copy())

    def times(self, factor: float) -> "Operator":
        """The map times a number."""
        return jax.tree.map(lambda x: np.asarray(factor * x), self)

    def asymmetry(self, sign: int) -> tuple[float, tuple[int, int]]:
        """max |M - sign·Mᵀ| and where it is: 0 for a symmetric (sign=1) or skew (sign=-1) map."""
        # Without the matrix: the largest entry of its product with a vector of random signs, in this row.
        if self.size > 10**8:  # smaller ones always fit
            require_memory(24 * self.size, f"A map of {self.size:,} numbers", "Take a smaller `dim`, fewer parameters.")
        signs: Any = 2 * np.random.default_rng(0).integers(0, 2, self.size, dtype=np.int8) - 1  # of one byte each
        gap = np.abs(self(signs) - sign * np.asarray(self.transposed()(signs)))
        return float(gap.max()), (int(gap.argmax()), 0)

    def is_zero(self) -> bool:
        """Whether all its numbers are 0."""
        return not any(np.any(leaf) for leaf in jax.tree.leaves(self))


def _arrays(v) -> Any:
    """NumPy for its arrays, so that what is not part of a program compiles none; `jax.numpy` for others."""
    return np if isinstance(v, np.ndarray) else jnp


class Coordinatewise(Operator):
    """A diagonal map."""

    def dense(self):
        return np.diag(np.asarray(self.entries()))

    def transposed(self):
        return self

    def cholesky(self):
        positive_definite(float(min(np.min(x) for x in jax.tree.leaves(self))))
        return jax.tree.map(lambda x: np.asarray(np.sqrt(x)), self)


class Scaled(Coordinatewise):
    """`scale` times the identity."""

    scale: Float[np.ndarray, ""] = eqx.field(converter=lambda x: np.asarray(x, float) if np.isscalar(x) else x)
    n: int = eqx.field(static=True)

    size = property(lambda self: self.n)

    def __call__(self, v):
        return self.scale * v

    def entries(self):
        return np.full(self.n, float(self.scale))

    def asymmetry(self, sign):
        return (1 - sign) * abs(float(self.scale)), (0, 0)


class Diagonal(Coordinatewise):
    """Coordinatewise multiplication by `values`."""

    values: Float[np.ndarray, " n"]

    def __call__(self, v):
        return self.values * v

    def entries(self):
        return np.asarray(self.values, float)


class Rotations(Operator):
    """Skew 2 × 2 blocks `rate_i [[0, -1], [1, 0]]` on coordinates (2i, 2i+1); for odd n the last coordinate maps to 0."""

    rates: Float[np.ndarray, " pairs"]
    n: int = eqx.field(static=True)

    size = property(lambda self: self.n)

    def transposed(self):
        return Rotations(-self.rates, self.n)

    def __call__(self, v):
        xp = _arrays(v)
        pairs = v[: 2 * self.rates.shape[0]].reshape(-1, 2)
        turned = xp.stack([-self.rates * pairs[:, 1], self.rates * pairs[:, 0]], axis=1).reshape(-1)
        return xp.concatenate([turned, xp.zeros(self.n % 2, turned.dtype)])

    def dense(self):
        matrix = np.zeros((self.n, self.n))
        first = 2 * np.arange(self.rates.shape[0])
        matrix[first, first + 1] = -self.rates
        matrix[first + 1, first] = self.rates
        return matrix


class Dense(Operator):
    """A full matrix."""

    matrix: Float[np.ndarray, "n n"]

    def __call__(self, v):
        return self.matrix @ v

    def dense(self):
        return np.asarray(self.matrix, float)

    def cholesky(self):
        positive_definite(float(np.linalg.eigvalsh(self.matrix)[0]))
        return Dense(np.linalg.cholesky(self.matrix))

    def asymmetry(self, sign):
        gap = np.abs(self.matrix - sign * self.matrix.T)
        where = np.unravel_index(int(gap.argmax()), gap.shape)
        return float(gap[where]), (int(where[0]), int(where[1]))


class LowRank(Operator):
    """F diag(weights) Gᵀ, F = `left` and G = `right` of n × k, in O(nk) memory."""

    left: Float[np.ndarray, "n k"]
    weights: Float[np.ndarray, " k"]
    right: Float[np.ndarray, "n k"]

    def __call__(self, v):
        return self.left @ (self.weights * (self.right.T @ v))

    def dense(self):
        return (self.left * self.weights) @ self.right.T

    def transposed(self):
        return LowRank(self.right, self.weights, self.left)

    def times(self, factor):
        return LowRank(self.left, factor * self.weights, self.right)

    def is_zero(self):
        return not np.any(self.weights)


class Blocks(Operator):
    """[[upper_left, upper_right], [lower_left, lower_right]] on R^2m, each block a map on R^m."""

    upper_left: Operator
    upper_right: Operator
    lower_left: Operator
    lower_right: Operator

    size = property(lambda self: 2 * self.upper_left.size)

    def __call__(self, v):
        m = self.upper_left.size
        top, bottom = v[:m], v[m:]
        above, below = self.upper_left(top) + self.upper_right(bottom), self.lower_left(top) + self.lower_right(bottom)
        return _arrays(v).concatenate([above, below])

    def dense(self):
        above = [self.upper_left.dense(), self.upper_right.dense()]
        return np.block([above, [self.lower_left.dense(), self.lower_right.dense()]])

    def entries(self):
        if not (self.upper_right.is_zero() and self.lower_left.is_zero()):
            return None
        first, second = self.upper_left.entries(), self.lower_right.entries()
        return None if first is None or second is None else np.concatenate([first, second])

    def cholesky(self):
        zero = Scaled(0.0, self.upper_left.size)
        if self.upper_right.is_zero() and self.lower_left.is_zero():
            return Blocks(self.upper_left.cholesky(), zero, zero, self.lower_right.cholesky())
        a, b, d = (block.entries() for block in (self.upper_left, self.upper_right, self.lower_right))
        if a is None or b is None or d is None:
            return super().cholesky()
        positive_definite(float(np.min((a + d) / 2 - np.hypot((a - d) / 2, b))))
        return Blocks(Diagonal(np.sqrt(a)), zero, Diagonal(b / np.sqrt(a)), Diagonal(np.sqrt(d - b**2 / a)))

    def transposed(self):
        parts = self.upper_left, self.lower_left, self.upper_right, self.lower_right
        return Blocks(*(part.transposed() for part in parts))


def positive_definite(smallest_eigenvalue: float) -> None:
    """Raise `InvalidInput` unless the number, a smallest eigenvalue, is positive."""
    found = f"its smallest eigenvalue is {smallest_eigenvalue:.6g}"
    require(smallest_eigenvalue > 0, f"The matrix must be positive definite, but {found}.")


def symmetrised(operator: Operator, sign: int, name: str) -> Operator:
    """The operator, after a check that it is symmetric (sign=1) or skew (sign=-1); rounding errors are averaged out."""
    gap, (i, j) = operator.asymmetry(sign)
    entries = [max(np.max(x), -np.min(x)) for x in jax.tree.leaves(operator) if np.size(x)]
    # float32 matrices computed by products are symmetric to about 1e-7.
    if gap > 1e-6 * max(entries, default=0.0):
        kind, op, mean = ("symmetric", "-", "+") if sign > 0 else ("skew-symmetric", "+", "-")
        found = f"max |{name} {op} {name}ᵀ| = {gap:.3g} at ({i}, {j})"
        raise InvalidInput(f"`{name}` must be {kind}: {found}. Pass `({name} {mean} {name}.T) / 2`.")
    if gap > 0 and isinstance(operator, Dense):
        return Dense((operator.matrix + sign * operator.matrix.T) / 2)
    return operator


def as_operator(value, name: str, size: int | None = None) -> Operator:
    """A number (with `size`), a vector (a diagonal), a square matrix or an operator, as an operator."""
    if isinstance(value, Operator):
        return value
    array = numbers(value, name)
    if array.ndim == 0:
        if size is None:
            raise InvalidInput(f"`{name}` is a single number, so its dimension is unknown: pass a matrix or a vector.")
        return Scaled(float(array), size)
    if array.ndim == 1:
        require(array.size > 0, f"`{name}` must have at least one entry: got an empty vector.")
        return Diagonal(array)
    square = array.ndim == 2 and array.shape[0] == array.shape[1] and array.size > 0
    require(square, f"`{name}` must be a square matrix: got shape {array.shape}.")
    return Dense(array) if np.any(array - np.diag(np.diag(array))) else Diagonal(np.diag(array).copy())
