"""Where tasks are computed: in this process (`Here`), or in several on this machine (`Processes`).

Input: `WorkerTask`s, each a function of a module with its arguments. Output: their results, one by one as they are finished. Both
have the one method of `Place`. The caller stores the results.

The worker processes are new ones (not forks, which JAX does not survive) and do not run the program that started them again, so
that scripts need no `if __name__ == "__main__"`. A worker reads tasks from standard input and writes what came of them to
standard output, as pickles; what a task prints goes to standard error. It ends when its input does, so that no worker outlives
the process that started it, however that one ends. A worker that is killed, by someone or by the system, is replaced, and its
task is computed by another.
"""

import contextlib
import dataclasses
import math
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import IO, Any, Protocol

from gyromc.checks import whole
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.machine import num_threads
from gyromc.show.interruption import interruptible
from gyromc.show.progress import Progress

Advance = Callable[[float], object]
"""Called with the share of a task that was done since the last call."""
Preparation = tuple[Hashable, Callable[[], object]]


@dataclasses.dataclass(frozen=True)
class PoolSettings:
    """The numbers of `Processes`, by experience: each costs little and none changes a result."""

    tries: int = 3
    """A task that ends its process so often is given up."""
    poll: float = 0.1
    """Seconds between two looks at Ctrl-C."""
    report: float = 0.1
    """Seconds between two reports of a worker's progress."""
    short: float = 30.0
    """Seconds of work for which no processes are started: that alone takes some."""


SETTINGS = PoolSettings()
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


