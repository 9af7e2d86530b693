"""A plan as the arrays of the loop: one sparse matrix per step, a table of rows, the observables' directions and increments.

`compile_program` takes a plan and returns a `Program`; `why_not` returns the reason why a plan has none. The nonlinear part of a
target's gradient is one of the parts of `gradients`. Everything is computed in float64 and rounded once, to the run's precision.

The increments of the martingale control variate (T9) are a table of terms: rows to multiply with (y⁺, s, ξ), and for every
observable the terms of

    ψ = Σ_t u_t (cross_t v_t - square_t u_t + linear_t) - constant,   u_t a product with ξ, v_t a product with y⁺.

A product is computed once for all terms that use its direction: often the noise of a quadratic term is parallel to that of the
linear term, and its direction to the observable's own. The constant is E[Σ_t …] for the rows and numbers as they are rounded, so
that ψ has mean zero whatever was shared or rounded.
"""

from typing import Any, NamedTuple

import jax
import llvmlite.binding
import numpy as np

from gyromc import targets
from gyromc.dynamics import augment
from gyromc.engines import suitability
from gyromc.engines.lanes import gradients
from gyromc.engines.lanes.gradients import Part, mapped_rows, no_rows
from gyromc.engines.lanes.kernel import IncrementTerms, Program, Sparse
from gyromc.engines.lanes.vectors import LANES, WIDTH
from gyromc.engines.lowering import anchor_of, at_center, linear_step
from gyromc.engines.suitability import PROFILES
from gyromc.martingale import martingale
from gyromc.observables import Ridge
from gyromc.oracles import Batch, ControlVariate
from gyromc.plan import Plan
from gyromc.targets.regressions import BY_FAMILY

KNOWN = {
    targets.LinearRegression: gradients.AFFINE,
    targets.LogisticRegression: gradients.SIGNED_LOGISTIC,
    targets.PoissonRegression: gradients.POISSON,
}
MOST_FILLED = 1.2  # numbers stored over numbers needed, up to which two rows of a matrix are computed together
# With fewer columns there is little to gain from rows in pairs, and one loop more to compile.
FEWEST_PAIRED = 48
IN_PAIRS = bool(llvmlite.binding.get_host_cpu_features().get("avx512f"))  # with fewer registers one at a time is faster
MANY = 16  # logistic observables from which on they are computed for several steps together
MOST_KEPT, KEPT_BYTES = 8, 16384  # of these steps: how many, and the memory of their θ, half of a small cache
MAX_MOMENTS = 3 * LANES  # products per row up to which a table of products is faster than dot products


class Form(NamedTuple):
    """The gradient as ∇̂U(θ) = Kθ + a + c·s(θ), s being the part of `gradients` named by `part`."""

    K: np.ndarray
    a: np.ndarray
    c: float | np.ndarray = 0.0
    part: Part = Part.NOTHING
    slope_code: int = 0
    uses_response: bool = False
    uses_centre: bool = False
    curvature_column: int = 0
    table: np.ndarray = np.zeros((1, LANES))
    batch: int = 0


def why_not(plan: Plan, mesh: Any = None) -> str | None:
    """Why this engine cannot run the plan: its first piece that does not fit, or an operation that cannot be compiled."""
    target, reason = plan.flat_target, suitability.lanes(plan, mesh)
    known = (targets.Quadratic, targets.CosinePerturbed, targets.SoftmaxRegression, targets.StreamedRegression)
    if reason is not None or type(target) in (*known, *KNOWN):
        return reason
    from gyromc.engines.lanes.translate import Untranslatable

    try:
        user_function(target)
    except Untranslatable as error:
        return f"the slope of {type(target).__name__} uses {error}"
    return None


