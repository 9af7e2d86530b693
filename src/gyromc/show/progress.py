"""The progress display: what is being done, how much of it is done, how long it will take. Written to standard error."""

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["Progress", "progress", "say"]


class Progress:
    """Reports progress; a bare `Progress()` shows nothing, `progress` makes one that does.

    **Arguments:**

    - `describe`: called with what is being done now.
    - `advance`: called with how much work was done since the last call.
    """

    def __init__(
        self, describe: Callable[[str], object] | None = None, advance: Callable[[float], object] | None = None
    ):
        self.describe = describe or (lambda text: None)
        self.advance = advance or (lambda amount: None)


@contextlib.contextmanager
def progress(
    total: float | None = None, wanted: bool | None = None, description: str = "", done: float = 0
) -> Iterator[Progress]:
    """Show progress over `total` units of work while the block runs.

    **Arguments:**

    - `total`: the whole work; where None, a count of steps and the elapsed time are shown instead of a bar.
    - `wanted`: whether to show anything; None means only where standard error is a terminal.
    - `description`: what is done first; `done`: how much is already finished.
    """
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield Progress()
        return
    from rich.progress import (
        BarColumn,
        SpinnerColumn,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bar

    from gyromc.show.tables import console

    left = (TextColumn("left"), TimeRemainingColumn()) if total else (TextColumn("{task.completed:.0f} steps"),)
    bar_or_spinner = (BarColumn(bar_width=24), TaskProgressColumn()) if total else (SpinnerColumn(),)
    columns = (*bar_or_spinner, TimeElapsedColumn(), *left, TextColumn("{task.description}", markup=False))
    screen = console(stderr=True)
    with Bar(*columns, console=screen, transient=screen.is_terminal, speed_estimate_period=300) as bar:
        task = bar.add_task(description, total=total)
        bar.update(task, completed=done)
        yield Progress(
            lambda text: bar.update(task, description=text),
            lambda amount: bar.advance(task, amount),
        )


def say(text: str) -> None:
    """Print one line to standard error."""
    print(f"gyromc: {text}", file=sys.stderr)
