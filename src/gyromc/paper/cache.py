"""Finished pieces on disk: the averages (E4) of one plan, under a name made of the plan's content.

Receives a plan and what it gave; hands it on again in any later run that asks for the same plan, engine and package version. An
entry is written whole or not at all; one that cannot be read is computed again, with a warning.
"""

import dataclasses
import hashlib
import json
import os
import tempfile
import warnings
import zipfile
from pathlib import Path

import jax
import numpy as np

import gyromc
from gyromc.checks import require
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.plan import Plan
from gyromc.results import Run

__all__ = ["Cache", "Piece", "fingerprint", "write_atomically"]

FORMAT = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Piece:
    """What one plan gave: the averages of each chain (chains × observables) and how they came about."""

    names: tuple[str, ...]
    averages: np.ndarray
    engine: str
    wall_time: float
    failures: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: Run) -> "Piece":
        """The lasting part of a run."""
        names = tuple(run.averages)
        table = np.column_stack([run.averages[name] for name in names])
        return cls(names, table, run.engine, run.wall_time, tuple(map(str, run.failures)))


def fingerprint(plan: Plan, engine: str) -> str:
    """A name for the content of a plan: equal plans have equal names, whatever they are called.

    **Arguments:**

    - `plan`: built from values of `gyromc`; functions have no content to compare, so plans that hold any are refused.
    - `engine`: which engine does it.

    **Returns:** 32 hexadecimal digits.
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
    for name in ("step_size", "num_steps", "num_chains", "seed", "scheme", "burn_in", "weighting", "dtype"):
        add(name, plan.scheme.name if name == "scheme" else getattr(plan, name))
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
    """Pieces in a directory, one file each.

    **Arguments:**

    - `directory`: made when it does not exist; refused when it cannot be written.
    """

    def __init__(self, directory: Path):
        self.directory = Path(directory)
        require_writable(self.directory)

    def path(self, key: str) -> Path:
        """Where a piece lies."""
        return self.directory / f"{key}.npz"

    def load(self, key: str, plan: Plan) -> Piece | None:
        """The piece, or None where there is none; a damaged one is reported and counts as none."""
        path = self.path(key)
        if not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as entry:
                header = json.loads(str(entry["header"]))
                averages = entry["averages"]
            if header["key"] != key or averages.shape != (plan.num_chains, len(plan.observables)):
                raise ValueError("its content belongs to another plan")
            return Piece(
                tuple(header["names"]), averages, header["engine"], header["wall_time"], tuple(header["failures"])
            )
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            warnings.warn(
                f"The cache entry {path} is damaged ({error}): it is computed again.", GyromcWarning, stacklevel=2
            )
            return None

    def load_json(self, key: str) -> dict | None:
        """Plain values kept under this key, or None."""
        path = self.directory / f"{key}.json"
        if not path.exists():
            return None
        try:
            return json.loads(path.read_text())
        except ValueError as error:
            warnings.warn(
                f"The cache entry {path} is damaged ({error}): it is computed again.", GyromcWarning, stacklevel=2
            )
            return None

    def store_json(self, key: str, value: dict) -> None:
        """Keep plain values."""
        write_atomically(self.directory / f"{key}.json", json.dumps(value, allow_nan=False))

    def store(self, key: str, piece: Piece) -> None:
        """Keep a piece; after this it survives anything but the disk."""
        header = {
            "key": key,
            "names": piece.names,
            "engine": piece.engine,
            "wall_time": piece.wall_time,
            "failures": piece.failures,
        }
        write_atomically(
            self.path(key),
            lambda file: np.savez_compressed(file, header=np.array(json.dumps(header)), averages=piece.averages),
        )


def write_atomically(path: Path, content) -> None:
    """Write a file whole or not at all.

    **Arguments:**

    - `path`: where; whatever was there before stays until the new content is complete.
    - `content`: text, bytes, or a function that writes to an open binary file.
    """
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as file:
            temporary = file.name
            if callable(content):
                content(file)
            else:
                file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise InvalidInput(
            f"Cannot write {path}: {error.strerror or error}. Free some space or pass another directory with `--out`; "
            "everything finished so far is kept."
        ) from error


def require_writable(directory: Path) -> None:
    """Make the directory and write a byte into it, or say why not."""
    if directory.exists():
        require(directory.is_dir(), f"{directory} is a file: pass a directory with `--out`.")
    probe = directory / f".probe-{os.getpid()}"
    write_atomically(probe, b"x")
    probe.unlink()
