"""A question to the solver: a target over one vector, and the observables whose expectations are asked for as one function.

Without observables, every parameter is asked for, or what the target's own `default_observables` returns (every site of a NumPyro
model).
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import cause, numbers, require, shown
from gyromc.errors import InvalidInput
from gyromc.flat import is_array
from gyromc.model import Model
from gyromc.observables import PROFILES, Observable, OnRows, Ridge
from gyromc.plan import Plan, shape_of
from gyromc.runtime.evaluation import compiled, doubled
from gyromc.runtime.machine import require_memory
from gyromc.runtime.precision import owned, private
from gyromc.targets import Target


@compiled
def _values(ridges: dict[str, Any], functions: tuple, unravel: Callable, rows):
    """All observables at every row: rows × columns, ridge functions ρ(Aθ) by profile first."""

    def one(theta):
        params = unravel(theta)
        parts = [PROFILES[profile](jnp.asarray(A) @ theta) for profile, A in ridges.items()]
        parts += [jnp.ravel(leaf) for h in functions for leaf in jax.tree.leaves(_callable(h)(params))]
        return jnp.concatenate([jnp.asarray(part, theta.dtype) for part in parts])

    return jax.vmap(one)(rows)


def _callable(h: Callable) -> Callable:
    """An observable as JAX traces it: a user's own function with its arrays in the precision of the trace."""
    return h if isinstance(h, Observable) else private(h)


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """A model and what is asked about it: the names of all numbers asked for, and the functions that return them.

    `order` has the columns of what is computed in the order of the names; None where the parameters themselves are asked for.
    """

    model: Model
    start: np.ndarray
    names: tuple[str, ...]
    ridges: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    functions: tuple[Any, ...] = ()
    order: np.ndarray | None = None

    @classmethod
    def read(cls, target: Target | Plan, observables: Mapping[str, Any] | None = None, start: Any = None) -> "Question":
        """The arguments of `expect`, checked; functions are called on shapes only."""
        model, begin, asked = _model(target, observables, start)
        if asked is None:
            default = getattr(model.target, "default_observables", None)
            if default is None:
                return cls(model, begin, tuple(_labels(model.template)))
            asked = {"": default()}
        require(
            isinstance(asked, Mapping) and len(asked) > 0,
            '`observables` must be functions by name, `{"name": h}`, or left out for every parameter. '
            f"Got {type(asked).__name__}{' without entries' if isinstance(asked, Mapping) else ''}.",
        )
        flat, functions, labels = hasattr(model.template, "shape"), {}, {}
        directions: dict[str, dict[str, np.ndarray]] = {}
        for name, h in asked.items():
            require(isinstance(name, str), f"Observables are named by strings: got the name {shown(name)}.")
            kind = f"must be of `gyromc.observables` or a function: got {type(h).__name__}."
            require(callable(h), f"Observable {name!r} {kind}")
            if not isinstance(h, Ridge):
                labels[name] = _value_labels(name, h, model.template)
                functions[name] = h if isinstance(h, Observable) else owned(h)
                continue
            require(
                len(h.direction) == model.dim and flat,
                f"Observable {name!r} has a direction of {len(h.direction)} numbers, but the parameters are {model.dim} "
                f"numbers{'' if flat else ' in a pytree: use `gm.observables.function(f)`'}.",
            )
            labels[name] = [name]
            directions.setdefault(h.profile, {})[name] = h.direction
        names = tuple(label for name in asked for label in labels[name])
        require(len(set(names)) == len(names), f"Two observables have the same name: {names}.")
        # JAX sorts the keys of a dictionary
        ridges = {profile: np.stack([*rows.values()]) for profile, rows in sorted(directions.items())}
        computed = [label for profile in ridges for label in directions[profile]]
        computed += [label for name in functions for label in labels[name]]
        column = {label: i for i, label in enumerate(computed)}
        order = np.array([column[label] for label in names])
        return cls(model, begin, names, ridges, tuple(functions.values()), order)

    @property
    def coordinates(self) -> list[str]:
        """A name for each parameter: of a model of another package as it names them."""
        shapes = getattr(self.model.target, "parameters", None)
        named = shapes and [label for name in sorted(shapes) for label in elements(name, shapes[name])]
        return named or _labels(self.model.template)

    @functools.cached_property
    def _pieces(self) -> tuple:
        return doubled((self.ridges, self.functions))

    def values(self, rows: np.ndarray) -> np.ndarray:
        """All observables at every row of θ, rows × names; `InvalidInput` where one is not finite."""
        if self.order is None:
            return np.asarray(rows, float)
        if self.ridges.keys() <= {"linear", "square"} and all(isinstance(h, OnRows) for h in self.functions):
            of_ridges = [PROFILES[profile](rows @ A.T) for profile, A in self.ridges.items()]
            found = np.concatenate([*of_ridges, *(h(rows) for h in self.functions)], axis=1)
        else:
            with jax.enable_x64(True):
                found = np.asarray(_values(*self._pieces, self.model.unravel, jnp.asarray(rows, float)), float)
        found = found[:, self.order]
        if not np.isfinite(found).all():
            row, column = np.argwhere(~np.isfinite(found))[0]
            where = f"{np.round(rows[row][:4], 4).tolist()}{'…' if rows.shape[1] > 4 else ''}"
            raise InvalidInput(
                f"Observable {self.names[column]!r} is {found[row, column]} at θ = {where}, where the density is positive. It "
                "must be finite there."
            )
        return found


