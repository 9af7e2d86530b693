"""The loop: all steps of a block of chains, with state, random numbers and data in the cache (E3, E4).

The input is a `Program` (what to compute, as arrays) and `Chains` (their state, changed in place). One chain is one lane, and
a step is

    z⁺ = z + shift + [B E L] (z, s, ξ),   s from `gradients`, ξ standard normal,

with one sparse matrix for drift and noise: B = -η(D+Q)·(linear part of ∇H), E = -η(D+Q)_θ·(what multiplies s), L Lᵀ = 2ηD plus,
for a Gaussian oracle, η²τ²(D+Q)_θ(D+Q)_θᵀ. Structured D and Q cost what their nonzero entries cost.
"""

import functools
import hashlib
import os
import stat
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
from numba import njit

from gyromc.engines.lanes import functions
from gyromc.engines.lanes.functions import logistic, sin, softplus, tanh
from gyromc.engines.lanes.gradients import (
    BATCH,
    BATCH_MOMENTS,
    FULL_SUM,
    NOTHING,
    SCALAR,
    SINE,
    WIDE_BATCH,
    WIDE_BATCH_MOMENTS,
    WIDTH,
    batch,
    full_softmax,
    full_sum,
    kernel,
    known_slope,
    load_generator,
    moments,
    nothing,
    scalar,
    store_generator,
)
from gyromc.engines.lanes.random import normal_pair
from gyromc.engines.lanes.vectors import LANES, any_above, bits, fma, load, maximum, number, store, widened, zeros_like
from gyromc.errors import GyromcWarning

OPTIONS: Any = {"error_model": "numpy", "nogil": True, "_nrt": False}  # of the compiled loops
PROFILES = ("linear", "tanh", "predictive", "brier, y = 1", "brier, y = 0", "entropy", "square")


class Program(NamedTuple):
    """What one step reads. Arrays have the run's precision unless noted; matrices are stored by rows of nonzero entries."""

    n: int
    d: int
    row_start: np.ndarray  # int64: where the rows of [B E L] begin
    column: np.ndarray  # int64: offset of the source's row
    entry: np.ndarray
    shift: np.ndarray
    h_start: np.ndarray  # int64: the same for the observables' directions
    h_column: np.ndarray  # int64
    h_entry: np.ndarray
    profile: np.ndarray  # int64: index into PROFILES
    weight: float
    burn_in: int
    thin: int
    bound_bits: int
    infinity_bits: int
    magnitude_bits: int
    part: int
    slope_code: int
    uses_response: bool
    uses_centre: bool
    table: np.ndarray
    num_rows: int
    row_width: int
    batch: int
    padded_batch: int
    replace: bool  # whether a batch may hold a row twice


class Chains(NamedTuple):
    """The state of the chains, in blocks of WIDTH; lanes past the last chain are computed and ignored."""

    z: np.ndarray  # blocks × n × WIDTH
    generator: np.ndarray  # uint32, blocks × 4 × WIDTH
    spare: np.ndarray  # blocks × WIDTH: the unused half of a pair of normals, when n is odd
    sums: np.ndarray  # float64, blocks × observables × WIDTH
    failed_at: np.ndarray  # int64, blocks × WIDTH
    kept: np.ndarray  # slots × blocks × d × WIDTH


class Task(NamedTuple):
    """What one call of the loop does."""

    first_block: int
    last_block: int
    num_blocks: int  # in all
    step: int
    num_steps: int
    first_slot: int


@functions.inlined
def profile(code, t):
    """ρ(t) of a ridge observable."""
    if code == 0:
        return t
    if code == 1:
        return tanh(t)
    if code == 2:
        return logistic(t)
    if code == 3:
        return logistic(0.0 - t) * logistic(0.0 - t) * 2.0
    if code == 4:
        return logistic(t) * logistic(t) * 2.0
    if code == 5:
        return softplus(t) - t * logistic(t)
    return t * t


@kernel
def state_size(p, source, w):
    """The bits of max |z_i|: as integers they are ordered like |z_i|, with infinity and NaN above all numbers."""
    worst = bits(load(source, w)) & p.magnitude_bits
    for i in range(1, p.n):
        worst = maximum(worst, bits(load(source, i * WIDTH + w)) & p.magnitude_bits)
    return worst


@kernel
def combine(source, start, column, entry, i, initial):
    """initial + Σ_j M_ij source_j for row i of a sparse matrix M and the four vectors of a block."""
    t0 = t1 = t2 = t3 = zeros_like(source) + initial
    for e in range(number(start, i), number(start, i + 1)):
        at, m = number(column, e), zeros_like(source) + number(entry, e)
        t0 = fma(load(source, at), m, t0)
        t1 = fma(load(source, at + LANES), m, t1)
        t2 = fma(load(source, at + 2 * LANES), m, t2)
        t3 = fma(load(source, at + 3 * LANES), m, t3)
    return t0, t1, t2, t3


