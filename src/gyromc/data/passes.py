"""One pass over all rows of a source: a function of every block, its results in the order of the blocks.

Input: a source and a function. Output: the results. A thread reads blocks ahead while others compute, so that reading and
computing overlap; sums over the results do not depend on the number of threads, since the order is that of the rows.
"""

import collections
import concurrent.futures
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from gyromc.data.source import RowSource

__all__ = ["BLOCK_NUMBERS", "block_rows", "over_blocks", "prefetched"]

T = TypeVar("T")
BLOCK_NUMBERS = (
    2**20
)  # of x in a block: some megabytes, which is quick to compute with and slow enough to hide a thread's start
AHEAD = 2  # blocks that are read before they are asked for
MOST_THREADS = 8
_END = object()


def num_threads() -> int:
    """How many threads compute: the processors this process may use, at most eight."""
    return min(MOST_THREADS, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


def block_rows(columns: int) -> int:
    """How many rows a block has."""
    return max(1, BLOCK_NUMBERS // columns)


def prefetched(items: Iterable[T], ahead: int = AHEAD) -> Iterator[T]:
    """The same items, made by a thread that is up to `ahead` of them in front of the reader; its errors are raised here.

    ```python
    from gyromc.data import prefetched
    assert list(prefetched(range(5), ahead=2)) == [0, 1, 2, 3, 4]
    ```
    """
    made: queue.Queue = queue.Queue(maxsize=ahead)
    left = threading.Event()

    def put(item: Any) -> bool:
        while not left.is_set():
            try:
                made.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in items:
                if not put((item, None)):
                    return
            put((_END, None))
        except BaseException as error:  # raised again in the thread that reads
            put((_END, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item, error = made.get()
            if error is not None:
                raise error
            if item is _END:
                return
            yield item
    finally:  # also where the reader stops early
        left.set()
        thread.join()


def over_blocks(source: RowSource, function: Callable[..., T], rows: int | None = None) -> Iterator[T]:
    """`function(X, y)` of every block, in the order of the blocks; computed by as many threads as there are processors."""
    threads, waiting = num_threads(), collections.deque()
    with concurrent.futures.ThreadPoolExecutor(threads) as pool:
        for X, y in prefetched(source.blocks(rows or block_rows(source.num_columns))):
            waiting.append(pool.submit(function, X, y))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
