"""An experiment of the paper's §6 as a value: a problem, a sampler (D, Q) and step sizes.

Input: names and numbers. Output: `Experiment.plan(step_size, dynamics)`, the plan of one cell. Nothing is run here.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from gyromc import dynamics
from gyromc.checks import require
from gyromc.paper.problems import PaperProblem
from gyromc.plan import Plan

__all__ = ["ROLES", "ROLE_NAMES", "Experiment", "Sampler", "gradient_adjusted", "high_resolution", "rotation"]

ROLE_NAMES = {"nonreversible": "non-reversible", "reversible": "reversible baseline", "sgld": "plain SGLD"}
"""The dynamics compared: the paper's sampler, its baseline (same D, Q = 0), and plain SGLD (D = I, Q = 0)."""
ROLES = tuple(ROLE_NAMES)

CYCLE = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
"""J₁ of the paper's §6."""


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
    """A sampler of the paper: its name there, its parameters as text and as numbers, and the pair (D, Q) for d parameters."""

    label: str
    formula: str
    parameters: Mapping[str, Any]
    dynamics: Callable[[int], dynamics.Dynamics]


def rotation(scale: float = 1.0, blocks: bool = False) -> Sampler:
    """SGNLMC: J is `scale` times J₁ (d = 3), or times 2 × 2 blocks if `blocks`."""
    formula = f"J = {'' if scale == 1 else f'{scale:g} '}{'blockdiag([[0, -1], [1, 0]])' if blocks else 'J₁'}"

    def pair(dim: int) -> dynamics.Dynamics:
        return dynamics.nonreversible(dynamics.rotations(dim, scale) if blocks else scale * CYCLE)

    return Sampler("SGNLMC", formula, {"scale": scale, "blocks": blocks}, pair)


def high_resolution(alpha: float, gamma: float) -> Sampler:
    """SGHFHRMC with α and γ."""
    numbers = {"alpha": alpha, "gamma": gamma}
    return Sampler("SGHFHRMC", f"α = {alpha:g}, γ = {gamma:g}", numbers, lambda dim: dynamics.hfhr(dim, alpha, gamma))


def gradient_adjusted(a: float, gamma: float, C: float | tuple[float, ...]) -> Sampler:
    """SGGAULMC with a, γ and C: a diagonal, or one number for a multiple of the identity."""
    matrix = f"{C:g} I" if isinstance(C, int | float) else f"diag({', '.join(f'{c:g}' for c in C)})"
    formula, numbers = f"a = {a:g}, γ = {gamma:g}, C = {matrix}", {"a": a, "gamma": gamma, "C": C}
    return Sampler("SGGAULMC", formula, numbers, lambda dim: dynamics.gaul(np.full(dim, C), a, gamma))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """One figure of the paper: two panels, three dynamics, several step sizes.

    **Attributes:**

    - `name`, `title`: for the command line and the report.
    - `problem`: target, oracle and observables, with the choices that the paper does not state as fields.
    - `sampler`: (D, Q).
    - `step_sizes`: the published η, the largest first.
    - `start`: θ₀, one number for all coordinates (r₀ = 0); 0, as the paper does not state it.
    - `seed`: of the noise; chain r of each dynamics has the same noise at the same η.
    - `dtype`: the precision of the run.

    ```python
    from gyromc.paper import CATALOGUE
    plan = CATALOGUE["nld-quadratic"].plan(0.05, num_chains=100)
    assert plan.num_steps == 400
    ```
    """

    name: str
    title: str
    problem: PaperProblem
    sampler: Sampler
    step_sizes: tuple[float, ...]
    start: float = 0.0
    seed: int = 0
    dtype: str = "float32"

    @functools.cached_property
    def _pieces(self) -> Mapping[str, Any]:
        problem = self.problem
        return {"target": problem.target(), "oracle": problem.oracle(), "observables": problem.observables()}

    @functools.cached_property
    def dynamics(self) -> Mapping[str, dynamics.Dynamics]:
        """The dynamics by role; without `sgld` where the baseline is plain SGLD already."""
        dim = self._pieces["target"].dim
        own, sgld = self.sampler.dynamics(dim), dynamics.overdamped(dim)
        if not own.augmented:
            return {"nonreversible": own, "reversible": sgld}  # the same (D, Q): D = I, Q = 0
        return {"nonreversible": own, "reversible": own.reversible(), "sgld": sgld}

    @property
    def roles(self) -> tuple[str, ...]:
        """Which of `ROLES` this experiment compares."""
        return tuple(self.dynamics)

    def plan(self, step_size: float, dynamics: str = "nonreversible", num_chains: int = 2000, **changes) -> Plan:
        """Return the plan of one cell, with N = ⌊η⁻²⌋ steps."""
        require(dynamics in ROLES, f"`dynamics` must be one of {', '.join(ROLES)}: got {dynamics!r}.")
        fields = {
            **self._pieces,
            "dynamics": self.dynamics.get(dynamics, self.dynamics["reversible"]),
            "start": None if self.start == 0 else np.full(self._pieces["target"].dim, self.start),
            "seed": self.noise_seed(step_size),
            "dtype": self.dtype,
        }
        return Plan(**{**fields, "step_size": step_size, "num_chains": num_chains, **changes})

    def noise_seed(self, step_size: float) -> int:
        """The plan's seed: different for each η, the same for each dynamics, so that comparisons are paired."""
        return 1_000_000 * self.seed + round(1 / step_size)

    @property
    def choices(self) -> Mapping[str, object]:
        """Every choice that the paper does not state."""
        own = {"start": self.start, "momentum_start": 0.0, "seed": self.seed, "dtype": self.dtype}
        return {**dataclasses.asdict(self.problem), **own}