@kernel
def observe(p, source, buffer, sums, at, counted, sizes):
    """Add weight · h(z) of every observable to the sums; `sizes` becomes the bits of each chain's largest |h(z)|."""
    for w in range(0, WIDTH, LANES):
        store(sizes, w, bits(zeros_like(source)))
    for q in range(p.profile.size):
        t0, t1, t2, t3 = combine(source, p.h_start, p.h_column, p.h_entry, q, 0.0)
        store(buffer, 0, t0)
        store(buffer, LANES, t1)
        store(buffer, 2 * LANES, t2)
        store(buffer, 3 * LANES, t3)
        code, place = number(p.profile, q), at + q * WIDTH
        for w in range(0, WIDTH, LANES):
            value = profile(code, load(buffer, w))
            store(sizes, w, maximum(load(sizes, w), bits(value) & p.magnitude_bits))
            if counted:
                store(sums, place + w, fma(widened(value), p.weight, load(sums, place + w)))  # E4: z_0 counts


@kernel
def note_failures(sizes, w, limit, failed_at, at, step):
    """Store the step for lanes that exceed the limit for the first time."""
    for lane in range(LANES):
        if sizes[w + lane] > limit and failed_at[at + lane] < 0:
            failed_at[at + lane] = step


@kernel
def draw_normals(p, generator, source, first, spare, step):
    """n standard normals for each chain; if n is odd, the one left over is used in the next step."""
    for w in range(0, WIDTH, LANES):
        s = load_generator(generator, w)
        i = 0
        if p.n % 2 == 1 and step % 2 == 1:
            store(source, first + w, load(spare, w))
            i = 1
        while i < p.n:
            s, a, b = normal_pair(s, source)
            store(source, first + i * WIDTH + w, a)
            store(source, first + (i + 1) * WIDTH + w, b)
            i += 2
        if p.n % 2 == 1 and step % 2 == 0:
            store(spare, w, load(source, first + p.n * WIDTH + w))
        store_generator(generator, w, s)


@kernel
def move(p, source, moved):
    """z ← z + shift + [B E L] (z, s, ξ)."""
    for i in range(p.n):
        t0, t1, t2, t3 = combine(source, p.row_start, p.column, p.entry, i, number(p.shift, i))
        at = i * WIDTH
        store(moved, at, load(source, at) + t0)  # E3
        store(moved, at + LANES, load(source, at + LANES) + t1)
        store(moved, at + 2 * LANES, load(source, at + 2 * LANES) + t2)
        store(moved, at + 3 * LANES, load(source, at + 3 * LANES) + t3)
    for at in range(0, p.n * WIDTH, LANES):
        store(source, at, load(moved, at))


@kernel
def step_block(p, c, block, step, source, moved, generator, spare, scratch, offsets, sizes, gradient, width, slope):
    """One step of the chains of a block; z is the first rows of `source`."""
    sums_at, failed_at = block * p.profile.size * WIDTH, block * WIDTH
    observe(p, source, moved, c.sums, sums_at, step >= p.burn_in, sizes)
    for w in range(0, WIDTH, LANES):
        size, value = state_size(p, source, w), load(sizes, w)
        if any_above(size, p.bound_bits) or any_above(value, p.infinity_bits - 1):
            note_failures(sizes, w, p.infinity_bits - 1, c.failed_at, failed_at + w, step)
            store(sizes, w, size)
            note_failures(sizes, w, p.bound_bits, c.failed_at, failed_at + w, step)
    draw_normals(p, generator, source, (p.n + p.d) * WIDTH, spare, step)
    for w in range(0, WIDTH, LANES):
        gradient(p, generator, source, p.n * WIDTH, w, scratch, offsets, width, slope)
    move(p, source, moved)


