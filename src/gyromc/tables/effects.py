"""Effects of the columns of a table, however they enter the model, and of the levels of its groups.

Input: a fit and what was prepared for it. Output: plain values for fit.json, and tables. For a number the average slope of E[y],
for a category the average difference to its reference, over the rows, all other columns as they are; adjusted predictions, the
average of E[y] with a column set to each value of a grid: a changed table is encoded again, so that every term with the column
changes. For groups the deviations of every level with their intervals, and the share of the variance between levels.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gyromc.regression.draws import GroupDraws, Predictive
from gyromc.regression.effects import changeable, effects
from gyromc.regression.fit import Fit
from gyromc.show.numbers import bounds, capital, counted, listed, readable
from gyromc.show.tables import Table
from gyromc.tables.datatable import DataTable, pandas_module
from gyromc.tables.encoding import CategoricalColumn, DesignRows, Encoding, NumericColumn
from gyromc.tables.preparation import Prepared
from gyromc.targets.likelihoods import LinkFunction, ResponseKind

MOST_ROWS, MOST_DRAWS = 200, 400
STEP = 0.01  # of a slope's difference quotient, in standard deviations of the column
GRID, MOST_CURVES = 15, 4


def effect_findings(fit: Fit, prepared: Prepared) -> dict[str, Any] | None:
    """Return the part of fit.json on effects; None where there is none to tell beside the coefficients."""
    encoding, table, X = prepared.encoding, prepared.table, prepared.rows.X
    references = {one.name: one.reference for one in encoding.features if isinstance(one, CategoricalColumn)}
    sources = list(encoding.sources.values())
    alone = changeable(fit.names, sources, X)
    several, words = len(encoding.response.classes) > 2, fit.posterior.likelihood.words
    no_ratio = words.ratio is None and not fit.posterior.likelihood.measured
    together = [one.name for one in encoding.features if several or no_ratio or one.name not in alone]
    rows = [
        {f"{key}_95" if "interval" in key else key: value for key, value in dataclasses.asdict(one).items()}
        for one in effects(fit, X, sources, references, prepared.rows.beside())
    ]
    rows += average_effects(fit, encoding, table, together)
    if not rows:
        return None
    name = encoding.response.name
    what = f"P({name} = {encoding.response.positive})" if encoding.response.positive else f"the expected {name}"
    return {
        "ratio": words.ratio,
        "target": name,
        "what": "the probability of a class" if several else what,
        "rows": rows,
        "curves": adjusted(fit, encoding, table, together),
    }


def average_effects(fit: Fit, encoding: Encoding, table: DataTable, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the average slope or differences of each of these columns, one row for each class where there are several."""
    (some, mean), found = _means(fit, encoding, table), []
    for feature in (one for one in encoding.features if one.name in names):
        if isinstance(feature, CategoricalColumn):
            start = mean(feature.name, [feature.reference] * some.num_rows)
            for level in feature.shown:
                change = mean(feature.name, [level] * some.num_rows) - start
                found += _written(encoding, f"{feature.name}: {level} against {feature.reference}", change)
            continue
        x = feature.values(some)
        step = STEP * max(float(x.std()), 1e-300)
        slope = (mean(feature.name, x + step) - mean(feature.name, x - step)) / (2 * step)
        found += _written(encoding, f"slope of {feature.name}", slope)
    return found


def adjusted(fit: Fit, encoding: Encoding, table: DataTable, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return adjusted predictions over a grid of each of these columns of numbers, with 95 % bands: the numbers of a figure."""
    (some, mean), found = _means(fit, encoding, table), []
    curved = [one for one in encoding.features if one.name in names and isinstance(one, NumericColumn)]
    for feature in curved[:MOST_CURVES]:
        first, last = np.quantile(feature.values(some), [0.01, 0.99])
        grid = np.linspace(first, last, GRID)
        means = np.stack([mean(feature.name, np.full(some.num_rows, x)) for x in grid])
        low, high = np.quantile(means, [0.025, 0.975], axis=1)
        classes = encoding.response.classes if means.shape[2] > 1 else (encoding.response.positive or "",)
        lines = [
            {
                "class": name,
                "mean": means[:, :, k].mean(axis=1).tolist(),
                "low": low[:, k].tolist(),
                "high": high[:, k].tolist(),
            }
            for k, name in enumerate(classes)
        ]
        found.append({"name": feature.name, "x": grid.tolist(), "lines": lines})
    return found


def _means(fit: Fit, encoding: Encoding, table: DataTable) -> tuple[DataTable, Callable[[str, Any], np.ndarray]]:
    """Some of the rows, and E[y] averaged over them with a column changed, draws × outputs, as a function of name and values."""
    picked = np.unique(np.linspace(0, table.num_rows - 1, min(table.num_rows, MOST_ROWS)).astype(int))
    table, undated = encoding.dated(table).take(picked), dataclasses.replace(encoding, dates=())

    def mean(name: str, values: Any) -> np.ndarray:
        column = pandas_module().Series(values, index=table.columns[name].index)
        rows = undated.rows_of(dataclasses.replace(table, columns={**table.columns, name: column}))
        found = Predictive.of(fit.posterior, rows.X, MOST_DRAWS, **rows.beside()).mean.mean(axis=1)
        return found if found.ndim == 2 else found[:, None]

    return table, mean


def _written(encoding: Encoding, name: str, change: np.ndarray) -> list[dict[str, Any]]:
    """A change of E[y], draws × outputs, as rows of the table of effects."""
    low, high = np.quantile(change, [0.025, 0.975], axis=0)
    several = change.shape[1] > 1
    return [
        {
            "name": f"{name}, P({encoding.response.name} = {encoding.response.classes[k]})" if several else name,
            "ratio": None,
            "ratio_interval_95": None,
            "change": float(change[:, k].mean()),
            "change_interval_95": [float(low[k]), float(high[k])],
        }
        for k in range(change.shape[1])
    ]


MOST_LEVELS = 12  # of a table: beyond, the lowest and the highest are shown
LATENT = {LinkFunction.LOGIT: math.pi**2 / 3, LinkFunction.PROBIT: 1.0, LinkFunction.CLOGLOG: math.pi**2 / 6}
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
