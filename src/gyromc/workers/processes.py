"""Tasks in several processes on this machine, each with its share of the processors.

A process that ends, killed by someone or by the system, is replaced, and its task is computed by another. The processes are
new ones (not forks, which JAX does not survive) and do not run the program that started them again, so that scripts need no
`if __name__ == "__main__"`.
"""

import contextlib
import math
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from gyromc.checks import whole
from gyromc.errors import GyromcWarning
from gyromc.show.interruption import interruptible
from gyromc.show.progress import Progress
from gyromc.workers.serving import Done, receive, send
from gyromc.workers.tasks import TaskError, TaskFailure, WorkerTask, longest_first

__all__ = ["Processes", "fastest", "processors", "shares"]

TRIES = 3  # a task that ends its process so often is given up
POLL = 0.1  # seconds between two looks at Ctrl-C
SHARED = ("GYROMC_THREADS", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NPROC")  # NPROC is XLA's
SHORT = 30.0  # seconds of work for which no processes are started: that alone takes some


def processors() -> int:
    """How many threads can run at once: `GYROMC_THREADS`, or the processors this process may use."""
    asked = os.environ.get("GYROMC_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fastest(seconds: Sequence[float], available: int | None = None) -> int:
    """How many processes compute tasks of these lengths the fastest.

    One for each processor, each with one thread, unless the longest task would then still run when all others are done: then
    fewer, with several threads each. One for work of less than half a minute.

    ```python
    from gyromc.workers import fastest
    assert fastest([100.0] * 50, available=8) == 8
    assert fastest([100.0] * 4, available=8) == 4
    assert fastest([100.0], available=8) == fastest([0.1] * 50, available=8) == 1
    ```
    """
    available = processors() if available is None else available
    total = sum(seconds)
    if total < SHORT:
        return 1
    threads = max(1, math.ceil(max(seconds) * available / total - 1e-9))
    return max(1, available // threads)


def shares(threads: int) -> dict[str, str]:
    """The environment variables that give a process so many threads."""
    return dict.fromkeys(SHARED, str(threads))


class Processes:
    """Computes tasks in `workers` new processes, the longest first.

    **Arguments:**

    - `workers`: how many processes.
    - `threads`: of each; left out: its share of the processors.
    - `environment`: further variables of their environment.

    ```python
    import math
    from gyromc.show.progress import Progress
    from gyromc.workers import Processes, WorkerTask
    assert list(Processes(2).results([], Progress())) == []
    ```
    """

    def __init__(self, workers: int, threads: int | None = None, environment: Mapping[str, str] | None = None):
        self.workers = whole(workers, "workers", least=1, most=10_000)
        share = max(1, processors() // self.workers)
        self.threads = share if threads is None else whole(threads, "threads", least=1)
        self.environment = {**shares(self.threads), **(environment or {})}

    def results(self, tasks: Sequence[WorkerTask], shown: Progress) -> Generator[tuple[int, Any], None, None]:
        if not tasks:
            return
        crew = _Crew(tasks, self.environment, shown)
        try:
            for _ in range(min(self.workers, len(tasks))):
                crew.start()
            with interruptible("stopping") as stop:
                while crew.left:
                    stop.check()
                    found = crew.next_event()
                    if found is not None:
                        yield found
        finally:
            crew.end()


class _Worker:
    """A process, a thread that listens to it, and the number of the task it computes."""

    def __init__(self, environment: Mapping[str, str], events: "queue.SimpleQueue[tuple[_Worker, bytes | None]]"):
        path = [entry or os.getcwd() for entry in sys.path]
        self.task: int | None = None
        self.done = 0.0  # the share of the task that was reported
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", "from gyromc.workers.serving import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(path)},
            start_new_session=True,  # Ctrl-C in a terminal goes to this process alone
        )
        self.thread = threading.Thread(target=self._listen, args=(events,), daemon=True)
        self.thread.start()

    def _listen(self, events: "queue.SimpleQueue[tuple[_Worker, bytes | None]]") -> None:
        assert self.process.stdout is not None
        while True:
            content = receive(self.process.stdout)
            events.put((self, content))
            if content is None:
                return

    def end(self) -> None:
        """End the process at once; return when it is gone."""
        self.process.kill()
        self.process.wait()
        self.thread.join()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class _Crew:
    """The processes while they compute: which tasks wait, which are being computed, and by whom."""

    def __init__(self, tasks: Sequence[WorkerTask], environment: Mapping[str, str], shown: Progress):
        self.tasks, self.environment, self.shown = tasks, environment, shown
        self.waiting = longest_first(tasks)
        self.left, self.started = len(tasks), 0
        self.lost = dict.fromkeys(range(len(tasks)), 0)  # how often a process ended while it computed a task
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
        with contextlib.suppress(BrokenPipeError):  # it has ended, and the event that says so is on its way
            send(worker.process.stdin, task)

    def next_event(self) -> tuple[int, Any] | None:
        """Wait a moment for a process to say something; a task's number and result, if that is what it said."""
        try:
            worker, content = self.events.get(timeout=POLL)
        except queue.Empty:
            return None
        if content is None:
            self.replace(worker)
            return None
        message, number = pickle.loads(content), worker.task
        assert number is not None
        task = self.tasks[number]
        if isinstance(message, TaskFailure):
            raise message.error(task)
        share = 1 - worker.done if isinstance(message, Done) else min(message, 1 - worker.done)
        worker.done += share
        self.shown.advance(share * task.seconds)
        if not isinstance(message, Done):
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
        how, name = _ending(worker.process.returncode), self.tasks[number].name
        self.shown.advance(-worker.done * self.tasks[number].seconds)
        self.lost[number] += 1
        if self.lost[number] == TRIES:
            raise TaskError(
                f"{name}: {TRIES} worker processes ended while they computed it, the last {how}. Where memory is short, the "
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
