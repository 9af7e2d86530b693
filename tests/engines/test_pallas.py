"""The engine `pallas`: on a GPU for real, elsewhere with its kernel interpreted. Seeds are fixed; k is 4 standard errors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import pallas, scan, unrolled
from gyromc.engines.pallas import kernel
from gyromc.engines.pallas import threads as philox
from gyromc.engines.pallas.recipe import make_recipe
from gyromc.engines.pallas.threads import Layout
from gyromc.paper.catalogue import CATALOGUE
from support import exact
from support.kernels import ON_GPU, advanced, block, reference_step, same
from support.values import J1, U, skew
from support.zscores import largest, mean_score, score, second_moment_scores, two_sample_scores, z_scores

T, D, O, H = gm.targets, gm.dynamics, gm.oracles, gm.observables
K = 4.0  # standard errors
pytestmark = pytest.mark.usefixtures("kernels")


def regression(rows=128, d=3, seed=5):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-0.5, 0.5, (rows, d))
    return X, X @ rng.normal(size=d) + rng.normal(size=rows)


def heart_like(rows=202, d=14):
    rng = np.random.default_rng(6)
    X = np.c_[np.ones(rows), rng.normal(size=(rows, d - 1))]
    return X, (rng.random(rows) < 1 / (1 + np.exp(-X @ rng.normal(size=d) / 2))).astype(float)


# --- random numbers


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        (0, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (0xFFFFFFFF, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ],
)
def test_generator_gives_the_published_answers(word, expected):
    """The known answers that come with Random123 for philox4x32-10, all words 0 and all words 2³² - 1."""
    words = jnp.full(4, word, jnp.uint32)
    result = philox.random_words((words[0], words[1]), (words,) * 4)
    assert tuple(int(w[0]) for w in result) == expected


def test_words_multiply_like_64_bit_integers():
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 2**32, (2, 1000), dtype=np.uint64)
    exact = ((a * b) >> np.uint64(32)).astype(np.uint32)
    assert np.array_equal(philox.multiply_high(jnp.asarray(a, jnp.uint32), jnp.asarray(b, jnp.uint32)), exact)


def drawn_normals(count=2**16, steps=64):
    """Normals as a kernel draws them: d = 4 chains that forget their past, z⁺ = ξ, read after each step."""
    plan = gm.Plan(
        target=T.Quadratic(np.ones(4)), dynamics=D.overdamped(4), observables={"h": H.linear(np.ones(4))},
        step_size=1.0, num_steps=steps, num_chains=count, seed=2**40 + 3,
    )  # fmt: skip
    session = pallas.Session(plan, pallas.initial_state(plan), 1e8, 1, steps, layout=block(plan))
    session.advance(steps)
    return session.kept(steps)[1:].astype(float) / np.sqrt(2)


@pytest.mark.slow
def test_normals_have_the_normal_moments_and_no_correlation():
    x = drawn_normals(2**16, 64 if ON_GPU else 17)
    flat = x.reshape(-1)
    exact = {1: 0, 2: 1, 3: 0, 4: 3, 5: 0, 6: 15, 7: 0, 8: 105}
    double = {2: 3, 4: 105, 6: 10395, 8: 2027025, 1: 1, 3: 15, 5: 945, 7: 135135}
    for order, moment in exact.items():
        error = np.sqrt((double[order] - moment**2) / flat.size)
        assert abs(score(np.mean(flat**order), moment, error)) < K, order
    pairs = {
        "coordinates": (x[..., 0], x[..., 1]),
        "halves of a draw": (x[..., 0], x[..., 2]),
        "chains": (x[:, :-1], x[:, 1:]),
        "steps": (x[:-1], x[1:]),
        "squares of coordinates": (x[..., 0] ** 2 - 1, x[..., 1] ** 2 - 1),
        "squares of chains": (x[:, :-1] ** 2 - 1, x[:, 1:] ** 2 - 1),
    }
    for name, (a, b) in pairs.items():
        assert abs(mean_score(np.ravel(a * b), 0)) < K, name


def test_normals_follow_the_normal_law():
    """Kolmogorov-Smirnov: √n sup|F_n - Φ| exceeds 1.95 with probability 0.001."""
    from scipy.stats import norm

    flat = np.sort(drawn_normals(2**16, 33 if ON_GPU else 9).reshape(-1))
    ranks = np.arange(flat.size)
    law = norm.cdf(flat)
    distance = max(np.max(law - ranks / flat.size), np.max((ranks + 1) / flat.size - law))
    assert distance * np.sqrt(flat.size) < 1.95


# --- users' functions, unrolled


def bumpy(x):
    y = jnp.tanh(jnp.arange(9.0).reshape(3, 3) @ x) + x[0] * x[::-1] ** 3
    parts = [jnp.sum(jnp.logaddexp(y, 0.3)), jnp.linalg.norm(x[1:]), jnp.prod(x), jax.nn.logsumexp(x), jnp.cumsum(x)[1]]
    return (
        sum(parts) + jnp.where(x[0] > 0, x[1], x[2] ** 2) + jnp.stack([x[2], x[0]]).sum() + x[jnp.array([0, 2])].sum()
    )


def test_unrolled_functions_agree_with_jax():
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    gradient = jax.grad(bumpy)
    of_tiles = unrolled.unroll(gradient, jax.ShapeDtypeStruct((3,), jnp.float32))
    tiles = jax.jit(lambda x: jnp.stack(list(of_tiles(unrolled.entries(list(x.T), (3,)))), 1))(x)
    # On a processor: JAX 0.11.2 compiles the gradient of `cumsum` wrongly on CUDA.
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        single = np.stack([jax.jit(gradient)(row) for row in x])
    assert np.allclose(tiles, single, rtol=1e-5, atol=1e-5)


# --- one step, from the same random numbers


def finite_sum():
    X, y = regression(50, 2)
    data = {"x": X, "label": (y > 0).astype(np.int32)}

    def log_likelihood(p, row):
        t = row["x"] @ p["w"] + p["b"]
        return jnp.where(row["label"] == 1, jax.nn.log_sigmoid(t), jax.nn.log_sigmoid(-t))

    target = T.FiniteSum(log_likelihood, lambda p: -0.5 * (jnp.sum(p["w"] ** 2) + p["b"] ** 2), data)
    return target, {"w": np.zeros(2), "b": np.array(0.1)}


def step_cases():
    X, y = regression()
    Xl, yl = heart_like()
    few = T.LogisticRegression(*heart_like(60, 6))
    summed, start = finite_sum()
    quadratic, cosine = T.Quadratic(np.eye(3) + 0.3, [1.0, 0, -1]), T.CosinePerturbed(3, 1.2)
    dense = D.general(np.eye(6) + 0.1, skew(6, 1, size=2.0))
    logistic = T.LogisticRegression(Xl, yl)
    return {
        "quadratic, nld": (quadratic, D.nonreversible(J1), O.Gaussian(1.0), None),
        "cosine, hfhr": (cosine, D.hfhr(3, 1.0, 2.0), O.Gaussian(1.0), None),
        "cosine, gaul": (cosine, D.gaul([0.5, 1.5, 2.0], 1.0, 2.0), O.Exact(), None),
        "log density": (
            T.LogDensity(lambda x: -0.25 * jnp.sum(x**4) - x[0] * x[1]),
            D.overdamped(2),
            O.Exact(),
            np.ones(2),
        ),
        "linear, batch 16": (T.LinearRegression(X, y), D.nonreversible(J1), O.Minibatch(16), None),
        "linear, batch 10": (T.LinearRegression(X, y), D.hfhr(3, 1.0, 2.0), O.Minibatch(10), None),
        "linear, 5 distinct": (T.LinearRegression(X[:7], y[:7]), D.overdamped(3), O.Minibatch(5, replace=False), None),
        "linear, all rows": (T.LinearRegression(X[:101], y[:101]), D.overdamped(3), O.Exact(), None),
        "logistic, gaul": (logistic, D.gaul(5 * np.ones(14), 0.1, 73.5), O.Minibatch(32), None),
        "logistic, dense": (few, dense, O.Minibatch(32), None),
        "logistic, batch 100": (few, D.overdamped(6), O.Minibatch(100), None),
        "finite sum": (summed, D.overdamped(3), O.Minibatch(8), start),
    }


SLOW = {
    "linear, nld",
    "log density",
    "linear, 5 distinct",
    "logistic, batch 100",
    "logistic, dense",
    "linear, batch 10",
    "linear, gaul",
    "logistic, gaul",
}


LOWERED_ALIKE = ("quadratic, nld", "cosine, gaul", "linear, batch 10", "logistic, dense", "logistic, batch 100")


def cases(found, *slow):
    """Names of cases; those whose like is tested anyway are slow."""
    return [pytest.param(name, marks=[pytest.mark.slow] if name in (*SLOW, *slow) else []) for name in found]


@pytest.mark.parametrize("name", cases(step_cases(), "quadratic, nld", "cosine, gaul"))
def test_steps_are_the_equation(name):
    """Three steps from the same random numbers agree to float32 rounding (on a GPU: of its approximate sine and logarithm)."""
    target, dynamics, oracle, start = step_cases()[name]
    plan = gm.Plan(
        target=target, dynamics=dynamics, oracle=oracle, observables={"h": H.function(lambda p: jnp.sum(jax.tree.leaves(p)[0]))},
        step_size=0.01, num_steps=3, num_chains=40, seed=2**35 + 7, start=start,
    )  # fmt: skip
    z = scan.initial_state(plan).z.astype(float)
    for k in range(3):
        z = reference_step(plan, z, k)
    assert np.abs(advanced(plan).z - z).max() < 2e-5 * max(1, np.abs(z).max())


# --- exact moments


def moment_cases():
    X, y = regression()
    quadratic = T.Quadratic(np.eye(3) + 0.3, [0.5, 0, -1.0])
    linear = T.LinearRegression(X, y, prior_scale=2.0)
    return {
        "quadratic, nld": (quadratic, D.nonreversible(J1), O.Gaussian(1.0), 0.1),
        "quadratic, hfhr": (quadratic, D.hfhr(3, 1.0, 2.0), O.Gaussian(1.0), 0.1),
        "quadratic, gaul": (quadratic, D.gaul([0.5, 1.5, 2.0], 1.0, 2.0), O.Gaussian(1.0), 0.1),
        "linear, nld": (linear, D.nonreversible(0.3377 * J1), O.Minibatch(16), 0.05),
        "linear, gaul": (linear, D.gaul(2 * np.ones(3), 0.3, 4.0), O.Minibatch(16), 0.025),
    }


@pytest.mark.parametrize("name", cases(moment_cases(), "quadratic, nld", "quadratic, hfhr"))
def test_averages_have_their_exact_moments(name):
    """Mean, variance of the average and E[zzᵀ]; with 2¹⁷ chains 4 standard errors of a variance are 1.6 %."""
    target, dynamics, oracle, eta = moment_cases()[name]
    plan = gm.Plan(
        target=target, dynamics=dynamics, oracle=oracle, observables={"h": H.linear(U)},
        step_size=eta, num_steps=100 if ON_GPU else 15, num_chains=2**20 if ON_GPU else 2**17, seed=11,
    )  # fmt: skip
    expected, state = exact.moments(plan), advanced(plan)
    assert largest(z_scores(state.sums[:, 0] / plan.num_steps, expected.mean, expected.variance)) < K
    assert largest(second_moment_scores(state.z, expected.second)) < 1.2 * K


def against_scan(plan):
    ours = advanced(plan).sums
    theirs = gm.run(plan.replace(seed=99), engine="scan", progress=False).state.sums
    assert largest(*two_sample_scores(ours, theirs)) < K + 0.5


@pytest.mark.slow
def test_non_quadratic_agrees_with_scan():
    against_scan(
        gm.Plan(
            target=T.CosinePerturbed(3, 1.2),
            dynamics=D.gaul([0.5, 1.5, 2.0], 1.0, 2.0),
            oracle=O.Gaussian(1.0),
            observables={"t": H.tanh(U), "x²": H.function(lambda x: x[0] ** 2)},
            step_size=0.1,
            num_steps=40,
            num_chains=2**15,
        )
    )


@pytest.mark.slow
def test_logistic_with_many_observables_agrees_with_scan():
    """Profiles side by side in a team's tables, and alone: each its own average."""
    X, y = heart_like(60, 6)
    rows = {f"p{i}": H.predictive(X[i]) for i in range(12)} | {f"b{i}": H.brier(X[i], i % 2) for i in range(4)}
    others = {"entropy": H.entropy(X[3]), "linear": H.linear(X[4]), "function": H.function(lambda t: t[2] ** 2)}
    against_scan(
        gm.Plan(
            target=T.LogisticRegression(X, y),
            dynamics=D.gaul(2 * np.ones(6), 0.3, 4.0),
            oracle=O.Minibatch(32),
            observables=rows | others,
            step_size=0.01,
            num_steps=20,
            num_chains=2**15 if ON_GPU else 2**11,
        )
    )


