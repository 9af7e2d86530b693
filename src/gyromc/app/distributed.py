"""The options of `gyromc run` and `continue` for several processes; only process 0 prints, writes files and shows progress.

Input: the options. Output: this process, connected to the others, and whether it is the one that prints.
"""

import io
import os
import sys
import warnings
from typing import Annotated

import typer

from gyromc.errors import GyromcWarning

__all__ = ["Coordinator", "Distributed", "ProcessId", "Processes", "Wait", "is_first", "join", "wait_for_first"]

PANEL = "Several processes"
Distributed = Annotated[
    bool,
    typer.Option(
        "--distributed",
        help="Run as one of several processes, started by SLURM, Open MPI, Kubernetes or by hand.",
        rich_help_panel=PANEL,
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        help="HOST:PORT of process 0; left out: GYROMC_COORDINATOR, or what the launcher says.", rich_help_panel=PANEL
    ),
]
ProcessId = Annotated[
    int | None,
    typer.Option(
        help="Which process this is, from 0; left out: GYROMC_PROCESS_ID, or what the launcher says.",
        rich_help_panel=PANEL,
    ),
]
Processes = Annotated[
    int | None,
    typer.Option(
        help="How many processes there are; left out: GYROMC_PROCESSES, or what the launcher says.",
        rich_help_panel=PANEL,
    ),
]
Wait = Annotated[
    float, typer.Option(help="Seconds to wait for the other processes at the start.", rich_help_panel=PANEL)
]


def join(
    distributed: bool, coordinator: str | None, process_id: int | None, processes: int | None, wait: float
) -> bool | None:
    """Connect to the other processes where that is asked for; returns `progress` for `run`: False where nothing is shown."""
    if not distributed and (coordinator, process_id, processes) == (None, None, None):
        return None
    from gyromc.processes import start

    _keep_output()
    start(coordinator, processes, process_id, timeout=wait)
    if is_first():
        return None
    warnings.simplefilter("ignore", GyromcWarning)  # process 0 has the same ones
    return False


def is_first() -> bool:
    """Whether this process prints and writes: the only one, or process 0."""
    from gyromc.processes import index

    return index() == 0


def wait_for_first() -> None:
    """Wait until process 0 has written its files: it loses the run where another process ends before that."""
    from gyromc.processes import agree

    agree(None)


def _keep_output() -> None:
    """Send what libraries write to standard output to standard error, so that output has the answer alone.

    Gloo, through which processors exchange arrays, writes a line there when processes connect.
    """
    try:
        kept = os.dup(sys.stdout.fileno())
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    except (OSError, ValueError, io.UnsupportedOperation):  # streams of a test, which no library writes to
        return
    sys.stdout = open(kept, "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)  # noqa: SIM115  # for the whole process
