"""Where tasks are computed: in this process (`Here`), or in several on this machine (`Processes`).

Input: `WorkerTask`s, each a function of a module with its arguments. Output: their results, one by one as they are finished. Both
have the one method of `Place`. The caller stores the results.

The worker processes are new ones (not forks, which JAX does not survive) and do not run the program that started them again, so
that scripts need no `if __name__ == "__main__"`. A worker reads tasks from standard input and writes what came of them to
standard output, as pickles, each after its length; what a task prints goes to standard error. It ends when its input does, so
that no worker outlives the process that started it, however that one ends. A worker that is killed, by someone or by the system,
is replaced, and its task is computed by another.
"""

import contextlib
import dataclasses
import math
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Any, Protocol

from gyromc.checks import whole
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.memory import num_threads
from gyromc.show.interruption import interruptible
from gyromc.show.progress import Progress

__all__ = ["Advance", "Here", "Place", "Processes", "TaskError", "WorkerTask", "fastest"]

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
LENGTH = struct.Struct("<Q")


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
        pool = ThreadPoolExecutor(self.threads)
        try:
            ready = self._started(tasks, pool)
            for number, task in enumerate(tasks):
                shown.describe(f"{task.name} ({number + 1} of {len(tasks)})")
                if ready:
                    ready[number].exception()  # waits
                yield number, _computed(task, shown)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _started(self, tasks: Sequence[WorkerTask], pool: ThreadPoolExecutor) -> list[Future]:
        """For each task, what it waits for; empty where nothing is prepared."""
        if self.prepares is None:
            return []
        made: dict[Hashable, Future] = {}
        wanted = [self.prepares(task) for task in tasks]
        for name, make in wanted:
            if name not in made:
                made[name] = pool.submit(make)
        return [made[name] for name, _ in wanted]


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

    ```python
    import math
    from gyromc.show.progress import Progress
    from gyromc.paper.workers import Processes, WorkerTask
    assert list(Processes(2).results([], Progress())) == []
    ```
    """

    def __init__(self, workers: int, threads: int | None = None, environment: Mapping[str, str] | None = None):
        self.workers = whole(workers, "workers", least=1, most=10_000)
        share = max(1, num_threads() // self.workers)
        self.threads = share if threads is None else whole(threads, "threads", least=1)
        self.environment = {**dict.fromkeys(SHARED, str(self.threads)), **(environment or {})}

    def results(self, tasks: Sequence[WorkerTask], shown: Progress) -> Generator[tuple[int, Any], None, None]:
        if not tasks:
            return
        pool = _Pool(tasks, self.environment, shown)
        try:
            for _ in range(min(self.workers, len(tasks))):
                pool.start()
            with interruptible("stopping") as stop:
                while pool.left:
                    stop.check()
                    found = pool.next_event()
                    if found is not None:
                        yield found
        finally:
            pool.end()


class _Worker:
    """A process, a thread that listens to it, and the number of the task it computes."""

    def __init__(self, environment: Mapping[str, str], events: "queue.SimpleQueue[tuple[_Worker, bytes | None]]"):
        path = [entry or os.getcwd() for entry in sys.path]
        self.task: int | None = None
        # The share of the task that was reported.
        self.done = 0.0
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from gyromc.paper.workers import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(path)},
            # Ctrl-C in a terminal goes to this process alone.
            start_new_session=True,
        )
        self.thread = threading.Thread(target=self._listen, args=(events,), daemon=True)
        self.thread.start()

    def _listen(self, events: "queue.SimpleQueue[tuple[_Worker, bytes | None]]") -> None:
        assert self.process.stdout is not None
        content: bytes | None = b""
        while content is not None:
            content = _receive(self.process.stdout)
            events.put((self, content))

    def end(self) -> None:
        """End the process at once; return when it is gone."""
        self.process.kill()
        self.process.wait()
        self.thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class _Pool:
    """The processes while they compute: which tasks wait, which are being computed, and by whom."""

    def __init__(self, tasks: Sequence[WorkerTask], environment: Mapping[str, str], shown: Progress):
        self.tasks, self.environment, self.shown = tasks, environment, shown
        # The longest first, so that no long one is left for the end.
        self.waiting = sorted(range(len(tasks)), key=lambda i: -tasks[i].seconds)
        self.left, self.started = len(tasks), 0
        # How often a process ended while it computed a task.
        self.lost = dict.fromkeys(range(len(tasks)), 0)
        self.workers: set[_Worker] = set()
        self.events: queue.SimpleQueue[tuple[_Worker, bytes | None]] = queue.SimpleQueue()

    def start(self) -> None:
        """Start a process and give it a task."""
        worker = _Worker(self.environment, self.events)
        self.workers.add(worker)
        self.assign(worker)

    def assign(self, worker: _Worker) -> None:
        """Give a process the next task, if there is one."""
        worker.task, worker.done = (self.waiting.pop(0) if self.waiting else None), 0.0
        if worker.task is None:
            return
        task = self.tasks[worker.task]
        self.started += self.lost[worker.task] == 0
        self.shown.describe(f"{task.name} ({self.started} of {len(self.tasks)})")
        assert worker.process.stdin is not None
        # It has ended, and the event that says so is on its way.
        with contextlib.suppress(BrokenPipeError):
            _send(worker.process.stdin, task)

    def next_event(self) -> tuple[int, Any] | None:
        """Wait a moment for a process to say something; a task's number and result, if that is what it said."""
        try:
            worker, content = self.events.get(timeout=SETTINGS.poll)
        except queue.Empty:
            return None
        if content is None:
            self.replace(worker)
            return None
        message, number = pickle.loads(content), worker.task
        assert number is not None
        task = self.tasks[number]
        if isinstance(message, _Failure):
            raise message.error(task)
        share = 1 - worker.done if isinstance(message, _Done) else min(message, 1 - worker.done)
        worker.done += share
        self.shown.advance(share * task.seconds)
        if not isinstance(message, _Done):
            return None
        self.left -= 1
        self.assign(worker)
        return number, message.value

    def replace(self, worker: _Worker) -> None:
        """Start a process for one that has ended; its task comes first."""
        worker.end()
        self.workers.discard(worker)
        number = worker.task
        if number is None:
            return
        how, name, tries = _ending(worker.process.returncode), self.tasks[number].name, SETTINGS.tries
        self.shown.advance(-worker.done * self.tasks[number].seconds)
        self.lost[number] += 1
        if self.lost[number] == tries:
            raise TaskError(
                f"{name}: {tries} worker processes ended while they computed it, the last {how}. Where memory is short, the "
                "system ends processes: pass fewer `workers`."
            )
        warnings.warn(f"A worker process ended ({how}): {name} is computed again.", GyromcWarning, stacklevel=2)
        self.waiting.insert(0, number)
        self.start()

    def end(self) -> None:
        """End all processes."""
        for worker in self.workers:
            worker.process.kill()
        for worker in self.workers:
            worker.end()


