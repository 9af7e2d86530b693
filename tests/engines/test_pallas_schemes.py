"""The engine `pallas` with every linear scheme, the martingale and control variates; interpreted where there is no GPU.

Single steps are compared with float64 from the same random numbers, laws with exact recursions. Seeds are fixed.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import pallas
from gyromc.engines.pallas import kernel, recipe
from gyromc.engines.pallas import recipe as rows
from gyromc.engines.pallas import threads as philox
from gyromc.engines.pallas.threads import Team
from gyromc.prediction.martingale import martingale
from support import exact, recursion
from support.kernels import ON_GPU, advanced, block, normals, reference_step, same
from support.values import J1, U
from support.zscores import largest, second_moment_scores, z_scores

T, D, O, H = gm.targets, gm.dynamics, gm.oracles, gm.observables
K = 4.0  # standard errors
ROUNDING = 1e-3 if ON_GPU else 1e-5  # of sums of a few steps; the GPU's normals are off by up to 6e-4
PRECISION, MEAN = np.array([[1.5, 0.3, 0.0], [0.3, 1.0, 0.2], [0.0, 0.2, 0.8]]), np.array([1.0, 0.0, -1.0])
pytestmark = pytest.mark.usefixtures("kernels")


def heavy_ball(dynamics, y, gradient, xi, eta):
    """A scheme of a user's own, whose memory keeps half of itself."""
    n = dynamics.size
    moved = 0.5 * y[n:] - eta * dynamics.drift(gradient) + jnp.sqrt(2 * eta) * dynamics.noise(xi)
    return jnp.concatenate([y[:n] + moved, moved])


SCHEMES = {
    "euler": ("euler", D.nonreversible(J1)),
    "balanced": ("balanced", D.nonreversible(0.5 * J1)),
    "balanced, hfhr": ("balanced", D.hfhr(3, 1.0, 2.0)),
    "leimkuhler_matthews": ("leimkuhler_matthews", D.overdamped(3)),
    "lm_ab2": ("lm_ab2", D.nonreversible(J1)),
    "lm_ab2, gaul": ("lm_ab2", D.gaul([0.5, 1.5, 2.0], 1.0, 2.0)),
    "heavy ball": (gm.schemes.Scheme("heavy ball", heavy_ball, linear=True, memory=1), D.overdamped(3)),
    "hfhr_splitting": ("hfhr_splitting", D.hfhr(3, 0.5, 2.0)),
}
SLOW = (
    "euler",
    "leimkuhler_matthews",
    "hfhr_splitting",
    "balanced, hfhr",
    "lm_ab2, gaul",
)  # Euler has tests of its own


def schemes(*slow):
    return [pytest.param(name, marks=[pytest.mark.slow] if name in slow else []) for name in SCHEMES]


def gaussian(name, **changes):
    scheme, dynamics = SCHEMES[name]
    settings = dict(
        target=T.Quadratic(PRECISION, MEAN), dynamics=dynamics, scheme=scheme, observables={"u": H.linear(U)},
        step_size=0.15, num_steps=4, num_chains=2**12, seed=2**35 + 7,
    )  # fmt: skip
    return gm.Plan(**{**settings, **changes})


def logistic(num_rows=40, d=3, seed=6):
    rng = np.random.default_rng(seed)
    X = np.c_[np.ones(num_rows), rng.normal(size=(num_rows, d - 1))]
    return T.LogisticRegression(X, rng.random(num_rows) < 1 / (1 + np.exp(-X @ rng.normal(size=d) / 2)))


def anchored(oracle, **changes):
    target = logistic()
    settings = dict(
        target=target, dynamics=D.overdamped(3), oracle=oracle, observables={"h": H.predictive(target.X[0])},
        step_size=0.02, num_steps=3, num_chains=9, seed=5, start=np.full(3, 0.2),
    )  # fmt: skip
    return gm.Plan(**{**settings, **changes})


def stepped(plan) -> np.ndarray:
    """The state after the plan's steps, in float64 from the kernel's random numbers."""
    y = pallas.initial_state(plan).z.astype(float)
    for k in range(plan.num_steps):
        y = reference_step(plan, y, k)
    return y


# --- schemes


@pytest.mark.parametrize("name", schemes(*SLOW))
def test_steps_are_the_matrices(name):
    plan = gaussian(name, oracle=O.Gaussian(0.7))
    assert np.abs(advanced(plan).z - stepped(plan)).max() < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm_ab2", "hfhr_splitting"])
