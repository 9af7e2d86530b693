"""Models with latent structure: a mixture of three normals, factor analysis, and a small network."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from accuracy.models.record import Posterior, half_normal, normal

__all__ = ["factors", "mixture", "network"]


def mixture() -> Posterior:
    """150 values from three normals; the means are ordered, as the first one and the logarithms of the gaps."""
    rng, n = np.random.default_rng(91), 150
    part = rng.choice(3, n, p=[0.3, 0.4, 0.3])
    y = np.array([-3.0, 0.0, 3.5])[part] + np.array([0.7, 0.8, 1.0])[part] * rng.standard_normal(n)

    def means(first, log_gaps):
        return first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.exp(log_gaps))])

    def density(first, log_gaps, log_sd, logits):
        log_weights = jax.nn.log_softmax(jnp.append(logits, 0.0))
        mu = means(first, log_gaps)
        terms = log_weights - log_sd - 0.5 * ((y[:, None] - mu) / jnp.exp(log_sd)) ** 2
        # means are N(0, 5²) a priori; the Jacobian of their transform is the product of the gaps
        prior = normal(mu, 5.0) + jnp.sum(log_gaps) + normal(log_sd, 0.5) + normal(logits)
        return prior + jnp.sum(logsumexp(terms, axis=1))

    def derived(first, log_gaps, log_sd, logits):
        weights, mu, sd = jax.nn.softmax(jnp.append(logits, 0.0)), means(first, log_gaps), jnp.exp(log_sd)
        above = jnp.sum(weights * jax.scipy.stats.norm.cdf((mu - 1.5) / sd))
        return {"mean": mu[1:], "sd": sd, "weight": weights, "p_above": above}

    blocks = {"first": (), "log_gaps": (2,), "log_sd": (3,), "logits": (2,)}
    start = np.array([-2.0, 0.7, 0.7, 0.0, 0.0, 0.0, 0.0, 0.0])
    return Posterior("mixture", "other", f"mixture of three normals, {n} values", blocks, density, derived, start)


def factors() -> Posterior:
    """Two factors behind six columns of 100 rows, integrated out; loadings are lower triangular with a positive diagonal."""
    rng, (n, p) = np.random.default_rng(92), (100, 6)
    truth = np.array([[1.0, 0.0], [0.5, 0.9], [0.8, -0.3], [0.2, 0.7], [-0.6, 0.4], [0.4, 0.5]])
    y = rng.standard_normal((n, 2)) @ truth.T + 0.6 * rng.standard_normal((n, p))
    squares = y.T @ y
    at = np.array([(i, j) for i in range(p) for j in range(2) if i > j])

    def loadings(log_diagonal, below):
        matrix = jnp.zeros((p, 2)).at[at[:, 0], at[:, 1]].set(below)
        return matrix.at[np.arange(2), np.arange(2)].set(jnp.exp(log_diagonal))

    def covariance(log_diagonal, below, log_noise):
        load = loadings(log_diagonal, below)
        return load @ load.T + jnp.diag(jnp.exp(2 * log_noise))

    def density(log_diagonal, below, log_noise):
        L = jnp.linalg.cholesky(covariance(log_diagonal, below, log_noise))
        inside = jax.scipy.linalg.cho_solve((L, True), squares)
        prior = half_normal(log_diagonal, 1.5) + normal(below, 1.5) + half_normal(log_noise)
        return prior - 0.5 * jnp.trace(inside) - n * jnp.sum(jnp.log(jnp.diag(L)))

    def derived(log_diagonal, below, log_noise):
        S = covariance(log_diagonal, below, log_noise)
        noise = jnp.exp(log_noise)
        shared = 1 - noise**2 / jnp.diag(S)
        return {"diagonal": jnp.exp(log_diagonal), "noise": noise, "shared": shared, "covariance": S[0, 1:]}

    blocks = {"log_diagonal": (2,), "below": (len(at),), "log_noise": (p,)}
    return Posterior("factors", "other", f"factor analysis, {n} × {p}, two factors", blocks, density, derived)


def network(hidden: int = 5) -> Posterior:
    """A regression of 60 values on one column by a network with five tanh units.

    Units can be exchanged and their signs flipped, so only predictions and the noise are observables.
    """
    rng, n = np.random.default_rng(93), 60
    x = rng.uniform(-2.0, 2.0, n)
    y = np.sin(2.0 * x) + 0.3 * rng.standard_normal(n)
    points = np.linspace(-2.5, 2.5, 7)

    def output(inputs, weight, bias, out, offset):
        return jnp.tanh(inputs[:, None] * weight + bias) @ out + offset

    def density(weight, bias, out, offset, log_noise):
        residual = (y - output(x, weight, bias, out, offset)) / jnp.exp(log_noise)
        prior = normal(weight, 2.0) + normal(bias, 2.0) + normal(out) + normal(offset) + normal(log_noise + 1.0, 0.5)
        return prior + normal(residual) - n * log_noise

    def derived(weight, bias, out, offset, log_noise):
        return {"noise": jnp.exp(log_noise), "f": output(points, weight, bias, out, offset)}

    blocks = {"weight": (hidden,), "bias": (hidden,), "out": (hidden,), "offset": (), "log_noise": ()}
    start = 0.5 * rng.standard_normal(3 * hidden + 2)
    about = f"network of {hidden} tanh units, {n} values, many modes"
    return Posterior("network", "other", about, blocks, density, derived, start, with_parameters=False)
