"""A plan as the arrays of the loop: one sparse matrix per step, a table of rows, the observables' directions.

`compile_program` takes a plan and returns a `Program`; `why_not` returns the reason why a plan has none. The nonlinear part of a
target's gradient is one of the parts of `gradients`. Everything is computed in float64 and rounded once, to the run's precision.
"""

from typing import NamedTuple

import jax
import numpy as np

from gyromc import targets
from gyromc.engines.lanes import gradients
from gyromc.engines.lanes.gradients import WIDTH
from gyromc.engines.lanes.kernel import PROFILES, Program
from gyromc.engines.lanes.translate import Untranslatable, on_vectors, translated
from gyromc.engines.lanes.vectors import LANES
from gyromc.flat import identity
from gyromc.observables import Ridge
from gyromc.oracles import Batch, ControlVariate, Exact, Gaussian, Minibatch
from gyromc.plan import Plan

SUPPORTED_ORACLES = (Exact, Gaussian, Minibatch, ControlVariate)
MAX_SIZE = 256  # entries of z; beyond, matrix products over all chains at once are faster
MAX_BATCH = 4096
KNOWN = {
    targets.LinearRegression: gradients.AFFINE,
    targets.LogisticRegression: gradients.SIGNED_LOGISTIC,
    targets.PoissonRegression: gradients.POISSON,
}
WIDE = {gradients.BATCH: gradients.WIDE_BATCH, gradients.BATCH_MOMENTS: gradients.WIDE_BATCH_MOMENTS}
MAX_MOMENTS = 3 * LANES  # products per row up to which a table of products is faster than dot products


class Form(NamedTuple):
    """The gradient as ∇̂U(θ) = Kθ + a + c·s(θ), s being the part of `gradients` named by `part`."""

    K: np.ndarray
    a: np.ndarray
    c: float | np.ndarray = 0.0
    part: int = gradients.NOTHING
    slope_code: int = 0
    uses_response: bool = False
    uses_centre: bool = False
    table: np.ndarray = np.zeros((1, LANES))
    batch: int = 0


def why_not(plan: Plan) -> str | None:
    """Why this engine cannot run the plan, by its first piece that does not fit, or None."""
    target, oracle = plan.flat_target, plan.oracle
    if plan.unravel is not identity:
        return "the parameters are a pytree, not a vector"
    if plan.dynamics.size > MAX_SIZE:
        return f"the state has {plan.dynamics.size} entries, more than {MAX_SIZE}"
    if plan.scheduled:
        return "the step size is a schedule"
    if not plan.scheme.is_euler:
        return f"the scheme is {plan.scheme}, not euler"
    for name, h in plan.observables.items():
        if not isinstance(h, Ridge) or h.profile not in PROFILES:
            kind = type(h).__name__ if not isinstance(h, Ridge) else f"ridge with profile {h.profile!r}"
            return f"observable {name!r} is a general {kind}, not one of {', '.join(PROFILES)} of aᵀθ"
    if type(oracle) not in SUPPORTED_ORACLES:
        return f"the oracle is a {type(oracle).__name__}"
    if isinstance(oracle, ControlVariate) and oracle.order > 1:
        return "it has control variates of order 1 only"
    if oracle.memory(plan.dim):
        return f"it keeps no anchors between steps, which {oracle.name} needs"
    if isinstance(oracle, Batch) and oracle.size > MAX_BATCH:
        return f"the mini-batch has {oracle.size} rows, more than {MAX_BATCH}"
    if type(target) in (targets.Quadratic, targets.CosinePerturbed, *KNOWN):
        return None
    if type(target) is targets.SoftmaxRegression:
        batches = not isinstance(oracle, Exact | Gaussian)
        return f"mini-batches of a {type(target).__name__} are not known here" if batches else None
    if not isinstance(target, targets.GeneralizedLinear | targets.Separable):
        return f"target is a general {type(target).__name__}"
    try:
        user_function(target)
    except Untranslatable as error:
        return f"the slope of {type(target).__name__} uses {error}"
    return None


