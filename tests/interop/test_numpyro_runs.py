"""NumPyro models sampled: against a conjugate posterior known exactly, and against NumPyro's own NUTS."""

import dataclasses

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from numpyro import distributions as dist
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import log_density
from scipy import special, stats

import gyromc as gm
from against_nuts import nuts, tuned_plan
from gyromc.interop import numpyro as gnp
from numpyro_models import examples

RNG = np.random.default_rng(11)
EXPOSURE = RNG.uniform(0.5, 2.0, 40)
COUNTS = RNG.poisson(1.5 * EXPOSURE)
SHAPE, RATE = 2 + COUNTS.sum(), 1 + EXPOSURE.sum()  # of the posterior, a Gamma law


def conjugate(exposure, y=None, rows=8):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    numpyro.deterministic("pair", jnp.stack([rate, 2 * rate]))
    with numpyro.plate("data", len(exposure), subsample_size=rows) as index:
        numpyro.deterministic("expected", rate * exposure[index])
        numpyro.sample("y", dist.Poisson(rate * exposure[index]), obs=None if y is None else y[index])


@pytest.fixture(scope="module")
def tuned():
    target = gnp.target(conjugate, EXPOSURE, COUNTS)
    return gm.tune(
        target,
        gnp.observables(target, squares=True),
        oracle=gm.oracles.ControlVariate(8),
        gradients=6000 * 128 * 16 / 40,
        num_chains=128,
    )


@pytest.fixture(scope="module")
def run():
    """A control variate at the mode, log(shape/rate), and D the variance of u = log rate, ψ'(shape)."""
    target = gnp.target(conjugate, EXPOSURE, COUNTS)
    plan = gm.Plan(
        target=target,
        oracle=gm.oracles.ControlVariate(8, center={"rate": np.log(SHAPE / RATE)}),
        dynamics=gm.dynamics.general([[special.polygamma(1, SHAPE)]], 0),
        observables=gnp.observables(target, squares=True),
        start={"rate": np.log(SHAPE / RATE)},
        scheme="leimkuhler_matthews",
        step_size=0.2,
        num_steps=1000,
        burn_in=50,
        num_chains=128,
    )
    return gm.run(plan, thin=10)


@pytest.mark.slow
def test_a_mini_batch_run_finds_a_known_posterior(tuned):
    """Mean and sd of a Gamma posterior, within 4 standard errors and the expected bias, which see an error of 1 %."""
    run = gm.run(tuned.plan.replace(num_steps=6000), thin=60)
    mean, sd, bias = SHAPE / RATE, np.sqrt(SHAPE) / RATE, tuned.bias["rate"]
    assert 4 * run.std_error["rate"] + bias < 0.01 * mean
    assert abs(run.mean["rate"] - mean) < 4 * run.std_error["rate"] + bias
    square = sd**2 + mean**2
    assert abs(run.mean["rate^2"] - square) < 4 * run.std_error["rate^2"] + tuned.bias["rate^2"]
    assert 4 * run.std_error["rate^2"] + tuned.bias["rate^2"] < 0.02 * square
    low, high = run.interval("rate", 0.9999)
    assert low < mean < high
    assert run.mean["pair[1]"] == pytest.approx(2 * run.mean["rate"], rel=1e-5)


@pytest.mark.slow
def test_the_plan_is_whitened_by_the_posterior_covariance(tuned):
    """u = log rate has variance ψ'(shape); the anchor is the mode, log(shape/rate)."""
    plan = tuned.plan
    assert plan.dynamics.D[0, 0] == pytest.approx(special.polygamma(1, SHAPE), rel=0.1)
    assert np.ravel(plan.prepared_oracle.center)[0] == pytest.approx(np.log(SHAPE / RATE), abs=1e-6)
    starts = np.asarray(plan.start.rows)[:, 0]
    assert starts.mean() == pytest.approx(special.digamma(SHAPE) - np.log(RATE), abs=4 * SHAPE**-0.5 / np.sqrt(128))


def test_draws_come_back_constrained_and_by_site(run):
    draws = gnp.draws(run)
    assert {name: value.shape for name, value in draws.items()} == {"rate": (128, 100), "pair": (128, 100, 2)}
    assert draws["rate"].min() > 0
    np.testing.assert_allclose(np.log(draws["rate"]), run.draws["rate"], atol=1e-5)
    np.testing.assert_allclose(draws["pair"][..., 1], 2 * draws["rate"], rtol=1e-6)
    assert draws["rate"].mean() == pytest.approx(run.mean["rate"], rel=0.02)
    rows = gnp.draws(run, ["expected"])["expected"]
    np.testing.assert_allclose(rows, draws["rate"][..., None] * EXPOSURE, rtol=1e-5)
    np.testing.assert_array_equal(run.to_datatree()["posterior"]["rate"], draws["rate"])


