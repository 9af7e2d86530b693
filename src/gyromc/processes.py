"""Several processes that compute one run: how they start, how many they are, and how they come to the same decisions.

`start` connects this process to the others by JAX's distributed runtime, which also watches that they live. `agree` and
`everyone` exchange small values, `gathered` and `joined` whole arrays; all processes must call these in the same order. With one
process they return at once, and nothing is started. `leave` ends this process with a status, `finish` waits for the others.
"""

import atexit
import contextlib
import errno
import itertools
import json
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, TypeVar

import numpy as np

from gyromc import __version__
from gyromc.checks import cause, explained, positive, require, whole
from gyromc.errors import InvalidInput
from gyromc.show.numbers import listed

__all__ = ["LOST", "agree", "count", "everyone", "finish", "first", "gathered", "index", "joined", "leave", "start"]

# Environment variables, in the order in which they are looked at: ours, Kubernetes (indexed jobs), Open MPI, SLURM, MPICH.
INDEX = ("GYROMC_PROCESS_ID", "JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK")
COUNT = ("GYROMC_PROCESSES", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE")
ADDRESS = "GYROMC_COORDINATOR"
LOST = 75
"""The status of a process that ends because another one did; where JAX notices first, it aborts the process (134)."""
WAIT = 24 * 3600  # seconds for the others, which may compile or save; JAX watches whether they live
HELLO = 5.0  # seconds in which a connection must say who it is
PAUSE = 0.2  # seconds between two attempts to connect
GRACE = 5.0  # seconds for the others to end first
GATHERING = 30.0  # seconds that JAX's own start may take, beyond the silence
END = "gyromc: end of the program"
T = TypeVar("T")
_calls = itertools.count()  # every exchange has its own key


def start(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    timeout: float = 300,
    silence: float = 20,
) -> None:
    """Connect this process to the others of a run; call it in every process, before JAX computes anything.

    From then on a process that is killed ends the others within `silence` seconds, with a message and status 75 or 134.

    **Arguments:**

    - `coordinator`: `"host:port"` of process 0, which listens there. Left out: `GYROMC_COORDINATOR`, or what the launcher says
      (SLURM, Open MPI, Kubernetes with its Python package).
    - `num_processes`: how many processes there are. Left out: `GYROMC_PROCESSES`, or what the launcher says.
    - `process_id`: which one this is, from 0. Left out: `GYROMC_PROCESS_ID`, or what the launcher says.
    - `timeout`: seconds to wait for the others at the start.
    - `silence`: seconds without a sign of life after which a process counts as lost.

    ```python
    from gyromc import processes
    processes.start("localhost:29500", num_processes=1, process_id=0)  # one process alone: nothing is started
    print(processes.count(), processes.index())  # 1 0
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
    _meet(coordinator, num_processes, process_id, timeout)
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.config.update("jax_enable_preemption_service", False)  # it would take SIGTERM from us
    try:
        jax.distributed.initialize(
            coordinator,
            num_processes,
            process_id,
            # All have met, so that only one that died since then can keep JAX waiting.
            initialization_timeout=math.ceil(min(timeout, GATHERING + silence)),
            heartbeat_timeout_seconds=math.ceil(silence),
            shutdown_timeout_seconds=30,  # all are done when they come to it
            cluster_detection_method="deactivate" if "KUBERNETES_SERVICE_HOST" in os.environ else None,
        )
    except RuntimeError as error:
        used = "JAX has computed something already: call `gyromc.processes.start` first, before anything that uses JAX."
        require("before" not in str(error), used)
        _end(f"another one is lost: {cause(error)}", process_id)
    atexit.register(finish)
    sys.excepthook = _failed


def _who(
    coordinator: str | None, num_processes: int | None, process_id: int | None, timeout: float
) -> tuple[str, int, int]:
    """The three numbers that say which process this is, checked."""
    coordinator = coordinator or os.environ.get(ADDRESS)
    if coordinator is None:
        # `jax.distributed.initialize()` uses it, too late for our own checks.
        from jax._src.clusters import ClusterEnv

        known = None, num_processes, process_id, None, None, int(timeout) + 1
        remedy = f"Pass the address of process 0: `coordinator`, --coordinator or {ADDRESS}."
        with explained("What the launcher says cannot be used", remedy):
            coordinator, num_processes, process_id, *_ = ClusterEnv.auto_detect_unset_distributed_params(*known)
    num_processes = _number(COUNT) if num_processes is None else num_processes
    process_id = _number(INDEX) if process_id is None else process_id
    given = {
        f"the address of process 0 (`coordinator`, --coordinator or {ADDRESS})": coordinator,
        f"the number of processes (`num_processes`, --processes or {COUNT[0]})": num_processes,
        f"the number of this one (`process_id`, --process-id or {INDEX[0]})": process_id,
    }
    missing = "; ".join(what for what, value in given.items() if value is None)
    unknown = "What is not known, and no launcher says (SLURM, Open MPI and Kubernetes are known)"
    require(not missing, f"{unknown}: {missing}. Give it to every process.")
    num_processes, process_id = whole(num_processes, "num_processes", least=1), whole(process_id, "process_id", least=0)
    last = f"with {num_processes} processes the last is {num_processes - 1}"
    require(process_id < num_processes, f"`process_id` counts from 0: {last}, got {process_id}.")
    return str(coordinator), num_processes, process_id


def _number(names: tuple[str, ...]) -> int | None:
    """The first of some environment variables that is set, as a number."""
    for name in names:
        if (text := os.environ.get(name)) is not None:
            require(text.strip().isdigit(), f"The environment variable {name} must be a whole number: it is {text!r}.")
            return int(text)
    return None


# --- meeting before JAX starts, which would abort the process where something is wrong


def _meet(coordinator: str, num_processes: int, index: int, timeout: float) -> None:
    """Wait until every process came once to process 0, with the same version; `InvalidInput` in all of them otherwise."""
    host, _, port = coordinator.rpartition(":")
    form = "The coordinator must be given as `host:port`, the address of process 0"
    require(host and port.isdigit() and 0 < int(port) < 65536, f"{form}: got {coordinator!r}.")
    place = f"{socket.gethostname()}, pid {os.getpid()}"
    own = {"gyromc": __version__, "index": index, "of": num_processes, "place": place}
    if index == 0:
        _welcome(int(port), own, timeout)
        return
    end, reason = time.monotonic() + timeout, ""
    while (left := end - time.monotonic()) > 0:
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=left) as link:
                _send(link, own)
                answer = _received(link, left + HELLO)
            reason = "it answers, but takes no further process: a number was used twice, or it is another program"
        except OSError as error:
            answer, reason = {}, str(error)
        if "error" in answer:
            require(answer["error"] is None, answer["error"])
            return
        time.sleep(min(PAUSE, left))
    raise InvalidInput(
        f"Process 0 cannot be reached at {host.strip('[]')}:{port}: tried for {timeout:g} s, the last time: {reason}. Check that "
        "process 0 runs, that the address is that of its machine and that no firewall closes the port."
    )


def _welcome(port: int, own: dict[str, Any], timeout: float) -> None:
    both = socket.has_dualstack_ipv6()
    options: Any = {"family": socket.AF_INET6, "dualstack_ipv6": True} if both else {}
    try:
        server = socket.create_server(("", port), backlog=1024, **options)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise InvalidInput(
            f"Port {port} of this machine is in use: by another run, or by another process that was started with the number 0. "
            "Choose another port for the coordinator, or give each process its own number."
        ) from None
    end, error, links, places = time.monotonic() + timeout, None, [], {0: own["place"]}
    with server, contextlib.ExitStack() as opened:
        while error is None and len(places) < own["of"]:
            server.settimeout(max(end - time.monotonic(), 1e-3))
            try:
                link = server.accept()[0]
            except TimeoutError:
                missing = listed([str(i) for i in range(own["of"]) if i not in places], 8)
                error = (
                    f"After {timeout:g} s, {len(places)} of {own['of']} processes were there; missing: {missing}. Look at their "
                    "messages, and whether they reach this machine; where they need longer, wait longer."
                )
                break
            hello = _received(link, HELLO)
            if set(own) <= set(hello) and type(hello["index"]) is int:
                links.append(opened.enter_context(link))
                error = _wrong(hello, own, places)
                places[hello["index"]] = hello["place"]
            else:
                # Some other program, or a process of ours that was too slow: it tries again.
                link.close()
        for link in links:
            _send(link, {"error": error})
    require(error is None, str(error))


def _wrong(hello: dict[str, Any], own: dict[str, Any], places: dict[int, str]) -> str | None:
    """What is wrong with a process that connects; None where nothing is."""
    who = f"Process {hello['index']} ({hello['place']})"
    if hello["gyromc"] != own["gyromc"]:
        return f"{who} has gyromc {hello['gyromc']}, process 0 has {own['gyromc']}. Install one version everywhere."
    if hello["of"] != own["of"]:
        return f"{who} was started as one of {hello['of']} processes, process 0 as one of {own['of']}. Give all the same number."
    if before := places.get(hello["index"]):
        return f"Two processes have the number {hello['index']}: {before} and {hello['place']}. Give each its own."
    return None


def _send(link: socket.socket, content: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        link.sendall(json.dumps(content).encode() + b"\n")


def _received(link: socket.socket, seconds: float) -> dict[str, Any]:
    """A line of the other end; empty where none comes in this time, and for what is no line of ours."""
    link.settimeout(seconds)
    with contextlib.suppress(OSError, ValueError), link.makefile("rb") as lines:
        found = json.loads(lines.readline(2**16))
        return found if isinstance(found, dict) else {}
    return {}


def count() -> int:
    """How many processes compute together."""
    return 1 if (runtime := _runtime()) is None else runtime.num_processes


def index() -> int:
    """Which of them this one is, from 0."""
    return 0 if (runtime := _runtime()) is None else runtime.process_id


def agree(value: Any) -> Any:
    """The value of process 0, on every process: a number, a text, None, or lists and dictionaries of these.

    ```python
    from gyromc.processes import agree
    print(agree(3))  # 3
    ```
    """
    return everyone(value)[0]


def everyone(value: Any) -> list[Any]:
    """The values of all processes, by their index; each as `agree` takes it."""
    if (runtime := _runtime()) is None:
        return [value]
    client, number = runtime.client, next(_calls)
    place = f"gyromc/{number}/"
    with _waiting():
        client.key_value_set_bytes(f"{place}{index()}", json.dumps(value).encode())
        client.wait_at_barrier(place, WAIT * 1000)
        stored = dict(client.key_value_dir_get_bytes(place))
        # What was exchanged before has been read by all, or they would not be here.
        if index() == 0:
            client.key_value_delete(f"gyromc/{number - 1}/")
    found = [json.loads(stored[f"{place}{i}"]) for i in range(count())]
    if END in found and value != END:
        _end(f"process {found.index(END)} has ended, while this one waits for it")
    return found


def first(function: Callable[[], T]) -> T | None:
    """The function's value on process 0, None on the others; an `InvalidInput` of it is raised on all of them."""
    if count() == 1:
        return function()
    found, error = None, None
    if index() == 0:
        try:
            found = function()
        except InvalidInput as raised:
            error = str(raised)
    if (error := agree(error)) is not None:
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
    with _waiting(), jax.enable_x64(True):
        return process_allgather(array, tiled=True)


def joined(rows: np.ndarray) -> np.ndarray:
    """The rows of all processes, in the order of the processes, on each of them; bit for bit. Their numbers may differ."""
    if _runtime() is None:
        return rows
    from jax.experimental.multihost_utils import process_allgather

    counts = everyone(len(rows))
    size = rows.dtype.itemsize * math.prod(rows.shape[1:])
    padded = np.zeros(max(1, max(counts) * size), np.uint8)
    padded[: rows.nbytes] = np.frombuffer(rows.tobytes(), np.uint8)
    with _waiting():
        parts = process_allgather(padded)
    data = b"".join(part[: own * size].tobytes() for part, own in zip(parts, counts, strict=True))
    return np.frombuffer(data, rows.dtype).reshape(sum(counts), *rows.shape[1:]).copy()


def _runtime() -> Any:
    """JAX's state of the processes, or None where this one is alone."""
    if "jax" not in sys.modules:
        return None
    # Nothing public has the store of keys and values.
    from jax._src import distributed

    found = distributed.global_state
    return None if found.num_processes == 1 or found.client is None else found


def finish() -> None:
    """Wait until all processes have come here; the end of a program does so itself. With one process nothing is done.

    Afterwards this process is alone, and may end as it likes.
    """
    atexit.unregister(finish)
    everyone(END)
    if _runtime() is not None:
        import jax

        # Process 0 holds the service that the others use until they have disconnected.
        with _waiting():
            jax.distributed.shutdown()


def leave(status: int) -> None:
    """End this process with a status other than 0, and so the others; with one process nothing is done."""
    if _runtime() is None or status == 0:
        return
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    # The others lose JAX's coordinator with process 0: where they end too, with a status of their own, they end first.
    if index() == 0:
        time.sleep(GRACE)
    os._exit(status)


def _failed(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Report an error that ends the program, and do not wait for the others, which wait for this process."""
    sys.__excepthook__(kind, error, trace)
    leave(128 + signal.SIGINT if issubclass(kind, KeyboardInterrupt) else 1)


@contextlib.contextmanager
def _waiting() -> Iterator[None]:
    """While the block waits for the others, an error means that one of them is lost."""
    try:
        yield
    except Exception as error:
        _end(f"another one is lost: {cause(error)}")


def _end(why: str, number: int | None = None) -> NoReturn:
    """End this process because another one did."""
    number = index() if number is None else number
    remedy = "Look at the messages of the others and above, then start all of them again"
    text = f"gyromc: process {number} ends, because {why}. {remedy}; a run with checkpoints goes on from the newest.\n"
    with contextlib.suppress(OSError):
        os.write(2, text.encode())
    os._exit(LOST)
