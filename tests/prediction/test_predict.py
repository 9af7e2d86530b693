"""predict: the contract, the verdicts on the paper's settings, and what it says when something cannot be known."""

import json
import math
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.prediction.routes import laplace_constants
from gyromc.prediction.stability import stability

U = np.array([1.0, -1.0, 0.0]) / np.sqrt(2)
J1 = np.array([[0, -1, 1], [1, 0, -1], [-1, 1, 0]], float)


def quadratic(dynamics=None, **settings):
    settings = {
        "step_size": 0.1,
        "oracle": gm.oracles.Gaussian(1.0),
        "observables": {"h": gm.observables.linear(U)},
    } | settings
    return gm.Plan(
        target=gm.targets.Quadratic(np.ones(3)), dynamics=dynamics or gm.dynamics.nonreversible(J1), **settings
    )


def logistic(dynamics=None, rows=80, d=4, **settings):
    rng = np.random.default_rng(3)
    X = np.concatenate([np.ones((rows, 1)), rng.standard_normal((rows, d - 1))], axis=1)
    y = (rng.random(rows) < 1 / (1 + np.exp(-X @ np.linspace(1, -1, d)))).astype(float)
    settings = {"step_size": 0.01, "oracle": gm.oracles.Minibatch(16)} | settings
    return gm.Plan(
        target=gm.targets.LogisticRegression(X, y),
        dynamics=dynamics or gm.dynamics.nonreversible(gm.dynamics.rotations(d, 1.0)),
        observables={"p": gm.observables.predictive(X[0] + 0.5)},
        **settings,
    )


def test_the_contract():
    pred = gm.predict(
        quadratic(observables={"h": gm.observables.linear(U), "even": gm.observables.square([1.0, 0.0, 0.0])})
    )
    for field in ("variance", "reversible_variance", "rmse", "bias", "std", "expectation", "method", "rmse_method"):
        assert set(getattr(pred, field)) == {"h", "even"}
    assert isinstance(pred, gm.Prediction)
    assert pred.stable
    assert pred.bias["h"] == 0
    assert pred.bias["even"] > 0.1  # the Euler chain is too wide, and only an even observable sees it
    np.testing.assert_allclose(pred.rmse["even"], math.hypot(pred.bias["even"], pred.std["even"]))
    strict = pred.strict_reduction["h"]
    assert strict.strict
    np.testing.assert_allclose(strict.integral, 3.0, rtol=1e-12)  # |J₁u|² on the standard Gaussian
    np.testing.assert_allclose(pred.largest_step_size, 0.5)  # eigenvalues 1, 1 ± i√3: 2·1/4
    np.testing.assert_allclose(pred.stability_radius, (1 - 0.1) ** 2 + 0.1**2 * 3)
    again = json.loads(json.dumps(pred.to_dict(), allow_nan=False))
    assert again["observables"]["h"]["variance"] == pred.variance["h"]
    assert "closed form" in repr(pred)
    assert "exact finite-step" in pred._repr_html_()
    assert ">closed form</td>" in pred._repr_html_()
    assert all(v.status in ("holds", "not certified", "fails") and v.sentence for v in pred.verdicts)


def verdict(pred, name):
    return next(v for v in pred.verdicts if v.name == name)


@pytest.mark.parametrize(
    ("dynamics", "beta", "published", "numbers"),
    [
        (gm.dynamics.nonreversible(J1), 0.0, "not certified", {"m": 1.0, "‖J‖L": math.sqrt(3)}),
        (gm.dynamics.hfhr(3, 1.0, 2.0), 0.0, "holds", {"αγm": 2.0, "(1+L)²/4": 1.0}),
        (gm.dynamics.hfhr(3, 1.0, 2.0), 1.2, "not certified", {"αγm": 2.0, "(1+L)²/4": 2.56}),
        (gm.dynamics.gaul([0.5, 1.5, 2.0], 1.0, 2.0), 0.0, "not certified", {"aγm_C": 1.0, "(‖C‖+L)²/4": 2.25}),
        (gm.dynamics.gaul([0.5, 1.5, 2.0], 1.0, 2.0), 1.2, "not certified", {"aγm_C": 1.0, "(‖C‖+L)²/4": 4.41}),
    ],
)
def test_verdicts_on_the_papers_settings(dynamics, beta, published, numbers):
    from gyromc.prediction.assumptions import verdicts

    plan = gm.Plan(
        target=gm.targets.CosinePerturbed(3, beta),
        dynamics=dynamics,
        observables={"h": gm.observables.tanh(U)},
        step_size=0.1,
    )
    found = {v.name: v for v in verdicts(plan, stability(plan))}
    assert found["drift, published condition"].status == published
    assert found["drift, published condition"].numbers == pytest.approx(numbers)
    assert found["drift"].status == "holds"  # the second line: ∇H is linear plus bounded
    assert found["smoothness"].numbers == pytest.approx({"L": 1 + beta, "M": beta})
    assert found["observable h"].status == "holds"


