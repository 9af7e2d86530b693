"""Reproduces the paper's experiments: predict, run, compare, report. Finished pieces are not computed twice.

The findings of one experiment are plain dictionaries, its part of results.json: errors, predictions, claims, and how claim (i)
depends on what the paper leaves open. They come from the averages of the experiment and of its variants, its forecast and, for
logistic regression, an independent reference (importance sampling around the mode, no Markov chain).
"""

import dataclasses
import datetime
import functools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from gyromc.approx.sample import Expectation, expectation
from gyromc.checks import one_of
from gyromc.model import Model
from gyromc.paper import catalogue, claims
from gyromc.paper.catalogue import PROFILES, Experiment, HeartDisease, Profile
from gyromc.paper.computation import ERRORS, Cache, Computation, Outcome, Piece
from gyromc.paper.report import RESULTS, SECONDS_PER_FIGURES, write_report
from gyromc.plan import paper_steps
from gyromc.show import progress as display
from gyromc.show.pages import machine
from gyromc.targets import LogisticRegression

PAIR = ("nonreversible", "reversible")
"""The dynamics that the paper's claims are about."""
SECONDS_PER_ANALYSIS = 2.0


def predictive_reference(target: LogisticRegression, points: np.ndarray, num_draws: int, seed: int) -> Expectation:
    """Compute ∫ 1/(1 + e^{-xᵀθ}) π(dθ) for each row x of `points`, by self-normalised importance sampling."""
    return expectation(target, Model(target).laplace, lambda theta: special.expit(theta @ points.T), num_draws, seed)


def forecast(e: Experiment, etas: Sequence[float], outcome: Outcome) -> dict[str, Any]:
    """The predictions by role: V, how it was found, the verdicts on assumptions, and `cells`, one for each step size."""
    found, exact = {}, e.problem.gaussian
    for role in e.roles:
        last = outcome.predicted[e.name, role, etas[-1]]
        rows = [outcome.predicted[e.name, role, eta] if exact else _scaled(last, etas[-1], eta) for eta in etas]
        cells = [{key: row[key] for key in (*ERRORS, "even") if key in row} for row in rows]
        found[role] = {**{key: last[key] for key in ("variance", "method", "verdicts")}, "cells": cells}
    return found


def _scaled(found: Mapping[str, Any], at: float, eta: float) -> dict[str, Any]:
    """Convert an asymptotic prediction from one η to another: Var = V/(Nη) + s/N and bias ∝ η, with N = ⌊η⁻²⌋."""
    # XLA adds in another order with other numbers of threads: the last digits are not the same in every process.
    plain = lambda x: None if x is None else float(f"{x:.12g}")
    moved = lambda bias: None if bias is None else bias * eta / at
    if "even" in found:
        found = {**found, "even": {**found["even"], "bias": plain(moved(found["even"]["bias"]))}}
    V, std, bias = found["variance"], found["std"], moved(found["bias"])
    if V is None or std is None:
        return dict(found)
    s, N = paper_steps(at) * std**2 - V / at, paper_steps(eta)
    std = math.sqrt(max(V / (N * eta) + s / N, 0.0))
    numbers = {"bias": bias, "std": std, "rmse": math.hypot(std, bias or 0.0)}
    return {**found, **{name: plain(x) for name, x in numbers.items()}}


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """One experiment with its averages by (role, η), the largest η first, and its forecast."""

    experiment: Experiment
    etas: tuple[float, ...]
    pieces: Mapping[tuple[str, float], Piece]
    forecast: Mapping[str, Any]
    # π(h) at the test rows for logistic regression; None where μ(h) is known.
    reference: Expectation | None

    @property
    def chosen(self) -> int:
        """The position of the observable of the paper's panels among all."""
        problem = self.experiment.problem
        return list(problem.pieces["observables"]).index(problem.primary)

    @functools.cached_property
    def averages(self) -> dict[str, list[np.ndarray]]:
        """By role and step size one average per chain, of the observable of the paper's panels; NaN for a chain that failed."""
        at = lambda role, eta: self.pieces[role, eta].averages[:, self.chosen]
        return {role: [at(role, eta) for eta in self.etas] for role in self.experiment.roles}

    @functools.cached_property
    def truth(self) -> float:
        """μ(h): in closed form where there is one, else from importance sampling."""
        if self.reference is not None:
            return float(self.reference.mean[self.chosen])
        return self.forecast["nonreversible"]["cells"][-1]["expectation"]

    @functools.cached_property
    def errors(self) -> dict[str, list[np.ndarray]]:
        """The errors about the truth, by role and step size."""
        return {role: [averages - self.truth for averages in series] for role, series in self.averages.items()}

    @functools.cached_property
    def paper_errors(self) -> dict[str, list[np.ndarray]]:
        """The errors about the paper's reference: the truth where known, else the mean at the smallest η, per dynamics."""
        if self.reference is None:
            return self.errors
        return {role: [one - np.nanmean(series[-1]) for one in series] for role, series in self.averages.items()}


