"""NumPyro models as targets, and results by site.

Input: a NumPyro model and its arguments. Output: a target over the unconstrained sites (`target`), a plan for it (`plan`), and
results by site name, in constrained space (`summary`, `draws`, `predictive`).
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import require, whole
from gyromc.errors import GyromcWarning
from gyromc.extras import needs
from gyromc.interop.models import Sites
from gyromc.observables import Observable
from gyromc.oracles import ControlVariate
from gyromc.plan import FIELDS, Plan
from gyromc.posterior import Posterior as Found
from gyromc.results import Run
from gyromc.runtime.precision import private
from gyromc.solve.draws import NO_DRAWS
from gyromc.solve.question import elements

with needs("numpyro", "`gyromc.interop.numpyro`"):
    from numpyro import handlers
    from numpyro.infer import Predictive

from gyromc.interop.numpyro.posterior import NumPyroPosterior as Posterior
from gyromc.interop.numpyro.posterior import SubsampledPosterior, target
from gyromc.interop.numpyro.reading import DrivePlates, on_device

__all__ = [
    "Posterior",
    "SubsampledPosterior",
    "draws",
    "observables",
    "plan",
    "predictive",
    "summary",
    "target",
    "tune",
]


class SiteElement(Observable):
    """One element of a site's constrained value, or its square; `values` is the function from parameters to sites."""

    values: Callable
    site: str = eqx.field(static=True)
    index: tuple[int, ...] = eqx.field(static=True)
    power: int = eqx.field(static=True)

    def __call__(self, params):
        return jnp.asarray(self.values(params)[self.site])[self.index] ** self.power


def observables(
    target: Posterior, sites: Sequence[str] | None = None, *, squares: bool = False
) -> dict[str, Observable]:
    """The elements of the model's sites, in constrained space, as observables by name: `"tau"`, `"beta[0]"`, `"W[1, 2]"`.

    **Arguments:**

    - `target`: from `gyromc.interop.numpyro.target`.
    - `sites`: which sites; default: all latent sites, and the deterministic ones outside a subsampled plate.
    - `squares`: add the square of each, `"tau^2"`, for posterior standard deviations.

    ```python
    import numpyro
    from numpyro import distributions as dist
    from gyromc.interop import numpyro as gnp

    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.deterministic("variance", scale**2)
        numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

    assert list(gnp.observables(gnp.target(model, 0.3), squares=True)) == ["scale", "variance", "scale^2", "variance^2"]
    ```
    """
    require(isinstance(target, Posterior), f"`target` must be a posterior of a model: got {type(target).__name__}.")
    values = Sites(target, target.reported_sites(sites))
    # Compiled once for all elements.
    compiled = jax.jit(lambda params: values(params))
    found = {}
    for power, mark in ((1, ""), (2, "^2"))[: 1 + squares]:
        for site in values.names:
            shape = target.structure.shapes[site]
            for name, index in zip(elements(site, shape), np.ndindex(shape), strict=True):
                found[name + mark] = SiteElement(compiled, site, index, power)
    return found


def tune(
    target: Posterior,
    sites: Sequence[str] | None = None,
    *,
    squares: bool = True,
    batch_size: int | None = None,
    **budget: Any,
) -> Any:
    """`gyromc.tune` with the model's sites as observables.

    **Arguments:**

    - `target`, `sites`, `squares`: as for `observables`.
    - `batch_size`: rows of the subsampled plate per gradient, by a control variate anchored at the mode.
    - `budget`: the other arguments of `gyromc.tune`: `gradients`, `error` or `seconds`, `oracle`, `num_chains`, `seed`.
    """
    # imported when used: `gyromc.expect` needs no tuner
    from gyromc.tuning.tune import tune as tune_any

    if batch_size is not None:
        budget["oracle"] = ControlVariate(batch_size)
    return tune_any(target, observables(target, sites, squares=squares), **budget)


def plan(target: Posterior, **asked: Any) -> Plan:
    """The plan of `tune`, ready to run, which warns where the tuner could not know enough.

    `asked` are arguments of `tune`, and fields of `gyromc.Plan` in place of what was chosen.
    """
    fixed = {name: asked.pop(name) for name in FIELDS if name in asked and name not in ("oracle", "num_chains", "seed")}
    found = tune(target, **asked)
    if found.warnings:
        warnings.warn(" ".join(found.warnings), GyromcWarning, stacklevel=2)
    return found.plan.replace(**fixed)


def summary(result: Found | Run) -> Any:
    """The table of posterior means by site, with their errors: the result of `gyromc.expect`, or a run's `gyromc.estimate`."""
    _posterior(result)
    if isinstance(result, Found):
        return result
    from gyromc.estimation.estimate import estimate

    return estimate(result)


def draws(result: Run | Found, sites: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The kept states in constrained space: {site: chains × draws × the site's shape}; `sites` as for `observables`.

    `result` is of `gyromc.expect`, whose draws have `weights`, or a run of a plan, made with `thin`.
    """
    target = _posterior(result)
    require(result.draws is not None, NO_DRAWS)
    return target.reported(result.draws, sites)


def predictive(
    result: Run | Found, *args: Any, draws_used: int | None = None, seed: int = 0, **kwargs: Any
) -> dict[str, np.ndarray]:
    """New data from the posterior, by `numpyro.infer.Predictive`: {site: draws × the site's shape}, on all rows of every plate.

    **Arguments:**

    - `result`: as for `draws`.
    - `args`, `kwargs`: the model's arguments for the new data, without observations; default: the posterior's own,
      with the observed sites drawn anew.
    - `draws_used`: how many posterior draws, spread evenly over chains and time; default: all.
    - `seed`: of the new data.
    """
    target = _posterior(result)
    every = draws(result, target.sites)
    count = math.prod(next(iter(every.values())).shape[:2])
    wanted = count if draws_used is None else whole(draws_used, "draws_used", least=1, most=count)
    rows = np.linspace(0, count - 1, wanted).round().astype(int)
    if isinstance(result, Found):  # equal weights
        every, rows = target.reported(result.resampled(wanted, seed)[None], target.sites), slice(None)
    kept = {name: value.reshape(-1, *value.shape[2:])[rows] for name, value in every.items()}
    model = DrivePlates(private(target.model), drawing=True)
    if not args and not kwargs:
        args, kwargs, model = target.args, target.kwargs, handlers.uncondition(model)
    args, kwargs = on_device((args, kwargs))
    generate = Predictive(model, posterior_samples=kept)
    return {name: np.asarray(value) for name, value in generate(jax.random.key(seed), *args, **kwargs).items()}


def _posterior(result: Run | Found) -> Posterior:
    known = isinstance(result, Run | Found)
    require(known, f"What `gm.expect` or `gm.run` returned is needed: got {type(result).__name__}.")
    target = result.plan.target if isinstance(result, Run) else result.model.target
    require(
        isinstance(target, Posterior),
        f"This result's target is not a NumPyro model ({type(target).__name__}): use `gyromc.interop.numpyro.target`.",
    )
    return target  # type: ignore[return-value]  # checked above
