"""What a tuner knows of a law before it weighs samplers: points with their gradients, and the Gaussian that these make.

A `Model` in, a `Survey` out. Points come from importance sampling around the modes, in rounds that improve the proposal; where
their weights cannot be trusted, from a short run of many chains. The least-squares fit ĝ ≈ K(θ-m) of gradients to points gives
mean and precision: E[∇U(θ-m)ᵀ] = I makes K the inverse covariance, and on a Gaussian K and m are exact whatever the points are.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import linalg, special

from gyromc.checks import require, shown
from gyromc.errors import InvalidInput
from gyromc.model import Model
from gyromc.shape.gaussian import GaussianFit, mean_curvature_fit, nearest_gaussian
from gyromc.shape.laplace import Laplace, inverse_root
from gyromc.targets import SumOverData
from gyromc.targets.regressions import KnownLikelihood

__all__ = ["Pilot", "Survey", "survey"]

ROUNDS, MOST_ROUNDS = 4, 12  # of importance sampling; more only while the proposal is far too wide
FREEDOM, WIDER = 5.0, 1.1  # of the t-distributions that points are proposed from, and their scale
ENOUGH, GOOD = 0.1, 0.4  # share of the points that their weights leave: to be trusted, and to look no further
LEAST = 50  # points that the weights must leave
LARGEST = 0.05  # weight of a single point
MOST_WORK = 2e8  # rows × parameters × points that a round may touch
MOST_WEIGHTED = 60  # parameters: beyond, weights are uneven even where the posterior is nearly Gaussian
CURVATURES, AVERAGED = 32, 64  # points for the mean curvature of a regression, with many rows or columns and with few
WEIGHED = 64  # points that get weights where there are many data
VARIES = 4.0  # E[∇U∇Uᵀ] against the inverse covariance: beyond, the posterior is far from Gaussian
PER_PARAMETER = 8  # points for each parameter, from which on gradients are fitted
CHAINS = 64  # of the run that settles what importance sampling cannot
SETTLING = (0.3, 0.15)  # step sizes of its two halves, against the inverse of the largest curvature
TIME = 12.0  # of each half, in units of the slowest relaxation
MOST_STEPS = 120  # of each half
DRIFT = 1.0  # mean gradient over a run where the fit is round, per parameter: beyond, chains move one way
MOST_POINTS = 2048  # of a round, where a proposal far too wide calls for more of them
FAR = 1e3  # standard deviations beyond which a chain has diverged
NEAR = 1e-9
Pilot = Callable[[], np.ndarray | None]
"""A run that is costly and sure: draws in rows of θ, or None where it could not be made."""


@dataclasses.dataclass(frozen=True, eq=False)
class Survey:
    """Points of a law and the Gaussian nearest to it.

    **Attributes:**

    - `theta`, `weights`, `gradients`: the points, their weights (summing to 1) and ∇U there.
    - `fit`: N(m, K⁻¹) with the law's mean and covariance; `second`: E[∇U∇Uᵀ].
    - `worth`: the share of the points that their weights leave, 1 for points of a run.
    - `trusted`: whether the points represent the law; `doubts`: what could not be known, in sentences.
    """

    model: Model
    theta: np.ndarray
    weights: np.ndarray
    gradients: np.ndarray
    fit: GaussianFit
    second: np.ndarray
    worth: float
    trusted: bool
    doubts: tuple[str, ...] = ()

    @property
    def covariance(self) -> np.ndarray:
        """K⁻¹."""
        return linalg.cho_solve(linalg.cho_factor(self.fit.precision), np.eye(self.model.dim))

    @property
    def steepest(self) -> float:
        """The largest eigenvalue of E[∇U∇Uᵀ] in coordinates where the fit is round; 1 on a Gaussian."""
        R = inverse_root(self.fit.precision)
        return max(1.0, float(np.linalg.eigvalsh(R.T @ self.second @ R)[-1]))

    def starts(self, count: int, seed: int) -> np.ndarray:
        """Points drawn by weight, as evenly as possible (systematic resampling in the order of U): count × dim."""
        rng = np.random.default_rng(seed)
        order = np.argsort(self.theta @ rng.standard_normal(self.model.dim))
        ends = np.cumsum(self.weights[order])
        picked = order[np.minimum(np.searchsorted(ends, (np.arange(count) + rng.random()) / count), len(order) - 1)]
        return self.theta[rng.permutation(picked)]


def survey(model: Model, points: int, seed: int = 0, pilot: Pilot | None = None) -> Survey:
    """Look at a model's law through about so many gradients; `pilot` runs where the points around the modes do not serve.

    ```python
    import gyromc as gm
    from gyromc.tuning.survey import survey
    model = gm.Model(gm.targets.LogisticRegression([[1.0], [2.0], [-1.0]], [0, 1, 1], prior_scale=2.0))
    assert survey(model, points=256).trusted
    ```
    """
    target, rng = model.flat_target, np.random.default_rng(seed)
    known = target.gaussian()
    if known is not None:
        K, mean = known
        theta = mean + _antithetic(rng, points, model.dim) @ inverse_root(K).T
        equal = np.full(len(theta), 1 / len(theta))
        return Survey(model, theta, equal, (theta - mean) @ K, GaussianFit(mean, K, "exact"), K, 1.0, True)
    try:
        modes = model.modes.found
    except (InvalidInput, np.linalg.LinAlgError) as error:
        center = Laplace(np.asarray(model.start, float), _curvature_at(model))
        why = (f"{str(error).split('. ')[0].rstrip('.')}.",)
        return _piloted(model, pilot, why) or _stayed(_settled(model, [center], center, seed, why))
    if _concentrated(model, points) or (model.dim > MOST_WEIGHTED and isinstance(target, KnownLikelihood)):
        return _of_curvature(model, points, rng)
    doubts = _of_modes(model)
    if model.dim > MOST_WEIGHTED:
        found = _settled(model, list(modes), modes[0], seed, doubts)
        if found.steepest < VARIES:
            return found
        why = f"The curvature varies by {found.steepest:.2g} times."
        return _piloted(model, pilot, (*doubts, why)) or _doubted(found, why)
    if isinstance(target, KnownLikelihood):  # of a skewed posterior, a better proposal than the mode
        modes = (nearest_gaussian(target, modes[0], AVERAGED),)
    found = _importance(model, modes, points, rng)
    if found.trusted:
        found = dataclasses.replace(found, doubts=doubts)
        if found.steepest < VARIES or isinstance(target, KnownLikelihood):
            return found
        return _doubted(found, f"The curvature varies by {found.steepest:.2g} times.")
    where = "modes" if len(modes) > 1 else "mode"
    draws = f"Draws around the {where} are worth only {100 * found.worth:.2g} % of their number"
    reason = draws if found.worth < GOOD else "The curvature at the mode does not show the width of the posterior"
    why = (*doubts, f"{reason}: the posterior is far from Gaussian. Its width was found by a short run.")
    if isinstance(target, KnownLikelihood):
        said = why[-1].replace("was found by a short run", "is that of the mean curvature")
        return dataclasses.replace(_of_curvature(model, points, rng), trusted=False, doubts=(*doubts, said))
    center = _of(found) if found.worth >= ENOUGH else _center(found.theta, found.weights, _of(found))
    second = found.second if found.worth >= ENOUGH else None
    short_run = lambda: _settled(model, list(modes), center, seed, why, found.starts(CHAINS, seed), second)
    return _piloted(model, pilot, why) or short_run()


def _piloted(model: Model, pilot: Pilot | None, doubts: tuple[str, ...]) -> Survey | None:
    """The survey that the draws of a pilot run make, not trusted: they are few and depend on each other."""
    theta = None if pilot is None else pilot()
    if theta is None:
        return None
    equal = np.full(len(theta), 1 / len(theta))
    found = _fitted(model, theta, equal, 1.0, walked=model.flat_target.gradients(theta))
    return dataclasses.replace(found, trusted=False, doubts=doubts)


def _importance(model: Model, modes: tuple[Laplace, ...], points: int, rng: np.random.Generator) -> Survey:
    """The best of a few rounds of importance sampling, each proposing from the fit to the one before."""
    proposals, shares = list(modes), model.modes.shares
    best: Survey | None = None
    fitted = 0
    # a convex potential has no narrow part that is hard to enter
    may_hide = not isinstance(model.flat_target, KnownLikelihood)
    narrowed = False  # then a part of the law that is narrower still can be missing, as the neck of a funnel
    for k in range(MOST_ROUNDS):
        theta, log_density = _proposed(proposals, shares, points, rng)
        with np.errstate(all="ignore"):
            exponents = -model.flat_target.potentials(theta) - log_density
        tempered, power = _tempered(exponents)
        if power < 1.0 and best is not None and best.worth >= ENOUGH:  # the round before was better
            break
        if power < 1.0 and k + 1 < MOST_ROUNDS:  # far too wide: narrower, before any gradient is computed
            proposals, shares, narrowed = [_center(theta, tempered)], np.ones(1), True
            points = max(points, min(2 * points, MOST_POINTS))
            continue
        weights = special.softmax(np.where(np.isfinite(exponents), exponents, -np.inf))
        worth = 1 / float(np.sum(weights**2)) / len(weights)
        if best is None or worth > best.worth:
            best = _fitted(model, theta, weights, worth, None if len(proposals) > 1 else proposals[0].precision)
        fitted += 1
        if best.worth >= GOOD or len(proposals) > 1 or fitted >= ROUNDS:
            break
        few = best.worth * len(best.weights) < PER_PARAMETER * model.dim
        proposals, shares = [_of(best) if few else _center(best.theta, best.weights, _of(best))], np.ones(1)
    assert best is not None
    count = best.worth * len(best.weights)
    good = best.worth >= ENOUGH and count >= LEAST and float(best.weights.max()) <= max(LARGEST, 4 / count)
    return dataclasses.replace(best, trusted=good and not (narrowed and may_hide))


def _tempered(exponents: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights ∝ w^γ with the largest γ ≤ 1 that leaves enough points for a covariance, and γ: a far too wide proposal narrows."""
    low, power = 0.0, 1.0
    finite = np.where(np.isfinite(exponents), exponents, -np.inf)
    worth = lambda gamma: 1 / float(np.sum(special.softmax(gamma * finite) ** 2)) / len(finite)
    if worth(1.0) < ENOUGH:
        for _ in range(40):
            middle = (low + power) / 2
            low, power = (middle, power) if worth(middle) >= ENOUGH else (low, middle)
    return special.softmax(power * finite), power


