"""Which step sizes are stable: mini-batches of any size, and targets whose curvature is not that of the mode."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize

import gyromc as gm
from gyromc.prediction.answers import Kind
from gyromc.prediction.assumptions import verdicts
from gyromc.prediction.exact import chain
from gyromc.prediction.exact.moments import exact_moments
from gyromc.prediction.stability import Linearisation, Stability, stability
from support import exact
from support.values import skew


def plan_of(target, **settings):
    d = target.dim or 1
    settings = {"dynamics": gm.dynamics.overdamped(d), "step_size": 1e-3, "num_steps": 100, **settings}
    return gm.Plan(target=target, observables={"h": gm.observables.linear(np.eye(d)[0])}, **settings)


def regression(rows, d, seed=0, kind=gm.targets.LinearRegression):
    rng = np.random.default_rng(seed)
    y = rng.standard_normal(rows) if kind is gm.targets.LinearRegression else (rng.random(rows) < 0.5) * 1.0
    return kind(rng.standard_normal((rows, d)), y)


def test_second_moments_can_be_unstable_where_the_mean_is_stable():
    target = gm.targets.LinearRegression(np.diag([3.0, 0.1, 0.1]), np.zeros(3))
    plan = plan_of(target, oracle=gm.oracles.Minibatch(1), step_size=0.1, num_steps=10**6, start=[1.0, 0.0, 0.0])
    # one coordinate alone: E[(1 - η(1 + 27·1{i=0}))²], by hand
    factor = lambda eta: (1 - eta * 28) ** 2 / 3 + (1 - eta) ** 2 * 2 / 3
    found = stability(plan)
    np.testing.assert_allclose(found.radius, factor(0.1), rtol=1e-9)
    np.testing.assert_allclose(factor(found.largest_step_size), 1.0, rtol=1e-5)
    assert exact_moments(plan)["h"].variance == np.inf


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("d", [2, 9])
@pytest.mark.parametrize("kind", ["overdamped", "rotated", "momentum", "critically damped"])
def test_the_radius_is_that_of_the_lifted_matrix(kind, d, replace):
    """E[zzᵀ] in one step as an n² × n² matrix, from every batch's own map."""
    target = regression(12, d)
    dynamics = {
        "overdamped": gm.dynamics.overdamped(d),
        "rotated": gm.dynamics.nonreversible(skew(d, 1, size=0.7)),
        "momentum": gm.dynamics.hfhr(d, 0.5, 2.0),
        "critically damped": gm.dynamics.hfhr(d, 1.0, 2 * np.sqrt(target.gaussian()[0][0, 0])),
    }[kind]
    plan = plan_of(target, dynamics=dynamics, oracle=gm.oracles.Minibatch(2, replace), step_size=0.008)
    n, G = dynamics.size, dynamics.D + dynamics.Q
    lifted = np.zeros((n * n, n * n))
    batches = exact.gradients(plan)
    for slope, _ in batches:
        P = np.eye(n)
        P[:d, :d] = slope
        M = np.eye(n) - plan.step_size * G @ P
        lifted += np.kron(M, M) / len(batches)
    np.testing.assert_allclose(stability(plan).radius, np.max(np.abs(np.linalg.eigvals(lifted))), rtol=1e-6)


@pytest.mark.slow
def test_mini_batches_count_at_any_size():
    """30 parameters, batches of 2: second moments are exact, and above the limit chains leave although the mean contracts."""
    plan = plan_of(regression(60, 30), oracle=gm.oracles.Minibatch(2), num_chains=64, num_steps=2000)
    found = stability(plan)
    assert found.how is Linearisation.EXACT_WITH_NOISE
    mean = stability(plan.replace(oracle=gm.oracles.Exact())).largest_step_size
    assert found.largest_step_size < mean / 4
    assert stability(plan.replace(step_size=0.99 * found.largest_step_size)).stable
    assert not stability(plan.replace(step_size=1.01 * found.largest_step_size)).stable
    with pytest.raises(gm.DivergenceError):
        gm.run(plan.replace(step_size=mean / 2))


