"""Regressions without groups: logistic, Poisson, softmax, ordered, Weibull with censoring, horseshoe."""

import jax
import jax.numpy as jnp
import numpy as np

from accuracy.models.record import Posterior, half_cauchy, half_normal, logistic, normal

__all__ = ["classes", "counts", "heart", "horseshoe", "nes", "ordered", "poisson", "softmax", "votes", "weibull"]

PREDICTED = 8  # rows whose predictive quantities are observables


def heart() -> Posterior:
    """Logistic regression on the heart data, the paper's split."""
    from gyromc.datasets import heart_split

    split = heart_split(0)
    X, y, rows = split.X_train, split.y_train, split.X_test[:PREDICTED]
    return _logistic("heart", f"logistic regression, heart data, {len(y)} rows", X, y, 1.0, rows)


def nes() -> Posterior:
    """Simulated votes of 1200 people by income, ideology, age and six more columns."""
    X, y = votes()
    return _logistic("nes", "logistic regression of votes, 1200 rows", X, y, 2.5, X[:PREDICTED])


def votes() -> tuple[np.ndarray, np.ndarray]:
    """Design and response of `nes`."""
    rng, n = np.random.default_rng(2000), 1200
    income, age = rng.integers(1, 6, n) - 3.0, rng.integers(0, 4, n)
    columns = [income, rng.integers(1, 8, n) - 4.0, rng.random(n) < 0.12, age == 1, age == 2, age == 3]
    X = np.column_stack([np.ones(n), *columns, rng.random(n) < 0.5, rng.integers(1, 5, n) - 2.5]).astype(float)
    y = rng.random(n) < 1 / (1 + np.exp(-X @ [-0.2, 0.33, 0.6, -1.5, 0.1, 0.2, -0.1, 0.15, 0.1]))
    return X, y.astype(float)


def _logistic(name: str, about: str, X, y, prior: float, rows) -> Posterior:
    def density(beta):
        return normal(beta, prior) + logistic(y, jnp.asarray(X) @ beta)

    def derived(beta):
        return {"p": jax.nn.sigmoid(jnp.asarray(rows) @ beta)}

    return Posterior(name, "regression", about, {"beta": (X.shape[1],)}, density, derived)


def poisson() -> Posterior:
    """Simulated counts of 300 rows on five columns."""
    X, y = counts()

    def density(beta):
        score = jnp.asarray(X) @ beta
        return normal(beta, 2.0) + jnp.sum(y * score - jnp.exp(score))

    def derived(beta):
        rate = jnp.exp(jnp.asarray(X[:PREDICTED]) @ beta)
        return {"rate": rate, "p_zero": jnp.exp(-rate)}

    about = f"Poisson regression, {len(y)} rows"
    return Posterior("poisson", "regression", about, {"beta": (X.shape[1],)}, density, derived)


def counts() -> tuple[np.ndarray, np.ndarray]:
    """Design and response of `poisson`."""
    rng, (n, d) = np.random.default_rng(51), (300, 6)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, d - 1))])
    return X, rng.poisson(np.exp(X @ [0.3, 0.5, -0.4, 0.2, 0.0, 0.1])).astype(float)


def classes() -> tuple[np.ndarray, np.ndarray]:
    """Design and response of `softmax`: three classes of 300 rows on four columns."""
    rng, (n, p) = np.random.default_rng(52), (300, 5)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, p - 1))])
    scores = X @ rng.standard_normal((p, 3)) + rng.gumbel(size=(n, 3))
    return X, scores.argmax(axis=1)


def softmax() -> Posterior:
    """Three classes; the scores of the last are zero."""
    X, y = classes()
    hot = np.eye(3)[y]

    def log_p(beta, rows):
        scores = jnp.asarray(rows) @ beta.T
        return jax.nn.log_softmax(jnp.pad(scores, ((0, 0), (0, 1))))

    def density(beta):
        return normal(beta, 1.5) + jnp.sum(hot * log_p(beta, X))

    def derived(beta):
        return {"p": jnp.exp(log_p(beta, X[:PREDICTED])[:, 0])}

    about = f"softmax regression, 3 classes, {len(y)} rows"
    return Posterior("softmax", "regression", about, {"beta": (2, X.shape[1])}, density, derived)


