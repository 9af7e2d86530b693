"""Tuned plans for NumPyro models: budgets, mini-batches, and fields that are asked for."""

import warnings

import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist

import gyromc as gm
from gyromc.interop import numpyro as gnp
from gyromc.interop.numpyro import planning

MEAN, SD = 4 / 4.25, np.sqrt(1 / 4.25)  # of `normal` with y = 1


def heavy():
    m = numpyro.sample("m", dist.StudentT(3.0, 0.0, 1.0))
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=jnp.zeros(1) * m)


def normal(y):
    numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 2.0)), 0.5), obs=y)


def rates(exposure, y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", len(exposure), subsample_size=4) as index:
        numpyro.sample("y", dist.Poisson(rate * exposure[index]), obs=y[index])


@pytest.fixture(scope="module")
def target():
    return gnp.target(normal, np.array([1.0]))


@pytest.fixture(scope="module")
def tuned(target):
    return gnp.tune(target, gradients=4000)


@pytest.fixture
def budgets(tuned, monkeypatch):
    """What the tuner is asked for; it answers with the plan that was tuned before."""
    asked = []
    monkeypatch.setattr(planning, "tune_any", lambda target, observables, **budget: asked.append(budget) or tuned)
    return asked


def test_the_run_has_the_error_that_is_expected_and_the_exact_mean(tuned):
    assert tuned.plan.gradients <= 1.01 * 4000
    assert not tuned.warnings
    run = gm.run(tuned.plan, progress=False)
    assert abs(run.mean["m"] - MEAN) < 4 * max(tuned.expected["m"], 1e-6)
    assert tuned.sd["m"] == pytest.approx(SD, rel=0.1)


def test_steps_and_chains_are_a_budget(target, budgets):
    assert gnp.plan(target, num_steps=300, num_chains=7, seed=5).num_steps == 300
    assert gnp.plan(target, num_steps=50).num_steps == 50
    assert budgets == [{"gradients": 2100, "num_chains": 7, "seed": 5}, {"gradients": 1600, "num_chains": 32}]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_steps": 5, "error": 0.1}, "`num_steps` sets the budget"),
        ({"error": 0.1, "gradients": 10}, "Pass one of"),
        ({"error": -1.0}, "`error`"),
        ({"num_chains": 0}, "`num_chains`"),
        ({"step": 0.1}, "got step. Another field of a plan goes to `gnp.plan`; its fields are target, dynamics"),
    ],
)
def test_what_cannot_be_asked_for_is_named(target, wrong, message):
    with pytest.raises(gm.InvalidInput, match=message):
        gnp.plan(target, **wrong)


def test_fields_replace_what_was_chosen_but_the_account_is_of_what_was_tuned(target, tuned, budgets):
    finer = gnp.plan(target, gradients=4000, step_size=tuned.plan.eta / 10, dtype="float64")
    assert budgets == [{"gradients": 4000}]
    assert finer.eta == pytest.approx(tuned.plan.eta / 10)
    assert finer.burn_in == pytest.approx(10 * tuned.plan.burn_in, abs=1)
    assert finer.dtype == "float64"
    with pytest.raises(gm.InvalidInput, match=r"got step_size. Another field of a plan goes to `gnp.plan`"):
        gnp.tune(target, gradients=2000, step_size=0.1)


@pytest.mark.slow
def test_a_batch_size_forces_a_control_variate_at_the_mode():
    rng = np.random.default_rng(3)
    exposure = rng.uniform(0.5, 2.0, 40)
    counts = rng.poisson(1.5 * exposure)
    target = gnp.target(rates, exposure, counts)
    plan = gnp.plan(target, batch_size=8, num_steps=100, num_chains=10)
    assert isinstance(plan.oracle, gm.oracles.ControlVariate)
    assert (plan.oracle.size, plan.oracle.order) == (8, 1)
    assert float(plan.oracle.center["rate"]) == pytest.approx(
        np.log((2 + counts.sum()) / (1 + exposure.sum())), abs=1e-4
    )
    by_gradients = gnp.tune(target, batch_size=8, gradients=1000)
    assert by_gradients.gradients == pytest.approx(1000, rel=0.02)  # 16 of 40 rows each: 2500 steps
    assert by_gradients.plan.gradients == pytest.approx(2500, rel=0.02)
    given = gnp.plan(target, oracle=gm.oracles.Minibatch(20), gradients=1000)
    assert isinstance(given.oracle, gm.oracles.Minibatch)
    with pytest.raises(gm.InvalidInput, match="`batch_size` and `oracle`"):
        gnp.plan(target, batch_size=8, oracle=gm.oracles.Exact())


def test_heavy_tails_are_a_warning_of_the_summary():
    """E m² = 3 under StudentT(3), whose m⁴ has no mean."""
    target = gnp.target(heavy)
    observables = gnp.observables(target, squares=True)
    plan = gm.Plan(target=target, dynamics=gm.dynamics.overdamped(1), observables=observables, step_size=0.2,
                   num_steps=500, num_chains=32, start=target.start)  # fmt: skip
    run = gm.run(plan)
    with pytest.warns(gm.GyromcWarning, match=r"m\^2: the observable has heavy tails"):
        table = gnp.summary(run)
    assert any("heavy tails" in text for text in table.warnings)
    assert "WARNING" in repr(table)


@pytest.mark.slow
def test_nothing_of_scipy_is_heard():
    """Curvatures over 17 powers of ten: warnings of SciPy's solvers are caught where they are made."""

    def scales(y):
        b = numpyro.sample("b", dist.Normal(0.0, jnp.array([1e-6, 1.0, 1e3])).to_event(1))
        numpyro.sample("y", dist.Normal(b.sum(), 1.0), obs=y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = gnp.plan(gnp.target(scales, np.zeros(3)), gradients=4000)
    assert plan.dtype == "float64"
