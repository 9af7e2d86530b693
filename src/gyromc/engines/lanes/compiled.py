"""Compiled loops, in memory and on disk: `kernel.advance` for one part of `gradients`, without what a plan does not use.

Input: the number of a part, or a user's function; whether rows of matrices go in pairs, whether there is a martingale, whether
observables are computed for several steps together. Output: a function compiled by Numba, loaded from a folder that only this
user can write where an earlier process stored it. `STAMP` changes with every file of this package, so that no loop of an older
version is loaded.
"""

import functools
import hashlib
import warnings
from pathlib import Path
from typing import Any

import numba
from numba import njit

from gyromc.checks import cause
from gyromc.engines.lanes import functions
from gyromc.engines.lanes.functions import sin
from gyromc.engines.lanes.gradients import (
    BATCH,
    BATCH_MOMENTS,
    FULL_SUM,
    IN_PLACE,
    MAPPED,
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
from gyromc.engines.lanes.kernel import (
    add_increments,
    advance,
    look,
    look_later,
    multiply_pairs,
    multiply_rows,
    no_increments,
)
from gyromc.engines.lanes.mapped import in_place_batch, mapped_batch
from gyromc.engines.lanes.vectors import LANES
from gyromc.errors import GyromcWarning
from gyromc.show.files import private_folder

SETTINGS: Any = numba.config  # type: ignore[attr-defined]  # Numba adds its settings at run time
OPTIONS: Any = {"error_model": "numpy", "nogil": True, "_nrt": False}  # of the compiled loops


def _stamp() -> int:
    """A number that changes when any file of this package does."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:6], "little")


STAMP = _stamp()


@functools.cache
def kernel_folder() -> Path | None:
    """Where compiled loops are stored; None, with one warning, where there is no safe place: they are pickles, which run code."""
    found = private_folder("gyromc-kernels", SETTINGS.CACHE_DIR)
    if isinstance(found, Path):
        return found
    _not_stored(found)
    return None


def stored(loop):
    """A compiled function that is stored on disk where that is possible."""
    folder, before = kernel_folder(), SETTINGS.CACHE_DIR
    if folder is None:
        return njit(**OPTIONS)(loop)
    try:
        SETTINGS.CACHE_DIR = str(folder)  # read when the function is made
        return _forgiving(njit(cache=True, **OPTIONS)(loop), folder)
    finally:
        SETTINGS.CACHE_DIR = before


def _forgiving(compiled: Any, folder: Path) -> Any:
    """A compiled function that is used whether or not it can be read from the folder, or written to it."""
    cache = compiled._cache
    load, save = cache.load_overload, cache.save_overload

    def loaded(*arguments):
        try:
            return load(*arguments)
        except Exception as error:  # a damaged file raises what its reader stumbles on
            return _not_stored(f"{folder}: a file there cannot be read ({cause(error)})")

    def saved(*arguments):
        try:
            save(*arguments)
        except Exception as error:
            _not_stored(f"{folder}: it cannot be written ({cause(error)})")

    cache.load_overload, cache.save_overload = loaded, saved
    return compiled


def _not_stored(fault: str) -> None:
    """Warn that loops are compiled anew in every process."""
    warnings.warn(
        f"Compiled loops are not stored in {fault}. Every process compiles them anew, a few seconds each. Set "
        "`NUMBA_CACHE_DIR` to a folder of your own that can be written.",
        GyromcWarning,
        stacklevel=3,
    )


def _shared(pairs: bool, martingale: bool, later: bool):
    """The parts of a loop that do not depend on the target: what is not used is not compiled.

    Whether rows of matrices go in pairs, whether there are martingales, whether observables are added for several steps together.
    """
    multiply, increments = multiply_pairs if pairs else multiply_rows, add_increments if martingale else no_increments
    return multiply, increments, look_later if later else look


@functools.cache
def loop_for(part: int, pairs: bool, martingale: bool, later: bool, precision: str):
    """`advance` for a part of `gradients`; each of the three as in `_shared`. Compiled once, cached on disk.

    `precision`, the names of the types of number, is only a part of the name of the file.

    Numba drops the branches of the other parts. For changes it would check only this file: `stamp`, a variable of the function,
    makes a change in any file of the package count. Such variables must be numbers: a compiled function among them is another one
    in every process, and no stored loop would be found.
    """
    stamp, in_pairs, with_martingale, kept = STAMP, int(pairs), int(martingale), int(later)

    def loop(p, c, task, workspace):
        _ = stamp
        if in_pairs == 1:
            multiply = multiply_pairs
        else:
            multiply = multiply_rows
        if with_martingale == 1:
            increments = add_increments
        else:
            increments = no_increments
        if kept == 1:
            observing = look_later
        else:
            observing = look
        if part == NOTHING:
            advance(p, c, task, workspace, nothing, LANES, known_slope, multiply, increments, observing)
        elif part == SINE:
            advance(p, c, task, workspace, scalar, LANES, sin, multiply, increments, observing)
        elif part == FULL_SUM:
            advance(p, c, task, workspace, full_sum, LANES, known_slope, multiply, increments, observing)
        elif part == BATCH:
            advance(p, c, task, workspace, batch, LANES, known_slope, multiply, increments, observing)
        elif part == WIDE_BATCH:
            advance(p, c, task, workspace, batch, p.row_width, known_slope, multiply, increments, observing)
        elif part == BATCH_MOMENTS:
            advance(p, c, task, workspace, moments, LANES, known_slope, multiply, increments, observing)
        elif part == WIDE_BATCH_MOMENTS:
            advance(p, c, task, workspace, moments, p.row_width, known_slope, multiply, increments, observing)
        elif part == MAPPED:
            advance(p, c, task, workspace, mapped_batch, p.row_width, known_slope, multiply, increments, observing)
        elif part == IN_PLACE:
            advance(p, c, task, workspace, in_place_batch, p.row_width, known_slope, multiply, increments, observing)
        else:
            advance(p, c, task, workspace, full_softmax, LANES, known_slope, multiply, increments, observing)

    # A name, and so a cache file, for each: two processes that add to one file can mix up its entries.
    loop.__qualname__ = f"loop_{part}_{in_pairs}{with_martingale}{kept}_{precision}"
    return stored(loop)


@functools.lru_cache(maxsize=64)
def loop_with(part: int, function, pairs: bool, martingale: bool, later: bool):
    """`advance` with a user's scalar function: a derivative φ′(t), or a slope of (t, y). Compiled once in every process."""

    multiply, increments, observing = _shared(pairs, martingale, later)

    @functions.inlined
    def slope(code, t, y):
        return function(t, y)

    @njit(**OPTIONS)
    def loop(p, c, task, workspace):
        if part == SCALAR:
            advance(p, c, task, workspace, scalar, LANES, function, multiply, increments, observing)
        elif part == FULL_SUM:
            advance(p, c, task, workspace, full_sum, LANES, slope, multiply, increments, observing)
        else:
            advance(p, c, task, workspace, batch, p.row_width, slope, multiply, increments, observing)

    return loop
