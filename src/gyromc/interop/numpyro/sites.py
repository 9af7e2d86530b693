"""Values of a model's sites: as observables, as draws, and as posterior predictive data.

Input: a posterior, or a run on one. Output: observables, arrays and predictions by site name, in constrained space.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.infer import Predictive

from gyromc.checks import require, whole
from gyromc.interop.models import Sites
from gyromc.interop.numpyro.posterior import Posterior
from gyromc.interop.numpyro.reading import DrivePlates, on_device
from gyromc.observables import Observable
from gyromc.precision import private
from gyromc.results import Run

__all__ = ["draws", "observables", "predictive"]


class SiteElement(Observable):
    """One element of a site's constrained value, or its square."""

    site: str = eqx.field(static=True)
    index: tuple[int, ...] = eqx.field(static=True)
    power: int = eqx.field(static=True)
    transform: Any  # of this site alone
    everything: Callable | None  # or from the parameters to all sites, where one transform is not enough
    unravel: Callable
    shape: tuple[int, ...] | None = eqx.field(static=True)  # of the unconstrained site; None for a deterministic one

    def __call__(self, params):
        """The element at unconstrained parameters."""
        params = params if isinstance(params, dict) else self.unravel(params)
        found = np.shape(params[self.site]) if self.site in params else "nothing"
        require(
            self.shape in (None, found),
            f"Site {self.site!r} has unconstrained shape {self.shape}: the parameters give {found} for it. "
            "Begin with `target.start`.",
        )
        value = self.everything(params)[self.site] if self.everything else self.transform(params[self.site])
        return jnp.asarray(value)[self.index] ** self.power


def observables(
    target: Posterior, sites: Sequence[str] | None = None, *, squares: bool = False
) -> dict[str, Observable]:
    """The elements of the model's sites, in constrained space, as observables by name: `"tau"`, `"beta[0]"`, `"W[1,2]"`.

    **Arguments:**

    - `target`: from `gyromc.interop.numpyro.target`.
    - `sites`: which sites; default: all latent sites, and the deterministic ones outside a subsampled plate.
    - `squares`: add the square of each, `"tau^2"`, for posterior standard deviations.

    **Returns:** observables by name, for `gm.Plan`.

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
    values = Sites(target, sites)
    everything = jax.jit(lambda params: values(params))  # for elements that need the whole model
    found = {}
    for power in (1, 2) if squares else (1,):
        for site in values.names:
            transform, shape = target.structure.transforms.get(site), target.structure.shapes.get(site)
            how = (transform, None if transform else everything, target.unravel, shape)
            for index in np.ndindex(target.shape_of(site)):
                found[element_name(site, index, power)] = SiteElement(site, index, power, *how)
    return found


def element_name(site: str, index: tuple[int, ...], power: int = 1) -> str:
    """`beta[0]`, `W[1,2]`, `tau`, `tau^2`."""
    place = f"[{','.join(map(str, index))}]" if index else ""
    return f"{site}{place}{'^2' if power == 2 else ''}"


def draws(run: Run, sites: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """The kept states in constrained space: {site: chains × draws × the site's shape}.

    **Arguments:**

    - `run`: of a plan on a posterior, made with `thin`.
    - `sites`: which sites; left out: all latent sites, and the deterministic ones outside a subsampled plate.

    **Returns:** arrays by site name.
    """
    target = _posterior(run)
    require(run.draws is not None, "This run kept no draws: run it with `gm.run(plan, thin=10)` to keep every tenth.")
    return target.reported(run.draws, sites)


def predictive(
    run: Run, *args: Any, draws_used: int | None = None, seed: int = 0, **kwargs: Any
) -> dict[str, np.ndarray]:
    """New data from the posterior, by `numpyro.infer.Predictive`: {site: draws × the site's shape}, on all rows of every plate.

    **Arguments:**

    - `run`: of a plan on a posterior, made with `thin`.
    - `args`, `kwargs`: the model's arguments for the new data, without observations; default: the posterior's own,
      with the observed sites drawn anew.
    - `draws_used`: how many posterior draws, spread evenly over chains and time; default: all.
    - `seed`: of the new data.

    **Returns:** arrays by site name, the deterministic sites included.
    """
    target = _posterior(run)
    kept = {name: value.reshape(-1, *value.shape[2:]) for name, value in draws(run, target.sites).items()}
    count = len(next(iter(kept.values())))
    wanted = count if draws_used is None else whole(draws_used, "draws_used", least=1, most=count)
    rows = np.linspace(0, count - 1, wanted).round().astype(int)
    model = DrivePlates(private(target.model), drawing=True)
    if not args and not kwargs:
        args, kwargs, model = target.args, target.kwargs, handlers.uncondition(model)
    args, kwargs = on_device((args, kwargs))
    generate = Predictive(model, posterior_samples={name: value[rows] for name, value in kept.items()})
    return {name: np.asarray(value) for name, value in generate(jax.random.key(seed), *args, **kwargs).items()}


def _posterior(run: Run) -> Posterior:
    require(isinstance(run, Run), f"A `Run` is needed: got {type(run).__name__}.")
    require(
        isinstance(run.plan.target, Posterior),
        f"This run's target is not a NumPyro model ({type(run.plan.target).__name__}): use `gyromc.interop.numpyro.target`.",
    )
    return run.plan.target  # type: ignore[return-value]  # checked above
