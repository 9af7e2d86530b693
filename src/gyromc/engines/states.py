"""Where a checkpoint stores the state of the chains: inside its archive, or with Orbax in a folder beside it.

Input: an `EngineState`. Output: what the checkpoint's archive holds in its place, from which `read_state` makes the state again.
In an archive that is the state itself. With Orbax it is a `StateFolder`: the name of the folder, the SHA-256 of every file in it,
and the state without its arrays. Orbax writes the parts of an array that is spread over devices side by side, compressed; they
are read back as arrays on the host, on any number of devices.
"""

import contextlib
import dataclasses
import hashlib
import os
import re
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from gyromc.checks import one_of, require
from gyromc.errors import InvalidInput
from gyromc.extras import needs
from gyromc.results import EngineState

__all__ = ["InArchive", "StateFolder", "StateStore", "WithOrbax", "read_state", "state_store"]

NAME = re.compile(r"state-\d{15}\.orbax")
ARRAYS = ("z", "high", "low", "failed_at", "generator", "anchors")  # of a state; the snapshots are arrays too
AT_ONCE = 2**20  # bytes of a file that are read for its checksum


@dataclasses.dataclass(frozen=True)
class StateFolder:
    """A state that Orbax wrote: its folder, the SHA-256 of the files in it, and the state without its arrays."""

    name: str
    sha256: Mapping[str, str]
    arrays: tuple[str, ...]
    rest: EngineState


class StateStore(Protocol):
    """A way to store states."""

    def write(self, state: EngineState) -> EngineState | StateFolder:
        """Store a state; returns what the archive of the checkpoint holds for it."""
        ...

    def keep_only(self, stored: Collection[Any]) -> None:
        """Remove all other states."""
        ...


class InArchive:
    """States inside the archives of their checkpoints."""

    def write(self, state: EngineState) -> EngineState:
        """The state itself."""
        return state

    def keep_only(self, stored: Collection[Any]) -> None:
        """They are removed with their archives."""


class WithOrbax:
    """States in folders that Orbax writes, named by their steps, in the directory of the checkpoints."""

    def __init__(self, directory: Path):
        self.directory = Path(os.path.abspath(directory))
        _orbax()  # where it is missing this is said before the first step

    def write(self, state: EngineState) -> StateFolder:
        """Write the arrays to a folder that appears whole or not at all."""
        arrays = {name: getattr(state, name) for name in ARRAYS if getattr(state, name) is not None}
        arrays |= {f"snapshot {k}": sums for k, sums in state.snapshots.items()}
        folder = self.directory / f"state-{state.step:015d}.orbax"
        try:
            shutil.rmtree(folder, ignore_errors=True)  # of a process that ended before its checkpoint was complete
            with _checkpointer() as checkpointer:
                checkpointer.save(folder, args=_orbax().args.PyTreeSave(arrays))
            sums = {name: _sum(folder / name) for name in _files(folder)}
        except Exception as error:  # tensorstore raises errors of many kinds
            shutil.rmtree(folder, ignore_errors=True)
            text = str(error).partition("\n")[0]
            raise InvalidInput(f"Orbax cannot write {folder} ({type(error).__name__}: {text}).") from None
        rest = dataclasses.replace(state, **dict.fromkeys(ARRAYS), snapshots={})  # type: ignore[arg-type]  # in a file, no array
        return StateFolder(folder.name, sums, tuple(arrays), rest)

    def keep_only(self, stored: Collection[Any]) -> None:
        """Remove all other folders, those that a killed process left unfinished too."""
        names = {state.name for state in stored if isinstance(state, StateFolder)}
        for path in self.directory.glob("state-*.orbax*"):
            if path.name not in names:
                shutil.rmtree(path, ignore_errors=True)


STORES = {"archive": lambda directory: InArchive(), "orbax": WithOrbax}


def state_store(name: str, directory: Path) -> StateStore:
    """The way to store states that has this name."""
    return STORES[one_of(name, tuple(STORES), "checkpoint_format")](directory)


def read_state(stored: EngineState | StateFolder, directory: Path) -> EngineState:
    """The state that `write` stored, its arrays on the host; `InvalidInput` where a file of it is missing or damaged."""
    if isinstance(stored, EngineState):
        return stored
    folder = Path(os.path.abspath(directory)) / stored.name
    require(NAME.fullmatch(stored.name) is not None, f"{folder} is no name of a folder of states.")
    require(folder.is_dir(), f"There is no folder {folder}.")
    found = {name: _sum(folder / name) for name in _files(folder)}
    changed = sorted(name for name in {**stored.sha256, **found} if stored.sha256.get(name) != found.get(name))
    require(not changed, f"{folder} is damaged: {', '.join(changed[:3])} differs from what was written, or is missing.")
    orbax = _orbax()
    wanted = {name: orbax.RestoreArgs(restore_type=np.ndarray) for name in stored.arrays}
    try:
        with _checkpointer() as checkpointer:
            arrays = checkpointer.restore(folder, args=orbax.args.PyTreeRestore(restore_args=wanted))
    except Exception as error:
        text = str(error).partition("\n")[0]
        raise InvalidInput(f"Orbax cannot read {folder} ({type(error).__name__}: {text}).") from None
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    snapshots = {int(name.split()[1]): arrays.pop(name) for name in stored.arrays if name.startswith("snapshot ")}
    return dataclasses.replace(stored.rest, **arrays, snapshots=snapshots)


def _checkpointer() -> Any:
    """Orbax's writer and reader of arrays; with several processes this one works alone, since each has the whole state."""
    orbax, options = _orbax(), {}
    if jax.process_count() > 1:
        own = jax.process_index()
        alone = orbax.options.MultiprocessingOptions(own, {own}, f"gyromc {own}")
        options = {"multiprocessing_options": alone}
    handler = orbax.PyTreeCheckpointHandler(**options)
    return contextlib.closing(orbax.Checkpointer(handler, **options))


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _sum(path: Path) -> str:
    """The SHA-256 of a file, once it is on the disk."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        os.fsync(file.fileno())
        while part := file.read(AT_ONCE):
            found.update(part)
    return found.hexdigest()


def _orbax() -> Any:
    with needs("orbax", '`checkpoint_format="orbax"`'):
        import orbax.checkpoint
    return orbax.checkpoint
