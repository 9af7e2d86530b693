"""The loop: all steps of a block of chains, with state, random numbers and data in the cache (E3, E4).

A `Program` says what to compute, as arrays; the state of the `Chains` is changed in place. One chain is one lane, and a step is

    y⁺ = (z, 0) + shift + [B E L] (y, s, ξ),   s from `gradients`, ξ standard normal,

with one sparse matrix for drift and noise; y is z and the scheme's memory. For Euler's step B = -η(D+Q)·(linear part of ∇H),
E = -η(D+Q)_θ·(what multiplies s), L Lᵀ = 2ηD plus, for a Gaussian oracle, η²τ²(D+Q)_θ(D+Q)_θᵀ. A second sparse matrix is applied
to (y⁺, s, ξ): the linear predictors of the observables, and what the increments of their martingales (T9) need of y⁺ and ξ.
"""

from typing import NamedTuple

import numpy as np

from gyromc.engines.lanes import functions
from gyromc.engines.lanes.functions import logistic, normal_pair, softplus, tanh
from gyromc.engines.lanes.gradients import kernel, load_generator, store_generator
from gyromc.engines.lanes.vectors import (
    LANES,
    WIDTH,
    any_above,
    bits,
    fma,
    load,
    load_block,
    maximum,
    number,
    store,
    widened,
    zero_block,
    zeros_like,
)


class Sparse(NamedTuple):
    """A matrix by rows of nonzero entries, and what is added to its product."""

    start: np.ndarray  # int64: where rows begin
    column: np.ndarray  # int64: offset of the source's row
    entry: np.ndarray
    shift: np.ndarray


class IncrementTerms(NamedTuple):
    """The terms of the increments of all observables, in their order; none without a martingale."""

    start: np.ndarray  # int64: where the terms of an observable's increment begin
    noise: np.ndarray  # int64: offset of u among the products
    state: np.ndarray  # int64: offset of v
    cross: np.ndarray  # of u·v
    square: np.ndarray  # of u²
    linear: np.ndarray  # of u
    constant: np.ndarray  # of an increment


class Program(NamedTuple):
    """What one step reads. Arrays have the run's precision unless noted."""

    n: int  # entries of z
    d: int  # entries of θ
    m: int  # entries of y: z, and the scheme's memory
    draws: int  # standard normals of a step
    step: Sparse  # [B E L]
    observed: Sparse  # the observables' directions and the rows of `increments`, with no shift
    profile: np.ndarray  # int64: for `profile`
    columns: int  # sums of a chain: the observables', then those of their increments, if any
    terms: IncrementTerms
    weight: float
    burn_in: int
    thin: int
    bound_bits: int
    infinity_bits: int
    magnitude_bits: int
    part: int
    slope_code: int
    users: int  # where the machine code of a user's slope is; 0: none
    uses_response: bool
    centre_column: int  # of a row, for control variates; 0: none
    curvature_column: int  # for those of second order; 0: none
    table: np.ndarray
    num_rows: int
    row_width: int
    batch: int
    padded_batch: int
    replace: bool  # whether a batch may hold a row twice
    file_rows: np.ndarray  # of a mapped file, in its own precision: x after x; empty without one
    responses: np.ndarray  # y of these rows, of any type of number
    descriptor: int  # of the open file, where rows are read ahead; -1 without one
    file_start: int  # where they begin in it
    places: np.ndarray  # uint32: of rows that were read ahead, in the table, in the order of their use
    centre: np.ndarray  # of a control variate over a file, filled with zeros


class Chains(NamedTuple):
    """The state of the chains, in blocks of WIDTH; lanes past the last chain are computed and ignored."""

    z: np.ndarray  # blocks × m × WIDTH
    generator: np.ndarray  # uint32, blocks × 4 × WIDTH
    spare: np.ndarray  # blocks × WIDTH: the unused half of a pair of normals, when `draws` is odd
    sums: np.ndarray  # float64, blocks × columns × WIDTH
    failed_at: np.ndarray  # int64, blocks × WIDTH
    kept: np.ndarray  # slots × blocks × d × WIDTH


@functions.inlined
def profile(code, t):
    """ρ(t) of a ridge observable, by its place in `gyromc.observables.PROFILES`."""
    if code == 0:
        return t
    if code == 1:
        return t * t
    if code == 2:
        return tanh(t)
    if code == 3:
        return logistic(t)
    if code == 4:
        return logistic(0.0 - t) * logistic(0.0 - t) * 2.0
    if code == 5:
        return logistic(t) * logistic(t) * 2.0
    return softplus(t) - t * logistic(t)


@kernel
def multiply(source, M, out):
    """out = shift + M source for a sparse matrix M and a block of chains."""
    for i in range(M.shift.size):
        total = zero_block(source) + number(M.shift, i)
        for e in range(number(M.start, i), number(M.start, i + 1)):
            total = fma(load_block(source, number(M.column, e)), number(M.entry, e), total)
        store(out, i * WIDTH, total)


@kernel
def observe(p, products, sums, at, counted, sizes):
    """Add weight · h(z) of every observable to the sums; `sizes` becomes the bits of each chain's largest |h(z)|."""
    for w in range(0, WIDTH, LANES):
        store(sizes, w, bits(zeros_like(products)))
    for q in range(p.profile.size):
        code, place = number(p.profile, q), at + q * WIDTH
        for w in range(0, WIDTH, LANES):
            value = profile(code, load(products, q * WIDTH + w))
            store(sizes, w, maximum(load(sizes, w), bits(value) & p.magnitude_bits))
            if counted:
                store(sums, place + w, fma(widened(value), p.weight, load(sums, place + w)))  # E4: z_0 counts


