"""What a fit says in the words people quote: odds and rate ratios, average changes of E[y], contrasts, robust deviations.

Input: a fit, its rows and the column of the file that each column of X comes from. Output: a list of `Effect`. A ratio is exp of
a coefficient, or of a difference of two; a change is E[y | x'] - E[y | x], averaged over rows, x' with one thing changed.

`robust_sd` are standard deviations of coefficients that hold where the model's own variance of y is wrong: the sandwich
H⁻¹ (Σ g gᵀ) H⁻¹, H the curvature of the potential at the posterior mean, prior included, g the slope of -log p(y | t) times the
standardised row, summed over the rows of a cluster. Further parameters are held at their posterior means.
"""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gyromc.checks import require
from gyromc.regression.draws import Predictive
from gyromc.regression.fit import Fit
from gyromc.regression.problem import cut

__all__ = ["Effect", "changeable", "effects", "robust_sd"]

MOST_ROWS, MOST_DRAWS = 500, 500  # of averages over rows
MOST_CONTRASTS = 15  # between the levels of one column


@dataclasses.dataclass(frozen=True)
class Effect:
    """What goes with one change of the columns.

    - `name`: the change: `age + 1`, `sex: m against f`.
    - `ratio`, `ratio_interval`: the median of exp of the coefficient and its interval; None where the model has no ratios.
    - `change`, `change_interval`: the mean of the average change of E[y] and its interval; None for more than two classes.
    """

    name: str
    ratio: float | None = None
    ratio_interval: tuple[float, float] | None = None
    change: float | None = None
    change_interval: tuple[float, float] | None = None


def effects(
    fit: Fit,
    X: np.ndarray,
    sources: Sequence[str],
    references: Mapping[str, str] | None = None,
    beside: Mapping[str, Any] | None = None,
) -> list[Effect]:
    """The effects of all columns that can be changed alone; those in interactions or curves are left out.

    **Arguments:**

    - `X`: the rows of the fit; `sources`: for each of its columns, where it comes from.
    - `references`: the level without a column of its own, by source.
    - `beside`: what `Draws.predictors` takes beside X, one entry per row.

    ```python
    import numpy as np
    from gyromc.regression.effects import effects
    from gyromc.regression.fit import fit
    X = np.column_stack([np.linspace(-2, 2, 40), np.arange(40) % 2])
    y = np.random.default_rng(0).poisson(np.exp(0.5 + 0.4 * X[:, 1]))
    found = effects(fit(X, y, "poisson", effort="quick", names=["dose", "sex[m]"]), X, ["dose", "sex"], {"sex": "f"})
    assert [effect.name for effect in found] == ["dose + 1", "sex: m against f"]
    ```
    """
    likelihood = fit.posterior.likelihood
    if likelihood.words.ratio is None and not likelihood.measured:
        return []
    place = {c.name: k for k, c in enumerate(fit.coefficients)}
    draws = fit.posterior.coefficients().reshape(-1, len(place))
    picked = np.unique(np.linspace(0, len(X) - 1, min(len(X), MOST_ROWS)).astype(int))
    study = _Study(fit, X[picked], cut(beside, picked))
    found = []
    for source, columns in changeable(fit.names, sources, X).items():
        moves = _moves(source, columns, fit.names, X, (references or {}).get(source, "the reference"))
        for name, to, start in moves:
            # of a mean that is linear in x, the coefficient is the change
            if likelihood.measured and (to is None or start is None):
                continue
            along = sum(s * draws[:, place[fit.names[j]]] for j, s in ((to, 1.0), (start, -1.0)) if j is not None)
            found.append(study.effect(name, along, columns, to, start))
    return found


@dataclasses.dataclass(frozen=True, eq=False)
class _Study:
    fit: Fit
    X: np.ndarray
    beside: dict[str, Any]

    def effect(self, name: str, along: Any, columns: list[int], to: int | None, start: int | None) -> Effect:
        """The effect of a move with these draws of its coefficient; `columns` are all of its source."""
        likelihood = self.fit.posterior.likelihood
        tails = [(1 - self.fit.level) / 2, 0.5, (1 + self.fit.level) / 2]
        low, middle, high = np.quantile(along, tails, method="hazen")
        if likelihood.measured:
            return Effect(name, change=float(np.mean(along)), change_interval=(float(low), float(high)))
        ratio = Effect(name, float(np.exp(middle)), (float(np.exp(low)), float(np.exp(high))))
        if likelihood.cutpoints:
            return ratio
        change = (self._mean(columns, to) - self._mean(columns, start)).mean(axis=1)
        low, _, high = np.quantile(change, tails, method="hazen")
        return dataclasses.replace(ratio, change=float(change.mean()), change_interval=(float(low), float(high)))

    def _mean(self, columns: list[int], to: int | None) -> np.ndarray:
        """E[y], draws × rows, with a level switched on, or a number increased by 1; None: with none of them, or as it is."""
        X = self.X.copy()
        if _levels(self.X[:, columns]):
            X[:, columns] = 0.0
            if to is not None:
                X[:, to] = 1.0
        elif to is not None:
            X[:, to] += 1.0
        return Predictive.of(self.fit.posterior, X, MOST_DRAWS, **self.beside).mean


