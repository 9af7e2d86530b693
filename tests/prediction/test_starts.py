"""What the noise at the start and the noise of mini-batches do to an average: `predict` against runs of the same plan."""

import math

import numpy as np
import pytest

import gyromc as gm
from gyromc.prediction.answers import Kind
from gyromc.prediction.step_effects import FOLLOW, Transient, followed


def counts(start, step_size: float, **settings) -> gm.Plan:
    """Poisson regression with an anchor at the mode: the noise of a batch grows with the distance from there."""
    rng = np.random.default_rng(0)
    X = np.column_stack([np.ones(60), 0.5 * rng.standard_normal((60, 2))])
    y = rng.poisson(np.exp(X @ [0.5, 0.3, -0.2])) * 1.0
    settings = {"num_steps": 2000, "num_chains": 200, **settings}
    return gm.Plan(
        target=gm.targets.PoissonRegression(X, y),
        dynamics=gm.dynamics.overdamped(3),
        oracle=gm.oracles.ControlVariate(7),
        observables={"x": gm.observables.linear([1.0, 0.0, 0.0])},
        step_size=step_size,
        start=np.full(3, float(start)),
        **settings,
    )


def spread(run: gm.Run, name: str) -> tuple[float, float]:
    """The standard deviation of chains' averages, and its standard error with their own fourth moment."""
    away = run.averages[name] - run.averages[name].mean()
    kurtosis = np.mean(away**4) / np.mean(away**2) ** 2
    return float(away.std()), float(away.std() * math.sqrt((kurtosis - 1) / (4 * len(away))))


@pytest.mark.parametrize(("start", "larger"), [(3.0, 30), (1.0, 1)])
def test_the_noise_at_a_far_start_is_counted(start, larger):
    """At 0.15 of the stability limit √(V/(Nη) + s/N) is 0.0118; from (3, 3, 3) chains have 70 times that."""
    plan = counts(start, 0.0008)
    row, run = gm.predict(plan)["x"], gm.run(plan, progress=False)
    seen, error = spread(run, "x")
    assert abs(row.std - seen) < 4 * math.hypot(row.std_uncertainty, error)
    assert row.std > larger * 0.01
    assert abs(row.mean - run.mean["x"]) < 4 * math.hypot(row.bias_error, seen / math.sqrt(plan.num_chains))


def test_chains_that_diverge_from_the_start_are_predicted_to():
    """Some of the chains go to infinity from (4, 4, 4); without noise none does."""
    plan = counts(4.0, 0.0008, num_steps=200)
    pred = gm.predict(plan)
    assert pred.stability is not None
    assert pred.stability.stable
    assert not pred.stable
    assert pred.rmse_method["x"].kind is Kind.UNSTABLE
    assert math.isinf(pred.std["x"])
    assert any("chains that were followed" in note for note in pred.notes)
    with pytest.raises(gm.DivergenceError):
        gm.run(plan, progress=False)


def test_chains_that_do_not_arrive_have_no_known_error():
    plan = counts(3.0, 0.0008, num_steps=3)
    row = gm.predict(plan)["x"]
    assert math.isnan(row.std)
    assert math.isnan(row.std_uncertainty)
    assert "do not come to the bulk" in row.rmse_method


@pytest.mark.parametrize(
    ("kind", "step_size"), [(gm.targets.LinearRegression, 0.012), (gm.targets.LogisticRegression, 0.03)]
)
def test_the_noise_of_mini_batches_is_in_the_error_of_every_observable(kind, step_size):
    """HFHR with batches of 4 of 60 rows: without their noise the std of a square would be 1.7 to 6 times too small."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 2))
    y = X @ [1.0, -1.0] + rng.standard_normal(60)
    plan = gm.Plan(
        target=kind(X, y if kind is gm.targets.LinearRegression else 1.0 * (rng.random(60) < 0.5)),
        dynamics=gm.dynamics.hfhr(2, 0.5, 2.0),
        oracle=gm.oracles.Minibatch(4),
        observables={"x": gm.observables.linear([1.0, 0.0]), "x²": gm.observables.square([1.0, 0.0])},
        step_size=step_size,
        num_steps=2000,
        num_chains=1000,
    )
    pred, run = gm.predict(plan), gm.run(plan, progress=False)
    for name, row in pred.items():
        seen, error = spread(run, name)
        assert abs(row.std - seen) < 3 * math.hypot(row.std_uncertainty, error)
        assert row.std_uncertainty < 0.4 * row.std
        assert seen > 1.5 * math.sqrt(row.variance / (plan.num_steps * plan.eta)) or name == "x"


def test_followed_chains_are_those_of_the_plan():
    """On a Gaussian the law after k steps is known: mean and variance of 300 chains, within 4 standard errors."""
    plan = gm.Plan(
        target=gm.targets.Quadratic([2.0]),
        dynamics=gm.dynamics.overdamped(1),
        oracle=gm.oracles.Gaussian(3.0),
        observables={"x": gm.observables.linear([1.0])},
        step_size=0.1,
        num_steps=100,
        start=[5.0],
    )
    z = followed(plan).part(0)[:, :, 0]
    k, M, W = np.arange(FOLLOW.at_once), 0.8, 0.2 + 0.01 * 9.0
    variance = W * (1 - M ** (2 * k)) / (1 - M**2)
    n = z.shape[1]
    assert np.all(np.abs(z.mean(axis=1) - 5 * M**k) <= 4 * np.sqrt(variance / n) + 1e-12)
    assert np.all(np.abs(z.var(axis=1) - variance) <= 4 * variance * math.sqrt(2 / n) + 1e-12)
    # The sum until |z| < 1: with `ahead` the conditional mean of the rest, its mean is Σ 5 Mᵏ.
    found = followed(plan).transient(
        lambda z: np.abs(z[:, 0]) < 1, lambda z: z[:, 0], lambda z: 0.1 * z[:, 0] / (1 - M)
    )
    assert abs(found.value - 0.1 * 5 / (1 - M)) < 4 * found.error


def test_errors_of_a_variance_need_chance():
    sums = np.random.default_rng(0).standard_normal(4000)
    drawn, fixed = Transient.of(sums), Transient.of(sums, drawn=False)
    assert drawn.variance == fixed.variance
    assert drawn.variance_error == pytest.approx(math.sqrt(2 / 4000), rel=0.1)
    assert fixed.error == fixed.variance_error == 0
