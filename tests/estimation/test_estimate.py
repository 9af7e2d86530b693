"""estimate: Monte Carlo errors, biases and warnings of real runs, and that a run and its estimates agree."""

import dataclasses
import math
import re
import warnings

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import gyromc as gm
from gyromc.estimation import estimate as estimation
from gyromc.estimation.estimate import grows, heavy_tailed, relaxation_times
from gyromc.statistics import ErrorMethod, monte_carlo_error
from support.values import J1, on_cosine


def plan(**changes):
    pieces = {
        "target": gm.targets.Quadratic([1.0, 1.0, 1.0]),
        "dynamics": gm.dynamics.nonreversible(J1),
        "oracle": gm.oracles.Gaussian(1.0),
        "observables": {"odd": gm.observables.linear([1.0, -1.0, 0.0]), "even": gm.observables.square([1.0, 0.0, 0.0])},
        "step_size": 0.05,
        "num_steps": 8192,
        "num_chains": 4,
    }
    return gm.Plan(**{**pieces, **changes})


def silenced(run, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gm.GyromcWarning)
        return gm.estimate(run, **options)


@pytest.fixture(scope="module")
def run():
    return gm.run(plan(), thin=16)


def test_a_dominating_bias_is_reported_beside_the_error_and_taken_off(run):
    """The bias of θ₁² is 0.16, five standard errors; the corrected interval holds the truth, the other does not."""
    with pytest.warns(
        gm.GyromcWarning, match=r"bias of even exceeds the statistical error.*halve the step size \(now 0.05\)"
    ):
        found = gm.estimate(run, level=0.999)
    even, odd = found["even"], found["odd"]
    assert even.bias == pytest.approx(gm.predict(run.plan).bias["even"])
    assert even.bias_method == "predicted, exact finite-step"
    assert abs(even.corrected_mean - 1) < 4 * even.std_error
    assert even.bias > 3 * even.std_error
    assert even.corrected[0] < 1 < even.corrected[1]
    assert even.corrected_error == even.std_error
    assert even.recommended == even.corrected
    assert "report the corrected interval" in even.verdict
    assert odd.recommended == odd.interval
    assert "negligible" in odd.verdict
    assert odd.method == "lugsail batch means"
    assert odd.variance == pytest.approx(
        gm.predict(run.plan).std["odd"] ** 2 * 8192 * 0.05, rel=4 * math.sqrt(2 / odd.dof)
    )
    assert odd.ess == pytest.approx(2.0 / odd.std_error**2, rel=1e-6)
    assert odd.ess_per_gradient == odd.ess / (4 * 8192)
    assert odd.r_hat < 1.1
    assert found.divergences == 0


@pytest.fixture(scope="module")
def banana():
    """A run whose bias nothing predicts: of the draws around the mode of a banana a few dominate."""
    bent = plan(
        target=gm.targets.LogDensity(lambda x: -0.5 * x[0] ** 2 - 2 * (x[1] - 0.5 * x[0] ** 2) ** 2),
        dynamics=gm.dynamics.overdamped(2),
        oracle=gm.oracles.Exact(),
        observables={"x": gm.observables.linear([1.0, 0.0])},
        step_size=0.02,
        num_steps=2048,
        num_chains=30,
    )
    return gm.run(bent)


def test_a_bias_that_nothing_predicts_is_unknown(banana, monkeypatch):
    """Nothing is run; the reason and what to do about it are in the method, the verdict and a hint; the run is healthy."""
    monkeypatch.setattr(
        estimation, "extrapolated_bias", lambda *_: pytest.fail("estimate ran a plan without being asked")
    )
    monkeypatch.setattr(estimation, "BIAS", estimation.BiasSettings(healthy=1.1))  # no draws are good enough
    found = gm.estimate(banana)
    assert found.warnings == []
    (hint,) = found.hints
    assert re.search(r"bias of x is unknown: .* draws around the mode .*`bias=.richardson.`", hint)
    assert "hint: The discretisation bias of x is unknown" in repr(found)
    assert found.to_dict()["hints"] == [hint]
    assert found["x"].bias is None
    assert found["x"].recommended == found["x"].interval
    assert 'bias="richardson"' in found["x"].bias_method
    with pytest.raises(gm.InvalidInput, match=r"cannot be predicted: .* draws around the mode"):
        gm.estimate(banana, bias="predict")
    assert gm.estimate(banana, bias="none").hints == []


