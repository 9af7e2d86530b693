"""gyromc inside BlackJAX and BlackJAX inside gyromc, both the real packages: exact moments, equal paths, clear errors.

Moments are those of `support.exact`, nothing in them approximate; a test fails beyond 4.5 standard errors, and there are enough
chains for a noise of 1.02 times the variance to be seen.
"""

import functools
import subprocess
import sys

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from blackjax.base import SamplingAlgorithm
from blackjax.sgmcmc import gradients

import gyromc as gm
from gyromc.engines.base import keys
from gyromc.interop import blackjax as interop
from support import exact
from support.zscores import largest, mean_score, second_moment_scores, z_scores

D, ROWS, BATCH, PRIOR = 3, 8, 4, 0.8
RNG = np.random.default_rng(5)
X = RNG.standard_normal((ROWS, D)) * [0.4, 0.7, 1.0]
Y = RNG.standard_normal(ROWS) + X @ [1.0, -1.0, 0.5]
DATA = (jnp.asarray(X, jnp.float32), jnp.asarray(Y, jnp.float32))
ROTATION = np.array([[0.0, -0.8, 0.5], [0.8, 0.0, -1.0], [-0.5, 1.0, 0.0]])
C = [0.5, 1.5, 2.0]

log_prior = lambda theta: -0.5 * jnp.sum(theta**2) / PRIOR**2
log_likelihood = lambda theta, row: -0.5 * (row[0] @ theta - row[1]) ** 2
estimator = gradients.grad_estimator(log_prior, log_likelihood, ROWS)

SAMPLERS = {
    "SGLD": (gm.dynamics.overdamped(D), lambda g: interop.kernel(gm.dynamics.overdamped(D))(g)),
    "SGNLMC": (gm.dynamics.nonreversible(ROTATION), lambda g: interop.sgnlmc(g, ROTATION)),
    "SGHFHRMC": (gm.dynamics.hfhr(D, 0.7, 1.5), lambda g: interop.sghfhrmc(g, 0.7, 1.5)),
    "SGGAULMC": (gm.dynamics.gaul(C, 1.0, 2.0), lambda g: interop.sggaulmc(g, C, 1.0, 2.0)),
    "general": (
        gm.dynamics.general([1.0, 2.0, 0.5], ROTATION),
        lambda g: interop.kernel(gm.dynamics.general([1.0, 2.0, 0.5], ROTATION))(g),
    ),
}


def plan_for(dynamics, **changes):
    given = dict(
        target=gm.targets.LinearRegression(X, Y, prior_scale=PRIOR),
        dynamics=dynamics,
        oracle=gm.oracles.Minibatch(BATCH),
        observables={"h": gm.observables.linear([1.0, -1.0, 0.5])},
        step_size=0.08,
        num_steps=20,
        num_chains=1,
    )
    return gm.Plan(**{**given, **changes})


def theta_of(state):
    return state.position if isinstance(state, interop.AugmentedState) else state


@functools.cache
def sampled(name, chains=30_000, steps=20, eta=0.08):
    """A compiled function of the temperature: averages of h and last states of a BlackJAX loop with fresh mini-batches."""
    sampler = SAMPLERS[name][1](estimator)
    u = jnp.array([1.0, -1.0, 0.5])

    def step(state, key, temperature):
        key_batch, key_step = jax.random.split(key)
        rows = jax.random.randint(key_batch, (BATCH,), 0, ROWS)
        h = u @ theta_of(state)
        return sampler.step(key_step, state, jax.tree.map(lambda x: x[rows], DATA), eta, temperature), h

    def chain(key, temperature):
        one = functools.partial(step, temperature=temperature)
        state, h = jax.lax.scan(one, sampler.init(jnp.zeros(D)), jax.random.split(key, steps))
        return jnp.mean(h), jnp.concatenate([jnp.ravel(x) for x in jax.tree.leaves(state)])

    keys = jax.random.split(jax.random.key(11), chains)
    return jax.jit(lambda temperature: jax.vmap(lambda key: chain(key, temperature))(keys))


