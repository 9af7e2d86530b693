"""A step's sum over data inside the kernel: which rows a thread reads, and what they add to the gradient.

Input: the threads of a block, how rows are read, and the data as columns. Output: each thread's part of Σ ∇ℓ_i, scaled.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from gyromc.engines.pallas import philox
from gyromc.engines.pallas.rows import Rows
from gyromc.engines.pallas.team import Team

UNROLLED_ROUNDS = 4
UNROLLED_LOADS = 24


class Reader:
    """Reads the rows of the data that a step needs; the threads of a team divide them among themselves."""

    def __init__(self, team: Team, rows: Rows, columns: Any):
        self.team, self.rows, self.columns = team, rows, columns

    def sum(self, k, theta) -> list:
        """This thread's part of Σ ∇ℓ_i, scaled."""
        rows, T = self.rows, self.team.size
        chosen = None if rows.batch is None or rows.replace else self.distinct_rows(k)
        take = self.every_row if rows.batch is None else functools.partial(self.drawn_rows, chosen)
        rounds = pl.cdiv(rows.num_rows if rows.batch is None else pl.cdiv(rows.batch, 4), T)

        def add(index, weight, sums):
            columns = self.team.machine.apart(
                [self.team.machine.read(self.columns, j, index) for j in range(rows.num_columns)]
            )
            return tuple(a + b for a, b in zip(sums, rows.add(theta, columns, weight), strict=True))

        def some(c, sums):
            taken = take(k, c)
            if rows.num_columns * len(taken) > UNROLLED_LOADS:  # many unrolled loads take long to compile
                pick = lambda i, part: functools.reduce(
                    lambda a, w: jnp.where(self.team.machine.condition(i == w), taken[w][part], a),
                    range(1, len(taken)),
                    taken[0][part],
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

    def drawn_rows(self, chosen, k, c) -> list:
        """Four rows of the batch and their weights, zero for draws past its end."""
        rows, T = self.rows, self.team.size
        assert rows.batch is not None
        drawn, number = [], self.team.number(c)
        words = self.team.words(k, number, philox.ROWS) if chosen is None else (None,) * 4
        for w, word in enumerate(words):
            weight = np.float32(rows.scale)
            if rows.batch % (4 * T):
                weight = jnp.where(4 * number + w < rows.batch, weight, np.float32(0))
            index = philox.row_numbers(word, rows.num_rows) if chosen is None else self.picked(chosen, c, w)
            drawn.append((index, weight))
        return drawn

    def picked(self, chosen: list, c, w: int):
        """Row 4 · number + w of a batch that every thread holds; `number` is the thread's own draw."""
        T, number = self.team.size, self.team.number(c)
        mine = [j for j in range(w, len(chosen), 4) if not isinstance(c, int) or j // 4 // T == c]
        return functools.reduce(lambda a, j: jnp.where(4 * number + w == j, chosen[j], a), mine, chosen[0])

    def distinct_rows(self, k) -> list:
        """Floyd's choice of b distinct rows, the same in every thread of a team.

        The j-th is drawn among the first N-b+j+1 and becomes the last of these if it was taken before. `oracles.distinct_rows`
        does the same in a loop over an array of chains × rows; in a kernel each row must be a tile of its own in registers.
        """
        rows = self.rows
        assert rows.batch is not None
        words = [word for c in range(pl.cdiv(rows.batch, 4)) for word in self.team.words(k, c, philox.ROWS)]
        chosen: list = []
        for j in range(rows.batch):
            last = rows.num_rows - rows.batch + j
            drawn = philox.row_numbers(words[j], last + 1)
            row = functools.reduce(lambda a, other, t=drawn, x=last: jnp.where(t == other, x, a), chosen, drawn)
            chosen.append(row)
        return self.team.machine.apart(chosen)

    def every_row(self, k, c) -> list:
        """The next rows in order, one for each thread of a team."""
        rows, team = self.rows, self.team
        first = jnp.asarray(c, jnp.int32) * team.size
        index = jnp.broadcast_to(first + (0 if team.thread is None else team.thread), team.tile)
        if rows.num_rows % team.size == 0:
            return [(index, np.float32(1))]
        inside = index < rows.num_rows
        return [(jnp.minimum(index, rows.num_rows - 1), jnp.where(inside, np.float32(1), np.float32(0)))]
