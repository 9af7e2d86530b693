"""Several processes that compute one run: how they start, how many they are, and how they come to the same decisions.

`start` finds out who the processes are, from arguments, environment variables or the launcher, connects this process to the
others and starts JAX's runtime among them. `count` and `index` say how many there are and which one this is. `agree` and
`everyone` exchange small values, `gathered` and `joined` whole arrays; all processes must call these four in the same order. With
one process all of them return at once, and no distributed runtime is needed. `finish` waits for the others at the end, `leave`
ends this process with a status and tells them.

Values and small arrays go through the coordinator's store of keys and values, other arrays through the devices. `connecting`
brings the processes together before JAX starts, `watching` ends all of them when one is lost.
"""

import itertools
import json
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from gyromc.checks import positive, require, shown, whole
from gyromc.errors import InvalidInput
from gyromc.processes.connecting import meet
from gyromc.processes.watching import LOST, finish, leave, waiting, watch

__all__ = ["LOST", "agree", "count", "everyone", "finish", "first", "gathered", "index", "joined", "leave", "start"]

# Environment variables, in the order in which they are looked at: ours, Kubernetes (indexed jobs), Open MPI, SLURM, MPICH.
INDEX = ("GYROMC_PROCESS_ID", "JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK")
COUNT = ("GYROMC_PROCESSES", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE")
ADDRESS = "GYROMC_COORDINATOR"
OWN_HEARTBEAT = 100
"""Seconds, at least, after which JAX itself aborts the others; the watch ends them before."""
T = TypeVar("T")
WAIT = 24 * 3600
"""Seconds for the others, which may compile or save; whether they live is watched apart."""
SMALL = 2**15
"""Bytes of an array that goes through the store, which is quicker for few."""
# Every exchange has its own key.
_calls = itertools.count()


def start(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout: float = 300,
    silence: float = 60,
) -> None:
    """Connect this process to the others of a run; call it in every process, before JAX computes anything.

    From then on a process that is killed ends the others at once, with a message and status 75.

    **Arguments:**

    - `coordinator`: `"host:port"` of process 0, which listens there. Left out: `GYROMC_COORDINATOR`, or what the launcher says
      (SLURM, Open MPI, Kubernetes with its Python package).
    - `num_processes`: how many processes there are. Left out: `GYROMC_PROCESSES`, or what the launcher says.
    - `process_id`: which one this is, from 0. Left out: `GYROMC_PROCESS_ID`, or what the launcher says.
    - `timeout`: seconds to wait for the others at the start.
    - `silence`: seconds without a sign of life after which a process counts as lost, where its machine or the network failed.

    ```python
    from gyromc import processes
    processes.start("localhost:29500", num_processes=1, process_id=0)  # one process alone: nothing is started
    assert (processes.count(), processes.index()) == (1, 0)
    ```
    """
    timeout, silence = positive(timeout, "timeout"), positive(silence, "silence")
    coordinator, num_processes, process_id = _who(coordinator, num_processes, process_id, timeout)
    if num_processes == 1:
        return
    import jax

    require(count() == 1, "`processes.start` was called before in this process: call it once.")
    require(
        not jax.distributed.is_initialized(),
        "JAX's distributed runtime runs already. Call `gyromc.processes.start` in place of `jax.distributed.initialize`.",
    )
    watch(meet(coordinator, num_processes, process_id, timeout), process_id, silence)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    # It would take SIGTERM from us.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            initialization_timeout=int(timeout) + 1,
            heartbeat_timeout_seconds=max(OWN_HEARTBEAT, 2 * int(silence)),
            # All are done when they come to it.
            shutdown_timeout_seconds=30,
            cluster_detection_method="deactivate" if "KUBERNETES_SERVICE_HOST" in os.environ else None,
        )
    except RuntimeError as error:
        if "before" not in str(error):
            raise
        raise InvalidInput(
            "JAX has computed something already: call `gyromc.processes.start` first, before anything that uses JAX."
        ) from None


def _who(
    coordinator: str | None, num_processes: int | None, process_id: int | None, timeout: float
) -> tuple[str, int, int]:
    """The three numbers that say which process this is, checked."""
    coordinator = coordinator or os.environ.get(ADDRESS)
    if coordinator is None:
        # `jax.distributed.initialize()` uses it, too late for our own checks.
        from jax._src.clusters import ClusterEnv

        given = None, num_processes, process_id
        try:
            found = ClusterEnv.auto_detect_unset_distributed_params(*given, None, None, int(timeout) + 1)
        except (RuntimeError, KeyError, ValueError) as error:
            raise InvalidInput(
                f"What the launcher says cannot be used: {error}. Pass the address of process 0: `coordinator`, --coordinator or "
                f"{ADDRESS}."
            ) from None
        coordinator, num_processes, process_id = found[:3]
    num_processes = _number(COUNT) if num_processes is None else num_processes
    process_id = _number(INDEX) if process_id is None else process_id
    missing = {
        f"the address of process 0 (`coordinator`, --coordinator or {ADDRESS})": coordinator,
        f"the number of processes (`num_processes`, --processes or {COUNT[0]})": num_processes,
        f"the number of this one (`process_id`, --process-id or {INDEX[0]})": process_id,
    }
    if coordinator is None or num_processes is None or process_id is None:
        raise InvalidInput(
            "What is not known, and no launcher says (SLURM, Open MPI and Kubernetes are known): "
            f"{'; '.join(what for what, value in missing.items() if value is None)}. Give it to every process."
        )
    num_processes, process_id = whole(num_processes, "num_processes", least=1), whole(process_id, "process_id", least=0)
    require(
        process_id < num_processes,
        f"`process_id` counts from 0: with {num_processes} processes the last is {num_processes - 1}, got {process_id}.",
    )
    return coordinator, num_processes, process_id


