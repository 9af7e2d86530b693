"""The law of y given its linear predictors, for every likelihood: densities and distribution functions against SciPy, samples
against the stated mean and variance."""

import numpy as np
import pytest
from scipy import special, stats

from gyromc.targets.likelihoods import Bernoulli, Categorical, Normal, Poisson

B3 = Categorical(3).basis
T = np.array([-1.3, 0.2, 1.1])
T2 = np.stack([T, T[::-1] / 2], axis=-1)

CASES = {
    "normal": (Normal(), T, (), lambda i: stats.norm(T[i], 1)),
    "normal with σ": (Normal(), T, (np.array([0.5, 2.0, 3.0]),), lambda i: stats.norm(T[i], [0.5, 2.0, 3.0][i])),
    "bernoulli": (Bernoulli(), T, (), lambda i: stats.bernoulli(special.expit(T[i]))),
    "poisson": (Poisson(), T, (), lambda i: stats.poisson(np.exp(T[i]))),
    "categorical": (
        Categorical(3),
        T2,
        (),
        lambda i: stats.rv_discrete(values=(np.arange(3), special.softmax(B3 @ T2[i]))),
    ),
}


def is_discrete(law):
    return isinstance(getattr(law, "dist", law), stats.rv_discrete)


@pytest.mark.parametrize("name", CASES)
def test_against_scipy(name):
    likelihood, t, given, law = CASES[name]
    laws = [law(i) for i in range(3)]
    assert likelihood.discrete == is_discrete(laws[0])
    for shift in (0.0, 1.0) if likelihood.discrete else (-0.7, 0.4, 1.9):
        y = (
            np.array([0.0, 1.0, 1.0]) + shift
            if "bernoulli" not in name and "categ" not in name
            else np.array([0.0, 1.0, shift])
        )
        found = likelihood.log_density(t, y, *given)
        wanted = [(one.logpmf if likelihood.discrete else one.logpdf)(v) for one, v in zip(laws, y, strict=True)]
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(
            likelihood.cdf(y, t, *given), [one.cdf(v) for one, v in zip(laws, y, strict=True)], rtol=1e-10
        )
        np.testing.assert_allclose(
            likelihood.cdf(y - 1e-9, t, *given), [one.cdf(v - 1e-9) for one, v in zip(laws, y, strict=True)]
        )
    below = likelihood.cdf(np.full(3, -1.0), t, *given)
    np.testing.assert_allclose(below, [one.cdf(-1.0) for one in laws], rtol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_samples_have_the_stated_mean_and_variance(name):
    likelihood, t, given, _ = CASES[name]
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
