"""expect: the error asked for is reached, intervals cover although the length is adaptive, limits and failures are reported."""

import math
import re
import signal
import time
import warnings
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import gyromc as gm
from gyromc.estimation.levels import measured_twice
from gyromc.expectation import biases, pursuit
from gyromc.expectation import limits as limits_module
from gyromc.expectation.chains import GrowingRun
from gyromc.expectation.expect import attain
from gyromc.expectation.limits import Limits
from gyromc.statistics.stopping import FirstStage

X, SQUARE = gm.observables.linear([1.0, 0.0]), gm.observables.square([1.0, 0.0])
GAUSSIAN = gm.targets.Quadratic([1.0, 4.0])
TRUTH = {"x": 0.0, "x²": 1.0}


def whitened(scheme="balanced", step_size=0.8, martingale=False, **changes):
    """A whitened plan for the Gaussian; Euler's x² is biased by 1/(1 - η/2) - 1."""
    fields = {
        "target": GAUSSIAN,
        "dynamics": gm.dynamics.general([1.0, 0.25], 0),
        "observables": {"x": X, "x²": SQUARE},
        "step_size": step_size,
        "num_steps": 1024,
        "num_chains": 64,
        "scheme": scheme,
        "martingale": martingale,
        "burn_in": 20,
    }
    return gm.Plan(**{**fields, **changes})


def test_a_stage_says_how_long_and_how_exact():
    first = FirstStage(np.array([1.0, 3.0, 2.0, 2.0]), steps=100)
    assert first.steps_for(0.2) == math.ceil(100 * (2 / 3) / (4 * 0.04))
    error = first.error(400)
    assert error.std_error == pytest.approx(math.sqrt(2 / 3 / 4 / 4))
    assert error.dof == 3
    assert first.steps_for(0.0) == math.inf
    assert FirstStage(np.ones(4), 100).steps_for(0.0) == 100


def brownian(rng, repetitions, chains, first, sizes):
    """Chain averages of white noise after `first` steps and after `sizes` steps: repetitions × chains each."""
    early = rng.standard_normal((repetitions, chains)) * math.sqrt(first)
    late = rng.standard_normal((repetitions, chains)) * np.sqrt(sizes - first)[:, None]
    return early / first, (early + late) / sizes[:, None]


def test_the_interval_of_two_stages_covers_and_one_with_a_new_variance_does_not():
    """The asked error is what 60 steps give on average, so that about half of the runs end after the first stage."""
    rng, runs, chains, first = np.random.default_rng(0), 20_000, 12, 60
    asked = 1 / math.sqrt(chains * first)
    early = rng.standard_normal((runs, chains)) / math.sqrt(first)
    sizes = np.array([max(first, FirstStage(row, first).steps_for(asked)) for row in early])
    rest = rng.standard_normal((runs, chains)) * np.sqrt(sizes - first)[:, None]
    late = (early * first + rest) / sizes[:, None]
    mean = late.mean(axis=1)
    errors = [FirstStage(row, first).error(n) for row, n in zip(early, sizes, strict=True)]
    stated = np.array([error.std_error for error in errors])
    assert np.all(stated <= asked * (1 + 1e-12))
    limit = stats.t.ppf(0.975, errors[0].dof)
    spread = math.sqrt(0.95 * 0.05 / runs)
    assert abs(np.mean(np.abs(mean) <= limit * stated) - 0.95) < 4 * spread
    # the same runs, ended at the first look where their own error is small enough
    ended = early.std(axis=1, ddof=1) / math.sqrt(chains) <= asked
    own = early[ended].std(axis=1, ddof=1) / math.sqrt(chains)
    assert np.mean(np.abs(early[ended].mean(axis=1)) <= limit * own) < 0.95 - 10 * spread


def test_a_first_stage_is_refuted_by_slow_chains_and_by_fast_ones_but_not_by_chance():
    rng = np.random.default_rng(1)
    early, late = brownian(rng, 3000, 64, 100, np.full(3000, 400))
    alarms = sum(FirstStage(a, 100).refuted(b, 400) for a, b in zip(early, late, strict=True))
    assert stats.binom.sf(alarms - 1, 3000, 1e-3) > 1e-3
    slow = rng.standard_normal(64)  # chains that sit in places of their own: the variance does not fall at all
    assert FirstStage(slow, 100).refuted(slow, 400)
    ends = rng.standard_normal((3, 64))  # a sum that telescopes
    assert FirstStage((ends[0] - ends[1]) / 100, 100).refuted((ends[0] - ends[2]) / 800, 800)
    assert not FirstStage(slow, 100).refuted(slow, 100)


