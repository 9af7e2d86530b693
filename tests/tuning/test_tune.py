"""gm.tune: a plan whose error is the one it promises, smaller than that of the plan it replaces."""

import math

import jax.numpy as jnp
import numpy as np
import pytest
from gyromc.tuning.survey import survey
from scipy import linalg

import gyromc as gm
from gyromc.datasets import heart_split
from gyromc.evaluation import metered
from gyromc.shape.gaussian import mean_curvature_fit, nearest_gaussian
from gyromc.shape.importance import expectation
from gyromc.shape.laplace import inverse_root
from gyromc.tuning.tune import _base

BIMODAL = gm.targets.LogDensity(
    lambda t: jnp.logaddexp(-0.5 * jnp.sum((t - 3.0) ** 2), jnp.log(0.5) - 0.5 * jnp.sum((t + 3.0) ** 2))
)


def untuned(target, d: int, **fields) -> gm.Plan:
    chosen = {
        "observables": {"x": gm.observables.linear(np.eye(d)[0]), "x²": gm.observables.square(np.eye(d)[0])},
        "step_size": 0.05,
        "num_steps": 1000,
        "num_chains": 4,
        "start": np.zeros(d),
    }
    return gm.Plan(target=target, dynamics=gm.dynamics.overdamped(d), **{**chosen, **fields})


def test_a_start_gives_a_density_the_shape_of_its_parameters():
    """The plan from which tuning begins is the one that a plan with this start leads to; no tuning is done here."""
    density = lambda p: -0.5 * jnp.sum((p["a"] - 1.0) ** 2) - 0.5 * p["b"] ** 2
    target, start = gm.targets.LogDensity(density), {"a": np.zeros(2), "b": np.array(0.5)}
    base = _base(target, {"b": lambda p: p["b"]}, 3, start)
    assert (base.dim, base.seed) == (3, 3)
    assert base.unravel(np.arange(3.0))["a"].tolist() == [0, 1]
    vector = _base(gm.targets.LogDensity(lambda t: -jnp.sum(t**2)), None, 0, np.zeros(2))
    assert list(vector.observables) == ["theta[0]", "theta[1]", "theta[0]²", "theta[1]²"]
    with pytest.raises(gm.InvalidInput, match="Pass `observables`"):
        _base(target, None, 0, start)
    with pytest.raises(gm.InvalidInput, match=r"does not know the shape of its parameters. Pass `start`"):
        gm.expect(target, {"b": lambda p: p["b"]})
    with pytest.raises(gm.InvalidInput, match="a plan has its own"):
        gm.tune(untuned(gm.targets.Quadratic([1.0]), 1), start=np.zeros(1))


@pytest.mark.parametrize(
    ("density", "says"),
    [
        (lambda t: jnp.log(t[0] - 10) - t[0], r"not finite at the start, .*1.*Pass a `start` where it is"),
        pytest.param(lambda t: 0.5 * jnp.sum(t**2), "one way.*the right sign", marks=pytest.mark.slow),
        (lambda t: -float(np.sum(np.square(t))), "Write it with `jax.numpy`"),
    ],
    ids=["nan at the start", "wrong sign", "NumPy"],
)
def test_what_is_wrong_with_a_density_is_said(density, says):
    with pytest.raises(gm.InvalidInput, match=says):
        gm.expect(gm.targets.LogDensity(density), {"x": lambda t: t[0]}, error=0.05, start=np.ones(1))


@pytest.mark.slow
def test_expectations_of_a_density_from_a_start():
    bent = gm.targets.LogDensity(lambda p: -(p[0] ** 2) / 2 - 2 * (p[1] - 0.3 * p[0] ** 2) ** 2)
    found = gm.expect(bent, {"x": lambda p: p[0], "y": lambda p: p[1]}, error=0.05, start=np.zeros(2))
    assert abs(found["x"].mean) < 4 * found["x"].total_error
    assert abs(found["y"].mean - 0.3) < 4 * found["y"].total_error


@pytest.fixture(scope="module")
def heart():
    split = heart_split(0)
    target = gm.targets.LogisticRegression(split.X_train, split.y_train)
    chosen = {f"m{i}": gm.observables.linear(np.eye(14)[i]) for i in range(14)}
    chosen |= {f"s{i}": gm.observables.square(np.eye(14)[i]) for i in range(14)}
    return target, chosen


