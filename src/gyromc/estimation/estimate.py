"""estimate: the means of a run with every error that is known of them, and what may be wrong with them.

Warnings are sentences with what to do; they come from the chains themselves, the curvature of the target where the chains have
been, and the target's tails. Hints say what was not looked at.
"""

import dataclasses
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from gyromc import statistics
from gyromc.approx.sample import MOST_PARAMETERS
from gyromc.checks import coverage, one_of, require
from gyromc.dynamics import augment
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.estimation import bias as biases
from gyromc.estimation.bias import Bias, BiasSource
from gyromc.estimation.estimates import Estimate, Estimates
from gyromc.observables import Ridge
from gyromc.plan import Plan
from gyromc.posterior import PosteriorMean
from gyromc.results import Run, flat_draws
from gyromc.solve.draws import check, sharpen
from gyromc.statistics import ErrorMethod, MonteCarloError
from gyromc.targets import SumOverData
from gyromc.targets.regressions import KnownLikelihood, Regression

HEAVY = "the observable has heavy tails under this target: its variance, and with it this error, may not exist. "
HEAVY += "Estimate something that grows more slowly, such as a probability or a quantile."
FAR = np.array([1e3, 1e4, 1e5])  # where tails are looked at, in units of the states


@dataclasses.dataclass(frozen=True)
class EstimateSettings:
    """When a run's means are doubted, and what may be spent on looking."""

    start_shows: float = 3.5  # standard errors between the first and the second half of the chains
    vague: float = 3.0  # standard errors of the mean, from which the error of a bias rules the interval
    most_checked: int = 4096  # draws of all chains whose gradients are computed
    least_checked: int = 8  # of each chain
    checked_chains: int = 20  # with fewer, dependent pieces of one chain would be taken for independent
    most_touched: float = 2e9  # numbers of the data that gradients at draws may read
    seen: float = 0.01  # share of the fluctuations of h from which a direction counts


SETTINGS = EstimateSettings()


def warnings_of(run: Run, rows: Mapping[str, Estimate], of_draws: Sequence[str] = ()) -> Iterator[str]:
    """What may be wrong and what to do about it; `of_draws` is what zero-mean functions say about kept draws."""
    dominated = [name for name, row in rows.items() if row.bias_dominates]
    if dominated:
        less = "halves the bias" if biases.order_of_bias(run.plan) == 1 else "leaves a quarter of the bias"
        exceeds = f"The discretisation bias of {', '.join(dominated)} exceeds the statistical error"
        halve = f"halve the step size (now {run.plan.eta_text}), which {less}"
        yield f"{exceeds}: report the corrected interval, or {halve}; more steps at this step size will not help."
    slowest = relaxation_times(run, [name for name, row in rows.items() if row.method is ErrorMethod.LUGSAIL])
    for name, row in rows.items():
        yield from _convergence(row, slowest.get(name, 0.0))
    if heavy := heavy_tailed(run.plan, run.state.z[~run.diverged][:, : run.plan.dim]):
        yield f"{', '.join(heavy)}: {HEAVY}"
    for name, row in rows.items():
        if name not in heavy and row.average.uneven and grows(run, name):
            index, share = row.average.tail
            one = f"{100 * share:.0f} % of its fluctuations come from one of {row.average.blocks.size} blocks"
            slowly = f"the largest fall off slowly (tail index {index:.1f})"
            remedy = "Run longer, or estimate something that grows more slowly."
            yield f"{name}: {one}, and {slowly}: its tails are heavy and the error may be far too small. {remedy}"
    yield from of_draws
    if run.failures:
        yield f"{len(run.failures)} of {run.plan.num_chains} chains failed and are left out."


def hints_of(run: Run, rows: Mapping[str, Estimate], bias_wanted: bool) -> Iterator[str]:
    """What is not known and was not looked at."""
    unknown: dict[str, list[str]] = {}
    for name, row in rows.items():
        if row.bias is None and bias_wanted:
            unknown.setdefault(row.bias_method, []).append(name)
    for why, names in unknown.items():
        intervals = "The intervals are for the mean of the chain's stationary law."
        yield f"The discretisation bias of {', '.join(names)} is {why.rstrip('.')}. {intervals}"
    predicted = [row for row in rows.values() if row.bias is not None and row.bias_method.startswith("predicted")]
    if vague := [row.name for row in predicted if row.bias_error > SETTINGS.vague * row.std_error]:
        remedy = 'pass `bias="richardson"` to measure it with pairs of chains that share their noise'
        yield f"The discretisation bias of {', '.join(vague)} is known much less well than the mean: {remedy}."
    if run.plan.dim > MOST_PARAMETERS and run.plan.flat_target.gaussian() is None:
        yield f"The target's tails are not looked at with more than {MOST_PARAMETERS} parameters (here {run.plan.dim})."


