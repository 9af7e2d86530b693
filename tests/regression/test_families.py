"""Families with further parameters, groups, offsets, weights and priors: against posteriors written down anew with SciPy, against
each other, and what every error message says."""

import jax
import numpy as np
import pytest
from scipy import optimize, special, stats

import gyromc as gm
from gyromc.regression.fit import GroupTerm, fit
from gyromc.regression.marginal import Marginal
from gyromc.regression.problem import read
from gyromc.regression.standardised import standardise
from gyromc.targets.families import FAMILIES as KNOWN
from gyromc.targets.families import NormalNoise
from gyromc.targets.mixed import Group, MixedRegression

ROWS = 40
TRIALS = np.tile([4.0, 9.0, 15.0, 2.0], ROWS // 4)


def column(seed=0):
    x = np.random.default_rng(seed).standard_normal(ROWS)
    return (x - x.mean()) / x.std()


def negative_binomial(y, t, u):  # u: log of 1/√shape
    s = np.exp(-2 * u[:, :1])
    return stats.nbinom.logpmf(y, s, s / (s + np.exp(t))).sum(axis=1) + u[:, 0] - np.exp(u[:, 0])


def gamma(y, t, u):
    s = np.exp(-2 * u[:, :1])
    return stats.gamma.logpdf(y, s, scale=np.exp(t) / s).sum(axis=1) + u[:, 0] - np.exp(u[:, 0])


def beta_binomial(y, t, u):
    k, p = np.exp(-2 * u[:, :1]), special.expit(t)
    return stats.betabinom.logpmf(y, TRIALS, k * p, k * (1 - p)).sum(axis=1) + u[:, 0] - np.exp(u[:, 0])


def binomial(y, t, u):
    return stats.binom.logpmf(y, TRIALS, special.expit(t)).sum(axis=1)


def student(y, t, u):  # u: log σ and log(ν - 2)
    sd = y.std()
    prior = stats.expon.logpdf(np.exp(u[:, 0]) / sd) + u[:, 0] + stats.norm.logpdf(u[:, 1], 2.73, 0.8)
    return stats.t.logpdf(y, 2 + np.exp(u[:, 1:]), t, np.exp(u[:, :1])).sum(axis=1) + prior


def ordinal(y, t, u):  # u: first cutpoint and log of the distance to the second
    cuts = np.stack([u[:, 0], u[:, 0] + np.exp(u[:, 1])], axis=1)
    upto = special.expit(cuts[:, None, :] - t[..., None])
    chances = np.concatenate([upto[..., :1], np.diff(upto, axis=-1), 1 - upto[..., 1:]], axis=-1)
    own = chances[:, np.arange(len(y)), y.astype(int)]
    prior = np.sum(special.log_expit(cuts) + special.log_expit(-cuts), axis=1) + u[:, 1]
    return np.log(np.maximum(own, 1e-300)).sum(axis=1) + prior


def lognormal(y, t, u):  # u: log σ
    return stats.norm.logpdf(np.log(y), t, np.exp(u[:, :1])).sum(axis=1) + u[:, 0] - np.exp(u[:, 0])


def beta(y, t, u):  # u: log of 1/√precision
    k, p = np.exp(-2 * u[:, :1]), special.expit(t)
    return stats.beta.logpdf(y, k * p, k * (1 - p)).sum(axis=1) + u[:, 0] - np.exp(u[:, 0])


def probit(y, t, u):
    return np.log(np.where(y == 1, stats.norm.cdf(t), stats.norm.sf(t))).sum(axis=1)


def cloglog(y, t, u):
    return np.log(np.where(y == 1, -np.expm1(-np.exp(t)), np.exp(-np.exp(t)))).sum(axis=1)


def conway_maxwell(y, t, u):  # u: log ν
    nu, j = np.exp(u[:, :1]), np.arange(60.0)
    total = special.logsumexp(nu[:, :, None] * (j * t[:, :, None] - special.gammaln(j + 1)), axis=2)
    return (nu * (y * t - special.gammaln(y + 1)) - total).sum(axis=1) + stats.norm.logpdf(u[:, 0])


def weibull(y, t, u):  # u: log of 1/shape; times beyond 2 are censored
    k = np.exp(-u[:, :1])
    law = stats.weibull_min(k, scale=np.exp(t) / special.gamma(1 + 1 / k))
    return np.where(y == LONGEST, law.logsf(y), law.logpdf(y)).sum(axis=1) + u[:, 0] - np.exp(u[:, 0])


def exponential(y, t, u):
    return weibull(y, t, np.zeros((len(t), 1))) + 1.0


def uniform_zeros(u):
    return special.log_expit(u[:, 0]) + special.log_expit(-u[:, 0])  # of the log-odds of a uniform probability


def zero_inflated(y, t, u):
    p = special.expit(u[:, :1])
    return np.log((y == 0) * p + (1 - p) * stats.poisson.pmf(y, np.exp(t))).sum(axis=1) + uniform_zeros(u)


def zero_inflated_negative_binomial(y, t, u):  # u: log-odds of the share of zeros, log of 1/√shape
    p, s = special.expit(u[:, :1]), np.exp(-2 * u[:, 1:2])
    law = stats.nbinom.pmf(y, s, s / (s + np.exp(t)))
    return np.log((y == 0) * p + (1 - p) * law).sum(axis=1) + uniform_zeros(u) + u[:, 1] - np.exp(u[:, 1])


def hurdle(y, t, u):
    p, rate = special.expit(u[:, :1]), np.exp(t)
    positive = stats.poisson.pmf(y, rate) / stats.poisson.sf(0, rate)
    return np.log(np.where(y == 0, p, (1 - p) * positive)).sum(axis=1) + uniform_zeros(u)


LONGEST = 2.0
FAMILIES = {
    "conway-maxwell-poisson": (conway_maxwell, 1, lambda rng, t: rng.binomial(12, np.minimum(np.exp(t) / 12, 1))),
    "weibull": (weibull, 1, lambda rng, t: np.minimum(np.exp(t) * rng.weibull(1.7, len(t)), LONGEST)),
    "exponential": (exponential, 0, lambda rng, t: np.minimum(np.exp(t) * rng.exponential(size=len(t)), LONGEST)),
    "lognormal": (lognormal, 1, lambda rng, t: np.exp(t + 0.6 * rng.standard_normal(len(t)))),
    "beta": (beta, 1, lambda rng, t: rng.beta(5 * special.expit(t), 5 * special.expit(-t))),
    "probit": (probit, 0, lambda rng, t: t + rng.standard_normal(len(t)) > 0),
    "cloglog": (cloglog, 0, lambda rng, t: rng.poisson(np.exp(t - 0.5)) > 0),
    "zero-inflated-poisson": (
        zero_inflated,
        1,
        lambda rng, t: rng.poisson(np.exp(t)) * (rng.random(len(t)) < 0.7),
    ),
    "zero-inflated-negative-binomial": (
        zero_inflated_negative_binomial,
        2,
        lambda rng, t: rng.negative_binomial(2, 2 / (2 + np.exp(1 + t))) * (rng.random(len(t)) < 0.7),
    ),
    "hurdle-poisson": (hurdle, 1, lambda rng, t: rng.poisson(np.exp(t)) * (rng.random(len(t)) < 0.7)),
    "negative-binomial": (negative_binomial, 1, lambda rng, t: rng.negative_binomial(2, 2 / (2 + np.exp(t)))),
    "gamma": (gamma, 1, lambda rng, t: rng.gamma(3, np.exp(t) / 3)),
    "beta-binomial": (
        beta_binomial,
        1,
        lambda rng, t: rng.binomial(TRIALS.astype(int), rng.beta(3 * special.expit(t), 3 * special.expit(-t))),
    ),
    "binomial": (binomial, 0, lambda rng, t: rng.binomial(TRIALS.astype(int), special.expit(t))),
    "student-t": (student, 2, lambda rng, t: t + 0.5 * rng.standard_t(4, len(t))),
    "ordinal": (
        ordinal,
        2,
        lambda rng, t: (t + rng.logistic(size=len(t)) > -0.5) + 1.0 * (t + rng.logistic(size=len(t)) > 1.0),
    ),
}


def log_posterior(family, x, y):
    """The log posterior as a function of rows (slope, intercept, further parameters), which uses nothing of the package."""
    unit, center = (y.std(), y.mean()) if family == "student-t" else (1.0, 0.0)
    intercept = family != "ordinal"

    def found(theta):
        t = theta[:, :1] * x + (theta[:, 1:2] if intercept else 0.0)
        prior = stats.norm.logpdf(theta[:, 0], 0, 2.5 * unit)
        if intercept:
            prior = prior + stats.norm.logpdf(theta[:, 1], center, 10 * unit)
        return FAMILIES[family][0](y, t, theta[:, 1 + intercept :]) + prior

    return found, center


def reference(family, x, y, count=20_000):
    """Mean, sd and standard error of the slope, by importance sampling of a log posterior that uses nothing of the package."""
    (posterior, center), intercept = log_posterior(family, x, y), family != "ordinal"
    d = 1 + intercept + FAMILIES[family][1]
    start = np.zeros(d)
    start[1] = center if intercept else -0.5
    f = lambda v: -posterior(v[None])[0]
    mode = optimize.minimize(f, start, method="Nelder-Mead", options={"maxiter": 4000}).x
    steps = 0.05 * np.eye(d)
    H = [[(f(mode + a + b) - f(mode + a - b) - f(mode - a + b) + f(mode - a - b)) / 0.01 for b in steps] for a in steps]
    law = stats.multivariate_t(mode, 1.3 * np.linalg.inv(H), df=6, seed=np.random.default_rng(0))
    theta = law.rvs(count)
    w = special.softmax(posterior(theta) - law.logpdf(theta))
    mean = w @ theta[:, 0]
    away = theta[:, 0] - mean
    assert 1 / np.sum(w**2) > 0.1 * count
    return mean, np.sqrt(w @ away**2), np.sqrt(w**2 @ away**2)


def rows_of(family):
    """Columns, responses, and trials or censored times for a family."""
    x = column()
    y = np.asarray(FAMILIES[family][2](np.random.default_rng(1), 0.4 + 0.7 * x), float)
    known = {"trials": TRIALS, "censored": (y == LONGEST).astype(float)}
    return x, y, {name: known[name] for name in KNOWN[family].known}


SHAPES = ("negative-binomial", "gamma", "beta-binomial", "beta")


def written_anew(family, given):
    """The further parameters in the coordinates of the log posteriors above: points × parameters."""
    if family in SHAPES:
        return -0.5 * np.log(np.stack(given, axis=-1))
    if family == "ordinal":
        return np.stack([given[0], np.log(given[1] - given[0])], axis=-1)
    if family == "student-t":
        return np.stack([np.log(given[0]), np.log(given[1] - 2)], axis=-1)
    if family in ("lognormal", "conway-maxwell-poisson"):
        return np.log(np.stack(given, axis=-1))
    if family == "zero-inflated-negative-binomial":
        return np.stack([special.logit(given[0]), -0.5 * np.log(given[1])], axis=-1)
    if family == "weibull":
        return -np.log(np.stack(given, axis=-1))
    return special.logit(np.stack(given, axis=-1)) if given else np.zeros((6, 0))


@pytest.mark.parametrize("family", FAMILIES)
def test_potentials_are_those_of_a_posterior_written_anew(family):
    """U is minus the log density in other coordinates, the determinant of the change of these included, to rounding."""
    x, y, beside = rows_of(family)
    about = {"names": None, "classes": None, "intercept": True, "prior_scale": 2.5, "priors": None}
    problem = read(
        x[:, None], y, family, **about, **{"groups": (), "offset": None, "weights": None, "trials": None, **beside}
    )
    standard = standardise(problem)
    target, units, likelihood = standard.target, standard.units, problem.likelihood
    theta = 0.7 * np.random.default_rng(2).standard_normal((6, target.dim))
    p = target.num_coefficients
    T, offset = units.coefficients(np.eye(1))
    further = lambda u: written_anew(family, likelihood.in_units(likelihood.natural(u), units.y_scale))
    u, steps = theta[:, p:], 1e-5 * np.eye(target.dim - p)
    slopes = [(further(u + step) - further(u - step)) / 2e-5 for step in steps]
    jacobian = np.stack(slopes, axis=-1) if slopes else np.zeros((6, 0, 0))
    points = np.concatenate([(theta[:, :p] @ T.T + offset)[:, ::-1], further(u)], axis=1)
    log_density = log_posterior(family, x, y)[0](points) + np.linalg.slogdet(jacobian)[1]
    np.testing.assert_allclose(
        log_density - log_density[0], -target.potentials(theta) + target.potentials(theta[:1]), atol=1e-6
    )


SAMPLED = ("ordinal",)  # cutpoints; the potentials of all families are compared above


@pytest.mark.parametrize(
    "family", [pytest.param(f, marks=[] if f in SAMPLED else [pytest.mark.slow]) for f in FAMILIES]
)
def test_slopes_against_a_posterior_written_anew(family):
    x, y, beside = rows_of(family)
    found = fit(x[:, None], y, family, num_draws=4096, **beside)
    mean, sd, error = reference(family, x, y)
    c = found["x0"]
    assert c.std_error < 0.03 * c.sd
    assert abs(c.mean - mean) < 4 * np.hypot(c.std_error, error)
    assert abs(c.sd / sd - 1) < 0.06
    assert np.all(np.isfinite(found.predict(x[:5, None], **{name: values[:5] for name, values in beside.items()}).sd))


NEW = (
    "lognormal",
    "beta",
    "probit",
    "cloglog",
    "zero-inflated-poisson",
    "hurdle-poisson",
    "zero-inflated-negative-binomial",
)


@pytest.mark.parametrize("family", NEW)
def test_law_mean_and_variance_of_a_family_agree(family):
    """The density sums to 1 and to the distribution function, and gives mean and variance; draws follow it; JAX says the same."""
    further = {"lognormal": (0.6,), "beta": (5.0,), "zero-inflated-negative-binomial": (0.3, 1.7)}
    known, given = KNOWN[family](), further.get(family, (0.3,))
    given = tuple(map(np.float64, given)) if known.auxiliary else ()
    t = np.array([-0.7, 0.4])
    whole = known.discrete
    y = (
        np.arange(0.0, 60.0)[:, None]
        if whole
        else (np.linspace(0, 1 if family == "beta" else 40, 40_002)[1:-1])[:, None]
    )
    y = y[:2] if known.response.value == "classes" else y
    step = 1.0 if whole else y[1, 0] - y[0, 0]
    p = np.exp([known.log_density(t, np.full(2, v[0]), *given) for v in y]) * step
    assert p.sum(axis=0) == pytest.approx(1, abs=1e-4)
    mean = (y * p).sum(axis=0)
    assert known.mean(t, *given) == pytest.approx(mean, rel=1e-3)
    assert known.variance(known.mean(t, *given), *given) == pytest.approx((y**2 * p).sum(axis=0) - mean**2, rel=3e-3)
    place = len(y) // 4
    assert known.cdf(y[place], t, *given) == pytest.approx(p[: place + 1].sum(axis=0), abs=1e-3)
    drawn = known.sample(np.random.default_rng(0), np.tile(t, (20_000, 1)), *given)
    error = np.sqrt(known.variance(mean, *given) / 20_000)
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 4 * error)
    observed = np.array([0.25, 0.5]) if not whole else np.array([1.0, 0.0])
    ours = known.loss(t, observed, *given)
    with jax.enable_x64(True):
        theirs = known.loss(jax.numpy.asarray(t), jax.numpy.asarray(observed), *given)
    assert np.asarray(theirs) == pytest.approx(ours, rel=1e-9)