def _model(target: Any, observables: Any, start: Any) -> tuple[Model, np.ndarray, Any]:
    """The model, where to begin, and the observables; a plan brings its own."""
    if isinstance(target, Plan):
        require(start is None, "A plan has its own `start`: leave `start` out, or pass `plan.target`.")
        target = target if target.coordinates is None else target.replace(coordinates=None)
        asked = target.observables if observables is None else observables
        return target.model, np.asarray(target.starts.point(target.dim), float), asked
    require(
        isinstance(target, Target),
        f"`target` must be a value of `gyromc.targets`, such as `LogDensity(f)`, or a `Plan`: got {type(target).__name__}.",
    )
    if start is None:
        template = getattr(target, "template", None)
        require(
            target.dim is not None or template is not None,
            f"{type(target).__name__} does not know its parameters' shape: pass `start`, an array or a pytree of them.",
        )
        model = Model(target, template)
        if type(target).__module__.partition(".")[0] != __name__.partition(".")[0]:
            shape_of("The target's gradient", target.gradient, model.template)
        own: Any = getattr(target, "start_point", None) if target.dim is not None else None
        return model, np.zeros(model.dim) if own is None else np.asarray(own(), float), observables
    if target.dim is not None:
        begin = numbers(start, "start")
        require(begin.shape == (target.dim,), f"`start` must hold {target.dim} numbers: got shape {begin.shape}.")
        return Model(target, start=begin), begin, observables
    # A list of numbers is a vector, as it is for a plan.
    template = jax.tree.map(lambda x: numbers(x, "start"), numbers(start, "start") if is_array(start) else start)
    begin = np.concatenate([np.ravel(x) for x in jax.tree.leaves(template)] or [[]])
    require(begin.size, f"`start` must hold the parameters: got {shown(start)}, without a number.")
    shape_of("The target's gradient", target.gradient, template)
    return Model(target, template, begin), begin, observables


def _labels(tree: Any, name: str = "") -> list[str]:
    """Names of all numbers of a pytree: theta[0] for a vector, the paths of the leaves otherwise, after a name."""
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        parts = name, jax.tree_util.keystr(path, simple=True, separator=".")
        found += elements(".".join(part for part in parts if part) or "theta", leaf.shape)
    return found


def elements(name: str, shape: tuple[int, ...]) -> list[str]:
    """Names of the elements of an array: `tau`, `beta[0]`, `W[1, 2]`."""
    return [f"{name}[{', '.join(map(str, index))}]" if index else name for index in np.ndindex(*shape)]


def _value_labels(name: str, h: Callable, template: Any) -> list[str]:
    try:
        # in double precision, as it will be computed
        with jax.enable_x64(True):
            params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, float), template)
            value = eqx.filter_eval_shape(_callable(h), params)
    except InvalidInput:
        raise
    except Exception as error:
        remedy = "Check that it reads parameters like `start`"
        if isinstance(error, jax.errors.TracerArrayConversionError):
            remedy = "Write it with `jax.numpy` in place of NumPy"
        raise InvalidInput(f"Observable {name!r} cannot be evaluated: {cause(error)}. {remedy}.") from error
    for leaf in jax.tree.leaves(value):
        kind = getattr(leaf, "dtype", None)
        require(
            kind is not None and any(jnp.issubdtype(kind, of) for of in (jnp.bool_, jnp.floating, jnp.integer)),
            f"Observable {name!r} must return real numbers: it returned {kind or type(leaf).__name__}.",
        )
        # Its values at 2048 draws.
        count, remedy = math.prod(leaf.shape), "Ask for fewer, or for a function of them."
        require_memory(2**14 * count, f"Observable {name!r} of {count:,} numbers", remedy)
    found = _labels(value, name)
    require(found, f"Observable {name!r} returned nothing: it must return a number or arrays.")
    return found
