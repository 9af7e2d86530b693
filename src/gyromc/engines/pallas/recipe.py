"""A plan as the recipe of a kernel: its step and its sums as tiles, coefficients and tables.

`make_recipe` takes a plan and returns a `Recipe` (all that is fixed when the kernel is compiled) and the arrays the kernel reads.
Numbers that change from run to run without changing the arithmetic (η, seed, data, directions) are arrays, so that plans that
differ only in them share one compiled kernel.
"""

import dataclasses
import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.engines.pallas.rows import Anchor, Rows, read_data
from gyromc.engines.pallas.unrolled import entries, unroll
from gyromc.flat import FlatSum
from gyromc.martingale import Martingale, martingale
from gyromc.observables import PROFILES, Ridge
from gyromc.oracles import Gaussian
from gyromc.plan import Plan
from gyromc.targets import FiniteSum, GeneralizedLinear

MOST_LOADS = (
    256  # numbers that unrolled increments read; with more, they are computed in a loop, with their sums in memory
)

Row = tuple[tuple[int, int, int], ...]
"""One row of a sparse matrix: (column, number of the coefficient, sign)."""
Matrix = tuple[Row, ...]


@dataclasses.dataclass(frozen=True)
class Slot:
    """One tile of sums: an observable that every thread of a team computes, or a table with one column of sums per thread.

    A table holds ridge observables of one profile, or increments of the martingale with so many quadratic terms.
    """

    members: tuple[int, ...]  # columns of the run's sums, one per thread for tables
    profile: str | None = None  # for tables of observables
    terms: int | None = None  # for tables of increments
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
    num_coefficients: int
    drift: Matrix  # B
    noise: Matrix  # C
    kept: Matrix  # A, less I in the rows of z
    oracle: Matrix | None  # τB_θ, where a Gaussian oracle has normals of its own
    anchor: Matrix | None  # [K, g] of a control variate, which adds K(θ - c) + g to the gradient
    center: Matrix | None  # c, as one column
    rows: Rows | None
    slots: tuple[Slot, ...]  # those in memory first
    num_in_memory: int
    fingerprint: tuple
    smooth: Callable = dataclasses.field(compare=False)  # the part of ∇U that every thread of a team computes

    @property
    def tables(self) -> list[tuple[str, int, int]]:
        """(profile, first slot, one past the last) of the tables of observables, profile by profile."""
        return _ranges([slot.profile for slot in self.slots])

    @property
    def increments(self) -> list[tuple[int, int, int]]:
        """(number of terms, first slot, one past the last) of the tables of increments; empty without a martingale."""
        return _ranges([slot.terms for slot in self.slots])


def _ranges(kinds: list) -> list:
    """(kind, first, one past the last) of each kind but None; equal kinds lie side by side."""
    return [
        (kind, kinds.index(kind), kinds.index(kind) + kinds.count(kind))
        for kind in dict.fromkeys(kinds)
        if kind is not None
    ]


def make_recipe(plan: Plan, team: int) -> tuple[Recipe, dict[str, np.ndarray]]:
    """The recipe for a plan with `team` threads per chain, and the arrays the kernel reads."""
    step, data = _step(plan), read_data(plan)
    coefficients, (drift, noise, kept, *oracle) = _compress(*(matrix for matrix in step if matrix is not None))
    anchor, center, coefficients = _anchor(data.anchor, coefficients)
    target = _single_precision(plan.flat_target)
    slots, directions = _slots(plan, team)
    corrections, increments = _increments(plan, martingale(plan), team) if plan.martingale else ((), _NOTHING)
    in_memory = sum(slot.profile is not None for slot in slots)
    loads = sum(plan.dynamics.size + (slot.terms or 0) * (plan.state_size + plan.dynamics.size) for slot in corrections)
    if loads > MOST_LOADS:
        slots, in_memory = (*slots[:in_memory], *corrections, *slots[in_memory:]), in_memory + len(corrections)
    else:
        slots = (*slots, *corrections)
    recipe = Recipe(
        dim=plan.dim,
        size=plan.dynamics.size,
        state=plan.state_size,
        team=team,
        burns_in=plan.burn_in > 0,
        num_coefficients=len(coefficients),
        drift=drift,
        noise=noise,
        kept=kept,
        oracle=oracle[0] if oracle else None,
        anchor=anchor,
        center=center,
        rows=data.rows,
        slots=slots,
        num_in_memory=in_memory,
        fingerprint=_fingerprint(plan),
        smooth=unroll(target.gradient if data.rows is None else target.prior_gradient, _vector(plan)),
    )
    arrays = {"coefficients": coefficients, "columns": data.columns, "directions": directions, "increments": increments}
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


class _Step(NamedTuple):
    """The matrices of a step, named as in `Recipe`."""

    drift: np.ndarray
    noise: np.ndarray
    kept: np.ndarray
    oracle: np.ndarray | None


