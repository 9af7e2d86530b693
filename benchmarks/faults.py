"""What runs with checkpoints survive: every fault is made to happen many times, and its promise is checked each time.

`python benchmarks/faults.py --tries 100 --out docs/measured/faults.json --page docs/scale.md` measures all of them and writes the
table of docs/scale.md; the tests make each fault a few times. A `Row` says how often a fault happened, how often its promise was
broken, and the most steps that were made again. A run is compared with one that was never interrupted by a digest of its
averages, block averages, martingales, draws and state: they are the same bits, or the promise is broken.
"""

import argparse
import contextlib
import dataclasses
import hashlib
import json
import multiprocessing
import os
import resource
import shutil
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

import gyromc as gm
from gyromc.app import planfiles
from gyromc.engines import loop

MARK, THIN_DRAWS = "faults", 50
STEPS = {"lanes": 400_000, "scan": 20_000, "pallas": 400}
WHILE_STEPPING = 0.75  # share of the signals that are sent while the process makes steps; the others come at any moment
CHECKPOINTS = 40  # of an uninterrupted run
PROMISES = {
    "SIGKILL": "the same bits after resuming; at most the interval is repeated",
    "SIGTERM": "saved, then ended by the signal; the same bits, nothing is repeated",
    "newest checkpoint cut": "the one before it is used, with a warning; the same bits",
    "newest checkpoint with a flipped bit": "noticed or without meaning; the same bits",
    "all checkpoints damaged": "an error; no file is changed",
    "disk full": "a warning; the run goes on to the same bits, older checkpoints stay whole",
    "read-only directory": "refused before the first step",
    "clock jumps": "the newest by step is used; the same bits",
    "data file removed": "refused with the file's name, checkpoints untouched; with the file back, the same bits",
}
NOBODY = 65534


@dataclasses.dataclass
class Row:
    """How one fault went: `tries` that happened, promises `broken`, most steps `repeated` and the `interval` in steps."""

    fault: str
    engine: str
    tries: int = 0
    broken: int = 0
    repeated: int = 0
    interval: int = 0


def digest(run: gm.Run) -> str:
    """What must not depend on when a run was interrupted: averages, blocks, martingales, draws and the state itself."""
    found = hashlib.sha256()
    for name in run.plan.observables:
        for array in (run.averages[name], run.blocks[name], run.plain[name].averages):
            found.update(np.ascontiguousarray(array).tobytes())
    for array in (run.state.z, run.state.high, run.state.low, run.state.generator, run.state.anchors):
        found.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
    for leaf in jax.tree.leaves(run.draws):
        found.update(np.ascontiguousarray(leaf).tobytes())
    return found.hexdigest()


def plan_of(steps: int) -> gm.Plan:
    """Logistic regression with an anchored oracle, balanced noise and a martingale: much is computed before the first step."""
    rng = np.random.default_rng(5)
    X = rng.standard_normal((60, 2))
    return gm.Plan(
        target=gm.targets.LogisticRegression(X, rng.random(60) < 0.5),
        dynamics=gm.dynamics.overdamped(2),
        observables={"x": gm.observables.linear([1.0, 0.0]), "p": gm.observables.predictive([0.5, 1.0])},
        oracle=gm.oracles.ControlVariate(8),
        scheme="balanced",
        martingale=True,
        step_size=0.02,
        num_steps=steps,
        num_chains=16,
        burn_in=steps // 50,
        seed=3,
    )


