"""Linear regressions with their coefficients integrated out: independent draws of the posterior, and its moments.

Without groups (`Integrated`), p(σ | y) is known on a grid: means and sds are sums over it. With groups (`Marginal`), what is
left are the variances: a few numbers φ, drawn from a t-distribution fitted to p(φ | y) in rounds, and weighted.
"""

import dataclasses
import functools
import itertools
from typing import NamedTuple

import numpy as np
from scipy import linalg, special

from gyromc.approx.modes import GaussianApproximation
from gyromc.approx.sample import effective_size, systematic
from gyromc.targets.mixed import MixedRegression
from gyromc.targets.priors import Prior

SMALLEST, LARGEST = 1e-3, 10.0  # ε and B of the prior of σ, in standard deviations of y
GRID = 400  # values of σ
FAR = 45.0  # logarithms of the density below its maximum, beyond which σ is left out
ENDS = np.log(SMALLEST) - 4, np.log(LARGEST) + 3  # of log σ


def log_prior(log_sigma: np.ndarray, prior: Prior | None) -> np.ndarray:
    """log p(log σ) up to a constant: ∝ exp(-ε²/(2σ²) - σ²/(2B²)) unless the user asks for a prior."""
    # Between ε and B standard deviations of y it is the prior 1/σ, under which credible intervals are confidence intervals where
    # the prior of θ is flat; the lower end keeps σ positive where the columns explain y without an error.
    log_sigma = np.asarray(log_sigma, float)
    if prior is not None:
        return prior.log_density(np.exp(log_sigma)) + log_sigma
    return -0.5 * (SMALLEST**2 * np.exp(-2 * log_sigma) + np.exp(2 * log_sigma) / LARGEST**2)


def mixture_quantiles(weights: np.ndarray, means: np.ndarray, sds: np.ndarray, level: float) -> np.ndarray:
    """Where mixtures of normal laws, parts × numbers, have a level, by bisection."""
    reach = 40 * sds.max(axis=0)
    low, high = means.min(axis=0) - reach, means.max(axis=0) + reach
    away = np.where(sds > 0, sds, 1.0)
    for _ in range(80):
        middle = (low + high) / 2
        above = weights @ special.ndtr((middle - means) / away) > level
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    return (low + high) / 2


