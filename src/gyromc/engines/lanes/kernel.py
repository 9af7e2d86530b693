"""The loop: all steps of a block of chains, with state, random numbers and data in the cache (E3, E4).

Receives a `Program` (what to compute, as arrays) and `Chains` (where they stand); moves them on in place. One chain is one lane. A step is

    z⁺ = z + shift + [B E L] (z, s, ξ),   s from `gradients`, ξ standard normal,

with one sparse matrix for drift and noise: B = -η(D+Q)·(linear part of ∇H), E = -η(D+Q)_θ·(what multiplies s), L Lᵀ = 2ηD plus, for a Gaussian
oracle, η²τ²(D+Q)_θ(D+Q)_θᵀ. Structured D and Q cost what their nonzero entries cost.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from gyromc.engines.lanes import functions
from gyromc.engines.lanes.functions import logistic, softplus, tanh
from gyromc.engines.lanes.gradients import NOTHING, WIDTH, gradient, kernel
from gyromc.engines.lanes.random import normal_pair
from gyromc.engines.lanes.vectors import LANES, any_above, bits, fma, load, maximum, store, widened, zeros_like

PROFILES = ("linear", "tanh", "predictive", "brier, y = 1", "brier, y = 0", "entropy", "square")


class Program(NamedTuple):
    """What one step reads. Arrays of the run's precision unless another is named; matrices by rows of nonzero entries."""

    n: int
    d: int
    row_start: np.ndarray  # int64: where the rows of [B E L] begin
    column: np.ndarray  # int64: offset of the source's row
    entry: np.ndarray
    shift: np.ndarray
    h_start: np.ndarray  # int64: the observables' directions, likewise
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


class Chains(NamedTuple):
    """Where the chains stand, by blocks of WIDTH; lanes past the last chain are moved along and ignored."""

    z: np.ndarray  # blocks × n × WIDTH
    generator: np.ndarray  # uint32, blocks × 4 × WIDTH
    spare: np.ndarray  # blocks × WIDTH: the unused half of a pair of normals, when n is odd
    sums: np.ndarray  # float64, blocks × observables × WIDTH
    failed_at: np.ndarray  # int32, blocks × WIDTH
    kept: np.ndarray  # slots × blocks × d × WIDTH


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
    """The bits of max |z_i|: as whole numbers they are ordered like |z_i|, with infinity and NaN above everything."""
    worst = bits(load(source, w)) & p.magnitude_bits
    for i in range(1, p.n):
        worst = maximum(worst, bits(load(source, i * WIDTH + w)) & p.magnitude_bits)
    return worst


@kernel
def observe(p, source, sums, at, w, counted):
    """Add weight · h(z) to the sums; hands on the bits of the largest |h(z)|."""
    worst = bits(zeros_like(source))
    for q in range(p.profile.size):
        t = zeros_like(source)
        for e in range(p.h_start[q], p.h_start[q + 1]):
            t = fma(load(source, p.h_column[e] + w), p.h_entry[e], t)
        value = profile(p.profile[q], t)
        worst = maximum(worst, bits(value) & p.magnitude_bits)
        if counted:
            place = at + q * WIDTH + w
            store(sums, place, fma(widened(value), p.weight, load(sums, place)))  # E4: z_0 counts
    return worst


@kernel
def note_failures(sizes, limit, failed_at, at, step):
    """Write the step down for the lanes that are beyond the limit now and were not before."""
    for lane in range(LANES):
        if sizes[lane] > limit and failed_at[at + lane] < 0:
            failed_at[at + lane] = step


@kernel
def draw_normals(p, generator, source, first, spare, step):
    """n standard normals for each chain; with n odd, the one left over is used a step later."""
    for w in range(0, WIDTH, LANES):
        s = (load(generator, w), load(generator, WIDTH + w), load(generator, 2 * WIDTH + w), load(generator, 3 * WIDTH + w))
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
        for j in range(4):
            store(generator, j * WIDTH + w, s[j])


@kernel
def move(p, source, moved):
    """z ← z + shift + [B E L] (z, s, ξ)."""
    for i in range(p.n):
        first = zeros_like(source) + p.shift[i]
        second = first
        for e in range(p.row_start[i], p.row_start[i + 1]):
            column, entry = p.column[e], p.entry[e]
            first = fma(load(source, column), entry, first)
            second = fma(load(source, column + LANES), entry, second)
        store(moved, i * WIDTH, load(source, i * WIDTH) + first)  # E3
        store(moved, i * WIDTH + LANES, load(source, i * WIDTH + LANES) + second)
    for i in range(0, p.n * WIDTH, LANES):
        store(source, i, load(moved, i))


@kernel
def step_block(p, c, block, step, source, moved, generator, spare, scratch, offsets, sizes):
    """One step of the chains of a block, z being the first rows of `source`."""
    sums_at, failed_at = block * p.profile.size * WIDTH, block * WIDTH
    for w in range(0, WIDTH, LANES):
        size, value = state_size(p, source, w), observe(p, source, c.sums, sums_at, w, step >= p.burn_in)
        if any_above(size, p.bound_bits) or any_above(value, p.infinity_bits - 1):
            store(sizes, 0, size)
            note_failures(sizes, p.bound_bits, c.failed_at, failed_at + w, step)
            store(sizes, 0, value)
            note_failures(sizes, p.infinity_bits - 1, c.failed_at, failed_at + w, step)
    draw_normals(p, generator, source, (p.n + p.d) * WIDTH, spare, step)
    if p.part != NOTHING:
        for w in range(0, WIDTH, LANES):
            s = (load(generator, w), load(generator, WIDTH + w), load(generator, 2 * WIDTH + w), load(generator, 3 * WIDTH + w))
            s = gradient(p, s, source, p.n * WIDTH, w, scratch, offsets)
            for j in range(4):
                store(generator, j * WIDTH + w, s[j])
    move(p, source, moved)


@kernel
def keep(p, c, block, num_blocks, slot, source):
    """Put θ into a slot."""
    at = (slot * num_blocks + block) * p.d * WIDTH
    for i in range(0, p.d * WIDTH, LANES):
        store(c.kept, at + i, load(source, i))


def _advance(p, c, first_block, last_block, num_blocks, step, num_steps, first_slot, floats, words, sizes):
    """Move the chains of some blocks on by `num_steps` steps; the last three are room to work in."""
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
                keep(p, c, block, num_blocks, since // p.thin - first_slot, source)
            step_block(p, c, block, k, source, moved, generator, spare, scratch, words, sizes)
        for i in range(0, n * WIDTH, LANES):
            store(z, i, load(source, i))


advance = njit(error_model="numpy", nogil=True, cache=True, _nrt=False)(_advance)
