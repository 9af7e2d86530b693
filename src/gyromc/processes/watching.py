"""No process waits for one that is gone: threads in each watch the others and end their process with a message.

The connections from the start stay open. Where one closes without a word, the process at its other end was killed; where
nothing comes for long, its machine or the network failed. Process 0 tells the others. All end with status `LOST`, or with
`REFUSED` where one of them was given something that cannot work: a launcher that starts them again would do so for ever.
"""

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from typing import Any, NoReturn

from gyromc.processes.connecting import Link

LOST = 75
"""The status of a process that ends because another one did: try again."""
REFUSED = 2
"""The status of a command that cannot work."""
BEAT = 2.0
"""Seconds between two signs of life."""
GRACE = 2.0
"""Seconds for an error of this process' own, when another one has ended with an error."""
ABORTED, INTERRUPTED = 128 + signal.SIGABRT, 128 + signal.SIGINT
ADVICE = {
    LOST: "Start all of them again; a run with checkpoints goes on from the newest.",
    REFUSED: "Put that right, then start all of them again.",
}
_watch: "_Watch | None" = None
# Functions that C calls.
_kept: list[Any] = []


def watch(links: list[Link], index: int, silence: float) -> None:
    """Watch the other processes from now on; `silence`: seconds without a sign of life after which one is lost."""
    global _watch
    _watch = _Watch(links, index, silence)
    for link in links:
        threading.Thread(target=_watch.listen, args=(link,), name="gyromc-listen", daemon=True).start()
    threading.Thread(target=_watch.run, name="gyromc-watch", daemon=True).start()
    atexit.register(_watch.finish)
    sys.excepthook = _watch.fail
    _on_abort(_watch.aborted)


def leave(status: int) -> None:
    """End this process with a status other than 0 and tell the others, which end too; with one process nothing is done."""
    if _watch is not None and status != 0:
        _watch.leave(status)


def finish() -> None:
    """Wait until all processes have come here; the end of a program does so itself. With one process nothing is done."""
    if _watch is not None:
        _watch.finish()


@contextlib.contextmanager
def waiting():
    """While the block waits for all the others: one that has ended already is an error."""
    if _watch is None:
        yield
        return
    _watch.waiting = time.monotonic()
    try:
        yield
    except Exception:
        # Where another process is lost, the thread ends this one meanwhile.
        time.sleep(GRACE)
        raise
    finally:
        _watch.waiting = None


class _Watch:
    """The threads that watch the other processes; `links` has process 0, or on process 0 all the others."""

    def __init__(self, links: list[Link], index: int, silence: float):
        self.links, self.index, self.silence = links, index, silence
        self.sending, self.last = threading.Lock(), threading.Lock()
        # Since when this process waits for all the others.
        self.waiting: float | None = None
        # When this process ends, why, and with which status.
        self.ending: tuple[float, str, int] | None = None
        # With a status of its own, whatever the others do.
        self.leaving = False
        self.done = threading.Event()
        for link in links:
            link.heard = time.monotonic()

    def run(self) -> None:
        """Look after the others until all have said that they are done."""
        beat = 0.0
        while not self.done.wait(BEAT / 8):
            now = time.monotonic()
            if now >= beat:
                beat = now + BEAT
                self.tell(beat=True)
            for link in self.links:
                if link.left is None and now - link.heard > self.silence:
                    self._lost(link, f"was not heard of for {self.silence:g} s: its machine or the network failed")
                if link.left == 0 and self.waiting is not None and now - self.waiting > GRACE:
                    self._lost(link, "has ended, while this one waits for it")
            if self.ending is not None and now >= self.ending[0]:
                self.end(*self.ending[1:])

    def tell(self, **content: Any) -> None:
        """Send a line to all processes that this one is connected to."""
        with self.sending:
            for link in self.links:
                link.send(**content)

    def finish(self) -> None:
        """At the end of the program: wait until all the others are done too, so that none loses JAX's coordinator."""
        if self.done.is_set():
            return
        if self.index != 0:
            self.tell(left=0)
        while any(link.left is None for link in self.links):
            time.sleep(0.01)
        if self.index == 0:
            self.tell(left=0)
        self.done.set()

    def leave(self, status: int) -> NoReturn:
        """End with a status; process 0 ends last, since the others lose JAX's coordinator with it."""
        self.leaving = True
        self.tell(left=status)
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        end = time.monotonic() + 2 * GRACE
        while self.index == 0 and time.monotonic() < end and any(link.left is None for link in self.links):
            time.sleep(0.01)
        os._exit(status)

    def fail(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """Instead of Python's report of an error that ends the program: that another process is lost is said before it."""
        # Where the error came from a lost process, the thread ends this one meanwhile.
        time.sleep(GRACE)
        sys.__excepthook__(kind, error, trace)
        self.leave(INTERRUPTED if issubclass(kind, KeyboardInterrupt) else 1)

    def aborted(self, number: int) -> None:
        """JAX aborts a process that loses its coordinator: the thread says it in plain words first."""
        time.sleep(GRACE)
        _write(f"gyromc: process {self.index} was aborted by a library: its message stands above.")
        os._exit(ABORTED)

    def end(self, text: str, status: int = LOST) -> NoReturn:
        """End this process because another one is lost or was refused; process 0 tells the others first."""
        self.last.acquire()
        while self.leaving:
            time.sleep(BEAT)
        if self.index == 0:
            self.tell(lost=text, status=status)
        _write(f"gyromc: process {self.index} ends, because {text}. {ADVICE[status]}")
        if self.index == 0:
            time.sleep(GRACE / 2)
        os._exit(status)

    def listen(self, link: Link) -> None:
        """Take what another process says until its connection closes."""
        while (line := link.line(None)) is not None:
            if "lost" in line:
                self.end(str(line["lost"]), REFUSED if line.get("status") == REFUSED else LOST)
            if "left" in line:
                link.left = int(line["left"])
                if link.left != 0 and self.ending is None:
                    text = f"process {link.index} ({link.place}) ended with status {link.left}: see its message"
                    self.ending = time.monotonic() + GRACE, text, REFUSED if link.left == REFUSED else LOST
        if link.left is None:
            self._lost(link, "ended without a word: it was killed, or its machine failed")

    def _lost(self, link: Link, how: str) -> NoReturn:
        self.end(f"process {link.index} ({link.place}) {how}")


def _on_abort(act: Any) -> None:
    """Let a function of a number be called when C code aborts this process; where that cannot be set, nothing changes."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        _kept.append(ctypes.CFUNCTYPE(None, ctypes.c_int)(act))
        ctypes.CDLL(None).signal(int(signal.SIGABRT), _kept[-1])


def _write(text: str) -> None:
    """Print a line to standard error, also while another thread prints."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())
