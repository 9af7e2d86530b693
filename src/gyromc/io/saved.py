"""`run.save` and `gyromc.load`: runs as files, and what a file of gyromc holds, whatever kind of thing that is.

Input: a `Run`. Output: an archive with its plan, what was computed for the plan, the state of the chains, draws and failures. A
loaded run is continued bit for bit like the saved one, on the same kind of machine with the same versions.
"""

import os
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gyromc.checks import flag, require
from gyromc.data.source import FilePrint
from gyromc.errors import GyromcWarning
from gyromc.extras import function_above
from gyromc.io.archive import Archive, read_archive, write_archive
from gyromc.io.codec import Codec, Packed, check_fields
from gyromc.io.functions import References
from gyromc.io.plans import CLASSES, changed_versions, check_run, packed_plan, unpacked_plan, versions
from gyromc.results import Run, RunOptions

KIND = "run"
FIELDS = ("engine", "state", "wall_time", "compile_time", "partial", "failures", "draws", "engine_reason")
RESTORED = {"fit": "restored_model", "estimator": "restored_estimator"}
"""The function that makes each other kind of thing from its archive."""


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
      `run.save` or by `gyromc run … --save FILE`.
    - `allow_import`: whether modules may be imported for the functions that a run refers to by `module:function`. Importing a
      module runs its code.
    - `functions`: the functions themselves, by these names, in place of importing them.
    - `data`: where files of rows are now (`gyromc.data`), by the paths that they had when a run over them was saved.

    **Returns:** a `FittedModel` with `predict`, the estimator, or the `Run`.

    ```python
    import numpy as np
    import gyromc as gm
    from gyromc.sklearn import BayesianLinearRegression
    X = np.arange(20.0)[:, None]
    BayesianLinearRegression().fit(X, 3.0 + 0.5 * X[:, 0] + np.cos(X[:, 0])).save("line.gyromc")
    model = gm.load("line.gyromc")
    assert 15 < model.predict([[30.0]])[0] < 21
    ```
    """
    archive = read_archive(path)
    require(
        archive.kind != "checkpoint",
        f"{path} is a checkpoint: `gyromc.run(plan, checkpoint={str(Path(path).parent)!r})` goes on from it.",
    )
    if archive.kind == KIND:
        return _run(archive, References(flag(allow_import, "allow_import"), functions or {}), data or {})
    require(
        archive.kind in RESTORED,
        f"{path} holds {archive.kind!r}, which this gyromc does not know; it was written by gyromc {archive.written_by}. Install "
        "that version.",
    )
    require(not data, f"{path} holds a {archive.kind}, which reads no files of rows: leave `data` out.")
    restored = function_above(RESTORED[archive.kind])
    with archive.reading("fit again"):
        return restored(archive)


def save_run(run: Run, path: str | Path) -> None:
    """Write a run to a file, whole or not at all; `InvalidInput` where a function in it has no name."""
    content = {
        "plan": packed_plan(run.plan),
        "run": {name: getattr(run, name) for name in FIELDS},
        "options": None if run.options is None else run.options.__getstate__(),
        "versions": versions(),
    }
    write_archive(path, KIND, content, Codec(CLASSES, References()))


def _run(archive: Archive, functions: References, data: Mapping[str, str | Path]) -> Run:
    """The run of an archive; `data`: where files of rows are now, by the paths that they had."""
    with archive.reading("run the plan again"):
        moved = Packed(_moved(archive.content, data), archive.arrays)
        content = Codec(CLASSES, functions).unpack(moved)
        options = content["options"]
        if options is not None:
            options["mesh"] = None
            check_fields(RunOptions, options)
            options = RunOptions(**options)
        fields = {"plan": unpacked_plan(content["plan"]), "options": options, **content["run"]}
        check_fields(Run, fields)
        run = Run(**fields, resume=function_above("resume"))
        check_run(run)
        other = changed_versions(content["versions"])
    if other:
        warnings.warn(
            f"{archive.path} was written by other programs ({other}): a continuation may differ in its last digits from one "
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