def test_pairs_of_chains_measure_the_bias(banana):
    found = gm.estimate(banana, level=0.999, bias="richardson")["x"]
    assert "Richardson" in found.bias_method
    assert found.corrected[0] < 0 < found.corrected[1]
    assert found.bias_error < found.std_error
    assert found.corrected_error == pytest.approx(math.hypot(found.std_error, found.bias_error))


COUNTS = (1, 2, 5, 19, 20, 64, 65)
WEIGHTED = (1, 20)  # with a schedule by default: it compiles for each number


@pytest.mark.parametrize(
    ("chains", "weighting"),
    [
        *((chains, "constant") for chains in COUNTS),
        *(
            pytest.param(chains, "schedule", marks=[] if chains in WEIGHTED else [pytest.mark.slow])
            for chains in COUNTS
        ),
    ],
)
def test_a_run_and_its_estimates_agree(chains, weighting):
    """One rule picks the error for every number of chains, whoever asks."""
    changes = {"step_size": lambda k: 0.02 + 0.08 / (1 + k / 250)} if weighting == "schedule" else {}
    run = gm.run(plan(num_chains=chains, num_steps=1024, **changes), progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gm.GyromcWarning)
        found = gm.estimate(run, bias="none")
    for name, row in found.items():
        assert row.std_error == run.std_error[name] == run[name].std_error
        assert row.interval == run.interval(name) == run[name].interval
        assert row.variance == run.variance[name] == run[name].variance
        assert row.ess == run.ess[name]
        assert row.method is run[name].method
    assert run.error_method in ("mixed", *ErrorMethod)


def test_a_start_far_off_shows():
    with pytest.warns(gm.GyromcWarning, match="not forgotten their start"):
        gm.estimate(gm.run(plan(start=[500.0, 0.0, 0.0], num_steps=4096)), bias="none")


@pytest.mark.parametrize(("start", "counted"), [pytest.param(1000.0, False, marks=pytest.mark.slow), (4.0, True)])
def test_a_predicted_bias_silences_the_start_only_where_it_contains_it(start, counted):
    """From 1000 the chains do not arrive in 150 steps, and the prediction leaves the start out; from 4 it is in the bias."""
    run = gm.run(on_cosine(step_size=0.02, num_steps=150, num_chains=64, start=[start]))
    with pytest.warns(gm.GyromcWarning):
        found = gm.estimate(run, bias="predict")
    row = found["x"]
    assert row.bias is not None
    assert ("start left out" in row.bias_method) is not counted
    assert row.discretisation.start is counted
    assert any("not forgotten their start" in sentence for sentence in found.warnings) is not counted
    drift, error = row.average.drift
    assert abs(drift) > 3.5 * error  # the start shows in both
    with pytest.warns(gm.GyromcWarning):
        again = gm.estimate(run, bias=found.biases)
    assert any("not forgotten their start" in sentence for sentence in again.warnings) is not counted


def test_short_chains_and_few_chains_are_said_to_be_short():
    slow = plan(
        target=gm.targets.Quadratic([1.0, 1.0, 0.02]), dynamics=gm.dynamics.overdamped(3), num_chains=1, num_steps=8192
    )
    slow = slow.replace(observables={"x": gm.observables.linear([0.0, 0.0, 1.0])})
    run = gm.run(slow, thin=16)
    with pytest.warns(
        gm.GyromcWarning, match=r"relaxation times.*times longer, run several chains, or .*`gyromc.sharpen`"
    ):
        found = gm.estimate(run, bias="none")
    assert found["x"].method is ErrorMethod.LUGSAIL
    with pytest.warns(gm.GyromcWarning, match="do not follow the target"):
        sharp = gm.sharpen(run.draws, slow.target, slow.observables)["x"]  # the advice: exact on a Gaussian
    assert abs(sharp.mean) < 1e-6 < found["x"].std_error


