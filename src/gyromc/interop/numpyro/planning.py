"""A plan for the posterior of a NumPyro model: `gyromc.tune` with the model's sites as observables.

Input: a posterior and a budget. Output: a `Plan`, or a `Tuned` with its account. `gyromc.expect(target)` needs neither.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gyromc.checks import require, whole
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.interop.numpyro.posterior import NumPyroPosterior, SubsampledPosterior
from gyromc.interop.numpyro.results import observables as site_observables
from gyromc.model import Model
from gyromc.oracles import ControlVariate, Oracle
from gyromc.plan import FIELDS, Plan
from gyromc.tuning.tune import tune as tune_any
from gyromc.tuning.tuned import Tuned

CHAINS = 32
"""How many there are where only `num_steps` is given."""
BUDGETS = ("gradients", "error", "seconds")
TUNED = (*BUDGETS, "oracle", "num_chains", "seed", "start")
"""What `gyromc.tune` takes, beside the observables."""


def plan(target: NumPyroPosterior, *, num_steps: int | None = None, **asked: Any) -> Plan:
    """A plan for a posterior, ready to run: the one with the smallest expected error for a budget, by `gyromc.tune`.

    A warning says where the tuner could not know enough.

    **Arguments:**

    - `target`: from `gyromc.interop.numpyro.target`.
    - `num_steps`: in place of a budget: with `num_chains` (default 32), their product is the budget in gradients, and the plan
      has both.
    - `asked`: the arguments of `gyromc.interop.numpyro.tune`, and any other field of `gyromc.Plan`, in place of what was chosen.

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
    changes = {name: asked.pop(name) for name in FIELDS if name in asked and name not in (*TUNED, "observables")}
    if num_steps is not None:
        require(
            all(asked.get(name) is None for name in BUDGETS),
            "`num_steps` sets the budget: pass it or one of `gradients`, `error` and `seconds`.",
        )
        asked["num_chains"] = asked.get("num_chains") or CHAINS
        changes["num_steps"] = whole(num_steps, "num_steps", least=1)
        asked["gradients"] = num_steps * asked["num_chains"] * _share(target, asked)
    found = tune(target, **asked)
    if found.warnings:
        warnings.warn(" ".join(found.warnings), GyromcWarning, stacklevel=2)
    eta = changes.get("step_size")
    if isinstance(eta, float | int) and eta > 0 and "burn_in" not in changes:
        # For the same duration.
        changes["burn_in"] = math.ceil(found.plan.burn_in * found.plan.eta / eta)
    return found.plan.replace(**changes) if changes else found.plan


def tune(
    target: NumPyroPosterior,
    *,
    sites: Sequence[str] | None = None,
    squares: bool = True,
    observables: Mapping[str, Any] | None = None,
    batch_size: int | None = None,
    **budget: Any,
) -> Tuned:
    """`gyromc.tune` with the model's sites as observables.

    **Arguments:**

    - `target`: from `gyromc.interop.numpyro.target`.
    - `sites`, `squares`: which sites to average, and whether their squares too; see `observables`.
    - `observables`: more observables by name, functions of {site: unconstrained array}.
    - `batch_size`: rows of the subsampled plate per gradient, by a control variate anchored at the mode; left out: all rows or
      mini-batches, whichever is cheaper.
    - `budget`: the other arguments of `gyromc.tune`: `gradients`, `error` or `seconds`, `oracle`, `num_chains`, `seed`.

    **Returns:** a `gyromc.tuning.tuned.Tuned`: the plan, what was tried, and the errors to expect by site.

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
    unknown = [name for name in budget if name not in TUNED]
    require(
        not unknown,
        f"`tune` takes {', '.join(TUNED)}: got {', '.join(unknown)}. Another field of a plan goes to `gnp.plan`; its fields are "
        f"{', '.join(FIELDS)}.",
    )
    chosen = {**site_observables(target, sites, squares=squares), **(observables or {})}
    if batch_size is not None:
        require(
            "oracle" not in budget,
            "`batch_size` and `oracle` both say where gradients come from: pass one of them.",
        )
        budget["oracle"] = _anchored(target, whole(batch_size, "batch_size", least=1, most=10**9))
    return tune_any(target, observables=chosen, **budget)


def _anchored(target: NumPyroPosterior, size: int) -> Oracle:
    """A control variate of so many rows, anchored at the mode."""
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


def _share(target: NumPyroPosterior, asked: Mapping[str, Any]) -> float:
    """What one gradient costs in gradients over all the data."""
    if not isinstance(target, SubsampledPosterior):
        return 1.0
    if asked.get("batch_size") is not None:
        return 2 * asked["batch_size"] / target.num_data
    oracle = asked.get("oracle")
    return 1.0 if oracle is None else oracle.evaluations(target) / target.num_data
