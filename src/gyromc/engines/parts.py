"""Parameters cut into parts, one on each device along the axis "parameters" of a mesh.

Input: the pieces of a run. Output: one step of every chain, with state, noise, gradient and kept draws in parts. A state of k·d
numbers (θ, momentum, memory) is cut into P parts that hold the same coordinates of all k of them, so that dynamics and schemes
that treat coordinates one by one need no other part; the others are applied to the whole state. For a gradient the parts of one
chain's θ are gathered, each device computes with its rows, and keeps its part of the sum: chain after chain, so that a device
holds one whole θ and one whole gradient at a time.
"""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from gyromc.dynamics import Dynamics
from gyromc.engines import threefry
from gyromc.engines.shards import on_devices
from gyromc.operators import Blocks, Diagonal, Operator, Scaled
from gyromc.schemes import Scheme
from gyromc.schemes.balanced import Balanced
from gyromc.schemes.integrators import HfhrSplitting, LeimkuhlerMatthews, LmAb2

__all__ = ["ByPart", "Parts", "anchors", "by_part", "moved", "normal"]

BY_COORDINATE = (Balanced, HfhrSplitting, LeimkuhlerMatthews, LmAb2)
IN_PARTS = P("chains", "parameters")


@dataclasses.dataclass(frozen=True)
class Parts:
    """d parameters in `count` parts of equal length; the last one is filled with zeros."""

    dim: int
    count: int

    @property
    def length(self) -> int:
        """How many parameters a part has."""
        return -(-self.dim // self.count)

    def split(self, x: Any) -> Any:
        """… × kd numbers as … × parts × k·length."""
        xp = np if isinstance(x, np.ndarray) else jnp
        k, q = x.shape[-1] // self.dim, self.length
        x = x.reshape(*x.shape[:-1], k, self.dim)
        x = xp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, self.count * q - self.dim)])
        x = xp.swapaxes(x.reshape(*x.shape[:-1], self.count, q), -2, -3)
        return x.reshape(*x.shape[:-2], k * q)

    def joined(self, x: Any) -> Any:
        """The inverse of `split`."""
        xp = np if isinstance(x, np.ndarray) else jnp
        q = self.length
        k = x.shape[-1] // q
        x = xp.swapaxes(x.reshape(*x.shape[:-1], k, q), -2, -3)
        x = x.reshape(*x.shape[:-2], self.count * q)[..., : self.dim]
        return x.reshape(*x.shape[:-2], k * self.dim)


class ByPart(eqx.Module):
    """Dynamics and scheme for the parts: each operator's arrays have one row per part."""

    dynamics: Dynamics
    scheme: Scheme


def by_part(dynamics: Dynamics, scheme: Scheme, parts: Parts) -> ByPart | None:
    """Dynamics and scheme cut into parts; None where one of them mixes coordinates."""
    if not (scheme.is_euler or isinstance(scheme, BY_COORDINATE)):
        return None
    operators = lambda tree: [x for x in jax.tree.leaves(tree, is_leaf=_is_operator) if _is_operator(x)]
    if not all(_coordinatewise(operator) for operator in operators((dynamics, scheme))):
        return None
    cut = lambda x: _cut(x, parts) if _is_operator(x) else x
    return ByPart(*jax.tree.map(cut, (dynamics, scheme), is_leaf=_is_operator))


def _is_operator(x: Any) -> bool:
    return isinstance(x, Operator)


def _coordinatewise(operator: Operator) -> bool:
    if isinstance(operator, Blocks):
        return operator.coordinates() is not None
    return isinstance(operator, Scaled | Diagonal)


