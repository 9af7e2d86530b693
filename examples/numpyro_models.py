"""Four NumPyro models with their data, on which `gyromc.interop.numpyro` is tested and measured.

Run as `python examples/numpyro_models.py [NAME]` for the posterior means of one of them, next to those of NUTS.
"""

import dataclasses
import sys
from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist
from numpyro.diagnostics import effective_sample_size
from numpyro.distributions.transforms import OrderedTransform

import gyromc as gm
from gyromc.datasets import heart_split


def logistic(X, y=None, rows=None):
    """Logistic regression: P(y = 1) = 1/(1 + e^{-xᵀβ}), β ~ N(0, I)."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("data", X.shape[0], subsample_size=rows) as index:
        numpyro.sample("y", dist.Bernoulli(logits=X[index] @ beta), obs=None if y is None else y[index])


def eight_schools(effect, error):
    """Effects of coaching in eight schools, non-centred: θ_j = μ + τ z_j."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(error)):
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * z)
        numpyro.sample("effect", dist.Normal(theta, error), obs=effect)


def counts(X, exposure, y=None, rows=None):
    """A Poisson regression with exposure: y ~ Poisson(exposure · e^{a + xᵀb})."""
    a = numpyro.sample("a", dist.Normal(0.0, 2.0))
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    with numpyro.plate("data", X.shape[0], subsample_size=rows):
        x, time = numpyro.subsample(X, event_dim=1), numpyro.subsample(exposure, event_dim=0)
        seen = None if y is None else numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Poisson(time * jnp.exp(a + x @ b)), obs=seen)


def mixture(y, rows=None):
    """Two normal components with the labels summed out; ordered means, so that the components cannot swap."""
    weight = numpyro.sample("weight", dist.Dirichlet(jnp.array([2.0, 2.0])))
    spread = numpyro.sample("spread", dist.HalfNormal(1.0).expand([2]).to_event(1))
    ordered = dist.TransformedDistribution(dist.Normal(0.0, 3.0).expand([2]).to_event(1), OrderedTransform())
    mean = numpyro.sample("mean", ordered)
    parts = dist.MixtureSameFamily(dist.Categorical(probs=weight), dist.Normal(mean, spread))
    with numpyro.plate("data", len(y), subsample_size=rows) as index:
        numpyro.sample("y", parts, obs=y[index])


@dataclasses.dataclass(frozen=True)
class Example:
    """A model with its data, and the mini-batch to take where it has one."""

    model: Callable
    args: tuple
    rows: int | None

    @property
    def kwargs(self) -> dict:
        """The keyword arguments that declare the subsampling."""
        return {} if self.rows is None else {"rows": self.rows}


def examples() -> dict[str, Example]:
    """The four models with their data, by name."""
    rng = np.random.default_rng(7)
    heart = heart_split(0)
    X, exposure = rng.normal(size=(300, 3)), rng.uniform(0.5, 2.0, 300)
    y = rng.poisson(exposure * np.exp(0.7 + X @ [0.4, -0.3, 0.2]))
    labels = rng.random(400) < 0.35
    effect, error = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0], [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]
    return {
        "logistic": Example(logistic, (heart.X_train, heart.y_train), 32),
        "eight schools": Example(eight_schools, (np.array(effect), np.array(error)), None),
        "poisson": Example(counts, (X, exposure, y), 30),
        "mixture": Example(mixture, (np.where(labels, rng.normal(-1.5, 0.6, 400), rng.normal(1.0, 0.9, 400)),), 80),
    }


def main(name: str = "logistic") -> None:
    """The posterior means of one example with their errors, next to those of NUTS."""
    import jax
    from numpyro.infer import MCMC, NUTS

    from gyromc.interop import numpyro as gnp

    example = examples()[name]
    target = gnp.target(example.model, *example.args, **example.kwargs)
    found = gm.expect(target)
    nuts = MCMC(NUTS(example.model), num_warmup=500, num_samples=2000, progress_bar=False)
    nuts.run(jax.random.key(0), *map(jnp.asarray, example.args))
    print(f"{'':14}{'mean':>10}{'± error':>11}{'sd':>9}{'NUTS':>10}{'± error':>10}")
    for site, draws in nuts.get_samples(group_by_chain=True).items():
        values = np.asarray(draws).reshape(*draws.shape[:2], -1)
        ours = [label for label in found if label.split("[")[0] == site]
        for label, column in zip(ours, np.moveaxis(values, 2, 0), strict=True):
            row, error = found[label], column.std() / np.sqrt(effective_sample_size(column))
            print(f"{label:14}{row.mean:10.4f}{row.std_error:11.1e}{row.sd:9.3f}{column.mean():10.4f}{error:10.1e}")
    print("warnings:", found.warnings or "none")


if __name__ == "__main__":
    main(*sys.argv[1:2])
