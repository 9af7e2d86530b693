"""Checkpoints: what a run needs to go on after its process ended, in a directory of files.

Input: the directory, a plan and the options of its run. Output: the newest checkpoint as a partial `Run`, and new checkpoints as
the run goes on. A checkpoint is one archive (`gyromc.archive`), named by its step, that appears whole or not at all. It holds the
state of the chains (`states`) with the position of their random numbers, the sums of observables and martingales and block sums,
the list of the files with the draws so far (`pieces`), what was computed for the plan before its first step, the versions of the
programs, and a description of the plan. Files are ordered by step, never by date, so that a clock that jumps changes nothing.
"""

import contextlib
import os
import re
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gyromc import __version__
from gyromc.archive import read_archive, unpack, write_archive
from gyromc.checks import require, shown, whole
from gyromc.engines.pieces import DrawsFile, DrawsFiles
from gyromc.engines.states import StateFolder, read_state, state_store
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.flat import shaped
from gyromc.packing import PIECES, changed_versions, description, differences, prepared, remember, versions
from gyromc.plan import Plan
from gyromc.results import Cause, EngineState, Failure, Run, RunOptions
from gyromc.show.files import locked, require_writable, sync_folder
from gyromc.show.interruption import Interruption
from gyromc.show.progress import say

__all__ = ["KIND", "STATE", "Checkpoints"]

KIND = "checkpoint"
STATE: dict[str, type] = {
    known.__name__: known for known in (EngineState, Failure, Cause, RunOptions, DrawsFile, StateFolder)
}
"""The classes of a run besides those of its plan, by name."""
NAME = re.compile(r"step-(\d{15})\.gyromc")
LEFT = re.compile(r"\.(step|draws)-.*\.gyromc\.")
UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0}
READING = (InvalidInput, OSError, KeyError, TypeError, ValueError, AttributeError)  # what reading a damaged one raises
NUMBERS = ("engine", "thin", "sane_range")  # options that the numbers of a run depend on


