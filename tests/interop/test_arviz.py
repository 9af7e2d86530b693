"""A run as an ArviZ DataTree, read by the real arviz-stats and arviz-plots."""

import json
import sys
import warnings

import jax
import matplotlib
import numpy as np
import pytest

import gyromc as gm


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    return X, (rng.random(60) < 1 / (1 + np.exp(-X @ [1.0, -1.0]))).astype(float)


@pytest.fixture(scope="module")
def run(data):
    plan = gm.Plan(
        target=gm.targets.LogisticRegression(*data, prior_scale=1.0),
        dynamics=gm.dynamics.hfhr(2, 1.0, 2.0),
        oracle=gm.oracles.Minibatch(10),
        observables={"first": gm.observables.linear([1.0, 0.0]), "p": gm.observables.predictive([1.0, 0.0])},
        step_size=0.02,
        num_steps=10_000,
        num_chains=4,
        dtype="float32",
    )
    return gm.run(plan, "scan", thin=10)  # its program is compiled faster than that of `lanes`


def test_groups_names_and_shapes(run, data):
    X, y = data
    draw = lambda theta, key: jax.random.bernoulli(key, jax.nn.sigmoid(X @ theta))
    tree = run.to_datatree(names=["slope", "other"], predictive=draw)
    assert set(tree.children) == {
        "posterior",
        "posterior_predictive",
        "sample_stats",
        "observed_data",
        "constant_data",
        "averages",
    }
    assert tree.posterior["slope"].dims == ("chain", "draw")
    assert tree.posterior["slope"].dtype == np.float32
    assert np.array_equal(tree.posterior["other"], run.draws[..., 1])
    assert np.array_equal(tree.observed_data["y"], y)
    assert np.array_equal(tree.constant_data["X"], X)
    assert set(tree.sample_stats.data_vars) == {"lp"}  # nothing is called diverging that nobody looked at
    at = np.asarray(run.draws[1, 7], float)
    assert float(tree.sample_stats["lp"][1, 7]) == pytest.approx(-float(run.plan.target.potential(at)), rel=1e-5)
    predicted = tree.posterior_predictive["y"].mean(("chain", "draw"))
    probability = np.mean(1 / (1 + np.exp(-run.draws.reshape(-1, 2) @ X.T)), axis=0)
    assert np.abs(predicted - probability).max() < 4.5 * 0.5 / np.sqrt(4000)  # 60 rows, 4.5 standard errors
    assert tree.attrs["seed"] == 0
    assert tree.attrs["engine"] == run.engine
    assert tree.attrs["jax_version"] == jax.__version__
    json.dumps(dict(tree.attrs))  # nothing in it that a file could not hold


def test_our_averages_are_beside_the_draws(run):
    tree = run.to_datatree()
    ours = tree.averages.sel(observable="first")
    assert float(ours["mean"]) == run.mean["first"]
    assert float(ours["std_error"]) == run.std_error["first"]
    assert float(ours["V"]) == run.variance["first"]
    assert tree.averages["chain_mean"].shape == (4, 2)
    assert tree.averages.attrs["error_method"] == run.error_method == "lugsail batch means"  # four long chains


def test_arviz_stats_agrees_with_us(run):
    """The mean of the thinned draws is within 4 of its standard errors of the average of all steps."""
    import arviz_stats

    tree = run.to_datatree(names=["slope", "other"])
    table = arviz_stats.summary(tree, round_to="none")
    assert list(table.index) == ["slope", "other"]
    error = float(table.loc["slope", "mcse_mean"])
    assert abs(float(table.loc["slope", "mean"]) - run.mean["first"]) < 4 * error
    assert float(arviz_stats.rhat(tree)["slope"]) < 1.02
    # every tenth state of a chain with little memory: ArviZ counts nearly all of them, ours counts all steps
    assert float(arviz_stats.ess(tree)["slope"]) > 1000
    assert run.ess["first"] > 1000


def test_pytrees_keep_their_paths():
    plan = gm.Plan(
        target=gm.targets.FiniteSum(
            lambda p, row: -0.5 * (row["y"] - row["x"] @ p["w"] - p["b"]) ** 2,
            lambda p: -0.5 * (p["w"] ** 2).sum() - 0.5 * p["b"] ** 2,
            {"x": np.ones((5, 3)), "y": np.zeros(5)},
        ),
        dynamics=gm.dynamics.overdamped(4),
        observables={"b": lambda p: p["b"]},
        step_size=0.02,
        num_steps=40,
        num_chains=2,
        start={"w": np.zeros(3), "b": np.float64(0.0)},
    )
    tree = gm.run(plan, thin=4).to_datatree()
    assert tree.posterior["w"].shape == (2, 10, 3)
    assert tree.posterior["b"].shape == (2, 10)
    assert set(tree.observed_data.data_vars) == {"x", "y"}