def ordered() -> Posterior:
    """Five ordered answers of 300 rows on three columns; the cutpoints are the first one and the logarithms of the gaps."""
    rng, (n, p) = np.random.default_rng(53), (300, 3)
    X = rng.standard_normal((n, p))
    latent = X @ [0.8, -0.5, 0.2] + rng.logistic(size=n)
    y = np.searchsorted([-2.0, -0.5, 0.7, 2.0], latent)

    def cutpoints(first, log_gaps):
        return first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.exp(log_gaps))])

    def density(beta, first, log_gaps):
        # P(y ≤ k) = sigmoid(c_k - xβ); log(sigmoid(a) - sigmoid(b)) by logarithms, so that far tails stay finite
        cuts = jnp.concatenate([jnp.full(1, -50.0), cutpoints(first, log_gaps), jnp.full(1, 50.0)])
        score = jnp.asarray(X) @ beta
        upper, lower = cuts[y + 1] - score, cuts[y] - score
        terms = jax.nn.log_sigmoid(upper) + jax.nn.log_sigmoid(-lower) + jnp.log(-jnp.expm1(lower - upper))
        # the cutpoints are N(0, 5²) a priori; the transform's Jacobian is the product of the gaps
        return jnp.sum(terms) + normal(beta, 2.5) + normal(cutpoints(first, log_gaps), 5.0) + jnp.sum(log_gaps)

    def derived(beta, first, log_gaps):
        cuts = cutpoints(first, log_gaps)
        return {"cut": cuts[1:], "p_low": jax.nn.sigmoid(cuts[1] - jnp.asarray(X[:PREDICTED]) @ beta)}

    blocks = {"beta": (p,), "first": (), "log_gaps": (3,)}
    start = np.array([0.0] * p + [-1.5, 0.0, 0.0, 0.0])
    return Posterior("ordered", "regression", f"ordered logit, 5 answers, {n} rows", blocks, density, derived, start)


def weibull() -> Posterior:
    """Survival times of 250 patients with three covariates, a third of them censored."""
    rng, (n, p) = np.random.default_rng(54), (250, 3)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, p))])
    times = np.exp(X @ [1.0, 0.4, -0.3, 0.1]) * rng.weibull(1.5, n)
    ends = rng.uniform(0.5, 8.0, n)
    y, dead = np.minimum(times, ends), (times <= ends).astype(float)

    def density(beta, log_shape):
        shape = jnp.exp(log_shape)
        z = shape * (jnp.log(y) - jnp.asarray(X) @ beta)
        return normal(beta, 5.0) + normal(log_shape) + jnp.sum(dead * (log_shape + z) - jnp.exp(z))

    def derived(beta, log_shape):
        shape = jnp.exp(log_shape)
        scale = jnp.exp(jnp.asarray(X[:PREDICTED]) @ beta)
        return {
            "shape": shape,
            "median": scale * jnp.log(2.0) ** (1 / shape),
            "survival": jnp.exp(-((2.0 / scale) ** shape)),
        }

    about = f"Weibull survival, {n} rows, {1 - dead.mean():.0%} censored"
    return Posterior("weibull", "regression", about, {"beta": (p + 1,), "log_shape": ()}, density, derived)


def horseshoe() -> Posterior:
    """A linear regression of 100 rows on 20 columns, four of which matter: β_j = z_j λ_j τ, non-centred.

    λ_j are half-Cauchy and have no posterior mean, so their logarithms are the observables.
    """
    rng, (n, p) = np.random.default_rng(55), (100, 20)
    X = rng.standard_normal((n, p))
    y = 0.5 + X[:, :4] @ [1.5, -1.0, 0.6, 0.3] + rng.standard_normal(n)

    def coefficients(z, log_lambda, log_tau):
        return z * jnp.exp(log_lambda + log_tau)

    def density(alpha, log_sigma, log_tau, log_lambda, z):
        residual = (y - alpha - jnp.asarray(X) @ coefficients(z, log_lambda, log_tau)) / jnp.exp(log_sigma)
        prior = normal(alpha, 5.0) + half_normal(log_sigma, 2.0) + half_cauchy(log_tau, 0.2) + half_cauchy(log_lambda)
        return prior + normal(z) + normal(residual) - n * log_sigma

    def derived(alpha, log_sigma, log_tau, log_lambda, z):
        return {"sigma": jnp.exp(log_sigma), "beta": coefficients(z, log_lambda, log_tau)}

    def easier(phi):
        # a half-Cauchy x has log x = log tan(π/2 Φ(u)) for a normal u; an odd function of u, exact in both tails by Φ(-|u|)
        u = phi[2 : 3 + p]
        logs = -jnp.sign(u) * jnp.log(jnp.tan(0.5 * jnp.pi * jax.scipy.stats.norm.cdf(-jnp.abs(u))))
        return jnp.concatenate([phi[:2], logs, phi[3 + p :]])

    blocks = {"alpha": (), "log_sigma": (), "log_tau": (), "log_lambda": (p,), "z": (p,)}
    about = f"horseshoe regression, {n} rows, {p} columns, non-centred"
    return Posterior("horseshoe", "hierarchy", about, blocks, density, derived, easier=easier)
