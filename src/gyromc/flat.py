"""Parameters of any shape as one vector θ.

The input is a template of a user's parameters, any pytree of arrays; the output is the map from vectors to such parameters
(`unraveler`) and the target as a function of the vector (`flatten`).
"""

import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import leaves as leaves_of
from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.targets import SumOverData, Target

__all__ = ["FlatSum", "FlatTarget", "Unravel", "flatten", "identity", "ravel", "shaped", "unraveler"]


class Unravel(eqx.Module):
    """The map from a vector to a pytree of arrays; two templates of the same shapes give equal maps."""

    treedef: Any = eqx.field(static=True)
    shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    def __call__(self, theta):
        leaves, start = [], 0
        for shape in self.shapes:
            size = int(np.prod(shape))
            leaves.append(theta[start : start + size].reshape(shape))
            start += size
        return jax.tree.unflatten(self.treedef, leaves)


def identity(theta):
    """The map for parameters that are a vector already."""
    return theta


def shaped(unravel: Callable, rows: np.ndarray) -> Any:
    """Vectors along the last axis of a host array as parameters shaped as `unravel` does; copied only where they must be.

    ```python
    import numpy as np
    from gyromc.flat import shaped, unraveler
    unravel, _ = unraveler({"a": np.zeros((2, 2)), "b": np.zeros(())})
    assert shaped(unravel, np.zeros((7, 3, 5)))["a"].shape == (7, 3, 2, 2)
    ```
    """
    if not isinstance(unravel, Unravel):
        return rows
    leaves, start = [], 0
    for shape in unravel.shapes:
        size = math.prod(shape)
        leaves.append(rows[..., start : start + size].reshape(*rows.shape[:-1], *shape))
        start += size
    return jax.tree.unflatten(unravel.treedef, leaves)


def ravel(params, dtype=None):
    """All entries of a pytree as one vector."""
    return jnp.concatenate([jnp.ravel(jnp.asarray(leaf, dtype)) for leaf in jax.tree.leaves(params)])


def unraveler(template, name: str = "start") -> tuple[Callable, int]:
    """The map from vectors to parameters shaped like `template`, and the vector's length; raises `InvalidInput` for a bad leaf.

    `name` is what messages call the template, a pytree of arrays or shapes.
    """
    for path, leaf in leaves_of(template, name):
        where = f"{name}{jax.tree_util.keystr(path)}"
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise InvalidInput(
                f"Parameters must be arrays: {where} is {type(leaf).__name__}. For an Equinox module pass "
                "`eqx.partition(model, eqx.is_inexact_array)[0]` and combine it again in the log likelihood."
            )
        require(
            jnp.issubdtype(leaf.dtype, jnp.floating),
            f"Parameters must be real floating-point numbers: {where} has dtype {leaf.dtype}. "
            "Keep constants out of the parameters, or convert it with `.astype(float)`.",
        )
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

    @property
    def dim(self) -> int:
        return self.size

    def potential(self, params):
        return self.target.potential(self.unravel(params))

    def gradient(self, params):
        return ravel(self.target.gradient(self.unravel(params)))


class FlatSum(FlatTarget, SumOverData):
    """A sum over data over parameters of any shape, as a function of one vector."""

    @property
    def num_data(self) -> int:
        return self.target.num_data

    def batch_gradient(self, params, index):
        return ravel(self.target.batch_gradient(self.unravel(params), index))

    def prior_gradient(self, params):
        return ravel(self.target.prior_gradient(self.unravel(params)))

    def weighted_gradient(self, params, index, weight):
        return ravel(self.target.weighted_gradient(self.unravel(params), index, weight))


def flatten(target: Target, unravel: Callable, dim: int) -> Target:
    """The target as a function of the vector θ."""
    if unravel is identity or getattr(target, "unravel", None) == unravel:  # the target takes vectors itself
        return target
    return (FlatSum if isinstance(target, SumOverData) else FlatTarget)(target, unravel, dim)