def test_new_data_are_drawn_on_all_rows(run):
    """Posterior predictive mean at an exposure x is x · E[rate]; 4 standard errors of 2000 draws."""
    new = gnp.predictive(run, np.array([0.5, 3.0]), draws_used=2000)
    assert new["y"].shape == (2000, 2)
    expected = np.array([0.5, 3.0]) * SHAPE / RATE
    assert np.all(np.abs(new["y"].mean(axis=0) - expected) < 4 * new["y"].std(axis=0) / np.sqrt(2000))
    again = gnp.predictive(run, draws_used=50)
    assert again["y"].shape == (50, 40)
    assert np.any(again["y"] != COUNTS)


def test_what_a_run_lacks_is_named(run):
    def with_plan(**changes):
        return dataclasses.replace(run, plan=run.plan.replace(**changes))

    with pytest.raises(gm.InvalidInput, match=r"kept no draws.*thin=10"):
        gnp.draws(dataclasses.replace(run, draws=None))
    with pytest.raises(gm.InvalidInput, match="not a NumPyro model"):
        gnp.draws(
            with_plan(
                target=gm.targets.Quadratic([1.0]),
                oracle=gm.oracles.Exact(),
                start=None,
                observables={"x": gm.observables.linear([1.0])},
            )
        )
    with pytest.raises(gm.InvalidInput, match="`draws_used` must be a whole number from 1 to"):
        gnp.predictive(run, draws_used=10**9)


def test_arviz_gets_the_likelihood_of_each_row(run):
    """Poisson, by formula, on all rows of the subsampled plate; ArviZ computes LOO from it."""
    drawn = float(run.draws["rate"][0, 0])
    found = run.plan.target.log_likelihoods({"rate": jnp.asarray(drawn)})["y"]
    np.testing.assert_allclose(found, stats.poisson.logpmf(COUNTS, np.exp(drawn) * EXPOSURE), rtol=1e-4, atol=1e-4)
    tree = run.to_datatree(log_likelihood=True)
    assert tree.log_likelihood["y"].shape == (128, 100, 40)
    assert float(arviz_stats.loo(tree).elpd) == pytest.approx(
        stats.poisson.logpmf(COUNTS, SHAPE / RATE * EXPOSURE).sum(), abs=2
    )


def schools_exactly() -> dict[str, float]:
    """Posterior means of the eight schools: normal given τ, so that one integral over τ, here in log τ, is all that is left."""
    effect, error = examples()["eight schools"].args
    log_tau = np.linspace(-25.0, 9.0, 20_001)
    tau = np.exp(log_tau)[:, None]
    precision = 1 / (error**2 + tau**2)
    total = precision.sum(axis=1) + 1 / 25  # μ ~ N(0, 5²)
    center = (precision * effect).sum(axis=1) / total
    log_density = (
        0.5 * np.log(precision).sum(axis=1)
        - 0.5 * np.log(total)
        - 0.5 * ((precision * effect**2).sum(axis=1) - total * center**2)
        - np.log1p((tau[:, 0] / 5) ** 2)  # τ ~ HalfCauchy(5)
        + log_tau
    )
    weight = np.exp(log_density - log_density.max())
    weight /= weight.sum()
    shrink = tau**2 * precision
    theta = weight @ (shrink * effect + (1 - shrink) * center[:, None])
    return {"mu": weight @ center, "tau": weight @ tau[:, 0], **{f"theta[{j}]": theta[j] for j in range(8)}}


def centred_schools():
    """As a textbook writes it, with a funnel."""
    effect, error = examples()["eight schools"].args
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", 8):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    numpyro.sample("effect", dist.Normal(theta, error), obs=effect)


def test_expect_has_the_exact_means_of_a_centred_hierarchy():
    """Within 4.5 standard errors of 31 degrees of freedom, ten numbers; draws, tree and new data by site."""
    found = gm.expect(gnp.target(centred_schools), error=0.03)
    for name, mean in schools_exactly().items():
        assert abs(found[name].mean - mean) < 4.5 * found[name].std_error, name
    assert list(found) == ["mu", "tau", *(f"theta[{j}]" for j in range(8))]
    assert gnp.draws(found)["theta"].shape == (*found.draws.shape[:2], 8)
    assert gnp.predictive(found, draws_used=50)["effect"].shape == (50, 8)
    tree = found.to_datatree()
    assert tree["posterior"]["theta"].dims == ("chain", "draw", "schools")
    away = float(tree["posterior"]["mu"].mean()) - found.mean["mu"]
    assert abs(away) < 0.2 * found.sd["mu"]
    np.testing.assert_array_equal(tree["averages"]["mean"], [*found.mean.values()])


