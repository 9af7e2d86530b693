"""A question to the solver: a target over one vector, and the observables whose expectations are asked for as one function.

Input: a target or a plan, observables by name or none, and a start. Output: a `Question` that gives the values of all observables
at many points from one compiled program; ridge functions are one product with a matrix. Without observables, every parameter is
asked for, or what the target's own `default_observables` returns (every site of a NumPyro model).
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
from gyromc.evaluation import compiled, doubled
from gyromc.flat import is_array
from gyromc.machine import require_memory
from gyromc.model import Model
from gyromc.observables import PROFILES, Observable, Ridge
from gyromc.plan import Plan, shape_of
from gyromc.precision import owned, private
from gyromc.targets import Target

__all__ = ["Question"]


class _Own(eqx.Module):
    """A user's function of the parameters."""

    fn: Callable

    def __call__(self, params):
        return private(self.fn)(params)


class _Ridges(eqx.Module):
    """Ridge functions with one profile, ρ(Aθ)."""

    directions: np.ndarray
    profile: str = eqx.field(static=True)

    def __call__(self, theta):
        return PROFILES[self.profile](jnp.asarray(self.directions) @ theta)


@compiled
def _values(ridges, functions, unravel, rows):
    """All observables at every row: rows × columns, ridge functions first."""

    def one(theta):
        params = unravel(theta)
        parts = [ridge(theta) for ridge in ridges]
        parts += [jnp.ravel(leaf) for h in functions for leaf in jax.tree.leaves(h(params))]
        return jnp.concatenate([jnp.asarray(part, theta.dtype) for part in parts])

    return jax.vmap(one)(rows)


@dataclasses.dataclass(frozen=True, eq=False)
class Question:
    """A model and what is asked about it.

    - `names`: of all numbers asked for, in the order of `values`; an array's elements are `name[i, j]`.
    - `parameters_only`: whether the observables are the parameters themselves, which takes no program.
    """

    model: Model
    start: np.ndarray
    names: tuple[str, ...]
    parameters_only: bool
    _ridges: tuple[_Ridges, ...] = ()
    _functions: tuple[Any, ...] = ()
    _order: np.ndarray | None = None

    @classmethod
    def read(cls, target: Target | Plan, observables: Mapping[str, Any] | None = None, start: Any = None) -> "Question":
        """The arguments of `expect`, checked; functions are called on shapes only."""
        model, begin, asked = _model(target, observables, start)
        if asked is None:
            default = getattr(model.target, "default_observables", None)
            if default is None:
                return cls(model, begin, tuple(_labels(model.template)), parameters_only=True)
            asked = {"": default()}
        require(
            isinstance(asked, Mapping) and len(asked) > 0,
            '`observables` must be functions by name, `{"name": h}`, or left out for every parameter. '
            f"Got {type(asked).__name__}{' without entries' if isinstance(asked, Mapping) else ''}.",
        )
        return cls._grouped(model, begin, asked)

    @classmethod
    def _grouped(cls, model: Model, begin: np.ndarray, asked: Mapping[str, Any]) -> "Question":
        """Ridge functions by profile, the rest one by one, and the columns in the order of the names."""
        by_profile: dict[str, list[tuple[str, np.ndarray]]] = {}
        functions, columns, labels = [], {}, {}
        for name, h in asked.items():
            require(isinstance(name, str), f"Observables are named by strings: got the name {shown(name)}.")
            require(
                callable(h),
                f"Observable {name!r} must be of `gyromc.observables` or a function: got {type(h).__name__}.",
            )
            labels[name] = (name,) if isinstance(h, Ridge) else _value_labels(name, h, model.template)
            if isinstance(h, Ridge):
                flat = hasattr(model.template, "shape")
                require(
                    len(h.direction) == model.dim and flat,
                    f"Observable {name!r} has a direction of {len(h.direction)} numbers, but the parameters are {model.dim} "
                    f"numbers{'' if flat else ' in a pytree: use `gm.observables.function(f)`'}.",
                )
                by_profile.setdefault(h.profile, []).append((name, h.direction))
            else:
                functions.append((name, h if isinstance(h, Observable) else _Own(owned(h))))
        ridges = tuple(_Ridges(np.stack([a for _, a in rows]), profile) for profile, rows in by_profile.items())
        computed = [name for rows in by_profile.values() for name, _ in rows] + [name for name, _ in functions]
        position = 0
        for name in computed:
            columns[name] = range(position, position + len(labels[name]))
            position += len(labels[name])
        order = np.array([i for name in asked for i in columns[name]])
        names = tuple(label for name in asked for label in labels[name])
        require(len(set(names)) == len(names), f"Two observables have the same name: {names}.")
        return cls(model, begin, names, False, ridges, tuple(h for _, h in functions), order)

    @property
    def coordinates(self) -> list[str]:
        """A name for each parameter: of a model of another package its site, unconstrained."""
        return list(getattr(self.model.target, "coordinate_names", None) or _labels(self.model.template))

    @functools.cached_property
    def _pieces(self) -> tuple:
        return doubled(self._ridges), doubled(self._functions)

    def values(self, rows: np.ndarray) -> np.ndarray:
        """All observables at every row of θ, rows × names; `InvalidInput` where one is not finite."""
        if self.parameters_only:
            return np.asarray(rows, float)
        with jax.enable_x64(True):
            found = np.asarray(
                _values(self._pieces[0], self._pieces[1], self.model.unravel, jnp.asarray(rows, float)), float
            )
        found = found[:, self._order]
        if not np.isfinite(found).all():
            row, column = np.argwhere(~np.isfinite(found))[0]
            where = np.round(rows[row][:4], 4).tolist()
            raise InvalidInput(
                f"Observable {self.names[column]!r} is {found[row, column]} at θ = {where}"
                f"{'…' if rows.shape[1] > 4 else ''}, a point of positive density. It must be finite there: fix it, or leave "
                "it out."
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
        f"`target` must be a value of `gyromc.targets` or a `Plan`: got {type(target).__name__}. A function that returns a log "
        "density becomes one by `gm.targets.LogDensity(fn)`.",
    )
    if start is None:
        require(
            target.dim is not None or getattr(target, "template", None) is not None,
            f"{type(target).__name__} does not know its parameters' shape: pass `start`, an array or a pytree of them.",
        )
        template = getattr(target, "template", None)
        model = Model(target, template)
        if type(target).__module__.partition(".")[0] != __name__.partition(".")[0]:
            shape_of("The target's gradient", target.gradient, model.template)
        own: Any = getattr(target, "start_point", None)
        known = target.dim is None or not callable(own)
        return model, np.zeros(model.dim) if known else np.asarray(own(), float), observables
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