def _convergence(row: Estimate, slowest: float) -> Iterator[str]:
    """What the chains of one observable show: no mixing, too few relaxation times (`slowest` is one), the start."""
    name, average = row.name, row.average
    if average.disagree:
        why = "there are several modes, or they are too short, and the error may be far too small"
        remedy = "Run longer, and start chains at every mode (`gyromc.Model(target).modes`)."
        yield f"{name}: the chains have not mixed (R-hat {row.r_hat:.3g}): {why}. {remedy}"
    if row.method is ErrorMethod.LUGSAIL:
        # batch means need many relaxation times within a chain, as blocks show them and as the curvature implies
        limits = statistics.SETTINGS
        enough = limits.short_alone if len(average.good) == 1 else limits.short
        length, known = average.length, average.time / slowest if slowest > 0 else math.inf
        if length < enough or known < limits.short:
            lasts = min(length, known) if known < limits.short else length
            longer = f"Run {max(1.1, enough / lasts):.1f} times longer, run several chains, or keep draws for `gyromc.sharpen`"
            yield f"{name}: a chain lasts only {lasts:.0f} relaxation times, so its error is too small. {longer}."
    elif row.method is ErrorMethod.BATCH_MEANS and average.blocks.shape[1] < statistics.SETTINGS.fewest_blocks:
        small = "its error may be far too small. Run longer, or several chains."
        yield f"{name}: one chain of so few steps does not show its correlation time, and {small}"
    drift, error = average.drift
    if abs(drift) > SETTINGS.start_shows * error and not row.discretisation.start:
        remedy = "Pass `burn_in`, or a start closer to the mode."
        differs = f"{name}: the first half of the chains differs from the second by {abs(drift):.2g}"
        yield f"{differs}: the chains have not forgotten their start. {remedy}"


def by_zero_mean_functions(run: Run, level: float) -> tuple[Mapping[str, PosteriorMean], list[str]]:
    """The kept draws regressed on functions whose mean under the target is known to be zero, and what these say is wrong.

    Returns sharpened means by observable and warnings: none without draws, with too few chains, or infinite gradients.
    With more than `MOST_PARAMETERS` parameters draws are only checked.
    """
    plan, good = run.plan, ~run.diverged
    chains = int(good.sum())
    if run.draws is None or chains < SETTINGS.checked_chains:
        return {}, []
    rows_of_data = plan.target.num_data if isinstance(plan.target, SumOverData) else 1
    theta = flat_draws(run.draws, good).reshape(chains, -1, plan.dim)
    most = min(SETTINGS.most_checked, SETTINGS.most_touched / (rows_of_data * plan.dim)) / chains
    theta = theta[:, :: max(1, math.ceil(theta.shape[1] / max(most, 1)))]
    if theta.shape[1] < SETTINGS.least_checked:
        return {}, []
    try:
        if plan.dim > MOST_PARAMETERS:
            return {}, check(theta, plan).warnings
        with warnings.catch_warnings():
            # What the check finds is among the warnings of the estimates.
            warnings.simplefilter("ignore", GyromcWarning)
            found = sharpen(theta, plan, level=level)
        return found.rows, found.warnings
    except InvalidInput:
        # The density is zero at a draw, or an observable is not finite there.
        return {}, []


def grows(run: Run, name: str) -> bool:
    """Whether an observable still grows from a hundred to ten thousand times as far out as the chains; an event does not."""
    last = run.state.z[~run.diverged][:64, : run.plan.dim]
    center, h = last.mean(axis=0), run.plan.observables[name]
    with np.errstate(all="ignore"):
        near, far = (np.max(np.abs(run.plan.model.values(h, center + s * (last - center)))) for s in (1e2, 1e4))
    return bool(far > 2 * near)


