"""Several processes on this machine, started together as a launcher would start them."""

import os
import socket
import subprocess
import sys
import time
from typing import NamedTuple


class Ended(NamedTuple):
    """How a process ended: its status, what it printed, and the seconds until then."""

    status: int
    out: str
    err: str
    seconds: float


_held: list[socket.socket] = []  # what keeps the ports that were given away


def free_port(wanted: int = 0) -> int:
    """A port that nobody else is given while this process runs; `wanted` is asked for, and OSError raised where it is not free.

    A socket stays bound to it without listening, so that the system gives it to no other; a server that sets SO_REUSEADDR, as
    ours and JAX's do, listens there all the same. Set before binding, the option would let a second one of these hold it too.
    """
    holder = socket.socket()
    try:
        holder.bind(("", wanted))
    except OSError:
        holder.close()
        raise
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _held.append(holder)
    return holder.getsockname()[1]


def started(commands, environments=None, **options):
    """Start one process for each command; each has its own additions to the environment."""
    environments = environments or [{}] * len(commands)
    path = os.pathsep.join(part for part in sys.path if part)
    return [
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, **{name: str(value) for name, value in more.items()}},
            **options,
        )
        for command, more in zip(commands, environments, strict=True)
    ]


def ended(processes, seconds=300):
    """Wait for all of them; none outlives the test."""
    began, found = time.monotonic(), {}
    try:
        while len(found) < len(processes) and time.monotonic() - began < seconds:
            for i, process in enumerate(processes):
                if i not in found and process.poll() is not None:
                    found[i] = time.monotonic() - began
            time.sleep(0.01)
        assert len(found) == len(processes), f"{len(processes) - len(found)} processes still run after {seconds} s"
    finally:
        for process in processes:
            process.kill()
    texts = [process.communicate() for process in processes]
    return [
        Ended(process.returncode, *text, found[i])
        for i, (process, text) in enumerate(zip(processes, texts, strict=True))
    ]


def together(code, count=2, *arguments, **options):
    """Run the same Python code in several processes; it finds its index, their count and the port in `sys.argv`."""
    port = free_port()
    commands = [[sys.executable, "-c", code, str(i), str(count), str(port), *arguments] for i in range(count)]
    return ended(started(commands, **options))
