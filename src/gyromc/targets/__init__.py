"""Targets: the potential U of the law μ ∝ exp(-H), H(θ, r) = U(θ) + ½|r|².

Input: a model and its data. Output: U, ∇U and, for sums over data, the terms that a mini-batch needs. Known structure is
available as `gaussian()`, `separable()` and `design`; closed forms and fused engines use it. `base` defines the interface,
`densities` holds targets given by a formula, `regressions` those given by a design matrix, `mixed` those with further parameters
and groups, `priors` the laws that parameters may have, `streamed` regressions over rows that are not in memory.
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
