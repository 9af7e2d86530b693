"""A plan for a target and an error: a whitened chain with balanced noise. To be replaced."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from gyromc.dynamics import general
from gyromc.errors import InvalidInput
from gyromc.model import Model
from gyromc.plan import Plan

__all__ = ["Tuned", "tune"]

CHAINS, STEP_SIZE, SMALLEST = 64, 0.8, 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Tuned:
    """A plan and what is expected of it."""

    plan: Plan
    expected: Mapping[str, float]
    warnings: list[str]


def tune(
    target: Any,
    *,
    observables: Mapping[str, Any],
    error: float = 0.01,
    gradients: float | None = None,
    seconds: float | None = None,
    seed: int = 0,
) -> Tuned:
    """A plan that reaches the error."""
    model = Model(target)
    fit = model.gaussian_fit
    covariance = np.linalg.inv(fit.precision)
    root = np.linalg.cholesky(covariance)
    eta = STEP_SIZE
    while True:
        plan = Plan(
            target=target,
            dynamics=general(covariance, 0),
            observables=observables,
            step_size=eta,
            num_steps=max(1024, round(2 / (error**2 * CHAINS))),
            num_chains=CHAINS,
            scheme="balanced",
            martingale=True,
            seed=seed,
            start=fit.mean + np.random.default_rng(seed).standard_normal((CHAINS, model.dim)) @ root.T,
            burn_in=round(10 / eta),
        )
        try:
            _ = plan.prepared_scheme
            return Tuned(plan, dict.fromkeys(plan.observables, error), [])
        except InvalidInput:
            eta /= 2
            if eta < SMALLEST:
                raise
