"""Chains that failed: which, when and why, and what to do about it."""

from collections.abc import Mapping

import jax
import numpy as np

from gyromc.model import FORMULAS
from gyromc.plan import Plan
from gyromc.results import Cause, EngineState, Failure, RunOptions
from gyromc.runtime.evaluation import over_rows

GRADIENTS_A_CHECK = 100  # the cost of a check, less than a hundredth of a run, in gradients of each chain
MOST_READ = 2**24  # numbers that are read to compute U of several chains together


class DensityCheck:
    """Finds chains that stand where the density is zero: gradients can be finite there, and no engine computes U."""

    def __init__(self, plan: Plan, state: EngineState, failures: tuple[Failure, ...]):
        self.plan = plan
        # The step at which each of them was found, and that of the last check.
        self.outside = {f.chain: f.step for f in failures if f.cause is Cause.DENSITY_NOT_POSITIVE}
        self.step = state.step if state.checked is None else state.checked
        self.known = isinstance(plan.target, FORMULAS)  # U is finite wherever θ is
        data = getattr(plan.flat_target, "num_data", 1)
        self.between = GRADIENTS_A_CHECK * max(1, data // plan.oracle.evaluations(plan.target))

    def due(self, step: int) -> bool:
        """Whether a check costs little compared with the steps since the last one."""
        return step - self.step >= self.between

    def __call__(self, state: EngineState) -> None:
        """Note the chains of a state that are outside."""
        if self.known:
            return
        self.step = state.step
        rows, target = state.z[:, : self.plan.dim], self.plan.flat_target
        size = self.plan.dim + sum(np.size(leaf) for leaf in jax.tree.leaves(target))
        try:
            U = over_rows(type(target).potential, rows, target, chunk=min(len(rows), max(1, MOST_READ // size)))
        except Exception:  # a user's target that has a gradient only
            self.known = True
            return
        for chain in np.flatnonzero(~np.isfinite(U) & np.all(np.isfinite(rows), axis=1) & (state.failed_at < 0)):
            self.outside.setdefault(int(chain), self.step)

    def marked(self, failed_at: np.ndarray) -> np.ndarray:
        """The step at which each chain failed, those outside among them."""
        failed_at = np.array(failed_at)
        for chain, step in self.outside.items():
            failed_at[chain] = step if failed_at[chain] < 0 else min(step, failed_at[chain])
        return failed_at


def failures_of(plan: Plan, state: EngineState, outside: Mapping[int, int]) -> tuple[Failure, ...]:
    """The chains that failed, in the order in which they did; those `outside` stood where the density is zero."""
    sums, failures = state.sums[:, : len(plan.observables)], []
    for chain in sorted(np.flatnonzero(state.failed_at >= 0), key=lambda c: state.failed_at[c]):
        finite = bool(np.all(np.isfinite(state.z[chain])))
        bad = tuple(np.array(list(plan.observables))[~np.isfinite(sums[chain]) & finite].tolist())
        cause = Cause.OBSERVABLE_NOT_FINITE if bad else Cause.OUT_OF_RANGE if finite else Cause.STATE_NOT_FINITE
        if outside.get(int(chain)) == state.failed_at[chain]:
            cause, bad = Cause.DENSITY_NOT_POSITIVE, ()
        failures.append(Failure(int(chain), int(state.failed_at[chain]), cause, bad))
    return tuple(failures)


def explanation(plan: Plan, failures: tuple[Failure, ...], options: RunOptions) -> str:
    """What failed, where, the likely cause and what to do."""
    first, starts, beyond = failures[0], plan.starts.theta, None
    if first.step <= 1 and starts is not None:
        row = np.asarray(starts[min(first.chain, len(starts) - 1)], float)
        if not np.isfinite(plan.flat_target.gradients(row[None])).all():
            beyond = f"{np.round(row[:4], 4).tolist()}{'…' if len(row) > 4 else ''}"
    chains = f"{len(failures)} of {plan.num_chains} chains failed" if len(failures) > 1 else "1 chain failed"
    if first.cause is Cause.OBSERVABLE_NOT_FINITE:
        remedy = "Fix the observable, or leave it out."
    elif first.cause is Cause.DENSITY_NOT_POSITIVE:
        remedy = (
            "A chain steps over the edge of a bounded parameter. Transform it so that every real number is allowed, for example "
            "x = exp(θ) for x > 0, and add the log derivative of the transform to the log density."
        )
    elif beyond is not None:
        remedy = (
            f"The gradient is NaN or infinite at the start θ₀ = {beyond}, whatever the step size. Pass another `start`, or write "
            "the density so that it can be differentiated there."
        )
    else:
        from gyromc.prediction.stability import advice

        limit = f"(A state beyond {options.sane_range:.3g} counts as diverged; `sane_range` moves that.)"
        remedy = f"{advice(plan)} {limit}"
    keep = 'Pass `on_divergence="report"` to go on without failed chains.'
    if options.on_divergence == "report":
        keep = "They are left out of means and errors; `run.failures` names them."
    return f"{chains}, the first: {first}. {remedy} {keep}"
