"""One progress display: what is being done, how far it is, how long it will take. Written to standard error."""

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["Progress", "progress", "say"]


class Progress:
    """How far some work is; shows nothing unless `progress` made it.

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
    """A display over `total` units of work, shown where wanted or, when left open, where standard error is a terminal.

    **Arguments:**

    - `total`: the whole work; None where it is not known, which shows a count and the time passed instead of a bar.
    - `wanted`: whether to show it; None decides by the terminal.
    - `description`: what is done first; `done`: how much is finished already.
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
        task = bar.add_task(description, total=total, completed=done)  # type: ignore[arg-type]  # Rich counts in floats too
        yield Progress(
            lambda text: bar.update(task, description=text),
            lambda amount: bar.advance(task, amount),
        )


def say(text: str) -> None:
    """One line to standard error."""
    print(f"gyromc: {text}", file=sys.stderr)
