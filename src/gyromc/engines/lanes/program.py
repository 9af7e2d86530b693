"""A plan as the arrays of the loop: one sparse matrix per step, a table of rows, the observables' directions and increments.

Everything is computed in float64 and rounded once, to the run's precision. The increments of the martingale control variate (T9)
are a table of terms: rows to multiply with (y⁺, s, ξ), and for every observable the terms of

    ψ = Σ_t u_t (cross_t v_t - square_t u_t + linear_t) - constant,   u_t a product with ξ, v_t a product with y⁺.

The constant is E[Σ_t …] for the rows and numbers as they are rounded, so that ψ has mean zero whatever was rounded.
"""

import os
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

from gyromc import targets
from gyromc.data import Mapped
from gyromc.dynamics import augment
from gyromc.engines.lanes import gradients
from gyromc.engines.lanes.gradients import Part
from gyromc.engines.lanes.kernel import IncrementTerms, Program, Sparse
from gyromc.engines.lanes.vectors import LANES, WIDTH
from gyromc.engines.lowering import center_of, linear_step
from gyromc.observables import PROFILES, Ridge
from gyromc.oracles import Batch, ControlVariate
from gyromc.plan import Plan
from gyromc.prediction.martingale import martingale
from gyromc.targets.regressions import BY_FAMILY

KNOWN = {
    targets.LinearRegression: gradients.AFFINE,
    targets.LogisticRegression: gradients.SIGNED_LOGISTIC,
    targets.PoissonRegression: gradients.POISSON,
}
NEGLIGIBLE = 1e-9  # of a row's largest entry: smaller ones are left out
MAX_MOMENTS = 3 * LANES  # products per row up to which a table of products is faster than dot products


class Form(NamedTuple):
    """The gradient as ∇̂U(θ) = Kθ + a + c·s(θ), s being the part of `gradients` named by `part`."""

    K: np.ndarray
    a: np.ndarray
    c: float | np.ndarray = 0.0
    part: Part = Part.NOTHING
    slope_code: int = 0
    uses_response: bool = False
    centre_column: int = 0
    curvature_column: int = 0
    table: np.ndarray = np.zeros((1, LANES))
    batch: int = 0


def user_slope(target) -> tuple[Callable, int] | None:
    """The scalar function of a user's own model and how many arguments it has: φ′ of a `Separable`, ∂ loss/∂t of rows."""
    if isinstance(target, targets.Separable):
        return jax.grad(target.phi), 1
    if isinstance(target, targets.GeneralizedLinear) and type(target) not in KNOWN:
        return target.slope, 2
    return None


def form(plan: Plan) -> Form:
    """The gradient of the plan's oracle, in its linear and nonlinear parts."""
    target, oracle, known = plan.flat_target, plan.prepared_oracle, plan.flat_target.gaussian()
    noiseless = known is not None and isinstance(oracle, ControlVariate) and oracle.order == 2  # T8
    if isinstance(oracle, Batch) and not noiseless:
        assert isinstance(target, targets.GeneralizedLinear | targets.StreamedRegression)
        return _batch_form(target, oracle)
    if known is not None:
        return Form(known[0], -known[0] @ known[1])
    if isinstance(target, targets.Separable):
        K, a = target.matrix, -target.matrix @ target.mean
        return Form(K, a, target.weights, Part.SCALAR, gradients.USERS)
    eye, zero = np.eye(plan.dim), np.zeros(plan.dim)
    if isinstance(target, targets.CosinePerturbed):
        return Form(eye, zero, -float(target.beta), Part.SCALAR, gradients.SINE)
    assert isinstance(target, targets.GeneralizedLinear)
    X, _, y, code = _signed_rows(target)
    return Form(float(target.prior_precision) * eye, zero, 1.0, Part.FULL_SUM, code, table=_padded(X, y))


