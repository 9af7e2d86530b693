"""NumPyro models as targets: potentials and gradients against formulas, every mini-batch enumerated, bad input named."""

import itertools
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import pytest
from jax.scipy.special import gammaln
from numpyro import distributions as dist
from numpyro import handlers

import gyromc as gm
from gyromc.flat import flatten
from gyromc.interop import numpyro as gnp
from gyromc.interop.numpyro.reading import on_device

RNG = np.random.default_rng(3)
X = RNG.normal(size=(7, 2))
Y = np.array([0, 1, 1, 0, 1, 0, 1])
COUNTS = np.array([2, 0, 3, 1, 4])


def by_index(X, y, rows=2):
    beta = numpyro.sample("beta", dist.Normal(0.0, 0.5).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("data", len(y), subsample_size=rows) as index:
        numpyro.sample("y", dist.Bernoulli(logits=X[index] @ beta), obs=y[index])


def by_subsample(X, y, rows=2):
    beta = numpyro.sample("beta", dist.Normal(0.0, 0.5).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("data", len(y), subsample_size=rows):
        x, seen = numpyro.subsample(X, event_dim=1), numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Bernoulli(logits=x @ beta), obs=seen)


def everything(x, group, y, rows=None):
    """Constrained sites, a support that depends on a site, a plate of groups, a scale, a factor, observed sites outside."""
    low = numpyro.sample("low", dist.HalfNormal(1.0))
    high = numpyro.sample("high", dist.Uniform(low, low + 2.0))
    weight = numpyro.sample("weight", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("groups", 2):
        shift = numpyro.sample("shift", dist.Normal(0.0, high))
    numpyro.deterministic("total", low + high)
    numpyro.sample("outside", dist.Normal(low, 1.0), obs=0.3)
    with numpyro.plate("data", len(y), subsample_size=rows) as index, handlers.scale(scale=0.5):
        mean = numpyro.deterministic("mean", shift[group[index]] + weight[0] * x[index])
        numpyro.sample("y", dist.Normal(mean, high), obs=y[index])
        numpyro.factor("tilt", -0.1 * weight[1] * x[index] ** 2)


EVERYTHING = (RNG.normal(size=4), np.array([0, 1, 1, 0]), RNG.normal(size=4))


@pytest.fixture(autouse=True)
def double_precision():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def varied():
    """The model with everything in it, subsampled."""
    return gnp.target(everything, *EVERYTHING, rows=2, noncentre=False)


@pytest.fixture(scope="module")
def logistic():
    return gnp.target(by_index, X, Y)


@pytest.mark.parametrize("model", [by_index, by_subsample])
def test_a_logistic_model_has_the_gradients_of_the_logistic_target(model, logistic):
    target = logistic if model is by_index else gnp.target(model, X, Y)
    same = gm.targets.LogisticRegression(X, Y, prior_scale=0.5)
    assert target.num_data == 7
    assert target.dim == 2
    theta = jnp.asarray([0.4, -1.3])
    indices = [
        jnp.asarray(RNG.integers(0, 7, size)) for size in (3, 7, 12)
    ]  # a plate with 7 or more takes its data whole

    @eqx.filter_jit
    def gradients(target, params):
        batches = [target.batch_gradient(params, index) for index in indices]
        weighted = [target.weighted_gradient(params, index, 2.5) for index in indices]
        return target.gradient(params), target.prior_gradient(params), batches, weighted

    for found, expected in zip(*(jax.tree.leaves(gradients(t, theta)) for t in (target, same)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


CENTER = np.full(6, 0.1)


@pytest.mark.parametrize(
    "oracle",
    [
        gm.oracles.Minibatch(4),
        pytest.param(gm.oracles.ControlVariate(2, CENTER), marks=pytest.mark.slow),
        pytest.param(gm.oracles.ControlVariate(2, CENTER, order=2), marks=pytest.mark.slow),
    ],
)
def test_the_mean_over_all_mini_batches_is_the_full_gradient(varied, oracle):
    unravelled = flatten(varied, varied.unravel, varied.dim)
    prepared = oracle.prepared(gm.Model(unravelled))
    theta = jnp.asarray([0.3, -0.2, 0.5, 0.1, -0.4, 0.2])[: varied.dim]
    batches = jnp.asarray(list(itertools.product(range(4), repeat=oracle.size)))

    @eqx.filter_jit
    def both(oracle, target):
        return jax.vmap(lambda b: oracle.gradient(target, theta, b))(batches), target.gradient(theta)

    gradients, full = map(np.asarray, both(prepared, on_device(unravelled)))
    np.testing.assert_allclose(gradients.mean(axis=0), full, rtol=1e-9, atol=1e-11)
    assert np.ptp(gradients, axis=0).max() > (0.01 if getattr(oracle, "order", 1) == 2 else 0.1)  # batches do differ


def test_drawn_mini_batches_are_unbiased(logistic):
    """20 000 batches of 3: every component of the mean within 4.5 standard errors of the full gradient."""
    target, oracle = logistic, gm.oracles.Minibatch(3)
    theta = jnp.asarray([0.4, -1.3])
    drawn = oracle.draw(jax.random.key(1), target, 20_000, 2, jnp.float64)
    gradients = np.asarray(jax.jit(jax.vmap(lambda b: oracle.gradient(target, theta, b)))(drawn))
    full, error = (
        gm.targets.LogisticRegression(X, Y, prior_scale=0.5).gradient(theta),
        gradients.std(axis=0) / np.sqrt(20_000),
    )
    assert np.abs((gradients.mean(axis=0) - np.asarray(full)) / error).max() < 4.5
    assert np.all(error < 0.02 * np.abs(full))


def test_the_jacobian_of_a_constrained_site_is_part_of_the_potential():
    """Gamma prior, Poisson data: in u = log rate the posterior's U is -(a + Σy) u + (b + N) e^u + constant."""

    def model(y, rows=2):
        rate = numpyro.sample("rate", dist.Gamma(2.0, 0.5))
        with numpyro.plate("data", len(y), subsample_size=rows) as index:
            numpyro.sample("y", dist.Poisson(rate), obs=y[index])

    target = gnp.target(model, COUNTS)
    u = np.linspace(-1.5, 2.0, 5)
    found, prior = jax.jit(jax.vmap(lambda x: (target.potential(x), target.prior(x))))(jnp.asarray(u)[:, None])
    constant = float(gammaln(2.0) - 2 * np.log(0.5) + gammaln(COUNTS + 1.0).sum())
    np.testing.assert_allclose(found, -(2 + COUNTS.sum()) * u + (0.5 + 5) * np.exp(u) + constant, rtol=1e-12)
    np.testing.assert_allclose(prior, -2 * u + 0.5 * np.exp(u) + gammaln(2.0) - 2 * np.log(0.5), rtol=1e-12)


def test_the_potential_is_numpyros_own_without_subsampling(varied):
    plain = gnp.target(everything, *EVERYTHING, noncentre=False)
    assert isinstance(varied, gnp.SubsampledPosterior)
    assert not isinstance(plain, gm.targets.SumOverData)
    params = {name: jnp.asarray(RNG.normal(size=value.shape)) for name, value in varied.start.items()}
    given = [jnp.asarray(a) for a in EVERYTHING]

    @jax.jit
    def potentials(params):
        expected = numpyro.infer.util.potential_energy(everything, given, {}, params)
        parts = varied.prior(params) + varied.likelihood(params, jnp.arange(4))
        return expected, varied.potential(params), plain.potential(params), parts

    expected, *found = potentials(params)
    np.testing.assert_allclose(found, float(expected), rtol=1e-12)


def test_observables_are_elements_of_the_constrained_sites(varied):
    target = varied
    found = gnp.observables(target, squares=True)
    names = ["low", "high", "weight[0]", "weight[1]", "weight[2]", "shift[0]", "shift[1]", "total"]
    assert list(found) == names + [f"{name}^2" for name in names]
    params = {name: jnp.asarray(RNG.normal(size=value.shape)) for name, value in target.start.items()}
    value = jax.jit(lambda p: {name: h(p) for name, h in found.items()})(params)
    assert target.sites == ("low", "high", "weight", "shift")
    low = np.exp(float(params["low"]))
    assert value["low"] == pytest.approx(low)
    assert value["high"] == pytest.approx(low + 2 / (1 + np.exp(-float(params["high"]))))  # a support that moves
    assert value["total"] == pytest.approx(value["low"] + value["high"])
    assert value["weight[0]"] + value["weight[1]"] + value["weight[2]"] == pytest.approx(1)
    assert value["high^2"] == pytest.approx(value["high"] ** 2)
    assert value["shift[1]"] == params["shift"][1]
    assert list(gnp.observables(target, "mean")) == [f"mean[{i}]" for i in range(4)]  # one per row, when asked for
    vector = jnp.concatenate([jnp.ravel(params[name]) for name in sorted(params)])
    assert float(found["shift[1]"](vector)) == params["shift"][1]


def test_single_and_double_precision_take_turns(varied):
    """JAX takes a NumPy array that a float32 trace held as a constant for float32 ever after; ours must not be such."""
    target = varied
    total = gnp.observables(target)["total"]
    with jax.enable_x64(False):
        assert jax.jit(total)(jnp.zeros(6)).dtype == jnp.float32
    potential = jax.jit(lambda args, theta: gnp.Posterior(everything, args, {}, target.structure).potential(theta))
    assert potential(target.args, jnp.zeros(6)).dtype == jnp.float64


def rows_of_groups(x, y, rows=None):
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(y), subsample_size=rows) as index:
        numpyro.sample("y", dist.Normal(x[index] @ b, scale), obs=y[index])


@pytest.mark.parametrize("count", [43, pytest.param(48, marks=pytest.mark.slow)])
def test_many_rows_are_computed_in_blocks_with_the_same_result(monkeypatch, count):
    """Blocks of 8 rows or fewer: U, its derivatives and the Hessian of the data are those of all rows."""
    x, y = RNG.normal(size=(count, 2)), RNG.normal(size=count)
    plain = gnp.target(rows_of_groups, x, y, noncentre=False)
    monkeypatch.setattr(gnp, "BLOCK", 8)
    monkeypatch.setattr(gnp, "WHOLE", 16)
    target = gnp.target(rows_of_groups, x, y, rows=3, noncentre=False)
    at = RNG.normal(size=(3, 3))
    np.testing.assert_allclose(target.potentials(at), plain.potentials(at), rtol=1e-12)
    np.testing.assert_allclose(target.gradients(at), plain.gradients(at), rtol=1e-10)
    if count % 8 == 0:  # the derivatives are those of the same sum
        return
    by_ad = jax.vmap(jax.grad(lambda t: target.potential(t)))(jnp.asarray(at))
    np.testing.assert_allclose(by_ad, plain.gradients(at), rtol=1e-10)
    # With r = y - Xb and s = log scale: Σ r²/2e²ˢ + N s of the data, ½|b|² + ½e²ˢ - s of the prior.
    b, s = at[0, :2], at[0, 2]
    r, scale = y - x @ b, np.exp(2 * s)
    mixed = 2 * x.T @ r[:, None] / scale
    data = np.block([[x.T @ x / scale, mixed], [mixed.T, 2 * r @ r / scale]])
    np.testing.assert_allclose(target.data_hessian(at[0]), data, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(target.hessians(at[:1])[0], data + np.diag([1, 1, 2 * scale]), rtol=1e-7, atol=1e-7)


def test_a_gaussian_process_has_curvatures():
    """By differences of gradients: XLA hangs in vmapped second derivatives of a Cholesky factor."""
    x = np.linspace(0.0, 1.0, 12)

    def process(y):
        log_length = numpyro.sample("log_length", dist.Normal(0.0, 1.0))
        K = jnp.exp(-0.5 * (x[:, None] - x) ** 2 * jnp.exp(-2 * log_length)) + 0.1 * jnp.eye(12)
        numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(12), K), obs=y)

    target = gnp.target(process, np.sin(6 * x))
    at = np.linspace(-2, 2, 40)[:, None]
    spacing = 1e-4
    slopes = (target.gradients(at + spacing) - target.gradients(at - spacing)) / (2 * spacing)
    np.testing.assert_allclose(target.hessians(at)[:, 0], slopes, rtol=1e-4, atol=1e-4)


def hierarchy(group, y, count, error):
    tau = numpyro.sample("tau", dist.HalfNormal(5.0))
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    with numpyro.plate("groups", count):
        theta = numpyro.sample("theta", dist.Normal(mu, tau))
    numpyro.deterministic("first", theta[0] - mu)
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(theta[group], error), obs=y)


def test_sites_are_centred_as_far_as_the_data_say_where_they_are():
    """4 groups of 500 rows are centred, of one row with a large error not; results have the model's sites either way."""
    group = np.repeat(np.arange(4), 500)
    y = np.array([-2.0, 0.0, 1.0, 3.0])[group] + RNG.normal(size=2000)
    informed = gnp.target(hierarchy, group, y, 4, 1.0)
    assert list(informed.parameters) == ["tau", "mu", "theta"]
    loose = gnp.target(hierarchy, np.arange(4), np.array([-2.0, 0.0, 1.0, 3.0]), 4, 5.0)
    assert list(loose.parameters) == ["tau", "mu", "theta_decentered"]
    for target in (informed, loose):
        assert target.sites == ("tau", "mu", "theta")
        assert target.dims == {"tau": (), "mu": (), "theta": ("groups",), "first": ()}
        values = target.default_observables()(jnp.zeros(6))
        assert list(values) == ["tau", "mu", "theta", "first"]
        assert list(gnp.observables(target))[-2:] == ["theta[3]", "first"]
    at = jnp.asarray(RNG.normal(size=6))
    written = gnp.target(hierarchy, np.arange(4), np.array([-2.0, 0.0, 1.0, 3.0]), 4, 5.0, noncentre=False)
    values = {name: np.asarray(value)[None, None] for name, value in loose.default_observables()(at).items()}
    same = written.unconstrained(values)[0, 0]
    jacobian = 4 * float(np.log(values["tau"][0, 0]))  # of theta = mu + tau·z
    assert float(loose.potential(at)) == pytest.approx(float(written.potential(same)) - jacobian)


def test_elements_are_centred_one_by_one_in_both_precisions():
    """Two groups of 300 rows and six of one: partly centred, and single and double precision take turns."""
    group = np.concatenate([np.repeat([0, 1], 300), np.arange(2, 8)])
    y = 2.0 * np.array([-1.0, 1.0, 0.5, -0.5, 1.5, -1.5, 0.0, 1.0])[group] + RNG.normal(size=len(group))
    target = gnp.target(hierarchy, group, y, 8, 1.0)
    centred = target.structure.centred["theta"]
    assert np.all(centred[:2] > 0.9)
    assert np.all(centred[2:] < 0.9)
    at = RNG.normal(size=target.dim)
    found = []
    for x64 in (True, False, True):
        with jax.enable_x64(x64):
            values = jax.jit(lambda theta: target.default_observables()(theta))(jnp.asarray(at))
            found.append(np.asarray(values["theta"]))
    assert [x.dtype for x in found] == [np.float64, np.float32, np.float64]
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4, atol=1e-5)


