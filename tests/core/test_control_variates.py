"""Control variates of second order: unbiased with the covariance that theory gives, wherever the anchor is."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.io.planfiles import loads
from gyromc.prediction.stability import Linearisation, stability
from gyromc.schemes.moments import MOST_DATA, mean_covariance, oracle_covariances
from support.values import logistic, regression, rotating

ROWS, SIZE = 5, 2
RNG = np.random.default_rng(12)
X = RNG.standard_normal((ROWS, 3))
COUNTS = RNG.poisson(2.0, ROWS)


def poisson(rows=ROWS, seed=3):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 3)) * 0.5
    return gm.targets.PoissonRegression(X, rng.poisson(np.exp(X @ [0.5, -0.5, 0.2])), prior_scale=0.9)


def network():
    """A sum over data whose parameters are a pytree."""
    return gm.targets.FiniteSum(
        lambda p, row: -0.5 * (row["y"] - jnp.tanh(row["x"] @ p["w"] + p["b"])) ** 2,
        lambda p: -0.5 * (jnp.sum(p["w"] ** 2) + 2 * p["b"] ** 4),
        {"x": X, "y": COUNTS},
    )


MODELS = {
    "logistic": gm.Model(logistic(ROWS)),
    "poisson": gm.Model(poisson()),
    "softmax": gm.Model(gm.targets.SoftmaxRegression(X[:, :2], [0, 1, 2, 1, 0], prior_scale=0.8)),
    "network": gm.Model(network(), {"w": np.zeros(3), "b": np.zeros(())}),
    "linear": gm.Model(regression(3, ROWS)),
}
CENTERS = {"near": (0.1, 0.2, -0.3, 0.15), "far": (2.5, -3.0, 2.0, -1.5)}
THETA = np.array([0.3, -1.0, 0.8, 0.5])


def center_of(name, where="near"):
    """The anchor as a user passes it."""
    model = MODELS[name]
    flat = np.array(CENTERS[where])[: model.dim]
    return {"w": flat[1:], "b": flat[0]} if name == "network" else flat


def over_all_batches(oracle, target, theta):
    """The estimates of all equally likely batches, one row each."""
    rows = range(target.num_data)
    drawn = itertools.product(rows, repeat=SIZE) if oracle.replace else itertools.combinations(rows, SIZE)
    with jax.enable_x64(True):
        return np.asarray(_estimates(oracle, target, jnp.asarray(theta), jnp.asarray(list(drawn))))


@eqx.filter_jit
def _estimates(oracle, target, theta, batches):
    return jax.vmap(lambda b: oracle.gradient(target, theta, b))(batches)


def exact_gradient(target, theta):
    with jax.enable_x64(True):
        return np.asarray(jax.jit(lambda t: target.gradient(t))(jnp.asarray(theta)))


def bias(oracle, target, theta):
    """How far the mean of all estimates is from the gradient, relative to it."""
    exact = exact_gradient(target, theta)
    return np.abs(over_all_batches(oracle, target, theta).mean(axis=0) - exact).max() / np.abs(exact).max()


def deviations(target, center, theta, diagonal=False):
    """N[∇ℓ_i(θ) - ∇ℓ_i(c) - ∇²ℓ_i(c)(θ-c)] written out, minus the mean."""
    with jax.enable_x64(True):
        each, H = _row_derivatives(target, jnp.asarray(center, float), jnp.asarray(theta))
    H = np.asarray(H) * (np.eye(len(theta)) if diagonal else 1.0)
    terms = target.num_data * (np.asarray(each) - H @ (theta - center))
    return terms - np.mean(terms, axis=0)


@eqx.filter_jit
def _row_derivatives(target, center, theta):
    """∇ℓ_i(θ) - ∇ℓ_i(c) and ∇²ℓ_i(c) of every row."""
    row = lambda t, i: target.batch_gradient(t, i[None])
    index = jnp.arange(target.num_data)
    return jax.vmap(lambda i: row(theta, i) - row(center, i))(index), jax.vmap(lambda i: jax.jacrev(row)(center, i))(
        index
    )


# --- unbiased, with the right covariance


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n == "softmax" else []) for n in MODELS])
def test_over_all_batches_mean_and_covariance_are_exact(name):
    model = MODELS[name]
    target, theta = model.flat_target, THETA[: model.dim]
    exact = exact_gradient(target, theta)
    for where, replace in itertools.product(CENTERS, (True, False)):
        oracle = gm.oracles.ControlVariate(SIZE, center_of(name, where), replace, order=2).prepared(model)
        values = over_all_batches(oracle, target, theta)
        assert np.allclose(values.mean(axis=0), exact, rtol=1e-10, atol=1e-10)
        terms = deviations(target, oracle.center, theta)
        factor = 1.0 if replace else (ROWS - SIZE) / (ROWS - 1)
        covariance = factor * terms.T @ terms / (ROWS * SIZE)
        assert np.allclose(np.cov(values.T, bias=True), covariance, rtol=1e-8, atol=1e-18)
        if replace or name == "poisson":
            assert np.allclose(oracle_covariances(target, oracle, theta[None])[0], covariance, rtol=1e-8, atol=1e-18)
        assert np.abs(covariance).max() < 1e-20 if name == "linear" else np.abs(covariance).max() > 1e-6


@pytest.mark.parametrize("curvature", ["matrix-free", "diagonal", None])
@pytest.mark.parametrize("name", ["logistic", "poisson"])
def test_every_kind_of_curvature_is_unbiased(name, curvature):
    model = MODELS[name]
    target, center = model.flat_target, np.array(CENTERS["far"][:3])
    oracle = gm.oracles.ControlVariate(SIZE, center, order=2, curvature=curvature).prepared(model)
    assert bias(oracle, target, THETA[:3]) < 1e-10
    terms = deviations(target, center, THETA[:3], diagonal=curvature == "diagonal")
    covariance = np.cov(over_all_batches(oracle, target, THETA[:3]).T, bias=True)
    assert np.allclose(covariance, terms.T @ terms / (ROWS * SIZE), rtol=1e-8)
    if curvature == "diagonal":
        assert np.allclose(oracle_covariances(target, oracle, THETA[None, :3])[0], covariance, rtol=1e-8)


@pytest.mark.parametrize("name", MODELS)
def test_the_hessian_of_the_data_is_that_of_the_potential_without_the_prior(name):
    model = MODELS[name]
    target, center = model.flat_target, np.array(CENTERS["far"][: model.dim])
    with jax.enable_x64(True):
        rows = np.asarray(_row_derivatives(target, jnp.asarray(center), jnp.asarray(THETA[: model.dim]))[1])
    assert np.allclose(target.data_hessian(center), rows.sum(axis=0), rtol=1e-10, atol=1e-12)


# --- mutants: what the tests above would see


class WithoutRowTerm(gm.oracles.ControlVariate):
    """K(θ-c) is added, and no row's own term is subtracted."""

    def terms(self, target, theta, index):
        return target.remainder(theta, self.center, index, 1)