def test_survey_of_a_gaussian_is_exact_whatever_the_points():
    rng = np.random.default_rng(0)
    root = rng.standard_normal((4, 4))
    K, mean = root @ root.T + np.eye(4), rng.standard_normal(4)
    hidden = gm.targets.LogDensity(lambda t: -0.5 * (t - mean) @ K @ (t - mean))  # nobody says that it is Gaussian
    found = survey(gm.Model(hidden, np.zeros(4)), points=64, seed=1)
    assert found.trusted
    assert np.allclose(found.fit.precision, K, rtol=1e-6)
    assert np.allclose(found.fit.mean, mean, atol=1e-6)
    assert np.allclose(found.second, K, rtol=1e-6)


def test_a_survey_with_few_points_for_its_parameters_still_whitens():
    """Weights leave 160 of 512 points for 40 parameters: a covariance of these is off by factors of three and more."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(1000, 40))
    y = rng.random(1000) < 1 / (1 + np.exp(-X @ rng.normal(size=40) / 4))
    model = gm.Model(gm.targets.LogisticRegression(X, y))
    found = survey(model, points=512)
    exact = mean_curvature_fit(model.flat_target, nearest_gaussian(model.flat_target, model.laplace, 256), 256)
    R = inverse_root(exact.precision)
    ratios = np.linalg.eigvalsh(R.T @ found.fit.precision @ R)
    assert found.trusted
    assert 0.85 < ratios[0] < ratios[-1] < 1.15
    assert np.abs(linalg.solve(R, found.fit.mean - exact.mean)).max() < 0.1
    assert found.steepest < 1.2


def test_tuned_plan_keeps_its_promise(heart):
    """Over repetitions the error about the truth is the expected one: the mean of z² is near 1."""
    target, chosen = heart
    model = gm.Model(target)
    read = lambda rows: np.stack([model.values(h, rows) for h in chosen.values()], axis=1)
    truth = dict(zip(chosen, expectation(target, model.laplace, read, num_draws=2**17).mean, strict=True))
    tuned = gm.tune(target, observables=chosen, gradients=10_000)
    assert tuned.plan.gradients <= 1.01 * 10_000
    assert tuned.spent < 4000
    assert not tuned.warnings
    squares = []
    for seed in range(3):
        run = gm.run(tuned.plan.replace(seed=seed).knowing(tuned.plan.model), progress=False)
        squares += [((run.mean[name] - truth[name]) / tuned.expected[name]) ** 2 for name in chosen]
    assert 0.4 < np.mean(squares) < 2.0
    assert max(tuned[name].relative for name in chosen) < 0.008


def test_error_asked_for_is_reached(heart):
    target, chosen = heart
    tuned = gm.tune(target, observables=chosen, error=0.02)
    assert max(tuned[name].relative for name in chosen) < 0.022
    assert tuned.seconds is not None
    assert tuned.plan.gradients < 2000  # 2500 independent draws have this error


def test_account_says_what_was_tried_and_why(heart):
    target, chosen = heart
    plan = gm.Plan(
        target=target,
        dynamics=gm.dynamics.overdamped(14),
        observables=chosen,
        step_size=0.01,
        num_steps=5000,
        num_chains=4,
    )
    tuned = gm.tune(plan)
    assert tuned.plan.gradients <= 1.01 * plan.gradients
    assert tuned.gains["plain SGLD"] > 30
    assert tuned.gains["untuned plan"] > 30
    assert tuned.gains["reversible"] >= 0.9
    text, page, content = str(tuned), tuned._repr_html_(), tuned.to_dict()
    for shown in (text, page):
        assert "leimkuhler_matthews, reversible" in shown
        assert "chosen" in shown
        assert "untuned plan" in shown
    assert content["plan"]["scheme"] == tuned.plan.scheme.name
    assert len(content["tried"]) >= 2
    assert tuned.spent < 0.12 * tuned.gradients  # no further family: tuning takes about a tenth of the budget
    assert "Not tried" in tuned.reason
    assert "balanced, reversible" in tuned.reason


@pytest.mark.slow
def test_several_modes_are_said():
    tuned = gm.tune(untuned(BIMODAL, 2), gradients=4000)
    assert any("2 modes" in text for text in tuned.warnings)
    assert any("NUTS" in text for text in tuned.warnings)
    starts = np.asarray(tuned.plan.start)
    assert 0.4 < np.mean(starts[:, 0] > 0) < 0.9  # 2/3 of the law


def test_large_data_are_read_in_small_batches():
    rng = np.random.default_rng(0)
    X = np.concatenate([np.ones((50_000, 1)), rng.standard_normal((50_000, 3))], axis=1)
    y = rng.random(len(X)) < 1 / (1 + np.exp(-X @ [0.3, 1.0, -0.5, 0.0]))
    target = gm.targets.LogisticRegression(X, y)
    tuned = gm.tune(target, observables={"b": gm.observables.linear([0.0, 1.0, 0.0, 0.0])}, gradients=50)
    assert tuned.plan.oracle.order == 2
    assert tuned.gradients <= 1.01 * 50
    assert tuned["b"].relative < 0.01  # 10⁴ effective draws from 50 passes over the data


def test_gradients_are_counted():
    with metered() as outer, metered() as inner:
        gm.targets.Quadratic([1.0]).gradients(np.zeros((3, 1)))
    assert outer.gradients == inner.gradients == 3


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"gradients": -1}, "`gradients`"),
        ({"gradients": 10, "error": 0.1}, "Pass one of"),
        ({"error": 0.0}, "`error`"),
    ],
)
def test_wrong_budgets_are_refused(asked, message):
    with pytest.raises(gm.InvalidInput, match=message):
        gm.tune(gm.targets.Quadratic([1.0]), **asked)


def test_a_target_without_dimension_needs_a_start():
    with pytest.raises(gm.InvalidInput, match=r"Pass `start`"):
        gm.tune(BIMODAL)


def test_observable_that_is_not_finite_is_named():
    plan = untuned(gm.targets.Quadratic([1.0]), 1, observables={"log": lambda t: jnp.log(t[0])})
    with pytest.raises(gm.InvalidInput, match="'log'"):
        gm.tune(plan)


def test_one_parameter_and_a_constant_observable():
    tuned = gm.tune(
        untuned(gm.targets.Quadratic([2.0]), 1, observables={"x": lambda t: t[0], "one": lambda t: 0 * t[0] + 1})
    )
    run = gm.run(tuned.plan, progress=False)
    assert abs(run.mean["x"]) < 6 * math.sqrt(tuned.expected["x"] ** 2 + run.std_error["x"] ** 2)
    assert run.mean["one"] == pytest.approx(1.0)
    assert tuned.expected["one"] == tuned.bias["one"] == 0.0  # and not infinite


def test_many_parameters_are_tuned_without_matrices():
    plan = untuned(gm.targets.Quadratic(np.geomspace(0.1, 10.0, 1200)), 1200, num_steps=20_000)
    tuned = gm.tune(plan, gradients=20_000)
    assert str(tuned.plan.scheme) == "hfhr_splitting"
    assert tuned.plan.gradients + tuned.spent <= 20_000
    assert math.isnan(tuned.expected["x"])  # not known, and a warning says so
    assert any("not predicted" in text for text in tuned.warnings)
    with pytest.raises(gm.InvalidInput, match="pass `gradients`"):
        gm.tune(plan, error=0.01)


def test_heavy_tails_are_named():
    """θ² has no fourth moment under t with 4.5 degrees of freedom; θ has a fourth, not a fifth."""
    target = gm.targets.LogDensity(lambda t: -2.75 * jnp.sum(jnp.log1p(t**2 / 4.5)))
    tuned = gm.tune(untuned(target, 2), gradients=4000)
    assert any(text.startswith("x²: the observable has heavy tails") for text in tuned.warnings)


def test_a_bias_that_trials_do_not_know_well_enough_is_measured():
    """On a cosine target trials of some hundred gradients know a bias to a third of the error at best."""
    target = gm.targets.CosinePerturbed(2, 1.2)
    observables = {"square": gm.observables.square([1.0, 0.0])}
    tuned = gm.tune(target, observables=observables, error=0.02)
    assert 0.3 * 0.02 < tuned["square"].largest_bias / tuned["square"].sd < 0.02
    t = np.linspace(-12, 12, 20_001)
    weight = np.exp(-0.5 * t**2 - 1.2 * np.cos(t))
    with pytest.warns(gm.GyromcWarning, match="4 modes"):
        found = gm.expect(target, observables, error=0.02, progress=False)["square"]
    assert found.recommended[0] < np.sum(t**2 * weight) / np.sum(weight) < found.recommended[1]
    assert "pairs of chains" in found.bias_method
