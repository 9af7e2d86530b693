"""Engine `lanes` against exact finite-step moments (T1), and against `scan` where there are none."""

import numpy as np
import pytest

import gyromc as gm
from support import exact
from support.values import J1, skew, wishart
from support.zscores import largest, two_sample_scores, z_scores

U = np.array([1.0, -0.5, 0.7])
K = np.array([[2.0, 0.4, 0.0], [0.4, 1.0, -0.3], [0.0, -0.3, 0.7]])
MEAN = np.array([0.5, -1.0, 2.0])
R, N, ETA = 100_000, 40, 0.1
SLOW = pytest.mark.slow
Z = 4.5  # of about 60 scores below, none should be larger: 4e-4 of a chance


def _general(n: int, seed: int) -> gm.dynamics.Dynamics:
    rng = np.random.default_rng(seed)
    return gm.dynamics.general(wishart(n, rng) / 1.5, skew(n, rng, size=0.5))


DYNAMICS = {
    "SGLD": gm.dynamics.overdamped(3),
    "SGNLMC": gm.dynamics.nonreversible(J1),
    "rotations": gm.dynamics.nonreversible(gm.dynamics.rotations(3, 0.8)),
    "SGHFHRMC": gm.dynamics.hfhr(3, 1.0, 2.0),
    "SGHFHRMC, reversible": gm.dynamics.hfhr(3, 1.0, 2.0).reversible(),
    "SGGAULMC": gm.dynamics.gaul([0.5, 1.5, 2.0], 1.0, 2.0),
    "SGGAULMC, dense C": gm.dynamics.gaul([[1.0, 0.3, 0], [0.3, 1.5, 0.1], [0, 0.1, 2]], 1.0, 2.0),
    "SGGAULMC, reversible": gm.dynamics.gaul([0.5, 1.5, 2.0], 1.0, 2.0).reversible(),
    "general on θ": _general(3, 1),
    "general on (θ, r)": _general(6, 2),
}


def _scores(plan) -> tuple[float, float]:
    """z-scores of the mean and the variance of the averages of a run with `lanes`."""
    expected = exact.moments(plan)
    return z_scores(gm.run(plan, "lanes").averages["u"], expected.mean, expected.variance)


@pytest.mark.parametrize("tau", [0.0, 1.5])
@pytest.mark.parametrize("name", DYNAMICS)
def test_quadratic_has_the_exact_mean_and_variance(name, tau):
    dynamics = DYNAMICS[name]
    start = np.array([1.0, 0.0, -1.0, 0.3, -0.2, 0.1][: dynamics.size])
    plan = gm.Plan(
        target=gm.targets.Quadratic(K, MEAN),
        dynamics=dynamics,
        oracle=gm.oracles.Gaussian(tau) if tau else gm.oracles.Exact(),
        observables={"u": gm.observables.linear(U)},
        step_size=ETA,
        num_steps=N,
        num_chains=R,
        start=start,
        dtype="float32",
        seed=3,
    )
    assert largest(_scores(plan)) < Z  # a variance 2 % off would score 4.5, a mean 2 % of a standard deviation 6


def test_float64_has_the_exact_mean_and_variance():
    dynamics = DYNAMICS["SGGAULMC"]
    plan = gm.Plan(
        target=gm.targets.Quadratic(K, MEAN),
        dynamics=dynamics,
        oracle=gm.oracles.Gaussian(1.0),
        observables={"u": gm.observables.linear(U)},
        step_size=ETA,
        num_steps=N,
        num_chains=R,
        dtype="float64",
        seed=4,
    )
    assert largest(_scores(plan)) < Z


@pytest.mark.slow
def test_sixty_four_dimensions_dense():
    rng = np.random.default_rng(0)
    plan = gm.Plan(
        target=gm.targets.Quadratic(wishart(64, rng, low=1.0), rng.standard_normal(64)),
        dynamics=gm.dynamics.general(wishart(64, rng) / 1.5, skew(64, rng, size=1 / 8)),
        observables={"u": gm.observables.linear(rng.standard_normal(64))},
        step_size=0.05,
        num_steps=20,
        num_chains=50_000,
        dtype="float32",
    )
    assert largest(_scores(plan)) < Z


