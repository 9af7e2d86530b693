"""Mini-batches of distinct rows: their law, their noise in theory and in every engine, and their edges."""

import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numba import njit
from scipy import stats

import gyromc as gm
from gyromc.engines import lanes, pallas
from gyromc.engines.lanes import gradients
from gyromc.engines.lanes.functions import streams
from gyromc.engines.pallas.kernel import Layout
from gyromc.io.planfiles import loads
from gyromc.oracles import MOST_COMPARED, distinct_rows
from gyromc.prediction.exact.moments import exact_moments
from gyromc.schemes.moments import oracle_covariances
from support import exact
from support.generators import xoshiro
from support.values import SUMS as TARGETS
from support.values import THETA, rotating
from support.zscores import largest, proportion_score, z_scores

LIMIT = 4.0  # standard errors


def of_three(oracle, **changes):
    """Linear regression whose noise is mostly the oracle's, so that drawing rows twice would be seen."""
    rng = np.random.default_rng(5)
    X = rng.uniform(-0.5, 0.5, (20, 3))
    target = gm.targets.LinearRegression(X, X @ [1.0, -1.0, 0.5] + rng.standard_normal(20), prior_scale=2.0)
    usual = {"step_size": 0.1, "num_steps": 15, "num_chains": 40_000, "dtype": "float32", "seed": 1}
    return rotating(oracle=oracle, **{"target": target, **usual, **changes})


# --- theory, by listing all batches


@pytest.mark.parametrize(
    ("name", "center", "size"),
    [("linear", None, 1), ("logistic", None, 3), ("finite sum", None, 2), ("logistic", [0.1, 0.2, -0.3], 2)],
)
def test_over_all_subsets_the_mean_is_the_gradient_and_the_noise_has_its_factor(name, center, size):
    target = TARGETS[name]
    build = lambda replace: (
        gm.oracles.Minibatch(size, replace)
        if center is None
        else gm.oracles.ControlVariate(size, np.asarray(center), replace)
    )
    N = target.num_data
    with jax.enable_x64(True):
        oracle = build(False).prepared(gm.Model(target, np.zeros(3)))
        gradient = jax.jit(jax.vmap(lambda b: oracle.gradient(target, jnp.asarray(THETA), b)))
        subsets = np.asarray(gradient(jnp.asarray(list(itertools.combinations(range(N), size)))))
        tuples = np.asarray(gradient(jnp.asarray(list(itertools.product(range(N), repeat=size)))))
        exact = jax.jit(lambda t: target.gradient(t))(jnp.asarray(THETA))
    assert np.allclose(subsets.mean(axis=0), exact, rtol=1e-12)
    factor = oracle.noise_factor(N)
    assert factor == (N - size) / (N - 1)
    covariance = np.cov(subsets.T, bias=True)
    assert np.allclose(covariance, factor * np.cov(tuples.T, bias=True), rtol=1e-10)
    assert np.allclose(oracle_covariances(target, oracle, THETA[None])[0], covariance, rtol=1e-9)


@pytest.mark.parametrize("size", [2, 3, 4])
def test_exact_moments_agree_with_every_subset_written_out(size):
    rng = np.random.default_rng(3)
    target = gm.targets.LinearRegression(rng.standard_normal((4, 2)), rng.standard_normal(4), prior_scale=0.8)
    for dynamics in (gm.dynamics.nonreversible([[0.0, -0.5], [0.5, 0.0]]), gm.dynamics.hfhr(2, 0.5, 0.8)):
        plan = of_three(gm.oracles.Minibatch(size, replace=False), target=target, dynamics=dynamics, start=[0.7, -1.0],
                        observables={"u": gm.observables.linear([1.0, 0.5])}, step_size=0.06, burn_in=2)  # fmt: skip
        found = exact_moments(plan)["u"]
        expected = exact.moments(plan)
        np.testing.assert_allclose([found.mean, found.variance], [expected.mean, expected.variance], rtol=1e-10)
    assert gm.predict(plan).rmse_method["u"] == "exact finite-step"


# --- the rows drawn


