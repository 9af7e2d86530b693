"""Reads a NumPyro model: which sites are sampled, observed or derived, their dimensions, and which plate can be mini-batched.

Also effect handlers that select rows of the subsampled plate or parts of the log density: NumPyro itself scales every site of a
plate by N/b; the handlers set indices. The model is traced as JAX will do later, so errors appear here and not during a run.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from numpyro import distributions as dist
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.infer import init_to_uniform
from numpyro.primitives import Messenger

from gyromc.checks import cause, require
from gyromc.errors import InvalidInput
from gyromc.interop.models import LARGEST_REPORTED, Structure
from gyromc.runtime.precision import fresh, private

LOCATION_SCALE: dict[type, tuple[str, ...]] = {
    **dict.fromkeys((dist.Normal, dist.Cauchy, dist.Laplace, dist.Logistic, dist.Gumbel, dist.SoftLaplace), ()),
    dist.StudentT: ("df",),
}
"""Distributions of loc + scale · noise, with the parameters of the noise."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class NumPyroStructure(Structure):
    """The sites of a NumPyro model, and its subsampled `plate` with `num_data` rows.

    `hierarchical`: location-scale sites whose scale is sampled, with the parameters of their noise; `centred`: how far sites are
    centred that are not sampled as written.
    """

    observed: tuple[str, ...]
    hierarchical: Mapping[str, tuple[str, ...]]
    plate: str | None
    num_data: int | None
    centred: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def _converted(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
    """Arguments with arrays of float64 or int32, and Python numbers for NumPy scalars."""

    def clean(path, leaf):
        if isinstance(leaf, np.generic):
            return leaf.item()
        if isinstance(leaf, jax.Array | np.ndarray):
            leaf = fresh(leaf)
            if jnp.issubdtype(leaf.dtype, np.floating):
                return np.asarray(leaf, float)
            numeric = isinstance(leaf, jax.Array) or leaf.dtype.kind in "iub"
            require(numeric, f"The model's argument {place(path)} must be numeric: it is an array of {leaf.dtype}.")
            # int32 where it holds them: the same type in every precision of a run
            fits = leaf.dtype.kind in "iu" and np.array_equal(leaf, np.asarray(leaf).astype(np.int32))
            return np.asarray(leaf, np.int32) if fits else leaf
        try:
            hash(leaf)
        except TypeError:
            got = f"got {type(leaf).__name__}. Convert it first, for example with `.to_numpy()`."
            raise InvalidInput(f"The model's argument {place(path)} must be an array or a plain value: {got}") from None
        return leaf

    return jax.tree_util.tree_map_with_path(clean, (args, kwargs))


def on_device(arguments):
    """Arguments with their arrays as JAX arrays, in the precision JAX is set to, created outside the current trace."""
    with jax.ensure_compile_time_eval():
        return jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, fresh(arguments))


def place(path) -> str:
    """`args[0]['x']` for a leaf of (args, kwargs)."""
    return ("args" if path[0].idx == 0 else "kwargs") + jax.tree_util.keystr(path[1:])


def read(model: Callable, args: tuple, kwargs: dict) -> tuple[tuple, dict, NumPyroStructure]:
    """The arguments, converted, and the structure of the model; raises where gradients cannot sample it or data do not fit."""
    args, kwargs = _converted(args, kwargs)
    found: list[NumPyroStructure] = []

    @eqx.filter_jit
    def traced(key, args, kwargs):
        sites, plates = _trace(model, args, kwargs, key)
        found.append(_structure(sites, plates))
        scales = {name: unwrapped(sites[name]["fn"]).scale for name in found[0].hierarchical}
        return scales, {name: _observation(sites[name]) for name in found[0].observed}

    with jax.enable_x64(True):
        scales, observations = traced(jax.random.key(0), *fresh((args, kwargs)))
        others, _ = traced(jax.random.key(1), *fresh((args, kwargs)))
    # NumPyro returns a density even for values outside the support.
    for name, (value, inside, support) in ((n, found) for n, found in observations.items() if found is not None):
        bad = np.argwhere(np.atleast_1d(~np.asarray(inside)))
        if len(bad):
            where = tuple(int(i) for i in bad[0])
            first = np.atleast_1d(np.asarray(value))[where]
            remedy = "Drop or mask missing values." if np.any(np.isnan(first)) else "Check how the data are coded."
            outside = f"has {len(bad)} values outside the support of its distribution ({support})"
            raise InvalidInput(f"Observed site {name!r} {outside}, the first at {where}: {first}. {remedy}")
    moving = [name for name in scales if not np.array_equal(scales[name], others[name])]
    hierarchical = {name: found[0].hierarchical[name] for name in moving}
    return args, kwargs, dataclasses.replace(found[0], hierarchical=hierarchical)


