"""The nonlinear part of the gradient, for a block of chains.

The input is the chains' θ, one chain per lane; the output is a vector s with ∇̂U(θ) = (linear part) + (constant matrix) · s, which
the update multiplies out. A function below computes each kind of s; a `Part` names it.

These functions have the same arguments. Among them are the `width` of a row (a constant for rows that fit one vector, so that
the compiler unrolls the loops) and the scalar function `slope`, each used where it is needed.

Rows that are not in memory are copied from a mapped file, those of one chain at a time, or read where they are. The random
numbers, the order of all sums and so the chains are those of the same data in memory, bit for bit where the rows are stored in
the run's precision and there is no control variate, whose parts at the centre are then computed in every step.
"""

import enum
import mmap
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from gyromc.data import Mapped
from gyromc.engines.lanes import functions
from gyromc.engines.lanes.functions import exp, next_index, sin
from gyromc.engines.lanes.vectors import (
    LANES,
    WIDTH,
    add_rows,
    add_weighted_rows,
    called,
    column_of_rows,
    copy_lanes,
    dot_rows,
    fma,
    load,
    maximum,
    number,
    prefetch,
    read_bytes,
    store,
    transpose,
    where_equal,
    zeros_like,
)
from gyromc.engines.suitability import LIMITS
from gyromc.oracles import Batch, ControlVariate
from gyromc.plan import Plan
from gyromc.targets import StreamedRegression


class Part(enum.IntEnum):
    """The functions below; those from `BATCH` on read drawn rows."""

    NOTHING = 0
    SCALAR = 1
    FULL_SUM = 2
    FULL_SOFTMAX = 3
    BATCH = 4
    MOMENTS = 5
    MAPPED_BATCH = 6
    IN_PLACE_BATCH = 7


SIGNED_LOGISTIC, AFFINE, USERS, POISSON, SINE, SOFTMAX = range(6)  # SOFTMAX + q: a softmax of q linear predictors
MOST_COMPARED = LIMITS.lanes_compared

kernel: Any = njit(inline="always", forceinline=True, **functions.COMPILED)


@kernel
def known_slope(p, t, y):
    """∂ loss/∂t. Rows of a logistic model are multiplied by ±1, after which σ(t) - y is -1/(1 + eᵗ) for both classes."""
    if p.slope_code == SIGNED_LOGISTIC:
        return -1.0 / (exp(t) + 1.0)
    if p.slope_code == POISSON:
        return exp(t) - y
    return t - y


@kernel
def sine_slope(p, t, y):
    """The slope of -cos t."""
    return sin(t)


@kernel
def users_slope(p, t, y):
    """The slope of a user's own model, φ′(t) or ∂ loss/∂t."""
    return called(p.users, t, y)


@kernel
def load_generator(generator, w):
    """Load the states of sixteen generators."""
    return (
        load(generator, w),
        load(generator, WIDTH + w),
        load(generator, 2 * WIDTH + w),
        load(generator, 3 * WIDTH + w),
    )


@kernel
def store_generator(generator, w, s):
    """Store the states of sixteen generators."""
    a, b, c, d = s
    store(generator, w, a)
    store(generator, WIDTH + w, b)
    store(generator, 2 * WIDTH + w, c)
    store(generator, 3 * WIDTH + w, d)


@kernel
def nothing(p, generator, source, at, w, scratch, offsets, width, slope):
    """The target is Gaussian: its gradient is linear."""


@kernel
def scalar(p, generator, source, at, w, scratch, offsets, width, slope):
    """s_i = slope(θ_i)."""
    for i in range(p.d):
        store(source, at + i * WIDTH + w, slope(p, load(source, i * WIDTH + w), zeros_like(source)))


@kernel
def full_sum(p, generator, source, at, w, scratch, offsets, width, slope):
    """s = Σ_i slope(x_iᵀθ, y_i) x_i, one chain per lane: every entry of the table is used for all chains."""
    for i in range(p.d):
        store(source, at + i * WIDTH + w, zeros_like(source))
    for row in range(p.num_rows):
        t = zeros_like(source)
        for i in range(p.d):
            t = fma(load(source, i * WIDTH + w), number(p.table, row * p.row_width + i), t)
        g = slope(p, t, zeros_like(source) + number(p.table, row * p.row_width + p.d))
        for i in range(p.d):
            total = load(source, at + i * WIDTH + w)
            store(source, at + i * WIDTH + w, fma(g, number(p.table, row * p.row_width + i), total))


