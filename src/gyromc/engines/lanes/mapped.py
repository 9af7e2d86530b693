"""Mini-batches of rows that are not in memory: the rows of one chain are copied from a mapped file, then computed with.

Input: chains' θ, as for the other functions of `gradients`; the file's rows as arrays of the program. Output: the same vector s.
The random numbers, the order of all sums and so the chains are those of the same data in memory, bit for bit where the rows are
stored in the run's precision and there is no control variate, whose parts at the centre are computed here in every step.
"""

import mmap
from typing import NamedTuple

import numpy as np

from gyromc.data import Mapped
from gyromc.engines.lanes import functions
from gyromc.engines.lanes.gradients import (
    AFFINE,
    SIGNED_LOGISTIC,
    WIDTH,
    chains_to_rows,
    draw_rows,
    kernel,
    rows_to_chains,
)
from gyromc.engines.lanes.vectors import (
    LANES,
    add_weighted_rows,
    column_of_rows,
    copy_lanes,
    dot_rows,
    load,
    number,
    prefetch,
    read_bytes,
    store,
    zeros_like,
)
from gyromc.oracles import Batch, ControlVariate
from gyromc.plan import Plan
from gyromc.targets import StreamedRegression

AHEAD = 12  # rows that are being loaded while one is copied


class MappedRows(NamedTuple):
    """The arrays of a program that belong to a mapped file."""

    rows: np.ndarray
    responses: np.ndarray
    centre: np.ndarray
    descriptor: int = -1
    data_offset: int = 0
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
    source = plan.flat_target.sums.by_row
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
    line = 64 // p.rows.itemsize
    for i in range(0, p.d, line):
        prefetch(p.rows, row * p.d + i)
    prefetch(p.rows, row * p.d + p.d - 1)
    prefetch(p.responses, row)


@kernel
def copy_row(p, row, scratch, at):
    """Copy one row through the map, sixteen numbers at a time; what follows the row is multiplied by zeros."""
    if row + LANES < p.num_rows:
        for i in range(0, p.d, LANES):
            copy_lanes(scratch, at + i, p.rows, row * p.d + i)
    else:  # no reading past the end of the file
        for i in range(p.d):
            scratch[at + i] = number(p.rows, row * p.d + i)


@kernel
def copy_rows(p, offsets, c, scratch, first, width):
    """Copy the rows that one chain has drawn, each followed by its response; rows past b stay zero."""
    if p.descriptor < 0:
        for j in range(min(AHEAD, p.batch)):
            prefetch_row(p, np.int64(number(offsets, j * LANES + c)))
    for j in range(p.batch):
        row, at = np.int64(number(offsets, j * LANES + c)), first + j * width
        if p.descriptor >= 0:
            size = p.d * scratch.itemsize
            if read_bytes(p.descriptor, scratch, at, size, p.data_offset + row * size) != size:
                scratch[at] = np.nan  # the file was cut off: the chain fails, and `check_size` says why
        else:
            if j + AHEAD < p.batch:
                prefetch_row(p, np.int64(number(offsets, (j + AHEAD) * LANES + c)))
            copy_row(p, row, scratch, at)
        scratch[at + p.d] = number(p.responses, row)


@kernel
def weights_of_rows(p, table, offsets, at, y, scratch, theta, weights, width, slope):
    """Of sixteen rows of a table: slope(t, y), less its Taylor polynomial at the centre with control variates."""
    sign = y * 0.0 + 1.0
    if p.slope_code == SIGNED_LOGISTIC:
        sign = y * 2.0 - 1.0
    t = dot_rows(table, offsets, at, scratch, theta, width) * sign
    g = slope(p.slope_code, t, y)
    if p.uses_centre:
        tc = dot_rows(table, offsets, at, p.centre, 0, width) * sign
        gc = slope(p.slope_code, tc, y)
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
        for k in range(0, width, LANES):
            total = zeros_like(source)
            for j in range(0, padded, LANES):
                total = add_weighted_rows(scratch, offsets, places + j * LANES, k, scratch, weights + j, total)
            store(scratch, theta + c * width + k, total)
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
            scratch[responses + j] = number(p.responses, np.int64(number(offsets, j * LANES + c)))
        for j in range(0, padded, LANES):
            prefetch_later(p, offsets, c, j + LANES)
            y, at_theta = load(scratch, responses + j), theta + c * width
            weights_of_rows(p, p.rows, offsets, places + j * LANES + c, y, scratch, at_theta, weights + j, width, slope)
        for j in range(p.batch, padded):  # no rows
            scratch[weights + j] = 0.0
        for k in range(0, width, LANES):
            total = zeros_like(source)
            for j in range(0, padded, LANES):
                total = add_weighted_rows(p.rows, offsets, places + j * LANES + c, k, scratch, weights + j, total)
            store(scratch, theta + c * width + k, total)
    rows_to_chains(p, source, at, w, scratch, tile, theta, width)
