"""A plan as the recipe of a kernel: its step and its sums as tiles, coefficients and tables, and how a step reads its data.

`make_recipe` takes a plan and returns a `Recipe` (all that is fixed when the kernel is compiled) and the arrays the kernel reads:
η, seed, data and directions, so that plans that differ only in them share one compiled kernel.
"""

import dataclasses
import functools
import hashlib
import operator
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.engines.lowering import Center, center_of, linear_step
from gyromc.engines.unrolled import Unsupported, entries, unroll
from gyromc.flat import FlatSum, ravel
from gyromc.observables import PROFILES, Ridge
from gyromc.operators import Dense
from gyromc.oracles import Batch, ControlVariate
from gyromc.plan import Plan
from gyromc.prediction.martingale import Martingale, martingale
from gyromc.targets import FiniteSum, GeneralizedLinear, SumOverData

MOST_COLUMNS = 64
MOST_DISTINCT = 64  # rows of a mini-batch without replacement: each is compared with all others in registers
_SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


@dataclasses.dataclass(frozen=True)
class Rows:
    """A sum over data: which rows a step reads, and what a row adds to the gradient."""

    num_rows: int
    batch: int | None  # rows drawn per step; None: all of them
    replace: bool  # whether a row can be drawn twice
    num_columns: int
    scale: float
    add: Callable = dataclasses.field(compare=False)  # (theta, columns, weight) → weight · ∇ℓ as a list of tiles


def read_data(plan: Plan) -> tuple[Rows | None, np.ndarray, Center | None]:
    """The rows of a plan, their columns and its control variate, or None; `Unsupported` where the kernel cannot read them."""
    target, oracle = plan.flat_target, plan.oracle
    if not isinstance(target, SumOverData):
        return None, np.zeros((1, 1), np.float32), None
    N, batch, replace, center = target.num_data, None, True, None
    if isinstance(oracle, Batch) and (oracle.replace or oracle.size < N):
        batch, replace = oracle.size, oracle.replace
        if not replace and batch > MOST_DISTINCT:
            most = f"at most {MOST_DISTINCT}; any number with `replace=True`"
            raise Unsupported(f"mini-batches of {batch} distinct rows ({most})")
    if batch is not None and isinstance(oracle, ControlVariate):  # all rows together are the exact gradient
        if not isinstance(target, GeneralizedLinear):
            raise Unsupported(f"control variates of a {type(target).__name__} (only of generalized linear models)")
        prepared = plan.prepared_oracle
        assert isinstance(prepared, ControlVariate)
        if prepared.order == 2 and not isinstance(prepared.operator, Dense):
            raise Unsupported("control variates of order 2 with a diagonal or matrix-free `curvature`")
        center = center_of(prepared, target)
    if isinstance(target, GeneralizedLinear):
        add, columns = _linear_rows(target, center)
    else:
        inner, unravel = (target.target, target.unravel) if isinstance(target, FlatSum) else (target, lambda x: x)
        if not isinstance(inner, FiniteSum):
            raise Unsupported(f"sums over data of type {type(inner).__name__}")
        add, columns = _traced_row(inner, unravel, jax.ShapeDtypeStruct((plan.dim,), jnp.float32))
    if len(columns) > MOST_COLUMNS:
        raise Unsupported(f"data with {len(columns)} numbers per row (at most {MOST_COLUMNS})")
    columns = np.ascontiguousarray(columns, np.float32)
    return Rows(N, batch, replace, len(columns), 1.0 if batch is None else N / batch, add), columns, center


def _linear_rows(target: GeneralizedLinear, center: Center | None) -> tuple[Callable, np.ndarray]:
    """`Rows.add` for a target that reads its data through xᵀθ, and the data, with the rows' parts of a control variate."""
    parts = [] if center is None else [center.slope]
    if center is not None and center.curvature is not None:
        parts += [center.change, center.predictor]
    slope, d = unroll(target.slope, _SCALAR, _SCALAR), target.X.shape[1]

    def add(theta, columns, weight):
        x, y, rest = columns[:d], columns[d], columns[d + 1 :]
        t = dot(x, theta)
        s = slope(entries([t], ()), entries([y], ()))[()]
        if rest:
            s = s - rest[0]
        if len(rest) > 1:
            s = s - rest[1] * (t - rest[2])  # the same t in both: its rounding cancels
        return [s * weight * a for a in x]

    return add, np.stack([*target.X.T, target.y, *parts])


