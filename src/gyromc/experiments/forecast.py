"""What theory says about an experiment before it runs: V (E6, E7), exact finite-step errors (T1), verdicts on the assumptions.

Receives an experiment and step sizes; hands on plain dictionaries for results.json. No sampling.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import gyromc
from gyromc.experiments.experiment import Experiment

__all__ = ["forecast"]


def forecast(experiment: Experiment, step_sizes: Sequence[float], num_chains: int) -> dict[str, Any]:
    """Predictions by role: the constants that do not depend on η, and one entry per step size.

    **Arguments:**

    - `experiment`: of the catalogue.
    - `step_sizes`: the η to predict for.
    - `num_chains`: R of the plans.

    **Returns:** `{role: {"variance": …, "method": …, "verdicts": […], "cells": [{"rmse": …}, …]}}`.
    """
    names = [name for name in (experiment.problem.primary, experiment.problem.even) if name is not None]
    return {role: _role(experiment, role, names, step_sizes, num_chains) for role in experiment.roles}


def _role(experiment: Experiment, role: str, names: list[str], step_sizes: Sequence[float], num_chains: int):
    etas = step_sizes if _exact(experiment) else step_sizes[-1:]
    predictions = []
    for eta in etas:
        plan = experiment.plan(eta, role, num_chains=num_chains)
        few = {name: plan.observables[name] for name in names}
        predictions.append(gyromc.predict(plan.replace(observables=few)))
    last, h = predictions[-1], names[0]
    variance = _number(last.variance[h])
    cells = [_cell(p, names) for p in predictions]
    if not _exact(experiment):
        cells = [_asymptotic_cell(cells[0], names, variance, eta) for eta in step_sizes]
    return {
        "variance": variance,
        "method": last.method[h],
        "reversible_variance": _number(last.reversible_variance[h]),
        "verdicts": [
            {"name": v.name, "status": str(v.status), "sentence": v.sentence, "numbers": _plain(v.numbers)}
            for v in last.verdicts
        ],
        "cells": cells,
    }


def _exact(experiment: Experiment) -> bool:
    """Whether finite-step errors are known exactly: Gaussian targets (T1)."""
    return experiment.problem.family in ("quadratic", "linear")


def _cell(prediction, names: list[str]) -> dict[str, Any]:
    return {
        name: {
            "expectation": _number(prediction.expectation[name]),
            "rmse": _number(prediction.rmse[name]),
            "bias": _number(prediction.bias[name]),
            "std": _number(prediction.std[name]),
            "rmse_method": prediction.rmse_method[name],
        }
        for name in names
    } | {"stable": bool(prediction.stable)}


def _asymptotic_cell(cell: dict[str, Any], names: list[str], variance: float | None, eta: float) -> dict[str, Any]:
    """The same for another η where only V is known: RMSE ≈ √(ηV), bias unknown."""
    rmse = None if variance is None else float(np.sqrt(eta * variance))  # E6
    unknown = {"bias": None, "std": None, "rmse_method": "asymptotic"}
    return {
        **cell,
        **{name: {**cell[name], **unknown, "rmse": rmse if name == names[0] else None} for name in names},
    }


def _number(value) -> float | None:
    """A float for JSON, None for what is not known."""
    return None if value is None or not np.isfinite(value) else float(value)


def _plain(value):
    """Numbers, strings and containers of them, for JSON."""
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [_plain(v) for v in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | float | np.number):
        return float(value) if np.isfinite(value) else None
    return value if value is None else str(value)