def user_function(target):
    """The scalar function of a user's own model, for vectors: φ′ of a `Separable`, the slope of a `GeneralizedLinear`."""
    if isinstance(target, targets.Separable):
        return on_vectors(target.slope, 1) if target.slope is not None else translated(jax.grad(target.phi), 1)  # type: ignore[arg-type]
    own = getattr(type(target), "numba_slope", None)
    return on_vectors(own, 2) if own is not None else translated(target.slope, 2)


def form(plan: Plan) -> Form:
    """The gradient of the plan's oracle, in its linear and nonlinear parts."""
    target, oracle = plan.flat_target, plan.prepared_oracle
    if isinstance(target, targets.GeneralizedLinear) and isinstance(oracle, Batch):
        return _batch_form(target, oracle)
    known = target.gaussian()
    if known is not None:
        return Form(known[0], -known[0] @ known[1])
    if isinstance(target, targets.Separable):
        K, a = target.matrix, -target.matrix @ target.mean
        return Form(K, a, target.weights, gradients.SCALAR, slope_code=gradients.USERS)
    eye, zero = np.eye(plan.dim), np.zeros(plan.dim)
    if isinstance(target, targets.CosinePerturbed):
        return Form(eye, zero, -float(target.beta), gradients.SINE)
    assert isinstance(target, targets.SoftmaxRegression | targets.GeneralizedLinear)
    K = float(target.prior_precision) * eye
    if isinstance(target, targets.SoftmaxRegression):
        # Rows are (x, 1/√(k(k+1)) for k = 1 … C-1); the responses enter only `a`.
        (X, y), B = target.design, target.basis
        k = np.arange(1, B.shape[0])
        table = _padded(X, np.broadcast_to(1 / np.sqrt(k * (k + 1)), (len(X), len(k))))
        a = -(B[y.astype(int)].T @ X).ravel()
        return Form(K, a, 1.0, gradients.FULL_SOFTMAX, slope_code=gradients.SOFTMAX + len(k), table=table)
    X, y, code = _signed_rows(target)
    return Form(K, zero, 1.0, gradients.FULL_SUM, slope_code=code, table=_padded(X, y))


def _signed_rows(target: targets.GeneralizedLinear) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows and responses as `gradients.known_slope` takes them, and its code."""
    X, y = target.design
    if type(target) is targets.LogisticRegression:
        return (2 * y - 1)[:, None] * X, y, gradients.SIGNED_LOGISTIC
    return X, y, KNOWN.get(type(target), gradients.USERS)


def _batch_form(target: targets.GeneralizedLinear, oracle: Batch) -> Form:
    """The gradient of a mini-batch, with or without control variates."""
    X, y, code = _signed_rows(target)
    (N, d), a, part = X.shape, np.zeros(X.shape[1]), gradients.BATCH
    signed, affine, centred = code == gradients.SIGNED_LOGISTIC, code == gradients.AFFINE, False
    columns = [X] if signed else [X, y]
    if isinstance(oracle, ControlVariate):
        a, t = np.asarray(oracle.anchor, float), X @ np.asarray(oracle.center, float)
        if affine:
            columns = [X, t]  # the slope at θ less that at the centre is xᵀθ - xᵀc
        else:
            centred = True
            columns = [X, y, -1 / (1 + np.exp(t)) if signed else np.asarray(target.slope(t, y), float)]
    products = [X[:, i] * X[:, j] for i in range(d) for j in range(i, d)] if affine else []
    if affine and len(products) + d <= MAX_MOMENTS:
        part, columns = gradients.BATCH_MOMENTS, [*products, columns[1][:, None] * X]
    return Form(
        K=float(target.prior_precision) * np.eye(d),
        a=a,
        c=N / oracle.size,
        part=part,
        slope_code=code,
        uses_response=not signed,
        uses_centre=centred,
        table=_padded(*columns),
        batch=oracle.size,
    )


def _padded(*columns: np.ndarray) -> np.ndarray:
    """The columns as rows, filled with zeros to a multiple of sixteen numbers, and an empty row at the end."""
    rows = np.column_stack(columns)
    table = np.zeros((rows.shape[0] + 1, -(-rows.shape[1] // LANES) * LANES))
    table[:-1, : rows.shape[1]] = rows
    return table


def step_matrix(plan: Plan, f: Form) -> tuple[np.ndarray, np.ndarray]:
    """[B E L] and the shift of `kernel`, as dense arrays."""
    eta, n, d = plan.eta, plan.dynamics.size, plan.dim
    D, Q = plan.dynamics.D, plan.dynamics.Q
    G, G_theta = D + Q, (D + Q)[:, :d]
    P = np.eye(n)
    P[:d, :d] = f.K
    B = -eta * G @ P
    shift = -eta * G_theta @ f.a
    E = -eta * f.c * G_theta  # one c for all of s, or one for each of its entries
    W = 2 * eta * D
    if isinstance(plan.oracle, Gaussian):
        W = W + (eta * float(plan.oracle.tau)) ** 2 * G_theta @ G_theta.T  # T1: independent Gaussian noises
    return np.concatenate([B, E, np.linalg.cholesky(W)], axis=1), shift


def sparse_rows(matrix: np.ndarray, dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The nonzero entries of a matrix: (where rows begin, offsets of columns in a block, entries)."""
    rows, columns = np.nonzero(matrix)
    start = np.concatenate([[0], np.cumsum(np.count_nonzero(matrix, axis=1))])
    return start.astype(np.int64), columns.astype(np.int64) * WIDTH, matrix[rows, columns].astype(dtype)


