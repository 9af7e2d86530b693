"""A plan for the posterior of a NumPyro model: its sites as observables, its subsampled plate as mini-batches.

What is chosen (dynamics, step size, burn-in, start) is chosen by `gyromc.tuning`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gyromc.checks import positive, require, whole
from gyromc.errors import InvalidInput
from gyromc.interop.numpyro.posterior import Posterior, SubsampledPosterior
from gyromc.interop.numpyro.sites import observables as site_observables
from gyromc.model import Model
from gyromc.oracles import ControlVariate, Exact, Oracle
from gyromc.plan import Plan
from gyromc.tuning.recipe import preconditioned_plan

__all__ = ["plan"]

MOST_PARAMETERS = 500


def plan(
    target: Posterior,
    *,
    batch_size: int | None = None,
    num_steps: int = 4000,
    num_chains: int = 32,
    bias: float = 0.02,
    sites: Sequence[str] | None = None,
    squares: bool = True,
    observables: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Plan:
    """A plan for a posterior, ready to run: dynamics, step size, burn-in and start chosen from its mode and curvature there.

    **Arguments:**

    - `target`: from `gyromc.interop.numpyro.target`.
    - `batch_size`: rows of the subsampled plate per gradient, by a control variate anchored at the mode; left out: all rows.
    - `num_steps`, `num_chains`: how long, and how many independent chains.
    - `bias`: the relative error of posterior variances that the step size may cause, on a Gaussian of the same curvature; the
      bias on your model is in `gm.predict(plan).bias`, or shows when `bias` is halved.
    - `sites`, `squares`: which sites to average, and whether their squares too; see `observables`.
    - `observables`: more observables by name, functions of {site: unconstrained array}.
    - `fields`: any other field of `gm.Plan`, in place of what would be chosen.

    **Returns:** a `Plan`.

    ```python
    import numpy as np
    import numpyro
    from numpyro import distributions as dist
    from gyromc.interop import numpyro as gnp

    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

    plan = gnp.plan(gnp.target(model, np.array([0.3, -1.2])))
    assert plan.dynamics.name == "SGHFHRMC, preconditioned"
    ```
    """
    require(isinstance(target, Posterior), f"`target` must be a posterior of a model: got {type(target).__name__}.")
    bias = positive(bias, "bias")
    require(bias < 1, f"`bias` is a fraction of the posterior variance, below 1: got {bias:g}.")
    model = _model(target)
    return preconditioned_plan(
        model,
        {**site_observables(target, sites, squares=squares), **(observables or {})},
        oracle=_oracle(target, batch_size, model),
        budget=bias,
        num_steps=num_steps,
        num_chains=num_chains,
        **fields,
    )


def _model(target: Posterior) -> Model:
    """The posterior with its mode, or why there is none to start from."""
    require(
        target.dim <= MOST_PARAMETERS,
        f"This model has {target.dim} parameters: a preconditioner is formed for up to {MOST_PARAMETERS}. Build the plan "
        "yourself, for example `gm.Plan(target=target, start=target.start, dynamics=gm.dynamics.hfhr(target.dim, 1.0, 2.0), "
        "observables=gnp.observables(target), step_size=…)`.",
    )
    model = Model(target, target.start)
    try:
        model.laplace  # noqa: B018  # found now, so that what is wrong is known now
    except InvalidInput as error:
        raise InvalidInput(
            f"The posterior has no mode to start from. {error} Build the plan yourself with `gm.Plan`, or give weak priors to "
            "the sites the data leave open."
        ) from error
    return model


def _oracle(target: Posterior, batch_size: int | None, model: Model) -> Oracle:
    if batch_size is None:
        return Exact()
    batch_size = whole(batch_size, "batch_size", least=1, most=10**9)
    require(
        isinstance(target, SubsampledPosterior),
        f"`batch_size={batch_size}` needs a model with a subsampled plate: write the likelihood as `with numpyro.plate(name, N, "
        f"subsample_size={batch_size}) as index: numpyro.sample(…, obs=y[index])`. "
        f"Observed here: {', '.join(map(repr, target.structure.observed))}.",
    )
    assert isinstance(target, SubsampledPosterior)
    return ControlVariate(batch_size, center=model.unravel(model.mode), replace=batch_size > target.num_data)