class WithPrior(gm.oracles.ControlVariate):
    """K contains the prior's Hessian."""

    def prepared(self, model):
        ready, prior = super().prepared(model), float(model.target.prior_precision) * np.eye(model.dim)
        return eqx.tree_at(lambda o: o.operator.matrix, ready, ready.operator.matrix + prior)


@pytest.mark.parametrize("mutant", [WithoutRowTerm, WithPrior])
def test_a_wrong_second_order_is_seen(mutant):
    model = MODELS["logistic"]
    oracle = mutant(SIZE, CENTERS["near"][:3], order=2).prepared(model)
    assert bias(oracle, model.flat_target, THETA[:3]) > 1e-2


# --- how much less noise


@pytest.mark.parametrize("distance", [0.1, 0.02])
def test_the_noise_is_smaller_by_the_square_of_the_distance(distance):
    """Poisson regression: ∇ℓ_i(θ) - ∇ℓ_i(c) is e^t δ x at first order and e^t δ²/2 x at second, δ = x_iᵀ(θ-c)."""
    target = poisson(rows=2000)
    model = gm.Model(target)
    theta = model.mode + distance * np.array([1.0, -1.0, 0.5])
    noise = [
        np.trace(oracle_covariances(target, gm.oracles.ControlVariate(8, order=k).prepared(model), theta[None])[0])
        for k in (1, 2)
    ]
    delta, scale = target.X @ (theta - model.mode), np.exp(target.X @ model.mode)
    first, second = (scale * delta)[:, None] * target.X, (scale * delta**2 / 2)[:, None] * target.X
    expected = np.trace(np.cov(second.T)) / np.trace(np.cov(first.T))
    assert noise[1] / noise[0] == pytest.approx(expected, rel=2 * distance)
    assert 0.5 < expected / np.mean(delta**2) < 2


