"""Bias and variance at the plan's own step size: on a grid for few coordinates, first order with an error for others."""

import numpy as np
import pytest

import gyromc as gm
from gyromc.prediction.exact.moments import exact_moments
from gyromc.prediction.grid import grid_chain
from support.values import skew

ROTATED = gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]])


def simulated(force, values, start, *, eta, steps, chains, D=1.0, seed=0):
    """Averages of h over chains of Euler-Maruyama, in plain NumPy: mean, its standard error, standard deviation of one chain."""
    rng = np.random.default_rng(seed)
    z = (
        np.repeat(np.atleast_2d(np.asarray(start, float)), chains, axis=0)
        if np.ndim(start) < 2
        else np.array(start, float)
    )
    total = np.zeros(len(z))
    for _ in range(steps):
        total += values(z)
        z = z - eta * force(z, rng) + np.sqrt(2 * eta * D) * rng.standard_normal(z.shape)
    averages = total / steps
    return averages.mean(), averages.std(ddof=1) / np.sqrt(len(z)), averages.std(ddof=1)


def cosine(beta):
    return lambda z, rng: z - beta * np.sin(z)


@pytest.mark.parametrize("eta", [0.4, 0.1])
@pytest.mark.parametrize(
    ("target", "dynamics", "u"),
    [
        (gm.targets.Quadratic([1.5]), gm.dynamics.overdamped(1), [1.0]),
        (gm.targets.Quadratic([[2.0, 0.5], [0.5, 1.0]]), ROTATED, [1.0, 0.5]),
        (gm.targets.Quadratic([1.0]), gm.dynamics.hfhr(1, 0.5, 2.0), [1.0]),
    ],
)
def test_the_grid_is_exact_on_a_gaussian(target, dynamics, u, eta):
    h, steps = gm.observables.square(u), 10**6
    plan = gm.Plan(
        target=target,
        dynamics=dynamics,
        oracle=gm.oracles.Gaussian(0.5),
        observables={"h": h},
        step_size=eta,
        num_steps=steps,
        start=np.full(len(u), 1.5),
    )
    found, truth = grid_chain(plan, h, tuple(range(dynamics.size))), exact_moments(plan)["h"]
    np.testing.assert_allclose(found.mean.value + found.transient.value / steps, truth.mean, rtol=1e-6)
    np.testing.assert_allclose(found.variance / steps, truth.variance, rtol=1e-3)  # N is finite, the grid's N is not


def test_the_bias_is_not_of_first_order_only():
    """At 0.2 of the limit first order gives half of it."""
    h = gm.observables.square([1.0, 0.0])
    plan = gm.Plan(
        target=gm.targets.CosinePerturbed(2, 0.5), dynamics=ROTATED, observables={"h": h}, step_size=0.4, num_steps=1000
    )
    row = gm.predict(plan)["h"]

    def force(z, rng):
        g = z - 0.5 * np.sin(z)
        return np.stack([g[:, 0] - g[:, 1], g[:, 0] + g[:, 1]], axis=1)

    mean, error, deviation = simulated(force, lambda z: z[:, 0] ** 2, [0.0, 0.0], eta=0.4, steps=1000, chains=2000)
    assert abs(row.mean - mean) < 4 * error + 4 * row.bias_error
    assert error < 0.01 * row.bias
    assert abs(row.std / deviation - 1) < 4 / np.sqrt(2 * 2000) + 0.02


def test_a_far_start_is_followed():
    plan = gm.Plan(
        target=gm.targets.CosinePerturbed(1, 0.5),
        dynamics=gm.dynamics.overdamped(1),
        observables={"h": gm.observables.tanh([1.0])},
        step_size=0.1,
        num_steps=1000,
        start=[12.0],
    )
    row = gm.predict(plan)["h"]
    mean, error, _ = simulated(cosine(0.5), lambda z: np.tanh(z[:, 0]), [12.0], eta=0.1, steps=1000, chains=4000)
    assert abs(row.bias - mean) < 4 * error + 4 * row.bias_error
    assert 0 < row.bias_error < 0.1 * row.bias


