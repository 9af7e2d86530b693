"""Does a fitted regression describe its data? All checks, on at most 3000 rows: the time does not grow with the data.

Calibration is judged by the law with each row left out. Outliers with normal noise are judged by the noise of the other rows:
among few rows an outlier widens σ and hides itself. Others are outliers only if the model cannot make them fit. Laws of counts
have jumps: a distribution function is taken just below y and at it.
A row of weight 3 is three observations, for the fit and for the checks, which look at observations in place of rows. Nothing
says how the response of a row of weight 2.5 should vary: then one check says that the others are not made.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from gyromc.regression.adequacy import checks, residuals
from gyromc.regression.adequacy.checks import SETTINGS, Aspect, ModelCheck, ModelVerdict
from gyromc.regression.adequacy.residuals import ModelResiduals, natural_spline
from gyromc.regression.draws import Draws, Predictive
from gyromc.regression.problem import cut
from gyromc.regression.scores import Loo, Waic, loo, waic
from gyromc.runtime.machine import one_blas_thread
from gyromc.targets.families import Normal
from gyromc.targets.likelihoods import ResponseKind


@dataclasses.dataclass(frozen=True, eq=False)
class Adequacy:
    """Whether a model describes its data: its checks, and what they were made of, at `rows` of `num_rows` observations."""

    checks: tuple[ModelCheck, ...]
    loo: Loo
    waic: Waic
    r_squared: np.ndarray  # draws of the Bayesian R²
    deviance: np.ndarray  # draws of -2 Σ log p(y_i | θ)
    rows: np.ndarray
    num_rows: int
    law: Predictive
    outputs: list[ModelResiduals]
    X: np.ndarray
    y: np.ndarray  # with censored times completed
    replicates: np.ndarray
    names: tuple[str, ...]

    @property
    def judgement(self) -> ModelVerdict:
        return max((check.verdict for check in self.checks), key=list(ModelVerdict).index)

    @functools.cached_property
    def by_aspect(self) -> dict[Aspect, ModelCheck]:
        return {check.aspect: check for check in self.checks}


@one_blas_thread()
def assess(
    posterior: Draws,
    X: np.ndarray,
    y: np.ndarray,
    *,
    names: Sequence[str] | None = None,
    sources: Sequence[str] | None = None,
    further: Sequence[ModelCheck] = (),
    beside: Mapping[str, Any] | None = None,
    weights: np.ndarray | None = None,
    order: np.ndarray | None = None,
    unused: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
) -> Adequacy:
    """Check a fitted model, the `Draws` of a `Fit`, against the rows it was fitted to.

    - `names`: of the columns of X; `sources`: the column of a file that each comes from, where one makes several.
    - `further`: checks made elsewhere, such as `held_out_coverage`; all checks share one chance of a false alarm.
    - `beside`: what `Draws.predictors` takes beside X, by name; `weights`: how many observations a row stands for.
    - `order`: a number for each row that says in which order they came; as they stand when left out.
    - `unused`: columns that are not in the model, by name: whole numbers are levels of groups, other numbers are numbers.
    """
    rng = np.random.default_rng([seed, 7])
    columns = list(names or (f"x{j}" for j in range(X.shape[1])))
    origins = list(sources or columns)
    counts = np.ones(len(X)) if weights is None else np.asarray(weights, float)
    most = max(SETTINGS.least_rows, SETTINGS.most_rows // posterior.likelihood.outputs)
    rows, total, whole = observations(counts, rng, most)
    part, y_part = X[rows], np.asarray(y, float)[rows]
    most_draws = int(np.clip(SETTINGS.most_numbers // len(rows), SETTINGS.least_draws, SETTINGS.most_draws))
    law = Predictive.of(posterior, part, most_draws, **cut(beside, rows))
    replicates = law.replicate(rng)
    log_density = law.log_density(y_part) * (1.0 if whole else counts[rows])
    scale = total / len(rows)
    left_out, information = loo(log_density, scale), waic(log_density, scale)
    deviance = -2 * scale * log_density.sum(axis=1)
    # under the model, times completed by draws from it are times that were never censored
    y_part = law.completed(y_part, rng)
    del log_density  # as large as draws × rows, like `outputs`
    outputs = residuals.residuals(law, y_part, replicates)
    seen = counts > 0
    every = weights is None and len(rows) == len(X)
    in_order = np.argsort(np.arange(len(X)) if order is None else order, kind="stable") if every else None
    others = {name: values[rows] for name, values in (unused or {}).items()}
    made = [influence(left_out), checks.collinearity(X[seen], origins, counts[seen])]
    made.append(checks.separation(X[seen], np.asarray(y, float)[seen], columns, law.kind))
    if whole:
        given = law, part, y_part, outputs, left_out, columns, origins, in_order, others, rng
        made += [*_checks_of_rows(*given), *further]
    else:
        row = int(np.argmax(np.abs(counts - np.round(counts))))
        details = {"row": row, "made": False}
        made.append(ModelCheck(Aspect.WEIGHTS, float(counts[row]), details=details, verdict=ModelVerdict.LOOK))
    r_squared = bayesian_r_squared(law, None if whole else counts[rows])
    scores = {"loo": left_out, "waic": information, "r_squared": r_squared, "deviance": deviance}
    data = {"rows": rows, "num_rows": total, "law": law, "outputs": outputs, "X": part, "y": y_part}
    found = checks.judged([check for check in made if check is not None])
    return Adequacy(found, **scores, **data, replicates=replicates, names=tuple(columns))


def _checks_of_rows(law, X, y, outputs, left_out, names, sources, order, unused, rng) -> list[ModelCheck | None]:
    """The checks in which each row is one observation."""
    if law.kind is ResponseKind.CLASSES:
        of_law = class_calibration(outputs)
        chances = class_tails(law, y, left_out.log_weights)
    else:
        parts = distribution(law, y)
        of_law = calibration(*averaged(parts, left_out.log_weights), rng)
        below, upto = averaged(parts)
        normal = isinstance(law.likelihood, Normal)
        chances = deleted(outputs[0]) if normal else np.minimum(1.0, 2 * np.minimum(upto, 1 - below))
    return [
        residuals.dependence(outputs, y, order, unused),
        dispersion(law, y, outputs[0]),
        of_law,
        outliers(chances),
        residuals.curvature(outputs, X, names),
        residuals.interactions(outputs, X, names, sources),
        residuals.link(law, outputs[0], X.shape[1]),
        residuals.proportional_odds(law, X, y, names),
        residuals.even_spread(outputs[0]) if law.kind is ResponseKind.NUMBERS else None,
    ]


def chosen_rows(num_rows: int, rng: np.random.Generator, most: int = SETTINGS.most_rows) -> np.ndarray:
    """All rows, or so many of them, drawn at random and in order."""
    return np.arange(num_rows) if num_rows <= most else np.sort(rng.choice(num_rows, most, replace=False))


def observations(
    times: np.ndarray, rng: np.random.Generator, most: int = SETTINGS.most_rows
) -> tuple[np.ndarray, int, bool]:
    """The rows of all observations, or of so many of them; how many there are in all; whether all counts are whole."""
    whole = bool(np.all(times == np.round(times)))
    ends = np.cumsum(times.astype(np.int64) if whole else times > 0)
    total = int(ends[-1])
    return np.searchsorted(ends, chosen_rows(total, rng, most), side="right"), total, whole


def held_out_coverage(
    posterior: Draws,
    X: np.ndarray,
    y: np.ndarray,
    beside: Mapping[str, Any] | None = None,
    seed: int = 0,
    weights: np.ndarray | None = None,
) -> ModelCheck | None:
    """How many rows that the fit has not seen lie in their 95 % predictive intervals; None where that cannot be said."""
    rng = np.random.default_rng([seed, 8])
    counts = np.ones(len(X)) if weights is None else np.asarray(weights, float)
    if counts.sum() == 0 or posterior.likelihood.response is ResponseKind.CLASSES:
        return None
    rows, _, whole = observations(counts, rng)
    if not whole:
        return None
    law = Predictive.of(posterior, X[rows], **cut(beside, rows))
    return coverage(law, np.asarray(y, float)[rows], law.replicate(rng))


def _two_sided(found: float, repeated: np.ndarray) -> tuple[float, float]:
    """How unlikely a statistic is among replicated ones, on both sides, and the smallest such number that these can show."""
    extreme = min(np.sum(repeated >= found - 1e-12), np.sum(repeated <= found + 1e-12))
    return min(1.0, 2 * (1 + float(extreme)) / (repeated.size + 1)), 2 / (repeated.size + 1)


def dispersion(law: Predictive, y: np.ndarray, output: ModelResiduals) -> ModelCheck | None:
    """Pearson's χ² per degree of freedom, for counts: a linear model fits its noise, and a class has no variance of its own."""
    freedom = output.values.size - float(output.leverages.sum())
    if law.kind is not ResponseKind.COUNTS or freedom < 1:
        return None
    ratio = float(np.sum(output.values**2)) / freedom
    p, least = _two_sided(ratio, np.mean(output.replicates**2, axis=1))
    many_zeros = False
    if ratio > 1:
        # More zeros, by three standard errors, than a negative binomial law of this dispersion has: χ² is 1 + μ/k in a row.
        k = float(np.mean(output.fitted)) / (ratio - 1)
        expected = float(np.sum(np.exp(-k * np.log1p(output.fitted / k))))
        many_zeros = int(np.sum(y == 0)) > expected + 3 * math.sqrt(expected)
    large = not 1 / SETTINGS.overdispersed < ratio < SETTINGS.overdispersed
    details = {"rows": output.values.size, "least": least, "zeros": many_zeros}
    return ModelCheck(Aspect.DISPERSION, ratio, p, large, details)