def test_mean_covariances_are_means():
    target, rows = poisson(rows=50), 0.3 * np.random.default_rng(0).standard_normal((7, 3))
    for build in (gm.oracles.Minibatch, lambda b: gm.oracles.ControlVariate(b, rows[0], False, order=2)):
        oracle = build(3).prepared(gm.Model(target))
        each = oracle_covariances(target, oracle, rows)
        assert np.allclose(mean_covariance(target, oracle, rows), each.mean(axis=0), rtol=1e-10)
    for oracle, tau in ((gm.oracles.Exact(), 0.0), (gm.oracles.Gaussian(0.5), 0.5)):
        assert np.allclose(mean_covariance(target, oracle, rows), tau**2 * np.eye(3))


def test_a_mean_covariance_of_many_data_is_drawn_from_all_of_them(monkeypatch):
    N = 2 * MOST_DATA
    target, rows = poisson(rows=N), 0.3 * np.random.default_rng(0).standard_normal((100, 3))
    oracle = gm.oracles.Minibatch(4)
    found = mean_covariance(target, oracle, rows)
    monkeypatch.setattr("gyromc.schemes.moments.MOST_DATA", N)
    exact = mean_covariance(target, oracle, rows)
    gap = np.linalg.norm(found - exact) / np.linalg.norm(exact)
    assert gap < 0.02  # 200,000 data are drawn: about 1/√200000 times the root of their kurtosis
    monkeypatch.setattr("gyromc.schemes.moments.MOST_NUMBERS", 7 * 3 * N)  # chunks that do not divide the rows
    assert np.allclose(mean_covariance(target, oracle, rows), exact, rtol=1e-12)


# --- plans


def test_on_linear_regression_it_is_the_exact_gradient():
    target = regression(3, rows=8)
    plan = rotating(target, gm.oracles.ControlVariate(2, [1.0, 2.0, -1.0], order=2))
    exact = plan.replace(oracle=gm.oracles.Exact())
    assert np.allclose(gm.run(plan, "scan").averages["u"], gm.run(exact, "scan").averages["u"], rtol=1e-9)
    found, known = gm.predict(plan), gm.predict(exact)
    assert found.rmse["u"] == known.rmse["u"]
    assert found.rmse_method["u"] == "exact finite-step"
    assert stability(plan) == stability(exact)
    diagonal = plan.replace(oracle=gm.oracles.ControlVariate(2, order=2, curvature="diagonal"))
    assert stability(diagonal).how is Linearisation.WITHOUT_NOISE


def test_nothing_linear_is_left_of_the_noise_at_the_mode():
    target = logistic(rows=40, seed=7)
    first, second, exact = (
        stability(rotating(target, oracle))
        for oracle in (gm.oracles.ControlVariate(1), gm.oracles.ControlVariate(1, order=2), gm.oracles.Exact())
    )
    assert second == exact
    assert second.how is Linearisation.AT_MODE
    assert "the oracle's noise may lower it" in second.how.caveat
    assert first.largest_step_size < 0.5 * exact.largest_step_size


def test_lanes_refuses_diagonals():
    plan = rotating(logistic(rows=40), gm.oracles.ControlVariate(16, order=2), step_size=5e-4, dtype="float32")
    diagonal = gm.oracles.ControlVariate(16, order=2, curvature="diagonal")
    with pytest.raises(gm.InvalidInput, match=r"whole matrices only, not with their diagonals.*`scan` can"):
        gm.run(plan.replace(oracle=diagonal), "lanes")
    assert "ControlVariate(16, order=2)" in repr(plan)


