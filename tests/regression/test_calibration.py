"""Simulation-based calibration: where true parameters lie in their posteriors; `simulated.ranks` has the simulations."""

import numpy as np
import pytest
from scipy import stats

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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::gyromc.GyromcWarning")
@pytest.mark.parametrize("family", STUDIES)
def test_ranks_are_uniform(family):
    places, simulations = STUDIES[family]
    p = least_p_value(places(simulations, seed=1))
    print(f"{family}: p = {p:.3g} of {simulations} simulations")
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


def test_ranks_are_uniform_in_few_simulations():
    """A further parameter and a group; all other families have the potentials that `test_families` writes anew."""
    places = solved_places(LIKELIHOODS["negative-binomial"], True, 6, seed=2)
    assert stats.kstest(places.ravel(), "uniform").pvalue > 1e-3


def test_ranks_of_linear_models_are_uniform_in_few_simulations():
    assert least_p_value(linear_places(150, seed=2)) > 0.01
    assert least_p_value(mixed_linear_places(12, seed=2)) > 0.01