def test_rows_of_data_reach_the_memory_through_a_team(name):
    dynamics = D.hfhr(3, 0.5, 6.0) if name == "hfhr_splitting" else D.overdamped(3)
    plan = anchored(O.ControlVariate(8), dynamics=dynamics, scheme=name, step_size=0.01)
    assert pallas.team_size(plan) == 2
    assert np.abs(advanced(plan).z - stepped(plan)).max() < ROUNDING


def second_moments(plan) -> np.ndarray:
    """E[yyᵀ] after the last step."""
    (M, b), step = recursion.affine_step(plan), plan.step_matrices
    spread = float(plan.oracle.tau) * step.B[:, : plan.dim]
    mean, covariance = recursion.start(plan), np.zeros_like(M)
    for _ in range(plan.num_steps):
        mean = M @ mean + b
        covariance = M @ covariance @ M.T + step.C @ step.C.T + spread @ spread.T
    return covariance + np.outer(mean, mean)


@pytest.mark.parametrize("name", schemes(*SLOW))
def test_chains_have_their_exact_moments(name):
    """Mean and variance of the sum, and every second moment of the state with its memory."""
    plan = gaussian(name, oracle=O.Gaussian(0.7), num_steps=12, seed=11)
    check_moments(plan)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEMES)
def test_many_chains_have_their_exact_moments(name):
    check_moments(gaussian(name, oracle=O.Gaussian(0.7), num_steps=60, num_chains=2**20 if ON_GPU else 2**17, seed=12))


def check_moments(plan):
    state = advanced(plan)
    assert largest(z_scores(state.sums[:, 0] / plan.num_steps, *recursion.moments(plan, U))) < K
    assert largest(second_moment_scores(state.z, second_moments(plan))) < 1.2 * K


@pytest.mark.parametrize("name", ["balanced", "lm_ab2"])
def test_one_kernel_serves_every_step_size(name):
    plans = [gaussian(name, step_size=eta, martingale=True) for eta in (0.05, 0.11, 0.2)]
    assert len({recipe.make_recipe(plan, 1)[0] for plan in plans}) == 1


def still(dynamics, y, gradient, xi, eta):
    """A scheme that never moves."""
    return y


def test_a_scheme_that_is_not_linear_is_refused():
    plan = gaussian("euler", scheme=gm.schemes.Scheme("still", still))
    assert pallas.why_not(plan) == "it takes schemes that are linear in their noise and the plan asks for still"


# --- the martingale


OBSERVABLES = {
    "u": H.linear(U),
    "tanh": H.tanh([1.0, 1.0, 0.0]),
    "product": H.function(lambda t: t[0] * t[1]),
}


def corrected(name, **changes):
    return gaussian(
        name, **{**dict(observables=OBSERVABLES, martingale=True, num_steps=6, num_chains=6, burn_in=2), **changes}
    )


def martingale_sums(plan) -> np.ndarray:
    """Σ ψ over the counted steps, in float64 from the kernel's random numbers: chains × observables."""
    y, found, total = pallas.initial_state(plan).z.astype(float), martingale(plan), 0.0
    for k in range(plan.burn_in + plan.num_steps):
        y = reference_step(plan, y, k)
        if k >= plan.burn_in:
            total = total + found.increments(y, normals(plan, k, plan.dynamics.size, philox.NOISE))
    return np.asarray(total)


def difference(plan, team=None) -> float:
    """The largest difference between the kernel's sums of ψ and those in float64, in units of their size."""
    expected = martingale_sums(plan)
    return float(
        np.abs(advanced(plan, team=team).sums[:, len(plan.observables) :] - expected).max() / np.abs(expected).max()
    )


@pytest.mark.parametrize("name", schemes("leimkuhler_matthews", "hfhr_splitting", "heavy ball", *SLOW))
def test_increments_are_the_formula(name):
    assert difference(corrected(name)) < ROUNDING


