"""expect: expectations with a stated error, in one call: tune, run until the error is reached, estimate.

Input: a target, observables and an error in posterior standard deviations. Output: `Estimates`. The length of the run follows
from the spread between chains after a first stage (`gyromc.statistics.stopping`), so that intervals keep their coverage. The
discretisation bias is known from the trials of the tuning where these are sharp enough, and is measured where they are not.
"""

import dataclasses
import time
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np

from gyromc.checks import coverage, positive, require
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.estimation.bias import Bias
from gyromc.estimation.diagnostics import HEAVY, hints_of, warnings_of
from gyromc.estimation.estimates import Estimate, Estimates
from gyromc.expectation.limits import End, Limits, StepTooLarge, Wanted
from gyromc.expectation.pursuit import Pursuit
from gyromc.plan import Plan
from gyromc.show.interruption import interruptible
from gyromc.show.progress import progress as show_progress
from gyromc.targets import Target
from gyromc.tuning.tune import tune
from gyromc.tuning.tuned import SHORTFALL, Tuned

__all__ = ["attain", "expect"]

MOST_TRIED = 12
TRIALS = "bounded by the trials of the tuning"
FEW_CHAINS = 20  # with fewer, the spread between chains is known badly and intervals are wide
ENDS = {
    End.GRADIENTS: "the gradients allowed are spent: pass a larger `gradients`",
    End.SECONDS: "the time allowed is spent: pass a larger `seconds`",
    End.INTERRUPTED: "it was interrupted",
    End.LOOKS: "the chains vary more the longer they run: they may not mix, see `r_hat`",
    End.REACHED: "the discretisation bias is not known better: pass a larger `error`",
}


def expect(
    target: Target | Plan,
    observables: Mapping[str, Any],
    error: float = 0.01,
    *,
    level: float = 0.95,
    start: Any = None,
    seed: int = 0,
    gradients: float | None = None,
    seconds: float | None = None,
    engine: str = "auto",
    progress: bool | None = None,
) -> Estimates:
    """Posterior expectations to a stated error: tunes a sampler, runs it until the error is reached, and estimates.

    Ctrl-C returns the estimates so far.

    **Arguments:**

    - `target`: the law (`gyromc.targets`), or a plan for it.
    - `observables`: the functions to average, by name; of `gyromc.observables` or plain functions of the parameters.
    - `error`: the error of every mean, in posterior standard deviations of its observable: Monte Carlo error and discretisation
      bias together (`Estimate.total_error`).
    - `level`: of the intervals.
    - `start`: parameters, an array or a pytree, for a target that does not know their shape, such as `LogDensity`.
    - `seed`: a whole number; the same seed gives the same numbers, unless `seconds` ends the run.
    - `gradients`, `seconds`: the most gradient evaluations after tuning, and the most time; where they are spent before the error
      is reached, a warning says which observables miss it and by how much.
    - `engine`: as in `gyromc.run`.
    - `progress`: show the error so far; left out: when standard error is a terminal.

    **Returns:** `Estimates`; `run.plan` is the plan behind them, `tuning` the account of the choice, `hints` say when the step
    size was made smaller.

    ```python
    import gyromc as gm
    found = gm.expect(gm.targets.Quadratic([1.0, 4.0]), {"x²": gm.observables.square([1.0, 0.0])}, error=0.01)
    low, high = found["x²"].recommended
    assert low < 1 < high and found["x²"].relative_error <= 0.01
    ```
    """
    began = time.perf_counter()
    require(
        isinstance(target, Target | Plan),
        f"`target` must be a value of `gyromc.targets` or a `Plan`: got {type(target).__name__}.",
    )
    error = positive(error, "error")
    coverage(level)
    Limits.read(gradients, seconds, began)
    tuned = tune(target, observables=observables, error=error, seed=seed, start=start)
    limits = Limits.read(gradients, seconds, began)
    options = {"limits": limits, "engine": engine, "progress": progress}
    return attain(tuned.plan, error, level=level, tuning=tuned, **options)