def relaxation_times(run: Run, names: list[str]) -> dict[str, float]:
    """By observable, the slowest relaxation time that it sees, from the curvature at the chains' last states; 0 where unknown.

    The chain is linearised, dz = -A z dt + noise, A = (D+Q)P: each eigenvalue λ of A relaxes in 1/Re λ, and those seen in the
    integrated autocovariance count. Only Gaussian targets and regressions are looked at.
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
        seen = shares > SETTINGS.seen * shares.sum()
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
        too_fast = lambda h: (4 * np.log10(h[2] / h[1]) >= k - 1) & (h[2] > h[1])
        return [name for name, h in sizes.items() if np.any(heavy & too_fast(h))]


def _directions(plan: Plan, center: np.ndarray, scale: float) -> np.ndarray:
    """Unit vectors: the coordinates, and the eigenvectors of the Hessian at a random point far out where it is finite."""
    toward = np.random.default_rng(0).standard_normal(plan.dim)
    try:
        K = plan.flat_target.hessians((center + scale * FAR[1] * toward)[None])[0]
    except InvalidInput:
        return np.eye(plan.dim)
    return np.concatenate([np.eye(plan.dim), np.linalg.eigh(K)[1].T]) if np.all(np.isfinite(K)) else np.eye(plan.dim)


__all__ = ["Bias", "Estimate", "Estimates", "MonteCarloError", "estimate"]


def estimate(
    run: Run, method: str | ErrorMethod = "auto", bias: str | Mapping[str, Bias] = "auto", level: float = 0.95
) -> Estimates:
    """The means of a run with their Monte Carlo errors, their discretisation bias and diagnostics.

    Nothing is run unless `bias="richardson"` asks for it.

    **Arguments:**

    - `run`: from `gyromc.run`; keep draws for the effective sample size of few chains, and, with 20 chains or more, for
      `sharpened` means and a check of the draws against the target, which take a gradient for each of 4096 draws.
    - `method`: where the Monte Carlo error comes from: `"replicate chains"`, `"lugsail batch means"`, or `"auto"`, the method
      that `run.std_error` uses, chosen for each observable by `gyromc.statistics.choose`.
    - `bias`: where the discretisation bias comes from: `"predict"`; `"richardson"`, pairs of chains at η and η/2 with the same
      noise, at three times the run's cost (8 pairs at least, 512 at most); `"auto"`, predicted where that takes seconds or no
      longer than the run, with at most 60 parameters, and unknown elsewhere; `"none"`; or the `biases` of earlier estimates of
      the same plan.
    - `level`: of the intervals.

    **Returns:** `Estimates`: by name, each with `mean`, `std_error`, `interval`, `bias`, `corrected`, `recommended`, `verdict`, …

    ```python
    import gyromc as gm
    plan = gm.Plan(target=gm.targets.Quadratic([1.0, 4.0]), dynamics=gm.dynamics.overdamped(2), step_size=0.05, num_steps=5000,
                   num_chains=4, observables={"sum": gm.observables.linear([1.0, 1.0]), "x²": gm.observables.square([1.0, 0.0])})
    found = gm.estimate(gm.run(plan))
    print(found["sum"].method, round(found["x²"].bias, 3))  # lugsail batch means 0.024
    ```
    """
    came = type(run).__name__
    require(isinstance(run, Run), f"`estimate` takes a `Run`: got {came}. Make one with `gyromc.run(plan)`.")
    asked = one_of(method, ("auto", ErrorMethod.REPLICATE, ErrorMethod.LUGSAIL), "method")
    source = bias if isinstance(bias, Mapping) else BiasSource(one_of(bias, [str(one) for one in BiasSource], "bias"))
    coverage(level)
    lacking = "every chain failed" if run.steps_done else "no state was averaged"
    require(run.steps_done > 0 and not np.all(run.diverged), f"This run has nothing to estimate from: {lacking}.")
    bias_of, cost, rows = _biases(run, source), run.gradient_evaluations, {}
    sharpened, of_draws = by_zero_mean_functions(run, level)
    for name, row in run.items():
        error = row.error if asked == "auto" else statistics.monte_carlo_error(row, ErrorMethod(asked))
        rows[name] = Estimate(row, error, bias_of[name], cost, level, sharpened.get(name))
    sentences = list(warnings_of(run, rows, of_draws))
    if sentences:
        warnings.warn(" ".join(sentences), GyromcWarning, stacklevel=2)
    return Estimates(run, level, rows, sentences, list(hints_of(run, rows, source is not BiasSource.NONE)))


def _biases(run: Run, source: BiasSource | Mapping[str, Bias]) -> Mapping[str, Bias]:
    if isinstance(source, Mapping):
        given = source.biases if isinstance(source, Estimates) else source
        remedy = 'Pass `bias="richardson"` to measure the bias.'
        require(not isinstance(given, Run), f"`bias` takes the `biases` of earlier estimates: got a Run. {remedy}")
        missing = set(run) - set(given)
        require(not missing, f"The mapping given as `bias` lacks {', '.join(sorted(missing))}.")
        return given
    if source is BiasSource.NONE:
        return dict.fromkeys(run, Bias(None, "not asked for"))
    if source is BiasSource.RICHARDSON:
        return biases.extrapolated(run)
    insisted = source is BiasSource.PREDICT
    why = None if insisted else biases.too_costly(run)
    if why is None:
        try:
            return biases.predicted(run)
        except InvalidInput as error:  # no mode, or one that says little about the target
            if insisted:
                raise InvalidInput(f"The bias cannot be predicted: {biases.hinted(str(error), run.plan)}.") from error
            why = str(error)
    return dict.fromkeys(run, biases.unknown(why, run.plan))
