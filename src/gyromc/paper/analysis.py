"""The findings of one experiment: errors and their predictions, the claims of the paper's §6 with their verdicts; and how
claim (i) depends on what the paper leaves open (the data, the test row and the start).

Input: the averages of one experiment and of its variants, its forecast and, for logistic regression, an independent reference
(importance sampling around the mode, no Markov chain). Output: plain dictionaries, the experiment's part of results.json.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from scipy import special

from gyromc.approx.sample import Expectation, expectation
from gyromc.model import Model
from gyromc.paper import claims
from gyromc.paper.catalogue import DATA, STARTS, Experiment, PaperProblem, Profile, variants
from gyromc.paper.claims import Bootstrap, interval, normality, rmse, rmse_ratio
from gyromc.paper.computation import CONSTANTS, Outcome, Piece, Predicted
from gyromc.plan import paper_steps
from gyromc.targets import LogisticRegression


def predictive_reference(
    target: LogisticRegression, points: np.ndarray, num_draws: int = 2**17, seed: int = 0
) -> Expectation:
    """Compute ∫ 1/(1 + e^{-xᵀθ}) π(dθ) for each row x of `points`, by self-normalised importance sampling."""
    return expectation(target, Model(target).laplace, lambda theta: special.expit(theta @ points.T), num_draws, seed)


PAIR = ("nonreversible", "reversible")
"""The dynamics that the paper's claims are about."""


def forecast(e: Experiment, etas: Sequence[float], predicted: Predicted) -> dict[str, Any]:
    """The predictions by role: the constants that do not depend on η, and `cells`, one entry by observable per step size.

    Where the errors are not exact, the prediction at the smallest η is converted to the others.
    """
    found = {}
    for role in e.roles:
        last = predicted[e.name, role, etas[-1]]
        if e.problem.gaussian:
            rows = [predicted[e.name, role, eta]["observables"] for eta in etas]
        else:
            rows = [{h: _scaled(row, etas[-1], eta) for h, row in last["observables"].items()} for eta in etas]
        constants = {key: rows[-1][e.problem.primary][key] for key in CONSTANTS}
        others = {key: value for key, value in last.items() if key != "observables"}
        found[role] = {**constants, **others, "cells": rows}
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
    numbers = {"bias": bias, "std": std, "rmse": math.hypot(std, bias or 0.0)}
    # XLA adds in another order with other numbers of threads: the last digits are not the same in every process.
    return {**found, **{name: None if x is None else float(f"{x:.12g}") for name, x in numbers.items()}}


@dataclasses.dataclass(frozen=True, eq=False)
class Measured:
    """One experiment with its averages by (role, η), the largest η first, and its forecast.

    `reference` is π(h) at the test rows for logistic regression; None where μ(h) is known.
    """

    experiment: Experiment
    etas: tuple[float, ...]
    pieces: Mapping[tuple[str, float], Piece]
    forecast: Mapping[str, Any]
    reference: Expectation | None
    bootstrap: Bootstrap

    @property
    def primary(self) -> str:
        """The name of the observable in the paper's panels."""
        return self.experiment.problem.primary

    def averages(self, role: str, eta: float, name: str | None = None) -> np.ndarray:
        """Return one average per chain; NaN for a chain that failed."""
        piece = self.pieces[role, eta]
        return piece.averages[:, piece.names.index(name or self.primary)]

    @functools.cached_property
    def rows(self) -> list[str]:
        """The names of all observables."""
        return list(self.experiment.problem.pieces["observables"])

    @functools.cached_property
    def truth(self) -> float:
        """μ(h): in closed form where there is one, else from importance sampling."""
        if self.reference is not None:
            return float(self.reference.mean[self.rows.index(self.primary)])
        return self.forecast["nonreversible"]["cells"][-1][self.primary]["expectation"]

    @functools.cached_property
    def errors(self) -> dict[str, list[np.ndarray]]:
        """The errors about the truth, by role and step size."""
        return {role: [self.averages(role, eta) - self.truth for eta in self.etas] for role in self.experiment.roles}

    @functools.cached_property
    def paper_errors(self) -> dict[str, list[np.ndarray]]:
        """The errors about the paper's reference: the truth where known, else the mean at the smallest η, per dynamics."""
        if self.reference is None:
            return self.errors
        return {
            role: [self.averages(role, eta) - np.nanmean(self.averages(role, self.etas[-1])) for eta in self.etas]
            for role in self.experiment.roles
        }