def _trace(model: Callable, args: tuple, kwargs: dict, key) -> tuple[dict, dict[str, int]]:
    """The sites at a random point, every subsampled plate on all its rows, and the sizes of those plates."""
    driven = DrivePlates(private(model))
    seeded = handlers.substitute(handlers.seed(driven, rng_seed=key), substitute_fn=init_to_uniform)
    try:
        return handlers.trace(seeded).get_trace(*args, **kwargs), driven.plates
    except InvalidInput:
        raise
    # Anything the user's function raises; it becomes the cause.
    except Exception as error:
        remedy = "Pass what you would pass to `numpyro.infer.MCMC.run`."
        if "Tracer" in type(error).__name__ or "Concret" in type(error).__name__:
            remedy = (
                "Arrays have no value there: pass sizes, such as a number of groups, as arguments; branch on no array."
            )
        name = getattr(model, "__name__", type(model).__name__)
        wrong = f"The model `{name}` cannot be traced with the arguments given: {cause(error)}."
        raise InvalidInput(f"{wrong} {remedy}") from error


def _structure(sites: dict, plates: dict[str, int]) -> NumPyroStructure:
    latent = {name: s for name, s in sites.items() if s["type"] == "sample" and not s["is_observed"]}
    observed = [name for name, s in sites.items() if s["type"] == "sample" and s["is_observed"]]
    derived = [name for name, s in sites.items() if s["type"] == "deterministic"]
    _check_sites(sites, latent, observed)
    several = f"The model subsamples {len(plates)} plates ({', '.join(map(repr, plates))})"
    require(len(plates) <= 1, f"{several}: leave `subsample_size` out of all but one.")
    plate = next(iter(plates), None)
    for name, site in latent.items():
        inside = f"Latent site {name!r} lies inside the subsampled plate {plate!r}"
        remedy = "Leave `subsample_size` out, or integrate the local variable out yourself."
        require(not in_plate(site, plate), f"{inside}: a mini-batch would move only the rows it holds. {remedy}")
    used = plate is None or any(in_plate(sites[name], plate) for name in observed)
    require(used, f"Plate {plate!r} is subsampled but holds no observed site: leave `subsample_size` out of it.")
    # those that `LocScaleReparam` takes
    laws = {n: type(unwrapped(s["fn"])) for n, s in latent.items() if not isinstance(s["fn"], dist.MaskedDistribution)}
    named = {**latent, **{name: sites[name] for name in derived}}
    on_rows = [n for n in derived if in_plate(sites[n], plate) or np.size(sites[n]["value"]) > LARGEST_REPORTED]
    return NumPyroStructure(
        sites=tuple(latent),
        parameters={name: tuple(biject_to(s["fn"].support).inv(s["value"]).shape) for name, s in latent.items()},
        dims={name: _dims(name, site) for name, site in named.items()},
        shapes={name: np.shape(site["value"]) for name, site in named.items()},
        hierarchical={name: LOCATION_SCALE[law] for name, law in laws.items() if law in LOCATION_SCALE},
        observed=tuple(observed),
        deterministic=tuple(name for name in derived if name not in on_rows),
        on_rows=tuple(on_rows),
        plate=plate,
        num_data=None if plate is None else plates[plate],
    )


