"""The problems of the paper's §6: a potential U, a gradient oracle and observables h.

Input: the paper's choices and those it does not state (data seed, split, test row, ddof), as fields. Output: the target,
oracle and observables of a plan. A problem is a frozen value: two equal problems give equal plans.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from gyromc import datasets, observables, oracles, targets
from gyromc.checks import require, whole

__all__ = ["Bowl", "HeartDisease", "PaperProblem", "SyntheticRegression"]

U_DIRECTION = (math.sqrt(2) / 2, -math.sqrt(2) / 2, 0.0)
"""u of the paper's §6."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaperProblem(abc.ABC):
    """A target with its oracle and observables.

    `primary` names the observable of the paper's panels, `even` one whose mean shows the O(η) bias, or None; `family` is
    `quadratic`, `nonquadratic`, `linear` or `logistic`.
    """

    family: ClassVar[str]
    primary: ClassVar[str] = "h"
    even: ClassVar[str | None] = "even"

    @abc.abstractmethod
    def target(self) -> targets.Target:
        """Return U."""

    @abc.abstractmethod
    def oracle(self) -> oracles.Oracle:
        """Return the gradient oracle."""

    @abc.abstractmethod
    def observables(self) -> Mapping[str, observables.Observable]:
        """Return all observables of one run, by name."""

    @property
    @abc.abstractmethod
    def formulas(self) -> Mapping[str, str]:
        """U, h, oracle and reference as text."""

    @functools.cached_property
    def gaussian(self) -> bool:
        """Whether exact finite-step errors are known: the target is Gaussian."""
        return self.target().gaussian() is not None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bowl(PaperProblem):
    """U = ½|θ|² + β Σ cos θ_i with Gaussian oracle noise; h = uᵀθ for β = 0, tanh(uᵀθ) otherwise."""

    beta: float = 0.0
    dim: int = 3
    tau: float = 1.0

    @property
    def family(self):
        return "quadratic" if self.gaussian else "nonquadratic"

    def target(self):
        return targets.Quadratic(np.ones(self.dim)) if self.beta == 0 else targets.CosinePerturbed(self.dim, self.beta)

    def oracle(self):
        return oracles.Gaussian(self.tau)

    def observables(self):
        h = observables.linear(U_DIRECTION) if self.beta == 0 else observables.tanh(U_DIRECTION)
        return {"h": h, "even": observables.square(np.eye(self.dim)[0])}

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

    def target(self):
        X, y = datasets.linear_regression(self.data_seed, self.num_data, self.coefficients)
        return targets.LinearRegression(X, y, prior_scale=self.prior_scale)

    def oracle(self):
        return oracles.Minibatch(self.batch_size)

    def observables(self):
        return {"h": observables.linear(U_DIRECTION), "even": observables.square([1.0, 0.0, 0.0])}

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

    def target(self):
        return targets.LogisticRegression(self.split.X_train, self.split.y_train, prior_scale=self.prior_scale)

    def oracle(self):
        return oracles.Minibatch(self.batch_size)

    def observables(self):
        return {f"row {i}": observables.predictive(x) for i, x in enumerate(self.split.X_test)}

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


def with_choices(problem: PaperProblem, **choices: object) -> PaperProblem:
    """Return a copy of a problem with other values of its fields, for example `test_row=5`."""
    known = {f.name for f in dataclasses.fields(problem)}
    unknown = sorted(set(choices) - known)
    require(
        not unknown, f"{type(problem).__name__} has no choice {', '.join(unknown)}: it has {', '.join(sorted(known))}."
    )
    return dataclasses.replace(problem, **choices)
