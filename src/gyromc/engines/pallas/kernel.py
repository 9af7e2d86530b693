"""The kernel: a block of chains makes its steps (E3) and sums its observables (E4), with the whole loop on the GPU.

`compiled` takes a recipe and a layout and returns a compiled function from the chains' arrays to their arrays some steps later.
Each chain is shared by a team of threads: they divide its rows of data, its random numbers and its tables of observables among
them, each adds up its part, and one sum over the team per coordinate ends the step. Everything else is computed by every thread
of the team.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton

from gyromc.checks import require
from gyromc.engines.pallas import philox
from gyromc.engines.pallas.recipe import Recipe, Row, Rows
from gyromc.engines.pallas.unrolled import entries
from gyromc.engines.state import two_sum
from gyromc.observables import PROFILES

NEVER = 2**31 - 1
"""The step at which a chain that has not failed fails."""
IN_REGISTERS = 64  # with more coefficients than this, they are read again at every step
UNROLLED_ROUNDS = 4
UNROLLED_LOADS = 24


@dataclasses.dataclass(frozen=True)
class Layout:
    """How chains are laid out on the GPU; it never changes the numbers."""

    chains: int  # per block
    warps: int  # of 32 threads, per block
    interpret: bool = False


class Arrays(NamedTuple):
    """The chains: z is n × chains, the sums are slots × threads, with the threads of a team side by side."""

    z: Any
    high: Any
    low: Any
    failed_at: Any


class Inputs(NamedTuple):
    """What the kernel reads."""

    counts: Any  # first step, steps to make, burn-in
    seed: Any  # two words
    bound: Any
    coefficients: Any
    columns: Any
    directions: Any


@functools.lru_cache(maxsize=128)
def compiled(recipe: Recipe, layout: Layout, num_blocks: int) -> Callable[[Inputs, Arrays], Arrays]:
    """The function that moves `num_blocks` blocks of chains."""
    B, threads = layout.chains, layout.chains * recipe.team
    require(
        layout.interpret or threads == 32 * layout.warps,
        f"A block must have one thread per chain and member of its team: {B} chains with teams of {recipe.team} are {threads}, "
        f"{layout.warps} warps are {32 * layout.warps}.",
    )
    sums = len(recipe.slots)
    sizes = Arrays(z=(recipe.size, B), high=(sums, threads), low=(sums, threads), failed_at=(threads,))
    kinds = Arrays(jnp.float32, jnp.float32, jnp.float32, failed_at=jnp.int32)
    chains = [pl.BlockSpec(size, (lambda i: (0, i)) if len(size) == 2 else (lambda i: (i,))) for size in sizes]
    shapes = [jax.ShapeDtypeStruct((*s[:-1], num_blocks * s[-1]), kind) for s, kind in zip(sizes, kinds, strict=True)]

    def whole(array) -> pl.BlockSpec:
        return pl.BlockSpec(array.shape, lambda i: (0,) * array.ndim)

    @jax.jit
    def advance(inputs: Inputs, arrays: Arrays) -> Arrays:
        call = pl.pallas_call(
            functools.partial(_kernel, recipe, layout),
            out_shape=tuple(shapes),
            grid=(num_blocks,),
            in_specs=[*map(whole, inputs), *chains],
            out_specs=tuple(chains),
            compiler_params=triton.CompilerParams(num_warps=layout.warps, num_stages=1),
            interpret=layout.interpret,
            name="gyromc",
        )
        return Arrays(*call(*inputs, *arrays))

    return advance


def _kernel(recipe: Recipe, layout: Layout, *refs) -> None:
    inputs, before, after = Inputs(*refs[:6]), Arrays(*refs[6:10]), Arrays(*refs[10:])
    block = _Block(recipe, layout, inputs, after)
    coordinates, held = range(recipe.size), range(recipe.num_tables, len(recipe.slots))
    z = tuple(before.z[j, block.local] for j in coordinates)
    high, low = (tuple(ref[s, :] for s in held) for ref in (before.high, before.low))

    def copy(s, nothing):
        after.high[s, :] = before.high[s, :]
        after.low[s, :] = before.low[s, :]
        return nothing

    if recipe.num_tables:
        jax.lax.fori_loop(0, recipe.num_tables, copy, 0)
    first, steps = inputs.counts[0], inputs.counts[1]
    carry = jax.lax.fori_loop(first, first + steps, block.step, (z, high, low, before.failed_at[:]))
    z, high, low, failed_at = carry
    for j in coordinates:
        after.z[j, block.local] = z[j]  # every thread of a team writes the same number
    for i, s in enumerate(held):
        after.high[s, :] = high[i]
        after.low[s, :] = low[i]
    after.failed_at[:] = failed_at


class _Block:
    """One block of chains: what does not change from step to step, and the step."""

    def __init__(self, recipe: Recipe, layout: Layout, inputs: Inputs, after: Arrays):
        self.recipe, self.inputs, self.after, self.native = recipe, inputs, after, not layout.interpret
        B, T = layout.chains, recipe.team
        self.tile = (B * T,)
        index = jax.lax.broadcasted_iota(jnp.int32, self.tile, 0)
        self.local = index // T  # the chain within the block
        self.chain = (self.local + pl.program_id(0) * B).astype(jnp.uint32)
        self.thread = None if T == 1 else index % T
        self.key = inputs.seed[0], inputs.seed[1]
        self.bound, self.burn_in = inputs.bound[0], inputs.counts[2]
        few = recipe.num_coefficients <= IN_REGISTERS
        self.held = [inputs.coefficients[i] for i in range(recipe.num_coefficients)] if few else None

    @property
    def rows(self) -> Rows:
        assert self.recipe.rows is not None
        return self.recipe.rows

    def total(self, x):
        """The sum over a team, in each of its threads, by exchanges over doubling distances."""
        for distance in (1 << i for i in range(self.recipe.team.bit_length() - 1)):
            x = x + (philox.exchanged(x, distance) if self.native else x[jnp.arange(x.size) ^ distance])
        return x

    def step(self, k, carry):
        """Observe z_k, then compute z_{k+1}."""
        z, high, low, failed_at = carry
        theta = entries(z[: self.recipe.dim], (self.recipe.dim,))
        values = [
            jnp.broadcast_to(jnp.asarray(slot.value(theta)[()], jnp.float32), self.tile)
            for slot in self.recipe.slots
            if slot.value is not None
        ]
        sane = functools.reduce(jnp.logical_and, [jnp.abs(x) <= self.bound for x in z])
        failed_at = self.look(k, sane, values, failed_at)
        pairs = [two_sum(*pair) for pair in zip(high, low, self.counted(k, values), strict=True)]  # E4: z_0 counts
        high, low = (tuple(pair[i] for pair in pairs) for i in (0, 1))
        for profile, first, last in self.recipe.tables:
            sum_one = functools.partial(self.sum_table, k, theta, profile)
            failed_at = jax.lax.fori_loop(first, last, sum_one, failed_at)
        return self.move(k, z, theta), high, low, failed_at

    def look(self, k, sane, values, failed_at):
        """The first step at which the state left the sane range or a value was not finite."""
        sane = functools.reduce(jnp.logical_and, [jnp.abs(v) < np.float32(np.inf) for v in values], sane)
        return jnp.where(sane, failed_at, jnp.minimum(failed_at, k))

    def counted(self, k, values) -> list:
        """The values, or zeros during burn-in."""
        return [jnp.where(k >= self.burn_in, v, np.float32(0)) for v in values] if self.recipe.burns_in else values

    def sum_table(self, k, theta, profile: str, table, failed_at):
        """Add one table's observables, one per thread; their sums stay in memory, since there are too few registers."""
        here = table * self.recipe.team + self.thread
        terms = [self.inputs.directions[j, here] * x for j, x in enumerate(theta)]
        value = PROFILES[profile](functools.reduce(lambda a, b: a + b, terms))
        high, low = self.after.high[table, :], self.after.low[table, :]
        self.after.high[table, :], self.after.low[table, :] = two_sum(high, low, *self.counted(k, [value]))  # E4
        return self.look(k, jnp.abs(value) >= 0, [value], failed_at)

    def move(self, k, z, theta):
        """z - η(D+Q)ĝ + √(2ηD)ξ, for every coordinate."""
        recipe = self.recipe
        shared = self.apart(self.noise(k))
        own = None if recipe.rows is None else self.apart(self.row_sum(k, theta))
        gradient = [*recipe.smooth(theta), *(z[recipe.dim :] if recipe.size > recipe.dim else ())]  # ∇H = (∇U, r)
        moved = []
        for j, x in enumerate(z):
            part = self.product(recipe.noise[j], shared)
            if own is not None:
                part = part + self.product(tuple(c for c in recipe.drift[j] if c[0] < recipe.dim), own)
            moved.append(x + (self.product(recipe.drift[j], gradient) + self.total(part)))  # E3, z last as in `schemes`
        return tuple(moved)

    def product(self, row: Row, x):
        """A row of a sparse matrix times a vector of tiles."""
        read = self.held.__getitem__ if self.held is not None else self.inputs.coefficients.__getitem__
        terms = [(read(number) if sign > 0 else -read(number)) * x[i] for i, number, sign in row]
        return functools.reduce(lambda a, b: a + b, terms, np.float32(0))

    def apart(self, tiles: list) -> list:
        """The same tiles; when interpreting, this keeps XLA from computing them again for every use."""
        return tiles if self.native else list(jax.lax.optimization_barrier(tuple(tiles)))

    def noise(self, k) -> list:
        """ξ: each thread draws some of the normals and has zeros for the others."""
        n, T = self.recipe.size, self.recipe.team
        rounds = pl.cdiv(pl.cdiv(n, 4), T)
        drawn = [philox.normals(self.words(k, self.own(c), philox.NOISE), self.native) for c in range(rounds)]
        xi = []
        for i in range(n):
            c, owner = divmod(i // 4, T)
            x = drawn[c][i % 4]
            xi.append(x if self.thread is None else jnp.where(self.thread == owner, x, np.float32(0)))
        return xi

    def own(self, draw):
        """The number of a thread's draw: the threads of a team take turns."""
        return draw if self.thread is None else draw * self.recipe.team + self.thread

    def words(self, k, number, stream: int):
        """Four random words: draw number `number` of the step."""
        full = lambda x: jnp.broadcast_to(jnp.asarray(x).astype(jnp.uint32), self.tile)
        return philox.random_words(self.key, (full(k), self.chain, full(number), full(stream)), self.native)

    def row_sum(self, k, theta) -> list:
        """This thread's part of Σ ∇ℓ_i, scaled."""
        rows, T = self.rows, self.recipe.team
        chosen = None if rows.batch is None or rows.replace else self.distinct_rows(k)
        take = self.every_row if rows.batch is None else functools.partial(self.drawn_rows, chosen)
        rounds = pl.cdiv(rows.num_rows if rows.batch is None else pl.cdiv(rows.batch, 4), T)

        def add(index, weight, sums):
            columns = self.apart([self.inputs.columns[j, index] for j in range(rows.num_columns)])
            return tuple(a + b for a, b in zip(sums, rows.add(theta, columns, weight), strict=True))

        def some(c, sums):
            taken = take(k, c)
            if rows.num_columns * len(taken) > UNROLLED_LOADS:  # many unrolled loads take long to compile
                pick = lambda i, part: functools.reduce(
                    lambda a, w: jnp.where(i == w, taken[w][part], a), range(1, len(taken)), taken[0][part]
                )
                return jax.lax.fori_loop(0, len(taken), lambda i, sums: add(pick(i, 0), pick(i, 1), sums), sums)
            for index, weight in taken:
                sums = add(index, weight, sums)
            return sums

        sums = tuple(jnp.zeros(self.tile, jnp.float32) for _ in range(self.recipe.dim))
        if rounds > UNROLLED_ROUNDS:
            return list(jax.lax.fori_loop(0, rounds, some, sums))
        for c in range(rounds):
            sums = some(c, sums)
        return list(sums)

    def drawn_rows(self, chosen, k, c) -> list:
        """Four rows of the batch and their weights, zero for draws past its end."""
        rows, T = self.rows, self.recipe.team
        assert rows.batch is not None
        drawn, number = [], self.own(c)
        words = self.words(k, number, philox.ROWS) if chosen is None else (None,) * 4
        for w, word in enumerate(words):
            weight = np.float32(rows.scale)
            if rows.batch % (4 * T):
                weight = jnp.where(4 * number + w < rows.batch, weight, np.float32(0))
            index = philox.row_numbers(word, rows.num_rows) if chosen is None else self.picked(chosen, c, w)
            drawn.append((index, weight))
        return drawn

    def picked(self, chosen: list, c, w: int):
        """Row 4 · number + w of a batch that every thread holds; `number` is the thread's own draw."""
        T, number = self.recipe.team, self.own(c)
        mine = [j for j in range(w, len(chosen), 4) if not isinstance(c, int) or j // 4 // T == c]
        return functools.reduce(lambda a, j: jnp.where(4 * number + w == j, chosen[j], a), mine, chosen[0])

    def distinct_rows(self, k) -> list:
        """Floyd's choice of b distinct rows, the same in every thread of a team.

        The j-th is drawn among the first N-b+j+1 and becomes the last of these if it was taken before. `oracles.distinct_rows`
        does the same in a loop over an array of chains × rows; in a kernel each row must be a tile of its own in registers.
        """
        rows = self.rows
        assert rows.batch is not None
        words = [word for c in range(pl.cdiv(rows.batch, 4)) for word in self.words(k, c, philox.ROWS)]
        chosen: list = []
        for j in range(rows.batch):
            last = rows.num_rows - rows.batch + j
            drawn = philox.row_numbers(words[j], last + 1)
            row = functools.reduce(lambda a, other, t=drawn, x=last: jnp.where(t == other, x, a), chosen, drawn)
            chosen.append(row)
        return self.apart(chosen)

    def every_row(self, k, c) -> list:
        """The next rows in order, one for each thread of a team."""
        rows, T = self.rows, self.recipe.team
        index = jnp.broadcast_to(jnp.asarray(c, jnp.int32) * T + (0 if self.thread is None else self.thread), self.tile)
        if rows.num_rows % T == 0:
            return [(index, np.float32(1))]
        inside = index < rows.num_rows
        return [(jnp.minimum(index, rows.num_rows - 1), jnp.where(inside, np.float32(1), np.float32(0)))]
