"""Coordinates: bijections invert, densities transform, and the correction term of the state-dependent recipe cancels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.coordinates import check_coordinates, pulled

C = gm.coordinates
L = np.array([[2.0, 0.0, 0.0], [0.5, 1.0, 0.3], [-0.4, 0.2, 0.7]])


def _bent(z):
    """A banana's map with a stretched margin: T′ depends on z and is not symmetric."""
    return jnp.array([jnp.sinh(z[0]), z[1] + 0.5 * z[0] ** 2, z[2] * jnp.exp(0.3 * z[0])])


def _straightened(theta):
    z0 = jnp.arcsinh(theta[0])
    return jnp.array([z0, theta[1] - 0.5 * z0**2, theta[2] * jnp.exp(-0.3 * z0)])


BENT = C.Bijection(_bent, _straightened)
STRETCHED = C.Bijection(jnp.sinh, jnp.arcsinh, lambda z: jnp.sum(jnp.log(jnp.cosh(z))))
EVERY = {
    "linear": C.Linear(L, [1.0, -2.0, 0.5]),
    "diagonal": C.Linear([2.0, 0.1, -3.0]),
    "bijection": BENT,
    "composed": C.Compose(BENT, C.Linear(L), STRETCHED),
}


@pytest.mark.parametrize("name", EVERY)
def test_inverse_and_determinant(name):
    T, z = EVERY[name], np.random.default_rng(0).standard_normal((20, 3))
    np.testing.assert_allclose(T.zs(T.thetas(z)), z, atol=1e-10)
    with jax.enable_x64(True):
        both = lambda row: (T.log_det(row), jnp.linalg.slogdet(jax.jacfwd(T.forward)(row))[1])
        np.testing.assert_allclose(*jax.jit(jax.vmap(both))(jnp.asarray(z)), atol=1e-10)
    check_coordinates(T, T.thetas(z[0]))


@pytest.mark.parametrize("name", EVERY)
def test_the_law_is_the_same(name):
    """exp(-U(T(z))) |det T′| integrates the same functions: compared by importance weights that must be constant."""
    T = EVERY[name]
    target = gm.targets.LogDensity(lambda x: -0.5 * x @ x - 0.1 * jnp.sum(jnp.cos(x)))
    z = np.random.default_rng(1).standard_normal((10, 3))
    with jax.enable_x64(True):
        there = pulled(target, T)

        def both(row):
            size = jnp.linalg.slogdet(jax.jacfwd(T.forward)(row))[1]
            own = there.potential(row), there.gradient(row)
            return own, (target.potential(T.forward(row)) - size, jax.grad(there.potential)(row))

        found, wanted = jax.jit(jax.vmap(both))(jnp.asarray(z))
        np.testing.assert_allclose(found[0], wanted[0], atol=1e-10)
        np.testing.assert_allclose(found[1], wanted[1], atol=1e-9)


def test_sums_over_data_keep_their_parts():
    rng = np.random.default_rng(2)
    X, y = rng.standard_normal((12, 3)), rng.integers(0, 2, 12)
    target = pulled(gm.targets.LogisticRegression(X, y, prior_scale=2.0), BENT)
    with jax.enable_x64(True):
        z, every = jnp.asarray(rng.standard_normal(3)), jnp.arange(12)
        parts = target.batch_gradient(z, every) + target.prior_gradient(z)
        np.testing.assert_allclose(parts, jax.grad(target.potential)(z), atol=1e-10)
        np.testing.assert_allclose(target.weighted_gradient(z, every, 1.0), parts, atol=1e-10)


def test_the_correction_term_cancels():
    """E1 in z with constant D, Q is, in θ, the recipe with D(θ) = T′DT′ᵀ, Q(θ) = T′QT′ᵀ and Γ_i = Σ_j ∂_j(D_ij + Q_ij).

    The drift of θ is Itô's from z, T′b(z) + Σ_ab D_ab ∂²T/∂z_a∂z_b; the recipe's is -(D(θ)+Q(θ))∇U(θ) + Γ(θ).
    """
    rng = np.random.default_rng(3)
    root, skew = rng.standard_normal((2, 3, 3))
    D, Q = root @ root.T + np.eye(3), skew - skew.T
    U = lambda x: 0.5 * x @ x + 0.2 * jnp.sum(x**4) + x[0] * x[1]
    with jax.enable_x64(True):
        for T in EVERY.values():
            V = lambda z, T=T: U(T.forward(z)) - T.log_det(z)

            def field(theta, T=T):
                J = jax.jacfwd(T.forward)(T.inverse(theta))
                return J @ (D + Q) @ J.T

            def drifts(z, T=T, V=V, field=field):
                theta, J = T.forward(z), jax.jacfwd(T.forward)(z)
                ito = jnp.einsum("iab,ab->i", jax.hessian(T.forward)(z), D)
                gamma = jnp.einsum("ijj->i", jax.jacfwd(field)(theta))
                return -J @ (D + Q) @ jax.grad(V)(z) + ito, -field(theta) @ jax.grad(U)(theta) + gamma

            from_z, recipe = jax.jit(jax.vmap(drifts))(jnp.asarray(0.5 * rng.standard_normal((5, 3))))
            np.testing.assert_allclose(from_z, recipe, rtol=1e-8, atol=1e-8)


