"""The kernel: a block of chains makes its steps (E3) and sums its observables (E4), with the whole loop on the GPU.

Each chain is shared by a team of threads: they divide its rows of data, its random numbers and its tables among them, each adds
up its part, and one sum over the team per coordinate ends the step. Everything else is computed by every thread of the team.
"""

import functools
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from gyromc.engines.base import two_sum
from gyromc.engines.pallas.recipe import Recipe, Row, Rows, dot
from gyromc.engines.pallas.threads import NOISE, ORACLE, ROWS, Layout, Team, row_numbers
from gyromc.engines.unrolled import entries
from gyromc.observables import PROFILES

NEVER = 2**31 - 1
"""The step at which a chain that has not failed fails."""
IN_REGISTERS = 64  # with more coefficients than this, they are read again at every step
UNROLLED_ROUNDS = 4
UNROLLED_LOADS = 24


class Arrays(NamedTuple):
    """The chains: the states y are entries × chains, the sums are slots × threads, the threads of a team side by side."""

    y: Any
    high: Any
    low: Any
    failed_at: Any


class Inputs(NamedTuple):
    """What the kernel reads."""

    counts: Any  # first step, steps to make, burn-in, number of the first chain
    seed: Any  # two words
    bound: Any
    coefficients: Any
    columns: Any
    directions: Any
    increments: Any


@functools.lru_cache(maxsize=128)
def compiled(recipe: Recipe, layout: Layout, num_blocks: int) -> Callable[[Inputs, Arrays, Any], tuple[Arrays, Any]]:
    """The function that moves `num_blocks` blocks of chains, and says whether one of the first so many threads' has failed."""
    B, threads = layout.chains, layout.chains * recipe.team
    sums = len(recipe.slots)
    sizes = Arrays(y=(recipe.state, B), high=(sums, threads), low=(sums, threads), failed_at=(1, threads))
    kinds = Arrays(jnp.float32, jnp.float32, jnp.float32, failed_at=jnp.int32)
    shapes = [jax.ShapeDtypeStruct((rows, num_blocks * s), kind) for (rows, s), kind in zip(sizes, kinds, strict=True)]
    chains = [pl.BlockSpec((rows, s), lambda i: (0, i)) for rows, s in sizes]  # each block's own columns

    @jax.jit
    def advance(inputs: Inputs, arrays: Arrays, num_threads) -> tuple[Arrays, Any]:
        call = pl.pallas_call(
            functools.partial(_kernel, recipe, layout),
            out_shape=tuple(shapes),
            grid=(num_blocks,),
            name="gyromc",
            in_specs=[*(pl.BlockSpec(array.shape, lambda i, n=array.ndim: (0,) * n) for array in inputs), *chains],
            out_specs=tuple(chains),
            **layout.machine.options(layout.warps),
        )
        moved = Arrays(*call(*inputs, *arrays))
        bad = moved.failed_at[0] != NEVER
        return moved, jnp.any(bad & (jnp.arange(bad.size) < num_threads))

    return advance


def _kernel(recipe: Recipe, layout: Layout, *refs) -> None:
    count, each = len(Inputs._fields), len(Arrays._fields)
    inputs, before, after = Inputs(*refs[:count]), Arrays(*refs[count : count + each]), Arrays(*refs[count + each :])
    block = _Block(recipe, layout, inputs, after)
    at, held = block.team.at, range(recipe.num_in_memory, len(recipe.slots))
    y = tuple(before.y[j, at] for j in range(recipe.state))
    high, low = (tuple(ref[s, :] for s in held) for ref in (before.high, before.low))

    def copy(s, nothing):
        after.high[s, :], after.low[s, :] = before.high[s, :], before.low[s, :]
        return nothing

    if recipe.num_in_memory:
        jax.lax.fori_loop(0, recipe.num_in_memory, copy, 0)
    first, steps = inputs.counts[0], inputs.counts[1]
    carry = jax.lax.fori_loop(first, first + steps, block.step, (y, high, low, before.failed_at[0, :]))
    y, high, low, after.failed_at[0, :] = carry
    for j in range(recipe.state):
        after.y[j, at] = y[j]  # every thread of a team writes the same number
    for i, s in enumerate(held):
        after.high[s, :], after.low[s, :] = high[i], low[i]