@kernel
def compare_rows(p, offsets, width):
    """Floyd's choice of b distinct rows: the j-th, drawn among the first N-b+j+1, becomes the last of these if taken before.

    The same rule as `gyromc.oracles.distinct_rows`, written again because JAX code cannot run inside a Numba loop.
    """
    for j in range(1, p.batch):
        drawn = load(offsets, j * LANES)
        row, last = drawn, zeros_like(offsets) + np.uint32((p.num_rows - p.batch + j) * width)
        for k in range(j):
            row = where_equal(drawn, load(offsets, k * LANES), last, row)
        store(offsets, j * LANES, row)


@kernel
def mark_rows(p, offsets, width):
    """The same choice in time proportional to b: after the offsets, bit c of a row's mark is set when chain c has the row."""
    marks = p.padded_batch * LANES
    for j in range(p.batch):
        for c in range(LANES):
            row, last = np.int64(number(offsets, j * LANES + c)) // width, p.num_rows - p.batch + j
            taken = (np.int64(number(offsets, marks + row)) >> c) & 1
            row += taken * (last - row)  # no branch: the processor could not predict it
            offsets[marks + row] = number(offsets, marks + row) | np.uint32(1 << c)
            offsets[j * LANES + c] = row * width
    for j in range(p.batch * LANES):
        offsets[marks + np.int64(number(offsets, j)) // width] = 0


@kernel
def draw_rows(p, generator, w, offsets, width):
    """Draw b rows, distinct unless `p.replace`, for each of sixteen chains; offsets past b keep pointing to the empty row."""
    s = load_generator(generator, w)
    if p.replace:
        for j in range(p.batch):
            s, index = next_index(s, p.num_rows)
            store(offsets, j * LANES, index * width)
    else:
        for j in range(p.batch):
            s, index = next_index(s, p.num_rows - p.batch + j + 1)
            store(offsets, j * LANES, index * width)
        if p.batch <= MOST_COMPARED:
            compare_rows(p, offsets, width)
        else:
            mark_rows(p, offsets, width)
    store_generator(generator, w, s)


@kernel
def slopes(p, scratch, weights, offsets, slope):
    """Replace each linear predictor t = xᵀθ by slope(t, y) - centre - curvature · t, the last two with control variates."""
    for c in range(LANES):
        for j in range(0, p.padded_batch, LANES):
            place = weights + c * p.padded_batch + j
            t = load(scratch, place)
            y = t
            if p.uses_response:
                y = column_of_rows(p.table, offsets, j * LANES + c, p.d)
            g = slope(p, t, y)
            if p.centre_column > 0:
                g = g - column_of_rows(p.table, offsets, j * LANES + c, p.centre_column)
            if p.curvature_column > 0:
                g = g - t * column_of_rows(p.table, offsets, j * LANES + c, p.curvature_column)  # T8
            store(scratch, place, g)


@kernel
def chains_to_rows(p, source, w, scratch, tile, theta, width):
    """Write θ of sixteen chains to the scratch, one row of `width` numbers for each chain, through a tile with one lane each."""
    for i in range(p.d):
        store(scratch, tile + i * LANES, load(source, i * WIDTH + w))
    for k in range(0, width, LANES):
        transpose(scratch, tile + k * LANES, LANES, scratch, theta + k, width)


@kernel
def rows_to_chains(p, source, at, w, scratch, tile, theta, width):
    """Store sixteen rows, one for each chain, with one chain per lane."""
    for k in range(0, width, LANES):
        transpose(scratch, theta + k, width, scratch, tile + k * LANES, LANES)
    for i in range(p.d):
        store(source, at + i * WIDTH + w, load(scratch, tile + i * LANES))
    for i in range(p.d, width):  # the other rows of the tile must hold θ = 0 next time
        store(scratch, tile + i * LANES, zeros_like(source))


@kernel
def sum_rows(p, table, offsets, first, scratch, weights, out, width):
    """Store the sum of one chain's rows of a table, times their weights, at `out` in the scratch."""
    for k in range(0, width, LANES):
        total = zeros_like(scratch)
        for j in range(0, p.padded_batch, LANES):
            total = add_weighted_rows(table, offsets, first + j * LANES, k, scratch, weights + j, total)
        store(scratch, out + k, total)


@kernel
def batch(p, generator, source, at, w, scratch, offsets, width, slope):
    """s = Σ_{i ∈ B} (slope(x_iᵀθ, y_i) - centre_i) x_i, sixteen rows of one chain at a time."""
    draw_rows(p, generator, w, offsets, width)
    padded = p.padded_batch
    tile, theta, weights = 0, LANES * width, 2 * LANES * width
    chains_to_rows(p, source, w, scratch, tile, theta, width)
    for c in range(LANES):
        for j in range(0, padded, LANES):
            t = dot_rows(p.table, offsets, j * LANES + c, scratch, theta + c * width, width)
            store(scratch, weights + c * padded + j, t)
    slopes(p, scratch, weights, offsets, slope)
    for c in range(LANES):
        sum_rows(p, p.table, offsets, c, scratch, weights + c * padded, theta + c * width, width)
    rows_to_chains(p, source, at, w, scratch, tile, theta, width)


@kernel
def moments(p, generator, source, at, w, scratch, offsets, width, slope):
    """s = Σ_{i ∈ B} (x_i x_iᵀ θ - y_i x_i) from rows (x_a x_b for a ≤ b, then y x); θ is used only at the end."""
    draw_rows(p, generator, w, offsets, width)
    sums, tile = 0, LANES * width
    for c in range(LANES):
        for k in range(0, width, LANES):
            total = zeros_like(source)
            for j in range(0, p.padded_batch, LANES):
                total = add_rows(p.table, offsets, j * LANES + c, k, total)
            store(scratch, sums + c * width + k, total)
    for k in range(0, width, LANES):
        transpose(scratch, sums + k, width, scratch, tile + k * LANES, LANES)
    for i in range(p.d):
        total = zeros_like(source) - load(scratch, tile + (p.d * (p.d + 1) // 2 + i) * LANES)
        for j in range(p.d):
            a, b = min(i, j), max(i, j)
            entry = a * p.d - a * (a - 1) // 2 + b - a
            total = fma(load(scratch, tile + entry * LANES), load(source, j * WIDTH + w), total)
        store(source, at + i * WIDTH + w, total)


@kernel
def probabilities(p, row, q, m, scratch):
    """Compute the probabilities p_0 … p_q of the classes from t_1 … t_q, which begin the scratch, and store them after these.

    B, Helmert's contrasts, is not stored: with r_k = 1/√(k(k+1)), which a row holds after x, and u_k = r_k t_k the weights of the
    classes are w_c = c u_c - Σ_{k>c} u_k, and conversely (Bᵀp)_k = r_k (k p_k - Σ_{c<k} p_c), both by running sums.
    """
    later = zeros_like(scratch)
    highest = zeros_like(scratch) - 1e30
    for c in range(q, 0, -1):
        u = load(scratch, (c - 1) * LANES) * number(p.table, row * p.row_width + m + c - 1)
        weight = u * c - later
        store(scratch, (q + c) * LANES, weight)
        highest, later = maximum(highest, weight), later + u
    store(scratch, q * LANES, zeros_like(scratch) - later)
    highest = maximum(highest, zeros_like(scratch) - later)
    total = zeros_like(scratch)
    for c in range(q + 1):
        e = exp(load(scratch, (q + c) * LANES) - highest)
        store(scratch, (q + c) * LANES, e)
        total = total + e
    for c in range(q + 1):
        store(scratch, (q + c) * LANES, load(scratch, (q + c) * LANES) / total)


@kernel
def full_softmax(p, generator, source, at, w, scratch, offsets, width, slope):
    """s = Σ_i (Bᵀp(x_i)) ⊗ x_i over all rows; the slope code holds the number of linear predictors of a row."""
    q = p.slope_code - SOFTMAX
    m = p.d // q
    for i in range(p.d):
        store(source, at + i * WIDTH + w, zeros_like(source))
    for row in range(p.num_rows):
        for k in range(q):
            t = zeros_like(source)
            for i in range(m):
                t = fma(load(source, (k * m + i) * WIDTH + w), number(p.table, row * p.row_width + i), t)
            store(scratch, k * LANES, t)
        probabilities(p, row, q, m, scratch)
        earlier = load(scratch, q * LANES)
        for k in range(1, q + 1):
            own = load(scratch, (q + k) * LANES)
            g = (own * k - earlier) * number(p.table, row * p.row_width + m + k - 1)
            earlier = earlier + own
            for i in range(m):
                place = at + ((k - 1) * m + i) * WIDTH + w
                store(source, place, fma(g, number(p.table, row * p.row_width + i), load(source, place)))


AHEAD = 12  # rows that are being loaded while one is copied


class MappedRows(NamedTuple):
    """What a program reads of a mapped file."""

    rows: np.ndarray  # in the file's own precision: x after x; empty elsewhere
    responses: np.ndarray  # y of these rows, of any type of number
    centre: np.ndarray  # c of a control variate, filled with zeros
    descriptor: int = -1  # of the file, whose rows are then read one by one; -1: they are read through the map
    data_offset: int = 0  # where they begin in it
    in_place: bool = False


def no_rows(dtype: np.dtype) -> MappedRows:
    """For programs without a mapped file."""
    return MappedRows(np.zeros(0, dtype), np.zeros(0, dtype), np.zeros(0, dtype))


def mapped_rows(plan: Plan, width: int) -> MappedRows:
    """The file's rows, not copied, and the centre of the plan's control variate."""
    target, oracle, source = plan.flat_target, plan.prepared_oracle, mapped_source(plan)
    assert isinstance(target, StreamedRegression)
    centre = np.zeros(width, np.dtype(plan.dtype))
    if isinstance(oracle, ControlVariate):
        centre[: target.dim] = oracle.center
    source.check_size()
    same, few = source.X.dtype == centre.dtype, reads_singly(plan)
    in_place = same and not few and fits_in_place(source, width)
    descriptor = source.descriptor if same and few else -1
    return MappedRows(source.X.reshape(-1), source.y, centre, descriptor, source.offset, in_place)


def fits_in_place(source: Mapped, width: int) -> bool:
    """Whether rows can be read where they are, `width` numbers from the beginning of each: past the last one, too.

    Places are numbers of 32 bits, and the last page of the file must hold what is read past its end.
    """
    numbers, size = source.num_rows * source.num_columns, source.X.dtype.itemsize
    left = -(source.offset + numbers * size) % mmap.PAGESIZE
    return numbers + width < 2**32 and left >= (width - source.num_columns) * size


def mapped_source(plan: Plan) -> Mapped:
    """The mapped file of a plan that has one."""
    assert isinstance(plan.flat_target, StreamedRegression)
    source = plan.flat_target.by_row
    assert isinstance(source, Mapped)
    return source


def rows_a_step(plan: Plan) -> int:
    """How many rows one step of all chains reads, those of the lanes past the last chain counted."""
    assert isinstance(plan.oracle, Batch)
    return -(-plan.num_chains // WIDTH) * WIDTH * plan.oracle.size


def reads_singly(plan: Plan) -> bool:
    """Whether rows are read one by one and pages given back, since the plan reads too few for the map to pay."""
    assert isinstance(plan.oracle, Batch)
    return not mapped_source(plan).keeps(rows_a_step(plan) * (plan.num_steps + plan.burn_in), plan.oracle.size)


def steps_between_releases(plan: Plan) -> int | None:
    """After how many steps pages of the file are given back, those of y at least; None: never."""
    if not reads_singly(plan):
        return None
    return max(1, (mapped_source(plan).rows_resident or 1) // rows_a_step(plan))


@functions.inlined
def curvature(code, slope, y):
    """∂² loss/∂t² from the slope there."""
    if code == SIGNED_LOGISTIC:
        return 0.0 - slope * (slope + 1.0)
    if code == AFFINE:
        return y * 0.0 + 1.0
    return slope + y


@kernel
def prefetch_row(p, row):
    """Begin to load a row and its response."""
    line = 64 // p.mapped.rows.itemsize
    for i in range(0, p.d, line):
        prefetch(p.mapped.rows, row * p.d + i)
    prefetch(p.mapped.rows, row * p.d + p.d - 1)
    prefetch(p.mapped.responses, row)


@kernel
def copy_row(p, row, scratch, at):
    """Copy one row through the map, sixteen numbers at a time; what follows the row is multiplied by zeros."""
    if row + LANES < p.num_rows:
        for i in range(0, p.d, LANES):
            copy_lanes(scratch, at + i, p.mapped.rows, row * p.d + i)
    else:  # no reading past the end of the file
        for i in range(p.d):
            scratch[at + i] = number(p.mapped.rows, row * p.d + i)


@kernel
def copy_rows(p, offsets, c, scratch, first, width):
    """Copy the rows that one chain has drawn, each followed by its response; rows past b stay zero."""
    if p.mapped.descriptor < 0:
        for j in range(min(AHEAD, p.batch)):
            prefetch_row(p, np.int64(number(offsets, j * LANES + c)))
    for j in range(p.batch):
        row, at = np.int64(number(offsets, j * LANES + c)), first + j * width
        if p.mapped.descriptor >= 0:
            size = p.d * scratch.itemsize
            if read_bytes(p.mapped.descriptor, scratch, at, size, p.mapped.data_offset + row * size) != size:
                scratch[at] = np.nan  # the file was cut off: the chain fails, and `check_size` says why
        else:
            if j + AHEAD < p.batch:
                prefetch_row(p, np.int64(number(offsets, (j + AHEAD) * LANES + c)))
            copy_row(p, row, scratch, at)
        scratch[at + p.d] = number(p.mapped.responses, row)


@kernel
def weights_of_rows(p, table, offsets, at, y, scratch, theta, weights, width, slope):
    """Of sixteen rows of a table: slope(t, y), less its Taylor polynomial at the centre with control variates."""
    sign = y * 0.0 + 1.0
    if p.slope_code == SIGNED_LOGISTIC:
        sign = y * 2.0 - 1.0
    t = dot_rows(table, offsets, at, scratch, theta, width) * sign
    g = slope(p, t, y)
    if p.centre_column > 0:
        tc = dot_rows(table, offsets, at, p.mapped.centre, 0, width) * sign
        gc = slope(p, tc, y)
        g = g - gc
        if p.curvature_column > 0:
            g = g - curvature(p.slope_code, gc, y) * (t - tc)  # T8
    store(scratch, weights, g * sign)


@kernel
def mapped_batch(p, generator, source, at, w, scratch, offsets, width, slope):
    """s = Σ_{i ∈ B} (slope(x_iᵀθ, y_i) - …) x_i, one chain at a time; `offsets` ends with the places of the copies."""
    draw_rows(p, generator, w, offsets, 1)
    padded = p.padded_batch
    tile, theta, weights = 0, LANES * width, 2 * LANES * width
    copies, places = 2 * LANES * width + padded, padded * LANES
    chains_to_rows(p, source, w, scratch, tile, theta, width)
    for c in range(LANES):
        copy_rows(p, offsets, c, scratch, copies, width)
        for j in range(0, padded, LANES):
            at_rows, at_theta = places + j * LANES, theta + c * width
            y = column_of_rows(scratch, offsets, at_rows, p.d)
            weights_of_rows(p, scratch, offsets, at_rows, y, scratch, at_theta, weights + j, width, slope)
        sum_rows(p, scratch, offsets, places, scratch, weights, theta + c * width, width)
    rows_to_chains(p, source, at, w, scratch, tile, theta, width)


@kernel
def prefetch_later(p, offsets, c, j):
    """Begin to load sixteen rows of a chain from its row j on, or the first ones of the next chain after its last row."""
    if j >= p.batch:
        j, c = 0, c + 1
    if c < LANES:
        for i in range(j, min(j + LANES, p.batch)):
            prefetch_row(p, np.int64(number(offsets, i * LANES + c)))


@kernel
def in_place_batch(p, generator, source, at, w, scratch, offsets, width, slope):
    """The same vector from rows that are read where they are; `offsets` has the numbers of rows, then where they begin."""
    draw_rows(p, generator, w, offsets, 1)
    padded = p.padded_batch
    tile, theta, weights = 0, LANES * width, 2 * LANES * width
    responses, places = weights + padded, padded * LANES
    for j in range(p.batch):
        store(offsets, places + j * LANES, load(offsets, j * LANES) * p.d)
    chains_to_rows(p, source, w, scratch, tile, theta, width)
    for c in range(LANES):
        for j in range(p.batch):
            scratch[responses + j] = number(p.mapped.responses, np.int64(number(offsets, j * LANES + c)))
        for j in range(0, padded, LANES):
            prefetch_later(p, offsets, c, j + LANES)
            y, at_theta = load(scratch, responses + j), theta + c * width
            weights_of_rows(
                p, p.mapped.rows, offsets, places + j * LANES + c, y, scratch, at_theta, weights + j, width, slope
            )
        for j in range(p.batch, padded):  # no rows
            scratch[weights + j] = 0.0
        sum_rows(p, p.mapped.rows, offsets, places + c, scratch, weights, theta + c * width, width)
    rows_to_chains(p, source, at, w, scratch, tile, theta, width)
