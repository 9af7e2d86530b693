"""What a study shows while it works on its averages (E4), and how it hears Ctrl-C.

Receives stages and counts of steps; writes to standard error. The first Ctrl-C is remembered and ends the study at the next chunk
of steps: raised at once it could strike where Python drops exceptions, such as a garbage collector's callback. A second one is
raised at once.
"""

import contextlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator

__all__ = ["Watch", "watch"]


class Watch:
    """Where a study stands.

    **Arguments:**

    - `describe`: is given each new stage; `count`: is given the steps made since its last call.
    """

    def __init__(self, describe: Callable[[str], object], count: Callable[[int], object] = lambda steps: None):
        self.describe, self.count = describe, count
        self.interrupted = False

    def stage(self, text: str) -> None:
        """Something new begins."""
        self.check()
        self.describe(text)

    def advance(self, steps: int) -> None:
        """So many steps are made."""
        self.check()
        self.count(steps)

    def check(self) -> None:
        """End the study if Ctrl-C was pressed."""
        if self.interrupted:
            raise KeyboardInterrupt


@contextlib.contextmanager
def watch(say: Callable[[str], object]) -> Iterator[Watch]:
    """A `Watch` that says each stage, moves a bar where standard error is a terminal, and remembers Ctrl-C."""
    with contextlib.ExitStack() as stack:
        seen = Watch(say)
        if sys.stderr.isatty():
            _add_bar(seen, say, stack)
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGINT)

            def press(number, frame):
                if seen.interrupted:
                    raise KeyboardInterrupt
                seen.interrupted = True
                say("stopping (Ctrl-C again to stop at once)")

            signal.signal(signal.SIGINT, press)
            stack.callback(signal.signal, signal.SIGINT, previous)
        yield seen


def _add_bar(seen: Watch, say: Callable[[str], object], stack: contextlib.ExitStack) -> None:
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (
        SpinnerColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
        TextColumn("{task.fields[steps]}"),
    )
    bar = stack.enter_context(Progress(*columns, console=Console(stderr=True), transient=True))
    task = bar.add_task("", steps="")
    made = 0

    def describe(text: str) -> None:
        nonlocal made
        made = 0
        say(text)
        bar.update(task, description=text, steps="")

    def count(steps: int) -> None:
        nonlocal made
        made += steps
        bar.update(task, steps=f"{made} steps")

    seen.describe, seen.count = describe, count