@functools.cache
def chain_averages(name, temperature=1.0):
    """The average of h over each chain, and the last states, chains × d."""
    averages, last = sampled(name)(temperature)
    return np.asarray(averages, float), np.asarray(last, float)


def furthest(name, dynamics, temperature=1.0):
    """How far the averages' mean and variance and the last states' second moments are from exact, at most, in standard errors."""
    averages, last = chain_averages(name, temperature)
    mean, variance, second, _ = exact.moments(plan_for(dynamics))
    size = np.einsum("ri,ij,rj->r", last, np.linalg.inv(second), last)  # its mean is the dimension: all moments pooled
    pooled = mean_score(size, last.shape[1])
    return largest(z_scores(averages, mean, variance), second_moment_scores(last, second), pooled)


MOVED = ["SGNLMC", "SGHFHRMC", "SGGAULMC"]  # SGLD is compared with BlackJAX's own, step by step


# SGGAULMC has a diffusion and a rotation of its own in each direction, and the most components to see an error in.
BY_MOMENTS = [*(pytest.param(n, marks=pytest.mark.slow) for n in MOVED[:2]), "SGGAULMC"]


@pytest.mark.parametrize("name", BY_MOMENTS)
def test_moments_are_exact(name):
    assert furthest(name, SAMPLERS[name][0]) < 4.5


@pytest.mark.parametrize("name", BY_MOMENTS)
def test_moments_would_show_a_turned_sign(name):
    dynamics = SAMPLERS[name][0]
    assert furthest(name, gm.dynamics.general(dynamics.D, -dynamics.Q)) > 20


@pytest.mark.parametrize("name", ["SGGAULMC"])
def test_moments_would_show_noise_off_by_two_percent(name):
    assert furthest(name, SAMPLERS[name][0], temperature=1.02) > 4.5


def test_named_samplers_are_the_kernels_of_their_dynamics():
    """A step from a state in motion, against the kernel whose moments and steps are compared with exact ones."""

    @jax.jit
    def steps():
        made = []
        for name in MOVED[:2]:
            dynamics, make = SAMPLERS[name]
            for sampler in (make(estimator), interop.kernel(dynamics)(estimator)):
                state = sampler.init(jnp.array([0.5, -0.5, 0.2]))
                if isinstance(state, interop.AugmentedState):
                    state = state._replace(momentum=jnp.array([1.0, -2.0, 0.3]))
                made.append(sampler.step(KEY, state, DATA, 0.08))
        return made

    rotated, same, augmented, kernel = steps()
    for a, b in ((rotated, same), (augmented, kernel)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), a, b)


def tree_model():
    """The same regression with parameters of any shape, and its estimator."""
    flat = lambda p: jnp.concatenate([jnp.ravel(p["w"]), p["b"][None]])
    g = gradients.grad_estimator(lambda p: log_prior(flat(p)), lambda p, row: log_likelihood(flat(p), row), ROWS)
    return {"w": jnp.array([[0.3], [-0.2]]), "b": jnp.array(0.1)}, g


def test_overdamped_is_blackjax_sgld_step_by_step():
    position, g = tree_model()
    ours, theirs = interop.kernel(gm.dynamics.overdamped(position))(g), blackjax.sgld(g)

    @jax.jit
    def paths():
        def step(states, key):
            warm, mine, other = states
            mine, other = (s.step(key, x, DATA, 0.05) for s, x in ((ours, mine), (theirs, other)))
            warm = tuple(s.step(key, x, DATA, 0.05, 0.3) for s, x in zip((ours, theirs), warm, strict=True))
            return (warm, mine, other), (*warm, mine, other)

        start = ours.init(position), theirs.init(position)
        return jax.lax.scan(step, (start, *start), jax.random.split(jax.random.key(2), 60))[1]

    cold_ours, cold_theirs, mine, other = paths()
    for a, b in ((cold_ours, cold_theirs), (mine, other)):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-6), a, b)
    assert np.abs(mine["w"] - cold_ours["w"]).max() > 0.1


