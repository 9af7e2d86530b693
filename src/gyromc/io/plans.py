"""Plans and runs as plain values: the classes they are made of, what must be kept to go on bit for bit, and how two plans differ.

Input: a `Plan`. Output: a dictionary for the codec, and the plan again. With the plan goes what was computed for it, the
prepared oracle and scheme and the martingale: the mode or the moments of gradients, computed anew on another machine, could
differ in their last digits. `check_run` compares the shapes of a stored run with those of its plan, before any compiled code
sees them. `description` is a plan as lines of text, to compare it with another.
"""

import dataclasses
import platform
import warnings
from collections.abc import Mapping
from importlib import metadata
from typing import Any

import equinox as eqx
import jax
import numpy as np

from gyromc import __version__
from gyromc.coordinates import Coordinates
from gyromc.data import RowSource
from gyromc.data.source import FilePrint
from gyromc.dynamics import Dynamics
from gyromc.errors import InvalidInput
from gyromc.flat import shaped
from gyromc.io.archive import digest
from gyromc.io.codec import Codec, Packed, known_classes
from gyromc.io.functions import Descriptions, References
from gyromc.martingale import Martingale, martingale
from gyromc.observables import Observable
from gyromc.operators import Dense, Operator
from gyromc.oracles import Oracle
from gyromc.oracles.control_variates import Curvature
from gyromc.plan import FIELDS, Plan
from gyromc.results import Cause, EngineState, Failure, Run, RunOptions
from gyromc.schemes import Scheme
from gyromc.targets import Group, Prior, StreamedRegression, Target, families

MOST_SHOWN = 8
"""Differences between two plans in a message."""
# Classes that are not imported are not found.
assert issubclass(Dense, Operator)

CLASSES = known_classes(
    *(Group, Prior, Martingale, Curvature, FilePrint, EngineState, Failure, Cause, RunOptions),
    *families.LIKELIHOODS,
    below=(Target, Oracle, Operator, Observable, Scheme, Dynamics, RowSource, Coordinates),
)
"""The classes of gyromc that plans and runs are made of, by name. Those of a user are stored by reference, like functions."""
PLAIN = Codec(CLASSES)
"""Plans and runs without functions of a user."""


def prepared(plan: Plan, functions: bool = True) -> dict[str, Any]:
    """What was computed for a plan before its first step; without `functions` only what holds none of a user's own."""
    # What there was to warn of was said when the plan ran.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {
            "oracle": plan.prepared_oracle,
            "scheme": None if plan.scheduled else plan.prepared_scheme,
            "martingale": martingale(plan) if plan.martingale else None,
            "sums": plan.target.known_sums() if isinstance(plan.target, StreamedRegression) else None,
        }
    return {name: value for name, value in found.items() if value is not None and (functions or _is_plain(value))}


def _is_plain(value: Any) -> bool:
    """Whether a value holds no function and no class of a user."""
    try:
        PLAIN.pack(value)
    except InvalidInput:
        return False
    return True


def remember(plan: Plan, found: Mapping[str, Any]) -> None:
    """Let a plan use what was computed for it before; `ValueError` for what does not fit it."""
    if "oracle" in found:
        _check_oracle(plan, found["oracle"])
        plan.model.computed.keep("prepared oracle", (plan.oracle,), found["oracle"])
    if "scheme" in found:
        _check_scheme(plan, found["scheme"])
        plan.model.computed.keep("prepared scheme", plan.step_pieces, found["scheme"])
    if "martingale" in found:
        _check_martingale(plan, found["martingale"])
        plan.model.computed.keep("martingale", (*plan.step_pieces, *plan.observables.values()), found["martingale"])
    if "sums" in found and isinstance(plan.target, StreamedRegression):
        loss, gradient, hessian = found["sums"]
        _require(np.ndim(loss) == 0 and gradient.shape == (plan.dim,) and hessian.shape == 2 * (plan.dim,), "sums")
        plan.target.remember_sums(loss, gradient, hessian)


def _require(condition: object, what: str) -> None:
    if not condition:
        raise ValueError(f"the {what} of the run does not fit its plan")


def _same_settings(found: Any, given: Any) -> bool:
    """Whether two modules are of one class and have the same static fields."""
    static = [f.name for f in dataclasses.fields(given) if f.metadata.get("static")]
    return type(found) is type(given) and all(getattr(found, name) == getattr(given, name) for name in static)


def _check_oracle(plan: Plan, found: Any) -> None:
    """Raise `ValueError` unless a prepared oracle is the plan's, with an anchor of its size."""
    _require(_same_settings(found, plan.oracle), "prepared oracle")
    if getattr(found, "refresh", 1) is None:
        vectors = [np.shape(found.center), np.shape(found.anchor)]
        _require(vectors == 2 * [(plan.dim,)] and getattr(found.operator, "size", plan.dim) == plan.dim, "anchor")


def _check_scheme(plan: Plan, found: Any) -> None:
    """Raise `ValueError` unless a prepared scheme is the plan's, and moves states of its size."""
    _require(_same_settings(found, plan.scheme), "prepared scheme")
    n, size = plan.dynamics.size, plan.state_size
    vectors = [jax.ShapeDtypeStruct((length,), np.float32) for length in (size, n, n)]
    after = eqx.filter_eval_shape(found, plan.dynamics, *vectors, jax.ShapeDtypeStruct((), np.float32))
    _require(after.shape == (size,), "prepared scheme")


