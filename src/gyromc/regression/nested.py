"""Regressions with groups or further parameters by nested importance sampling: draws without a chain.

A `MixedRegression` in, weighted draws out. θ has two parts: φ, the few numbers that make the likelihood's parameters and the
groups' standard deviations and correlations, and v, coefficients and deviations, both standard normal a priori. Given φ, v is
nearly Gaussian: Newton's method finds its mode and curvature, for many φ at once. Those give Laplace's approximation of p(φ | y),
to which a t-distribution is fitted in rounds. Draws of φ from it and of v given φ from the Gaussian, as antithetic pairs, get the
weights that make them draws of the posterior itself; what was approximate only decides how even the weights are.
"""

import dataclasses
import functools

import numpy as np
from scipy import optimize, special

from gyromc.regression.marginal import proposed
from gyromc.shape.importance import Sample
from gyromc.targets.mixed import MixedRegression

ROUNDS = (200, 400)  # draws of φ that the proposal is fitted to
PAIRS = (1000, 20_000)  # fewest and most pairs of draws
INNER = 40.0  # degrees of freedom of the proposal of v: nearly Gaussian, with tails
STEPS = 60  # of Newton's method, at most
CLOSE = 1e-3  # distance to the mode, in standard deviations, at which it ends: the next step squares it
REACH = 3.0  # by how much a step may change a linear predictor: beyond, e^t has nothing to do with its tangent
STEP = 1e-3  # of difference quotients in the linear predictors
SLOPE = 1e-2  # of difference quotients in φ
LEAST_CURVATURE = 0.2  # of -log p(φ | y), whose prior has 1
HEALTHY, HEAVY = 0.1, 0.7  # share of the draws that weights must leave; tail index from which they are not reliable
STEEPEST = 1e8  # slopes and curvatures beyond are those of points without any weight
AT_ONCE = 3_000_000  # entries of arrays held at a time
MOST_SIZE = 300  # coefficients and deviations


