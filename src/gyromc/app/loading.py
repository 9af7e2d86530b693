"""`gyromc.load`: what a file of gyromc holds, whatever kind of thing that is."""

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from gyromc.archive import read_archive
from gyromc.checks import flag, require
from gyromc.references import References

__all__ = ["load"]

KINDS = {"fit": "gyromc.tables.saved", "estimator": "gyromc.interop.sklearn", "run": "gyromc.savedruns"}
"""The module that restores each kind of file, by its function `restored`."""
WITH_FUNCTIONS = ("run",)  # kinds that may refer to functions of a user


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
    require(
        archive.kind in KINDS,
        f"{path} holds {archive.kind!r}, which this gyromc does not know; it was written by gyromc {archive.written_by}. Install "
        "that version.",
    )
    module = import_module(KINDS[archive.kind])
    if archive.kind not in WITH_FUNCTIONS:
        require(not data, f"{path} holds a {archive.kind}, which reads no files of rows: leave `data` out.")
        return module.restored(archive, path)
    return module.restored(archive, path, References(flag(allow_import, "allow_import"), functions or {}), data or {})
