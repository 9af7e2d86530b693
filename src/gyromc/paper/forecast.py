"""Predictions for an experiment: V, finite-step errors, stability and verdicts on the assumptions.

Input: an experiment and step sizes. Output: plain dictionaries for results.json. Nothing is sampled; slow predictions are
stored in the cache.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import gyromc
from gyromc.paper.cache import Cache, fingerprint
from gyromc.paper.experiment import Experiment
from gyromc.plan import Plan, paper_steps
from gyromc.show.numbers import plain

__all__ = ["forecast"]


def forecast(
    experiment: Experiment, step_sizes: Sequence[float], num_chains: int, digits: int = 6, cache: Cache | None = None
) -> dict[str, Any]:
    """Predict by role: the constants that do not depend on η, and one entry per step size.

    **Arguments:**

    - `experiment`: of the catalogue.
    - `step_sizes`: the η to predict for.
    - `num_chains`: R of the plans.
    - `digits`: of V, where the Poisson equation is solved.
    - `cache`: stores slow predictions; default: none.

    **Returns:** `{role: {"variance": …, "method": …, "verdicts": […], "cells": [{"h": {"rmse": …}}, …]}}`.
    """
    problem = experiment.problem
    names = [name for name in (problem.primary, problem.even) if name is not None]
    exact = problem.gaussian
    found = {}
    for role in experiment.roles:
        etas = step_sizes if exact else step_sizes[-1:]
        predicted = []
        for eta in etas:
            plan = experiment.plan(eta, role, num_chains=num_chains)
            plan = plan.replace(observables={name: plan.observables[name] for name in names})
            predicted.append(_predict(plan, digits, None if exact else cache))
        last = predicted[-1]
        cells = [p["observables"] for p in predicted]
        if not exact:
            cells = [{name: _scaled(cells[0][name], etas[0], eta) for name in names} for eta in step_sizes]
        found[role] = {
            **{
                key: last["observables"][names[0]][key]
                for key in ("variance", "reversible_variance", "method", "strict")
            },
            "largest_step_size": last["largest_step_size"],
            "verdicts": last["verdicts"],
            "cells": cells,
        }
    return found


def _predict(plan: Plan, digits: int, cache: Cache | None) -> dict[str, Any]:
    """One prediction as plain values, from the cache if it is stored there."""
    key = fingerprint(plan, f"prediction to {digits} digits")
    kept = cache.load_json(key) if cache is not None else None
    if kept is not None:
        return kept
    p = gyromc.predict(plan, digits=digits)
    found = {
        "observables": {
            name: {
                "variance": plain(p.variance[name]),
                "reversible_variance": plain(p.reversible_variance[name]),
                "method": p.method[name],
                "strict": None if p.strict_reduction[name] is None else bool(p.strict_reduction[name]),
                "expectation": plain(p.expectation[name]),
                "rmse": plain(p.rmse[name]),
                "rmse_method": p.rmse_method[name],
                "bias": plain(p.bias[name]),
                "bias_method": p.bias_method[name],
                "std": plain(p.std[name]),
            }
            for name in plan.observables
        },
        "largest_step_size": plain(p.largest_step_size),
        "verdicts": [
            {"name": v.name, "status": v.status.value, "sentence": v.sentence, "numbers": _plain(v.numbers)}
            for v in p.verdicts
        ],
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


def _plain(value):
    """Convert numbers, strings and containers of them for JSON."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(v) for v in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | float | np.number):
        return float(value) if np.isfinite(value) else None
    return value if value is None else str(value)
