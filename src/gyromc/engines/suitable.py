"""Which plans suit the engine `lanes`, as far as that can be said without Numba.

`why_not_plan` takes a plan and returns the first reason against it, or None. The engine asks this first and then its compiler;
where Numba is not installed, `WithoutNumba` takes the engine's place and asks this alone.
"""

from gyromc import targets
from gyromc.errors import MissingExtra
from gyromc.flat import identity
from gyromc.observables import Ridge
from gyromc.oracles import Batch, ControlVariate, Exact, Gaussian, Minibatch
from gyromc.plan import Plan
from gyromc.results import EngineState

__all__ = ["PROFILES", "WithoutNumba", "why_not_plan"]

SUPPORTED_ORACLES = (Exact, Gaussian, Minibatch, ControlVariate)
MAX_SIZE = 256  # entries of z; beyond, matrix products over all chains at once are faster
MAX_BATCH = 4096
PROFILES = ("linear", "tanh", "predictive", "brier, y = 1", "brier, y = 0", "entropy", "square")
EXACTLY = (targets.Quadratic, targets.CosinePerturbed, targets.SoftmaxRegression)  # and no class derived from them
KINDS = (targets.StreamedRegression, targets.GeneralizedLinear, targets.Separable)


def why_not_plan(plan: Plan) -> str | None:
    """Why the engine cannot run the plan, by its first piece that does not fit, or None."""
    target, oracle = plan.flat_target, plan.oracle
    if plan.unravel is not identity:
        return "the parameters are a pytree, not a vector"
    if plan.dynamics.size > MAX_SIZE:
        return f"the state has {plan.dynamics.size} entries, more than {MAX_SIZE}"
    if plan.scheduled:
        return "the step size is a schedule"
    if not plan.scheme.linear:
        return f"the scheme is {plan.scheme}, which is not linear in its noise"
    for name, h in plan.observables.items():
        if not isinstance(h, Ridge) or h.profile not in PROFILES:
            kind = type(h).__name__ if not isinstance(h, Ridge) else f"ridge with profile {h.profile!r}"
            return f"observable {name!r} is a general {kind}, not one of {', '.join(PROFILES)} of aᵀθ"
    if type(oracle) not in SUPPORTED_ORACLES:
        return f"the oracle is a {type(oracle).__name__}"
    if isinstance(oracle, ControlVariate) and oracle.order == 2 and not oracle.complete:
        return "it has control variates of order 2 with whole matrices only, not with their diagonals"
    if oracle.memory(plan.dim):
        return f"it keeps no anchors between steps, which {oracle.name} needs"
    if isinstance(oracle, Batch) and oracle.size > MAX_BATCH:
        return f"the mini-batch has {oracle.size} rows, more than {MAX_BATCH}"
    if type(target) is targets.SoftmaxRegression and not isinstance(oracle, Exact | Gaussian):
        return f"mini-batches of a {type(target).__name__} are not known here"
    known = type(target) in EXACTLY or isinstance(target, KINDS)
    return None if known else f"target is a general {type(target).__name__}"


class WithoutNumba:
    """The engine `lanes` where Numba is missing: it runs no plan, and says what would."""

    def __init__(self, missing: MissingExtra):
        self.missing = missing

    def why_not(self, plan: Plan) -> str:
        """The plan's own reason, or what to install for this faster engine."""
        return why_not_plan(plan) or f"it would be faster, but {_lower(str(self.missing))}"

    def initial_state(self, plan: Plan) -> EngineState:
        """Raise: there is none."""
        raise self.missing

    def Session(self, plan: Plan, state: EngineState, sane_range: float, thin: int | None, slots: int, /):
        """Raise: a saved run of this engine goes on only where Numba is installed."""
        raise self.missing


def _lower(text: str) -> str:
    return text[0].lower() + text[1:]
