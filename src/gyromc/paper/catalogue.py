"""The twelve experiments of the paper's §6 as values: problems, samplers, step sizes, and how much of them a profile runs.

A problem is a potential U, a gradient oracle and observables h; an experiment adds a sampler (D, Q) and step sizes. Step sizes
and sampler parameters are the paper's; every other choice (data seed, split, test row, ddof, start) is a recorded field.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

import numpy as np

from gyromc import datasets, dynamics, observables, oracles, targets
from gyromc.checks import one_of, require, whole
from gyromc.plan import Plan, paper_steps
from gyromc.show.numbers import did_you_mean

U_DIRECTION = (math.sqrt(2) / 2, -math.sqrt(2) / 2, 0.0)
"""u of the paper's §6."""
ROLE_NAMES = {"nonreversible": "non-reversible", "reversible": "reversible baseline", "sgld": "plain SGLD"}
"""The dynamics compared: the paper's sampler, its baseline (same D, Q = 0), and plain SGLD (D = I, Q = 0)."""
CYCLE = np.array([[0.0, -1.0, 1.0], [1.0, 0.0, -1.0], [-1.0, 1.0, 0.0]])
"""J₁ of the paper's §6."""
TITLES = {
    "quadratic": "on a quadratic potential",
    "nonquadratic": "on a non-quadratic potential",
    "linear": "for Bayesian linear regression",
    "logistic": "for Bayesian logistic regression",
}
"""What the report calls the problems, by family."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperProblem:
    """A target with its oracle and observables; the fields are the choices that the paper does not state."""

    family: ClassVar[str]
    # `target`, `oracle` and `observables`, as a plan takes them.
    pieces: ClassVar[Mapping[str, Any]]
    # U, h, oracle and reference as text.
    formulas: ClassVar[Mapping[str, str]]
    # The observable of the paper's panels.
    primary: ClassVar[str] = "h"
    # One whose mean shows the bias of the step size, which odd observables hide.
    even: ClassVar[str | None] = "even"

    @functools.cached_property
    def gaussian(self) -> bool:
        """Whether exact finite-step errors are known: the target is Gaussian."""
        return self.pieces["target"].gaussian() is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bowl(PaperProblem):
    """U = ½|θ|² + β Σ cos θ_i with Gaussian oracle noise; h = uᵀθ for β = 0, tanh(uᵀθ) otherwise."""

    beta: float = 0.0
    dim: int = 3
    tau: float = 1.0

    @property
    def family(self):
        return "quadratic" if self.beta == 0 else "nonquadratic"

    @functools.cached_property
    def pieces(self):
        target, h = targets.Quadratic(np.ones(self.dim)), observables.linear(U_DIRECTION)
        if self.beta != 0:
            target, h = targets.CosinePerturbed(self.dim, self.beta), observables.tanh(U_DIRECTION)
        watched = {"h": h, "even": observables.square(np.eye(self.dim)[0])}
        return {"target": target, "oracle": oracles.Gaussian(self.tau), "observables": watched}

    @property
    def formulas(self):
        bend = "" if self.beta == 0 else f" + {self.beta:g} Σ cos θᵢ"
        return {
            "potential": f"U(θ) = ½|θ|²{bend}, d = {self.dim}",
            "observable": "h(θ) = uᵀθ" if self.beta == 0 else "h(θ) = tanh(uᵀθ)",
            "even observable": "θ₁²",
            "oracle": f"∇U + τζ, τ = {self.tau:g}",
            "reference": "μ(h) = 0, by symmetry",
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class SyntheticRegression(PaperProblem):
    """Bayesian linear regression on one synthetic data set, mini-batch oracle; h = uᵀβ."""

    data_seed: int = 0
    num_data: int = 128
    batch_size: int = 16
    prior_scale: float = 2.0
    coefficients: tuple[float, ...] = (1.0, -1.0, 0.5)
    family = "linear"

    @functools.cached_property
    def pieces(self):
        X, y = datasets.linear_regression(self.data_seed, self.num_data, self.coefficients)
        # pyright takes the fields of the class for the arguments of its inherited constructor
        target = targets.LinearRegression(X, y, self.prior_scale)  # pyright: ignore[reportArgumentType]
        watched = {"h": observables.linear(U_DIRECTION), "even": observables.square([1.0, 0.0, 0.0])}
        return {"target": target, "oracle": oracles.Minibatch(self.batch_size, replace=True), "observables": watched}

    @property
    def formulas(self):
        return {
            "potential": f"U(β) = ½ Σ (yᵢ - xᵢᵀβ)² + |β|²/(2·{self.prior_scale:g}²), "
            f"N = {self.num_data}, d = {len(self.coefficients)}",
            "observable": "h(β) = uᵀβ",
            "even observable": "β₁²",
            "oracle": f"mini-batch of {self.batch_size} with replacement, prior exact",
            "reference": "μ(h) = uᵀm_N, in closed form",
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeartDisease(PaperProblem):
    """Bayesian logistic regression on the heart data, mini-batch oracle; h = predictive probability at one test row."""

    split_seed: int = 0
    num_test: int = 68
    ddof: int = 0
    test_row: int = 0
    batch_size: int = 32
    prior_scale: float = 1.0
    family = "logistic"
    even = None

    def __post_init__(self):
        whole(self.test_row, "test_row", least=0, most=self.num_test - 1)

    @property
    def primary(self):
        return f"row {self.test_row}"

    @functools.cached_property
    def split(self) -> datasets.Split:
        """The data, split and standardised."""
        return datasets.heart_split(self.split_seed, self.num_test, self.ddof)

    @functools.cached_property
    def pieces(self):
        X, y = self.split.X_train, self.split.y_train
        target = targets.LogisticRegression(X, y, self.prior_scale)  # pyright: ignore[reportArgumentType]  # as above
        watched = {f"row {i}": observables.predictive(x) for i, x in enumerate(self.split.X_test)}
        return {"target": target, "oracle": oracles.Minibatch(self.batch_size, replace=True), "observables": watched}

    @property
    def formulas(self):
        return {
            "potential": f"U(θ) = Σ [log(1 + e^(xᵢᵀθ)) - yᵢ xᵢᵀθ] + |θ|²/(2·{self.prior_scale:g}²), "
            f"{270 - self.num_test} training rows, d = 14",
            "observable": f"h(θ) = 1/(1 + e^(-xᵀθ)) at test row {self.test_row} of {self.num_test} "
            f"(row {int(self.split.test_rows[self.test_row])} of the table)",
            "oracle": f"mini-batch of {self.batch_size} with replacement, prior exact",
            "reference": "the paper's: mean of the R estimates at the smallest η, per dynamics; "
            "ours: importance sampling around the mode",
        }


@dataclasses.dataclass(frozen=True, eq=False)
class Sampler:
    """A sampler of the paper: its name there, its parameters as text, and the pair (D, Q) for d parameters."""

    label: str
    formula: str
    dynamics: Callable[[int], dynamics.Dynamics]


def _nld(formula: str, J: Callable[[int], Any]) -> Sampler:
    return Sampler("SGNLMC", f"J = {formula}", lambda dim: dynamics.nonreversible(J(dim)))


def _hfhr(alpha: float, gamma: float) -> Sampler:
    return Sampler("SGHFHRMC", f"α = {alpha:g}, γ = {gamma:g}", lambda dim: dynamics.hfhr(dim, alpha, gamma))


def _gaul(a: float, gamma: float, C: Any, formula: str) -> Sampler:
    formula = f"a = {a:g}, γ = {gamma:g}, C = {formula}"
    return Sampler("SGGAULMC", formula, lambda dim: dynamics.gaul(np.full(dim, C), a, gamma))


@dataclasses.dataclass(frozen=True)
class Experiment:
    """One figure of the paper: two panels, three dynamics, several step sizes.

    `step_sizes` are the published η, the largest first; `start` is θ₀, one number for all coordinates (r₀ = 0). Chain r of each
    dynamics has the same noise at the same η, from `seed`.

    ```python
    from gyromc.paper import CATALOGUE
    plan = CATALOGUE["nld-quadratic"].plan(0.05, num_chains=100)
    print(plan.num_steps)  # 400
    ```
    """

    name: str
    problem: PaperProblem
    sampler: Sampler
    step_sizes: tuple[float, ...]
    start: float = 0.0
    seed: int = 0

    @property
    def title(self) -> str:
        return f"{self.sampler.label} {TITLES[self.problem.family]}"

    @functools.cached_property
    def dynamics(self) -> Mapping[str, dynamics.Dynamics]:
        """The dynamics by role; without `sgld` where the baseline is plain SGLD already (D = I, Q = 0)."""
        dim = self.problem.pieces["target"].dim
        own, sgld = self.sampler.dynamics(dim), dynamics.overdamped(dim)
        others = {"reversible": own.reversible(), "sgld": sgld} if own.augmented else {"reversible": sgld}
        return {"nonreversible": own, **others}

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(self.dynamics)

    def plan(self, step_size: float, dynamics: str = "nonreversible", num_chains: int = 2000, **changes) -> Plan:
        """The plan of one cell, with N = ⌊η⁻²⌋ steps."""
        role = one_of(dynamics, ROLE_NAMES, "dynamics")
        start = None if self.start == 0 else np.full(self.problem.pieces["target"].dim, self.start)
        own = {"dynamics": self.dynamics.get(role, self.dynamics["reversible"]), "start": start, "dtype": "float32"}
        cell = {"step_size": step_size, "num_chains": num_chains, "seed": self.noise_seed(step_size)}
        return Plan(**{**self.problem.pieces, **own, **cell, **changes})

    def noise_seed(self, step_size: float) -> int:
        """The plan's seed: different for each η, the same for each dynamics, so that comparisons are paired."""
        return 1_000_000 * self.seed + round(1 / step_size)

    @property
    def choices(self) -> Mapping[str, object]:
        """Every choice that the paper does not state."""
        own = {"start": self.start, "momentum_start": 0.0, "seed": self.seed, "dtype": "float32"}
        return dataclasses.asdict(self.problem) | own


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """Chains R and the step sizes kept, by family: how many from the largest, or their positions; left out: all."""

    name: str
    num_chains: Mapping[str, int]
    num_step_sizes: Mapping[str, int | tuple[int, ...] | None] = dataclasses.field(default_factory=dict)
    reference_draws: int = 2**17
    digits: int = 4
    # Of the variants over which claim (i) is judged again.
    sensitivity: "Profile | None" = None

    def step_sizes(self, experiment: Experiment) -> tuple[float, ...]:
        kept, published = self.num_step_sizes.get(experiment.problem.family), experiment.step_sizes
        return tuple(published[k] for k in kept) if isinstance(kept, tuple) else published[:kept]

    def chain_steps(self, experiment: Experiment) -> int:
        steps = sum(paper_steps(eta) for eta in self.step_sizes(experiment))
        return len(experiment.roles) * self.num_chains[experiment.problem.family] * steps


