"""Which step sizes are stable: mini-batches of any size, and targets whose curvature is not that of the mode."""

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.prediction.assumptions import verdicts
from gyromc.prediction.exact.moments import exact_moments
from gyromc.prediction.stability import Linearisation, stability
from support import exact
from support.values import skew


def plan_of(target, **settings):
    d = target.dim or 1
    settings = {"dynamics": gm.dynamics.overdamped(d), "step_size": 1e-3, "num_steps": 100, **settings}
    return gm.Plan(target=target, observables={"h": gm.observables.linear(np.eye(d)[0])}, **settings)


def regression(rows, d, seed=0, kind=gm.targets.LinearRegression):
    rng = np.random.default_rng(seed)
    y = rng.standard_normal(rows) if kind is gm.targets.LinearRegression else (rng.random(rows) < 0.5) * 1.0
    return kind(rng.standard_normal((rows, d)), y)


def test_second_moments_can_be_unstable_where_the_mean_is_stable():
    target = gm.targets.LinearRegression(np.diag([3.0, 0.1, 0.1]), np.zeros(3))
    plan = plan_of(target, oracle=gm.oracles.Minibatch(1), step_size=0.1, num_steps=10**6, start=[1.0, 0.0, 0.0])
    # one coordinate alone: E[(1 - η(1 + 27·1{i=0}))²], by hand
    factor = lambda eta: (1 - eta * 28) ** 2 / 3 + (1 - eta) ** 2 * 2 / 3
    found = stability(plan)
    np.testing.assert_allclose(found.radius, factor(0.1), rtol=1e-9)
    np.testing.assert_allclose(factor(found.largest_step_size), 1.0, rtol=1e-5)
    assert exact_moments(plan)["h"].variance == np.inf


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("d", [2, 9])
@pytest.mark.parametrize("kind", ["overdamped", "rotated", "momentum", "critically damped"])
def test_the_radius_is_that_of_the_lifted_matrix(kind, d, replace):
    """E[zzᵀ] in one step as an n² × n² matrix, from every batch's own map."""
    target = regression(12, d)
    dynamics = {
        "overdamped": gm.dynamics.overdamped(d),
        "rotated": gm.dynamics.nonreversible(skew(d, 1, size=0.7)),
        "momentum": gm.dynamics.hfhr(d, 0.5, 2.0),
        "critically damped": gm.dynamics.hfhr(d, 1.0, 2 * np.sqrt(target.gaussian()[0][0, 0])),
    }[kind]
    plan = plan_of(target, dynamics=dynamics, oracle=gm.oracles.Minibatch(2, replace), step_size=0.008)
    n, G = dynamics.size, dynamics.D + dynamics.Q
    lifted = np.zeros((n * n, n * n))
    batches = exact.gradients(plan)
    for slope, _ in batches:
        P = np.eye(n)
        P[:d, :d] = slope
        M = np.eye(n) - plan.step_size * G @ P
        lifted += np.kron(M, M) / len(batches)
    np.testing.assert_allclose(stability(plan).radius, np.max(np.abs(np.linalg.eigvals(lifted))), rtol=1e-6)


def test_mini_batches_count_at_any_size():
    """30 parameters, batches of 2: second moments are exact, and above the limit chains leave although the mean contracts."""
    plan = plan_of(regression(60, 30), oracle=gm.oracles.Minibatch(2), num_chains=64, num_steps=2000)
    found = stability(plan)
    assert found.how is Linearisation.EXACT_WITH_NOISE
    mean = stability(plan.replace(oracle=gm.oracles.Exact())).largest_step_size
    assert found.largest_step_size < mean / 4
    assert stability(plan.replace(step_size=0.99 * found.largest_step_size)).stable
    assert not stability(plan.replace(step_size=1.01 * found.largest_step_size)).stable
    with pytest.raises(gm.DivergenceError):
        gm.run(plan.replace(step_size=mean / 2))


def test_noise_that_is_not_counted_is_named(monkeypatch):
    monkeypatch.setattr("gyromc.prediction.stability.MOST_PRODUCTS", 1000)
    plan = plan_of(regression(60, 30), oracle=gm.oracles.Minibatch(2))
    found = stability(plan)
    assert found.how is Linearisation.WITHOUT_NOISE
    assert not found.how.exact
    assert "noise is not counted" in str(found)
    judged = {v.name: v for v in verdicts(plan, found)}["step size"]
    assert judged.status == "not certified"
    assert "lowers the limit" in judged.sentence
    assert stability(plan.replace(oracle=gm.oracles.Gaussian(1.0))).how is Linearisation.EXACT


def test_mini_batches_of_a_generalized_linear_model_lower_the_limit():
    plan = plan_of(regression(200, 5, kind=gm.targets.LogisticRegression), oracle=gm.oracles.Minibatch(1))
    found, without = stability(plan), stability(plan.replace(oracle=gm.oracles.Exact()))
    assert found.how is Linearisation.AT_MODE_WITH_NOISE
    assert found.largest_step_size < without.largest_step_size / 2


def test_a_linear_force_far_out_decides():
    """∇U = θ + a bounded term: stable below η = 2 exactly, whatever the curvature at the mode."""
    plan = plan_of(gm.targets.CosinePerturbed(1, 1.2), num_steps=2000, num_chains=16)
    found = stability(plan)
    assert found.how is Linearisation.FAR
    np.testing.assert_allclose(found.largest_step_size, 2.0, rtol=0.01)
    gm.run(plan.replace(step_size=1.9))
    with pytest.raises(gm.DivergenceError):
        gm.run(plan.replace(step_size=2.1))
    for step, status in ((1.0, "not certified"), (8.0, "fails")):
        at = plan.replace(step_size=step)
        judged = {v.name: v for v in verdicts(at, stability(at))}["step size"]
        assert judged.status == status
        assert "curvature elsewhere" in judged.sentence
        assert "diverge" not in judged.sentence
    assert "may stay bounded for long" in judged.sentence
    assert "diverge" not in gm.predict(plan.replace(step_size=8.0)).rmse_method["h"]


def test_a_force_that_grows_faster_than_linearly_is_said_to():
    plan = plan_of(
        gm.targets.LogDensity(lambda x: -(x[0] ** 2) / 2 - x[0] ** 4 / 10), start=[0.3], num_steps=3000, num_chains=64
    )
    found = stability(plan)
    assert found.how is Linearisation.AT_EDGE
    assert "at every step size" in found.how.caveat
    # U = 20 at θ = 3.44, where ∇U/θ = 1 + 0.4 θ² = 5.74
    np.testing.assert_allclose(found.largest_step_size, 2 / 5.74, rtol=0.01)
    gm.run(plan.replace(step_size=0.8 * found.largest_step_size))
    with pytest.raises(gm.DivergenceError):
        gm.run(plan.replace(step_size=2.0 * found.largest_step_size))


def test_lighter_growth_leaves_the_limit_at_the_mode():
    student = gm.targets.LogDensity(lambda x: -2.0 * jnp.sum(jnp.log1p(x**2 / 3)))
    found = stability(plan_of(student, start=[0.3]))
    assert found.how is Linearisation.AT_MODE
    np.testing.assert_allclose(found.largest_step_size, 1.5, rtol=1e-3)
