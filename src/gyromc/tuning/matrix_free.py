"""What stochastic gradients tell of a law with many parameters, without any matrix: O(d) memory throughout.

Input: `Gradients` (a target over vectors with its oracle) and points of θ. Output: a point near a mode (`descend`), the diagonals
of P = E[∇²U] and of the gradients' noise Σ (`diagonals`), extreme eigenvalues of the Hessian in scaled coordinates
(`extreme_curvatures`), the largest of the noise (`largest_noise`), and how widely states are spread (`temperatures`). Products
with a Hessian are derivatives of a gradient along a direction; each counts as two gradients. Numbers of probes and iterations
are not compiled in, so that each function is compiled once for a model.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy import linalg

from gyromc.operators import Diagonal, Operator
from gyromc.oracles import Exact, Gaussian, Oracle
from gyromc.targets import SumOverData, Target

__all__ = [
    "MOST_ITERATIONS",
    "PRODUCT",
    "Diagonals",
    "Gradients",
    "descend",
    "diagonals",
    "extreme_curvatures",
    "largest_noise",
    "shrunk",
    "shrunk_noise",
    "temperatures",
]

PRODUCT = 2  # gradients that a product with a Hessian counts for
FIRST_RATE, LAST_RATE = 0.5, 0.02  # of the descent, in units of 1/√curvature
MEMORY = (0.9, 0.99)  # of the descent's mean gradient and mean square
BROKEN = 1e-5  # relative size of a Lanczos coefficient that rounding alone makes
LEAST = 1e-8  # of the largest curvature: none is taken to be smaller
PRIOR_PROBES = 4
MOST_ITERATIONS = 256  # of the Lanczos method
AT_ONCE = 2**16  # coordinates computed together, so that what is held besides the result stays small


class Gradients(eqx.Module):
    """ĝ of a target over vectors; `draw` makes the randomness of one gradient."""

    target: Target
    oracle: Oracle
    dim: int = eqx.field(static=True)

    def draw(self, key, dtype) -> Any:
        """ζ for one gradient."""
        return jax.tree.map(lambda x: x[0], self.oracle.draw(key, self.target, 1, self.dim, dtype))

    def __call__(self, theta, zeta):
        return self.oracle.gradient(self.target, theta, zeta)

    def product(self, theta, zeta, direction):
        """ĝ, and the Hessian of the same batch times a direction."""
        return jax.jvp(lambda t: self(t, zeta), (theta,), (direction,))

    @property
    def exact(self) -> bool:
        """Whether the gradients have no noise."""
        return isinstance(self.oracle, Exact)

    @property
    def same_hessian(self) -> bool:
        """Whether all batches have the same Hessian."""
        return isinstance(self.oracle, Exact | Gaussian)


@dataclasses.dataclass(frozen=True, eq=False)
class Diagonals:
    """The diagonals of P and Σ, the standard errors of the first, the prior's part of P (None where there is none), and how many
    probes they are from.
    """

    curvature: np.ndarray
    error: np.ndarray
    noise: np.ndarray
    prior: np.ndarray | None
    probes: int


@eqx.filter_jit
def descend(gradients: Gradients, start, scale, key, steps: int):
    """A point lower than the start: Adam in the coordinates θ / scale, with steps that become smaller."""
    rates = jnp.geomspace(FIRST_RATE, LAST_RATE, steps, dtype=start.dtype)

    def step(carry, now):
        theta, mean, square, k = carry
        rate, key = now
        g = scale * gradients(theta, gradients.draw(key, theta.dtype))
        mean = MEMORY[0] * mean + (1 - MEMORY[0]) * g
        square = MEMORY[1] * square + (1 - MEMORY[1]) * g**2
        size = jnp.sqrt(square / (1 - MEMORY[1] ** k)) + jnp.finfo(theta.dtype).tiny
        return (theta - rate * scale * mean / (1 - MEMORY[0] ** k) / size, mean, square, k + 1), None

    zero = jnp.zeros_like(start)
    (theta, *_), _ = jax.lax.scan(step, (start, zero, zero, 1.0), (rates, jax.random.split(key, steps)))
    return theta


def diagonals(gradients: Gradients, points, key, probes: int, without=None) -> Diagonals:
    """The diagonals of P and Σ over the points, from so many products with a Hessian and as many pairs of gradients.

    With signs v at random, v ⊙ ∇²U v has the mean diag ∇²U wherever θ is, so that the points need not be draws of the law, as
    they would for E[∇U∇Uᵀ]. Two gradients ĝ₁, ĝ₂ at one point have E[(ĝ₁ - ĝ₂)²]/2 = diag Σ. With rows u_i in `without`,
    Σ u_i u_iᵀ is taken off P first.
    """
    key, key_prior = jax.random.split(key)
    P, squares, noise = map(np.array, _sums(gradients, points, key, jnp.asarray(probes), without))
    squares /= probes * max(1, probes - 1)
    noise /= probes
    prior = None
    if isinstance(gradients.target, SumOverData):
        prior = np.maximum(_prior(gradients.target, points[0], key_prior), 0.0)
    return Diagonals(P, np.sqrt(squares, out=squares), noise, prior, probes)


@eqx.filter_jit
def _sums(gradients: Gradients, points, key, probes, without):
    """The mean of v⊙Hv, the sum of squares of its deviations from the mean, and Σ (ĝ₁ - ĝ₂)²/2 over the probes."""

    def probe(k, carry):
        mean, squares, noise = carry
        signs, one, two = jax.random.split(jax.random.fold_in(key, k), 3)
        theta = points[k % len(points)]
        v = jax.random.rademacher(signs, theta.shape, theta.dtype)
        g, product = gradients.product(theta, gradients.draw(one, theta.dtype), v)
        if without is not None:
            product = product - (without @ v) @ without
        away = v * product - mean
        mean = mean + away / (k + 1)
        if not gradients.exact:
            noise = noise + (g - gradients(theta, gradients.draw(two, theta.dtype))) ** 2 / 2  # T7
        return mean, squares + away * (v * product - mean), noise

    zero = jnp.zeros_like(points[0])
    return jax.lax.fori_loop(0, probes, probe, (zero, zero, zero))


@eqx.filter_jit
def _prior(target: Any, theta, key):
    """The diagonal of the prior's Hessian, exact where that is diagonal."""

    def one(key):
        v = jax.random.rademacher(key, theta.shape, theta.dtype)
        return v * jax.jvp(target.prior_gradient, (theta,), (v,))[1]

    return jax.lax.map(one, jax.random.split(key, PRIOR_PROBES)).mean(axis=0)


