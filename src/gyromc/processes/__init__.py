"""Several processes that compute one run: how they start, how many they are, and how they come to the same decisions.

`start` finds out who the processes are, from arguments, environment variables or the launcher, connects this process to the
others and starts JAX's runtime among them. `count` and `index` say how many there are and which one this is. `agree` and
`everyone` exchange small values, `gathered` and `joined` whole arrays; all processes must call these four in the same order. With
one process all of them return at once, and no distributed runtime is needed. `finish` waits for the others at the end, `leave`
ends this process with a status and tells them.

`connecting` brings the processes together before JAX starts, `watching` ends all of them when one is lost, `exchange` has the
rest.
"""

import os

from gyromc.checks import positive, require, whole
from gyromc.errors import InvalidInput
from gyromc.processes.connecting import meet, wait_for_server
from gyromc.processes.exchange import agree, count, everyone, gathered, index, joined
from gyromc.processes.watching import LOST, finish, leave, watch

__all__ = ["LOST", "agree", "count", "everyone", "finish", "gathered", "index", "joined", "leave", "start"]

# Environment variables, in the order in which they are looked at: ours, Kubernetes (indexed jobs), Open MPI, SLURM, MPICH.
INDEX = ("GYROMC_PROCESS_ID", "JOB_COMPLETION_INDEX", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_RANK")
COUNT = ("GYROMC_PROCESSES", "OMPI_COMM_WORLD_SIZE", "SLURM_NTASKS", "PMI_SIZE")
ADDRESS = "GYROMC_COORDINATOR"
OWN_HEARTBEAT = 100
"""Seconds, at least, after which JAX itself aborts the others; the watch ends them before."""


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
    if process_id > 0:
        # JAX would try again only after a second.
        wait_for_server(coordinator, timeout)
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
        found = _launcher(timeout)
        coordinator = found[0]
        num_processes = found[1] if num_processes is None else num_processes
        process_id = found[2] if process_id is None else process_id
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


def _launcher(timeout: float) -> tuple[str | None, int | None, int | None]:
    """What JAX's detection of clusters finds in the environment."""
    # `jax.distributed.initialize()` uses it, too late for our own checks.
    from jax._src.clusters import ClusterEnv

    try:
        return ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, int(timeout) + 1)[:3]
    except (RuntimeError, KeyError, ValueError) as error:
        raise InvalidInput(
            f"What the launcher says cannot be used: {error}. Pass the address of process 0: `coordinator`, --coordinator or "
            f"{ADDRESS}."
        ) from None


def _number(names: tuple[str, ...]) -> int | None:
    """The first of some environment variables that is set, as a number."""
    for name in names:
        text = os.environ.get(name)
        if text is not None:
            require(text.strip().isdigit(), f"The environment variable {name} must be a whole number: it is {text!r}.")
            return int(text)
    return None