def distribution(law: Predictive, y: np.ndarray) -> tuple[np.ndarray, np.ndarray | float]:
    """P(Y_i ≤ y_i | θ_s), and P(Y_i = y_i | θ_s) where y has jumps, else 0: S × n."""
    return law.cdf(y), np.exp(law.log_density(y)) if law.likelihood.discrete else 0.0


def averaged(
    parts: tuple[np.ndarray, np.ndarray | float], log_weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """The distribution function just below y, and at it, averaged over draws, with the `log_weights` of `loo` or equal ones."""
    at, jump = parts
    weights = 1 / len(at) if log_weights is None else np.exp(log_weights)
    upto = np.sum(weights * at, axis=0)
    below = upto - (np.sum(weights * jump, axis=0) if isinstance(jump, np.ndarray) else 0.0)
    return np.clip(below, 0.0, 1.0), np.clip(upto, 0.0, 1.0)


def deleted(output: ModelResiduals) -> np.ndarray:
    """How unlikely each residual of a model with normal noise is, σ² estimated from the other rows (externally studentised)."""
    # The residuals e have the covariance σ²A, A = I - H, also where groups shrink. What is left of them without their part along
    # e_i, r = e - A_i e_i/A_ii, is independent of e_i, and |r|² is nearly σ² times χ²: its mean is σ² tr C and its variance 2σ⁴
    # tr C², C = A - A_i A_iᵀ/A_ii. A row that the fit follows tells nothing: 1.
    values, directions = output.hat
    e, n = output.values, output.values.size
    lost = [1 - (1 - values) ** power for power in (1, 2, 3)]  # of the eigenvalues of A, A² and A³
    first, second, third = (np.maximum(1 - directions**2 @ gone, 0.0) for gone in lost)
    inner = np.maximum(first, SETTINGS.followed)
    along = e - directions @ (values * (directions.T @ e))  # Ae
    rest = np.sum(e**2) - 2 * e * along / inner + second * (e / inner) ** 2
    mean = n - lost[0].sum() - second / inner
    variance = n - lost[1].sum() - 2 * third / inner + (second / inner) ** 2
    if mean.min() < 1:
        return np.ones(n)
    ratio = e**2 / inner / np.maximum(rest / mean, 1e-12 * np.mean(e**2) + 1e-300)  # all residuals may be zero
    return np.where(first > SETTINGS.followed, 2 * special.stdtr(mean**2 / variance, -np.sqrt(ratio)), 1.0)


def class_tails(law: Predictive, y: np.ndarray, log_weights: np.ndarray) -> np.ndarray:
    """How unlikely each class is with its row left out: the chance of a class that is no likelier."""
    weights = np.exp(log_weights)  # they sum to one over the draws
    if law.mean.ndim == 3:
        p = np.einsum("sn,snk->nk", weights, law.mean)
    else:
        last = np.einsum("sn,sn->n", weights, law.mean)
        p = np.stack([1 - last, last], axis=-1)
    own = p[np.arange(y.size), y.astype(int)]
    return np.sum(np.where(p <= own[:, None], p, 0.0), axis=1)


def calibration(below: np.ndarray, upto: np.ndarray, rng: np.random.Generator) -> ModelCheck:
    """Whether the distribution function at y is uniform over rows (Neyman's smooth test); jumps are filled at random."""
    u, degrees = below + (upto - below) * rng.random(below.size), range(1, SETTINGS.degree + 1)
    means = np.array([math.sqrt(2 * k + 1) * special.eval_legendre(k, 2 * u - 1).mean() for k in degrees])
    size, sizes = float(np.sum(means**2)), np.abs(means)
    worst = 1 if sizes[1] > SETTINGS.mostly * sizes.max() else int(np.argmax(sizes))
    directions = (("low", "high"), ("wide", "narrow"), ("skewed", "skewed"), ("tails", "tails"))
    details = {"direction": directions[worst][int(means[worst] > 0)], "values": u}
    p = float(special.chdtrc(SETTINGS.degree, u.size * size))
    return ModelCheck(Aspect.CALIBRATION, size, p, size > SETTINGS.uneven_law, details)


def class_calibration(outputs: list[ModelResiduals]) -> ModelCheck | None:
    """Whether classes come as often as predicted: the largest gap in groups of rows with similar predicted probability."""
    tests, gaps = [], []
    for output in outputs:
        rows = np.argsort(output.fitted, kind="stable")
        groups = np.array_split(rows, int(np.clip(rows.size // 10, 2, SETTINGS.groups)))
        indicators = np.zeros((rows.size, len(groups)))
        for g, group in enumerate(groups):
            indicators[group, g] = 1.0
            sd = np.sqrt(np.maximum(output.fitted * (1 - output.fitted), 1e-300))
            gaps.append(float(np.mean((output.values * sd)[group])))
        tests.append(output.together(indicators)[1])
    worst = max(gaps, key=abs)
    p = min(1.0, len(tests) * min(tests))
    return ModelCheck(Aspect.CALIBRATION, abs(worst), p, abs(worst) > SETTINGS.share_gap, {"gap": worst})


def coverage(law: Predictive, y: np.ndarray, replicates: np.ndarray) -> ModelCheck | None:
    """The share of held-out rows inside their central 95 % predictive interval; None for classes and for fewer than 5 rows."""
    if law.kind is ResponseKind.CLASSES or y.size < 5:
        return None
    ends = (1 - SETTINGS.level) / 2, (1 + SETTINGS.level) / 2
    low, high = np.quantile(replicates, ends, axis=0, method="inverted_cdf")
    share = float(np.mean((y >= low) & (y <= high)))
    # Replicates at the same rows give the share's law: rows that share the errors of the coefficients vary together.
    repeated = np.mean((replicates >= low) & (replicates <= high), axis=1)
    p, least = _two_sided(share, repeated)
    expected = float(repeated.mean())
    details = {"level": SETTINGS.level, "rows": int(y.size), "expected": expected, "least": least}
    return ModelCheck(Aspect.COVERAGE, share, p, share < expected - SETTINGS.share_gap, details)


def outliers(chances: np.ndarray) -> ModelCheck:
    """Rows that are too unlikely for so many rows: those with n times their chance below 0.05, the least likely first."""
    p = np.minimum(1.0, chances.size * chances)
    rows = np.flatnonzero(p < 0.05)
    rows = rows[np.argsort(p[rows], kind="stable")]
    least = int(np.argmin(chances))
    details = {"rows": rows.tolist(), "row": least, "many": bool(rows.size > SETTINGS.many * chances.size)}
    return ModelCheck(Aspect.OUTLIERS, float(rows.size), float(p.min()), True, details)


def influence(found: Loo) -> ModelCheck:
    """Rows without which the posterior would be another: Pareto's k above 0.7. The statistic is the largest k."""
    rows = found.influential
    details = {"rows": rows.tolist(), "row": int(np.argmax(found.pareto_k))}
    verdict = ModelVerdict.LOOK if rows.size else ModelVerdict.FINE
    return ModelCheck(Aspect.INFLUENCE, float(np.max(found.pareto_k)), details=details, verdict=verdict)


def bayesian_r_squared(law: Predictive, weights: np.ndarray | None = None) -> np.ndarray:
    """Var(E[y | x, θ])/(Var(E[y | x, θ]) + E[Var(y | x, θ)]) over rows, for each draw (Gelman et al. 2019)."""
    w = np.ones(law.t.shape[1]) if weights is None else np.asarray(weights, float)
    unbiased = len(w) / (len(w) - 1) if len(w) > 1 else 1.0
    over_rows = lambda values: np.moveaxis(values, 1, -1) @ (w / w.sum())
    explained = unbiased * over_rows((law.mean - over_rows(law.mean)[:, None]) ** 2)
    noise = over_rows(law.variance)
    if explained.ndim == 2:
        explained, noise = explained.sum(axis=1), noise.sum(axis=1)
    share = explained / np.maximum(explained + noise, 1e-300)
    return np.where(share > ROUNDED, share, 0.0)  # a model without columns explains nothing


CAUSES = (Aspect.CURVATURE, Aspect.DEPENDENCE, Aspect.LINK, Aspect.PROPORTIONAL)  # faults of the mean
FEW_ROWS = 2  # too extreme rows, beyond which they are a sign of the dispersion and not its cause
ROUNDED = 1e-12  # a share of the variance that rounding makes
FAIR = 0.1  # share of the residuals' variance, from which a fault of the mean goes before the dispersion that it makes


def ordered(found: Adequacy) -> list[ModelCheck]:
    """The checks, the model's worst fault first: what a model without it would gain most by, causes before their symptoms."""
    # A fault of the mean makes classes and counts look miscalibrated, and counts overdispersed. So where one is found these come
    # after it, dispersion only where the fault explains a fair share of what is left. One row or two may make all of it.
    wrong = [check for check in found.checks if check.verdict is ModelVerdict.MISFIT]
    causes = {check.aspect: check.statistic for check in wrong if check.aspect in CAUSES}
    of_mean = max(causes.values(), default=0.0)
    later = set()
    if found.law.kind is not ResponseKind.NUMBERS:
        later |= {Aspect.DISPERSION} if of_mean > FAIR else set()
        if causes or any(check.aspect is Aspect.DISPERSION for check in wrong):
            later |= {Aspect.CALIBRATION, Aspect.COVERAGE}
    rows = next((check.details["rows"] for check in wrong if check.aspect is Aspect.OUTLIERS), [])
    if rows and any(check.aspect is Aspect.DISPERSION for check in wrong):
        others = np.delete(found.outputs[0].values, rows)
        if len(rows) > FEW_ROWS:
            later |= {Aspect.OUTLIERS}
        elif np.sum(others**2) < SETTINGS.overdispersed * (others.size - float(found.outputs[0].leverages.sum())):
            later |= {Aspect.DISPERSION}
    rest = [check for check in found.checks if check.verdict is not ModelVerdict.MISFIT]
    return [*sorted(wrong, key=lambda check: (check.aspect in later, -_gain(check, found))), *rest]


def _gain(check: ModelCheck, found: Adequacy) -> float:
    """Roughly the log density per row that a model without this fault would gain: one scale for all checks."""
    size, of_counts = check.statistic, found.by_aspect.get(Aspect.DISPERSION)
    match check.aspect:
        case Aspect.DISPERSION:
            return 0.5 * (size - 1 - np.log(max(size, 1e-9)))
        case aspect if aspect in CAUSES:
            return -0.5 * np.log1p(-min(size, 0.99)) if of_counts is None else 0.5 * size * of_counts.statistic
        case Aspect.SPREAD:
            return np.log(size) ** 2 / 6  # the variance of log sd over thirds of the rows
        case Aspect.CALIBRATION:
            return 2 * size**2 if "gap" in check.details else size / 2
        case Aspect.COVERAGE:
            share, level = np.clip(size, 1e-9, 1 - 1e-9), check.details["expected"]
            return float(special.rel_entr(share, level) + special.rel_entr(1 - share, 1 - min(level, 1 - 1e-9)))
        case Aspect.OUTLIERS if not check.details["many"]:
            worst = max(found.outputs, key=lambda output: np.abs(output.values[check.details["rows"]]).max(initial=0))
            # a row takes e²/(1 - h) of the sum of squares with it when it goes
            gone = worst.values**2 / np.maximum(1 - worst.leverages, 0.02)
            share = float(gone[check.details["rows"]].sum() / np.sum(worst.values**2))
            return -0.5 * np.log1p(-min(share, 0.99))
    return 0.0


BINS, MOST_VALUES, PIT_BINS, MOST_POINTS, GRID, GROUPS = 30, 30, 20, 400, 40, 20


def figure_numbers(found: Adequacy) -> dict[str, Any]:
    """The numbers of `predictive`, `residuals`; `pit` for numbers and counts; `curve` where a column wants one."""
    classes = found.law.kind is ResponseKind.CLASSES
    shown = _binned(found) if classes else _residuals(found, found.outputs[0].fitted)
    parts = {"predictive": _predictive(found), "residuals": shown}
    if not classes and Aspect.CALIBRATION in found.by_aspect:
        u = found.by_aspect[Aspect.CALIBRATION].details["values"]
        bins = int(np.clip(u.size // 10, 5, PIT_BINS))
        # The ends between which 95 % of the bins lie by chance.
        low, high = np.searchsorted(special.bdtr(np.arange(u.size + 1), u.size, 1 / bins), [0.025, 0.975])
        counts = np.histogram(u, bins, (0.0, 1.0))[0].tolist()
        parts["pit"] = {"counts": counts, "expected": u.size / bins, "low": float(low), "high": float(high)}
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
        # Classes have a bar each, whatever their number; counts share bars where they are many.
        step = 1 if kind is ResponseKind.CLASSES else max(1, -(-(top + 1) // MOST_VALUES))
        edges = np.arange(0, top + step + 1, step) - 0.5
    repeated = np.array([np.histogram(row, edges)[0] for row in np.clip(found.replicates[:500], edges[0], edges[-1])])
    observed = np.histogram(np.clip(y, edges[0], edges[-1]), edges)[0]
    low, high = np.quantile(repeated, [0.025, 0.975], axis=0)
    lines = {"edges": edges, "observed": observed, "expected": repeated.mean(axis=0), "low": low, "high": high}
    return {"kind": kind.value, **{name: values.tolist() for name, values in lines.items()}}


def _residuals(found: Adequacy, x: np.ndarray) -> dict[str, Any]:
    """Residuals in standard deviations against x, some of the rows, and a smooth through all; of several outputs the worst."""
    grid = np.linspace(np.quantile(x, 0.01), np.quantile(x, 0.99), GRID)
    smooths = [smooth(x, output.values, grid) for output in found.outputs]
    worst = int(np.argmax([np.abs(line).max() for line in smooths]))
    values, rows = found.outputs[worst].values, chosen_rows(x.size, np.random.default_rng(0), MOST_POINTS)
    lines = {"x": x[rows], "residuals": values[rows], "grid": grid, "smooth": smooths[worst]}
    return {"kind": "points", **{name: line.tolist() for name, line in lines.items()}, "rows": int(x.size)}


def _binned(found: Adequacy) -> dict[str, Any]:
    """Observed less predicted share in groups of rows with similar probability, with two standard errors; all classes."""
    points = []
    for output in found.outputs:
        sd = np.sqrt(np.maximum(output.fitted * (1 - output.fitted), 1e-300))
        order = np.argsort(output.fitted, kind="stable")
        for group in np.array_split(order, int(np.clip(order.size // 15, 2, GROUPS))):
            gap, error = (output.values * sd)[group].mean(), np.sqrt(np.sum(sd[group] ** 2)) / group.size
            points.append([float(output.fitted[group].mean()), float(gap), float(2 * error)])
    return {"kind": "groups", "points": points, "rows": int(found.y.size)}


def smooth(x: np.ndarray, y: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The curve through (x, y) at each point of a grid: the line and the spline that the check of curves fits."""
    both = (np.concatenate([x, grid]) - x.min()) / max(float(np.ptp(x)), 1e-300)
    basis = np.column_stack([np.ones(both.size), both, natural_spline(both, both[: x.size])])
    return basis[x.size :] @ np.linalg.lstsq(basis[: x.size], y, rcond=None)[0]