def test_the_error_asked_for_is_reached_and_the_truth_is_near():
    found = gm.expect(GAUSSIAN, {"x": X, "x²": SQUARE}, error=0.004, seed=3, progress=False)
    assert not found.warnings
    for name, row in found.items():
        assert row.relative_error <= 0.004
        assert abs(row.mean - TRUTH[name]) < 4 * row.std_error
        assert row.relative_error == pytest.approx(row.total_error / math.sqrt({"x": 1, "x²": 2}[name]))
    assert found.run.plan.num_steps == found.run.steps_done
    assert found.tuning.plan.target is GAUSSIAN
    assert gm.estimate(found.run).tuning is None


def test_intervals_cover_where_the_length_is_decided_by_the_error():
    runs, steps, inside, squares = 30, [], {"x": 0, "x²": 0}, []
    for seed in range(runs):
        found = attain(whitened(seed=seed), 0.009, progress=False)
        steps.append(found.run.steps_done)
        for name, row in found.items():
            assert row.relative_error <= 0.009 * (1 + 1e-9)
            inside[name] += row.recommended[0] <= TRUTH[name] <= row.recommended[1]
            squares.append(((row.mean - TRUTH[name]) / row.std_error) ** 2)
    assert min(steps) == 256  # of some the first stage was enough
    assert max(steps) > 300
    assert all(stats.binom.cdf(count, runs, 0.95) > 1e-3 for count in inside.values())
    assert abs(np.mean(squares) - 63 / 61) < 4 * math.sqrt(2 / runs)  # the two observables of a run may be dependent


def test_a_biased_step_size_is_made_smaller_and_nothing_is_mixed():
    found = attain(whitened("euler", 0.4, martingale=True), 0.01, progress=False)
    eta = found.run.plan.eta
    assert eta < 0.4
    assert "went from 0.4" in found.hints[0]
    assert abs(found["x²"].bias - (1 / (1 - eta / 2) - 1)) < 1e-3
    assert found["x²"].relative_error <= 0.01
    assert abs(found["x²"].corrected_mean - 1) < 4 * found["x²"].corrected_error
    alone = gm.run(
        found.run.plan, found.run.engine, progress=False
    )  # the same plan by itself: no earlier step is in it
    assert np.array_equal(alone.averages["x²"], found.run.averages["x²"])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The posterior has 2 modes")
def test_a_bias_is_measured_where_no_formula_gives_it():
    t = np.linspace(-12, 12, 20_001)
    weight = np.exp(-0.5 * t**2 - 1.2 * np.cos(t))
    truth = float(np.sum(t**2 * weight) / np.sum(weight))
    found = gm.expect(
        gm.targets.CosinePerturbed(1, 1.2), {"x²": gm.observables.square([1.0])}, error=0.05, progress=False
    )
    row = found["x²"]
    assert row.bias_method.startswith("measured")
    assert abs(row.corrected_mean - truth) < 4 * row.corrected_error
    assert row.relative_error <= 0.05


@pytest.mark.slow
def test_the_bias_measured_at_three_step_sizes_is_the_exact_one():
    plan = whitened("euler", 0.4, num_steps=4000)
    found = measured_twice(plan, ["x²"])["x²"]
    assert abs(found.value - (1 / 0.8 - 1)) < 4 * found.error
    assert found.noise <= found.error < 0.02


def test_gradients_that_are_spent_end_the_run_with_a_warning():
    limits = Limits.read(40_000, None, time.perf_counter())
    with pytest.warns(gm.GyromcWarning, match="not reached for x .*gradients allowed are spent"):
        found = attain(whitened(), 0.002, limits=limits, progress=False)
    assert 39_000 <= found.gradient_evaluations <= 40_000
    said = re.search(r"x \(([\d.]+), ([\d.]+) times\)", found.warnings[0])
    assert said is not None
    assert float(said[1]) == pytest.approx(found["x"].relative_error, rel=0.05)
    assert float(said[2]) == pytest.approx(found["x"].relative_error / 0.002, rel=0.01)
    assert abs(found.mean["x"]) < 4 * found.std_error["x"]


