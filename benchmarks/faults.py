"""What runs with checkpoints survive: every fault is made to happen many times, and its promise is checked each time.

`python benchmarks/faults.py --tries 100 --out docs/measured/faults.json --page docs/scale.md` measures all of them and writes
the table of docs/scale.md; the tests make each fault a few times. Signals are sent to processes here, two processes are in
`pairs`, other faults in `damages`. On a machine with a GPU, which may have no Numba:
`PYTHONPATH=.gpu-site:src python3 benchmarks/faults.py --engines pallas --only SIG --out faults-pallas.json`.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import gyromc as gm
from damages import FAULTS, Row, damaged, digest, options_of, plan_of
from pairs import FAULT as ONE_KILLED
from pairs import SOON, one_killed

MARK = "faults"
STEPS = {"lanes": 400_000, "scan": 20_000, "pallas": 400}
PAIR_STEPS = 100_000
WHILE_STEPPING = 0.75  # share of the signals that are sent while the process makes steps; the others come at any moment
CHECKPOINTS = 40  # of an uninterrupted run
PROMISES = {
    "SIGKILL": "the same bits after resuming; at most the interval is repeated",
    "SIGTERM": "saved, then ended by the signal; the same bits, nothing is repeated",
    "newest checkpoint cut": "the one before it is used, with a warning; the same bits",
    "newest checkpoint with a flipped bit": "noticed or without meaning; the same bits",
    "newest draws cut": "the checkpoint before it is used, with a warning; the same bits",
    "all checkpoints damaged": "an error; no file is changed",
    "disk full": "a warning; the run goes on to the same bits, older checkpoints stay whole",
    "read-only directory": "refused before the first step",
    "clock jumps": "the newest by step is used; the same bits",
    ONE_KILLED: f"the other ends within {SOON:.0f} s with a message; the same bits after resuming",
    "read-only or full caches": "the run goes on to the same bits, at most with a warning",
    "data file removed": "refused with the file's name, checkpoints untouched; with the file back, the same bits",
}
KILLED = ("SIGKILL", "SIGTERM", ONE_KILLED)


def work(engine: str, steps: int, every: int, directory: str, out: str) -> None:
    """One process: resume or start the run, note the steps reached in `out`/reached, write the digest to `out`/digest."""
    reached, note = [_newest(directory)], os.open(Path(out) / "reached", os.O_CREAT | os.O_RDWR)

    def progress(count: int) -> None:
        reached[0] += count
        os.pwrite(note, reached[0].to_bytes(8, "little"), 0)

    os.pwrite(note, reached[0].to_bytes(8, "little"), 8)  # where this process began
    options = {**options_of(engine, steps), "progress": progress}
    run = gm.run(plan_of(steps), checkpoint=directory, every=every, **options)
    (Path(out) / "digest").write_text(digest(run))
    os._exit(0)  # threads of engines are not waited for


def _newest(directory: str | Path) -> int:
    found = [int(path.stem.removeprefix("step-")) for path in Path(directory).glob("step-*.gyromc")]
    return max(found, default=0)


def _noted(out: str, offset: int) -> int:
    with contextlib.suppress(OSError), open(Path(out) / "reached", "rb") as file:
        file.seek(offset)
        return int.from_bytes(file.read(8), "little")
    return 0


def _forget(out: str) -> None:
    for name in ("digest", "reached"):
        (Path(out) / name).unlink(missing_ok=True)


def _wait_for_step(process: Any, out: str, steps: int, share: float) -> None:
    """Wait until a process has made this share of the steps that were left when it began, or has ended."""
    while process.is_alive() and _noted(out, 0) <= _noted(out, 8) + share * (steps - _noted(out, 8)):
        time.sleep(0.002)


def killed(engine: str, tries: int, number: signal.Signals, steps: int | None = None, seed: int = 0) -> Row:
    """Send a signal to a process at random moments of its life, start the next one, and compare what comes out at the end."""
    steps = STEPS[engine] if steps is None else steps
    every = max(1, steps // CHECKPOINTS)
    row = Row(number.name, engine, interval=every)
    context, rng = multiprocessing.get_context("forkserver"), np.random.default_rng(seed)
    context.set_forkserver_preload(["faults"])  # each process starts with everything imported, and nothing compiled
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "out")
        os.mkdir(out)

        def start(directory: str) -> Any:
            process = context.Process(target=work, args=(engine, steps, every, directory, out))
            process.start()
            return process

        began, first = time.monotonic(), start(f"{folder}/first")
        first.join()
        life, expected = time.monotonic() - began, (Path(out) / "digest").read_text()
        for round_number in range(10 * tries):
            if row.tries >= tries:
                break
            _forget(out)
            directory = f"{folder}/{round_number}"
            while not (Path(out) / "digest").exists():
                process = start(directory)
                if row.tries < tries:
                    if rng.random() < WHILE_STEPPING:  # by its steps, not by the time that another one took
                        _wait_for_step(process, out, steps, rng.uniform(0, 1))
                        process.join(rng.uniform(0, 0.02))
                    else:
                        process.join(rng.uniform(0, life))
                    with contextlib.suppress(ProcessLookupError):  # it may have ended this moment
                        os.kill(process.pid, number) if process.is_alive() else None
                process.join()
                if process.exitcode == -number:
                    row.tries += 1
                    again = _noted(out, 0) - _newest(directory) if _noted(out, 0) > _noted(out, 8) else 0
                    row.repeated = max(row.repeated, again)
                    (Path(out) / "reached").unlink(missing_ok=True)
                elif process.exitcode != 0:
                    row.broken += 1
                    break
            row.broken += (Path(out) / "digest").exists() and (Path(out) / "digest").read_text() != expected
            shutil.rmtree(directory)
    row.broken += row.repeated > (every if number == signal.SIGKILL else 0)
    return row


def table(rows: list[dict[str, Any]]) -> str:
    from pages import markdown

    lines = [
        [
            f"{row['fault']}, engine {row['engine']}" if row["fault"] in KILLED else row["fault"],
            PROMISES[row["fault"]],
            str(row["tries"]),
            str(row["broken"]),
            f"{row['repeated']:,} of {row['interval']:,}" if row["fault"] in KILLED else "–",
        ]
        for row in rows
    ]
    return markdown(["fault", "promise", "tries", "lost", "most steps repeated, of an interval of"], lines, left=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--engines", default="scan,lanes", help="for SIGKILL and SIGTERM; nothing: for none")
    parser.add_argument("--only", default="", help="faults whose name contains this")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--page", type=Path, help="a Markdown page with the two markers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as compiled:  # processes share what JAX compiles, as they do where users set it
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", compiled)
        os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # a GPU is shared by all processes
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        broken = sum(_noted_row(row, options.out, options.page) for row in _rows(options))
    raise SystemExit(broken > 0)


def _noted_row(row: Row, out: Path | None, page: Path | None) -> int:
    """Print a row and write it to the file and the page; returns how often its promise was broken."""
    from pages import replace_between

    print(row, flush=True)
    if out:
        everything = _saved(out, dataclasses.asdict(row))
        if page:
            replace_between(page, MARK, table(everything))
    return row.broken


def _rows(options: argparse.Namespace) -> Iterator[Row]:
    """All rows, as they are done: faults of files in a process of their own, beside the processes that are killed."""
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        names = [name for name in FAULTS if options.only in name]
        files = pool.submit(damaged, options.tries, options.only) if names else None
        for engine in filter(None, options.engines.split(",")):
            for number, count in ((signal.SIGKILL, options.tries), (signal.SIGTERM, max(1, options.tries // 5))):
                if options.only in number.name:
                    yield killed(engine, count, number)
        if options.only in ONE_KILLED and "lanes" in options.engines:
            yield one_killed("lanes", options.tries, PAIR_STEPS, PAIR_STEPS // CHECKPOINTS)
        yield from [] if files is None else files.result()


def _saved(path: Path, row: dict[str, Any]) -> list[dict[str, Any]]:
    """All rows of the file, with a new one in place of that of the same fault and engine."""
    from pages import measured_rows, write_measured

    rows = measured_rows(path)
    key = lambda row: (list(PROMISES).index(row["fault"]), row["engine"])
    rows = sorted([old for old in rows if key(old) != key(row)] + [row], key=key)
    write_measured(path, rows, extended=True)
    return rows


if __name__ == "__main__":
    import faults  # processes import this module by its name, and find the same functions there

    faults.main()
