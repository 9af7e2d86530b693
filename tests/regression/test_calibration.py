"""Simulation-based calibration: where true parameters lie in their posteriors; `simulated.ranks` has the simulations."""

import numpy as np
import pytest
from scipy import special, stats

from simulated.ranks import (
    LIKELIHOODS,
    STUDIES,
    exact_mixed_places,
    least_p_value,
    linear_places,
    mixed_linear_places,
    solved_places,
)

BY_CHANCE = 0.01 / len(STUDIES)  # of one family, so that all together fail by chance once in a hundred
MOST = 120  # simulations of a family that is sampled by chains


def least_p_of_scores(places):
    """The smallest p-value of the means and the sums of squares of normal scores, corrected for their number.

    Of 120 simulations the mean is seen to be 0.33 posterior standard deviations off and their size 23 %; the largest distance
    between distribution functions, which `least_p_value` takes, needs 250 for the first and 1800 for the second.
    """
    n, z = len(places), special.ndtri(np.clip(places, 1 / 2048, 1 - 1 / 2048))
    means, sizes = 2 * stats.norm.sf(np.abs(z.mean(axis=0)) * np.sqrt(n)), np.sum(z**2, axis=0)
    each = [*means, *(2 * np.minimum(stats.chi2.cdf(sizes, n), stats.chi2.sf(sizes, n)))]
    return min(1.0, min(each) * len(each))


@pytest.mark.parametrize(("shift", "scale"), [(0.5, 1.0), (0.0, 1.4), (0.0, 0.7)])
def test_normal_scores_see_what_is_off(shift, scale):
    z = np.random.default_rng(0).standard_normal((MOST, 3))
    assert least_p_of_scores(special.ndtr(z)) > 0.01
    z[:, 1] = shift + scale * z[:, 1]
    assert least_p_of_scores(special.ndtr(z)) < BY_CHANCE


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gyromc.GyromcWarning")
@pytest.mark.parametrize("family", STUDIES)
def test_ranks_are_uniform(family):
    places, simulations = STUDIES[family]
    found = places(simulations if family.startswith("linear") else min(simulations, MOST), seed=1)
    p = min(1.0, 2 * min(least_p_value(found), least_p_of_scores(found)))
    print(f"{family}: p = {p:.3g} of {len(found)} simulations")
    assert p > BY_CHANCE


def assert_exact(simulations, seed):
    """Ranks among 1024 draws are those of quadrature, without bias: sharper than to ask for uniform ranks."""
    away = mixed_linear_places(simulations, seed) - exact_mixed_places(simulations, seed)
    error = away.std(axis=0) / np.sqrt(simulations)
    assert np.all(np.abs(away.mean(axis=0)) < 4 * error)
    assert np.all(
        np.sqrt(np.mean(away**2, axis=0)) < 1.6 / np.sqrt(1024) * 0.5
    )  # √(p(1 - p)/1024) at most, and uneven weights


@pytest.mark.slow
def test_ranks_of_linear_models_with_groups_are_those_of_quadrature():
    assert_exact(300, seed=1)


def test_ranks_of_linear_models_with_groups_are_those_of_quadrature_in_few_simulations():
    assert_exact(15, seed=3)


@pytest.mark.slow
def test_ranks_are_uniform_in_few_simulations():
    """A further parameter and a group; all other families have the potentials that `test_families` writes anew."""
    places = solved_places(LIKELIHOODS["negative-binomial"], True, 4, seed=2)
    assert stats.kstest(places.ravel(), "uniform").pvalue > 1e-3


def test_ranks_of_linear_models_are_uniform_in_few_simulations():
    assert least_p_value(linear_places(150, seed=2)) > 0.01
    assert least_p_value(mixed_linear_places(12, seed=2)) > 0.01
