"""tune with more parameters than matrices allow: the plan of `gyromc.tuning.large`, with its account as a `Tuned`.

A base plan, the plan that was given and a number of gradients in; a `Tuned` out. Errors are not predicted here: they are NaN, and
a warning says so.
"""

import math

from gyromc.oracles import Oracle
from gyromc.plan import Plan
from gyromc.tuning.budget import cost_of_a_gradient
from gyromc.tuning.large import Account, large_plan
from gyromc.tuning.tuned import Expected, Tried, Tuned

__all__ = ["tune_many"]

CHAINS = 8
LEAST_EACH = 2000  # gradients for every chain
UNKNOWN = "With so many parameters errors are not predicted: look at `gyromc.estimate(gyromc.run(tuned.plan))`."


def tune_many(
    base: Plan, oracle: Oracle | None, gradients: float, share: float, seed: int, num_chains: int | None, fixed: bool
) -> Tuned:
    """The tuned plan.

    `share` is what one gradient of the oracle costs in gradients over all the data; `fixed`: whether its batches must stay as
    they are.
    """
    calls = int(gradients / share)
    chains = max(1, min(CHAINS, calls // LEAST_EACH)) if num_chains is None else num_chains
    plan, account = large_plan(base.model, base.observables, oracle, calls, chains, seed, free_batches=not fixed)
    nan = math.nan
    rows = dict.fromkeys(plan.observables, Expected(nan, nan, nan, nan))
    line = Tried(f"hfhr_splitting, {_whitening(account)}", (plan.eta,), plan.eta, nan, nan, nan, "chosen")
    doubts = [*account.notes, UNKNOWN]
    if account.agrees is not True:
        doubts.append("Runs at two step sizes do not show that the step size is small enough: take more gradients.")
    cost = plan.gradients * cost_of_a_gradient(plan)
    return Tuned(plan, rows, (line,), {}, cost, account.gradients * share, None, _reason(plan, account), doubts)


def _whitening(account: Account) -> str:
    return "diagonal preconditioner" + (f" and {account.rank} stiff directions" if account.rank else "")


def _reason(plan: Plan, account: Account) -> str:
    limit, steps = plan.eta / account.step_limit, f"{plan.num_steps} steps after {plan.burn_in} of burn-in"
    return (
        f"HFHR splitting with a {_whitening(account)}: condition number {account.condition:.3g} is left, friction "
        f"{account.friction:.3g}; gradients from {plan.oracle.name}; step size {plan.eta:.3g}, {limit:.2g} of its limit; "
        f"{plan.num_chains} chains × {steps}."
    )
