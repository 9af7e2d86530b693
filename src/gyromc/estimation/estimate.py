"""estimate: the means of a run with every error that is known of them.

Input: a `Run`. Output: `Estimates`: by observable the mean, its Monte Carlo error and method, the discretisation bias, the
interval with and without the bias, and diagnostics (R-hat, effective sample size, failed chains, warnings).
"""

import math
import warnings
from collections.abc import Mapping

import numpy as np

from gyromc.approx.sample import Sample
from gyromc.checks import flag, one_of, require
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.estimation import bias as biases
from gyromc.estimation.bias import Bias, BiasSource
from gyromc.estimation.diagnostics import hints_of, warnings_of
from gyromc.estimation.estimates import Estimate, Estimates
from gyromc.estimation.richardson import extrapolated
from gyromc.oracles import Exact
from gyromc.plan import Plan
from gyromc.prediction.poisson.plug_in import PlugIn, best_degree, plug_in
from gyromc.prediction.step_effects import floor_over, noise_of_drift, with_momenta
from gyromc.results import Average, Run, flat_draws, spaced
from gyromc.statistics import errors
from gyromc.statistics.errors import ErrorMethod, MonteCarloError
from gyromc.statistics.variances import Spread, lugsail_variance

__all__ = ["Bias", "Estimate", "Estimates", "MonteCarloError", "estimate"]

MOST_DRAWS = 20_000  # for the plug-in
FLOOR_DRAWS = 200  # for the oracle's part of the error, which is small


def estimate(
    run: Run,
    method: str | ErrorMethod = "auto",
    bias: str | Run | Mapping[str, Bias] = "auto",
    level: float = 0.95,
    *,
    second_step_size: bool = False,
) -> Estimates:
    """The means of a run with their Monte Carlo errors, their discretisation bias and diagnostics.

    Nothing is run unless `second_step_size=True` or `bias="richardson"` asks for it.

    **Arguments:**

    - `run`: from `gyromc.run`; keep draws for the plug-in and for the effective sample size of few chains.
    - `method`: where the Monte Carlo error comes from: `"replicate chains"`, `"lugsail batch means"`, `"plug-in"` (needs
      draws), or `"auto"`, the method that `run.std_error` uses, chosen for each observable by `gyromc.statistics.errors.choose`.
    - `bias`: where the discretisation bias comes from: `"predict"`; `"richardson"`, pairs of chains at η and η/2 with the same
      noise, at three times the run's cost (at most 512 pairs); `"auto"`, predicted where that takes seconds or no longer
      than the run, with at most 60 parameters, and unknown elsewhere; `"none"`; another `Run` of the same model at another step
      size; or the `biases` of earlier estimates of the same plan.
    - `level`: of the intervals.
    - `second_step_size`: run the plan once more, for the same time at twice the step size, and take the bias from the difference;
      with `bias="predict"` only the biases that cannot be predicted well.

    **Returns:** `Estimates`: by name, each with `mean`, `std_error`, `interval`, `bias`, `corrected`, `recommended`, `verdict`, …

    ```python
    import gyromc as gm
    plan = gm.Plan(target=gm.targets.Quadratic([1.0, 4.0]), dynamics=gm.dynamics.overdamped(2), step_size=0.05, num_steps=5000,
                   num_chains=4, observables={"sum": gm.observables.linear([1.0, 1.0]), "x²": gm.observables.square([1.0, 0.0])})
    found = gm.estimate(gm.run(plan))
    low, high = found["x²"].recommended
    assert found["sum"].method == "lugsail batch means" and low < 1 < high
    assert abs(found["x²"].bias - (1 / (1 - 0.05 / 2) - 1)) < 0.01
    ```
    """
    require(
        isinstance(run, Run), f"`estimate` takes a `Run`: got {type(run).__name__}. Make one with `gyromc.run(plan)`."
    )
    asked = _error_method(method)
    if isinstance(bias, str) and bias == "step sizes":
        warnings.warn('`bias="step sizes"` is now `second_step_size=True`.', DeprecationWarning, stacklevel=2)
        bias, second_step_size = BiasSource.AUTO, True
    source = bias if isinstance(bias, Run | Mapping) else _bias_source(bias)
    errors.check_level(level)
    flag(second_step_size, "second_step_size")
    lacking = "every chain failed" if run.steps_done else "no state was averaged"
    require(run.steps_done > 0 and not np.all(run.diverged), f"This run has nothing to estimate from: {lacking}.")
    found = {name: _error(run, row, asked) for name, row in run.items()}
    bias_of = _biases(run, source, second_step_size, found)
    cost = run.gradient_evaluations
    rows = {name: Estimate(row, found[name], bias_of[name], cost, level) for name, row in run.items()}
    sentences = list(warnings_of(run, rows))
    if sentences:
        warnings.warn(" ".join(sentences), GyromcWarning, stacklevel=2)
    return Estimates(run, level, rows, sentences, list(hints_of(run, rows, source is not BiasSource.NONE)))