def test_drift_that_is_dissipative_in_another_norm_only():
    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0, 50.0]),
        dynamics=gm.dynamics.nonreversible([[0.0, -3.0], [3.0, 0.0]]),
        observables={"h": gm.observables.linear([1.0, 0.0])},
        step_size=0.001,
        num_steps=5000,
    )
    pred = gm.predict(plan)
    assert verdict(pred, "drift").status == "not certified"
    assert "norm of P" in verdict(pred, "drift").sentence
    assert verdict(pred, "number of steps").status == "not certified"


def test_an_unstable_step_says_so_and_still_gives_v():
    for target in (gm.targets.Quadratic(np.ones(3)), gm.targets.CosinePerturbed(3, 1.2)):
        h = gm.observables.linear(U) if target.gaussian() else gm.observables.tanh(U)
        plan = gm.Plan(
            target=target,
            dynamics=gm.dynamics.nonreversible(J1),
            observables={"h": h},
            step_size=1.5,
            num_steps=10_000,
            start=[1.0, 0.0, 0.0],
        )
        pred = gm.predict(plan)
        assert not pred.stable
        assert pred.stability_radius > 1
        assert verdict(pred, "step size").status == "fails"
        assert pred.variance["h"] > 0
        assert pred.rmse["h"] == math.inf


def test_noise_that_grows_with_the_state_lowers_the_limit():
    rng = np.random.default_rng(0)
    target = gm.targets.LinearRegression(rng.standard_normal((30, 2)), rng.standard_normal(30))
    settings = {
        "target": target,
        "dynamics": gm.dynamics.overdamped(2),
        "observables": {"h": gm.observables.linear([1.0, 0.0])},
    }
    exact, noisy = (
        stability(gm.Plan(oracle=o, step_size=0.01, **settings)) for o in (gm.oracles.Exact(), gm.oracles.Minibatch(2))
    )
    assert noisy.largest_step_size < 0.6 * exact.largest_step_size
    at_limit = stability(gm.Plan(oracle=gm.oracles.Minibatch(2), step_size=noisy.largest_step_size, **settings))
    assert abs(at_limit.radius - 1) < 1e-3


def test_laplace_ratio_of_block_rotations():
    """(I+J)⁻¹(I+J)⁻ᵀ = 1/(1+ρ²) for J = ρ·blockdiag, whatever the Hessian."""
    for rho in (0.3, 1.0113, 4.0):
        plan = logistic(gm.dynamics.nonreversible(gm.dynamics.rotations(4, rho)))
        V, V_0, _ = laplace_constants(plan, plan.observables["p"])
        np.testing.assert_allclose(V / V_0, 1 / (1 + rho**2), rtol=1e-10)


def test_logistic_regression_from_an_importance_sample():
    """The plug-in against Laplace (same order), and against a run (σ within 10 %)."""
    plan = logistic(num_chains=400, step_size=0.005, num_steps=5000)
    pred = gm.predict(plan)
    assert pred.method["p"].startswith("plug-in (se ")
    assert pred.bias_method["p"].startswith("first order in η")
    rough, *_ = laplace_constants(plan, plan.observables["p"])
    assert 0.5 < pred.variance["p"] / rough < 2
    averages = gm.run(plan, progress=False).averages["p"]
    # 400 chains: σ is known to 3.5 %; the theory is first-order in η
    assert abs(np.std(averages) / pred.std["p"] - 1) < 0.1 + 3 / np.sqrt(800)
    assert abs(np.sqrt(np.mean((averages - pred.expectation["p"]) ** 2)) / pred.rmse["p"] - 1) < 0.1 + 3 / np.sqrt(800)