def _number(names: tuple[str, ...]) -> int | None:
    """The first of some environment variables that is set, as a number."""
    for name in names:
        text = os.environ.get(name)
        if text is not None:
            require(text.strip().isdigit(), f"The environment variable {name} must be a whole number: it is {text!r}.")
            return int(text)
    return None


def count() -> int:
    """How many processes compute together."""
    return 1 if _client() is None else _state().num_processes


def index() -> int:
    """Which of them this one is, from 0."""
    return 0 if _client() is None else _state().process_id


def agree(value: Any) -> Any:
    """The value of process 0, on every process: a number, a text, None, or lists and dictionaries of these.

    ```python
    from gyromc.processes import agree
    assert agree(3) == 3
    ```
    """
    return value if _client() is None else everyone(value)[0]


def everyone(value: Any) -> list[Any]:
    """The values of all processes, by their index; each as `agree` takes it."""
    client = _client()
    return [value] if client is None else [json.loads(data) for data in _exchanged(client, json.dumps(value).encode())]


def first(function: Callable[[], T]) -> T | None:
    """The function's value on process 0, None on the others; an `InvalidInput` of it is raised on all of them."""
    found, error = None, None
    if index() == 0:
        try:
            found = function()
        except InvalidInput as raised:
            if count() == 1:
                raise
            error = str(raised)
    error = agree(error)
    if error is not None:
        raise InvalidInput(error)
    return found


def gathered(array: Any) -> np.ndarray:
    """A `jax.Array` whose parts are on several processes, whole on each of them."""
    if getattr(array, "is_fully_addressable", True):
        return np.asarray(array)
    if array.is_fully_replicated:
        return np.asarray(array.addressable_data(0))
    import jax
    from jax.experimental.multihost_utils import process_allgather

    # 64-bit numbers stay as they are.
    with waiting(), jax.enable_x64(True):
        return process_allgather(array, tiled=True)


def joined(rows: np.ndarray) -> np.ndarray:
    """The rows of all processes, in the order of the processes, on each of them; bit for bit. Their numbers may differ."""
    client = _client()
    if client is None:
        return rows
    rows = np.ascontiguousarray(rows)
    few = rows.nbytes <= SMALL
    header = json.dumps([rows.dtype.str, list(rows.shape), few]).encode()
    given = [data.split(b"\n", 1) for data in _exchanged(client, header + b"\n" + (rows.tobytes() if few else b""))]
    shapes = [json.loads(header) for header, _ in given]
    require(
        all(dtype == shapes[0][0] and shape[1:] == shapes[0][1][1:] for dtype, shape, _ in shapes),
        f"`joined` needs rows of one type and length on all processes: got {shown(shapes)}.",
    )
    if all(few for *_, few in shapes):
        data = b"".join(data for _, data in given)
    else:
        data = _through_devices(rows, [int(np.prod(shape)) * rows.itemsize for _, shape, _ in shapes])
    return np.frombuffer(data, rows.dtype).reshape(sum(shape[0] for _, shape, _ in shapes), *rows.shape[1:]).copy()


def _through_devices(rows: np.ndarray, sizes: list[int]) -> bytes:
    """The bytes of all processes, whose numbers are `sizes`."""
    from jax.experimental.multihost_utils import process_allgather

    padded = np.zeros(max(sizes), np.uint8)
    padded[: rows.nbytes] = rows.reshape(-1).view(np.uint8)
    with waiting():
        parts = process_allgather(padded)
    return b"".join(parts[i, :size].tobytes() for i, size in enumerate(sizes))


def _state() -> Any:
    # Nothing public has the store of keys and values.
    from jax._src import distributed

    return distributed.global_state


def _client() -> Any:
    """The connection to the coordinator, or None where this process is alone."""
    return None if "jax" not in sys.modules or _state().num_processes == 1 else _state().client


def _exchanged(client: Any, data: bytes) -> list[bytes]:
    """What every process gave to this call of it."""
    number = next(_calls)
    place = f"gyromc/{number}/"
    # An empty value would not be stored.
    client.key_value_set_bytes(f"{place}{index()}", b"." + data)
    with waiting():
        client.wait_at_barrier(place, WAIT * 1000)
    found = dict(client.key_value_dir_get_bytes(place))
    # What was exchanged before has been read by all, or they would not be here.
    if index() == 0:
        client.key_value_delete(f"gyromc/{number - 1}/")
    return [found[f"{place}{i}"][1:] for i in range(count())]