# --- the contract


def small(**changes):
    plan = gm.Plan(
        target=T.CosinePerturbed(3, 1.2), dynamics=D.hfhr(3, 1.0, 2.0), oracle=O.Gaussian(1.0),
        observables={"t": H.tanh(U)}, step_size=0.1, num_steps=20, num_chains=70, seed=4,
    )  # fmt: skip
    return plan.replace(**changes)


def test_numbers_do_not_depend_on_blocks_or_chunks():
    plan = small()
    whole = advanced(plan)
    assert same(whole, advanced(plan, chunks=[1, 12, 0, 7]))
    other = advanced(plan, layout=Layout(64, 2) if ON_GPU else pallas.default_layout(plan, 1))
    assert np.allclose(whole.z, other.z, atol=2e-6)
    assert np.allclose(whole.sums, other.sums, atol=2e-5)


@pytest.mark.parametrize(
    ("capability", "reason"),
    [("7.5", "it needs compute capability 8.0, and the GPU has 7.5"), ("8.6", None), ("12.1", None)],
)
def test_an_old_gpu_is_refused_with_the_reason(monkeypatch, capability, reason):
    class Device:
        compute_capability = capability

    monkeypatch.setattr(jax, "devices", lambda *_: [Device()])
    assert philox.why_no_triton() == reason
    monkeypatch.setattr(philox.importlib.util, "find_spec", lambda name: None)
    assert philox.why_no_triton() == f"JAX {jax.__version__} has no Triton lowering of Pallas"


