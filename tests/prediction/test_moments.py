"""T1 against brute force: whole trajectories written out, batches enumerated, the published formula, and the limit."""

import itertools

import numpy as np
import pytest
from scipy import linalg

import gyromc as gm
from gyromc.prediction.exact.chain import lift, linear_chain
from gyromc.prediction.exact.moments import exact_moments, ridge_mean, second_moments, why_not_exact
from support import exact
from support.values import J1, U, skew, wishart
from support.zscores import largest, z_scores

RNG = np.random.default_rng(0)


def random_plan(seed, augmented=False, observables=None, **numbers):
    rng = np.random.default_rng(seed)
    d, n = 2, 4 if augmented else 2
    Q = skew(n, rng, size=2.0)
    settings = {"step_size": 0.1, "num_steps": 7, "oracle": gm.oracles.Gaussian(0.8), "start": [1.0, -0.5]} | numbers
    return gm.Plan(
        target=gm.targets.Quadratic(wishart(d, rng), mean=rng.standard_normal(d)),
        dynamics=gm.dynamics.general(wishart(n, rng), Q),
        observables=observables
        or {"linear": gm.observables.linear([1.0, 2.0]), "square": gm.observables.square([1.0, -0.7])},
        **settings,
    )


def brute_force(plan, start):
    """Mean and variance of the averages from the joint Gaussian law, squares by Isserlis' theorem."""
    means, covariances = exact.trajectory(plan, start)
    answers = {}
    for name, h in plan.observables.items():
        u = np.concatenate([h.direction, np.zeros(means.shape[1] - plan.dim)])
        x, c = means @ u, np.einsum("i,jkil,l->jk", u, covariances, u)
        if h.profile == "linear":
            answers[name] = x.mean(), c.mean()
        else:
            answers[name] = np.mean(x**2 + np.diag(c)), np.mean(2 * c**2 + 4 * np.outer(x, x) * c)
    return answers


@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("burn_in", [0, 5])
def test_whole_trajectories_written_out(augmented, num_steps, burn_in):
    plan = random_plan(num_steps, augmented, num_steps=num_steps, burn_in=burn_in)
    moments, expected = exact_moments(plan), brute_force(plan, plan.start)
    for name in plan.observables:
        np.testing.assert_allclose([moments[name].mean, moments[name].variance], expected[name], rtol=1e-11, atol=1e-14)


def test_starts_that_differ_between_chains():
    starts = RNG.standard_normal((5, 2))
    plan = random_plan(3, start=starts, num_chains=5)
    parts = [brute_force(plan, row) for row in starts]
    for name, moments in exact_moments(plan).items():
        means, variances = np.transpose([part[name] for part in parts])
        np.testing.assert_allclose(moments.mean, means.mean(), rtol=1e-12)
        np.testing.assert_allclose(moments.variance, variances.mean() + means.var(), rtol=1e-12)


def test_random_start_is_drawn():
    import jax

    plan = random_plan(3, start=lambda key: jax.random.normal(key, (2,)), num_steps=40)
    fixed = exact_moments(plan.replace(start=[0.0, 0.0]))
    drawn = exact_moments(plan)
    assert drawn["linear"].variance > fixed["linear"].variance
    # 4096 draws: the start's mean is off by 1/64 in each coordinate (one standard error), and |uᵀS_N|/N < 1 damps it.
    assert abs(drawn["linear"].mean - fixed["linear"].mean) < 5 * np.sqrt(5) / 64


def test_published_formula():
    """T1 as written in the theory, by a discrete Lyapunov equation, at the paper's own sizes."""
    for dynamics in (gm.dynamics.nonreversible(J1), gm.dynamics.gaul([0.5, 1.5, 2.0], a=1.0, gamma=2.0)):
        plan = gm.Plan(
            target=gm.targets.Quadratic(np.ones(3)),
            dynamics=dynamics,
            oracle=gm.oracles.Gaussian(1.0),
            observables={"h": gm.observables.linear(U)},
            step_size=0.0015625,
            start=[1.0, 2.0, 0.5],
        )
        chain = linear_chain(plan)
        N, w, z0 = plan.num_steps, lift(U, chain.size), chain.starts[0]
        B, power = np.linalg.inv(np.eye(chain.size) - chain.M), np.linalg.matrix_power(chain.M, N)
        S = (np.eye(chain.size) - power) @ B
        T, Gamma = S - np.eye(chain.size), B @ chain.W @ B.T
        X = linalg.solve_discrete_lyapunov(chain.M, Gamma)
        R = X - Gamma - power @ X @ power.T
        variance = w @ ((N - 1) * Gamma - T @ Gamma - Gamma @ T.T + R) @ w / N**2
        found = exact_moments(plan)["h"]
        np.testing.assert_allclose(found.variance, variance, rtol=1e-9)
        np.testing.assert_allclose(found.mean, w @ S @ z0 / N, rtol=1e-9)


