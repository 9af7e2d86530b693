"""Tasks in this process, one after the other."""

from collections.abc import Generator, Sequence
from typing import Any

from gyromc.errors import InvalidInput
from gyromc.show.progress import Progress
from gyromc.workers.tasks import WorkerTask

__all__ = ["Here"]


class Here:
    """Computes tasks in this process, in the order given.

    ```python
    from gyromc.show.progress import Progress
    from gyromc.workers import Here, WorkerTask
    def square(x, advance):
        return x * x
    tasks = [WorkerTask("two", square, (2,)), WorkerTask("three", square, (3,))]
    assert list(Here().results(tasks, Progress())) == [(0, 4), (1, 9)]
    ```
    """

    def results(self, tasks: Sequence[WorkerTask], shown: Progress) -> Generator[tuple[int, Any], None, None]:
        for number, task in enumerate(tasks):
            shown.describe(f"{task.name} ({number + 1} of {len(tasks)})")
            done = 0.0

            def advance(share: float, task: WorkerTask = task) -> None:
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
            yield number, value
