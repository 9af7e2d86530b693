"""Oracles are unbiased, with the covariance the theory gives them."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.approx.modes import find_mode
from support.values import SUMS as TARGETS
from support.values import THETA, logistic, spd
from support.zscores import largest, mean_score, proportion_score, second_moment_scores


@pytest.mark.parametrize("name", TARGETS)
def test_the_gradient_is_the_derivative_of_the_potential(name):
    target = TARGETS[name]
    with jax.enable_x64(True):
        theta = jnp.asarray(THETA)
        assert np.allclose(target.gradient(theta), jax.grad(target.potential)(theta), rtol=1e-12)
        everything = jnp.arange(target.num_data)
        parts = target.batch_gradient(theta, everything) + target.prior_gradient(theta)
        assert np.allclose(parts, target.gradient(theta), rtol=1e-12)


@eqx.filter_jit
def of_batches(oracle, target, theta, batches, index):
    """The estimates of all batches, the gradient, and the gradients of single rows."""
    values = jax.vmap(lambda b: oracle.gradient(target, theta, b))(batches)
    return values, target.gradient(theta), jax.vmap(lambda i: target.batch_gradient(theta, i))(index)


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("oracle", [gm.oracles.Minibatch(2), gm.oracles.ControlVariate(2, center=[0.1, 0.2, -0.3])])
def test_over_all_batches_the_mean_is_the_gradient(name, oracle):
    """With replacement, all N² batches of two are equally likely: the average over them is exact."""
    target = TARGETS[name]
    with jax.enable_x64(True):
        oracle = oracle.prepared(gm.Model(target, np.zeros(3)))
        batches = jnp.asarray(list(itertools.product(range(target.num_data), repeat=2)))
        index = jnp.arange(target.num_data)[:, None]
        values, exact, each = of_batches(oracle, target, jnp.asarray(THETA), batches, index)
        values, terms = np.asarray(values), target.num_data * np.asarray(each)
    assert np.allclose(values.mean(axis=0), exact, rtol=1e-12)
    if isinstance(oracle, gm.oracles.Minibatch):  # Var = (1/b) Var of N∇ℓ_i
        assert np.allclose(np.cov(values.T, bias=True), np.cov(terms.T, bias=True) / 2, rtol=1e-10)


@pytest.mark.parametrize("size", [1, 7, 32])
def test_indices_are_uniform_independent_and_fresh(size):
    target, chains = logistic(rows=5), 20_000
    oracle = gm.oracles.Minibatch(size)
    index = np.asarray(oracle.draw(jax.random.key(0), target, chains, 3, jnp.float32))
    assert index.shape == (chains, size)
    draws = chains * size
    assert largest(proportion_score(np.bincount(index.ravel(), minlength=5), draws, 0.2)) < 4.5
    other = np.asarray(oracle.draw(jax.random.key(1), target, chains, 3, jnp.float32))
    assert largest(proportion_score(np.sum(index == other), draws, 0.2)) < 4.5
    assert largest(proportion_score(np.sum(index[:-1] == index[1:]), draws - size, 0.2)) < 4.5


def test_gaussian_noise_has_the_size_it_says():
    target = gm.targets.Quadratic(spd(3, 1))
    oracle = gm.oracles.Gaussian(0.4)
    zeta = oracle.draw(jax.random.key(3), target, 200_000, 3, jnp.float32)
    noise = np.asarray(jax.vmap(lambda s: oracle.gradient(target, jnp.zeros(3), s))(zeta))
    assert largest(mean_score(noise, 0), second_moment_scores(noise, 0.16 * np.eye(3))) < 4.5


def test_a_control_variate_at_the_mode_has_no_noise_there():
    target = logistic()
    oracle = gm.oracles.ControlVariate(2).prepared(gm.Model(target))
    mode = find_mode(target, np.zeros(3))
    with jax.enable_x64(True):
        assert np.abs(target.gradient(jnp.asarray(mode))).max() < 1e-8
        values = [oracle.gradient(target, jnp.asarray(mode), jnp.asarray(b)) for b in ([0, 0], [1, 4], [2, 3])]
    assert np.abs(values).max() < 1e-8


def test_a_mode_that_does_not_exist_is_reported():
    rising = gm.targets.LogDensity(
        lambda x: jnp.exp(x).sum()
    )  # found out sooner than a slope that is the same everywhere
    with pytest.raises(gm.InvalidInput, match="No mode was found"):
        find_mode(rising, np.zeros(2))
