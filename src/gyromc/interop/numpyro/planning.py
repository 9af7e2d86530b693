"""A plan for the posterior of a NumPyro model: its sites as observables, its subsampled plate as mini-batches.

Sampler, step size, chains, burn-in and starts are chosen by `gyromc.tuning.tune`.
"""

import dataclasses
import math
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
from gyromc.oracles import ControlVariate, Oracle
from gyromc.plan import FIELDS, Plan
from gyromc.tuning.tune import tune as tune_any
from gyromc.tuning.tuned import Tuned

__all__ = ["plan", "tune"]

CHAINS = 32  # where only `num_steps` is given
HARMLESS = ("dtype",)  # fields of a plan that leave the errors to expect as they are


def plan(
    target: Posterior,
    *,
    gradients: float | None = None,
    error: float | None = None,
    seconds: float | None = None,
    sites: Sequence[str] | None = None,
    squares: bool = True,
    observables: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    num_steps: int | None = None,
    num_chains: int | None = None,
    bias: float | None = None,
    **fields: Any,
) -> Plan:
    """A plan for a posterior, ready to run: the one with the smallest expected error for a budget, by `gyromc.tune`.

    A warning says where the tuner could not know enough, and which sites to write in another way.

    **Arguments:**

    - `target`: from `gyromc.interop.numpyro.target`.
    - `gradients`, `error`, `seconds`: the budget, as for `gyromc.tune`: one of them at most. Left out: an error of 0.01 posterior
      standard deviations.
    - `sites`, `squares`: which sites to average, and whether their squares too; see `observables`.
    - `observables`: more observables by name, functions of {site: unconstrained array}.
    - `batch_size`: rows of the subsampled plate per gradient, by a control variate anchored at the mode; left out: all rows or
      mini-batches, whichever is cheaper.
    - `num_steps`, `num_chains`: in place of a budget, their product is the budget in gradients, and the plan has both (32 chains
      where only `num_steps` is given). `num_chains` goes with any other budget too.
    - `bias`: no longer used: the step size that is best for the budget is chosen.
    - `fields`: any other field of `gm.Plan`, in place of what was chosen.

    **Returns:** a `Plan`.

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
    asked = _Asked(target, sites, squares, observables, batch_size, num_steps, num_chains, bias, fields)
    found = asked.tuned(gradients, error, seconds)
    if found.warnings:
        warnings.warn(" ".join(found.warnings), GyromcWarning, stacklevel=2)
    return asked.overridden(found.plan)


def tune(
    target: Posterior,
    *,
    gradients: float | None = None,
    error: float | None = None,
    seconds: float | None = None,
    sites: Sequence[str] | None = None,
    squares: bool = True,
    observables: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    num_steps: int | None = None,
    num_chains: int | None = None,
    bias: float | None = None,
    **fields: Any,
) -> Tuned:
    """`plan` with its account: what was tried, the errors to expect by site, and what could not be known.

    The arguments are those of `plan`. A field that would change the errors to expect, such as `step_size`, is refused.

    **Returns:** a `gyromc.tuning.tuned.Tuned`; its `plan` is what `plan` returns, its `warnings` are what `plan` warns of.

    ```python
    import numpy as np
    import numpyro
    from numpyro import distributions as dist
    from gyromc.interop import numpyro as gnp

    def model(y):
        numpyro.sample("y", dist.Normal(numpyro.sample("m", dist.Normal(0.0, 2.0)), 0.5), obs=y)

    tuned = gnp.tune(gnp.target(model, np.array([1.0])), gradients=2000)
    assert tuned.expected["m"] < 0.05 * tuned.sd["m"] and not tuned.warnings
    ```
    """
    asked = _Asked(target, sites, squares, observables, batch_size, num_steps, num_chains, bias, fields)
    refused = [name for name in asked.changes if name not in HARMLESS]
    require(
        not refused,
        f"With another {', '.join(f'`{name}`' for name in refused)} the errors to expect are not known: use `gnp.plan`, which "
        "returns the plan alone.",
    )
    found = asked.tuned(gradients, error, seconds)
    return dataclasses.replace(found, plan=asked.overridden(found.plan))


@dataclasses.dataclass(frozen=True, eq=False)
class _Asked:
    """The arguments that `plan` and `tune` share, beside the budget."""

    target: Posterior
    sites: Sequence[str] | None
    squares: bool
    observables: Mapping[str, Any] | None
    batch_size: int | None
    num_steps: int | None
    num_chains: int | None
    bias: float | None
    fields: Mapping[str, Any]

    def __post_init__(self):
        require(
            isinstance(self.target, Posterior),
            f"`target` must be a posterior of a model: got {type(self.target).__name__}.",
        )
        unknown = [name for name in self.fields if name not in FIELDS]
        require(not unknown, f"A plan has no field {', '.join(unknown)}: its fields are {', '.join(FIELDS)}.")
        require(
            self.batch_size is None or "oracle" not in self.fields,
            "`batch_size` and `oracle` both say where gradients come from: pass one of them.",
        )
        if self.bias is not None:
            positive(self.bias, "bias")
            warnings.warn(
                "`bias` is no longer used: the step size with the smallest error for the budget is chosen.",
                DeprecationWarning,
                stacklevel=4,  # the caller of `plan`
            )

    @property
    def changes(self) -> dict[str, Any]:
        """The fields that replace what was chosen; seed and oracle are the tuner's own."""
        return {name: value for name, value in self.fields.items() if name not in ("seed", "oracle")}

    def tuned(self, gradients: float | None, error: float | None, seconds: float | None) -> Tuned:
        """What the tuner chose, with advice on sites where it was in doubt."""
        oracle = self._oracle()
        chains = None if self.num_chains is None else whole(self.num_chains, "num_chains", least=1)
        if self.num_steps is not None:
            require(
                gradients is None and error is None and seconds is None,
                "`num_steps` sets the budget: pass it or one of `gradients`, `error` and `seconds`.",
            )
            chains = CHAINS if chains is None else chains
            gradients = whole(self.num_steps, "num_steps", least=1) * chains * self._share(oracle)
        chosen = {**site_observables(self.target, self.sites, squares=self.squares), **(self.observables or {})}
        try:
            found = tune_any(
                self.target, observables=chosen, gradients=gradients, error=error, seconds=seconds, oracle=oracle,
                num_chains=chains, pilot=lambda: pilot(self.target), seed=self.fields.get("seed", 0),
            )  # fmt: skip
        except InvalidInput as refused:
            advice = _non_centred(self.target)
            if advice is None or "No plan can be recommended" not in str(refused):
                raise
            raise InvalidInput(f"{refused} {advice}") from None
        if self.num_steps is not None:
            plan = found.plan.replace(num_steps=self.num_steps)  # the burn-in is not counted
            found = dataclasses.replace(found, plan=plan, gradients=plan.gradients * self._share(plan.oracle))
        return dataclasses.replace(found, warnings=_with_advice(found.warnings, self.target))

    def overridden(self, chosen: Plan) -> Plan:
        """The plan with the fields asked for; another step size keeps the duration of the burn-in."""
        changes = self.changes
        if not changes:
            return chosen
        eta = changes.get("step_size")
        if isinstance(eta, float | int) and eta > 0 and "burn_in" not in changes:
            changes["burn_in"] = math.ceil(chosen.burn_in * chosen.eta / eta)
        return chosen.replace(**changes)

    def _oracle(self) -> Oracle | None:
        """The oracle that was asked for, if any."""
        if self.batch_size is None:
            return self.fields.get("oracle")
        target, size = self.target, whole(self.batch_size, "batch_size", least=1, most=10**9)
        require(
            isinstance(target, SubsampledPosterior),
            f"`batch_size={size}` needs a model with a subsampled plate: write the likelihood as `with numpyro.plate(name, N, "
            f"subsample_size={size}) as index: numpyro.sample(…, obs=y[index])`. "
            f"Observed here: {', '.join(map(repr, target.structure.observed))}.",
        )
        assert isinstance(target, SubsampledPosterior)
        model = Model(target, target.start)
        try:
            center = model.unravel(model.mode)
        except InvalidInput as error:
            raise InvalidInput(
                f"`batch_size={size}` takes a control variate anchored at the mode, and there is none: {error} Pass "
                "`oracle=gm.oracles.ControlVariate(size, center=…)` with a point of the posterior."
            ) from error
        return ControlVariate(size, center=center, replace=size > target.num_data)

    def _share(self, oracle: Oracle | None) -> float:
        """What one gradient of an oracle costs in gradients over all the data."""
        if oracle is None or not isinstance(self.target, SubsampledPosterior):
            return 1.0
        return oracle.evaluations(self.target) / self.target.num_data


def _with_advice(found: Sequence[str], target: Posterior) -> list[str]:
    """The tuner's warnings, and how to write sites whose scale is itself sampled."""
    advice = _non_centred(target) if found else None
    return [*found, *([] if advice is None else [advice])]


def _non_centred(target: Posterior) -> str | None:
    """How to write the sites whose scale is itself sampled; None where there are none."""
    found = scaled_by_latent(target)
    if not found:
        return None
    what = "; ".join(f"the scale of {name!r} depends on {', '.join(map(repr, by))}" for name, by in found.items())
    config = ", ".join(f'"{name}": LocScaleReparam(0)' for name in found)
    return (
        f"Non-centre {', '.join(map(repr, found))} ({what}): `from numpyro.infer.reparam import LocScaleReparam` and pass "
        f"`numpyro.handlers.reparam(model, config={{{config}}})` as the model."
    )
