"""Errors of averages against what is known exactly: variances, degrees of freedom, biases, and coverage itself."""

import math
import warnings

import numpy as np
import pytest
from scipy import stats

import gyromc as gm
from gyromc.estimation import bias as biases
from gyromc.estimation import statistics
from gyromc.estimation.errors import Material, choose, monte_carlo_error
from support.values import J1


def damped(rate, turn, time, num_blocks, chains, seed, per_block=12):
    """Block averages of Re x, x a stationary complex Ornstein-Uhlenbeck process with E (Re x)² = 1, sampled evenly."""
    rng = np.random.default_rng(seed)
    factor = decay(rate, turn, time, num_blocks * per_block)
    spread = math.sqrt(1 - abs(factor) ** 2)
    x = rng.standard_normal(chains) + 1j * rng.standard_normal(chains)
    values = np.empty((num_blocks * per_block, chains))
    for k in range(len(values)):
        values[k] = x.real
        x = factor * x + spread * (rng.standard_normal(chains) + 1j * rng.standard_normal(chains))
    return values.T.reshape(chains, num_blocks, per_block).mean(axis=2)


def decay(rate, turn, time, samples):
    return np.exp((-rate + 1j * turn) * time / samples)


def exact_variance(rate, turn, time, samples):
    """Of the average of `samples` values: (1/N)(1 + 2 Σ (1 - k/N) ρ_k)."""
    k = np.arange(1, samples)
    return (1 + 2 * np.sum((1 - k / samples) * (decay(rate, turn, time, samples) ** k).real)) / samples


@pytest.mark.parametrize(("turn", "time"), [(0.0, 200.0), (0.0, 1000.0), (2.0, 200.0), (1.0, 400.0)])
def test_lugsail_finds_the_variance_whatever_the_sign_of_correlations(turn, time):
    """1000 chains of 200 to 1000 relaxation times, batches of a 16th: within 4 standard errors (5 %) and end effects (1 %).

    Batch means without the lugsail are 9 % too small on the first of them."""
    blocks = damped(1.0, turn, time, 96, 1000, seed=1)
    found = statistics.lugsail_variance(blocks, batch=6)
    within = 4 * math.sqrt(2 / found.dof) + 0.01
    assert within < 0.062
    assert found.variance == pytest.approx(exact_variance(1.0, turn, time, 96 * 12), rel=within)
    assert statistics.lugsail_variance(blocks).variance == pytest.approx(found.variance, rel=within)


def test_degrees_of_freedom_are_those_of_the_estimate():
    """For independent blocks the variance of the estimate over its squared mean is 2/dof: 4000 chains, 5 standard errors."""
    blocks = np.random.default_rng(2).standard_normal((4000, 96))
    found = [statistics.lugsail_variance(row[None], batch=6) for row in blocks]
    values = np.array([one.variance for one in found])
    assert np.mean(values) * 96 == pytest.approx(1.0, abs=5 * values.std() * 96 / math.sqrt(4000))
    assert 2 * np.mean(values) ** 2 / np.var(values) == pytest.approx(found[0].dof, rel=0.15)


@pytest.mark.parametrize(("rate", "turn"), [(1.0, 0.0), (0.25, 0.0), (0.5, 2.0)])
def test_relaxation_times_are_found_also_for_oscillations(rate, turn):
    blocks = damped(rate, turn, 50.0, 128, 64, seed=3)
    assert statistics.relaxation_blocks(blocks) * 50 / 128 == pytest.approx(1 / rate, rel=0.25)
    assert statistics.relaxation_blocks(np.random.default_rng(4).standard_normal((64, 128))) == 0


def test_batches_are_twenty_relaxation_times_within_limits():
    assert statistics.lugsail_batch(96, 0.0) == 6
    assert statistics.lugsail_batch(96, 0.45) == 9
    assert statistics.lugsail_batch(96, 5.0) == 12


def test_a_schedule_has_blocks_of_unequal_time():
    """y_i ~ N(0, V/t_i), weighted by time: the variance of the mean is V/Σt, and by steps Σ n²V/t / N²."""
    rng = np.random.default_rng(5)
    t, n = np.geomspace(1.0, 0.1, 40), np.ones(40)
    blocks = rng.standard_normal((4000, 40)) * np.sqrt(3.0 / t)
    for weights, exact in ((t, 3.0 / t.sum()), (n, 3.0 * np.sum(n**2 / t) / n.sum() ** 2)):
        found = statistics.scheduled_variance(blocks, t, weights)
        assert found.variance == pytest.approx(exact, rel=0.05)