def test_a_wrong_map_is_refused():
    with pytest.raises(gm.InvalidInput, match="nonsingular"):
        C.Linear([[1.0, 2.0], [2.0, 4.0]])
    with pytest.raises(gm.InvalidInput, match="not a bijection at the start"):
        check_coordinates(C.Bijection(jnp.exp, jnp.exp), np.ones(2))
    with pytest.raises(gm.InvalidInput, match="log_det"):
        check_coordinates(C.Bijection(jnp.exp, jnp.log, lambda z: 2 * jnp.sum(z)), np.full(2, 2.0))
    with pytest.raises(gm.InvalidInput, match="must be a value of"):
        check_coordinates(jnp.exp, np.ones(2))


# --- a plan's coordinates

SKEW = np.array([[0.0, -0.7, 0.2], [0.7, 0.0, -1.0], [-0.2, 1.0, 0.0]])
ROWS = np.random.default_rng(4).standard_normal((40, 3))
LABELS = (ROWS @ [1.0, -1.0, 0.5] + np.random.default_rng(5).logistic(size=40) > 0).astype(float)
GAUSSIAN = gm.targets.Quadratic([[2.0, 0.3, 0.0], [0.3, 1.0, 0.2], [0.0, 0.2, 3.0]], mean=[1.0, 0.0, -1.0])
LOGISTIC = gm.targets.LogisticRegression(ROWS, LABELS)
EXP = C.Bijection(jnp.exp, jnp.log, jnp.sum)
SAME_CHAINS = {
    "euler": (GAUSSIAN, "euler", None, False),
    "balanced": (GAUSSIAN, "balanced", None, True),
    "second order": (GAUSSIAN, "lm_ab2", None, False),
    "minibatch": (LOGISTIC, "euler", gm.oracles.Minibatch(5), False),
    "control variate": (LOGISTIC, "euler", gm.oracles.ControlVariate(5), False),
    "control variate of order 2": (LOGISTIC, "lm_ab2", gm.oracles.ControlVariate(5, order=2), False),
}


def _plan(target, **changes):
    fields = {
        "dynamics": gm.dynamics.nonreversible(SKEW),
        "observables": {"x": gm.observables.linear([1.0, 0.0, 0.0]), "yz": lambda t: t[1] * t[2]},
        **{"step_size": 0.05, "num_steps": 40, "num_chains": 6, "start": [0.5, 0.5, 1.0], "dtype": "float64"},
    }
    return gm.Plan(target=target, **{**fields, **changes})


SLOW = ("euler", "second order", "control variate")  # a scheme and the oracles of which the others have a stronger one


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in SAME_CHAINS]
)
def test_linear_coordinates_are_a_preconditioner(name):
    """θ = b + Lz with D = I and Q = J is the chain in θ with D = LLᵀ and Q = LJLᵀ: the same noise gives the same states."""
    target, scheme, oracle, martingale = SAME_CHAINS[name]
    lower = np.array([[1.2, 0.0, 0.0], [-0.3, 0.8, 0.0], [0.1, 0.4, 0.6]])
    common = {"scheme": scheme, "oracle": oracle}
    moved = _plan(target, coordinates=C.Linear(lower, [0.3, -0.2, 0.1]), martingale=martingale, **common)
    plain = _plan(target, dynamics=gm.dynamics.general(lower @ lower.T, lower @ SKEW @ lower.T), **common)
    runs = [gm.run(plan, engine="scan", thin=1, progress=False) for plan in (moved, plain)]
    np.testing.assert_allclose(runs[0].draws, runs[1].draws, rtol=1e-7, atol=1e-8)
    rows = [np.mean(run.draws[:, :, 1] * run.draws[:, :, 2]) for run in runs]
    np.testing.assert_allclose(rows[0], rows[1], rtol=1e-7)


