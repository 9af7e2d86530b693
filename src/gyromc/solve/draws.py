"""Anybody's draws, checked and sharpened by zero-mean functions: `gm.check` and `gm.sharpen`.

Input: draws of any sampler and the target they are meant for. Output of `check`: the coordinates whose zero-mean functions do
not average to zero (T13); of `sharpen`: means with errors, regressed on these functions. Each takes one gradient for each
draw. With few chains, a chain is cut into segments, and errors come from the differences between segments.
"""

import dataclasses
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from gyromc.checks import coverage, require
from gyromc.draws import read_draws
from gyromc.errors import GyromcWarning
from gyromc.fields.functions import choose_fields
from gyromc.fields.regression import FieldRegression, calibrated_weights
from gyromc.machine import one_blas_thread
from gyromc.plan import Plan
from gyromc.posterior import Account, Posterior, by_site
from gyromc.show.numbers import listed
from gyromc.show.records import Column, Records
from gyromc.show.tables import Shown, Table
from gyromc.solve.metric import fitted_metric
from gyromc.solve.question import Question
from gyromc.solve.sampling import posterior_means
from gyromc.targets import Target

__all__ = ["CheckedCoordinate", "DrawCheck", "check", "sharpen"]


@dataclasses.dataclass(frozen=True)
class DrawSettings:
    """The numbers of the checks.

    - `segments`: into which all draws are cut at least, for errors and folds.
    - `shortest`: draws in a segment; fewer say nothing about their dependence.
    - `chance`: that a right sampler is called wrong, over all coordinates and both tests.
    - `shift`: in posterior standard deviations, and `spread`, relative to the variance, that are worth a warning.
    """

    segments: int = 32
    shortest: int = 8
    chance: float = 1e-3
    shift: float = 0.05
    spread: float = 0.05


SETTINGS = DrawSettings()
NOT_REMOVED = (
    "A bias of the draws is removed in part, and errors do not contain the rest: `gyromc.check` tests for one."
)


@dataclasses.dataclass(frozen=True)
class CheckedCoordinate:
    """What zero-mean functions say about one coordinate.

    - `shift`, `shift_z`: by how much the mean seems wrong, in standard deviations, and over its standard error.
    - `variance_error`, `variance_z`: by which part the variance seems wrong, likewise.
    - `wrong`: whether either is beyond chance and large enough to matter.
    """

    name: str
    shift: float
    shift_z: float
    variance_error: float
    variance_z: float
    wrong: bool


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class DrawCheck(Records[CheckedCoordinate], Shown):
    """One `CheckedCoordinate` for each coordinate of θ, by name; `warnings` are empty when nothing is wrong."""

    rows: Mapping[str, CheckedCoordinate]
    warnings: list[str]
    draws: int

    _entry, _result = "coordinate", "check"
    shift = Column[float]("By how much the mean seems wrong, in standard deviations.")
    variance_error = Column[float]("By which part the variance seems wrong.")
    wrong = Column[bool]("Whether a coordinate is beyond chance.")

    @property
    def passed(self) -> bool:
        """Whether no coordinate is wrong."""
        return not self.warnings

    def shown(self) -> Sequence[Table | str]:
        """The coordinates, the worst first."""
        order = sorted(self.values(), key=lambda row: -max(abs(row.shift_z), abs(row.variance_z)))
        means = lambda row: [f"{row.shift:+.3f}", f"{row.shift_z:+.1f}"]
        variances = lambda row: [f"{100 * row.variance_error:+.1f} %", f"{row.variance_z:+.1f}"]
        cells = [[row.name, *means(row), *variances(row)] for row in order[:20]]
        verdict = self.warnings or [f"{self.draws:,} draws agree with the target in every coordinate."]
        return [Table(["coordinate", "mean off by (sd)", "z", "variance off by", "z"], cells), *verdict]


