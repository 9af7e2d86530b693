"""Schemes as values: what fits what, the noise that is drawn, exact covariances on Gaussians, the moments of gradients."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

import gyromc as gm
from gyromc.dynamics import augment
from gyromc.operators import Dense
from gyromc.schemes.integrators import noise_root
from gyromc.schemes.moments import gradient_moments
from support.values import in_chunks, skew, wishart

K = np.array([[2.0, 0.5, 0.0], [0.5, 1.5, -0.3], [0.0, -0.3, 1.0]])
MEAN = np.array([1.0, -2.0, 0.5])


def general(n, seed=0):
    rng = np.random.default_rng(seed)
    return gm.dynamics.general(wishart(n, rng, low=0.5), skew(n, seed))


DYNAMICS = {
    "general": general(3),
    "general on (θ, r)": general(6),
    "hfhr": gm.dynamics.hfhr(3, 0.5, 2.0),
    "gaul": gm.dynamics.gaul([0.5, 1.0, 1.5], 1.0, 2.0),
    "reversible": gm.dynamics.general(np.linalg.inv(K), 0),
    "preconditioned hfhr": gm.dynamics.hfhr(3, 0.3, 1.0, preconditioner=np.linalg.inv(K)),
}
EXACT = [
    *[("balanced", name) for name in DYNAMICS],
    ("leimkuhler_matthews", "reversible"),
    ("hfhr_splitting", "hfhr"),
    ("hfhr_splitting", "preconditioned hfhr"),
]


def plan_of(scheme, dynamics, oracle=None, **settings):
    settings = {"step_size": 0.05, "num_steps": 50, "num_chains": 4, "start": MEAN, **settings}
    return gm.Plan(
        target=gm.targets.Quadratic(K, mean=MEAN),
        dynamics=DYNAMICS.get(dynamics, dynamics),
        scheme=scheme,
        oracle=oracle,
        observables={"x": gm.observables.linear([1.0, 0.0, 0.0]), "q": gm.observables.square([1.0, 1.0, 0.0])},
        **settings,
    )


def stationary_covariance(plan, tau=0.0):
    """Of θ, from the Lyapunov equation of the chain."""
    step = plan.step_matrices
    M, B = step.transition(augment(K, plan.augmented)), step.B[:, : plan.dim]
    return linalg.solve_discrete_lyapunov(M, step.C @ step.C.T + tau**2 * B @ B.T)[: plan.dim, : plan.dim]


@pytest.mark.parametrize("tau", [0.0, 0.4])
@pytest.mark.parametrize(("scheme", "dynamics"), EXACT)
def test_the_covariance_on_a_gaussian_is_exact(scheme, dynamics, tau):
    oracle = gm.oracles.Gaussian(tau) if tau else None
    found = stationary_covariance(plan_of(scheme, dynamics, oracle), tau)
    np.testing.assert_allclose(found, np.linalg.inv(K), atol=1e-10)


@pytest.mark.parametrize("mutant", ["a sign in W", "S without Σ", "noise not taken off LM", "noise not taken off O"])
def test_a_wrong_covariance_is_seen(mutant):
    tau, truth = 0.4, np.linalg.inv(K)
    if mutant == "a sign in W":
        wrong = gm.schemes.Balanced(Dense(-(K + tau**2 * np.eye(3))))
        plan = plan_of(wrong, "general", gm.oracles.Gaussian(tau))
    elif mutant == "S without Σ":
        plan = plan_of(gm.schemes.balanced(K), "general", gm.oracles.Gaussian(tau))
    elif mutant == "noise not taken off LM":
        plan = plan_of("leimkuhler_matthews", "reversible")
    else:
        plan = plan_of("hfhr_splitting", "hfhr")
    assert np.max(np.abs(stationary_covariance(plan, tau) - truth)) > 1e-3


@pytest.mark.parametrize("eta", [0.2, 0.1])
def test_lm_ab2_is_of_second_order(eta):
    def error(step_size):
        return np.max(
            np.abs(stationary_covariance(plan_of("lm_ab2", "general", step_size=step_size)) - np.linalg.inv(K))
        )

    order = np.log2(error(eta / 4) / error(eta / 8))
    assert abs(order - 2) < 0.15


TURNED = np.linalg.qr(np.arange(9.0).reshape(3, 3) + np.eye(3))[0]
DYNAMICS |= {
    "dense gaul": gm.dynamics.gaul((TURNED * [0.5, 1.0, 1.8]) @ TURNED.T, 1.0, 2.0),
    "scalar gaul": gm.dynamics.gaul(1.3 * np.eye(3), 0.7, 1.0),
}


@pytest.mark.parametrize("dynamics", ["gaul", "dense gaul", "scalar gaul", "hfhr"])
@pytest.mark.parametrize("eta", [0.05, 0.3])
def test_the_splitting_of_gaul_has_an_exact_covariance(dynamics, eta):
    found = stationary_covariance(plan_of("gaul_splitting", dynamics, step_size=eta))
    np.testing.assert_allclose(found, np.linalg.inv(K), atol=1e-10)


def test_the_splitting_of_gaul_with_one_is_that_of_hfhr():
    """The laws agree though the states differ: r is recorded after the O-step in both."""
    both = [plan_of(scheme, "hfhr").step_matrices for scheme in ("gaul_splitting", "hfhr_splitting")]
    for name in "ABC":
        np.testing.assert_allclose(*(getattr(step, name) for step in both), atol=1e-6)


def response_error(plan, wave, observed):
    """d/dβ of E cos(m·θ) at β = 0 under a linear scheme on U = ½θᵀKθ + β cos(k·θ), minus the target's own: exactly.

    The perturbation moves y by bβ sin(k·θ) in every step, and an n-th step later cos(m·θ) is, given y, e^{-v/2} cos(a·y) with
    a = (Mᵀ)ⁿm and v the variance of the noise since. All are Gaussian without it, so each mean is an exponential.
    """
    step, d = plan.step_matrices, plan.dim
    M, noise = step.transition(augment(K, plan.augmented)), step.C @ step.C.T
    X = linalg.solve_discrete_lyapunov(M, noise)
    k, a = np.zeros((2, len(M)))
    k[:d], a[:d] = wave, observed
    across, b, total, v = M @ X @ k, -step.B[:, :d] @ wave, 0.0, 0.0
    while np.max(np.abs(a)) > 1e-15:
        size, shared = a @ X @ a + k @ X @ k, 2 * a @ across
        total -= a @ b * (np.exp(-(size - shared) / 2) - np.exp(-(size + shared) / 2)) / 2 * np.exp(-v / 2)
        v, a = v + a @ noise @ a, M.T @ a
    S = np.linalg.inv(K)
    size, shared = observed @ S @ observed + wave @ S @ wave, 2 * observed @ S @ wave
    own = np.exp(-size / 2) - (np.exp(-(size - shared) / 2) + np.exp(-(size + shared) / 2)) / 2
    return total - own


@pytest.mark.parametrize(
    ("scheme", "dynamics", "order"),
    [
        ("euler", "general", 1),
        ("leimkuhler_matthews", "reversible", 2),
        ("lm_ab2", "general", 2),
        ("lm_ab2", "gaul", 2),
        ("hfhr_splitting", "hfhr", 2),
        ("gaul_splitting", "gaul", 2),
        ("gaul_splitting", "dense gaul", 2),
    ],
)
def test_the_order_away_from_gaussians(scheme, dynamics, order):
    wave, observed = np.array([1.0, 0.7, -0.4]), np.array([1.0, 0.3, 0.2])
    errors = [response_error(plan_of(scheme, dynamics, step_size=eta), wave, observed) for eta in (0.02, 0.01)]
    assert abs(np.log2(errors[0] / errors[1]) - order) < 0.15
    assert gm.schemes.find(scheme).order == order


def test_leimkuhler_matthews_with_a_rotation_would_be_of_first_order():
    """Why `leimkuhler_matthews` refuses Q ≠ 0: its step with the whole drift, built here, has order 1."""

    def step(dynamics, y, gradient, xi, eta):
        n, w = dynamics.size, 0.5 * jnp.sqrt(2 * eta) * dynamics.noise(xi)
        return jnp.concatenate([y[:n] + y[n:] + w - eta * dynamics.drift(gradient), w])

    naive = gm.schemes.Scheme("naive", step, linear=True, memory=1)
    off = [stationary_covariance(plan_of(naive, "general", step_size=eta)) - np.linalg.inv(K) for eta in (0.02, 0.01)]
    assert abs(np.log2(np.abs(off[0]).max() / np.abs(off[1]).max()) - 1) < 0.15


@pytest.mark.parametrize(
    ("scheme", "dynamics", "message"),
    [
        ("leimkuhler_matthews", "general", "use `lm_ab2`"),
        ("leimkuhler_matthews", "hfhr", "has a rotation Q"),
        ("hfhr_splitting", "general", "needs a momentum"),
        ("hfhr_splitting", "gaul", "D = diag"),
        ("hfhr_splitting", "general on (θ, r)", "`gyromc.dynamics.hfhr`"),
        ("gaul_splitting", "general on (θ, r)", "`gyromc.dynamics.gaul`"),
        ("gaul_splitting", "reversible", "`gyromc.dynamics.gaul`"),
        (gm.schemes.balanced([1.0, 2.0]), "general", "`S` acts on 2 numbers"),
    ],
)
def test_a_scheme_that_does_not_fit_says_which_does(scheme, dynamics, message):
    with pytest.raises(gm.InvalidInput, match=message):
        plan_of(scheme, dynamics)


def test_the_largest_step_of_balanced_noise_is_in_the_message():
    plan = plan_of("balanced", "reversible", step_size=2.5)
    with pytest.raises(gm.InvalidInput, match="`step_size` at most 2;") as refused:
        gm.run(plan, "scan")
    assert "2.5" in str(refused.value)
    gm.run(plan.replace(step_size=2.0), "scan")  # W = 0 there: the chain only reflects


def test_a_schedule_needs_euler():
    with pytest.raises(gm.InvalidInput, match="constant step size"):
        plan_of("balanced", "general", step_size=lambda k: 0.1 / (1 + k))
    with pytest.raises(gm.InvalidInput, match="constant step size"):
        plan_of("euler", "general", step_size=lambda k: 0.1 / (1 + k), martingale=True)


@pytest.mark.parametrize(
    ("dynamics", "S"),
    [
        (gm.dynamics.overdamped(4), [1.0, 2.0, 3.0, 4.0]),
        (gm.dynamics.nonreversible(gm.dynamics.rotations(4, [0.5, 1.5])), [1.0, 1.0, 3.0, 3.0]),
        (gm.dynamics.nonreversible(gm.dynamics.rotations(5, 0.7)), [1.0, 1.0, 3.0, 3.0, 2.0]),
        (
            gm.dynamics.nonreversible(gm.dynamics.rotations(4, 0.7)),
            [1.0, 2.0, 3.0, 4.0],
        ),  # not structured: full matrices
        (gm.dynamics.general([1.0, 2.0, 0.5, 1.0], 0), np.diag([1.0, 2.0, 3.0, 4.0]) + np.ones((4, 4))),
        (gm.dynamics.hfhr(4, 0.5, 2.0), [1.0, 2.0, 3.0, 4.0, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_structured_noise_has_the_covariance_of_the_matrices(dynamics, S):
    from gyromc.operators import Blocks, Diagonal, Scaled, as_operator

    eta, S = 0.1, as_operator(S, "S")
    if dynamics.augmented:
        zero = Scaled(0.0, 4)
        S = Blocks(Diagonal(S.values[:4]), zero, zero, Scaled(1.0, 4))
    G, root = dynamics.D + dynamics.Q, noise_root(dynamics, S, eta).dense()
    np.testing.assert_allclose(root @ root.T, 2 * eta * dynamics.D - eta**2 * G @ S.dense() @ G.T, atol=1e-14)


def test_large_states_stay_structured():
    """A million parameters: nothing of size d² is made."""
    d = 10**6
    plan = gm.Plan(
        target=gm.targets.LogDensity(lambda x: -0.5 * (x**2).sum()),
        dynamics=gm.dynamics.nonreversible(gm.dynamics.rotations(d, 1.0)),
        scheme=gm.schemes.balanced(np.ones(d)),
        observables={"x": gm.observables.function(lambda x: x[0])},
        start=np.zeros(d),
        step_size=0.5,
        num_steps=3,
        num_chains=1,
    )
    assert np.isfinite(gm.run(plan).mean["x"])


@pytest.mark.parametrize("eta", [0.5, 0.7])
def test_noise_that_is_too_large_says_the_largest_step(eta):
    """λ_max of diag(1, 2, 3) + 11ᵀ by hand: the root of Σ 1/(λ - s_i) = 1 above 3 is 5.2143."""
    S, dynamics = Dense(np.diag([1.0, 2.0, 3.0]) + 1.0), gm.dynamics.overdamped(3)
    with pytest.raises(gm.InvalidInput, match=r"at most 0\.3836"):
        noise_root(dynamics, S, eta)
    noise_root(dynamics, S, 0.3835)


WITH_MEMORY = ("lm_ab2", "hfhr_splitting")


@pytest.mark.parametrize(
    "scheme", [pytest.param(s, marks=[] if s in WITH_MEMORY else [pytest.mark.slow]) for s in gm.schemes.SCHEMES]
)
def test_a_continued_run_is_one_longer_run(scheme):
    dynamics = {"leimkuhler_matthews": "reversible", "hfhr_splitting": "hfhr", "gaul_splitting": "gaul"}.get(
        scheme, "general"
    )
    plan = plan_of(scheme, dynamics, gm.oracles.Gaussian(0.2))
    whole, part = gm.run(plan, "scan"), in_chunks(3, plan.replace(num_steps=20), "scan").continue_(30)
    np.testing.assert_array_equal(whole.state.z, part.state.z)
    assert whole.mean == part.mean


@pytest.mark.parametrize("oracle", [gm.oracles.Exact(), gm.oracles.Minibatch(5), gm.oracles.ControlVariate(5)])
def test_moments_of_gradients_on_a_linear_regression_are_exact(oracle):
    """E[ĝĝᵀ] = P + Σ against gradients at points of the posterior, for noise that is quadratic in θ."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((30, 2)), rng.standard_normal(30)
    plan = gm.Plan(
        target=gm.targets.LinearRegression(X, y),
        dynamics=gm.dynamics.overdamped(2),
        oracle=oracle,
        observables={"x": gm.observables.linear([1.0, 0.0])},
        step_size=0.01,
        dtype="float64",
    )
    P, mean = plan.flat_target.gaussian()
    draws = mean + rng.standard_normal((40_000, 2)) @ np.linalg.cholesky(np.linalg.inv(P)).T
    with jax.enable_x64(True):
        zeta = plan.prepared_oracle.draw(jax.random.key(0), plan.flat_target, len(draws), 2, np.dtype(float))
        gradient = jax.vmap(lambda t, s: plan.prepared_oracle.gradient(plan.flat_target, t, s))
        g = np.asarray(jax.jit(gradient)(draws, zeta))
    found, second = gradient_moments(plan).second, g[:, :, None] * g[:, None, :]
    z = (second.mean(axis=0) - found) / (second.std(axis=0) / np.sqrt(len(draws)))
    assert np.max(np.abs(z)) < 4


def test_schemes_are_found_by_name_and_pickled():
    for name in gm.schemes.SCHEMES:
        assert str(gm.schemes.find(name)) == name
        assert pickle.loads(pickle.dumps(gm.schemes.find(name))).name == name
    plan = pickle.loads(pickle.dumps(plan_of("hfhr_splitting", "hfhr", gm.oracles.Gaussian(0.1))))
    assert plan.scheme.name == "hfhr_splitting"


def test_balanced_needs_a_plan():
    with pytest.raises(gm.InvalidInput, match=r"use it in `gyromc\.Plan`"):
        gm.schemes.balanced()(gm.dynamics.overdamped(1), np.zeros(1), np.zeros(1), np.zeros(1), 0.1)