def _labels(template: Any) -> list[str]:
    """Names of all numbers of a pytree: theta[0] for a vector, the paths of the leaves otherwise."""
    if hasattr(template, "shape"):
        return _elements("theta", template.shape)
    leaves = jax.tree_util.tree_leaves_with_path(template)
    return [label for path, leaf in leaves for label in _elements(_path(path), leaf.shape)]


def _path(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _elements(name: str, shape: tuple[int, ...]) -> list[str]:
    if not shape:
        return [name]
    return [f"{name}[{', '.join(map(str, index))}]" for index in np.ndindex(*shape)]


def _value_labels(name: str, h: Callable, template: Any) -> tuple[str, ...]:
    """The names of what a function returns: a number, or a pytree of arrays."""
    params = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.dtype("float64")), template)
    try:
        # in double precision, as it will be computed
        with jax.enable_x64(True):
            value = eqx.filter_eval_shape(h if isinstance(h, Observable) else private(h), params)
    except InvalidInput:
        raise
    except Exception as error:
        traced = isinstance(error, jax.errors.TracerArrayConversionError)
        remedy = (
            "Write it with `jax.numpy` in place of NumPy" if traced else "Check that it reads parameters like `start`"
        )
        raise InvalidInput(f"Observable {name!r} cannot be evaluated: {cause(error)}. {remedy}.") from error
    found = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(value):
        kind = getattr(leaf, "dtype", type(leaf).__name__)
        real = kind == "bool" or any(
            hasattr(leaf, "dtype") and jnp.issubdtype(kind, k) for k in (jnp.floating, jnp.integer)
        )
        require(
            real,
            f"Observable {name!r} must return real numbers: it returned {kind}. Ask for its real and imaginary part.",
        )
        whole = ".".join(part for part in (name, _path(path)) if part)
        # Its values at 2048 draws.
        remedy = "Ask for fewer, or for a function of them."
        require_memory(
            2**14 * math.prod(leaf.shape), f"Observable {name!r} of {math.prod(leaf.shape):,} numbers", remedy
        )
        found += _elements(whole, leaf.shape)
    require(found, f"Observable {name!r} returned nothing: it must return a number or arrays.")
    return tuple(found)