def options_of(engine: str, steps: int) -> dict[str, Any]:
    return {"engine": engine, "thin": steps // THIN_DRAWS, "progress": False}


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


def _first_step(process: Any, out: str) -> float:
    """Wait until a process has made steps of its own, or ended; the time then."""
    while process.is_alive() and _noted(out, 0) <= _noted(out, 8):
        time.sleep(0.002)
    return time.monotonic()


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
        stepping = _first_step(first, out)
        first.join()
        ended, expected = time.monotonic(), (Path(out) / "digest").read_text()
        for round_number in range(10 * tries):
            if row.tries >= tries:
                break
            _forget(out)
            directory = f"{folder}/{round_number}"
            while not (Path(out) / "digest").exists():
                process = start(directory)
                if row.tries < tries:
                    if rng.random() < WHILE_STEPPING:
                        _first_step(process, out)
                        process.join(rng.uniform(0, ended - stepping))
                    else:
                        process.join(rng.uniform(0, ended - began))
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


class Stopped(BaseException):
    """The process is gone, for faults that need no process of their own."""


@contextlib.contextmanager
def stopped_at(step: int) -> Iterator[None]:
    """Let a run end after so many steps as if it were killed."""
    before = loop._Loop.chunk

    def chunk(self, *arguments):
        if self.step >= step:
            raise Stopped
        return before(self, *arguments)

    loop._Loop.chunk = chunk
    try:
        with contextlib.suppress(Stopped):
            yield
    finally:
        loop._Loop.chunk = before


class Files:
    """A directory with three checkpoints of a short run, copied anew for every try, and the digest of the whole run."""

    STEPS, EVERY = 2000, 200

    def __init__(self, folder: Path):
        self.folder, self.made = folder, folder / "made"
        self.options = {**options_of("lanes", self.STEPS), "every": self.EVERY}
        self.expected = digest(gm.run(plan_of(self.STEPS), **options_of("lanes", self.STEPS)))
        with stopped_at(6 * self.EVERY):
            gm.run(plan_of(self.STEPS), checkpoint=self.made, chunk_size=self.EVERY, **self.options)

    def copy(self) -> Path:
        """A fresh copy of the directory."""
        place = self.folder / "copy"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.made, place)
        return place

    def resumed(self, directory: Path, **options: Any) -> tuple[bool, list[str]]:
        """Whether the resumed run has the same bits, and the warnings on the way."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", gm.GyromcWarning)
            run = gm.run(plan_of(self.STEPS), checkpoint=directory, **{**self.options, **options})
        return digest(run) == self.expected, [str(warning.message) for warning in caught]


def content(directory: Path) -> dict[str, bytes]:
    """All files of a directory."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def cut(files: Files, rng: np.random.Generator) -> bool:
    newest = max((directory := files.copy()).iterdir())
    newest.write_bytes(newest.read_bytes()[: int(rng.integers(newest.stat().st_size))])
    same, said = files.resumed(directory)
    return same and any("goes on from" in text for text in said)