def _step(plan: Plan) -> _Step:
    """The step of a linear scheme; a Gaussian oracle's noise and the scheme's are drawn as one Gaussian where that is possible.

    That is the same law for half the normals. A martingale needs the scheme's own ξ, and a memory of the noise would have to
    hold the oracle's as well: there the oracle has d normals of its own.
    """
    n, d, apart = plan.dynamics.size, plan.dim, plan.martingale or plan.state_size > plan.dynamics.size
    if plan.scheme.is_euler and not apart:
        eta, D = plan.eta, plan.dynamics.D
        B, C, kept = -eta * (D + plan.dynamics.Q), None, np.zeros((n, n))
        covariance = 2 * eta * D
    else:
        A, B, C = plan.step_matrices.A, plan.step_matrices.B, plan.step_matrices.C
        kept = A - np.eye(len(A)) * (np.arange(len(A)) < n)
        covariance = C @ C.T
    if not isinstance(plan.oracle, Gaussian):
        return _Step(B, np.linalg.cholesky(covariance) if C is None else C, kept, None)
    spread = float(plan.oracle.tau) * B[:, :d]
    if apart:
        assert C is not None
        return _Step(B, C, kept, spread)
    return _Step(B, _root(covariance + spread @ spread.T), kept, None)


def _root(covariance: np.ndarray) -> np.ndarray:
    """R with RRᵀ the given matrix, which may be singular."""
    try:
        return np.linalg.cholesky(covariance)
    except np.linalg.LinAlgError:
        values, basis = np.linalg.eigh(covariance)
        return (basis * np.sqrt(np.maximum(values, 0))) @ basis.T


def _anchor(anchor: Anchor | None, known: np.ndarray) -> tuple[Matrix | None, Matrix | None, np.ndarray]:
    """[K, g] and c of a control variate, and the known coefficients with theirs behind them.

    Each entry has a coefficient of its own: these are data, and other data must not lead to another kernel.
    """
    if anchor is None:
        return None, None, known
    d = len(anchor.center)
    K = np.zeros((d, 0)) if anchor.curvature is None else anchor.curvature
    columns = [*range(K.shape[1]), d]  # of (θ - c, 1)
    first = len(known) + np.arange(d) * len(columns)
    rows = tuple(tuple((i, int(n) + j, 1) for j, i in enumerate(columns)) for n in first)
    center = tuple(((0, len(known) + d * len(columns) + i, 1),) for i in range(d))
    parts = known, np.column_stack([K, anchor.gradient]).ravel(), anchor.center
    return rows, center, np.concatenate(parts).astype(np.float32)


def _compress(*matrices: np.ndarray) -> tuple[np.ndarray, list[Matrix]]:
    """The distinct absolute values of the entries, and each matrix by reference to them; zeros are left out.

    Values are numbered in the order in which they first appear, not by size: a smaller η shrinks drift and noise differently,
    which must not lead to another kernel.
    """
    values: list[float] = []
    sparse = []
    for matrix in matrices:
        where = np.nonzero(np.abs(matrix) > 1e-14 * np.abs(matrix).max(initial=0.0))
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


def _slots(plan: Plan, team: int) -> tuple[tuple[Slot, ...], np.ndarray]:
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
            slots.append(Slot((i,), value=unroll(lambda t, h=h: h(plan.unravel(t)), _vector(plan))))
    return tuple(slots), directions


_NOTHING = np.zeros((1, 1), np.float32)


def _increments(plan: Plan, found: Martingale, team: int) -> tuple[tuple[Slot, ...], np.ndarray]:
    """The increments of all observables as slots, one observable per thread, and their numbers, a column for each thread.

    A column has c (n numbers), Σ_t λ_t|q_t|², and for each term λ_t, 2o_t, 2p_t and q_t, with zeros after the last term.
    Observables with equally many terms share tables, so that one without quadratic terms does not wait for another's.
    """
    count = len(plan.observables)
    terms = [np.flatnonzero(found.owner == j) for j in range(count)]
    slots = []
    for number in sorted({len(t) for t in terms}):
        members = [j for j in range(count) if len(terms[j]) == number]
        for i in range(0, len(members), team):
            slots.append(Slot(tuple(count + j for j in members[i : i + team]), terms=number))
    n, m = found.linear.shape[1], plan.state_size
    numbers = np.zeros((n + 1 + max(map(len, terms)) * (2 + m + n), len(slots) * team), np.float32)
    for s, slot in enumerate(slots):
        for thread, column in enumerate(slot.members):
            t = terms[column - count]
            quadratic = np.column_stack([found.weight[t], 2 * found.offset[t], 2 * found.direction[t], found.noise[t]])
            everything = [found.linear[column - count], [found.weight[t] @ found.spread[t]], quadratic.ravel()]
            flat = np.concatenate(everything)
            numbers[: len(flat), s * team + thread] = flat
    return tuple(slots), numbers


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
