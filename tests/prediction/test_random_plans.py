"""Random plans: no bias, error or stability limit may be off by more than it says. Independent references, fixed seeds."""

import numpy as np
import pytest

import gyromc as gm
from gyromc.prediction.stability import Linearisation, stability
from support import exact
from support.values import skew

MANY = 100


def few_and_many(few):
    """A few cases by default, `MANY` with the slow tests."""
    return [*range(few), *(pytest.param(k, marks=pytest.mark.slow) for k in range(few, MANY))]


def batch_plan(seed):
    """A random regression with mini-batches small enough that all of them can be listed, and random dynamics."""
    rng = np.random.default_rng([1, seed])
    d, rows, size = int(rng.integers(1, 6)), int(rng.integers(3, 13)), int(rng.integers(1, 3))
    n = d * int(rng.integers(1, 3))
    X = rng.standard_normal((rows, d)) * rng.lognormal(0, 0.5, d)
    dynamics = gm.dynamics.overdamped(d) if n == d else gm.dynamics.hfhr(d, rng.uniform(0.2, 2), rng.uniform(0.5, 4))
    if n == d and d > 1 and rng.random() < 0.5:
        dynamics = gm.dynamics.nonreversible(skew(d, rng, size=rng.uniform(0.2, 3)))
    replace = bool(rng.random() < 0.5)
    target = gm.targets.LinearRegression(X, rng.standard_normal(rows), prior_scale=rng.uniform(0.5, 3))
    oracle = (
        gm.oracles.Minibatch(size, replace)
        if rng.random() < 0.7
        else gm.oracles.ControlVariate(size, np.zeros(d), replace)
    )
    return gm.Plan(
        target=target,
        dynamics=dynamics,
        oracle=oracle,
        observables={"h": gm.observables.linear(rng.standard_normal(d))},
        step_size=float(rng.uniform(0.1, 1.2) / np.linalg.norm(target.gaussian()[0], 2)),
        num_steps=int(rng.integers(1, 60)),
        burn_in=int(rng.integers(0, 4)),
        start=rng.standard_normal(d),
    )


def lifted_radius(plan):
    """The radius of E[zzᵀ] ↦ E[zzᵀ] in one step, from every batch's own map."""
    n, d, G = plan.dynamics.size, plan.dim, plan.dynamics.D + plan.dynamics.Q
    total, batches = np.zeros((n * n, n * n)), exact.gradients(plan)
    for slope, _ in batches:
        P = np.eye(n)
        P[:d, :d] = slope
        M = np.eye(n) - plan.step_size * G @ P
        total += np.kron(M, M) / len(batches)
    return np.max(np.abs(np.linalg.eigvals(total)))