@pytest.mark.parametrize("team", [4, pytest.param(1, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_increments_beside_an_oracle_with_noise_of_its_own(team):
    assert difference(corrected("balanced, hfhr", oracle=O.Gaussian(0.7)), team) < ROUNDING


def boundary_error(plan) -> float:
    """For linear h and exact gradients on a Gaussian: Σ (h - μ(h)) - Σ ψ = φ(y_0) - φ(y_N), whatever the noise; every chain."""
    session = pallas.Session(plan, pallas.initial_state(plan), 1e8, None, 0, None, block(plan))
    session.advance(plan.burn_in)
    start = session.state().z
    session.advance(plan.num_steps)
    end, n, count = session.state(), plan.dynamics.size, len(plan.observables)
    P, u = np.eye(n), np.zeros(plan.state_size)
    P[:3, :3], u[:3] = PRECISION, U
    v = np.linalg.solve((np.eye(len(u)) - plan.step_matrices.transition(P)).T, u)
    left = end.sums[:, 0] - plan.num_steps * U @ MEAN - end.sums[:, count]
    return float(np.abs(left - (start - end.z) @ v).max())


@pytest.mark.parametrize("name", schemes("leimkuhler_matthews", "hfhr_splitting", "heavy ball", *SLOW))
def test_only_the_boundary_is_left_with_exact_gradients(name):
    assert boundary_error(corrected(name, num_steps=40)) < (1e-3 if ON_GPU else 2e-5)


def test_wrong_increments_are_seen(monkeypatch):
    right = corrected("balanced")
    found = martingale(right)
    changes = {
        "sign": dict(linear=-found.linear),
        "no offset": dict(offset=0 * found.offset),
        "no spread": dict(spread=0 * found.spread),
        "other noise": dict(noise=found.noise[:, ::-1]),
        "owners": dict(owner=found.owner[::-1]),
    }
    for change in changes.values():
        wrong = martingale(right)
        for field, value in change.items():
            object.__setattr__(wrong, field, value)
        monkeypatch.setattr(recipe, "martingale", lambda plan, wrong=wrong: wrong)
        assert difference(right) > 0.03


@pytest.mark.slow
def test_a_team_that_does_not_share_its_normals_is_seen(monkeypatch):
    monkeypatch.setattr(Team, "everywhere", lambda self, xi: xi)
    kernel.compiled.cache_clear()
    assert difference(corrected("balanced, hfhr", oracle=O.Gaussian(0.7)), 4) > 0.1
    kernel.compiled.cache_clear()


@pytest.mark.parametrize("name", ["lm_ab2", pytest.param("balanced", marks=pytest.mark.slow)])
def test_memory_and_martingale_continue_exactly(name):
    plan = corrected(name, num_steps=9, burn_in=3)
    whole = advanced(plan)
    assert same(whole, advanced(plan, chunks=[1, 7, 0, 4]))
    first = gm.run(plan.replace(num_steps=4), engine="pallas", progress=False)
    assert first.state.high.shape == (6, 6)
    assert same(first.continue_(5).state, gm.run(plan, engine="pallas", progress=False).state)


@pytest.mark.slow
def test_it_corrects_as_scan_does():
    """Another generator, the same law: means agree, and the martingale gains as much."""
    chains = 2**14 if ON_GPU else 400
    plan = corrected("balanced", num_steps=100, num_chains=chains, burn_in=10)
    ours, theirs = (gm.run(plan, engine=engine, progress=False) for engine in ("pallas", "scan"))
    for name in plan.observables:
        gap = ours[name].mean - theirs[name].mean
        assert abs(gap) < K * np.hypot(ours[name].std_error, theirs[name].std_error)
        assert 0.6 < ours[name].gain / theirs[name].gain < 1.6  # each is known to 10 %


# --- control variates


def variates():
    return {
        "batch 8": O.ControlVariate(8),
        "a center elsewhere": O.ControlVariate(8, center=np.linspace(-1, 1, 3)),
        "order 2": O.ControlVariate(8, order=2),
        "order 2, a center elsewhere": O.ControlVariate(8, center=np.linspace(-1, 1, 3), order=2),
        "distinct rows": O.ControlVariate(8, replace=False),
        "all rows": O.ControlVariate(40, replace=False),
    }


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == "order 2, a center elsewhere" else [pytest.mark.slow]) for n in variates()],
)
def test_control_variates_are_the_oracle(name):
    """From the same rows the step is that of the oracle itself, which other tests enumerate."""
    plan = anchored(variates()[name])
    assert np.abs(advanced(plan).z - stepped(plan)).max() < ROUNDING


