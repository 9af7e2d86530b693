"""Chains that stand where the density is zero have failed, though their gradients are finite."""

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import failures
from gyromc.results import Cause
from support.values import in_chunks


def bounded(target, **options):
    options = {"num_steps": 400, "num_chains": 40, "start": np.ones(1), "dtype": "float64", "step_size": 0.1, **options}
    h = {"x": gm.observables.linear([1.0])}
    return gm.Plan(target=target, dynamics=gm.dynamics.overdamped(1), observables=h, **options)


DENSITY = gm.targets.LogDensity(lambda x: jnp.where(x[0] > 0, -x[0], -jnp.inf))
PRIOR = gm.targets.FiniteSum(lambda x, y: -x[0] + 0 * y, lambda x: jnp.where(x[0] > 0, 0.0, -jnp.inf), np.zeros(3))
IN_A_DICT = gm.targets.LogDensity(lambda p: jnp.where(p["x"] > 0, -p["x"], -jnp.inf))


@pytest.mark.parametrize("target", [DENSITY, PRIOR])
def test_a_density_of_zero_is_an_error_with_advice(target):
    with pytest.raises(gm.DivergenceError, match=r"density is zero or not finite there.*Transform it"):
        gm.run(bounded(target), "scan", progress=False)


def test_parameters_of_any_shape_are_checked():
    h = {"x": gm.observables.function(lambda p: p["x"])}
    plan = bounded(DENSITY).replace(target=IN_A_DICT, start={"x": np.ones(())}, observables=h)
    with pytest.raises(gm.DivergenceError, match="density is zero"):
        gm.run(plan, "scan", progress=False)


def test_such_chains_are_left_out_and_stay_out():
    plan = bounded(DENSITY, num_steps=10, step_size=0.05)
    with pytest.warns(gm.GyromcWarning, match="density is zero"):
        run = gm.run(plan, "scan", progress=False, on_divergence="report")
    bad = run.state.z[:, 0] <= 0
    assert 0 < bad.sum() < 40
    assert np.array_equal(run.diverged, bad)
    assert {failure.cause for failure in run.failures} == {Cause.DENSITY_NOT_POSITIVE}
    assert {failure.step for failure in run.failures} == {10}
    assert np.array_equal(np.isnan(run.averages["x"]), bad)
    with pytest.warns(gm.GyromcWarning, match="density is zero"):
        longer = run.continue_(1)
    assert set(run.failures) <= set(longer.failures)


def test_a_long_run_stops_early():
    """At the end of a block, not at the end of the run."""
    steps = []
    with pytest.raises(gm.DivergenceError, match="density is zero"):
        in_chunks(2**14, bounded(DENSITY, num_steps=10**6), "scan", progress=steps.append)
    assert sum(steps) < 2 * 10**5


def test_u_is_computed_for_at_most_a_hundredth_of_the_gradients(monkeypatch):
    calls = []
    count = failures.over_rows
    monkeypatch.setattr(failures, "over_rows", lambda *a, **k: calls.append(len(a[1])) or count(*a, **k))
    normal = gm.targets.LogDensity(lambda x: -0.5 * x @ x)
    run = gm.run(bounded(normal, num_steps=5000), "scan", progress=False)
    assert not run.failures
    assert 2 <= len(calls) <= 5000 / 100 + 1
    calls.clear()
    gm.run(bounded(normal, num_steps=10), "scan", progress=False)
    assert len(calls) == 1
    calls.clear()
    rows = gm.targets.FiniteSum(lambda x, y: -0.5 * (x[0] - y) ** 2, lambda x: 0.0 * x[0], np.zeros(100))
    gm.run(bounded(rows, num_steps=5000, oracle=gm.oracles.Minibatch(1), step_size=1e-3), "scan", progress=False)
    assert len(calls) == 1
    calls.clear()
    gm.run(bounded(gm.targets.Quadratic([1.0]), num_steps=5000), "scan", progress=False)
    assert not calls


def test_a_target_with_a_gradient_alone_runs_as_before():
    class Drift(gm.targets.Target):
        def potential(self, params):
            raise NotImplementedError

        def gradient(self, params):
            return params

    run = gm.run(bounded(Drift()), "scan", progress=False)
    assert not run.failures
