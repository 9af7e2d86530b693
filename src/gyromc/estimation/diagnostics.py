"""What may be wrong with the means of a run, in sentences, and what was not looked at.

Input: a run and its estimates. Output: warnings, each with what to do, and hints. The tests use the chains themselves, the
curvature of the target where the chains have been, and the target's tails.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping

import numpy as np

from gyromc.approx.sample import MOST_PARAMETERS
from gyromc.dynamics import augment
from gyromc.errors import InvalidInput
from gyromc.estimation.bias import order_of_bias
from gyromc.estimation.estimates import Estimate
from gyromc.observables import Ridge
from gyromc.plan import Plan
from gyromc.results import Run, flat_draws
from gyromc.solve.draws import check
from gyromc.statistics import errors, variances
from gyromc.statistics.errors import ErrorMethod
from gyromc.targets import SumOverData
from gyromc.targets.regressions import KnownLikelihood, Regression

HEAVY = (
    "the observable has heavy tails under this target: its variance, and with it this error, may not exist. Estimate something "
    "that grows more slowly, such as a probability or a quantile."
)
FAR = np.array([1e3, 1e4, 1e5])  # where tails are looked at, in units of the states
START_SHOWS = 3.5  # standard errors between the first and the second half of the chains
VAGUE = 3.0  # standard errors of the mean, from which the error of a bias rules the interval
MOST_CHECKED, LEAST_CHECKED = 4096, 8  # draws whose gradients are tested: of all chains, and of each
CHECKED_CHAINS = 20  # with fewer, pieces of one chain, which depend on each other, would be taken for independent
MOST_TOUCHED = 2e9  # numbers of the data that this may read
SEEN = 0.01  # share of the fluctuations of h from which a direction counts


def warnings_of(run: Run, rows: Mapping[str, Estimate]) -> Iterator[str]:
    """What may be wrong and what to do about it."""
    dominated = [name for name, row in rows.items() if row.bias_dominates]
    if dominated:
        less = "halves the bias" if order_of_bias(run.plan) == 1 else "leaves a quarter of the bias"
        yield (
            f"The discretisation bias of {', '.join(dominated)} exceeds the statistical error: report the corrected interval, or "
            f"halve the step size (now {run.plan.eta_text}), which {less}; more steps at this step size will not help."
        )
    slowest = relaxation_times(run, [name for name, row in rows.items() if row.method is ErrorMethod.LUGSAIL])
    for name, row in rows.items():
        yield from _convergence(row, slowest.get(name, 0.0))
    if heavy := heavy_tailed(run.plan, run.state.z[~run.diverged][:, : run.plan.dim]):
        yield f"{', '.join(heavy)}: {HEAVY}"
    yield from (
        _uneven(row) for name, row in rows.items() if name not in heavy and row.average.uneven and grows(run, name)
    )
    yield from _unlike_target(run)
    if run.failures:
        yield f"{len(run.failures)} of {run.plan.num_chains} chains failed and are left out."


def hints_of(run: Run, rows: Mapping[str, Estimate], bias_wanted: bool) -> Iterator[str]:
    """What is not known and was not looked at."""
    unknown: dict[str, list[str]] = {}
    for name, row in rows.items():
        if row.bias is None and bias_wanted:
            unknown.setdefault(row.bias_method, []).append(name)
    for why, names in unknown.items():
        yield (
            f"The discretisation bias of {', '.join(names)} is {why.rstrip('.')}. "
            "The intervals are for the mean of the chain's stationary law."
        )
    predicted = [row for row in rows.values() if row.bias is not None and row.bias_method.startswith("predicted")]
    vague = [row.name for row in predicted if row.bias_error > VAGUE * row.std_error]
    if vague:
        yield (
            f"The discretisation bias of {', '.join(vague)} is known much less well than the mean: pass "
            '`bias="richardson"` to measure it with pairs of chains that share their noise.'
        )
    if run.plan.dim > MOST_PARAMETERS and run.plan.flat_target.gaussian() is None:
        yield f"The target's tails are not looked at with more than {MOST_PARAMETERS} parameters (here {run.plan.dim})."


def _convergence(row: Estimate, slowest: float) -> Iterator[str]:
    """What the chains of one observable show: no mixing, too few relaxation times, the start."""
    name, average = row.name, row.average
    if average.disagree:
        yield (
            f"{name}: the chains have not mixed (R-hat {row.r_hat:.3g}): there are several modes, or they are too short, and the "
            "error may be far too small. Run longer, and start chains at every mode (`gyromc.Model(target).modes`)."
        )
    if row.method is ErrorMethod.LUGSAIL:
        yield from _shortness(row, slowest)
    elif row.method is ErrorMethod.BATCH_MEANS and average.blocks.shape[1] < variances.FEWEST_BLOCKS:
        yield (
            f"{name}: one chain of so few steps does not show its correlation time, and its error may be far too small. "
            "Run longer, or several chains."
        )
    drift, error = average.drift
    if abs(drift) > START_SHOWS * error and not row.discretisation.start:
        yield (
            f"{name}: the first half of the chains differs from the second by {abs(drift):.2g}: "
            "the chains have not forgotten their start. Pass `burn_in`, or a start closer to the mode."
        )


def _shortness(row: Estimate, slowest: float) -> Iterator[str]:
    """Whether batch means within chains have too few relaxation times, as blocks show them or as the curvature implies."""
    average, alone = row.average, len(row.average.good) == 1
    enough = errors.SHORT_ALONE if alone else errors.SHORT
    length, known = average.length, average.time / slowest if slowest > 0 else math.inf
    if length >= enough and known >= errors.SHORT:
        return
    shown = min(length, known) if known < errors.SHORT else length
    yield (
        f"{row.name}: a chain lasts only {shown:.0f} relaxation times, so its error is too small. Run "
        f'{max(1.1, enough / shown):.1f} times longer, run several chains, or keep draws and pass `method="plug-in"`.'
    )


def _unlike_target(run: Run) -> Iterator[str]:
    """Whether kept draws follow the target, by functions whose mean is known to be zero: a large bias shows there."""
    plan, good = run.plan, ~run.diverged
    if run.draws is None or np.sum(good) < CHECKED_CHAINS:
        return
    rows = flat_draws(run.draws, good)
    chains, rows_of_data = int(good.sum()), plan.target.num_data if isinstance(plan.target, SumOverData) else 1
    theta = rows.reshape(chains, -1, plan.dim)
    most = min(MOST_CHECKED, MOST_TOUCHED / (rows_of_data * plan.dim)) / chains
    theta = theta[:, :: max(1, math.ceil(theta.shape[1] / max(most, 1)))]
    if theta.shape[1] < LEAST_CHECKED:
        return
    with contextlib.suppress(InvalidInput):  # a density that is zero at a draw
        yield from check(theta, plan).warnings


def _uneven(row: Estimate) -> str:
    index, share = row.average.tail
    return (
        f"{row.name}: {100 * share:.0f} % of its fluctuations come from one of {row.average.blocks.size} stretches, and the "
        f"largest fall off slowly (tail index {index:.1f}): its tails are heavy and the error may be far too small. Run longer, "
        "or estimate something that grows more slowly."
    )


def grows(run: Run, name: str) -> bool:
    """Whether an observable still grows from a hundred to ten thousand times as far out as the chains; an event does not."""
    last = run.state.z[~run.diverged][:64, : run.plan.dim]
    center, h = last.mean(axis=0), run.plan.observables[name]
    with np.errstate(all="ignore"):
        near, far = (np.max(np.abs(run.plan.model.values(h, center + s * (last - center)))) for s in (1e2, 1e4))
    return bool(far > 2 * near)


def relaxation_times(run: Run, names: list[str]) -> dict[str, float]:
    """By observable, the slowest relaxation time that it sees, from the curvature at the chains' last states; 0 where unknown.

    The chain is linearised, dz = -A z dt + noise, A = (D+Q)P. The autocovariance of h then is a sum over the eigenvalues λ of A
    with weights from the gradient of h, and each relaxes in 1/Re λ; those with a share of `SEEN` in ∫ autocovariance count. The
    curvature is that of all states for Gaussian targets, and nearly so for regressions; others are not looked at.
    """
    plan, target = run.plan, run.plan.flat_target
    known = target.gaussian()
    small = plan.dim <= MOST_PARAMETERS and names
    if not small or plan.scheduled or (known is None and not isinstance(target, Regression)):
        return {}
    last = run.state.z[~run.diverged][:8, : plan.dim]
    K = augment(known[0] if known is not None else target.mean_hessian(last), plan.augmented)
    values, V = np.linalg.eig((plan.dynamics.D + plan.dynamics.Q) @ K)
    rates = np.real(values)
    if not np.all(rates > 0):
        return {}
    into, found = np.linalg.solve(V, np.linalg.inv(K).astype(complex)), {}
    for name in names:
        h = plan.observables[name]
        slopes = h.direction[None] if isinstance(h, Ridge) else plan.model.value_gradients(h, last)
        g = np.pad(slopes, ((0, 0), (0, plan.dynamics.size - plan.dim)))
        shares = np.abs((g @ V) * (g @ into.T)).mean(axis=0) / np.abs(values)
        seen = shares > SEEN * shares.sum()
        found[name] = float(np.max(1 / rates[seen])) if np.any(seen) else 0.0
    return found


def heavy_tailed(plan: Plan, states: np.ndarray) -> list[str]:
    """The observables h whose fourth moment diverges along some direction, so that the error of their error does not exist.

    Where U grows as k·log s along a direction, the law falls as s^-k there; h grows as s^p, and ∫ h⁴ is infinite if 4p ≥ k - 1.
    Directions are the coordinates and the principal axes of the curvature far out, where a heavy one has none.
    """
    target = plan.flat_target
    gaussian_prior = isinstance(target, KnownLikelihood)  # and a loss that is bounded below: U grows as a square
    if plan.dim > MOST_PARAMETERS or gaussian_prior or target.gaussian() is not None:
        return []
    center = np.mean(states, axis=0) if len(states) else np.zeros(plan.dim)
    scale = max(1.0, float(np.max(np.abs(states - center), initial=0.0)), float(np.max(np.abs(center))))
    axes = _directions(plan, center, scale)
    rows = (center + scale * FAR[:, None, None] * np.concatenate([axes, -axes])).reshape(-1, plan.dim)
    with np.errstate(all="ignore"):
        energy = np.asarray(plan.flat_target.potentials(rows), float).reshape(3, -1)
        first, k = np.diff(energy, axis=0) / math.log(10)
        heavy = np.isclose(first, k, rtol=0.02) & (k > 1)  # elsewhere U grows faster than a logarithm
        if not np.any(heavy):
            return []
        sizes = {name: np.abs(plan.model.values(h, rows)).reshape(3, -1) for name, h in plan.observables.items()}
        return [
            name for name, h in sizes.items() if np.any(heavy & (4 * np.log10(h[2] / h[1]) >= k - 1) & (h[2] > h[1]))
        ]


def _directions(plan: Plan, center: np.ndarray, scale: float) -> np.ndarray:
    """Unit vectors: the coordinates, and the eigenvectors of the Hessian at a random point far out where it is finite."""
    toward = np.random.default_rng(0).standard_normal(plan.dim)
    try:
        K = plan.flat_target.hessians((center + scale * FAR[1] * toward)[None])[0]
    except InvalidInput:
        return np.eye(plan.dim)
    return np.concatenate([np.eye(plan.dim), np.linalg.eigh(K)[1].T]) if np.all(np.isfinite(K)) else np.eye(plan.dim)