def user_function(target):
    """The scalar function of a user's own model, for vectors: φ′ of a `Separable`, the slope of a `GeneralizedLinear`."""
    from gyromc.engines.lanes.translate import on_vectors, translated

    if isinstance(target, targets.Separable):
        if target.slope is not None:
            return on_vectors(target.slope, 1)
        return translated(jax.grad(target.phi), 1)  # type: ignore[arg-type]  # not None where there is no slope
    own = getattr(type(target), "numba_slope", None)
    return on_vectors(own, 2) if own is not None else translated(target.slope, 2)


def form(plan: Plan) -> Form:
    """The gradient of the plan's oracle, in its linear and nonlinear parts."""
    target, oracle = plan.flat_target, plan.prepared_oracle
    exact = target.gaussian() is not None
    noiseless = exact and isinstance(oracle, ControlVariate) and oracle.order == 2  # T8
    if isinstance(target, targets.StreamedRegression) and isinstance(oracle, Batch) and not noiseless:
        return _mapped_form(target, oracle)
    if isinstance(target, targets.GeneralizedLinear) and isinstance(oracle, Batch) and not noiseless:
        return _batch_form(target, oracle)
    known = target.gaussian()
    if known is not None:
        return Form(known[0], -known[0] @ known[1])
    if isinstance(target, targets.Separable):
        K, a = target.matrix, -target.matrix @ target.mean
        return Form(K, a, target.weights, Part.SCALAR, gradients.USERS)
    eye, zero = np.eye(plan.dim), np.zeros(plan.dim)
    if isinstance(target, targets.CosinePerturbed):
        return Form(eye, zero, -float(target.beta), Part.SCALAR, gradients.SINE)
    assert isinstance(target, targets.SoftmaxRegression | targets.GeneralizedLinear)
    K = float(target.prior_precision) * eye
    if isinstance(target, targets.SoftmaxRegression):
        # Rows are (x, 1/√(k(k+1)) for k = 1 … C-1); the responses enter only `a`.
        (X, y), B = target.design, target.basis
        k = np.arange(1, B.shape[0])
        table = _padded(X, np.broadcast_to(1 / np.sqrt(k * (k + 1)), (len(X), len(k))))
        a = -(B[y.astype(int)].T @ X).ravel()
        return Form(K, a, 1.0, Part.FULL_SOFTMAX, gradients.SOFTMAX + len(k), table=table)
    X, y, code = _signed_rows(target)
    return Form(K, zero, 1.0, Part.FULL_SUM, code, table=_padded(X, y))


def _signed_rows(target: targets.GeneralizedLinear) -> tuple[np.ndarray, np.ndarray, int]:
    """Rows and responses as `gradients.known_slope` takes them, and its code."""
    X, y = target.design
    if type(target) is targets.LogisticRegression:
        return (2 * y - 1)[:, None] * X, y, gradients.SIGNED_LOGISTIC
    return X, y, KNOWN.get(type(target), gradients.USERS)


def _linear_part(target: targets.GeneralizedLinear | targets.StreamedRegression, oracle: Batch):
    """K and a of a mini-batch's gradient: the prior's part, and what a control variate has at its centre."""
    K, a = float(target.prior_precision) * np.eye(target.dim), np.zeros(target.dim)
    if isinstance(oracle, ControlVariate):
        center, a, curvature = anchor_of(oracle)
        if curvature is not None:
            K, a = K + curvature, a - curvature @ center  # T8
    return K, a


def _batch_form(target: targets.GeneralizedLinear, oracle: Batch) -> Form:
    """The gradient of a mini-batch, with or without control variates."""
    X, y, code = _signed_rows(target)
    (N, d), part = X.shape, Part.BATCH
    signed, affine, centred, curved = code == gradients.SIGNED_LOGISTIC, code == gradients.AFFINE, False, 0
    columns = [X] if signed else [X, y]
    if isinstance(oracle, ControlVariate):
        center = np.asarray(oracle.center, float)
        t = X @ center
        if affine:
            columns = [X, t]  # the slope at θ less that at the centre is xᵀθ - xᵀc
        else:
            centred = True
            columns = [X, y, -1 / (1 + np.exp(t)) if signed else np.asarray(target.slope(t, y), float)]
        if oracle.order == 2:
            columns, curved = _second_order(target, center, t, columns)
    products = [X[:, i] * X[:, j] for i in range(d) for j in range(i, d)] if affine else []
    if affine and len(products) + d <= MAX_MOMENTS:
        part, columns = Part.MOMENTS, [*products, columns[1][:, None] * X]
    flags = {"uses_response": not signed, "uses_centre": centred, "curvature_column": curved}
    table = _padded(*columns)
    return Form(*_linear_part(target, oracle), N / oracle.size, part, code, **flags, table=table, batch=oracle.size)