def dot(a, b):
    """The sum of products of tiles."""
    return functools.reduce(operator.add, [x * y for x, y in zip(a, b, strict=True)])


def _traced_row(target: FiniteSum, unravel: Callable, theta_shape) -> tuple[Callable, np.ndarray]:
    leaves, structure = jax.tree.flatten(target.data)
    kind = lambda leaf: jnp.float32 if jnp.issubdtype(leaf.dtype, jnp.floating) else jnp.int32
    shapes = [jax.ShapeDtypeStruct(leaf.shape[1:], kind(leaf)) for leaf in leaves]

    def gradient(theta, *datum):
        loss = lambda params: -target.log_likelihood(params, jax.tree.unflatten(structure, datum))
        return ravel(jax.grad(loss)(unravel(theta)))

    unrolled = unroll(gradient, theta_shape, *shapes)

    def add(theta, columns, weight):
        datum, start = [], 0
        for shape in shapes:
            tiles = [x.astype(shape.dtype) for x in columns[start : start + shape.size]]
            datum.append(entries(tiles, shape.shape))
            start += shape.size
        return [g * weight for g in unrolled(theta, *datum)]

    columns = [np.asarray(leaf, np.float32).reshape(leaf.shape[0], -1).T for leaf in leaves]
    return add, np.concatenate(columns)


Row = tuple[tuple[int, int, int], ...]
"""One row of a sparse matrix: (column, number of the coefficient, sign)."""
Matrix = tuple[Row, ...]


