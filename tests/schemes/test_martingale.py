"""The martingale control variate: what it leaves on Gaussians, that it changes no mean, that it is used only where it helps."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.dynamics import augment
from gyromc.engines import loop
from gyromc.prediction import martingale as module
from gyromc.prediction.answers import Answer
from gyromc.prediction.martingale import martingale
from gyromc.statistics import ChainAverages, ErrorMethod
from schemes.test_schemes import EXACT, K, plan_of
from support.values import in_chunks

CASES = [*EXACT, ("euler", "general"), ("euler", "gaul"), ("lm_ab2", "general"), ("lm_ab2", "general on (θ, r)")]


BY_DEFAULT = (  # each scheme once
    ("balanced", "general"),
    ("leimkuhler_matthews", "reversible"),
    ("hfhr_splitting", "hfhr"),
    ("euler", "general"),
    ("lm_ab2", "general"),
)
SOME = [pytest.param(*case, marks=[] if case in BY_DEFAULT else [pytest.mark.slow]) for case in CASES]


@pytest.mark.parametrize(("scheme", "dynamics"), SOME)
def test_only_the_boundary_is_left_with_exact_gradients(scheme, dynamics):
    """Linear h on a Gaussian: N (average - martingale - μ) = φ(y_0) - φ(y_N), whatever the noise was."""
    plan = plan_of(scheme, dynamics, step_size=0.1, num_steps=64, num_chains=8, dtype="float64", martingale=True)
    run = gm.run(plan, "scan")
    step, fit = plan.step_matrices, plan.model.gaussian_fit
    M = step.transition(augment(K, plan.augmented))
    u = np.eye(len(M))[0]
    v = np.linalg.solve((np.eye(len(M)) - M).T, u)
    center = np.concatenate([fit.mean, np.zeros(len(M) - 3)])
    start = np.concatenate([fit.mean, np.zeros(len(M) - 3)])
    left = (start - run.state.z) @ v
    averages = run.state.sums / 64
    np.testing.assert_allclose(64 * (averages[:, 0] - averages[:, 2] - center[0]), left, atol=1e-9)


def brute_force(plan, y, draws=200_000):
    """ψ has mean zero given y: averages over fresh noise from one state, with the standard error."""
    key = jax.random.key(0)
    xi = np.asarray(jax.random.normal(key, (draws, plan.dynamics.size)), float)
    found, step = martingale(plan), plan.step_matrices
    drift = step.A @ y + step.B @ np.concatenate([K @ (y[:3] - 1.0), y[3 : plan.dynamics.size]]) + 0.3
    psi = np.asarray(found.increments(drift + xi @ step.C.T, xi))
    return psi.mean(axis=0), psi.std(axis=0) / np.sqrt(draws)


@pytest.mark.parametrize(("scheme", "dynamics"), [("balanced", "hfhr"), ("lm_ab2", "general")])
def test_increments_have_mean_zero_from_any_state_and_gradient(scheme, dynamics):
    plan = plan_of(scheme, dynamics, martingale=True)
    mean, error = brute_force(plan, np.linspace(-2, 3, plan.state_size))
    assert np.max(np.abs(mean / error)) < 4


def test_an_increment_without_its_offset_or_with_other_noise_is_seen():
    plan = plan_of("balanced", "general", num_steps=400, num_chains=200, martingale=True, burn_in=100)
    right = gm.run(plan, "scan")
    assert right["q"].gain > 5
    found = martingale(plan)
    wrong = {
        "sign": eqx.tree_at(lambda m: m.linear, found, -found.linear),
        "noise": eqx.tree_at(lambda m: (m.linear, m.noise), found, (found.linear[:, ::-1], found.noise[:, ::-1])),
    }
    for mutant in wrong.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("gyromc.engines.scan.martingale", lambda plan, m=mutant: m)
            run = gm.run(plan, "scan")
        assert run["x"].gain < 0.5 * right["x"].gain


def logistic(**settings):
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(80), rng.standard_normal((80, 2))])
    y = (rng.random(80) < 1 / (1 + np.exp(-X @ [0.3, 1.0, -0.7]))).astype(float)
    target = gm.targets.LogisticRegression(X, y)
    fit = gm.Model(target).gaussian_fit
    return gm.Plan(
        target=target,
        dynamics=gm.dynamics.general(np.linalg.inv(fit.precision), 0),
        observables={
            "mean": gm.observables.linear([0.0, 1.0, 0.0]),
            "square": gm.observables.square([0.0, 1.0, 0.0]),
            "predictive": gm.observables.predictive([1.0, 1.0, 1.0]),
            "product": gm.observables.function(lambda t: t[1] * t[2]),
            "norm": gm.observables.function(jnp.linalg.norm),
        },
        start=fit.mean,
        **{"step_size": 0.5, "num_steps": 300, "num_chains": 200, "burn_in": 30, "scheme": "balanced", **settings},
    )


FAST = gm.observables.function(
    lambda t: jnp.sin(40 * t[0] + 1.0)
)  # not linear plus quadratic: φ explains nothing of it


@pytest.fixture(scope="module")
def corrected():
    """A run whose observables gain, but for one."""
    plan = logistic(martingale=True)
    return gm.run(plan.replace(observables={**plan.observables, "fast": FAST}), "scan")


def test_all_kinds_of_observables_gain_and_keep_their_means(corrected):
    run, plan = corrected, corrected.plan
    for name, row in run.items():
        assert (row.gain > 3) == (name != "fast"), name
        apart = (row.mean - row.plain.mean) / np.hypot(row.std_error, row.plain.std_error)
        assert abs(apart) < 4, name
    plain = gm.run(plan.replace(martingale=False), "scan")
    assert plain.mean["mean"] == run["mean"].plain.mean  # the same chains
    table = str(run)
    assert "gain" in table
    assert "×" in table
    assert run.to_dict()["observables"]["mean"]["gain"] == pytest.approx(run.gain["mean"])


def test_the_correction_is_left_out_where_it_does_not_help(corrected):
    row = corrected["fast"]
    assert row.gain == 1.0
    assert row.uncorrected is None


def with_sums(run, change):
    """The run as if its sums over chains × (observables, then their martingales), in total and at every mark, were changed."""
    state = run.state
    marks = {k: change(sums, k) for k, sums in state.snapshots.items()}
    sums = change(state.sums, run.steps_done)
    return dataclasses.replace(
        run, state=dataclasses.replace(state, high=sums, low=np.zeros_like(sums), snapshots=marks)
    )


def test_the_choice_does_not_look_at_the_means(corrected):
    """A constant added to every plain or martingale average changes no error, so neither the choice nor the gains."""
    run = corrected
    assert {row.gain > 1 for row in run.values()} == {True, False}
    for shift in (np.repeat([0.5, 0.0], len(run)), np.repeat([0.0, -2.0], len(run)), np.linspace(-3, 3, 2 * len(run))):
        moved = with_sums(run, lambda sums, steps, by=shift: sums + steps * by)
        assert abs(moved.mean["mean"] - run.mean["mean"]) > 0.1
        np.testing.assert_allclose(list(moved.gain.values()), list(run.gain.values()), rtol=1e-6)


def test_the_gain_is_infinite_where_nothing_is_left(corrected):
    run = corrected
    count = len(run)
    nothing = with_sums(run, lambda sums, steps: np.concatenate([sums[:, :count]] * 2, axis=1))
    assert nothing.std_error["mean"] == 0
    assert nothing.gain == dict.fromkeys(run, np.inf)
    assert "inf ×" in str(nothing)
    assert nothing.to_dict()["observables"]["mean"]["gain"] is None  # JSON has no infinity
    assert Answer(std=0.0, plain_std=0.1).gain == np.inf
    assert Answer(std=0.05, plain_std=0.1).gain == 4
    assert Answer(std=0.0).gain == 1


def test_an_observable_without_gradients_stays_plain_and_the_others_keep_theirs(corrected):
    plan = logistic(martingale=True)
    names = "mean", "rough", "product"
    rough = gm.observables.function(lambda t: jnp.sqrt(jnp.maximum(t[1] - 1.0, 0.0)))  # its gradient is NaN below 1
    with_it = plan.replace(observables={name: plan.observables.get(name, rough) for name in names})
    with pytest.warns(gm.GyromcWarning, match="does not correct the averages of rough: gradients are NaN or infinite"):
        run = gm.run(with_it, "scan")
    assert run["rough"].uncorrected is None
    assert np.isfinite(run["rough"].std_error)
    for name in ("mean", "product"):
        assert run[name].gain > 3
        np.testing.assert_allclose(run[name].gain, corrected[name].gain, rtol=1e-3)
    with pytest.warns(gm.GyromcWarning, match="averages of rough"):
        predicted = gm.predict(with_it)
    assert predicted["rough"].gain == 1
    assert predicted["mean"].gain > 3


def test_the_slope_that_is_kept_solves_the_poisson_equation():
    """(I - M)ᵀv = u for x, the first coordinate, with a memory and with momenta."""
    for scheme, dynamics in (("lm_ab2", "general"), ("balanced", "hfhr")):
        plan = plan_of(scheme, dynamics, martingale=True)
        M = plan.step_matrices.transition(augment(K, plan.augmented))
        v = martingale(plan).slope[0]
        np.testing.assert_allclose(v - v @ M, np.eye(len(M))[0], atol=1e-12)


def test_a_run_with_a_martingale_continues_exactly(corrected):
    plan = corrected.plan.replace(num_steps=96)  # the program of the run above
    whole = gm.run(plan, "scan")
    part = in_chunks(7, plan.replace(num_steps=40), "scan").continue_(56)
    np.testing.assert_array_equal(whole.state.high, part.state.high)
    assert whole.mean == part.mean


def test_with_mini_batches_the_oracle_s_part_remains():
    plan = logistic(oracle=gm.oracles.ControlVariate(20), step_size=0.3, martingale=True)
    run = gm.run(plan, "scan", thin=10)
    found = gm.estimate(run, bias="none")
    assert found["mean"].gain > 2
    assert "gain" in str(found)


def test_more_parameters_than_matrices_allow():
    d = module.SETTINGS.parameters + 1
    plan = gm.Plan(
        target=gm.targets.Quadratic(np.ones(d)),
        dynamics=gm.dynamics.overdamped(d),
        observables={"x": gm.observables.linear(np.eye(d)[0])},
        step_size=0.1,
        num_steps=2,
        martingale=True,
    )
    with pytest.raises(gm.InvalidInput, match="at most 1000 parameters"):
        gm.run(plan, "scan")


def test_a_step_beyond_the_limit_is_refused():
    plan = plan_of("euler", "reversible", step_size=2.5, martingale=True)
    with pytest.raises(gm.InvalidInput, match="beyond its limit"):
        gm.run(plan, "scan")


def test_few_terms_are_enough_where_the_chain_is_whitened():
    assert len(martingale(plan_of("balanced", "reversible", martingale=True)).weight) == 1


def groups_of(row, size):
    """The chains of one long list as runs of few chains."""
    starts = range(0, len(row.averages) - size + 1, size)
    return [ChainAverages(row.averages[i : i + size], row.blocks[i : i + size], row.covered) for i in starts]


@pytest.mark.slow
def test_corrected_intervals_hold_the_truth_as_often_as_they_say():
    """2000 runs of 20 chains each: 95 % ± 2 %, four standard errors; the truth is what all plain averages agree with."""
    plan = logistic(martingale=True, num_steps=40, num_chains=40_000, burn_in=15)
    ridges = {name: plan.observables[name] for name in ("mean", "square", "predictive")}
    for name, row in gm.run(plan.replace(observables=ridges), "lanes").items():
        assert row.gain > 3, name
        assert abs(row.mean - row.plain.mean) < 4 * row.plain.std_error, name
        ends = np.array([group.interval for group in groups_of(row, 20)])
        held = np.mean((ends[:, 0] <= row.mean) & (row.mean <= ends[:, 1]))
        assert 0.93 < held < 0.97, name


@pytest.mark.slow
def test_with_few_chains_the_error_of_a_corrected_average_is_too_large_where_only_the_ends_are_left(
    monkeypatch,
):
    """Errors from blocks count the ends of every batch, the average only those of the chain; the spread of chains is right."""
    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0, 2.0]),
        dynamics=gm.dynamics.general([1.0, 0.5], 0),
        observables={"x": gm.observables.linear([1.0, 0.0]), "q": gm.observables.square([1.0, 0.0])},
        scheme="balanced",
        martingale=True,
        step_size=0.5,
        num_steps=2048,
        num_chains=800,
        burn_in=50,
    )
    monkeypatch.setattr(loop, "SETTINGS", dataclasses.replace(loop.SETTINGS, blocks=(128, 128)))
    for name, row in gm.run(plan, "lanes").items():
        truth = np.std(row.averages, ddof=1)
        error = {size: np.sqrt(np.mean([g.std_error**2 for g in groups_of(row, size)]) * size) for size in (4, 20)}
        assert {group.method for group in groups_of(row, 4)} == {ErrorMethod.LUGSAIL}
        assert 1.5 < error[4] / truth < 3, name
        assert abs(error[20] / truth - 1) < 0.05, name