def _regression(d=3, rows=40, seed=5):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-0.5, 0.5, (rows, d))
    return X, X @ rng.standard_normal(d) + rng.standard_normal(rows)


@pytest.mark.parametrize(("d", "b"), [(3, 16), (3, 5), (10, 16)])  # sums of products, padded batches, dot products
@pytest.mark.parametrize("kind", ["SGNLMC", "SGHFHRMC"])
def test_minibatches_of_linear_regression_have_the_exact_mean_and_variance(kind, d, b):
    X, y = _regression(d)
    dynamics = (
        gm.dynamics.nonreversible(gm.dynamics.rotations(d, 0.4)) if kind == "SGNLMC" else gm.dynamics.hfhr(d, 0.5, 4.0)
    )
    plan = gm.Plan(
        target=gm.targets.LinearRegression(X, y, prior_scale=2.0),
        dynamics=dynamics,
        oracle=gm.oracles.Minibatch(b),
        observables={"u": gm.observables.linear(np.random.default_rng(1).standard_normal(d))},
        step_size=0.03,
        num_steps=30,
        num_chains=R,
        dtype="float32",
        seed=6,
    )
    assert largest(_scores(plan)) < Z


def _against_scan(plan):
    """Mean and spread of every observable's averages, by `lanes` and by `scan`, within Z standard errors of each other."""
    ours, theirs = gm.run(plan, "lanes"), gm.run(plan.replace(seed=plan.seed + 1, num_chains=20_000), "scan")
    for name in plan.observables:
        assert largest(*two_sample_scores(ours.averages[name], theirs.averages[name])) < Z, name


@pytest.mark.parametrize("name", ["SGGAULMC", *(pytest.param(n, marks=SLOW) for n in ("SGNLMC", "general on (θ, r)"))])
def test_cosines_agree_with_scan(name):
    plan = gm.Plan(
        target=gm.targets.CosinePerturbed(3, 1.2),
        dynamics=DYNAMICS[name],
        oracle=gm.oracles.Gaussian(1.0),
        observables={
            "tanh": gm.observables.tanh(U),
            "brier": gm.observables.brier(U, 1),
            "entropy": gm.observables.entropy(U),
        },
        step_size=0.1,
        num_steps=40,
        num_chains=R,
        start=[1.0, 0.5, -2.0],
        burn_in=3,
        dtype="float32",
    )
    _against_scan(plan)


@pytest.mark.parametrize(
    ("oracle", "d"),
    [
        (gm.oracles.Minibatch(32), 14),
        pytest.param(gm.oracles.Minibatch(7), 20, marks=SLOW),
        pytest.param(gm.oracles.ControlVariate(8), 14, marks=SLOW),
        pytest.param(gm.oracles.Exact(), 14, marks=SLOW),
        pytest.param(gm.oracles.Gaussian(2.0), 5, marks=SLOW),
    ],
    ids=["mini-batch", "two vectors per row", "control variate", "exact", "Gaussian"],
)
def test_logistic_regression_agrees_with_scan(oracle, d):
    rng = np.random.default_rng(7)
    X = np.column_stack([np.ones(60), rng.standard_normal((60, d - 1))])
    y = (rng.random(60) < 0.4).astype(float)
    plan = gm.Plan(
        target=gm.targets.LogisticRegression(X, y, prior_scale=1.0),
        dynamics=gm.dynamics.hfhr(d, 0.5, 4.0) if d == 14 else gm.dynamics.nonreversible(gm.dynamics.rotations(d, 1.0)),
        oracle=oracle,
        observables={"p": gm.observables.predictive(X[0]), "brier": gm.observables.brier(X[1], 0)},
        step_size=0.02,
        num_steps=25,
        num_chains=40_000,
        dtype="float32",
    )
    _against_scan(plan)
