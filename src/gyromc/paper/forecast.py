"""Predictions for an experiment: V, finite-step errors, stability and verdicts on the assumptions.

Input: an experiment and step sizes. Output: plain dictionaries for results.json. Nothing is sampled; predictions are stored in
the cache, and can be computed elsewhere beforehand, as jobs.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gyromc
from gyromc.io.plans import SentPlan
from gyromc.paper.cache import Cache, fingerprint
from gyromc.paper.experiment import Experiment
from gyromc.paper.jobs import Job
from gyromc.plan import Plan, paper_steps
from gyromc.workers import WorkerTask
from gyromc.workers.tasks import Advance

__all__ = ["error_job", "forecast", "forecast_jobs"]

CONSTANTS = ("variance", "reversible_variance", "method", "strict")
ERRORS = ("expectation", "rmse", "rmse_method", "bias", "bias_method", "std")
SECONDS = {"quadratic": 0.1, "nonquadratic": 6.0, "linear": 0.2, "logistic": 8.0}
"""About how long one prediction takes, by family."""


def forecast(
    experiment: Experiment, step_sizes: Sequence[float], num_chains: int, digits: int, cache: Cache
) -> dict[str, Any]:
    """Predict by role: the constants that do not depend on η, and `cells`, one entry by observable per step size.

    Where the errors are not exact, the prediction at the smallest η is converted to the others. `digits` are those of V where
    the Poisson equation is solved.
    """
    problem = experiment.problem
    names, etas = _names(experiment), _etas(experiment, step_sizes)
    found = {}
    for role in experiment.roles:
        plans = [_plan(experiment, role, eta, num_chains) for eta in etas]
        predicted = [_predicted(plan, digits, cache) for plan in plans]
        cells = [p.pop("observables") for p in predicted]
        if not problem.gaussian:
            cells = [{name: _scaled(cells[0][name], etas[0], eta) for name in names} for eta in step_sizes]
        found[role] = {**{key: cells[-1][names[0]][key] for key in CONSTANTS}, **predicted[-1], "cells": cells}
    return found


def forecast_jobs(
    experiment: Experiment, step_sizes: Sequence[float], num_chains: int, digits: int, cache: Cache
) -> Iterator[Job]:
    """The predictions that `forecast` reads from the cache, as jobs."""
    for role in experiment.roles:
        for eta in _etas(experiment, step_sizes):
            plan = _plan(experiment, role, eta, num_chains)
            name = f"{experiment.name} {role} η = {eta:g}: prediction"
            task = WorkerTask(name, predicted, (SentPlan(plan), digits), SECONDS[experiment.problem.family])
            yield _job(_key(plan, digits), task, cache)


def error_job(name: str, plans: Sequence[Plan], keys: Sequence[str], observable: str, cache: Cache) -> Job:
    """μ(h) and the RMSE of one chain for each of some plans, as a job; `keys` name the plans' content."""
    key = hashlib.sha256(" ".join(["errors of", observable, *keys]).encode()).hexdigest()[:32]
    sent = tuple(SentPlan(plan) for plan in plans)
    return _job(key, WorkerTask(f"{name}: exact errors", errors, (sent, observable), 0.03 * len(plans)), cache)


def _job(key: str, task: WorkerTask, cache: Cache) -> Job:
    def store(value: dict[str, Any]) -> dict[str, Any]:
        cache.store_json(key, value)
        return value

    return Job(key, task, lambda: cache.load_json(key), store)


def _names(experiment: Experiment) -> list[str]:
    """The observables that are predicted."""
    problem = experiment.problem
    return [name for name in (problem.primary, problem.even) if name is not None]


def _etas(experiment: Experiment, step_sizes: Sequence[float]) -> Sequence[float]:
    """The step sizes at which a prediction is made: where errors are not exact, one."""
    return step_sizes if experiment.problem.gaussian else step_sizes[-1:]


def _plan(experiment: Experiment, role: str, eta: float, num_chains: int) -> Plan:
    plan = experiment.plan(eta, role, num_chains=num_chains)
    return plan.replace(observables={name: plan.observables[name] for name in _names(experiment)})


def _key(plan: Plan, digits: int) -> str:
    return fingerprint(plan, f"prediction to {digits} digits")


def _predicted(plan: Plan, digits: int, cache: Cache) -> dict[str, Any]:
    """One prediction as plain values, from the cache if it is stored there."""
    key = _key(plan, digits)
    found = cache.load_json(key)
    if found is None:
        found = predicted(SentPlan(plan), digits)
        cache.store_json(key, found)
    return found


def predicted(sent: SentPlan, digits: int, advance: Advance | None = None) -> dict[str, Any]:
    """Predict for one plan; return what the report uses as plain values."""
    made = gyromc.predict(sent.plan, digits=digits).to_dict()
    for row in made["observables"].values():
        row["strict"] = row["strict_reduction"] and row["strict_reduction"]["strict"]
    return {
        "observables": {
            name: {key: row[key] for key in (*CONSTANTS, *ERRORS)} for name, row in made["observables"].items()
        },
        "largest_step_size": made["largest_step_size"],
        "verdicts": made["verdicts"],
    }


def errors(sent: Sequence[SentPlan], observable: str, advance: Advance | None = None) -> dict[str, Any]:
    """Predict μ(h) and the RMSE of one chain for each plan; return them as texts, which keep every bit."""
    found = []
    for one in sent:
        plan = one.plan.replace(observables={observable: one.plan.observables[observable]}, num_chains=1)
        row = gyromc.predict(plan)[observable]
        found.append([float(_known(row.expectation)).hex(), float(row.rmse).hex()])
    return {"errors": found}


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


def _known(expectation: float | None) -> float:
    """μ(h), which is known in closed form on a Gaussian target."""
    assert expectation is not None
    return expectation
