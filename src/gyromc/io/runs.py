"""Plans and runs in files: the classes they are made of, `run.save` and `gyromc.load`, and how two plans differ.

With a plan goes what was computed for it, the prepared oracle and scheme and the martingale: computed anew on another machine,
they could differ in their last digits. So a loaded run goes on bit for bit, on the same kind of machine with the same versions.
"""

import contextlib
import dataclasses
import json
import math
import os
import platform
import warnings
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np

from gyromc import __version__
from gyromc.checks import flag, read_path, require, shown
from gyromc.coordinates import Coordinates
from gyromc.data import RowSource
from gyromc.data.source import FilePrint
from gyromc.dynamics import Dynamics
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.extras import function_above
from gyromc.flat import shaped
from gyromc.io.archive import Archive, Codec, Packed, check_fields, digest, known_classes, read_archive, write_archive
from gyromc.io.functions import References
from gyromc.observables import Observable
from gyromc.operators import Operator
from gyromc.oracles import ControlVariate, Oracle
from gyromc.plan import FIELDS, Plan
from gyromc.prediction.martingale import Martingale, martingale
from gyromc.results import Cause, EngineState, Failure, Run, RunOptions
from gyromc.schemes import Scheme
from gyromc.targets import Group, Prior, StreamedRegression, Target, families

RUN_FIELDS = ("engine", "state", "wall_time", "compile_time", "partial", "failures", "draws", "engine_reason")
RESTORED = {"fit": "restored_model", "estimator": "restored_estimator", "posterior": "restored_posterior"}
"""The function that makes each other kind of thing from its archive."""
CLASSES = known_classes(
    *(Group, Prior, Martingale, FilePrint, EngineState, Failure, Cause, RunOptions),
    *families.LIKELIHOODS,
    below=(Target, Oracle, Operator, Observable, Scheme, Dynamics, RowSource, Coordinates),
)
"""The classes of gyromc that plans and runs are made of, by name. Those of a user are stored by reference, like functions."""
PLAIN = Codec(CLASSES)
"""Plans and runs without functions of a user."""


def prepared(plan: Plan, functions: bool = True) -> dict[str, Any]:
    """What was computed for a plan before its first step; without `functions` only what holds none of a user's own."""
    stored = {}
    # What there was to warn of was said when the plan ran.
    with warnings.catch_warnings(action="ignore"):
        found = {
            "oracle": plan.prepared_oracle,
            "scheme": None if plan.scheduled else plan.prepared_scheme,
            "martingale": martingale(plan) if plan.martingale else None,
            "sums": plan.target.known_sums() if isinstance(plan.target, StreamedRegression) else None,
        }
    for name, value in found.items():
        with contextlib.suppress(InvalidInput):
            if value is not None and (functions or PLAIN.pack(value)):
                stored[name] = value
    return stored


def remember(plan: Plan, found: Mapping[str, Any]) -> None:
    """Let a plan use what was computed for it before; `ValueError` for what is not the plan's or has another size."""
    known, d, n = plan.model.computed, plan.dim, plan.dynamics.size
    if "oracle" in found:
        oracle = found["oracle"]
        _require(_same_settings(oracle, plan.oracle), "prepared oracle")
        if isinstance(oracle, ControlVariate) and not oracle.moving:
            vectors = [np.shape(oracle.center), np.shape(oracle.anchor)]
            _require(vectors == 2 * [(d,)] and getattr(oracle.operator, "size", d) == d, "anchor")
        known.keep("prepared oracle", (plan.oracle,), oracle)
    if "scheme" in found:
        scheme = found["scheme"]
        _require(_same_settings(scheme, plan.scheme), "prepared scheme")
        vectors = [jax.ShapeDtypeStruct((length,), np.float32) for length in (plan.state_size, n, n)]
        after = eqx.filter_eval_shape(scheme, plan.dynamics, *vectors, jax.ShapeDtypeStruct((), np.float32))
        _require(after.shape == (plan.state_size,), "prepared scheme")
        known.keep("prepared scheme", plan.step_pieces, scheme)
    if "martingale" in found:
        of, count = found["martingale"], len(plan.observables)
        _require(isinstance(of, Martingale) and of.slope.shape == (count, plan.state_size), "martingale")
        owners = of.owner.min(initial=0) >= 0 and of.owner.max(initial=0) < count
        _require(of.linear.shape == (count, n) and owners, "martingale")
        known.keep("martingale", (*plan.step_pieces, *plan.observables.values()), of)
    if "sums" in found and isinstance(plan.target, StreamedRegression):
        loss, gradient, hessian = found["sums"]
        _require(np.ndim(loss) == 0 and gradient.shape == (d,) and hessian.shape == (d, d), "sums")
        plan.target.remember_sums(loss, gradient, hessian)


