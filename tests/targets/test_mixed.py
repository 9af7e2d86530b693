"""Deviations of single rows that are integrated out, against quadrature; the coordinates of the others."""

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
from gyromc.targets.evidence import RoughFit
from gyromc.targets.families import Bernoulli, NegativeBinomial, NormalNoise, Poisson, StudentT
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


def mixed(y, *levels, likelihood=None, Z=None):
    Z = np.ones((len(y), 1)) if Z is None else Z
    groups = tuple(Group(Z, index, int(index.max()) + 1, np.ones(Z.shape[1])) for index in levels)
    return MixedRegression(np.ones((len(y), 1)), y, likelihood or Poisson(), 10.0, groups=groups)


def nested(rng, of_places, of_broods):
    """60 places with two broods of 20 rows each: counts, and the places and broods of the rows."""
    brood = np.repeat(np.arange(120), 20)
    t = 1.0 + of_places * rng.standard_normal(60)[brood // 2] + of_broods * rng.standard_normal(120)[brood]
    return rng.poisson(np.exp(t)).astype(float), brood // 2, brood


def test_other_coordinates_are_the_same_law():
    """U of both, at the same deviations, differ by log |det| of the map between the coordinates, and by a constant."""
    rng = np.random.default_rng(4)
    y, place, brood = nested(rng, 0.5, 0.3)
    written = mixed(y, place, brood, brood % 7)
    good = written.in_good_coordinates()
    assert all(group.evidence is not None for group in good.groups)
    first = np.cumsum([1, *(1 + group.num_levels for group in good.groups)])

    def as_written(theta):
        for a, group, b in zip(first, good.groups, good.deviations(theta), strict=False):
            theta = theta.at[a + 1 : a + 1 + group.num_levels].set(b[:, 0] / group.sds(theta[a]))
        return theta

    with jax.enable_x64(True):
        rows = jnp.asarray(0.7 * rng.standard_normal((3, good.dim)))
        size = lambda theta: jnp.linalg.slogdet(jax.jacobian(as_written)(theta))[1]
        change = [written.potential(as_written(x)) - size(x) - good.potential(x) for x in rows]
        seen = [
            np.concatenate([np.ravel(b) for b in target.deviations(np.asarray(x))])
            for target, x in ((good, rows[0]), (written, as_written(rows[0])))
        ]
    np.testing.assert_allclose(change, change[0], rtol=1e-9)
    np.testing.assert_allclose(*seen, rtol=1e-9)


def test_deviations_are_standard_normal_given_the_rest_where_the_noise_is_normal():
    """Of the last group, whatever the standard deviations, coefficients and deviations of the other are."""
    rng = np.random.default_rng(6)
    y, place, brood = nested(rng, 0.5, 0.3)
    good = mixed(np.log1p(y), place, brood, likelihood=NormalNoise()).in_good_coordinates()
    rest, inside = good.dim - 120, 120
    with jax.enable_x64(True):
        potential = jax.jit(lambda theta: good.potential(theta))
        for sds in ((-2.0, 1.0), (1.5, -1.5)):
            theta = 0.5 * rng.standard_normal(good.dim)
            theta[1] = 0.0  # the σ at which the evidence was found
            theta[2], theta[rest - 1] = sds
            z = rng.standard_normal(inside)
            at = [potential(np.concatenate([theta[:rest], size * z])) for size in (0.0, 1.0, -2.0)]
            np.testing.assert_allclose(np.diff(at), np.diff([0.0, z @ z / 2, 2 * z @ z]), rtol=1e-6)


def test_a_model_of_groups_alone_and_a_loss_that_overflows_have_coordinates():
    y, place, brood = nested(np.random.default_rng(1), 0.5, 0.3)
    target = mixed(y, place, brood)
    alone = eqx.tree_at(lambda t: t.X, target, target.X[:, :0]).in_good_coordinates()
    assert [group.evidence.before.shape for group in alone.groups] == [(60, 0), (120, 60)]
    huge = eqx.tree_at(lambda t: t.y, target, np.full(len(y), np.inf)).in_good_coordinates()
    assert [group.evidence for group in huge.groups] == [None, None]


@pytest.mark.parametrize(("places", "broods"), [(0.6, 0.3), (0.2, 0.7), (0.0, 0.6)])
def test_a_rough_fit_tells_groups_apart(places, broods):
    y, place, brood = nested(np.random.default_rng(1), places, broods)
    target = mixed(y, place, brood)
    found = RoughFit(target, target.groups)
    for part, truth, chance in zip(found.parts, (places, broods), (broods**2 / 2, 0.02), strict=True):
        # the variance of a sample variance of normal numbers, at three standard errors
        assert abs(part.between - truth**2) < 3 * np.sqrt(2 / len(part.doubt)) * (truth**2 + chance)
    # the variance of a place's effect by chance is that of its two broods
    expected = (broods**2 + 1 / (20 * np.exp(1.0))) / 2
    assert abs(np.median(found.evidence(0)[0].variance) / expected - 1) < 0.4


def test_groups_with_slopes_are_centred_where_their_rows_say_more_than_their_law():
    """Ten levels with 40 rows each and large slopes are centred; with three rows and slopes of 0.1 they are not."""
    rng = np.random.default_rng(1)
    for rows, sd, expected in ((40, 0.8, True), (3, 0.1, False)):
        level = np.repeat(np.arange(30), rows)
        Z = np.column_stack([np.ones(30 * rows), rng.standard_normal(30 * rows)])
        b = sd * rng.standard_normal((30, 2))
        y = rng.poisson(np.exp(0.5 + np.sum(Z * b[level], axis=1))).astype(float)
        (group,) = mixed(y, level, Z=Z).in_good_coordinates().groups
        assert group.centred is expected
        assert group.evidence is None


def test_rows_that_are_held_out_change_no_coordinates():
    rng = np.random.default_rng(2)
    level = np.repeat(np.arange(100), 6)
    target = mixed(rng.poisson(np.exp(0.5 + 0.8 * rng.standard_normal(100)[level])).astype(float), level)
    half = eqx.tree_at(lambda t: t.weights, target, (np.arange(600) % 2).astype(float))
    ours, theirs = (one.in_good_coordinates().groups for one in (half, target))
    assert eqx.tree_equal(ours, theirs)


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
