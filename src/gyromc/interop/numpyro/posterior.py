"""The posterior of a NumPyro model as a target over its unconstrained sites: U = -log p(sites, data) - log |Jacobian|.

Input: a model and its arguments. Output: a `Posterior`; or a `SubsampledPosterior` when a plate of the model has a
`subsample_size`: a sum over that plate's rows, with every site outside the plate as the prior.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.infer.util import constrain_fn, potential_energy

from gyromc.checks import require
from gyromc.flat import unraveler
from gyromc.interop.numpyro.checking import check
from gyromc.interop.numpyro.handlers import DrivePlates, OnlyPart
from gyromc.interop.numpyro.reading import Structure, arguments, on_device, read
from gyromc.precision import private
from gyromc.targets import SumOverData, Target

__all__ = ["Posterior", "SubsampledPosterior", "target"]

FLOAT = np.dtype(float)


@eqx.filter_jit
def _slope(part: Callable, target: "Posterior", params):
    """The gradient of a part of U. Always compiled: a model consists of many small operations."""
    return jax.grad(lambda p: part(target, p))(params)


class Posterior(Target):
    """A model's posterior; parameters are {site: unconstrained array}, or one vector of them all, sites in alphabetical order."""

    model: Callable
    args: tuple
    kwargs: dict
    structure: Structure = eqx.field(static=True)
    unravel: Callable
    size: int = eqx.field(static=True)

    def __init__(self, model: Callable, args: tuple, kwargs: dict, structure: Structure):
        self.model, self.args, self.kwargs, self.structure = model, args, kwargs, structure
        self.unravel, self.size = unraveler(
            {name: jax.ShapeDtypeStruct(shape, FLOAT) for name, shape in structure.shapes.items()}
        )

    @property
    def dim(self) -> int:
        """The number of unconstrained parameters."""
        return self.size

    @property
    def sites(self) -> tuple[str, ...]:
        """The latent sites, in the model's order."""
        return tuple(self.structure.shapes)

    @property
    def start(self) -> dict[str, np.ndarray]:
        """The origin of the unconstrained space, valid for every model: the default `start` of a plan."""
        return {name: np.zeros(shape) for name, shape in self.structure.shapes.items()}

    def sites_of(self, coordinates) -> tuple[str, ...]:
        """The sites that the coordinates of the vector of all parameters belong to, in the model's order."""
        place = self.unravel(np.arange(self.size))
        return tuple(name for name in self.sites if np.any(np.isin(place[name], coordinates)))

    def potential(self, params):
        return potential_energy(self.on(None), *self.given(), self.by_site(params))

    def gradient(self, params):
        return _slope(Posterior.potential, on_device(self), params)

    def constrained(self, params, deterministic: bool = True, batch_ndims: int = 0) -> dict[str, Any]:
        """The values of the latent and, optionally, the deterministic sites at unconstrained parameters."""
        params = self.by_site(params) if batch_ndims == 0 else params
        return constrain_fn(self.on(None), *self.given(), params, deterministic, batch_ndims)

    def reported(self, draws, sites: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Draws (chains × draws) by site, in constrained space; default: the latent and the deterministic sites."""
        wanted = (*self.sites, *self.structure.deterministic) if sites is None else sites

        def values(params):
            found = self.constrained(params if isinstance(params, dict) else self.unravel(params))
            return {name: found[name] for name in wanted}

        with jax.enable_x64(jax.tree.leaves(draws)[0].dtype == np.float64):
            return jax.tree.map(np.asarray, jax.jit(jax.vmap(jax.vmap(values)))(draws))

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
        """The model on the given rows of its subsampled plate, or on all of them."""
        return DrivePlates(private(self.model), None if index is None else self.structure.plate, index)

    def by_site(self, params) -> dict[str, Any]:
        """The parameters by site name; raises `InvalidInput` for names or shapes that are not the model's."""
        shapes = self.structure.shapes
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


class SubsampledPosterior(Posterior, SumOverData):
    """A posterior whose subsampled plate is a sum over data. The oracle chooses the rows, not the model."""

    @property
    def num_data(self) -> int:
        """N, the rows of the plate."""
        assert self.structure.num_data is not None
        return self.structure.num_data

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

    def batch_gradient(self, params, index):
        return jax.grad(self.likelihood)(params, index)

    def prior_gradient(self, params):
        return _slope(SubsampledPosterior.prior, on_device(self), params)

    def weighted_gradient(self, params, index, weight):
        return jax.grad(lambda p: weight * self.likelihood(p, index) + self.prior(p))(params)  # one pass over the batch


def _portion(batch: int, num_data: int) -> int:
    """How many rows the model gets at once: all, unless there are as many as the plate has, or more.

    A plate with as many indices as rows uses its data in order and ignores the indices, which is wrong for a batch drawn with
    replacement. Such batches are split into equal parts.
    """
    if batch < num_data:
        return batch
    return max((part for part in range(1, num_data) if batch % part == 0), default=1)


def target(model: Callable, *args: Any, **kwargs: Any) -> Posterior:
    """A NumPyro model's posterior as a target.

    Constrained sites are transformed to unconstrained space; the log-Jacobian is part of U. A plate with a
    `subsample_size` makes the target a sum over its rows: the oracles `Minibatch` and `ControlVariate` then choose the rows of
    every gradient, whatever the `subsample_size` is. The model must use the plate's indices, or `numpyro.subsample`, inside it.

    **Arguments:**

    - `model`: a NumPyro model; all latent sites continuous, at least one site observed.
    - `args`, `kwargs`: the model's arguments.

    **Returns:** a `SubsampledPosterior` (a sum over data) or a `Posterior`.

    ```python
    import numpy as np
    import numpyro
    from numpyro import distributions as dist
    from gyromc.interop import numpyro as gnp

    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("data", len(y), subsample_size=1):
            numpyro.sample("y", dist.Normal(0.0, scale), obs=numpyro.subsample(y, event_dim=0))

    target = gnp.target(model, np.array([0.3, -1.2, 0.5]))
    assert target.num_data == 3 and target.sites == ("scale",)
    ```
    """
    require(callable(model), f"`model` must be a NumPyro model, a function: got {type(model).__name__}.")
    args, kwargs = arguments(args, kwargs)
    structure = read(model, args, kwargs)
    kind = Posterior if structure.plate is None else SubsampledPosterior
    found = kind(model, args, kwargs, structure)  # type: ignore[call-arg]  # the base class's `__init__`
    check(found)
    return found