def test_estimates_speak_to_people_and_machines(run):
    import json

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gm.GyromcWarning)
        found = gm.estimate(run)
    values = json.loads(json.dumps(found.to_dict()))
    assert values["observables"]["even"]["bias_dominates"] is True
    assert values["observables"]["even"]["recommended"] == list(found["even"].corrected)
    assert values["divergences"] == 0
    assert "95 % corrected" in repr(found)
    assert "WARNING" in repr(found)
    assert "<table" in found._repr_html_()
    assert values["warnings"] == found.warnings
    assert list(found) == ["odd", "even"]
    assert found.mean["odd"] == found["odd"].mean
    assert found.recommended["even"] == found["even"].recommended
    assert found.bias["even"] == found["even"].bias
    again = gm.estimate(run, bias={name: estimation.Bias(0.0, "given") for name in found})
    assert again["even"].bias == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "magic"}, "`method` must be one of auto, replicate chains"),
        ({"bias": "magic"}, "`bias` must be one of auto, predict"),
        ({"level": 95}, "between 0 and 1"),
        ({"bias": {"odd": estimation.Bias(0.0, "given")}}, "lacks even"),
    ],
)
def test_wrong_questions_are_answered_with_the_right_ones(run, changes, message):
    with pytest.raises(gm.InvalidInput, match=message):
        gm.estimate(run, **changes)


def test_what_a_run_does_not_hold_is_named(run):
    with pytest.raises(gm.InvalidInput, match="takes a `Run`"):
        gm.estimate(run.plan)
    with pytest.raises(gm.InvalidInput, match=r"`biases` of earlier estimates.*got a Run"):
        gm.estimate(run, bias=run)
    with pytest.raises(gm.InvalidInput, match="cannot pair chains here: the step size is a schedule"):
        gm.estimate(gm.run(plan(num_steps=64, step_size=lambda k: 0.1 / (1 + k))), bias="richardson")


def test_a_single_chain_of_a_schedule_has_an_error():
    """η_k from 0.1 to 0.02: the variance of the time-weighted average is V/T, within 4 standard errors."""
    schedule = gm.Plan(
        target=gm.targets.Quadratic([1.0]),
        dynamics=gm.dynamics.overdamped(1),
        observables={"x": gm.observables.linear([1.0])},
        step_size=lambda k: 0.02 + 0.08 / (1 + k / 250),
        num_steps=2048,
        num_chains=40,
        weighting="step_size",
    )
    many = gm.run(schedule)
    within = monte_carlo_error(many["x"], ErrorMethod.BATCH_MEANS)
    between = monte_carlo_error(many["x"], ErrorMethod.REPLICATE)
    assert within.variance == pytest.approx(2.0 / sum(many.state.clock), rel=4 * math.sqrt(2 / within.dof) + 0.05)
    assert between.variance == pytest.approx(within.variance, rel=4 * math.sqrt(2 / 39))
    alone = gm.run(schedule.replace(num_chains=1))
    assert alone.error_method == "batch means"
    assert 0.5 < alone.std_error["x"] / math.sqrt(2.0 / sum(alone.state.clock)) < 2