def test_r_hat_sees_chains_that_stay_apart():
    blocks = np.random.default_rng(6).standard_normal((8, 96))
    assert statistics.split_r_hat(blocks) < 1.02
    assert statistics.disagreement(blocks) > 0.001
    apart = blocks + 2 * np.arange(8)[:, None]
    assert statistics.split_r_hat(apart) > 2
    assert statistics.disagreement(apart) < 1e-6
    assert choose(Material(apart.mean(axis=1), apart))[0] == "replicate chains"
    assert choose(Material(blocks.mean(axis=1), blocks)) == (
        "lugsail batch means",
        "8 chains are few, each is long, and they agree",
    )


def test_the_choice_of_method_and_its_reason():
    blocks = damped(1.0, 0.0, 40.0, 96, 4, seed=7)
    material = Material(blocks.mean(axis=1), blocks)
    assert choose(material)[0] == "replicate chains"
    assert "relaxation times" in choose(material)[1]
    assert choose(material, has_draws=True)[0] == "plug-in"
    many = np.random.default_rng(8).standard_normal((30, 96))
    assert choose(Material(many.mean(axis=1), many)) == ("replicate chains", "30 independent chains")
    assert choose(Material(np.zeros(1), np.zeros((1, 10)))) == ("lugsail batch means", "one chain")


@pytest.mark.parametrize("turn", [0.0, 1.5])
@pytest.mark.parametrize("chains", [1, 6])
def test_intervals_cover(turn, chains):
    """1000 runs of 150 relaxation times: nominal 95 %, between 93 and 97 (the standard error is 0.7 %).

    An error 15 % too small would cover 91 %."""
    blocks = damped(1.0, turn, 150.0, 96, 1000 * chains, seed=9, per_block=6).reshape(1000, chains, 96)
    inside = 0
    for one in blocks:
        material = Material(one.mean(axis=1), one)
        error = monte_carlo_error(material, *choose(material))
        low, high = statistics.interval(material.averages.mean(), error.std_error, 0.95, error.dof)
        inside += low < 0 < high
    assert 0.93 <= inside / 1000 <= 0.97


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
    assert "take the corrected interval" in even.verdict
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


def test_two_step_sizes_find_the_bias(run):
    """c₁ is extrapolated from η and 2η: within 4 of its own standard errors of the exact bias, which is 4 of them off zero."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gm.GyromcWarning)
        rough = gm.run(plan(step_size=0.1, num_steps=4096, num_chains=400, seed=1))
        fine = gm.run(plan(num_chains=400))
        found = gm.estimate(fine, bias=rough)["even"]
    exact = gm.predict(fine.plan).bias["even"]
    assert found.bias_method == "two step sizes, η and 2η"
    assert abs(found.bias - exact) < 4 * found.bias_error
    assert abs(found.bias) > 4 * found.bias_error
    second_order = biases.from_step_sizes(0.2, 0.01, 30, 2.0, 0.25)
    assert second_order.error == pytest.approx(math.hypot(0.01, 2 * 0.25 * 0.2))
    assert second_order.std_error(0.03) == pytest.approx(math.hypot(0.03, second_order.error))


def test_extrapolated_means_carry_both_errors():
    """mean - bias = 2 m(η) - m(2η): its variance is 4 and 1 times theirs. 20 000 draws, 4 standard errors."""
    rng = np.random.default_rng(10)
    fine, coarse = 0.1 + 0.02 * rng.standard_normal(20_000), 0.2 + 0.03 * rng.standard_normal(20_000)
    found = biases.from_step_sizes(0.1, 0.03, math.inf, 2.0)
    error = math.hypot(found.amplification * 0.02, found.error)
    assert np.std(fine - (coarse - fine)) == pytest.approx(error, rel=4 / math.sqrt(2 * 20_000))


def test_auto_makes_a_second_run_where_nothing_predicts():
    """Draws around the mode of a banana are worth a quarter of their number: the bias comes from a second run, by name."""
    banana = plan(
        target=gm.targets.LogDensity(lambda x: -0.5 * x[0] ** 2 - 0.5 * (x[1] - 0.5 * (x[0] ** 2 - 1)) ** 2),
        dynamics=gm.dynamics.overdamped(2),
        oracle=gm.oracles.Exact(),
        observables={"x": gm.observables.linear([1.0, 0.0])},
        num_steps=2048,
        num_chains=30,
    )
    found = gm.estimate(gm.run(banana), level=0.999)["x"]
    assert found.bias_method == "two step sizes, η and 2η"
    assert found.corrected[0] < 0 < found.corrected[1]
    assert found.corrected_error == pytest.approx(math.sqrt(5) * found.std_error, rel=0.5)
    assert found.recommended == found.corrected


def test_the_plug_in_knows_the_error_of_one_chain(run):
    """Var = V/(Nη) + s/N from 512 draws of each of 4 chains, against the exact finite-step standard deviation."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gm.GyromcWarning)
        found = gm.estimate(run, method="plug-in", bias="none")
    exact = gm.predict(run.plan).std["odd"] / 2
    inflation = 1.16  # the draws are of the chain's law, whose variance is 16 % too large at this step size
    assert found["odd"].std_error == pytest.approx(exact * inflation, rel=0.12)
    assert found["odd"].method == "plug-in"
    assert "degree" in found["odd"].reason
    assert found["odd"].bias is None
    assert "not asked for" in found["odd"].verdict