def _signed_rows(target: targets.GeneralizedLinear) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Rows and their signs, responses, and the code of the slope, as `gradients.known_slope` takes them."""
    (X, y), code = target.design, KNOWN.get(type(target), gradients.USERS)
    sign = 2 * y - 1 if code == gradients.SIGNED_LOGISTIC else np.ones(len(y))
    return sign[:, None] * X, sign, y, code


def mapped_source(target) -> Mapped:
    """The mapped file of a target that has one."""
    assert isinstance(target, targets.StreamedRegression)
    assert isinstance(target.by_row, Mapped)
    return target.by_row


def _batch_form(target: targets.GeneralizedLinear | targets.StreamedRegression, oracle: Batch) -> Form:
    K, a = float(target.prior_precision) * np.eye(target.dim), np.zeros(target.dim)
    center = None
    if isinstance(oracle, ControlVariate):
        center = center_of(oracle, target if isinstance(target, targets.GeneralizedLinear) else None)
        a = center.gradient
        if center.curvature is not None:
            K, a = K + center.curvature, a - center.curvature @ center.point  # T8
    start = Form(K, a, target.num_data / oracle.size, batch=oracle.size)
    if isinstance(target, targets.StreamedRegression):
        large = mapped_source(target).is_large() and hasattr(os, "pread")
        # The table has the width of a row and y beside it, and no rows.
        return start._replace(
            part=Part.BATCH_AHEAD if large else Part.MAPPED_BATCH,
            slope_code=KNOWN[BY_FAMILY[target.family]],
            centre_column=int(center is not None),
            curvature_column=int(center is not None and center.curvature is not None),
            table=_padded(np.zeros((0, target.dim + 1))),
        )
    X, sign, y, code = _signed_rows(target)
    d, part, uses_response = X.shape[1], Part.BATCH, code != gradients.SIGNED_LOGISTIC
    centre_column = curvature_column = 0
    if center is not None and code == gradients.AFFINE:
        y = center.predictor  # the slope at θ less that at the centre is xᵀθ - xᵀc
    columns = [X, y] if uses_response else [X]
    if center is not None and code != gradients.AFFINE:
        slope, centre_column = center.slope, d + uses_response
        if center.curvature is not None:
            # A row's weight is slope(t) - (slope_c - w t_c) - w t, w the derivative of the slope at t_c = xᵀc.
            slope, curvature_column = slope - center.change * center.predictor, centre_column + 1
        columns += [sign * slope, center.change][: 2 if curvature_column else 1]
    products = [X[:, i] * X[:, j] for i in range(d) for j in range(i, d)] if code == gradients.AFFINE else []
    if products and len(products) + d <= MAX_MOMENTS:
        part, columns = Part.MOMENTS, [*products, y[:, None] * X]
    start = start._replace(centre_column=centre_column, curvature_column=curvature_column)
    return start._replace(part=part, slope_code=code, uses_response=uses_response, table=_padded(*columns))


def _padded(*columns: np.ndarray) -> np.ndarray:
    """The columns as rows, filled with zeros to a multiple of sixteen numbers, and an empty row at the end."""
    rows = np.column_stack(columns)
    return np.pad(rows, ((0, 1), (0, -rows.shape[1] % LANES)))


def sparse_rows(matrix: np.ndarray, shift: np.ndarray, dtype) -> Sparse:
    """A matrix by its nonzero entries."""
    rows, columns = np.nonzero(matrix)
    start = np.searchsorted(rows, np.arange(len(matrix) + 1)).astype(np.int64)
    return Sparse(start, columns.astype(np.int64) * WIDTH, matrix[rows, columns].astype(dtype), shift.astype(dtype))


def compile_program(plan: Plan, bound: float, thin: int | None) -> Program:
    """The plan as arrays, in its precision."""
    dtype, oracle = np.dtype(plan.dtype), plan.prepared_oracle
    kept = plan.model.computed.find("lanes table", (oracle, dtype))
    if kept is None:
        f = form(plan)
        kept = f._replace(table=f.table[:0]), aligned(f.table.astype(dtype, copy=False))
        # that of the last run of the model alone
        plan.model.computed.entries["lanes table"] = [((oracle, dtype), kept)]
    f, table = kept
    step, n = linear_step(plan), plan.dynamics.size
    change = step.kept
    change[:, :n] += step.scale * step.G @ augment(f.K, plan.augmented)
    E = step.scale * f.c * step.G[:, : plan.dim]  # one c for all of s, or one for each of its entries
    matrix = np.concatenate([change, E, step.noise] + ([] if step.oracle is None else [step.oracle]), axis=1)
    # All observables are ridges: see `suitability`.
    ridges = [h for h in plan.observables.values() if isinstance(h, Ridge)]
    rows, terms = increments(plan, np.stack([np.asarray(h.direction, float) for h in ridges]))
    row_width, m, d = f.table.shape[1], plan.state_size, plan.dim
    file, reads, centre = [np.zeros(0, dtype)] * 2, (-1, 0), np.zeros(row_width, dtype)
    if f.part >= Part.MAPPED_BATCH:
        source = mapped_source(plan.flat_target)
        file, reads = (source.X.reshape(-1), source.y), source.opened()
        if isinstance(oracle, ControlVariate):
            centre[:d] = oracle.center
    word = f"int{8 * dtype.itemsize}"
    return Program(
        n=n,
        d=d,
        m=m,
        draws=matrix.shape[1] - m - d,
        step=sparse_rows(matrix, step.scale * step.G[:, : plan.dim] @ f.a, dtype),
        observed=sparse_rows(rows, np.zeros(len(rows)), dtype),
        profile=np.array([list(PROFILES).index(h.profile) for h in ridges], np.int64),
        columns=len(ridges) + len(terms.constant),
        terms=terms,
        weight=plan.eta if plan.weighting == "step_size" else 1.0,
        burn_in=plan.burn_in,
        thin=thin or 0,
        bound_bits=int(np.array(min(bound, float(np.finfo(dtype).max)), dtype).view(word)),
        infinity_bits=int(np.array(np.inf, dtype).view(word)),
        magnitude_bits=int(np.iinfo(word).max),
        part=int(f.part),
        **{
            name: getattr(f, name)
            for name in ("slope_code", "uses_response", "centre_column", "curvature_column", "batch")
        },
        users=0,
        table=table,
        num_rows=len(file[1]) or len(table) // row_width - 1,
        row_width=row_width,
        padded_batch=-(-f.batch // LANES) * LANES,
        replace=not isinstance(plan.oracle, Batch) or plan.oracle.replace,
        file_rows=file[0],
        responses=file[1],
        descriptor=reads[0],
        file_start=reads[1],
        places=np.zeros(0, np.uint32),
        centre=centre,
    )


def aligned(array: np.ndarray) -> np.ndarray:
    """A flat copy that starts at a cache line of 64 bytes, so that no vector straddles two."""
    buffer = np.empty(array.nbytes + 64, np.uint8)
    start = -buffer.ctypes.data % 64
    copy = buffer[start : start + array.nbytes].view(array.dtype)
    copy[:] = array.ravel()
    return copy


def increments(plan: Plan, own: np.ndarray) -> tuple[np.ndarray, IncrementTerms]:
    """Rows over (y, s, ξ), the observables' own directions first, and the terms, rounded to the plan's precision."""
    m, d, n, k = plan.state_size, plan.dim, plan.dynamics.size, len(own)
    stored = lambda x: np.asarray(x).astype(plan.dtype)
    own = np.pad(own, ((0, 0), (0, m - d)))
    if not plan.martingale:
        none, index = np.zeros(0, plan.dtype), np.zeros(0, np.int64)
        rows = np.pad(own, ((0, 0), (0, d + n)))
        return rows, IncrementTerms(np.zeros(1, np.int64), index, index, none, none, none, none)
    psi = martingale(plan)
    # Every observable's linear term u, then the others: λ u (2(v - o) - u). Entries that are rounding errors are left out.
    sizes = lambda a: np.max(np.abs(a), axis=1, keepdims=True, initial=0.0)
    exact = lambda a: stored(np.where(np.abs(a) > NEGLIGIBLE * sizes(a), a, 0.0)).astype(float)
    state, noise = exact(np.concatenate([own, psi.direction])), exact(np.concatenate([psi.linear, psi.noise]))
    owner, weight = np.concatenate([np.arange(k), psi.owner]), np.concatenate([np.zeros(k), psi.weight])
    cross, square = stored(2 * weight).astype(float), stored(weight).astype(float)  # T9
    linear = np.concatenate([np.ones(k), -2 * psi.weight * psi.offset])
    w = np.concatenate([np.zeros(k, np.int64), np.arange(k, len(state))])
    # The constants are those of the numbers as they are stored.
    mean = cross * np.sum(noise * (state @ plan.step_matrices.C)[w], axis=1) - square * np.sum(noise**2, axis=1)
    order = np.argsort(owner, kind="stable")
    rows = np.zeros((len(state) + len(noise), m + d + n))
    rows[: len(state), :m], rows[len(state) :, m + d :] = state, noise
    return rows, IncrementTerms(
        start=np.concatenate([[0], np.cumsum(np.bincount(owner, minlength=k))]),
        noise=(len(state) + order) * WIDTH,
        state=w[order] * WIDTH,
        cross=stored(cross[order]),
        square=stored(square[order]),
        linear=stored(linear[order]),
        constant=stored(np.bincount(owner, mean, k)),
    )
