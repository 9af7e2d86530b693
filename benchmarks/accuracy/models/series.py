"""Time series and Gaussian processes: stochastic volatility, GARCH(1, 1), Gaussian process with its noise, and with counts."""

import jax
import jax.numpy as jnp
import numpy as np

from accuracy.models.record import Posterior, half_normal, normal

__all__ = ["garch", "gaussian_process", "gaussian_process_counts", "volatility"]

JITTER = 1e-8  # added to the diagonal of kernels, so that the Cholesky factor of a smooth one exists
EVERY = 10  # of the states of a series is an observable


def volatility() -> Posterior:
    """200 returns y_t ~ N(0, e^{h_t}); h is an autoregression around μ, non-centred."""
    rng, T = np.random.default_rng(71), 200
    h = np.zeros(T)
    h[0] = -1.0 + 0.25 / np.sqrt(1 - 0.95**2) * rng.standard_normal()
    for t in range(1, T):
        h[t] = -1.0 + 0.95 * (h[t - 1] + 1.0) + 0.25 * rng.standard_normal()
    y = np.exp(h / 2) * rng.standard_normal(T)

    def states(mu, atanh_phi, log_sigma, z):
        phi, sigma = jnp.tanh(atanh_phi), jnp.exp(log_sigma)

        def step(deviation, noise):
            deviation = phi * deviation + sigma * noise
            return deviation, deviation

        # stationary at first: 1/√(1 - φ²) = cosh(atanh φ)
        first = sigma * z[0] * jnp.cosh(atanh_phi)
        rest = jax.lax.scan(step, first, z[1:])[1]
        return mu + jnp.concatenate([first[None], rest])

    def density(mu, atanh_phi, log_sigma, z):
        h = states(mu, atanh_phi, log_sigma, z)
        prior = normal(mu, 2.0) + normal(atanh_phi - 1.5, 0.5) + normal(log_sigma + 1.2, 0.6) + normal(z)
        return prior - 0.5 * jnp.sum(h + y**2 * jnp.exp(-h))

    def derived(mu, atanh_phi, log_sigma, z):
        h = states(mu, atanh_phi, log_sigma, z)
        return {"phi": jnp.tanh(atanh_phi), "sigma": jnp.exp(log_sigma), "h": h[::EVERY], "sd": jnp.exp(h[::EVERY] / 2)}

    blocks = {"mu": (), "atanh_phi": (), "log_sigma": (), "z": (T,)}
    start = np.concatenate([[-1.0, 1.5, -1.2], np.zeros(T)])
    return Posterior("volatility", "other", f"stochastic volatility, T = {T}", blocks, density, derived, start)


def garch() -> Posterior:
    """500 returns with variance s_t = ω + α r² + β s; p = α + β and α/p are uniform on (0, 1)."""
    rng, T = np.random.default_rng(72), 500
    y, s = np.zeros(T), 1.0
    for t in range(T):
        y[t] = 0.05 + np.sqrt(s) * rng.standard_normal()
        s = 0.1 + 0.2 * (y[t] - 0.05) ** 2 + 0.7 * s
    first = float(y.var())

    def parts(log_omega, logit_p, logit_share):
        p, share = jax.nn.sigmoid(logit_p), jax.nn.sigmoid(logit_share)
        return jnp.exp(log_omega), p * share, p * (1 - share)

    def variances(mu, log_omega, logit_p, logit_share):
        omega, alpha, beta = parts(log_omega, logit_p, logit_share)

        def step(s, square):
            return omega + alpha * square + beta * s, s

        return jax.lax.scan(step, first + 0.0 * mu, (y - mu) ** 2)

    def density(mu, log_omega, logit_p, logit_share):
        _, s = variances(mu, log_omega, logit_p, logit_share)
        jacobian = sum(jax.nn.log_sigmoid(t) + jax.nn.log_sigmoid(-t) for t in (logit_p, logit_share))
        prior = normal(mu, 1.0) + normal(log_omega + 2.0, 1.0) + jacobian
        return prior - 0.5 * jnp.sum((y - mu) ** 2 / s + jnp.log(s))

    def derived(mu, log_omega, logit_p, logit_share):
        omega, alpha, beta = parts(log_omega, logit_p, logit_share)
        next_variance, _ = variances(mu, log_omega, logit_p, logit_share)
        return {"omega": omega, "alpha": alpha, "beta": beta, "next_sd": jnp.sqrt(next_variance)}

    blocks = {"mu": (), "log_omega": (), "logit_p": (), "logit_share": ()}
    return Posterior("garch", "other", f"GARCH(1, 1), T = {T}", blocks, density, derived)