def attain(
    plan: Plan,
    error: float,
    *,
    level: float = 0.95,
    tuning: Tuned | None = None,
    limits: Limits | None = None,
    engine: str = "auto",
    progress: bool | None = None,
) -> Estimates:
    """As `expect`, with a plan that is already chosen; its `num_steps` only sizes the first stage.

    The bias is the one that the trials of the plan's `tuning` found, where they know it well enough for the error. Else it is
    predicted or measured after the first stage, and where it is too large the step size is halved and all averages begin anew.

    ```python
    import gyromc as gm
    from gyromc.expectation.expect import attain
    tuned = gm.tune(gm.targets.Quadratic([1.0]), observables={"x": gm.observables.linear([1.0])}, error=0.02)
    assert attain(tuned.plan, 0.02)["x"].relative_error <= 0.02
    ```
    """
    bounds = None if tuning is None else {name: Bias(0.0, TRIALS, row.largest_bias) for name, row in tuning.items()}
    asked, limits = (
        Wanted(positive(error, "error"), engine, bounds),
        limits or Limits.read(None, None, time.perf_counter()),
    )
    _check_observables(plan)
    notes: list[str] = []
    with interruptible("stopping; what is done will be estimated") as stop, show_progress(None, progress) as shown:
        for _ in range(MOST_TRIED + 1):
            pursuit = Pursuit(plan, asked, limits, stop, shown)
            try:
                end = pursuit.follow()
                break
            except StepTooLarge as why:
                limits.gradients_spent += pursuit.gradients
                smaller = _finer(plan, why.times)
                notes.append(
                    f"The step size went from {plan.eta:g} to {smaller.eta:g} and averaging began anew: {why}."
                )
                plan, asked = smaller, dataclasses.replace(asked, biases=None)  # those were of the larger step size
        else:
            raise InvalidInput(
                f"No step size serves, after {MOST_TRIED} that were tried. {notes[-1]} Pass a larger `error` (now {error:g}), or "
                "transform the parameters so that the curvature varies less."
            )
    return _estimates(pursuit, end, tuning, level, notes)


def _check_observables(plan: Plan) -> None:
    """Raise `InvalidInput` for an observable that is not finite where the chains start."""
    rows = plan.starts.theta
    if rows is None:
        return
    for name, h in plan.observables.items():
        values = plan.model.values(h, rows)
        bad = np.flatnonzero(~np.isfinite(values))
        if len(bad):
            where = np.round(rows[bad[0]][:4], 4).tolist()
            raise InvalidInput(
                f"Observable {name!r} is {values[bad[0]]} at {len(bad)} of the {len(rows)} points where chains start, the first "
                f"at θ = {where}{'…' if plan.dim > 4 else ''}. It must be finite wherever the density is positive: fix it, or "
                "leave it out."
            )


def _finer(plan: Plan, times: int) -> Plan:
    """A step size so many times smaller, over the same time, with other random numbers."""
    return plan.replace(
        step_size=plan.eta / times,
        num_steps=times * plan.num_steps,
        burn_in=times * plan.burn_in,
        seed=(plan.seed + 0x3F58476D1CE4E5B9) % 2**63,
    )


def _estimates(pursuit: Pursuit, end: End, tuning: Tuned | None, level: float, notes: list[str]) -> Estimates:
    """The estimates of the last run, with errors from its first stage and warnings for what was not reached."""
    run = pursuit.finished()
    errors = {name: stage.error(run.steps_done) for name, stage in pursuit.stages.items()}
    cost = run.gradient_evaluations
    rows = {name: Estimate(row, errors[name], pursuit.biases[name], cost, level) for name, row in run.items()}
    sentences = [
        *(
            text
            for text in (tuning.warnings if tuning else ())
            if not (text.startswith(SHORTFALL) or text.endswith(HEAVY))
        ),
        *warnings_of(run, rows, bias_counted=True),
        *_shortfalls(pursuit, rows, end),
    ]
    hints = [*notes, *hints_of(run, rows, bias_wanted=True)]
    if sentences:
        warnings.warn(" ".join(sentences), GyromcWarning, stacklevel=4)
    return Estimates(run, level, rows, sentences, hints, tuning)


def _shortfalls(pursuit: Pursuit, rows: Mapping[str, Estimate], end: End) -> list[str]:
    """What the estimates do not deliver: errors that were not reached, biases that are not known, few chains."""
    said, asked = [], pursuit.asked.error
    missed = [(row.relative_error, name) for name, row in rows.items() if pursuit.missed(row)]
    if missed:
        worst = ", ".join(
            f"{name} ({size:.2g}, {size / asked:.3g} times)" for size, name in sorted(missed, reverse=True)
        )
        said.append(
            f"The error asked for, {asked:g} posterior standard deviations, is not reached for {worst}: {ENDS[end]}."
        )
    unknown = [name for name, row in rows.items() if row.bias is None]
    if unknown:
        said.append(
            f"The error of {', '.join(unknown)} does not contain the discretisation bias, which is not known (`hints` say why): "
            "compare with a smaller step size, `gm.run(found.run.plan.replace(step_size=…))`."
        )
    chains = pursuit.plan.num_chains
    if chains < FEW_CHAINS:
        said.append(f"Errors come from the spread of {chains} chains: intervals are wide. {FEW_CHAINS} are enough.")
    return said