def analyse(data: Measured) -> dict[str, Any]:
    """Return the findings of one experiment as plain values."""
    experiment, problem, sampler = data.experiment, data.experiment.problem, data.experiment.sampler
    found: dict[str, Any] = {"title": experiment.title, "family": problem.family}
    found |= {"sampler": sampler.label, "sampler_formula": sampler.formula, "formulas": dict(problem.formulas)}
    found |= {"choices": dict(experiment.choices), "roles": list(experiment.roles), "step_sizes": list(data.etas)}
    found |= {
        "published_step_sizes": list(experiment.step_sizes),
        "truth": data.truth,
        "theory": {role: {k: v for k, v in f.items() if k != "cells"} for role, f in data.forecast.items()},
        "cells": {role: [_cell(data, role, k) for k in range(len(data.etas))] for role in experiment.roles},
        "qq": {role: _qq(data, role) for role in experiment.roles},
    }
    if data.reference is not None:
        found |= _rows(data, data.reference)
    found["claims"] = [dataclasses.asdict(claim) for claim in _claims(data, found)]
    return found


def _cell(data: Measured, role: str, k: int) -> dict[str, Any]:
    """Measured and predicted numbers of one dynamics at one step size."""
    eta, problem = data.etas[k], data.experiment.problem
    errors = data.errors[role][k]
    alive = errors[np.isfinite(errors)]
    value, se = claims.rmse(alive)
    predicted, V = dict(data.forecast[role]["cells"][k]), data.forecast[role]["variance"]
    even = predicted.pop("even", None)
    exact = predicted["rmse"] if problem.gaussian else None
    cell = {"step_size": eta, "num_steps": paper_steps(eta)}
    cell |= {"num_chains": int(errors.size), "failed_chains": int(errors.size - alive.size)}
    cell |= {"seed": data.experiment.noise_seed(eta), "engine": data.pieces[role, eta].engine}
    cell |= {"rmse": value, "rmse_interval": claims.rmse_interval(errors), "bias": float(alive.mean())}
    cell |= {"bias_std_error": float(alive.std(ddof=1) / np.sqrt(alive.size)), "std": float(alive.std(ddof=1))}
    cell |= {"asymptotic_rmse": None if V is None else float(np.sqrt(eta * V)), "predicted": predicted}
    cell["z"] = None if exact is None else float((value**2 - exact**2) / (2 * value * se))
    if data.reference is not None:
        paper = data.paper_errors[role][k]
        cell |= {"paper_rmse": claims.rmse(paper)[0], "paper_rmse_interval": claims.rmse_interval(paper)}
    if even is not None and even["expectation"] is not None:
        averages = data.pieces[role, eta].averages[:, list(problem.pieces["observables"]).index(problem.even)]
        averages = averages[np.isfinite(averages)]
        bias, se = averages.mean() - even["expectation"], averages.std(ddof=1) / np.sqrt(averages.size)
        z = None if even["bias"] is None else float((bias - even["bias"]) / se)
        measured = {"bias": float(bias), "bias_std_error": float(se), "predicted_bias": even["bias"], "z": z}
        cell["even"] = {"expectation": even["expectation"], **measured}
    return cell


def _qq(data: Measured, role: str) -> dict[str, Any]:
    """The sorted averages at the smallest η, with the centre and scale that the paper uses, and the test of normality."""
    averages, V = np.sort(data.averages[role][-1]), data.forecast[role]["variance"]
    averages = averages[np.isfinite(averages)]
    center = float(averages.mean()) if data.reference is not None else data.truth
    known = data.experiment.problem.gaussian
    scale = math.sqrt(data.etas[-1] * V if known and V else np.mean((averages - center) ** 2))
    return {
        "averages": [float(f"{x:.9g}") for x in averages],
        "center": center,
        "scale": scale,
        "by": "√(ηV)" if known else "the empirical RMSE",
        "scale_known": known,
        **claims.normality((averages - center) / scale, known),
    }


