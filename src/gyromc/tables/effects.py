"""Effects of the columns of a table, however they enter the model, and of the levels of its groups.

Input: a fit and what was prepared for it. Output: plain values for fit.json, and tables.

A column that can be changed alone, a number or levels outside of products and curves, has a ratio, exp of its coefficient or of a
difference of two, and the change E[y | x'] - E[y | x], averaged over the rows. For any other column the average slope, or the
average difference to the reference, and adjusted predictions, the average of E[y] with the column set to each value of a grid: a
changed table is encoded again, so that every term with the column changes. For groups the deviations of every level with their
intervals, and the share of the variance between levels.
"""

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gyromc.regression.draws import GroupDraws, Predictive
from gyromc.regression.fit import Fit
from gyromc.show.numbers import bounds, capital, counted, listed, readable
from gyromc.show.tables import Table
from gyromc.tables.datatable import DataTable, pandas_module
from gyromc.tables.encoding import CategoricalColumn, DesignRows, Encoding, NumericColumn
from gyromc.tables.preparation import Prepared
from gyromc.targets.likelihoods import LinkFunction, ResponseKind

MOST_ROWS, MOST_DRAWS = 500, 400  # of averages over rows
MOST_CONTRASTS = 15  # between the levels of one column
STEP = 0.01  # of a slope's difference quotient, in standard deviations of the column
GRID, MOST_CURVES = 15, 4
TAILS = [0.025, 0.975]


def effect_findings(fit: Fit, prepared: Prepared) -> dict[str, Any] | None:
    """Return the part of fit.json on effects; None where there is none to tell beside the coefficients."""
    encoding, likelihood, X = prepared.encoding, fit.posterior.likelihood, prepared.rows.X
    response, sources = encoding.response, list(encoding.sources.values())
    several, alone = len(response.classes) > 2, changeable(fit.names, sources, X)
    no_ratio = likelihood.words.effect.ratio is None and not likelihood.measured
    together = [one for one in encoding.features if several or no_ratio or one.name not in alone]
    count = prepared.table.num_rows
    picked = np.unique(np.linspace(0, count - 1, min(count, MOST_ROWS)).astype(int))
    table, undated = encoding.dated(prepared.table).take(picked), dataclasses.replace(encoding, dates=())
    study = _Study(fit, undated, table, prepared.rows.take(picked))
    rows = [] if no_ratio else [row for item in alone.items() for row in study.alone(*item)]
    rows += [row for feature in together for row in study.average(feature)]
    if not rows:
        return None
    what = f"P({response.name} = {response.positive})" if response.positive else f"the expected {response.name}"
    curved = [one for one in together if isinstance(one, NumericColumn)]
    return {
        "ratio": likelihood.words.effect.ratio,
        "target": response.name,
        "what": "the probability of a class" if several else what,
        "rows": rows,
        "curves": [study.adjusted(feature) for feature in curved[:MOST_CURVES]],
    }


def changeable(names: Sequence[str], sources: Sequence[str], X: np.ndarray) -> dict[str, list[int]]:
    """The columns of X of each source that can be changed alone: levels, or one number; not part of a product or a curve."""
    found: dict[str, list[int]] = {}
    for j, source in enumerate(sources):
        found.setdefault(source, []).append(j)
    products = {part for source in found if ":" in source for part in source.split(":")}
    plain = lambda s, columns: (len(columns) == 1 and names[columns[0]] == s) or _levels(X[:, columns])
    return {s: columns for s, columns in found.items() if ":" not in s and s not in products and plain(s, columns)}


def _levels(X: np.ndarray) -> bool:
    """Whether columns are indicators of levels: 0 or 1, at most one of them 1 in a row."""
    return bool(np.all((X == 0) | (X == 1)) and np.all(X.sum(axis=1) <= 1))


