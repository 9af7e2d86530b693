"""estimate: means of a run with every error that is known of them, each by name (E4, E6, T3).

Receives a `Run`; hands on `Estimates`: mean, Monte Carlo error with the method it comes from, discretisation bias beside it, the
interval with and without the bias, and what says whether to believe them (R-hat, effective sample size, failed chains).
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gyromc.checks import require
from gyromc.errors import GyromcWarning
from gyromc.estimation import bias as biases
from gyromc.estimation import errors, statistics
from gyromc.estimation.bias import Bias
from gyromc.estimation.errors import MonteCarloError
from gyromc.results import Run

__all__ = ["Bias", "Estimate", "Estimates", "MonteCarloError", "estimate"]

NEGLIGIBLE = 0.25  # of a standard error: a 95 % interval that ignores such a bias covers 94.3 %
START_SHOWS = 3.5  # standard errors between the first and the second half of the chains


@dataclasses.dataclass(frozen=True)
class Estimate:
    """What a run says about one μ(h).

    **Attributes:**

    - `mean`, `std_error`, `dof`, `method`, `reason`: over chains; the error is statistical alone.
    - `interval`: of the given `level`, for the mean without its bias taken off.
    - `bias`, `bias_error`, `bias_method`: the discretisation bias; None where it is not known.
    - `corrected`: the interval after taking the bias off, with the error of that correction in it.
    - `recommended`: `corrected` where the bias is known and not negligible, else `interval`; `verdict` says why.
    - `variance`: V(h) as the error implies it; `r_hat`; `ess` and `ess_per_gradient`, NaN where Var_μ(h) is not known.
    """

    run: Run = dataclasses.field(repr=False)
    name: str
    mean: float
    error: MonteCarloError
    discretisation: Bias
    level: float
    variance: float
    r_hat: float

    @functools.cached_property
    def ess(self) -> float:
        """How many independent draws have the same error; NaN where Var_μ(h) is not known."""
        return self.run.posterior_variance[self.name] / self.std_error**2 if self.std_error > 0 else math.nan

    @property
    def ess_per_gradient(self) -> float:
        """`ess` per gradient evaluation, those of failed chains and of the burn-in counted."""
        return self.ess / self.run.gradient_evaluations

    @property
    def std_error(self) -> float:
        """The Monte Carlo standard error of `mean`."""
        return self.error.std_error

    @property
    def dof(self) -> float:
        """The degrees of freedom of `std_error`."""
        return self.error.dof

    @property
    def method(self) -> str:
        """How `std_error` is known."""
        return self.error.method

    @property
    def reason(self) -> str:
        """Why that method."""
        return self.error.reason

    @property
    def interval(self) -> tuple[float, float]:
        """The interval of the Monte Carlo error alone."""
        return statistics.interval(self.mean, self.std_error, self.level, self.dof)

    @property
    def bias(self) -> float | None:
        """The expected mean minus μ(h)."""
        return self.discretisation.value

    @property
    def bias_error(self) -> float:
        """The standard error of `bias`."""
        return math.nan if self.bias is None else self.discretisation.std_error(self.std_error)

    @property
    def bias_method(self) -> str:
        """How `bias` is known."""
        return self.discretisation.method

    @functools.cached_property
    def corrected_error(self) -> float:
        """The standard error of the mean with the bias taken off."""
        return math.hypot(self.discretisation.amplification * self.std_error, self.discretisation.error)

    @property
    def corrected_mean(self) -> float:
        """The mean with the bias taken off."""
        return math.nan if self.bias is None else self.mean - self.bias

    @property
    def corrected(self) -> tuple[float, float]:
        """The interval after taking the bias off; NaN where it is not known."""
        own = (self.discretisation.amplification * self.std_error) ** 2, self.dof
        dof = (
            0
            if not self.dof > 0
            else statistics.combined_dof(own, (self.discretisation.error**2, self.discretisation.dof))
        )
        return statistics.interval(self.corrected_mean, self.corrected_error, self.level, dof)

    @property
    def bias_matters(self) -> bool:
        """Whether an interval that ignores the bias would cover less than it says."""
        return self.bias is not None and abs(self.bias) + self.bias_error > NEGLIGIBLE * self.std_error

    @property
    def bias_dominates(self) -> bool:
        """Whether the bias is larger than the standard error, and than three of its own."""
        return self.bias is not None and abs(self.bias) > max(self.std_error, 3 * self.bias_error)

    @property
    def recommended(self) -> tuple[float, float]:
        """The interval to report."""
        return self.corrected if self.bias_matters else self.interval

    @property
    def verdict(self) -> str:
        """What to do about the bias, in a sentence."""
        if self.bias is None:
            return f"bias {self.bias_method}; the interval holds for the chain's own law"
        size = abs(self.bias) / self.std_error if self.std_error > 0 else math.inf
        if self.bias_dominates:
            return f"the bias is {size:.2g} standard errors: take the corrected interval, or a smaller step size"
        if self.bias_matters:
            known = self.bias_error / self.std_error if self.std_error > 0 else math.inf
            return f"the bias ({size:.2g} ± {known:.1g} standard errors) counts: take the corrected interval"
        return f"the bias is negligible ({size:.2g} standard errors)"


@dataclasses.dataclass(frozen=True, eq=False)
class Estimates(Mapping[str, Estimate]):
    """One `Estimate` per observable, by name, and what concerns all of them.

    **Attributes:**

    - `run`: what they were estimated from; `level`: of the intervals; `notes`: what else should be known, in sentences.
    - `divergences`: how many chains failed and were left out; `gradient_evaluations`: by the run, failed chains included.
    """

    run: Run
    level: float
    rows: Mapping[str, Estimate]
    notes: tuple[str, ...]

    def __getitem__(self, name: str) -> Estimate:
        return self.rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def biases(self) -> dict[str, Bias]:
        """The bias of each observable, to be given to `estimate` for another run of the same plan."""
        return {name: row.discretisation for name, row in self.rows.items()}

    @property
    def divergences(self) -> int:
        """How many chains failed and were left out."""
        return len(self.run.failures)

    @property
    def gradient_evaluations(self) -> int:
        """Gradients the run computed."""
        return self.run.gradient_evaluations

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values, for JSON; NaN becomes None."""
        from gyromc.estimation.tables import as_dict

        return as_dict(self)

    def __rich__(self):
        """A table for the terminal."""
        from gyromc.estimation.tables import as_rich

        return as_rich(self)

    def __repr__(self) -> str:
        from gyromc.estimation.tables import as_text

        return as_text(self)

    def _repr_html_(self) -> str:
        from gyromc.estimation.tables import as_html

        return as_html(self)


