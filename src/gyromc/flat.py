"""Parameters of any shape, a pytree of arrays, as one vector θ; in other coordinates θ = T(z) as z.

What a user passes as `start` becomes a template and a `Start`: rows of θ₀ and r₀.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import explained, numbers, require, require_finite, require_real
from gyromc.checks import leaves as leaves_of
from gyromc.coordinates import Coordinates, pulled
from gyromc.errors import InvalidInput
from gyromc.targets import SumOverData, Target

_template = lambda *shape: jax.ShapeDtypeStruct(shape, np.dtype(float))


class Unravel(eqx.Module):
    """The map from a vector to a pytree of arrays; two templates of the same shapes give equal maps."""

    treedef: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def __call__(self, theta):
        """Vectors along the last axis, one or many."""
        leaves, start = [], 0
        for shape in self.shapes:
            size = math.prod(shape)
            leaves.append(theta[..., start : start + size].reshape((*theta.shape[:-1], *shape)))
            start += size
        return jax.tree.unflatten(self.treedef, leaves)


class Moved(eqx.Module):
    """The map from z to parameters: θ = T(z), shaped as `unravel` does."""

    unravel: Callable
    coordinates: Coordinates

    def __call__(self, z):
        return self.unravel(self.coordinates.forward(z))


def identity(theta):
    """The map for parameters that are a vector already."""
    return theta


def shaped(unravel: Callable, rows: np.ndarray) -> Any:
    """Vectors θ along the last axis of a host array as parameters shaped as `unravel` does; copied only where they must be."""
    unravel = unravel.unravel if isinstance(unravel, Moved) else unravel
    return unravel(rows) if isinstance(unravel, Unravel) else rows


def axes_of(target: Target) -> tuple[dict[str, list[str]], dict[str, Any]]:
    """The names of the axes of what a target reports, and their labels, where it knows them."""
    dims = {name: list(axes) for name, axes in getattr(target, "dims", {}).items() if axes}
    return dims, dict(getattr(target, "coords", {}))


def ravel(params, dtype=None):
    """All entries of a pytree as one vector."""
    return jnp.concatenate([jnp.ravel(jnp.asarray(leaf, dtype)) for leaf in jax.tree.leaves(params)])


def unraveler(template, name: str = "start") -> tuple[Callable, int]:
    """The map from vectors to parameters shaped like a pytree, which messages call `name`, and the vectors' length."""
    for path, leaf in leaves_of(template, name):
        where = f"{name}{jax.tree_util.keystr(path)}"
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            what = "pass `eqx.partition(model, eqx.is_inexact_array)[0]` and combine it again in the log likelihood"
            wrong = f"{where} is {type(leaf).__name__}. For an Equinox module {what}."
            raise InvalidInput(f"Parameters must be arrays: {wrong}")
        what = f"{where} has dtype {leaf.dtype}. Keep constants out of the parameters, or convert it with `.astype(float)`."
        require(jnp.issubdtype(leaf.dtype, jnp.floating), f"Parameters must be real floating-point numbers: {what}")
    leaves, treedef = jax.tree.flatten(template)
    shapes = tuple(tuple(leaf.shape) for leaf in leaves)
    dim = sum(int(np.prod(shape)) for shape in shapes)
    require(dim > 0, f"The parameters are empty: `{name}` must hold at least one number.")
    if treedef == jax.tree.structure(0) and len(shapes[0]) == 1:
        return identity, dim
    return Unravel(treedef, shapes), dim


class FlatTarget(Target):
    """A target over parameters of any shape, as a function of one vector."""

    target: Any
    unravel: Callable
    size: int = eqx.field(static=True)

    dim = property(lambda self: self.size)

    def potential(self, params):
        return self.target.potential(self.unravel(params))

    def gradient(self, params):
        return ravel(self.target.gradient(self.unravel(params)))


class FlatSum(FlatTarget, SumOverData):
    """A sum over data over parameters of any shape, as a function of one vector."""

    num_data = property(lambda self: self.target.num_data)

    def batch_gradient(self, params, index):
        return ravel(self.target.batch_gradient(self.unravel(params), index))

    def prior_gradient(self, params):
        return ravel(self.target.prior_gradient(self.unravel(params)))

    def weighted_gradient(self, params, index, weight):
        return ravel(self.target.weighted_gradient(self.unravel(params), index, weight))