@pytest.mark.slow
def test_numbers_hardly_depend_on_the_team():
    X, y = heart_like(60, 6)
    plan = small(target=T.LogisticRegression(X, y), dynamics=D.hfhr(6, 0.5, 6.0), oracle=O.Minibatch(30),
                 observables={f"p{i}": H.predictive(X[i]) for i in range(5)}, step_size=0.01, num_steps=5)  # fmt: skip
    one, eight = advanced(plan, team=1), advanced(plan, team=8)
    assert np.allclose(one.z, eight.z, atol=1e-5)
    assert np.allclose(one.sums, eight.sums, atol=1e-5)


def test_a_run_continues_exactly():
    plan = small()
    first = gm.run(plan.replace(num_steps=8), engine="pallas", progress=False)
    assert first.engine == "pallas"
    assert same(first.continue_(12).state, gm.run(plan, engine="pallas", progress=False).state)


def test_burn_in_is_not_summed():
    plan = small(num_steps=12, burn_in=8)
    rest = advanced(small(num_steps=20)).sums - advanced(small(num_steps=8)).sums
    assert np.allclose(advanced(plan, layout=pallas.default_layout(plan, 1)).sums, rest, atol=1e-5)


def test_draws_are_kept_as_scan_keeps_them():
    run = gm.run(small(burn_in=3), engine="pallas", thin=6, progress=False)
    assert run.draws.shape == (70, 4, 3)
    assert np.array_equal(run.draws[:, 2], advanced(small(num_steps=15)).z[:, :3])


