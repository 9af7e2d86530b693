"""The nonlinear part of the gradient, for a block of chains.

The input is the chains' θ, one chain per lane; the output is a vector s with ∇̂U(θ) = (linear part) + (constant matrix) · s, which
the update multiplies out. A function below computes each kind of s; a `Part` names it. All have the same arguments, among them
the `width` of a row (a constant for rows that fit one vector, so that the compiler unrolls loops) and the scalar `slope`.
"""

import enum
from typing import Any

import numpy as np
from numba import njit

from gyromc.engines.lanes import functions
from gyromc.engines.lanes.functions import exp, next_index, next_word, sin
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
    number,
    prefetch,
    store,
    transpose,
    where_equal,
    zeros_like,
)

Part = enum.IntEnum("Part", "NOTHING SCALAR FULL_SUM BATCH MOMENTS MAPPED_BATCH BATCH_AHEAD", start=0)
"""The functions below; those from `BATCH` on read drawn rows."""
SIGNED_LOGISTIC, AFFINE, USERS, POISSON, SINE = range(5)
AHEAD = 32  # rows of a file that are being loaded while one is copied

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
    """The states of sixteen generators."""
    a, b = load(generator, w), load(generator, WIDTH + w)
    return a, b, load(generator, 2 * WIDTH + w), load(generator, 3 * WIDTH + w)


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
def row_weight(p, table, offsets, first, t, width, slope):
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
def mapped_weight(p, table, offsets, first, t, width, slope):
    """The same for rows of a file, which have no signs, and whose parts at the centre are computed in every step."""
    y = column_of_rows(table, offsets, first, p.d)
    sign = y * 0.0 + 1.0
    if p.slope_code == SIGNED_LOGISTIC:
        sign = y * 2.0 - 1.0
    t = t * sign
    g = slope(p, t, y)
    if p.centre_column > 0:
        tc = dot_rows(table, offsets, first, p.centre, 0, width) * sign
        gc = slope(p, tc, y)
        g = g - gc
        if p.curvature_column > 0:
            change = y * 0.0 + 1.0
            if p.slope_code == SIGNED_LOGISTIC:
                change = 0.0 - gc * (gc + 1.0)
            elif p.slope_code == POISSON:
                change = gc + y
            g = g - change * (t - tc)  # T8
    return g * sign


@kernel
def sum_rows(p, table, offsets, first, scratch, weights, out, width):
    """Store the sum of one chain's rows of a table, times their weights, at `out` in the scratch."""
    for k in range(0, width, LANES):
        total = zeros_like(scratch)
        for j in range(0, p.padded_batch, LANES):
            total = add_weighted_rows(table, offsets, first + j * LANES, k, scratch, weights + j, total)
        store(scratch, out + k, total)


@kernel
def weighted_sum(p, source, at, w, table, offsets, scratch, width, slope, rows, weight):
    """s = Σ_{i ∈ B} weight_i x_i for sixteen chains, sixteen rows of one at a time; `rows` says where a chain's offsets begin."""
    # θ of sixteen chains, first one chain per lane, then a row of `width` numbers for each chain.
    tile, theta, weights = 0, LANES * width, 2 * LANES * width
    for i in range(p.d):
        store(scratch, tile + i * LANES, load(source, i * WIDTH + w))
    for k in range(0, width, LANES):
        transpose(scratch, tile + k * LANES, LANES, scratch, theta + k, width)
    for c in range(LANES):
        first = rows(p, offsets, c, scratch, width)
        for j in range(0, p.padded_batch, LANES):
            t = dot_rows(table, offsets, first + j * LANES, scratch, theta + c * width, width)
            store(scratch, weights + j, weight(p, table, offsets, first + j * LANES, t, width, slope))
        sum_rows(p, table, offsets, first, scratch, weights, theta + c * width, width)
    for k in range(0, width, LANES):
        transpose(scratch, theta + k, width, scratch, tile + k * LANES, LANES)
    for i in range(p.d):
        store(source, at + i * WIDTH + w, load(scratch, tile + i * LANES))
    for i in range(p.d, width):  # the other rows of the tile must hold θ = 0 next time
        store(scratch, tile + i * LANES, zeros_like(source))


@kernel
def drawn_rows(p, offsets, c, scratch, width):
    """Those of one chain lie sixteen apart."""
    return c


@kernel
def batch(p, generator, source, at, w, scratch, offsets, width, slope):
    """s = Σ_{i ∈ B} (slope(x_iᵀθ, y_i) - …) x_i."""
    draw_rows(p, generator, w, offsets, width)
    weighted_sum(p, source, at, w, p.table, offsets, scratch, width, slope, drawn_rows, row_weight)


@kernel
def copy_rows(p, offsets, c, scratch, width):
    """Copy the rows of a file that one chain has drawn, each followed by its response; `offsets` ends with their places."""
    places = p.padded_batch * LANES
    for j in range(p.batch):
        ahead = (j + AHEAD) * LANES + c if j + AHEAD < p.batch else (j + AHEAD - p.batch) * LANES + c + 1
        later = np.int64(number(offsets, ahead))
        for k in range(0, p.d + LANES, 64 // p.file_rows.itemsize):
            prefetch(p.file_rows, later * p.d + k)
        prefetch(p.responses, later)
        row, copy = np.int64(number(offsets, j * LANES + c)), np.int64(number(offsets, places + j * LANES))
        if row + LANES < p.num_rows:  # what follows the row is multiplied by zeros
            for k in range(0, p.d, LANES):
                store(scratch, copy + k, converted(load(p.file_rows, row * p.d + k), scratch))
        else:
            for k in range(p.d):
                scratch[copy + k] = number(p.file_rows, row * p.d + k)
        scratch[copy + p.d] = number(p.responses, row)
    return places


@kernel
def mapped_batch(p, generator, source, at, w, scratch, offsets, width, slope):
    """The same, to the last bit, from rows that are copied from a mapped file."""
    draw_rows(p, generator, w, offsets, 1)
    weighted_sum(p, source, at, w, scratch, offsets, scratch, width, slope, copy_rows, mapped_weight)


@kernel
def rows_ahead(p, offsets, c, scratch, width):
    """As `drawn_rows`; those of the next chain are being loaded while these are used."""
    for j in range(p.batch if c + 1 < LANES else 0):
        place = np.int64(number(offsets, j * LANES + c + 1))
        for k in range(0, p.d + LANES, 64 // p.table.itemsize):
            prefetch(p.table, place + k)
    return c


@kernel
def batch_ahead(p, generator, source, at, w, scratch, offsets, width, slope):
    """The same, to the last bit, from a table that has the rows of many steps; `offsets` ends with the number of the next one."""
    s, place = load_generator(generator, w), p.padded_batch * LANES
    for _ in range(p.batch):
        s, _word = next_word(s)  # `draw_rows` drew them for the table
    store_generator(generator, w, s)
    first = offsets[place]
    for j in range(p.batch):
        for c in range(LANES):
            offsets[j * LANES + c] = p.places[first + c * p.batch + j] * (p.d + 1)
    offsets[place] = first + LANES * p.batch
    weighted_sum(p, source, at, w, p.table, offsets, scratch, width, slope, rows_ahead, mapped_weight)


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