def test_a_far_start_with_many_coupled_coordinates_is_followed_or_left_out():
    d = 3
    plan = gm.Plan(
        target=gm.targets.CosinePerturbed(d, 0.5),
        dynamics=gm.dynamics.nonreversible(skew(d, 1)),
        observables={"h": gm.observables.tanh(np.eye(d)[0])},
        step_size=0.05,
        num_steps=2000,
        start=np.full(d, 12.0),
    )
    row = gm.predict(plan)["h"]
    if row.bias is None or not row.start_counted:
        assert "start" in row.bias_method
        return
    force = lambda z, rng: (z - 0.5 * np.sin(z)) @ (np.eye(d) + skew(d, 1)).T
    mean, error, _ = simulated(force, lambda z: np.tanh(z[:, 0]), np.full(d, 12.0), eta=0.05, steps=2000, chains=1000)
    assert abs(row.bias - mean) < 4 * error + 4 * row.bias_error


@pytest.mark.parametrize("eta", [0.02, pytest.param(0.003, marks=pytest.mark.slow)])
def test_mini_batches_with_two_parameters_have_bias_and_floor(eta):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((100, 2))
    y = (rng.random(100) < 1 / (1 + np.exp(-X @ [1.0, -1.0]))) * 1.0
    plan = gm.Plan(
        target=gm.targets.LogisticRegression(X, y),
        dynamics=gm.dynamics.overdamped(2),
        oracle=gm.oracles.Minibatch(5),
        observables={"h": gm.observables.linear([1.0, 0.0])},
        step_size=eta,
        num_steps=round(20 / eta),
        start=[1.0, -1.0],
    )
    row = gm.predict(plan)["h"]

    def force(z, rng):
        rows = rng.integers(100, size=(len(z), 5))
        t = np.einsum("sbi,si->sb", X[rows], z)
        return 20 * np.einsum("sb,sbi->si", 1 / (1 + np.exp(-t)) - y[rows], X[rows]) + z

    mean, error, deviation = simulated(
        force, lambda z: z[:, 0], [1.0, -1.0], eta=eta, steps=round(20 / eta), chains=1000
    )
    assert abs(row.mean - mean) < 4 * error + 4 * row.bias_error
    assert row.bias > 4 * error
    assert abs(row.std / deviation - 1) < 4 / np.sqrt(2 * 1000) + 0.05


def test_the_error_of_a_first_order_bias_covers_the_second():
    d = 3
    J = skew(d, 3)
    plan = gm.Plan(
        target=gm.targets.CosinePerturbed(d, 0.5),
        dynamics=gm.dynamics.nonreversible(J),
        observables={"h": gm.observables.square(np.eye(d)[0])},
        step_size=0.15,
        num_steps=2000,
    )
    row = gm.predict(plan)["h"]
    force = lambda z, rng: (z - 0.5 * np.sin(z)) @ (np.eye(d) + J).T
    mean, error, _ = simulated(force, lambda z: z[:, 0] ** 2, np.zeros(d), eta=0.15, steps=2000, chains=1000)
    assert abs(row.mean - mean) < 4 * row.bias_error + 4 * error
    assert row.bias_error > 0.1 * row.bias


def test_every_start_counts():
    """200 starts, the first 32 of them on one side: E tanh(θ_0) over all is known."""
    starts = np.concatenate([np.full(32, 3.0), np.full(168, -3.0)])[:, None]
    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0]),
        dynamics=gm.dynamics.overdamped(1),
        observables={"h": gm.observables.tanh([1.0])},
        step_size=0.1,
        num_steps=1,
        num_chains=200,
        start=starts,
    )
    np.testing.assert_allclose(gm.predict(plan).mean["h"], np.mean(np.tanh(starts)), rtol=1e-6)


def test_a_random_start_has_an_error():
    import jax

    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0]),
        dynamics=gm.dynamics.overdamped(1),
        observables={"x": gm.observables.linear([1.0]), "s": gm.observables.square([1.0])},
        step_size=0.1,
        num_steps=10,
        num_chains=4,
        start=lambda key: 2.0 + 3.0 * jax.random.normal(key, (1,)),
    )
    row = gm.predict(plan)["x"]
    share = np.mean(0.9 ** np.arange(10))
    assert 0 < abs(row.bias - 2.0 * share) < 4 * row.bias_error
    np.testing.assert_allclose(row.bias_error, 3.0 * share / 64, rtol=0.1)
    square = gm.predict(plan)["s"]
    inside = np.mean(0.81 ** np.arange(10))
    truth = np.mean([0.81**k * 13 + 0.2 * (1 - 0.81**k) / 0.19 for k in range(10)]) - 1
    assert abs(square.bias - truth) < 4 * square.bias_error
    assert square.bias_error < 40 * inside / 64
    assert "start drawn 4096 times" in row.bias_method
