"""Faults of files, clocks and disks, made to happen to a run with checkpoints in this process; what the study of faults shares.

Each function of `FAULTS` makes one fault happen once, to a fresh copy of a directory of checkpoints, and returns whether the
promise was kept. A run is compared with one that was never interrupted by a digest of its averages, block averages, martingales,
draws and state: they are the same bits, or the promise is broken.
"""

import contextlib
import ctypes
import dataclasses
import hashlib
import os
import resource
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache

import gyromc as gm
from gyromc.engines import loop
from gyromc.io import planfiles

DRAWS = 50  # that a run keeps of each chain
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
    for array in (run.state.z, run.state.high, run.state.low, run.state.generator):
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
    return {"engine": engine, "thin": steps // DRAWS, "progress": False}


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
            gm.run(plan_of(self.STEPS), checkpoint=self.made, **self.options)

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


def draws_cut(files: Files, rng: np.random.Generator) -> bool:
    """In the draws that only the newest checkpoint needs."""
    draws = (directory := files.copy()) / "draws.bin"
    size, steps = draws.stat().st_size, 6 * files.EVERY - files.STEPS // 50
    os.truncate(draws, size - int(rng.integers(1, size * files.EVERY // steps)))
    same, said = files.resumed(directory)
    return same and any("goes on from" in text for text in said)


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


@contextlib.contextmanager
def without_rights() -> Iterator[None]:
    """Let permissions of files hold for root too."""
    libc, head = ctypes.CDLL(None), (ctypes.c_uint32 * 2)(0x20080522, 0)
    before, fewer = (ctypes.c_uint32 * 6)(), (ctypes.c_uint32 * 6)()
    libc.capget(head, before)
    fewer[:] = [before[0] & ~0b1110, *before[1:]]  # to override permissions, and to act as the owner
    libc.capset(head, fewer)
    try:
        yield
    finally:
        libc.capset(head, before)


@contextlib.contextmanager
def empty_caches(folder: Path) -> Iterator[list[Path]]:
    """Let Numba and JAX store what they compile in new folders, and forget the loops that were compiled; returns the folders."""
    from gyromc.engines import lanes  # a machine with a GPU may have no Numba

    forget = (lanes.kernel_folder.cache_clear, lanes.compiled_loop.cache_clear, compilation_cache.reset_cache)
    before, jax_before = lanes.SETTINGS.CACHE_DIR, jax.config.jax_compilation_cache_dir  # type: ignore[attr-defined]
    shutil.rmtree(folder, ignore_errors=True)
    made = [folder / "numba", folder / "jax"]
    for path in made:
        path.mkdir(parents=True)
    for act in forget:
        act()
    lanes.SETTINGS.CACHE_DIR = str(made[0])
    jax.config.update("jax_compilation_cache_dir", str(made[1]))
    try:
        yield made
    finally:
        lanes.SETTINGS.CACHE_DIR = before
        jax.config.update("jax_compilation_cache_dir", jax_before)
        for act in forget:
            act()


def caches(files: Files, rng: np.random.Generator) -> bool:
    """Read-only from the start, read-only after the loops' folder was looked at, or a disk that is full."""
    from gyromc.engines import lanes

    kind, c = ("at the start", "later", "full")[int(rng.integers(3))], float(rng.uniform(1, 2))
    plain = plan_of(10).replace(oracle=None, scheme="euler", martingale=False, num_steps=20)
    plans = {"scan": plain.replace(target=gm.targets.LogDensity(lambda t: -c * (t @ t))), "lanes": plain}
    expected = {engine: digest(gm.run(plan, engine, progress=False)) for engine, plan in plans.items()}
    plans["scan"] = plain.replace(target=gm.targets.LogDensity(lambda t: -c * (t @ t)))  # compiled anew
    most, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with empty_caches(files.folder / "caches") as folders, without_rights(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind != "at the start":
            lanes.kernel_folder()
        if kind == "full":
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(rng.integers(1, 1000)), hard))
        else:
            for path in (*folders, *folders[0].iterdir()):
                path.chmod(0o555)
        try:
            return all(
                digest(gm.run(plan, engine, progress=False)) == expected[engine] for engine, plan in plans.items()
            )
        except (OSError, RuntimeError):
            return False
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
            for path in (*folders, *folders[0].iterdir()):
                path.chmod(0o755)


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
        gm.run(plan, "lanes", progress=False, checkpoint=directory, every=50)
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
    "newest draws cut": draws_cut,
    "all checkpoints damaged": all_damaged,
    "disk full": full,
    "read-only directory": read_only,
    "clock jumps": clock,
    "data file removed": removed,
    "read-only or full caches": caches,
}


def damaged(tries: int, only: str = "", seed: int = 0) -> list[Row]:
    """The faults that need no process of their own and whose names contain `only`, so many times each."""
    chosen, rows = {name: fault for name, fault in FAULTS.items() if only in name}, []
    if not chosen:
        return rows
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder))
        for name, fault in chosen.items():
            rng = np.random.default_rng(seed)
            kept = [fault(files, rng) for _ in range(tries)]
            rows.append(Row(name, "lanes", tries, kept.count(False), 0, Files.EVERY))
    return rows
