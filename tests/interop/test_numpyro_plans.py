"""`gm.tune` for NumPyro models, with their sites as observables."""

import warnings

import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist

import gyromc as gm
from gyromc.interop import numpyro as gnp

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


def test_a_plan_is_the_tuned_one_with_the_fields_that_were_given(target, tuned, monkeypatch):
    """It tunes with the arguments that are none of a plan's fields, here as the fixture did."""
    asked = []
    with monkeypatch.context() as patch:
        patch.setattr(gnp, "tune", lambda *given, **options: asked.append((given, options)) or tuned)
        plan = gnp.plan(target, gradients=4000, step_size=tuned.plan.eta / 2, dtype="float64")
    assert asked == [((target,), {"gradients": 4000})]
    assert list(plan.observables) == list(tuned.plan.observables) == ["m", "m^2"]
    assert plan.eta == tuned.plan.eta / 2
    assert plan.dtype == "float64"
    assert plan.num_chains == tuned.plan.num_chains
    with pytest.raises(TypeError, match="step"):
        gnp.plan(target, step=0.1)


def test_a_summary_is_what_a_result_prints(target, tuned):
    found = gm.expect(target, gradients=5000, progress=False)
    assert gnp.summary(found) is found
    of_run = gnp.summary(gm.run(tuned.plan, progress=False))
    assert abs(of_run.mean["m"] - MEAN) < 5 * of_run["m"].total_error + 1e-9
    with pytest.raises(gm.InvalidInput, match="is needed: got int"):
        gnp.summary(3)


def test_the_run_has_the_error_that_is_expected_and_the_exact_mean(tuned):
    assert tuned.plan.gradients <= 1.01 * 4000
    assert not tuned.warnings
    run = gm.run(tuned.plan, progress=False)
    assert abs(run.mean["m"] - MEAN) < 4 * max(tuned.expected["m"], 1e-6)
    assert tuned.sd["m"] == pytest.approx(SD, rel=0.1)


@pytest.mark.slow
def test_a_control_variate_is_anchored_at_the_mode_and_counts_by_its_rows():
    rng = np.random.default_rng(3)
    exposure = rng.uniform(0.5, 2.0, 40)
    counts = rng.poisson(1.5 * exposure)
    target = gnp.target(rates, exposure, counts)
    tuned = gnp.tune(target, squares=False, batch_size=8, gradients=1000)
    assert tuned.gradients == pytest.approx(1000, rel=0.02)  # 16 of 40 rows each: 2500 steps
    assert tuned.plan.gradients == pytest.approx(2500, rel=0.02)
    anchor = np.log((2 + counts.sum()) / (1 + exposure.sum()))
    assert np.ravel(tuned.plan.prepared_oracle.center)[0] == pytest.approx(anchor, abs=1e-4)


def test_heavy_tails_are_a_warning_of_the_estimates():
    """E m² = 3 under StudentT(3), whose m⁴ has no mean."""
    target = gnp.target(heavy)
    observables = gnp.observables(target, squares=True)
    plan = gm.Plan(target=target, dynamics=gm.dynamics.overdamped(1), observables=observables, step_size=0.2,
                   num_steps=500, num_chains=32, start=target.start)  # fmt: skip
    run = gm.run(plan)
    with pytest.warns(gm.GyromcWarning, match=r"m\^2: the observable has heavy tails"):
        found = gm.estimate(run)
    assert any("heavy tails" in text for text in found.warnings)


@pytest.mark.slow
def test_nothing_of_scipy_is_heard():
    """Curvatures over 17 powers of ten: warnings of SciPy's solvers are caught where they are made."""

    def scales(y):
        b = numpyro.sample("b", dist.Normal(0.0, jnp.array([1e-6, 1.0, 1e3])).to_event(1))
        numpyro.sample("y", dist.Normal(b.sum(), 1.0), obs=y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        target = gnp.target(scales, np.zeros(3))
        tuned = gm.tune(target, gnp.observables(target, squares=True), gradients=4000)
    assert tuned.plan.dtype == "float64"