@pytest.mark.slow
def test_scan_follows_the_exact_gradient_closely():
    """The same random numbers move all chains; the oracle's noise is of second order in the distance from the mode."""
    target = logistic(rows=2000)
    plan = rotating(target, gm.oracles.ControlVariate(16, order=2), step_size=5e-4, dtype="float32")
    oracles = gm.oracles.Exact(), gm.oracles.ControlVariate(16), plan.oracle
    start = gm.Model(target).mode
    exact, first, second = (gm.run(plan.replace(oracle=oracle, start=start), "scan").state.z for oracle in oracles)
    assert np.std(second - exact) < 0.1 * np.std(first - exact)


# --- arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"order": 3}, "`order` must be a whole number from 1 to 2: got 3"),
        ({"order": 1, "curvature": "diagonal"}, "`curvature` is used by order 2 only"),
        ({"curvature": "low rank"}, "one of diagonal, matrix-free: got 'low rank'"),
        ({"curvature": np.eye(3)}, "one of diagonal, matrix-free: got array"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    with pytest.raises(gm.InvalidInput, match=message):
        gm.oracles.ControlVariate(2, np.zeros(3), **{"order": 2, **arguments}).prepared(MODELS["logistic"])


def test_diagonals_need_a_generalized_linear_model():
    with pytest.raises(gm.InvalidInput, match=r"needs a generalized linear model.*got SoftmaxRegression"):
        gm.oracles.ControlVariate(2, np.zeros(4), order=2, curvature="diagonal").prepared(MODELS["softmax"])


def test_many_parameters_need_another_way(monkeypatch):
    monkeypatch.setattr("gyromc.oracles.MOST_DENSE", 2)
    with pytest.raises(gm.InvalidInput, match=r'at most 2 parameters are taken\. Pass `curvature="diagonal"`'):
        gm.oracles.ControlVariate(2, order=2).prepared(MODELS["logistic"])
    assert gm.oracles.ControlVariate(2, order=2, curvature="diagonal").prepared(MODELS["logistic"]).operator.size == 3


def test_a_gradient_without_a_derivative_is_reported():
    @jax.custom_vjp
    def loss(t):
        return jnp.sum(t**2)

    loss.defvjp(lambda t: (loss(t), t), lambda t, g: (2 * g * t,))
    target = gm.targets.FiniteSum(lambda t, x: -x * loss(t), lambda t: 0.0 * t[0], np.ones(3))
    model = gm.Model(target, np.zeros(2))
    gm.oracles.ControlVariate(2, np.ones(2)).prepared(model)
    with pytest.raises(gm.InvalidInput, match=r"derivative of each row's gradient.*Use `order=1`"):
        gm.oracles.ControlVariate(2, np.ones(2), order=2).prepared(model)


def test_names_and_costs():
    target = logistic(rows=40)
    oracle = gm.oracles.ControlVariate
    assert oracle(4).name == "ControlVariate(4)"
    assert oracle(4, None, False, order=2).name == "ControlVariate(4, replace=False, order=2)"
    assert oracle(4, order=2, curvature="matrix-free").name == "ControlVariate(4, order=2, curvature='matrix-free')"
    costs = [oracle(4), oracle(4, order=2), oracle(4, order=2, curvature="matrix-free")]
    assert [o.evaluations(target) for o in costs] == [8, 8, 48]


def test_plan_files_take_all_of_it():
    text = """
    step_size = 0.01
    target = {kind = "logistic_regression", X = [[1.0], [2.0], [3.0]], y = [1, 0, 1]}
    dynamics = {kind = "overdamped"}
    oracle = {kind = "control_variate", size = 2, order = 2, replace = false, center = [0.1]}
    observables.h = {kind = "linear", u = [1.0]}
    """
    oracle = loads(text).prepared_oracle
    assert (oracle.order, oracle.replace, oracle.center.tolist()) == (2, False, [0.1])
    assert loads(text.replace("order = 2", 'order = 2, curvature = "diagonal"')).prepared_oracle.operator.size == 1
    with pytest.raises(gm.InvalidInput, match="`order` must be a whole number from 1 to 2: got 5"):
        loads(text.replace("order = 2", "order = 5"))