def _proposed(centers: list[Laplace], shares: np.ndarray, count: int, rng) -> tuple[np.ndarray, Any]:
    """Points of a mixture of t-distributions at the centers, in antithetic pairs, and the log density there."""
    d = len(centers[0].mode)
    numbers = np.maximum(1, np.round(shares * count / 2)).astype(int)
    parts = []
    for center, number in zip(centers, numbers, strict=True):
        x = rng.standard_normal((number, d)) * WIDER
        x *= np.sqrt(FREEDOM / rng.chisquare(FREEDOM, (number, 1)))
        parts.append(center.mode + np.concatenate([x, -x]) @ inverse_root(center.precision).T)
    theta = np.concatenate(parts)
    logs = []
    for center, share in zip(centers, numbers / numbers.sum(), strict=True):
        away = theta - center.mode
        squares = np.einsum("si,si->s", away @ center.precision, away) / WIDER**2
        constant = 0.5 * np.linalg.slogdet(center.precision)[1] + np.log(share)
        logs.append(constant - (FREEDOM + d) / 2 * np.log1p(squares / FREEDOM))
    return theta, special.logsumexp(logs, axis=0)


def _fitted(
    model: Model,
    theta: np.ndarray,
    weights: np.ndarray,
    worth: float,
    before: np.ndarray | None = None,
    walked: np.ndarray | None = None,
) -> Survey:
    """The survey that weighted points make, and the Gaussian fitted to gradients there.

    `before` is a precision to begin from; `walked` are the gradients at the points of a run.
    """
    kept = weights > NEAR / len(weights)
    theta, weights, run = theta[kept], weights[kept] / weights[kept].sum(), walked is not None
    gradients = model.flat_target.gradients(theta) if walked is None else walked[kept]
    finite = np.all(np.isfinite(gradients), axis=1)
    theta, weights, gradients = theta[finite], weights[finite] / weights[finite].sum(), gradients[finite]
    mean, K, second = regressed(theta, gradients, weights, worth * len(weights), before)
    source = "a short run" if run else f"{len(theta)} points around the mode"
    return Survey(model, theta, weights, gradients, GaussianFit(mean, K, source), second, worth, trusted=run)