@pytest.mark.parametrize("name", ["general"])
def test_a_step_is_that_of_the_scan_engine(name):
    """With the engine's keys and mini-batches, one chain ends where `gm.run` ends it."""
    dynamics, make = SAMPLERS[name]
    plan = plan_for(dynamics, seed=7, start=[0.5, -0.5, 0.2])
    sampler = make(estimator)

    @jax.jit
    def go():
        def step(state, k):
            key_noise, key_oracle = jax.random.split(jax.random.fold_in(keys(plan.seed).steps, k))
            rows = plan.oracle.draw(key_oracle, plan.target, 1, D, jnp.float32)[0]
            return sampler.step(key_noise, state, jax.tree.map(lambda x: x[rows], DATA), plan.step_size), None

        start = sampler.init(jnp.array([0.5, -0.5, 0.2]))
        return jax.lax.scan(step, start, jnp.arange(plan.num_steps))[0]

    ended = np.concatenate([np.ravel(x) for x in jax.tree.leaves(go())])
    np.testing.assert_allclose(ended, gm.run(plan, "scan").state.z[0], atol=2e-6)


def test_pytrees_and_vmap_change_nothing():
    position, g = tree_model()
    make = lambda g: interop.sghfhrmc(g, 0.7, 1.5)
    ordered = jnp.array([0.1, 0.3, -0.2])  # leaves in JAX's order: b, then w
    back = lambda v: {"w": v[1:].reshape(2, 1), "b": v[0]}
    vector_g = lambda v, m: (lambda t: jnp.concatenate([t["b"][None], t["w"].ravel()]))(g(back(v), m))
    tree, vector = make(g), make(vector_g)
    assert isinstance(tree, SamplingAlgorithm)
    keys = jax.random.split(jax.random.key(4), 5)
    starts = jax.tree.map(lambda x: jnp.stack([x] * 5), position)

    @jax.jit
    def moved():
        states = jax.vmap(tree.init)(starts, keys)
        together = jax.vmap(tree.step, (0, 0, None, None))(keys, states, DATA, 0.05)
        alone = tree.step(keys[2], jax.tree.map(lambda x: x[2], states), DATA, 0.05)
        two = vector.step(keys[2], vector.init(ordered, keys[2]), DATA, 0.05)
        return alone, two, jax.tree.map(lambda x: x[2], together)

    alone, two, together = moved()
    assert jax.tree.structure(theta_of(alone)) == jax.tree.structure(position)
    flat = np.concatenate([np.ravel(x) for x in jax.tree.leaves(alone)])
    np.testing.assert_allclose(flat, np.concatenate([np.ravel(x) for x in jax.tree.leaves(two)]), atol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), together, alone)


def test_momentum_starts_at_rest_or_drawn():
    sampler = interop.sghfhrmc(estimator, 1.0, 2.0)
    assert not np.any(sampler.init(jnp.ones(D)).momentum)
    drawn = jax.vmap(lambda key: sampler.init(jnp.ones(D), key).momentum)(jax.random.split(jax.random.key(0), 20_000))
    assert abs(float(jnp.var(drawn)) - 1) < 5 * np.sqrt(2 / 60_000)


@pytest.mark.parametrize("make", [lambda g: interop.sgnlmc(g, 1.0), lambda g: interop.sggaulmc(g, 2.0, 1.0, 2.0)])
def test_precisions_are_kept_leaf_by_leaf(make):
    negative = lambda p, m: jax.tree.map(jnp.negative, p)
    position = {"half": jnp.ones(2, jnp.bfloat16), "single": jnp.ones(2, jnp.float32)}
    with jax.enable_x64(True):
        sampler = make(negative)
        state = sampler.step(jax.random.key(0), sampler.init(position), None, 0.1)
        assert jax.tree.map(lambda x: x.dtype, theta_of(state)) == {"half": jnp.bfloat16, "single": jnp.float32}