def grouped(seed=2, levels=8):
    rng = np.random.default_rng(seed)
    index, x = np.arange(ROWS) % levels, column(seed)
    b = rng.standard_normal((levels, 2)) @ [[0.8, 0.2], [0.0, 0.4]]
    Z = np.column_stack([np.ones(ROWS), x])
    t = 0.3 + 0.5 * x + np.sum(Z * b[index], axis=1)
    return x, Z, index, t, rng


def test_the_evidence_of_a_linear_model_with_groups():
    """p(y | φ) against the density of y with its covariance matrix."""
    _, Z, index, t, rng = grouped()
    y = t + 0.5 * rng.standard_normal(ROWS)
    weights = np.ones(ROWS)
    target = MixedRegression(Z, y, NormalNoise(), 2.5, weights=weights, groups=(Group(Z, index, 8, [1.0, 0.7]),))
    phi = rng.standard_normal((5, 4))
    exact = []
    for p in phi:
        sigma, sd = -special.log_ndtr(-p[0]), -special.log_ndtr(-p[1:3]) * [1.0, 0.7]
        rho = np.tanh(np.sqrt(special.polygamma(1, 2.0) / 2) * p[3])
        S = np.array([[sd[0] ** 2, rho * sd[0] * sd[1]], [rho * sd[0] * sd[1], sd[1] ** 2]])
        C = sigma**2 * np.eye(ROWS) + 6.25 * Z @ Z.T + (Z @ S @ Z.T) * (index[:, None] == index)
        prior = 2 * np.log(1 - rho**2) - 0.5 * p[:3] @ p[:3]  # LKJ(2), by Fisher's z
        exact.append(stats.multivariate_normal(np.zeros(ROWS), C).logpdf(y) + prior)
    found = Marginal(target).log_densities(phi)
    np.testing.assert_allclose(found - found[0], np.array(exact) - exact[0], atol=1e-8)


