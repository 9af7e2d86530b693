"""The processes of a run meet before JAX starts: all connect to process 0, which checks that each of them came once.

Input: the address of process 0, the number of processes and the number of this one. Output: one open connection to process 0, or
on process 0 one to each of the others. A wrong start (two processes with one number, one that never came, other versions) is an
`InvalidInput` on all of them; JAX itself would abort the process.
"""

import contextlib
import errno
import json
import os
import socket
import time
from typing import Any

from gyromc import __version__
from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.show.numbers import listed

PAUSE = 0.2
"""Seconds between two attempts to connect."""
HELLO = 5.0
"""Seconds in which a connection must say who it is."""
LONGEST = 2**16
"""Bytes of a line."""


class Link:
    """A connection to another process, over which lines of JSON go: `index` and `place` of the other one."""

    def __init__(self, connection: socket.socket):
        self.connection, self.lines = connection, connection.makefile("rb")
        self.index, self.place = 0, ""
        # The status with which the other one said that it ends.
        self.left: int | None = None
        self.heard = time.monotonic()
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, **content: Any) -> None:
        """Send a line; the other end may be closed."""
        with contextlib.suppress(OSError):
            self.connection.sendall(json.dumps(content).encode() + b"\n")

    def line(self, seconds: float | None) -> dict[str, Any] | None:
        """The next line; None where none comes in this time, at the end of the connection, and for what is no line of ours."""
        try:
            self.connection.settimeout(seconds)
            found = json.loads(self.lines.readline(LONGEST))
        except (OSError, ValueError):
            return None
        self.heard = time.monotonic()
        return found if isinstance(found, dict) else None

    def alive(self) -> bool:
        """Whether the other end is still open."""
        self.connection.settimeout(0)
        try:
            return self.connection.recv(1, socket.MSG_PEEK) != b""
        except BlockingIOError:
            return True
        except OSError:
            return False


def meet(coordinator: str, num_processes: int, index: int, timeout: float) -> list[Link]:
    """Wait until all processes are there, at most `timeout` seconds; returns the open connections."""
    host, _, port = coordinator.rpartition(":")
    require(
        host and port.isdigit() and 0 < int(port) < 65536,
        f"The coordinator must be given as `host:port`, the address of process 0: got {coordinator!r}.",
    )
    hello = {
        "gyromc": _version(),
        "index": index,
        "of": num_processes,
        "place": f"{socket.gethostname()}, pid {os.getpid()}",
    }
    if index == 0:
        return _welcome(int(port), hello, timeout)
    return [_join((host.strip("[]"), int(port)), hello, timeout)]


def _welcome(port: int, own: dict[str, Any], timeout: float) -> list[Link]:
    """Process 0: take connections until all the others are there; an error goes to all that came."""
    found: dict[int, Link] = {}
    # Whatever the name by which this machine is reached.
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        server = socket.create_server(("", port), family=family, dualstack_ipv6=both, backlog=1024)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        raise InvalidInput(
            f"Port {port} of this machine is in use: by another run, or by another process that was started with the number 0. "
            "Choose another port for the coordinator, or give each process its own number."
        ) from None
    with server:
        error = _gather(server, own, timeout, found)
        for link in found.values():
            link.send(error=error) if error else link.send(ok=True, place=own["place"])
    if error:
        raise InvalidInput(error)
    return [found[i] for i in sorted(found)]


def _gather(server: socket.socket, own: dict[str, Any], timeout: float, found: dict[int, Link]) -> str | None:
    """Fill `found` with a connection to each other process; returns what is wrong, or None."""
    end = time.monotonic() + timeout
    while len(found) < own["of"] - 1:
        server.settimeout(max(0.0, end - time.monotonic()) or 1e-3)
        try:
            connection, _ = server.accept()
        except TimeoutError:
            missing = [str(i) for i in range(1, own["of"]) if i not in found]
            return (
                f"After {timeout:g} s, {len(found) + 1} of {own['of']} processes were there; missing: {listed(missing, 8)}. Look "
                "at their messages, and whether they reach this machine; where they need longer, wait longer."
            )
        link = Link(connection)
        hello = link.line(HELLO)
        if hello is None or not {"gyromc", "index", "of", "place"} <= set(hello) or type(hello["index"]) is not int:
            # Some other program.
            connection.close()
            continue
        link.index, link.place = hello["index"], hello["place"]
        wrong = _wrong(hello, own, found)
        # Those who must hear of it too.
        found[link.index if link.index not in found else -1] = link
        if wrong:
            return wrong
    return None


def _wrong(hello: dict[str, Any], own: dict[str, Any], found: dict[int, Link]) -> str | None:
    """What is wrong with a process that connects; None where nothing is."""
    who = f"Process {hello['index']} ({hello['place']})"
    if hello["gyromc"] != own["gyromc"]:
        return f"{who} has gyromc {hello['gyromc']}, process 0 has {own['gyromc']}. Install one version everywhere."
    if hello["of"] != own["of"]:
        return f"{who} was started as one of {hello['of']} processes, process 0 as one of {own['of']}. Give all the same number."
    before = own["place"] if hello["index"] == 0 else None
    known = found.get(hello["index"])
    if known is not None and known.alive():
        before = known.place
    # It ended and was started again.
    elif known is not None:
        del found[hello["index"]]
    if before is not None:
        return f"Two processes have the number {hello['index']}: {before} and {hello['place']}. Give each its own."
    return None


def _join(address: tuple[str, int], own: dict[str, Any], timeout: float) -> Link:
    """Another process: connect to process 0 and wait until all are there."""
    end, answered, reason = time.monotonic() + timeout, False, ""
    while (left := end - time.monotonic()) > 0:
        try:
            link = Link(socket.create_connection(address, timeout=left))
        except OSError as error:
            reason = str(error)
            time.sleep(min(PAUSE, left))
            continue
        answered = True
        link.send(**own)
        answer = link.line(left + HELLO)
        if answer is not None and "error" in answer:
            raise InvalidInput(str(answer["error"]))
        if answer is not None and answer.get("ok"):
            link.place = str(answer["place"])
            return link
        link.connection.close()
        time.sleep(PAUSE)
    where = f"{address[0]}:{address[1]}"
    if answered:
        raise InvalidInput(
            f"{where} answers, but does not take process {own['index']} into a run within {timeout:g} s: the run there has all "
            "its processes already (was a number used twice?), or another program uses the port."
        )
    raise InvalidInput(
        f"Process 0 cannot be reached at {where}: tried for {timeout:g} s, the last time: {reason}. Check that process 0 runs, "
        "that the address is that of its machine and that no firewall closes the port."
    )


def _version() -> str:
    return __version__