def regressed(
    theta: np.ndarray, gradients: np.ndarray, weights: np.ndarray, worth: float, before: np.ndarray | None = None
):
    """m, K and E[∇U∇Uᵀ] from the least-squares fit ∇U ≈ K(θ-m); from plain moments where K is not definite.

    Where points are few for the number of parameters, only the difference to a precision `before` is fitted, and shrunk.
    """
    center = weights @ theta
    away, slope = theta - center, gradients - weights @ gradients
    covariance, d = (away.T * weights) @ away, theta.shape[1]
    second = (gradients.T * weights) @ gradients
    share = d / max(worth, 1.0)
    shrunk = covariance + np.diag(np.diag(covariance)) * (share + 1e-10)
    few = worth < PER_PARAMETER * d
    if before is not None or not few:
        K = np.zeros((d, d)) if before is None else before
        root, rest = np.sqrt(weights)[:, None], slope - away @ K
        rows, values = [away * root], [rest * root]
        if few:  # as if so many more points had shown no difference
            rows, values = [*rows, np.sqrt(share) * inverse_root(K).T], [*values, np.zeros((d, d))]
        K = K + np.linalg.lstsq(np.concatenate(rows), np.concatenate(values), rcond=None)[0].T
        left = slope - away @ K.T
        K = (K + K.T) / 2
        rest = (left.T * weights) @ left
        R, wide = np.linalg.cholesky(shrunk), (1 + np.sqrt(share)) ** 2 if few else 1.0
        spectrum = np.linalg.eigvalsh(R.T @ K @ R)
        if spectrum[0] > 0.3 / wide and spectrum[-1] < 3 * wide:  # the fit and the points' own covariance agree
            return center - linalg.solve(K, weights @ gradients, assume_a="pos"), K, K + rest
    return center, np.linalg.inv(shrunk), second


