"""Anybody's draws, read, checked and sharpened by zero-mean functions: `read_draws`, `gm.check` and `gm.sharpen`.

Objects of other packages are known by what they offer, not imported. Checks take one gradient for each draw. With few
chains, a chain is cut into segments, and errors come from the differences between segments.
"""

import dataclasses
import math
import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from scipy import special

from gyromc.checks import coverage, leaves, numbers, require, shown
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.fields import FieldRegression, between, calibrated_weights, choose_fields
from gyromc.plan import Plan
from gyromc.posterior import Account, Posterior, by_site
from gyromc.runtime.machine import one_blas_thread
from gyromc.show.numbers import listed
from gyromc.show.records import Column, Records
from gyromc.show.tables import Shown, Table
from gyromc.solve.chains import fitted_metric
from gyromc.solve.expect import posterior_means
from gyromc.solve.question import Question
from gyromc.targets import Target

SEGMENTS = 32  # into which all draws are cut at least
SHORTEST = 8  # draws in a segment: fewer say nothing about their dependence
CHANCE = 1e-3  # that a right sampler is called wrong, over all coordinates and both tests
MATTERS = 0.05  # part of a standard deviation or a variance that is worth a warning
NO_DRAWS = "This run kept no draws: run it with `gm.run(plan, thin=10)` to keep every tenth."
NOT_REMOVED = (
    "A bias of the draws is removed in part, and errors do not contain the rest: `gyromc.check` tests for one."
)


@dataclasses.dataclass(frozen=True)
class CheckedCoordinate:
    """By how much a mean seems wrong, in standard deviations, and by which part a variance, each also over its standard error.

    `wrong`: whether either is beyond chance and large enough to matter.
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
        order = sorted(self.values(), key=lambda row: -max(abs(row.shift_z), abs(row.variance_z)))
        off = lambda row: (f"{row.shift:+.3f}", f"{row.shift_z:+.1f}", f"{100 * row.variance_error:+.1f} %")
        cells = [[row.name, *off(row), f"{row.variance_z:+.1f}"] for row in order[:20]]
        verdict = self.warnings or [f"{self.draws:,} draws agree with the target in every coordinate."]
        return [Table(["coordinate", "mean off by (sd)", "z", "variance off by", "z"], cells), *verdict]


def check(draws: Any, target: Target | Plan, start: Any = None) -> DrawCheck:
    """Whether draws follow a target, tested by functions whose mean is known to be zero.

    A chain that is wrong and agrees with itself passes R-hat; it does not pass this. The `warnings` of the `DrawCheck` that is
    returned name the coordinates that are wrong.

    **Arguments:**

    - `draws`: an array (draws × d, or chains × draws × d), an ArviZ DataTree, NumPyro's MCMC, BlackJAX states, a PyMC trace.
    - `target`: the law, a value of `gyromc.targets` or of an interface such as `gyromc.interop.numpyro.target`.
    - `start`: parameters shaped like the target's, where it does not know their shape.

    ```python
    import numpy as np
    import gyromc as gm
    x = np.random.default_rng(0).standard_normal((4, 1000, 2))
    print(gm.check(x, gm.targets.Quadratic([1.0, 1.0])).passed)  # True
    print(gm.check(1.2 * x, gm.targets.Quadratic([1.0, 1.0])).wrong["theta[1]"])  # True
    ```
    """
    return _checked(*_read(draws, target, None, start))


def _checked(question: Question, theta: np.ndarray, gradient: np.ndarray, covariance: Any) -> DrawCheck:
    _, segments, d = theta.shape
    flat = theta.reshape(-1, d)
    center, sd = flat.mean(axis=0), flat.std(axis=0)
    covariance = np.diag(sd**2) if covariance is None else covariance
    # the step that would bring the mean of ∇U to zero, and E[z_i ∂_i U] = 1
    shifts = (gradient.mean(axis=0) @ covariance) / sd
    virials = ((theta - center) * gradient - 1).mean(axis=0)  # T13
    limit = -float(special.stdtrit(segments - 1, CHANCE / (4 * d)))
    columns = [y for x in (shifts, virials) for y in (x.mean(axis=0), x.mean(axis=0) / np.maximum(between(x), 1e-300))]
    # NaN agrees with nothing
    right = lambda off, z: abs(z) <= limit or abs(off) <= MATTERS
    rows = {}
    for name, *found in zip(question.coordinates, *(x.tolist() for x in columns), strict=True):
        rows[name] = CheckedCoordinate(name, *found, wrong=not (right(*found[:2]) and right(*found[2:])))
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

    `draws`, `target` and `start` are as for `gyromc.check`, `observables` and `level` as for `gyromc.expect`. In the `Posterior`
    that is returned `gain` says how many times more draws the plain means would need, and `weights` belong to the draws.

    ```python
    import numpy as np
    import gyromc as gm
    x = np.random.default_rng(0).standard_normal((4, 500, 2))
    found = gm.sharpen(x, gm.targets.Quadratic([1.0, 1.0]), {"x²": gm.observables.square([1.0, 0.0])})
    print(round(found["x²"].mean, 6), found["x²"].gain > 1000)  # 1.0 True
    ```
    """
    began = time.perf_counter()
    question, theta, gradient, covariance = _read(draws, target, observables, start)
    steps, segments, d = theta.shape
    flat, slopes = theta.reshape(-1, d), gradient.reshape(-1, d)
    fields = choose_fields(flat, slopes, covariance if d <= 500 else None)
    values = question.values(flat).reshape(steps, segments, -1)
    sums = FieldRegression(fields, segments, values.mean(axis=(0, 1)))
    sums.add(theta, gradient, values)
    sharp = sums.sharpened()
    # neighbouring segments depend on each other: the factor for errors, from their correlation
    away = sharp.corrected - sharp.corrected.mean(axis=0)
    square = np.sum(away**2, axis=0)
    correlation = np.sum(away[1:] * away[:-1], axis=0) / np.where(square > 0, square, 1.0)
    errors = sharp.std_error * np.sqrt(1 + 2 * np.where(correlation > 2 / math.sqrt(segments), correlation, 0.0))
    r_hat = np.full(len(question.names), np.nan)
    rows = posterior_means(question.names, sharp, errors, segments - 1, r_hat, coverage(level))
    weights = calibrated_weights(fields, flat, slopes).reshape(steps, segments)
    said = _checked(question, theta, gradient, covariance).warnings
    if said:
        warnings.warn(" ".join(said), GyromcWarning, stacklevel=3)
    spent = time.perf_counter() - began
    account = Account("sharpened draws", segments, len(flat), len(flat), 0, spent, math.nan, math.nan)
    theta, weights, values = (x.swapaxes(0, 1) for x in (theta, weights, values))
    return Posterior(rows, level, theta, weights, values, said, [NOT_REMOVED], account, question.model)


