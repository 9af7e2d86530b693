"""How much of the paper's §6 is run: `paper` is R = 2000 and every published η; `quick` runs all twelve in under two minutes.

Input: an experiment. Output: its step sizes, its number of chains and the cost in chain-steps and seconds.
"""

import dataclasses
from collections.abc import Mapping

from gyromc.paper.experiment import Experiment
from gyromc.plan import paper_steps

__all__ = ["PROFILES", "Profile", "seconds"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Chains R and the step sizes kept, by family: how many from the largest, or their positions; None keeps all.

    `sensitivity` is the profile of the variants over which claim (i) is judged again; None leaves them out.
    """

    name: str
    num_chains: Mapping[str, int]
    num_step_sizes: Mapping[str, int | tuple[int, ...] | None]
    reference_draws: int
    digits: int
    bootstrap: int = 2000
    sensitivity: "Profile | None" = None

    def step_sizes(self, experiment: Experiment) -> tuple[float, ...]:
        """Return the step sizes that this profile runs."""
        kept, published = self.num_step_sizes[experiment.problem.family], experiment.step_sizes
        return tuple(published[k] for k in kept) if isinstance(kept, tuple) else published[:kept]

    def chains(self, experiment: Experiment) -> int:
        """Return R."""
        return self.num_chains[experiment.problem.family]

    def chain_steps(self, experiment: Experiment) -> int:
        """Return the steps over all chains, dynamics and step sizes."""
        steps = sum(paper_steps(eta) for eta in self.step_sizes(experiment))
        return len(experiment.roles) * self.chains(experiment) * steps


_FAMILIES = ("quadratic", "nonquadratic", "linear", "logistic")
_SENSITIVITY = Profile(
    name="sensitivity",
    num_chains={"quadratic": 256, "nonquadratic": 256, "linear": 64, "logistic": 64},
    num_step_sizes=dict.fromkeys(_FAMILIES, None),
    reference_draws=2**17,
    digits=4,
)

PROFILES: Mapping[str, Profile] = {
    "quick": Profile(
        name="quick",
        num_chains={"quadratic": 1000, "nonquadratic": 1000, "linear": 500, "logistic": 128},
        num_step_sizes={"quadratic": 4, "nonquadratic": 4, "linear": 3, "logistic": (0, 2)},
        reference_draws=2**17,
        digits=4,
    ),
    "paper": Profile(
        name="paper",
        num_chains=dict.fromkeys(_FAMILIES, 2000),
        num_step_sizes=dict.fromkeys(_FAMILIES, None),
        reference_draws=2**20,
        digits=6,
        sensitivity=_SENSITIVITY,
    ),
}
"""The profiles by name."""

_RATES = {
    "scan": {"quadratic": 6e6, "nonquadratic": 5e6, "linear": 2e6, "logistic": 0.5e6},
    "lanes": {"quadratic": 120e6, "nonquadratic": 100e6, "linear": 30e6, "logistic": 8e6},
}
"""Expected chain-steps per second on two cores, for time estimates and the progress bar only."""


def seconds(experiment: Experiment, chain_steps: float, engine: str = "scan") -> float:
    """The approximate time of so many chain-steps of an experiment on two cores."""
    rates = _RATES.get(engine, _RATES["scan"])
    return chain_steps / rates[experiment.problem.family]