@pytest.mark.slow
def test_two_ways_to_a_linear_model_with_groups():
    _, Z, index, t, rng = grouped()
    y = t + 0.5 * rng.standard_normal(ROWS)
    target = MixedRegression(Z, y, NormalNoise(), 2.5, groups=(Group(Z, index, 8, [1.0, 1.0]),))
    one, two = Marginal(target).sample(np.eye(2), 4096), gm.expect(target, error=0.02, progress=False)
    assert one.effective > 300  # a tenth of the draws of the last round
    for i in range(2):
        row = two[f"theta[{i}]"]
        assert abs(one.mean[i] - row.mean) < 4 * np.hypot(one.std_error[i], row.std_error)
        assert abs(one.sd[i] / row.sd - 1) < 0.08


@pytest.mark.parametrize("family", ["linear", "poisson"])
def test_groups(family):
    x, _, index, t, rng = grouped(levels=8)
    y = t + 0.5 * rng.standard_normal(ROWS) if family == "linear" else rng.poisson(np.exp(t))
    term = GroupTerm("who", ("intercept",), np.ones((ROWS, 1)), index, [f"p{i}" for i in range(8)])
    found = fit(x[:, None], y, family, groups=[term], names=["x"])
    assert {"intercept", "x", "sd(intercept | who)"} <= set(found)
    assert (found.account is None) == (family == "linear")
    assert found["sd(intercept | who)"].low > 0
    who = found.groups["who"]
    assert who.mean.shape == (8, 1)
    assert np.all(who.sd < 3 * found["sd(intercept | who)"].mean)
    new = GroupTerm("who", ("intercept",), np.ones((2, 1)), [0, 1], ["p3", "stranger"])
    prediction = found.predict([[0.0], [0.0]], groups=[new])
    assert prediction.sd[1] > prediction.sd[0]  # nothing is known of a stranger
    with pytest.raises(gm.InvalidInput, match="no term for the group 'who'"):
        found.predict([[0.0]])