def test_a_million_parameters_need_no_matrix():
    d = 10**6
    position = {"w": jax.ShapeDtypeStruct((1000, 999), jnp.float32), "b": jax.ShapeDtypeStruct((1000,), jnp.float32)}
    negative = lambda p, m: jax.tree.map(jnp.negative, p)
    for sampler in (
        interop.sgnlmc(negative, 1.0),
        interop.sghfhrmc(negative, 1.0, 2.0),
        interop.sggaulmc(negative, 2.0, 1.0, 2.0),
    ):
        state = jax.eval_shape(sampler.init, position)
        compiled = jax.jit(sampler.step).lower(jax.random.key(0), state, None, 0.1).compile()
        assert compiled.memory_analysis().temp_size_in_bytes < 10 * 2 * d * 4  # a matrix would be 4·10¹²


def test_control_variates_of_blackjax_are_those_of_gyromc():
    """The same mini-batches, so the same averages up to rounding, and none of the noise at the centre."""
    center = jnp.array([0.4, -0.3, 0.2])
    varied = gradients.control_variates(estimator, center, DATA)
    two = jax.tree.map(lambda x: x[:2], DATA)
    np.testing.assert_allclose(varied(center, two), estimator(center, DATA), rtol=1e-5)
    ours = plan_for(gm.dynamics.hfhr(D, 0.7, 1.5), oracle=gm.oracles.ControlVariate(BATCH, center), num_chains=20)
    theirs = ours.replace(target=interop.target(varied, DATA), oracle=gm.oracles.Minibatch(BATCH))
    a, b = gm.run(ours, "scan").averages["h"], gm.run(theirs).averages["h"]
    np.testing.assert_allclose(a, b, atol=5e-6)
    sampler = interop.sghfhrmc(varied, 0.7, 1.5)
    moved = sampler.step(jax.random.key(0), sampler.init(center), two, 0.05)
    full = sampler.step(jax.random.key(0), sampler.init(center), DATA, 0.05)
    np.testing.assert_allclose(moved.position, full.position, atol=1e-6)


def test_a_plan_with_blackjax_gradients_is_the_plan_with_our_own():
    """With the oracle that asks for the most: the full gradient, batches at two points and the prior's part."""
    center = [0.4, -0.3, 0.2]
    ours = plan_for(gm.dynamics.hfhr(D, 0.7, 1.5), oracle=gm.oracles.ControlVariate(BATCH, center), num_chains=20)
    theirs = ours.replace(target=interop.target(estimator, DATA))
    np.testing.assert_allclose(gm.run(ours, "scan").averages["h"], gm.run(theirs).averages["h"], atol=5e-6)


def test_the_density_and_its_gradient_agree_in_sign_and_size():
    density = gradients.logdensity_estimator(log_prior, log_likelihood, ROWS)
    target, theta = interop.target(estimator, DATA, density), jnp.array([0.4, -0.3, 0.2])
    ours = gm.targets.LinearRegression(X, Y, prior_scale=PRIOR)
    np.testing.assert_allclose(jax.grad(target.potential)(theta), target.gradient(theta), rtol=1e-5)
    np.testing.assert_allclose(target.gradient(theta), ours.gradient(theta), rtol=1e-4)


def test_a_plan_with_blackjax_gradients_on_a_pytree_matches_exact_moments():
    position, g = tree_model()
    observable = lambda p: p["w"][0, 0] - p["w"][1, 0] + 0.5 * p["b"]
    zeros = jax.tree.map(jnp.zeros_like, position)
    plan = plan_for(
        gm.dynamics.hfhr(D, 0.7, 1.5),
        target=interop.target(g, DATA),
        observables={"h": observable},
        start=zeros,
        num_chains=20_000,
    )
    run = gm.run(plan)
    expected = exact.moments(plan_for(plan.dynamics))
    assert run.engine == "scan"
    assert "not lanes" in run.engine_reason
    assert largest(z_scores(run.averages["h"], expected.mean, expected.variance)) < 5


