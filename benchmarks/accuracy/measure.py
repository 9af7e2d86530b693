"""Measuring: every competitor on every problem, in cells that are stored one by one, so that a second run resumes.

Input: names of problems, a `Profile`, a file. Output: a dictionary of cells. A cell holds effective draws (posterior variance
over mean squared error about the truth, so that bias counts), per gradient, per data row and per second, and the root mean
squared error at the budget in posterior standard deviations: medians over the observables of a kind, with bootstrap errors.
"""

import contextlib
import dataclasses
import functools
import importlib.util
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from accuracy import ours, peers
from accuracy.peers import Outcome
from accuracy.problems import PROBLEMS, Problem, problem
from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.paper.computation import WorkerTask, computed
from gyromc.show.numbers import plain
from gyromc.show.pages import machine
from pages import write_measured

__all__ = [
    "COMPETITORS",
    "FULL",
    "QUICK",
    "ROTATION",
    "Competitor",
    "Profile",
    "cell",
    "header",
    "measure_cell",
    "measured",
    "read",
    "total",
]

RESAMPLED = 200
VERSION = 2  # of the file; cells of another version are measured again
ROTATION = "rotation"
MANY_PARAMETERS = 100  # from here on, samplers with a long preparation have four repetitions
MANY_MODES = "no Gaussian fits the posterior, which has many modes"


@dataclasses.dataclass(frozen=True)
class Competitor:
    """A function of (problem, budget, repetitions, seed) that returns an outcome for each step size it may choose from."""

    run: Callable[[Problem, int, int, int], list[Outcome]]
    needs: str | None = None  # a package
    exact: bool = False  # whether its error falls like the square root of its length, whatever its length
    prepares: Callable[[Problem], float] | None = None  # for full gradients only: about how many it makes first
    fits: bool = False  # whether it starts from a Gaussian fit around one mode


COMPETITORS = {
    "SGLD, best step": Competitor(ours.sgld),
    "BlackJAX SGLD, best step": Competitor(peers.blackjax_sgld, "blackjax"),
    "BlackJAX SGHMC, best step": Competitor(peers.blackjax_sghmc, "blackjax"),
    "BlackJAX MCLMC": Competitor(peers.blackjax_mclmc, "blackjax", prepares=peers.mclmc_preparation),
    "NumPyro NUTS": Competitor(peers.nuts, "numpyro", exact=True, prepares=peers.nuts_preparation),
    "Laplace approximation": Competitor(peers.laplace, fits=True),
    "importance sampling": Competitor(peers.importance, exact=True, prepares=lambda problem: 0.0, fits=True),
    "gyromc untuned": Competitor(ours.overdamped),
    "gyromc untuned, HFHR": Competitor(ours.hfhr),
    "gyromc tuned, reversible": Competitor(ours.tuned_reversible),
    "gyromc tuned": Competitor(ours.tuned),
}
"""By the name they have in tables."""