def test_failed_chains_are_left_out():
    start = np.zeros((4, 1))
    start[2] = 1000.0
    plan = gm.Plan(
        target=gm.targets.LogDensity(lambda x: -0.25 * (x**4).sum()),
        dynamics=gm.dynamics.overdamped(1),
        observables={"x": gm.observables.linear([1.0])},
        step_size=0.05,
        num_chains=4,
        start=start,
    )
    with pytest.warns(gm.GyromcWarning, match="1 chain failed"):
        run = gm.run(plan, on_divergence="report", thin=10)
    tree = run.to_datatree()
    assert tree.posterior["chain"].values.tolist() == [0, 1, 3]
    assert tree.attrs["failed_chains"] == 1
    with pytest.warns(gm.GyromcWarning, match="4 of 4 chains failed"):
        run = gm.run(plan.replace(start=np.full((4, 1), 1000.0)), on_divergence="report", thin=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run.to_dict()["observables"]["x"]["r_hat"] is None
    with pytest.raises(gm.InvalidInput, match="every chain of this run failed"):
        run.to_datatree()


def test_what_is_missing_is_said(run, monkeypatch):
    with pytest.raises(gm.InvalidInput, match=r"kept none: `gyromc.run\(plan, thin=10\)`"):
        gm.run(run.plan.replace(num_steps=50), "scan").to_datatree()
    with pytest.raises(gm.InvalidInput, match="2 different names"):
        run.to_datatree(names=["a", "a"])
    monkeypatch.setitem(sys.modules, "arviz_base", None)
    monkeypatch.delitem(sys.modules, "gyromc.interop.arviz", raising=False)
    with pytest.raises(
        ImportError, match=r"needs the package arviz_base, which is not installed: pip install 'gyromc\[arviz\]'"
    ):
        run.to_datatree()


OLD_ENOUGH = pytest.mark.skipif(
    tuple(int(part) for part in matplotlib.__version__.split(".")[:2]) > (3, 10),
    reason="arviz-plots 0.8 does not import with Matplotlib 3.11, which the extra `arviz` leaves out",
)


@OLD_ENOUGH
@pytest.mark.parametrize(
    "name", ["plot_forest", *(pytest.param(n, marks=pytest.mark.slow) for n in ("plot_trace_dist", "plot_rank"))]
)
def test_arviz_plots_draws_it(run, tmp_path, name):
    matplotlib.use("Agg")
    import arviz_plots

    tree = run.to_datatree(names=["slope", "other"]).isel(draw=slice(None, None, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        getattr(arviz_plots, name)(tree, backend="matplotlib").savefig(tmp_path / "figure.png")
    assert (tmp_path / "figure.png").stat().st_size > 5000


def test_loo_of_arviz_works_on_the_log_likelihood(run, data):
    """The pointwise log likelihoods against the formula, and ArviZ's LOO on them against its definition for a small model."""
    import arviz_stats

    X, y = data
    tree = run.to_datatree(log_likelihood=True)
    t = np.asarray(run.draws, float) @ X.T
    np.testing.assert_allclose(tree.log_likelihood["y"], y * t - np.logaddexp(0, t), rtol=2e-5, atol=1e-6)
    found = arviz_stats.loo(tree)
    assert -60 * np.log(2) < float(found.elpd) < 0  # better than a coin
    own = run.to_datatree(log_likelihood=lambda theta: y * (X @ theta))
    assert own.log_likelihood["y"].shape == (4, 1000, 60)
    with pytest.raises(gm.InvalidInput, match="`log_likelihood` must be True or a function: got 'yes'"):
        run.to_datatree(log_likelihood="yes")


def test_other_targets_know_their_likelihood_or_say_that_they_do_not():
    shared = {
        "dynamics": gm.dynamics.overdamped(1),
        "observables": {"m": lambda m: m[0]},
        "step_size": 0.05,
        "num_steps": 20,
        "num_chains": 2,
        "start": [0.0],
    }
    sums = gm.targets.FiniteSum(lambda m, x: -0.5 * (x - m[0]) ** 2, lambda m: -0.5 * m[0] ** 2, np.arange(3.0))
    run = gm.run(gm.Plan(target=sums, **shared), thin=5)
    expected = -0.5 * (np.arange(3.0) - run.draws) ** 2
    np.testing.assert_allclose(run.to_datatree(log_likelihood=True).log_likelihood["data"], expected, atol=1e-5)
    plain = gm.run(gm.Plan(target=gm.targets.LogDensity(lambda m: -0.5 * m[0] ** 2), **shared), thin=5)
    with pytest.raises(gm.InvalidInput, match=r"LogDensity.* does not know the likelihood.*pass `log_likelihood=f`"):
        plain.to_datatree(log_likelihood=True)
