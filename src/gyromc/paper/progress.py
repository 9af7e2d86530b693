"""One progress display over a whole reproduction of the paper's §6: what is being done, how far, how much time is left.

Receives work as expected seconds; hands on nothing: it writes to standard error, so that standard output stays data.
"""

import contextlib
import sys
from collections.abc import Callable, Iterator

__all__ = ["Display", "display"]


class Display:
    """A silent display; `display` makes the visible one.

    **Arguments:**

    - `describe`: called with what is being done.
    - `advance`: called with the expected seconds of work that are done.
    """

    def __init__(
        self, describe: Callable[[str], object] | None = None, advance: Callable[[float], object] | None = None
    ):
        self.describe = describe or (lambda text: None)
        self.advance = advance or (lambda seconds: None)


@contextlib.contextmanager
def display(total: float, wanted: bool | None = None) -> Iterator[Display]:
    """A bar over `total` expected seconds; shown where wanted, or when standard error is a terminal."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield Display()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True, speed_estimate_period=300) as bar:
        task = bar.add_task("", total=total)
        yield Display(
            lambda text: bar.update(task, description=text),
            lambda seconds: bar.advance(task, seconds),
        )
