"""Tasks on a Dask cluster: one that runs, given by its address, or one on this machine.

Dask moves the tasks of a worker that ends to another. Results come back to this process, so that the machines of a cluster need
no common disk; they need gyromc in the same version. A worker computes one task at a time, with all threads that Dask gives it.
"""

import contextlib
import os
import threading
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from typing import Any

from gyromc.checks import require, whole
from gyromc.errors import InvalidInput
from gyromc.extras import needs
from gyromc.show.interruption import interruptible
from gyromc.show.progress import Progress
from gyromc.workers.processes import processors, shares
from gyromc.workers.tasks import TaskError, TaskFailure, WorkerTask, longest_first

__all__ = ["LOCAL", "Cluster"]

LOCAL = "local"
POLL = 0.05  # seconds between two looks at Ctrl-C
PATIENCE = "20s"  # for the scheduler to answer
_ONE_AT_A_TIME = threading.Lock()


class Cluster:
    """Computes tasks on a Dask cluster.

    **Arguments:**

    - `address`: of the scheduler, as `tcp://host:port`; or `"local"`, for a cluster on this machine that ends with the work.
    - `workers`: processes of a local cluster; left out: one for each processor.
    """

    def __init__(self, address: str, workers: int | None = None):
        import_distributed()
        require(
            address == LOCAL or "://" in address,
            f"`cluster` must be `{LOCAL}` or the address of a Dask scheduler such as `tcp://host:8786`: got {address!r}.",
        )
        require(
            workers is None or address == LOCAL,
            f"The cluster at {address} has its own workers: leave `workers` out.",
        )
        self.address = address
        self.workers = processors() if workers is None else whole(workers, "workers", least=1, most=10_000)

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        """A client of the cluster; a local cluster is started and ended."""
        distributed = import_distributed()
        with contextlib.ExitStack() as stack:
            where: Any = self.address
            if self.address == LOCAL:
                share = max(1, processors() // self.workers)
                where = stack.enter_context(
                    distributed.LocalCluster(
                        n_workers=self.workers,
                        threads_per_worker=1,
                        processes=True,
                        dashboard_address=None,
                        silence_logs=50,
                        env=shares(share),
                    )
                )
            try:
                client = distributed.Client(where, timeout=PATIENCE, set_as_default=False)
            except (OSError, TimeoutError, ValueError) as error:
                raise InvalidInput(
                    f"No Dask scheduler answers at {self.address} ({error}). Start one with `dask scheduler`, and workers with "
                    f"`dask worker {self.address}`."
                ) from None
            yield stack.enter_context(client)

    def results(self, tasks: Sequence[WorkerTask], shown: Progress) -> Generator[tuple[int, Any], None, None]:
        if not tasks:
            return
        distributed = import_distributed()
        with self.client() as client, interruptible("stopping") as stop:
            self._require_workers(client, stop)
            order = longest_first(tasks)
            local = self.address == LOCAL
            futures = {
                client.submit(compute, _version(), tasks[i], local, pure=False, priority=-place): i
                for place, i in enumerate(order)
            }
            try:
                done = distributed.as_completed(futures, loop=client.loop)
                while not done.is_empty():
                    stop.check()
                    for future in done.next_batch(block=False):
                        number = futures[future]
                        value = _value(future, tasks[number])
                        shown.describe(f"{tasks[number].name} done")
                        shown.advance(tasks[number].seconds)
                        future.release()
                        yield number, value
                    time.sleep(POLL)
            finally:
                client.cancel(list(futures))

    def _require_workers(self, client: Any, stop: Any) -> None:
        """Wait until the cluster has a worker."""
        until = time.monotonic() + float(PATIENCE.removesuffix("s"))
        while not client.scheduler_info()["workers"]:
            stop.check()
            require(
                time.monotonic() < until,
                f"The cluster at {self.address} has no workers after {PATIENCE}. Start some with `dask worker {self.address}`.",
            )
            time.sleep(POLL)


def compute(version: str, task: WorkerTask, local: bool) -> Any:
    """Compute a task in a worker of the cluster; a `TaskFailure` where it raises."""
    if version != _version():
        text = f"a worker has gyromc {_version()} and the client {version}. Install the same version everywhere."
        return TaskFailure(text, "", invalid=True)
    with _ONE_AT_A_TIME:
        if not local:
            os.environ.update(shares(import_distributed().get_worker().state.nthreads))
        try:
            return (task.function(*task.arguments, advance=lambda share: None),)
        except Exception as error:
            text = str(error) or type(error).__name__
            message = text if isinstance(error, InvalidInput) else f"{type(error).__name__}: {text}"
            return TaskFailure(message, traceback.format_exc(), isinstance(error, InvalidInput))


def _value(future: Any, task: WorkerTask) -> Any:
    """The result of a task, or its error."""
    try:
        found = future.result()
    except Exception as error:  # of Dask: workers that ended, functions that cannot be imported there
        raise TaskError(f"{task.name}: {type(error).__name__}: {error}") from None
    if isinstance(found, TaskFailure):
        raise found.error(task)
    return found[0]


def _version() -> str:
    from gyromc import __version__

    return __version__


def import_distributed() -> Any:
    """Import Dask's package, or say how to install it."""
    with needs("cluster", "A cluster"):
        import distributed  # type: ignore[import-not-found]  # the extra `cluster`
    return distributed
