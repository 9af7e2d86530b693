"""Engine `lanes` as an engine: the same answer for any threads, blocks and chunks; continuation; failures; draws; refusals."""

import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import lanes
from gyromc.engines.lanes import gradients
from gyromc.engines.lanes.gradients import Part
from support.values import in_chunks

J = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])


def _data(rows=30, d=4, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, d))
    return X, (rng.random(rows) < 0.5).astype(float)


def _plans() -> dict[str, gm.Plan]:
    X, y = _data()
    common = {"step_size": 0.05, "num_steps": 23, "num_chains": 70, "seed": 1, "dtype": "float32"}
    three = {"h": gm.observables.tanh([1.0, -1.0, 0.0])}
    four = {"h": gm.observables.predictive(X[0]), "g": gm.observables.linear([1.0, 0, 0, 2.0])}
    cosines, logistic = gm.targets.CosinePerturbed(3, 1.2), gm.targets.LogisticRegression(X, y)
    normal = gm.targets.Quadratic([1.0, 2.0, 0.5])  # in float64 a loop that other tests compile too
    odd, even = gm.dynamics.nonreversible(J), gm.dynamics.hfhr(4, 1.0, 2.0)
    return {
        "odd": gm.Plan(target=cosines, dynamics=odd, observables=three, oracle=gm.oracles.Gaussian(1.0), **common),
        "odd64": gm.Plan(target=normal, dynamics=odd, observables=three, **{**common, "dtype": "float64"}),
        "cosine64": gm.Plan(target=cosines, dynamics=odd, observables=three, **{**common, "dtype": "float64"}),
        "batch": gm.Plan(target=logistic, dynamics=even, observables=four, oracle=gm.oracles.Minibatch(5), **common),
        "distinct": gm.Plan(
            target=logistic,
            dynamics=even,
            observables=four,
            oracle=gm.oracles.ControlVariate(5, replace=False),
            **common,
        ),
        "moments": gm.Plan(
            target=gm.targets.LinearRegression(X, y),
            dynamics=gm.dynamics.overdamped(4),
            observables=four,
            oracle=gm.oracles.Minibatch(20),
            **{**common, "step_size": 0.01},
        ),
    }


PLANS = _plans()
# In float64 the sine has tests of its own, and the loop is compared on a Gaussian.
NAMES = [pytest.param(name, marks=[pytest.mark.slow] if name == "cosine64" else []) for name in PLANS]


def _same(a: gm.Run, b: gm.Run) -> None:
    for name in a.plan.observables:
        assert np.array_equal(a.averages[name], b.averages[name])
    assert np.array_equal(a.state.z, b.state.z)
    assert np.array_equal(a.state.generator, b.state.generator)


@pytest.mark.parametrize("name", NAMES)
def test_same_bits_for_any_number_of_threads(name, monkeypatch):
    runs = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("GYROMC_THREADS", threads)
        runs.append(gm.run(PLANS[name], "lanes"))
    _same(runs[0], runs[1])
    _same(runs[0], runs[2])


@pytest.mark.parametrize("name", NAMES)
def test_same_bits_for_any_chunks_and_when_continued(name):
    plan = PLANS[name]
    whole = gm.run(plan, "lanes")
    _same(whole, in_chunks(1, plan, "lanes"))
    _same(whole, in_chunks(7, plan, "lanes"))
    _same(whole, gm.run(plan.replace(num_steps=8), "lanes").continue_(15))
    _same(whole, gm.run(plan.replace(num_steps=9), "lanes").continue_(14))


@pytest.mark.parametrize("name", NAMES)
def test_a_chain_does_not_depend_on_how_many_others_there_are(name):
    many, few = gm.run(PLANS[name], "lanes"), gm.run(PLANS[name].replace(num_chains=5), "lanes")
    assert np.array_equal(many.averages["h"][:5], few.averages["h"])
    assert not np.array_equal(many.averages["h"], gm.run(PLANS[name].replace(seed=2), "lanes").averages["h"])


def test_an_average_does_not_depend_on_how_many_others_there_are():
    rows = {f"row {i}": gm.observables.predictive(x) for i, x in enumerate(_data()[0][:20])}
    plan = PLANS["batch"].replace(observables=rows, burn_in=6, weighting="step_size")
    many, few = (gm.run(one, "lanes") for one in (plan, plan.replace(observables={"row 3": rows["row 3"]})))
    assert np.array_equal(many.averages["row 3"], few.averages["row 3"])
    assert np.array_equal(many.state.z, few.state.z)


