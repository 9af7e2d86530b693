"""The numbers of three figures: observed against replicated responses, residuals against fitted means, and the PIT histogram.

An `Adequacy` in; plain dictionaries of lists out, so that a page can be drawn from a file.
"""

from typing import Any

import numpy as np

from gyromc.regression.adequacy.assess import Adequacy
from gyromc.regression.adequacy.checks import Aspect, ModelVerdict
from gyromc.regression.predictive import ResponseKind

__all__ = ["figure_numbers", "smooth"]

BINS, MOST_VALUES, PIT_BINS, MOST_POINTS, GRID, GROUPS = 30, 30, 20, 400, 40, 20
NEAR = 0.4  # share of the rows that a point of the smooth looks at


def figure_numbers(found: Adequacy) -> dict[str, Any]:
    """The numbers of `predictive`, `residuals`; `pit` for numbers and counts; `curve` where a column wants one."""
    classes = found.law.kind is ResponseKind.CLASSES
    fitted = found.outputs[0].fitted
    parts = {"predictive": _predictive(found), "residuals": _binned(found) if classes else _residuals(found, fitted)}
    if not classes and Aspect.CALIBRATION in found.by_aspect:
        parts["pit"] = _pit(found.by_aspect[Aspect.CALIBRATION].details["values"])
    curve = found.by_aspect.get(Aspect.CURVATURE)
    if curve is not None and curve.verdict is not ModelVerdict.FINE:
        name = curve.details["best"]
        parts["curve"] = {**_residuals(found, found.X[:, found.names.index(name)]), "column": name}
    return parts


def _predictive(found: Adequacy) -> dict[str, Any]:
    """How many rows have a response in each bin, observed and replicated."""
    y, kind = found.y, found.law.kind
    if kind is ResponseKind.NUMBERS:
        low, high = np.quantile(np.concatenate([y, found.replicates[:50].ravel()]), [0.001, 0.999])
        edges = np.linspace(min(low, y.min()), max(high, y.max()), BINS + 1)
        if edges[0] == edges[-1]:
            edges = np.linspace(edges[0] - 1, edges[0] + 1, BINS + 1)
    else:
        top = int(max(y.max(), np.quantile(found.replicates, 0.999)))
        step = max(1, -(-(top + 1) // MOST_VALUES))
        edges = np.arange(0, top + step + 1, step) - 0.5
    inner = np.clip(found.replicates, edges[0], edges[-1])
    repeated = np.array([np.histogram(row, edges)[0] for row in inner[:500]])
    return {
        "kind": kind.value,
        "edges": edges.tolist(),
        "observed": np.histogram(np.clip(y, edges[0], edges[-1]), edges)[0].tolist(),
        "expected": repeated.mean(axis=0).tolist(),
        "low": np.quantile(repeated, 0.025, axis=0).tolist(),
        "high": np.quantile(repeated, 0.975, axis=0).tolist(),
    }


def _residuals(found: Adequacy, x: np.ndarray) -> dict[str, Any]:
    """Residuals in standard deviations against x, some of the rows, and a smooth through all; of several outputs the worst."""
    grid = np.linspace(np.quantile(x, 0.01), np.quantile(x, 0.99), GRID)
    smooths = [smooth(x, output.values, grid) for output in found.outputs]
    worst = int(np.argmax([np.abs(line).max() for line in smooths]))
    values, rows = found.outputs[worst].values, np.arange(x.size)
    if rows.size > MOST_POINTS:
        rows = np.sort(np.random.default_rng(0).choice(rows, MOST_POINTS, replace=False))
    return {
        "kind": "points",
        "x": x[rows].tolist(),
        "residuals": values[rows].tolist(),
        "grid": grid.tolist(),
        "smooth": smooths[worst].tolist(),
        "rows": int(x.size),
    }


def _binned(found: Adequacy) -> dict[str, Any]:
    """Observed less predicted share in groups of rows with like predicted probability, with two standard errors; all classes."""
    points = []
    for output in found.outputs:
        sd = np.sqrt(np.maximum(output.fitted * (1 - output.fitted), 1e-300))
        order = np.argsort(output.fitted, kind="stable")
        for group in np.array_split(order, int(np.clip(order.size // 15, 2, GROUPS))):
            gap, error = (output.values * sd)[group].mean(), np.sqrt(np.sum(sd[group] ** 2)) / group.size
            points.append([float(output.fitted[group].mean()), float(gap), float(2 * error)])
    return {"kind": "groups", "points": points, "rows": int(found.y.size)}


def _pit(u: np.ndarray) -> dict[str, Any]:
    """The histogram of the distribution function at y, with the ends between which 95 % of bins lie by chance."""
    from scipy import stats  # when it is used: it takes long to import

    bins = int(np.clip(u.size // 10, 5, PIT_BINS))
    low, high = stats.binom.ppf([0.025, 0.975], u.size, 1 / bins)
    counts = np.histogram(u, bins, (0.0, 1.0))[0]
    return {"counts": counts.tolist(), "expected": u.size / bins, "low": float(low), "high": float(high)}


def smooth(x: np.ndarray, y: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """A local line through (x, y) at each point of a grid, over the nearest 40 % of the rows, near ones weighted more.

    ```python
    import numpy as np
    from gyromc.regression.adequacy.plots import smooth
    x = np.linspace(0, 1, 200)
    assert abs(smooth(x, 2 * x + 1, np.array([0.1, 0.5])) - [1.2, 2.0]).max() < 1e-9
    ```
    """
    away = np.abs(x - grid[:, None])
    reach = np.partition(away, int(NEAR * (x.size - 1)), axis=1)[:, int(NEAR * (x.size - 1))]
    w = np.clip(1 - (away / np.maximum(reach, 1e-300)[:, None]) ** 3, 0.0, None) ** 3
    total = np.maximum(w.sum(axis=1), 1e-300)
    center, level = (w @ x) / total, (w @ y) / total
    spread = np.sum(w * (x - center[:, None]) ** 2, axis=1) / total
    both = np.sum(w * (x - center[:, None]) * (y - level[:, None]), axis=1) / total
    slope = np.where(spread > 1e-12 * max(float(np.var(x)), 1e-300), both / np.maximum(spread, 1e-300), 0.0)
    return level + slope * (grid - center)