def variants(experiment: Experiment) -> list[Experiment]:
    """The experiment with other data and other noise (where it has data) and from another start, its own choices first."""
    field, values = DATA.get(experiment.problem.family, ("", (None,)))
    made = []
    for start, (k, value) in itertools.product(STARTS, enumerate(values)):
        problem = dataclasses.replace(experiment.problem, **({field: value} if field else {}))
        fields = {"name": f"{experiment.name} {field} {value} start {start:g}", "problem": problem, "start": start}
        made.append(dataclasses.replace(experiment, seed=experiment.seed + k, **fields))
    return made


def seconds(experiment: Experiment, chain_steps: float, engine: str = "scan") -> float:
    """The approximate time of so many chain-steps of an experiment on two cores."""
    return chain_steps / RATES.get(engine, RATES["scan"])[experiment.problem.family]


def _halvings(first: float, count: int) -> tuple[float, ...]:
    return tuple(first / 2**k for k in range(count))


_BASIC = {
    "nld": _nld("J₁", lambda dim: CYCLE),
    "hfhr": _hfhr(alpha=1.0, gamma=2.0),
    "gaul": _gaul(a=1.0, gamma=2.0, C=(0.5, 1.5, 2.0), formula="diag(0.5, 1.5, 2)"),
}
_LINEAR = {
    "nld": (_nld("0.3377 J₁", lambda dim: 0.3377 * CYCLE), _halvings(0.05, 6)),
    "hfhr": (_hfhr(alpha=0.5, gamma=6.0), _halvings(0.025, 6)),
    "gaul": (_gaul(a=0.3, gamma=4.0, C=2.0, formula="2 I"), _halvings(0.025, 5)),
}
_LOGISTIC = {
    "nld": _nld("1.0113 blockdiag([[0, -1], [1, 0]])", lambda dim: dynamics.rotations(dim, 1.0113)),
    "hfhr": _hfhr(alpha=0.1, gamma=40.0),
    "gaul": _gaul(a=0.1, gamma=73.5, C=5.0, formula="5 I"),
}

