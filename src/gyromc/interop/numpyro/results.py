"""Results by site of a NumPyro model: observables, plans with them, tables, draws and posterior predictive data.

Input: the posterior of a model, or what `gyromc.expect` or `gyromc.run` returned for it. Output: values by site name, in
constrained space.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer import Predictive

from gyromc.checks import require, whole
from gyromc.errors import GyromcWarning
from gyromc.interop.models import Sites, element_name
from gyromc.interop.numpyro.posterior import NumPyroPosterior
from gyromc.interop.numpyro.reading import DrivePlates, on_device
from gyromc.observables import Observable
from gyromc.oracles import ControlVariate
from gyromc.plan import FIELDS, Plan
from gyromc.posterior import Posterior as Found
from gyromc.precision import private
from gyromc.results import Run

POWERS = {1: "", 2: "^2"}
"""What follows the name of an element in that of its power."""


class SiteElement(Observable):
    """One element of a site's constrained value, or its square.

    `values` is the function from parameters to sites. `shape`: of the unconstrained site; None for a deterministic one.
    """

    site: str = eqx.field(static=True)
    index: tuple[int, ...] = eqx.field(static=True)
    power: int = eqx.field(static=True)
    values: Callable
    unravel: Callable
    shape: tuple[int, ...] | None = eqx.field(static=True)

    def __call__(self, params):
        """The element at unconstrained parameters."""
        params = params if isinstance(params, dict) else self.unravel(params)
        found = np.shape(params[self.site]) if self.site in params else "nothing"
        require(
            self.shape in (None, found),
            f"Site {self.site!r} has unconstrained shape {self.shape}: the parameters give {found} for it. "
            "Begin with `target.start`.",
        )
        return jnp.asarray(self.values(params)[self.site])[self.index] ** self.power


def observables(
    target: NumPyroPosterior, sites: Sequence[str] | None = None, *, squares: bool = False
) -> dict[str, Observable]:
    """The elements of the model's sites, in constrained space, as observables by name: `"tau"`, `"beta[0]"`, `"W[1, 2]"`.

    **Arguments:**

    - `target`: from `gyromc.interop.numpyro.target`.
    - `sites`: which sites; default: all latent sites, and the deterministic ones outside a subsampled plate.
    - `squares`: add the square of each, `"tau^2"`, for posterior standard deviations.

    **Returns:** observables by name, for `gm.Plan` and `gm.tune`.

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
    require(
        isinstance(target, NumPyroPosterior), f"`target` must be a posterior of a model: got {type(target).__name__}."
    )
    values = Sites(target, sites)
    # Compiled once for all elements.
    compiled = jax.jit(lambda params: values(params))
    found = {}
    for power in POWERS if squares else (1,):
        for site in values.names:
            how = compiled, target.unravel, target.parameters.get(site)
            for index in np.ndindex(target.structure.shapes[site]):
                found[element_name(site, index) + POWERS[power]] = SiteElement(site, index, power, *how)
    return found


def tune(
    target: NumPyroPosterior,
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

    **Returns:** a `gyromc.Tuned`: the plan, what was tried, and the errors to expect by site.
    """
    # imported when used: `gyromc.expect` needs no tuner
    from gyromc.tuning.tune import tune as tune_any

    if batch_size is not None:
        budget["oracle"] = ControlVariate(batch_size)
    return tune_any(target, observables(target, sites, squares=squares), **budget)


def plan(target: NumPyroPosterior, **asked: Any) -> Plan:
    """A plan for a posterior, ready to run: that of `tune`, with some fields of `gyromc.Plan` as you wish.

    **Arguments:**

    - `target`: from `gyromc.interop.numpyro.target`.
    - `asked`: arguments of `tune`, and fields of `gyromc.Plan` in place of what was chosen.

    **Returns:** a `gyromc.Plan`; a warning says where the tuner could not know enough.

    ```python
    import numpy as np
    import numpyro
    from numpyro import distributions as dist
    from gyromc.interop import numpyro as gnp

    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

    plan = gnp.plan(gnp.target(model, np.array([0.3, -1.2])), gradients=2000)
    assert plan.gradients <= 2020 and list(plan.observables) == ["scale", "scale^2"]
    ```
    """
    fixed = {name: asked.pop(name) for name in FIELDS if name in asked and name not in ("oracle", "num_chains", "seed")}
    found = tune(target, **asked)
    if found.warnings:
        warnings.warn(" ".join(found.warnings), GyromcWarning, stacklevel=2)
    return found.plan.replace(**fixed)


def summary(result: Found | Run) -> Any:
    """The table of posterior means by site, with their errors, that a result prints.

    **Arguments:**

    - `result`: what `gyromc.expect` returned, or a run, whose estimates are returned (`gyromc.estimate`).
    """
    _posterior(result)
    if isinstance(result, Found):
        return result
    from gyromc.estimation.estimate import estimate

    return estimate(result)


def draws(result: Run | Found, sites: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The kept states in constrained space: {site: chains × draws × the site's shape}.

    **Arguments:**

    - `result`: of `gyromc.expect`, whose draws have `weights`; or a run of a plan, made with `thin`.
    - `sites`: which sites; left out: all latent sites, and the deterministic ones outside a subsampled plate.

    **Returns:** arrays by site name.
    """
    target = _posterior(result)
    require(
        result.draws is not None, "This run kept no draws: run it with `gm.run(plan, thin=10)` to keep every tenth."
    )
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

    **Returns:** arrays by site name, the deterministic sites included.
    """
    target = _posterior(result)
    kept = {name: value.reshape(-1, *value.shape[2:]) for name, value in draws(result, target.sites).items()}
    count = len(next(iter(kept.values())))
    wanted = count if draws_used is None else whole(draws_used, "draws_used", least=1, most=count)
    if isinstance(result, Found):  # equal weights
        kept = target.reported(result.resampled(wanted, seed)[None], target.sites)
        kept = {name: value[0] for name, value in kept.items()}
    else:
        rows = np.linspace(0, count - 1, wanted).round().astype(int)
        kept = {name: value[rows] for name, value in kept.items()}
    model = DrivePlates(private(target.model), drawing=True)
    if not args and not kwargs:
        args, kwargs, model = target.args, target.kwargs, handlers.uncondition(model)
    args, kwargs = on_device((args, kwargs))
    generate = Predictive(model, posterior_samples=kept)
    return {name: np.asarray(value) for name, value in generate(jax.random.key(seed), *args, **kwargs).items()}


def _posterior(result: Run | Found) -> NumPyroPosterior:
    require(
        isinstance(result, Run | Found),
        f"What `gm.expect` or `gm.run` returned is needed: got {type(result).__name__}.",
    )
    target = result.plan.target if isinstance(result, Run) else getattr(result.model, "target", None)
    require(
        isinstance(target, NumPyroPosterior),
        f"This result's target is not a NumPyro model ({type(target).__name__}): use `gyromc.interop.numpyro.target`.",
    )
    return target  # type: ignore[return-value]  # checked above