def analyse(data: Measured) -> dict[str, Any]:
    """Return the findings of one experiment as plain values."""
    experiment, roles = data.experiment, data.experiment.roles
    found = {
        "title": experiment.title,
        "family": experiment.problem.family,
        "sampler": experiment.sampler.label,
        "sampler_formula": experiment.sampler.formula,
        "formulas": dict(experiment.problem.formulas),
        "parameters": dict(experiment.sampler.parameters),
        "choices": dict(experiment.choices),
        "roles": list(roles),
        "step_sizes": list(data.etas),
        "published_step_sizes": list(experiment.step_sizes),
        "truth": data.truth,
        "theory": {role: {k: v for k, v in f.items() if k != "cells"} for role, f in data.forecast.items()},
        "cells": {role: [_cell(data, role, k) for k in range(len(data.etas))] for role in roles},
        "qq": {role: _qq(data, role) for role in roles},
    }
    if data.reference is not None:
        found |= _rows(data, data.reference)
    found["claims"] = [dataclasses.asdict(claim) for claim in _claims(data, found)]
    return found


def _cell(data: Measured, role: str, k: int) -> dict[str, Any]:
    """Return measured and predicted numbers of one dynamics at one step size."""
    eta = data.etas[k]
    errors = data.errors[role][k]
    alive = errors[np.isfinite(errors)]
    value, se = rmse(alive)
    predicted = data.forecast[role]["cells"][k][data.primary]
    V = data.forecast[role]["variance"]
    cell = {
        "step_size": eta,
        "num_steps": data.experiment.plan(eta, role, num_chains=1).num_steps,
        "num_chains": int(errors.size),
        "failed_chains": int(errors.size - alive.size),
        "seed": data.experiment.noise_seed(eta),
        "engine": data.pieces[role, eta].engine,
        "rmse": value,
        "rmse_std_error": se,
        "rmse_interval": interval(data.bootstrap.rmse(errors, k)),
        "bias": float(alive.mean()),
        "bias_std_error": float(alive.std(ddof=1) / np.sqrt(alive.size)),
        "std": float(alive.std(ddof=1)),
        "asymptotic_rmse": None if V is None else float(np.sqrt(eta * V)),
        "predicted": predicted,
        "z": None,
    }
    if data.reference is not None:
        paper = data.paper_errors[role][k]
        cell["paper_rmse"] = rmse(paper[np.isfinite(paper)])[0]
        cell["paper_rmse_interval"] = interval(data.bootstrap.rmse(paper, k))
    if predicted["rmse"] is not None and data.experiment.problem.gaussian:
        cell["z"] = float((value**2 - predicted["rmse"] ** 2) / (2 * value * se))
    if data.experiment.problem.even is not None:
        cell["even"] = _even(data, role, k, data.experiment.problem.even)
    return cell


def _even(data: Measured, role: str, k: int, name: str) -> dict[str, Any]:
    """Return the bias of the even observable over chains, and the exact bias where that is known."""
    averages = data.averages(role, data.etas[k], name)
    averages = averages[np.isfinite(averages)]
    predicted = data.forecast[role]["cells"][k][name]
    mu, se = predicted["expectation"], float(averages.std(ddof=1) / np.sqrt(averages.size))
    bias = None if mu is None else float(averages.mean() - mu)
    z = None if bias is None or predicted["bias"] is None else (bias - predicted["bias"]) / se
    return {
        "mean": float(averages.mean()),
        "expectation": mu,
        "bias": bias,
        "bias_std_error": se,
        "predicted_bias": predicted["bias"],
        "z": z,
    }