def estimate(
    run: Run, method: str = "auto", bias: str | Run | Mapping[str, Bias] = "auto", level: float = 0.95
) -> Estimates:
    """The means of a run with their Monte Carlo errors, their discretisation bias and what says whether to believe them.

    **Arguments:**

    - `run`: from `gyromc.run`; keep draws for the plug-in and for the effective sample size of few chains.
    - `method`: where the Monte Carlo error comes from: `"replicate chains"`, `"lugsail batch means"`, `"plug-in"` (T3, needs
      draws), or `"auto"`, which chooses for each observable and says why.
    - `bias`: where the discretisation bias comes from: `"predict"`; `"step sizes"`, a second run of the same time at twice the
      step size; another `Run` of the same model at another step size; `"none"`; the `biases` of earlier estimates of the same
      plan; or `"auto"`: predicted where that is possible within seconds, from a second run otherwise.
    - `level`: of the intervals.

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
    known = ("auto", *errors.METHODS)
    require(method in known, f"`method` must be one of {', '.join(known)}: got {method!r}.")
    require(
        isinstance(bias, Run | Mapping) or bias in biases.METHODS,
        f"`bias` must be one of {', '.join(biases.METHODS)}, or a run at another step size: got {bias!r}.",
    )
    require(0 < level < 1, f"`level` must lie between 0 and 1: got {level!r}. 95 % is 0.95.")
    require(
        run.steps_done > 0 and not np.all(run.diverged),
        "This run has nothing to estimate from: "
        + ("every chain failed." if run.steps_done else "no state was averaged."),
    )
    found = {name: _error(run, name, method) for name in run.plan.observables}
    bias_of = _biases(run, bias, found)
    rows = {name: _row(run, name, found[name], bias_of[name], level) for name in run.plan.observables}
    estimates = Estimates(run, level, rows, tuple(_notes(run, rows)))
    _warn(estimates)
    return estimates


def _material(run: Run, name: str) -> errors.Material:
    averages = run.averages[name][~run.diverged]
    if run.plan.scheduled:
        return errors.Material(averages, np.zeros((len(averages), 0)))
    return errors.Material(averages, run.blocks[name], run.covered)


def _error(run: Run, name: str, method: str) -> MonteCarloError:
    material, scheduled = _material(run, name), run.plan.scheduled
    has_draws = run.draws is not None and not scheduled
    reason = "asked for"
    if method == "auto":
        method, reason = errors.choose(material, has_draws)
    if method == "plug-in":
        require(run.draws is not None, "The plug-in needs draws: `gyromc.run(plan, thin=10)` keeps every tenth.")
        require(not scheduled, "The plug-in needs a constant step size, and this run's is a schedule.")
        return errors.plug_in_error(run, name, material, reason)
    if method == "lugsail batch means" and not material.enough_blocks:  # a schedule, or very few steps
        found = run.batch_variance(name)
        return errors.of_mean(
            found, len(material.averages), "batch means", f"{reason}; too few equal blocks for lugsail"
        )
    return errors.monte_carlo_error(material, method, reason)


def _biases(run: Run, bias: str | Run | Mapping[str, Bias], known: Mapping[str, MonteCarloError]) -> Mapping[str, Bias]:
    names = list(run.plan.observables)
    if isinstance(bias, Mapping):
        missing = set(names) - set(bias)
        require(not missing, f"The mapping given as `bias` lacks {', '.join(sorted(missing))}.")
        return bias
    if isinstance(bias, Run):
        return _from_runs(run, bias, names)
    if bias == "none":
        return {name: Bias(None, "not asked for") for name in names}
    if bias == "predict":
        return biases.predicted(run)
    found = biases.predicted_or_not(run) if bias == "auto" else {name: Bias(None, "unknown") for name in names}
    lacking = [name for name in names if found[name].value is None or found[name].error > known[name].std_error]
    if not lacking:
        return found
    other, why = biases.second_run(run, lacking)
    if other is None:
        return {**{name: Bias(None, why) for name in names}, **{n: b for n, b in found.items() if b.value is not None}}
    return {**found, **_from_runs(run, other, lacking)}


def _from_runs(run: Run, other: Run, names: list[str]) -> dict[str, Bias]:
    ratio, limit = biases.ratio_of(run, other, names), biases.largest_step_size(run.plan)
    relative = run.plan.eta / limit
    found = {}
    for name in names:
        error = _error(other, name, "auto")
        away = other.mean[name] - run.mean[name]
        found[name] = biases.from_step_sizes(away, error.std_error, error.dof, ratio, relative)
    return found


def _row(run: Run, name: str, error: MonteCarloError, bias: Bias, level: float) -> Estimate:
    chains = int(np.sum(~run.diverged))
    return Estimate(
        run=run,
        name=name,
        mean=run.mean[name],
        error=error,
        discretisation=bias,
        level=level,
        variance=chains * error.std_error**2 * sum(run.state.clock),  # E6
        r_hat=run.r_hat[name],
    )


def _notes(run: Run, rows: Mapping[str, Estimate]) -> Iterator[str]:
    """What the user should know beyond the numbers."""
    steps = run.plan.step_size
    if any(row.bias_dominates for row in rows.values()):
        names = ", ".join(name for name, row in rows.items() if row.bias_dominates)
        yield (
            f"The discretisation bias of {names} exceeds the statistical error: take the corrected interval, or halve the step "
            f"size (now {steps:g}), which halves the bias; more steps at this step size will not help."
        )
    for name, row in rows.items():
        material = _material(run, name)
        if not material.enough_blocks:
            if row.r_hat > 1.5:
                yield f"{name}: R-hat is {row.r_hat:.3g}: the chains have not mixed. Run longer, or start them elsewhere."
            continue
        if len(material.averages) > 1 and statistics.disagreement(material.blocks) < errors.CHANCE:
            yield f"{name}: the chains disagree (R-hat {row.r_hat:.3g}): they have not mixed. Run longer."
        if row.method == "lugsail batch means" and material.length < errors.SHORT:
            yield (
                f"{name}: a chain lasts only {material.length:.0f} relaxation times, so that its error is too small. "
                f"Run {errors.SHORT / material.length:.1f} times longer, or several chains."
            )
        half = material.blocks.shape[1] // 2
        drift = float(np.mean(material.blocks[:, :half]) - np.mean(material.blocks[:, half:])) / 2
        if abs(drift) > START_SHOWS * row.std_error:
            yield (
                f"{name}: the first half of the chains differs from the second by {2 * abs(drift):.2g}: the start shows. "
                f"Pass `burn_in`, or a start closer to the mode."
            )
    if run.failures:
        yield f"{len(run.failures)} of {run.plan.num_chains} chains failed and are left out."


def _warn(estimates: Estimates) -> None:
    if estimates.notes:
        warnings.warn(" ".join(estimates.notes), GyromcWarning, stacklevel=3)