def flatten(target: Target, unravel: Callable, dim: int) -> Target:
    """The target as a function of the vector θ, or of z where `unravel` begins with T."""
    if isinstance(unravel, Moved):
        return pulled(flatten(target, unravel.unravel, dim), unravel.coordinates)
    # The target takes vectors itself.
    if unravel is identity or getattr(target, "unravel", None) == unravel:
        return target
    return (FlatSum if isinstance(target, SumOverData) else FlatTarget)(target, unravel, dim)


@dataclasses.dataclass(frozen=True, eq=False)
class Start:
    """Fixed rows of θ₀, one for all chains or one each; or a function of a key that draws one. r₀ is zero where it is None."""

    theta: np.ndarray | None = None
    draw: Callable | None = None
    r: np.ndarray | None = None

    def point(self, dim: int) -> np.ndarray:
        """One of the fixed points, zeros where they are drawn: where mode finding begins."""
        return np.zeros(dim) if self.theta is None else np.asarray(self.theta[0], float)

    def moved(self, coordinates: Coordinates) -> "Start":
        """The same start as z."""
        draw = self.draw
        if draw is None:
            return dataclasses.replace(self, theta=coordinates.zs(self.theta))
        return dataclasses.replace(self, draw=lambda key: coordinates.inverse(ravel(draw(key))))

    def check_precision(self, dtype: str) -> None:
        """Raise `InvalidInput` for fixed numbers whose squares a run in this precision cannot hold."""
        most = math.sqrt(float(np.finfo(dtype).max))
        for part in (self.theta, self.r):
            largest = 0.0 if part is None or not part.size else float(np.max(np.abs(part)))
            within = f"in {dtype} numbers must stay within ±{most:.2g}"
            remedy = "Start nearer to zero, or express the parameters in other units."
            require(largest < most, f"`start` holds {largest:.3g}: {within}. {remedy}")


def read_start(start: Any, dims: tuple[int, ...], state_size: int, num_chains: int, free: bool) -> tuple[Any, Start]:
    """The template of the parameters, and where the chains start."""
    if start is None:
        return _template(dims[0]), Start(np.zeros((1, dims[0])))
    found = [leaf for _, leaf in leaves_of(start, "start")]
    # A function, not a module that holds parameters.
    if callable(start) and len(found) == 1 and found[0] is start:
        with explained("`start` is a function that cannot be evaluated on a JAX key", "It must return parameters."):
            return jax.eval_shape(start, jax.random.key(0)), Start(draw=start)
    if is_array(start):
        array = numbers(start, "start")
        # How long a row may be, and how many of its numbers are θ₀.
        lengths = {d: d for d in dims}
        lengths |= {2 * d: d for d in dims if 2 * d == state_size and 2 * d not in lengths}
        rows = array.reshape(1, -1) if array.ndim <= 1 else array
        # A row of θ₀ or of (θ₀, r₀), or one such row per chain; a target without a shape takes any other array as its own.
        one_row = array.ndim == 1 or (array.ndim == 0 and not free)
        per_chain = array.ndim == 2 and len(array) == num_chains
        if (one_row or per_chain) and rows.shape[1] in lengths:
            dim = lengths[rows.shape[1]]
            return _template(dim), Start(rows[:, :dim], r=rows[:, dim:] if rows.shape[1] > dim else None)
        wanted = f"{' or '.join(map(str, lengths))} numbers (or {num_chains} such rows, one per chain)"
        what = f"{wanted} to fit the target and the dynamics: got shape {array.shape}."
        require(free and array.ndim != 1 and array.size in dims, f"`start` must have {what}")
        return _template(*array.shape), Start(array.reshape(1, -1))
    template = jax.tree.map(lambda x: np.asarray(x) if isinstance(x, float) else x, start)
    # Says what is wrong with a leaf before it is read.
    unraveler(template)
    for path, leaf in leaves_of(template, "start"):
        require_real(leaf, f"start{jax.tree_util.keystr(path)}")
        require_finite(np.asarray(leaf), f"start{jax.tree_util.keystr(path)}")
    return template, Start(np.concatenate([np.ravel(np.asarray(x, float)) for x in jax.tree.leaves(template)])[None])


def is_array(value) -> bool:
    """Whether a value is an array, a number or nested lists of numbers."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return True
    if isinstance(value, list):
        return all(isinstance(x, int | float | list | np.number) for x in value)
    return isinstance(value, int | float)