POSITION, KEY = {"a": jnp.ones(2), "b": jnp.ones(())}, jax.random.key(0)
GOOD = lambda p, m: jax.tree.map(jnp.negative, p)
SGLD = interop.kernel(gm.dynamics.overdamped(3))(GOOD)
HFHR = interop.sghfhrmc(GOOD, 1.0, 2.0)
WRONG = {
    "int position": (lambda: SGLD.init(jnp.arange(3)), r"position has dtype int32.*astype\(float\)"),
    "int leaf": (lambda: SGLD.init({"a": 3}), r"position\['a'\] has dtype int32"),
    "text": (lambda: SGLD.init("theta"), "position is str"),
    "empty": (lambda: HFHR.init({}), "`position` must hold at least one number"),
    "too many": (lambda: SGLD.init(jnp.ones(4)), "made for 3 parameters, but the position has 4"),
    "general size": (
        lambda: interop.kernel(gm.dynamics.general(np.eye(5), 0.0))(GOOD).init(jnp.ones(4)),
        r"on θ \(4 × 4\) or on \(θ, r\) \(8 × 8\).*got 5 × 5",
    ),
    "gradient's pytree": (
        lambda: interop.sgnlmc(lambda p, m: p["a"], 1.0).step(KEY, POSITION, None, 0.1),
        r"The gradient has the shapes \(2,\), but the position has \{.*with respect to the position",
    ),
    "gradient's shape": (
        lambda: jax.jit(interop.sghfhrmc(lambda p, m: p[:1], 1.0, 2.0).step)(KEY, HFHR.init(jnp.ones(2)), None, 0.1),
        r"The gradient has the shapes \(1,\), but the position has \(2,\)",
    ),
    "gradient's dtype": (
        lambda: SGLD._replace(step=interop.kernel(gm.dynamics.overdamped(3))(lambda p, m: jnp.arange(3)).step).step(
            KEY, jnp.ones(3), None, 0.1
        ),
        "The gradient has dtype int32",
    ),
    "plan's gradient": (
        lambda: gm.Plan(
            target=interop.target(lambda p, m: p[:1], DATA),
            dynamics=gm.dynamics.overdamped(3),
            observables={"x": lambda p: p[0]},
            step_size=0.1,
        ),
        r"The gradient has the shapes \(1,\), but the position has \(3,\)",
    ),
    "step size NaN": (
        lambda: SGLD.step(KEY, POSITION, None, jnp.nan),
        "`step_size` must be positive and finite: got nan",
    ),
    "step size negative": (lambda: SGLD.step(KEY, POSITION, None, -0.1), "`step_size` must be positive.*-0.1"),
    "step size per leaf": (lambda: SGLD.step(KEY, POSITION, None, jnp.ones(3)), r"single number: got shape \(3,\)"),
    "temperature": (lambda: SGLD.step(KEY, POSITION, None, 0.1, -1.0), "`temperature` must be positive"),
    "position for a state": (lambda: HFHR.step(KEY, POSITION, None, 0.1), "`AugmentedState` that `init"),
    "state for a position": (lambda: SGLD.step(KEY, HFHR.init(POSITION), None, 0.1), r"Pass `state\.position`"),
    "momentum": (
        lambda: HFHR.step(KEY, HFHR.init(POSITION)._replace(momentum=jnp.ones(3)), None, 0.1),
        r"`state\.momentum` has the shapes",
    ),
    "arguments swapped": (lambda: interop.kernel(GOOD), "gradient estimator comes after it"),
    "estimator": (lambda: interop.sghfhrmc(3, 1.0, 2.0), "`grad_estimator` must be a function"),
    "scheme": (lambda: interop.kernel(gm.dynamics.overdamped(3), "leapfrog"), "`scheme` must be one of euler"),
    "J": (lambda: interop.sgnlmc(GOOD, np.eye(3)), "`J` must be skew-symmetric"),
    "J text": (lambda: interop.sgnlmc(GOOD, "fast"), "`J` must be numeric"),
    "gamma": (lambda: interop.sghfhrmc(GOOD, 1.0, -2.0), "`gamma` must be positive"),
    "C": (lambda: interop.sggaulmc(GOOD, -1.0, 1.0, 2.0), "`C` must be positive definite"),
    "data": (lambda: interop.target(estimator, (X, Y[:3])), "same, positive length"),
    "data NaN": (lambda: interop.target(estimator, X * np.nan), "`data` must be finite"),
    "target's estimator": (lambda: interop.target(None, X), "`grad_estimator` must be a function"),
    "target's density": (lambda: interop.target(estimator, X, 3), "`logdensity_estimator` must be a function"),
    "no density": (lambda: interop.target(estimator, DATA).potential(jnp.ones(3)), "Pass `logdensity_estimator`"),
}


