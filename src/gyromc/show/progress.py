"""While something runs: the progress display on standard error, and Ctrl-C and SIGTERM at a safe moment.

The display says what is being done, how much of it is done, and how long it will take. The first signal is remembered, a second
one acts at once.
"""

import contextlib
import dataclasses
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gyromc.show.numbers import printable

AGAIN = 2.0
"""Seconds after which an interrupt that Python dropped is repeated."""
# How many blocks run that patience does not end.
_unhurried = 0
# Whether the SIGINT that is on its way comes from the end of a block's patience.
_by_patience = False


class Progress:
    """Reports what is done now (`describe`) and how much work was done since the last call (`advance`)."""

    def __init__(self, describe: Callable[[str], Any] | None = None, advance: Callable[[float], Any] | None = None):
        self.visible = describe is not None
        self.describe = describe or (lambda text: None)
        self.advance = advance or (lambda amount: None)


@contextlib.contextmanager
def progress(
    total: float | None = None, wanted: bool | None = None, description: str = "", done: float = 0
) -> Iterator[Progress]:
    """Show progress over `total` units of work while the block runs; where None, steps and time instead of a bar."""
    # checks import NumPy, which the command line's help does without
    from gyromc.checks import require, shown

    require(wanted is None or isinstance(wanted, bool), f"`progress` must be True, False or None: got {shown(wanted)}.")
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield Progress()
        return
    from rich import progress as rich

    from gyromc.show.tables import console

    if total:
        begin, end = (rich.BarColumn(bar_width=24), rich.TaskProgressColumn()), ("left", rich.TimeRemainingColumn())
    else:
        begin, end = (rich.SpinnerColumn(),), ("{task.fields[steps]}",)
    columns = (*begin, rich.TimeElapsedColumn(), *end, rich.TextColumn("{task.description}", markup=False))
    screen = console(stderr=True)
    with rich.Progress(*columns, console=screen, transient=screen.is_terminal, speed_estimate_period=300) as bar:
        # Work without steps, such as integrals, does not show how many were made.
        task = bar.add_task(description, total=total, steps="")
        bar.update(task, completed=done)

        def advance(amount: float) -> None:
            bar.advance(task, amount)
            bar.update(task, steps=f"{bar.tasks[0].completed:.0f} steps")

        yield Progress(lambda text: bar.update(task, description=printable(text)), advance)


def say(text: str) -> None:
    """Print one line to standard error."""
    print(f"gyromc: {printable(text)}", file=sys.stderr)


class Stopped(SystemExit, KeyboardInterrupt):
    """A `KeyboardInterrupt` that ends a program with status 130 and without a traceback, which would show a compiler's code."""


@dataclasses.dataclass(eq=False)
class Interruption:
    """Whether Ctrl-C was pressed, or another signal came; `number` is that of the other one."""

    pressed: bool = False
    number: int | None = None

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

    After `patience` seconds `KeyboardInterrupt` is raised, but not in an `unhurried` block. A process that ignores SIGINT goes on
    ignoring it. Outside the main thread, to which Python delivers signals, nothing is remembered.
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
        # From here on a signal is noted only, so that all of this is done.
        press.leaving = True
        with press.pressing:
            press.ended.set()
        signal.signal(signal.SIGINT, previous)
        if press.late:
            signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def unhurried() -> Iterator[None]:
    """While the block runs, the patience of the blocks around it ends nothing: results are saved, however long that takes."""
    global _unhurried
    _unhurried += 1
    try:
        yield
    finally:
        _unhurried -= 1


@contextlib.contextmanager
def delayed() -> Iterator[Interruption]:
    """Remember SIGTERM and SIGHUP while the block runs, and deliver them when it has ended; a second one is delivered at once."""
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
        # SIGHUP is not known everywhere.
        known = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
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
        self.found, self.ended, self.pressing = Interruption(), threading.Event(), threading.Lock()
        # Whether the block is over, and whether Ctrl-C was pressed as it ended.
        self.leaving, self.late = False, False

    def __call__(self, number: int, frame: Any, quiet: bool = False) -> None:
        global _by_patience
        by_patience, _by_patience = _by_patience, False
        if self.leaving:
            self.late = self.late or not by_patience
            return
        if by_patience and _unhurried:
            return
        if self.found:
            # An interactive session goes on, and a program's own hook for errors hears of it.
            own = hasattr(sys, "ps1") or sys.flags.interactive or sys.excepthook is not sys.__excepthook__
            raise KeyboardInterrupt if own else Stopped(128 + signal.SIGINT)
        self.found.pressed = True
        if not quiet:
            say(self.message)
        if self.patience is not None:
            threading.Thread(target=self._again, args=(self.patience,), daemon=True).start()
        if isinstance(self.previous, _Press):
            self.previous(number, frame, quiet=True)

    def _again(self, patience: float) -> None:
        """Raise the signal again, which the main thread handles, until the block has ended."""
        global _by_patience
        while not self.ended.wait(patience):
            # The block does not end between the look and the signal.
            with self.pressing:
                if not self.ended.is_set():
                    _by_patience = True
                    signal.raise_signal(signal.SIGINT)
            patience = AGAIN