def regression(rng, rows=3, d=2):
    return gm.targets.LinearRegression(rng.standard_normal((rows, d)), rng.standard_normal(rows), prior_scale=2.0)


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("center", [None, [0.3, -0.2]])
@pytest.mark.parametrize("augmented", [False, True])
@pytest.mark.parametrize("burn_in", [0, 1])
def test_every_sequence_of_batches(replace, center, augmented, burn_in):
    """With 3 data, batches of 2 and 2 steps all 81 sequences can be listed; given one, the chain is linear and Gaussian."""
    rng = np.random.default_rng(5)
    target = regression(rng)
    n = 4 if augmented else 2
    Q = skew(n, rng, size=2.0)
    plan = gm.Plan(
        target=target,
        dynamics=gm.dynamics.general(wishart(n, rng), Q),
        oracle=gm.oracles.Minibatch(2, replace) if center is None else gm.oracles.ControlVariate(2, center, replace),
        observables={"h": gm.observables.linear([1.0, 0.5])},
        step_size=0.08,
        num_steps=3 - burn_in,
        burn_in=burn_in,
        start=[0.7, -1.0],
    )
    w = np.concatenate([[1.0, 0.5], np.zeros(n - 2)])
    averages = []
    for sequence in itertools.product(exact.gradients(plan), repeat=2):
        means, covariances = exact.trajectory(plan, plan.start, sequence)
        averages.append((np.mean(means @ w), np.mean(np.einsum("i,jkil,l->jk", w, covariances, w))))
    means, variances = np.transpose(averages)
    found = exact_moments(plan)["h"]
    np.testing.assert_allclose(found.mean, means.mean(), rtol=1e-12)
    np.testing.assert_allclose(found.variance, variances.mean() + means.var(), rtol=1e-12)
    by_recursion = exact.moments(plan)  # the reference of the engines, checked against the list of all sequences too
    np.testing.assert_allclose(by_recursion.mean, means.mean(), rtol=1e-12)
    np.testing.assert_allclose(by_recursion.variance, variances.mean() + means.var(), rtol=1e-12)


@pytest.mark.parametrize("replace", [True, False])
def test_the_reference_for_many_batches_is_that_for_few(replace):
    """The covariance of a mini-batch written down against all batches listed; squares against the joint law."""
    plan = gm.Plan(
        target=regression(np.random.default_rng(3), rows=5),
        dynamics=gm.dynamics.general(wishart(4, 1), skew(4, 2)),
        oracle=gm.oracles.Minibatch(3, replace),
        observables={"h": gm.observables.linear([1.0, 0.5])},
        step_size=0.05,
        num_steps=6,
        burn_in=2,
        start=[0.7, -1.0, 0.3, 0.2],
    )
    for one, other in zip(exact.moments(plan), exact.moments(plan, most_batches=1), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11)
    plan = plan.replace(oracle=gm.oracles.Exact())
    means, covariances = exact.trajectory(plan, [0.7, -1.0, 0.3, 0.2])
    w = np.array([1.0, 0.5, 0.0, 0.0])
    squares = (means @ w) ** 2 + np.einsum("i,jjil,l->j", w, covariances, w)
    np.testing.assert_allclose(exact.moments(plan).square, squares.mean(), rtol=1e-11)


def test_variance_approaches_v_over_eta_plus_floor():
    """T1: N·Var → V/η + s for every stable η, the sampler only in V and the oracle only in s."""
    rng = np.random.default_rng(11)
    target = regression(rng, rows=40, d=3)
    K, mean = target.gaussian()
    J = skew(3, rng, size=0.6)
    u = rng.standard_normal(3)
    for dynamics in (gm.dynamics.nonreversible(J), gm.dynamics.hfhr(3, 0.5, 2.0)):
        plan = gm.Plan(
            target=target,
            dynamics=dynamics,
            oracle=gm.oracles.Minibatch(8),
            observables={"h": gm.observables.linear(u)},
            step_size=0.004,
            num_steps=2**30,
            start=mean,
        )
        chain = linear_chain(plan)
        w = np.linalg.solve((np.eye(chain.size) - chain.M).T / 0.004, lift(u, chain.size))
        V = 2 * w @ dynamics.D @ w
        stationary = second_moments(chain, 2**20)[np.ix_([0, 1, 2, -1], [0, 1, 2, -1])]
        noise = np.einsum("iajb,ab->ij", chain.noise.tensor, stationary)
        s = np.linalg.solve(K, u) @ noise @ np.linalg.solve(K, u)
        # What is left of the start is O(1/(Nη)) of the whole.
        np.testing.assert_allclose(2**30 * exact_moments(plan)["h"].variance, V / 0.004 + s, rtol=1e-5)


def test_reasons_in_words():
    plan = random_plan(0, observables={"cube": lambda x: x[0] ** 3, "x": gm.observables.linear([1.0, 0.0])})
    assert set(exact_moments(plan)) == {"x"}
    assert "neither linear nor a square" in why_not_exact(plan, "cube")
    cosine = gm.Plan(
        target=gm.targets.CosinePerturbed(2, 1.2),
        dynamics=gm.dynamics.overdamped(2),
        observables={"x": gm.observables.linear([1.0, 0.0])},
        step_size=0.1,
    )
    assert exact_moments(cosine) == {}
    assert "not Gaussian" in why_not_exact(cosine, "x")


@pytest.mark.slow
def test_agrees_with_simulation():
    """Four z-scores over 4000 chains, all below 4; the variance's own error is √(2/R) = 2.2 %."""
    plan = random_plan(2, augmented=True, num_steps=400, step_size=0.02, num_chains=4000, burn_in=20, dtype="float64")
    run = gm.run(plan, progress=False)
    for name, moments in exact_moments(plan).items():
        assert largest(z_scores(run.averages[name], moments.mean, moments.variance)) < 4


def test_the_mean_of_a_square_by_hand():
    """Two steps from x = 1 at η = 1/2: E x₀² = 1 and E x₁² = (1 - η)² + 2η = 1.25."""
    h = gm.observables.square([1.0])
    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0]),
        dynamics=gm.dynamics.overdamped(1),
        start=[1.0],
        num_steps=2,
        observables={"x²": h},
        step_size=0.5,
    )
    mean, error = ridge_mean(linear_chain(plan), h, 2)
    assert abs(mean - (1 + 1.25) / 2) < 1e-9 + error
    assert error < 1e-6