def _flip(path: Path, rng: np.random.Generator) -> None:
    data = bytearray(path.read_bytes())
    data[int(rng.integers(len(data)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(data)


def flipped(files: Files, rng: np.random.Generator) -> bool:
    _flip(max((directory := files.copy()).iterdir()), rng)
    return files.resumed(directory)[0]


def all_damaged(files: Files, rng: np.random.Generator) -> bool:
    directory = files.copy()
    for path in directory.iterdir():
        path.write_bytes(path.read_bytes()[: int(rng.integers(path.stat().st_size))])
    before = content(directory)
    try:
        files.resumed(directory)
    except gm.InvalidInput as error:
        return content(directory) == before and "none was changed" in str(error)
    return False


def full(files: Files, rng: np.random.Generator) -> bool:
    directory = files.copy()
    before = content(directory)
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(rng.integers(1, max(map(len, before.values())) // 2)), hard))
    try:
        same, said = files.resumed(directory)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
    return same and content(directory) == before and any("was not saved, and the run goes on" in text for text in said)


def read_only(files: Files, rng: np.random.Generator) -> bool:
    directory = files.copy()
    before = content(directory)
    directory.chmod(0o555)
    root = os.geteuid() == 0  # whom permissions do not stop
    if root:
        for path in (files.folder, *files.folder.parents):
            with contextlib.suppress(OSError):
                path.chmod(path.stat().st_mode | 0o055)
        os.seteuid(NOBODY)
    try:
        files.resumed(directory)
    except gm.InvalidInput as error:
        return "Cannot write" in str(error)
    finally:
        if root:
            os.seteuid(0)
        directory.chmod(0o755)
        assert content(directory) == before
    return False


def clock(files: Files, rng: np.random.Generator) -> bool:
    directory, real = files.copy(), time.time
    for path in directory.iterdir():
        os.utime(path, (float(rng.uniform(0, 4e9)),) * 2)
    time.time = lambda: float(rng.uniform(0, 4e9))
    try:
        return files.resumed(directory)[0]
    finally:
        time.time = real


PLAN_FILE = """
step_size = 0.02
num_steps = 600
num_chains = 16
target = {kind = "logistic_regression", X = {npy = "X.npy"}, y = {npy = "y.npy"}}
dynamics = {kind = "overdamped"}
oracle = {kind = "minibatch", size = 8}
observables.x = {kind = "linear", u = [1.0, 0.0]}
"""


def removed(files: Files, rng: np.random.Generator) -> bool:
    folder, directory = files.folder, files.folder / "removed"
    shutil.rmtree(directory, ignore_errors=True)
    target: Any = plan_of(10).target
    np.save(folder / "X.npy", target.X)
    np.save(folder / "y.npy", target.y)
    (folder / "plan.toml").write_text(PLAN_FILE)
    plan = planfiles.load(folder / "plan.toml")
    whole = gm.run(plan, "lanes", progress=False)
    with stopped_at(int(rng.integers(1, 600))):
        (folder / "X.npy").rename(folder / "gone.npy")
        gm.run(plan, "lanes", progress=False, checkpoint=directory, every=50, chunk_size=50)
    before, said = content(directory), ""
    try:
        planfiles.load(folder / "plan.toml")
    except gm.InvalidInput as error:
        said = str(error)
    (folder / "gone.npy").rename(folder / "X.npy")
    untouched = content(directory) == before
    again = gm.run(planfiles.load(folder / "plan.toml"), "lanes", progress=False, checkpoint=directory)
    return untouched and "X.npy" in said and digest(again) == digest(whole)


FAULTS: dict[str, Callable[[Files, np.random.Generator], bool]] = {
    "newest checkpoint cut": cut,
    "newest checkpoint with a flipped bit": flipped,
    "all checkpoints damaged": all_damaged,
    "disk full": full,
    "read-only directory": read_only,
    "clock jumps": clock,
    "data file removed": removed,
}


def damaged(tries: int, seed: int = 0) -> list[Row]:
    """All faults that need no process of their own, so many times each."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder))
        for name, fault in FAULTS.items():
            rng = np.random.default_rng(seed)
            kept = [fault(files, rng) for _ in range(tries)]
            rows.append(Row(name, "lanes", tries, kept.count(False), 0, Files.EVERY))
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    from pages import markdown

    lines = [
        [
            f"{row['fault']}, engine {row['engine']}" if row["fault"].startswith("SIG") else row["fault"],
            PROMISES[row["fault"]],
            str(row["tries"]),
            str(row["broken"]),
            f"{row['repeated']:,} of {row['interval']:,}" if row["fault"].startswith("SIG") else "–",
        ]
        for row in rows
    ]
    return markdown(["fault", "promise", "tries", "lost", "most steps repeated, of an interval of"], lines, left=2)


def main() -> None:
    from pages import replace_between

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=100)
    parser.add_argument("--engines", default="scan,lanes", help="for SIGKILL and SIGTERM")
    parser.add_argument("--out", type=Path, help="where the JSON goes")
    parser.add_argument("--page", type=Path, help="a Markdown page with the two markers")
    options = parser.parse_args()
    rows: list[Row] = []
    for engine in options.engines.split(","):
        for number, tries in ((signal.SIGKILL, options.tries), (signal.SIGTERM, max(1, options.tries // 5))):
            rows.append(killed(engine, tries, number))
            print(rows[-1], flush=True)
    rows += damaged(options.tries)
    plain = [dataclasses.asdict(row) for row in rows]
    if options.out:
        options.out.write_text(json.dumps({"gyromc": gm.__version__, "rows": plain}, indent=1) + "\n")
    if options.page:
        replace_between(options.page, MARK, table(plain))
    print(table(plain))
    raise SystemExit(sum(row.broken for row in rows) > 0)


if __name__ == "__main__":
    import faults  # processes import this module by its name, and find the same functions there

    faults.main()
