"""Finished results on disk, under names computed from the content of their plans; and the jobs that compute what is missing.

Input: the results of plans, as a `Piece` or as plain values. Output: the same results in a later run with the same plan, engine
and package version. An entry is written whole or not at all, after a checksum of its key and content; a damaged one is computed
again, with a warning. `obtain` takes jobs and a place and returns their results by key: those in the cache, and the others as the
place computes them, each stored once it is finished.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import gyromc
from gyromc.checks import require
from gyromc.errors import GyromcWarning
from gyromc.paper.workers import Place, WorkerTask
from gyromc.plan import Plan
from gyromc.results import Run
from gyromc.show.files import json_text, locked, require_writable, write_atomically
from gyromc.show.interruption import interruptible
from gyromc.show.progress import Progress, say

FORMAT = 2
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

    def first(self, num_chains: int) -> "Piece":
        """Return the results of the first chains, of a piece without failures; they took no time of their own."""
        return dataclasses.replace(self, averages=self.averages[:num_chains].copy(), wall_time=0.0, compile_time=0.0)


def fingerprint(plan: Plan, engine: str, count_chains: bool = True) -> str:
    """Return 32 hexadecimal digits that name the content of a plan and the engine: equal plans have equal names.

    The content of functions cannot be compared, so a plan that holds any is refused. Without `count_chains`, plans that differ
    only in the number of chains have equal names as well.
    """
    digest = hashlib.sha256()

    def add(*parts: object) -> None:
        for part in parts:
            if isinstance(part, np.ndarray):
                part = f"{part.shape} {part.dtype}".encode() + np.ascontiguousarray(part).tobytes()
            digest.update(part if isinstance(part, bytes) else repr(part).encode())
            digest.update(b"\x00")

    add(gyromc.__version__, FORMAT, engine, plan.dynamics.D, plan.dynamics.Q, plan.augmented)
    for name in ("target", "oracle", "coordinates"):
        add(name, *_content(getattr(plan, name), name))
    for name, observable in plan.observables.items():
        add(name, *_content(observable, name))
    require(plan.starts.draw is None, "A plan whose start is a function cannot be cached: pass numbers.")
    for name, value in (("theta0", plan.starts.theta), ("r0", plan.starts.r)):
        add(name, value if value is None else np.asarray(value, float))
    require(not plan.scheduled, "A plan with a step-size schedule cannot be cached: pass one number.")
    # Its function has no stable name.
    add("scheme", plan.scheme.name, *map(np.asarray, jax.tree.leaves(plan.scheme)))
    for name in ("step_size", "num_steps", "num_chains", "seed", "burn_in", "weighting", "dtype", "martingale"):
        add(name, getattr(plan, name) if count_chains or name != "num_chains" else None)
    return digest.hexdigest()[:32]


def _content(module, name: str) -> list[object]:
    """Class, structure and arrays of a target, oracle or observable."""
    leaves, treedef = jax.tree.flatten(module)
    require(
        not any(callable(leaf) for leaf in leaves),
        f"`{name}` holds a function, whose content cannot be compared: it cannot be cached.",
    )
    return [type(module).__qualname__, str(treedef), *(np.asarray(leaf) for leaf in leaves)]


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

    def path(self, key: str, kind: str = "npz") -> Path:
        """Return the path of an entry: pieces are `npz`, plain values `json`."""
        return self.directory / f"{key}.{kind}"

    def load(self, key: str) -> Any:
        """Return the entry, or None where there is none; a damaged one is reported and counts as none."""
        path = next((path for kind in ("npz", "json") if (path := self.path(key, kind)).exists()), None)
        if path is None:
            return None
        try:
            checksum, _, content = path.read_bytes().partition(b"\n")
            if checksum != _checksum(path, content):
                raise ValueError("its content does not match its checksum")
            return json.loads(content) if path.suffix == ".json" else _piece(content)
        # Whatever a reader makes of damaged content: the entry can always be computed again.
        except Exception as error:
            message = f"The cache entry {path} is damaged ({error}): it is computed again."
            warnings.warn(message, GyromcWarning, stacklevel=2)

    def store(self, key: str, value: Any) -> None:
        """Store a piece or plain values; when this returns, they are on disk."""
        path = self.path(key, "npz" if isinstance(value, Piece) else "json")
        content = _content_of(value) if isinstance(value, Piece) else json_text(value).encode()
        write_atomically(path, _checksum(path, content) + b"\n" + content)


def _checksum(path: Path, content: bytes) -> bytes:
    """The first line of an entry; it covers the key, so that an entry under another name counts as damaged."""
    return hashlib.sha256(path.name.encode() + b"\n" + content).hexdigest().encode()


def _content_of(piece: Piece) -> bytes:
    header, buffer = dataclasses.asdict(piece), io.BytesIO()
    averages = header.pop("averages")
    np.savez_compressed(buffer, header=np.array(json.dumps(header)), averages=averages)
    return buffer.getvalue()


def _piece(content: bytes) -> Piece:
    with np.load(io.BytesIO(content), allow_pickle=False) as entry:
        header, averages = json.loads(str(entry["header"])), entry["averages"]
    fields: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in header.items()}
    return Piece(averages=averages, **fields)


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