def test_failures_are_found_at_the_step_scan_finds():
    """From 10⁶, with η = 3, |z| doubles at every step and noise does not matter."""
    plan = small(
        target=T.Quadratic(np.ones(3)), dynamics=D.overdamped(3), step_size=3.0, start=np.full(3, 1e6), num_steps=12
    )
    found = advanced(plan, layout=pallas.default_layout(plan, 1), bound=1e8).failed_at
    assert np.array_equal(found, np.full(70, 7))  # 2⁷ > 100 ≥ 2⁶
    with pytest.raises(gm.DivergenceError, match="chain 0 at step 7"):
        gm.run(plan, engine="pallas", sane_range=1e8, progress=False)


def test_a_nan_in_an_observable_is_a_failure():
    plan = small(observables={"root": H.function(lambda x: jnp.sqrt(x[0] + 1e-3))})
    failed = advanced(plan).failed_at
    assert np.all(failed[failed >= 0] >= 1)
    assert np.mean(failed >= 0) > 0.5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"dtype": "float64"}, "float32"),
        ({"step_size": lambda k: 0.1 / (1 + k)}, "constant step size"),
        ({"target": T.Quadratic(np.ones(40)), "dynamics": D.overdamped(40), "observables": {"x": H.linear(np.ones(40))}}, "40"),
        ({"target": T.LogDensity(lambda x: -jax.lax.while_loop(lambda c: c < 3, lambda c: c + 1, 0) * (x @ x))}, None),
        ({"target": T.LogDensity(lambda x: -jnp.sum(jnp.sort(x) ** 2))}, "`sort`"),
        ({"observables": {"s": H.function(lambda x: jnp.sort(x)[0])}}, "`sort`"),
    ],
)  # fmt: skip
def test_reasons_name_what_is_not_supported(changes, reason):
    plan = small(**changes)
    said = pallas.why_not(plan)
    assert (said is None) if reason is None else (said is not None and reason in said)


