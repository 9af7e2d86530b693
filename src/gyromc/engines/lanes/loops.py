"""Compiled loops: `kernel.advance` for one part of `gradients`, with what does not depend on the target or without.

Input: the number of a part, or a user's function; whether rows of matrices go in pairs, whether there is a martingale. Output: a
compiled function. What a plan does not use is not compiled.
"""

import functools
import types

from numba import njit

from gyromc.engines.lanes import functions
from gyromc.engines.lanes.functions import sin
from gyromc.engines.lanes.gradients import (
    BATCH,
    BATCH_MOMENTS,
    FULL_SUM,
    NOTHING,
    SCALAR,
    SINE,
    WIDE_BATCH,
    WIDE_BATCH_MOMENTS,
    batch,
    full_softmax,
    full_sum,
    known_slope,
    moments,
    nothing,
    scalar,
)
from gyromc.engines.lanes.kernel import add_increments, advance, multiply_pairs, multiply_rows, no_increments
from gyromc.engines.lanes.storage import OPTIONS, STAMP, stored
from gyromc.engines.lanes.vectors import LANES

multiply, increments = multiply_rows, no_increments  # global names, which `loop_for` sets for each loop


def _shared(pairs: bool, martingale: bool):
    """The parts of a loop that do not depend on the target: what is not used is not compiled."""
    return multiply_pairs if pairs else multiply_rows, add_increments if martingale else no_increments


@functools.cache
def loop_for(part: int, pairs: bool, martingale: bool):
    """`advance` for a part of `gradients`, with rows in pairs and with martingales or without; compiled once, cached on disk.

    Numba drops the branches of the other parts. For changes it would check only this file: `stamp`, a variable of the function,
    makes a change in any file of the package count. `multiply` and `increments` are global names: a compiled function among the
    variables would make the loop a new one in every process, because Numba gives it a random identity.
    """
    stamp = STAMP

    def loop(p, c, task, workspace):
        _ = stamp
        if part == NOTHING:
            advance(p, c, task, workspace, nothing, LANES, known_slope, multiply, increments)
        elif part == SINE:
            advance(p, c, task, workspace, scalar, LANES, sin, multiply, increments)
        elif part == FULL_SUM:
            advance(p, c, task, workspace, full_sum, LANES, known_slope, multiply, increments)
        elif part == BATCH:
            advance(p, c, task, workspace, batch, LANES, known_slope, multiply, increments)
        elif part == WIDE_BATCH:
            advance(p, c, task, workspace, batch, p.row_width, known_slope, multiply, increments)
        elif part == BATCH_MOMENTS:
            advance(p, c, task, workspace, moments, LANES, known_slope, multiply, increments)
        elif part == WIDE_BATCH_MOMENTS:
            advance(p, c, task, workspace, moments, p.row_width, known_slope, multiply, increments)
        else:
            advance(p, c, task, workspace, full_softmax, LANES, known_slope, multiply, increments)

    names = {**globals(), **dict(zip(("multiply", "increments"), _shared(pairs, martingale), strict=True))}
    own = types.FunctionType(loop.__code__, names, "loop", None, loop.__closure__)
    # A name, and so a cache file, for each: two processes that add to one file can mix up its entries.
    own.__qualname__ = f"loop_{part}_{int(pairs)}{int(martingale)}"
    return stored(own)


@functools.lru_cache(maxsize=64)
def loop_with(part: int, function, pairs: bool, martingale: bool):
    """`advance` with a user's scalar function: a derivative φ′(t), or a slope of (t, y). Compiled once in every process."""

    multiply, increments = _shared(pairs, martingale)

    @functions.inlined
    def slope(code, t, y):
        return function(t, y)

    @njit(**OPTIONS)
    def loop(p, c, task, workspace):
        if part == SCALAR:
            advance(p, c, task, workspace, scalar, LANES, function, multiply, increments)
        elif part == FULL_SUM:
            advance(p, c, task, workspace, full_sum, LANES, slope, multiply, increments)
        else:
            advance(p, c, task, workspace, batch, p.row_width, slope, multiply, increments)

    return loop