def _check_sites(sites: dict, latent: dict, observed: list) -> None:
    network = "for a network: `numpyro.contrib.module.random_flax_module`"
    for name, site in sites.items():
        what = f"Site {name!r} is a `numpyro.{site['type']}`, which is optimised, not sampled"
        remedy = f"give it a prior with `numpyro.sample` ({network}), or make it a constant."
        require(site["type"] not in ("param", "mutable"), f"{what}: {remedy}")
    sums = "Sum it out, for example with `dist.MixtureSameFamily`, or with `jax.nn.logsumexp` and `numpyro.factor`."
    for name, site in latent.items():
        what = f"Latent site {name!r} is discrete ({type(unwrapped(site['fn'])).__name__}): gradients cannot move it."
        require(not site["fn"].support.is_discrete, f"{what} {sums}")
        point = f"Latent site {name!r} has a point mass as its prior: use `numpyro.deterministic` for a derived value."
        require(not isinstance(site["fn"], dist.Delta), point)
    require(latent, f"The model has no latent site to sample: its sites are {', '.join(map(repr, sites)) or 'none'}.")
    named = ", ".join(map(repr, latent))
    require(observed, f"The model has no observed site (latent: {named}). Pass the data, for a `sample(…, obs=…)`.")


def _observation(site) -> tuple[Any, Any, Any] | None:
    """A site's data, which of them lie in the support, and the support; None where it depends on parameters or is unknown."""
    distribution, counted = site["fn"], True
    if isinstance(distribution, dist.MaskedDistribution):
        distribution, counted = distribution.base_dist, distribution._mask
    law = distribution
    while isinstance(law, dist.Independent | dist.ExpandedDistribution):
        law = law.base_dist
    constant = isinstance(getattr(type(law), "support", None), constraints.Constraint)
    if isinstance(distribution, dist.Unit) or law.support is None or not (law.support.is_discrete or constant):
        return None
    support: Any = distribution.support
    return site["value"], support(site["value"]) | ~jnp.asarray(counted), support


def _dims(name: str, site: dict) -> tuple[str, ...]:
    """The names of a value's axes: plates where it lies in them, else `beta_dim_0`, as ArviZ calls them."""
    shape = np.shape(site["value"])
    found = [f"{name}_dim_{axis}" for axis in range(len(shape))]
    event = site["fn"].event_dim if site["type"] == "sample" else 0
    for frame in site["cond_indep_stack"]:
        axis = len(shape) - event + frame.dim
        if 0 <= axis < len(shape) and shape[axis] == frame.size:
            found[axis] = frame.name
    return tuple(found)


def unwrapped(distribution) -> Any:
    """The distribution behind expansions, events and masks."""
    while isinstance(distribution, dist.Independent | dist.ExpandedDistribution | dist.MaskedDistribution):
        distribution = distribution.base_dist
    return distribution


class DrivePlates(Messenger):
    """Sets the indices of a plate with a `subsample_size`: `index`, or all rows.

    `plates` records such plates and their sizes. `drawing` allows random numbers: new data need them, a log density must not.
    """

    def __init__(self, fn, index=None, drawing: bool = False):
        self.index, self.drawing = index, drawing
        self.plates: dict[str, int] = {}
        super().__init__(fn)

    def process_message(self, msg):
        if msg["type"] == "prng_key" and msg["value"] is None and not self.drawing:
            what = "The model draws random numbers of its own (`numpyro.prng_key()`)"
            remedy = "Make the random values a sample site, or pass a fixed key in the arguments."
            raise InvalidInput(f"{what}, so its log density is not a function of the parameters. {remedy}")
        if msg["type"] != "plate" or msg["args"][1] is None:
            return
        size, asked = msg["args"]
        wrong = f"Plate {msg['name']!r} has `subsample_size={asked}` but only {size} rows: take 1 to {size}."
        require(self.drawing or 1 <= asked <= size, wrong)
        self.plates[msg["name"]] = size
        value = jnp.arange(size) if self.index is None else self.index
        msg["value"], msg["args"] = value, (size, value.shape[0])


class OnlyPart(Messenger):
    """Keeps the log density of the sites inside the plate `name`, or of all others; the rest is not computed."""

    def __init__(self, fn, name: str | None, inside: bool):
        self.name, self.inside = name, inside
        super().__init__(fn)

    def process_message(self, msg):
        if msg["type"] == "sample" and in_plate(msg, self.name) != self.inside:
            msg["fn"] = msg["fn"].mask(False)


def in_plate(site, name: str | None) -> bool:
    """Whether a site lies inside the plate."""
    return any(frame.name == name for frame in site["cond_indep_stack"])
