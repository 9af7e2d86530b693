"""Default plans for hard posteriors: funnels, hierarchies without a mode, heavy tails, and how long a plan runs."""

import dataclasses
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
from gyromc.shape.laplace import Laplace
from gyromc.tuning.outline import Pilot
from gyromc.tuning.recipe import preconditioned_plan

EFFECT = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERROR = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


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


def drawn(rows: np.ndarray) -> Pilot:
    """What a pilot run finds that draws these rows of the unconstrained parameters, sites in alphabetical order."""
    covariance = np.cov(rows.T) + 1e-9 * np.eye(rows.shape[1])
    return Pilot(rows, Laplace(rows.mean(axis=0), np.linalg.inv(covariance)), np.array([], int))


def test_a_funnel_gets_a_plan_that_can_run_and_is_told_its_site(monkeypatch):
    """The mode lies in the neck, where the curvature is 1e17: the step size used to be 1e-296."""
    rng = np.random.default_rng(0)
    v = rng.normal(0, 3, 400)
    rows = np.column_stack([v, rng.normal(0, 1, (400, 9)) * np.exp(v / 2)[:, None]])  # the prior; the data say little
    monkeypatch.setattr(planning, "pilot", lambda target: drawn(rows))
    message = r"less certain.*Non-centre 'x' \(the scale of 'x' depends on 'v'\)"
    with pytest.warns(gm.GyromcWarning, match=message) as heard:
        plan = gnp.plan(gnp.target(funnel), squares=False)
    assert {w.category for w in heard} == {gm.GyromcWarning}  # nothing of SciPy or NumPy
    assert 1e-4 < plan.eta < 0.05
    assert plan.num_steps < 1e6
    assert np.all(np.isin(plan.starts.theta[:, 0], v))


def test_a_hierarchy_without_a_mode_is_told_how_to_be_non_centred(monkeypatch):
    rows = np.random.default_rng(0).normal([4.0, 1.0] + [4.0] * 8, [3.0, 1.0] + [5.0] * 8, (400, 10))
    monkeypatch.setattr(planning, "pilot", lambda target: drawn(rows))
    target = gnp.target(centred)
    with pytest.warns(
        gm.GyromcWarning, match=r"no mode.*short NUTS run.*Non-centre 'theta'.*`numpyro.handlers.reparam\(model, config"
    ):
        plan = gnp.plan(target, sites=["mu", "tau"])
    assert 1e-4 < plan.eta < 0.05
    assert scaled_by_latent(target) == {"theta": ("tau",)}
    advised = gnp.target(numpyro.handlers.reparam(centred, config={"theta": LocScaleReparam(0)}))
    assert scaled_by_latent(advised) == {}
    unsettled = dataclasses.replace(drawn(rows), unsettled=np.array([1]))
    monkeypatch.setattr(planning, "pilot", lambda target: unsettled)
    with pytest.raises(
        gm.InvalidInput, match=r"no mode .* does not settle.*Look at 'tau'.*weak priors.*Non-centre 'theta'"
    ):
        gnp.plan(target)


@pytest.mark.slow
@pytest.mark.parametrize("model", [funnel, centred])
def test_a_real_pilot_run_gives_a_plan_that_runs(model):
    with pytest.warns(gm.GyromcWarning, match="less certain"):
        plan = gnp.plan(gnp.target(model), error=0.1)
    assert not gm.run(plan).failures


@pytest.mark.slow
def test_a_pilot_finds_the_law_of_a_gaussian_and_that_a_flat_direction_does_not_settle():
    """Mean within 4 standard errors of 200 independent draws, standard deviation within 20 %."""
    found = pilot(gnp.target(normal, np.array([1.0])))
    mean, sd = 4 / 4.25, np.sqrt(1 / 4.25)
    assert abs(found.draws.mean() - mean) < 4 * sd / np.sqrt(200)
    assert found.draws.std() == pytest.approx(sd, rel=0.2)
    assert len(found.unsettled) == 0

    def flat(y):
        numpyro.sample("m", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.sample("y", dist.Normal(numpyro.sample("s", dist.Normal(0.0, 1.0)), 1.0), obs=y)

    assert pilot(gnp.target(flat, np.zeros(1))).unsettled.tolist() == [0]


def test_a_plan_begins_at_the_heaviest_mode():
    """A descent from the origin ends in a mode with 1e-8 of the law: start and curvature are those of the other, at 9."""
    target = gm.targets.LogDensity(lambda x: jnp.logaddexp(jnp.log(1e-8) - x[0] ** 2 / 2, -2 * (x[0] - 9) ** 2))
    model = gm.Model(target, np.zeros(1))
    plan = preconditioned_plan(model, {"x": lambda x: x[0]})
    assert model.mode == pytest.approx(0, abs=1e-3)
    assert plan.start == pytest.approx(9, abs=1e-3)
    assert plan.dynamics.D[0, 0] == pytest.approx(2 / 4, rel=1e-3)  # 2 K⁻¹


def test_the_number_of_steps_follows_the_step_size_and_the_error_asked_for():
    """Var of a mean = V/(Nη) per chain: steps grow as 1/η and 1/error², and the run has the error asked for."""
    target = gnp.target(normal, np.array([1.0]))
    plan = gnp.plan(target, error=0.02)
    finer, smaller = gnp.plan(target, error=0.01), gnp.plan(target, error=0.02, bias=0.005)
    assert finer.num_steps == pytest.approx(4 * plan.num_steps, rel=0.01)
    assert smaller.num_steps * smaller.eta == pytest.approx(plan.num_steps * plan.eta, rel=0.01)
    assert gnp.plan(target, num_steps=7).num_steps == 7
    found = gnp.summary(gm.run(plan.replace(num_chains=256)))["m"]
    # 256 chains know it to 4.4 %; the ends of chains of 20 relaxation times add 8 %
    assert found.std_error / found.sd * np.sqrt(256 / 32) == pytest.approx(0.02, rel=4 * 0.044 + 0.08)
    with pytest.raises(gm.InvalidInput, match=r"`error` is a fraction .* below 1: got 2"):
        gnp.plan(target, error=2.0)


def test_heavy_tails_are_a_warning_of_the_summary():
    """E m² = 3 under StudentT(3), whose m⁴ has no mean: a chain says 2.1 ± 0.17."""
    run = gm.run(gnp.plan(gnp.target(heavy), num_steps=500))
    with pytest.warns(gm.GyromcWarning, match=r"m, m\^2: the observable has heavy tails"):
        table = gnp.summary(run)
    assert "heavy tails" in table.warnings[-1]
    assert "WARNING" in repr(table)


@pytest.mark.slow
def test_nothing_of_scipy_is_heard():
    """Curvatures over 17 powers of ten: warnings of SciPy's solvers are caught where they are made."""

    def scales(y):
        b = numpyro.sample("b", dist.Normal(0.0, jnp.array([1e-6, 1.0, 1e3])).to_event(1))
        numpyro.sample("y", dist.Normal(b.sum(), 1.0), obs=y)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan = gnp.plan(gnp.target(scales, np.zeros(3)))
    assert plan.dtype == "float64"
    assert plan.eta == pytest.approx(0.0135, rel=0.01)
