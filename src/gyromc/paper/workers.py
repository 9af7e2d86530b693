"""Where tasks are computed: in this process (`Here`), or in several on this machine (`Processes`).

Input: `WorkerTask`s, each a function of a module with its arguments. Output: their results, one by one as they are finished. The
caller stores the results. An error in a task is raised with the task's name, Ctrl-C raises `KeyboardInterrupt`; either ends the
other tasks, and what was yielded before is the caller's.
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
import warnings
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, ThreadPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from gyromc.checks import whole
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.machine import num_threads
from gyromc.show.interruption import interruptible
from gyromc.show.progress import Progress

Advance = Callable[[float], object]
"""Called with the share of a task that was done since the last call."""
Preparation = tuple[Hashable, Callable[[], object]]
Results = Generator[tuple[int, Any], None, None]
"""The number of each task and its result, in any order."""

TRIES = 3
"""So often processes may end without any task being finished in between."""
POLL = 0.1
"""Seconds between two looks at Ctrl-C."""
SHORT = 30.0
"""Seconds of work for which no processes are started: that alone takes some."""
SHARED = ("GYROMC_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")  # NPROC is XLA's


class TaskError(RuntimeError):
    """A task failed in a worker, or ended its worker; the message names the task and has the traceback."""


@dataclasses.dataclass(frozen=True, eq=False)
class WorkerTask:
    """`function(*arguments, advance=…)`, to be computed anywhere; function, arguments and result are pickled.

    **Attributes:**

    - `name`: what errors and progress call it.
    - `function`: of a module, so that a worker can import it. It calls `advance` with the shares of the work that it has done.
    - `arguments`: plain values and arrays.
    - `seconds`: about how long it takes.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    seconds: float = 1.0


class Here:
    """Computes tasks in this process, in the order given.

    **Arguments:**

    - `prepares`: for a task, a name of what it needs first and a function that makes it, once for all tasks with that name. A
      task waits for its own; those of later tasks are made meanwhile, by threads. An error there is left to the task.
    - `threads`: how many.

    ```python
    from gyromc.show.progress import Progress
    from gyromc.paper.workers import Here, WorkerTask
    def square(x, advance):
        return x * x
    tasks = [WorkerTask("two", square, (2,)), WorkerTask("three", square, (3,))]
    assert list(Here().results(tasks, Progress())) == [(0, 4), (1, 9)]
    ```
    """

    def __init__(self, prepares: Callable[[WorkerTask], Preparation] | None = None, threads: int = 4):
        self.prepares, self.threads = prepares, threads

    def results(self, tasks: Sequence[WorkerTask], shown: Progress) -> Results:
        """Compute all tasks; yield each one's number and result."""
        pool, made = ThreadPoolExecutor(self.threads), {}
        try:
            wanted = [] if self.prepares is None else [self.prepares(task) for task in tasks]
            for name, make in wanted:
                if name not in made:
                    made[name] = pool.submit(make)
            for number, task in enumerate(tasks):
                shown.describe(f"{task.name} ({number + 1} of {len(tasks)})")
                if wanted:
                    made[wanted[number][0]].exception()  # waits
                yield number, _computed(task, shown)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _computed(task: WorkerTask, shown: Progress) -> Any:
    """The result of a task, with its progress shown."""
    done = 0.0

    def advance(share: float) -> None:
        nonlocal done
        share = min(share, 1 - done)
        done += share
        shown.advance(share * task.seconds)

    try:
        value = task.function(*task.arguments, advance=advance)
    except InvalidInput as error:
        raise InvalidInput(f"{task.name}: {error}") from None
    except Exception as error:
        error.add_note(f"(while computing {task.name})")
        raise
    advance(1.0)
    return value