@dataclasses.dataclass(frozen=True)
class Profile:
    """How much is measured: gradients of one repetition, repetitions, and what a full gradient may read in all."""

    name: str
    budget: int
    repetitions: int
    rotation: tuple[int, int]  # steps and chains for the gain of rotation
    most: float  # numbers that a competitor with full gradients may read
    problems: tuple[str, ...]

    def sizes(self, one: Problem, competitor: Competitor | None = None) -> tuple[int, int]:
        """Budget and repetitions for a problem; smaller for samplers with full gradients on large ones."""
        budget, repetitions = max(20, int(self.budget * one.size)), max(4, int(self.repetitions * one.size))
        if competitor is None or competitor.prepares is None:
            return budget, repetitions
        if one.rows >= peers.MANY_ROWS:
            return max(20, budget // 16), 4
        return budget, min(repetitions, 4 if one.dim >= MANY_PARAMETERS else repetitions)

    def settings(self, one: Problem) -> dict:
        """What a cell depends on, so that cells of other settings are measured again."""
        budget, repetitions = self.sizes(one)
        return {"version": VERSION, "budget": budget, "repetitions": repetitions, "rotation": list(self.rotation)}


SOME = ("gaussian-50-14", "gaussian-10000-14", "cosine", "heart", "poisson", "softmax", "eight-schools", "ar5", "nes")
QUICK = Profile("quick", 1000, 16, (250, 64), 1e11, SOME)
FULL = Profile("full", 4000, 64, (500, 256), 2e11, tuple(PROBLEMS))


def measured(
    names: Sequence[str],
    profile: Profile,
    path: Path | None,
    say: Callable[[str], None],
    advance: Callable[[float], Any] = lambda amount: None,
    competitors: Mapping[str, Competitor] = COMPETITORS,
    workers: int = 1,
) -> dict[str, dict]:
    """Measure all cells of the problems that the file does not have yet; the file is written after each.

    **Arguments:**

    - `names`: problems; empty: those of the profile.
    - `path`: the JSON file; None: nothing is stored.
    - `say`: called with a line about each cell; `advance`: called with 1 after each.
    - `workers`: processes that share the cells; with more than one, competitors of your own must be functions of a module.

    **Returns:** the cells by "problem: competitor". Ctrl-C raises `KeyboardInterrupt`; the file then has the cells that are done.
    """
    unknown = [name for name in names if name not in PROBLEMS]
    require(not unknown, f"No problem is named {', '.join(unknown)}. There is: {', '.join(PROBLEMS)}.")
    cells, given = read(path), None if competitors is COMPETITORS else competitors
    keys = [(name, label) for name in names or profile.problems for label in (*competitors, ROTATION)]
    tasks = []
    for name, label in keys:
        known = cells.get(f"{name}: {label}", {}).get("settings")
        tasks.append(WorkerTask(f"{name}: {label}", measure_cell, (name, label, profile, known, given), length(name)))
    left, began = Counter(name for name, _ in keys), time.perf_counter()
    with contextlib.closing(computed(tasks, workers)) as results:
        for number, found in results:
            name, key = keys[number][0], tasks[number].name
            left[name] -= 1
            if "missing" in found:
                require(not names, found["missing"])
                if left[name] == 0:
                    say(f"{name}: left out. {found['missing']}")
            elif "cell" in found:
                cells[key] = found["cell"] | ({} if workers == 1 else {"workers": workers})
                say(f"{key}: {summary(cells[key])} ({found['seconds']:.0f} s)")
                if path is not None:
                    store(path, cells)
            if left[name] == 0 and "missing" not in found:
                say(f"{name}: done, {time.perf_counter() - began:.0f} s after the start")
            advance(1)
    return cells


def measure_cell(
    name: str,
    label: str,
    profile: Profile,
    known: dict | None,
    competitors: Mapping[str, Competitor] | None,
) -> dict:
    """One cell and its seconds, in any process; neither where its settings are those known, or its problem has no reference."""
    try:
        one = built(name)
    except InvalidInput as error:  # its reference has not been computed
        return {"missing": str(error)}
    if profile.settings(one) == known:
        return {}
    began = time.perf_counter()
    found = cell(one, label, profile, COMPETITORS if competitors is None else competitors)
    return {"cell": found, "seconds": time.perf_counter() - began}


@functools.lru_cache(maxsize=1)
def built(name: str) -> Problem:
    """The problem of the last cell, or another."""
    return problem(name)


def length(name: str) -> float:
    """About how long a cell takes, to begin with the longest: 1 for a small problem."""
    return 20.0 if name in ("million-rows", "digits") else 5.0 if name.endswith("-1000") else 1.0


def total(names: Sequence[str], profile: Profile) -> int:
    """The number of cells that `measured` goes through."""
    return len(names or profile.problems) * (len(COMPETITORS) + 1)


def read(path: Path | None) -> dict[str, dict]:
    """The cells of a file; none where there is no file."""
    if path is None or not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))["cells"]
    except (ValueError, KeyError) as error:
        raise InvalidInput(
            f"{path} is not a file of this benchmark ({error!r}). Remove it, or pass another `--out`."
        ) from None


def header() -> dict:
    """The machine and the packages, stored beside the cells."""
    found: dict = {"environment": machine()}
    for name in ("blackjax", "numpyro"):
        if importlib.util.find_spec(name):
            found[name] = importlib.import_module(name).__version__
    return found


def store(path: Path, cells: dict[str, dict]) -> None:
    """Write the file, whole or not at all."""
    write_measured(path, {**header(), "cells": cells}, extended=True)


def cell(one: Problem, label: str, profile: Profile, competitors: Mapping[str, Competitor] = COMPETITORS) -> dict:
    """One competitor on one problem, or the gain of rotation there."""
    budget, _ = profile.sizes(one)
    found: dict = {"problem": one.name, "competitor": label, "profile": profile.name, "settings": profile.settings(one)}
    seed = 1 + list(PROBLEMS).index(one.name)
    if label == ROTATION and one.near is not None:
        return found | {"left_out": MANY_MODES}
    if label == ROTATION:
        steps, chains = profile.rotation
        return found | {"gains": ours.rotation_gain(one, steps, chains, seed)}
    reason = why_not(one, competitors[label], profile)
    if reason is not None:
        return found | {"left_out": reason}
    try:
        outcomes = competitors[label].run(one, *profile.sizes(one, competitors[label]), seed)
    except InvalidInput as error:  # what a competitor refuses is an answer too
        return found | {"left_out": str(error)}
    best = max(outcomes, key=lambda outcome: _merit(one, outcome))
    scale = best.gradients / budget if competitors[label].exact else 1.0
    return found | {
        "repetitions": len(best.estimates),
        "gradients": best.gradients,
        "rows_per_gradient": best.rows_per_gradient,
        "preparation": best.preparation,
        "seconds": plain(best.seconds),
        "step_size": best.step_size,
        "step_sizes_tried": len(outcomes),
        "note": best.note,
        "reference_error_in_sd": float(np.max(one.truth_error / np.sqrt(one.spread))),
        "kinds": {kind: statistics(one, best, kind, scale) for kind in one.kinds},
    }


