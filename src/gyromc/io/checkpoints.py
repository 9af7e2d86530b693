"""Checkpoints: what a run needs to go on after its process ended, in a directory of files.

A checkpoint is one archive, named by its step, that appears whole or not at all: the state of the chains and of their random
numbers, all sums, what was computed for the plan before its first step, versions, a description of the plan, and how much of the
file of draws belongs to it. Several processes of one run begin from the same numbers; process 0 reads and writes for all.
"""

import contextlib
import hashlib
import math
import os
import re
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gyromc import processes
from gyromc.checks import read_path, require, shown, whole
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.flat import shaped
from gyromc.io.archive import read_archive, write_archive
from gyromc.io.runs import PLAIN, checked_run, described, differences, prepared, remember, versions, warn_of_versions
from gyromc.plan import Plan
from gyromc.results import Run, RunOptions
from gyromc.show.files import locked, require_writable
from gyromc.show.progress import Interruption, say


class DrawsFile:
    """The draws of one run in a file that only grows; each checkpoint has the number of those before it, and their SHA-256."""

    def __init__(self, path: Path, plan: Plan):
        self.path, self.shape, self.dtype = path, (plan.num_chains, plan.dim), np.dtype(plan.dtype)
        self.row = math.prod(self.shape) * self.dtype.itemsize
        # Of the newest checkpoint.
        self.count, self.sum = 0, hashlib.sha256()

    def append(self, kept: Sequence[np.ndarray]) -> tuple[int, Any]:
        """Write the draws that the newest checkpoint lacks; returns how many there are now, and their SHA-256."""
        total, found = sum(map(len, kept)), self.sum.copy()
        if total > self.count:
            with open(self.path, "r+b" if self.count else "wb") as file:
                file.truncate(self.count * self.row)
                file.seek(0, os.SEEK_END)
                first = 0
                for part in kept:
                    new = np.ascontiguousarray(part[max(0, self.count - first) :], self.dtype)
                    file.write(new.data)
                    found.update(new.data)
                    first += len(part)
                file.flush()
                os.fsync(file.fileno())
        return total, found

    def forget(self) -> None:
        """Remove the draws that no checkpoint refers to."""
        with contextlib.suppress(OSError):
            if self.count:
                os.truncate(self.path, self.count * self.row)
            else:
                self.path.unlink()

    def read(self, count: int, checksum: str) -> np.ndarray | None:
        """So many draws, draws × chains × d; `InvalidInput` where they are missing or damaged."""
        require(not count or self.path.is_file(), f"There is no file {self.path}.")
        size = min(count * self.row, self.path.stat().st_size) if count else 0
        data = np.fromfile(self.path, np.uint8, size) if size else np.zeros(0, np.uint8)
        self.count, self.sum = count, hashlib.sha256(data.data)
        damage = f"{self.path} is damaged: it lacks the draws of the checkpoint, or holds others."
        require(size == count * self.row and self.sum.hexdigest() == checksum, damage)
        return data.view(self.dtype).reshape(count, *self.shape) if count else None


