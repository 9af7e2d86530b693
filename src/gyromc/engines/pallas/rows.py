"""How a step reads the data of a target that is a sum over them.

Input: a plan. Output: `Rows` (which rows a step reads and what each adds to the gradient), the data as columns, and for a control
variate the `Anchor`, which is added once per step.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.engines.pallas.unrolled import Unsupported, entries, unroll
from gyromc.evaluation import doubled
from gyromc.flat import FlatSum, ravel
from gyromc.oracles import Batch, ControlVariate
from gyromc.plan import Plan
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


class Anchor(NamedTuple):
    """What a control variate adds to a step's gradient besides its rows and the prior: gradient + K(θ - center)."""

    center: np.ndarray
    gradient: np.ndarray
    curvature: np.ndarray | None  # K; None at order 1


class Data(NamedTuple):
    """The rows of a plan; `rows` is None for a target without data, `anchor` without a control variate."""

    rows: Rows | None
    columns: np.ndarray
    anchor: Anchor | None


def read_data(plan: Plan) -> Data:
    """How the step reads the target's data; `Unsupported` where the kernel cannot."""
    target, oracle = plan.flat_target, plan.oracle
    if not isinstance(target, SumOverData):
        return Data(None, np.zeros((1, 1), np.float32), None)
    N, batch, replace, anchor = target.num_data, None, True, None
    if isinstance(oracle, Batch) and (oracle.replace or oracle.size < N):
        batch, replace = oracle.size, oracle.replace
        if not replace and batch > MOST_DISTINCT:
            raise Unsupported(
                f"mini-batches of {batch} distinct rows (at most {MOST_DISTINCT}; any number with `replace=True`)"
            )
    if batch is not None and isinstance(oracle, ControlVariate):  # all rows together are the exact gradient
        anchor, add, columns = _anchored(plan)
    elif isinstance(target, GeneralizedLinear):
        add, columns = _linear_row(target), np.concatenate([target.X.T, target.y[None]])
    else:
        inner, unravel = (target.target, target.unravel) if isinstance(target, FlatSum) else (target, lambda x: x)
        if not isinstance(inner, FiniteSum):
            raise Unsupported(f"sums over data of type {type(inner).__name__}")
        add, columns = _traced_row(inner, unravel, jax.ShapeDtypeStruct((plan.dim,), jnp.float32))
    if len(columns) > MOST_COLUMNS:
        raise Unsupported(f"data with {len(columns)} numbers per row (at most {MOST_COLUMNS})")
    columns = np.ascontiguousarray(columns, np.float32)
    return Data(Rows(N, batch, replace, len(columns), 1.0 if batch is None else N / batch, add), columns, anchor)


def _linear_row(target: GeneralizedLinear) -> Callable:
    """`Rows.add` for a target that reads its data through xᵀθ."""
    slope = unroll(target.slope, _SCALAR, _SCALAR)

    def add(theta, columns, weight):
        *x, y = columns
        s = slope(entries([_dot(x, theta)], ()), entries([y], ()))[()] * weight
        return [s * a for a in x]

    return add


def _dot(x, theta):
    return sum(a * b for a, b in zip(x[1:], theta[1:], strict=True)) + x[0] * theta[0]


def _anchored(plan: Plan) -> tuple[Anchor, Callable, np.ndarray]:
    """A control variate of a generalized linear model: its anchor, `Rows.add`, and the data with each row's part at the center.

    A row x adds x times slope(xᵀθ) - slope(xᵀc), at order 2 less slope'(xᵀc) xᵀ(θ-c) as well.
    """
    target, oracle = plan.flat_target, plan.prepared_oracle
    if not isinstance(target, GeneralizedLinear):
        raise Unsupported(f"control variates of a {type(target).__name__} (only of generalized linear models)")
    assert isinstance(oracle, ControlVariate)
    second = oracle.order == 2
    K = _curvature(oracle) if second else None
    at_center = _at_center(target, np.asarray(oracle.center, float))
    columns = np.stack([*target.X.T, target.y, *(at_center if second else at_center[:1])])
    slope, d = unroll(target.slope, _SCALAR, _SCALAR), plan.dim

    def add(theta, columns, weight):
        x, y, rest = columns[:d], columns[d], columns[d + 1 :]
        t = _dot(x, theta)
        s = slope(entries([t], ()), entries([y], ()))[()] - rest[0]
        if second:
            s = s - rest[1] * (t - rest[2])  # the same t in both: its rounding cancels
        return [s * weight * a for a in x]

    return Anchor(np.asarray(oracle.center, float), np.asarray(oracle.anchor, float), K), add, columns


def _at_center(target: GeneralizedLinear, center: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of every row, the slope at the center, its derivative and the linear predictor, in float64."""
    X, y = np.asarray(target.X, float), np.asarray(target.y, float)
    t = X @ center
    with jax.enable_x64(True):
        wide = doubled(target)
        of_predictor = lambda t: wide.slope(t, jnp.asarray(y))
        slope, change = jax.jvp(of_predictor, (jnp.asarray(t),), (jnp.ones(len(t)),))
        return np.asarray(slope), np.asarray(change), t


def _curvature(oracle: ControlVariate) -> np.ndarray:
    """K as a matrix, for a control variate of order 2 that uses the whole of it."""
    if not oracle.complete or oracle.operator is None:
        raise Unsupported("control variates of order 2 with a diagonal or matrix-free `curvature`")
    return oracle.operator.dense()


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
