"""A plan as the arrays of the loop: one sparse matrix per step, a table of rows, the observables' directions.

`compile_program` takes a plan and returns a `Program`; `why_not` returns the reason why a plan has none. The nonlinear part of a
target's gradient is one of the parts of `gradients`. Everything is computed in float64 and rounded once, to the run's precision.
"""

from typing import NamedTuple

import jax
import numpy as np

from gyromc import schemes
from gyromc.engines.lanes import gradients
from gyromc.engines.lanes.gradients import WIDTH
from gyromc.engines.lanes.kernel import PROFILES, Program
from gyromc.engines.lanes.translate import Untranslatable, on_vectors, translated
from gyromc.engines.lanes.vectors import LANES
from gyromc.flat import identity
from gyromc.observables import Ridge
from gyromc.oracles import Batch, ControlVariate, Exact, Gaussian, Minibatch
from gyromc.plan import Plan
from gyromc.targets import (
    CosinePerturbed,
    GeneralizedLinear,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    Quadratic,
    Separable,
    SoftmaxRegression,
)

SUPPORTED_SCHEMES = (schemes.euler,)
SUPPORTED_ORACLES = (Exact, Gaussian, Minibatch, ControlVariate)
MAX_SIZE = 256  # entries of z; beyond, matrix products over all chains at once are faster
MAX_BATCH = 4096
KNOWN = {
    LinearRegression: gradients.AFFINE,
    LogisticRegression: gradients.SIGNED_LOGISTIC,
    PoissonRegression: gradients.POISSON,
}
MAX_MOMENTS = 3 * LANES  # products per row up to which a table of products is faster than dot products


class Form(NamedTuple):
    """The gradient as ∇̂U(θ) = K(θ - m) + a + c·s(θ), s being the part of `gradients` named by `part`."""

    K: np.ndarray
    m: np.ndarray
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
    if plan.scheme not in SUPPORTED_SCHEMES:
        return f"the scheme is {plan.scheme}, not {' or '.join(map(str, SUPPORTED_SCHEMES))}"
    for name, h in plan.observables.items():
        if not isinstance(h, Ridge) or h.profile not in PROFILES:
            kind = type(h).__name__ if not isinstance(h, Ridge) else f"ridge with profile {h.profile!r}"
            return f"observable {name!r} is a general {kind}, not one of {', '.join(PROFILES)} of aᵀθ"
    if type(oracle) not in SUPPORTED_ORACLES:
        return f"the oracle is a {type(oracle).__name__}"
    if isinstance(oracle, Batch) and oracle.size > MAX_BATCH:
        return f"the mini-batch has {oracle.size} rows, more than {MAX_BATCH}"
    if type(target) in (Quadratic, CosinePerturbed, *KNOWN):
        return None
    if type(target) is SoftmaxRegression:
        batches = not isinstance(oracle, Exact | Gaussian)
        return f"mini-batches of a {type(target).__name__} are not known here" if batches else None
    if not isinstance(target, GeneralizedLinear | Separable):
        return f"target is a general {type(target).__name__}"
    try:
        user_function(target)
    except Untranslatable as error:
        return f"the slope of {type(target).__name__} uses {error}"
    return None


def user_function(target):
    """The scalar function of a user's own model, for vectors: φ′ of a `Separable`, the slope of a `GeneralizedLinear`."""
    if isinstance(target, Separable):
        return on_vectors(target.slope, 1) if target.slope is not None else translated(jax.grad(target.phi), 1)  # type: ignore[arg-type]
    own = getattr(type(target), "numba_slope", None)
    return on_vectors(own, 2) if own is not None else translated(target.slope, 2)


def form(plan: Plan) -> Form:
    """The gradient of the plan's oracle, in its linear and nonlinear parts."""
    target, oracle = plan.flat_target, plan.prepared_oracle
    zero = np.zeros(plan.dim)
    if isinstance(target, GeneralizedLinear) and isinstance(oracle, Batch):
        return _batch_form(target, oracle)
    known = target.gaussian()
    if known is not None:
        return Form(K=known[0], m=known[1], a=zero)
    if isinstance(target, Separable):
        return Form(K=target.matrix, m=target.mean, a=zero, c=target.weights, part=gradients.SCALAR)
    if isinstance(target, CosinePerturbed):
        return Form(K=np.eye(plan.dim), m=zero, a=zero, c=-float(target.beta), part=gradients.SINE)
    if isinstance(target, SoftmaxRegression):
        return _softmax_form(target)
    assert isinstance(target, GeneralizedLinear)
    X, y, code = _signed_rows(target)
    K = float(target.prior_precision) * np.eye(plan.dim)
    table = _padded(np.column_stack([X, y]))
    return Form(K=K, m=zero, a=zero, c=1.0, part=gradients.FULL_SUM, slope_code=code, table=table)