def _rows(data: Measured, reference: Expectation) -> dict[str, Any]:
    """All test rows: bias, standard deviation and RMSE, and the share of rows where each sampler wins."""
    table = {}
    for role in data.experiment.roles:
        errors = [data.pieces[role, eta].averages - reference.mean for eta in data.etas]
        table[role] = {
            "bias": [np.nanmean(e, axis=0).tolist() for e in errors],
            "std": [np.nanstd(e, axis=0, ddof=1).tolist() for e in errors],
            "rmse": [np.sqrt(np.nanmean(e**2, axis=0)).tolist() for e in errors],
        }
    ours = table["nonreversible"]
    about = {"num_draws": reference.num_draws, "efficiency": reference.efficiency, "mean": reference.mean.tolist()}
    share = lambda rival, what: np.mean(np.abs(ours[what]) < np.abs(table[rival][what]), axis=1).tolist()
    return {
        "rows": table,
        "wins": {rival: {what: share(rival, what) for what in ("rmse", "std", "bias")} for rival in list(table)[1:]},
        "reference": {
            "method": "importance sampling around the mode (multivariate t, scrambled Sobol points)",
            **about,
            "std_error": reference.std_error.tolist(),
            "chosen": data.chosen,
        },
    }


def _claims(data: Measured, found: Mapping[str, Any]) -> list[claims.Claim]:
    """Judge every claim that this experiment can decide, the paper's first."""
    paper, errors, etas = data.paper_errors, data.errors, data.etas
    theory = {role: data.forecast[role]["variance"] for role in PAIR}
    own, gaussian = data.reference is not None, data.experiment.problem.gaussian
    exact = {role: [c["predicted"]["rmse"] for c in found["cells"][role]] for role in PAIR} if gaussian else {}
    made = [claims.smaller_error(paper, etas, about=", about the paper's own reference" if own else "")]
    if None not in theory.values():
        made.append(claims.asymptotic(errors, etas, theory, "paper" if gaussian else "beyond", exact))
    # Of logistic regression the paper claims a smaller RMSE and normal errors alone.
    pair, source = {role: paper[role] for role in PAIR}, "beyond" if own else "paper"
    made.append(claims.half_slope(pair, etas, source, exact))
    made.append(claims.normal_errors({role: found["qq"][role] for role in PAIR}))
    if own:
        made.append(claims.smaller_error(errors, etas, "-independent", ", about an independent reference"))
    if "sgld" in errors:
        made.append(claims.smaller_error(errors, etas, "-sgld"))
    cells = {(role, c["step_size"]): c for role, series in found["cells"].items() for c in series}
    if known := {at: c for at, c in cells.items() if c["z"] is not None}:
        ratios = {at: c["rmse"] / c["predicted"]["rmse"] for at, c in known.items()}
        made.append(claims.exact({at: c["z"] for at, c in known.items()}, ratios))
    if even := {at: c["even"] for at, c in cells.items() if "even" in c and c["even"]["z"] is not None}:
        z, biases = ({at: e[key] for at, e in even.items()} for key in ("z", "bias"))
        made.append(claims.exact(z, biases, found["formulas"]["even observable"]))
    return [claims.judged_at(claim, etas, data.experiment.step_sizes) for claim in made]


def sensitivity(
    e: Experiment, profile: Profile, outcome: Outcome, truth: float, reference: Callable[[Any], Expectation]
) -> dict[str, Any]:
    """The choices, and for each way of judging claim (i) in how many cases (data set, test row, start) it holds.

    Exact predictions judge where there are any. Else `outcome` has the averages of the variants, whose errors are about the
    `truth`; for logistic regression about the paper's own reference and about an independent one.
    """
    problem, etas, made = e.problem, profile.step_sizes(e), catalogue.variants(e)
    names = list(problem.pieces["observables"])
    abouts = ("exact prediction",) if problem.gaussian else ("about μ(h)",)
    if problem.family == "logistic":
        abouts = ("about the paper's own reference", "about an independent reference")

    def errors(v: Experiment, role: str, eta: float, about: str) -> np.ndarray:
        """One row per chain; of exact predictions a single one."""
        if problem.gaussian:
            return np.array([[outcome.predicted[v.name, role, eta]["rmse"]]])
        here, last = (outcome.pieces[v.name, role, at].averages for at in (eta, etas[-1]))
        if problem.family == "nonquadratic":
            return here[:, [names.index(problem.primary)]] - truth
        return here - (np.nanmean(last, axis=0) if about == abouts[0] else reference(v.problem).mean)

    def group(about: str) -> dict[str, Any]:
        ratios = []
        for eta in etas:
            pairs = [[errors(v, role, eta, about) for role in PAIR] for v in made]
            intervals = [[(a / b)[0]] * 3 if problem.gaussian else claims.rmse_ratio(a, b) for a, b in pairs]
            ratio, low, high = map(np.concatenate, zip(*intervals, strict=True))
            ratios.append(ratio)
        found = {"about": about, "step_size": etas[-1], "cases": len(ratio)}
        found["every"] = int(np.sum(np.all(np.array(ratios) < 1, axis=0)))
        counts = {"below": ratio < 1, "clearly_below": high < 1, "clearly_above": low > 1}
        found |= {name: int(np.sum(where)) for name, where in counts.items()}
        return {**found, "ratios": [[float(f"{x:.4g}") for x in ratio] for ratio in ratios]}

    field, values = catalogue.DATA.get(problem.family, (None, ()))
    found = {"data": field, "num_data": len(values), "starts": list(catalogue.STARTS)}
    found["num_observables"] = sum(name != problem.even for name in names)
    found["num_chains"] = None if problem.gaussian else profile.num_chains[e.problem.family]
    return {**found, "groups": [group(about) for about in abouts]}