@pytest.mark.slow
def test_logistic_regression_from_a_users_sample():
    """Within errors of the plug-in."""
    plan = logistic(num_chains=400, step_size=0.005, num_steps=5000)
    pred = gm.predict(plan)
    fine = plan.replace(step_size=0.002, num_steps=1500, burn_in=1000, oracle=gm.oracles.Exact(), num_chains=1000)
    run = gm.run(fine, progress=False, thin=150)
    own = gm.predict(plan, sample=run.draws)
    assert "a sample of" in own.notes[0]
    # the run's own bias widens the law by about 1.5 %, which V feels three times over; sampling errors are 3 % each
    assert abs(own.variance["p"] / pred.variance["p"] - 1) < 0.05 + 3 * 0.03 * np.sqrt(2)


def test_a_bad_sample_is_refused():
    with pytest.raises(gm.InvalidInput, match="rows of 4 finite numbers"):
        gm.predict(logistic(), sample=np.zeros((10, 3)))
    with pytest.raises(gm.InvalidInput, match="too few"):
        gm.predict(logistic(), sample=np.zeros((10, 4)))


def test_a_target_nothing_is_known_about():
    """No mode, no finite integral: the answer says so and gives the verdicts it can."""
    plan = gm.Plan(
        target=gm.targets.LogDensity(lambda x: jnp.sum(x[:2]) - 0.5 * jnp.sum(x[2:] ** 2)),
        dynamics=gm.dynamics.overdamped(5),
        observables={"h": lambda x: x[0] * x[4]},
        step_size=0.1,
        start=np.zeros(5),
    )
    pred = gm.predict(plan)
    assert math.isnan(pred.variance["h"])
    assert pred.method["h"].startswith("unknown")
    assert pred.expectation["h"] is None
    assert any("mode" in note for note in pred.notes)
    assert json.dumps(pred.to_dict(), allow_nan=False)
    assert verdict(pred, "smoothness").status == "not certified"


def test_a_schedule_has_a_constant_but_no_error():
    pred = gm.predict(quadratic(step_size=lambda k: 0.1 / (1 + k) ** 0.5, num_steps=100))
    np.testing.assert_allclose(pred.variance["h"], 0.5, rtol=1e-12)
    assert math.isnan(pred.rmse["h"])
    assert any("schedule" in note for note in pred.notes)


def test_many_parameters_fall_back_and_say_so():
    """d = 13 with (θ, r): the lifted form is too large, the asymptotic value is given and marked."""
    rng = np.random.default_rng(0)
    target = gm.targets.LinearRegression(rng.standard_normal((60, 13)), rng.standard_normal(60))
    plan = gm.Plan(
        target=target,
        dynamics=gm.dynamics.hfhr(13, 0.5, 2.0),
        oracle=gm.oracles.Minibatch(10),
        observables={"h": gm.observables.linear(np.eye(13)[0])},
        step_size=0.001,
    )
    pred = gm.predict(plan)
    assert pred.rmse_method["h"] == "asymptotic √(V/(Nη) + s/N)"
    assert any("at most 24 numbers" in note for note in pred.notes)


def test_predict_takes_plans_only():
    with pytest.raises(gm.InvalidInput, match="takes a `Plan`"):
        gm.predict("nld-quadratic")


def test_the_theory_imports_no_engine_and_no_distributions():
    code = (
        "import sys, pkgutil, importlib, gyromc.prediction as t\n"
        "[importlib.import_module(m.name) for m in pkgutil.iter_modules(t.__path__, 'gyromc.prediction.')]\n"
        "import gyromc; gyromc.predict\n"
        "assert 'scipy.stats' not in sys.modules  # slow to import, seldom needed\n"
        "above = ('gyromc.engines', 'gyromc.results', 'gyromc.estimation', 'gyromc.statistics')\n"
        "bad = [m for m in sys.modules if m.startswith(above)]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