def test_noise_that_is_not_counted_is_named(monkeypatch):
    monkeypatch.setattr(chain, "MOST_PRODUCTS", 1000)
    plan = plan_of(regression(60, 30), oracle=gm.oracles.Minibatch(2))
    found = stability(plan)
    assert found.how is Linearisation.WITHOUT_NOISE
    assert not found.how.exact
    assert "noise is not counted" in str(found)
    judged = {v.name: v for v in verdicts(plan, found)}["step size"]
    assert judged.status == "not certified"
    assert "lowers the limit" in judged.sentence
    assert stability(plan.replace(oracle=gm.oracles.Gaussian(1.0))).how is Linearisation.EXACT


def test_mini_batches_of_a_generalized_linear_model_lower_the_limit():
    plan = plan_of(regression(200, 5, kind=gm.targets.LogisticRegression), oracle=gm.oracles.Minibatch(1))
    found, without = stability(plan), stability(plan.replace(oracle=gm.oracles.Exact()))
    assert found.how is Linearisation.AT_MODE_WITH_NOISE
    assert found.largest_step_size < without.largest_step_size / 2


def test_a_linear_force_far_out_decides():
    """∇U = θ + a bounded term: stable below η = 2 exactly, whatever the curvature at the mode."""
    plan = plan_of(gm.targets.CosinePerturbed(1, 1.2), num_steps=2000, num_chains=16)
    found = stability(plan)
    assert found.how is Linearisation.FAR
    np.testing.assert_allclose(found.largest_step_size, 2.0, rtol=0.01)
    gm.run(plan.replace(step_size=1.9))
    with pytest.raises(gm.DivergenceError):
        gm.run(plan.replace(step_size=2.1))
    for step, status in ((1.0, "not certified"), (8.0, "fails")):
        at = plan.replace(step_size=step)
        judged = {v.name: v for v in verdicts(at, stability(at))}["step size"]
        assert judged.status == status
        assert "curvature elsewhere" in judged.sentence
        assert "diverge" not in judged.sentence
    assert "may stay bounded for long" in judged.sentence
    assert "diverge" not in gm.predict(plan.replace(step_size=8.0)).rmse_method["h"]


def test_a_force_that_grows_faster_than_linearly_is_said_to():
    plan = plan_of(
        gm.targets.LogDensity(lambda x: -(x[0] ** 2) / 2 - x[0] ** 4 / 10), start=[0.3], num_steps=3000, num_chains=64
    )
    found = stability(plan)
    assert found.how is Linearisation.AT_EDGE
    assert "at every step size" in found.how.caveat
    # U = 20 at θ = 3.44, where ∇U/θ = 1 + 0.4 θ² = 5.74
    np.testing.assert_allclose(found.largest_step_size, 2 / 5.74, rtol=0.01)
    gm.run(plan.replace(step_size=0.8 * found.largest_step_size))
    with pytest.raises(gm.DivergenceError):
        gm.run(plan.replace(step_size=2.0 * found.largest_step_size))


def test_lighter_growth_leaves_the_limit_at_the_mode():
    student = gm.targets.LogDensity(lambda x: -2.0 * jnp.sum(jnp.log1p(x**2 / 3)))
    found = stability(plan_of(student, start=[0.3]))
    assert found.how is Linearisation.AT_MODE
    np.testing.assert_allclose(found.largest_step_size, 1.5, rtol=1e-3)


def counts(size):
    """Poisson regression with mini-batches: ∇U grows as an exponential, and the noise of a batch with θ."""
    rng = np.random.default_rng(0)
    X = 0.3 * rng.standard_normal((50, 2))
    y = rng.poisson(np.exp(1 + X[:, 0])) * 1.0
    return plan_of(gm.targets.PoissonRegression(X, y), oracle=gm.oracles.Minibatch(size))


def limit_at_mode(plan):
    """Where E[(I - ηK̂)⊗(I - ηK̂)] has radius 1, K̂ = prior + (N/b)Σ wᵢxᵢxᵢᵀ over a batch drawn with replacement, at the mode."""
    target, mode, b = plan.target, plan.model.mode, plan.oracle.size
    X, _ = target.design
    N, d = X.shape
    terms = N * np.einsum("s,si,sj->sij", np.exp(X @ mode), X, X)
    mean = terms.mean(axis=0)
    spread = np.einsum("sij,skl->ikjl", terms - mean, terms - mean).reshape(d * d, d * d) / (N * b)
    K = mean + float(target.prior_precision) * np.eye(d)

    def radius(eta):
        M = np.eye(d) - eta * K
        return np.max(np.abs(np.linalg.eigvals(np.kron(M, M) + eta**2 * spread)))

    return optimize.brentq(lambda eta: radius(eta) - 1, 1e-4, 2 / np.linalg.eigvalsh(K)[0])


