"""The posterior of a NumPyro model as a target over its unconstrained sites: U = -log p(sites, data) - log |Jacobian|.

Input: a model and its arguments. Output: a `Posterior`; or a `SubsampledPosterior` when a plate of the model has a
`subsample_size`: a sum over that plate's rows, with every site outside the plate as the prior. `gyromc.interop.numpyro.target`
makes them; values are reported by site, in constrained space, however the parameters are chosen.
"""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to
from numpyro.infer.reparam import LocScaleReparam, Reparam
from numpyro.infer.util import constrain_fn, potential_energy

from gyromc.evaluation import doubled, over_rows, spend
from gyromc.interop.models import ModelPosterior, differences, unraveler_of
from gyromc.interop.numpyro.reading import DrivePlates, OnlyPart, Structure, on_device, unwrapped
from gyromc.precision import fresh, private
from gyromc.targets import SumOverData

__all__ = ["NumPyroPosterior", "SubsampledPosterior", "value_and_slope"]

BLOCK = (
    8192  # rows of a plate at once: with 50 columns 3 MB, which stay in a processor's cache; measured, 3 times faster
)
WHOLE = 8 * BLOCK  # fewer rows than this are computed at once
DIRECTIONS = 64  # in which gradients over blocks are differentiated at once


@eqx.filter_jit
def _slope(part: Callable, target: "NumPyroPosterior", params):
    """The gradient of a part of U. Always compiled: a model consists of many small operations."""
    return jax.grad(lambda p: part(target, p))(params)


@eqx.filter_jit
def value_and_slope(target: "NumPyroPosterior", theta):
    """U and ∇U at a vector."""
    return target.potential(theta), target.gradient(theta)


class NumPyroPosterior(ModelPosterior):
    """A model's posterior; parameters are {name: unconstrained array}, or one vector of them all, names in alphabetical order.

    A parameter has the name of its latent site, or `theta_decentered` where site `theta` is not sampled as it is written.
    """

    model: Callable
    args: tuple
    kwargs: dict
    structure: Structure = eqx.field(static=True)
    unravel: Callable
    size: int = eqx.field(static=True)

    def __init__(self, model: Callable, args: tuple, kwargs: dict, structure: Structure):
        self.model, self.args, self.kwargs, self.structure = model, args, kwargs, structure
        self.unravel, self.size = unraveler_of(structure.shapes)

    @property
    def parameters(self):
        return self.structure.shapes

    @property
    def sites(self):
        return self.structure.sites

    @property
    def derived(self):
        return (*self.structure.deterministic, *self.structure.on_rows)

    @property
    def on_rows(self):
        return (*self.structure.on_rows, *super().on_rows)

    def shape_of(self, site):
        return self.structure.values[site]

    def dims_of(self, site):
        return self.structure.dims[site]

    def potential(self, params):
        return potential_energy(self.on(None), *self.given(), self.by_site(params))

    def gradient(self, params):
        return _slope(NumPyroPosterior.potential, on_device(self), params)

    def values(self, params, names):
        transforms = self.structure.transforms
        if all(transforms.get(name) is not None for name in names):  # without calling the model
            return {name: transforms[name](params[name]) for name in names}
        found = self.constrained(params)
        return {name: found[name] for name in names}

    def constrained(self, params, deterministic: bool = True) -> dict[str, Any]:
        """The values of the latent and, optionally, the deterministic sites at unconstrained parameters."""
        return constrain_fn(self.on(None), *self.given(), self.by_site(params), deterministic)

    def unconstrained(self, values):
        with jax.enable_x64(True):
            given = {name: jnp.asarray(np.asarray(values[name], float)) for name in self.sites}
            return np.asarray(_inverted(doubled(self), given))

    def log_likelihoods(self, params):
        args, kwargs = self.given()
        values = self.constrained(params, deterministic=False)
        sites = handlers.trace(handlers.substitute(self.on(None), data=values)).get_trace(*args, **kwargs)
        observed = {
            name: sites[name] for name in self.structure.observed if not isinstance(sites[name]["fn"], dist.Unit)
        }
        return {name: site["fn"].log_prob(site["value"]) for name, site in observed.items()} or None

    def given(self) -> tuple[tuple, dict]:
        """The model's arguments with JAX arrays, which a model can index with the plate's indices."""
        return on_device((self.args, self.kwargs))

    def on(self, index) -> DrivePlates:
        """The model on the given rows of its subsampled plate, or on all of them, in the coordinates of the parameters."""
        model = private(self.model)
        if self.structure.centred:
            config: dict[str, Reparam] = {
                name: LocScaleReparam(fresh(c), more) for name, (c, more) in self.structure.centred.items()
            }
            model = handlers.reparam(model, config=config)
        return DrivePlates(model, None if index is None else self.structure.plate, index)

    def recentred(self, centred: Mapping[str, Any]) -> "NumPyroPosterior":
        """The same posterior in other coordinates: how far each site is centred, 1 as written, 0 as loc + scale · noise.

        A value is a number or an array of the site's shape. Sites that are not named stay as they are written.
        """
        moved = {name: value for name, value in centred.items() if not np.all(np.asarray(value) == 1)}
        return type(self)(self.model, self.args, self.kwargs, self.structure.recentred(moved))


