"""Structure that the columns leave in the residuals: curves, products of columns, and a spread that changes with the mean.

`ModelResiduals` and the columns of X in; for each kind of structure one `ModelCheck` out, with a p-value that is corrected for
the columns or pairs of columns that were searched.
"""

import itertools
from collections.abc import Sequence

import numpy as np

from gyromc.regression.adequacy.checks import Aspect, ModelCheck
from gyromc.regression.adequacy.residuals import ModelResiduals, chance

__all__ = ["curvature", "even_spread", "interactions", "natural_spline"]

MATTERS = 0.01  # share of the residuals' variance, from which a curve or a product matters
UNEVEN = 1.3  # ratio of residual spreads, from which it matters
KNOTS = {4: (0.05, 0.35, 0.65, 0.95), 3: (0.1, 0.5, 0.9)}  # Harrell's quantiles
MOST_COLUMNS = 16  # whose products are tried: those with the largest effects
NAMED = 3


def natural_spline(x: np.ndarray) -> np.ndarray:
    """The curved part of a cubic spline in x that is straight beyond its outer knots: n × 2, or fewer where x has few values.

    ```python
    import numpy as np
    from gyromc.regression.adequacy.trends import natural_spline
    assert natural_spline(np.arange(50.0)).shape == (50, 2)
    assert natural_spline(np.arange(50) % 3).shape == (50, 1) and natural_spline(np.arange(50) % 2).shape == (50, 0)
    ```
    """
    distinct = np.unique(x)
    if distinct.size < 3:
        return np.zeros((x.size, 0))
    for levels in KNOTS.values():
        knots = np.quantile(x, levels)
        if np.all(np.diff(knots) > 1e-9 * np.ptp(distinct)):
            return _curves((x - knots[0]) / (knots[-1] - knots[0]), (knots - knots[0]) / (knots[-1] - knots[0]))
    return (_standard(x) ** 2)[:, None]


def _curves(x: np.ndarray, knots: np.ndarray) -> np.ndarray:
    """One truncated cubic for each knot but the last two, with their straight ends."""
    cubes = np.maximum(x[:, None] - knots, 0.0) ** 3
    last, gap = cubes[:, -1:], knots[-1] - knots[-2]
    before = cubes[:, -2:-1]
    inner = knots[:-2]
    return cubes[:, :-2] - before * (knots[-1] - inner) / gap + last * (knots[-2] - inner) / gap


def curvature(outputs: Sequence[ModelResiduals], X: np.ndarray, names: Sequence[str]) -> ModelCheck | None:
    """Whether a curve in a column of numbers would explain some of the residuals; None where no column could be curved.

    The statistic is the largest share of the residuals' variance that a curve explains. `details`: `columns`, the names of those
    whose p is below 0.05 after correction, the clearest first.
    """
    found = []
    for j, name in enumerate(names):
        curves = natural_spline(X[:, j])
        if not curves.shape[1]:
            continue
        tests = [output.together(curves) for output in outputs]
        share = max(statistic / _left(output) for output, (statistic, _) in zip(outputs, tests, strict=True))
        found.append((min(1.0, len(tests) * min(p for _, p in tests)), share, name))
    if not found:
        return None
    p = [min(1.0, len(found) * chance) for chance, _, _ in found]
    clear = [(chance, share, name) for chance, (_, share, name) in sorted(zip(p, found, strict=True)) if chance < 0.05]
    best = min(zip(p, found, strict=True))
    details = {"columns": [name for _, _, name in clear], "tried": len(found), "best": best[1][2]}
    large = any(share >= MATTERS for _, share, _ in clear)
    return ModelCheck(Aspect.CURVATURE, best[1][1], best[0], large, details)


def interactions(
    outputs: Sequence[ModelResiduals], X: np.ndarray, names: Sequence[str], sources: Sequence[str]
) -> ModelCheck | None:
    """Whether the product of two columns would explain some of the residuals; None where there are no two.

    **Arguments:**

    - `sources`: the column of the file from which each column of X comes; products within one are not tried.

    The statistic is the largest share of the residuals' variance that a product explains. `details`: `pairs` of names, the
    clearest first, at most three.
    """
    spread = X.std(axis=0)
    kept = np.flatnonzero(spread > 0)
    if kept.size > MOST_COLUMNS:
        effects = np.max([_effects(output, X[:, kept]) for output in outputs], axis=0)
        kept = np.sort(kept[np.argsort(-effects, kind="stable")[:MOST_COLUMNS]])
    pairs = [(i, j) for i, j in itertools.combinations(kept.tolist(), 2) if sources[i] != sources[j]]
    if not pairs:
        return None
    Z = (X - X.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    products = np.column_stack([Z[:, i] * Z[:, j] for i, j in pairs])
    statistic, p = zip(*(output.each(products) for output in outputs), strict=True)
    share = np.max([s / _left(output) for output, s in zip(outputs, statistic, strict=True)], axis=0)
    p = np.minimum(1.0, len(pairs) * len(outputs) * np.min(p, axis=0))
    order = np.argsort(p, kind="stable")
    clear = [(names[pairs[k][0]], names[pairs[k][1]]) for k in order[:NAMED] if p[k] < 0.05 and share[k] >= MATTERS]
    best = int(order[0])
    details = {"pairs": clear, "tried": len(pairs), "best": [names[i] for i in pairs[best]]}
    return ModelCheck(Aspect.INTERACTIONS, float(share[best]), float(p[best]), bool(clear), details)


def _left(output: ModelResiduals) -> float:
    """What is left to explain: the sum of squares of the residuals, in the units of the tests."""
    return max(float(np.sum(output.values**2)) / output.inflation, 1e-300)


def _effects(output: ModelResiduals, X: np.ndarray) -> np.ndarray:
    """How much of the fitted mean goes with each column."""
    Z = X - X.mean(axis=0)
    return np.abs(Z.T @ (output.fitted - output.fitted.mean())) / np.linalg.norm(Z, axis=0)


def even_spread(output: ModelResiduals) -> ModelCheck | None:
    """Whether the squares of the residuals change with the fitted mean (Koenker's test); None with fewer than 20 rows.

    The statistic is the ratio of the residuals' spreads between the widest and the narrowest third of the rows by their mean.
    `details`: `where` it is widest.
    """
    n = output.values.size
    if n < 20 or np.ptp(output.fitted) == 0:
        return None
    inner = np.maximum(1 - output.leverages, 0.1)
    squares = output.values**2 / inner
    Q, _ = np.linalg.qr(np.column_stack([np.ones(n), _standard(output.fitted), natural_spline(output.fitted)[:, :1]]))
    share = float(_explained(squares, Q))
    repeated = n * _explained(output.without_fitted(output.replicates) ** 2 / inner, Q)
    p = chance(n * share, repeated, Q.shape[1] - 1)
    thirds = np.array_split(np.argsort(output.fitted, kind="stable"), 3)
    spreads = np.sqrt([max(float(squares[third].mean()), 1e-300) for third in thirds])
    ratio = float(spreads.max() / spreads.min())
    where = ("low", "middling", "high")[int(np.argmax(spreads))]
    return ModelCheck(Aspect.SPREAD, ratio, p, ratio > UNEVEN, {"where": where})


def _standard(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / x.std()


def _explained(squares: np.ndarray, Q: np.ndarray) -> np.ndarray:
    """The share of the variance of some squares, … × n, that columns explain; `Q`: an orthonormal basis with the constant."""
    away = squares - squares.mean(axis=-1, keepdims=True)
    total = np.sum(away**2, axis=-1)
    return np.sum((away @ Q) ** 2, axis=-1) / np.maximum(total, 1e-300)