@dataclasses.dataclass(frozen=True, eq=False)
class Reproduction:
    """The results, their directory and report, and how many pieces were computed and reused."""

    results: dict[str, Any]
    directory: Path
    report: Path
    computed: int
    reused: int


def reproduce(
    names: Sequence[str] = (),
    profile: str | Profile = "quick",
    *,
    engine: str = "auto",
    out: str | Path | None = None,
    seed: int = 0,
    fresh: bool = False,
    progress: bool | None = None,
    workers: int | None = None,
    sensitivity: bool = True,
) -> Reproduction:
    """Run experiments of the paper and write results.json, figures and report.html.

    **Arguments:**

    - `names`: which experiments; all twelve when left out.
    - `profile`: `"quick"` (minutes), `"paper"` (R = 2000, every published step size), or a `Profile` of your own.
    - `engine`: as in `gyromc.run`.
    - `out`: the directory; `results/<profile>` when left out. Finished pieces are stored in its folder `cache`.
    - `seed`: all noise is derived from it.
    - `fresh`: compute again what the cache holds.
    - `progress`: show progress on standard error; when left out, only on a terminal.
    - `workers`: how many processes compute the pieces; the numbers are the same for any. Left out: the fastest on this machine,
      one for each processor, and this process alone for less than half a minute of work and with a GPU.
    - `sensitivity`: whether the profile `"paper"` judges claim (i) also over other data, rows and starts.

    **Returns:** a `Reproduction`.
    """
    experiments = catalogue.select(names, seed)
    chosen = profile if isinstance(profile, Profile) else PROFILES[one_of(profile, PROFILES, "profile")]
    if not sensitivity:
        chosen = dataclasses.replace(chosen, sensitivity=None)
    directory = Path(out) if out is not None else Path("results") / chosen.name
    started, began = datetime.datetime.now(datetime.UTC), time.perf_counter()
    with Cache(directory / "cache").alone() as cache:
        work = Computation(experiments, chosen, cache, engine, fresh, workers)
        total = sum(task.seconds for task in work.jobs.values())
        total += len(experiments) * (SECONDS_PER_ANALYSIS + SECONDS_PER_FIGURES)
        with display.progress(total, progress) as shown:
            outcome = work.outcome(shown)
            found = _findings(experiments, chosen, outcome, shown, seed)
            sampling = sum({id(piece): piece.wall_time for piece in outcome.pieces.values()}.values())
            options = [f"--engine {engine}"] * (engine != "auto") + ["--no-sensitivity"] * (not sensitivity)
            command = ["gyromc reproduce", *names, f"--profile {chosen.name}", *options, f"--seed {seed}"]
            content = {"profile": chosen.name, "seed": seed, "command": " ".join(command), "environment": machine()}
            times = {"started": started.isoformat(timespec="seconds"), "wall": time.perf_counter() - began}
            pieces = {"computed": outcome.computed, "reused": outcome.reused}
            times |= {"sampling": sampling, "workers": work.workers, "pieces": pieces}
            results = RESULTS.save({**content, "experiments": found, "times": times}, directory)
            report = write_report(results, directory, shown)
    return Reproduction(results, directory, report, outcome.computed, outcome.reused)


def _findings(
    experiments: Sequence[Experiment], profile: Profile, outcome: Outcome, shown: display.Progress, seed: int
) -> dict[str, Any]:
    @functools.cache
    def reference(draws: int, problem: HeartDisease) -> Expectation:
        return predictive_reference(problem.pieces["target"], problem.split.X_test, draws, seed)

    found = {}
    for e in experiments:
        shown.describe(f"{e.name}: predictions and claims")
        pieces = {at[1:]: piece for at, piece in outcome.pieces.items() if at[0] == e.name}
        known = reference(profile.reference_draws, e.problem) if isinstance(e.problem, HeartDisease) else None
        etas = profile.step_sizes(e)
        data = Measured(e, etas, pieces, forecast(e, etas, outcome), known)
        found[e.name] = analyse(data)
        if (fewer := profile.sensitivity) is not None:
            known_at = functools.partial(reference, fewer.reference_draws)
            found[e.name]["sensitivity"] = sensitivity(e, fewer, outcome, data.truth, known_at)
        shown.advance(SECONDS_PER_ANALYSIS)
    return found