def test_large_counts_of_few_rows():
    """The descent begins far from counts of thousands, where a tangent of e^t says nothing about the mode."""
    x, _, index, t, rng = grouped()
    y = rng.poisson(np.exp(7 + t)).astype(float)
    term = GroupTerm("who", ("intercept",), np.ones((ROWS, 1)), index, [f"p{i}" for i in range(8)])
    found = fit(x[:, None], y, "poisson", groups=[term])
    assert abs(found["intercept"].mean - 7.3) < 4 * found["intercept"].sd


def nuts(x, Z, index, y, family):
    """Draws of intercept, slope, two standard deviations and their correlation, by NumPyro."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import MCMC, NUTS

    unit, center = (y.std(), y.mean()) if family == "linear" else (1.0, 0.0)
    spread = np.array([1.0, Z[:, 1].std()])

    def model():
        intercept = numpyro.sample("intercept", dist.Normal(center, 10.0 * unit))
        slope = numpyro.sample("slope", dist.Normal(0.0, 2.5 * unit))
        sd = numpyro.sample("sd", dist.Exponential(jnp.asarray(spread / unit)).to_event(1))
        fisher = numpyro.sample("fisher", dist.Normal(0.0, float(np.sqrt(special.polygamma(1, 2.0) / 2))))
        r = jnp.tanh(fisher)
        z = numpyro.sample("z", dist.Normal(jnp.zeros((8, 2)), 1.0).to_event(2))
        b = jnp.stack([sd[0] * z[:, 0], sd[1] * (r * z[:, 0] + jnp.sqrt(1 - r**2) * z[:, 1])], axis=1)
        t = intercept + slope * x + jnp.sum(Z * b[index], axis=1)
        if family == "poisson":
            numpyro.sample("y", dist.Poisson(jnp.exp(t)), obs=y)
        else:
            numpyro.sample("y", dist.Normal(t, numpyro.sample("sigma", dist.Exponential(1 / unit))), obs=y)

    kernel = NUTS(model, target_accept_prob=0.95)
    mcmc = MCMC(kernel, num_warmup=1000, num_samples=3000, num_chains=2, chain_method="vectorized", progress_bar=False)
    mcmc.run(jax.random.key(0))
    found = {name: np.asarray(v, float) for name, v in mcmc.get_samples(group_by_chain=True).items()}
    sd = found["sd"]
    return [found["intercept"], found["slope"], sd[..., 0], sd[..., 1], np.tanh(found["fisher"])]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["linear", "poisson"])
def test_random_slopes_agree_with_nuts(family):
    from numpyro.diagnostics import effective_sample_size

    x, Z, index, t, rng = grouped()
    y = t + 0.5 * rng.standard_normal(ROWS) if family == "linear" else rng.poisson(np.exp(t)).astype(float)
    term = GroupTerm("who", ("intercept", "x"), Z, index, [f"p{i}" for i in range(8)])
    found = fit(x[:, None], y, family, groups=[term], names=["x"], effort=0.01)
    names = "intercept", "x", "sd(intercept | who)", "sd(x | who)", "cor(intercept, x | who)"
    z = []
    for name, draws in zip(names, nuts(x, Z, index, y, family), strict=True):
        error = draws.std() / np.sqrt(effective_sample_size(draws))
        z.append((found[name].mean - draws.mean()) / np.hypot(found[name].std_error, error))
        assert abs(found[name].sd / draws.std() - 1) < 0.12, name
    print(family, np.round(z, 2))
    assert np.abs(z).max() < 4


def test_a_method_that_does_not_apply_says_why():
    x, Z, index, t, rng = grouped()
    y = t + rng.standard_normal(ROWS)
    assert fit(x[:, None], y).refused == {}
    term = GroupTerm("who", ("intercept", "x"), Z, index, [f"p{i}" for i in range(8)])
    assert fit(x[:, None], y, groups=[term]).refused == {"closed form": "groups have variances of their own"}


def test_weights_count_rows():
    """Weighted rows are repeated rows, the standardised prior included: a linear model to the last digits, in any order."""
    x = column()
    y = np.random.default_rng(3).poisson(np.exp(0.5 * x)).astype(float)
    times = np.where(np.arange(ROWS) < 10, 2, np.arange(ROWS) % 5 > 0)
    again = np.random.default_rng(4).permutation(np.repeat(np.arange(ROWS), times))
    X = x[:, None]
    one, two = fit(X, x + y, weights=times), fit(X[again], (x + y)[again])
    assert np.allclose([c.mean for c in one.coefficients], [c.mean for c in two.coefficients], rtol=1e-9)
    assert np.allclose(one.draws, two.draws, rtol=1e-7, atol=1e-9)
    one, two = fit(X, y, "poisson", weights=times, effort=0.01), fit(X[again], y[again], "poisson", effort=0.01)
    for a, b in zip(one.coefficients, two.coefficients, strict=True):
        assert abs(a.mean - b.mean) < 4 * np.hypot(a.std_error, b.std_error)
        assert abs(a.sd / b.sd - 1) < 0.08


def test_offsets_are_known_parts():
    x = column()
    exposure = np.exp(np.random.default_rng(5).standard_normal(ROWS))
    y = np.random.default_rng(3).poisson(exposure * np.exp(1 + 0.5 * x)).astype(float)
    found = fit(x[:, None], y, "poisson", offset=np.log(exposure))
    assert abs(found["x0"].mean - 0.5) < 4 * found["x0"].sd
    assert abs(found["intercept"].mean - 1) < 4 * found["intercept"].sd
    one, two = found.predict([[0.0]], offset=[0.0]).mean, found.predict([[0.0]], offset=[np.log(10.0)]).mean
    assert two[0] == pytest.approx(10 * one[0])
    moved = fit(x[:, None], 3 * x + y, "linear", offset=3 * x)
    np.testing.assert_allclose(moved["x0"].mean, fit(x[:, None], y, "linear")["x0"].mean, atol=0.1 * moved["x0"].sd)


@pytest.mark.parametrize("family", ["linear", "poisson"])
def test_narrow_priors_decide(family):
    x = column()
    y = np.random.default_rng(3).poisson(np.exp(1 + 0.2 * x)).astype(float)
    found = fit(x[:, None], y, family, names=["dose"], priors={"dose": "normal(0.7, 0.001)", "intercept": (2.0, 1e-3)})
    assert found["dose"].mean == pytest.approx(0.7, abs=0.004)
    assert found["dose"].sd == pytest.approx(1e-3, rel=0.1)
    assert found["intercept"].mean == pytest.approx(2.0, abs=0.004)
    t = found.posterior.predictors([[1.0]])[0]
    assert t.mean() == pytest.approx(2.7, abs=0.01)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"family": "beta-binomial"}, "needs `trials`"),
        ({"trials": [3, 3, 3]}, "`trials` is for the families binomial and beta-binomial: got it with linear"),
        ({"family": "beta-binomial", "y": [1, 4, 1], "trials": [3, 3, 3]}, "row 1 has 3"),
        ({"family": "gamma", "y": [1.0, 0.0, 2.0]}, "must hold positive numbers: row 1 has 0"),
        ({"family": "negative-binomial", "y": [1.0, 0.5, 2.0]}, "must hold counts"),
        ({"family": "ordinal", "y": [0, 0, 0]}, "at least two classes"),
        ({"weights": [1, 1]}, "`weights` must have one entry per row"),
        ({"weights": [1, -1, 1]}, "`weights` must not be negative"),
        ({"priors": {"x9": 1.0}}, "no parameter 'x9'"),
        ({"priors": {"x0": 0.0}}, "must be positive"),
        ({"family": "softmax", "y": [0, 1, 2], "offset": [0, 0, 0]}, "not available for the family softmax"),
        ({"groups": [3]}, "values of `GroupTerm`"),
    ],
)
def test_bad_arguments(arguments, says):
    with pytest.raises(gm.InvalidInput, match=says):
        fit(**{"X": [[1.0], [2.0], [4.0]], "y": [1.0, 2.0, 3.0], **arguments})
