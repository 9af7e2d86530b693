"""Targets: the potential U of the law μ ∝ exp(-H), H(θ, r) = U(θ) + ½|r|² (E1).

Receives a model and its data; hands on U, ∇U and, for sums over data, the pieces a mini-batch needs. What is known of
the structure stays visible (`gaussian()`, `separable()`, `design`), since closed forms and fused engines live on it.
`base` says what a target is, `densities` holds those given by a formula, `regressions` those given by a design matrix,
`separable` those with a scalar nonlinearity of the user's.
"""

from gyromc.targets.base import SumOverData, Target
from gyromc.targets.densities import CosinePerturbed, FiniteSum, LogDensity, Quadratic
from gyromc.targets.regressions import (
    GeneralizedLinear,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)
from gyromc.targets.separable import Separable

__all__ = [
    "CosinePerturbed",
    "FiniteSum",
    "GeneralizedLinear",
    "LinearRegression",
    "LogDensity",
    "LogisticRegression",
    "PoissonRegression",
    "Quadratic",
    "Separable",
    "SoftmaxRegression",
    "SumOverData",
    "Target",
]
