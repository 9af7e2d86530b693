"""Ctrl-C at a safe moment: the first press is remembered, a second one raises `KeyboardInterrupt` at once.

Raised at once, the first could strike where Python drops exceptions, such as a garbage collector's callback.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator

from gyromc.show.progress import say

__all__ = ["Interruption", "interruptible"]


class Interruption:
    """Whether Ctrl-C was pressed."""

    def __init__(self):
        self.pressed = False

    def __bool__(self) -> bool:
        return self.pressed

    def check(self) -> None:
        """Raise `KeyboardInterrupt` if Ctrl-C was pressed."""
        if self.pressed:
            raise KeyboardInterrupt


@contextlib.contextmanager
def interruptible(message: str = "stopping (Ctrl-C again to stop at once)") -> Iterator[Interruption]:
    """Remember Ctrl-C while the block runs; print `message` at the first press.

    A process that ignores SIGINT (started in the background or by nohup) goes on ignoring it. Outside the main thread nothing is
    remembered, since Python delivers signals to the main thread alone.
    """
    found = Interruption()
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous in (signal.SIG_IGN, None):
        yield found
        return

    def press(number, frame):
        if found.pressed:
            raise KeyboardInterrupt
        found.pressed = True
        say(message)

    signal.signal(signal.SIGINT, press)
    try:
        yield found
    finally:
        signal.signal(signal.SIGINT, previous)
