"""What a run may cost: gradients, an error, or seconds; and what one gradient of a plan costs in gradients over all the data."""

import dataclasses

from gyromc.checks import positive, require
from gyromc.plan import Plan
from gyromc.targets import SumOverData

__all__ = ["Budget", "cost_of_a_gradient"]

ERROR = 0.01  # posterior standard deviations, where no budget is given


@dataclasses.dataclass(frozen=True)
class Budget:
    """Exactly one of the three."""

    gradients: float | None = None
    error: float | None = None
    seconds: float | None = None

    @classmethod
    def read(cls, gradients, error, seconds, given) -> "Budget":
        named = {"gradients": gradients, "error": error, "seconds": seconds}
        asked = {name: positive(value, name) for name, value in named.items() if value is not None}
        require(
            len(asked) <= 1,
            f"Pass one of `gradients`, `error` and `seconds`: got {' and '.join(f'`{name}`' for name in asked)}.",
        )
        if asked:
            return cls(**asked)
        if isinstance(given, Plan):
            return cls(gradients=given.gradients * cost_of_a_gradient(given))
        return cls(error=ERROR)

    @property
    def guess(self) -> float:
        """About how many gradients it is, before anything is known."""
        if self.gradients is not None:
            return self.gradients
        return 0.2 / self.error**2 if self.error is not None else 2e5

    def steps(self, cost: float) -> float:
        """About how many steps it is, each of which costs so many gradients; an error needs as many with small batches."""
        return self.guess if self.error is not None else self.guess / cost


def cost_of_a_gradient(plan: Plan) -> float:
    """What one gradient of a plan costs in gradients over all the data."""
    rows = plan.target.num_data if isinstance(plan.target, SumOverData) else 1
    return plan.oracle.evaluations(plan.target) / rows
