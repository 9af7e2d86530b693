"""Posteriors of models written for other packages: unconstrained parameters by name inside, values of the model's sites outside.

A `Structure` has what NumPyro's and PyMC's models have in common: names, shapes and dimensions. `ModelPosterior` makes of it a
target over {name: unconstrained array}, or over one vector of them all, names in alphabetical order. A package adds the log
density and the two ways between parameters and values.
"""

import abc
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from gyromc.checks import require, shown
from gyromc.evaluation import doubled
from gyromc.flat import unraveler
from gyromc.targets import Target

DIFFERENCE = np.finfo(float).eps ** (1 / 3)
"""The step of a central difference that balances rounding and curvature."""
LARGEST_REPORTED = 10_000
"""Numbers of a derived value that is reported without being asked for."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Structure:
    """The sites of a model.

    - `sites`: the latent ones, in the model's order: with their values the parameters are known.
    - `deterministic`: the others that are reported; `on_rows`: those that are reported only where they are asked for, with one
      value per row of data, or very many.
    - `parameters`: the shapes of the unconstrained parameters.
    - `shapes`, `dims`: of every site's value, and the names of its axes.
    """

    sites: tuple[str, ...]
    deterministic: tuple[str, ...]
    on_rows: tuple[str, ...]
    parameters: Mapping[str, tuple[int, ...]]
    shapes: Mapping[str, tuple[int, ...]]
    dims: Mapping[str, tuple[str, ...]]

    def unraveler(self) -> tuple[Callable, int]:
        """The map from vectors to arrays by name, and the length of the vectors."""
        like = {name: jax.ShapeDtypeStruct(shape, np.dtype(float)) for name, shape in self.parameters.items()}
        return unraveler(like)


class ModelPosterior(Target):
    """A posterior over parameters by name, which reports the values of the model's sites."""

    structure: eqx.AbstractVar[Structure]
    unravel: eqx.AbstractVar[Callable]
    size: eqx.AbstractVar[int]

    @abc.abstractmethod
    def values(self, params: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """The values of these sites at parameters by name."""

    @abc.abstractmethod
    def parameters_at(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters by name at which the latent sites have these values."""

    @property
    def parameters(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the unconstrained parameters."""
        return self.structure.parameters

    @property
    def sites(self) -> tuple[str, ...]:
        """The latent sites, in the model's order."""
        return self.structure.sites

    @property
    def dim(self) -> int:
        """The number of unconstrained parameters."""
        return self.size

    @property
    def start(self) -> dict[str, np.ndarray]:
        """The origin of the unconstrained space, valid for every model: the default `start` of a plan."""
        return {name: np.zeros(shape) for name, shape in self.parameters.items()}

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """The names of the axes of every value that is reported."""
        return {name: self.structure.dims[name] for name in self.reported_sites()}

    def unconstrained(self, values: Mapping[str, Any]) -> np.ndarray:
        """The vectors of parameters (chains × draws × d) at which the latent sites have these values (chains × draws × shape).

        Not finite where a value lies outside the support of its site.
        """
        with jax.enable_x64(True):
            given = {name: jnp.asarray(np.asarray(values[name], float)) for name in self.sites}
            return np.asarray(_inverted(doubled(self), given))

    def hessians(self, rows, chunk: int = 512):
        # By differences of gradients: XLA never ends with a vmapped second derivative of a model with a Cholesky factor.
        return np.stack([differences(self.gradients, row) for row in np.asarray(rows, float)])

    def reported_sites(self, sites: Sequence[str] | None = None) -> tuple[str, ...]:
        """The sites asked for, checked; left out: the latent and the deterministic ones, but for those with a value per row."""
        usual = (*self.sites, *self.structure.deterministic)
        known = (*usual, *self.structure.on_rows)
        wanted: Any = usual if sites is None else tuple(sites) if isinstance(sites, list | tuple) else (sites,)
        unknown = [name for name in wanted if name not in known]
        require(
            wanted and not unknown,
            f"No site {', '.join(map(shown, unknown)) or 'given'} in the model: its latent and deterministic sites are "
            f"{', '.join(known)}.",
        )
        return wanted

    def default_observables(self) -> "Sites":
        """The function from parameters to the values of all reported sites, {site: array}."""
        return Sites(self)

    def reported(self, draws, sites: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Draws (chains × draws) by site, in constrained space; default: the latent and the deterministic sites."""
        values = Sites(self, sites)
        with jax.enable_x64(jax.tree.leaves(draws)[0].dtype == np.float64):
            return dict(jax.tree.map(np.asarray, jax.jit(jax.vmap(jax.vmap(values)))(draws)))

    def by_site(self, params) -> dict[str, Any]:
        """The parameters by name; raises `InvalidInput` for names or shapes that are not the model's."""
        shapes = self.parameters
        expected = "{" + ", ".join(f"{name!r}: {shape}" for name, shape in shapes.items()) + "}"
        if not isinstance(params, dict):
            require(
                np.shape(params) == (self.size,),
                f"The parameters of this model are {expected}, or one vector of {self.size} numbers: "
                f"got {type(params).__name__} of shape {np.shape(params)}.",
            )
            return self.unravel(params)
        missing, extra = sorted(set(shapes) - set(params)), sorted(map(str, set(params) - set(shapes)))
        require(
            not missing and not extra,
            f"The parameters must be given for the model's latent sites, {expected}; missing: "
            f"{', '.join(missing) or 'none'}; unknown: {', '.join(extra) or 'none'}. Begin with `target.start`.",
        )
        for name, shape in shapes.items():
            require(
                np.shape(params[name]) == shape,
                f"Site {name!r} has unconstrained shape {shape}: got {np.shape(params[name])}. "
                "Parameters are given in the unconstrained space; begin with `target.start`.",
            )
        return params


@eqx.filter_jit
def _inverted(target: ModelPosterior, values):
    """The vector of parameters at every draw of constrained values, chains × draws."""
    return jax.lax.map(jax.vmap(lambda row: ravel_pytree(target.parameters_at(row))[0]), values)


def element_name(site: str, index: tuple[int, ...]) -> str:
    """An element of an array by name: `tau`, `beta[0]`, `W[1, 2]`, as `gyromc.expect` names them."""
    return f"{site}[{', '.join(map(str, index))}]" if index else site


class Sites(eqx.Module):
    """The function from unconstrained parameters to {site: value}; a pytree, with the model's data in it."""

    target: ModelPosterior
    names: tuple[str, ...] = eqx.field(static=True)

    def __init__(self, target: ModelPosterior, sites: Sequence[str] | None = None):
        self.target, self.names = target, target.reported_sites(sites)

    def __call__(self, params):
        """The values at parameters by name, or at a vector."""
        found = self.target.values(self.target.by_site(params), self.names)
        # A pytree in the model's order.
        return OrderedDict((name, found[name]) for name in self.names)


def differences(gradients: Callable, theta: np.ndarray) -> np.ndarray:
    """The derivative of gradients (rows in, rows out) by central differences, made symmetric."""
    steps = DIFFERENCE * np.maximum(1.0, np.abs(theta))
    either = gradients(np.concatenate([theta + np.diag(steps), theta - np.diag(steps)]))
    # Not finite where U is not.
    with np.errstate(invalid="ignore"):
        K = (either[: len(theta)] - either[len(theta) :]) / (2 * steps[:, None])
    return (K + K.T) / 2
