"""What a task is, what a place does with tasks, and how an error in a worker reaches the caller.

A task is a function that can be imported, its arguments, a name for messages and the seconds it is expected to take. A place
computes tasks and yields their results.
"""

import dataclasses
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

from gyromc.errors import InvalidInput
from gyromc.show.progress import Progress

__all__ = ["Advance", "Place", "TaskError", "TaskFailure", "WorkerTask", "call", "longest_first"]

Advance = Callable[[float], object]
"""Called with the share of a task that was done since the last call."""
SOME_SECONDS = 0.1  # between two reports of progress


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


@dataclasses.dataclass(frozen=True)
class TaskFailure:
    """An exception in a worker as plain text; `invalid` where it was `InvalidInput`, whose message is for users."""

    message: str
    traceback: str
    invalid: bool

    def error(self, task: WorkerTask) -> Exception:
        """The exception to raise in the caller."""
        if self.invalid:
            return InvalidInput(f"{task.name}: {self.message}")
        return TaskError(f"{task.name}: {self.message}\n\nIn the worker:\n{self.traceback}")


class Place(Protocol):
    """Somewhere that tasks are computed."""

    def results(self, tasks: Sequence[WorkerTask], shown: Progress) -> Generator[tuple[int, Any], None, None]:
        """Compute all tasks; yield each one's number and result once it is finished, in any order.

        An error in a task is raised with the task's name. Ctrl-C raises `KeyboardInterrupt`. Either ends the other tasks; what
        was yielded before is the caller's.
        """
        ...


def call(task: WorkerTask, advance: Advance) -> Any:
    """Compute a task in this process; progress is passed on a few times a second."""
    waiting, last = 0.0, time.monotonic()

    def some(share: float) -> None:
        nonlocal waiting, last
        waiting += share
        if time.monotonic() - last > SOME_SECONDS:
            advance(waiting)
            waiting, last = 0.0, time.monotonic()

    return task.function(*task.arguments, advance=some)


def longest_first(tasks: Sequence[WorkerTask]) -> list[int]:
    """The numbers of the tasks in the order in which to start them, so that no long one is left for the end."""
    return sorted(range(len(tasks)), key=lambda i: -tasks[i].seconds)
