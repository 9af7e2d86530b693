"""The nonlinear part of the gradient, for a block of chains.

The input is the chains' θ, one chain per lane; the output is a vector s with ∇̂U(θ) = (linear part) + (constant matrix) · s, which
the update multiplies out. A function below computes each kind of s; a `Part` names it. All have the same arguments, among them
the `width` of a row (a constant for rows that fit one vector, so that the compiler unrolls loops) and the scalar `slope`.
"""

import enum
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from gyromc.engines.lanes import functions
from gyromc.engines.lanes.functions import exp, next_index, sin
from gyromc.engines.lanes.vectors import (
    LANES,
    WIDTH,
    add_weighted_rows,
    called,
    column_of_rows,
    converted,
    dot_rows,
    fma,
    load,
    maximum,
    number,
    store,
    transpose,
    where_equal,
    zeros_like,
)


class Part(enum.IntEnum):
    """The functions below; those from `BATCH` on read drawn rows."""

    NOTHING = 0
    SCALAR = 1
    FULL_SUM = 2
    FULL_SOFTMAX = 3
    BATCH = 4
    MOMENTS = 5
    MAPPED_BATCH = 6


SIGNED_LOGISTIC, AFFINE, USERS, POISSON, SINE, SOFTMAX = range(6)  # SOFTMAX + q: a softmax of q linear predictors

kernel: Any = njit(inline="always", forceinline=True, **functions.COMPILED)


class MappedRows(NamedTuple):
    """What a program reads of a mapped file; empty without one."""

    rows: np.ndarray  # in the file's own precision: x after x
    responses: np.ndarray  # y of these rows, of any type of number
    centre: np.ndarray  # c of a control variate, filled with zeros


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
    """The states of sixteen generators."""
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
def draw_rows(p, generator, w, offsets, width):
    """Draw b rows, distinct unless `p.replace`, for each of sixteen chains; offsets past b keep pointing to the empty row."""
    s = load_generator(generator, w)
    for j in range(p.batch):
        s, index = next_index(s, p.num_rows if p.replace else p.num_rows - p.batch + j + 1)
        store(offsets, j * LANES, index * width)
    store_generator(generator, w, s)
    if not p.replace:
        # Floyd's choice of distinct rows, as in `gyromc.oracles.distinct_rows`: the j-th, drawn among the first N-b+j+1,
        # becomes the last of these if taken before.
        for j in range(1, p.batch):
            drawn = load(offsets, j * LANES)
            row, last = drawn, zeros_like(offsets) + np.uint32((p.num_rows - p.batch + j) * width)
            for k in range(j):
                row = where_equal(drawn, load(offsets, k * LANES), last, row)
            store(offsets, j * LANES, row)


@kernel
def row_weight(p, table, offsets, first, t, scratch, width, slope):
    """slope(t, y) of sixteen rows; less centre + curvature · t, with control variates."""
    y = t
    if p.uses_response:
        y = column_of_rows(table, offsets, first, p.d)
    g = slope(p, t, y)
    if p.centre_column > 0:
        g = g - column_of_rows(table, offsets, first, p.centre_column)
    if p.curvature_column > 0:
        g = g - t * column_of_rows(table, offsets, first, p.curvature_column)  # T8
    return g


@kernel
def mapped_weight(p, table, offsets, first, t, scratch, width, slope):
    """The same for rows of a file, which have no signs, and whose parts at the centre are computed in every step."""
    y = column_of_rows(table, offsets, first, p.d)
    sign = y * 0.0 + 1.0
    if p.slope_code == SIGNED_LOGISTIC:
        sign = y * 2.0 - 1.0
    t = t * sign
    g = slope(p, t, y)
    if p.centre_column > 0:
        tc = dot_rows(table, offsets, first, p.mapped.centre, 0, width) * sign
        gc = slope(p, tc, y)
        g = g - gc
        if p.curvature_column > 0:
            g = g - curvature(p.slope_code, gc, y) * (t - tc)  # T8
    return g * sign


