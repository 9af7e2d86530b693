"""PyMC models as targets: densities, gradients and values against PyMC's own; the extra is not in `all`, so tests may skip."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import gyromc as gm
from gyromc.solve.draws import read_draws

pytest.importorskip("pymc")
import pymc as pm

from gyromc.interop import pymc as gpm

RNG = np.random.default_rng(4)
Y = np.array([1.0, 2.0, 3.0, 2.5])


@pytest.fixture(scope="module")
def varied():
    """Transformed variables, a support that depends on another variable, dims, a deterministic, and a large array of data."""
    with pm.Model(coords={"school": ["a", "b", "c", "d"]}) as model:
        mu = pm.Normal("mu", 0, 5)
        tau = pm.HalfNormal("tau", 2)
        pm.Uniform("low", mu - 1, mu + tau)
        theta = pm.Normal("theta", mu, tau, dims="school")
        pm.Deterministic("twice", 2 * theta, dims="school")
        pm.Dirichlet("p", np.ones(3))
        X = pm.Data("X", RNG.normal(size=(20_000, 1)))
        slope = pm.Normal("slope", 0, 1)
        pm.Normal("many", X[:, 0] * slope, 1, observed=RNG.normal(size=20_000))
        pm.Normal("y", theta, 1, observed=Y)
    return model


@pytest.fixture(scope="module")
def target(varied):
    return gpm.target(varied)


def test_the_potential_and_its_gradient_are_pymcs(varied, target):
    rows = RNG.normal(size=(3, target.dim))
    logp, slope = varied.compile_logp(), varied.compile_dlogp()
    points = [{name: np.asarray(value) for name, value in target.unravel(row).items()} for row in rows]
    np.testing.assert_allclose(target.potentials(rows), [-float(logp(p)) for p in points], rtol=1e-10)
    order = [v.name for v in varied.value_vars]
    for row, point in zip(target.gradients(rows), points, strict=True):
        found = target.unravel(row)
        np.testing.assert_allclose(np.concatenate([np.ravel(found[n]) for n in order]), -slope(point), rtol=1e-8)


def test_variables_dims_and_parameters_have_pymcs_names(target):
    assert target.sites == ("mu", "tau", "low", "theta", "p", "slope")
    assert list(target.parameters) == ["mu", "tau_log__", "low_interval__", "theta", "p_simplex__", "slope"]
    assert target.dims["theta"] == target.dims["twice"] == ("school",)
    assert target.dims["p"] == ("p_dim_0",)
    assert target.coords == {"school": ("a", "b", "c", "d")}
    assert sum(part.size for part in target.data) == 40_000  # arguments of the compiled functions, not constants


def test_values_go_back_to_the_parameters_they_came_from(target):
    z = RNG.normal(size=(2, 5, target.dim))
    values = target.reported(z)
    np.testing.assert_allclose(values["twice"], 2 * values["theta"])
    np.testing.assert_allclose(values["p"].sum(axis=-1), 1.0)
    np.testing.assert_allclose(read_draws(values, target), z, rtol=1e-9, atol=1e-9)


def test_a_trace_of_pymc_becomes_parameters(target, varied):
    with varied:
        trace = pm.sample_prior_predictive(6, var_names=["mu", "tau", "low", "theta", "p", "slope"], random_seed=1)
    prior = trace["prior"] if hasattr(trace, "children") else trace.prior
    found = read_draws(prior.to_dataset() if hasattr(prior, "to_dataset") else prior, target)
    assert found.shape == (1, 6, target.dim)
    np.testing.assert_allclose(target.reported(found)["tau"], np.asarray(prior["tau"]), rtol=1e-10)


def test_the_likelihood_of_every_observation(target):
    at = target.unravel(jnp.zeros(target.dim))
    found = target.log_likelihoods(at)
    np.testing.assert_allclose(found["y"], stats.norm.logpdf(Y), rtol=1e-5)
    assert found["many"].shape == (20_000,)


def test_a_known_posterior_by_expect_and_by_a_run():
    """Gamma prior, Poisson data: mean and sd within 4 standard errors; a run in single precision has the mean too."""
    counts = np.array([2, 0, 3, 1, 4])
    with pm.Model():
        pm.Poisson("y", pm.Gamma("rate", alpha=2.0, beta=0.5), observed=counts)
        target = gpm.target()
    shape, rate = 2 + counts.sum(), 0.5 + 5
    found = gm.expect(target, error=0.02)
    assert abs(found["rate"].mean - shape / rate) < 4 * found["rate"].std_error
    assert found["rate"].sd == pytest.approx(np.sqrt(shape) / rate, rel=0.1)
    plan = gm.Plan(
        target=target, dynamics=gm.dynamics.overdamped(1), step_size=0.01, num_steps=2000, num_chains=64, burn_in=200,
        observables={"rate": lambda p: jnp.exp(p["rate_log__"])}, start=target.start,
    )  # fmt: skip
    run = gm.run(plan, progress=False)
    assert abs(run.mean["rate"] - shape / rate) < 4 * run.std_error["rate"] + 0.01 * shape / rate


def test_what_cannot_be_sampled_is_named():
    with pm.Model() as labels:
        pm.Normal("y", pm.Bernoulli("label", 0.5), 1.0, observed=Y)
    with pytest.raises(gm.InvalidInput, match=r"'label' are discrete: .*`pm.Mixture`"):
        gpm.target(labels)
    with pm.Model() as nothing:
        pm.Normal("y", 0.0, 1.0, observed=Y)
    with pytest.raises(gm.InvalidInput, match="no free variable"):
        gpm.target(nothing)
    with pm.Model() as wrong:
        pm.Normal("y", 0.0, pm.HalfNormal("s"), observed=np.array([1.0, np.inf]))
    with pytest.raises(gm.InvalidInput, match=r"not finite at its initial point.*`model.debug\(\)`"):
        gpm.target(wrong)
    with pytest.raises(Exception, match=r"`model`|context"):
        gpm.target(3)


def test_jax_stays_as_it_was():
    """PyMC's module for JAX asks for a hundred devices and for double precision; importing ours changes neither."""
    check = (
        "import os; before = os.environ.get('XLA_FLAGS'); from gyromc.interop import pymc; import jax; "
        "assert os.environ.get('XLA_FLAGS') == before; assert jax.device_count() == 1; assert not jax.config.jax_enable_x64"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_ENABLE_X64")}
    subprocess.run([sys.executable, "-c", check], check=True, env=environment)
    assert not jax.config.jax_enable_x64