def _softmax_form(target: SoftmaxRegression) -> Form:
    """Rows (x, 1/√(k(k+1)) for k = 1 … C-1); the responses enter only the constant."""
    (X, y), B = target.design, target.basis
    k = np.arange(1, B.shape[0])
    table = _padded(np.concatenate([X, np.broadcast_to(1 / np.sqrt(k * (k + 1)), (len(X), len(k)))], axis=1))
    return Form(
        K=float(target.prior_precision) * np.eye(target.dim),
        m=np.zeros(target.dim),
        a=-(B[y.astype(int)].T @ X).ravel(),
        c=1.0,
        part=gradients.FULL_SOFTMAX,
        slope_code=gradients.SOFTMAX + len(k),
        table=table,
    )


def _signed_rows(target: GeneralizedLinear) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows and responses as `gradients.known_slope` takes them, and its code."""
    X, y = target.design
    if type(target) is LogisticRegression:
        return (2 * y - 1)[:, None] * X, y, gradients.SIGNED_LOGISTIC
    return X, y, KNOWN.get(type(target), gradients.USERS)


def _batch_form(target: GeneralizedLinear, oracle: Batch) -> Form:
    """The gradient of a mini-batch, with or without control variates."""
    X, y, code = _signed_rows(target)
    N, d = X.shape
    center = np.asarray(oracle.center, float) if isinstance(oracle, ControlVariate) else None
    common = {
        "K": float(target.prior_precision) * np.eye(d),
        "m": np.zeros(d),
        "a": np.zeros(d) if center is None else np.asarray(oracle.anchor, float),  # type: ignore[attr-defined]
        "c": N / oracle.size,
        "batch": oracle.size,
    }
    if code == gradients.AFFINE:
        y = y if center is None else X @ center  # the slope at θ less that at the centre is xᵀθ - xᵀc
        pairs = [X[:, a] * X[:, b] for a in range(d) for b in range(a, d)]
        if len(pairs) + d <= MAX_MOMENTS:
            table = _padded(np.column_stack([*pairs, y[:, None] * X]))
            return Form(**common, part=gradients.BATCH_MOMENTS, table=table)
        table = _padded(np.column_stack([X, y]))
        return Form(**common, part=gradients.BATCH, slope_code=code, uses_response=True, table=table)
    if code in (gradients.USERS, gradients.POISSON):
        at_center = np.zeros(N) if center is None else np.asarray(target.slope(X @ center, y), float)
        table = _padded(np.column_stack([X, y, at_center]))
        return Form(
            **common,
            part=gradients.BATCH,
            slope_code=code,
            uses_response=True,
            uses_centre=center is not None,
            table=table,
        )
    at_center = np.zeros(N) if center is None else -1 / (1 + np.exp(X @ center))
    table = _padded(np.column_stack([X, y, at_center]) if center is not None else X)
    return Form(**common, part=gradients.BATCH, slope_code=code, uses_centre=center is not None, table=table)


def _padded(rows: np.ndarray) -> np.ndarray:
    """The rows, filled with zeros to a multiple of sixteen numbers, and an empty row at the end."""
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
    shift = eta * G_theta @ (f.K @ f.m - f.a)
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
        part=_part(f),
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


def _part(f: Form) -> int:
    """The part in the variant for the table's width."""
    wide = {gradients.BATCH: gradients.WIDE_BATCH, gradients.BATCH_MOMENTS: gradients.WIDE_BATCH_MOMENTS}
    return wide.get(f.part, f.part) if f.table.shape[1] > LANES else f.part


def aligned(array: np.ndarray, boundary: int = 64) -> np.ndarray:
    """A flat copy that starts at a cache line, so that no vector straddles two."""
    buffer = np.empty(array.nbytes + boundary, np.uint8)
    start = -buffer.ctypes.data % boundary
    copy = buffer[start : start + array.nbytes].view(array.dtype)
    copy[:] = array.ravel()
    return copy