@pytest.mark.parametrize("order", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_control_variate_without_one_of_its_parts_is_seen(order, monkeypatch):
    center = np.linspace(-1, 1, 3)  # where ∇L is not small
    plan, right = anchored(O.ControlVariate(8, center=center, order=order)), rows.center_of
    expected = stepped(plan)
    for part in ("gradient", "slope", "curvature")[: 1 + order]:

        def without(*given, part=part):
            found = right(*given)
            return found._replace(**{part: 0 * getattr(found, part)})

        monkeypatch.setattr(rows, "center_of", without)
        assert np.abs(advanced(plan).z - expected).max() > 0.03


def test_control_variates_of_other_sums_are_left_to_scan():
    X = np.random.default_rng(0).normal(size=(20, 2))
    target = T.FiniteSum(lambda p, x: -jnp.sum((p - x) ** 2), lambda p: -jnp.sum(p**2), X)
    plan = gm.Plan(
        target=target, dynamics=D.overdamped(2), oracle=O.ControlVariate(4), observables={"x": H.linear([1.0, 0.0])},
        step_size=0.01, num_steps=2, num_chains=2, start=np.zeros(2),
    )  # fmt: skip
    assert "control variates of a FiniteSum" in str(pallas.why_not(plan))


def test_other_control_variates_are_left_to_scan():
    for curvature in ("diagonal", "matrix-free"):
        plan = anchored(O.ControlVariate(8, order=2, curvature=curvature))
        assert "a diagonal or matrix-free `curvature`: `scan` can" in str(pallas.why_not(plan))
    assert "keeps no anchors between steps" in str(pallas.why_not(anchored(O.ControlVariate(8, refresh=5))))


def test_other_data_need_no_other_kernel():
    plans = [anchored(O.ControlVariate(8, order=2), target=logistic(seed=seed)) for seed in (6, 7)]
    assert len({recipe.make_recipe(plan, 1)[0] for plan in plans}) == 1


def test_control_variates_on_linear_regression_have_their_exact_law():
    """Mean and second moments over all batches, by the recursion that lists them."""
    rng = np.random.default_rng(1)
    X = rng.uniform(-0.5, 0.5, (12, 3))
    plan = anchored(
        O.ControlVariate(2, center=np.array([0.3, -0.2, 0.1])), target=T.LinearRegression(X, X @ U + rng.normal(size=12)),
        observables={"u": H.linear(U)}, step_size=0.2, num_steps=10, num_chains=2**12,
    )  # fmt: skip
    expected, state = exact.moments(plan), advanced(plan)
    assert largest(z_scores(state.sums[:, 0] / plan.num_steps, expected.mean, expected.variance)) < K
    assert largest(second_moment_scores(state.z, expected.second)) < 1.2 * K


@pytest.mark.slow
def test_balanced_noise_with_a_control_variate_and_a_martingale():
    """All three together, against the scheme's matrices and the oracle."""
    plan = anchored(O.ControlVariate(16), scheme="balanced", martingale=True, step_size=0.01)
    assert np.abs(advanced(plan).z - stepped(plan)).max() < ROUNDING
    assert difference(plan) < ROUNDING


# --- kernels for the GPU


@pytest.mark.skipif(pallas.jax.__version_info__ >= (0, 11), reason="this version needs the GPU plugin to lower for one")
@pytest.mark.parametrize(
    "name", ["many", "control variate", *(pytest.param(n, marks=pytest.mark.slow) for n in ("scheme", "martingale"))]
)
def test_kernels_lower_for_cuda_without_one(name):
    many = {f"h{i}": h for i in range(50) for h in (H.tanh([1.0, 0.1 * i, 0.0]),)}
    plan = {
        "scheme": gaussian("lm_ab2", oracle=O.Gaussian(1.0)),
        "martingale": corrected("hfhr_splitting"),
        "many": corrected("balanced", observables=many),
        "control variate": anchored(O.ControlVariate(32, order=2), martingale=True),
    }[name]
    made, tables = recipe.make_recipe(plan, pallas.team_size(plan))
    layout = dataclasses.replace(pallas.default_layout(plan, made.team), interpret=False)
    blocks = -(-plan.num_chains // layout.chains)
    arrays = pallas._to_device(pallas.initial_state(plan), made, blocks * layout.chains)
    inputs = kernel.Inputs(jnp.zeros(4, jnp.int32), jnp.zeros(2, jnp.uint32), jnp.ones(1, jnp.float32), **tables)
    lowered = (
        kernel.compiled(made, layout, blocks).trace(inputs, arrays, np.int32(1)).lower(lowering_platforms=("cuda",))
    )
    assert "triton" in lowered.as_text()
