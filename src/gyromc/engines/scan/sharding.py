"""Rows of data and parameters divided over the devices of a mesh.

**Rows.** Input: a target that is a sum over data, and the number of devices. Output: `Shards`, the same target with each
device's own rows, whose sums are added over the devices. N rows are cut into equal shares of ⌈N/S⌉; a share ends in at least
one empty row, whose gradient is exactly 0, so every N is exact. A mini-batch is drawn as without a mesh: each device picks the
drawn rows that it holds, sums their gradients, and the sums are added. A step sends d numbers a chain for each such sum, and
never a row.

**Parameters.** Input: the pieces of a run. Output: one step of every chain, with state, noise, gradient and kept draws in
parts, one on each device along the axis "parameters". A state of k·d numbers (θ, momentum, memory) is cut into P parts that
hold the same coordinates of all k of them, so that dynamics and schemes that treat coordinates one by one need no other part;
the others are applied to the whole state. For a gradient the parts of one chain's θ are gathered, each device computes with its
rows, and keeps its part of the sum: chain after chain, so that a device holds one whole θ and one whole gradient at a time.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from gyromc.checks import require
from gyromc.dynamics import Dynamics
from gyromc.engines.meshes import ROWS
from gyromc.engines.scan import threefry
from gyromc.flat import FlatSum, ravel
from gyromc.operators import Blocks, Diagonal, Operator, Scaled
from gyromc.oracles import Batch, Oracle
from gyromc.schemes import Balanced, Scheme
from gyromc.schemes.integrators import HfhrSplitting, LeimkuhlerMatthews, LmAb2
from gyromc.targets import (
    FiniteSum,
    GeneralizedLinear,
    MixedRegression,
    SoftmaxRegression,
    StreamedRegression,
    SumOverData,
    Target,
)
from gyromc.targets.regressions import Regression

KNOWN = (GeneralizedLinear, SoftmaxRegression, MixedRegression, FiniteSum, StreamedRegression)
SPARE = 4  # standard deviations of the number of drawn rows that a device holds, that are summed in the first round


class Shards(SumOverData):
    """A sum over data with the rows of one device; its methods are called by `on_devices`, where sums go over all devices."""

    rows: tuple[Any, ...]  # arrays with one entry per row, S shares after one another; one share inside `on_devices`
    rest: Any  # the target without them
    num_rows: int = eqx.field(static=True)
    share: int = eqx.field(static=True)  # rows a device holds, the empty ones at its end not counted
    count: int = eqx.field(static=True)

    @property
    def num_data(self) -> int:
        return self.num_rows

    @property
    def own(self) -> Any:
        """The target over this device's rows alone."""
        if not self.rows:
            return self.rest
        return eqx.tree_at(_row_fields, self.rest, list(self.rows), is_leaf=lambda x: x is None)

    def potential(self, params):
        raise NotImplementedError("U is computed where all rows are: by the plan's target.")

    def gradient(self, params):
        return _added(_data_gradient(self.own, params)) + self.prior_gradient(params)

    def prior_gradient(self, params):
        return self.own.prior_gradient(params)

    def batch_gradient(self, params, index):
        return self._sum(lambda own, rows: own.batch_gradient(params, rows), index)

    def remainder(self, theta, center, index, order):
        return self._sum(lambda own, rows: own.remainder(theta, center, rows, order), index)

    def _sum(self, terms: Callable, index):
        """Σ_{i ∈ index} of `terms`: those of the rows held here, in rounds of a fixed size, then added over all devices."""
        own = self.own
        if isinstance(index, tuple):  # rows that were read ahead: each device got some of them
            return _added(terms(own, index))
        first, size = jax.lax.axis_index(ROWS) * self.share, index.shape[0]
        here = (index >= first) & (index < first + self.share)
        mean = size / self.count
        most = min(size, math.ceil(mean + SPARE * math.sqrt(mean)) + 1)
        rounds = -(-size // most)
        empty = jnp.full(rounds * most - size, self.share, index.dtype)
        rows = jnp.concatenate([jnp.sort(jnp.where(here, index - first, self.share)), empty])  # ours come first
        total = terms(own, rows[:most])
        if rounds > 1:
            found = jnp.sum(here)
            more = lambda k, total: total + terms(own, jax.lax.dynamic_slice(rows, (k * most,), (most,)))
            total = jax.lax.fori_loop(1, (found + most - 1) // most, more, total)
        return _added(total)


def why_not_shared(target: Target, oracle: Oracle) -> str | None:
    """Why the rows of a target cannot be shared, or None."""
    inner = target.target if isinstance(target, FlatSum) else target
    if not isinstance(inner, KNOWN):
        names = "a regression or a `FiniteSum`"
        return f"the rows of {type(inner).__name__} are not known: write the target as {names}"
    if isinstance(inner, StreamedRegression) and not isinstance(oracle, Batch):
        return (
            f"sums over all rows of a {type(inner).__name__} are computed on the host: use a mini-batch that needs none"
        )
    return None


def shared(target: Any, count: int) -> Shards:
    """The target with its rows in `count` shares, as host arrays."""
    N = target.num_data
    share = -(-N // count)
    inner = target.target if isinstance(target, FlatSum) else target
    if isinstance(inner, StreamedRegression):
        return Shards((), target, N, share, count)
    if isinstance(inner, FiniteSum):
        fields = lambda t: (t.log_likelihood, t.data)
        counted = eqx.tree_at(fields, inner, (Counted(inner.log_likelihood), (inner.data, np.ones(N, bool))))
        target = eqx.tree_at(lambda t: t.target, target, counted) if isinstance(target, FlatSum) else counted
    found, nulls = _row_fields(target), _empty_rows(target)
    spread = [
        jax.tree.map(lambda x, e: _spread(x, e, share, count), rows, e) for rows, e in zip(found, nulls, strict=True)
    ]
    return Shards(tuple(spread), eqx.tree_at(_row_fields, target, [None] * len(found)), N, share, count)


class Counted(eqx.Module):
    """A log likelihood of rows that say whether they count."""

    inner: Callable

    def __call__(self, params, datum):
        row, counts = datum
        return jnp.where(counts, self.inner(params, row), 0)


def _row_fields(target: Any) -> list[Any]:
    """The parts of a target that have one entry per row."""
    if isinstance(target, FlatSum):
        return _row_fields(target.target)
    if isinstance(target, FiniteSum):
        return [target.data]
    if isinstance(target, MixedRegression):
        entries = lambda x: x if isinstance(x, tuple) else ()  # Equinox puts a mark in the place of an empty tuple
        known, groups = entries(target.known), entries(target.groups)
        fields = [getattr(group, name) for group in groups for name in ("Z", "index")]
        return [target.X, target.y, target.offset, target.weights, *known, *fields]
    return [target.X, target.y]


def _empty_rows(target: Any) -> list[Any]:
    """For each of `_row_fields`, its entry in a row without effect: x = 0 and weight 0, or a row that does not count."""
    if isinstance(target, FlatSum):
        return _empty_rows(target.target)
    if isinstance(target, FiniteSum):
        data, counts = target.data
        return [(jax.tree.map(lambda x: np.asarray(x[0]), data), np.zeros_like(counts[0]))]
    copied = lambda x: np.asarray(x[0])
    if isinstance(target, MixedRegression):
        zeros = [np.zeros_like(x[0]) for x in (target.X, target.offset, target.weights)]
        groups = [np.zeros_like(x[0]) for group in target.groups for x in (group.Z, group.index)]
        return [zeros[0], copied(target.y), *zeros[1:], *map(copied, target.known), *groups]
    return [np.zeros_like(target.X[0]), copied(target.y)]


def _spread(rows: Any, empty: np.ndarray, share: int, count: int) -> np.ndarray:
    """Rows in `count` shares of `share` and an empty one each, after one another; the last ones are filled with empty rows."""
    rows = np.asarray(rows)
    out = np.empty((count, share + 1, *rows.shape[1:]), rows.dtype)
    out[...] = empty
    for s in range(count):
        part = rows[s * share : (s + 1) * share]
        out[s, : len(part)] = part
    return out.reshape(-1, *rows.shape[1:])


def _data_gradient(target: Any, params):
    """Σ_i ∇ℓ_i(θ) over all rows of a target, without the prior."""
    if isinstance(target, FlatSum):
        return ravel(_data_gradient(target.target, target.unravel(params)))
    if isinstance(target, Regression):
        return target.slopes(params, target.X, target.y)
    if isinstance(target, MixedRegression):
        return jax.grad(lambda theta: jnp.sum(target._losses(theta, target._rows())))(params)
    return jax.grad(target._batch_potential)(params, target.data)


def _added(value):
    return jax.lax.psum(value, ROWS)


def on_devices(function: Callable, pieces: Any, arrays: tuple, places: Any) -> Any:
    """function(pieces, *arrays); by every device with its own rows and parts where these are shared. `places`: of the results.

    All of the pieces but shared rows is whole on every device. The first of the arrays are parameters, in parts where `pieces`
    has them, and so is what an oracle keeps; others have a row for each chain, and those that were read ahead are shared.
    """
    if pieces.parts is None and (pieces.spread is None or not isinstance(pieces.target, Shards)):
        return function(pieces, *arrays)
    specs = [P("chains", ROWS) if isinstance(x, tuple) else P("chains") for x in arrays]
    specs[::2] = [place(pieces)] * len(specs[::2])
    dynamic, static = eqx.partition(pieces, eqx.is_array)
    where = jax.tree.map(lambda _: P(), dynamic)
    if isinstance(pieces.target, Shards):
        rows = jax.tree.map(lambda _: P(ROWS), dynamic.target.rows)
        where = eqx.tree_at(lambda p: p.target.rows, where, rows) if pieces.target.rows else where
    local = lambda dynamic, *own: function(eqx.combine(dynamic, static), *own)
    mesh = pieces.spread.mesh
    return jax.shard_map(local, mesh=mesh, in_specs=(where, *specs), out_specs=places, check_vma=False)(
        dynamic, *arrays
    )


def place(pieces: Any) -> P:
    """Where parameters are: those of a chain on one device, or a part on each."""
    return P("chains") if pieces.parts is None else P("chains", "parameters")


def require_shared(target: Target, oracle: Oracle, axis: str) -> None:
    """Raise `InvalidInput` where the rows of the target cannot be shared."""
    reason = why_not_shared(target, oracle)
    require(
        reason is None, f"The axis `{axis}` of `mesh` shares the rows of the data, and {reason}. Or leave the axis out."
    )


BY_COORDINATE = (Balanced, HfhrSplitting, LeimkuhlerMatthews, LmAb2)


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

    def gathered(self, part: Any) -> Any:
        """All parts of a vector, from the devices that hold one each (1 × k·length); None stays None."""
        return None if part is None else self.joined(jax.lax.all_gather(part, "parameters", tiled=True))

    def own(self, whole: Any) -> Any:
        """This device's part of a vector."""
        return jax.lax.dynamic_index_in_dim(self.split(whole), jax.lax.axis_index("parameters"))


ByPart = tuple[Dynamics, Scheme]
"""Dynamics and scheme for the parts: each operator's arrays have one row per part."""


def by_part(dynamics: Dynamics, scheme: Scheme, parts: Parts) -> ByPart | None:
    """Dynamics and scheme cut into parts; None where one of them mixes coordinates."""
    if not (scheme.is_euler or isinstance(scheme, BY_COORDINATE)):
        return None
    operators = lambda tree: [x for x in jax.tree.leaves(tree, is_leaf=_is_operator) if _is_operator(x)]
    if not all(_coordinatewise(operator) for operator in operators((dynamics, scheme))):
        return None
    cut = lambda x: _cut(x, parts) if _is_operator(x) else x
    return jax.tree.map(cut, (dynamics, scheme), is_leaf=_is_operator)


def _is_operator(x: Any) -> bool:
    return isinstance(x, Operator)


def _coordinatewise(operator: Operator) -> bool:
    if isinstance(operator, Blocks):
        blocks = operator.upper_left, operator.upper_right, operator.lower_left, operator.lower_right
        return all(map(_coordinatewise, blocks))
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


def stepped(pieces: Any, step: Callable, y, gradient, xi, eta):
    """The state after a step, in parts: each on its own device, or all together where coordinates mix."""
    parts: Parts = pieces.parts
    if pieces.by_part is None:
        after = parts.split(jax.vmap(step)(*(parts.joined(x) for x in (y, gradient, xi))))
    else:
        axes = jax.tree.map(lambda x: 0 if _is_operator(x) else None, pieces.by_part, is_leaf=_is_operator)
        own = lambda own, y, g, x: own[1](own[0], y, g, x, eta)
        after = jax.vmap(jax.vmap(own, (axes, 0, 0, 0)), (None, 0, 0, 0))(pieces.by_part, y, gradient, xi)
    return jax.lax.with_sharding_constraint(after.astype(y.dtype), pieces.spread.sharding("chains", "parameters"))
