"""Finished pieces on disk: the averages of one plan, under a name computed from the plan's content.

Input: a plan and its results. Output: the same results in a later run with the same plan, engine and package version. An entry is
written whole or not at all, after a checksum of its key and content; a damaged one is computed again, with a warning.
"""

import contextlib
import dataclasses
import hashlib
import io
import json
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import jax
import numpy as np

import gyromc
from gyromc.checks import require
from gyromc.errors import GyromcWarning
from gyromc.plan import Plan
from gyromc.results import Run
from gyromc.show.files import json_text, require_writable, write_atomically

__all__ = ["Cache", "Claims", "Piece", "fingerprint"]

FORMAT = 2


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """The results of one plan: the averages of each chain (chains × observables), the engine, the times, the failures."""

    names: tuple[str, ...]
    averages: np.ndarray
    engine: str
    wall_time: float
    failures: tuple[str, ...] = ()
    compile_time: float = 0.0  # seconds of `wall_time`

    @classmethod
    def of(cls, run: Run) -> "Piece":
        """Return the part of a run that is stored."""
        names = tuple(run.averages)
        table = np.column_stack([run.averages[name] for name in names])
        return cls(names, table, run.engine, run.wall_time, tuple(map(str, run.failures)), run.compile_time)

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
    for name in ("target", "oracle"):
        add(name, *_content(getattr(plan, name), name))
    for name, observable in plan.observables.items():
        add(name, *_content(observable, name))
    require(plan.starts.draw is None, "A plan whose start is a function cannot be cached: pass numbers.")
    for name, value in (("theta0", plan.starts.theta), ("r0", plan.starts.r)):
        add(name, value if value is None else np.asarray(value, float))
    require(not plan.scheduled, "A plan with a step-size schedule cannot be cached: pass one number.")
    add("scheme", plan.scheme.name, *map(np.asarray, jax.tree.leaves(plan.scheme)))  # its function has no stable name
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

    def path(self, key: str) -> Path:
        """Return the path of a piece."""
        return self.directory / f"{key}.npz"

    def load(self, key: str, plan: Plan) -> Piece | None:
        """Return the piece, or None where there is none; a damaged one is reported and counts as none."""

        def read(content: bytes) -> Piece:
            with np.load(io.BytesIO(content), allow_pickle=False) as entry:
                header, averages = json.loads(str(entry["header"])), entry["averages"]
            names, failures = tuple(header.pop("names")), tuple(header.pop("failures"))
            if set(names) != set(plan.observables) or averages.shape != (plan.num_chains, len(names)):
                raise ValueError("its content belongs to another plan")
            return Piece(names=names, averages=averages, failures=failures, **header)

        return _read(self.path(key), read)

    def store(self, key: str, piece: Piece) -> None:
        """Store a piece; when this returns, it is on disk."""
        header = dataclasses.asdict(piece)
        averages, buffer = header.pop("averages"), io.BytesIO()
        np.savez_compressed(buffer, header=np.array(json.dumps(header)), averages=averages)
        _write(self.path(key), buffer.getvalue())

    def load_json(self, key: str) -> dict | None:
        """Return the plain values stored under this key, or None."""
        return _read(self.directory / f"{key}.json", json.loads)

    def store_json(self, key: str, value: dict) -> None:
        """Store plain values."""
        _write(self.directory / f"{key}.json", json_text(value).encode())


class Claims:
    """Which entries of a cache this process computes, so that no other process on this machine does; ended with the process.

    A claim is a lock on one byte of the file `.claims`, at a place that the key gives. Where the system has no such locks, every
    claim is granted. The system drops all locks of a process on a file when any handle of it is closed: there is one for a file.
    """

    handles: ClassVar[dict[Path, tuple[int, int]]] = {}  # by file: the handle, and how many use it
    guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, directory: Path):
        self.path, self.handle = Path(directory).resolve() / ".claims", -1

    def __enter__(self) -> "Claims":
        with self.guard, contextlib.suppress(OSError):
            self.handle, users = self.handles.get(self.path) or (os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644), 0)
            self.handles[self.path] = self.handle, users + 1
        return self

    def __exit__(self, *_) -> None:
        with self.guard:
            handle, users = self.handles.pop(self.path, (-1, 0))
            if users > 1:
                self.handles[self.path] = handle, users - 1
            elif handle >= 0:
                os.close(handle)

    def take(self, key: str) -> bool:
        """Claim an entry; False where another process has it."""
        try:
            import fcntl

            fcntl.lockf(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, _place(key))
        except (BlockingIOError, PermissionError):
            return False
        except (ImportError, OSError, ValueError):  # no locks on this system or disk, or no handle
            return True
        return True

    def release(self, key: str) -> None:
        """Give a claim back."""
        try:
            import fcntl

            fcntl.lockf(self.handle, fcntl.LOCK_UN, 1, _place(key))
        except (ImportError, OSError, ValueError):
            pass


def _place(key: str) -> int:
    """A byte far beyond the end of any file; two keys share one with a probability of 2⁻⁶⁰."""
    return int(key[:15], 16)


def _checksum(path: Path, content: bytes) -> bytes:
    """The first line of an entry; it covers the key, so that an entry under another name counts as damaged."""
    return hashlib.sha256(path.name.encode() + b"\n" + content).hexdigest().encode()


def _write(path: Path, content: bytes) -> None:
    write_atomically(path, _checksum(path, content) + b"\n" + content)


def _read(path: Path, reader: Callable[[bytes], Any]) -> Any:
    """Return what the reader makes of an entry's content; None where there is none, or, with a warning, a damaged one."""
    if not path.exists():
        return None
    try:
        checksum, _, content = path.read_bytes().partition(b"\n")
        if checksum != _checksum(path, content):
            raise ValueError("its content does not match its checksum")
        return reader(content)
    except Exception as error:  # whatever a reader makes of damaged content: the entry can always be computed again
        message = f"The cache entry {path} is damaged ({error}): it is computed again."
        warnings.warn(message, GyromcWarning, stacklevel=3)