def _error_method(method: str | ErrorMethod) -> ErrorMethod | None:
    """The method asked for; None for `"auto"`."""
    known = ("auto", ErrorMethod.REPLICATE, ErrorMethod.LUGSAIL, ErrorMethod.PLUG_IN)
    one_of(method, known, "method")
    return None if method == "auto" else ErrorMethod(method)


def _bias_source(bias: object) -> BiasSource:
    known = [str(source) for source in BiasSource]
    return BiasSource(one_of(bias, known, "bias", " A run at another step size works too."))


def _error(run: Run, row: Average, asked: ErrorMethod | None) -> MonteCarloError:
    """The Monte Carlo error of a row by the method asked for; None: the row's own."""
    if asked is None:
        return row.error
    return _plug_in_error(run, row) if asked is ErrorMethod.PLUG_IN else errors.monte_carlo_error(row, asked)


def _plug_in_error(run: Run, average: Average) -> MonteCarloError:
    """The standard error from V, estimated on the run's own draws: Var = V/(Nη) + s/N for one chain."""
    require(run.draws is not None, "The plug-in needs draws: `gyromc.run(plan, thin=10)` keeps every tenth.")
    require(
        average.uncorrected is None,
        'The plug-in knows the error of a plain average, and this run subtracts a martingale: pass `method="auto"`.',
    )
    require(not run.plan.scheduled, "The plug-in needs a constant step size, and this run's is a schedule.")
    plan, rows = run.plan, spaced(flat_draws(run.draws, ~run.diverged), MOST_DRAWS)
    values = plan.model.values(plan.observables[average.name], rows)
    worth = min(len(rows), _worth(average, float(np.var(values))))
    sample = Sample(rows, np.full(len(rows), 1 / len(rows)), worth, f"{len(rows)} kept draws")
    D, Q = plan.dynamics.D, plan.dynamics.Q
    found = plug_in(sample, values, D, Q, max(2, best_degree(len(D), worth)))  # a linear φ sees nothing of an even h
    steps, eta = run.steps_done, plan.eta
    variance = max(found.variance, 0.0) / (steps * eta) + _floor(plan, rows, found) / steps  # T3, and s of T1
    share = found.sampling_error / found.variance if found.variance > 0 else math.inf
    dof = max(1.0, 2 / share**2) if share > 0 else math.inf  # of a variance known so well
    reason = f"asked for; degree {found.degree}, V ± {100 * share:.2g} %"
    return errors.of_mean(Spread(variance, dof), len(average.good), ErrorMethod.PLUG_IN, reason)


def _floor(plan: Plan, rows: np.ndarray, found: PlugIn) -> float:
    """What the oracle's noise adds to N·Var, averaged over some of the draws."""
    if isinstance(plan.oracle, Exact):
        return 0.0
    z = with_momenta(plan, spaced(rows, FLOOR_DRAWS), np.random.default_rng(0))
    return floor_over(found.poisson, z, noise_of_drift(plan, z))


def _worth(averages: Average, spread: float) -> float:
    """How many independent draws a run's draws are worth at most: by their relaxation time, and by the error of their mean."""
    if not averages.enough_blocks:
        return math.inf
    chains = len(averages.good)
    variance = lugsail_variance(averages.blocks).variance / chains
    return min(chains * averages.length / 2, spread / variance if variance > 0 else math.inf)


def _biases(
    run: Run, source: BiasSource | Run | Mapping[str, Bias], second: bool, known: Mapping[str, MonteCarloError]
) -> Mapping[str, Bias]:
    names = list(run)
    require(
        not second or source in (BiasSource.AUTO, BiasSource.PREDICT),
        '`second_step_size=True` measures the bias: leave `bias` out, or pass `bias="predict"` to measure only what cannot '
        "be predicted.",
    )
    if isinstance(source, Run):
        return biases.from_runs(run, source, names)
    if isinstance(source, Mapping):
        given = source.biases if isinstance(source, Estimates) else source
        missing = set(names) - set(given)
        require(not missing, f"The mapping given as `bias` lacks {', '.join(sorted(missing))}.")
        return given
    if source is BiasSource.NONE:
        return {name: Bias(None, "not asked for") for name in names}
    if source is BiasSource.RICHARDSON:
        return extrapolated(run.plan.replace(num_steps=run.steps_done), names)
    if source is BiasSource.AUTO:
        return biases.measured(run, names) if second else biases.predicted_or_not(run)
    if not second:
        try:
            return biases.predicted(run)
        except InvalidInput as error:
            raise InvalidInput(f"The bias cannot be predicted: {biases.hinted(str(error))}.") from error
    found = biases.predicted_or_not(run)
    lacking = [name for name in names if found[name].value is None or found[name].error > known[name].std_error]
    return {**found, **biases.measured(run, lacking)} if lacking else found