def _check_martingale(plan: Plan, found: Any) -> None:
    """Raise `ValueError` unless a martingale has the plan's observables and size."""
    count = len(plan.observables)
    _require(isinstance(found, Martingale) and found.slope.shape == (count, plan.state_size), "martingale")
    owners = found.owner.min(initial=0) >= 0 and found.owner.max(initial=0) < count
    _require(found.linear.shape == (count, plan.dynamics.size) and owners, "martingale")


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


@dataclasses.dataclass(frozen=True, eq=False)
class SentPlan:
    """A plan for another process or machine: packed when it is pickled, unpacked where it arrives, no function lost."""

    plan: Plan

    def __reduce__(self):
        return _arrived, tuple(Codec(CLASSES, References()).pack(packed_plan(self.plan)))


def _arrived(content: Any, arrays: Mapping[str, np.ndarray]) -> SentPlan:
    return SentPlan(unpacked_plan(Codec(CLASSES, References(allow_import=True)).unpack(Packed(content, arrays))))


def check_run(run: Run) -> None:
    """Raise `ValueError` where the state, the failures or the draws of a run do not have the shapes that its plan says."""
    plan, state = run.plan, run.state
    chains, sums = plan.num_chains, len(plan.observables) * (2 if plan.martingale else 1)
    shapes = {"z": (chains, plan.state_size), "high": (chains, sums), "low": (chains, sums), "failed_at": (chains,)}
    if state.anchors is not None:
        shapes["anchors"] = (chains, 2 * plan.dim)
    for name, shape in shapes.items():
        found = getattr(state, name).shape
        if found != shape:
            raise ValueError(f"the state has {name} of shape {found}, where the plan has {shape}")
    _require(state.z.dtype == plan.dtype and (state.generator is None or len(state.generator) == chains), "state")
    _require(0 <= state.step <= plan.burn_in + plan.num_steps, "number of steps")
    blocks = list(state.snapshots)
    _require(set(blocks) == set(state.clocks) and all(0 < k <= run.steps_done for k in blocks), "list of blocks")
    _require(all(0 <= failure.chain < chains for failure in run.failures), "list of failures")
    if run.draws is not None:
        wanted, structure = jax.tree.flatten(shaped(plan.unravel, np.zeros((chains, 0, plan.dim))))
        given, found = jax.tree.flatten(run.draws)
        _require(structure == found and all(isinstance(leaf, np.ndarray) for leaf in given), "draws")
        like = [(leaf.shape[0], *leaf.shape[2:]) for leaf in wanted]
        _require([(*leaf.shape[:1], *leaf.shape[2:]) for leaf in given] == like, "draws")
        _require(len({leaf.shape[1] for leaf in given}) == 1, "draws")


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
    fields = {name: getattr(plan, name) for name in FIELDS}
    drawn = None if plan.starts.draw is None else plan.start
    fields["start"] = {"vector": plan.starts.theta, "momentum": plan.starts.r, "drawn by": drawn}
    # Sums are stored in the order of the observables.
    found = {"observables": ", ".join(plan.observables)}
    codec = Codec(CLASSES, Descriptions())
    for name, value in {**fields, **options}.items():
        packed = codec.pack(value)
        _describe(packed.content, name, packed.arrays, found)
    return found


def _describe(value: Any, where: str, arrays: Mapping[str, np.ndarray], found: dict[str, str]) -> None:
    """Add the lines of a packed value."""
    inside: Mapping[str, Any] = {}
    if not isinstance(value, dict):
        found[where] = repr(value)
    elif "array" in value:
        array = arrays[value["array"]]
        large = f"{array.shape} {array.dtype}, sha256 {digest(array)[:16]}" if array.size > 4 else ""
        found[where] = large or repr(array.tolist())
    elif "class" in value:
        found[where] = value["class"] if isinstance(value["class"], str) else value["class"]["type"]
        left_out = getattr(CLASSES.get(found[where]), "NOT_COMPARED", ())
        inside = {f".{name}": field for name, field in value["fields"].items() if name not in left_out}
    elif "pairs" in value:
        inside = {f".{key}": entry for key, entry in value["pairs"]}
    elif kind := {"tuple", "list"} & set(value):
        inside = {f"[{i}]": entry for i, entry in enumerate(value[kind.pop()])}
    else:
        found[where] = ", ".join(f"{key} {entry}" for key, entry in value.items())
    for name, entry in inside.items():
        _describe(entry, where + name, arrays, found)


def differences(before: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """What changed between two descriptions, one line for each place, at most a few."""
    places = [place for place in {**before, **now} if before.get(place) != now.get(place)]
    lines = [f"{place}: {before.get(place, 'absent')} → {now.get(place, 'absent')}" for place in places[:MOST_SHOWN]]
    return lines + ([f"and {len(places) - MOST_SHOWN} more"] if len(places) > MOST_SHOWN else [])
