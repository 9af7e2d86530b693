"""All processes of a run must compute the same plan with the same programs.

Input: the plan and the options of a run, on every process. Output: nothing, or `InvalidInput` on all of them with what differs.
"""

import hashlib
import json

from gyromc import processes
from gyromc.errors import InvalidInput
from gyromc.io.checkpoints import NUMBERS
from gyromc.io.plans import description, differences, versions
from gyromc.plan import Plan
from gyromc.results import RunOptions

__all__ = ["require_same"]


def require_same(plan: Plan, options: RunOptions, done: int = 0) -> None:
    """Raise `InvalidInput` on every process where two of them differ in plan, options, `done` steps or versions."""
    if processes.count() == 1:
        return
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