@pytest.mark.parametrize(("call", "message"), WRONG.values(), ids=WRONG)
def test_wrong_input_is_explained(call, message):
    with pytest.raises(gm.InvalidInput, match=message):
        call()


def test_a_step_size_unknown_until_run_makes_the_state_nan_not_wrong():
    state = jax.jit(HFHR.step)(KEY, HFHR.init(POSITION), None, jnp.nan)
    assert all(np.all(np.isnan(x)) for x in jax.tree.leaves(state))


def test_without_blackjax_the_remedy_is_said_and_nothing_else_breaks():
    script = (
        "import sys; sys.modules['blackjax'] = None\nimport gyromc, gyromc.interop\n"
        "try:\n    import gyromc.interop.blackjax\nexcept ModuleNotFoundError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert "pip install 'gyromc[blackjax]'" in done.stdout


def test_a_step_size_beyond_the_stable_one_is_explained_before_it_gives_nan():
    """On U = ½|θ|² SGLD is stable up to 2 and a rotation of rate 3 up to 2/(1 + 3²) = 0.2: at 0.5 only the first runs."""
    gradient = lambda position, minibatch: -position

    def last(sampler, step_size):
        def one(state, key):
            return sampler.step(key, state, None, step_size), None

        return jax.lax.scan(one, sampler.init(jnp.zeros(2)), jax.random.split(jax.random.key(0), 400))[0]

    assert jnp.all(jnp.isfinite(last(blackjax.sgld(gradient), 0.5)))
    assert not jnp.all(jnp.isfinite(last(interop.sgnlmc(gradient, J=3.0), 0.5)))
    for curvature in (1.0, np.ones(2), np.eye(2)):
        known = interop.sgnlmc(gradient, J=3.0, curvature=curvature)
        with pytest.raises(
            gm.InvalidInput, match=r"`step_size` = 0.5 is beyond .* 0\.2: .*NaN.*at most 0\.1.*SGLD .* 2\.\)"
        ):
            last(known, 0.5)
    assert jnp.all(jnp.isfinite(last(known, 0.19)))
    assert jnp.all(jnp.isfinite(jax.jit(known.step)(jax.random.key(0), jnp.zeros(2), None, 0.5)))  # not known there
    with pytest.raises(
        gm.InvalidInput, match=r"`curvature` must be a number, 2 numbers or a 2 × 2 matrix: got shape \(3,\)"
    ):
        last(interop.sgnlmc(gradient, J=3.0, curvature=np.ones(3)), 0.1)
    momentum = interop.sghfhrmc(gradient, 1.0, 2.0, curvature=100.0)
    with pytest.raises(gm.InvalidInput, match="SGHFHRMC"):
        momentum.step(jax.random.key(0), momentum.init(jnp.zeros(2)), None, 0.1)


@pytest.mark.parametrize("scheme", ["balanced", gm.schemes.balanced([1.0, 1.0]), "lm_ab2"])
def test_a_scheme_that_needs_a_plan_or_a_memory_is_refused(scheme):
    """Balanced noise knows S and η of a plan; a kernel has neither before its first step."""
    message = rf"`{gm.schemes.find(scheme)}` needs a memory or a plan\. Use `gyromc\.run` with it, or `euler` here"
    with pytest.raises(gm.InvalidInput, match=message):
        interop.kernel(gm.dynamics.overdamped(2), scheme)
