"""Posteriors of models written for other packages: unconstrained parameters by name inside, values of the model's sites outside.

A target is over {name: unconstrained array}, or over one vector of them all, names in alphabetical order. A package adds the log
density and the two ways between parameters and values.
"""

import abc
import dataclasses
import math
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from gyromc.checks import require, shown
from gyromc.flat import unraveler
from gyromc.runtime.evaluation import doubled
from gyromc.targets import Target

LARGEST_REPORTED = 10_000
"""Numbers of a derived value that is reported without being asked for."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Structure:
    """The sites of a model: `sites` are the latent ones, in the model's order; with their values the parameters are known.

    Of the others `deterministic` are reported, and `on_rows` only where they are asked for: with one value per row of data, or
    very many. `parameters` has the shapes of the unconstrained parameters; `shapes` and `dims` are of every site's value.
    """

    sites: tuple[str, ...]
    deterministic: tuple[str, ...]
    on_rows: tuple[str, ...]
    parameters: Mapping[str, tuple[int, ...]]
    shapes: Mapping[str, tuple[int, ...]]
    dims: Mapping[str, tuple[str, ...]]


class ModelPosterior(Target):
    """A posterior over parameters by name, which reports the values of the model's sites."""

    structure: eqx.AbstractVar[Structure]

    @abc.abstractmethod
    def values(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values of all sites that can be reported, at parameters by name."""

    @abc.abstractmethod
    def parameters_at(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters by name at which the latent sites have these values."""

    @property
    def parameters(self) -> Mapping[str, tuple[int, ...]]:
        """The shapes of the unconstrained parameters."""
        return self.structure.parameters

    @property
    def sites(self) -> tuple[str, ...]:
        return self.structure.sites

    @property
    def dim(self) -> int:
        return sum(map(math.prod, self.parameters.values()))

    @property
    def unravel(self) -> Callable:
        return unraveler(self.start)[0]

    @property
    def start(self) -> dict[str, np.ndarray]:
        """The origin of the unconstrained space, valid for every model: the default `start` of a plan."""
        return {name: np.zeros(shape) for name, shape in self.parameters.items()}

    @property
    def dims(self) -> dict[str, tuple[str, ...]]:
        """The names of the axes of every value that is reported."""
        return {name: self.structure.dims[name] for name in self.reported_sites()}

    def unconstrained(self, values: Mapping[str, Any]) -> np.ndarray:
        """The parameters (chains × draws × d) at which the sites have these values; not finite outside the support of a site."""
        with jax.enable_x64(True):
            given = {name: jnp.asarray(np.asarray(values[name], float)) for name in self.sites}
            return np.asarray(_inverted(doubled(self), given))

    def hessians(self, rows):
        # By differences of gradients: XLA never ends with a vmapped second derivative of a model with a Cholesky factor.
        found = []
        for theta in np.asarray(rows, float):
            # the step that balances rounding and curvature
            steps = np.finfo(float).eps ** (1 / 3) * np.maximum(1.0, np.abs(theta))
            either = self.gradients(np.concatenate([theta + np.diag(steps), theta - np.diag(steps)]))
            # Not finite where U is not.
            with np.errstate(invalid="ignore"):
                K = (either[: len(theta)] - either[len(theta) :]) / (2 * steps[:, None])
            found.append((K + K.T) / 2)
        return np.stack(found)

    def reported_sites(self, sites: Sequence[str] | None = None) -> tuple[str, ...]:
        """The sites asked for, checked; left out: the latent and the deterministic ones, but for those with a value per row."""
        usual = (*self.sites, *self.structure.deterministic)
        known = (*usual, *self.structure.on_rows)
        wanted: Any = usual if sites is None else tuple(sites) if isinstance(sites, list | tuple) else (sites,)
        unknown = [name for name in wanted if name not in known]
        missing = ", ".join(map(shown, unknown)) or "given"
        require(wanted and not unknown, f"No site {missing} in the model: it has {', '.join(known)}.")
        return wanted

    def default_observables(self) -> "Sites":
        """The function from parameters to the values of all reported sites, {site: array}."""
        return Sites(self, self.reported_sites())

    def reported(self, draws, sites: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Draws (chains × draws) by site, in constrained space; default: the latent and the deterministic sites."""
        values = Sites(self, self.reported_sites(sites))
        with jax.enable_x64(jax.tree.leaves(draws)[0].dtype == np.float64):
            return dict(jax.tree.map(np.asarray, jax.jit(jax.vmap(jax.vmap(values)))(draws)))

    def by_site(self, params) -> dict[str, Any]:
        """The parameters by name; raises `InvalidInput` for names or shapes that are not the model's."""
        shapes, by_name = dict(self.parameters), isinstance(params, dict)
        given = {name: np.shape(value) for name, value in params.items()} if by_name else np.shape(params)
        wanted = f"The parameters are {shapes}, or one vector of {self.dim} numbers"
        require(given in (shapes, (self.dim,)), f"{wanted}: got {given}. Begin with `target.start`.")
        return params if by_name else self.unravel(params)


@eqx.filter_jit
def _inverted(target: ModelPosterior, values):
    """The vector of parameters at every draw of constrained values, chains × draws."""
    return jax.lax.map(jax.vmap(lambda row: ravel_pytree(target.parameters_at(row))[0]), values)


class Sites(eqx.Module):
    """The function from unconstrained parameters to {site: value}; a pytree, with the model's data in it."""

    target: ModelPosterior
    names: tuple[str, ...] = eqx.field(static=True)

    def __call__(self, params):
        # The compiler leaves out what these sites do not need, such as the likelihood.
        found = self.target.values(self.target.by_site(params))
        # A pytree in the model's order.
        return OrderedDict((name, found[name]) for name in self.names)
