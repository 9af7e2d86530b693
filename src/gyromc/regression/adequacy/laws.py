"""Observed responses against the law that the model gives them: dispersion, calibration, coverage, outliers.

Calibration is judged by the law with each row left out. Outliers with normal noise are judged by the noise of the other rows:
among few rows an outlier widens σ and hides itself. Others are outliers only if the model cannot make them fit. Laws of counts
have jumps: a distribution function is taken just below y and at it.
"""

import math

import numpy as np
from scipy import special

from gyromc.regression.adequacy.checks import SETTINGS, Aspect, ModelCheck, ModelVerdict
from gyromc.regression.adequacy.residuals import ModelResiduals
from gyromc.regression.draws import Predictive
from gyromc.regression.scores import Loo
from gyromc.targets.likelihoods import ResponseKind


def _two_sided(found: float, repeated: np.ndarray) -> tuple[float, float]:
    """How unlikely a statistic is among replicated ones, on both sides, and the smallest such number that these can show."""
    extreme = min(np.sum(repeated >= found - 1e-12), np.sum(repeated <= found + 1e-12))
    return min(1.0, 2 * (1 + float(extreme)) / (repeated.size + 1)), 2 / (repeated.size + 1)


def dispersion(law: Predictive, y: np.ndarray, output: ModelResiduals) -> ModelCheck | None:
    """Pearson's χ² per degree of freedom, for counts: a linear model fits its noise, and a class has no variance of its own.

    `details`: `zeros`, whether there are more, by three standard errors, than a negative binomial law of this dispersion has.
    """
    freedom = output.values.size - float(output.leverages.sum())
    if law.kind is not ResponseKind.COUNTS or freedom < 1:
        return None
    ratio = float(np.sum(output.values**2)) / freedom
    p, least = _two_sided(ratio, np.mean(output.replicates**2, axis=1))
    many_zeros = False
    if ratio > 1:
        # Zeros with the variance μ + μ²/k of this mean and dispersion: Pearson's χ² is 1 + μ/k in a row.
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
    """How unlikely each residual of a model with normal noise is, σ² estimated from the other rows (externally studentised).

    The residuals e have the covariance σ²A, A = I - H, also where groups shrink. What is left of them without their part along
    e_i, r = e - A_i e_i/A_ii, is independent of e_i, and |r|² is nearly σ² times χ²: its mean is σ² tr C and its variance 2σ⁴
    tr C², C = A - A_i A_iᵀ/A_ii. A row that the fit follows tells nothing: 1.
    """
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
    """Whether classes come as often as predicted: the largest gap in groups of rows with like predicted probability."""
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
    """The share of held-out rows inside their central 95 % predictive interval; None for classes and for fewer than 5 rows.

    Replicates at the same rows give the share's law: rows that share the errors of the coefficients vary together.
    """
    if law.kind is ResponseKind.CLASSES or y.size < 5:
        return None
    ends = (1 - SETTINGS.level) / 2, (1 + SETTINGS.level) / 2
    low, high = np.quantile(replicates, ends, axis=0, method="inverted_cdf")
    share = float(np.mean((y >= low) & (y <= high)))
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