def test_a_chain_that_fails_is_found_beside_many_probabilities():
    rows = {f"row {i}": gm.observables.predictive(x) for i, x in enumerate(_data()[0][:20])}
    start = np.zeros((70, 4))
    start[41] = 1e9
    plan = PLANS["batch"].replace(observables=rows, start=start)
    with pytest.warns(gm.GyromcWarning, match="1 chain failed"):
        run = gm.run(plan, "lanes", on_divergence="report", sane_range=1e8)
    assert [(f.chain, f.step) for f in run.failures] == [(41, 0)]
    assert np.isfinite(run.averages["row 0"]).sum() == 69


def test_burn_in_weights_and_draws_agree_with_each_other():
    plan = PLANS["odd64"].replace(observables={"x": gm.observables.linear([1.0, 0.0, 0.0])}, num_steps=30)
    every = gm.run(plan, "lanes", thin=1)
    assert every.draws.shape == (70, 30, 3)
    assert np.allclose(every.draws[..., 0].mean(axis=1), every.averages["x"], rtol=1e-13)
    assert np.array_equal(every.draws[:, ::4], in_chunks(5, plan, "lanes", thin=4).draws)
    burnt = gm.run(plan.replace(burn_in=11, num_steps=19), "lanes")
    assert np.allclose(every.draws[:, 11:, 0].mean(axis=1), burnt.averages["x"], rtol=1e-13)
    weighted = gm.run(plan.replace(weighting="step_size"), "lanes")
    assert np.allclose(weighted.averages["x"], every.averages["x"], rtol=1e-13)


def test_every_chain_has_its_own_start():
    start = np.arange(210.0).reshape(70, 3)
    plan = PLANS["odd64"].replace(start=start, num_steps=1, observables={"x": gm.observables.linear([0.0, 1.0, 0.0])})
    assert np.array_equal(gm.run(plan, "lanes").averages["x"], start[:, 1])


def test_failures_name_the_chain_and_the_step():
    start = np.zeros((70, 3))
    start[41] = 1e9
    plan = PLANS["odd"].replace(start=start)
    with pytest.warns(gm.GyromcWarning, match="1 chain failed"):
        run = gm.run(plan, "lanes", on_divergence="report", sane_range=1e8)
    assert [(f.chain, f.step) for f in run.failures] == [(41, 0)]
    assert np.isnan(run.averages["h"][41])
    with pytest.raises(gm.DivergenceError, match="stability limit"):
        gm.run(UNSTABLE, "lanes")


UNSTABLE = PLANS["odd"].replace(step_size=3.0, num_steps=200, target=gm.targets.Quadratic([1.0, 1.0, 1.0]))


@pytest.mark.parametrize("engine", ["lanes", pytest.param("scan", marks=pytest.mark.slow)])
def test_failures_come_when_they_must(engine):
    with pytest.warns(gm.GyromcWarning, match="chains failed"):
        run = gm.run(UNSTABLE, engine, on_divergence="report")
    steps = [f.step for f in run.failures]
    assert len(steps) == 70
    assert min(steps) >= 10
    assert max(steps) <= 16  # |1 - 3(1 ± √3 i)| = 5.6 per step, from about 1 to 10⁸


