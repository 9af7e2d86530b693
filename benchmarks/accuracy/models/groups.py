"""Hierarchies: group effects with unknown spread, all non-centred (effects are a scale times standard normal z)."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln

from accuracy import hierarchies
from accuracy.models.record import Moments, Posterior, half_cauchy, half_normal, logistic, normal

__all__ = ["ar5", "car", "crossed", "eight_schools", "glmm", "item_response", "negative_binomial", "radon", "slopes"]

SHOWN = 10  # groups or people whose effects are observables beside θ


def eight_schools() -> Posterior:
    """Effects of coaching in eight schools (Rubin, 1981)."""
    model = hierarchies.eight_schools()
    y, s = model.y, model.noise

    def density(log_tau, mu, z):
        residual = (y - mu - jnp.exp(log_tau) * z) / s
        return half_cauchy(log_tau, 5.0) + normal(mu, 5.0) + normal(z) + normal(residual)

    def derived(log_tau, mu, z):
        tau = jnp.exp(log_tau)
        effects = mu + tau * z
        helped = [jax.scipy.stats.norm.cdf(effects / s), jax.scipy.stats.norm.cdf(mu / tau)[None]]
        return {"tau": tau, "effect": effects, "p_gain": jnp.concatenate(helped)}

    blocks = {"log_tau": (), "mu": (), "z": (8,)}
    return Posterior(
        "eight-schools",
        "hierarchy",
        "eight schools",
        blocks,
        density,
        derived,
        exact=_quadrature(model, rows=slice(1, None)),
    )


def radon(counties: int = 85, houses: int = 919) -> Posterior:
    """Simulated levels of radon, intercepts by county."""
    model = hierarchies.radon(counties, houses, shown=counties)
    y, floor, county = model.y, model.design[0][:, 1], model.design[1][:, 2:].argmax(axis=1)

    def density(log_tau, log_sigma, mu, slope, z):
        mean = mu + slope * floor + (jnp.exp(log_tau) * z)[county]
        prior = half_normal(log_tau) + half_normal(log_sigma) + normal(mu, 10.0) + normal(slope, 10.0) + normal(z)
        return prior + normal((y - mean) / jnp.exp(log_sigma)) - houses * log_sigma

    def derived(log_tau, log_sigma, mu, slope, z):
        tau, sigma = jnp.exp(log_tau), jnp.exp(log_sigma)
        alpha = mu + tau * z
        return {"tau": tau, "sigma": sigma, "alpha": alpha, "p_high": jax.scipy.stats.norm.cdf((alpha - 2.0) / sigma)}

    blocks = {"log_tau": (), "log_sigma": (), "mu": (), "slope": (), "z": (counties,)}
    about = f"hierarchical linear regression, {houses} rows, {counties} counties"
    return Posterior(
        "radon", "hierarchy", about, blocks, density, derived, exact=_quadrature(model, rows=slice(2, None))
    )


def ar5() -> Posterior:
    """A simulated series on its last five values."""
    model = hierarchies.autoregression()
    X, y, rows = model.design[0], model.y, model.predicted.rows[0]

    def density(log_sigma, beta):
        residual = (y - jnp.asarray(X) @ beta) / jnp.exp(log_sigma)
        return half_cauchy(log_sigma, 2.5) + normal(beta, 10.0) + normal(residual) - len(y) * log_sigma

    def derived(log_sigma, beta):
        sigma = jnp.exp(log_sigma)
        return {"sigma": sigma, "p_high": jax.scipy.stats.norm.cdf((jnp.asarray(rows) @ beta - 0.2) / sigma)}

    blocks = {"log_sigma": (), "beta": (X.shape[1],)}
    about = f"autoregression of order 5, {len(y)} rows"
    return Posterior("ar5", "regression", about, blocks, density, derived, exact=_quadrature(model, rows=slice(0, 0)))


def _quadrature(model: hierarchies.Hierarchy, rows: slice):
    """The moments of (log scales, w, scales, some of the model's linear functions, its probabilities)."""

    def exact() -> Moments:
        mean, variance, error = model.moments_of_all(rows)
        return Moments(mean, np.sqrt(variance), error, "quadrature over the scales, Gaussian given them")

    return exact


def crossed() -> Posterior:
    """Binary answers of 400 rows with effects of 20 people and of 15 items."""
    rng, (people, items, n) = np.random.default_rng(61), (20, 15, 400)
    person, item, x = rng.integers(people, size=n), rng.integers(items, size=n), rng.standard_normal(n)
    a, b = 0.8 * rng.standard_normal(people), 0.5 * rng.standard_normal(items)
    y = (rng.random(n) < 1 / (1 + np.exp(-(0.3 + 0.8 * x + a[person] + b[item])))).astype(float)

    def density(log_person, log_item, beta, z_person, z_item):
        effects = (jnp.exp(log_person) * z_person)[person] + (jnp.exp(log_item) * z_item)[item]
        prior = half_normal(log_person) + half_normal(log_item) + normal(beta, 2.5) + normal(z_person) + normal(z_item)
        return prior + logistic(y, beta[0] + beta[1] * x + effects)

    def derived(log_person, log_item, beta, z_person, z_item):
        scales = jnp.exp(log_person), jnp.exp(log_item)
        return {
            "sd_person": scales[0],
            "sd_item": scales[1],
            "person": scales[0] * z_person,
            "item": scales[1] * z_item,
            "p": jax.nn.sigmoid(beta[0] + scales[0] * z_person[:5] + scales[1] * z_item[:5]),
        }

    blocks = {"log_person": (), "log_item": (), "beta": (2,), "z_person": (people,), "z_item": (items,)}
    about = f"crossed logistic, {n} rows, {people} people, {items} items"
    return Posterior("crossed", "hierarchy", about, blocks, density, derived)


def slopes() -> Posterior:
    """Intercepts and slopes that vary together over 30 groups of 10 rows; their covariance by its Cholesky factor."""
    rng, (groups, each) = np.random.default_rng(62), (30, 10)
    group, x = np.repeat(np.arange(groups), each), rng.standard_normal(groups * each)
    effects = rng.multivariate_normal([1.0, -0.5], [[0.49, -0.14], [-0.14, 0.16]], groups)
    y = effects[group, 0] + effects[group, 1] * x + 0.6 * rng.standard_normal(len(x))

    def deviations(log_tau, atanh_rho, z):
        rho = jnp.tanh(atanh_rho)
        # the factor of the correlation matrix is [[1, 0], [ρ, √(1 - ρ²)]]
        second = rho * z[:, 0] + z[:, 1] / jnp.cosh(atanh_rho)
        return jnp.stack([jnp.exp(log_tau[0]) * z[:, 0], jnp.exp(log_tau[1]) * second], axis=1)

    def density(log_sigma, log_tau, atanh_rho, beta, z):
        effects = beta + deviations(log_tau, atanh_rho, z)
        residual = (y - effects[group, 0] - effects[group, 1] * x) / jnp.exp(log_sigma)
        # ρ has an LKJ(2) prior, p(ρ) ∝ 1 - ρ², and dρ/d atanh ρ = 1 - ρ²
        correlation = -4 * jnp.log(jnp.cosh(atanh_rho))
        prior = half_normal(log_sigma) + half_normal(log_tau) + correlation + normal(beta, 5.0) + normal(z)
        return prior + normal(residual) - len(y) * log_sigma

    def derived(log_sigma, log_tau, atanh_rho, beta, z):
        return {
            "sigma": jnp.exp(log_sigma),
            "tau": jnp.exp(log_tau),
            "rho": jnp.tanh(atanh_rho),
            "effect": (beta + deviations(log_tau, atanh_rho, z))[:SHOWN],
        }

    blocks = {"log_sigma": (), "log_tau": (2,), "atanh_rho": (), "beta": (2,), "z": (groups, 2)}
    about = f"varying intercepts and slopes, {groups} groups of {each} rows"
    return Posterior("slopes", "hierarchy", about, blocks, density, derived)


def item_response() -> Posterior:
    """2PL: 100 people answer 20 items; log discriminations and difficulties have unknown spread."""
    rng, (people, items) = np.random.default_rng(63), (100, 20)
    ability, steep, hard = (
        rng.standard_normal(people),
        np.exp(0.3 * rng.standard_normal(items)),
        rng.standard_normal(items),
    )
    y = (rng.random((people, items)) < 1 / (1 + np.exp(-steep * (ability[:, None] - hard)))).astype(float)

    def density(log_steep, log_hard, ability, z_steep, z_hard):
        a, b = jnp.exp(jnp.exp(log_steep) * z_steep), jnp.exp(log_hard) * z_hard
        prior = half_normal(log_steep) + half_normal(log_hard, 2.0) + normal(ability) + normal(z_steep) + normal(z_hard)
        return prior + logistic(y, a * (ability[:, None] - b))

    def derived(log_steep, log_hard, ability, z_steep, z_hard):
        a, b = jnp.exp(jnp.exp(log_steep) * z_steep), jnp.exp(log_hard) * z_hard
        p = jax.nn.sigmoid(a[:SHOWN] * (ability[:SHOWN] - b[:SHOWN]))
        return {"sd_steep": jnp.exp(log_steep), "sd_hard": jnp.exp(log_hard), "steep": a, "hard": b, "p": p}

    blocks = {"log_steep": (), "log_hard": (), "ability": (people,), "z_steep": (items,), "z_hard": (items,)}
    about = f"2PL item response, {people} people, {items} items"
    return Posterior("item-response", "hierarchy", about, blocks, density, derived)


def negative_binomial() -> Posterior:
    """Overdispersed counts in 30 groups of 8 rows, two columns; φ is the size of the negative binomial."""
    rng, (groups, each) = np.random.default_rng(64), (30, 8)
    group = np.repeat(np.arange(groups), each)
    X = np.column_stack([np.ones(len(group)), rng.standard_normal((len(group), 2))])
    mean = np.exp(X @ [1.0, 0.4, -0.3] + 0.5 * rng.standard_normal(groups)[group])
    y = rng.poisson(mean * rng.gamma(3.0, 1 / 3.0, len(group))).astype(float)

    def density(log_tau, log_phi, beta, z):
        score = jnp.asarray(X) @ beta + (jnp.exp(log_tau) * z)[group]
        phi = jnp.exp(log_phi)
        total = jnp.logaddexp(score, log_phi)
        terms = gammaln(y + phi) - gammaln(phi) + phi * (log_phi - total) + y * (score - total)
        return half_normal(log_tau) + normal(log_phi - 1.0) + normal(beta, 2.5) + normal(z) + jnp.sum(terms)

    def derived(log_tau, log_phi, beta, z):
        effects = jnp.exp(log_tau) * z
        return {"tau": jnp.exp(log_tau), "phi": jnp.exp(log_phi), "rate": jnp.exp(beta[0] + effects[:SHOWN])}

    blocks = {"log_tau": (), "log_phi": (), "beta": (3,), "z": (groups,)}
    about = f"negative-binomial GLMM, {groups} groups of {each} rows"
    return Posterior("negative-binomial", "hierarchy", about, blocks, density, derived)


def glmm() -> Posterior:
    """Binary answers in 100 groups of 4 rows."""
    rng, (groups, each) = np.random.default_rng(65), (100, 4)
    group, x = np.repeat(np.arange(groups), each), rng.standard_normal(groups * each)
    score = 0.4 + 0.7 * x + 1.0 * rng.standard_normal(groups)[group]
    y = (rng.random(len(x)) < 1 / (1 + np.exp(-score))).astype(float)

    def density(log_tau, beta, z):
        effects = (jnp.exp(log_tau) * z)[group]
        return half_normal(log_tau) + normal(beta, 2.5) + normal(z) + logistic(y, beta[0] + beta[1] * x + effects)

    def derived(log_tau, beta, z):
        effects = jnp.exp(log_tau) * z
        return {"tau": jnp.exp(log_tau), "effect": effects, "p": jax.nn.sigmoid(beta[0] + effects[:SHOWN])}

    blocks = {"log_tau": (), "beta": (2,), "z": (groups,)}
    about = f"logistic GLMM, {groups} groups of {each} rows"
    return Posterior("glmm", "hierarchy", about, blocks, density, derived)


def car() -> Posterior:
    """Counts in 50 areas on a 10 × 5 map, with a proper conditional autoregression φ ~ N(0, τ²(D - ρW)⁻¹).

    W holds the neighbours, D their numbers. With D^(-½)WD^(-½) = VΛVᵀ, φ = τ D^(-½) V (1 - ρΛ)^(-½) z has this law.
    """
    rng, (wide, high) = np.random.default_rng(66), (10, 5)
    at = np.stack(np.meshgrid(np.arange(wide), np.arange(high)), axis=-1).reshape(-1, 2)
    W = (np.abs(at[:, None] - at).sum(axis=-1) == 1).astype(float)
    root = W.sum(axis=1) ** -0.5
    eigenvalues, V = np.linalg.eigh(root[:, None] * W * root)
    basis, areas = root[:, None] * V, len(at)
    x, expected = rng.standard_normal(areas), rng.uniform(2.0, 12.0, areas)
    spatial = 0.9 * basis @ ((1 - 0.9 * eigenvalues) ** -0.5 * rng.standard_normal(areas))
    y = rng.poisson(expected * np.exp(0.1 + 0.3 * x + spatial)).astype(float)

    def field(log_tau, logit_rho, z):
        # 1 - ρλ with ρ = sigmoid, written so that it stays positive where ρ rounds to 1
        rest = jax.nn.sigmoid(-logit_rho) + jax.nn.sigmoid(logit_rho) * np.maximum(1 - eigenvalues, 0.0)
        return jnp.exp(log_tau) * (jnp.asarray(basis) @ (z / jnp.sqrt(rest)))

    def density(log_tau, logit_rho, beta, z):
        score = beta[0] + beta[1] * x + field(log_tau, logit_rho, z)
        # ρ is Beta(2, 2): with the Jacobian, (ρ(1 - ρ))²
        prior = half_normal(log_tau) + normal(beta, 2.5) + normal(z)
        prior = prior + 2 * (jax.nn.log_sigmoid(logit_rho) + jax.nn.log_sigmoid(-logit_rho))
        return prior + jnp.sum(y * score - expected * jnp.exp(score))

    def derived(log_tau, logit_rho, beta, z):
        spatial = field(log_tau, logit_rho, z)
        risk = jnp.exp(beta[0] + beta[1] * x + spatial)
        return {"tau": jnp.exp(log_tau), "rho": jax.nn.sigmoid(logit_rho), "field": spatial, "risk": risk[:SHOWN]}

    blocks = {"log_tau": (), "logit_rho": (), "beta": (2,), "z": (areas,)}
    return Posterior("car", "hierarchy", f"counts in {areas} areas, proper CAR", blocks, density, derived)
