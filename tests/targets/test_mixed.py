"""Deviations of single rows that are integrated out, against quadrature; and which groups are centred."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from gyromc.errors import InvalidInput
from gyromc.regression.fit import fit
from gyromc.regression.problem import GroupTerm
from gyromc.targets import Group, MixedRegression
from gyromc.targets.families import Bernoulli, NegativeBinomial, Poisson, StudentT
from gyromc.targets.mixed import _drawn, integrated_loss

Y = np.array([0.0, 1.0, 1.0, 0.0])
GRID = np.linspace(-12, 12, 20_001)[:, None]
CASES = [(Poisson(), sd, t) for sd in (0.05, 0.5, 1.5) for t in (-3.0, 0.0, 2.0)] + [(Bernoulli(), 2.0, 0.5)]


def log_integrand(likelihood, sd, t, y=Y):
    return -likelihood.loss(t + sd * GRID, y) - GRID**2 / 2


@pytest.mark.parametrize("case", CASES, ids=str)
def test_an_integrated_loss_and_its_slope_are_those_of_a_fine_grid(case):
    likelihood, sd, t = case
    with jax.enable_x64(True):
        loss = lambda t: integrated_loss(lambda x: likelihood.loss(t + x, jnp.asarray(Y)), jnp.full(len(Y), sd))
        at = jnp.full(len(Y), t)
        found, slope = jax.jit(lambda at: (loss(at), jax.grad(lambda t: loss(t).sum())(at)))(at)
    terms = log_integrand(likelihood, sd, t)
    exact = -special.logsumexp(terms, axis=0) - np.log(GRID[1, 0] - GRID[0, 0]) + 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(found, exact, atol=1e-5)
    h = 1e-4
    above, below = (-special.logsumexp(log_integrand(likelihood, sd, t + e), axis=0) for e in (h, -h))
    np.testing.assert_allclose(slope, (above - below) / (2 * h), atol=1e-4)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_deviations_drawn_afterwards_have_the_mean_and_variance_of_the_integrand(case):
    likelihood, sd, t = case
    rng, count = np.random.default_rng(5), 4000
    drawn = _drawn(lambda x: likelihood.loss(t + x, Y), np.full((count, len(Y)), sd), rng)
    weights = special.softmax(log_integrand(likelihood, sd, t), axis=0)
    mean = np.sum(weights * sd * GRID, axis=0)
    variance = np.sum(weights * (sd * GRID - mean) ** 2, axis=0)
    assert np.all(np.abs(drawn.mean(axis=0) - mean) < 4.5 * np.sqrt(variance / count))
    fourth = np.sum(weights * (sd * GRID - mean) ** 4, axis=0)
    assert np.all(np.abs(drawn.var(axis=0) - variance) < 4.5 * np.sqrt((fourth - variance**2) / count))


@pytest.mark.slow
def test_the_standard_deviation_of_single_rows_is_that_of_a_grid():
    """Counts with an intercept and a deviation for each row: p(intercept, sd | y) on a grid is the truth."""
    rng = np.random.default_rng(3)
    y = rng.poisson(np.exp(1.0 + 0.8 * rng.standard_normal(12))).astype(float)
    term = GroupTerm("row", ("intercept",), np.ones((12, 1)), np.arange(12), tuple(map(str, range(12))))
    found = fit(np.zeros((12, 0)), y, "poisson", groups=[term], progress=False)
    beta, sd = np.linspace(-3.0, 4.0, 57), 0.04 + 0.08 * np.arange(75)
    z, w = np.polynomial.hermite_e.hermegauss(80)
    t = beta[:, None, None, None] + sd[:, None, None] * z
    log_row = special.logsumexp(y[:, None] * t - np.exp(t) - special.gammaln(y + 1)[:, None], b=w, axis=-1)
    log_p = log_row.sum(axis=-1) - beta[:, None] ** 2 / 200 - sd  # N(0, 10²) and an exponential law of mean 1
    p = special.softmax(log_p)
    for row, values in ((found["intercept"], beta[:, None]), (found["sd(intercept | row)"], sd[None])):
        mean = np.sum(p * values)
        scale = np.sqrt(np.sum(p * (values - mean) ** 2))
        assert abs(row.mean - mean) < 4 * row.std_error + 1e-3 * scale
        fourth = np.sum(p * (values - mean) ** 4)  # 2048 draws count as half as many independent ones
        assert abs(row.sd - scale) < 4.5 * np.sqrt((fourth / scale**4 - 1) / (4 * 1024)) * scale
    given = special.softmax(y[:, None] * t - np.exp(t) + np.log(w), axis=-1)
    exact = np.einsum("bs,bsrz,sz->r", p, given, sd[:, None] * z)
    drawn = found.posterior.groups[0]
    error = drawn.sd[:, 0] / np.sqrt(0.5 * drawn.deviations[..., 0, 0].size)
    assert np.all(np.abs(drawn.mean[:, 0] - exact) < 4.5 * error)


def mixed(y, *levels):
    groups = tuple(Group(np.ones((len(y), 1)), index, int(index.max()) + 1, [1.0]) for index in levels)
    return MixedRegression(np.ones((len(y), 1)), y, Poisson(), 10.0, groups=groups)


def test_a_group_is_centred_by_what_its_levels_vary_more_than_the_levels_inside_them():
    """60 places with two broods of 20 rows each: broods vary and are well determined, places do not vary beyond them."""
    rng = np.random.default_rng(1)
    brood = np.repeat(np.arange(120), 20)
    between_broods = rng.poisson(np.exp(1.0 + 0.8 * rng.standard_normal(120)[brood])).astype(float)
    place, inside = mixed(between_broods, brood // 2, brood).in_good_coordinates().groups
    assert inside.centred
    assert not place.centred
    between_places = rng.poisson(np.exp(1.0 + 0.8 * rng.standard_normal(60)[brood // 2])).astype(float)
    place, inside = mixed(between_places, brood // 2, brood).in_good_coordinates().groups
    assert place.centred
    assert not inside.centred


def test_rows_that_are_held_out_change_no_coordinates():
    """Six rows a level would be centred alone; the fit without half of them has the program of the fit to all."""
    rng = np.random.default_rng(2)
    level = np.repeat(np.arange(100), 6)
    target = mixed(rng.poisson(np.exp(0.5 + 0.8 * rng.standard_normal(100)[level])).astype(float), level)
    kept = (np.arange(600) % 2).astype(float)
    halves = [eqx.tree_at(lambda t: t.weights, target, scale * kept).in_good_coordinates() for scale in (1.0, 0.5)]
    assert [half.groups[0].centred for half in halves] == [True, False]  # weights of a half leave less information
    assert target.in_good_coordinates().groups[0].centred


def test_only_one_group_of_single_rows_is_integrated_out():
    y = np.arange(6.0)
    rows = np.arange(6)
    first, pairs, second = mixed(y, rows, rows // 2, rows[::-1]).in_good_coordinates().groups
    assert [group.integrated for group in (first, pairs, second)] == [True, False, False]


def test_a_group_of_single_rows_is_integrated_out_only_where_the_integrand_has_one_peak():
    rows = np.arange(6)
    group = Group(np.ones((6, 1)), rows, 6, [1.0])
    for likelihood, expected in ((NegativeBinomial(), True), (StudentT(), False)):
        target = MixedRegression(np.ones((6, 1)), np.arange(6.0), likelihood, 10.0, groups=(group,))
        assert target.in_good_coordinates().groups[0].integrated is expected


def test_deviations_of_several_rows_are_not_integrated_out():
    with pytest.raises(InvalidInput, match="`integrated` is for a group whose levels have one row"):
        Group(np.ones((4, 1)), [0, 0, 1, 1], 2, [1.0], integrated=True)
