"""Tasks for workers: functions that return, wait, raise, and end the process that runs them."""

import os
import signal
import time
from pathlib import Path

from gyromc.errors import InvalidInput


def square(x):
    return x * x


def where(folder, processes):
    """The process, and how many threads it may use; waits until so many processes are here, so that one does not take all."""
    (Path(folder) / f"{os.getpid()}").touch()
    until = time.monotonic() + 100  # reached only where the others never come
    while len(list(Path(folder).iterdir())) < processes and time.monotonic() < until:
        time.sleep(0.01)
    return os.getpid(), os.environ.get("GYROMC_THREADS")


def raising():
    raise ZeroDivisionError("the third way")


def refusing():
    raise InvalidInput("`x` must be positive: got -1.")


def dying():
    os.kill(os.getpid(), signal.SIGKILL)


def waiting(folder, seconds):
    """Leave a file with the number of the process, then wait."""
    (Path(folder) / f"{os.getpid()}").touch()
    time.sleep(seconds)
