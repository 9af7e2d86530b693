"""Finished results on disk, under names computed from the content of their plans; and the jobs that compute what is missing.

Input: the results of plans, as a `Piece` or as plain values. Output: the same results in a later run with the same plan, engine
and package version. An entry is an archive with checksums, written whole or not at all; a damaged one is computed again, with a
warning. `obtain` takes jobs and a place and returns their results by key: those in the cache, and the others as the place
computes them, each stored once it is finished.
"""

import contextlib
import dataclasses
import hashlib
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gyromc
from gyromc.checks import require
from gyromc.errors import GyromcWarning
from gyromc.io.archive import digest, read_archive, write_archive
from gyromc.io.codec import Codec
from gyromc.io.functions import References
from gyromc.io.runs import CLASSES
from gyromc.paper.workers import Place, WorkerTask
from gyromc.plan import FIELDS, Plan
from gyromc.results import Run
from gyromc.show.files import json_text, locked, require_writable
from gyromc.show.interruption import interruptible
from gyromc.show.progress import Progress, say

LOOK_AGAIN = 0.5
"""Seconds between two looks at whether another process still computes."""


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """The results of one plan: the averages of each chain (chains × observables), the engine, the times, failures, warnings."""

    names: tuple[str, ...]
    averages: np.ndarray
    engine: str
    wall_time: float
    failures: tuple[str, ...] = ()
    compile_time: float = 0.0  # seconds of `wall_time`
    warnings: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: Run, warnings: Iterable[str] = ()) -> "Piece":
        """Return the part of a run that is stored."""
        names, failures = tuple(run.averages), tuple(map(str, run.failures))
        table = np.column_stack([run.averages[name] for name in names])
        return cls(names, table, run.engine, run.wall_time, failures, run.compile_time, tuple(warnings))


CODEC = Codec({"Piece": Piece})


def fingerprint(plan: Plan, engine: str) -> str:
    """Return 32 hexadecimal digits that name the content of a plan and the engine: equal plans have equal names.

    A plan with a lambda is refused: what has no name cannot be compared.
    """
    fields = {name: getattr(plan, name) for name in FIELDS}
    content, arrays = Codec(CLASSES, References()).pack(fields)
    parts = gyromc.__version__, engine, json_text(content), *map(digest, arrays.values())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


class Cache:
    """Results in a directory, one file each; the directory is made, or refused when it cannot be written."""

    def __init__(self, directory: Path):
        self.directory = Path(directory)
        require_writable(self.directory)

    @contextlib.contextmanager
    def alone(self) -> Iterator["Cache"]:
        """Wait for another process on this machine that computes for this cache, and keep later ones waiting.

        So no piece is computed twice: the one that waited loads what was stored. The lock ends with its process.
        """
        with contextlib.ExitStack() as held:
            with interruptible("stopping") as stop:
                waited = False
                while held.enter_context(locked(self.directory)) is False:
                    held.close()
                    if not waited:
                        say(f"waiting for another process that computes in {self.directory}")
                    waited = True
                    stop.check()
                    time.sleep(LOOK_AGAIN)
            yield self

    def path(self, key: str) -> Path:
        """Return the path of an entry."""
        return self.directory / f"{key}.gyromc"

    def load(self, key: str) -> Any:
        """Return the entry, or None where there is none; a damaged one is reported and counts as none."""
        if not self.path(key).exists():
            return None
        try:
            archive = read_archive(self.path(key))
            require(archive.kind == key, "it was stored under another name")
            return CODEC.unpack(archive)
        # Whatever a reader makes of damaged content: the entry can always be computed again.
        except Exception as error:
            message = f"The cache entry {self.path(key)} is damaged ({error}): it is computed again."
            warnings.warn(message, GyromcWarning, stacklevel=2)

    def store(self, key: str, value: Any) -> None:
        """Store a piece or plain values; when this returns, they are on disk."""
        write_archive(self.path(key), key, value, CODEC, own_folder=True)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C; the message names how many pieces are finished, and where they are stored."""


class Job(NamedTuple):
    """A task whose result is stored under a key; `fresh`: whether it is computed even where the cache has it."""

    key: str
    task: WorkerTask
    fresh: bool = False


class Obtained(NamedTuple):
    """The results by key, and the keys of those that were computed now."""

    values: Mapping[str, Any]
    computed: frozenset[str]


def obtain(jobs: Iterable[Job], cache: Cache, place: Place, shown: Progress) -> Obtained:
    """Load what the cache has, compute the rest at a place, and store each result as soon as it is there.

    Jobs with the same key are one. Ctrl-C raises `Interrupted`.
    """
    values, computed, missing = {}, set(), []
    for job in {job.key: job for job in jobs}.values():
        value = None if job.fresh else cache.load(job.key)
        if value is None:
            missing.append(job)
        else:
            values[job.key] = value
            shown.advance(job.task.seconds)
    total = len(values) + len(missing)
    with interruptible("stopping") as stop:
        try:
            with contextlib.closing(place.results([job.task for job in missing], shown)) as results:
                for number, value in results:
                    key = missing[number].key
                    cache.store(key, value)
                    values[key] = value
                    computed.add(key)
                    stop.check()
        except KeyboardInterrupt:
            raise Interrupted(f"{len(values)} of {total} pieces are kept in {cache.directory}") from None
    return Obtained(values, frozenset(computed))
