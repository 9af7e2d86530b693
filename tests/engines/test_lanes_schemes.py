"""Engine `lanes` with every linear scheme against the exact linear recursion, and its chunks and continuations."""

import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import lanes
from gyromc.engines.lanes.gradients import WIDTH
from support import recursion
from support.values import in_chunks, quadratic, regression, skew, spd
from support.zscores import largest, two_sample_scores, z_scores

CHAINS, LIMIT = 40_000, 4.0  # standard errors; 2 × 26 comparisons exceed it by chance once in 300 suites
U = np.array([1.0, -0.5, 0.7])
DYNAMICS = {
    "overdamped": gm.dynamics.overdamped(3),
    "preconditioned": gm.dynamics.general(spd(3, 1, 0.4, 1.2), 0),
    "general": gm.dynamics.general(spd(3, 1, 0.4, 1.2), skew(3, 2)),
    "hfhr": gm.dynamics.hfhr(3, 0.6, 1.5),
    "gaul": gm.dynamics.gaul([0.5, 1.5, 1.0], 1.0, 2.0),
    "general on (θ, r)": gm.dynamics.general(spd(6, 3, 0.4, 1.2), skew(6, 4, 0.5)),
}
FITTING = {
    "balanced": list(DYNAMICS),
    "leimkuhler_matthews": ["overdamped", "preconditioned"],
    "lm_ab2": ["overdamped", "general", "hfhr", "gaul"],
    "hfhr_splitting": ["hfhr"],
    "gaul_splitting": ["gaul"],
}
CASES = [(scheme, dynamics) for scheme, names in FITTING.items() for dynamics in names]


def make(scheme, dynamics, oracle=None, **changes) -> gm.Plan:
    values = DYNAMICS[dynamics]
    return gm.Plan(
        target=quadratic(3),
        dynamics=values,
        oracle=oracle,
        scheme=scheme,
        observables={"u": gm.observables.linear(U)},
        start=np.linspace(-1.5, 2.0, values.size),
        **{"step_size": 0.12, "num_steps": 12, "burn_in": 2, "num_chains": CHAINS, "dtype": "float32", **changes},
    )


@pytest.mark.parametrize("oracle", [gm.oracles.Exact(), gm.oracles.Gaussian(1.2)], ids=["exact", "gaussian"])
@pytest.mark.parametrize(("scheme", "dynamics"), CASES)
def test_mean_and_variance_are_those_of_the_recursion(scheme, dynamics, oracle):
    plan = make(scheme, dynamics, oracle)
    assert largest(z_scores(gm.run(plan, "lanes").averages["u"], *recursion.moments(plan, U))) < LIMIT


def test_the_recursion_of_euler_is_the_known_one():
    from support import exact

    plan = make("euler", "general on (θ, r)", gm.oracles.Gaussian(1.2))
    assert np.allclose(recursion.moments(plan, U), exact.moments(plan)[:2], rtol=1e-12)


def _without(session, first, last):
    """The session with nothing read from some rows of (y, s, ξ)."""
    column = session.program.step.column
    session.program.step.entry[(column >= first * WIDTH) & (column < last * WIDTH)] = 0.0
    return session


@pytest.mark.parametrize(
    ("scheme", "dynamics", "first", "last"),
    [
        ("leimkuhler_matthews", "overdamped", 3, 6),  # the memory
        ("lm_ab2", "general", 6, 9),  # the gradient before
        ("hfhr_splitting", "hfhr", 6, 9),
        ("leimkuhler_matthews", "overdamped", 12, 15),  # the oracle's own noise, after y, s and ξ
    ],
)
def test_a_step_that_forgets_something_is_seen(scheme, dynamics, first, last):
    plan = make(scheme, dynamics, gm.oracles.Gaussian(1.2))
    session = _without(lanes.Session(plan, lanes.initial_state(plan), 1e8, None, 0), first, last)
    session.advance(plan.burn_in + plan.num_steps)
    averages = session.state().sums[:, 0] / plan.num_steps
    assert largest(z_scores(averages, *recursion.moments(plan, U))) > LIMIT


def test_a_gaussian_oracle_s_noise_is_drawn_with_the_scheme_s_where_it_can_be():
    gaussian = gm.oracles.Gaussian(1.0)
    draws = lambda plan: lanes.Session(plan, lanes.initial_state(plan), 1e8, None, 0).program.draws
    small = {"num_chains": 2}
    assert draws(make("euler", "hfhr", gaussian, **small)) == 6
    assert draws(make("balanced", "overdamped", gaussian, **small)) == 3
    assert draws(make("balanced", "overdamped", gaussian, martingale=True, **small)) == 6
    assert draws(make("leimkuhler_matthews", "overdamped", gaussian, **small)) == 6
    assert draws(make("hfhr_splitting", "hfhr", gaussian, **small)) == 9
    assert draws(make("hfhr_splitting", "hfhr", **small)) == 6


def test_balanced_noise_at_its_largest_step():
    """W is singular there, with and without an oracle's noise."""
    target = gm.targets.Quadratic([1.0, 2.0])
    for oracle, eta in ((gm.oracles.Exact(), 1.0), (gm.oracles.Gaussian(1.0), 2 / 3)):
        plan = gm.Plan(
            target=target, dynamics=gm.dynamics.overdamped(2), oracle=oracle, scheme="balanced", step_size=eta,
            observables={"u": gm.observables.linear([1.0, 1.0])}, num_steps=6, num_chains=CHAINS, dtype="float32",
        )  # fmt: skip
        averages = gm.run(plan, "lanes").averages["u"]
        assert largest(z_scores(averages, *recursion.moments(plan, [1.0, 1.0]))) < LIMIT


@pytest.mark.parametrize("scheme", ["balanced", pytest.param("lm_ab2", marks=pytest.mark.slow)])
def test_mini_batches_agree_with_scan(scheme):
    plan = gm.Plan(
        target=regression(3, rows=6), dynamics=gm.dynamics.hfhr(3, 0.5, 2.0), oracle=gm.oracles.Minibatch(3), scheme=scheme,
        observables={"u": gm.observables.linear(U), "q": gm.observables.square(U)}, start=[1.0, -1.0, 0.5], step_size=0.02,
        num_steps=20, num_chains=CHAINS, dtype="float32",
    )  # fmt: skip
    ours, theirs = gm.run(plan, "lanes"), gm.run(plan.replace(seed=1, num_chains=10_000), "scan")
    for name in plan.observables:
        assert largest(*two_sample_scores(ours.averages[name], theirs.averages[name])) < LIMIT


@pytest.mark.parametrize("martingale", [False, True])
@pytest.mark.parametrize(("scheme", "dynamics"), [("euler", "general"), *CASES[1:2], *CASES[-4:]])
def test_same_bits_for_any_chunks_threads_and_when_continued(scheme, dynamics, martingale, monkeypatch):
    plan = make(scheme, dynamics, gm.oracles.Gaussian(1.0), num_chains=70, num_steps=23, martingale=martingale)
    plan = plan.replace(observables={"u": gm.observables.linear(U), "p": gm.observables.predictive(U)})
    whole = gm.run(plan, "lanes")
    monkeypatch.setenv("GYROMC_THREADS", "3")
    runs = [in_chunks(size, plan, "lanes") for size in (1, 7)]
    for other in [*runs, gm.run(plan.replace(num_steps=8), "lanes").continue_(15)]:
        assert np.array_equal(whole.state.sums, other.state.sums)
        assert np.array_equal(whole.state.z, other.state.z)
    assert whole.state.sums.shape == (70, 4 if martingale else 2)
    assert whole.state.z.shape == (70, plan.state_size)