def _require(condition: object, what: str) -> None:
    if not condition:
        raise ValueError(f"the {what} of the run does not fit its plan")


def _same_settings(found: Any, given: Any) -> bool:
    """Whether two modules are of one class and have the same static fields."""
    static = [f.name for f in dataclasses.fields(given) if f.metadata.get("static")]
    return type(found) is type(given) and all(getattr(found, name) == getattr(given, name) for name in static)


def _packed(plan: Plan) -> dict[str, Any]:
    """What the plan was built from, and what was computed for it."""
    fields = {name: getattr(plan, name) for name in FIELDS}
    fields["num_steps"] = None if plan.steps_follow_eta else plan.num_steps
    return {"fields": fields, "prepared": prepared(plan)}


def _unpacked(content: Mapping[str, Any]) -> Plan:
    """The plan, checked as any other is, with what was computed for it."""
    plan = Plan(**content["fields"])
    remember(plan, content["prepared"])
    return plan


@dataclasses.dataclass(frozen=True, eq=False)
class SentPlan:
    """A plan for another process or machine: packed when it is pickled, unpacked where it arrives, no function lost."""

    plan: Plan

    def __getstate__(self):
        return Codec(CLASSES, References()).pack(_packed(self.plan))

    def __setstate__(self, packed: Packed):
        vars(self)["plan"] = _unpacked(Codec(CLASSES, References(allow_import=True)).unpack(packed))