class Checkpoints:
    """The checkpoints of one run; a context that keeps other processes off its directory. `ended`: whether a signal came."""

    def __init__(
        self,
        directory: str | Path,
        plan: Plan,
        options: RunOptions,
        every: str | int,
        keep: int,
        ended: Interruption,
        state_format: str = "archive",
    ):
        require(isinstance(directory, str | os.PathLike), f"`checkpoint` must be a directory: got {shown(directory)}.")
        self.directory, self.plan, self.options, self.ended = Path(directory), plan, options, ended
        self.seconds, self.steps = _interval(every)
        self.keep = whole(keep, "keep", least=1)
        self.description = description(plan, {name: getattr(options, name) for name in NUMBERS})
        self.saved = time.monotonic()
        self.last: int | None = None  # the step of the last checkpoint
        self.pieces = DrawsFiles(self.directory, plan.burn_in, options.thin)
        self.read_draws: np.ndarray | None = None  # of the checkpoint that was read, as they were stored
        self._computed: dict[str, Any] | None = None
        self.states = state_store(state_format, self.directory)
        self._referred: dict[Path, _Files] = {}  # what the checkpoints that were read or written refer to
        self._lock = contextlib.ExitStack()

    def __enter__(self) -> "Checkpoints":
        require_writable(self.directory)
        free = self._lock.enter_context(locked(self.directory))
        if free is False:
            self._lock.close()
            raise InvalidInput(
                f"Another process saves checkpoints to {self.directory}. Wait for it, or pass another directory."
            )
        if free is None:
            say(f"{self.directory} has no locks: see to it that no other run saves there at the same time")
        for path in self.directory.iterdir():
            if LEFT.match(path.name):  # by a process that was killed while it wrote
                path.unlink(missing_ok=True)
        return self

    def __exit__(self, *raised: Any) -> None:
        self._lock.close()

    def newest(self) -> Run | None:
        """The newest checkpoint that is not damaged, as a partial run; None in an empty directory.

        `InvalidInput` where all are damaged, or the newest is of another plan; nothing is changed then.
        """
        files, reasons = self._files(), {}
        for path in reversed(files):
            try:
                content = self._content(path)
                self._compare(content, path)
                self.read_draws = self.pieces.read(content["draws"]) if content["draws"] else None
                found = self._run(content, self.read_draws)
            except _OtherPlan as error:
                raise InvalidInput(str(error)) from None
            except READING as error:
                reasons[path] = str(error)
                continue
            self._set_aside(reasons, path)
            self.saved, self.last, self.pieces.stored = time.monotonic(), found.state.step, self._referred[path].draws
            return found
        require(
            not files,
            f"None of the {len(files)} checkpoints in {self.directory} can be read, and none was changed. The newest: "
            f"{next(iter(reasons.values()), '')} Pass another directory to start anew.",
        )
        return None

    def due(self, step: int) -> bool:
        """Whether it is time for the next one."""
        if self.steps is not None:
            return step % self.steps == 0
        return self.seconds is not None and time.monotonic() - self.saved >= self.seconds

    def save(self, run: Run, kept: list[np.ndarray]) -> None:
        """Write a checkpoint and remove the oldest; where that fails a warning says so, and the run goes on."""
        content = {
            "description": self.description,
            "versions": versions(),
            "failures": run.failures,
            "prepared": self._prepared(run.plan),
            "times": (run.wall_time, run.compile_time),
        }
        path = self.directory / f"step-{run.state.step:015d}.gyromc"
        try:
            pieces = self.pieces.added(kept)
            content |= {"draws": list(pieces), "state": self.states.write(run.state)}
            write_archive(path, KIND, content, PIECES | STATE, __version__)
            sync_folder(self.directory)
            self.last, self.pieces.stored = run.state.step, pieces
            self._referred[path] = _Files(pieces, _folder(content["state"]))
            for old in [p for p in self._files() if p <= path][: -self.keep]:
                old.unlink(missing_ok=True)
            self._remove_unused()
        except (InvalidInput, OSError) as error:
            warnings.warn(
                f"The checkpoint at step {run.state.step} was not saved, and the run goes on: {error}",
                GyromcWarning,
                stacklevel=4,
            )
            with contextlib.suppress(OSError):
                self._remove_unused()
        self.saved = time.monotonic()

    def _remove_unused(self) -> None:
        """Remove the files of draws and of states that no checkpoint refers to."""
        files = self._files()
        for path in set(files) - set(self._referred):
            try:
                self._content(path)
            except READING:
                return  # which of them it needs is not known
        self._referred = {path: self._referred[path] for path in files}
        self.pieces.keep_only({piece.name for files in self._referred.values() for piece in files.draws})
        self.states.keep_only([files.state for files in self._referred.values()])

    def _content(self, path: Path) -> dict[str, Any]:
        """What a checkpoint holds, and note the pieces that it refers to."""
        archive = read_archive(path)
        require(archive.kind == KIND, f"{path} holds {archive.kind!r}, not a checkpoint.")
        content = unpack(archive.content, archive.arrays, PIECES | STATE)
        self._referred[path] = _Files(tuple(content["draws"]), _folder(content["state"]))
        return content

    def _prepared(self, plan: Plan) -> dict[str, Any]:
        """What was computed for the plan, computed once."""
        if self._computed is None:
            self._computed = prepared(plan, functions=False)
        return self._computed

    def _files(self) -> list[Path]:
        return sorted(path for path in self.directory.iterdir() if NAME.fullmatch(path.name))

    def _compare(self, content: dict[str, Any], path: Path) -> None:
        changed = differences(content["description"], self.description)
        if changed:
            raise _OtherPlan(
                f"{path} is a checkpoint of another plan. What differs:\n  "
                + "\n  ".join(changed)
                + "\nPass the plan as it was, or another directory to start anew."
            )
        if other := changed_versions(content["versions"]):
            warnings.warn(
                f"{path} was written by other programs ({other}): the run goes on, but its numbers may differ in "
                "their last digits from those of a run that was not interrupted.",
                GyromcWarning,
                stacklevel=5,
            )

    def _run(self, content: dict[str, Any], draws: Any) -> Run:
        """The checkpoint as a partial run, its plan with what was computed for it; `draws`: draws × chains × d, or None."""
        plan = self.plan.replace()
        remember(plan, content["prepared"])
        if draws is not None:
            draws = shaped(plan.unravel, draws.swapaxes(0, 1))
        return Run(
            plan=plan,
            engine=self.options.engine,
            engine_reason=self.options.reason,
            state=read_state(content["state"], self.directory),
            wall_time=content["times"][0],
            compile_time=content["times"][1],
            partial=True,
            failures=content["failures"],
            draws=draws,
            options=self.options,
        )

    def _set_aside(self, reasons: dict[Path, str], used: Path) -> None:
        """Rename damaged checkpoints, so that they are not read again, and say which one is used."""
        for path, reason in reasons.items():
            with contextlib.suppress(OSError):
                path.rename(path.with_suffix(".damaged"))
            warnings.warn(
                f"{reason} {path.name} is now named {path.with_suffix('.damaged').name}, and the run goes on from "
                f"{used.name}.",
                GyromcWarning,
                stacklevel=4,
            )


class _Files(NamedTuple):
    """What a checkpoint refers to: files of draws, and the folder of its state, if it has one."""

    draws: tuple[DrawsFile, ...]
    state: StateFolder | None


def _folder(state: EngineState | StateFolder) -> StateFolder | None:
    return state if isinstance(state, StateFolder) else None


class _OtherPlan(Exception):
    """A checkpoint belongs to another plan."""


def _interval(every: str | int) -> tuple[float | None, int | None]:
    """Seconds or steps between two checkpoints; the other is None."""
    if not isinstance(every, str):
        return None, whole(every, "every", least=1)
    given = re.fullmatch(r"\s*(\d+\.?\d*)\s*(s|min|h)\s*", every)
    if given is None:
        raise InvalidInput(
            f'`every` must be a time such as "30s", "5min" or "2h", or a whole number of steps: got {shown(every)}.'
        )
    return float(given[1]) * UNITS[given[2]], None
