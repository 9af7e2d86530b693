"""Default plans for hard posteriors: funnels, hierarchies without a mode, heavy tails, and how long a plan runs."""

import warnings

import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist
from numpyro.infer.reparam import LocScaleReparam

import gyromc as gm
from gyromc.interop import numpyro as gnp
from gyromc.interop.numpyro.hierarchy import scaled_by_latent
from gyromc.tuning.outline import outline
from gyromc.tuning.pilot import pilot

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


def test_a_funnel_gets_a_plan_that_can_run_and_is_told_its_site():
    """The mode lies in the neck, where the curvature is 1e17: the step size used to be 1e-296."""
    target = gnp.target(funnel)
    with pytest.warns(gm.GyromcWarning, match=r"less certain.*Non-centre 'x' \(the scale of 'x' depends on 'v'\)"):
        plan = gnp.plan(target, squares=False)
    assert 1e-4 < plan.eta < 0.05
    assert plan.num_steps < 1e6
    wide = pilot(gm.Model(target, target.start).flat_target, np.zeros(10))
    assert 1 < np.std(wide.states[:, target.sites.index("v")]) < 5  # the law's is 3; 64 chains of a pilot


def test_a_hierarchy_without_a_mode_gets_a_plan_and_is_told_how_to_be_non_centred():
    with pytest.warns(
        gm.GyromcWarning, match=r"no mode.*pilot.*Non-centre 'theta'.*`numpyro.handlers.reparam\(model, config"
    ):
        plan = gnp.plan(gnp.target(centred), sites=["mu", "tau"])
    assert 1e-4 < plan.eta < 0.05
    assert scaled_by_latent(gnp.target(centred)) == {"theta": ("tau",)}
    advised = numpyro.handlers.reparam(centred, config={"theta": LocScaleReparam(0)})
    target = gnp.target(advised)
    assert scaled_by_latent(target) == {}
    assert outline(gm.Model(target, target.start)).why is None


def test_a_pilot_finds_the_law_of_a_gaussian():
    """64 chains: means within 4 standard errors of 64 independent draws, standard deviations within 30 %."""
    P = np.array([[4.0, 1.0], [1.0, 0.5]])
    found = pilot(gm.targets.Quadratic(P, [3.0, -1.0]), np.zeros(2))
    spread = np.sqrt(np.diag(np.linalg.inv(P)))
    assert np.all(np.abs(found.states.mean(axis=0) - [3, -1]) < 4 * spread / 8)
    np.testing.assert_allclose(np.sqrt(np.diag(np.linalg.inv(found.center.precision))), spread, rtol=0.3)
    assert len(found.unsettled) == 0
    assert pilot(gm.targets.LogDensity(lambda x: jnp.log(x[0] - 100)), np.zeros(1)) is None


def test_the_number_of_steps_follows_the_step_size_and_the_error_asked_for():
    """Var of a mean = V/(Nη) per chain: steps grow as 1/η and 1/error², and the run has the error asked for."""
    target = gnp.target(normal, np.array([1.0]))
    plan = gnp.plan(target, error=0.05)
    finer, smaller = gnp.plan(target, error=0.025), gnp.plan(target, error=0.05, bias=0.005)
    assert finer.num_steps == pytest.approx(4 * plan.num_steps, rel=0.01)
    assert smaller.num_steps * smaller.eta == pytest.approx(plan.num_steps * plan.eta, rel=0.01)
    assert gnp.plan(target, num_steps=7).num_steps == 7
    found = gnp.summary(gm.run(plan.replace(num_chains=256)))["m"]
    assert found.std_error / found.sd * np.sqrt(256 / 32) == pytest.approx(0.05, rel=0.2)  # 256 chains: 4 × 4.4 %
    with pytest.raises(gm.InvalidInput, match=r"`error` is a fraction .* below 1: got 2"):
        gnp.plan(target, error=2.0)


def test_heavy_tails_are_a_warning_of_the_summary():
    """E m² = 3 under StudentT(3), whose m⁴ has no mean: a chain says 2.1 ± 0.17."""
    run = gm.run(gnp.plan(gnp.target(heavy), num_steps=500))
    with pytest.warns(gm.GyromcWarning, match=r"m, m\^2: the observable has heavy tails"):
        table = gnp.summary(run)
    assert "heavy tails" in table.warnings[0]
    assert "WARNING" in repr(table)


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
