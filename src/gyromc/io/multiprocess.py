"""What several processes that compute one run must do alike: compute the same plan, stop, save, and begin from the same numbers.

Input: what each process knows on its own: the plan and its options, signals, the clock, checkpoints on its disk. Output: the
same answer on all of them, or `InvalidInput` on all of them with what differs. With one process everything is as if this were
not here.
"""

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np

from gyromc import processes
from gyromc.errors import InvalidInput
from gyromc.io.archive import read_archive, write_archive
from gyromc.io.plans import PLAIN, description, differences, prepared, remember, versions
from gyromc.plan import Plan
from gyromc.results import RunOptions
from gyromc.show.interruption import Interruption

KIND = "message"
NUMBERS = ("engine", "thin", "sane_range")
"""The options that the numbers of a run depend on."""


def heard(*signals: Interruption | None) -> tuple[bool, ...]:
    """Whether each of the signals came to any process; then all of them go on as if it had come to themselves."""
    own = [None if signal is None else [signal.pressed, signal.number] for signal in signals]
    for theirs in processes.everyone(own):
        for signal, found in zip(signals, theirs, strict=True):
            if signal is not None and found is not None and found[0]:
                signal.pressed, signal.number = True, signal.number or found[1]
    return tuple(bool(signal) for signal in signals)


def same_start(plan: Plan) -> Plan:
    """The plan with what process 0 computed for it: a mode that each finds for itself can differ in its last digits."""
    # JAX's devices come up in all processes together: process 0 alone would wait for the others, which wait for its message.
    jax.devices()
    plan = plan.replace()
    found = sent(prepared(plan, functions=False) if processes.index() == 0 else None)
    if processes.index() > 0:
        remember(plan, found)
    return plan


def on_first_process(function: Any) -> Any:
    """The function's value on process 0, None on the others; what it raises there is raised on all of them."""
    found, error = None, None
    if processes.index() == 0:
        try:
            found = function()
        except InvalidInput as raised:
            if processes.count() == 1:
                raise
            error = str(raised)
    error = processes.agree(error)
    if error is not None:
        raise InvalidInput(error)
    return found


def sent(content: Any) -> Any:
    """What process 0 gives, on every process, written and read as an archive."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "message.gyromc"
        own = np.zeros(0, np.uint8)
        if processes.index() == 0:
            write_archive(path, KIND, {"content": content}, PLAIN)
            own = np.frombuffer(path.read_bytes(), np.uint8)
        path.write_bytes(processes.joined(own).tobytes())
        return PLAIN.unpack(read_archive(path))["content"]


def require_same(plan: Plan, options: RunOptions, done: int = 0) -> None:
    """Raise `InvalidInput` on every process where two of them differ in plan, options, `done` steps or versions."""
    known = {"steps done": str(done), **description(plan, {name: getattr(options, name) for name in NUMBERS})}
    own = {**known, **{f"version of {name}": str(version) for name, version in versions().items()}}
    if len(set(processes.everyone(hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()))) == 1:
        return
    everyone = processes.everyone(own)
    other = next(i for i, theirs in enumerate(everyone) if theirs != everyone[0])
    raise InvalidInput(
        f"Process {other} computes something else than process 0. What differs (process 0 → process {other}):\n  "
        + "\n  ".join(differences(everyone[0], everyone[other]))
        + "\nGive all processes the same plan, options and versions."
    )