def why_not(one: Problem, competitor: Competitor, profile: Profile) -> str | None:
    """Why a competitor is left out: its package is missing, or it would read too many numbers."""
    if competitor.needs is not None and importlib.util.find_spec(competitor.needs) is None:
        return f"{competitor.needs} is not installed"
    if competitor.fits and one.near is not None:
        return MANY_MODES
    if competitor.prepares is not None:
        budget, repetitions = profile.sizes(one, competitor)
        width = one.rows * one.dim + 3 * one.dim**2  # products with a dense matrix: gradients of Gaussians, masses
        numbers = float(width) * repetitions * (budget + competitor.prepares(one))
        if numbers > profile.most:
            return (
                f"full gradients would read {numbers:.0e} numbers; the profile {profile.name} allows {profile.most:.0e}"
            )
    return None


def _squares(one: Problem, estimates: np.ndarray) -> np.ndarray:
    """Squared errors in posterior variances, repetitions × observables; infinite where an estimate is not finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = (estimates - one.truth) ** 2 / one.spread
    return np.where(np.isfinite(found), found, np.inf)


def _merit(one: Problem, outcome: Outcome) -> float:
    """The mean over kinds of the logarithm of the effective draws: what the best step size is chosen by."""
    mse = _squares(one, outcome.estimates).mean(axis=0)
    logs = [-np.log(max(np.median(mse[place]), 1e-300)) for place in one.columns.values()]
    return float(np.mean(logs))


def statistics(one: Problem, outcome: Outcome, kind: str, scale: float = 1.0) -> dict:
    """Effective draws and root mean squared errors of the observables of a kind; `scale` brings errors to the budget's length."""
    squares = _squares(one, outcome.estimates)[:, one.columns[kind]]
    count, mse = len(squares), squares.mean(axis=0)
    rmse = math.sqrt(scale * float(np.median(mse)))
    found: dict = {"rmse": plain(rmse), "worst_rmse": plain(math.sqrt(scale * float(mse.max())))}
    if count > 1:
        rng = np.random.default_rng(0)
        again = squares[rng.integers(0, count, (RESAMPLED, count))].mean(axis=1)
        medians = np.median(again, axis=1)
        spread = float(np.std(np.sqrt(scale * medians), ddof=1)) if np.all(np.isfinite(medians)) else math.nan
        gap = (outcome.estimates.mean(axis=0) - one.truth)[one.columns[kind]] / np.sqrt(one.spread[one.columns[kind]])
        found |= {"rmse_error": plain(spread), "worst_bias": plain(float(np.max(np.abs(gap))))}
    if outcome.gradients > 0:
        with np.errstate(divide="ignore"):
            draws = float(1 / np.median(mse))
            worst = float(1 / mse.max())
            logs = float(np.std(np.log(medians), ddof=1)) if count > 1 and np.all(np.isfinite(medians)) else math.nan
        found |= {
            "per_gradient": plain(draws / outcome.gradients),
            "per_gradient_error": plain(draws / outcome.gradients * logs),
            "worst_per_gradient": plain(worst / outcome.gradients),
            "per_row": plain(draws / outcome.gradients / outcome.rows_per_gradient),
            "per_second": plain(draws * count / outcome.seconds) if outcome.seconds > 0 else None,
        }
        if outcome.plain is not None:
            without = np.median(_squares(one, outcome.plain)[:, one.columns[kind]].mean(axis=0))
            found["per_gradient_without_martingale"] = plain(float(1 / without / outcome.gradients))
    return found


def summary(found: dict) -> str:
    """A cell in a line."""
    if "left_out" in found:
        return f"left out: {found['left_out']}"
    if "gains" in found:
        texts = []
        for name, gain in found["gains"].items():
            known = gain["gain"] is not None
            texts.append(f"{name} {gain['gain']:.2f} ± {gain['error']:.2f}" if known else f"{name}: {gain['why']}")
        return "rotation gains " + ", ".join(texts)
    text = lambda value: "–" if value is None else f"{value:.2g}"
    rows = found["kinds"].items()
    if found["gradients"] == 0:
        return "RMSE in sd: " + ", ".join(f"{kind} {text(row['rmse'])}" for kind, row in rows)
    return "draws per gradient: " + ", ".join(f"{kind} {text(row['per_gradient'])}" for kind, row in rows)