def test_blocks_average_to_the_average(run):
    for name, averages in run.averages.items():
        assert run.blocks[name].shape == (4, 128)
        assert np.allclose(run.blocks[name].mean(axis=1), averages, rtol=1e-12)
    assert run["odd"].covered == pytest.approx(1.0)
    ragged = gm.run(plan(num_steps=1000))
    assert ragged["odd"].covered == pytest.approx(1000 // 8 * 8 / 1000)


def test_interval_of_one_chain_uses_students_distribution():
    alone = gm.run(plan(num_chains=1))
    low, high = alone.interval("odd", 0.9)
    dof = alone["odd"].dof
    assert high - low == pytest.approx(2 * stats.t.ppf(0.95, dof) * alone.std_error["odd"])


def test_no_prediction_costs_much_more_than_the_run(monkeypatch):
    """Decided beforehand, from the number of parameters and observables: nothing is predicted, and the reason is given."""
    monkeypatch.setattr(estimation, "predict", lambda *_, **__: pytest.fail("estimate began a costly prediction"))
    wide = plan(
        target=gm.targets.Quadratic(np.linspace(1.0, 4.0, 500)),
        dynamics=gm.dynamics.overdamped(500),
        observables={"x": gm.observables.linear(np.eye(500)[0])},
        num_steps=64,
    )
    found = silenced(gm.run(wide))
    assert found["x"].bias is None
    assert 'more than 60 parameters (here 500); pass `bias="predict"` to insist' in found.hints[0]
    rng = np.random.default_rng(0)
    logistic = plan(
        target=gm.targets.LogisticRegression(rng.standard_normal((50, 3)), rng.integers(0, 2, 50), prior_scale=2.0),
        observables={f"x{i}": gm.observables.linear(rng.standard_normal(3)) for i in range(20)},
        num_steps=256,
    )
    run = dataclasses.replace(gm.run(logistic), wall_time=2.0)
    found = silenced(run)
    assert found["x0"].bias is None
    assert "would take about 12 s, and the run took 2 s" in found.hints[0]
    assert estimation.too_costly(dataclasses.replace(run, wall_time=31.0)) is None


def test_a_double_well_with_chains_on_both_sides_warns():
    """Barrier 4: chains rarely change sides; 100 chains keep 8 blocks."""
    wells = plan(
        target=gm.targets.LogDensity(lambda x: -4 * (x[0] ** 2 - 1) ** 2),
        dynamics=gm.dynamics.overdamped(1),
        oracle=gm.oracles.Exact(),
        observables={"x": gm.observables.linear([1.0])},
        start=np.where(np.arange(100) % 2, 1.0, -1.0)[:, None],
        step_size=0.01,
        num_steps=2000,
        num_chains=100,
    )
    for seed in range(5):
        with pytest.warns(gm.GyromcWarning, match=r"x: the chains have not mixed \(R-hat .*start chains at every mode"):
            gm.estimate(gm.run(wells.replace(seed=seed)), bias="none")


@pytest.mark.parametrize(
    ("chains", "nu"),
    [
        (1, 5.0),
        (20, 2.0),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 2.0), (1, 3.0), (20, 3.0), (20, 5.0))),
    ],
)
def test_squares_of_student_variables_have_heavy_tails(nu, chains):
    heavy = plan(
        target=gm.targets.LogDensity(lambda x: -0.5 * (nu + 1) * jnp.log1p(x[0] ** 2 / nu) - 0.5 * x[1] ** 2),
        dynamics=gm.dynamics.overdamped(2),
        oracle=gm.oracles.Exact(),
        observables={"t²": gm.observables.square([1.0, 0.0]), "z²": gm.observables.square([0.0, 1.0])},
        num_steps=1024,
        num_chains=chains,
    )
    with pytest.warns(gm.GyromcWarning, match=r"t²: the observable has heavy tails .*variance, .*may not exist"):
        found = gm.estimate(gm.run(heavy), bias="none")
    assert not any(sentence.startswith("z²: the observable") for sentence in found.warnings)


def test_light_tails_are_not_called_heavy():
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((30, 2)), rng.integers(0, 2, 30)
    squares = {"x²": gm.observables.square([1.0, 0.0]), "x": gm.observables.linear([0.0, 1.0])}
    for target in (
        gm.targets.Quadratic([1.0, 4.0]),
        gm.targets.CosinePerturbed(2, 1.2),
        gm.targets.LogisticRegression(X, y, prior_scale=2.0),
        gm.targets.LogDensity(lambda x: -jnp.abs(x[0]) - jnp.abs(x[1])),
        gm.targets.LogDensity(lambda x: x[0] - jnp.exp(x[0]) - 0.5 * x[1] ** 2),
    ):
        dynamics = gm.dynamics.overdamped(2)
        light = plan(target=target, dynamics=dynamics, oracle=gm.oracles.Exact(), observables=squares)
        assert heavy_tailed(light, np.ones((1, 2))) == []