@pytest.mark.parametrize(("size", "rows"), [(3, 7), (1, 5), (6, 7), (7, 7)])
def test_all_sets_of_rows_are_equally_likely(size, rows):
    chains = 40_000
    drawn = np.sort(np.asarray(distinct_rows(jax.random.key(2), chains, size, rows)), axis=1)
    sets, counts = np.unique(drawn, axis=0, return_counts=True)
    assert np.all(np.diff(sets, axis=1) > 0)
    assert len(sets) == math.comb(rows, size)
    assert len(sets) == 1 or stats.chisquare(counts).pvalue > 1e-4


def test_large_batches_are_distinct_and_uniform_too():
    size, rows, chains = MOST_COMPARED + 4, 400, 3000
    drawn = np.asarray(distinct_rows(jax.random.key(3), chains, size, rows))
    assert np.all(np.diff(np.sort(drawn, axis=1), axis=1) > 0)
    counts = np.bincount(drawn.ravel(), minlength=rows)
    assert largest(proportion_score(counts, chains, size / rows)) < 4.5


class Batch(NamedTuple):
    batch: int
    padded_batch: int
    num_rows: int
    replace: bool


@njit
def _draw(p, generator, offsets, width):
    gradients.draw_rows(p, generator, 0, offsets, width)


@pytest.mark.parametrize(("size", "rows"), [(16, 20), (40, 41)], ids=["few", "all but one"])
def test_lanes_draws_by_floyds_rule_from_each_chains_stream(size, rows):
    padded, width, at = -(-size // 16) * 16, 16, 0
    generator = np.zeros(4 * gradients.WIDTH, np.uint32)
    generator.reshape(4, -1)[:, :16] = streams(8, 16).T
    first = generator.reshape(4, -1)[:, :16].copy()
    offsets = np.zeros(16 * padded, np.uint32)
    p = Batch(size, padded, rows, False)
    for _ in range(2):
        _draw(p, generator, offsets, width)
        drawn = offsets[: 16 * size].reshape(size, 16) // width
        for lane in range(16):
            words = xoshiro([int(x) for x in first[:, lane]], at + size)[at:]
            taken = []
            for j, word in enumerate(words):
                row = word * (rows - size + j + 1) >> 32
                taken.append(rows - size + j if row in taken else row)
            assert drawn[:, lane].tolist() == taken
        at += size


# --- the engines


def interpreted(plan):
    """A run of the GPU engine with its kernel interpreted, all chains in one block."""
    layout = Layout(1 << (plan.num_chains - 1).bit_length(), 1, interpret=True)
    session = pallas.Session(plan, pallas.initial_state(plan), 1e8, None, 0, None, layout)
    session.advance(plan.num_steps)
    return session.state().sums[:, 0] / plan.num_steps


@pytest.mark.parametrize(
    "engine", ["lanes", *(pytest.param(engine, marks=pytest.mark.slow) for engine in ("scan", "pallas"))]
)
def test_engines_have_the_exact_moments_and_would_be_caught_with_replacement(engine):
    size = 8  # two threads to a chain on a GPU, which share the rows
    plan = of_three(gm.oracles.Minibatch(size, replace=False))
    expected = exact_moments(plan)["u"]
    with_replacement = exact_moments(plan.replace(oracle=gm.oracles.Minibatch(size)))["u"]
    averages = interpreted(plan) if engine == "pallas" else gm.run(plan, engine).averages["u"]
    assert largest(z_scores(averages, expected.mean, expected.variance)) < LIMIT
    assert abs(z_scores(averages, expected.mean, with_replacement.variance)[1]) > 2 * LIMIT


@pytest.mark.parametrize(
    "oracle", [gm.oracles.ControlVariate(5, replace=False), gm.oracles.Minibatch(18, replace=False)]
)
def test_lanes_agrees_with_theory_for_anchored_and_padded_batches(oracle):
    plan = of_three(oracle)
    expected = exact_moments(plan)["u"]
    averages = gm.run(plan, "lanes").averages["u"]
    assert largest(z_scores(averages, expected.mean, expected.variance)) < LIMIT


# --- edges


@pytest.mark.parametrize("name", TARGETS)
def test_all_rows_are_the_exact_gradient(name):
    target = TARGETS[name]
    for oracle in (
        gm.oracles.Minibatch(target.num_data, replace=False),
        gm.oracles.ControlVariate(target.num_data, THETA, False),
    ):
        with jax.enable_x64(True):
            ready = oracle.prepared(gm.Model(target, np.zeros(3)))
            zeta = ready.draw(jax.random.key(0), target, 1, 3, jnp.float64)[0]
            theta = jnp.asarray([0.5, 0.2, -0.7])
            assert np.allclose(ready.gradient(target, theta, zeta), target.gradient(theta), rtol=1e-12)
        assert ready.noise_factor(target.num_data) == 0


@pytest.mark.slow
def test_all_rows_move_chains_as_the_exact_gradient_does():
    for d in (3, 14):  # tables of products, rows
        rng = np.random.default_rng(1)
        X, y = rng.standard_normal((19, d)), rng.standard_normal(19)
        plan = of_three(
            gm.oracles.Minibatch(19, replace=False), num_chains=5, num_steps=3, start=rng.standard_normal((5, d)),
            target=gm.targets.LinearRegression(X, y), dynamics=gm.dynamics.overdamped(d), step_size=0.01,
            observables={"u": gm.observables.linear(np.ones(d))},
        )  # fmt: skip
        session = lanes.Session(plan, lanes.initial_state(plan), 1e8, None, 0)
        session.program.step.entry[session.program.step.column >= 2 * d * gradients.WIDTH] = 0.0  # no Langevin noise
        session.advance(3)
        z = plan.starts.theta
        for _ in range(3):
            z = z - 0.01 * (((z @ X.T - y) @ X) + z)
        assert np.allclose(session.state().z, z, rtol=3e-6, atol=3e-6)


def test_one_row_of_one_is_no_noise():
    assert gm.oracles.Minibatch(1, replace=False).noise_factor(1) == 0
    assert gm.oracles.Minibatch(1).noise_factor(1) == 1


def test_more_rows_than_there_are_is_an_error_with_a_remedy():
    with pytest.raises(gm.InvalidInput, match=r"21 distinct rows, but the data have 20.*at most 20, or `replace=True`"):
        of_three(gm.oracles.Minibatch(21, replace=False))
    assert of_three(gm.oracles.Minibatch(21)).oracle.size == 21
    with pytest.raises(gm.InvalidInput, match="`replace` must be True or False: got 'no'"):
        gm.oracles.Minibatch(2, replace="no")


def test_a_kernel_that_cannot_hold_the_batch_says_so(monkeypatch):
    monkeypatch.setenv("GYROMC_PALLAS_INTERPRET", "1")
    rng = np.random.default_rng(0)
    plan = of_three(gm.oracles.Minibatch(65, replace=False),
                    target=gm.targets.LinearRegression(rng.standard_normal((90, 3)), np.zeros(90)))  # fmt: skip
    with pytest.raises(gm.InvalidInput, match=r"mini-batches of 65 distinct rows \(at most 64.*`lanes` can"):
        gm.run(plan, "pallas")


def test_plan_files_and_summaries_say_it():
    text = """
    step_size = 0.01
    target = {kind = "linear_regression", X = [[1.0], [2.0], [3.0]], y = [1.0, 0.0, 1.0]}
    dynamics = {kind = "overdamped"}
    oracle = {kind = "minibatch", size = 2, replace = false}
    observables.h = {kind = "linear", u = [1.0]}
    """
    plan = loads(text)
    assert plan.oracle.replace is False
    assert plan.summary()["oracle"] == "Minibatch(2, replace=False)"
    assert "Minibatch(2, replace=False)" in repr(plan)
    assert any("2 distinct rows" in v.sentence for v in gm.predict(plan).verdicts)
    with pytest.raises(gm.InvalidInput, match="4 distinct rows"):
        loads(text.replace("size = 2", "size = 4"))