def mixture_moments(weights: np.ndarray, means: np.ndarray, sds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means and standard deviations of the same."""
    mean = weights @ means
    return mean, np.sqrt(weights @ (sds**2 + (means - mean) ** 2))


class Integrated:
    """The posterior of y = Xθ + σN(0, I), θ ~ N(0, prior_scale² I), from the eigendecomposition of XᵀX."""

    # T's rows are the coefficients as functions of θ; `count` and `prior` are those of `Standardised`.
    def __init__(self, rows, y, prior_scale: float, T, count: float | None = None, prior: Prior | None = None):
        values, self.vectors = linalg.eigh(rows.T @ rows)
        seen = values > 1e-12 * max(float(values[-1]), 1e-300)
        self.values = np.where(seen, values, 0.0)  # 0 where no row has an entry
        self.products = np.where(seen, self.vectors.T @ (rows.T @ y), 0.0)
        # the squares of y that no column explains
        self.apart = max(0.0, float(y @ y) - float(np.sum(self.products[seen] ** 2 / values[seen])))
        self.count, self.prior_scale, self.T, self.prior = float(count or len(y)), prior_scale, T, prior

    def log_density(self, log_sigma: np.ndarray) -> np.ndarray:
        variance = np.exp(2 * np.asarray(log_sigma, float))[..., None]
        seen = self.values > 0
        total = variance + self.prior_scale**2 * self.values[seen]
        along = self.products[seen] ** 2 / self.values[seen]  # squares of y along the left singular vectors
        explained = np.sum(np.log(total) + along / total, axis=-1)
        variance = variance[..., 0]
        left = (self.count - seen.sum()) * np.log(variance) + self.apart / variance
        return log_prior(log_sigma, self.prior) - 0.5 * (explained + left)

    def given(self, sigma: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of θ along the eigenvectors, given every σ: … × dim."""
        variance = np.asarray(sigma, float)[..., None] ** 2
        total = self.values + variance / self.prior_scale**2
        return self.products / total, np.sqrt(variance / total)

    @functools.cached_property
    def grid(self) -> tuple[np.ndarray, np.ndarray]:
        """(log σ, weights) of a grid over all of the posterior of σ."""
        grid = np.linspace(*ENDS, GRID)
        for _ in range(3):  # the second and third look at a narrower range
            density = self.log_density(grid)
            near = np.flatnonzero(density > density.max() - FAR)
            grid = np.linspace(grid[max(0, near[0] - 1)], grid[min(GRID - 1, near[-1] + 1)], GRID)
        return grid, special.softmax(self.log_density(grid))

    @functools.cached_property
    def mixture(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(weights, means, standard deviations) of the coefficients over the grid of σ."""
        log_sigma, weights = self.grid
        means, sds = self.given(np.exp(log_sigma))
        along = self.T @ self.vectors
        return weights, means @ along.T, np.sqrt(sds**2 @ (along**2).T)

    def sigma(self, levels: tuple[float, ...]) -> np.ndarray:
        """Mean, standard deviation and quantiles of σ."""
        log_sigma, weights = self.grid
        mean, sd = mixture_moments(weights, np.exp(log_sigma), np.zeros(GRID))
        return np.array([mean, sd, *self._sigma_at(np.array(levels))])

    def _sigma_at(self, levels: np.ndarray) -> np.ndarray:
        """Where the distribution function of σ, linear in log σ between the points of the grid, has the levels."""
        log_sigma, weights = self.grid
        upto = np.concatenate([[0.0], np.cumsum((weights[1:] + weights[:-1]) / 2)])
        return np.exp(np.interp(levels * upto[-1], upto, log_sigma))

    def draws(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Independent draws: θ, of the given shape × dim, and σ."""
        sigma = self._sigma_at(rng.random(shape))
        # The symmetric root of the covariance does not depend on the choice of eigenvectors: rounding changes draws by as little.
        means, sds = self.given(sigma)
        return (means + sds * (rng.standard_normal(means.shape) @ self.vectors)) @ self.vectors.T, sigma


@dataclasses.dataclass(frozen=True)
class MarginalSettings:
    """The numbers of the importance sample of φ."""

    rounds: tuple[int, ...] = (300, 600, 3000)  # draws of φ; the last are kept
    step: float = 1e-2  # of difference quotients of log p(φ | y)
    least_curvature: float = 0.2  # of -log p(φ | y), whose prior has 1
    at_once: int = 1_000_000  # entries of matrices held at a time
    most_numbers: int = 12  # of φ
    most_size: int = 600  # coefficients and deviations, beyond which a Cholesky factor for each φ takes too long


SETTINGS = MarginalSettings()


class MarginalDraws(NamedTuple):
    """What weighted draws of φ say of the coefficients Tβ: means, sds, quantiles (levels × coefficients), with errors."""

    mean: np.ndarray
    sd: np.ndarray
    std_error: np.ndarray
    ends: np.ndarray
    end_errors: np.ndarray
    theta: np.ndarray  # draws of equal weight
    effective: float  # size of the sample of φ


@dataclasses.dataclass(frozen=True, eq=False)
class Marginal:
    """p(φ | y) of a linear regression with groups, whose coefficients and deviations are integrated out."""

    # φ makes σ and the groups' standard deviations and correlations. Given φ, coefficients and deviations are Gaussian: with W
    # the columns and the groups' designs, R the root of their prior covariance, and A = I + RᵀWᵀWR/σ²,
    # p(y | φ) ∝ σ⁻ⁿ |A|^{-1/2} exp(-|y|²/(2σ²) + |A^{-1/2}RᵀWᵀy|²/(2σ⁴)).
    target: MixedRegression

    @property
    def dim(self) -> int:
        return 1 + sum(sum(group.sizes[:2]) for group in self.target.groups)

    @property
    def size(self) -> int:
        return self.target.num_coefficients + sum(group.sizes[2] for group in self.target.groups)

    @functools.cached_property
    def _sums(self) -> tuple[np.ndarray, np.ndarray, float, float]:
        """WᵀW, Wᵀy, yᵀy and the number of rows, weighted."""
        target, n = self.target, self.target.num_data
        parts = [target.X]
        for group in target.groups:
            dense = np.zeros((n, group.num_levels, group.Z.shape[1]))
            dense[np.arange(n), group.index] = group.Z
            parts.append(dense.reshape(n, -1))
        W, y, w = np.concatenate(parts, axis=1), target.y - target.offset, target.weights
        return W.T @ (w[:, None] * W), W.T @ (w * y), float(w @ y**2), float(w.sum())

    def _by_group(self, phi: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """What makes each group's standard deviations and correlations: two arrays for each."""
        ends = np.cumsum([1, *(size for group in self.target.groups for size in group.sizes[:2])])
        pieces = [phi[:, a:b] for a, b in itertools.pairwise(ends)]
        return list(zip(pieces[::2], pieces[1::2], strict=True))

    def _rooted(self, M: np.ndarray, roots: list[np.ndarray], rows: str = "bij,blin->bljn") -> np.ndarray:
        """RᵀM for matrices with a row for each coefficient and deviation: points × rows × columns."""
        p, M = self.target.num_coefficients, np.broadcast_to(M, (len(roots[0]), *M.shape[-2:]))
        parts, first = [M[:, :p] * float(self.target.prior_precision) ** -0.5], p
        for group, root in zip(self.target.groups, roots, strict=True):
            block = M[:, first : first + group.sizes[2]].reshape(len(M), group.num_levels, root.shape[-1], -1)
            parts.append(np.einsum(rows, root, block).reshape(len(M), -1, M.shape[2]))
            first += group.sizes[2]
        return np.concatenate(parts, axis=1)

    def _factored(self, phi: np.ndarray):
        """σ, the roots of each group's covariance, the Cholesky factor L of A and L⁻¹RᵀWᵀy/σ², at every row of φ."""
        sigma = np.asarray(self.target.likelihood.natural(phi[:, :1])[0])
        roots = [group.root(*own) for group, own in zip(self.target.groups, self._by_group(phi), strict=True)]
        G, h, _, _ = self._sums
        A = self._rooted(np.swapaxes(self._rooted(G, roots), 1, 2), roots) / sigma[:, None, None] ** 2
        A[:, np.arange(len(G)), np.arange(len(G))] += 1
        L = np.linalg.cholesky(A)
        return sigma, roots, L, np.linalg.solve(L, self._rooted(h[:, None], roots))[..., 0] / sigma[:, None] ** 2

    def _parts(self, phi: np.ndarray) -> list[np.ndarray]:
        at_once = max(1, SETTINGS.at_once // self.size**2)
        return [phi[first : first + at_once] for first in range(0, len(phi), at_once)]

    def log_densities(self, phi: np.ndarray) -> np.ndarray:
        _, _, squares, count = self._sums
        found = []
        for part in self._parts(phi):
            sigma, _, L, g = self._factored(part)
            log_root = np.sum(np.log(np.einsum("bii->bi", L)), axis=1)
            evidence = -count * np.log(sigma) - 0.5 * squares / sigma**2 - log_root + 0.5 * np.sum(g**2, axis=1)
            found.append(evidence - self.target.law_energy(part[:, :1], self._by_group(part)))
        return np.concatenate(found)

    def sample(self, T: np.ndarray, count: int, seed: int = 0, levels: tuple[float, ...] = ()) -> MarginalDraws:
        """The coefficients Tβ, their quantiles at some levels, and so many draws."""
        rng, p = np.random.default_rng(seed), T.shape[1]
        phi, weights = self._weighted(rng)
        picked = systematic(weights, count, rng)
        order, times = rng.permutation(count), np.bincount(picked, minlength=len(phi))
        means, inside, v, done, seen = [], [], np.empty((count, self.size)), 0, 0
        for part in self._parts(phi):
            _, roots, L, g = self._factored(part)
            inverse = np.swapaxes(np.linalg.inv(L), 1, 2)
            # R times: the roots of the covariances of coefficients and deviations given φ, and in the last column their means.
            back = self._rooted(np.concatenate([inverse, inverse @ g[..., None]], axis=2), roots, "bji,blin->bljn")
            mean, root = back[..., -1], back[..., :-1]
            means.append(mean[:, :p] @ T.T)
            inside.append(np.sum((T @ root[:, :p]) ** 2, axis=2))
            own = np.repeat(np.arange(len(part)), times[seen : seen + len(part)])
            noise = rng.standard_normal((len(own), self.size, 1))
            v[order[done : done + len(own)]] = mean[own] + (root[own] @ noise)[..., 0]
            done, seen = done + len(own), seen + len(part)
        each, sds = np.concatenate(means), np.sqrt(np.concatenate(inside))
        mean, sd = mixture_moments(weights, each, sds)
        error = np.sqrt(weights**2 @ (each - mean) ** 2)
        ends, end_errors = np.empty((2, len(levels), len(T)))
        for k, level in enumerate(levels):
            ends[k] = mixture_quantiles(weights, each, sds, level)
            z = (ends[k] - each) / sds
            density = weights @ (np.exp(-(z**2) / 2) / (sds * np.sqrt(2 * np.pi)))
            end_errors[k] = np.sqrt(weights**2 @ (special.ndtr(z) - level) ** 2) / density
        drawn = np.empty((count, self.dim))
        drawn[order] = phi[picked]
        return MarginalDraws(mean, sd, error, ends, end_errors, self._theta(drawn, v), effective_size(weights))

    def _theta(self, phi: np.ndarray, v: np.ndarray) -> np.ndarray:
        first = self.target.num_coefficients
        parts = [v[:, :first], phi[:, :1]]
        for group, own in zip(self.target.groups, self._by_group(phi), strict=True):
            size = group.sizes[2]
            parts += [*own, v[:, first : first + size] / np.tile(group.scale, group.num_levels)]
            first += size
        return np.concatenate(parts, axis=1)

    def _weighted(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Draws of φ with weights that sum to one, proposed from what the round before has found."""
        center = self._approximation()
        phi, weights = np.zeros((0, self.dim)), np.zeros(0)
        for count in SETTINGS.rounds:
            # A t-distribution around the approximation, a little wider, and its log density up to a constant.
            dof, scale = 5.0, 1.1
            e = scale * rng.standard_normal((count, self.dim)) * np.sqrt(dof / rng.chisquare(dof, (count, 1)))
            log_proposal = -(dof + self.dim) / 2 * np.log1p(np.sum(e**2, axis=1) / scale**2 / dof)
            phi = center.points(e)
            weights = special.softmax(self.log_densities(phi) - log_proposal)
            mean, size = weights @ phi, effective_size(weights)
            covariance = ((phi - mean).T * weights) @ (phi - mean)
            # The covariance before counts for as many draws as φ has numbers.
            mixed = (size * covariance + self.dim * np.linalg.inv(center.precision)) / (size + self.dim)
            center = GaussianApproximation(mean, np.linalg.inv(mixed), "the round before")
        kept = weights > 1e-6 / len(weights)
        return phi[kept], weights[kept] / weights[kept].sum()

    def _approximation(self) -> GaussianApproximation:
        """The mode of p(φ | y) and minus the second derivatives of its logarithm there."""
        steps = SETTINGS.step * np.eye(self.dim)

        def value_and_slope(x):
            values = -self.log_densities(np.concatenate([x[None], x + steps, x - steps]))
            return values[0], (values[1 : self.dim + 1] - values[self.dim + 1 :]) / (2 * SETTINGS.step)

        from scipy import optimize  # here, since it takes a while to import

        mode = optimize.minimize(value_and_slope, np.zeros(self.dim), jac=True, method="BFGS", options={"gtol": 1e-3}).x
        slopes = [value_and_slope(mode + step)[1] - value_and_slope(mode - step)[1] for step in steps]
        H = np.array(slopes) / (2 * SETTINGS.step)
        values, basis = np.linalg.eigh((H + H.T) / 2)
        precision = (basis * np.maximum(values, SETTINGS.least_curvature)) @ basis.T
        return GaussianApproximation(mode, precision, "the curvature at the mode")