def test_predictions_are_those_of_the_preconditioner():
    """V of yz, a polynomial of degree 2, which the plug-in holds exactly but for its draws; they are given as θ to both."""
    lower = np.array([[1.2, 0.0, 0.0], [-0.3, 0.8, 0.0], [0.1, 0.4, 0.6]])
    moved = _plan(GAUSSIAN, coordinates=C.Linear(lower, [0.3, -0.2, 0.1]))
    plain = _plan(GAUSSIAN, dynamics=gm.dynamics.general(lower @ lower.T, lower @ SKEW @ lower.T))
    K, mean = GAUSSIAN.gaussian()
    sample = mean + np.random.default_rng(6).standard_normal((4000, 3)) @ np.linalg.cholesky(np.linalg.inv(K)).T
    found = [gm.predict(plan, sample=sample) for plan in (moved, plain)]
    np.testing.assert_allclose(found[0].variance["yz"], found[1].variance["yz"], rtol=0.02)


def test_chains_in_other_coordinates_have_the_law_of_theta():
    """log θ normal: in z = log θ balanced noise has no bias at any step, so means of θ are exact; 4.5 standard errors."""
    P, m = np.array([[2.0, 0.6], [0.6, 1.0]]), np.array([0.2, -0.3])
    log_density = lambda t: -0.5 * (jnp.log(t) - m) @ P @ (jnp.log(t) - m) - jnp.sum(jnp.log(t))
    names = {"θ₁": gm.observables.linear([1.0, 0.0]), "θ₂": gm.observables.linear([0.0, 1.0])}
    plan = gm.Plan(
        target=gm.targets.LogDensity(log_density), dynamics=gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]]),
        coordinates=EXP, scheme="balanced", observables={**names, "product": lambda t: t[0] * t[1]}, step_size=0.3,
        num_steps=2000, burn_in=50, num_chains=400, start=[1.0, 1.0],
    )  # fmt: skip
    S = np.linalg.inv(P)
    truth = {
        "θ₁": np.exp(m[0] + S[0, 0] / 2),
        "θ₂": np.exp(m[1] + S[1, 1] / 2),
        "product": np.exp(m.sum() + S.sum() / 2),
    }
    run = gm.run(plan, thin=500, progress=False)
    for name, value in truth.items():
        assert abs(run.mean[name] - value) < 4.5 * run.std_error[name]
        assert run.std_error[name] < 0.01 * value
    assert run.engine == "scan"
    assert run.draws.min() > 0
    # What a chain in θ would have to be given: the same plan without its coordinates is the same question.
    again = plan.replace(coordinates=None)
    assert isinstance(again.observables["θ₁"], gm.observables.Ridge)
    assert again.flat_target is plan.target
    found = gm.expect(plan, error=0.01, progress=False)
    assert all(abs(found[name].mean - value) < 4.5 * found[name].std_error for name, value in truth.items())


def test_a_plan_says_what_its_coordinates_cannot():
    plan = _plan(GAUSSIAN, coordinates=C.Linear([1.0, 2.0, 0.5]))
    for engine in ("lanes", "pallas"):
        with pytest.raises(gm.InvalidInput, match="only `scan` moves chains in other coordinates"):
            gm.run(plan, engine=engine, progress=False)
    with pytest.raises(gm.InvalidInput, match="replace\\(coordinates=None\\)"):
        gm.tune(plan, gradients=1000)
    with pytest.raises(gm.InvalidInput, match="not a bijection at the start"):
        _plan(GAUSSIAN, coordinates=EXP, start=None)
    with pytest.raises(gm.InvalidInput, match="must be a value of"):
        _plan(GAUSSIAN, coordinates=L)


def test_a_start_that_is_drawn_is_in_theta():
    drawn = lambda key: jnp.exp(jax.random.normal(key, (3,)))
    fixed = np.asarray(_plan(GAUSSIAN, coordinates=EXP, start=drawn, num_steps=1).starts.draw(jax.random.key(1)))
    np.testing.assert_allclose(fixed, jax.random.normal(jax.random.key(1), (3,)), rtol=1e-5)
    run = gm.run(_plan(GAUSSIAN, coordinates=EXP, start=drawn, num_steps=1), thin=1, progress=False)
    assert np.all(run.draws > 0)


def test_plan_files_have_coordinates():
    text = """
        step_size = 0.1
        start = [1.0, 1.0]
        [target]
        kind = "quadratic"
        precision = [1.0, 2.0]
        [dynamics]
        kind = "overdamped"
        [observables.x]
        kind = "linear"
        u = [1.0, 0.0]
        [coordinates]
        kind = "linear"
        matrix = [2.0, 0.5]
    """
    from gyromc.io.planfiles import loads

    plan = loads(text)
    assert plan.coordinates.matrix.tolist() == [2.0, 0.5]
    assert plan.starts.theta.tolist() == [[0.5, 2.0]]
    assert plan.summary()["coordinates"] == "Linear"