def _kernel(x, other, log_length, log_amplitude):
    """The squared exponential kernel between two sets of points on the line."""
    distance = (x[:, None] - other) / jnp.exp(log_length)
    return jnp.exp(2 * log_amplitude - 0.5 * distance**2)


def gaussian_process() -> Posterior:
    """50 noisy values of a function, the function integrated out: the hyperparameters remain."""
    rng, n = np.random.default_rng(73), 50
    x = np.sort(rng.uniform(0.0, 10.0, n))
    y = np.sin(x) + 0.5 * np.sin(2.3 * x) + 0.3 * rng.standard_normal(n)
    points = np.array([0.5, 2.5, 5.0, 7.5, 9.5])

    def factor(log_length, log_amplitude, log_noise):
        K = _kernel(x, x, log_length, log_amplitude)
        return jnp.linalg.cholesky(K + (jnp.exp(2 * log_noise) + JITTER) * jnp.eye(n))

    def density(log_length, log_amplitude, log_noise):
        L = factor(log_length, log_amplitude, log_noise)
        white = jax.scipy.linalg.solve_triangular(L, y, lower=True)
        prior = normal(log_length - 0.5, 0.7) + half_normal(log_amplitude, 2.0) + half_normal(log_noise)
        return prior + normal(white) - jnp.sum(jnp.log(jnp.diag(L)))

    def derived(log_length, log_amplitude, log_noise):
        L = factor(log_length, log_amplitude, log_noise)
        weights = jax.scipy.linalg.cho_solve((L, True), y)
        values = {"length": log_length, "amplitude": log_amplitude, "noise": log_noise}
        found = {name: jnp.exp(value) for name, value in values.items()}
        return found | {"f": _kernel(points, x, log_length, log_amplitude) @ weights}

    blocks = {"log_length": (), "log_amplitude": (), "log_noise": ()}
    return Posterior(
        "gaussian-process", "other", f"Gaussian process, n = {n}, hyperparameters", blocks, density, derived
    )


def gaussian_process_counts() -> Posterior:
    """50 counts with a Gaussian process as the logarithm of their rate: f = μ + Lz, z standard normal."""
    rng, n = np.random.default_rng(74), 50
    x = np.linspace(0.0, 10.0, n)
    y = rng.poisson(np.exp(1.0 + 0.8 * np.sin(x))).astype(float)

    def log_rate(mu, log_length, log_amplitude, z):
        # a thousandth of the variance as noise: the factor stays exact in float32 too
        K = _kernel(x, x, log_length, log_amplitude) + 1e-3 * jnp.exp(2 * log_amplitude) * jnp.eye(n)
        return mu + jnp.linalg.cholesky(K) @ z

    def density(mu, log_length, log_amplitude, z):
        score = log_rate(mu, log_length, log_amplitude, z)
        prior = normal(mu, 2.0) + normal(log_length - 0.5, 0.7) + half_normal(log_amplitude) + normal(z)
        return prior + jnp.sum(y * score - jnp.exp(score))

    def derived(mu, log_length, log_amplitude, z):
        rate = jnp.exp(log_rate(mu, log_length, log_amplitude, z)[::5])
        return {"length": jnp.exp(log_length), "amplitude": jnp.exp(log_amplitude), "rate": rate}

    blocks = {"mu": (), "log_length": (), "log_amplitude": (), "z": (n,)}
    return Posterior("gp-counts", "other", f"latent Gaussian process with {n} counts", blocks, density, derived)
