"""A run that two processes compute together, one of which is killed: the other ends soon and says why, and both resume.

`one_killed` is a row of `faults.py`. Processes come from a server with everything imported, so a try costs about its run.
"""

import multiprocessing
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gyromc as gm
from damages import Row, digest, options_of, plan_of
from gyromc import processes

__all__ = ["SOON", "one_killed"]

FAULT = "one of two processes killed"
SOON = (
    60.0  # seconds after which the other one has ended, at the latest: JAX notices within 20, on a busy machine later
)


def work(index: int, port: int, engine: str, steps: int, every: int, directory: str, out: str) -> None:
    """One of the two: start or resume the run, note the steps reached, write the digest to `out`."""
    os.dup2(os.open(Path(out, f"err-{index}"), os.O_CREAT | os.O_WRONLY), 2)
    processes.start(f"localhost:{port}", 2, index, timeout=250)
    Path(out, f"connected-{index}").touch()
    begun = reached = _newest(directory)

    def progress(count: int) -> None:
        nonlocal reached
        reached += count
        if reached > begun:
            Path(out, "reached").write_text(str(reached))

    options = {**options_of(engine, steps), "progress": progress if index == 0 else False}
    try:
        run = gm.run(plan_of(steps), checkpoint=directory, every=every, **options)
    except Exception:
        sys.excepthook(*sys.exc_info())  # as at the end of a program; `multiprocessing` would report it itself
        raise
    Path(out, f"digest-{index}").write_text(digest(run))
    processes.finish()
    os._exit(0)


def _newest(directory: str | Path) -> int:
    found = [int(path.stem.removeprefix("step-")) for path in Path(directory).glob("step-*.gyromc")]
    return max(found, default=0)


class _Pair:
    """Two processes, and the folder to which they write."""

    def __init__(self, context: Any, engine: str, steps: int, every: int, directory: str, out: Path):
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        # Bound without listening: nobody else gets the port, and a server that sets SO_REUSEADDR listens there all the same.
        self.held = socket.socket()
        self.held.bind(("", 0))
        self.held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port = self.held.getsockname()[1]
        self.out, arguments = out, (port, engine, steps, every, directory, str(out))
        self.both = [context.Process(target=work, args=(i, *arguments)) for i in (0, 1)]
        for process in self.both:
            process.start()

    def connected(self) -> None:
        """Wait until both have met, or ended."""
        names = [self.out / f"connected-{i}" for i in (0, 1)]
        while not all(name.exists() for name in names) and all(process.is_alive() for process in self.both):
            time.sleep(0.005)

    def digests(self) -> list[str]:
        return [path.read_text() for path in sorted(self.out.glob("digest-*"))]

    def kill(self, who: int, after: float) -> bool | None:
        """Kill one; returns whether the other ended soon, with a right status and a message; None: it came too late."""
        self.both[who].join(after)
        if len(self.digests()) == 2 or not self.both[who].is_alive():
            return None
        os.kill(self.both[who].pid, signal.SIGKILL)
        other = self.both[1 - who]
        other.join(SOON)
        soon = not other.is_alive()
        if not soon:
            other.kill()
        for process in self.both:
            process.join()
        said = Path(self.out, f"err-{1 - who}").read_text(errors="replace").strip() != ""
        return soon and said and other.exitcode in (processes.LOST, -signal.SIGABRT)

    def end(self) -> bool:
        """Wait for both; whether both ended well."""
        for process in self.both:
            process.join()
        return all(process.exitcode == 0 for process in self.both)

    def repeated(self, directory: str) -> int:
        """Steps that were made after the newest checkpoint."""
        note = self.out / "reached"
        text = note.read_text() if note.exists() else ""
        return max(0, int(text) - _newest(directory)) if text else 0


def one_killed(engine: str, tries: int, steps: int, every: int, seed: int = 0) -> Row:
    """Kill one of two processes at random moments, start both again, and compare what comes out at the end."""
    row = Row(FAULT, engine, interval=every)
    context, rng = multiprocessing.get_context("forkserver"), np.random.default_rng(seed)
    context.set_forkserver_preload(["faults"])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "out")
        pair = _Pair(context, engine, steps, every, f"{folder}/first", out)
        pair.connected()
        began = time.monotonic()
        if not pair.end():
            raise RuntimeError(f"The run without a fault failed: {Path(out, 'err-0').read_text()}")
        lasts, expected = time.monotonic() - began, pair.digests()  # with what is compiled once
        for number in range(10 * tries):
            if row.tries >= tries:
                break
            directory, done = f"{folder}/{number}", False
            while not done:
                pair = _Pair(context, engine, steps, every, directory, out)
                pair.connected()
                began = time.monotonic()
                kept = pair.kill(int(rng.integers(2)), rng.uniform(0, lasts)) if row.tries < tries else None
                if kept is None:
                    done = True
                    row.broken += not pair.end() or pair.digests() != expected
                    lasts = min(lasts, time.monotonic() - began)
                else:
                    row.tries += 1
                    row.broken += not kept
                    row.repeated = max(row.repeated, pair.repeated(directory))
            shutil.rmtree(directory)
    row.broken += row.repeated > every
    return row
