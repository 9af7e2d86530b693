"""A plan as the recipe of a kernel: its step and its sums as tiles, coefficients and tables.

`make_recipe` takes a plan and returns a `Recipe` (all that is fixed when the kernel is compiled) and the arrays the kernel reads.
Numbers that change from run to run without changing the arithmetic (η, seed, data, directions) are arrays, so that plans that
differ only in them share one compiled kernel.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.engines.pallas.unrolled import Unsupported, entries, unroll
from gyromc.flat import FlatSum, ravel
from gyromc.observables import PROFILES, Ridge
from gyromc.oracles import Exact, Gaussian, Minibatch
from gyromc.plan import Plan
from gyromc.targets import FiniteSum, GeneralizedLinear, SumOverData

SUPPORTED_ORACLES = (Exact, Gaussian, Minibatch)
MOST_COLUMNS = 64
MOST_DISTINCT = 64  # rows of a mini-batch without replacement: each is compared with all others in registers
_SCALAR = jax.ShapeDtypeStruct((), jnp.float32)

Row = tuple[tuple[int, int, int], ...]
"""One row of a sparse matrix: (column, number of the coefficient, sign)."""


@dataclasses.dataclass(frozen=True)
class Rows:
    """A sum over data: which rows a step reads, and what a row adds to the gradient."""

    num_rows: int
    batch: int | None  # rows drawn per step; None: all of them
    replace: bool  # whether a row can be drawn twice
    num_columns: int
    scale: float
    add: Callable = dataclasses.field(compare=False)  # (theta, columns, weight) → weight · ∇ℓ as a list of tiles


@dataclasses.dataclass(frozen=True)
class Slot:
    """One tile of sums: an observable that every thread of a team computes, or a table with one observable per thread."""

    profile: str | None  # for tables
    members: tuple[int, ...]  # the plan's observables in it, one per thread for tables
    value: Callable | None = dataclasses.field(compare=False)  # a function of θ; None for tables


@dataclasses.dataclass(frozen=True)
class Recipe:
    """Everything that is fixed when the kernel is compiled; equal recipes share a kernel."""

    dim: int
    size: int
    team: int
    burns_in: bool
    num_coefficients: int
    drift: tuple[Row, ...]
    noise: tuple[Row, ...]
    rows: Rows | None
    slots: tuple[Slot, ...]
    fingerprint: tuple
    smooth: Callable = dataclasses.field(compare=False)  # the part of ∇U that every thread of a team computes

    @property
    def num_tables(self) -> int:
        """How many slots are tables; these come first."""
        return sum(slot.profile is not None for slot in self.slots)

    @property
    def tables(self) -> list[tuple[str, int, int]]:
        """(profile, first, one past the last) of the tables, profile by profile."""
        profiles = [slot.profile for slot in self.slots if slot.profile is not None]
        ranges = [(p, profiles.index(p)) for p in dict.fromkeys(profiles)]
        return [(p, first, first + profiles.count(p)) for p, first in ranges]


def make_recipe(plan: Plan, team: int) -> tuple[Recipe, dict[str, np.ndarray]]:
    """The recipe for a plan with `team` threads per chain, and the arrays the kernel reads."""
    drift, noise = _matrices(plan)
    coefficients, (drift_rows, noise_rows) = _compress(drift, noise)
    rows, columns = _rows(plan)
    target = _single_precision(plan.flat_target)
    slots, directions = _slots(plan, team)
    recipe = Recipe(
        dim=plan.dim,
        size=plan.dynamics.size,
        team=team,
        burns_in=plan.burn_in > 0,
        num_coefficients=len(coefficients),
        drift=drift_rows,
        noise=noise_rows,
        rows=rows,
        slots=slots,
        fingerprint=_fingerprint(plan),
        smooth=unroll(target.gradient if rows is None else target.prior_gradient, _vector(plan)),
    )
    return recipe, {"coefficients": coefficients, "columns": columns, "directions": directions}


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


def _matrices(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """-η(D+Q), and a root of the covariance of all Gaussian noise in a step."""
    eta, D = plan.eta, plan.dynamics.D
    G = D + plan.dynamics.Q
    covariance = 2 * eta * D
    if isinstance(plan.oracle, Gaussian):
        spread = eta * float(plan.oracle.tau) * G[:, : plan.dim]
        covariance = covariance + spread @ spread.T  # √(2ηD) ξ - η(D+Q) τζ is one Gaussian: same law, half the normals
    return -eta * G, np.linalg.cholesky(covariance)


def _compress(*matrices: np.ndarray) -> tuple[np.ndarray, list[tuple[Row, ...]]]:
    """The distinct absolute values of the entries, and each matrix by reference to them; zeros are left out.

    Values are numbered in the order in which they first appear, not by size: a smaller η shrinks drift and noise differently,
    which must not lead to another kernel.
    """
    values: list[float] = []
    sparse = []
    for matrix in matrices:
        where = np.nonzero(np.abs(matrix) > 1e-14 * np.abs(matrix).max())
        number, distinct = _distinct(np.abs(matrix[where]))
        rows: list[list] = [[] for _ in matrix]
        for k, i, n in zip(*where, len(values) + number, strict=True):
            rows[k].append((int(i), int(n), int(np.sign(matrix[k, i]))))
        sparse.append(tuple(map(tuple, rows)))
        values += list(distinct)
    return np.array(values, np.float32), sparse


def _distinct(sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A number for each value, in the order of appearance, and the distinct values; these differ by more than rounding."""
    order = np.argsort(sizes, kind="stable")
    group = np.empty(sizes.size, int)
    group[order] = np.cumsum(np.diff(sizes[order], prepend=0) > 1e-10 * sizes[order])
    _, first, inverse = np.unique(group, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse], sizes[np.sort(first)]