def compile_program(plan: Plan, bound: float, thin: int | None) -> Program:
    """The plan as arrays, in its precision."""
    dtype = np.dtype(plan.dtype)
    f = form(plan)
    matrix, shift = step_matrix(plan, f)
    row_start, column, entry = sparse_rows(matrix, dtype)
    directions = np.stack([np.asarray(h.direction, float) for h in plan.observables.values()])  # type: ignore[attr-defined]
    h_start, h_column, h_entry = sparse_rows(directions, dtype)
    word = f"int{8 * dtype.itemsize}"
    infinity = int(np.array(np.inf, dtype).view(word))
    return Program(
        n=plan.dynamics.size,
        d=plan.dim,
        row_start=row_start,
        column=column,
        entry=entry,
        shift=shift.astype(dtype),
        h_start=h_start,
        h_column=h_column,
        h_entry=h_entry,
        profile=np.array([PROFILES.index(h.profile) for h in plan.observables.values()], np.int64),  # type: ignore[attr-defined]
        weight=plan.eta if plan.weighting == "step_size" else 1.0,
        burn_in=plan.burn_in,
        thin=thin or 0,
        bound_bits=int(np.array(min(bound, float(np.finfo(dtype).max)), dtype).view(word)),
        infinity_bits=infinity,
        magnitude_bits=int(np.iinfo(word).max),
        part=WIDE.get(f.part, f.part) if f.table.shape[1] > LANES else f.part,
        slope_code=f.slope_code,
        uses_response=f.uses_response,
        uses_centre=f.uses_centre,
        table=aligned(f.table.astype(dtype)),
        num_rows=f.table.shape[0] - 1,
        row_width=f.table.shape[1],
        batch=f.batch,
        padded_batch=-(-f.batch // LANES) * LANES,
        replace=not isinstance(plan.oracle, Batch) or plan.oracle.replace,
    )


def aligned(array: np.ndarray, boundary: int = 64) -> np.ndarray:
    """A flat copy that starts at a cache line, so that no vector straddles two."""
    buffer = np.empty(array.nbytes + boundary, np.uint8)
    start = -buffer.ctypes.data % boundary
    copy = buffer[start : start + array.nbytes].view(array.dtype)
    copy[:] = array.ravel()
    return copy