class Checkpoints(contextlib.ExitStack):
    """The checkpoints of one run; a context that keeps other processes off its directory. `ended`: whether a signal came."""

    def __init__(
        self, directory: str | Path, plan: Plan, options: RunOptions, every: str | int, keep: int, ended: Interruption
    ):
        super().__init__()
        good = isinstance(directory, str | Path) and directory != ""
        require(good, f"`checkpoint` must be a directory: got {shown(directory)}.")
        self.directory, self.plan, self.options, self.ended = read_path(directory), plan, options, ended
        self.seconds, self.steps = _interval(every)
        self.keep = whole(keep, "keep", least=1)
        self.description = described(plan, options)
        self.saved = time.monotonic()
        # The step of the last checkpoint.
        self.last: int | None = None
        self.draws = DrawsFile(self.directory / "draws.bin", plan)
        self._computed: dict[str, Any] | None = None

    def __enter__(self) -> "Checkpoints":
        processes.first(self._lock)
        return self

    def _lock(self) -> None:
        require_writable(self.directory)
        free = self.enter_context(locked(self.directory))
        if free is False:
            self.close()
            said = f"Another process saves checkpoints to {self.directory}."
            raise InvalidInput(f"{said} Wait for it, or pass another directory.")
        if free is None:
            say(f"{self.directory} has no locks: see to it that no other run saves there at the same time")
        for unfinished in self.directory.glob(".step-*.gyromc.*"):
            unfinished.unlink(missing_ok=True)

    def newest(self) -> Run | None:
        """The newest undamaged checkpoint, as a partial run; None in an empty directory, `InvalidInput` where all are damaged."""
        found, content = processes.first(self._newest) or (None, None)
        if processes.count() > 1 and (content := sent(content)) is not None:
            found = self._run(content)
        self.last = None if found is None else found.state.step
        return found

    def _newest(self) -> tuple[Run, dict[str, Any]] | None:
        """The run, and the content of its checkpoint with the draws."""
        files, reasons = self._files(), {}
        for path in reversed(files):
            try:
                found = self._read(path)
            except _OtherPlan:
                raise
            except (InvalidInput, OSError) as error:
                reasons[path] = str(error)
                continue
            # They are not read again.
            for damaged, reason in reasons.items():
                aside = damaged.with_suffix(".damaged")
                with contextlib.suppress(OSError):
                    damaged.rename(aside)
                text = f"{reason} {damaged.name} is now named {aside.name}, and the run goes on from {path.name}."
                warnings.warn(text, GyromcWarning, stacklevel=4)
            self.saved = time.monotonic()
            return found
        said = f"None of the {len(files)} checkpoints in {self.directory} can be read, and none was changed."
        newest = next(iter(reasons.values()), "")
        require(not files, f"{said} The newest: {newest} Pass another directory to start anew.")
        return None

    def due(self, step: int) -> bool:
        """Whether it is time for the next one."""
        if self.steps is not None:
            return step % self.steps == 0
        return processes.agree(self.seconds is not None and time.monotonic() - self.saved >= self.seconds)

    def save(self, run: Run, kept: list[np.ndarray]) -> None:
        """Write a checkpoint and remove the oldest; where that fails a warning says so, and the run goes on."""
        if processes.index() == 0:
            self._save(run, kept)
        self.last = processes.agree(self.last)

    def _save(self, run: Run, kept: list[np.ndarray]) -> None:
        path = self.directory / f"step-{run.state.step:015d}.gyromc"
        try:
            if self._computed is None:
                self._computed = prepared(run.plan, functions=False)
            count, checksum = self.draws.append(kept)
            content = {"description": self.description, "versions": versions(), "failures": run.failures}
            content |= {"prepared": self._computed, "times": (run.wall_time, run.compile_time)}
            content |= {"draws": (count, checksum.hexdigest()), "state": run.state}
            write_archive(path, "checkpoint", content, PLAIN, own_folder=True)
            # The names of the files are on the disk then, where the system can say so.
            with contextlib.suppress(OSError):
                folder = os.open(self.directory, os.O_RDONLY)
                try:
                    os.fsync(folder)
                finally:
                    os.close(folder)
            self.last, self.draws.count, self.draws.sum = run.state.step, count, checksum
            for old in [p for p in self._files() if p <= path][: -self.keep]:
                old.unlink(missing_ok=True)
        except (InvalidInput, OSError) as error:
            said = f"The checkpoint at step {run.state.step} was not saved, and the run goes on: {error}"
            warnings.warn(said, GyromcWarning, stacklevel=4)
            self.draws.forget()
        self.saved = time.monotonic()

    def _read(self, path: Path) -> tuple[Run, dict[str, Any]]:
        """A file as a run of this plan, and its content with the draws."""
        archive = read_archive(path)
        require(archive.kind == "checkpoint", f"{path} holds {archive.kind!r}, not a checkpoint.")
        with archive.reading("start anew"):
            content = PLAIN.unpack(archive)
            count, checksum = content["draws"]
            whole(count, "draws", least=0)
            changed = differences(content["description"], self.description)
        if changed:
            remedy = "Pass the plan as it was, or another directory to start anew."
            raise _OtherPlan(f"{path} is a checkpoint of another plan. What differs:\n  {changed}\n{remedy}")
        content["draws"] = self.draws.read(count, checksum)
        with archive.reading("start anew"):
            found = self._run(content)
            consequence = "may differ in their last digits from those of a run that was not interrupted"
            warn_of_versions(path, content["versions"], f"the run goes on, but its numbers {consequence}")
        return found, content

    def _files(self) -> list[Path]:
        # By step, never by date.
        return sorted(self.directory.glob(f"step-{'[0-9]' * 15}.gyromc"))

    def _run(self, content: dict[str, Any]) -> Run:
        """A checkpoint as a partial run, its plan with what was computed for it; its draws: draws × chains × d, or None."""
        plan, draws, (wall_time, compile_time) = self.plan.replace(), content["draws"], content["times"]
        remember(plan, content["prepared"])
        draws = None if draws is None else shaped(plan.unravel, draws.swapaxes(0, 1))
        fields = {"plan": plan, "state": content["state"], "failures": content["failures"], "draws": draws}
        fields |= {"wall_time": wall_time, "compile_time": compile_time, "partial": True, "options": self.options}
        return checked_run({**fields, "engine": self.options.engine, "engine_reason": self.options.reason})