CATALOGUE: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *(Experiment(f"{s}-quadratic", Bowl(), sampler, _halvings(0.1, 7)) for s, sampler in _BASIC.items()),
        *(Experiment(f"{s}-nonquadratic", Bowl(beta=1.2), sampler, _halvings(0.1, 7)) for s, sampler in _BASIC.items()),
        *(Experiment(f"linear-{s}", SyntheticRegression(), sampler, etas) for s, (sampler, etas) in _LINEAR.items()),
        *(Experiment(f"logistic-{s}", HeartDisease(), sampler, _halvings(0.01, 4)) for s, sampler in _LOGISTIC.items()),
    )
}
"""The experiments by name, in the paper's order."""
PROFILES: Mapping[str, Profile] = {
    "quick": Profile(
        name="quick",
        num_chains={"quadratic": 1000, "nonquadratic": 1000, "linear": 500, "logistic": 128},
        num_step_sizes={"quadratic": 4, "nonquadratic": 4, "linear": 3, "logistic": (0, 2)},
    ),
    "paper": Profile(
        name="paper",
        num_chains=dict.fromkeys(TITLES, 2000),
        reference_draws=2**20,
        digits=6,
        sensitivity=Profile(
            name="sensitivity", num_chains={"quadratic": 256, "nonquadratic": 256, "linear": 64, "logistic": 64}
        ),
    ),
}
STARTS = (0.0, 1.0)
DATA = {"linear": ("data_seed", range(10)), "logistic": ("split_seed", range(5))}
"""By family: the field that varies the data, and its values."""
RATES = {
    "scan": {"quadratic": 6e6, "nonquadratic": 5e6, "linear": 2e6, "logistic": 0.5e6},
    "lanes": {"quadratic": 120e6, "nonquadratic": 100e6, "linear": 30e6, "logistic": 8e6},
}
"""Expected chain-steps per second on two cores, for time estimates and the progress bar only."""


def select(names: Iterable[str] = (), seed: int = 0) -> tuple[Experiment, ...]:
    """The experiments with these names (default: all) in the catalogue's order, with noise derived from `seed`."""
    wanted = list(names)
    for name in wanted:
        hint = did_you_mean(name, list(CATALOGUE), "There are:", cutoff=0.4)
        require(name in CATALOGUE, f"Unknown experiment {name!r}. {hint}")
    seed = whole(seed, "seed", least=0, most=10**12)
    return tuple(dataclasses.replace(e, seed=seed) for e in CATALOGUE.values() if not wanted or e.name in wanted)