def _mapped_form(target: targets.StreamedRegression, oracle: Batch) -> Form:
    """The gradient of a mini-batch of mapped rows; the table has the width of a row and y beside it, and no rows."""
    flags = {
        "uses_centre": isinstance(oracle, ControlVariate),
        "curvature_column": int(getattr(oracle, "order", 1) == 2),
    }
    table, code = _padded(np.zeros((0, target.dim + 1))), KNOWN[BY_FAMILY[target.family]]
    K, a = _linear_part(target, oracle)
    return Form(K, a, target.num_data / oracle.size, Part.MAPPED_BATCH, code, **flags, table=table, batch=oracle.size)


def _second_order(target, center: np.ndarray, t: np.ndarray, columns: list) -> tuple[list, int]:
    """Columns for control variates of order 2, and the curvature's number among them.

    With w_i the derivative of the slope at t_i = x_iᵀc, a row's weight is slope(t) - (slope(t_i) - w_i t_i) - w_i t. The slope of
    a logistic model does not read the response, whose column then holds w.
    """
    X, y, slope = columns
    if type(target) is targets.LogisticRegression:
        w = -slope * (1 + slope)  # of p = -slope or 1 + slope, p(1-p)
        return [X, w, slope - w * t], X.shape[1]
    slope, w, t = at_center(target, center)
    return [X, y, slope - w * t, w], X.shape[1] + 2


