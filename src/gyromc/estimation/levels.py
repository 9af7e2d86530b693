"""The bias at η from pairs of chains at (η, η/2) and at (η/2, η/4), without any other knowledge of the next order.

Input: a plan. Output: a `MeasuredBias` by observable. With Δ₁ = mean(η) - mean(η/2) and Δ₂ = mean(η/2) - mean(η/4), each from
pairs that share their noise, the bias at η/2 is b₂ = 2^p/(2^p - 1) · Δ₂ up to its next order, and that at η is Δ₁ + b₂. If the
bias were cη^p exactly, Δ₁ would be (2^p - 1) b₂. For cη + eη² the gap between the two is 3/8 eη², and Δ₁ + b₂ is off by 1/8 eη²:
half the gap, as far as it exceeds its own noise, counts as the error of the extrapolation.
"""

import dataclasses
import math
from collections.abc import Sequence

from gyromc.estimation.bias import Bias
from gyromc.estimation.richardson import differences
from gyromc.oracles import Exact
from gyromc.plan import Plan

__all__ = ["COST", "MeasuredBias", "measured_twice"]

COST = 9  # gradients per step of the plan: three for a pair at η, six at η/2 over the same time


@dataclasses.dataclass(frozen=True)
class MeasuredBias(Bias):
    """A bias from pairs of chains; `noise` is the Monte Carlo part of `error`, which more steps reduce."""

    noise: float = 0.0
    order: int = 1


def measured_twice(plan: Plan, names: Sequence[str]) -> dict[str, MeasuredBias]:
    """The bias of the plan's averages, without the effect of the start; `InvalidInput` where the pairs diverge.

    ```python
    import gyromc as gm
    from gyromc.estimation.levels import measured_twice
    plan = gm.Plan(target=gm.targets.Quadratic([1.0]), dynamics=gm.dynamics.overdamped(1), step_size=0.2, num_steps=2000,
                   observables={"x²": gm.observables.square([1.0])}, burn_in=50, num_chains=64)
    found = measured_twice(plan, ["x²"])["x²"]
    assert abs(found.value - (1 / 0.9 - 1)) < 4 * found.error     # Euler's variance is 1/(1 - η/2)
    ```
    """
    order = plan.scheme.order if isinstance(plan.oracle, Exact) else 1
    fine = plan.replace(
        step_size=plan.eta / 2,
        num_steps=2 * plan.num_steps,
        burn_in=2 * plan.burn_in,
        seed=(plan.seed + 0x2545F4914F6CDD1D) % 2**63,  # other random numbers
    )
    first, second = differences(plan, names), differences(fine, names)
    ratio = 2**order - 1
    factor, how = 2**order / ratio, f"measured: pairs of chains at η, η/2 and η/4 with the same noise, order {order}"
    found = {}
    for name in names:
        one, two = first[name], second[name]
        half = factor * two.mean
        noise = math.hypot(one.std_error, factor * two.std_error)
        gap, by_chance = half - one.mean / ratio, math.hypot(one.std_error / ratio, factor * two.std_error)
        error = math.hypot(noise, math.sqrt(max(0.0, gap**2 - by_chance**2)) / 2)
        found[name] = MeasuredBias(one.mean + half, how, error, dof=one.pairs - 1, noise=noise, order=order)
    return found
