"""Targets: the potential U of the law μ ∝ exp(-H), H(θ, r) = U(θ) + ½|r|².

A model and its data in; U, ∇U and, for sums over data, the terms that a mini-batch needs, out. Closed forms and fused engines use
what is known of the structure: `gaussian()`, `separable()` and `design`.
"""

from gyromc.targets.base import SumOverData, Target
from gyromc.targets.densities import CosinePerturbed, FiniteSum, LogDensity, Quadratic, Separable
from gyromc.targets.mixed import Group, MixedRegression
from gyromc.targets.priors import Prior
from gyromc.targets.regressions import (
    GeneralizedLinear,
    LinearRegression,
    LogisticRegression,
    PoissonRegression,
    SoftmaxRegression,
)
from gyromc.targets.streamed import StreamedRegression

__all__ = [
    "CosinePerturbed",
    "FiniteSum",
    "GeneralizedLinear",
    "Group",
    "LinearRegression",
    "LogDensity",
    "LogisticRegression",
    "MixedRegression",
    "PoissonRegression",
    "Prior",
    "Quadratic",
    "Separable",
    "SoftmaxRegression",
    "StreamedRegression",
    "SumOverData",
    "Target",
]
