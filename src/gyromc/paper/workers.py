"""Computes tasks in this process, or in several on this machine; yields their results one by one as they are finished.

An error in a task is raised with the task's name, Ctrl-C raises `KeyboardInterrupt`; either ends the other tasks.
"""

import contextlib
import dataclasses
import math
import multiprocessing
import os
import signal
import sys
import threading
import traceback
import types
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from gyromc.checks import cause
from gyromc.errors import InvalidInput
from gyromc.runtime.machine import num_threads
from gyromc.show.interruption import Interruption, interruptible
from gyromc.show.progress import Progress

SHORT = 30.0
"""Seconds of work for which no processes are started: that alone takes some."""
SHARED = ("GYROMC_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")  # NPROC is XLA's
Results = Generator[tuple[int, Any], None, None]
"""The number and the result of each task, once it is finished."""


@dataclasses.dataclass(frozen=True, eq=False)
class WorkerTask:
    """`function(*arguments)`, to be computed in about so many `seconds`; the function is one of a module, and all is pickled."""

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    seconds: float = 1.0


def fastest(seconds: Sequence[float]) -> int:
    """How many processes compute tasks of these lengths the fastest; one for work of less than half a minute.

    One for each processor, unless the longest task would then still run when all others are done: then fewer, with several
    threads each.
    """
    available, total = num_threads(), sum(seconds)
    if total < SHORT:
        return 1
    threads = max(1, math.ceil(max(seconds) * available / total - 1e-9))
    return max(1, available // threads)


def computed(tasks: Sequence[WorkerTask], workers: int = 1, shown: Progress | None = None) -> Results:
    """Compute all tasks; yield each one's number and result once it is finished.

    With one worker all are computed in this process, in the order given. Several are new processes, which take the longest task
    first; they are not forks, which JAX does not survive, and end with this process, however that one ends.
    """
    shown = shown or Progress()
    with interruptible("stopping") as stop:
        results = _by_processes(tasks, workers, stop) if workers > 1 and tasks else _here(tasks, stop, shown)
        with contextlib.closing(results):
            for finished, (number, value) in enumerate(results, 1):
                shown.describe(f"{tasks[number].name} ({finished} of {len(tasks)})")
                shown.advance(tasks[number].seconds)
                yield number, value


def _here(tasks: Sequence[WorkerTask], stop: Interruption, shown: Progress) -> Results:
    """Compute the tasks in this process."""
    for number, task in enumerate(tasks):
        stop.check()
        shown.describe(task.name)
        yield number, _value(task)


def _by_processes(tasks: Sequence[WorkerTask], workers: int, stop: Interruption) -> Results:
    """Compute the tasks in a pool of new processes, which are gone when the generator ends."""
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(workers, len(tasks)), mp_context=context, initializer=_begin)
    before, main, processes = dict(os.environ), sys.modules["__main__"], ()
    try:
        try:
            os.environ.update(dict.fromkeys(SHARED, str(max(1, num_threads() // workers))))
            # Else each process would run the user's script again.
            sys.modules["__main__"] = types.ModuleType("__main__")
            # The longest first, so that no long one is left for the end.
            order = sorted(range(len(tasks)), key=lambda number: -tasks[number].seconds)
            numbers = {pool.submit(_sent, tasks[number]): number for number in order}
        finally:
            processes = tuple(pool._processes.values())
            sys.modules["__main__"] = main
            os.environ.clear()
            os.environ.update(before)
        left = set(numbers)
        while left:
            stop.check()
            # Ctrl-C is looked at ten times a second.
            done, left = wait(left, 0.1, FIRST_COMPLETED)
            # Errors last: what is finished is not lost.
            for future in sorted(done, key=lambda one: one.exception() is not None):
                if isinstance(future.exception(), BrokenProcessPool):
                    ended = f"{tasks[numbers[future]].name}: a worker process ended before it was finished."
                    remedy = "Where memory is short, the system ends processes: pass fewer `workers`."
                    raise InvalidInput(f"{ended} {remedy} What was finished need not be computed again.")
                yield numbers[future], future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()
        for process in processes:
            process.join()


def _value(task: WorkerTask) -> Any:
    """The result of a task in this process."""
    try:
        return task.function(*task.arguments)
    except InvalidInput as error:
        raise InvalidInput(f"{task.name}: {error}") from None
    except Exception as error:
        error.add_note(f"(while computing {task.name})")
        raise


def _begin() -> None:
    """At the start of a worker: Ctrl-C is the business of the process that started it, and standard output is its answer's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)

    def end_with_parent() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()


def _sent(task: WorkerTask) -> Any:
    """The result of a task in a worker; errors are made of text, so that all of them can be sent back."""
    try:
        return _value(task)
    except InvalidInput:
        raise
    except BaseException as error:
        raise RuntimeError(f"{task.name}: {cause(error)}\n\nIn the worker:\n{traceback.format_exc()}") from None
