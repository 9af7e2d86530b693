"""Chains that failed: which, when and why, and what to do about it.

Input: a plan and the state of its chains. Output: `Failure`s, and the text of the error or warning about them.
"""

from collections.abc import Mapping

import numpy as np

from gyromc.plan import Plan
from gyromc.prediction.stability import advice
from gyromc.results import Cause, EngineState, Failure, RunOptions

__all__ = ["explanation", "failures_of"]


def failures_of(plan: Plan, state: EngineState, outside: Mapping[int, int]) -> tuple[Failure, ...]:
    """The chains that failed, in the order in which they did; those `outside` stood where the density is zero."""
    names = list(plan.observables)
    sums = state.sums[:, : len(names)]
    failures = []
    for chain in sorted(np.flatnonzero(state.failed_at >= 0), key=lambda c: state.failed_at[c]):
        finite = bool(np.all(np.isfinite(state.z[chain])))
        bad = tuple(name for name, s in zip(names, sums[chain], strict=True) if finite and not np.isfinite(s))
        cause = Cause.OBSERVABLE_NOT_FINITE if bad else Cause.OUT_OF_RANGE if finite else Cause.STATE_NOT_FINITE
        if outside.get(int(chain)) == state.failed_at[chain]:
            cause, bad = Cause.DENSITY_NOT_POSITIVE, ()
        failures.append(Failure(int(chain), int(state.failed_at[chain]), cause, bad))
    return tuple(failures)


def explanation(plan: Plan, failures: tuple[Failure, ...], options: RunOptions) -> str:
    """What failed, where, the likely cause and what to do."""
    first = failures[0]
    chains = f"{len(failures)} of {plan.num_chains} chains failed" if len(failures) > 1 else "1 chain failed"
    if first.cause is Cause.OBSERVABLE_NOT_FINITE:
        remedy = "Fix the observable, or leave it out."
    elif first.cause is Cause.DENSITY_NOT_POSITIVE:
        remedy = (
            "A chain steps over the edge of a bounded parameter. Transform it so that every real number is allowed, for example "
            "x = exp(θ) for x > 0, and add the log derivative of the transform to the log density."
        )
    else:
        remedy = (
            f"{advice(plan)} (A state beyond {options.sane_range:.3g} counts as diverged; `sane_range` moves that.)"
        )
    keep = (
        "They are left out of means and errors; `run.failures` names them."
        if options.on_divergence == "report"
        else 'Pass `on_divergence="report"` to go on without failed chains.'
    )
    return f"{chains}, the first: {first}. {remedy} {keep}"
