"""Whether a weighted sample represents its law: one answer for everything that rests on such a sample.

A target over vectors, a `Sample` of it and its modes in; None out where the sample passes, otherwise a sentence
with the reason. Refused are samples whose effective size is too small, whose means a few draws dominate, whose law has mass
beyond all draws, or that miss a mode. The checks run in the order of their cost; modes are searched
last, and only where all else is well.
"""

import math
from collections.abc import Callable

import numpy as np
import scipy

from gyromc.shape.gaussian import GaussianFit
from gyromc.shape.importance import Sample
from gyromc.shape.laplace import inverse_root
from gyromc.shape.pareto import HEAVY
from gyromc.shape.search import Modes
from gyromc.targets import Target

__all__ = ["fit_draws", "why_a_mode_is_missed", "why_not_fitting", "why_not_trusted"]

MOST_PARAMETERS = 60  # for importance sampling
HEALTHY = 0.1  # effective size, as a share of the draws
PER_PARAMETER = 20  # effective draws that a covariance needs for each parameter
BEYOND = 0.05  # share of fourth moments that may lie where nothing was drawn
FARTHEST = 8  # lines are followed this many times as far as the farthest draw
INSIDE, OUTSIDE = 49, 16  # points of a line on both sides within that draw, and on either side beyond it
NOTICED = 0.01  # share of the law, from which a mode must have its share of the draws
THINNED = 4  # times less of a mode than its Gaussian holds
EVEN = 0.3  # what draws of a Gaussian fit must be worth after importance weighting, as a share


def why_not_trusted(target: Target, sample: Sample, modes: Callable[[], Modes]) -> str | None:
    """Why a sample does not represent the target, or None.

    ```python
    import gyromc as gm
    from gyromc.shape.trust import why_not_trusted
    model = gm.Model(gm.targets.Quadratic([1.0, 4.0]))
    assert why_not_trusted(model.flat_target, model.importance_sample(2000), lambda: model.modes) is None
    ```
    """
    count, d = sample.theta.shape
    size = f"the effective sample size of {count} draws is {sample.effective_size:.0f}"
    if not sample.effective_size >= HEALTHY * count:
        return size
    if not sample.effective_size >= PER_PARAMETER * d:
        return f"{size}, and {d} parameters need {PER_PARAMETER * d}"
    if (index := sample.tail_index) > HEAVY:
        return f"a few draws dominate, the tail index of the weights is {index:.2g}"
    if (share := _beyond(target, sample)) > BEYOND:
        return f"its tails are too light, {100 * share:.2g} % of a fourth moment lie beyond all draws"
    return why_a_mode_is_missed(sample, modes())


def why_a_mode_is_missed(sample: Sample, modes: Modes) -> str | None:
    """Which mode has too few of the draws, or None.

    A mode is missed where it lies outside the draws, and where the draws near it weigh far less than its Gaussian there.
    """
    if not modes.several:
        return None
    (mean, root), d, count = sample.moments(), sample.theta.shape[1], len(modes.found)
    away = [float(np.sum(scipy.linalg.solve_triangular(root, c.mode - mean, lower=True) ** 2)) for c in modes.found]
    if max(away) > d + 4 * math.sqrt(2 * d):
        return f"the target has {count} modes, and the draws miss one of them"
    for center, share in zip(modes.found, modes.shares, strict=True):
        gap = sample.theta - center.mode
        half = 2 * scipy.special.gammaincinv(
            d / 2, 0.5
        )  # the radius of half of the mode's Gaussian, squared: the median of χ²
        near = np.sum((gap @ center.precision) * gap, axis=1) <= half
        held = float(sample.weights[near].sum())
        if share > NOTICED and THINNED * held < share / 2:
            return f"the target has {count} modes, and the draws hold {200 * held:.2g} % at one that has {100 * share:.2g} %"
    return None


def fit_draws(target: Target, fit: GaussianFit, count: int) -> Sample:
    """Independent draws of a Gaussian fit, equally weighted."""
    away = np.random.default_rng(0).standard_normal((count, len(fit.mean))) @ inverse_root(fit.precision).T
    return Sample(fit.mean + away, np.full(count, 1 / count), float(count), "the Gaussian fit", target)


def why_not_fitting(
    fit: GaussianFit, checked: int, target: Target, sample: Sample, modes: Callable[[], Modes]
) -> str | None:
    """Why draws of a Gaussian fit do not represent the target, or None: `checked` of them get importance weights."""
    away = sample.theta[:checked] - fit.mean
    exponents = 0.5 * np.sum((away @ fit.precision) * away, axis=1)
    weights = scipy.special.softmax(exponents - target.potentials(sample.theta[:checked]))
    worth = 1 / float(np.sum(weights**2))
    if not worth >= EVEN * checked:
        return f"the effective sample size of {checked} draws of the Gaussian fit is {worth:.0f}"
    return why_a_mode_is_missed(sample, modes())


def _beyond(target: Target, sample: Sample) -> float:
    """The share of ∫ r⁴ e^{-U} that lies beyond the farthest draw: the largest over lines through the mean."""
    mean, root = sample.moments()
    reach = float(
        np.max(np.linalg.norm(scipy.linalg.solve_triangular(root, (sample.theta - mean).T, lower=True), axis=0))
    )
    out = np.geomspace(1, FARTHEST, OUTSIDE + 1)
    r = reach * np.concatenate([-out[:0:-1], np.linspace(-1, 1, INSIDE), out[1:]])
    energy = target.potentials((mean + r[:, None, None] * root.T).reshape(-1, len(mean))).reshape(len(r), -1)
    energy = np.where(np.isfinite(energy), energy, np.inf)
    mass = np.exp(np.min(energy, axis=0) - energy) * r[:, None] ** 4
    parts = (mass[1:] + mass[:-1]) / 2 * np.diff(r)[:, None]
    beyond = np.abs(r[1:] + r[:-1]) / 2 > reach
    return float(np.max(parts[beyond].sum(axis=0) / parts.sum(axis=0)))