def test_seconds_that_are_spent_end_the_run_with_a_warning(monkeypatch):
    """By a clock on which every piece takes 0.3 seconds: one second is over after four."""
    clock = SimpleNamespace(now=0.0, perf_counter=lambda: clock.now)
    piece = GrowingRun._piece

    def timed(self, count, steps):
        piece(self, min(count, 1000), steps)
        clock.now += 0.3

    monkeypatch.setattr(GrowingRun, "_piece", timed)
    for module in (limits_module, pursuit):
        monkeypatch.setattr(module, "time", clock)
    limits = Limits.read(None, 1.0, clock.now)
    with pytest.warns(gm.GyromcWarning, match="time allowed is spent"):
        found = attain(whitened(), 1e-6, limits=limits, progress=False)
    assert clock.now == pytest.approx(4 * 0.3)
    assert found.relative_error["x"] > 1e-6


def test_ctrl_c_returns_what_there_is(sigint, monkeypatch):
    sigint(signal.default_int_handler)
    piece = GrowingRun._piece

    def pressed(self, count, steps):
        piece(self, count, steps)
        if self.done >= 256:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(GrowingRun, "_piece", pressed)
    with pytest.warns(gm.GyromcWarning, match="interrupted"):
        found = attain(whitened(), 1e-4, progress=False)
    assert found.run.steps_done == 256
    assert found.relative_error["x"] > 1e-4
    assert abs(found.mean["x"]) < 4 * found.std_error["x"]


def test_progress_shows_the_error_so_far(capsys):
    attain(whitened(), 0.02, progress=True)
    assert re.search(r"error 0\.0\d+ of 0\.02 \(x", capsys.readouterr().err)


def test_a_bias_that_cannot_be_known_is_a_warning(monkeypatch):
    monkeypatch.setattr(biases, "predicted_or_not", lambda run: {name: biases.unknown("no formula") for name in run})
    limits = Limits.read(18_000, None, time.perf_counter())  # enough for the first stage, not for pairs
    plan = whitened(target=gm.targets.CosinePerturbed(2, 0.3), scheme="euler", step_size=0.1)
    with pytest.warns(gm.GyromcWarning, match="does not contain the discretisation bias"):
        found = attain(plan, 0.5, limits=limits, progress=False)
    assert found["x"].bias is None
    assert any("`gradients` leave too few" in hint for hint in found.hints)


def test_a_constant_observable_is_no_obstacle():
    plan = whitened(observables={"x": X, "one": lambda theta: 1.0 + 0 * theta[0]})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gm.GyromcWarning)
        found = attain(plan, 0.02, progress=False)
    assert found.mean["one"] == pytest.approx(1.0)
    assert found["x"].relative_error <= 0.02


class Slope(gm.targets.Target):
    """No mode: U = θ."""

    @property
    def dim(self):
        return 1

    def potential(self, params):
        return jnp.sum(params)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"error": 0.0}, "`error` must be positive"),
        ({"error": -1}, "`error` must be positive"),
        ({"error": "small"}, "`error` must be one positive number"),
        ({"level": 1.5}, "`level` must lie between 0 and 1"),
        ({"gradients": 0}, "`gradients` must be positive"),
        ({"seconds": -2}, "`seconds` must be positive"),
        ({"gradients": 30}, "`gradients` = 30 are too few: 20 chains"),
        ({"target": "normal"}, "`target` must be a value of `gyromc.targets`"),
        ({"target": Slope(), "observables": {"x": gm.observables.linear([1.0])}}, "mode"),
        ({"observables": {}}, "At least one observable is needed"),
        ({"observables": {"log": lambda theta: jnp.log(theta[0])}}, r"Observable 'log' is NaN or infinite"),
    ],
)
def test_wrong_arguments_are_explained(arguments, message):
    given = {"target": GAUSSIAN, "observables": {"x": X}, "progress": False, **arguments}
    with pytest.raises(gm.InvalidInput, match=message):
        gm.expect(given.pop("target"), given.pop("observables"), **given)


@pytest.mark.slow
def test_an_error_that_takes_more_than_a_day_is_refused_with_what_an_hour_gives():
    with pytest.raises(gm.InvalidInput, match=r"needs .* steps of 64 chains, about .*takes an hour"):
        attain(whitened(), 1e-8, progress=False)