class SubsampledPosterior(NumPyroPosterior, SumOverData):
    """A posterior whose subsampled plate is a sum over data. The oracle chooses the rows, not the model.

    A plate of many rows is computed in blocks: no array over all rows and all directions is ever made.
    """

    @property
    def num_data(self) -> int:
        """N, the rows of the plate."""
        assert self.structure.num_data is not None
        return self.structure.num_data

    @property
    def _in_blocks(self) -> bool:
        return self.num_data >= WHOLE

    def prior(self, params):
        """The part of U outside the plate, the Jacobian of the constraints included."""
        part = OnlyPart(self.on(None), self.structure.plate, inside=False)
        return potential_energy(part, *self.given(), self.by_site(params))

    def likelihood(self, params, index):
        """Σ_{i ∈ index} ℓ_i, counted with multiplicity."""
        params, rows = self.by_site(params), _portion(len(index), self.num_data)

        def portion(index):  # NumPyro scales by N/rows
            part = OnlyPart(self.on(index), self.structure.plate, inside=True)
            return potential_energy(part, *self.given(), params)

        portions = jnp.reshape(index, (-1, rows))
        total = portion(portions[0]) if len(portions) == 1 else jnp.sum(jax.vmap(portion)(portions))
        return total * (rows / self.num_data)

    def potential(self, params):
        if not self._in_blocks:
            return super().potential(params)
        # The rows of a block are read again where U is differentiated: to keep them would copy all the data.
        return self.prior(params) + self._summed(jax.checkpoint(lambda index: self.likelihood(params, index)))

    def gradient(self, params):
        if not self._in_blocks:
            return super().gradient(params)
        here = on_device(self)
        parts = _data_gradient(here, params), here.prior_gradient(params)
        return jax.tree.map(jnp.add, *parts)

    def batch_gradient(self, params, index):
        return jax.grad(self.likelihood)(params, index)

    def prior_gradient(self, params):
        return _slope(SubsampledPosterior.prior, on_device(self), params)

    def weighted_gradient(self, params, index, weight):
        return jax.grad(lambda p: weight * self.likelihood(p, index) + self.prior(p))(params)  # one pass over the batch

    def data_product(self, theta, direction):
        if not self._in_blocks:
            return super().data_product(theta, direction)
        return jax.jvp(lambda t: _data_gradient(self, t), (theta,), (direction,))[1]

    def data_hessian(self, theta):
        if not self._in_blocks:
            return super().data_hessian(theta)
        return over_rows(_data_product, np.eye(len(theta)), self, np.asarray(theta, float), chunk=DIRECTIONS)

    def hessians(self, rows, chunk: int = 512):
        if not self._in_blocks:
            return super().hessians(rows, chunk)
        spend(np.size(rows))
        prior = lambda at: over_rows(_prior_gradient, at, self)
        return np.stack([self.data_hessian(row) + differences(prior, row) for row in np.asarray(rows, float)])

    def _summed(self, part: Callable):
        """The sum over all rows of what `part` computes for the indices of a block."""
        block = _block(self.num_data)
        whole, left = divmod(self.num_data, block)
        add = lambda total, start: (jax.tree.map(jnp.add, total, part(start + jnp.arange(block))), None)
        first = part(jnp.arange(block))
        total, _ = jax.lax.scan(add, first, block * jnp.arange(1, whole))
        return jax.tree.map(jnp.add, total, part(block * whole + jnp.arange(left))) if left else total


@eqx.filter_jit
def _data_gradient(target: SubsampledPosterior, params):
    """Σ_i ∇ℓ_i over all rows, in blocks."""
    return target._summed(lambda index: target.batch_gradient(params, index))


def _data_product(target, theta, direction):
    return target.data_product(theta, direction)


def _prior_gradient(target, theta):
    return target.prior_gradient(theta)


@eqx.filter_jit
def _inverted(target: NumPyroPosterior, values):
    """The vector of parameters at every draw of constrained values, chains × draws."""
    users = DrivePlates(private(target.model))
    args, kwargs = target.given()

    def one(row):
        sites = handlers.trace(handlers.substitute(users, data=row)).get_trace(*args, **kwargs)
        return ravel_pytree(dict(_parameter(target.structure, name, sites[name]["fn"], row[name]) for name in row))[0]

    return jax.lax.map(jax.vmap(one), values)


def _parameter(structure: Structure, name: str, distribution, value) -> tuple[str, Any]:
    """The parameter that belongs to a site, by name, at which the site has this value."""
    if name not in structure.centred:
        return name, biject_to(distribution.support).inv(value)
    centred, inner = fresh(structure.centred[name][0]), unwrapped(distribution)
    return f"{name}_decentered", (value - inner.loc) / inner.scale ** (1 - centred) + centred * inner.loc


def _portion(batch: int, num_data: int) -> int:
    """How many rows the model gets at once: all, unless there are as many as the plate has, or more.

    A plate with as many indices as rows uses its data in order and ignores the indices, which is wrong for a batch drawn with
    replacement. Such batches are split into equal parts.
    """
    if batch < num_data:
        return batch
    return max((part for part in range(1, num_data) if batch % part == 0), default=1)


def _block(num_data: int) -> int:
    """The rows of a block: a divisor of their number, so that no smaller block is left, where there is one near `BLOCK`."""
    return next((size for size in range(BLOCK, BLOCK // 4, -1) if num_data % size == 0), BLOCK)