@kernel
def add_increments(p, products, sums, at):
    """Add weight · ψ to the sums of the martingales: ψ = Σ_t u_t (cross_t v_t - square_t u_t + linear_t) - constant."""
    terms = p.terms
    for q in range(terms.constant.size):
        total = zero_block(products) - number(terms.constant, q)
        for t in range(number(terms.start, q), number(terms.start, q + 1)):
            u, v = load_block(products, number(terms.noise, t)), load_block(products, number(terms.state, t))
            rest = fma(v, number(terms.cross, t), number(terms.linear, t) - u * number(terms.square, t))
            total = fma(u, rest, total)  # T9
        place = at + (p.profile.size + q) * WIDTH
        store(sums, place, fma(widened(total), p.weight, load_block(sums, place)))


@kernel
def no_increments(p, products, sums, at):
    """Nothing, for plans without a martingale."""


@kernel
def note_failures(sizes, w, limit, failed_at, at, step):
    """Store the step for lanes that exceed the limit for the first time."""
    for lane in range(LANES):
        if sizes[w + lane] > limit and failed_at[at + lane] < 0:
            failed_at[at + lane] = step


@kernel
def draw_normals(p, generator, source, first, spare, step):
    """The standard normals of a step, for each chain; if their number is odd, the one left over is used in the next step."""
    for w in range(0, WIDTH, LANES):
        s = load_generator(generator, w)
        i = 0
        if p.draws % 2 == 1 and step % 2 == 1:
            store(source, first + w, load(spare, w))
            i = 1
        while i < p.draws:
            s, a, b = normal_pair(s, source)
            store(source, first + i * WIDTH + w, a)
            store(source, first + (i + 1) * WIDTH + w, b)
            i += 2
        if p.draws % 2 == 1 and step % 2 == 0:
            store(spare, w, load(source, first + p.draws * WIDTH + w))
        store_generator(generator, w, s)


@kernel
def step_block(p, c, block, step, floats, generator, spare, offsets, sizes, gradient, width, slope):
    """One step of the chains of a block; y is the first rows of `source`, `sizes` are those of the observables."""
    source, moved, scratch = floats
    failed_at = block * WIDTH
    for w in range(0, WIDTH, LANES):
        # The bits of max |z_i|: as integers they are ordered like |z_i|, with infinity and NaN above all numbers.
        size, value = bits(load(source, w)) & p.magnitude_bits, load(sizes, w)
        for i in range(1, p.n):
            size = maximum(size, bits(load(source, i * WIDTH + w)) & p.magnitude_bits)
        if any_above(size, p.bound_bits) or any_above(value, p.infinity_bits - 1):
            note_failures(sizes, w, p.infinity_bits - 1, c.failed_at, failed_at + w, step)
            store(sizes, w, size)
            note_failures(sizes, w, p.bound_bits, c.failed_at, failed_at + w, step)
            store(sizes, w, bits(zeros_like(source)))
    draw_normals(p, generator, source, (p.m + p.d) * WIDTH, spare, step)
    for w in range(0, WIDTH, LANES):
        gradient(p, generator, source, p.m * WIDTH, w, scratch, offsets, width, slope)
    # z is added to, and the memory replaced.
    multiply(source, p.step, moved)
    for at in range(0, p.n * WIDTH, LANES):
        store(source, at, load(source, at) + load(moved, at))  # E3
    for at in range(p.n * WIDTH, p.m * WIDTH, LANES):
        store(source, at, load(moved, at))


@kernel
def advance(p, c, task, workspace, gradient, width, slope, increments):
    """Move the chains of some blocks by some steps; `gradient` is one of `gradients`, called with `width` and `slope`."""
    first_block, last_block, num_blocks, step, num_steps, first_slot = task
    floats, words, sizes = workspace
    m, d, rows, last = p.m, p.d, p.observed.shift.size, step + num_steps
    source, floats = floats[: (m + d + p.draws + 1) * WIDTH], floats[(m + d + p.draws + 1) * WIDTH :]
    moved, floats = floats[: m * WIDTH], floats[m * WIDTH :]
    products, scratch = floats[: rows * WIDTH], floats[rows * WIDTH :]
    for block in range(first_block, last_block):
        z = c.z[block * m * WIDTH : (block + 1) * m * WIDTH]
        generator = c.generator[block * 4 * WIDTH : (block + 1) * 4 * WIDTH]
        spare = c.spare[block * WIDTH : (block + 1) * WIDTH]
        for i in range(0, m * WIDTH, LANES):
            store(source, i, load(z, i))
        for k in range(step, last + 1):  # the last turn only ends the step before: code written once compiles faster
            multiply(source, p.observed, products)
            if k > step and k > p.burn_in:
                increments(p, products, c.sums, block * p.columns * WIDTH)
            if k == last:
                break
            observe(p, products, c.sums, block * p.columns * WIDTH, k >= p.burn_in, sizes)
            since = k - p.burn_in
            if p.thin > 0 and since >= 0 and since % p.thin == 0:
                kept_at = ((since // p.thin - first_slot) * num_blocks + block) * d * WIDTH
                for i in range(0, d * WIDTH, LANES):
                    store(c.kept, kept_at + i, load(source, i))
            buffers = source, moved, scratch
            step_block(p, c, block, k, buffers, generator, spare, words, sizes, gradient, width, slope)
        for i in range(0, m * WIDTH, LANES):
            store(z, i, load(source, i))