@pytest.mark.slow
def test_eight_schools_have_their_exact_means():
    """Within 4 standard errors, and the bias seen between two step sizes where it is more than noise."""
    example, exact = examples()["eight schools"], schools_exactly()
    target = gnp.target(example.model, *example.args)
    plan = tuned_plan(target, gnp.observables(target, ("mu", "tau", "theta")), num_steps=3000, num_chains=128)
    coarse, fine = gm.run(plan), gm.run(halved(plan))
    for name, mean in exact.items():
        error = fine.std_error[name]
        bias = abs(coarse.mean[name] - fine.mean[name]) - 2 * np.hypot(coarse.std_error[name], error)
        assert abs(fine.mean[name] - mean) < 4 * error + max(0.0, bias), name
        assert 4 * error < 0.5, name  # of posterior standard deviations of 4 to 8


def halved(plan: gm.Plan) -> gm.Plan:
    """The plan with half the step size, for the same time."""
    return plan.replace(step_size=plan.step_size / 2, num_steps=2 * plan.num_steps, burn_in=2 * plan.burn_in, seed=1)


def agree(name: str, draws: int, warmup: int, chains: int, most_error: float, **settings):
    """Posterior means within 4 standard errors of both samplers, and the bias seen between two step sizes."""
    example = examples()[name]
    target = gnp.target(example.model, *example.args, **example.kwargs)
    plan = tuned_plan(target, gnp.observables(target, squares=True), rows=example.rows, **settings)
    coarse, fine = gm.run(plan), gm.run(halved(plan))
    reference = nuts(example, (*target.sites, *target.structure.deterministic), draws, warmup, chains)["rows"]
    assert {name for name in fine if not name.endswith("^2")} == set(reference)
    for element, truth in reference.items():
        row, before = fine[element], coarse[element]
        assert row.std_error < most_error * truth["sd"], element
        bias = abs(before.mean - row.mean) - 2 * np.hypot(
            row.std_error, before.std_error
        )  # what noise does not explain
        error = np.hypot(row.std_error, truth["error"])
        assert abs(row.mean - truth["mean"]) < 4 * error + max(0.0, bias), (element, row, truth)
        variance = fine.mean[f"{element}^2"] - row.mean**2
        assert np.sqrt(variance) == pytest.approx(truth["sd"], rel=0.1), element


@pytest.mark.slow
def test_poisson_regression_agrees_with_nuts():
    agree("poisson", draws=1000, warmup=200, chains=1, most_error=0.05, num_steps=800, num_chains=32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["logistic", "eight schools", "poisson", "mixture"])
def test_every_model_agrees_with_a_long_nuts_run(name):
    agree(name, draws=2500, warmup=500, chains=4, most_error=0.02, num_steps=20_000, num_chains=64)


def regression(X, y=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(X @ b, 1.0), obs=y)


def closed_and_not():
    """(model, arguments, prior variances, X, y): the program's own arrays as arguments, and closed over."""
    X, y, scale = RNG.normal(size=(20, 2)), RNG.normal(size=20), RNG.uniform(1, 2, size=2)

    def closed():
        b = numpyro.sample("b", dist.Normal(0.0, jnp.sqrt(scale)).to_event(1))
        numpyro.sample("y", dist.Normal(X @ b, 1.0 + 0 * jnp.square(y)), obs=y)

    return (regression, (X, y), np.ones(2), X, y), (closed, (), scale, X, y)


def test_numpyro_and_a_target_take_turns_on_the_same_arrays():
    """NumPyro reads them in float32 and keeps them so; the target's mode has the digits of float64, and NumPyro runs again."""
    for model, args, prior, X, y in closed_and_not():
        read = lambda b, m=model, a=args: log_density(m, a, {}, {"b": b})[0]
        held = jax.make_jaxpr(read)(jnp.zeros(2)), jax.make_jaxpr(lambda b, X=X, y=y: b @ X.T @ y)(jnp.zeros(2))
        found = gm.Model(target := gnp.target(model, *args), target.start).mode
        exact = np.linalg.solve(X.T @ X + np.diag(1 / prior), X.T @ y)
        np.testing.assert_allclose(found, exact, rtol=1e-8)
        assert jax.jit(jax.grad(read))(jnp.zeros(2)).dtype == jnp.float32
        assert held


@pytest.mark.slow
def test_nuts_and_a_run_take_turns_on_the_same_arrays():
    for model, args, *_ in closed_and_not():
        sampler = MCMC(NUTS(model), num_warmup=5, num_samples=5, progress_bar=False)
        sampler.run(jax.random.key(0), *args)
        target = gnp.target(model, *args)
        pieces = {"dynamics": gm.dynamics.overdamped(2), "observables": gnp.observables(target)}
        gm.run(gm.Plan(target=target, **pieces, step_size=0.01, num_steps=10, num_chains=2))
        sampler.run(jax.random.key(1), *args)