def checked_run(fields: Mapping[str, Any], resume: Any = None) -> Run:
    """A run; `ValueError` where its state, failures or draws do not have the shapes that its plan says."""
    check_fields(Run, fields)
    run = Run(**fields, resume=resume)
    plan, state = run.plan, run.state
    chains, sums = plan.num_chains, len(plan.observables) * (2 if plan.martingale else 1)
    shapes = {"z": (chains, plan.state_size), "high": (chains, sums), "low": (chains, sums), "failed_at": (chains,)}
    if state.anchors is not None:
        shapes["anchors"] = (chains, 2 * plan.dim)
    _require(state.step == 0 or (state.anchors is not None) == plan.oracle.moving, "state")
    _require(all(getattr(state, name).shape == shape for name, shape in shapes.items()), "state")
    _require(state.z.dtype == plan.dtype and (state.generator is None or len(state.generator) == chains), "state")
    _require(0 <= state.step <= plan.burn_in + plan.num_steps, "number of steps")
    _require(state.checked is None or 0 <= state.checked <= state.step, "step of the last check")
    _require(all(math.isfinite(x) and x >= 0 for x in (run.wall_time, run.compile_time, sum(state.clock))), "time")
    # The time of a constant step size is known, up to its rounding.
    times = [(run.steps_done, sum(state.clock)), *state.clocks.items()]
    _require(plan.scheduled or all(math.isclose(time, k * plan.eta, rel_tol=1e-3) for k, time in times), "time")
    same = set(state.snapshots) == set(state.clocks)
    _require(same and all(0 < k <= run.steps_done for k in state.snapshots), "list of blocks")
    _require(all(0 <= failure.chain < chains for failure in run.failures), "list of failures")
    if run.options is not None:
        _require(run.engine == run.options.engine, "engine")
        kept = 0 if run.options.thin is None else -(-run.steps_done // run.options.thin)
        leaves = jax.tree.leaves(run.draws)
        _require((np.shape(leaves[0])[1:2] or (0,))[0] == kept if leaves else kept == 0, "number of draws")
    if run.draws is not None:
        given, found = jax.tree.flatten(run.draws)
        _require(all(isinstance(leaf, np.ndarray) and leaf.ndim > 1 for leaf in given), "draws")
        _require(len({leaf.shape[1] for leaf in given}) == 1, "draws")
        wanted, structure = jax.tree.flatten(shaped(plan.unravel, np.zeros((chains, 0, plan.dim))))
        trimmed = [leaf[:, :0].shape for leaf in given]
        _require(structure == found and trimmed == [leaf.shape for leaf in wanted], "draws")
    return run


def versions() -> dict[str, str | None]:
    """The programs that numbers depend on, and the kind of processor."""
    found: dict[str, str | None] = {"gyromc": __version__, **dict.fromkeys(("jax", "jaxlib", "numpy", "numba"))}
    for name in [*found][1:]:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return {**found, "machine": platform.machine()}


def warn_of_versions(path: Path, before: Mapping[str, str | None], consequence: str) -> None:
    """Warn where the programs that numbers depend on are others than those that wrote a file."""
    now = versions()
    other = ", ".join(f"{name} {before.get(name)} → {now[name]}" for name in now if before.get(name) != now[name])
    if other:
        warnings.warn(f"{path} was written by other programs ({other}): {consequence}.", GyromcWarning, stacklevel=3)


def described(plan: Plan, options: RunOptions) -> dict[str, str]:
    """Everything that the numbers of a run depend on, one short text for each place: what a checkpoint is compared with."""
    fields = {name: getattr(plan, name) for name in FIELDS}
    drawn = None if plan.starts.draw is None else plan.start
    fields["start"] = {"vector": plan.starts.theta, "momentum": plan.starts.r, "drawn by": drawn}
    # Sums are stored in the order of the observables.
    found = {"observables": ", ".join(plan.observables)}
    codec = Codec(CLASSES, References(compared=True))
    numbers = {name: getattr(options, name) for name in ("engine", "thin", "sane_range")}
    for name, value in {**fields, **numbers}.items():
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
        kind = value["class"]
        found[where] = kind if isinstance(kind, str) else f"{kind['type']}, code {kind.get('code')}"
        declared = getattr(CLASSES.get(found[where]), "__dataclass_fields__", {})
        compared = lambda name: name not in declared or declared[name].compare
        inside = {f".{name}": field for name, field in value["fields"].items() if compared(name)}
    elif "pairs" in value:
        inside = {f".{key}": entry for key, entry in value["pairs"]}
    elif sequence := {"tuple", "list"} & set(value):
        inside = {f"[{i}]": entry for i, entry in enumerate(value[sequence.pop()])}
    else:
        found[where] = ", ".join(f"{key} {entry}" for key, entry in value.items())
    for name, entry in inside.items():
        _describe(entry, where + name, arrays, found)


def differences(before: Mapping[str, str], now: Mapping[str, str], most: int = 8) -> str:
    """What changed between two descriptions, one line for each place, for a message; empty where nothing did."""
    places = [place for place in {**before, **now} if before.get(place) != now.get(place)]
    lines = [f"{place}: {before.get(place, 'absent')} → {now.get(place, 'absent')}" for place in places]
    return "\n  ".join(lines if len(lines) <= most else [*lines[:most], f"and {len(places) - most} more"])


def load(
    path: str | Path,
    *,
    allow_import: bool = False,
    functions: Mapping[str, Callable] | None = None,
    data: Mapping[str, str | Path] | None = None,
) -> Any:
    """Read a file that gyromc saved; no code of the file is run.

    **Arguments:**

    - `path`: a file written by `gyromc fit … --save FILE`, by `FittedModel.save`, by the `save` of a scikit-learn estimator, by
      `Posterior.save`, by `run.save` or by `gyromc run … --save FILE`.
    - `allow_import`: whether modules may be imported for functions of a run, by `module:function`. Importing one runs its code.
    - `functions`: the functions themselves, by these names, in place of importing them.
    - `data`: where files of rows are now (`gyromc.data`), by the paths that they had when a run over them was saved.

    **Returns:** a `FittedModel` with `predict`, the estimator, the `Posterior`, or the `Run`.

    ```python
    import numpy as np
    import gyromc as gm
    from gyromc.sklearn import BayesianLinearRegression
    X = np.arange(20.0)[:, None]
    BayesianLinearRegression().fit(X, 3.0 + 0.5 * X[:, 0] + np.cos(X[:, 0])).save("line.gyromc")
    model = gm.load("line.gyromc")
    print(model.predict([[30.0]]).round(1))  # [18.1]
    ```
    """
    for name, given in (("functions", functions or {}), ("data", data or {})):
        good = isinstance(given, Mapping) and all(isinstance(key, str | Path) for key in given)
        require(good, f"`{name}` must be a mapping, by the names in the file: got {shown(given)}.")
    for name, function in (functions or {}).items():
        require(callable(function), f"`functions` must hold functions: {shown(name)} is {shown(function)}.")
    now = {str(before): read_path(after) for before, after in (data or {}).items()}
    archive = read_archive(path)
    onward = f"`gyromc.run(plan, checkpoint={str(Path(path).parent)!r})` goes on from it"
    require(archive.kind != "checkpoint", f"{path} is a checkpoint: {onward}.")
    if archive.kind == "run":
        return _run(archive, References(flag(allow_import, "allow_import"), functions or {}), now)
    written = f"it was written by gyromc {archive.written_by}. Install that version."
    require(archive.kind in RESTORED, f"{path} holds {archive.kind!r}, which this gyromc does not know; {written}")
    require(not now, f"{path} holds a {archive.kind}, which reads no files of rows: leave `data` out.")
    restored = function_above(RESTORED[archive.kind])
    with archive.reading("fit again"):
        return restored(archive)


def save_run(run: Run, path: str | Path) -> None:
    """Write a run to a file; `InvalidInput` where a function in it has no name."""
    options = None if run.options is None else run.options.__getstate__()
    stored = {"plan": _packed(run.plan), "run": {name: getattr(run, name) for name in RUN_FIELDS}}
    write_archive(path, "run", {**stored, "options": options, "versions": versions()}, Codec(CLASSES, References()))


def _run(archive: Archive, functions: References, data: Mapping[str, str | Path]) -> Run:
    with archive.reading("run the plan again"):
        content = Codec(CLASSES, functions).unpack(Packed(_moved(archive.content, data), archive.arrays))
        options = content["options"]
        if options is not None:
            check_fields(RunOptions, options := {**options, "mesh": None})
            options = RunOptions(**options)
        fields = {"plan": _unpacked(content["plan"]), "options": options, **content["run"]}
        run = checked_run(fields, None if options is None else function_above("resume"))
        consequence = "a continuation may differ in its last digits from one that they would make"
        warn_of_versions(archive.path, content["versions"], consequence)
    return run


def _moved(content: Any, data: Mapping[str, str | Path]) -> Any:
    """The packed content with other paths for files of rows; `InvalidInput` for a path that is not in it."""
    named: list[str] = []
    now = {os.path.abspath(before): os.path.abspath(after) for before, after in data.items()}

    def moved(entry: dict[str, Any]) -> dict[str, Any]:
        if entry.get("class") == FilePrint.__name__:
            named.append(entry["fields"]["path"])
            entry["fields"]["path"] = now.get(named[-1], named[-1])
        return entry

    changed = json.loads(json.dumps(content), object_hook=moved) if data else content
    unknown = [before for before in now if before not in named]
    listed = f"It reads {', '.join(dict.fromkeys(named))}." if named else "It reads no file of rows."
    require(not unknown, f"`data` names {', '.join(unknown)}, which the stored plan does not read. {listed}")
    return changed