def shrunk(found: Diagonals, groups: tuple[int, ...]) -> np.ndarray:
    """Positive curvatures: each estimate is moved towards the mean of its group as far as its error says, and made positive.

    `groups` are the numbers of parameters in each array of the model. An estimate without error stays as it is.
    """
    result = np.empty_like(found.curvature)
    start = 0
    for size in groups:
        mean = float(np.mean(found.curvature[start : start + size], dtype=float))
        signal = float(np.var(found.curvature[start : start + size], dtype=float))
        signal = max(0.0, signal - float(np.mean(found.error[start : start + size] ** 2, dtype=float)))
        for first in range(start, start + size, AT_ONCE):
            part = slice(first, min(first + AT_ONCE, start + size))
            m, s = found.curvature[part], found.error[part]
            weight = np.divide(signal, signal + s**2, out=np.ones_like(s), where=signal + s**2 > 0)
            result[part] = np.hypot(weight * m + (1 - weight) * mean, np.sqrt(weight) * s)
        start += size
    least = LEAST * float(result.max())
    if found.prior is not None:
        least = np.maximum(found.prior, least)
    return np.maximum(result, least)


def shrunk_noise(found: Diagonals, groups: tuple[int, ...]) -> np.ndarray:
    """The diagonal of Σ, with logarithms moved towards the mean of their group as far as their error, √(2/probes), says.

    The mean of each group stays what it was.
    """
    result = found.noise.copy()
    start = 0
    for size in groups:
        part = result[start : start + size]  # a view
        known = part > 0
        if np.any(known):
            logs, total = np.log(part[known]), part.sum(dtype=float)
            spread, mean = float(np.var(logs, dtype=float)), float(np.mean(logs, dtype=float))
            weight = max(0.0, 1 - 2 / found.probes / spread) if spread > 0 else 1.0
            moved = np.exp(mean + weight * (logs - mean))
            part[known] = moved * (total / moved.sum(dtype=float))
        start += size
    return result


def extreme_curvatures(
    gradients: Gradients, theta, root: Any, key, iterations: int, batches: int
) -> tuple[float, float | None]:
    """The largest eigenvalue of Eᵀ∇²U(θ)E, E = `root`, by the Lanczos method; the smallest where it is seen to be positive.

    A vector for `root` is a diagonal.

    The Hessian is the mean over so many batches, the same in all iterations. No vectors are kept, so Ritz values may repeat,
    which changes neither of the two.
    """
    counts = jnp.asarray(iterations), jnp.asarray(batches)
    diagonal, beside = (np.asarray(x, float)[:iterations] for x in _lanczos(gradients, theta, _map(root), key, *counts))
    usable = np.isfinite(diagonal) & np.isfinite(beside)
    broken = ~usable | (beside <= BROKEN * np.abs(diagonal[0]))
    length = int(np.argmax(broken)) + 1 if np.any(broken) else iterations
    if not usable[:length].all():
        return float("nan"), None
    ritz = linalg.eigvalsh_tridiagonal(diagonal[:length], beside[: length - 1])
    return float(ritz[-1]), float(ritz[0]) if ritz[0] > BROKEN * ritz[-1] else None


