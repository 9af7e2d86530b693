"""The findings of one experiment: errors, predictions beside them, and the claims of the paper's §6 with their verdicts.

Input: the averages of one experiment, its forecast and, for logistic regression, an independent reference. Output: a plain
dictionary, the experiment's part of results.json.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gyromc.paper import claims
from gyromc.paper.cache import Piece
from gyromc.paper.experiment import Experiment
from gyromc.paper.measures import Bootstrap, interval, normality, rmse
from gyromc.paper.reference import Reference

__all__ = ["analyse"]


@dataclasses.dataclass(frozen=True, eq=False)
class _Data:
    """The input of the analysis of one experiment."""

    experiment: Experiment
    etas: tuple[float, ...]
    pieces: Mapping[tuple[str, float], Piece]
    forecast: Mapping[str, Any]
    reference: Reference | None
    bootstrap: Bootstrap

    @property
    def primary(self) -> str:
        return self.experiment.problem.primary

    def averages(self, role: str, eta: float, name: str | None = None) -> np.ndarray:
        """Return one average per chain; NaN for a chain that failed."""
        piece = self.pieces[role, eta]
        return piece.averages[:, piece.names.index(name or self.primary)]

    def truth(self, name: str) -> float:
        """μ(h): in closed form where there is one, else from importance sampling."""
        if self.reference is not None:
            return float(self.reference.mean[self.rows.index(name)])
        return self.forecast["nonreversible"]["cells"][-1][name]["expectation"]

    @property
    def rows(self) -> list[str]:
        return list(self.experiment.problem.observables())

    def errors(self) -> dict[str, list[np.ndarray]]:
        """Return the errors about the truth, by role and step size."""
        mu = self.truth(self.primary)
        return {role: [self.averages(role, eta) - mu for eta in self.etas] for role in self.experiment.roles}

    def paper_errors(self) -> dict[str, list[np.ndarray]]:
        """Return the errors about the paper's reference: the truth where known, else the mean at the smallest η, per dynamics."""
        if self.reference is None:
            return self.errors()
        return {
            role: [self.averages(role, eta) - np.nanmean(self.averages(role, self.etas[-1])) for eta in self.etas]
            for role in self.experiment.roles
        }


def analyse(
    experiment: Experiment,
    etas: Sequence[float],
    pieces: Mapping[tuple[str, float], Piece],
    forecast: Mapping[str, Any],
    reference: Reference | None,
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    """Compute the findings of one experiment.

    **Arguments:**

    - `experiment`: of the catalogue.
    - `etas`: the step sizes run, the largest first.
    - `pieces`: the averages by (role, η).
    - `forecast`: the value of `gyromc.paper.forecast.forecast`.
    - `reference`: π(h) for logistic regression; None where μ(h) is known.
    - `bootstrap`: the resampling.

    **Returns:** a dictionary of plain values.
    """
    data = _Data(experiment, tuple(etas), pieces, forecast, reference, bootstrap)
    found = {
        "title": experiment.title,
        "family": experiment.problem.family,
        "sampler": experiment.sampler.label,
        "sampler_formula": experiment.sampler.formula,
        "formulas": dict(experiment.problem.formulas),
        "parameters": dataclasses.asdict(experiment.sampler),
        "choices": dict(experiment.choices),
        "roles": list(experiment.roles),
        "step_sizes": list(data.etas),
        "published_step_sizes": list(experiment.step_sizes),
        "truth": data.truth(data.primary),
        "theory": {role: {k: v for k, v in f.items() if k != "cells"} for role, f in forecast.items()},
        "cells": {role: [_cell(data, role, k) for k in range(len(data.etas))] for role in experiment.roles},
        "qq": {role: _qq(data, role) for role in experiment.roles},
    }
    if reference is not None:
        found |= _rows(data)
    found["claims"] = [dataclasses.asdict(claim) for claim in _claims(data, found)]
    return found


def _cell(data: _Data, role: str, k: int) -> dict[str, Any]:
    """Return measured and predicted numbers of one dynamics at one step size."""
    eta = data.etas[k]
    piece = data.pieces[role, eta]
    errors = data.errors()[role][k]
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
        "engine": piece.engine,
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
        paper = data.paper_errors()[role][k]
        cell["paper_rmse"] = rmse(paper[np.isfinite(paper)])[0]
        cell["paper_rmse_interval"] = interval(data.bootstrap.rmse(paper, k))
    if predicted["rmse"] is not None and data.experiment.problem.gaussian:
        cell["z"] = float((value**2 - predicted["rmse"] ** 2) / (2 * value * se))
    even = data.experiment.problem.even
    if even is not None:
        cell["even"] = _even(data, role, k, even)
    return cell


def _even(data: _Data, role: str, k: int, name: str) -> dict[str, Any]:
    """Return the bias of the even observable over chains, beside the exact bias where that is known."""
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


def _qq(data: _Data, role: str) -> dict[str, Any]:
    """The sorted averages at the smallest η, with the centres and scales that the paper and the prediction use."""
    eta = data.etas[-1]
    averages = np.sort(data.averages(role, eta)[np.isfinite(data.averages(role, eta))])
    center = float(averages.mean()) if data.reference is not None else data.truth(data.primary)
    V, predicted = data.forecast[role]["variance"], data.forecast[role]["cells"][-1][data.primary]["rmse"]
    known = data.experiment.problem.gaussian
    empirical = float(np.sqrt(np.mean((averages - center) ** 2)))
    scale = float(np.sqrt(eta * V)) if known and V is not None else empirical
    qq = {
        "step_size": eta,
        "averages": [float(f"{x:.9g}") for x in averages],
        "paper": {
            "center": center,
            "scale": scale,
            "by": "√(ηV)" if known else "the empirical RMSE",
            "scale_known": bool(known),
            **dataclasses.asdict(normality((averages - center) / scale)),
        },
        "predicted": None,
    }
    if predicted is not None:
        truth = data.truth(data.primary)
        qq["predicted"] = {
            "center": truth,
            "scale": predicted,
            "by": "the exact predicted RMSE" if data.experiment.problem.gaussian else "√(ηV) from theory",
            "scale_known": True,
            **dataclasses.asdict(normality((averages - truth) / predicted)),
        }
    return qq


def _rows(data: _Data) -> dict[str, Any]:
    """All test rows: bias, standard deviation and RMSE, and the share of rows where each sampler wins."""
    reference, names = data.reference, data.rows
    assert reference is not None
    table = {}
    for role in data.experiment.roles:
        averages = [data.pieces[role, eta].averages for eta in data.etas]
        order = [data.pieces[role, data.etas[0]].names.index(name) for name in names]
        errors = [a[:, order] - reference.mean for a in averages]
        table[role] = {
            "bias": [np.nanmean(e, axis=0).tolist() for e in errors],
            "std": [np.nanstd(e, axis=0, ddof=1).tolist() for e in errors],
            "rmse": [np.sqrt(np.nanmean(e**2, axis=0)).tolist() for e in errors],
        }
    rivals = [role for role in data.experiment.roles if role != "nonreversible"]
    wins = {
        rival: {
            what: [
                float(np.mean(np.abs(table["nonreversible"][what][k]) < np.abs(table[rival][what][k])))
                for k in range(len(data.etas))
            ]
            for what in ("rmse", "std", "bias")
        }
        for rival in rivals
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
            "chosen": names.index(data.primary),
        },
    }