def check(draws: Any, target: Target | Plan, start: Any = None) -> DrawCheck:
    """Whether draws follow a target, tested by functions whose mean is known to be zero.

    A chain that is wrong and agrees with itself passes R-hat; it does not pass this.

    **Arguments:**

    - `draws`: an array (draws × d, or chains × draws × d), an ArviZ DataTree, NumPyro's MCMC, BlackJAX states, a PyMC trace.
    - `target`: the law, a value of `gyromc.targets` or of an interface such as `gyromc.interop.numpyro.target`.
    - `start`: parameters shaped like the target's, where it does not know their shape.

    **Returns:** a `DrawCheck`, whose `warnings` name the coordinates that are wrong.

    ```python
    import numpy as np
    import gyromc as gm
    x = np.random.default_rng(0).standard_normal((4, 1000, 2))
    assert gm.check(x, gm.targets.Quadratic([1.0, 1.0])).passed
    assert gm.check(1.2 * x, gm.targets.Quadratic([1.0, 1.0])).wrong["theta[1]"]
    ```
    """
    question, theta, gradient = _read(draws, target, None, start)
    segments, d = theta.shape[1], theta.shape[2]
    flat, slopes = theta.reshape(-1, d), gradient.reshape(-1, d)
    center, sd = flat.mean(axis=0), flat.std(axis=0)
    covariance = (
        fitted_metric(flat, slopes, most_dense=1000).covariance() if len(flat) > 2 * d and d <= 1000 else np.diag(sd**2)
    )
    # the step that would bring the mean of ∇U to zero, and E[z_i ∂_i U] = 1
    shift = -(gradient.mean(axis=0) @ covariance) / sd
    virial = ((theta - center) * gradient - 1).mean(axis=0)  # T13
    limit = -float(special.stdtrit(segments - 1, SETTINGS.chance / (4 * d)))
    rows = {}
    z_of = lambda x: x.mean(axis=0) / np.maximum(x.std(axis=0, ddof=1) / math.sqrt(segments), 1e-300)
    shift_z, virial_z = z_of(shift), z_of(virial)
    for i, name in enumerate(question.coordinates):
        moved, wide = float(-shift[:, i].mean()), float(virial[:, i].mean())
        # NaN agrees with nothing
        mean_right = abs(shift_z[i]) <= limit or abs(moved) <= SETTINGS.shift
        variance_right = abs(virial_z[i]) <= limit or abs(wide) <= SETTINGS.spread
        wrong = not (mean_right and variance_right)
        rows[name] = CheckedCoordinate(name, moved, float(-shift_z[i]), wide, float(virial_z[i]), wrong)
    off = [row for row in rows.values() if row.wrong]
    if not off:
        return DrawCheck(rows, [], len(flat))
    worst = max(off, key=lambda row: max(abs(row.shift), abs(row.variance_error)))
    said = (
        f"The draws do not follow the target: {listed(by_site(list(rows), [row.name for row in off]))}. Worst is {worst.name}: "
        f"mean off by {worst.shift:+.2g} standard deviations ({abs(worst.shift_z):.1f} standard errors), variance off by "
        f"{100 * worst.variance_error:+.0f} % ({abs(worst.variance_z):.1f}). Take a smaller step size, run longer, or write the "
        "model in other coordinates."
    )
    return DrawCheck(rows, [said], len(flat))


