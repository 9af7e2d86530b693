"""What the processes of a run decide together after every chunk: how long the next one is, whether to save, whether to stop.

Each of these depends on a clock or on a signal, which differ from process to process. With one process nothing is exchanged.
"""

from typing import NamedTuple

from gyromc import processes
from gyromc.show.interruption import Interruption

__all__ = ["Decision", "decide"]


class Decision(NamedTuple):
    """The same on all processes: steps of the next chunk, at most; whether to save now; whether to stop."""

    pace: int
    save: bool
    stop: bool


def decide(pace: int, save: bool, interrupted: Interruption, ended: Interruption | None) -> Decision:
    """The wishes of process 0 about `pace` and `save`; a signal that came to any process counts for all of them.

    `interrupted` is Ctrl-C, `ended` another signal; both are noted here as if they had come to this process.
    """
    if processes.count() > 1:
        number = None if ended is None else ended.number
        found = processes.everyone([pace, save, bool(interrupted), number])
        pace, save = found[0][:2]
        interrupted.pressed = any(pressed for _, _, pressed, _ in found)
        if ended is not None and (came := [number for *_, number in found if number is not None]):
            ended.pressed, ended.number = True, came[0]
    return Decision(pace, save, bool(interrupted) or bool(ended))