@dataclasses.dataclass(frozen=True, eq=False)
class NestedDraws:
    """Weighted draws of θ in antithetic pairs: pairs × 2 × dim; `worth` is the share of them that their weights leave."""

    theta: np.ndarray
    weights: np.ndarray
    tail_index: float

    @property
    def worth(self) -> float:
        """The share of the draws that the weights leave."""
        return float(1 / np.sum(self.weights**2) / self.weights.size)

    @property
    def trusted(self) -> bool:
        """Whether the weights are even enough, and few draws do not decide."""
        return self.worth >= HEALTHY and self.tail_index < HEAVY

    def average(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean of values, pairs × 2 × …, and its standard error: pairs are independent, the two of a pair are not."""
        mean = np.tensordot(self.weights, values, axes=((0, 1), (0, 1)))
        away = np.einsum("pa,pa...->p...", self.weights, values - mean)
        return mean, np.sqrt(np.sum(away**2, axis=0))

    def draws(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """So many draws of equal weight by systematic resampling, in random order."""
        flat = self.theta.reshape(-1, self.theta.shape[-1])
        order = rng.permutation(len(flat))
        ends = np.cumsum(self.weights.reshape(-1)[order])
        picked = np.searchsorted(ends, (np.arange(count) + rng.random()) / count * ends[-1])
        return flat[order[rng.permutation(np.minimum(picked, len(flat) - 1))]]


@dataclasses.dataclass(frozen=True, eq=False)
class Nested:
    """The posterior of a `MixedRegression` with one linear predictor per row.

    ```python
    import numpy as np
    from gyromc.regression.nested import Nested
    from gyromc.targets.families import NegativeBinomial
    from gyromc.targets.mixed import MixedRegression
    y = np.random.default_rng(0).negative_binomial(2, 0.3, 30).astype(float)
    found = Nested(MixedRegression(np.ones((30, 1)), y, NegativeBinomial(), 2.5)).sample(0.05)
    assert found.trusted and found.theta.shape[2] == 2
    ```
    """

    target: MixedRegression

    @property
    def possible(self) -> bool:
        """Whether the target has one linear predictor per row and is not too large."""
        return self.target.likelihood.outputs == 1 and self.size <= MOST_SIZE

    @functools.cached_property
    def _places(self) -> tuple[np.ndarray, np.ndarray]:
        """The places of φ and of v in θ."""
        target = self.target
        inner = np.zeros(target.dim, bool)
        inner[: target.num_coefficients] = True
        first = target.num_coefficients + len(target.likelihood.auxiliary)
        for group in target.groups:
            before, first = first + sum(group.sizes[:2]), first + sum(group.sizes)
            inner[before:first] = True
        return np.flatnonzero(~inner), np.flatnonzero(inner)

    @property
    def dim(self) -> int:
        """How many numbers φ has."""
        return len(self._places[0])

    @property
    def size(self) -> int:
        """How many coefficients and deviations there are."""
        return len(self._places[1])

    def _theta(self, phi: np.ndarray, v: np.ndarray) -> np.ndarray:
        """θ from φ and v: … × dim."""
        theta = np.empty((*v.shape[:-1], self.target.dim))
        theta[..., self._places[0]], theta[..., self._places[1]] = phi, v
        theta[..., : self.target.num_coefficients] *= float(self.target.prior_precision) ** -0.5
        return theta

    def _design(self, phi: np.ndarray) -> np.ndarray:
        """The matrices from v to linear predictors: points × rows × size."""
        target, n = self.target, self.target.num_data
        X = target.X * float(target.prior_precision) ** -0.5
        parts, first = [np.broadcast_to(X, (len(phi), *X.shape))], len(target.likelihood.auxiliary)
        for group in target.groups:
            a, b = first + group.sizes[0], first + sum(group.sizes[:2])
            root = group.sds(phi[:, first:a])[..., None] * group.correlation_root(phi[:, a:b])
            block = np.zeros((len(phi), n, group.num_levels, root.shape[-1]))
            block[:, np.arange(n), group.index] = group.Z @ root
            parts.append(block.reshape(len(phi), n, -1))
            first = b
        return np.concatenate(parts, axis=2)

    def _losses(self, t: np.ndarray, phi: np.ndarray) -> np.ndarray:
        """The weighted losses of all rows at linear predictors t, points × … × rows."""
        target = self.target
        given = target.likelihood.natural(phi[:, : len(target.likelihood.auxiliary)])
        shape = (len(phi), *[1] * (t.ndim - 1))
        with np.errstate(over="ignore", invalid="ignore"):
            found = target.likelihood.loss(t, target.y, *target.known, *(g.reshape(shape) for g in given))
        return target.weights * np.nan_to_num(found, nan=1e30, posinf=1e30)

    def _inner(self, phi: np.ndarray, v: np.ndarray):
        """(mode, Cholesky factor of the curvature, U there, design) of v given each φ, from a start."""
        W = self._design(phi)
        energy = lambda v: (
            self._losses(np.einsum("bnp,bp->bn", W, v) + self.target.offset, phi).sum(axis=1)
            + 0.5 * np.sum(v**2, axis=1)
        )
        v = np.where((energy(v) < energy(np.zeros_like(v)))[:, None], v, 0.0)
        U, L = energy(v), np.zeros((len(phi), self.size, self.size))
        for k in range(STEPS + 1):
            t = np.einsum("bnp,bp->bn", W, v) + self.target.offset
            lower, middle, upper = (self._losses(t + h, phi) for h in (-STEP, 0.0, STEP))
            slope = np.clip((upper - lower) / (2 * STEP), -STEEPEST, STEEPEST)
            curvature = np.clip((upper - 2 * middle + lower) / STEP**2, -STEEPEST, STEEPEST)
            L = _cholesky(W, curvature)
            g = np.einsum("bnp,bn->bp", W, slope) + v
            half = np.linalg.solve(L, g[..., None])
            if k == STEPS or np.all(np.sum(half**2, axis=(1, 2)) < CLOSE**2):
                break
            step = np.linalg.solve(np.swapaxes(L, 1, 2), half)[..., 0]
            change = np.max(np.abs(np.einsum("bnp,bp->bn", W, step)), axis=1, keepdims=True)
            step = step * np.minimum(1.0, REACH / np.maximum(change, 1e-300))
            for length in (1.0, 0.3, 0.1, 0.01):  # the longest that lowers U
                moved = v - length * step
                there = energy(moved)
                better = there < U
                v, U = np.where(better[:, None], moved, v), np.where(better, there, U)
                step = np.where(better[:, None], 0.0, step)
        return v, L, U, W

    def _parts(self, count: int) -> list[slice]:
        at_once = max(1, AT_ONCE // (self.target.num_data * self.size + self.size**2))
        return [slice(first, first + at_once) for first in range(0, count, at_once)]

    def _approximate(self, phi: np.ndarray, start: np.ndarray) -> np.ndarray:
        """Laplace's approximation of log p(φ | y), up to a constant."""
        found = []
        for rows in self._parts(len(phi)):
            _, L, U, _ = self._inner(phi[rows], np.broadcast_to(start, (len(phi[rows]), self.size)))
            log_root = np.sum(np.log(np.einsum("bii->bi", L)), axis=1)
            found.append(-U - log_root - 0.5 * np.sum(phi[rows] ** 2, axis=1))
        return np.concatenate(found)

    def _outer(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Center and precision of the proposal of φ, and the mode of v at the center."""
        zero = np.zeros((1, self.dim))
        start = self._inner(zero, np.zeros((1, self.size)))[0][0]
        if self.dim == 0:
            return zero[0], np.eye(0), start
        steps = SLOPE * np.eye(self.dim)

        def value_and_slope(x):
            values = -self._approximate(np.concatenate([x[None], x + steps, x - steps]), start)
            return values[0], (values[1 : self.dim + 1] - values[self.dim + 1 :]) / (2 * SLOPE)

        mode = optimize.minimize(
            value_and_slope, zero[0], jac=True, method="BFGS", options={"gtol": 1e-2, "maxiter": 40}
        ).x
        start = self._inner(mode[None], start[None])[0][0]
        H = np.array([value_and_slope(mode + s)[1] - value_and_slope(mode - s)[1] for s in steps]) / (2 * SLOPE)
        values, basis = np.linalg.eigh((H + H.T) / 2)
        center, precision = mode, (basis * np.maximum(values, LEAST_CURVATURE)) @ basis.T
        for count in ROUNDS:
            phi, log_proposal = proposed(center, precision, count, rng)
            weights = special.softmax(self._approximate(phi, start) - log_proposal)
            center = weights @ phi
            away, effective = phi - center, 1 / np.sum(weights**2)
            mixed = (effective * (away.T * weights) @ away + self.dim * np.linalg.inv(precision)) / (
                effective + self.dim
            )
            precision = np.linalg.inv(mixed)
        return center, precision, start

    def sample(self, relative_error: float, seed: int = 0, least: int = 0) -> NestedDraws:
        """Weighted draws, so many that means have about this error in posterior standard deviations, and at least `least`."""
        rng = np.random.default_rng(seed)
        center, precision, start = self._outer(rng)
        count = max(least, int(np.clip(0.7 / relative_error**2, *PAIRS)))
        phi, log_outer = (
            proposed(center, precision, count, rng) if self.dim else (np.zeros((count, 0)), np.zeros(count))
        )
        theta, logs = np.empty((count, 2, self.target.dim)), np.empty((count, 2))
        for rows in self._parts(count):
            some = phi[rows]
            mode, L, _, W = self._inner(some, np.broadcast_to(start, (len(some), self.size)))
            x = rng.standard_normal((len(some), self.size)) * np.sqrt(INNER / rng.chisquare(INNER, (len(some), 1)))
            away = np.linalg.solve(np.swapaxes(L, 1, 2), x[..., None])[..., 0]
            v = np.stack([mode + away, mode - away], axis=1)
            t = np.einsum("bnp,bap->ban", W, v) + self.target.offset
            U = self._losses(t, some).sum(axis=2) + 0.5 * np.sum(v**2, axis=2) + 0.5 * np.sum(some**2, axis=1)[:, None]
            log_root = np.sum(np.log(np.einsum("bii->bi", L)), axis=1)
            log_inner = log_root - (INNER + self.size) / 2 * np.log1p(np.sum(x**2, axis=1) / INNER)
            logs[rows] = -U - (log_inner + log_outer[rows])[:, None]
            theta[rows] = self._theta(some[:, None], v)
        weights = special.softmax(logs)
        worth = 1 / float(np.sum(weights**2))
        flat = Sample(theta.reshape(-1, theta.shape[-1]), weights.reshape(-1), worth, "nested")
        even = worth >= HEALTHY * weights.size  # otherwise there may be no covariance to measure distances by
        return NestedDraws(theta, weights, flat.tail_index if even else np.inf)


def _cholesky(W: np.ndarray, curvature: np.ndarray) -> np.ndarray:
    """The Cholesky factors of I + Wᵀ diag(curvature) W; curvature that is negative is left out where there is none."""
    one = np.eye(W.shape[2])
    try:
        return np.linalg.cholesky(np.swapaxes(W, 1, 2) @ (curvature[..., None] * W) + one)
    except np.linalg.LinAlgError:
        return np.linalg.cholesky(np.swapaxes(W, 1, 2) @ (np.maximum(curvature, 0.0)[..., None] * W) + one)
