"""A run, or what `expect` returned, as ArviZ's DataTree: the kept draws, and the averages over every step with their errors.

The groups are `posterior`, `sample_stats` (the log density of each draw), `posterior_predictive` and `log_likelihood` when asked
for, `observed_data` and `constant_data` where the target holds data, and our own `averages`.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gyromc import __version__
from gyromc.approx.sample import systematic
from gyromc.checks import require
from gyromc.extras import needs
from gyromc.flat import axes_of
from gyromc.posterior import Posterior
from gyromc.results import Run, flat_draws
from gyromc.runtime.machine import require_memory
from gyromc.runtime.precision import private
from gyromc.show.records import plain_attributes
from gyromc.targets import FiniteSum, SumOverData, Target

with needs("arviz", "`to_datatree`"):
    import arviz_base
    import xarray

LIBRARY = {"inference_library": "gyromc", "inference_library_version": __version__}
MOST_TERMS = 1e9
"""Data terms touched for the log density of every draw; with more it is left out."""


def to_datatree(
    run: Run,
    names: Sequence[str] | None = None,
    predictive: Callable | None = None,
    log_likelihood: bool | Callable = False,
) -> Any:
    """A run with kept draws as an ArviZ DataTree; chains that failed are left out, and their number is an attribute.

    **Arguments:**

    - `run`: made with `gyromc.run(plan, thin=…)`.
    - `names`: of the parameters: one for each entry of a vector (each becomes a variable of its own), or one for each array of a
      pytree; left out: `theta` for a vector, the paths of a pytree's arrays.
    - `predictive`: function of (parameters, JAX key) that draws from the predictive distribution, an array or a dictionary.
    - `log_likelihood`: True, or a function of the parameters that returns the log likelihood of each observation (an array, or
      a dictionary of arrays), for `arviz_stats.loo`.

    ```python
    import gyromc as gm
    plan = gm.Plan(target=gm.targets.Quadratic([1.0, 4.0]), dynamics=gm.dynamics.overdamped(2), step_size=0.1,
                   observables={"sum": gm.observables.linear([1.0, 1.0])}, num_chains=4)
    tree = gm.run(plan, thin=5).to_datatree(names=["slope", "offset"])
    print(tree.posterior["slope"].shape, "V" in tree.averages)  # (4, 20) True
    ```
    """
    none = "A DataTree holds draws, and this run kept none: `gyromc.run(plan, thin=10)` keeps every tenth state."
    require(run.draws is not None, none)
    good = ~run.diverged
    require(good.any(), "A DataTree holds draws, and every chain of this run failed.")
    draws = jax.tree.map(lambda x: np.asarray(x)[good], run.draws)
    target, shape = run.plan.target, jax.tree.leaves(draws)[0].shape[:2]
    groups: dict[str, dict[str, Any]] = {"posterior": _posterior(target.reported(draws), names)}
    # the log density at every draw, up to a constant, where that is affordable
    terms = target.num_data if isinstance(target, SumOverData) else 1
    if np.prod(shape, dtype=float) * terms <= MOST_TERMS:
        groups["sample_stats"] = {"lp": -run.plan.flat_target.potentials(flat_draws(run.draws, good)).reshape(shape)}
    if predictive is not None:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(run.plan.seed & 0xFFFFFFFF), 1), shape)
        drawn = jax.vmap(jax.vmap(predictive))(draws, keys)
        groups["posterior_predictive"] = jax.tree.map(np.asarray, drawn if isinstance(drawn, dict) else {"y": drawn})
    if log_likelihood is not False:
        groups["log_likelihood"] = _pointwise(target, log_likelihood, draws)
    if isinstance(target, FiniteSum):
        leaves = jax.tree_util.tree_leaves_with_path(target.data)
        groups["observed_data"] = {_path(path) if path else "data": np.asarray(leaf) for path, leaf in leaves}
    elif hasattr(target, "design"):
        X, y = run.plan.target.design  # type: ignore[attr-defined]  # seen above
        groups |= {"constant_data": {"X": np.asarray(X)}, "observed_data": {"y": np.asarray(y)}}
    # values that any file format accepts
    about = {
        **{key: "schedule" if value is None else value for key, value in run.plan.summary().items()},
        **plain_attributes(run, "engine", "engine_reason", "steps_done", "gradient_evaluations", "wall_time"),
        **{"scheme": run.plan.scheme.name, "plan": repr(run.plan)},
        **{"failed_chains": len(run.failures), "partial": int(run.partial)},
        **{"jax_version": jax.__version__, "numpy_version": np.__version__},
    }
    dims, coords = axes_of(target) if names is None else ({}, {})
    coords, about = {"chain": np.flatnonzero(good), **coords}, {"/": LIBRARY | about, "posterior": LIBRARY}
    tree = arviz_base.from_dict(groups, coords=coords, dims=dims, attrs=about)
    by_chain = np.stack([average[good] for average in run.averages.values()], axis=1)
    averages = _averages(run, V=run.variance).assign(chain_mean=(("chain", "observable"), by_chain))
    averages = averages.assign_coords(chain=np.flatnonzero(good))
    tree["averages"] = averages.assign_attrs(error_method=run.error_method, steps=run.steps_done)
    return tree


def posterior_datatree(found: Posterior) -> Any:
    """What `gyromc.expect` returned as an ArviZ DataTree, with draws of equal weight: each as often as its weight says."""
    rng, reported = np.random.default_rng(0), found.reported
    picked = np.stack([systematic(weights, len(weights), rng) for weights in found.weights])
    chains = np.arange(len(picked))[:, None]
    values = jax.tree.map(lambda leaf: np.asarray(leaf)[chains, picked], reported.parameters)
    account = {**dataclasses.asdict(found.account), "warnings": list(found.warnings)}
    attributes = {"/": LIBRARY | account, "posterior": LIBRARY}
    tree = arviz_base.from_dict(
        {"posterior": _posterior(values, None)}, coords=reported.coords, dims=reported.dims, attrs=attributes
    )
    tree["averages"] = _averages(found, sd=found.sd)
    return tree


def _posterior(draws, names: Sequence[str] | None) -> dict[str, np.ndarray]:
    leaves = jax.tree_util.tree_leaves_with_path(draws)
    vector = len(leaves) == 1 and not leaves[0][0] and leaves[0][1].ndim == 3
    parts = [leaves[0][1][..., i] for i in range(leaves[0][1].shape[2])] if vector else [leaf for _, leaf in leaves]
    if names is None:
        return {"theta": leaves[0][1]} if vector else {_path(path): leaf for path, leaf in leaves}
    names = [str(name) for name in names]
    wanted = f"{len(parts)} different names, one for each {'parameter' if vector else 'array of parameters'}"
    got = f"got {len(names)}, {len(set(names))} of them different"
    require(len(names) == len(parts) == len(set(names)), f"`names` must hold {wanted}: {got}.")
    return dict(zip(names, parts, strict=True))


def _path(path) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "theta"


def _pointwise(target: Target, wanted: bool | Callable, draws) -> dict[str, np.ndarray]:
    """The log likelihood of every observation at every draw, by name: chains × draws × observations."""
    require(wanted is True or callable(wanted), f"`log_likelihood` must be True or a function: got {wanted!r}.")
    one = private(wanted) if callable(wanted) else target.log_likelihoods
    with jax.enable_x64(jax.tree.leaves(draws)[0].dtype == np.float64):
        shapes = jax.eval_shape(one, jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), draws))
        remedy = "pass `log_likelihood=f`, a function of the parameters that returns an array with one number per observation."
        unknown = f"The target ({type(target).__name__}) does not know the likelihood of one observation"
        require(shapes is not None, f"{unknown}: {remedy}")
        count = sum(x.size for x in jax.tree.leaves(shapes)) * math.prod(jax.tree.leaves(draws)[0].shape[:2])
        what = f"The log likelihood of {float(count):.3g} pairs of draw and observation"
        require_memory(8 * count, what, "Keep fewer draws.")
        found = jax.lax.map(lambda chain: jax.lax.map(one, chain, batch_size=64), jax.tree.map(jnp.asarray, draws))
    return jax.tree.map(np.asarray, found if isinstance(found, dict) else {"y": found})


def _averages(found: Run | Posterior, **further: Any) -> Any:
    """Means with their standard errors, R-hat, effective sample size and `further` columns, by observable."""
    columns = {"mean": found.mean, "std_error": found.std_error, **further, "r_hat": found.r_hat, "ess": found.ess}
    by_name = {key: ("observable", np.array([*column.values()])) for key, column in columns.items()}
    return xarray.Dataset(by_name, coords={"observable": list(found)})
