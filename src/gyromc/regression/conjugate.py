"""Linear regression with the noise integrated out: independent draws of the posterior, and its moments by quadrature.

Standardised rows and responses in; the posterior of θ and σ out. Given σ the posterior of θ is Gaussian, and one
eigendecomposition gives it for every σ. So p(σ | y) is known on a grid in closed form, means and sds are sums over the grid,
and a draw is a σ from the grid and a θ given σ: no chain, no step size, no discretisation bias.

The prior of σ is uniform in log σ between a thousandth and ten standard deviations of y, with smooth ends: p(log σ) ∝
exp(-ε²/(2σ²) - σ²/(2B²)), ε = 0.001, B = 10. In between it is the prior 1/σ, under which credible intervals are confidence
intervals where the prior of θ is flat; the lower end keeps σ positive where the columns explain y without an error. Where the
user asks for a `Prior` of σ, that takes its place.
"""

import dataclasses
import functools

import numpy as np
from scipy import linalg, special

from gyromc.targets.priors import Prior

SMALLEST, LARGEST = 1e-3, 10.0  # ε and B of the prior of σ, in standard deviations of y
GRID = 400  # values of σ
FAR = 45.0  # logarithms of the density below its maximum, beyond which σ is left out
ENDS = np.log(SMALLEST) - 4, np.log(LARGEST) + 3  # of log σ


def log_prior(log_sigma: np.ndarray, prior: Prior | None) -> np.ndarray:
    """log p(log σ) up to a constant."""
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


@dataclasses.dataclass(frozen=True, eq=False)
class Integrated:
    """The posterior of a linear regression, from the eigendecomposition of XᵀX.

    **Attributes:**

    - `values`, `vectors`: eigenvalues λ of XᵀX (0 where no row has an entry) and eigenvectors; `products`: Xᵀy along these.
    - `apart`: the squares of y that no column explains; `count`: the number of observations.
    - `prior_scale`: of θ; `T`: a matrix whose rows are the coefficients as functions of θ.
    - `prior`: of σ, None for the one above.
    """

    values: np.ndarray
    vectors: np.ndarray
    products: np.ndarray
    apart: float
    count: float
    prior_scale: float
    T: np.ndarray
    prior: Prior | None = None

    def log_density(self, log_sigma: np.ndarray) -> np.ndarray:
        """log p(log σ | y) up to a constant, at every log σ."""
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
    def _parts(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(weights, means, standard deviations) of the coefficients over the grid of σ."""
        log_sigma, weights = self.grid
        means, sds = self.given(np.exp(log_sigma))
        along = self.T @ self.vectors
        return weights, means @ along.T, np.sqrt(sds**2 @ (along**2).T)

    def moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of each coefficient."""
        weights, means, sds = self._parts
        mean = weights @ means
        return mean, np.sqrt(weights @ (sds**2 + (means - mean) ** 2))

    def quantiles(self, level: float) -> np.ndarray:
        """The quantile of each coefficient."""
        return mixture_quantiles(*self._parts, level)

    def sigma(self, levels: tuple[float, float]) -> tuple[float, float, float, float]:
        """Mean, standard deviation and two quantiles of σ."""
        log_sigma, weights = self.grid
        sigma = np.exp(log_sigma)
        mean = float(weights @ sigma)
        low, high = self._sigma_at(np.array(levels))
        return mean, float(np.sqrt(weights @ (sigma - mean) ** 2)), float(low), float(high)

    def _sigma_at(self, levels: np.ndarray) -> np.ndarray:
        """Where the distribution function of σ, linear in log σ between the points of the grid, has the levels."""
        log_sigma, weights = self.grid
        upto = np.concatenate([[0.0], np.cumsum((weights[1:] + weights[:-1]) / 2)])
        return np.exp(np.interp(levels * upto[-1], upto, log_sigma))

    def draws(self, rng: np.random.Generator, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Independent draws: θ, of the given shape × dim, and σ.

        The root of the covariance is the symmetric one, which does not depend on the choice of eigenvectors: rounding errors of
        the rows change the draws by as little.
        """
        sigma = self._sigma_at(rng.random(shape))
        means, sds = self.given(sigma)
        return (means + sds * (rng.standard_normal(means.shape) @ self.vectors)) @ self.vectors.T, sigma


def integrate(
    rows: np.ndarray,
    y: np.ndarray,
    prior_scale: float,
    T: np.ndarray,
    count: float | None = None,
    prior: Prior | None = None,
) -> Integrated:
    """The posterior of y = Xθ + σN(0, I), θ ~ N(0, prior_scale² I), and of the coefficients Tθ.

    `count` is the number of observations where `rows` sum up more than they are long; `prior`: of σ.
    """
    values, vectors = linalg.eigh(rows.T @ rows)
    seen = values > 1e-12 * max(float(values[-1]), 1e-300)
    products = np.where(seen, vectors.T @ (rows.T @ y), 0.0)
    values = np.where(seen, values, 0.0)
    apart = max(0.0, float(y @ y) - float(np.sum(products[seen] ** 2 / values[seen])))
    return Integrated(values, vectors, products, apart, float(count or len(y)), prior_scale, T, prior)