@dataclasses.dataclass(frozen=True, eq=False)
class _Study:
    """A fit, and some of its rows, over which E[y] is averaged."""

    fit: Fit
    encoding: Encoding
    table: DataTable
    rows: DesignRows

    def alone(self, source: str, columns: list[int]) -> list[dict[str, Any]]:
        """The rows of a source that can be changed alone: its ratio and average change, for levels also contrasts."""
        names, likelihood = self.fit.names, self.fit.posterior.likelihood
        draws = self.fit.draws.reshape(-1, self.fit.draws.shape[-1])[:, -len(names) :]
        levels, found = _levels(self.rows.X[:, columns]), []
        for name, on, off in self._moves(source, columns, levels):
            # of a mean that is linear in x, the coefficient is the change
            if likelihood.measured and off is None:
                continue
            along = draws[:, on] - (0.0 if off is None else draws[:, off])
            change = along[:, None] if likelihood.measured else None
            if change is None and not likelihood.cutpoints:
                change = self._with(columns, on, levels) - self._with(columns, off, levels)
            found += self._row(name, change, None if likelihood.measured else along)
        return found

    def _moves(self, source: str, columns: list[int], levels: bool) -> list[tuple[str, int, int | None]]:
        """Each change of a source: its name, the column switched on, and the one switched off."""
        names = self.fit.names
        if names[columns[0]] == source:
            return [(f"{source}: 1 against 0" if levels else f"{source} + 1", columns[0], None)]
        references = {one.name: one.reference for one in self.encoding.features if isinstance(one, CategoricalColumn)}
        level: dict[int | None, str] = {j: names[j].removeprefix(f"{source}[").removesuffix("]") for j in columns}
        level[None] = references.get(source, "the reference")
        contrasts = list(itertools.combinations(columns, 2))[:MOST_CONTRASTS]
        pairs = [*((None, j) for j in columns), *contrasts]
        return [(f"{source}: {level[on]} against {level[off]}", on, off) for off, on in pairs]

    def _with(self, columns: list[int], on: int | None, levels: bool) -> np.ndarray:
        """E[y] with a level switched on, or a number increased by 1; None: with none of them, or as it is."""
        X = self.rows.X.copy()
        if levels:
            X[:, columns] = 0.0
        if on is not None:
            X[:, on] += 1.0
        return self._mean(dataclasses.replace(self.rows, X=X))

    def _set(self, name: str, values: Any) -> np.ndarray:
        """E[y] with a column of the table changed, and every term with it."""
        column = pandas_module().Series(values, index=self.table.columns[name].index)
        changed = dataclasses.replace(self.table, columns={**self.table.columns, name: column})
        return self._mean(self.encoding.rows_of(changed))

    def _mean(self, rows: DesignRows) -> np.ndarray:
        """E[y] averaged over rows, draws × outputs."""
        found = Predictive.of(self.fit.posterior, rows.X, MOST_DRAWS, **rows.beside()).mean.mean(axis=1)
        return found if found.ndim == 2 else found[:, None]

    def average(self, feature: NumericColumn | CategoricalColumn) -> list[dict[str, Any]]:
        """The average slope or differences of a column, one row for each class where there are several."""
        name, count = feature.name, self.table.num_rows
        if isinstance(feature, CategoricalColumn):
            start = self._set(name, [feature.reference] * count)
            moved = {level: self._set(name, [level] * count) - start for level in feature.shown}
            texts = {f"{name}: {level} against {feature.reference}": change for level, change in moved.items()}
            return [row for text, change in texts.items() for row in self._row(text, change)]
        x = feature.values(self.table)
        step = STEP * max(float(x.std()), 1e-300)
        return self._row(f"slope of {name}", (self._set(name, x + step) - self._set(name, x - step)) / (2 * step))

    def _row(self, name: str, change: np.ndarray | None, along: np.ndarray | None = None) -> list[dict[str, Any]]:
        """A change of E[y], draws × outputs, as rows of the table; `along`: draws of the logarithm of a ratio."""
        response, outputs = self.encoding.response, 1 if change is None else change.shape[1]
        row: dict[str, Any] = dict.fromkeys(("ratio", "ratio_interval_95", "change", "change_interval_95"))
        if along is not None:
            ends = np.exp(np.quantile(along, TAILS, method="hazen"))
            row |= {"ratio": float(np.exp(np.median(along))), "ratio_interval_95": ends.tolist()}
        found = []
        for k in range(outputs):
            of = f", P({response.name} = {response.classes[k]})" if outputs > 1 else ""
            found.append({"name": name + of, **row})
            if change is not None:
                ends = np.quantile(change[:, k], TAILS, method="hazen")
                found[-1] |= {"change": float(change[:, k].mean()), "change_interval_95": ends.tolist()}
        return found

    def adjusted(self, feature: NumericColumn) -> dict[str, Any]:
        """Adjusted predictions over a grid of a column of numbers, with 95 % bands: the numbers of a figure."""
        response = self.encoding.response
        first, last = np.quantile(feature.values(self.table), [0.01, 0.99])
        grid = np.linspace(first, last, GRID)
        means = np.stack([self._set(feature.name, np.full(self.table.num_rows, x)) for x in grid])
        low, high = np.quantile(means, TAILS, axis=1)
        classes = response.classes if means.shape[2] > 1 else (response.positive or "",)
        middle = means.mean(axis=1)
        lines = [
            {"class": name, "mean": middle[:, k].tolist(), "low": low[:, k].tolist(), "high": high[:, k].tolist()}
            for k, name in enumerate(classes)
        ]
        return {"name": feature.name, "x": grid.tolist(), "lines": lines}


MOST_LEVELS = 12  # of a table: beyond, the lowest and the highest are shown
LATENT = {LinkFunction.LOGIT: math.pi**2 / 3, LinkFunction.PROBIT: 1.0, LinkFunction.CLOGLOG: math.pi**2 / 6}


def level_rows(group: GroupDraws, counts: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return the posterior of each deviation: level by level, one row for each effect."""
    draws = group.deviations.reshape(-1, len(group.levels), len(group.columns))
    low, high = np.quantile(draws, TAILS, axis=0)
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
                "share": {"mean": float(share.mean()), "interval_95": np.quantile(share, TAILS).tolist()},
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
    keys = ["level", "effect", "rows", "mean", "sd"]
    rows = [[one["name"], *(row[key] for key in keys), *row["interval_95"]] for one in found for row in one["rows"]]
    return ["group", *keys, "low_95", "high_95"], rows


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
        own = [f"its own {'intercept' if name == 'intercept' else f'slope of {name}'}" for name in group.columns]
        parts.append(f"each of the {counted(len(group.levels), 'level')} of {group.name} has {' and '.join(own)}")
    law = "their deviations from the common ones are normal, with estimated standard deviations"
    return f" with groups of {listed(names, 3)}", f" {capital('; '.join(parts))}; {law}."
