"""Plans and runs as plain values: which classes they are made of, and what must be kept to go on bit for bit.

Input: a `Plan`. Output: a dictionary for `gyromc.archive`, and the plan again. With the plan goes what was computed for it, the
prepared oracle and scheme and the martingale: the mode or the moments of gradients, computed anew on another machine, could
differ in their last digits. `description` is the same plan as lines of text, to compare it with another.
"""

import platform
import warnings
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import numpy as np

from gyromc import __version__
from gyromc.archive import digest, pack
from gyromc.data import RowSource
from gyromc.data.prints import FilePrint
from gyromc.dynamics import Dynamics
from gyromc.errors import InvalidInput
from gyromc.martingale import Martingale, martingale
from gyromc.observables import Observable
from gyromc.operators import Operator
from gyromc.oracles import Oracle
from gyromc.oracles.control_variates import Curvature
from gyromc.plan import FIELDS, Plan
from gyromc.references import Descriptions
from gyromc.schemes import Scheme
from gyromc.stretches import Gram
from gyromc.targets import Group, StreamedRegression, Target, families
from gyromc.targets.likelihoods import Likelihood

__all__ = [
    "PIECES",
    "changed_versions",
    "description",
    "differences",
    "packed_plan",
    "prepared",
    "remember",
    "unpacked_plan",
    "versions",
]

MOST_SHOWN = 8  # differences
assert issubclass(Gram, Operator)  # what is not imported
assert issubclass(families.StudentT, Likelihood)  # is not found


def _below(base: type) -> list[type]:
    """All classes of gyromc that derive from a class, itself included."""
    found = [base, *(known for direct in base.__subclasses__() for known in _below(direct))]
    return [known for known in found if known.__module__.partition(".")[0] == __name__.partition(".")[0]]


PIECES: dict[str, type] = {
    known.__name__: known
    for base in (Target, Likelihood, Oracle, Operator, Observable, Scheme, Dynamics, RowSource)
    for known in _below(base)
} | {known.__name__: known for known in (Group, Martingale, Curvature, FilePrint)}
"""The classes of gyromc that a plan may hold, by name. Those of a user are stored by reference, like functions."""


def prepared(plan: Plan, functions: bool = True) -> dict[str, Any]:
    """What was computed for a plan before its first step; without `functions` only what holds none of a user's own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # said when it ran
        found = {
            "oracle": plan.prepared_oracle,
            "scheme": None if plan.scheduled else plan.prepared_scheme,
            "martingale": martingale(plan) if plan.martingale else None,
            "sums": plan.target.known_sums() if isinstance(plan.target, StreamedRegression) else None,
        }
    return {name: value for name, value in found.items() if value is not None and (functions or _plain(value))}


def _plain(value: Any) -> bool:
    """Whether a value holds no function and no class of a user."""
    try:
        pack(value, {}, PIECES)
    except InvalidInput:
        return False
    return True


def remember(plan: Plan, found: Mapping[str, Any]) -> None:
    """Let a plan use what was computed for it before."""
    if "oracle" in found:
        plan.model.computed.keep("prepared oracle", (plan.oracle,), found["oracle"])
    if "scheme" in found:
        plan.model.computed.keep("prepared scheme", plan.step_pieces, found["scheme"])
    if "martingale" in found:
        plan.model.computed.keep("martingale", (*plan.step_pieces, *plan.observables.values()), found["martingale"])
    if "sums" in found and isinstance(plan.target, StreamedRegression):
        plan.target.remember_sums(*found["sums"])


def packed_plan(plan: Plan) -> dict[str, Any]:
    """What the plan was built from, and what was computed for it."""
    fields = {name: getattr(plan, name) for name in FIELDS}
    fields["num_steps"] = None if plan.steps_follow_eta else plan.num_steps
    return {"fields": fields, "prepared": prepared(plan)}


def unpacked_plan(content: Mapping[str, Any]) -> Plan:
    """The plan, checked as any other is, with what was computed for it."""
    plan = Plan(**content["fields"])
    remember(plan, content["prepared"])
    return plan


def versions() -> dict[str, str | None]:
    """The programs that numbers depend on, and the kind of processor."""
    found: dict[str, str | None] = {"gyromc": __version__}
    for name in ("jax", "jaxlib", "numpy", "numba"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return {**found, "machine": platform.machine()}


def changed_versions(before: Mapping[str, str | None]) -> str:
    """Which of the programs that numbers depend on are others than before, as "jax 0.10 → 0.11, …"; empty where none is."""
    now = versions()
    return ", ".join(f"{name} {before.get(name)} → {now[name]}" for name in now if before.get(name) != now[name])


def description(plan: Plan, options: Mapping[str, Any]) -> dict[str, str]:
    """Everything that the numbers of a run depend on, one short text for each place: what a checkpoint is compared with.

    Arrays are given by shape and digest, functions by name and digest of their code.
    """
    arrays: dict[str, np.ndarray] = {}
    fields = {name: getattr(plan, name) for name in FIELDS}
    fields["start"] = {"vector": plan.starts.theta, "momentum": plan.starts.r, "drawn by": plan.starts.draw}
    content = {name: pack(value, arrays, PIECES, Descriptions()) for name, value in {**fields, **options}.items()}
    found: dict[str, str] = {"observables": ", ".join(plan.observables)}  # sums are stored in their order
    for name, value in content.items():
        _describe(value, name, arrays, found)
    return found


def _describe(value: Any, where: str, arrays: Mapping[str, np.ndarray], found: dict[str, str]) -> None:
    """Add the lines of a packed value."""
    if isinstance(value, dict) and "array" in value:
        array = arrays[value["array"]]
        small = repr(array.tolist()) if array.size <= 4 else f"{array.shape} {array.dtype}"
        found[where] = small if array.size <= 4 else f"{small}, sha256 {digest(array)[:16]}"
    elif isinstance(value, dict) and "class" in value:
        found[where] = value["class"] if isinstance(value["class"], str) else value["class"]["type"]
        left_out = getattr(PIECES.get(found[where]), "NOT_COMPARED", ())
        for name, field in value["fields"].items():
            if name in left_out:
                continue
            _describe(field, f"{where}.{name}", arrays, found)
    elif isinstance(value, dict) and "pairs" in value:
        for key, entry in value["pairs"]:
            _describe(entry, f"{where}.{key}", arrays, found)
    elif isinstance(value, dict) and (kind := {"tuple", "list"} & set(value)):
        for i, entry in enumerate(value[kind.pop()]):
            _describe(entry, f"{where}[{i}]", arrays, found)
    elif isinstance(value, dict):
        found[where] = ", ".join(f"{key} {entry}" for key, entry in value.items())
    else:
        found[where] = repr(value)


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What changed between two descriptions, one line for each place, at most a few."""
    places = [place for place in {**before, **now} if before.get(place) != now.get(place)]
    lines = [f"{place}: {before.get(place, 'absent')} → {now.get(place, 'absent')}" for place in places[:MOST_SHOWN]]
    return lines + ([f"and {len(places) - MOST_SHOWN} more"] if len(places) > MOST_SHOWN else [])