def test_the_choice_of_coordinates_can_be_made_by_hand():
    args = (np.arange(4), np.array([-2.0, 0.0, 1.0, 3.0]), 4, 5.0)
    assert "theta" in gnp.target(hierarchy, *args, noncentre=False).parameters
    assert "theta_decentered" in gnp.target(hierarchy, *args, noncentre=True).parameters
    assert "theta_decentered" in gnp.target(hierarchy, *args, noncentre="theta").parameters
    with pytest.raises(gm.InvalidInput, match=r"`noncentre` names 'mu': sites of .* are 'theta' in this model"):
        gnp.target(hierarchy, *args, noncentre=["mu"])


def test_plates_name_the_axes_of_sites():
    def crossed(y):
        with numpyro.plate("rows", 3, dim=-2), numpyro.plate("columns", 2, dim=-1):
            cell = numpyro.sample("cell", dist.Normal(0.0, jnp.ones(4)).to_event(1))
        slope = numpyro.sample("slope", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.Normal(cell.sum() + slope.sum(), 1.0), obs=y)

    dims = gnp.target(crossed, 0.3).dims
    assert dims == {"cell": ("rows", "columns", "cell_dim_2"), "slope": ("slope_dim_0",)}


# Bad input: each says what, where, and what to do.


def no_use_of_the_indices(X, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", len(y), subsample_size=2):
        numpyro.sample("y", dist.Bernoulli(logits=X @ beta), obs=y)


def standardised_inside(X, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", len(y), subsample_size=2) as index:
        batch = X[index] - X[index].mean(axis=0)
        numpyro.sample("y", dist.Bernoulli(logits=batch @ beta), obs=y[index])


def local_latent(y):
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(y), subsample_size=2) as index:
        z = numpyro.sample("z", dist.Normal(0.0, scale))
        numpyro.sample("y", dist.Poisson(jnp.exp(z)), obs=y[index])


def two_plates(x, y):
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    for name, data in (("one", x), ("two", y)):
        with numpyro.plate(name, len(data), subsample_size=2) as index:
            numpyro.sample(f"y_{name}", dist.Poisson(rate), obs=data[index])


def mixture_with_labels(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    with numpyro.plate("data", len(y)):
        label = numpyro.sample("label", dist.Categorical(jnp.array([0.5, 0.5])))
        numpyro.sample("y", dist.Normal(mean[label], 1.0), obs=y)


def normal(y, rows=None, prior=None):
    scale = numpyro.sample("scale", prior or dist.HalfNormal(1.0))
    with numpyro.plate("data", len(y), subsample_size=rows) as index:
        numpyro.sample("y", dist.Normal(0.0, scale), obs=y[index])


def with_param(y):
    numpyro.sample("y", dist.Normal(numpyro.param("location", 0.0), numpyro.sample("s", dist.HalfNormal(1.0))), obs=y)


def stochastic(y):
    noise = jax.random.normal(numpyro.prng_key())
    numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 1.0)) + noise, 1.0), obs=y)


