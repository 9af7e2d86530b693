"""Anybody's draws as one array: what other packages return, in the coordinates of a target.

Input: draws from any sampler and the target they are draws of. Output: float64, chains × draws × d, in the unconstrained vector
coordinates of the target. Nothing of the other packages is imported: their objects are known by what they offer.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from gyromc.checks import leaves, numbers, require, shown
from gyromc.errors import InvalidInput
from gyromc.targets import Target

__all__ = ["read_draws"]


def read_draws(draws: Any, target: Target) -> np.ndarray:
    """Draws of a target as an array: chains × draws × d.

    **Arguments:**

    - `draws`: one of
        - an array, draws × d or chains × draws × d, or a pytree of arrays shaped like the parameters after these axes;
        - a state of BlackJAX with all draws in it, or anything else with a `position`;
        - a `numpyro.infer.MCMC` that has run, on the model of the target or on its potential;
        - a DataTree, InferenceData or Dataset with the variables of the posterior, of PyMC, NumPyro, Stan or gyromc;
        - a `gyromc.Run` with kept draws.
    - `target`: what they are draws of. Where it comes from a model, MCMC objects, trees and dictionaries by site hold values of
      the sites as the model has them (constrained); arrays and positions hold the target's own parameters.

    ```python
    import numpy as np
    import gyromc as gm
    from gyromc.draws import read_draws
    target = gm.targets.Quadratic([1.0, 4.0])
    assert read_draws(np.zeros((100, 2)), target).shape == (1, 100, 2)
    assert read_draws({"a": np.zeros((4, 100)), "b": np.zeros((4, 100))}, target).shape == (4, 100, 2)
    ```
    """
    values, by_site = _opened(draws)
    if by_site and hasattr(target, "unconstrained"):
        found = _from_sites(values, target)
    else:
        # A tree has its variables in the order of the parameters, a dictionary is a pytree with its own order.
        parts = list(values.values()) if by_site and values is not draws else jax.tree.leaves(values)
        found = _joined([numbers(part, "draws", finite=False) for part in parts], target.dim)
    bad = np.argwhere(~np.isfinite(found))
    if len(bad):
        raise InvalidInput(
            f"Draws must be finite: {len(bad)} of their {found.size} numbers are NaN or infinite, first in chain {bad[0][0]}, "
            f"draw {bad[0][1]}. Leave such draws out, and find out why they are there."
        )
    return found


def _opened(draws: Any) -> tuple[Any, bool]:
    """What a container holds, and whether these are values by name of a site or variable."""
    if hasattr(draws, "get_samples"):
        return _of_mcmc(draws)
    if hasattr(draws, "data_vars") or hasattr(draws, "posterior"):
        return _variables(draws), True
    if hasattr(draws, "position"):
        return draws.position, False
    if hasattr(draws, "plan") and hasattr(draws, "draws"):
        require(
            draws.draws is not None, "This run kept no draws: run it with `gm.run(plan, thin=10)` to keep every tenth."
        )
        return draws.draws, False
    require(
        not isinstance(draws, str) and draws is not None and len(leaves(draws, "draws")) > 0,
        f"`draws` must be an array, a pytree of arrays, a DataTree, an MCMC object or states: got {shown(draws)}.",
    )
    return draws, isinstance(draws, Mapping)


def _of_mcmc(sampler: Any) -> tuple[Any, bool]:
    """The samples of NumPyro's MCMC; they are values of sites unless it ran on a potential."""
    try:
        samples = sampler.get_samples(group_by_chain=True)
    except Exception as error:  # of another package, where nothing has run
        raise InvalidInput(
            f"This {type(sampler).__name__} has no samples ({type(error).__name__}): call its `run` first."
        ) from error
    return samples, isinstance(samples, Mapping) and getattr(
        getattr(sampler, "sampler", None), "model", None
    ) is not None


def _variables(tree: Any) -> dict[str, np.ndarray]:
    """The variables of the posterior group, chains × draws × shape, in their order."""
    group = getattr(tree, "posterior", tree)
    dims = set(getattr(group, "dims", ()))
    require(
        {"chain", "draw"} <= dims,
        "Draws in a tree must have the dimensions `chain` and `draw`, in its group `posterior`: got "
        f"{', '.join(map(str, dims)) or 'none'}.",
    )
    return {
        str(name): np.asarray(variable.transpose("chain", "draw", ...))
        for name, variable in group.data_vars.items()
        if {"chain", "draw"} <= set(variable.dims)
    }


def _joined(parts: Sequence[np.ndarray], dim: int | None) -> np.ndarray:
    """Arrays shaped like the parameters, after one or two axes over draws, as chains × draws × d."""
    least = min(part.ndim for part in parts)
    leading = [n for n in (1, 2) if n <= least and len({part.shape[:n] for part in parts}) == 1]
    sizes = {n: sum(int(np.prod(part.shape[n:])) for part in parts) for n in leading}
    fitting = [n for n in leading if dim is None or sizes[n] == dim]
    require(
        fitting and all(part.size for part in parts),
        f"The draws must be those of {dim} parameters, draws × {dim} or chains × draws × {dim}: got "
        f"{', '.join(str(part.shape) for part in parts[:6])}. Leave out derived quantities, and transpose where needed.",
    )
    # Where the target does not say how many parameters it has, an array of three axes or more has chains.
    axes = fitting[0] if dim is not None or least < 3 else fitting[-1]
    rows = np.concatenate([part.reshape(*part.shape[:axes], -1) for part in parts], axis=-1)
    return rows if axes == 2 else rows[None]


def _from_sites(values: Mapping[str, Any], target: Any) -> np.ndarray:
    """Values of a model's sites, or of the target's own parameters under other names, as vectors of parameters."""
    missing = [name for name in target.sites if name not in values]
    if missing and all(name in values for name in target.start):
        return _joined([numbers(values[name], "draws", finite=False) for name in sorted(target.start)], target.dim)
    require(
        not missing,
        f"The draws have no {', '.join(map(repr, missing))}: the model's latent sites are {', '.join(map(repr, target.sites))}, "
        f"and the draws hold {', '.join(map(repr, values))}. Sample the same model, and keep all its sites.",
    )
    found = {name: numbers(values[name], "draws", finite=False) for name in target.sites}
    axes = {name: value.ndim - len(target.structure.shapes[name]) for name, value in found.items()}
    first = next(iter(found))
    lead = found[first].shape[: axes[first]]
    for name, value in found.items():
        shape = target.structure.shapes[name]
        require(
            axes[name] in (1, 2) and value.shape[axes[name] :] == shape and value.shape[: axes[name]] == lead,
            f"Site {name!r} has shape {shape} in the model, after one axis over draws or two over chains and draws, the same for "
            f"all sites: got {value.shape}.",
        )
    if set(axes.values()) == {1}:
        found = {name: value[None] for name, value in found.items()}
    rows = target.unconstrained(found)
    _require_inside(rows, target)
    return rows


def _require_inside(rows: np.ndarray, target: Any) -> None:
    """Raise with the site whose values lie outside its support, or on its border."""
    outside = target.unravel(np.mean(~np.isfinite(rows), axis=(0, 1)))
    bad = {name: float(np.max(part)) for name, part in outside.items() if np.any(part)}
    require(
        not bad,
        f"Values outside the support of {', '.join(map(repr, bad))} ({max(bad.values(), default=0):.0%} of the draws), or on its "
        "border. Draws by site are values as the model has them (constrained). For unconstrained draws pass the array "
        "chains × draws × d, or an object with a `position`, as states of BlackJAX have.",
    )
