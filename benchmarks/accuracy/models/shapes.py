"""Densities with a known shape, whose expectations are exact: Gaussian, banana, product, cosine, Student t, and two funnels."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from accuracy.models.record import Moments, Posterior, normal

__all__ = ["banana", "cosine", "funnel", "gaussian", "gaussian_of", "mild_funnel", "product", "student"]

NODES = 120  # Gauss-Hermite, for smooth functions of a normal
FINE = 1601  # points of an axis of a grid: the trapezoidal rule is exact to rounding there


def _weighted(values: np.ndarray, weights: np.ndarray, method: str) -> Moments:
    """Moments from observables at the points of a quadrature, points × observables."""
    weights = weights / weights.sum()
    mean = weights @ values
    return Moments(mean, np.sqrt(weights @ (values - mean) ** 2), np.zeros(len(mean)), method)


def _known(mean, variance, method: str = "analytic") -> Moments:
    mean, variance = np.asarray(mean, float), np.asarray(variance, float)
    return Moments(mean, np.sqrt(variance), np.zeros(len(mean)), method)


def _hermite() -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(NODES)
    return nodes, weights / weights.sum()


def _values(posterior: Posterior, theta: np.ndarray) -> np.ndarray:
    with jax.enable_x64(True):
        return np.asarray(jax.vmap(posterior.observables)(jnp.asarray(theta)))


def _on_grid(make: Callable[[], Posterior], half_width: float) -> Callable[[], Moments]:
    """Quadrature over a square for two parameters."""

    def exact() -> Moments:
        posterior = make()
        axis = np.linspace(-half_width, half_width, FINE)
        theta = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
        with jax.enable_x64(True):
            logs = np.asarray(jax.vmap(posterior.log_density)(jnp.asarray(theta)))
        return _weighted(_values(posterior, theta), np.exp(logs - logs.max()), "quadrature on a grid")

    return exact


def gaussian_of(condition: float, d: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Precision, mean, axes and six test rows of a Gaussian with curvatures from 1/κ to 1 in directions no coordinate shows.

    The mean lies one standard deviation off zero along every axis, so that no answer is right by symmetry alone.
    """
    rng = np.random.default_rng([41, d])
    curvature = np.geomspace(1 / condition, 1.0, d)
    axes = np.linalg.qr(rng.standard_normal((d, d)))[0]
    precision = (axes * curvature) @ axes.T
    rows = rng.standard_normal((6, d)) @ (axes * np.sqrt(curvature)).T / math.sqrt(d) * 2
    mean = axes @ (curvature**-0.5 * rng.choice([-1.0, 1.0], d))
    return (precision + precision.T) / 2, mean, axes, rows


def gaussian(condition: float = 50.0, d: int = 14) -> Posterior:
    """A Gaussian; also the squares of its coordinates and six predictive probabilities."""
    precision, mean, _, rows = gaussian_of(condition, d)

    def density(x):
        away = x - mean
        return -0.5 * away @ jnp.asarray(precision) @ away

    def derived(x):
        return {"square": x**2, "p": jax.nn.sigmoid(jnp.asarray(rows) @ x)}

    def exact() -> Moments:
        covariance = np.linalg.inv(precision)
        variance = np.diag(covariance)
        nodes, weights = _hermite()
        scores = (rows @ mean)[:, None] + np.sqrt(np.einsum("ij,jk,ik->i", rows, covariance, rows))[:, None] * nodes
        p = 1 / (1 + np.exp(-scores))
        means = [mean, mean**2 + variance, p @ weights]
        variances = [variance, 2 * variance**2 + 4 * mean**2 * variance, p**2 @ weights - (p @ weights) ** 2]
        return _known(np.concatenate(means), np.concatenate(variances))

    name, about = f"gaussian-{condition:g}-{d}", f"Gaussian, condition number {condition:g}"
    return Posterior(name, "other", about, {"x": (d,)}, density, derived, exact=exact)


def banana() -> Posterior:
    """x ~ N(0, 1) and y ~ N(x²/2, ½²)."""

    def density(x, y):
        return normal(x) + normal(y - 0.5 * x**2, 0.5)

    def derived(x, y):
        return {"x²": x**2, "y²": y**2, "xy": x * y, "p": jax.nn.sigmoid(y - x)}

    return Posterior(
        "banana", "other", "banana", {"x": (), "y": ()}, density, derived, exact=_on_grid(lambda: banana(), 30.0)
    )


def product() -> Posterior:
    """One observation 1 ~ N(ab, ½²) with a, b ~ N(0, 1): two modes, (a, b) and (-a, -b)."""

    def density(a, b):
        return normal(a) + normal(b) + normal(1.0 - a * b, 0.5)

    def derived(a, b):
        return {"ab": a * b, "a²": a**2, "|a|": jnp.abs(a)}

    exact = _on_grid(lambda: product(), 9.0)
    return Posterior("product", "other", "1 ~ N(ab, ½²), two modes", {"a": (), "b": ()}, density, derived, exact=exact)