def _read(draws: Any, target: Any, observables: Any, start: Any) -> tuple[Question, np.ndarray, np.ndarray, Any]:
    """The question, draws with their gradients as steps × segments × d, and their covariance where there are enough."""
    question = Question.read(target, observables, start)
    theta = read_draws(draws, question.model.target)
    chains, count, d = theta.shape
    require(
        d == question.model.dim,
        f"The draws have {d} numbers each, and the target {question.model.dim} parameters: pass draws of these, unconstrained.",
    )
    pieces = max(1, min(math.ceil(SEGMENTS / chains), count // SHORTEST))
    length, needed = count // pieces, f"at least 8 segments of {SHORTEST} draws are needed"
    require(chains * pieces >= 8, f"{chains} chains of {count} draws are too few: {needed}.")
    width = np.ptp(theta, axis=(0, 1))
    which = ", ".join(map(str, np.flatnonzero(width == 0)[:3]))
    require(not which, f"`draws` never move: parameter {which} has one value in all of them.")
    require(
        np.abs(theta).max() < 1e100 and width.min() > 1e-100,
        f"`draws` reach from {np.abs(theta).max():.3g} to differences of {width.min():.3g}, whose squares are no numbers.",
    )
    # the newest draws are kept where the chains do not divide evenly
    segments = theta[:, count - length * pieces :].reshape(chains * pieces, length, d)
    gradient = question.model.flat_target.gradients(segments.reshape(-1, d)).reshape(segments.shape)
    require(
        np.isfinite(gradient).all(),
        "The gradient of the target is not finite at some of the draws: its density is zero there, or they are not its draws.",
    )
    known = chains * pieces * length > 2 * d and d <= 1000
    theta, gradient = segments.swapaxes(0, 1), gradient.swapaxes(0, 1)
    metric: Any = fitted_metric(theta.reshape(-1, d), gradient.reshape(-1, d), most_dense=d) if known else None
    return question, theta, gradient, metric and metric.covariance()


def read_draws(draws: Any, target: Target) -> np.ndarray:
    """Draws of a target as an array: chains × draws × d. They may be

    - an array, draws × d or chains × draws × d, or a pytree of arrays shaped like the parameters after these axes;
    - a state of BlackJAX with all draws in it, or anything else with a `position`;
    - a `numpyro.infer.MCMC` that has run, on the model of the target or on its potential;
    - a DataTree, InferenceData or Dataset with the variables of the posterior, of PyMC, NumPyro, Stan or gyromc;
    - a `gyromc.Run` with kept draws.

    Where the target comes from a model, MCMC objects, trees and dictionaries by site hold values of the sites as the model has
    them (constrained); arrays and positions hold the target's own parameters.

    ```python
    import numpy as np
    import gyromc as gm
    from gyromc.solve.draws import read_draws
    target = gm.targets.Quadratic([1.0, 4.0])
    print(read_draws(np.zeros((100, 2)), target).shape)  # (1, 100, 2)
    print(read_draws({"a": np.zeros((4, 100)), "b": np.zeros((4, 100))}, target).shape)  # (4, 100, 2)
    ```
    """
    values, by_site = _opened(draws)
    if by_site and hasattr(target, "unconstrained"):
        found = _from_sites(values, target)
    else:
        # A tree has its variables in the order of the parameters, a dictionary is a pytree with its own order.
        parts = list(values.values()) if by_site and values is not draws else jax.tree.leaves(values)
        found = _joined([numbers(part, "draws", finite=False) for part in parts], target.dim)
    bad = np.argwhere(~np.isfinite(found))
    if len(bad):
        count, first = f"{len(bad)} of their {found.size} numbers", f"chain {bad[0][0]}, draw {bad[0][1]}"
        advice = "Leave such draws out, and find out why they are there."
        raise InvalidInput(f"Draws must be finite: {count} are NaN or infinite, first in {first}. {advice}")
    return found


def _opened(draws: Any) -> tuple[Any, bool]:
    """What a container holds, and whether these are values by name of a site or variable."""
    if hasattr(draws, "get_samples"):
        try:
            samples = draws.get_samples(group_by_chain=True)
        except Exception as error:  # of NumPyro, where nothing has run
            raise InvalidInput(
                f"This {type(draws).__name__} has no samples ({type(error).__name__}): call its `run` first."
            ) from error
        # values of sites, unless it ran on a potential
        model = getattr(getattr(draws, "sampler", None), "model", None)
        return samples, isinstance(samples, Mapping) and model is not None
    if hasattr(draws, "data_vars") or hasattr(draws, "posterior"):
        group, both = getattr(draws, "posterior", draws), {"chain", "draw"}
        dims = set(getattr(group, "dims", ()))
        needed = "Draws in a tree must have the dimensions `chain` and `draw`, in its group `posterior`"
        require(both <= dims, f"{needed}: got {', '.join(map(str, dims)) or 'none'}.")
        variables = {str(name): value for name, value in group.data_vars.items() if both <= set(value.dims)}
        return {name: np.asarray(value.transpose("chain", "draw", ...)) for name, value in variables.items()}, True
    if hasattr(draws, "position"):
        return draws.position, False
    if hasattr(draws, "plan") and hasattr(draws, "draws"):
        require(draws.draws is not None, NO_DRAWS)
        return draws.draws, False
    require(
        not isinstance(draws, str) and draws is not None and len(leaves(draws, "draws")) > 0,
        f"`draws` must be an array, a pytree of arrays, a DataTree, an MCMC object or states: got {shown(draws)}.",
    )
    return draws, isinstance(draws, Mapping)


def _joined(parts: Sequence[np.ndarray], dim: int | None) -> np.ndarray:
    """Arrays shaped like the parameters, after one or two axes over draws, as chains × draws × d."""
    least = min(part.ndim for part in parts)
    leading = [n for n in (1, 2) if n <= least and len({part.shape[:n] for part in parts}) == 1]
    sizes = {n: sum(int(np.prod(part.shape[n:])) for part in parts) for n in leading}
    fitting = [n for n in leading if dim is None or sizes[n] == dim]
    require(
        fitting and all(part.size for part in parts),
        f"The draws must be those of {dim} parameters, draws × {dim} or chains × draws × {dim}: got "
        f"{', '.join(str(part.shape) for part in parts[:6])}. Leave out derived quantities, and transpose where needed.",
    )
    # Where the target does not say how many parameters it has, an array of three axes or more has chains.
    axes = fitting[0] if dim is not None or least < 3 else fitting[-1]
    rows = np.concatenate([part.reshape(*part.shape[:axes], -1) for part in parts], axis=-1)
    return rows if axes == 2 else rows[None]


def _from_sites(values: Mapping[str, Any], target: Any) -> np.ndarray:
    """Values of a model's sites, or of the target's own parameters under other names, as vectors of parameters."""
    missing = [name for name in target.sites if name not in values]
    if missing and all(name in values for name in target.start):
        return _joined([numbers(values[name], "draws", finite=False) for name in sorted(target.start)], target.dim)
    require(
        not missing,
        f"The draws have no {', '.join(map(repr, missing))}: the model's latent sites are {', '.join(map(repr, target.sites))}, "
        f"and the draws hold {', '.join(map(repr, values))}. Sample the same model, and keep all its sites.",
    )
    found = {name: numbers(values[name], "draws", finite=False) for name in target.sites}
    shapes = target.structure.shapes
    name, value = next(iter(found.items()))
    first = value.shape[: max(0, value.ndim - len(shapes[name]))]
    for name, value in found.items():
        require(
            len(first) in (1, 2) and value.shape == first + tuple(shapes[name]),
            f"Site {name!r} has shape {shapes[name]} in the model, after one axis over draws or two over chains and draws, the "
            f"same for all sites: got {value.shape}.",
        )
    rows = target.unconstrained({name: value[None] if len(first) == 1 else value for name, value in found.items()})
    outside = target.unravel(np.mean(~np.isfinite(rows), axis=(0, 1)))
    bad = {name: float(np.max(part)) for name, part in outside.items() if np.any(part)}
    require(
        not bad,
        f"Values outside the support of {', '.join(map(repr, bad))} ({max(bad.values(), default=0):.0%} of the draws), or on its "
        "border. Draws by site are constrained; pass unconstrained ones as an array, or an object with a `position`.",
    )
    return rows
