"""Tuned plans for NumPyro models: funnels, hierarchies without a mode, heavy tails, budgets, and fields that are asked for."""

import warnings

import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist
from numpyro.infer.reparam import LocScaleReparam

import gyromc as gm
from gyromc.interop import numpyro as gnp
from gyromc.interop.numpyro import planning
from gyromc.interop.numpyro.hierarchy import scaled_by_latent
from gyromc.interop.numpyro.pilot import pilot

EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
MEAN, SD = 4 / 4.25, np.sqrt(1 / 4.25)  # of `normal` with y = 1


def funnel():
    v = numpyro.sample("v", dist.Normal(0.0, 3.0))
    x = numpyro.sample("x", dist.Normal(0.0, jnp.exp(v / 2)).expand([9]).to_event(1))
    numpyro.sample("y", dist.Normal(x[0], 100.0), obs=0.0)


def centred():
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    numpyro.sample("effect", dist.Normal(theta, ERROR), obs=EFFECT)


def heavy():
    m = numpyro.sample("m", dist.StudentT(3.0, 0.0, 1.0))
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=jnp.zeros(1) * m)


def normal(y):
    numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 2.0)), 0.5), obs=y)


def flat(y):
    numpyro.sample("m", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(numpyro.sample("s", dist.Normal(0.0, 1.0)), 1.0), obs=y)


def rates(exposure, y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", len(exposure), subsample_size=4) as index:
        numpyro.sample("y", dist.Poisson(rate * exposure[index]), obs=y[index])


def of_the_prior(count: int) -> np.ndarray:
    """Draws of the funnel's prior, which the data hardly change; v, then x."""
    rng = np.random.default_rng(0)
    v = rng.normal(0, 3, count)
    return np.column_stack([v, rng.normal(0, 1, (count, 9)) * np.exp(v / 2)[:, None]])


@pytest.mark.slow
def test_a_funnel_is_told_its_site_and_a_pilot_run_says_where_it_is(monkeypatch):
    """The mode lies in the neck, where the curvature is 1e17; the starts are draws of the pilot run."""
    rows, calls = of_the_prior(400), []
    monkeypatch.setattr(planning, "pilot", lambda target: calls.append(target) or rows)
    target = gnp.target(funnel)
    message = r"NUTS.*Non-centre 'x' \(the scale of 'x' depends on 'v'\)"
    with pytest.warns(gm.GyromcWarning, match=message) as heard:
        plan = gnp.plan(target, squares=False, gradients=4000)
    assert {w.category for w in heard} == {gm.GyromcWarning}  # nothing of SciPy or NumPy
    assert calls == [target]
    assert np.all(np.isin(np.asarray(plan.start.rows)[:, 0], rows[:, 0].astype(np.float32)))
    assert plan.gradients <= 1.01 * 4000


def test_a_hierarchy_without_a_mode_is_told_how_to_be_non_centred(monkeypatch):
    """The starts are draws of the pilot run, which is made once."""
    rows, calls = np.random.default_rng(0).normal([4.0, 1.0] + [4.0] * 8, [3.0, 1.0] + [5.0] * 8, (400, 10)), []
    monkeypatch.setattr(planning, "pilot", lambda target: calls.append(target) or rows)
    target = gnp.target(centred)
    tuned = gnp.tune(target, sites=["mu", "tau"], gradients=4000)
    said = " ".join(tuned.warnings)
    assert calls == [target]
    assert np.all(np.isin(np.asarray(tuned.plan.start.rows)[:, 0], rows[:, 0].astype(np.float32)))
    assert tuned.plan.gradients <= 1.01 * 4000
    assert "No mode was found" in said
    assert "Non-centre 'theta'" in said
    assert "`numpyro.handlers.reparam(model, config" in said
    assert scaled_by_latent(target) == {"theta": ("tau",)}
    advised = gnp.target(numpyro.handlers.reparam(centred, config={"theta": LocScaleReparam(0)}))
    assert scaled_by_latent(advised) == {}


@pytest.mark.slow
@pytest.mark.parametrize("model", [funnel, centred])
def test_a_real_pilot_run_gives_a_plan_that_runs(model):
    with pytest.warns(gm.GyromcWarning, match="Non-centre"):
        plan = gnp.plan(gnp.target(model), gradients=200_000)
    assert not gm.run(plan).failures


@pytest.mark.slow
def test_a_pilot_finds_the_law_of_a_gaussian_and_that_a_flat_direction_does_not_settle():
    """Mean within 4 standard errors of 200 independent draws, standard deviation within 20 %."""
    found = pilot(gnp.target(normal, np.array([1.0])))
    assert abs(found.mean() - MEAN) < 4 * SD / np.sqrt(200)
    assert found.std() == pytest.approx(SD, rel=0.2)
    with pytest.raises(gm.InvalidInput, match=r"does not settle. Look at 'm': give weak priors"):
        pilot(gnp.target(flat, np.zeros(1)))


def test_budgets_and_what_was_asked_for():
    """Gradients, error, or steps and chains; the run has the error that is expected, and the exact mean."""
    target = gnp.target(normal, np.array([1.0]))
    tuned = gnp.tune(target, gradients=4000)
    assert tuned.plan.gradients <= 1.01 * 4000
    assert not tuned.warnings
    run = gm.run(tuned.plan, progress=False)
    assert abs(run.mean["m"] - MEAN) < 4 * max(tuned.expected["m"], 1e-6)
    assert tuned.sd["m"] == pytest.approx(SD, rel=0.1)
    asked = gnp.plan(target, num_steps=300, num_chains=7, seed=5)
    assert (asked.num_steps, asked.num_chains, asked.seed) == (300, 7, 5)
    assert gnp.plan(target, num_steps=50).num_chains == 32
    for wrong, message in (
        ({"num_steps": 5, "error": 0.1}, "`num_steps` sets the budget"),
        ({"error": 0.1, "gradients": 10}, "Pass one of"),
        ({"error": -1.0}, "`error`"),
        ({"num_chains": 0}, "`num_chains`"),
        ({"step": 0.1}, "A plan has no field step: its fields are target, dynamics"),
    ):
        with pytest.raises(gm.InvalidInput, match=message):
            gnp.plan(target, **wrong)


def test_fields_replace_what_was_chosen_but_not_below_an_account():
    target = gnp.target(normal, np.array([1.0]))
    chosen = gnp.plan(target, gradients=2000)
    finer = gnp.plan(target, gradients=2000, step_size=chosen.eta / 10, dtype="float64")
    assert finer.eta == pytest.approx(chosen.eta / 10)
    assert finer.burn_in == pytest.approx(10 * chosen.burn_in, abs=1)
    assert finer.dtype == "float64"
    with pytest.raises(gm.InvalidInput, match=r"`step_size` the errors to expect are not known: use `gnp.plan`"):
        gnp.tune(target, gradients=2000, step_size=0.1)
    assert gnp.tune(target, gradients=2000, dtype="float64").plan.dtype == "float64"


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


def test_bias_is_no_longer_an_argument():
    with pytest.warns(DeprecationWarning, match="`bias` is no longer used") as heard:
        gnp.plan(gnp.target(normal, np.array([1.0])), gradients=2000, bias=0.02)
    assert heard[0].filename == __file__


def test_heavy_tails_are_a_warning_of_the_summary():
    """E m² = 3 under StudentT(3), whose m⁴ has no mean."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gm.GyromcWarning)
        plan = gnp.plan(gnp.target(heavy), num_steps=500)
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