def _ending(code: int) -> str:
    """How a process ended, in words."""
    if code >= 0:
        return f"with status {code}"
    try:
        return f"by {signal.Signals(-code).name}"
    except ValueError:
        return f"by signal {-code}"


@dataclasses.dataclass(frozen=True, eq=False)
class _Done:
    """The result of a task."""

    value: Any


@dataclasses.dataclass(frozen=True)
class _Failure:
    """An exception in a worker as plain text; `invalid` where it was `InvalidInput`, whose message is for users."""

    message: str
    traceback: str
    invalid: bool

    def error(self, task: WorkerTask) -> Exception:
        """The exception to raise in the caller."""
        if self.invalid:
            return InvalidInput(f"{task.name}: {self.message}")
        return TaskError(f"{task.name}: {self.message}\n\nIn the worker:\n{self.traceback}")


def _send(file: IO[bytes], message: Any) -> None:
    """Write a message; nothing is written where it cannot be pickled."""
    content = pickle.dumps(message)
    file.write(LENGTH.pack(len(content)) + content)
    file.flush()


def _receive(file: IO[bytes]) -> bytes | None:
    """Read a message that is still pickled, or None at the end of the file."""
    head = file.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    size = LENGTH.unpack(head)[0]
    content = file.read(size)
    return content if len(content) == size else None


def serve() -> None:
    """In a worker process: compute tasks, one by one, until the input ends."""
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
            _send(out, _Done(task.function(*task.arguments, advance=_reporting(out))))
        except BrokenPipeError:
            os._exit(0)
        except BaseException as error:
            text = str(error) or type(error).__name__
            message = text if isinstance(error, InvalidInput) else f"{type(error).__name__}: {text}"
            _send(out, _Failure(message, traceback.format_exc(), isinstance(error, InvalidInput)))


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
