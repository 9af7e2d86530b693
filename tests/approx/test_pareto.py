"""The shape of a Pareto tail, and smoothed weights, against laws whose shape is known and against ArviZ."""

import numpy as np
import pytest
from arviz_stats.base import array_stats

from gyromc.approx.sample import generalised_pareto, smoothed, tail_count


@pytest.mark.parametrize("shape", [-0.3, 0.3, 1.0])
def test_the_shape_is_found_within_its_error(shape):
    count, samples = 2000, 200
    u = np.random.default_rng(1).random((samples, count))
    x = np.sort(2.0 * np.expm1(-shape * np.log(u)) / shape, axis=1)
    k, sigma = generalised_pareto(x)
    error = abs(1 + shape) / np.sqrt(count * samples)  # of the mean over samples, by the information of the law
    assert abs(k.mean() - shape) < 5 * error + 2 / count  # the estimate's own bias goes with 1/count
    assert k.std() == pytest.approx(abs(1 + shape) / np.sqrt(count), rel=0.2)
    assert sigma.mean() == pytest.approx(2.0, rel=0.01)


def test_weights_are_those_of_arviz():
    rng = np.random.default_rng(2)
    logs = rng.normal(size=(1000, 12)) * np.linspace(0.2, 3, 12)
    got, k = smoothed(logs)
    expected, k_expected = array_stats.psislw(-logs, axis=0)
    np.testing.assert_allclose(k, k_expected, atol=1e-9)
    np.testing.assert_allclose(got, expected.T, atol=1e-9)
    np.testing.assert_allclose(np.exp(got).sum(axis=0), 1)


def test_equal_weights_and_few_draws():
    got, k = smoothed(np.zeros((500, 2)))
    np.testing.assert_allclose(np.exp(got), 1 / 500)
    assert np.all(k == -np.inf)
    assert np.all(smoothed(np.random.default_rng(0).normal(size=(20, 3)))[1] == np.inf)
    assert tail_count(1000) == 94
