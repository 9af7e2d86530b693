"""A worker process: reads tasks from standard input, computes them one by one, and writes what came of them to standard output.

Messages are pickles, each after its length; both ends belong to one program and one user. The process ends when its input does,
so that no worker outlives the process that started it, however that one ends. What a task prints goes to standard error.
"""

import os
import pickle
import queue
import signal
import struct
import sys
import threading
import traceback
from typing import IO, Any

from gyromc.errors import InvalidInput
from gyromc.workers.tasks import TaskFailure, call

__all__ = ["Done", "main", "receive", "send"]

LENGTH = struct.Struct("<Q")


class Done:
    """The result of a task."""

    def __init__(self, value: Any):
        self.value = value


def send(file: IO[bytes], message: Any) -> None:
    """Write a message; nothing is written where it cannot be pickled."""
    content = pickle.dumps(message)
    file.write(LENGTH.pack(len(content)) + content)
    file.flush()


def receive(file: IO[bytes]) -> bytes | None:
    """Read a message that is still pickled, or None at the end of the file."""
    head = file.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    size = LENGTH.unpack(head)[0]
    content = file.read(size)
    return content if len(content) == size else None


def main() -> None:
    """Serve until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the business of the process that started this one
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    waiting: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, waiting), daemon=True).start()
    while True:
        content = waiting.get()
        try:
            task = pickle.loads(content)
            send(out, Done(call(task, lambda share: send(out, share))))
        except BrokenPipeError:
            os._exit(0)
        except BaseException as error:
            text = str(error) or type(error).__name__
            message = text if isinstance(error, InvalidInput) else f"{type(error).__name__}: {text}"
            send(out, TaskFailure(message, traceback.format_exc(), isinstance(error, InvalidInput)))


def _listen(file: IO[bytes], waiting: "queue.SimpleQueue[bytes]") -> None:
    """Put each message into the queue; end the process, whatever it is doing, when there can be no more."""
    while (content := receive(file)) is not None:
        waiting.put(content)
    os._exit(0)
