"""Whether rows depend on each other, or on columns that the model leaves out.

Input: residuals, the order of the rows, and columns that are in the data and not in the model. Output: one `ModelCheck`: the
clearest of a correlation between neighbouring rows, differences between the levels of a column, and a trend along a column. Its
statistic is the share of the residuals' variance that goes with it, beyond what chance gives.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from scipy import special

from gyromc.regression.adequacy.checks import Aspect, ModelCheck
from gyromc.regression.adequacy.residuals import ModelResiduals, natural_spline

LEAST_ROWS = 20
MATTERS = 0.05  # share of the residuals' variance
CLEAR = 0.01  # p, from which one finding goes before another
FEW_LEVELS = 5  # with fewer, a column is a property of rows and no group of them
SORTED = 0.9  # share of steps in one direction, from which the rows are in the order of the responses


def dependence(
    outputs: Sequence[ModelResiduals],
    y: np.ndarray,
    order: np.ndarray | None = None,
    unused: Mapping[str, np.ndarray] | None = None,
) -> ModelCheck | None:
    """Test all of these, corrected for their number; None where there is nothing to test.

    **Arguments:**

    - `y`: the responses; `order`: the rows as they follow each other, None where that is not known.
    - `unused`: columns that the model leaves out: levels as whole numbers from 0, others as floating-point numbers.

    `details`: `kind` ("order", "group" or "column"), `name`, and `lag`, the correlation of neighbouring rows.
    """
    found = []
    if order is not None and y.size >= LEAST_ROWS and not _sorted(y[order], outputs[0].classes):
        found += [_lag(output, order) for output in outputs]
    for name, x in (unused or {}).items():
        if np.issubdtype(x.dtype, np.integer):
            candidates = (x[:, None] == np.arange(x.max() + 1)).astype(float)
            kind = "group" if candidates.shape[1] >= FEW_LEVELS else "column"
        else:
            candidates, kind = np.column_stack([x - x.mean(), natural_spline(x)]), "column"
        tests = [output.together(candidates) for output in outputs]
        found += [(p, share, {"kind": kind, "name": name, "lag": 0.0}) for share, p in tests]
    if not found:
        return None
    # a column left out is a choice of the user's; rows that depend on each other make errors too small, and go first
    wrong = lambda p, share, details: details["kind"] != "column" and share > MATTERS and len(found) * p < CLEAR
    p, share, details = min(found, key=lambda one: (not wrong(*one), one[0], -one[1]))
    large = share > MATTERS and details["kind"] != "column"
    return ModelCheck(Aspect.DEPENDENCE, share, min(1.0, len(found) * p), large, details)


def _sorted(y: np.ndarray, classes: bool) -> bool:
    """Whether rows were put into the order of their responses, so that neighbours are alike whatever the model."""
    steps = np.diff(y)
    if classes:
        return bool(np.mean(steps == 0) > SORTED)
    moved = steps[steps != 0]
    return not moved.size or not 1 - SORTED < np.mean(moved > 0) < SORTED


def _lag(output: ModelResiduals, order: np.ndarray) -> tuple[float, float, dict]:
    """p and r² of the correlation r of neighbouring residuals; its law under the model from replicated residuals."""
    of = lambda e: np.sum(e[..., 1:] * e[..., :-1], axis=-1) / np.maximum(np.sum(e**2, axis=-1), 1e-300)
    lag = float(of(output.values[order]))
    repeated = of(output.without_fitted(output.replicates)[:, order])
    z = (lag - repeated.mean()) / max(float(repeated.std(ddof=1)), 1e-300)
    return float(2 * special.ndtr(-abs(z))), lag**2, {"kind": "order", "name": "", "lag": lag}
