"""Models that are Gaussian once one or two scales are known: their log densities in JAX, and exact expectations by quadrature.

y ~ N((X₀ + τX₁)w, noise²) with w ~ N(0, prior²); τ, σ or both are unknown, with sampled coordinates (log τ, log σ, w). Given the
scales, w is Gaussian, so an expectation is an integral over one or two scales of Gaussian expectations. Input: the matrices and
priors. Output: a target, observables, and their means and variances with the error of the quadrature. gyromc is imported when
a target is built: the race builds these models for other packages too.
"""

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm
from scipy import special

if TYPE_CHECKING:
    import gyromc as gm

__all__ = ["Hierarchy", "Predicted", "autoregression", "eight_schools", "radon"]

NODES = 24  # Gauss-Hermite, for functions of a Gaussian given the scales
POINTS = {"tau": 401, "sigma": 61}  # of the grids
FIRST, REACH = 7.0, 9.0  # half-width of the first grid, in log units, and of the last, in standard deviations
LEFT = {"tau": 14.0, "sigma": 0.0}  # log units below the mean, at least: the density of log τ falls only like τ there


@dataclasses.dataclass(frozen=True, eq=False)
class Predicted:
    """P(new value > cut): its mean is (rows₀ + τ rows₁)w, its standard deviation own + τ·by_tau + σ·by_sigma."""

    rows: tuple[np.ndarray, np.ndarray]
    cut: float
    own: np.ndarray
    by_tau: np.ndarray
    by_sigma: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Hierarchy:
    """The model; `rows` are the linear functions (rows₀ + τ rows₁)w that are reported, by name."""

    design: tuple[np.ndarray, np.ndarray]
    y: np.ndarray
    noise: np.ndarray | None  # known standard deviations; None: σ, unknown
    prior: np.ndarray  # standard deviations of w
    log_priors: dict[str, Callable]  # of "tau" and "sigma", each a function of (scale, library)
    names: tuple[str, ...]
    rows: tuple[np.ndarray, np.ndarray]
    predicted: Predicted

    @property
    def scales(self) -> tuple[str, ...]:
        """The unknown scales, in the order of the coordinates."""
        return tuple(self.log_priors)

    @property
    def dim(self) -> int:
        """Unknown scales and w."""
        return len(self.scales) + len(self.prior)

    def target(self) -> "gm.targets.Target":
        """The posterior of (log scales, w)."""
        import gyromc as gm

        known = np.ones_like(self.y) if self.noise is None else self.noise

        def log_likelihood(theta, datum):
            x0, x1, y, s = datum
            tau, sigma, w = self._split(theta)
            s = sigma if self.noise is None else s
            return -0.5 * ((y - (x0 + tau * x1) @ w) / s) ** 2 - jnp.log(s)

        def log_prior(theta):
            w = self._split(theta)[2]
            found = -0.5 * jnp.sum((w / jnp.asarray(self.prior)) ** 2)
            for k, log_density in enumerate(self.log_priors.values()):
                found = found + log_density(jnp.exp(theta[k]), jnp) + theta[k]  # the density of the logarithm
            return found

        return gm.targets.FiniteSum(log_likelihood, log_prior, (*self.design, self.y, known))

    def _split(self, theta) -> tuple[Any, Any, Any]:
        """(τ, σ, w); a scale that is not in the model is 0 or 1."""
        found = {name: jnp.exp(theta[k]) for k, name in enumerate(self.scales)}
        return found.get("tau", 0.0), found.get("sigma", 1.0), theta[len(self.scales) :]

    def observables(self) -> "dict[str, dict[str, gm.observables.Observable]]":
        """Means, squares and predictive probabilities, by kind and name."""
        import gyromc as gm

        def reported(theta):
            tau, _, w = self._split(theta)
            lines = (jnp.asarray(self.rows[0]) + tau * jnp.asarray(self.rows[1])) @ w
            return jnp.concatenate([jnp.exp(theta[: len(self.scales)]), lines])

        def probabilities(theta):
            p = self.predicted
            tau, sigma, w = self._split(theta)
            mean = (jnp.asarray(p.rows[0]) + tau * jnp.asarray(p.rows[1])) @ w
            return norm.cdf((mean - p.cut) / (jnp.asarray(p.own) + tau * p.by_tau + sigma * p.by_sigma))

        def entry(f, k, power=1):
            return gm.observables.function(lambda theta: f(theta)[k] ** power)

        names = (*self.scales, *self.names)
        return {
            "means": {f"E {name}": entry(reported, k) for k, name in enumerate(names)},
            "squares": {f"E {name}²": entry(reported, k, 2) for k, name in enumerate(names)},
            "predictive": {f"P {k}": entry(probabilities, k) for k in range(len(self.predicted.own))},
        }

    def expectations(self) -> dict[str, tuple[float, float, float]]:
        """Mean, variance and error of the mean for every observable: the error is the gap to a grid with half the points."""
        first, second = self._moments(1, self._given)
        coarse = self._moments(2, self._given)[0]
        names = [name for group in self.observables().values() for name in group]
        return {
            name: (float(a), float(b - a**2), float(abs(a - c)))
            for name, a, b, c in zip(names, first, second, coarse, strict=True)
        }

    def moments_of_all(self, lines: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Mean, variance and error of the mean of (log scales, w, scales, some of `rows`, probabilities), for the race."""
        given = lambda phi: self._all_given(phi, lines)
        first, second = self._moments(1, given)
        return first, second - first**2, np.abs(first - self._moments(2, given)[0])

    def _all_given(self, phi: np.ndarray, lines: slice) -> tuple[np.ndarray, np.ndarray]:
        """First and second moments given the log scales, in the order of `moments_of_all`."""
        _, mean, covariance, _, _ = self._posterior(phi)
        first, second = self._given(phi)
        count = len(self.scales) + len(self.rows[0])
        chosen = [*range(len(self.scales)), *range(len(self.scales), count)[lines], *range(2 * count, len(first))]
        return (
            np.concatenate([phi, mean, first[chosen]]),
            np.concatenate([phi**2, np.diag(covariance) + mean**2, second[chosen]]),
        )

    def _moments(self, every: int, given: Callable) -> tuple[np.ndarray, np.ndarray]:
        """First and second moments over a grid of the scales, or over every second point of each axis, from those given them."""
        center, half = np.zeros(len(self.scales)), np.full(len(self.scales), FIRST)
        for _ in range(6):  # find the bulk first: a narrow one needs a narrow grid before its width is known
            grid = _product([np.linspace(c - h, c + h, 29) for c, h in zip(center, half, strict=True)])
            weights = self._weights(grid)
            center = weights @ grid
            spread = np.sqrt(weights @ (grid - center) ** 2)
            half = np.maximum(REACH * spread, half / 7)
        axes = [
            np.linspace(c - max(REACH * s, LEFT[name]), c + REACH * s, POINTS[name])[::every]
            for name, c, s in zip(self.scales, center, spread, strict=True)
        ]
        grid = _product(axes)
        weights = self._weights(grid)
        keep = weights > 1e-15 * weights.max()
        pairs = np.array([given(phi) for phi in grid[keep]])  # points × (first, second) × observables
        first, second = np.einsum("i,ikj->kj", weights[keep], pairs)
        return first, second

    def _weights(self, grid: np.ndarray) -> np.ndarray:
        """The posterior of the log scales on the grid, summing to one; it vanishes at the ends, so no end needs half a weight."""
        logs = np.array([self._posterior(phi)[0] for phi in grid])
        return special.softmax(logs)

    def _posterior(self, phi: np.ndarray) -> tuple[float, np.ndarray, np.ndarray, float, float]:
        """(log p(y, φ), mean and covariance of w, τ, σ) at the log scales φ."""
        scale = dict(zip(self.scales, np.exp(phi), strict=True))
        tau, sigma = scale.get("tau", 0.0), scale.get("sigma", 1.0)
        s = np.full(len(self.y), sigma) if self.noise is None else self.noise
        X = (self.design[0] + tau * self.design[1]) / s[:, None]
        precision = X.T @ X + np.diag(self.prior**-2.0)
        covariance = np.linalg.inv(precision)
        mean = covariance @ (X.T @ (self.y / s))
        log = -0.5 * np.linalg.slogdet(precision)[1] - np.sum(np.log(s))
        log -= 0.5 * (np.sum((self.y / s) ** 2) - mean @ precision @ mean)
        log += sum(f(scale[name], np) + np.log(scale[name]) for name, f in self.log_priors.items())
        return float(log), mean, covariance, tau, sigma

    def _given(self, phi: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and second moments of all observables given the log scales."""
        _, mean, covariance, tau, sigma = self._posterior(phi)
        nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
        weights = weights / weights.sum()

        def drawn(rows):
            A = rows[0] + tau * rows[1]
            deviation = np.sqrt(np.maximum(np.einsum("ij,jk,ik->i", A, covariance, A), 0))
            return (A @ mean)[:, None] + deviation[:, None] * nodes

        p, known = self.predicted, np.repeat(np.exp(phi)[:, None], NODES, axis=1)
        x = np.concatenate([known, drawn(self.rows)])
        width = (p.own + tau * p.by_tau + sigma * p.by_sigma)[:, None]
        values = np.concatenate([x, x**2, special.ndtr((drawn(p.rows) - p.cut) / width)])
        first = values @ weights
        # E Φ((X - cut)/s) of a normal X has a formula; a rule with few nodes misses the step that s → 0 makes
        A = p.rows[0] + tau * p.rows[1]
        total = np.sqrt(width[:, 0] ** 2 + np.einsum("ij,jk,ik->i", A, covariance, A))
        first[len(first) - len(total) :] = special.ndtr((A @ mean - p.cut) / total)
        return first, values**2 @ weights


def _product(axes: list[np.ndarray]) -> np.ndarray:
    """All combinations of the axes' points, one per row."""
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(axes))