@pytest.mark.parametrize("seed", few_and_many(6))
def test_mini_batches_are_exact(seed):
    plan = batch_plan(seed)
    found, truth = gm.predict(plan), exact.moments(plan)
    np.testing.assert_allclose(found.mean["h"], truth.mean, rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(found.std["h"] ** 2, truth.variance, rtol=1e-6, atol=1e-12)
    assert found.stability.how in (Linearisation.EXACT_WITH_NOISE, Linearisation.EXACT)
    np.testing.assert_allclose(found.stability.radius, lifted_radius(plan), rtol=1e-5)
    limit = found.largest_step_size
    assert (
        lifted_radius(plan.replace(step_size=0.999 * limit)) < 1 < lifted_radius(plan.replace(step_size=1.001 * limit))
    )


def logistic_plan(seed):
    rng = np.random.default_rng([2, seed])
    d, rows, size = int(rng.integers(1, 3)), int(rng.integers(20, 80)), int(rng.integers(1, 12))
    X = rng.standard_normal((rows, d)) * rng.uniform(0.5, 1.5, d)
    y = (rng.random(rows) < 1 / (1 + np.exp(-X @ rng.standard_normal(d)))) * 1.0
    plan = gm.Plan(
        target=gm.targets.LogisticRegression(X, y, prior_scale=rng.uniform(0.5, 2)),
        dynamics=gm.dynamics.overdamped(d),
        oracle=gm.oracles.Minibatch(size),
        observables={"h": gm.observables.linear(rng.standard_normal(d))},
        step_size=1e-3,
        start=rng.standard_normal(d),
    )
    eta = float(rng.uniform(0.02, 0.4)) * stability(plan).largest_step_size
    return plan.replace(step_size=eta, num_steps=400)


def simulated(plan, chains, seed):
    """Averages of a mini-batch logistic regression, in plain NumPy."""
    target, b, eta = plan.target, plan.oracle.size, plan.step_size
    X, y, rng = target.X, target.y, np.random.default_rng(seed)
    u, z = plan.observables["h"].direction, np.repeat(np.asarray(plan.start)[None], chains, axis=0)
    total = np.zeros(chains)
    for _ in range(plan.num_steps):
        total += z @ u
        rows = rng.integers(len(X), size=(chains, b))
        t = np.einsum("sbi,si->sb", X[rows], z)
        force = len(X) / b * np.einsum("sb,sbi->si", 1 / (1 + np.exp(-t)) - y[rows], X[rows])
        z = z - eta * (force + float(target.prior_precision) * z) + np.sqrt(2 * eta) * rng.standard_normal(z.shape)
    return total / plan.num_steps


@pytest.mark.parametrize("seed", few_and_many(0))
def test_mini_batch_logistic_regressions_with_few_parameters(seed):
    """Mean of an average within four claimed errors of a simulation; the claim may be that nothing is known."""
    plan = logistic_plan(seed)
    row = gm.predict(plan)["h"]
    if row.bias is None or "left out" in row.bias_method:
        pytest.skip(f"nothing is claimed: {row.bias_method}")
    averages = simulated(plan, 1000, seed)
    error = np.std(averages, ddof=1) / np.sqrt(len(averages))
    assert abs(row.mean - averages.mean()) < 4 * np.hypot(error, row.bias_error) + 4 * row.expectation_error


@pytest.mark.parametrize("seed", few_and_many(4))
def test_starts_of_every_kind(seed):
    """Many fixed starts, near and far, on a Gaussian: linear, square and bounded observables against sums over all starts."""
    rng = np.random.default_rng([3, seed])
    d, chains = int(rng.integers(1, 4)), int(rng.integers(1, 200))
    K = np.diag(rng.lognormal(0, 1, d))
    starts = rng.standard_normal((chains, d)) * rng.choice([0.1, 1.0, 10.0]) + rng.choice([0.0, 5.0])
    u, eta = rng.standard_normal(d), float(rng.uniform(0.05, 0.9) / K.max())
    steps, burn_in = int(rng.integers(1, 40)), int(rng.integers(0, 5))
    names = {"x": gm.observables.linear(u), "s": gm.observables.square(u), "t": gm.observables.tanh(u)}
    plan = gm.Plan(
        target=gm.targets.Quadratic(K),
        dynamics=gm.dynamics.overdamped(d),
        observables=names,
        step_size=eta,
        num_steps=steps,
        burn_in=burn_in,
        num_chains=chains,
        start=starts,
    )
    found = gm.predict(plan)
    M, nodes, weights = 1 - eta * np.diag(K), *np.polynomial.hermite_e.hermegauss(200)
    weights = weights / weights.sum()
    expected = dict.fromkeys(names, 0.0)
    for k in range(burn_in, burn_in + steps):
        covariance = 2 * eta * sum(M ** (2 * j) for j in range(k)) if k else 0 * M
        centers, deviation = (starts * M**k) @ u, np.sqrt(np.sum(u**2 * covariance))
        t = centers[:, None] + deviation * nodes
        for name, rho in (("x", lambda t: t), ("s", np.square), ("t", np.tanh)):
            expected[name] += float(np.mean(rho(t) @ weights)) / steps
    for name in names:
        np.testing.assert_allclose(found.mean[name], expected[name], rtol=2e-4, atol=2e-4 * np.abs(starts).max())