@eqx.filter_jit
def _lanczos(gradients: Gradients, theta, root, key, iterations, batches):
    """The two diagonals of the tridiagonal matrix."""
    key_start, key_batches = jax.random.split(key)

    def apply(v):
        direction = root(v)

        def add(k, total):
            zeta = gradients.draw(jax.random.fold_in(key_batches, k), theta.dtype)
            return total + gradients.product(theta, zeta, direction)[1]

        return root.transposed()(jax.lax.fori_loop(0, batches, add, jnp.zeros_like(v))) / batches

    def step(k, carry):
        v, before, beta, found = carry
        w = apply(v) - beta * before
        alpha = jnp.vdot(w, v)
        w = w - alpha * v
        size = jnp.linalg.norm(w)
        found = found[0].at[k].set(alpha), found[1].at[k].set(size)
        return w / jnp.where(size > 0, size, 1.0), v, size, found

    v = jax.random.normal(key_start, theta.shape, theta.dtype)
    empty = jnp.zeros(MOST_ITERATIONS, theta.dtype)
    carry = v / jnp.linalg.norm(v), jnp.zeros_like(v), jnp.zeros((), theta.dtype), (empty, empty)
    return jax.lax.fori_loop(0, iterations, step, carry)[3]


def _map(root: Any) -> Operator:
    return root if isinstance(root, Operator) else Diagonal(root)


def largest_noise(gradients: Gradients, points, root: Any, key, rounds: int, pairs: int) -> tuple[float, float]:
    """The largest eigenvalue of EᵀΣE, E = `root`, and vᵀ diag(EᵀΣE) v for its vector v, by power iteration.

    Each round measures vᵀΣv with so many new pairs of gradients, and then multiplies v with Σ as estimated from them. What is
    returned is the mean over the second half of the rounds; it costs 2·rounds·pairs gradients.
    """
    counts = jnp.asarray(rounds), jnp.asarray(pairs)
    along, alone = _noise(gradients, points, _map(root), key, *counts)
    return float(along), float(alone)


@eqx.filter_jit
def _noise(gradients: Gradients, points, root, key, rounds, pairs):
    def pair(k, carry):
        v, w, along, alone = carry
        one, two = jax.random.split(jax.random.fold_in(key, k))
        theta = points[k % len(points)]
        first, second = (gradients(theta, gradients.draw(x, theta.dtype)) for x in (one, two))
        delta = root.transposed()(first - second) / 2**0.5
        part, counted = jnp.vdot(delta, v), k >= rounds // 2 * pairs
        along = along + jnp.where(counted, part**2, 0)
        alone = alone + jnp.where(counted, jnp.vdot(delta**2, v**2), 0)
        w = w + jnp.where(k > 0, part, 1.0) * delta  # the first difference is where it begins
        ends, size = (k + 1) % pairs == 0, jnp.linalg.norm(w)
        v = jnp.where(ends | (k == 0), w / jnp.where(size > 0, size, 1.0), v)
        return v, jnp.where(ends, 0, w), along, alone

    zero, none = jnp.zeros((), points.dtype), jnp.zeros_like(points[0])
    *_, along, alone = jax.lax.fori_loop(0, rounds * pairs, pair, (none, none, zero, zero))
    counted = (rounds - rounds // 2) * pairs
    return along / counted, alone / counted


def temperatures(gradients: Gradients, points, center, key, batches: int, groups: tuple[int, ...]):
    """(θ - c)ᵀ∇U / d over each group of parameters, with standard errors: 1 on average over the law, whatever it is and c is.

    On a Gaussian with all variances T times too large it is T. Costs `batches` gradients for each point.
    """
    parts = np.asarray(_virials(gradients, points, center, key, batches, groups), float) / np.asarray(groups)
    count = len(points) * batches
    return parts.mean(axis=0), parts.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else np.full(len(groups), np.inf)


@eqx.filter_jit
def _virials(gradients: Gradients, points, center, key, batches: int, groups: tuple[int, ...]):
    """(θ - c)ᵀĝ over each group, points × batches of them."""
    ends = np.cumsum(groups)[:-1]

    def one(now):
        k, key = now
        theta = points[k]
        products = (theta - center) * gradients(theta, gradients.draw(key, theta.dtype))
        return jnp.stack([part.sum() for part in jnp.split(products, ends)])

    count = len(points) * batches
    return jax.lax.map(one, (jnp.arange(count) % len(points), jax.random.split(key, count)))