def test_a_heavy_direction_that_is_no_coordinate_is_found():
    """Student's t₃ along (1, 1)/√2 and a Gaussian across it: along both coordinates the density falls as a Gaussian."""

    def density(x):
        along, across = x[0] + x[1], x[0] - x[1]
        return -2 * jnp.log1p(along**2 / 6) - across**2

    heavy = plan(
        target=gm.targets.LogDensity(density),
        dynamics=gm.dynamics.overdamped(2),
        observables={"a²": gm.observables.square([1.0, 1.0]), "x²": gm.observables.square([1.0, 0.0])}
        | {"b²": gm.observables.square([1.0, -1.0])},
    )
    assert heavy_tailed(heavy, np.array([[300.0, 5.0]])) == ["a²", "x²"]


@pytest.mark.parametrize("seed", range(3))
def test_squares_of_one_short_chain_always_warn(seed):
    """Ten parameters, condition 100, T = 20: the slowest direction has 20 relaxation times, and every square sees it."""
    rotation = stats.ortho_group.rvs(10, random_state=seed)
    short = plan(
        target=gm.targets.Quadratic(rotation @ np.diag(np.geomspace(1, 100, 10)) @ rotation.T),
        dynamics=gm.dynamics.overdamped(10),
        oracle=gm.oracles.Exact(),
        observables={f"x{i}": gm.observables.square(np.eye(10)[i]) for i in range(10)},
        step_size=0.002,
        num_steps=10_000,
        num_chains=1,
        seed=seed,
    )
    found = silenced(gm.run(short), bias="none")
    for i in range(10):
        assert any(sentence.startswith(f"x{i}: a chain lasts only") for sentence in found.warnings)


@pytest.mark.parametrize("dynamics", ["overdamped", "rotated", "hfhr"])
def test_relaxation_times_are_those_of_the_directions_an_observable_sees(dynamics):
    """Rates 1 and 9: x₂ does not see the slow one. With rotation all directions mix: Re λ = 5 for J strong enough."""
    kinds = {
        "overdamped": (gm.dynamics.overdamped(2), 1.0, 1 / 9),
        "rotated": (gm.dynamics.nonreversible([[0.0, -4.0], [4.0, 0.0]]), 1 / 5, 1 / 5),
        "hfhr": (gm.dynamics.hfhr(2, 1.0, 2.0), None, None),
    }
    pair, first, second = kinds[dynamics]
    square = gm.observables.square([0.0, 1.0])
    if dynamics == "overdamped":
        square = gm.observables.function(lambda t: t[1] ** 2)
    two = plan(
        target=gm.targets.Quadratic([1.0, 9.0]),
        dynamics=pair,
        observables={"x": gm.observables.linear([1.0, 0.0]), "y": square},
        num_steps=64,
        num_chains=1,
    )
    found = relaxation_times(gm.run(two), ["x", "y"])
    if first is None:  # (α, γ) = (1, 2): λ² - (κ + 2)λ + 3κ = 0 for each curvature κ
        first = 1 / np.roots([1, -3, 3]).real.min()
        second = 1 / np.roots([1, -11, 27]).real.min()
    assert found["x"] == pytest.approx(first)
    assert found["y"] == pytest.approx(second)


def test_the_start_shows_also_in_many_chains_with_few_blocks():
    """100 chains keep 8 blocks; two relaxation times from 6 standard deviations off."""
    far = plan(start=[6.0, -6.0, 0.0], num_steps=40, num_chains=100, dynamics=gm.dynamics.overdamped(3))
    run = gm.run(far)
    assert any("odd: the first half" in sentence for sentence in silenced(run, bias="none").warnings)
    assert not any("odd: the first half" in sentence for sentence in silenced(run).warnings)  # the bias contains it


def test_one_chain_of_very_few_steps_warns():
    found = silenced(gm.run(plan(num_steps=12, num_chains=1)), bias="none")
    assert any(sentence.startswith("odd: one chain of so few steps") for sentence in found.warnings)