def prior_only():
    numpyro.sample("m", dist.Normal(0.0, 1.0))


def size_from_data(group, y):
    with numpyro.plate("groups", int(group.max()) + 1):
        m = numpyro.sample("m", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(m[group], 1.0), obs=y)


def no_latent(y):
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def impossible(y):
    scale = numpyro.sample("scale", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(0.0, jnp.sqrt(-jnp.exp(scale))), obs=y)


NUMBERS = np.array([0.3, -1.0, 0.7])

BAD = {
    "discrete latent": (mixture_with_labels, (NUMBERS,), {}, r"'label' is discrete \(Categorical.*MixtureSameFamily"),
    "nothing observed": (prior_only, (), {}, r"no observed site.*latent: 'm'.*Pass the data"),
    "nothing latent": (no_latent, (NUMBERS,), {}, r"no latent site.*'y'"),
    "local latents": (
        local_latent,
        (COUNTS,),
        {},
        r"'z' lies inside the subsampled plate 'data'.*Leave `subsample_size`",
    ),
    "two plates": (two_plates, (COUNTS, COUNTS), {}, r"subsamples 2 plates \('one', 'two'\)"),
    "own randomness": (stochastic, (NUMBERS,), {}, r"random numbers of its own.*sample site"),
    "optimised parameter": (with_param, (NUMBERS,), {}, r"'location' is a `numpyro.param`.*prior"),
    "too many arguments": (normal, (NUMBERS, 1, 2, 3), {}, r"`normal` cannot be traced.*TypeError.*arguments"),
    "unknown argument": (normal, (NUMBERS,), {"colour": 3}, r"cannot be traced.*TypeError.*'colour'"),
    "size from data": (size_from_data, (np.array([0, 1, 1]), NUMBERS), {}, r"pass sizes, such as a number of groups"),
    "NaN observed": (
        normal,
        (np.array([0.3, np.nan, 1.0]),),
        {},
        r"'y' has 1 values outside.*\(1,\): nan.*Drop or mask",
    ),
    "NaN in the design": (by_index, (np.where(X > 1, np.nan, X), Y), {}, r"`args\[0\]` must be finite.*NaN.*impute"),
    "labels 1 and 2": (by_index, (X, Y + 1), {}, r"'y' has 4 values outside.*\(1,\): 2.*coded"),
    "subsample too large": (
        normal,
        (NUMBERS,),
        {"rows": 4},
        r"'data' has `subsample_size=4` but only 3 rows: take 1 to 3",
    ),
    "subsample of none": (normal, (NUMBERS,), {"rows": 0}, r"`subsample_size=0`"),
    "indices not used": (no_use_of_the_indices, (X, Y), {}, r"fails on 3 of the 7 rows.*X\[index\]"),
    "rows not independent": (standardised_inside, (X, Y), {}, r"not a sum over the rows of plate 'data'.*standardise"),
    "point mass": (normal, (NUMBERS,), {"prior": dist.Delta(1.0)}, r"'scale' has a point mass.*deterministic"),
    "text": (normal, (np.array(["a", "b"]),), {}, r"args\[0\] must be numeric.*<U1"),
    "set": (normal, ({1.0, 2.0},), {}, r"args\[0\] must be an array or a plain value: got set"),
    "not finite": (impossible, (NUMBERS,), {}, r"not finite at 20 points.*'y'"),
    "no function": (3, (), {}, r"`model` must be a NumPyro model, a function: got int"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_models_are_named(case):
    model, args, kwargs, message = BAD[case]
    with pytest.raises(gm.InvalidInput, match=f"(?s){message}"):
        gnp.target(model, *args, **kwargs)


def test_wrong_starts_oracles_and_sites_are_named(logistic):
    target = logistic
    pieces = {
        "target": target,
        "dynamics": gm.dynamics.overdamped(2),
        "observables": gnp.observables(target),
        "step_size": 0.1,
    }
    assert gm.Plan(**pieces).dim == 2  # no start: the origin
    with pytest.raises(gm.InvalidInput, match=r"'beta': \(2,\).*got .*'b': \(2,\).*target.start"):
        gm.Plan(**pieces, start={"b": np.zeros(2)})
    with pytest.raises(gm.InvalidInput, match=r"'beta': \(2,\).*got .*'b': \(2,\).*target.start"):
        gm.Plan(**{**pieces, "observables": {"one": lambda p: p["b"][0]}}, start={"b": np.zeros(2)})
    with pytest.raises(gm.InvalidInput, match=r"'beta': \(2,\).*got .*'beta': \(1, 2\)"):
        gm.Plan(**pieces, start={"beta": np.zeros((1, 2))})
    with pytest.raises(gm.InvalidInput, match="must have 2 numbers"):
        gm.Plan(**pieces, start=np.zeros(5))
    whole = gnp.target(normal, NUMBERS)
    with pytest.raises(gm.InvalidInput, match="sum over data"):
        gm.Plan(**{**pieces, "target": whole, "dynamics": gm.dynamics.overdamped(1)}, oracle=gm.oracles.Minibatch(2))
    with pytest.raises(gm.InvalidInput, match=r"No site 'gamma' in the model: .* beta"):
        gnp.observables(target, ["gamma"])
    with pytest.raises(gm.InvalidInput, match=r"must be a posterior of a model: got Quadratic"):
        gnp.observables(gm.targets.Quadratic([1.0]))


def test_numpyro_is_imported_only_when_asked_for():
    light = "import sys, gyromc, gyromc.interop; assert not {'numpyro', 'jax'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", light], check=True)
    missing = "import sys; sys.modules['numpyro'] = None; import gyromc.interop.numpyro"
    done = subprocess.run([sys.executable, "-c", missing], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'gyromc[numpyro]'" in done.stderr.splitlines()[-1]