def half_cauchy(scale: float) -> Callable:
    """log density of a half-Cauchy, without its constant."""
    return lambda x, library: -library.log1p((x / scale) ** 2)


def half_normal(scale: float) -> Callable:
    """log density of a half-normal, without its constant."""
    return lambda x, library: -0.5 * (x / scale) ** 2


def eight_schools() -> Hierarchy:
    """Effects of coaching in eight schools (Rubin, 1981), non-centred: w = (μ, z₁ … z₈)."""
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    s = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    common, own = np.eye(9)[:1].repeat(8, axis=0), np.eye(9)[1:]
    nothing = np.zeros((1, 9))
    predicted = Predicted(
        (np.vstack([common, np.eye(9)[:1]]), np.vstack([own, nothing])),
        0.0,
        np.append(s, 0.0),
        np.append(np.zeros(8), 1.0),  # a ninth school: its effect varies by τ around μ
        np.zeros(9),
    )
    names = ("mu", *(f"theta {j}" for j in range(8)))
    rows = np.vstack([np.eye(9)[:1], common]), np.vstack([nothing, own])
    prior = np.array([5.0] + [1.0] * 8)
    return Hierarchy((common, own), y, s, prior, {"tau": half_cauchy(5.0)}, names, rows, predicted)


def radon(counties: int = 20, houses: int = 200, shown: int = 6) -> Hierarchy:
    """Simulated levels of radon, intercepts by county, non-centred: w = (μ, slope, z₁ …); `shown` of them are reported."""
    rng = np.random.default_rng(31)
    county, floor = rng.integers(0, counties, houses), (rng.random(houses) < 0.2).astype(float)
    y = 1.4 + rng.normal(0, 0.35, counties)[county] - 0.7 * floor + rng.normal(0, 0.75, houses)
    zero, one = np.zeros((houses, counties)), np.eye(counties)[county]
    design = np.column_stack([np.ones(houses), floor, zero]), np.column_stack([np.zeros((houses, 2)), one])
    some = np.eye(counties)[:shown]
    alphas = (
        np.column_stack([np.ones(shown), np.zeros((shown, 1 + counties))]),
        np.column_stack([np.zeros((shown, 2)), some]),
    )
    rows = np.vstack([np.eye(2 + counties)[:2], alphas[0]]), np.vstack([np.zeros((2, 2 + counties)), alphas[1]])
    predicted = Predicted(alphas, 2.0, np.zeros(shown), np.zeros(shown), np.ones(shown))
    priors = {"tau": half_normal(1.0), "sigma": half_normal(1.0)}
    names = ("mu", "slope", *(f"alpha {j}" for j in range(shown)))
    prior = np.array([10.0, 10.0] + [1.0] * counties)
    return Hierarchy(design, y, None, prior, priors, names, rows, predicted)


def autoregression(lags: int = 5, count: int = 200) -> Hierarchy:
    """A simulated series on its last five values: w = (α, β₁ … β₅)."""
    rng = np.random.default_rng(32)
    series = np.zeros(count)
    for t in range(lags, count):
        series[t] = 0.1 + series[t - lags : t][::-1] @ [0.6, -0.2, 0.1, 0.05, 0.1] + rng.normal(0, 0.5)
    past = np.stack([series[lags - k - 1 : count - k - 1] for k in range(lags)], axis=1)
    X = np.column_stack([np.ones(count - lags), past])
    zero, few = np.zeros_like(X), X[::20]
    nothing = np.zeros(len(few))
    predicted = Predicted((few, np.zeros_like(few)), 0.2, nothing, nothing, np.ones(len(few)))
    rows = np.eye(lags + 1), np.zeros((lags + 1, lags + 1))
    names = ("alpha", *(f"beta {k + 1}" for k in range(lags)))
    prior = np.full(lags + 1, 10.0)
    return Hierarchy((X, zero), series[lags:], None, prior, {"sigma": half_cauchy(2.5)}, names, rows, predicted)