@pytest.mark.skipif(ON_GPU, reason="there is a GPU")
def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.delenv("GYROMC_PALLAS_INTERPRET")
    with pytest.raises(gm.InvalidInput, match="needs a CUDA GPU"):
        gm.run(small(), engine="pallas")
    assert gm.run(small(), progress=False).engine != "pallas"


@pytest.mark.skipif(not ON_GPU, reason="there is no GPU")
def test_auto_chooses_it_on_a_gpu():
    assert gm.run(small(), progress=False).engine == "pallas"


@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="this version needs the GPU plugin to lower for one")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LOWERED_ALIKE else []) for name in step_cases()]
)
def test_kernels_lower_for_cuda_without_one(name):
    target, dynamics, oracle, start = step_cases()[name]
    plan = small(target=target, dynamics=dynamics, oracle=oracle, start=start,
                 observables={"h": H.function(lambda p: jnp.sum(jax.tree.leaves(p)[0]))})  # fmt: skip
    recipe, tables = pallas.make_recipe(plan, pallas.team_size(plan))
    layout = dataclasses.replace(pallas.default_layout(plan, recipe.team), interpret=False)
    blocks = -(-plan.num_chains // layout.chains)
    arrays = pallas._to_device(scan.initial_state(plan), recipe, blocks * layout.chains)
    numbers = (jnp.zeros(4, jnp.int32), jnp.zeros(2, jnp.uint32), jnp.ones(1, jnp.float32))
    inputs = kernel.Inputs(*numbers, **tables)
    lowered = (
        kernel.compiled(recipe, layout, blocks).trace(inputs, arrays, np.int32(1)).lower(lowering_platforms=("cuda",))
    )
    assert "triton" in lowered.as_text()


@pytest.mark.parametrize("name", [name for name in CATALOGUE if not name.startswith("logistic")])
def test_one_kernel_serves_every_step_size(name):
    experiment = CATALOGUE[name]
    for role in experiment.roles:
        recipes = {make_recipe(experiment.plan(eta, role, num_chains=4), 1)[0] for eta in experiment.step_sizes}
        assert len(recipes) == 1, role


def test_a_state_stays_as_it_is_after_more_steps():
    plan = small()
    session = pallas.Session(plan, pallas.initial_state(plan), 1e8, None, 0, layout=block(plan))
    session.advance(4)
    before = session.state()
    then = before.sums.copy()
    session.advance(3)
    assert np.array_equal(before.sums, then)
    assert not np.array_equal(session.state().sums, then)
    assert sum(before.clock) == pytest.approx(0.4)
