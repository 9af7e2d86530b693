"""`gyromc.load`: what a file of gyromc holds, whatever kind of thing that is."""

from importlib import import_module
from pathlib import Path
from typing import Any

from gyromc.archive import read_archive
from gyromc.checks import require

__all__ = ["load"]

KINDS = {"fit": "gyromc.app.fit.saved", "estimator": "gyromc.interop.sklearn"}
"""The module that restores each kind of file, by its function `restored`."""


def load(path: str | Path) -> Any:
    """Read a file that gyromc saved; no code of the file is run.

    **Arguments:**

    - `path`: a file written by `gyromc fit … --save FILE`, by `FittedModel.save` or by the `save` of a scikit-learn estimator.

    **Returns:** a `FittedModel` with `predict`, or the estimator.

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
        archive.kind in KINDS,
        f"{path} holds {archive.kind!r}, which this gyromc does not know; it was written by gyromc {archive.written_by}. Install "
        "that version.",
    )
    return import_module(KINDS[archive.kind]).restored(archive, path)