def _claims(data: _Data, found: Mapping[str, Any]) -> list[claims.Claim]:
    """Judge every claim that this experiment can decide, the paper's first."""
    paper, errors, boot, etas = data.paper_errors(), data.errors(), data.bootstrap, data.etas
    theory = {role: f["variance"] for role, f in data.forecast.items() if f["variance"] is not None}
    pair = ("nonreversible", "reversible")
    own = data.reference is not None
    cells = found["cells"]
    exact = (
        {role: [c["predicted"]["rmse"] for c in cells[role]] for role in pair}
        if data.experiment.problem.gaussian
        else {}
    )
    made = [
        claims.smaller_error(paper, etas, boot, about=", about the paper's own reference" if own else ""),
        claims.half_slope({role: paper[role] for role in pair}, etas, boot, exact),
    ]
    qq = {role: found["qq"][role] for role in pair}
    by = qq["nonreversible"]["paper"]["by"]
    known = qq["nonreversible"]["paper"]["scale_known"]
    made.append(claims.normal_errors(_normalities(qq, "paper"), "normality", "paper", by, known))
    if all(role in theory for role in pair):
        source = "paper" if data.experiment.problem.gaussian else "beyond"
        made.insert(1, claims.asymptotic(errors, etas, {role: theory[role] for role in pair}, boot, source, exact))
    if own:
        made.append(
            claims.smaller_error(
                errors, etas, boot, key="smaller-error-independent", source="beyond",
                about=", about an independent reference",
            )
        )  # fmt: skip
    if "sgld" in errors:
        made.append(
            claims.smaller_error(errors, etas, boot, baseline="sgld", key="smaller-error-sgld", source="beyond")
        )
    if all(q["predicted"] for q in qq.values()):
        by = qq["nonreversible"]["predicted"]["by"]
        made.append(claims.normal_errors(_normalities(qq, "predicted"), "normality-predicted", "beyond", by, True))
    return made + _exact_claims(data, found)


def _exact_claims(data: _Data, found: Mapping[str, Any]) -> list[claims.Claim]:
    """Judge the exact predictions, cell by cell: the RMSE, and the bias of the even observable."""
    cells = {(role, c["step_size"]): c for role, series in found["cells"].items() for c in series}
    made = []
    z = {at: c["z"] for at, c in cells.items() if c["z"] is not None}
    if z:
        made.append(claims.exact(z, {at: cells[at]["rmse"] / cells[at]["predicted"]["rmse"] for at in z}))
    even = {at: c["even"] for at, c in cells.items() if c.get("even") and c["even"]["z"] is not None}
    if even:
        name = found["formulas"]["even observable"]
        made.append(
            claims.even_bias({at: e["z"] for at, e in even.items()}, {at: e["bias"] for at, e in even.items()}, name)
        )
    return made


def _normalities(qq: Mapping[str, Any], which: str) -> dict[str, Any]:
    fields = {f.name for f in dataclasses.fields(claims.Normality)}
    return {role: claims.Normality(**{k: v for k, v in q[which].items() if k in fields}) for role, q in qq.items()}
