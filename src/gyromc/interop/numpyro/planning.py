"""A plan for the posterior of a NumPyro model: its sites as observables, its subsampled plate as mini-batches.

What is chosen (dynamics, step size, burn-in, start) is chosen by `gyromc.tuning`.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gyromc.checks import positive, require, whole
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.interop.numpyro.hierarchy import scaled_by_latent
from gyromc.interop.numpyro.pilot import pilot
from gyromc.interop.numpyro.posterior import Posterior, SubsampledPosterior
from gyromc.interop.numpyro.sites import observables as site_observables
from gyromc.model import Model
from gyromc.oracles import ControlVariate, Exact, Oracle
from gyromc.plan import Plan
from gyromc.tuning.outline import Outline, Unsettled, outline
from gyromc.tuning.recipe import ERROR, preconditioned_plan

__all__ = ["plan"]

MOST_PARAMETERS = 500


def plan(
    target: Posterior,
    *,
    batch_size: int | None = None,
    num_steps: int | None = None,
    num_chains: int = 32,
    bias: float = 0.02,
    error: float = ERROR,
    sites: Sequence[str] | None = None,
    squares: bool = True,
    observables: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Plan:
    """A plan for a posterior, ready to run: dynamics, step size, burn-in and start chosen from its mode and curvature there.

    Where there is no mode, or where it says little about the posterior, they come from a short NUTS run. A warning says where
    such a plan is doubtful.

    **Arguments:**

    - `target`: from `gyromc.interop.numpyro.target`.
    - `batch_size`: rows of the subsampled plate per gradient, by a control variate anchored at the mode; left out: all rows.
    - `num_steps`, `num_chains`: how long, and how many independent chains; left out: as many steps as `error` needs.
    - `bias`: the relative error of posterior variances that the step size may cause, on a Gaussian of the same curvature; the
      bias on your model is in `gm.predict(plan).bias`, or shows when `bias` is halved.
    - `error`: the Monte Carlo error of posterior means to aim at, in posterior standard deviations, on such a Gaussian.
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
    _check_target(target)
    bias, error = _fractions(bias, error)
    model = Model(target, target.start)
    shape = _outline(target, model)
    return preconditioned_plan(
        model,
        {**site_observables(target, sites, squares=squares), **(observables or {})},
        oracle=_oracle(target, batch_size, model.unravel(shape.center.mode)),
        budget=bias,
        error=error,
        num_steps=num_steps,
        num_chains=num_chains,
        shape=shape,
        **fields,
    )


def _check_target(target: Posterior) -> None:
    """Raise where the target is no posterior of a model, or has too many parameters for a preconditioner."""
    require(isinstance(target, Posterior), f"`target` must be a posterior of a model: got {type(target).__name__}.")
    require(
        target.dim <= MOST_PARAMETERS,
        f"This model has {target.dim} parameters: a preconditioner is formed for up to {MOST_PARAMETERS}. Build the plan "
        "yourself, for example `gm.Plan(target=target, start=target.start, dynamics=gm.dynamics.hfhr(target.dim, 1.0, 2.0), "
        "observables=gnp.observables(target), step_size=…)`.",
    )


def _fractions(bias: float, error: float) -> tuple[float, float]:
    """`bias` and `error`, checked to lie between 0 and 1."""
    bias, error = positive(bias, "bias"), positive(error, "error")
    require(bias < 1, f"`bias` is a fraction of the posterior variance, below 1: got {bias:g}.")
    require(error < 1, f"`error` is a fraction of posterior standard deviations, below 1: got {error:g}.")
    return bias, error


def _outline(target: Posterior, model: Model) -> Outline:
    """Where the posterior lies; a warning where a pilot run had to say so, and the sites to change."""
    try:
        shape = outline(model, lambda: pilot(target))
    except Unsettled as error:
        names = ", ".join(repr(name) for name in target.sites_of(error.coordinates))
        raise InvalidInput(
            f"{error} Look at {names}: give weak priors to sites that the data leave open. {_advice(target)}".rstrip()
        ) from error
    if shape.why is not None:
        source = "" if shape.starts is None else " Scales and starts come from a short NUTS run."
        warnings.warn(
            f"This plan is less certain than others: {shape.why}.{source} Its step size fits most of the posterior, not its "
            f"narrowest part, where the chains may not go or go wrong. {_advice(target)}",
            GyromcWarning,
            stacklevel=3,
        )
    return shape


def _advice(target: Posterior) -> str:
    """How to write the sites whose scale is itself sampled; where there are none, how to check the result."""
    found = scaled_by_latent(target)
    if not found:
        return "Check the result with half the `bias`, or with NUTS."
    what = "; ".join(f"the scale of {name!r} depends on {', '.join(map(repr, by))}" for name, by in found.items())
    config = ", ".join(f'"{name}": LocScaleReparam(0)' for name in found)
    return (
        f"Non-centre {', '.join(map(repr, found))} ({what}): `from numpyro.infer.reparam import LocScaleReparam` and pass "
        f"`numpyro.handlers.reparam(model, config={{{config}}})` as the model."
    )


def _oracle(target: Posterior, batch_size: int | None, center: Any) -> Oracle:
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
    return ControlVariate(batch_size, center=center, replace=batch_size > target.num_data)