def _padded(*columns: np.ndarray) -> np.ndarray:
    """The columns as rows, filled with zeros to a multiple of sixteen numbers, and an empty row at the end."""
    parts = [part if part.ndim == 2 else part[:, None] for part in columns]
    width = sum(part.shape[1] for part in parts)
    table, first = np.zeros((len(parts[0]) + 1, -(-width // LANES) * LANES)), 0
    for part in parts:
        table[:-1, first : first + part.shape[1]] = part
        first += part.shape[1]
    return table


def step_matrix(plan: Plan, f: Form) -> tuple[np.ndarray, np.ndarray]:
    """[B E L] and the shift of `kernel`, as dense arrays."""
    d, step = plan.dim, linear_step(plan)
    change = step.kept
    change[:, : plan.dynamics.size] += step.scale * step.G @ augment(f.K, plan.augmented)
    shift = step.scale * step.G[:, :d] @ f.a
    E = step.scale * f.c * step.G[:, :d]  # one c for all of s, or one for each of its entries
    parts = [change, E, step.noise] + ([] if step.oracle is None else [step.oracle])
    return np.concatenate(parts, axis=1), shift


def sparse_rows(matrix: np.ndarray, shift: np.ndarray, dtype) -> Sparse:
    """A matrix by its nonzero entries.

    Two neighbours with almost the same columns are computed together; both then store the columns of either.
    """
    stored, pair, i = matrix != 0, np.zeros(len(matrix), np.int64), 0
    while IN_PAIRS and i + 1 < len(matrix):
        either = stored[i] | stored[i + 1]
        if either.sum() >= FEWEST_PAIRED and 2 * either.sum() <= MOST_FILLED * stored[i : i + 2].sum():
            stored[i : i + 2], pair[i] = either, 1
            i += 1
        i += 1
    rows, columns = np.nonzero(stored)
    start = np.concatenate([[0], np.cumsum(np.count_nonzero(stored, axis=1))])
    column, entry = columns.astype(np.int64) * WIDTH, matrix[rows, columns].astype(dtype)
    return Sparse(start.astype(np.int64), pair, column, entry, shift.astype(dtype))


def _form_and_table(plan: Plan, dtype: np.dtype) -> tuple[Form, np.ndarray]:
    """The form, with an empty table of the right width, and the table in its precision; the model keeps those of its last run."""
    oracle, kept = plan.prepared_oracle, plan.model._kept.get("lanes table")
    if kept is None or kept[0] is not oracle or kept[1] != dtype:
        f = form(plan)
        kept = oracle, dtype, f._replace(table=f.table[:0]), aligned(f.table.astype(dtype, copy=False))
        plan.model._kept["lanes table"] = kept
    return kept[2], kept[3]


def compile_program(plan: Plan, bound: float, thin: int | None) -> Program:
    """The plan as arrays, in its precision."""
    dtype = np.dtype(plan.dtype)
    f, table = _form_and_table(plan, dtype)
    matrix, shift = step_matrix(plan, f)
    psi = increments(plan) if plan.martingale else observables_alone(plan)
    # All observables are ridges: see `suitability`.
    ridges = [h for h in plan.observables.values() if isinstance(h, Ridge)]
    row_width, m, d = f.table.shape[1], plan.state_size, plan.dim
    mapped = mapped_rows(plan, row_width) if f.part is Part.MAPPED_BATCH else no_rows(dtype)
    word = f"int{8 * dtype.itemsize}"
    return Program(
        n=plan.dynamics.size,
        d=d,
        m=m,
        draws=matrix.shape[1] - m - d,
        step=sparse_rows(matrix, shift, dtype),
        observed=sparse_rows(psi.rows, np.zeros(len(psi.rows)), dtype),
        profile=np.array([PROFILES.index(h.profile) for h in ridges], np.int64),
        window=_window(plan, ridges),
        columns=len(plan.observables) + len(psi.terms.constant),
        terms=psi.terms,
        weight=plan.eta if plan.weighting == "step_size" else 1.0,
        burn_in=plan.burn_in,
        thin=thin or 0,
        bound_bits=int(np.array(min(bound, float(np.finfo(dtype).max)), dtype).view(word)),
        infinity_bits=int(np.array(np.inf, dtype).view(word)),
        magnitude_bits=int(np.iinfo(word).max),
        part=int(Part.IN_PLACE_BATCH if mapped.in_place else f.part),
        **{
            name: getattr(f, name)
            for name in ("slope_code", "uses_response", "uses_centre", "curvature_column", "batch")
        },
        table=table,
        num_rows=len(mapped.responses) or len(table) // row_width - 1,
        row_width=row_width,
        padded_batch=-(-f.batch // LANES) * LANES,
        replace=not isinstance(plan.oracle, Batch) or plan.oracle.replace,
        mapped=mapped,
    )


def _window(plan: Plan, ridges: list[Ridge]) -> int:
    """How many steps' observables are computed together: 0 unless there are many, all logistic, and no martingale."""
    fitting = KEPT_BYTES // (plan.dim * WIDTH * np.dtype(plan.dtype).itemsize)
    alone = not plan.martingale and all(h.profile == "predictive" for h in ridges)
    return min(MOST_KEPT, fitting) if len(ridges) >= MANY and alone else 0


def aligned(array: np.ndarray, boundary: int = 64) -> np.ndarray:
    """A flat copy that starts at a cache line, so that no vector straddles two."""
    buffer = np.empty(array.nbytes + boundary, np.uint8)
    start = -buffer.ctypes.data % boundary
    copy = buffer[start : start + array.nbytes].view(array.dtype)
    copy[:] = array.ravel()
    return copy


PARALLEL = 1e-6  # sine of the angle up to which two directions are one
NEGLIGIBLE = 1e-9  # of a row's largest entry: smaller ones are left out


class Increments(NamedTuple):
    """Rows over (y, s, ξ), the observables' own first, and the terms."""

    rows: np.ndarray
    terms: IncrementTerms


def observables_alone(plan: Plan) -> Increments:
    """The observables' directions as rows, and no increments."""
    none, index = np.zeros(0, plan.dtype), np.zeros(0, np.int64)
    return Increments(_directions(plan), IncrementTerms(np.zeros(1, np.int64), index, index, none, none, none, none))


def increments(plan: Plan) -> Increments:
    """The table for a plan with `martingale=True`; numbers are rounded to its precision."""
    found, own = martingale(plan), _directions(plan)
    m, d, n = plan.state_size, plan.dim, plan.dynamics.size
    state, noise = _Rows(np.pad(own, ((0, 0), (0, m - d)))), _Rows(np.zeros((0, n)))
    start, terms = [0], []
    for j in range(len(own)):
        linear, of_noise = found.linear[j], []
        for t in np.flatnonzero(found.owner == j):
            w, g = state.place(found.direction[t])
            u, f = noise.place(g * state.rows[w] @ plan.step_matrices.C)
            size = found.weight[t]  # T9: λ f u (2(g v - o) - f u) - …
            of_noise.append([u, w, 2 * size * f * g, size * f * f, -2 * size * f * found.offset[t]])
        if np.any(linear):
            u, f = noise.place(linear)
            same = [term for term in of_noise if term[0] == u]
            if same:
                same[0][4] += f
            else:
                of_noise.append([u, 0, 0.0, 0.0, f])
        terms += of_noise
        start.append(len(terms))
    return _table(plan, state.rows, noise.rows, np.array(start), np.reshape(terms, (-1, 5)))


def _directions(plan: Plan) -> np.ndarray:
    return np.stack([np.asarray(h.direction, float) for h in plan.observables.values() if isinstance(h, Ridge)])


def _table(plan: Plan, state: np.ndarray, noise: np.ndarray, start: np.ndarray, terms: np.ndarray) -> Increments:
    """All of it rounded to the plan's precision, with constants that fit what was rounded."""
    stored = lambda x: np.asarray(x).astype(plan.dtype)
    m, d, n = plan.state_size, plan.dim, plan.dynamics.size
    u, w = terms[:, 0].astype(int), terms[:, 1].astype(int)
    state, noise, cross, square = (stored(x).astype(float) for x in (state, noise, terms[:, 2], terms[:, 3]))
    drawn = (state @ plan.step_matrices.C)[w] if len(w) else np.zeros((0, n))
    mean = cross * np.sum(noise[u] * drawn, axis=1) - square * np.sum(noise[u] ** 2, axis=1)
    each = np.add.reduceat(np.append(mean, 0.0), start[:-1]) * (np.diff(start) > 0)
    rows = np.zeros((len(state) + len(noise), m + d + n))
    rows[: len(state), :m], rows[len(state) :, m + d :] = state, noise
    places = start, (len(state) + u) * WIDTH, w * WIDTH
    return Increments(rows, IncrementTerms(*places, *map(stored, (cross, square, terms[:, 4], each))))


class _Rows:
    """Directions found so far, of which no two found later are parallel."""

    def __init__(self, rows: np.ndarray):
        self.rows = rows

    def place(self, direction: np.ndarray) -> tuple[int, float]:
        """The number of the row parallel to a direction, added where there is none, and the factor: direction = factor · row."""
        direction = np.where(np.abs(direction) > NEGLIGIBLE * np.max(np.abs(direction)), direction, 0.0)
        squares = np.sum(self.rows**2, axis=1)
        factors = (self.rows @ direction) / np.where(squares > 0, squares, 1.0)
        away = np.linalg.norm(direction - factors[:, None] * self.rows, axis=1)
        near = np.flatnonzero(away <= PARALLEL * np.linalg.norm(direction))
        if len(near):
            return int(near[0]), float(factors[near[0]])
        self.rows = np.concatenate([self.rows, direction[None]])
        return len(self.rows) - 1, 1.0
