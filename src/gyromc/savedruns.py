"""Runs as files: `run.save(path)` writes one, `gyromc.load(path)` returns it.

Input: a `Run`. Output: an archive with its plan, what was computed for the plan, the state of the chains, draws and failures. A
loaded run is continued bit for bit like the saved one, on the same kind of machine with the same versions.
"""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gyromc import __version__
from gyromc.archive import Archive, Functions, unpack, write_archive
from gyromc.checks import require
from gyromc.data.prints import FilePrint
from gyromc.engines.checkpoints import STATE
from gyromc.engines.loop import resume
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.packing import PIECES, changed_versions, packed_plan, unpacked_plan, versions
from gyromc.references import References
from gyromc.results import Run

__all__ = ["KIND", "restored", "save_run"]

KIND = "run"
FIELDS = ("engine", "state", "wall_time", "compile_time", "partial", "failures", "draws", "engine_reason")


def save_run(run: Run, path: str | Path) -> None:
    """Write a run to a file, whole or not at all; `InvalidInput` where a function in it has no name."""
    options = None if run.options is None else run.options.__getstate__()
    content = {
        "plan": packed_plan(run.plan),
        "run": {name: getattr(run, name) for name in FIELDS},
        "options": options,
        "versions": versions(),
    }
    write_archive(path, KIND, content, PIECES | STATE, __version__, References())


def restored(archive: Archive, path: str | Path, functions: Functions, data: Mapping[str, str | Path]) -> Run:
    """Return the run of an archive that was read; `data`: where files of rows are now, by the paths that they had."""
    try:
        content = unpack(_moved(archive.content, data), archive.arrays, PIECES | STATE, functions)
        options = None if content["options"] is None else STATE["RunOptions"](**content["options"])
        run = Run(plan=unpacked_plan(content["plan"]), options=options, resume=resume, **content["run"])
    except InvalidInput as error:
        raise InvalidInput(f"{path}: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidInput(
            f"{path} was written by gyromc {archive.written_by} and holds what this gyromc ({__version__}) does not know "
            f"({type(error).__name__}: {error}). Use the gyromc that wrote it, or run the plan again."
        ) from None
    if other := changed_versions(content["versions"]):
        warnings.warn(
            f"{path} was written by other programs ({other}): a continuation may differ in its last digits from one "
            "that they would make.",
            GyromcWarning,
            stacklevel=3,
        )
    return run


def _moved(content: Any, data: Mapping[str, str | Path]) -> Any:
    """The packed content with other paths for files of rows; `InvalidInput` for a path that is not in it."""
    named: list[str] = []

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(entry) for entry in value]
        if not isinstance(value, dict):
            return value
        found = {key: walk(entry) for key, entry in value.items()}
        if found.get("class") == FilePrint.__name__:
            named.append(found["fields"]["path"])
            found["fields"]["path"] = now.get(named[-1], named[-1])
        return found

    now = {os.path.abspath(before): os.path.abspath(after) for before, after in data.items()}
    walked = walk(content) if data else content
    unknown = [before for before in now if before not in named]
    listed = f"It reads {', '.join(dict.fromkeys(named))}." if named else "It reads no file of rows."
    require(not unknown, f"`data` names {', '.join(unknown)}, which the stored plan does not read. {listed}")
    return walked
