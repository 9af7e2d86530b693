"""What the columns alone can spoil: classes that they separate, and columns that are sums of one another.

X and y in; `ModelCheck`s out. Chance has no part in these: separation and collinearity are facts about the data, after which a
coefficient rests on its prior.
"""

from collections.abc import Sequence

import numpy as np

from gyromc.regression.adequacy.checks import SETTINGS, Aspect, ModelCheck, ModelVerdict
from gyromc.regression.draws import ResponseKind


def collinearity(
    X: np.ndarray, names: Sequence[str], sources: Sequence[str], weights: np.ndarray | None = None
) -> ModelCheck | None:
    """Columns that the others nearly determine; None with fewer than two. `weights`: of the rows, which are equal without them.

    The statistic is the largest variance inflation factor 1/(1 - R²), for the levels of one column together Fox and Monette's,
    per level. `details`: `columns` of the file above 10, the worst first; `condition`, the condition number of the standardised
    columns; `exact`, whether columns determine each other without an error.
    """
    w = np.ones(len(X)) / len(X) if weights is None else weights / weights.sum()
    away = X - w @ X
    kept, sd = np.flatnonzero(X.std(axis=0) > 0), np.sqrt(w @ away**2)
    groups = {
        source: [i for i, j in enumerate(kept.tolist()) if sources[j] == source] for source in dict.fromkeys(sources)
    }
    groups = {source: places for source, places in groups.items() if places}
    if len(groups) < 2 or len(X) < 3:
        return None
    Z = np.sqrt(w)[:, None] * away[:, kept] / sd[kept]
    values, vectors = np.linalg.eigh(Z.T @ Z)
    exact = bool(values[0] < 1e-12 * values[-1])
    condition = float(np.sqrt(values[-1] / max(values[0], 1e-300)))
    inverse = (vectors / np.maximum(values, 1e-14 * values[-1])) @ vectors.T
    R = Z.T @ Z
    factors = {}
    for source, places in groups.items():
        block = np.ix_(places, places)
        inflated = np.linalg.slogdet(R[block])[1] + np.linalg.slogdet(inverse[block])[1]
        factors[source] = float(np.exp(min(700.0, inflated / len(places))))
    worst = sorted((source for source in factors if factors[source] > SETTINGS.inflated), key=lambda s: -factors[s])
    details = {"columns": worst, "condition": condition, "exact": exact}
    judgement = ModelVerdict.LOOK if worst else ModelVerdict.FINE
    return ModelCheck(Aspect.COLLINEARITY, max(factors.values()), details=details, verdict=judgement)


def separation(X: np.ndarray, y: np.ndarray, names: Sequence[str], kind: ResponseKind) -> ModelCheck | None:
    """Whether a weighted sum of columns tells classes apart without an error, or marks rows that only have counts of zero.

    Then the likelihood has no maximum, and a coefficient is as large as its prior allows. The statistic is the share of rows that
    the sum places beyond doubt. `details`: `columns` with a part in it, the largest first. None for numbers.
    """
    if kind is ResponseKind.NUMBERS or len(X) < 2:
        return None
    sd = X.std(axis=0)
    kept = np.flatnonzero(sd > 0)
    Z = np.column_stack([np.ones(len(X)), (X[:, kept] - X[:, kept].mean(axis=0)) / sd[kept]])
    weights = _separating(Z, y, kind)
    if weights is None:
        return ModelCheck(Aspect.SEPARATION, 0.0, details={"columns": []})
    for j in range(1, Z.shape[1]):  # one column with the intercept is the commonest case, and the easiest to name
        alone = _separating(Z[:, [0, j]], y, kind)
        if alone is not None:
            weights = np.zeros((len(alone), Z.shape[1]))
            weights[:, [0, j]] = alone
            break
    size = np.abs(weights[:, 1:]).max(axis=0)
    order = [j for j in np.argsort(-size, kind="stable") if size[j] > 1e-3 * size.max()]
    share = float(np.mean(_margins(Z, y, kind, weights).max(axis=1) > SETTINGS.close))
    details = {
        "columns": [names[int(kept[j])] for j in order[: SETTINGS.columns]],
        "more": max(0, len(order) - SETTINGS.columns),
    }
    return ModelCheck(Aspect.SEPARATION, share, details=details, verdict=ModelVerdict.LOOK)


def _separating(Z: np.ndarray, y: np.ndarray, kind: ResponseKind) -> np.ndarray | None:
    """Weights, outputs × columns, of a sum that separates all rows; None where there are none.

    The weights maximise the sum of all margins where none may be negative. Rows that break this are added until there are none.
    """
    rng = np.random.default_rng(0)
    rows = (
        np.arange(len(y))
        if len(y) <= SETTINGS.added_rows
        else np.sort(rng.choice(len(y), SETTINGS.first_rows, replace=False))
    )
    for _ in range(SETTINGS.rounds):
        weights = _program(Z[rows], y[rows], kind)
        if weights is None:
            return None
        margins = _margins(Z, y, kind, weights)
        broken = np.flatnonzero(margins.min(axis=1) < -SETTINGS.close * 10)
        if not broken.size:
            return weights
        rows = np.union1d(rows, broken[np.argsort(margins[broken].min(axis=1))[: SETTINGS.added_rows]])
    return None


def _margins(Z: np.ndarray, y: np.ndarray, kind: ResponseKind, weights: np.ndarray) -> np.ndarray:
    """rows × conditions: by how much each row is on its side; none may be negative."""
    sums = Z @ weights.T
    if kind is ResponseKind.COUNTS:
        return np.where(y[:, None] > 0, -np.abs(sums), -sums)
    if len(weights) == 1:
        return np.where(y[:, None] > 0, sums, -sums)
    own = np.take_along_axis(sums, y.astype(int)[:, None], axis=1)
    others = np.arange(len(weights)) != y[:, None]
    return (own - sums)[others].reshape(len(y), -1)


def _program(Z: np.ndarray, y: np.ndarray, kind: ResponseKind) -> np.ndarray | None:
    """The linear program for some rows."""
    n, d = Z.shape
    outputs = int(y.max()) + 1 if kind is ResponseKind.CLASSES and y.max() > 1 else 1
    equal = None
    if kind is ResponseKind.COUNTS:
        A, equal = -Z[y <= 0], Z[y > 0]
    elif outputs == 1:
        A = np.where(y[:, None] > 0, Z, -Z)
    else:
        label = y.astype(int)
        blocks = np.zeros((n, outputs, outputs, d))  # row, other class, class, column
        blocks[np.arange(n), :, label] += Z[:, None, :]
        blocks[:, np.arange(outputs), np.arange(outputs)] -= Z[:, None, :]
        A = blocks[np.arange(outputs) != label[:, None]].reshape(-1, outputs * d)
    if not len(A):
        return None
    # Where it is needed, since it takes a while to import.
    from scipy import optimize

    found = optimize.linprog(
        -A.sum(axis=0) / len(A),
        A_ub=-A,
        b_ub=np.zeros(len(A)),
        A_eq=equal,
        b_eq=None if equal is None else np.zeros(len(equal)),
        bounds=(-1.0, 1.0),
        method="highs",
    )
    if found.x is None or -found.fun < 1e-6:
        return None
    return found.x.reshape(outputs, d)