@dataclasses.dataclass(frozen=True)
class Slot:
    """One tile of sums: an observable that every thread of a team computes, or a table with one column of sums per thread."""

    members: tuple[int, ...]  # columns of the run's sums, one per thread for tables
    profile: str | None = None  # of a table of ridge observables
    terms: int | None = None  # quadratic terms of each increment of a table of these
    value: Callable | None = dataclasses.field(default=None, compare=False)  # a function of θ; None for tables


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that is fixed when the kernel is compiled; equal recipes share a kernel.

    A step is y⁺ = Ay + Bĝ(z) + Cξ + τB_θζ with z the first `size` of the `state` entries of y. For the entries of z, `kept` is
    A - I: what is added to z is summed first.
    """

    dim: int
    size: int
    state: int
    team: int
    burns_in: bool
    drift: Matrix  # B
    noise: Matrix  # C
    kept: Matrix  # A, less I in the rows of z
    oracle: Matrix | None  # τB_θ, where a Gaussian oracle has normals of its own
    anchor: Matrix | None  # [K, g] of a control variate, which adds K(θ - c) + g to the gradient
    center: Matrix | None  # c, as one column
    rows: Rows | None
    slots: tuple[Slot, ...]  # those in memory first
    tables: tuple[tuple[str, int, int], ...]  # of observables: profile, first slot, one past the last
    increments: tuple[tuple[int, int, int], ...]  # of the martingale: number of terms, first slot, one past the last
    num_in_memory: int
    fingerprint: tuple
    smooth: Callable = dataclasses.field(compare=False)  # the part of ∇U that every thread of a team computes


def _ranges(kinds: list) -> tuple:
    """(kind, first, one past the last) of each kind but None; equal kinds lie side by side."""
    places = {kind: kinds.index(kind) for kind in kinds if kind is not None}
    return tuple((kind, first, first + kinds.count(kind)) for kind, first in places.items())


def make_recipe(plan: Plan, team: int) -> tuple[Recipe, dict[str, np.ndarray]]:
    """The recipe for a plan with `team` threads per chain, and the arrays the kernel reads."""
    step = linear_step(plan)
    rows, columns, center = read_data(plan)
    matrices = [step.scale * step.G, step.noise, step.kept] + ([] if step.oracle is None else [step.oracle])
    coefficients, (drift, noise, kept, *oracle) = _compress(*matrices)
    anchor, center, coefficients = _center(center, coefficients)
    target, theta = _single_precision(plan.flat_target), jax.ShapeDtypeStruct((plan.dim,), jnp.float32)
    slots, directions = _slots(plan, team, theta)
    corrections, increments = (), np.zeros((1, 1), np.float32)
    if plan.martingale:
        corrections, increments = _increments(plan, martingale(plan), team)
    in_memory = sum(slot.profile is not None for slot in slots)
    slots = (*slots[:in_memory], *corrections, *slots[in_memory:])
    recipe = Recipe(
        dim=plan.dim,
        size=plan.dynamics.size,
        state=plan.state_size,
        team=team,
        burns_in=plan.burn_in > 0,
        drift=drift,
        noise=noise,
        kept=kept,
        oracle=oracle[0] if oracle else None,
        anchor=anchor,
        center=center,
        rows=rows,
        slots=slots,
        tables=_ranges([slot.profile for slot in slots]),
        increments=_ranges([slot.terms for slot in slots]),
        num_in_memory=in_memory + len(corrections),
        fingerprint=_fingerprint(plan),
        smooth=unroll(target.gradient if rows is None else target.prior_gradient, theta),
    )
    arrays = {"coefficients": coefficients, "columns": columns, "directions": directions, "increments": increments}
    return recipe, arrays


def check(recipe: Recipe) -> None:
    """Raise `Unsupported` if a function in the recipe cannot be unrolled; computes nothing."""

    def everything(*tiles):
        theta = entries(tiles[: recipe.dim], (recipe.dim,))
        results = list(recipe.smooth(theta))
        if recipe.rows is not None:
            results += recipe.rows.add(theta, list(tiles[recipe.dim :]), np.float32(1))
        return results + [slot.value(theta)[()] for slot in recipe.slots if slot.value is not None]

    columns = 0 if recipe.rows is None else recipe.rows.num_columns
    jax.eval_shape(everything, *[jax.ShapeDtypeStruct((2,), jnp.float32)] * (recipe.dim + columns))


def _center(found: Center | None, known: np.ndarray) -> tuple[Matrix | None, Matrix | None, np.ndarray]:
    """[K, g] and c of a control variate, each entry with a coefficient of its own behind the known ones: they are data."""
    if found is None:
        return None, None, known
    d = len(found.point)
    K = np.zeros((d, 0)) if found.curvature is None else found.curvature
    columns = [*range(K.shape[1]), d]  # of (θ - c, 1)
    first = len(known) + np.arange(d) * len(columns)
    rows = tuple(tuple((i, int(n) + j, 1) for j, i in enumerate(columns)) for n in first)
    center = tuple(((0, len(known) + d * len(columns) + i, 1),) for i in range(d))
    parts = known, np.column_stack([K, found.gradient]).ravel(), found.point
    return rows, center, np.concatenate(parts).astype(np.float32)


def _compress(*matrices: np.ndarray) -> tuple[np.ndarray, list[Matrix]]:
    """The distinct absolute values of the entries, and each matrix by reference to them; zeros are left out."""
    values, sparse = [], []
    # Values are numbered in the order in which they first appear, not by size: a smaller η shrinks drift and noise differently,
    # which must not lead to another kernel.
    for matrix in matrices:
        rows: list[list] = [[] for _ in matrix]
        start, known = len(values), {}
        for k, i in zip(*np.nonzero(np.abs(matrix) > 1e-14 * np.abs(matrix).max(initial=0.0)), strict=True):
            # Values that differ by rounding only are one.
            number = known.setdefault(float(f"{abs(matrix[k, i]):.9e}"), len(known))
            rows[k].append((int(i), start + number, int(np.sign(matrix[k, i]))))
        sparse.append(tuple(map(tuple, rows)))
        values += known
    return np.array(values, np.float32), sparse


def _slots(plan: Plan, team: int, theta: jax.ShapeDtypeStruct) -> tuple[tuple[Slot, ...], np.ndarray]:
    """Observables as slots: several ridges of one profile share a table, every other observable has its own slot."""
    observables, slots = list(plan.observables.values()), []
    for profile in PROFILES if team > 1 else ():
        members = [i for i, h in enumerate(observables) if isinstance(h, Ridge) and h.profile == profile]
        if len(members) > 2:
            slots += [Slot(tuple(members[i : i + team]), profile) for i in range(0, len(members), team)]
    directions = np.zeros((plan.dim, max(1, len(slots)) * team), np.float32)
    for number, slot in enumerate(slots):
        for thread, i in enumerate(slot.members):
            directions[:, number * team + thread] = observables[i].direction
    tabled = {i for slot in slots for i in slot.members}
    for i, h in enumerate(map(_single_precision, observables)):
        if i not in tabled:
            slots.append(Slot((i,), value=unroll(lambda t, h=h: h(plan.unravel(t)), theta)))
    return tuple(slots), directions


def _increments(plan: Plan, found: Martingale, team: int) -> tuple[tuple[Slot, ...], np.ndarray]:
    """The increments of all observables as slots, one observable per thread, and their numbers, a column for each thread.

    A column has c (n numbers), Σ_t λ_t|q_t|², and for each term λ_t, 2o_t, 2p_t and q_t. Those with equally many share tables.
    """
    count, slots = len(plan.observables), []
    terms = [np.flatnonzero(found.owner == j) for j in range(count)]
    for number in sorted({len(t) for t in terms}):
        members = [count + j for j in range(count) if len(terms[j]) == number]
        slots += [Slot(tuple(members[i : i + team]), terms=number) for i in range(0, len(members), team)]
    n, m = found.linear.shape[1], plan.state_size
    numbers = np.zeros((n + 1 + max(map(len, terms)) * (2 + m + n), len(slots) * team), np.float32)
    for s, slot in enumerate(slots):
        for thread, column in enumerate(slot.members):
            t = terms[column - count]
            quadratic = np.column_stack([found.weight[t], 2 * found.offset[t], 2 * found.direction[t], found.noise[t]])
            flat = np.r_[found.linear[column - count], found.weight[t] @ found.spread[t], quadratic.ravel()]
            numbers[: len(flat), s * team + thread] = flat
    return tuple(slots), numbers


def _single_precision(tree: Any) -> Any:
    """The same value with its floating-point arrays in float32, the only precision of the kernel."""
    wide = lambda x: isinstance(x, jax.Array | np.ndarray | np.generic) and np.issubdtype(x.dtype, np.floating)
    return jax.tree.map(lambda x: np.asarray(x, np.float32) if wide(x) else x, tree)


def _fingerprint(plan: Plan) -> tuple:
    """A hashable value, equal only for equal target and observables (functions by identity), less the data read as arrays."""
    target = plan.flat_target
    inner = target.target if isinstance(target, FlatSum) else target
    if isinstance(inner, GeneralizedLinear):
        target = eqx.tree_at(lambda t: (t.X, t.y), inner, (None, None))
    elif isinstance(inner, FiniteSum):
        shapes = jax.tree.map(lambda x: (x.shape[1:], str(x.dtype)), inner.data)
        target = (inner.log_likelihood, inner.log_prior, plan.unravel, jax.tree.structure(inner.data), str(shapes))
    leaves, structure = jax.tree.flatten((target, tuple(plan.observables.values())))
    arrays = {i: np.asarray(leaf) for i, leaf in enumerate(leaves) if hasattr(leaf, "dtype")}
    for i, array in arrays.items():
        leaves[i] = array.shape, str(array.dtype), hashlib.sha256(array.tobytes()).digest()
    return structure, *leaves
