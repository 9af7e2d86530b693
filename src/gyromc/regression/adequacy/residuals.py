"""Standardised residuals of a model, and the structure that the columns leave in them.

A candidate column is tested by the score test of adding it. Directions in which the model was fitted are removed, which are
read from the draws: the posterior covariance of the means, in units of the noise, is the hat matrix H. What is left, Z⊥, has
Z⊥ᵀr ~ N(0, Z⊥ᵀZ⊥) in large samples; replicated responses correct the law in small ones. p-values are corrected for searches.
"""

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import linalg, special

from gyromc.regression.adequacy.checks import SETTINGS, Aspect, ModelCheck
from gyromc.regression.draws import Predictive, ResponseKind
from gyromc.targets.families import Bernoulli, Binomial, Ordinal

KNOTS = {4: (0.05, 0.35, 0.65, 0.95), 3: (0.1, 0.5, 0.9)}  # Harrell's quantiles
LEAST_ROWS = 20
MATTERS = 0.05  # share of the residuals' variance
CLEAR = 0.01  # p, from which one finding goes before another
FEW_LEVELS = 5  # with fewer, a column is a property of rows and no group of them
SORTED = 0.9  # share of steps in one direction, from which the rows are in the order of the responses


@dataclasses.dataclass(frozen=True, eq=False)
class ModelResiduals:
    """The residuals of one output of a model."""

    values: np.ndarray  # (y - E[y])/sd at the posterior mean, n rows
    fitted: np.ndarray  # E[y]
    replicates: np.ndarray  # residuals of replicated responses at their own draws, S × n
    moves: np.ndarray  # of the mean between draws, in units of the noise: S × n, with Hᵢⱼ = Σ_s moves_si moves_sj
    sensitivity: np.ndarray  # how much the mean changes with the linear predictor, in units of the noise
    classes: bool = False  # whether y is the indicator of a class, which has no variance of its own

    @functools.cached_property
    def hat(self) -> tuple[np.ndarray, np.ndarray]:
        """H by its eigenvalues, in (0, 1], and orthonormal directions, n × rank: how far the model follows the responses."""
        short = self.moves.shape[0] < self.moves.shape[1]
        values, vectors = np.linalg.eigh(self.moves @ self.moves.T if short else self.moves.T @ self.moves)
        kept = values > SETTINGS.least_left
        directions = self.moves.T @ vectors[:, kept] / np.sqrt(values[kept]) if short else vectors[:, kept]
        return np.minimum(values[kept], 1.0), directions

    @functools.cached_property
    def leverages(self) -> np.ndarray:
        """Hᵢᵢ: the share of its own noise that the fit follows in each row."""
        return np.minimum(np.sum(self.moves**2, axis=0), 1.0)

    @functools.cached_property
    def inflation(self) -> float:
        """Pearson's χ² per degree of freedom where it is above 1: noise that the model lacks must not look like structure."""
        freedom = self.values.size - float(self.leverages.sum())
        return 1.0 if self.classes or freedom < 1 else max(1.0, float(np.sum(self.values**2)) / freedom)

    def left(self, candidates: np.ndarray) -> np.ndarray:
        """Candidates, n × count, weighted, without the fitted directions and with unit length; 0 where nothing is left."""
        Z = self.sensitivity[:, None] * candidates
        Z = self.without_fitted((Z / np.maximum(np.linalg.norm(Z, axis=0), 1e-300)).T).T
        size = np.linalg.norm(Z, axis=0)
        return np.where(size**2 > SETTINGS.least_left, Z / np.maximum(size, 1e-300), 0.0)

    def without_fitted(self, replicates: np.ndarray) -> np.ndarray:
        """Residuals as they would be had the model been fitted to them: … × n, without the fitted directions."""
        values, directions = self.hat
        Q = directions[:, values > SETTINGS.fitted]
        return replicates - (replicates @ Q) @ Q.T

    @functools.cached_property
    def shuffled(self) -> np.ndarray:
        """The residuals in other orders, some × n: what columns explain that have no part in them, however heavy their tails."""
        values = np.tile(self.values / np.sqrt(self.inflation), (SETTINGS.orders, 1))
        return np.random.default_rng(0).permuted(values, axis=1)

    def each(self, candidates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Test each candidate column by itself: the share of the residuals' variance that it explains beyond chance, and p."""
        Z = self.left(candidates)
        found = (Z.T @ self.values) ** 2 / self.inflation
        replicated, shuffled = (self.replicates @ Z) ** 2, (self.shuffled @ Z) ** 2
        p = np.array([chance(x, 1, *laws) for x, *laws in zip(found, replicated.T, shuffled.T, strict=True)])
        return np.maximum(0.0, found - 1) / self._size, np.where(np.any(Z, axis=0), p, 1.0)

    def together(self, candidates: np.ndarray) -> tuple[float, float]:
        """Test some candidate columns together: the share that they explain beyond chance, and p."""
        Z = self.left(candidates)
        U, size, _ = np.linalg.svd(Z[:, np.any(Z, axis=0)], full_matrices=False)
        basis = U[:, size > 0.01]
        degrees = basis.shape[1]
        if not degrees:
            return 0.0, 1.0
        found = float(np.sum((basis.T @ self.values) ** 2)) / self.inflation
        laws = [np.sum((rows @ basis) ** 2, axis=1) for rows in (self.replicates, self.shuffled)]
        return max(0.0, found - degrees) / self._size, chance(found, degrees, *laws)

    @property
    def _size(self) -> float:
        """What is left to explain: the sum of squares of the residuals, in the units of the tests."""
        return max(float(np.sum(self.values**2)) / self.inflation, 1e-300)


def chance(found: float, degrees: int, *laws: np.ndarray) -> float:
    """P(χ² ≥ found), with the law widened to the mean and variance of repeated statistics where these are clearly larger."""
    p = [special.chdtrc(degrees, found)]
    for repeated in laws:
        # Clearly: by two standard errors of so many. Without that their noise alone would make every p larger.
        noise = 2 / np.sqrt(repeated.size)
        mean = max(float(degrees), float(repeated.mean()) - noise * np.sqrt(2 * degrees))
        variance = max(2.0 * degrees, float(repeated.var(ddof=1)) - noise * np.sqrt(8 * degrees**2 + 48 * degrees))
        p.append(special.chdtrc(2 * mean**2 / variance, found * 2 * mean / variance))
    return float(max(p))


def residuals(law: Predictive, y: np.ndarray, replicates: np.ndarray) -> list[ModelResiduals]:
    """The residuals of every output, one, or one for each class where there are more than two."""
    if law.mean.ndim == 2:
        return [_of_output(law.mean, law.variance, y, replicates, law.t, law.kind is ResponseKind.CLASSES)]
    outputs = range(law.mean.shape[2])
    return [_of_output(law.mean[..., c], law.variance[..., c], y == c, replicates == c, None, True) for c in outputs]


def _of_output(mean: np.ndarray, variance: np.ndarray, y: np.ndarray, replicates: np.ndarray, t, classes: bool):
    """The residuals of one output; `t`: its linear predictors, None where it has several."""
    center = mean.mean(axis=0)
    sd = np.sqrt(np.maximum(np.median(variance, axis=0), 1e-300))  # a mean may be that of a few draws with heavy tails
    moves = (mean - center) / (sd * np.sqrt(len(mean) - 1))
    repeated = replicates - mean
    repeated /= np.sqrt(np.maximum(variance, 1e-300))
    sensitivity = sd
    if t is not None:
        steps = t.std(axis=0)
        sensitivity = np.where(steps > 0, mean.std(axis=0) / np.maximum(steps, 1e-300) / sd, 1.0)
    return ModelResiduals((y - center) / sd, center, repeated, moves, sensitivity, classes)


def natural_spline(x: np.ndarray, fitted: np.ndarray | None = None) -> np.ndarray:
    """The curved part of a cubic spline in x, straight beyond its outer knots, quantiles of `fitted` or of x: n × 2 or fewer."""
    of = x if fitted is None else fitted
    distinct = np.unique(of)
    if distinct.size < 3:
        return np.zeros((x.size, 0))
    for levels in KNOTS.values():
        knots = np.quantile(of, levels)
        if np.all(np.diff(knots) > 1e-9 * np.ptp(distinct)):
            width, gap = knots[-1] - knots[0], knots[-1] - knots[-2]
            # one truncated cubic for each knot but the last two, with their straight ends
            cubes = np.maximum(x[:, None] - knots, 0.0) ** 3 / width**3
            ends = cubes[:, -2:-1] * (knots[-1] - knots[:-2]) - cubes[:, -1:] * (knots[-2] - knots[:-2])
            return cubes[:, :-2] - ends / gap
    return ((x - of.mean()) / of.std())[:, None] ** 2


def curvature(outputs: Sequence[ModelResiduals], X: np.ndarray, names: Sequence[str]) -> ModelCheck | None:
    """Whether a curve in a column of numbers would explain some of the residuals: the largest share of their variance."""
    found = []
    for j, name in enumerate(names):
        curves = natural_spline(X[:, j])
        if curves.shape[1]:
            shares, p = zip(*(output.together(curves) for output in outputs), strict=True)
            found.append((min(1.0, len(p) * min(p)), max(shares), name))
    if not found:
        return None
    found = sorted((min(1.0, len(found) * p), share, name) for p, share, name in found)
    clear = [(share, name) for p, share, name in found if p < 0.05]
    p, share, best = found[0]
    details = {"columns": [name for _, name in clear], "tried": len(found), "best": best}
    return ModelCheck(Aspect.CURVATURE, share, p, any(share >= SETTINGS.curve_share for share, _ in clear), details)


def interactions(
    outputs: list[ModelResiduals], X: np.ndarray, names: list[str], sources: list[str]
) -> ModelCheck | None:
    """Whether the product of two columns, not of one column of the file (`sources`), would explain some of the residuals."""
    sd = X.std(axis=0)
    kept = np.flatnonzero(sd > 0)
    Z = (X - X.mean(axis=0)) / np.where(sd > 0, sd, 1.0)
    if kept.size > SETTINGS.product_columns:  # those with which most of the fitted mean goes
        effects = np.max([np.abs(Z[:, kept].T @ (o.fitted - o.fitted.mean())) for o in outputs], axis=0)
        kept = np.sort(kept[np.argsort(-effects, kind="stable")[: SETTINGS.product_columns]])
    pairs = [(i, j) for i, j in itertools.combinations(kept.tolist(), 2) if sources[i] != sources[j]]
    if not pairs:
        return None
    products = np.column_stack([Z[:, i] * Z[:, j] for i, j in pairs])
    shares, p = zip(*(output.each(products) for output in outputs), strict=True)
    share = np.max(shares, axis=0)
    p = np.minimum(1.0, len(pairs) * len(outputs) * np.min(p, axis=0))
    order = np.argsort(p, kind="stable")
    named = [tuple(names[i] for i in pair) for pair in pairs]
    clear = [named[k] for k in order[: SETTINGS.pairs] if p[k] < 0.05 and share[k] >= SETTINGS.curve_share]
    best = int(order[0])
    details = {"pairs": clear, "tried": len(pairs), "best": list(named[best])}
    return ModelCheck(Aspect.INTERACTIONS, float(share[best]), float(p[best]), bool(clear), details)


def even_spread(output: ModelResiduals) -> ModelCheck | None:
    """Whether the squares of the residuals change with the fitted mean (Koenker's test); None with fewer than 20 rows."""
    n = output.values.size
    if n < 20 or np.ptp(output.fitted) == 0:
        return None
    inner = np.maximum(1 - output.leverages, 0.1)
    squares = output.values**2 / inner
    level = (output.fitted - output.fitted.mean()) / output.fitted.std()
    Q, _ = np.linalg.qr(np.column_stack([np.ones(n), level, natural_spline(output.fitted)[:, :1]]))

    def explained(squares: np.ndarray) -> np.ndarray:
        """The share of the variance of some squares, … × n, that goes with the fitted mean."""
        away = squares - squares.mean(axis=-1, keepdims=True)
        return np.sum((away @ Q) ** 2, axis=-1) / np.maximum(np.sum(away**2, axis=-1), 1e-300)

    repeated = n * explained(output.without_fitted(output.replicates) ** 2 / inner)
    p = chance(n * float(explained(squares)), Q.shape[1] - 1, repeated)
    # The statistic: how many times wider the residuals are in the widest than in the narrowest third of the rows by mean.
    thirds = np.array_split(np.argsort(output.fitted, kind="stable"), 3)
    sds = np.sqrt([max(float(squares[third].mean()), 1e-300) for third in thirds])
    ratio = float(sds.max() / sds.min())
    where = ("low", "middling", "high")[int(np.argmax(sds))]
    return ModelCheck(Aspect.SPREAD, ratio, p, ratio > SETTINGS.uneven, {"where": where})


def dependence(
    outputs: Sequence[ModelResiduals],
    y: np.ndarray,
    order: np.ndarray | None = None,
    unused: Mapping[str, np.ndarray] | None = None,
) -> ModelCheck | None:
    """Whether rows depend on each other, or on columns that the model leaves out; None where there is nothing to test."""
    # `order`: the rows as they follow each other, None where unknown; `unused`: columns by name, levels as whole numbers from 0.
    found = []
    if order is not None and y.size >= LEAST_ROWS and not _sorted(y[order], outputs[0].classes):
        of = lambda e: np.sum(e[..., 1:] * e[..., :-1], axis=-1) / np.maximum(np.sum(e**2, axis=-1), 1e-300)
        # The correlation of neighbouring residuals; its law under the model is that of replicated ones.
        for output in outputs:
            lag, repeated = float(of(output.values[order])), of(output.without_fitted(output.replicates)[:, order])
            z = (lag - repeated.mean()) / max(float(repeated.std(ddof=1)), 1e-300)
            found.append((float(2 * special.ndtr(-abs(z))), lag**2, {"kind": "order", "name": "", "lag": lag}))
    for name, x in (unused or {}).items():
        if np.issubdtype(x.dtype, np.integer):
            candidates = (x[:, None] == np.arange(x.max() + 1)).astype(float)
            kind = "group" if candidates.shape[1] >= FEW_LEVELS else "column"
        else:
            candidates, kind = np.column_stack([x - x.mean(), natural_spline(x)]), "column"
        tests = (output.together(candidates) for output in outputs)
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


def link(law: Predictive, output: ModelResiduals, columns: int) -> ModelCheck | None:
    """Whether probabilities rise more steeply towards 1 or towards 0 than the logistic link lets them."""
    # Aranda-Ordaz's links, p = 1 - (1 + λeᵗ)^{-1/λ}, contain the logistic one (λ = 1), about which the linear predictor changes
    # by log(1 + eᵗ)/p - 1. With one column a link cannot be told from a curve: None.
    if not isinstance(law.likelihood, Bernoulli | Binomial) or columns < 2:
        return None
    t = law.t.mean(axis=0)
    bend = (np.logaddexp(0.0, t) / special.expit(t) - 1)[:, None]
    share, p = output.together(bend)
    steeper = bool(output.left(bend)[:, 0] @ output.values > 0)
    return ModelCheck(Aspect.LINK, share, p, share > SETTINGS.link_share, {"steeper": steeper})


def proportional_odds(law: Predictive, X: np.ndarray, y: np.ndarray, names: list[str]) -> ModelCheck | None:
    """Whether a column changes the odds of all higher classes alike, column by column; None unless classes are ordered."""
    # Each of the K cutpoints has a linear predictor η_k = c_k - t. The score of a slope of its own for all but one of them is
    # compared with its covariance, both given the cutpoints and slopes that were fitted.
    if not isinstance(law.likelihood, Ordinal) or law.likelihood.num_classes < 3 or not X.shape[1]:
        return None
    eta = np.array([cut.mean() for cut in law.given]) - law.t.mean(axis=0)[:, None]
    (n, K), place = eta.shape, np.arange(len(law.given))
    upto = special.expit(eta)
    p = np.maximum(np.diff(np.column_stack([np.zeros(n), upto, np.ones(n)]), axis=1), 1e-300)
    change = np.zeros((n, K + 1, K))  # ∂p_c/∂η_k
    change[:, place, place] = upto * (1 - upto)
    change[:, place + 1, place] = -upto * (1 - upto)
    own = np.arange(n), y.astype(int)
    score = change[own] / p[own][:, None]
    information = np.einsum("nck,ncl,nc->nkl", change, change, 1 / p)
    Z = (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    fitted = np.concatenate([np.broadcast_to(np.eye(K), (n, K, K)), np.repeat(Z[:, None, :], K, axis=1)], axis=2)
    found = []
    for j, name in enumerate(names):
        both = np.concatenate([fitted, Z[:, j, None, None] * np.eye(K)[:, 1:]], axis=2)
        U = np.einsum("nka,nk->a", both, score)
        V = np.einsum("nka,nkl,nlb->ab", both, information, both)
        a = fitted.shape[2]
        across = V[a:, :a] @ linalg.pinvh(V[:a, :a])
        left, covariance = U[a:] - across @ U[:a], V[a:, a:] - across @ V[:a, a:]
        statistic = float(left @ linalg.pinvh(covariance) @ left)
        found.append((float(special.chdtrc(K - 1, statistic)), max(0.0, statistic - K + 1) / n, name))
    least, share, name = min(found)
    chance = min(1.0, len(found) * least)
    return ModelCheck(Aspect.PROPORTIONAL, share, chance, share > SETTINGS.curve_share, {"column": name})