class _Block:
    def __init__(self, recipe: Recipe, layout: Layout, inputs: Inputs, after: Arrays):
        self.recipe, self.inputs, self.after = recipe, inputs, after
        self.team = Team(layout, recipe.team, (inputs.seed[0], inputs.seed[1]), inputs.counts[3])
        self.bound, self.burn_in = inputs.bound[0], inputs.counts[2]
        count = inputs.coefficients.shape[0]
        self.held = [inputs.coefficients[i] for i in range(count)] if count <= IN_REGISTERS else None

    def step(self, k, carry):
        """Observe z_k, then compute y_{k+1}."""
        y, high, low, failed_at = carry
        theta = entries(y[: self.recipe.dim], (self.recipe.dim,))
        values = [
            jnp.broadcast_to(jnp.asarray(slot.value(theta)[()], jnp.float32), self.team.tile)
            for slot in self.recipe.slots
            if slot.value is not None
        ]
        sane = functools.reduce(operator.and_, [jnp.abs(x) <= self.bound for x in y[: self.recipe.size]])
        failed_at = self.look(k, sane, values, failed_at)
        pairs = self.summed(k, high, low, values)  # E4: z_0 counts
        for profile, first, last in self.recipe.tables:
            sum_one = functools.partial(self.sum_table, k, theta, profile)
            failed_at = jax.lax.fori_loop(first, last, sum_one, failed_at)
        moved, xi = self.move(k, y, theta)
        if self.recipe.increments:
            self.correct(k, moved, self.team.everywhere(xi))
        return tuple(moved), tuple(h for h, _ in pairs), tuple(l for _, l in pairs), failed_at

    def look(self, k, sane, values, failed_at):
        sane = functools.reduce(jnp.logical_and, [jnp.abs(v) < np.float32(np.inf) for v in values], sane)
        return jnp.where(sane, failed_at, jnp.minimum(failed_at, k))

    def summed(self, k, high, low, values: list) -> list:
        """The first sums, in two floats each, with the values added; nothing is added during burn-in."""
        if self.recipe.burns_in:
            values = [jnp.where(k >= self.burn_in, v, np.float32(0)) for v in values]
        return [two_sum(h, l, v) for h, l, v in zip(high, low, values, strict=False)]

    def add_to(self, k, slot, value) -> None:
        """Add one value per thread to sums that stay in memory, since there are too few registers."""
        [(high, low)] = self.summed(k, [self.after.high[slot, :]], [self.after.low[slot, :]], [value])
        self.after.high[slot, :], self.after.low[slot, :] = high, low

    def sum_table(self, k, theta, profile: str, table, failed_at):
        here = self.team.number(table)
        value = PROFILES[profile](dot([self.inputs.directions[j, here] for j in range(len(theta))], theta))
        self.add_to(k, table, value)  # E4
        return self.look(k, jnp.abs(value) >= 0, [value], failed_at)

    def move(self, k, y, theta) -> tuple[list, list]:
        """y⁺ = Ay + Bĝ + Cξ, for every coordinate, and ξ, divided among the threads of a team."""
        recipe, team = self.recipe, self.team
        xi = team.normals(k, recipe.size, NOISE)
        zeta = [] if recipe.oracle is None else team.normals(k, recipe.dim, ORACLE)
        own = [] if recipe.rows is None else self.sum_rows(k, recipe.rows, theta)
        gradient = [*self.smooth(theta), *y[recipe.dim : recipe.size]]  # ∇H = (∇U, r)
        moved = []
        for j, x in enumerate(y):
            parts = [(recipe.noise[j], xi), (recipe.oracle[j] if recipe.oracle is not None else (), zeta)]
            parts.append((tuple(c for c in recipe.drift[j] if c[0] < recipe.dim) if own else (), own))
            parts = [self.product(row, tiles) for row, tiles in parts if row]
            change = self.product(recipe.drift[j], gradient)
            if parts:
                change = change + team.total(functools.reduce(operator.add, parts))
            if recipe.kept[j]:
                change = self.product(recipe.kept[j], y) + change
            # A memory is replaced; z comes last as in `schemes`.
            moved.append(x + change if j < recipe.size else jnp.broadcast_to(change, team.tile))  # E3
        return (team.machine.apart(moved) if recipe.increments else moved), xi

    def smooth(self, theta) -> list:
        """The part of the gradient of U that every thread computes: all but the rows."""
        gradient, one = list(self.recipe.smooth(theta)), [np.float32(1)]
        if self.recipe.anchor is None or self.recipe.center is None:
            return gradient
        away = [t - self.product(c, one) for t, c in zip(theta, self.recipe.center, strict=True)]
        return [g + self.product(row, away + one) for g, row in zip(gradient, self.recipe.anchor, strict=True)]  # T8

    def product(self, row: Row, x):
        """A row of a sparse matrix times a vector of tiles."""
        read = self.held.__getitem__ if self.held is not None else self.inputs.coefficients.__getitem__
        terms = [(read(number) if sign > 0 else -read(number)) * x[i] for i, number, sign in row]
        return functools.reduce(operator.add, terms, np.float32(0))

    def correct(self, k, moved: list, xi: list) -> None:
        first = self.recipe.increments[0][1]
        for terms, start, stop in self.recipe.increments:

            def one(s, nothing, terms=terms):
                self.add_to(k, s, self.increment(s - first, terms, moved, xi))
                return nothing

            jax.lax.fori_loop(start, stop, one, 0)

    def increment(self, table, terms: int, y: list, xi: list):
        """ψ of one observable per thread, from y⁺ and ξ; the numbers are laid out in `recipe`."""
        n, m = len(xi), len(y)
        here = self.team.number(table)
        numbers = lambda start, count: [self.inputs.increments[start + i, here] for i in range(count)]
        value = dot(numbers(0, n), xi)

        def one(t, value):
            start = n + 1 + t * (2 + m + n)
            weight, offset = numbers(start, 2)
            drawn = dot(numbers(start + 2 + m, n), xi)
            return value + weight * drawn * (dot(numbers(start + 2, m), y) - offset - drawn)  # T9

        if terms:
            value = value - numbers(n, 1)[0]
        if terms > 1 and terms * (m + n) > UNROLLED_LOADS:
            return jax.lax.fori_loop(0, terms, one, value)
        for t in range(terms):
            value = one(t, value)
        return value

    def sum_rows(self, k, rows: Rows, theta) -> list:
        """This thread's part of Σ ∇ℓ_i, scaled; the threads of a team divide the rows among themselves."""
        T = self.team.size
        chosen = None if rows.batch is None or rows.replace else self.distinct_rows(k, rows, rows.batch)
        take = functools.partial(self.every_row, rows)
        if rows.batch is not None:
            take = functools.partial(self.drawn_rows, rows, rows.batch, chosen)
        rounds = pl.cdiv(rows.num_rows if rows.batch is None else pl.cdiv(rows.batch, 4), T)

        def add(index, weight, sums):
            columns = self.team.machine.apart([self.inputs.columns[j, index] for j in range(rows.num_columns)])
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

        sums = tuple(jnp.zeros(self.team.tile, jnp.float32) for _ in range(len(theta)))
        if rounds > UNROLLED_ROUNDS:
            return self.team.machine.apart(list(jax.lax.fori_loop(0, rounds, some, sums)))
        for c in range(rounds):
            sums = some(c, sums)
        return self.team.machine.apart(list(sums))

    def drawn_rows(self, rows: Rows, batch: int, chosen, k, c) -> list:
        """Four rows of the batch and their weights, zero for draws past its end."""
        drawn, number, T = [], self.team.number(c), self.team.size
        words = self.team.words(k, number, ROWS) if chosen is None else (None,) * 4
        for w, word in enumerate(words):
            weight = np.float32(rows.scale)
            if batch % (4 * T):
                weight = jnp.where(4 * number + w < batch, weight, np.float32(0))
            index = row_numbers(word, rows.num_rows) if chosen is None else self.picked(chosen, c, w)
            drawn.append((index, weight))
        return drawn

    def picked(self, chosen: list, c, w: int):
        """Row 4 · number + w of a batch that every thread holds; `number` is the thread's own draw."""
        T, number = self.team.size, self.team.number(c)
        mine = [j for j in range(w, len(chosen), 4) if not isinstance(c, int) or j // 4 // T == c]
        return functools.reduce(lambda a, j: jnp.where(4 * number + w == j, chosen[j], a), mine, chosen[0])

    def distinct_rows(self, k, rows: Rows, batch: int) -> list:
        """Floyd's choice of b distinct rows, as in `oracles`, the same in every thread of a team; each is a tile in registers."""
        words = [word for c in range(pl.cdiv(batch, 4)) for word in self.team.words(k, c, ROWS)]
        chosen: list = []
        for j in range(batch):
            last = rows.num_rows - batch + j
            drawn = row_numbers(words[j], last + 1)
            row = functools.reduce(lambda a, other, t=drawn, x=last: jnp.where(t == other, x, a), chosen, drawn)
            chosen.append(row)
        return self.team.machine.apart(chosen)

    def every_row(self, rows: Rows, k, c) -> list:
        team = self.team
        index = jnp.broadcast_to(team.number(jnp.asarray(c, jnp.int32)), team.tile)
        if rows.num_rows % team.size == 0:
            return [(index, np.float32(1))]
        weight = jnp.where(index < rows.num_rows, np.float32(1), np.float32(0))
        return [(jnp.minimum(index, rows.num_rows - 1), weight)]