@functions.inlined
def curvature(code, slope, y):
    """∂² loss/∂t² from the slope there."""
    if code == SIGNED_LOGISTIC:
        return 0.0 - slope * (slope + 1.0)
    if code == AFFINE:
        return y * 0.0 + 1.0
    return slope + y


@kernel
def sum_rows(p, table, offsets, first, scratch, weights, out, width):
    """Store the sum of one chain's rows of a table, times their weights, at `out` in the scratch."""
    for k in range(0, width, LANES):
        total = zeros_like(scratch)
        for j in range(0, p.padded_batch, LANES):
            total = add_weighted_rows(table, offsets, first + j * LANES, k, scratch, weights + j, total)
        store(scratch, out + k, total)


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
def weighted_sum(p, source, at, w, table, offsets, first, scratch, width, slope, weight):
    """s = Σ_{i ∈ B} weight_i x_i for the rows of a table that sixteen chains have drawn, sixteen rows of one chain at a time."""
    tile, theta, weights = 0, LANES * width, 2 * LANES * width
    chains_to_rows(p, source, w, scratch, tile, theta, width)
    for c in range(LANES):
        for j in range(0, p.padded_batch, LANES):
            t = dot_rows(table, offsets, first + j * LANES + c, scratch, theta + c * width, width)
            store(scratch, weights + c * p.padded_batch + j, t)
    for c in range(LANES):
        for j in range(0, p.padded_batch, LANES):
            place = weights + c * p.padded_batch + j
            g = weight(p, table, offsets, first + j * LANES + c, load(scratch, place), scratch, width, slope)
            store(scratch, place, g)
    for c in range(LANES):
        sum_rows(p, table, offsets, first + c, scratch, weights + c * p.padded_batch, theta + c * width, width)
    rows_to_chains(p, source, at, w, scratch, tile, theta, width)


@kernel
def batch(p, generator, source, at, w, scratch, offsets, width, slope):
    """s = Σ_{i ∈ B} (slope(x_iᵀθ, y_i) - …) x_i."""
    draw_rows(p, generator, w, offsets, width)
    weighted_sum(p, source, at, w, p.table, offsets, 0, scratch, width, slope, row_weight)


@kernel
def mapped_batch(p, generator, source, at, w, scratch, offsets, width, slope):
    """The same from rows that are copied from a mapped file; `offsets` ends with the places of the copies.

    Random numbers, the order of sums and so the chains are those of the same rows in memory.
    """
    draw_rows(p, generator, w, offsets, 1)
    places = p.padded_batch * LANES
    for i in range(p.batch * LANES):
        row, copy = np.int64(number(offsets, i)), np.int64(number(offsets, places + i))
        if row + LANES < p.num_rows:  # what follows the row is multiplied by zeros
            for k in range(0, p.d, LANES):
                store(scratch, copy + k, converted(load(p.mapped.rows, row * p.d + k), scratch))
        else:
            for k in range(p.d):
                scratch[copy + k] = number(p.mapped.rows, row * p.d + k)
        scratch[copy + p.d] = number(p.mapped.responses, row)
    weighted_sum(p, source, at, w, scratch, offsets, places, scratch, width, slope, mapped_weight)


@kernel
def moments(p, generator, source, at, w, scratch, offsets, width, slope):
    """s = Σ_{i ∈ B} (x_i x_iᵀ θ - y_i x_i) from rows (x_a x_b for a ≤ b, then y x); θ is used only at the end."""
    draw_rows(p, generator, w, offsets, width)
    sums, tile, ones = 0, LANES * width, 2 * LANES * width
    for j in range(0, p.padded_batch, LANES):
        store(scratch, ones + j, zeros_like(scratch) + 1.0)
    for c in range(LANES):
        sum_rows(p, p.table, offsets, c, scratch, ones, sums + c * width, width)
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