def _vector(plan: Plan) -> jax.ShapeDtypeStruct:
    """The shape of θ."""
    return jax.ShapeDtypeStruct((plan.dim,), jnp.float32)


def _rows(plan: Plan) -> tuple[Rows | None, np.ndarray]:
    """How the step reads the target's data, and the data as columns; None for a target without data."""
    target = plan.flat_target
    if not isinstance(target, SumOverData):
        return None, np.zeros((1, 1), np.float32)
    N, batch, replace = target.num_data, None, True
    if isinstance(plan.oracle, Minibatch) and (plan.oracle.replace or plan.oracle.size < N):
        batch, replace = plan.oracle.size, plan.oracle.replace
        if not replace and batch > MOST_DISTINCT:
            raise Unsupported(
                f"mini-batches of {batch} distinct rows (at most {MOST_DISTINCT}; any number with `replace=True`)"
            )
    if isinstance(target, GeneralizedLinear):
        add, columns = _linear_row(target), np.concatenate([target.X.T, target.y[None]])
    else:
        inner, unravel = (target.target, target.unravel) if isinstance(target, FlatSum) else (target, lambda x: x)
        if not isinstance(inner, FiniteSum):
            raise Unsupported(f"sums over data of type {type(inner).__name__}")
        add, columns = _traced_row(inner, unravel, _vector(plan))
    if len(columns) > MOST_COLUMNS:
        raise Unsupported(f"data with {len(columns)} numbers per row (at most {MOST_COLUMNS})")
    columns = np.ascontiguousarray(columns, np.float32)
    return Rows(N, batch, replace, len(columns), 1.0 if batch is None else N / batch, add), columns


def _linear_row(target: GeneralizedLinear) -> Callable:
    """`Rows.add` for a target that reads its data through xᵀθ."""
    slope = unroll(target.slope, _SCALAR, _SCALAR)

    def add(theta, columns, weight):
        *x, y = columns
        t = sum(a * b for a, b in zip(x[1:], theta[1:], strict=True)) + x[0] * theta[0]
        s = slope(entries([t], ()), entries([y], ()))[()] * weight
        return [s * a for a in x]

    return add


def _traced_row(target: FiniteSum, unravel: Callable, theta_shape) -> tuple[Callable, np.ndarray]:
    """`Rows.add` for a user's log likelihood, and the data as columns."""
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


def _slots(plan: Plan, team: int) -> tuple[tuple[Slot, ...], np.ndarray]:
    """Observables as slots: several ridges of one profile share a table, every other observable has its own slot."""
    observables, slots = list(plan.observables.values()), []
    for profile in PROFILES if team > 1 else ():
        members = [i for i, h in enumerate(observables) if isinstance(h, Ridge) and h.profile == profile]
        if len(members) > 2:
            slots += [Slot(profile, tuple(members[i : i + team]), None) for i in range(0, len(members), team)]
    directions = np.zeros((plan.dim, max(1, len(slots)) * team), np.float32)
    for number, slot in enumerate(slots):
        for thread, i in enumerate(slot.members):
            directions[:, number * team + thread] = observables[i].direction  # type: ignore[attr-defined]
    tabled = {i for slot in slots for i in slot.members}
    for i, h in enumerate(map(_single_precision, observables)):
        if i not in tabled:
            slots.append(Slot(None, (i,), unroll(lambda t, h=h: h(plan.unravel(t)), _vector(plan))))
    return tuple(slots), directions


def _single_precision(tree: Any) -> Any:
    """The same value with its floating-point arrays in float32, the only precision of the kernel."""
    wide = lambda x: isinstance(x, jax.Array | np.ndarray | np.generic) and np.issubdtype(x.dtype, np.floating)
    return jax.tree.map(lambda x: np.asarray(x, np.float32) if wide(x) else x, tree)


def _fingerprint(plan: Plan) -> tuple:
    """A hashable value, equal only for equal target and observables, less the data that the kernel reads as arrays.

    Functions are compared by identity.
    """
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