def cosine(d: int = 3, beta: float = 1.2) -> Posterior:
    """The paper's potential ½|θ|² + β Σ cos θ_i: two modes in every coordinate."""

    def density(x):
        return normal(x) - beta * jnp.sum(jnp.cos(x))

    def derived(x):
        return {"square": x**2, "p": jax.nn.sigmoid(2 * x)}

    def exact() -> Moments:
        t = np.linspace(-12, 12, 20_001)
        values = np.stack([t, t**2, 1 / (1 + np.exp(-2 * t))], axis=1)
        one = _weighted(values, np.exp(-0.5 * t**2 - beta * np.cos(t)), "quadrature on a line")
        return Moments(np.repeat(one.mean, d), np.repeat(one.sd, d), np.repeat(one.error, d), one.method)

    return Posterior("cosine", "other", f"½|θ|² + {beta} Σ cos θ_i", {"x": (d,)}, density, derived, exact=exact)


def student(d: int = 5, degrees: float = 4.0) -> Posterior:
    """A Student t with four degrees of freedom, correlated, off zero: its fourth moments are infinite."""
    rng = np.random.default_rng(81)
    center, shape = rng.standard_normal(d), 0.5 * np.eye(d) + 0.5
    root = np.linalg.cholesky(shape)
    inverse = np.linalg.inv(root)

    def density(x):
        white = jnp.asarray(inverse) @ (x - center)
        return -0.5 * (degrees + d) * jnp.log1p(white @ white / degrees)

    def derived(x):
        return {"distance": jnp.abs(x - center), "p": jax.nn.sigmoid(x)}

    def exact() -> Moments:
        from scipy import stats

        # the diagonal of `shape` is 1: every coordinate is a standard t around its center; u in (0, 1) becomes a quantile
        u = (np.arange(2_000_000) + 0.5) / 2_000_000
        t = stats.t(degrees).ppf(u)
        p = 1 / (1 + np.exp(-(center[:, None] + t)))
        variance = degrees / (degrees - 2)
        distance = 2 * math.sqrt(degrees) / (degrees - 1) / math.exp(special.betaln(degrees / 2, 0.5))
        means = [center, np.full(d, distance), p.mean(axis=1)]
        variances = [np.full(d, variance), np.full(d, variance - distance**2), p.var(axis=1)]
        return _known(np.concatenate(means), np.concatenate(variances))

    about = f"Student t, {degrees:g} degrees of freedom"
    return Posterior("student", "other", about, {"x": (d,)}, density, derived, exact=exact)


def mild_funnel() -> Posterior:
    """v ~ N(0, 1), and x, y ~ N(0, e^v) given v."""

    def density(v, x, y):
        return -0.5 * v**2 - 0.5 * (x**2 + y**2) * jnp.exp(-v) - v

    def derived(v, x, y):
        return {"x²": x**2, "y²": y**2, "e^v": jnp.exp(v)}

    def exact() -> Moments:
        # E e^{kv} = e^{k²/2}; E x² = E e^v, E x⁴ = 3 E e^{2v}
        first, second = math.exp(0.5), math.exp(2.0)
        square = 3 * second - first**2
        means = [0.0, 0.0, 0.0, first, first, first]
        return _known(means, [1.0, first, first, square, square, second - first**2])

    blocks = {"v": (), "x": (), "y": ()}
    return Posterior("mild-funnel", "hard", "mild funnel, centred", blocks, density, derived, exact=exact)


def funnel(d: int = 10) -> Posterior:
    """Neal's funnel: v ~ N(0, 3²), and the other coordinates N(0, e^v) given v."""

    def density(v, x):
        return normal(v, 3.0) - 0.5 * jnp.exp(-v) * jnp.sum(x**2) - 0.5 * (d - 1) * v

    def derived(v, x):
        return {"p": jax.nn.sigmoid(v), "log_x": jnp.log(jnp.mean(x**2))}

    def exact() -> Moments:
        nodes, weights = _hermite()
        p = 1 / (1 + np.exp(-3.0 * nodes))
        # log mean x² = v + log(χ²/(d - 1)), independent of each other
        half = 0.5 * (d - 1)
        log_mean, log_variance = special.digamma(half) - math.log(half), float(special.polygamma(1, half))
        means = [0.0] * d + [weights @ p, log_mean]
        variances = [9.0, *[math.exp(4.5)] * (d - 1), weights @ p**2 - (weights @ p) ** 2, 9.0 + log_variance]
        return _known(means, variances)

    return Posterior(
        "funnel", "hard", "Neal's funnel, centred", {"v": (), "x": (d - 1,)}, density, derived, exact=exact
    )
