"""The progress display: what is being done, how much of it is done, how long it will take. Written to standard error."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

from gyromc.show.numbers import printable


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