class _OtherPlan(InvalidInput):
    """A checkpoint belongs to another plan."""


def _interval(every: str | int) -> tuple[float | None, int | None]:
    """Seconds or steps between two checkpoints; the other is None."""
    if not isinstance(every, str):
        return None, whole(every, "every", least=1)
    given = re.fullmatch(r"\s*(\d+\.?\d*)\s*(s|min|h)\s*", every)
    if given is None:
        wanted = 'a time such as "30s", "5min" or "2h", or a whole number of steps'
        raise InvalidInput(f"`every` must be {wanted}: got {shown(every)}.")
    return float(given[1]) * {"s": 1.0, "min": 60.0, "h": 3600.0}[given[2]], None


def sent(content: Any) -> Any:
    """What process 0 gives, on every process, written and read as an archive."""
    with tempfile.TemporaryDirectory() as folder:
        path, own = Path(folder) / "message.gyromc", np.zeros(0, np.uint8)
        if processes.index() == 0:
            write_archive(path, "message", {"content": content}, PLAIN)
            own = np.frombuffer(path.read_bytes(), np.uint8)
        path.write_bytes(processes.joined(own).tobytes())
        return PLAIN.unpack(read_archive(path))["content"]


def same_start(plan: Plan) -> Plan:
    """The plan with what process 0 computed for it: a mode that each finds for itself can differ in its last digits."""
    # JAX's devices come up in all processes together: process 0 alone would wait for the others, which wait for its message.
    jax.devices()
    plan = plan.replace()
    found = sent(prepared(plan, functions=False) if processes.index() == 0 else None)
    if processes.index() > 0:
        remember(plan, found)
    return plan


def require_same(plan: Plan, options: RunOptions, done: int = 0) -> None:
    """Raise `InvalidInput` on every process where two of them differ in plan, options, `done` steps or versions."""
    own = {"steps done": str(done), **described(plan, options)}
    own |= {f"version of {name}": str(version) for name, version in versions().items()}
    everyone = processes.everyone(own)
    other = next((i for i, theirs in enumerate(everyone) if theirs != everyone[0]), None)
    if other is not None:
        said = f"Process {other} computes something else than process 0. What differs (process 0 → process {other})"
        listed = differences(everyone[0], everyone[other])
        raise InvalidInput(f"{said}:\n  {listed}\nGive all processes the same plan, options and versions.")