def _cut(operator: Any, parts: Parts) -> Operator:
    """An operator for each part; what a diagonal has beyond the last parameter multiplies zeros."""
    if isinstance(operator, Blocks):
        blocks = operator.upper_left, operator.upper_right, operator.lower_left, operator.lower_right
        return Blocks(*(_cut(block, parts) for block in blocks))
    if isinstance(operator, Scaled):
        scale = np.broadcast_to(np.asarray(operator.scale), parts.count)
        return Scaled(scale, operator.n // parts.dim * parts.length)
    return Diagonal(parts.split(np.asarray(operator.values)))


def normal(key, chains: int, size: int, parts: Parts, dtype):
    """The standard normals of `threefry.normal(key, (chains, size), dtype)`, in parts, each made where it is used."""
    k, q = size // parts.dim, parts.length
    if not threefry.counts(key, chains * size):
        return parts.split(threefry.normal(key, (chains, size), dtype))
    shape = (chains, parts.count, k, q)
    chain, part, piece, place = (jax.lax.broadcasted_iota(jnp.uint32, shape, axis) for axis in range(4))
    coordinate = part * np.uint32(q) + place
    counter = chain * np.uint32(size) + piece * np.uint32(parts.dim) + coordinate
    drawn = threefry.normal_at(key, counter, dtype)
    return jnp.where(coordinate < parts.dim, drawn, 0).reshape(chains, parts.count, k * q)


def moved(pieces: Any, y, zeta, xi, eta, kept=None):
    """The observables at the state of every chain, and the state after one step, in parts; `kept`: the oracle's anchors."""
    parts: Parts = pieces.parts
    q, n = parts.length, pieces.dynamics.size // parts.dim * parts.length
    values, gradient = on_devices(
        _values_and_gradients,
        pieces.spread,
        pieces,
        (y[..., :q], zeta, kept),
        (IN_PARTS, _place(zeta), IN_PARTS),
        (P("chains"), IN_PARTS),
    )
    if n > q:
        gradient = jnp.concatenate([gradient, y[..., q:n]], axis=-1)  # ∇H = (∇U, r)
    if pieces.by_part is None:
        step = lambda y, g, x: pieces.scheme(pieces.dynamics, y, g, x, eta)
        after = parts.split(jax.vmap(step)(*(parts.joined(x) for x in (y, gradient, xi))))
    else:
        axes = jax.tree.map(lambda x: 0 if _is_operator(x) else None, pieces.by_part, is_leaf=_is_operator)
        step = lambda own, y, g, x: own.scheme(own.dynamics, y, g, x, eta)
        after = jax.vmap(jax.vmap(step, (axes, 0, 0, 0)), (None, 0, 0, 0))(pieces.by_part, y, gradient, xi)
    after = jax.lax.with_sharding_constraint(after.astype(y.dtype), pieces.spread.sharding("chains", "parameters"))
    return values.astype(y.dtype), after


def anchors(pieces: Any, y):
    """What the oracle keeps of an anchor at the state of every chain, in parts."""

    def each(pieces, theta):
        one = lambda own: _own(pieces.parts, pieces.oracle.anchor_at(pieces.target, _whole(pieces.parts, own)))
        return jax.lax.map(one, theta)

    return on_devices(each, pieces.spread, pieces, (y[..., : pieces.parts.length],), (IN_PARTS,), IN_PARTS)


def _place(zeta: Any) -> P:
    """Where the randomness of an oracle is: rows that were read ahead are shared."""
    return P("chains", ("data", "parameters")) if isinstance(zeta, tuple) else P("chains")


def _values_and_gradients(pieces: Any, theta, zeta, kept):
    """On one device: the observables of its chains, and its part of their gradients, chain after chain."""

    def one(own):
        part, s, anchor = own
        theta, oracle = _whole(pieces.parts, part), pieces.oracle
        if anchor is not None:
            oracle = oracle.anchored(_whole(pieces.parts, anchor))
        values = jnp.stack([h(pieces.unravel(theta)) for h in pieces.observables])
        return values, _own(pieces.parts, oracle.gradient(pieces.target, theta, s))

    return jax.lax.map(one, (theta, zeta, kept))


def _whole(parts: Parts, part):
    """All parts of a vector, gathered from the devices that hold one each (1 × k·length)."""
    return parts.joined(jax.lax.all_gather(part, "parameters", tiled=True))


def _own(parts: Parts, whole):
    """This device's part of a vector."""
    return jax.lax.dynamic_index_in_dim(parts.split(whole), jax.lax.axis_index("parameters"))
