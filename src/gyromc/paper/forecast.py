"""Predictions for an experiment: V, finite-step errors, stability and verdicts on the assumptions.

Input: an experiment and step sizes. Output: plain dictionaries for results.json. Nothing is sampled; slow predictions are
stored in the cache.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gyromc
from gyromc.paper.cache import Cache, fingerprint
from gyromc.paper.experiment import Experiment
from gyromc.plan import Plan, paper_steps

__all__ = ["forecast"]

CONSTANTS = ("variance", "reversible_variance", "method", "strict")
ERRORS = ("expectation", "rmse", "rmse_method", "bias", "bias_method", "std")


def forecast(
    experiment: Experiment, step_sizes: Sequence[float], num_chains: int, digits: int, cache: Cache
) -> dict[str, Any]:
    """Predict by role: the constants that do not depend on η, and `cells`, one entry by observable per step size.

    Where the errors are not exact, the prediction at the smallest η is converted to the others. `digits` are those of V where
    the Poisson equation is solved.
    """
    problem = experiment.problem
    names = [name for name in (problem.primary, problem.even) if name is not None]
    found = {}
    for role in experiment.roles:
        etas = step_sizes if problem.gaussian else step_sizes[-1:]
        predicted = []
        for eta in etas:
            plan = experiment.plan(eta, role, num_chains=num_chains)
            plan = plan.replace(observables={name: plan.observables[name] for name in names})
            predicted.append(_predict(plan, digits, None if problem.gaussian else cache))
        cells = [p.pop("observables") for p in predicted]
        if not problem.gaussian:
            cells = [{name: _scaled(cells[0][name], etas[0], eta) for name in names} for eta in step_sizes]
        found[role] = {**{key: cells[-1][names[0]][key] for key in CONSTANTS}, **predicted[-1], "cells": cells}
    return found


def _predict(plan: Plan, digits: int, cache: Cache | None) -> dict[str, Any]:
    """One prediction as plain values, from the cache if it is stored there."""
    key = fingerprint(plan, f"prediction to {digits} digits")
    kept = cache.load_json(key) if cache is not None else None
    if kept is not None:
        return kept
    predicted = gyromc.predict(plan, digits=digits).to_dict()
    for row in predicted["observables"].values():
        row["strict"] = row["strict_reduction"] and row["strict_reduction"]["strict"]
    found = {
        "observables": {
            name: {key: row[key] for key in (*CONSTANTS, *ERRORS)} for name, row in predicted["observables"].items()
        },
        "largest_step_size": predicted["largest_step_size"],
        "verdicts": predicted["verdicts"],
    }
    if cache is not None:
        cache.store_json(key, found)
    return found


def _scaled(found: Mapping[str, Any], at: float, eta: float) -> dict[str, Any]:
    """Convert an asymptotic prediction from one η to another: Var = V/(Nη) + s/N and bias ∝ η, with N = ⌊η⁻²⌋."""
    V, std, bias = found["variance"], found["std"], found["bias"]
    if V is None or std is None:
        return dict(found)
    s = paper_steps(at) * std**2 - V / at
    bias = None if bias is None else bias * eta / at
    N = paper_steps(eta)
    std = math.sqrt(max(V / (N * eta) + s / N, 0.0))
    return {**found, "bias": bias, "std": std, "rmse": math.hypot(std, bias or 0.0)}
