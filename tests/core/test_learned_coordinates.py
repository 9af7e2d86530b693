"""Coordinates learned from draws: a bijection with its determinant, exact on a funnel, and used by `expect` where it sees one."""

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.coordinates import check_coordinates, funnel_shaped


def funnel_draws(count=4000, others=4, seed=0):
    """Neal's funnel: v ~ N(0, 9), x | v ~ N(0, e^v)."""
    rng = np.random.default_rng(seed)
    v = 3 * rng.normal(size=count)
    return np.column_stack([v, np.exp(v / 2)[:, None] * rng.normal(size=(count, others))])


def centred_groups(count=4000, seed=0):
    """θ = μ + τ·noise with log τ ~ N(0, 1)."""
    rng = np.random.default_rng(seed)
    mu, log_tau = rng.normal(size=(2, count))
    return np.column_stack([mu, log_tau, mu[:, None] + np.exp(log_tau)[:, None] * rng.normal(size=(count, 3))])


@pytest.mark.parametrize(
    "draws", [funnel_draws(), centred_groups(), np.random.default_rng(1).gamma(2.0, size=(500, 3))]
)
def test_a_bijection_with_its_determinant(draws):
    found = gm.coordinates.learn(draws)
    for theta in draws[:3]:
        check_coordinates(found, theta)


@pytest.mark.parametrize(("draws", "scale"), [(funnel_draws(), 0), (centred_groups(), 1)])
def test_a_funnel_becomes_normal(draws, scale):
    """Scales and fourth moments of z are those of N(0, 1) within 5 standard errors, and no scale depends on the driver."""
    z = gm.coordinates.learn(draws).zs(draws)
    n = len(z)
    assert np.all(np.abs(z.std(axis=0) - 1) < 5 / np.sqrt(2 * n) + 0.02)
    assert np.all(np.abs(np.mean(z**4, axis=0) - 3) < 5 * np.sqrt(96 / n) + 0.3)
    for i in range(2, z.shape[1]):
        assert abs(np.corrcoef(z[:, scale], np.log(np.abs(z[:, i])))[0, 1]) < 5 / np.sqrt(n)


def test_a_bent_margin_is_straightened_and_a_normal_one_left_alone():
    rng = np.random.default_rng(2)
    draws = np.column_stack([np.log(rng.gamma(0.3, size=4000)), rng.normal(3.0, 2.0, size=4000)])
    found = gm.coordinates.learn(draws)
    z = found.zs(draws)
    skewness = np.mean(((z - z.mean(axis=0)) / z.std(axis=0)) ** 3, axis=0)
    # log Γ(0.3) itself has -1.9; a map with four numbers leaves a quarter of it
    assert np.all(np.abs(skewness) < 0.5)
    m, s, delta, epsilon = found.margins[:, 1]
    assert (delta, epsilon) == (1.0, 0.0)
    assert abs(m - 3) < 0.2
    assert abs(s - 2) < 0.15


def test_funnels_are_told_from_other_laws():
    rng = np.random.default_rng(3)
    assert funnel_shaped(funnel_draws())
    assert funnel_shaped(centred_groups())
    product = rng.normal(size=(4000, 3)) * np.exp(0.5 * rng.normal(size=(4000, 1)))
    for other in (rng.normal(size=(4000, 5)), rng.standard_t(3, size=(4000, 5)), product):
        assert not funnel_shaped(other)


def test_expect_is_right_on_neals_funnel():
    """E v = 0 and E x²e^-v = 1 within 4.5 stated errors, which are at most 0.05 standard deviations; linear chains have 0.1."""

    def density(theta):
        v, x = theta[0], theta[1:]
        return -(v**2) / 18 - jnp.sum(x**2) * jnp.exp(-v) / 2 - len(x) * v / 2

    asked = {"v": lambda t: t[0], "white": lambda t: t[1] ** 2 * jnp.exp(-t[0])}
    found = gm.expect(gm.targets.LogDensity(density), asked, start=np.zeros(6), error=0.05, gradients=1e6)
    assert any("coordinates" in hint for hint in found.hints)
    for name, exact in (("v", 0.0), ("white", 1.0)):
        assert found[name].relative_error < 0.05
        assert abs(found[name].mean - exact) < 4.5 * found[name].std_error


def test_given_coordinates_are_used_and_checked():
    """A law with a curved ridge is normal in the user's coordinates: E θ₁ = E θ₀² = 1 with almost no error."""
    bend = gm.coordinates.Bijection(
        lambda z: jnp.array([z[0], z[1] + z[0] ** 2]),
        lambda t: jnp.array([t[0], t[1] - t[0] ** 2]),
        lambda z: 0.0 * z[0],
    )
    target = gm.targets.LogDensity(lambda t: -0.5 * t[0] ** 2 - 5 * (t[1] - t[0] ** 2) ** 2)
    found = gm.expect(target, {"y": lambda t: t[1]}, start=np.zeros(2), coordinates=bend)
    assert abs(found["y"].mean - 1) < 5 * found["y"].std_error < 0.01
    with pytest.raises(gm.InvalidInput, match="learned"):
        gm.expect(target, start=np.zeros(2), coordinates="bent")
    with pytest.raises(gm.InvalidInput, match="not a bijection"):
        gm.expect(target, start=np.ones(2), coordinates=gm.coordinates.Bijection(lambda z: z, lambda t: t + 1))


def test_too_few_draws_are_said():
    with pytest.raises(gm.InvalidInput, match="at least 100"):
        gm.coordinates.learn(np.zeros((50, 2)))
    with pytest.raises(gm.InvalidInput, match="last axis"):
        gm.coordinates.learn(np.zeros(50))
