"""The effects of groups: the deviations of every level with their intervals, and the share of the variance between levels.

Input: a fit with group terms, its rows and responses. Output: the part `groups` of fit.json, the rows of groups.csv, and the
table that shows the levels farthest from zero.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gyromc.regression.draws import GroupDraws
from gyromc.regression.fit import Fit
from gyromc.show.numbers import bounds, capital, counted, listed, readable
from gyromc.show.tables import Table
from gyromc.tables.encoding import DesignRows
from gyromc.targets.likelihoods import LinkFunction, ResponseKind

MOST_LEVELS = 12  # of a table: beyond, the lowest and the highest are shown
LATENT = {LinkFunction.LOGIT: math.pi**2 / 3, LinkFunction.PROBIT: 1.0, LinkFunction.CLOGLOG: math.pi**2 / 6}
"""Variances of the laws whose distribution functions are the inverse links."""
CSV_COLUMNS = ["group", "level", "effect", "rows", "mean", "sd", "low_95", "high_95"]


def level_rows(group: GroupDraws, counts: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return the posterior of each deviation: level by level, one row for each effect."""
    draws = group.deviations.reshape(-1, len(group.levels), len(group.columns))
    low, high = np.quantile(draws, [0.025, 0.975], axis=0)
    return [
        {
            "level": level,
            "effect": effect,
            "rows": None if counts is None else int(counts[i]),
            "mean": float(group.mean[i, j]),
            "sd": float(group.sd[i, j]),
            "interval_95": [float(low[i, j]), float(high[i, j])],
        }
        for i, level in enumerate(group.levels)
        for j, effect in enumerate(group.columns)
    ]


def group_findings(fit: Fit, rows: DesignRows, y: np.ndarray) -> list[dict[str, Any]]:
    """Return the part of fit.json on groups: their levels, and the intraclass correlation (ICC) of each.

    The variance of a group at a row is zᵀΣz, averaged over rows; the ICC is its share of the variances of all groups and of the
    noise, on the scale of the linear predictor.
    """
    between = {}
    for term in rows.groups:
        root = fit.groups[term.name].root
        between[term.name] = np.einsum("cdik,cdjk,ij->cd", root, root, term.Z.T @ term.Z / len(y))
    total = sum(between.values()) + _noise(fit, y)
    found = []
    for term in rows.groups:
        share = between[term.name] / total
        found.append(
            {
                "name": term.name,
                "effects": list(term.columns),
                "levels": len(term.levels),
                "share": {"mean": float(share.mean()), "interval_95": np.quantile(share, [0.025, 0.975]).tolist()},
                "rows": level_rows(fit.groups[term.name], np.bincount(term.index, minlength=len(term.levels)).tolist()),
            }
        )
    return found


def _noise(fit: Fit, y: np.ndarray) -> Any:
    """The variance of a response about its mean on the scale of the linear predictor, a number or one for each draw.

    Of classes and of successes it is that of the latent variable; of a law with a logarithmic link the one that a lognormal law
    with the same coefficient of variation would have (Nakagawa, Johnson and Schielzeth 2017).
    """
    posterior, mean = fit.posterior, np.mean(y)
    link = posterior.likelihood.link
    shares = posterior.likelihood.response is ResponseKind.NUMBERS and link is LinkFunction.LOGIT
    if link in LATENT and not shares:
        return LATENT[link]
    variance = posterior.likelihood.variance(np.full(posterior.theta.shape[:2], mean), *posterior.given)
    if shares:  # of the log-odds, by the delta method
        return variance / (mean * (1 - mean)) ** 2
    return np.log1p(variance / mean**2) if link is LinkFunction.LOG else variance


def group_table(found: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[Any]]]:
    """Return columns and rows of groups.csv."""
    return CSV_COLUMNS, [
        [one["name"], row["level"], row["effect"], row["rows"], row["mean"], row["sd"], *row["interval_95"]]
        for one in found
        for row in one["rows"]
    ]


def level_table(found: Mapping[str, Any]) -> Table:
    """Return the deviations of one group: of all levels, or of the lowest and highest of many."""
    effects = found["effects"]
    columns = ["level", "rows", *(text for effect in effects for text in (effect, "95\u00a0% interval"))]
    levels: dict[str, list[Any]] = {}
    for row in found["rows"]:
        levels.setdefault(row["level"], []).append(row)
    order = sorted(levels.values(), key=lambda rows: rows[0]["mean"])
    many = len(order) > MOST_LEVELS
    shown = [*order[: MOST_LEVELS // 2], *order[-MOST_LEVELS // 2 :]] if many else order
    rows = [
        [
            some[0]["level"],
            str(some[0]["rows"]),
            *(text for row in some for text in (readable(row["mean"]), bounds(row["interval_95"], text=readable))),
        ]
        for some in shown
    ]
    first = f"the {MOST_LEVELS // 2} lowest and highest of {len(order)} levels; all are in groups.csv. " if many else ""
    low, high = (100 * end for end in found["share"]["interval_95"])
    share = (
        f"ICC: {100 * found['share']['mean']:.0f} % [{low:.0f} %, {high:.0f} %] of the variance about the common terms lies "
        f"between levels of {found['name']}, on the scale of the linear predictor."
    )
    return Table(columns, rows, f"Deviations of the levels of {found['name']}", [f"{first}{share}"], style="simple")


def group_tables(found: Sequence[Mapping[str, Any]]) -> list[Table]:
    """Return a table for each group."""
    return [level_table(one) for one in found]


def group_words(groups: Sequence[Any]) -> tuple[str, str]:
    """Return what a title and the sentence on a model say about its groups; empty texts where there are none."""
    if not groups:
        return "", ""
    names = list(dict.fromkeys(group.name for group in groups))
    parts = []
    for group in groups:
        effects = listed(
            [f"its own {'intercept' if name == 'intercept' else f'slope of {name}'}" for name in group.columns]
        )
        parts.append(f"each of the {counted(len(group.levels), 'level')} of {group.name} has {effects}")
    law = "whose deviations from the common ones are normal, with estimated standard deviations"
    return f" with groups of {listed(names, 3)}", f" {capital('; '.join(parts))}, {law}."
