"""How claim (i) depends on what the paper leaves open: the data, the test row and the start.

Input: the pieces of an experiment's variants. Output: plain values for results.json: the ratios of the RMSEs, and how
often they are below 1, by rival, reference, start and step size.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from gyromc.paper.cache import Piece
from gyromc.paper.experiment import Experiment
from gyromc.paper.measures import Bootstrap, rmse_ratio
from gyromc.paper.problems import PaperProblem, with_choices
from gyromc.paper.profiles import Profile
from gyromc.shape.importance import Expectation

__all__ = ["ABOUT", "Varied", "headlines", "variants"]

STARTS = (0.0, 1.0)
DATA = {"linear": ("data_seed", range(10)), "logistic": ("split_seed", range(5))}
"""By family: the field that varies the data, and its values."""
ABOUT = {
    "truth": "about μ(h)",
    "exact": "exact prediction",
    "paper": "about the paper's own reference",
    "independent": "about an independent reference",
}
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)

Ratios = tuple[np.ndarray, np.ndarray, np.ndarray]  # values, and the ends of their intervals


def variants(experiment: Experiment) -> list[Experiment]:
    """The experiment with other data and other noise (where it has data) and from another start, its own choices first."""
    field, values = DATA.get(experiment.problem.family, ("", (None,)))
    made = []
    for start in STARTS:
        for k, value in enumerate(values):
            problem = with_choices(experiment.problem, **({field: value} if field else {}))
            name = f"{experiment.name} {field} {value} start {start:g}"
            changes = {"name": name, "problem": problem, "start": start, "seed": experiment.seed + k}
            made.append(dataclasses.replace(experiment, **changes))
    return made


@dataclasses.dataclass(frozen=True, eq=False)
class Varied:
    """An experiment's variants with their pieces by (variant, role, η).

    `truth` is μ(h) where it is known without a prediction, `reference` computes π(h) at the test rows for logistic regression,
    `predicted` has μ(h) and the exact RMSE of one chain by (variant, role, η) where the target is Gaussian.
    """

    experiment: Experiment
    profile: Profile
    pieces: Mapping[tuple[str, str, float], Piece]
    truth: float
    reference: Callable[[PaperProblem], Expectation]
    bootstrap: Bootstrap
    predicted: Mapping[tuple[str, str, float], tuple[float, float]]

    @functools.cached_property
    def etas(self) -> tuple[float, ...]:
        """The step sizes, the largest first."""
        return self.profile.step_sizes(self.experiment)

    @functools.cached_property
    def cases(self) -> list[Experiment]:
        """The variants."""
        return variants(self.experiment)

    def summary(self) -> dict[str, Any]:
        """Return the choices and, for each rival, reference and start, the counts and ratios at every step size."""
        field, seeds = DATA.get(self.experiment.problem.family, (None, ()))
        return {
            "data": None if field is None else {"field": field, "values": list(seeds)},
            "starts": list(STARTS),
            "num_observables": len(self._names(self.experiment)),
            "num_chains": self.profile.chains(self.experiment),
            "step_sizes": list(self.etas),
            "groups": [
                {"against": rival, "about": about, "start": start} | self._group(rival, about, start)
                for rival in self.experiment.roles[1:]
                for about in self._abouts
                for start in STARTS
            ],
        }

    @property
    def _abouts(self) -> tuple[str, ...]:
        if self.experiment.problem.family == "logistic":
            return "paper", "independent"
        return ("truth", "exact") if self.experiment.problem.gaussian else ("truth",)

    def _names(self, variant: Experiment) -> tuple[str, ...]:
        """The observables that the claim is judged on: all test rows, or the one of the paper's panels."""
        return _judged_on(variant.problem)

    def _group(self, rival: str, about: str, start: float) -> dict[str, Any]:
        cases = [variant for variant in self.cases if variant.start == start]
        found = [list(map(np.concatenate, zip(*rows, strict=True))) for rows in self._ratios(rival, about, cases)]
        below = np.array([ratio < 1 for ratio, _, _ in found])
        ratios = {"ratios": [[float(f"{x:.4g}") for x in ratio] for ratio, _, _ in found]}  # for the figure
        return {
            "cases": below.shape[1],
            "below_at_every_step_size": int(np.sum(np.all(below, axis=0))),
            "cells": [_counts(eta, *row) for eta, row in zip(self.etas, found, strict=True)],
        } | (ratios if rival == "reversible" else {})

    def _ratios(self, rival: str, about: str, cases: list[Experiment]) -> Iterator[list[Ratios]]:
        """For each step size, the ratios of each case."""
        for k, eta in enumerate(self.etas):
            if about == "exact":
                exact = [[self.predicted[v.name, role, eta][1] for role in ("nonreversible", rival)] for v in cases]
                ratios = [np.array([ours / theirs]) for ours, theirs in exact]
                yield [(ratio, ratio, ratio) for ratio in ratios]
            else:
                pairs = [[self._errors(v, role, eta, about) for role in ("nonreversible", rival)] for v in cases]
                yield [rmse_ratio(ours, theirs, self.bootstrap, k) for ours, theirs in pairs]

    def _errors(self, variant: Experiment, role: str, eta: float, about: str) -> np.ndarray:
        averages = self._averages(variant, role, eta)
        if about == "independent":
            return averages - self.reference(variant.problem).mean
        if about == "paper":
            return averages - np.nanmean(self._averages(variant, role, self.etas[-1]), axis=0)
        return averages - (self.predicted[variant.name, role, eta][0] if variant.problem.gaussian else self.truth)

    def _averages(self, variant: Experiment, role: str, eta: float) -> np.ndarray:
        piece = self.pieces[variant.name, role, eta]
        return piece.averages[:, [piece.names.index(name) for name in self._names(variant)]]


@functools.cache
def _judged_on(problem: PaperProblem) -> tuple[str, ...]:
    return tuple(problem.observables()) if problem.family == "logistic" else (problem.primary,)


def _counts(eta: float, ratio: np.ndarray, low: np.ndarray, high: np.ndarray) -> dict[str, Any]:
    """How many ratios are below 1, how many intervals lie below and above 1, and the quantiles of the ratios."""
    return {
        "step_size": eta,
        "below": int(np.sum(ratio < 1)),
        "clearly_below": int(np.sum(high < 1)),
        "clearly_above": int(np.sum(low > 1)),
        "quantiles": [float(f"{q:.6g}") for q in np.quantile(ratio, QUANTILES)],
    }


def headlines(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The counts against the baseline over all starts, at every step size and at the smallest; nothing without such a study.

    One entry for each reference, the paper's first; exact predictions take the place of measured ratios.
    """
    groups = [g for g in found.get("sensitivity", {"groups": []})["groups"] if g["against"] == "reversible"]
    abouts = dict.fromkeys(g["about"] for g in groups)
    if "exact" in abouts:
        abouts = ("exact",)
    made = []
    for about in abouts:
        mine = [g for g in groups if g["about"] == about]
        last = [g["cells"][-1] for g in mine]
        counts = {key: sum(cell[key] for cell in last) for key in ("below", "clearly_below", "clearly_above")}
        cases, every = (sum(g[key] for g in mine) for key in ("cases", "below_at_every_step_size"))
        made.append(
            {"about": ABOUT[about], "step_size": last[0]["step_size"], "cases": cases, "every": every, **counts}
        )
    return made