def fastest(seconds: Sequence[float], available: int | None = None) -> int:
    """How many processes compute tasks of these lengths the fastest.

    One for each processor, each with one thread, unless the longest task would then still run when all others are done: then
    fewer, with several threads each. One for work of less than half a minute.

    ```python
    from gyromc.paper.workers import fastest
    assert fastest([100.0] * 50, available=8) == 8
    assert fastest([100.0] * 4, available=8) == 4
    assert fastest([100.0], available=8) == fastest([0.1] * 50, available=8) == 1
    ```
    """
    available = num_threads() if available is None else available
    total = sum(seconds)
    if total < SHORT:
        return 1
    threads = max(1, math.ceil(max(seconds) * available / total - 1e-9))
    return max(1, available // threads)


class Processes:
    """Computes tasks in `workers` new processes on this machine, the longest first.

    They are not forks, which JAX does not survive, and end with the process that started them, however that one ends. Where one
    is killed, by someone or by the system, the tasks that are not finished are computed by new ones.

    **Arguments:**

    - `workers`: how many processes.
    - `threads`: of each; left out: its share of the processors.
    - `environment`: further variables of their environment.
    """

    def __init__(self, workers: int, threads: int | None = None, environment: Mapping[str, str] | None = None):
        self.workers = whole(workers, "workers", least=1, most=10_000)
        share = max(1, num_threads() // self.workers)
        self.threads = share if threads is None else whole(threads, "threads", least=1)
        self.environment = {**dict.fromkeys(SHARED, str(self.threads)), **(environment or {})}

    def results(self, tasks: Sequence[WorkerTask], shown: Progress) -> Results:
        """Compute all tasks; yield each one's number and result once it is finished, in any order."""
        # The longest first, so that no long one is left for the end.
        order, tries = sorted(range(len(tasks)), key=lambda i: -tasks[i].seconds), 0
        while order:
            try:
                for number, value in self._finished(tasks, tuple(order)):
                    order.remove(number)
                    tries = 0
                    shown.describe(f"{tasks[number].name} ({len(tasks) - len(order)} of {len(tasks)})")
                    shown.advance(tasks[number].seconds)
                    yield number, value
            except BrokenProcessPool:
                tries += 1
                named = tasks[order[0]].name + (f" and {len(order) - 1} more" if len(order) > 1 else "")
                if tries == TRIES:
                    raise TaskError(
                        f"{named}: worker processes ended {TRIES} times before a task was finished. Where memory is short, the "
                        "system ends processes: pass fewer `workers`."
                    ) from None
                warnings.warn(f"A worker process ended: computing {named} again.", GyromcWarning, stacklevel=2)

    def _finished(self, tasks: Sequence[WorkerTask], order: Sequence[int]) -> Results:
        """The results of one pool of processes, which are gone when this ends; `BrokenProcessPool` where one is killed."""
        context, count = multiprocessing.get_context("spawn"), min(self.workers, len(order))
        pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin)
        processes = ()
        try:
            with _starting(self.environment):
                numbers = {pool.submit(_sent, tasks[i]): i for i in order}
            processes = tuple(pool._processes.values())
            left = set(numbers)
            with interruptible("stopping") as stop:
                while left:
                    stop.check()
                    done, left = wait(left, POLL, FIRST_COMPLETED)
                    for future in done:
                        yield numbers[future], future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in processes:
                process.kill()
            for process in processes:
                process.join()


@contextlib.contextmanager
def _starting(environment: Mapping[str, str]) -> Iterator[None]:
    """While processes start: variables of their environment, and no main module: else each would run the user's script again."""
    before, main = {name: os.environ.get(name) for name in environment}, sys.modules["__main__"]
    os.environ.update(environment)
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _begin() -> None:
    """At the start of a worker: Ctrl-C is the business of the process that started it, and standard output is its answer's."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(0)


def _sent(task: WorkerTask) -> Any:
    """The result of a task in a worker; errors are made of text, so that all of them can be sent back."""
    try:
        return task.function(*task.arguments, advance=lambda share: None)
    except InvalidInput as error:
        raise InvalidInput(f"{task.name}: {error}") from None
    except BaseException as error:
        said = f"{type(error).__name__}: {str(error) or type(error).__name__}"
        raise TaskError(f"{task.name}: {said}\n\nIn the worker:\n{traceback.format_exc()}") from None


Place = Here | Processes
"""Somewhere that tasks are computed."""