@kernel
def advance(p, c, task, workspace, gradient, width, slope):
    """Move the chains of some blocks by some steps, as given by `Task`.

    `workspace` holds the buffers of one thread; `gradient` is one of `gradients`, called with `width` and `slope`.
    """
    first_block, last_block, num_blocks, step, num_steps, first_slot = task
    floats, words, sizes = workspace
    n, d = p.n, p.d
    source, floats = floats[: (2 * n + d + 1) * WIDTH], floats[(2 * n + d + 1) * WIDTH :]
    moved, scratch = floats[: n * WIDTH], floats[n * WIDTH :]
    for block in range(first_block, last_block):
        z = c.z[block * n * WIDTH : (block + 1) * n * WIDTH]
        generator = c.generator[block * 4 * WIDTH : (block + 1) * 4 * WIDTH]
        spare = c.spare[block * WIDTH : (block + 1) * WIDTH]
        for i in range(0, n * WIDTH, LANES):
            store(source, i, load(z, i))
        for k in range(step, step + num_steps):
            since = k - p.burn_in
            if p.thin > 0 and since >= 0 and since % p.thin == 0:
                kept_at = ((since // p.thin - first_slot) * num_blocks + block) * d * WIDTH
                for i in range(0, d * WIDTH, LANES):
                    store(c.kept, kept_at + i, load(source, i))
            step_block(p, c, block, k, source, moved, generator, spare, scratch, words, sizes, gradient, width, slope)
        for i in range(0, n * WIDTH, LANES):
            store(z, i, load(source, i))


def _stamp() -> int:
    """A number that changes when any file of this package does."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return int.from_bytes(digest.digest()[:6], "little")


STAMP = _stamp()


@functools.cache
def private_folder() -> str | None:
    """Where compiled loops are stored, made if needed; None, with one warning, where there is no safe place that can be written.

    They are pickles, which run code when loaded: the folder must be the user's own, and nobody else may write or replace it.
    """
    base = numba.config.CACHE_DIR or os.environ.get("XDG_CACHE_HOME") or "~/.cache"  # type: ignore[attr-defined]
    folder = Path(os.path.abspath(os.path.expanduser(base)), "gyromc-kernels")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        probe = folder / f"probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
        fault = None if _only_mine(folder) else "it belongs to someone else, or others can write to it"
    except OSError as error:
        fault = f"it cannot be written ({error.strerror})"
    if fault is None:
        return str(folder)
    warnings.warn(
        f"Compiled loops are not stored in {folder}: {fault}. Every process compiles them anew, a few seconds each. Set "
        "`NUMBA_CACHE_DIR` to a folder of your own that can be written.",
        GyromcWarning,
        stacklevel=2,
    )
    return None


def _only_mine(folder: Path) -> bool:
    """Whether nobody but this user can write to a folder, or put another in its place."""
    if not hasattr(os, "getuid"):
        return True  # Windows: folders of a user are private
    own, above = folder.lstat(), [parent.stat().st_mode for parent in folder.parents]
    replaceable = any(mode & stat.S_IWOTH and not mode & stat.S_ISVTX for mode in above)
    return stat.S_ISDIR(own.st_mode) and own.st_uid == os.getuid() and not own.st_mode & 0o022 and not replaceable


def _stored(loop):
    """A compiled function that is stored on disk where that is possible."""
    folder, before = private_folder(), numba.config.CACHE_DIR  # type: ignore[attr-defined]
    if folder is None:
        return njit(**OPTIONS)(loop)
    try:
        numba.config.CACHE_DIR = folder  # type: ignore[attr-defined]  # read when the function is made
        return njit(cache=True, **OPTIONS)(loop)
    finally:
        numba.config.CACHE_DIR = before  # type: ignore[attr-defined]


@functools.cache
def loop_for(part: int):
    """`advance` for a part of `gradients`, compiled at the first call and cached on disk.

    Numba drops the branches of the other parts. For changes it would check only this file: `stamp`, a variable of the function,
    makes a change in any file of the package count.
    """
    stamp = STAMP

    def loop(p, c, task, workspace):
        _ = stamp
        if part == NOTHING:
            advance(p, c, task, workspace, nothing, LANES, known_slope)
        elif part == SINE:
            advance(p, c, task, workspace, scalar, LANES, sin)
        elif part == FULL_SUM:
            advance(p, c, task, workspace, full_sum, LANES, known_slope)
        elif part == BATCH:
            advance(p, c, task, workspace, batch, LANES, known_slope)
        elif part == WIDE_BATCH:
            advance(p, c, task, workspace, batch, p.row_width, known_slope)
        elif part == BATCH_MOMENTS:
            advance(p, c, task, workspace, moments, LANES, known_slope)
        elif part == WIDE_BATCH_MOMENTS:
            advance(p, c, task, workspace, moments, p.row_width, known_slope)
        else:
            advance(p, c, task, workspace, full_softmax, LANES, known_slope)

    # A name, and so a cache file, for each part: two processes that add to one file can mix up its entries.
    loop.__qualname__ = f"loop_{part}"
    return _stored(loop)


@functools.lru_cache(maxsize=64)
def loop_with(part: int, function):
    """`advance` with a user's scalar function: a derivative φ′(t), or a slope of (t, y). Compiled once in every process."""

    @functions.inlined
    def slope(code, t, y):
        return function(t, y)

    @njit(**OPTIONS)
    def loop(p, c, task, workspace):
        if part == SCALAR:
            advance(p, c, task, workspace, scalar, LANES, function)
        elif part == FULL_SUM:
            advance(p, c, task, workspace, full_sum, LANES, slope)
        else:
            advance(p, c, task, workspace, batch, p.row_width, slope)

    return loop