class Place(Protocol):
    """Somewhere that tasks are computed."""

    def results(self, tasks: Sequence[WorkerTask], shown: Progress) -> Generator[tuple[int, Any], None, None]:
        """Compute all tasks; yield each one's number and result once it is finished, in any order.

        An error in a task is raised with the task's name. Ctrl-C raises `KeyboardInterrupt`. Either ends the other tasks; what
        was yielded before is the caller's.
        """
        ...


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

    def results(self, tasks: Sequence[WorkerTask], shown: Progress) -> Generator[tuple[int, Any], None, None]:
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
    if total < SETTINGS.short:
        return 1
    threads = max(1, math.ceil(max(seconds) * available / total - 1e-9))
    return max(1, available // threads)


class Processes:
    """Computes tasks in `workers` new processes on this machine, the longest first.

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

    def results(self, tasks: Sequence[WorkerTask], shown: Progress) -> Generator[tuple[int, Any], None, None]:
        if not tasks:
            return
        crew = _Crew(self.environment, len(tasks), shown)
        # The longest first, so that no long one is left for the end.
        order = sorted(range(len(tasks)), key=lambda i: -tasks[i].seconds)
        with ThreadPoolExecutor(min(self.workers, len(tasks))) as threads:
            numbers = {threads.submit(crew.compute, tasks[i]): i for i in order}
            left = set(numbers)
            try:
                with interruptible("stopping") as stop:
                    while left:
                        stop.check()
                        done, left = wait(left, SETTINGS.poll, FIRST_COMPLETED)
                        for future in done:
                            yield numbers[future], future.result()
            finally:
                threads.shutdown(wait=False, cancel_futures=True)
                crew.end()


class _Crew:
    """The worker processes, one for each thread that waits for results."""

    def __init__(self, environment: Mapping[str, str], total: int, shown: Progress):
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        self.environment, self.total, self.shown = {**os.environ, **environment, "PYTHONPATH": path}, total, shown
        self.lock, self.own = threading.Lock(), threading.local()
        self.processes: list[subprocess.Popen] = []
        self.started, self.ended = 0, False

    def compute(self, task: WorkerTask) -> Any:
        """The result of a task by this thread's process; one that ends is replaced, and computes the task again."""
        with self.lock:
            self.started += 1
            self.shown.describe(f"{task.name} ({self.started} of {self.total})")
        for left in reversed(range(SETTINGS.tries)):
            process, done = self._process(), 0.0
            # Where it has ended, there is nothing to read either.
            with contextlib.suppress(BrokenPipeError):
                _send(process.stdin, task)
            while (content := _receive(process.stdout)) is not None:
                message = pickle.loads(content)
                if isinstance(message, Exception):
                    raise type(message)(f"{task.name}: {message}")
                share = min(message, 1 - done) if isinstance(message, float) else 1 - done
                done += share
                self._advance(share * task.seconds)
                if isinstance(message, tuple):
                    return message[0]
            self.own.process, how = None, _ending(_closed(process))
            if self.ended:
                break
            self._advance(-done * task.seconds)
            if left:
                warnings.warn(
                    f"A worker process ended ({how}): {task.name} is computed again.", GyromcWarning, stacklevel=2
                )
        raise TaskError(
            f"{task.name}: {SETTINGS.tries} worker processes ended while they computed it, the last {how}. Where memory is "
            "short, the system ends processes: pass fewer `workers`."
        )

    def _advance(self, amount: float) -> None:
        with self.lock:
            self.shown.advance(amount)

    def _process(self) -> Any:
        """The process of this thread; started where there is none."""
        if getattr(self.own, "process", None) is None:
            with self.lock:
                if self.ended:
                    raise TaskError("The other tasks were ended.")
                self.own.process = subprocess.Popen(
                    [sys.executable, "-P", "-c", "from gyromc.paper.workers import serve; serve()"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env=self.environment,
                    # Ctrl-C in a terminal goes to this process alone.
                    start_new_session=True,
                )
                self.processes.append(self.own.process)
        return self.own.process

    def end(self) -> None:
        """End all processes at once; return when they are gone."""
        with self.lock:
            self.ended = True
        for process in self.processes:
            process.kill()
        for process in self.processes:
            _closed(process)


def _closed(process: subprocess.Popen) -> int:
    """The status of a process that has ended, or is about to, after its pipes were closed."""
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        # What was not sent is lost with the process.
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
    return process.wait()


def _ending(code: int) -> str:
    """How a process ended, in words."""
    names = {-number: f"by {number.name}" for number in signal.Signals}
    return names.get(code, f"with status {code}" if code >= 0 else f"by signal {-code}")


def _send(file: IO[bytes], message: Any) -> None:
    """Write a message, pickled twice: the outer one, of bytes, says where it ends, even where the inner one cannot be read."""
    pickle.dump(pickle.dumps(message), file)
    file.flush()


def _receive(file: IO[bytes]) -> bytes | None:
    """Read a message that is still pickled once, or None at the end of the file."""
    with contextlib.suppress(EOFError, pickle.UnpicklingError):
        return pickle.load(file)


def serve() -> None:
    """In a worker process: compute tasks, one by one, until the input ends.

    Sends the shares of a task that were done, as floats, then a tuple with its result or the exception to raise.
    """
    # Ctrl-C is the business of the process that started this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, waiting), daemon=True).start()
    while True:
        content = waiting.get()
        try:
            task = pickle.loads(content)
            _send(out, (task.function(*task.arguments, advance=_reporting(out)),))
        except BrokenPipeError:
            os._exit(0)
        except InvalidInput as error:
            _send(out, InvalidInput(str(error)))
        except BaseException as error:
            said = f"{type(error).__name__}: {str(error) or type(error).__name__}"
            _send(out, TaskError(f"{said}\n\nIn the worker:\n{traceback.format_exc()}"))


def _listen(file: IO[bytes], waiting: "queue.SimpleQueue[bytes]") -> None:
    """Put each message into the queue; end the process, whatever it is doing, when there can be no more."""
    while (content := _receive(file)) is not None:
        waiting.put(content)
    os._exit(0)


def _reporting(out: IO[bytes]) -> Advance:
    """Sends progress to the process that started this one, a few times a second."""
    unsent, last = 0.0, time.monotonic()

    def advance(share: float) -> None:
        nonlocal unsent, last
        unsent += share
        if time.monotonic() - last > SETTINGS.report:
            _send(out, unsent)
            unsent, last = 0.0, time.monotonic()

    return advance