@pytest.mark.slow
def test_without_noise_it_is_gradient_descent():
    """With the noise taken out of the matrix, each part of the gradient is compared with JAX's to rounding."""
    X, y = _data(rows=9, d=5)
    same = np.repeat(X[:1], 6, axis=0)  # one row six times over: every mini-batch is the full sum
    cases = [
        (gm.targets.CosinePerturbed(5, 1.2), gm.oracles.Exact(), Part.SCALAR),
        (gm.targets.Quadratic(np.diag([1.0, 2, 3, 4, 5]) + 0.3, np.ones(5)), gm.oracles.Exact(), Part.NOTHING),
        (gm.targets.LogisticRegression(X, y, prior_scale=0.7), gm.oracles.Exact(), Part.FULL_SUM),
        (gm.targets.LogisticRegression(same, np.zeros(6)), gm.oracles.Minibatch(3), Part.BATCH),
        (gm.targets.LogisticRegression(same, np.ones(6)), gm.oracles.Minibatch(17), Part.BATCH),
        (gm.targets.LogisticRegression(same, np.ones(6)), gm.oracles.ControlVariate(4), Part.BATCH),
        (gm.targets.LinearRegression(same, np.full(6, 1.5)), gm.oracles.Minibatch(4), Part.MOMENTS),
        (
            gm.targets.LinearRegression(same, np.full(6, 1.5)),
            gm.oracles.ControlVariate(4),
            Part.MOMENTS,
        ),
        (
            gm.targets.LinearRegression(np.tile(same, (1, 4)), np.full(6, 1.5)),
            gm.oracles.Minibatch(4),
            Part.BATCH,
        ),
        (
            gm.targets.LinearRegression(np.tile(same, (1, 4)), np.ones(6)),
            gm.oracles.ControlVariate(4),
            Part.BATCH,
        ),
        (gm.targets.LinearRegression(same[:, :3], np.ones(6)), gm.oracles.Minibatch(4), Part.MOMENTS),
    ]
    for target, oracle, part in cases:
        d, eta = target.dim, 0.02
        rng = np.random.default_rng(1)
        A = rng.standard_normal((d, d))
        dynamics = gm.dynamics.general(np.eye(d), (A - A.T) / 4)
        start = rng.standard_normal((3, d))
        plan = gm.Plan(
            target=target, dynamics=dynamics, oracle=oracle, observables={"h": gm.observables.linear(np.ones(d))},
            step_size=eta, num_steps=4, num_chains=3, start=start, dtype="float32",
        )  # fmt: skip
        session = lanes.Session(plan, lanes.initial_state(plan), 1e8, None, 0)
        assert session.program.part == part
        session.program.step.entry[session.program.step.column >= 2 * d * gradients.WIDTH] = 0.0  # L = 0
        session.advance(4)
        expected = start.copy()
        for _ in range(4):
            slopes = np.stack([_gradient(target, row) for row in expected])
            expected = expected - eta * slopes @ (dynamics.D + dynamics.Q).T
        assert np.allclose(session.state().z, expected, rtol=3e-6, atol=3e-6), (target, oracle)


def _gradient(target, theta):
    """∇U by NumPy, in float64."""
    if isinstance(target, gm.targets.CosinePerturbed):
        return theta - 1.2 * np.sin(theta)
    if isinstance(target, gm.targets.Quadratic):
        return target.precision @ (theta - target.mean)
    X, y = target.design
    t = X @ theta
    slope = t - y if isinstance(target, gm.targets.LinearRegression) else 1 / (1 + np.exp(-t)) - y
    return slope @ X + target.prior_precision * theta


def test_refusals_name_the_piece_and_the_engine_that_can():
    plan = PLANS["odd"]
    refused = {
        "target is a general LogDensity": {"target": gm.targets.LogDensity(lambda x: -0.5 * x @ x)},
        "step size is a schedule": {"step_size": lambda k: 0.1 / (k + 1.0), "num_steps": 5},
        "observable 'f' is a general Function": {"observables": {"f": lambda x: x[0] ** 3}},
    }
    for reason, change in refused.items():
        with pytest.raises(gm.InvalidInput, match=f"Engine `lanes` cannot do this plan: .*{reason}.*`scan` can"):
            gm.run(plan.replace(**change), "lanes")
        run = gm.run(plan.replace(**{"num_steps": 5, **change}))
        assert run.engine == "scan"
        assert reason in run.engine_reason
    assert gm.run(plan).engine == "lanes"
    assert "not pallas" in repr(gm.run(plan))


def test_float32_sums_do_not_drift():
    """10⁵ steps: the average of a nearly constant observable, against float64."""
    plan = PLANS["odd"].replace(
        target=gm.targets.Quadratic([1.0, 1.0, 1.0], [1000.0, 0.0, 0.0]),
        start=[1000.0, 0, 0],
        oracle=gm.oracles.Exact(),
        dynamics=gm.dynamics.overdamped(3),
        observables={"x": gm.observables.linear([1.0, 0.0, 0.0])},
        num_steps=100_000,
        num_chains=64,
    )
    single, double = gm.run(plan, "lanes"), gm.run(plan.replace(dtype="float64"), "lanes")
    for run in (single, double):
        assert abs(run.mean["x"] - 1000) < 5 * run.std_error["x"]
        assert run.std_error["x"] == pytest.approx(np.sqrt(2 / (0.05 * 1e5) / 64), rel=0.4)