def test_a_prediction_that_does_not_fit_in_memory_is_refused_in_a_sentence(run, monkeypatch):
    def too_large(*_, **__):
        raise MemoryError("Unable to allocate 468. GiB")

    monkeypatch.setattr(estimation, "predict", too_large)
    with pytest.raises(gm.InvalidInput, match=r"cannot be predicted: .*more memory than there is .*richardson"):
        gm.estimate(run, bias="predict")
    found = silenced(run)
    assert found["odd"].bias is None
    assert "468" in found.hints[0]


def test_heavy_tails_that_no_straight_line_shows_are_found_in_the_run():
    """Student's t₂ in x along a wave y = 6 sin(x/2): along every line the density goes up and down."""
    wave = plan(
        target=gm.targets.LogDensity(
            lambda x: -1.5 * jnp.log1p(x[0] ** 2 / 2) - 0.5 * (x[1] - 6 * jnp.sin(x[0] / 2)) ** 2
        ),
        dynamics=gm.dynamics.overdamped(2),
        oracle=gm.oracles.Exact(),
        observables={
            "x²": gm.observables.square([1.0, 0.0]),
            "rare": gm.observables.function(lambda x: (x[0] > 10) * 1.0),
        },
        num_steps=32768,
        num_chains=20,
    )
    run = gm.run(wave)
    assert heavy_tailed(wave, run.state.z) == []
    assert run["x²"].uneven
    assert grows(run, "x²")
    assert not grows(run, "rare")
    assert any(
        re.match(r"x²: .* % of its fluctuations come from one of", s) for s in silenced(run, bias="none").warnings
    )


def test_a_network_is_estimated_at_once_and_what_is_left_out_is_said(monkeypatch):
    """513 parameters: nothing is predicted and no tails are looked at, each of which takes longer than the run."""
    rng = np.random.default_rng(2)
    X, start = rng.standard_normal((40, 30)), {"W": 0.1 * rng.standard_normal((30, 17)), "v": 0.1 * np.ones(3)}
    network = plan(
        target=gm.targets.FiniteSum(
            lambda p, d: -0.5 * (d[1] - jnp.sum(jnp.tanh(d[0] @ p["W"])) - p["v"].sum()) ** 2,
            lambda p: -0.5 * (jnp.sum(p["W"] ** 2) + jnp.sum(p["v"] ** 2)),
            (X, np.sin(X[:, 0])),
        ),
        dynamics=gm.dynamics.overdamped(513),
        oracle=gm.oracles.Minibatch(8),
        observables={"out": gm.observables.function(lambda p: jnp.tanh(X[0] @ p["W"]).sum())},
        step_size=1e-4,
        num_steps=128,
        start=start,
    )
    run = gm.run(network)
    monkeypatch.setattr(estimation, "predict", lambda *given, **named: pytest.fail("predicted"))
    monkeypatch.setattr(estimation, "_directions", lambda *given: pytest.fail("looked at the tails"))
    found = silenced(run)
    assert found["out"].bias is None
    assert [re.search(r"here 513", hint) is not None for hint in found.hints] == [True, True]


def test_kept_draws_are_sharpened_where_there_are_enough_chains():
    """On a Gaussian x² is 1 plus a zero-mean function: the regression finds 1 exactly, whatever bias the draws have."""
    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0, 4.0]),
        dynamics=gm.dynamics.overdamped(2),
        observables={"x²": gm.observables.square([1.0, 0.0])},
        step_size=0.05,
        num_steps=400,
        num_chains=32,
        burn_in=100,
    )
    run = gm.run(plan, thin=20)
    found = gm.estimate(run)
    sharp = found["x²"].sharpened
    assert abs(sharp.mean - 1) < 1e-6
    assert sharp.gain > 1000
    assert sharp is found.sharpened["x²"]
    assert abs(found["x²"].mean - 1) > 10 * abs(sharp.mean - 1)
    assert found.to_dict()["observables"]["x²"]["sharpened"]["mean"] == sharp.mean
    assert "this error does not contain the rest" in str(found)
    assert gm.estimate(gm.run(plan))["x²"].sharpened is None
    few = gm.estimate(gm.run(plan.replace(num_chains=4, num_steps=8000), thin=20))
    assert few["x²"].sharpened is None