@one_blas_thread()
def sharpen(
    draws: Any,
    target: Target | Plan,
    observables: Mapping[str, Any] | None = None,
    *,
    level: float = 0.95,
    start: Any = None,
) -> Posterior:
    """Means of anybody's draws with smaller errors: observables are regressed on functions whose mean is known to be zero.

    **Arguments:** `draws`, `target` and `start` as for `gyromc.check`; `observables` and `level` as for `gyromc.expect`.

    **Returns:** a `Posterior`; `gain` says how many times more draws the plain means would need, `weights` belong to the draws.

    ```python
    import numpy as np
    import gyromc as gm
    x = np.random.default_rng(0).standard_normal((4, 500, 2))
    found = gm.sharpen(x, gm.targets.Quadratic([1.0, 1.0]), {"x²": gm.observables.square([1.0, 0.0])})
    assert abs(found["x²"].mean - 1) < 1e-6 and found["x²"].gain > 1000
    ```
    """
    began = time.perf_counter()
    question, theta, gradient = _read(draws, target, observables, start)
    steps, segments, d = theta.shape
    flat, slopes = theta.reshape(-1, d), gradient.reshape(-1, d)
    known = len(flat) > 2 * d and d <= 500
    covariance = np.asarray(fitted_metric(flat, slopes, most_dense=500).covariance()) if known else None
    fields = choose_fields(flat, slopes, covariance)
    values = question.values(flat).reshape(steps, segments, -1)
    sums = FieldRegression(fields, segments, values.mean(axis=(0, 1)))
    sums.add(theta, gradient, values)
    sharp = sums.sharpened()
    errors = sharp.std_error * _dependence(sharp.corrected)
    r_hat = np.full(len(question.names), np.nan)
    rows = posterior_means(question.names, sharp, errors, segments - 1, r_hat, coverage(level))
    weights = calibrated_weights(fields, flat, slopes)
    said = check(theta.swapaxes(0, 1), target, start).warnings
    if said:
        warnings.warn(" ".join(said), GyromcWarning, stacklevel=3)
    spent = time.perf_counter() - began
    account = Account("sharpened draws", segments, len(flat), len(flat), 0, spent, math.nan, math.nan)
    by_segment = lambda x: np.asarray(x).reshape(steps, segments, *np.shape(x)[1:]).swapaxes(0, 1)
    flat, weights, values = by_segment(flat), by_segment(weights), values.swapaxes(0, 1)
    return Posterior(rows, level, flat, weights, values, said, [NOT_REMOVED], account, question.model)


def _read(draws: Any, target: Any, observables: Any, start: Any) -> tuple[Question, np.ndarray, np.ndarray]:
    """The question, and draws with their gradients as steps × segments × d."""
    question = Question.read(target, observables, start)
    theta = read_draws(draws, question.model.target)
    chains, count, d = theta.shape
    require(
        d == question.model.dim,
        f"The draws have {d} numbers each, and the target {question.model.dim} parameters: pass draws of the unconstrained "
        "parameters, in the order of the target.",
    )
    pieces = max(1, math.ceil(SETTINGS.segments / chains))
    pieces = max(1, min(pieces, count // SETTINGS.shortest))
    length = count // pieces
    require(
        chains * pieces >= 8,
        f"{chains} chains of {count} draws are too few: at least 8 segments of {SETTINGS.shortest} draws are needed.",
    )
    width = np.ptp(theta, axis=(0, 1))
    still = np.flatnonzero(width == 0)
    require(
        not still.size, f"`draws` never move: parameter {', '.join(map(str, still[:3]))} has one value in all of them."
    )
    require(
        np.abs(theta).max() < 1e100 and width.min() > 1e-100,
        f"`draws` reach from {np.abs(theta).max():.3g} down to differences of {width.min():.3g}: their squares are no numbers. "
        "Write the model in other units.",
    )
    # the newest draws are kept where the chains do not divide evenly
    segments = theta[:, count - length * pieces :].reshape(chains * pieces, length, d)
    gradient = question.model.flat_target.gradients(segments.reshape(-1, d)).reshape(segments.shape)
    require(
        np.isfinite(gradient).all(),
        "The gradient of the target is not finite at some of the draws: they are not draws of this target, or its density is "
        "zero there.",
    )
    return question, segments.swapaxes(0, 1), gradient.swapaxes(0, 1)


def _dependence(averages: np.ndarray) -> np.ndarray:
    """The factor by which errors from neighbouring segments are too small, from their correlation."""
    away = averages - averages.mean(axis=0)
    square = np.sum(away**2, axis=0)
    correlation = np.sum(away[1:] * away[:-1], axis=0) / np.where(square > 0, square, 1.0)
    noise = 2 / math.sqrt(len(averages))
    return np.sqrt(1 + 2 * np.where(correlation > noise, correlation, 0.0))
