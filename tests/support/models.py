"""Models of the kinds found in collections of posteriors, written for NumPyro with data drawn here from fixed seeds.

`models()` returns them by name. The references in `references.json` are long NUTS runs of the same models, made by
`python tests/support/references.py`.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist
from numpyro.distributions.transforms import OrderedTransform


@dataclasses.dataclass(frozen=True)
class Posed:
    """A model with its data, and the sites that are compared."""

    model: Callable
    args: tuple
    sites: tuple[str, ...]


def linear(X, y, prior, noise):
    """y = Xβ + N(0, σ²): β ~ N(0, prior²), σ half-normal or half-Cauchy."""
    beta = numpyro.sample("beta", dist.Normal(0.0, prior).to_event(1))
    sigma = numpyro.sample("sigma", noise)
    numpyro.sample("y", dist.Normal(X @ beta, sigma), obs=y)


def logistic(X, y):
    beta = numpyro.sample("beta", dist.Normal(0.0, 5.0).expand([X.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=X @ beta), obs=y)


def autoregression(y, lags):
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([lags]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    past = jnp.stack([y[lags - k - 1 : len(y) - k - 1] for k in range(lags)], axis=1)
    numpyro.sample("y", dist.Normal(alpha + past @ beta, sigma), obs=y[lags:])


def garch(y):
    """GARCH(1, 1): σ_t² = α₀ + α₁ (y_{t-1} - μ)² + β₁ σ_{t-1}², α₁ + β₁ < 1."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    alpha0 = numpyro.sample("alpha0", dist.HalfNormal(2.0))
    alpha1 = numpyro.sample("alpha1", dist.Uniform(0.0, 1.0))
    beta1 = numpyro.sample("beta1", dist.Uniform(0.0, 1.0 - alpha1))

    def step(variance, before):
        variance = alpha0 + alpha1 * (before - mu) ** 2 + beta1 * variance
        return variance, variance

    _, variances = jax.lax.scan(step, jnp.ones_like(mu), y[:-1])
    numpyro.sample("y", dist.Normal(mu, jnp.sqrt(variances)), obs=y[1:])


def schools(effect, error, centred):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(error)):
        if centred:
            theta = numpyro.sample("theta", dist.Normal(mu, tau))
        else:
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("effect", dist.Normal(theta, error), obs=effect)


def growth(age, length):
    """Growth of dugongs: length = α - β λ^age + noise."""
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.HalfNormal(5.0))
    decay = numpyro.sample("decay", dist.Uniform(0.5, 1.0))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(1.0))
    numpyro.sample("length", dist.Normal(alpha - beta * decay**age, sigma), obs=length)