def _settled(
    model: Model,
    modes: list[Laplace],
    center: Laplace,
    seed: int,
    doubts: tuple[str, ...],
    starts: np.ndarray | None = None,
    second: np.ndarray | None = None,
) -> Survey:
    """Points of a short run of many chains, twice: with the scales it has, then with those that the first half found."""
    rng = np.random.default_rng(seed)
    theta = _spread(modes, rng) if starts is None else starts
    found = Survey(model, theta, np.full(len(theta), 1 / len(theta)), np.zeros_like(theta),
                   GaussianFit(center.mode, center.precision, "the mode"),
                   center.precision if second is None else second, 1.0, False)  # fmt: skip
    for share in SETTLING:
        walked = _walk(found, theta, share, rng)
        if walked is None:
            doubts = (*doubts, "A short run of many chains diverged: no step size suits the whole posterior.")
            break
        points, gradients = (x[len(x) // 2 :] for x in walked)
        theta, equal = points[-len(theta) :], np.full(len(points), 1 / len(points))
        found = _fitted(model, points, equal, 1.0, found.fit.precision, gradients)
    return dataclasses.replace(found, trusted=False, doubts=doubts)


def _stayed(found: Survey) -> Survey:
    """The survey of a run; `InvalidInput` where its chains move one way: under a proper law E ∇U = 0."""
    drift = inverse_root(found.fit.precision).T @ (found.weights @ found.gradients)
    if float(drift @ drift) < DRIFT**2 * found.model.dim:
        return found
    known, begin = np.isfinite(found.model.flat_target.potentials(found.model.start[None])[0]), shown(found.model.start)
    require(known, f"The log density is not finite at the start, {begin}. Pass a `start` where it is.")
    remedy = "Check that every parameter has a proper prior and the log density the right sign, or pass a `start` near a mode."
    raise InvalidInput(f"{' '.join(found.doubts)} The chains of a short run keep moving one way. {remedy}")


def _walk(found: Survey, theta: np.ndarray, share: float, rng: np.random.Generator) -> tuple[np.ndarray, ...] | None:
    """States of chains with D = K⁻¹ by the Leimkuhler-Matthews step, in rows, and ∇U there; None where one diverged."""
    target, R = found.model.flat_target, inverse_root(found.fit.precision)
    K = found.fit.precision
    for _ in range(6):
        eta = share / found.steepest
        z, states, slopes, half = theta, [], [], rng.standard_normal(theta.shape)
        for _ in range(min(MOST_STEPS, int(np.ceil(TIME / share)))):
            fresh = rng.standard_normal(theta.shape)
            with np.errstate(all="ignore"):
                slope = target.gradients(z)
                before, z = z, z - eta * slope @ (R @ R.T) + np.sqrt(eta / 2) * (half + fresh) @ R.T
                away = np.einsum("si,ij,sj->s", z - found.fit.mean, K, z - found.fit.mean)
            half = fresh
            if not np.all(away < FAR**2):
                break
            states, slopes = [*states, before], [*slopes, slope]
        else:
            return np.concatenate(states), np.concatenate(slopes)
        share /= 3
    return None


def _of_curvature(model: Model, points: int, rng: np.random.Generator) -> Survey:
    """A regression with many rows or columns: draws of the Gaussian that has its mean curvature, not weighted."""
    target = model.near_mode
    fit = mean_curvature_fit(target, nearest_gaussian(target, model.laplace, CURVATURES), CURVATURES)
    R = inverse_root(fit.precision)
    theta = fit.mean + _antithetic(rng, points, model.dim) @ R.T
    linear = (theta - fit.mean) @ fit.precision  # what gradients are to first order
    equal = np.full(len(theta), 1 / len(theta))
    found = Survey(model, theta, equal, linear, fit, fit.precision, 1.0, trusted=False)
    if model.dim > MOST_WEIGHTED:
        return found
    some = theta[:: max(1, len(theta) // WEIGHED)]
    exponents = 0.5 * np.sum(((some - fit.mean) @ fit.precision) * (some - fit.mean), axis=1)
    weights = special.softmax(exponents - target.potentials(some))
    return dataclasses.replace(found, trusted=1 / float(np.sum(weights**2)) >= GOOD * len(some))


def _doubted(found: Survey, why: str) -> Survey:
    return dataclasses.replace(found, doubts=(*found.doubts, why))


def _concentrated(model: Model, points: int) -> bool:
    target = model.flat_target
    rows = target.num_data if isinstance(target, SumOverData) else 1
    return isinstance(target, KnownLikelihood) and rows * model.dim * points > MOST_WORK


def _of_modes(model: Model) -> tuple[str, ...]:
    modes = model.modes
    if not modes.several:
        return ()
    shares = ", ".join(f"{100 * share:.2g} %" for share in modes.shares[:5])
    return (
        f"The posterior has {len(modes.found)} modes or more (masses about {shares}, each taken as Gaussian). Chains start at "
        "all of them in the proportions that the points show, and may never move between them.",
    )


def _of(found: Survey) -> Laplace:
    return Laplace(found.fit.mean, found.fit.precision)


def _center(theta: np.ndarray, weights: np.ndarray, before: Laplace | None = None) -> Laplace:
    """Mean and inverse covariance of weighted points, for the next proposal; few points do not decide against what was before."""
    mean, count, d = weights @ theta, 1 / float(np.sum(weights**2)), theta.shape[1]
    away = theta - mean
    covariance = (away.T * weights) @ away
    mixed = covariance if before is None else (count * covariance + d * np.linalg.inv(before.precision)) / (count + d)
    return Laplace(mean, np.linalg.inv(mixed + 1e-10 * np.diag(np.diag(mixed))))


def _spread(modes: list[Laplace], rng: np.random.Generator) -> np.ndarray:
    parts = [
        m.mode + rng.standard_normal((-(-CHAINS // len(modes)), len(m.mode))) @ inverse_root(m.precision).T
        for m in modes
    ]
    return np.concatenate(parts)[:CHAINS]


def _curvature_at(model: Model) -> np.ndarray:
    """A positive definite stand-in for the curvature where there is no mode: |∇²U| at the start, at least its thousandth."""
    values, basis = np.linalg.eigh(model.flat_target.hessians(np.asarray(model.start, float)[None])[0])
    values = np.abs(np.where(np.isfinite(values), values, 1.0))
    return (basis * np.maximum(values, max(1e-3 * float(values.max()), 1e-6))) @ basis.T


def _antithetic(rng: np.random.Generator, count: int, d: int) -> np.ndarray:
    half = rng.standard_normal((max(1, count // 2), d))
    return np.concatenate([half, -half])
