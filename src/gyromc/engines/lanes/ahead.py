"""Rows of a large file, for many steps of all chains at a time: drawn before their steps, and read in the order of the file.

A memory map would make the whole file resident, and a call of the system for each row takes ten times as long as its use. So the
rows of a pass, as many as half of `FileSettings.resident` holds, are drawn with copies of the chains' generators, sorted by the
window of the file that they are in, and copied from there into a table; a step finds them by their places in it.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np
from numba import types

from gyromc.data import files
from gyromc.engines.lanes.gradients import draw_rows, kernel
from gyromc.engines.lanes.kernel import Chains, Program, draw_normals
from gyromc.engines.lanes.vectors import LANES, WIDTH, converted, load, store

pread: Any = types.ExternalFunction("pread", types.intp(types.int32, types.intp, types.intp, types.intp))


@dataclasses.dataclass(frozen=True)
class AheadSettings:
    """The sizes of a pass, in bytes."""

    window: int = 2**20
    """Of a part of the file that is read at once. It stays in a processor's cache while rows are copied from it."""
    call: int = 2**13
    """That are read in the time of a call of the system: windows that need fewer rows are read row by row. Measured: 0.7 µs."""


SETTINGS = AheadSettings()


@kernel
def draw_ahead(p, c, task, workspace):
    """The numbers of the rows that the chains of some blocks draw in some steps, in the order in which the steps use them."""
    first, last, step, num_steps = task
    rows, normals, words, generator, spare = workspace
    at = 0
    for block in range(first, last):
        for i in range(0, 4 * WIDTH, LANES):
            store(generator, i, load(c.generator, block * 4 * WIDTH + i))
        for k in range(step, step + num_steps):
            draw_normals(p, generator, normals, 0, spare, k)
            for w in range(0, WIDTH, LANES):
                draw_rows(p, generator, w, words, 1)
                for chain in range(LANES):
                    for j in range(p.batch):
                        rows[at] = words[j * LANES + chain]
                        at += 1


@kernel
def sort_ahead(p, c, task, workspace):
    """The rows in the order of their windows of 2^shift rows, where those of each window end, and in `rows` their places."""
    (shift,), (rows, ordered, ends) = task, workspace
    ends[:] = 0
    for i in range(rows.size):
        ends[rows[i] >> shift] += 1
    begin = 0
    for window in range(ends.size):
        count, ends[window] = ends[window], begin
        begin += count
    for i in range(rows.size):
        window = rows[i] >> shift
        place = ends[window]
        ordered[place], rows[i] = rows[i], place
        ends[window] = place + 1


@kernel
def read_ahead(p, c, task, workspace):
    """Copy the rows of some windows into the table, each followed by its response."""
    first, last, shift, call = task
    ordered, ends, buffer = workspace
    size = p.d * p.file_rows.itemsize
    for window in range(first, last):
        begin, end, base = ends[window - 1] if window else 0, ends[window], window << shift
        count = min(1 << shift, p.num_rows - base)
        whole, complete = (end - begin) * call >= count * size, True
        if whole and end > begin:
            place = p.file_start + base * size
            complete = pread(p.descriptor, buffer.ctypes.data, count * size, place) == count * size
        for i in range(begin, end):
            row, to = np.int64(ordered[i]), i * (p.d + 1)
            at = (row - base) * p.d
            if not whole:
                complete = pread(p.descriptor, buffer.ctypes.data, size, p.file_start + row * size) == size
                at = 0
            for k in range(0, p.d - p.d % LANES, LANES):
                store(p.table, to + k, converted(load(buffer, at + k), p.table))
            for k in range(p.d - p.d % LANES, p.d):
                p.table[to + k] = buffer[at + k]
            p.table[to + p.d] = p.responses[row]
            if not complete:
                p.table[to] = np.nan  # the file was cut off: the chain fails, and `check_size` says why


class Ahead:
    """The passes of one session, and what they need: `loops` are the functions above, compiled for its program."""

    def __init__(self, program: Program, chains: Chains, blocks: int, loops: Sequence[Any]):
        p, dtype = program, program.table.dtype
        self.chains, self.loops, self.in_block = chains, loops, WIDTH * p.batch
        most = max(1, files.SETTINGS.resident // 2 // (((p.d + 1) * dtype.itemsize + 8) * self.in_block))
        self.blocks = min(blocks, most)
        self.steps = most // self.blocks
        self.capacity = self.blocks * self.steps * self.in_block
        # The last row is empty. What is read of the next row, as rows are read in whole vectors, is multiplied by zeros.
        self.empty = self.capacity * (p.d + 1)
        self.rows, self.ordered = np.zeros((2, self.capacity), np.uint32)
        self.program = p._replace(table=np.zeros(self.empty + p.row_width, dtype), places=self.rows)
        self.shift = max(0, (SETTINGS.window // (p.d * p.file_rows.itemsize)).bit_length() - 1)
        self.ends = np.zeros(((p.num_rows - 1) >> self.shift) + 1, np.int64)
        with ThreadPoolExecutor(1) as pool:
            self.read(pool, 1, (0, 1, 0, 0))  # no steps: compiles, or loads from the cache

    def passes(self, blocks: int, step: int, num_steps: int) -> Iterator[tuple[int, int, int, int]]:
        """The first block and the one after the last, the first step, and the number of steps, of each pass."""
        for first in range(0, blocks, self.blocks):
            for done in range(0, num_steps, self.steps):
                yield first, min(first + self.blocks, blocks), step + done, min(self.steps, num_steps - done)

    def read(self, pool: Executor, threads: int, task: tuple[int, int, int, int]) -> None:
        """Fill the table for one pass."""
        (draw, sort, copy), p, chains = self.loops, self.program, self.chains
        first, last, step, num_steps = task
        each = num_steps * self.in_block
        rows = self.rows[: (last - first) * each]

        def draw_block(block: int) -> None:
            own = rows[(block - first) * each : (block - first + 1) * each]
            normals, spare = np.zeros((p.draws + 1) * WIDTH, p.table.dtype), np.zeros(WIDTH, p.table.dtype)
            words, generator = np.zeros(LANES * p.padded_batch, np.uint32), np.zeros(4 * WIDTH, np.uint32)
            draw(p, chains, (block, block + 1, step, num_steps), (own, normals, words, generator, spare))

        def copy_windows(begin: int, end: int) -> None:
            buffer = np.empty(p.d << self.shift, p.file_rows.dtype)
            copy(p, chains, (begin, end, self.shift, SETTINGS.call), (self.ordered, self.ends, buffer))

        list(pool.map(draw_block, range(first, last)))
        sort(p, chains, (self.shift,), (rows, self.ordered, self.ends))
        edges = np.linspace(0, len(self.ends), threads + 1).astype(int).tolist()
        list(pool.map(copy_windows, edges[:-1], edges[1:]))