def changeable(names: Sequence[str], sources: Sequence[str], X: np.ndarray) -> dict[str, list[int]]:
    """The columns of each source that can be changed alone: levels, or one number; not part of a product or a curve."""
    found: dict[str, list[int]] = {}
    for j, source in enumerate(sources):
        found.setdefault(source, []).append(j)
    products = {part for source in found if ":" in source for part in source.split(":")}
    plain = lambda s, columns: len(columns) == 1 and (names[columns[0]] == s or _levels(X[:, columns]))
    return {
        s: columns
        for s, columns in found.items()
        if ":" not in s and s not in products and (plain(s, columns) or (len(columns) > 1 and _levels(X[:, columns])))
    }


def _levels(X: np.ndarray) -> bool:
    """Whether columns are indicators of levels: 0 or 1, at most one of them 1 in a row."""
    return bool(np.all((X == 0) | (X == 1)) and np.all(X.sum(axis=1) <= 1))


def _moves(
    source: str, columns: list[int], names: Sequence[str], X: np.ndarray, reference: str
) -> list[tuple[str, int | None, int | None]]:
    """Each change of a source: its name, the column switched on, and the one switched off."""
    if not _levels(X[:, columns]):
        return [(f"{source} + 1", columns[0], None)]
    if names[columns[0]] == source:  # a column of 0 and 1
        return [(f"{source}: 1 against 0", columns[0], None)]
    level = {j: names[j].removeprefix(f"{source}[").removesuffix("]") for j in columns}
    moves: list[tuple[str, int | None, int | None]] = [
        (f"{source}: {level[j]} against {reference}", j, None) for j in columns
    ]
    pairs = list(itertools.combinations(columns, 2))[:MOST_CONTRASTS]
    return [*moves, *((f"{source}: {level[b]} against {level[a]}", b, a) for a, b in pairs)]


STEP = 1e-4  # of the linear predictor, for differences


def robust_sd(
    fit: Fit,
    X: np.ndarray,
    y: np.ndarray,
    clusters: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    **beside: Any,
) -> np.ndarray:
    """Return the robust standard deviation of each coefficient of a fit.

    **Arguments:**

    - `fit`, `X`, `y`: a fit without groups, and the rows that it was fitted to; `beside`: offset and trials, as in the fit.
    - `clusters`: a number for each row; rows of one cluster may depend on each other. Every row by itself when left out.
    - `weights`: as in the fit.

    The finite-sample factors are those of R's and Stata's defaults: n/(n − k), and G/(G − 1) · (n − 1)/(n − k) for G clusters.

    ```python
    import numpy as np
    from gyromc.regression.fit import fit
    from gyromc.regression.effects import robust_sd
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, 400)
    y = 1 + x + x * rng.standard_normal(400)
    found = fit(x[:, None], y, effort="quick")
    assert robust_sd(found, x[:, None], y)[0] < found.sd["intercept"]
    ```
    """
    posterior, likelihood = fit.posterior, fit.posterior.likelihood
    require(
        not posterior.groups,
        "Robust standard deviations are for models without groups. Fit without them and pass `clusters`.",
    )
    require(
        likelihood.outputs == 1,
        "Robust standard deviations are for models with one linear predictor, not for several classes.",
    )
    # The posterior with one draw, its mean.
    center = {"theta": posterior.theta.mean(axis=(0, 1), keepdims=True)}
    center["given"] = tuple(np.mean(g, keepdims=True, axis=(0, 1)) for g in posterior.given)
    t, given = dataclasses.replace(posterior, **center).predictors(X, **beside)
    t, given = t[0, 0], tuple(g[0, 0] if np.ndim(g) == 3 else g for g in given)
    h = STEP * max(1.0, posterior.units.y_scale)
    low, mid, high = (-likelihood.log_density(t + d, y, *given) for d in (-h, 0.0, h))
    w = np.ones(len(y)) if weights is None else weights
    slope, curvature = w * (high - low) / (2 * h), np.maximum(w * (high - 2 * mid + low) / h**2, 0.0)
    rows = posterior.units.y_scale * posterior.units.rows(X)  # ∂t/∂θ
    H = (rows * curvature[:, None]).T @ rows + float(fit.target.prior_precision) * np.eye(rows.shape[1])
    scores = rows * slope[:, None]
    n, k = len(y), rows.shape[1]
    factor = n / max(n - k, 1)
    if clusters is not None:
        names, place = np.unique(clusters, return_inverse=True)
        require(len(names) > 1, "Cluster-robust standard deviations need two clusters or more: there is one.")
        summed = np.zeros((len(names), k))
        np.add.at(summed, place, scores)
        scores, factor = summed, len(names) / (len(names) - 1) * (n - 1) / max(n - k, 1)
    half = np.linalg.solve(H, scores.T)
    T, _ = posterior.units.coefficients(likelihood.basis)
    covariance = factor * T @ (half @ half.T) @ T.T
    return np.sqrt(np.maximum(np.diag(covariance), 0.0))
