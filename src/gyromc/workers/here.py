"""Tasks in this process, one after the other; what they compile may be compiled by threads beforehand."""

from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from gyromc.errors import InvalidInput
from gyromc.show.progress import Progress
from gyromc.workers.tasks import WorkerTask

__all__ = ["Here"]


Preparation = tuple[Hashable, Callable[[], object]]


class Here:
    """Computes tasks in this process, in the order given.

    **Arguments:**

    - `prepares`: for a task, a name of what it needs first and a function that makes it, once for all tasks with that name. A
      task waits for its own; those of later tasks are made meanwhile, by threads. An error there is left to the task.
    - `threads`: how many.

    ```python
    from gyromc.show.progress import Progress
    from gyromc.workers import Here, WorkerTask
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