def radon(county, floor, y, counties):
    """Intercepts by county, non-centred."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 10.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    slope = numpyro.sample("slope", dist.Normal(0.0, 10.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("counties", counties):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(mu + tau * z[county] + slope * floor, sigma), obs=y)


def rats(age, weight):
    """Growth curves of rats, centred: the data are plenty for each of them."""
    mean = numpyro.sample("mean", dist.Normal(jnp.array([250.0, 6.0]), jnp.array([100.0, 10.0])).to_event(1))
    spread = numpyro.sample("spread", dist.HalfNormal(jnp.array([20.0, 1.0])).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(10.0))
    with numpyro.plate("rats", len(weight)):
        curve = numpyro.sample("curve", dist.Normal(mean, spread).to_event(1))
    numpyro.sample("weight", dist.Normal(curve[:, :1] + curve[:, 1:] * (age - 22.0), sigma), obs=weight)


def glmm(year, y):
    """Poisson counts with a cubic trend and a random effect of each year."""
    alpha = numpyro.sample("alpha", dist.Normal(3.0, 3.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 2.0).expand([3]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    with numpyro.plate("years", len(y)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        trend = alpha + beta[0] * year + beta[1] * year**2 + beta[2] * year**3
        numpyro.sample("y", dist.Poisson(jnp.exp(trend + sigma * z)), obs=y)


def mixture(y):
    ordered = dist.TransformedDistribution(dist.Normal(0.0, 2.0).expand([2]).to_event(1), OrderedTransform())
    mu = numpyro.sample("mu", ordered)
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    weight = numpyro.sample("weight", dist.Beta(5.0, 5.0))
    parts = dist.Categorical(probs=jnp.stack([weight, 1 - weight]))
    with numpyro.plate("data", len(y)):
        numpyro.sample("y", dist.MixtureSameFamily(parts, dist.Normal(mu, sigma)), obs=y)


def hidden(y):
    """A hidden Markov chain with two states, summed out by the forward recursion."""
    first = numpyro.sample("stay_first", dist.Beta(10.0, 2.0))
    second = numpyro.sample("stay_second", dist.Beta(10.0, 2.0))
    ordered = dist.TransformedDistribution(dist.Normal(5.0, 5.0).expand([2]).to_event(1), OrderedTransform())
    mu = numpyro.sample("mu", ordered)
    moves = jnp.log(jnp.array([[first, 1 - first], [1 - second, second]]))
    emitted = dist.Normal(mu, 1.0).log_prob(y[:, None])

    def step(log_alpha, log_density):
        return jax.nn.logsumexp(log_alpha[:, None] + moves, axis=0) + log_density, None

    last, _ = jax.lax.scan(step, emitted[0] - jnp.log(2.0), emitted[1:])
    numpyro.factor("y", jax.nn.logsumexp(last))


def models() -> dict[str, Posed]:
    """All of them with their data, by name."""
    rng = np.random.default_rng(20)
    every = ("beta", "sigma")
    return {
        "kidiq": _kidiq(rng),
        "earnings": _earnings(rng),
        "mesquite": _mesquite(rng),
        "nes": _nes(rng),
        "wells": _wells(rng),
        "arK": Posed(autoregression, (_series(rng, 200), 5), ("alpha", *every)),
        "garch11": Posed(garch, (_volatile(rng, 300),), ("mu", "alpha0", "alpha1", "beta1")),
        "eight schools": Posed(schools, (*_schools(), False), ("mu", "tau", "theta")),
        "eight schools, centred": Posed(schools, (*_schools(), True), ("mu", "tau", "theta")),
        "dugongs": _dugongs(rng),
        "radon": _radon(rng),
        "rats": _rats(rng),
        "GLMM": _glmm(rng),
        "mixture": _mixture(rng),
        "diamonds": _diamonds(rng),
        "hmm": _hmm(rng),
    }


def _kidiq(rng) -> Posed:
    school, iq = rng.random(434) < 0.79, rng.normal(100, 15, 434)
    X = np.stack([np.ones(434), school, iq, school * iq], axis=1)
    y = -11 + 51 * school + 1.1 * iq - 0.5 * school * iq + rng.normal(0, 18, 434)
    return Posed(linear, (X, y, np.array([200.0, 100, 10, 10]), dist.HalfCauchy(2.5)), ("beta", "sigma"))


def _earnings(rng) -> Posed:
    height, male = rng.normal(66.6, 3.8, 600), rng.random(600) < 0.4
    y = 5.8 + 0.06 * height + 0.4 * male + rng.normal(0, 0.88, 600)  # log earnings
    X = np.stack([np.ones(600), height, male], axis=1)
    return Posed(linear, (X, y, np.array([50.0, 5, 5]), dist.HalfNormal(5.0)), ("beta", "sigma"))


def _mesquite(rng) -> Posed:
    size = np.exp(rng.normal([0.6, 0.5, 0.3, 0.2, 0.6], 0.4, (46, 5)))
    X = np.column_stack([np.ones(46), np.log(size), rng.random(46) < 0.4])
    y = X @ [5.3, 0.4, 1.1, 0.4, 0.1, 0.1, -0.6] + rng.normal(0, 0.33, 46)
    return Posed(linear, (X, y, np.full(7, 10.0), dist.HalfCauchy(2.5)), ("beta", "sigma"))


def _nes(rng) -> Posed:
    """Party identification on seven points by ideology, race, age group, education, sex and income."""
    n = 500
    age = rng.integers(0, 4, n)
    columns = [rng.integers(1, 8, n), rng.random(n) < 0.12, age == 1, age == 2, age == 3, rng.integers(1, 5, n)]
    X = np.column_stack([np.ones(n), *columns, rng.random(n) < 0.5, rng.integers(1, 6, n)]).astype(float)
    y = X @ [0.5, 0.5, -1.1, -0.2, -0.1, 0.2, 0.3, 0.1, 0.15] + rng.normal(0, 1.8, n)
    return Posed(linear, (X, y, np.full(9, 10.0), dist.HalfNormal(5.0)), ("beta", "sigma"))


def _wells(rng) -> Posed:
    n = 800
    arsenic, distance, education = rng.gamma(2.0, 0.8, n), rng.gamma(1.6, 0.3, n), rng.integers(0, 17, n) / 4
    X = np.stack([np.ones(n), distance, arsenic, education, distance * arsenic], axis=1)
    y = (rng.random(n) < 1 / (1 + np.exp(-X @ [-0.2, -0.9, 0.5, 0.17, -0.1]))).astype(int)
    return Posed(logistic, (X, y), ("beta",))


def _series(rng, count: int) -> np.ndarray:
    y = np.zeros(count)
    for t in range(5, count):
        y[t] = 0.1 + y[t - 5 : t][::-1] @ [0.6, -0.2, 0.1, 0.05, 0.1] + rng.normal(0, 0.5)
    return y


def _volatile(rng, count: int) -> np.ndarray:
    y, variance = np.zeros(count), 1.0
    for t in range(1, count):
        variance = 0.3 + 0.25 * (y[t - 1] - 0.5) ** 2 + 0.5 * variance
        y[t] = 0.5 + rng.normal(0, np.sqrt(variance))
    return y


def _schools() -> tuple[np.ndarray, np.ndarray]:
    """The published effects of coaching in eight schools and their errors (Rubin, 1981): 16 numbers."""
    effect, error = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]
    return np.array(effect), np.array(error)


def _dugongs(rng) -> Posed:
    age = np.sort(rng.uniform(1, 30, 27))
    return Posed(growth, (age, 2.65 - 0.97 * 0.87**age + rng.normal(0, 0.09, 27)), ("alpha", "beta", "decay", "sigma"))


def _radon(rng) -> Posed:
    county, floor = rng.integers(0, 20, 200), (rng.random(200) < 0.2).astype(float)
    y = 1.4 + rng.normal(0, 0.35, 20)[county] - 0.7 * floor + rng.normal(0, 0.75, 200)
    return Posed(radon, (county, floor, y, 20), ("mu", "tau", "slope", "sigma"))


def _rats(rng) -> Posed:
    age = np.array([8.0, 15.0, 22.0, 29.0, 36.0])
    curve = rng.normal([242.0, 6.2], [14.0, 0.5], (15, 2))
    weight = curve[:, :1] + curve[:, 1:] * (age - 22) + rng.normal(0, 6, (15, 5))
    return Posed(rats, (age, weight), ("mean", "spread", "sigma"))


def _glmm(rng) -> Posed:
    year = np.linspace(-1, 1, 40)
    rate = np.exp(3.5 + 0.5 * year - 0.8 * year**2 + 0.1 * year**3 + rng.normal(0, 0.25, 40))
    return Posed(glmm, (year, rng.poisson(rate)), ("alpha", "beta", "sigma"))


def _mixture(rng) -> Posed:
    y = np.where(rng.random(250) < 0.38, rng.normal(-2.7, 1.0, 250), rng.normal(2.9, 1.2, 250))
    return Posed(mixture, (y,), ("mu", "sigma", "weight"))


def _diamonds(rng) -> Posed:
    """Log prices with strongly correlated columns, as powers of one size."""
    size = rng.normal(0, 1, 400)
    more = [size + 0.1 * rng.normal(size=400) for _ in range(4)]
    X = np.column_stack([np.ones(400), size, *more, *rng.normal(size=(3, 400))])
    y = X @ [7.8, 1.0, 0.3, 0.2, -0.1, 0.1, 0.1, 0.05, -0.05] + rng.normal(0, 0.13, 400)
    return Posed(linear, (X, y, np.array([10.0] + [1.0] * 8), dist.HalfCauchy(10.0)), ("beta", "sigma"))


def _hmm(rng) -> Posed:
    state, y = 0, []
    for _ in range(100):
        state = state if rng.random() < 0.85 else 1 - state
        y.append(rng.normal([3.0, 7.5][state], 1.0))
    return Posed(hidden, (np.array(y),), ("stay_first", "stay_second", "mu"))