def _qq(data: Measured, role: str) -> dict[str, Any]:
    """The sorted averages at the smallest η, with the centres and scales that the paper and the prediction use."""
    eta, known, truth = data.etas[-1], data.experiment.problem.gaussian, data.truth
    averages = np.sort(data.averages(role, eta)[np.isfinite(data.averages(role, eta))])
    center = float(averages.mean()) if data.reference is not None else truth
    V, predicted = data.forecast[role]["variance"], data.forecast[role]["cells"][-1][data.primary]["rmse"]
    empirical = float(np.sqrt(np.mean((averages - center) ** 2)))
    scale = float(np.sqrt(eta * V)) if known and V is not None else empirical

    def normalised(center: float, scale: float, by: str, known: bool) -> dict[str, Any]:
        """How averages were centred and scaled, by what, and the tests of normality."""
        return {
            "center": center,
            "scale": scale,
            "by": by,
            "scale_known": known,
            **normality((averages - center) / scale),
        }

    exact = "the exact predicted RMSE" if known else "√(ηV) from theory"
    return {
        "step_size": eta,
        "averages": [float(f"{x:.9g}") for x in averages],
        "paper": normalised(center, scale, "√(ηV)" if known else "the empirical RMSE", known),
        "predicted": None if predicted is None else normalised(truth, predicted, exact, True),
    }


def _rows(data: Measured, reference: Expectation) -> dict[str, Any]:
    """All test rows: bias, standard deviation and RMSE, and the share of rows where each sampler wins."""
    table = {}
    for role in data.experiment.roles:
        order = [data.pieces[role, data.etas[0]].names.index(name) for name in data.rows]
        errors = [data.pieces[role, eta].averages[:, order] - reference.mean for eta in data.etas]
        table[role] = {
            "bias": [np.nanmean(e, axis=0).tolist() for e in errors],
            "std": [np.nanstd(e, axis=0, ddof=1).tolist() for e in errors],
            "rmse": [np.sqrt(np.nanmean(e**2, axis=0)).tolist() for e in errors],
        }
    wins = {
        rival: {
            what: [
                float(np.mean(np.abs(ours) < np.abs(theirs)))
                for ours, theirs in zip(table["nonreversible"][what], table[rival][what], strict=True)
            ]
            for what in ("rmse", "std", "bias")
        }
        for rival in data.experiment.roles[1:]
    }
    return {
        "rows": table,
        "wins": wins,
        "reference": {
            "method": "importance sampling around the mode (multivariate t, scrambled Sobol points)",
            "num_draws": reference.num_draws,
            "efficiency": reference.efficiency,
            "mean": reference.mean.tolist(),
            "std_error": reference.std_error.tolist(),
            "chosen": data.rows.index(data.primary),
        },
    }


def _claims(data: Measured, found: Mapping[str, Any]) -> list[claims.Claim]:
    """Judge every claim that this experiment can decide, the paper's first."""
    paper, errors, boot, etas = data.paper_errors, data.errors, data.bootstrap, data.etas
    theory = {role: data.forecast[role]["variance"] for role in PAIR}
    own, gaussian = data.reference is not None, data.experiment.problem.gaussian
    exact = {role: [c["predicted"]["rmse"] for c in found["cells"][role]] for role in PAIR} if gaussian else {}
    qq = {which: {role: found["qq"][role][which] for role in PAIR} for which in ("paper", "predicted")}
    made = [claims.smaller_error(paper, etas, boot, about=", about the paper's own reference" if own else "")]
    if None not in theory.values():
        made.append(claims.asymptotic(errors, etas, theory, boot, "paper" if gaussian else "beyond", exact))
    # Of logistic regression the paper claims a smaller RMSE and normal errors alone.
    pair, source = {role: paper[role] for role in PAIR}, "beyond" if own else "paper"
    made.append(claims.half_slope(pair, etas, boot, source, exact))
    made.append(claims.normal_errors(qq["paper"], "normality", "paper"))
    if own:
        about = ", about an independent reference"
        made.append(
            claims.smaller_error(errors, etas, boot, "reversible", "smaller-error-independent", "beyond", about)
        )
    if "sgld" in errors:
        made.append(claims.smaller_error(errors, etas, boot, "sgld", "smaller-error-sgld", "beyond"))
    if all(qq["predicted"].values()):
        made.append(claims.normal_errors(qq["predicted"], "normality-predicted", "beyond"))
    # Cell by cell: the RMSE, and the bias of the even observable.
    cells = {(role, c["step_size"]): c for role, series in found["cells"].items() for c in series}
    if known := {at: c for at, c in cells.items() if c["z"] is not None}:
        ratios = {at: c["rmse"] / c["predicted"]["rmse"] for at, c in known.items()}
        made.append(claims.exact({at: c["z"] for at, c in known.items()}, ratios))
    if even := {at: c["even"] for at, c in cells.items() if c.get("even") and c["even"]["z"] is not None}:
        z, biases = ({at: e[key] for at, e in even.items()} for key in ("z", "bias"))
        made.append(claims.exact(z, biases, "even-bias", found["formulas"]["even observable"]))
    return [claims.judged_at(claim, etas, data.experiment.step_sizes) for claim in made]