def test_the_smallest_limit_decides_with_noise_or_away_from_the_mode():
    """Noise at the mode counts also where ∇U grows faster than linearly, which alone would allow steps four times as large."""
    small, large = counts(1), counts(40)
    edge = stability(small.replace(oracle=gm.oracles.Exact()))
    assert edge.how is Linearisation.AT_EDGE
    found = stability(small)
    assert found.how is Linearisation.AT_MODE_WITH_NOISE
    np.testing.assert_allclose(found.largest_step_size, limit_at_mode(small), rtol=1e-5)
    assert found.largest_step_size < edge.largest_step_size / 4
    assert not stability(small.replace(step_size=0.9 * edge.largest_step_size)).stable
    assert edge.largest_step_size < limit_at_mode(large)
    found = stability(large)
    assert found.how is Linearisation.AT_EDGE
    assert found.largest_step_size == edge.largest_step_size


def test_caveats_name_noise_and_far_starts():
    small, large = stability(counts(1)), stability(counts(40))
    assert "oracle's noise may lower" in large.how.caveat
    for found in (small, large):
        judged = {v.name: v for v in verdicts(counts(1), found)}["step size"]
        assert judged.sentence.count("at every step size") == 1
    logistic = stability(plan_of(regression(200, 5, kind=gm.targets.LogisticRegression)))
    assert not logistic.superlinear
    assert "at every step size" not in logistic.caveat


def test_every_stability_has_a_rate():
    with pytest.raises(TypeError, match="rate"):
        Stability(0.5, 1.0, Linearisation.EXACT, superlinear=False)  # type: ignore[call-arg]  # what is tested
    assert stability(plan_of(gm.targets.Quadratic([3.0, 0.5]))).rate == pytest.approx(0.5)
    student = gm.targets.LogDensity(lambda x: -2.0 * jnp.sum(jnp.log1p(x**2 / 3)))
    assert stability(plan_of(student, start=[0.3])).rate == pytest.approx(4 / 3, rel=1e-3)  # U'' at 0


def quartic(start, **settings):
    """U = θ²/2 + θ⁴/10, whose mean step is θ(1 - η(1 + 0.4θ²)): at η = 0.1 it leaves from |θ| > √47.5 = 6.89."""
    target = gm.targets.LogDensity(lambda x: -(x[0] ** 2) / 2 - x[0] ** 4 / 10)
    return plan_of(target, start=start, step_size=0.1, num_steps=200, num_chains=4, **settings)


@pytest.mark.parametrize(("start", "leaves"), [(5.0, False), (7.0, True), (-7.0, True)])
def test_a_start_from_which_the_chain_leaves_is_unstable(start, leaves):
    plan = quartic([start])
    pred = gm.predict(plan)
    assert pred.stability.stable
    assert pred.stable is not leaves
    assert any("chains that were followed from the plan's start went to infinity" in n for n in pred.notes) is leaves
    assert (pred.rmse_method["h"].kind is Kind.UNSTABLE) is leaves
    assert (pred.std["h"] == np.inf and pred.bias["h"] is None) is leaves
    assert np.isfinite(pred.variance["h"])  # V is the diffusion's


def test_where_the_prediction_is_unstable_the_run_fails():
    with pytest.raises(gm.DivergenceError):
        gm.run(quartic([9.0]))
    gm.run(quartic([5.0]))


def test_one_start_of_many_and_steps_of_a_schedule_count():
    starts = np.zeros((4, 1))
    assert gm.predict(quartic(starts)).stable
    starts[2] = 7.0
    assert not gm.predict(quartic(starts)).stable
    falling = lambda k: 0.1 / jnp.sqrt(1.0 + k)
    # 6.5 → -5.1 at η = 0.1, and the next steps are smaller
    assert gm.predict(quartic([6.5]).replace(step_size=falling)).stable
    assert not gm.predict(quartic([9.0]).replace(step_size=falling)).stable


def test_a_linear_force_is_not_followed(monkeypatch):
    """Where ∇U grows linearly, the linear chain decides: no start leaves below its limit."""
    monkeypatch.setattr("gyromc.prediction.predict.followed", lambda plan: pytest.fail("followed"))
    assert gm.predict(plan_of(gm.targets.CosinePerturbed(1, 0.5), start=[1e6])).stable