def test_a_start_far_off_shows():
    with pytest.warns(gm.GyromcWarning, match="the start shows"):
        gm.estimate(gm.run(plan(start=[500.0, 0.0, 0.0], num_steps=4096)), bias="none")


def test_short_chains_and_few_chains_are_said_to_be_short():
    slow = plan(
        target=gm.targets.Quadratic([1.0, 1.0, 0.02]), dynamics=gm.dynamics.overdamped(3), num_chains=1, num_steps=8192
    )
    slow = slow.replace(observables={"x": gm.observables.linear([0.0, 0.0, 1.0])})
    with pytest.warns(gm.GyromcWarning, match="relaxation times"):
        gm.estimate(gm.run(slow), bias="none")


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
    assert "<table>" in found._repr_html_()
    assert list(found) == ["odd", "even"]
    again = gm.estimate(run, bias={name: biases.Bias(0.0, "given") for name in found})
    assert again["even"].bias == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "magic"}, "`method` must be one of auto, replicate chains"),
        ({"bias": "magic"}, "`bias` must be one of auto, predict"),
        ({"level": 95}, "between 0 and 1"),
        ({"bias": {"odd": biases.Bias(0.0, "given")}}, "lacks even"),
    ],
)
def test_wrong_questions_are_answered_with_the_right_ones(run, changes, message):
    with pytest.raises(gm.InvalidInput, match=message):
        gm.estimate(run, **changes)


def test_what_a_run_does_not_hold_is_named(run):
    with pytest.raises(gm.InvalidInput, match="takes a `Run`"):
        gm.estimate(run.plan)
    with pytest.raises(gm.InvalidInput, match="thin"):
        gm.estimate(gm.run(plan(num_steps=100)), method="plug-in", bias="none")
    with pytest.raises(gm.InvalidInput, match="same step size"):
        gm.estimate(run, bias=run)


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
    many = gm.run(schedule, keep_blocks=128)
    within, between = many.batch_variance("x"), many._spread["x"]
    assert within.variance == pytest.approx(2.0 / sum(many.state.clock), rel=4 * math.sqrt(2 / within.dof) + 0.05)
    assert between.variance == pytest.approx(within.variance, rel=4 * math.sqrt(2 / 39))
    alone = gm.run(schedule.replace(num_chains=1))
    assert alone.error_method == "batch means"
    assert 0.5 < alone.std_error["x"] / math.sqrt(2.0 / sum(alone.state.clock)) < 2


def test_blocks_average_to_the_average(run):
    for name, averages in run.averages.items():
        assert run.blocks[name].shape == (4, 128)
        assert np.allclose(run.blocks[name].mean(axis=1), averages, rtol=1e-12)
    assert run.covered == pytest.approx(1.0)
    ragged = gm.run(plan(num_steps=1000))
    assert ragged.covered == pytest.approx(1000 // 8 * 8 / 1000)


def test_interval_of_one_chain_uses_students_distribution(run):
    alone = gm.run(plan(num_chains=1))
    low, high = alone.interval("odd", 0.9)
    dof = alone.batch_variance("odd").dof
    assert high - low == pytest.approx(2 * stats.t.ppf(0.95, dof) * alone.std_error["odd"])
