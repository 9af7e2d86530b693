"""Ctrl-C and SIGTERM at a safe moment: the first is remembered, a second one acts at once.

Raised at once, the first `KeyboardInterrupt` could strike where Python drops exceptions, such as a garbage collector's callback.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from typing import Any

from gyromc.show.progress import say

__all__ = ["Interruption", "delayed", "interruptible"]

ENDING = ("SIGTERM", "SIGHUP")  # signals that end a process, by name: SIGHUP is not known everywhere
AGAIN = 2.0  # seconds after which an interrupt that Python dropped is repeated


class Interruption:
    """Whether Ctrl-C was pressed, or another signal came; `number` is that of the other one."""

    def __init__(self):
        self.pressed = False
        self.number: int | None = None

    def __bool__(self) -> bool:
        return self.pressed

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if Ctrl-C was pressed."""
        if self.pressed:
            raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible(
    message: str = "stopping (Ctrl-C again to stop at once)", patience: float | None = None
) -> Iterator[Interruption]:
    """Remember Ctrl-C while the block runs, in this block and in those around it; print `message` at the first press.

    With `patience`, `KeyboardInterrupt` is raised where the block still runs after so many seconds. A process that ignores SIGINT
    (started in the background or by nohup) goes on ignoring it. Outside the main thread nothing is remembered, since Python
    delivers signals to the main thread alone.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous in (signal.SIG_IGN, None):
        yield Interruption()
        return
    press = _Press(message, patience, previous)
    signal.signal(signal.SIGINT, press)
    try:
        yield press.found
    finally:
        press.ended.set()
        signal.signal(signal.SIGINT, previous)


@contextlib.contextmanager
def delayed() -> Iterator[Interruption]:
    """Remember SIGTERM and SIGHUP while the block runs, and deliver them when it has ended; a second one is delivered at once.

    Signals that the process ignores stay ignored. Outside the main thread nothing is remembered.
    """
    found, before = Interruption(), {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def remember(number: int, frame: Any) -> None:
        if found:
            restore()
            signal.raise_signal(number)
        found.pressed, found.number = True, number
        say(f"{signal.Signals(number).name}: saving, then ending")

    if threading.current_thread() is threading.main_thread():
        known = [getattr(signal, name) for name in ENDING if hasattr(signal, name)]
        before = {n: h for n in known if (h := signal.getsignal(n)) not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, remember)
    try:
        yield found
    finally:
        restore()
    if found.number is not None:
        signal.raise_signal(found.number)


class _Press:
    """What happens at Ctrl-C in one block: it is remembered here and in the blocks around this one."""

    def __init__(self, message: str, patience: float | None, previous: Any):
        self.message, self.patience, self.previous = message, patience, previous
        self.found, self.ended = Interruption(), threading.Event()

    def __call__(self, number: int, frame: Any, quiet: bool = False) -> None:
        if self.found:
            raise KeyboardInterrupt
        self.found.pressed = True
        if not quiet:
            say(self.message)
        if self.patience is not None:
            threading.Thread(target=_press_again, args=(self.ended, self.patience), daemon=True).start()
        if isinstance(self.previous, _Press):
            self.previous(number, frame, quiet=True)


def _press_again(ended: threading.Event, patience: float) -> None:
    """Raise the signal again, which the main thread handles, until the block has ended."""
    while not ended.wait(patience):
        signal.raise_signal(signal.SIGINT)
        patience = AGAIN
