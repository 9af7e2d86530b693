"""The law of y given its linear predictors, for every likelihood: densities and distribution functions against SciPy, samples
against the stated mean and variance, further parameters against their priors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from gyromc.targets.families import (
    Bernoulli,
    BetaBinomial,
    Binomial,
    Categorical,
    ConwayMaxwellPoisson,
    Exponential,
    Gamma,
    NegativeBinomial,
    Normal,
    NormalNoise,
    Ordinal,
    Poisson,
    StudentT,
    Weibull,
)
from gyromc.targets.functions import rising

B3 = Categorical(3).basis
T = np.array([-1.3, 0.2, 1.1])
T2 = np.stack([T, T[::-1] / 2], axis=-1)
S = np.array([0.3, 4.0, 500.0])  # sizes of noise, shapes
NU = np.array([5.0, 8.0, 60.0])
TRIALS = np.array([3.0, 7.0, 20.0])
CUTS = (np.float64(-1.0), np.float64(0.5), np.float64(0.9))
NUMBERS, COUNTS, POSITIVE = [-0.7, 0.4, 1.9], [0.0, 1.0, 2.0, 3.0], [0.2, 0.9, 3.0]


SHAPES, NONE = np.array([0.7, 1.0, 6.0]), np.zeros(3)
EVEN = np.array([0.6, 1.0, 7.0])


def conway_maxwell(i):
    j = np.arange(41)
    return stats.rv_discrete(values=(j, special.softmax(EVEN[i] * (j * T[i] - special.gammaln(j + 1)))))


def weibull(i):
    return stats.weibull_min(SHAPES[i], scale=np.exp(T[i]) / special.gamma(1 + 1 / SHAPES[i]))


def chances(i):
    return np.diff([0, *special.expit(np.array(CUTS) - T[i]), 1])


CASES = {
    "normal": (Normal(), T, (), NUMBERS, lambda i: stats.norm(T[i], 1)),
    "normal with σ": (NormalNoise(), T, (S,), NUMBERS, lambda i: stats.norm(T[i], S[i])),
    "student-t": (StudentT(), T, (S, NU), NUMBERS, lambda i: stats.t(NU[i], T[i], S[i])),
    "bernoulli": (Bernoulli(), T, (), [0.0, 1.0], lambda i: stats.bernoulli(special.expit(T[i]))),
    "categorical": (
        Categorical(3),
        T2,
        (),
        [0.0, 1.0, 2.0],
        lambda i: stats.rv_discrete(values=(np.arange(3), special.softmax(B3 @ T2[i]))),
    ),
    "ordinal": (Ordinal(4), T, CUTS, COUNTS, lambda i: stats.rv_discrete(values=(np.arange(4), chances(i)))),
    "poisson": (Poisson(), T, (), COUNTS, lambda i: stats.poisson(np.exp(T[i]))),
    "negative binomial": (
        NegativeBinomial(),
        T,
        (S,),
        [*COUNTS, 60.0],
        lambda i: stats.nbinom(S[i], S[i] / (S[i] + np.exp(T[i]))),
    ),
    "conway-maxwell-poisson": (ConwayMaxwellPoisson(40), T, (EVEN,), COUNTS, conway_maxwell),
    "exponential": (Exponential(), T, (NONE,), POSITIVE, lambda i: stats.expon(scale=np.exp(T[i]))),
    "weibull": (Weibull(), T, (NONE, SHAPES), POSITIVE, weibull),
    "gamma": (Gamma(), T, (S,), POSITIVE, lambda i: stats.gamma(S[i], scale=np.exp(T[i]) / S[i])),
    "binomial": (Binomial(), T, (TRIALS,), COUNTS, lambda i: stats.binom(int(TRIALS[i]), special.expit(T[i]))),
    "beta-binomial": (
        BetaBinomial(),
        T,
        (TRIALS, S),
        COUNTS,
        lambda i: stats.betabinom(int(TRIALS[i]), S[i] * special.expit(T[i]), S[i] * special.expit(-T[i])),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_against_scipy(name):
    likelihood, t, given, responses, law = CASES[name]
    laws = [law(i) for i in range(3)]
    loss = jax.jit(lambda *given: likelihood.loss(*given))
    assert len(given) == len(likelihood.known + likelihood.auxiliary) or name == "normal"
    for value in responses:
        y = np.full(3, value)
        found = likelihood.log_density(t, y, *given)
        wanted = [(one.logpmf if likelihood.discrete else one.logpdf)(value) for one in laws]
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)
        for at in (value, value - 0.25):
            upto = likelihood.cdf(np.full(3, at), t, *given)
            np.testing.assert_allclose(upto, [one.cdf(at) for one in laws], rtol=1e-9, atol=1e-14)
        with jax.enable_x64(True):
            same = loss(jnp.asarray(t), jnp.asarray(y), *(jnp.asarray(g) for g in given))
        np.testing.assert_allclose(same, likelihood.loss(t, y, *given), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(likelihood.cdf(np.full(3, -1.0), t, *given), [one.cdf(-1.0) for one in laws], rtol=1e-9)


def test_censored_times_have_the_probability_of_a_longer_one_and_are_completed_by_its_law():
    """log P(T > y) in place of the density; the completed time, given T > y, has a uniform distribution function there."""
    y, censored = np.array([0.3, 1.2, 2.0]), np.array([1.0, 0.0, 1.0])
    found = Weibull().log_density(T, y, censored, SHAPES)
    wanted = [weibull(i).logsf(y[i]) if censored[i] else weibull(i).logpdf(y[i]) for i in range(3)]
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    many = np.broadcast_to(T, (4000, 3))
    drawn = Weibull().completed(np.random.default_rng(0), many, y, censored, SHAPES)
    assert np.all(drawn[:, 1] == y[1])
    for i in (0, 2):
        below = weibull(i).cdf(y[i])
        assert drawn[:, i].min() > y[i]
        assert stats.kstest((weibull(i).cdf(drawn[:, i]) - below) / (1 - below), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("name", CASES)
def test_samples_have_the_stated_mean_and_variance(name):
    likelihood, t, given, _, _ = CASES[name]
    count = 40_000
    y = likelihood.sample(np.random.default_rng(0), np.broadcast_to(t, (count, *t.shape)), *given)
    assert y.shape == (count, 3)
    mean = likelihood.mean(t, *given)
    values = y[..., None] == np.arange(mean.shape[1]) if mean.ndim == 2 else y
    variance = likelihood.variance(mean, *given)
    z = (values.mean(axis=0) - mean) / np.sqrt(variance / count)
    assert np.abs(z).max() < 4
    fourth = np.mean((values - mean) ** 4, axis=0)
    z = (values.var(axis=0) - variance) / np.sqrt((fourth - variance**2) / count + 1e-12)
    assert np.abs(z).max() < 4


def test_the_ratio_of_gamma_functions():
    """Against SciPy where that has digits; where s is large, against the sum of log(1 + j/s) over j < y."""
    s = np.array([1e-3, 0.5, 3.0, 15.9, 16.1, 50.0])
    for y in (0.0, 0.5, 4.0, 300.0):
        exact = special.gammaln(s + y) - special.gammaln(s) - y * np.log(s)
        np.testing.assert_allclose(rising(s, y), exact, rtol=1e-11, atol=1e-11)
    slope_of = jax.jit(jax.grad(lambda x: rising(jnp.exp(x), 40.0)))
    for s in (100.0, 1e6):
        exact = np.sum(np.log1p(np.arange(40) / s))
        np.testing.assert_allclose(rising(np.float64(s), 40.0), exact, rtol=1e-9)
        single = slope_of(jnp.float32(np.log(s)))
        slope = -np.sum(np.arange(40) / (s + np.arange(40)))
        assert abs(single - slope) < 1e-5 * 40  # float32, as a sampler computes it


def law_of(likelihood, index, count=50_000):
    u = np.random.default_rng(3).standard_normal((count, len(likelihood.auxiliary)))
    return likelihood.natural(u)[index]


PRIORS = {
    "σ": (lambda: law_of(NormalNoise(), 0), stats.expon()),
    "σ of t": (lambda: law_of(StudentT(), 0), stats.expon()),
    "ν": (lambda: np.log(law_of(StudentT(), 1) - 2), stats.norm(2.73, 0.8)),
    "shape": (lambda: law_of(NegativeBinomial(), 0) ** -0.5, stats.expon()),
    "shape of gamma": (lambda: law_of(Gamma(), 0) ** -0.5, stats.expon()),
    "concentration": (lambda: law_of(BetaBinomial(), 0) ** -0.5, stats.expon()),
    "ν of counts": (lambda: np.log(law_of(ConwayMaxwellPoisson(), 0)), stats.norm()),
    "1/shape of Weibull": (lambda: 1 / law_of(Weibull(), 0), stats.expon()),
    "first cutpoint": (lambda: special.expit(law_of(Ordinal(4), 0)), stats.beta(1, 3)),
    "second cutpoint": (lambda: special.expit(law_of(Ordinal(4), 1)), stats.beta(2, 2)),
    "third cutpoint": (lambda: special.expit(law_of(Ordinal(4), 2)), stats.beta(3, 1)),
}


@pytest.mark.parametrize("name", PRIORS)
def test_further_parameters_have_their_priors(name):
    draw, law = PRIORS[name]
    assert stats.kstest(draw(), law.cdf).pvalue > 1e-3


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case[0].auxiliary])
def test_losses_are_finite_far_out(name):
    """In float32, eight standard deviations of the prior away, values and derivatives."""
    likelihood, t, given, responses, _ = CASES[name]
    known = tuple(jnp.asarray(g, jnp.float32) for g in given[: len(likelihood.known)])
    y = jnp.asarray(responses[:3], jnp.float32)

    def total(u, t):
        return jnp.sum(likelihood.loss(t, y, *known, *likelihood.natural(u)))

    slopes_of = jax.jit(jax.value_and_grad(total, (0, 1)))
    for away in (-8.0, -4.0, 0.0, 4.0, 8.0):
        u = jnp.full(len(likelihood.auxiliary), away, jnp.float32)
        value, slopes = slopes_of(u, jnp.asarray(t, jnp.float32))
        assert np.isfinite(value)
        assert all(np.all(np.isfinite(slope)) for slope in slopes)