ABOUT = {
    "truth": "about μ(h)",
    "exact": "exact prediction",
    "paper": "about the paper's own reference",
    "independent": "about an independent reference",
}
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


def sensitivity(
    e: Experiment,
    profile: Profile,
    outcome: Outcome,
    truth: float,
    reference: Callable[[PaperProblem], Expectation],
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    """Return the choices and, for each rival, reference and start, the counts and ratios at every step size.

    `outcome` has the variants. `truth` is μ(h) where it is known without a prediction, `reference` computes π(h) at the test rows
    for logistic regression, on all of which the claim is judged.
    """
    problem, etas, rows = e.problem, profile.step_sizes(e), e.problem.family == "logistic"
    names = tuple(problem.pieces["observables"]) if rows else (problem.primary,)
    field, seeds = DATA.get(problem.family, (None, ()))

    def errors(v: Experiment, role: str, eta: float, about: str) -> np.ndarray:
        """One row per chain; of exact predictions a single one."""
        predicted = outcome.predicted[v.name, role, eta]["observables"][problem.primary] if problem.gaussian else {}
        if about == "exact":
            return np.array([[predicted["rmse"]]])
        chosen = [outcome.pieces[v.name, role, eta].names.index(name) for name in names]
        averages = outcome.pieces[v.name, role, eta].averages[:, chosen]
        if about == "independent":
            return averages - reference(v.problem).mean
        if about == "paper":
            return averages - np.nanmean(outcome.pieces[v.name, role, etas[-1]].averages[:, chosen], axis=0)
        return averages - predicted.get("expectation", truth)

    def group(rival: str, about: str, start: float) -> dict[str, Any]:
        cells, ratios = [], []
        for k, eta in enumerate(etas):
            found = []
            for v in (v for v in variants(e) if v.start == start):
                ours, theirs = (errors(v, role, eta, about) for role in ("nonreversible", rival))
                exact = about == "exact"
                found.append([(ours / theirs)[0]] * 3 if exact else rmse_ratio(ours, theirs, bootstrap, k))
            ratio, low, high = map(np.concatenate, zip(*found, strict=True))
            ratios.append(ratio)
            counts = {"below": ratio < 1, "clearly_below": high < 1, "clearly_above": low > 1}
            quantiles = [float(f"{q:.6g}") for q in np.quantile(ratio, QUANTILES)]
            cells.append({"step_size": eta, **{n: int(np.sum(c)) for n, c in counts.items()}, "quantiles": quantiles})
        every = int(np.sum(np.all(np.array(ratios) < 1, axis=0)))
        found = {"against": rival, "about": about, "start": start, "cases": len(ratios[0])}
        found |= {"below_at_every_step_size": every, "cells": cells}
        if rival == "reversible":  # for the figure
            found["ratios"] = [[float(f"{x:.4g}") for x in ratio] for ratio in ratios]
        return found

    abouts = ("paper", "independent") if rows else ("truth", "exact") if problem.gaussian else ("truth",)
    return {
        "data": None if field is None else {"field": field, "values": list(seeds)},
        "starts": list(STARTS),
        "num_observables": len(names),
        "num_chains": profile.chains(e),
        "step_sizes": list(etas),
        "groups": [group(*at) for at in itertools.product(e.roles[1:], abouts, STARTS)],
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
