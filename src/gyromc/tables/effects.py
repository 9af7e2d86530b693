"""Effects of the columns of a table, however they enter the model, and of the levels of its groups, as values and tables.

The effect of a column is the change E[y | x'] - E[y | x], averaged over the rows: a changed table is encoded again, so that every
term with the column changes. A term of one column also has a ratio, exp of its coefficient or of a difference of two.
"""

import collections
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
MOST_LEVELS = 12  # of a table: beyond, the lowest and the highest are shown
LATENT = {LinkFunction.LOGIT: math.pi**2 / 3, LinkFunction.PROBIT: 1.0, LinkFunction.CLOGLOG: math.pi**2 / 6}


def effect_findings(fit: Fit, prepared: Prepared) -> dict[str, Any] | None:
    """Return the part of fit.json on effects; None where there is none to tell beside the coefficients."""
    encoding, likelihood, response = prepared.encoding, fit.posterior.likelihood, prepared.encoding.response
    several, measured, count = len(response.classes) > 2, likelihood.measured, prepared.table.num_rows
    alone = changeable(encoding) if not several and (measured or likelihood.words.effect.ratio is not None) else {}
    picked = np.unique(np.linspace(0, count - 1, min(count, MOST_ROWS)).astype(int))
    study = _Study(fit, dataclasses.replace(encoding, dates=()), encoding.dated(prepared.table).take(picked))
    rows = [row for one in encoding.features for row in study.effects(one, alone.get(one.name, []))]
    # terms of a changed column, such as log(x): a ratio, and no change of their own
    names = [one.name for one in encoding.features]
    terms = {name: at for name, at in alone.items() if not measured and name not in names}
    rows += [row for name, at in terms.items() for row in study.row(f"{name} + 1", None, at)]
    if not rows:
        return None
    what = f"P({response.name} = {response.positive})" if response.positive else f"the expected {response.name}"
    curved = [one for one in encoding.features if isinstance(one, NumericColumn) and one.name not in alone]
    about = {"ratio": likelihood.words.effect.ratio, "target": response.name}
    about["what"] = "the probability of a class" if several else what
    return {**about, "rows": rows, "curves": [study.adjusted(feature) for feature in curved[:MOST_CURVES]]}


def changeable(encoding: Encoding) -> dict[str, list[int]]:
    """The columns of X of each term that stands alone, a number or levels: no other term changes with its column."""
    found: dict[str, list[int]] = {}
    for j, source in enumerate(encoding.sources.values()):
        found.setdefault(source, []).append(j)
    reads, offsets = {source: [(source,)] for source in found}, ()
    if encoding.formula is not None:
        reads, offsets = encoding.formula.reads, encoding.formula.formula.offsets
    uses = collections.Counter(itertools.chain(*itertools.chain(*reads.values()), *(one.columns for one in offsets)))
    levels, alone = {one.name for one in encoding.features if isinstance(one, CategoricalColumn)}, {}
    for source, columns in found.items():
        # A name with signs stands in backticks in a formula.
        name, others = source.strip("`"), len(reads[source]) > 1 or any(uses[read] > 1 for read in reads[source][0])
        if not others and (name in levels or (len(columns) == 1 and encoding.names[columns[0]].strip("`") == name)):
            alone[name] = columns
    return alone


@dataclasses.dataclass(frozen=True, eq=False)
class _Study:
    """A fit, and some rows of its table, over which E[y] is averaged."""

    fit: Fit
    encoding: Encoding
    table: DataTable

    def mean(self, name: str, values: Any) -> np.ndarray:
        """E[y] with a column of the table changed, averaged over rows: draws × outputs."""
        column = pandas_module().Series(values, index=self.table.columns[name].index)
        rows = self.encoding.rows_of(dataclasses.replace(self.table, columns={**self.table.columns, name: column}))
        found = Predictive.of(self.fit.posterior, rows.X, MOST_DRAWS, **rows.beside()).mean.mean(axis=1)
        return found if found.ndim == 2 else found[:, None]

    def effects(self, feature: NumericColumn | CategoricalColumn, alone: list[int]) -> list[dict[str, Any]]:
        """The rows of a column: of levels their differences, of a number its ratio and change, or its average slope."""
        name, count, measured = feature.name, self.table.num_rows, self.fit.posterior.likelihood.measured
        if isinstance(feature, CategoricalColumn):
            at = dict(zip(feature.shown, alone, strict=False))
            pairs = [(feature.reference, level) for level in feature.shown]
            pairs = [] if alone and measured else pairs  # of a linear mean they are the coefficients
            pairs += list(itertools.combinations(feature.shown, 2))[:MOST_CONTRASTS] if alone else []
            means = {level: self.mean(name, [level] * count) for level in dict.fromkeys(itertools.chain(*pairs))}
            rows = []
            for off, on in pairs:
                columns = [at[level] for level in (on, off) if level in at]
                rows += self.row(f"{name}: {on} against {off}", means[on] - means[off], columns)
            return rows
        x = feature.values(self.table)
        if not alone:
            step = STEP * max(float(x.std()), 1e-300)
            return self.row(f"slope of {name}", (self.mean(name, x + step) - self.mean(name, x - step)) / (2 * step))
        if measured:
            return []
        two = bool(np.all((x == 0) | (x == 1)))
        change = self.mean(name, 0 * x + 1 if two else x + 1) - self.mean(name, 0 * x if two else x)
        return self.row(f"{name}: 1 against 0" if two else f"{name} + 1", change, alone)

    def row(self, name: str, change: np.ndarray | None, columns: Sequence[int] = ()) -> list[dict[str, Any]]:
        """A change of E[y], draws × outputs, as rows; the ratio is exp of a coefficient and its interval, or of a difference."""
        response, outputs = self.encoding.response, 1 if change is None else change.shape[1]
        row: dict[str, Any] = dict.fromkeys(("ratio", "ratio_interval_95", "change", "change_interval_95"))
        if columns and not self.fit.posterior.likelihood.measured:
            draws = self.fit.draws.reshape(-1, self.fit.draws.shape[-1])[:, -len(self.fit.names) :]
            along = draws[:, columns[0]] - (draws[:, columns[1]] if len(columns) > 1 else 0)
            one = self.fit[self.fit.names[columns[0]]]
            ends = np.quantile(along, TAILS, method="hazen") if len(columns) > 1 else one.interval
            row |= {"ratio": float(np.exp(np.median(along))), "ratio_interval_95": np.exp(ends).tolist()}
        found = []
        for k, one in enumerate(response.classes if outputs > 1 else [""]):
            found.append({"name": f"{name}, P({response.name} = {one})" if one else name, **row})
            if change is not None:
                ends = np.quantile(change[:, k], TAILS, method="hazen")
                found[-1] |= {"change": float(change[:, k].mean()), "change_interval_95": ends.tolist()}
        return found

    def adjusted(self, feature: NumericColumn) -> dict[str, Any]:
        """Adjusted predictions over a grid of a column of numbers, with 95 % bands: the numbers of a figure."""
        response = self.encoding.response
        first, last = np.quantile(feature.values(self.table), [0.01, 0.99])
        grid = np.linspace(first, last, GRID)
        means = np.stack([self.mean(feature.name, np.full(self.table.num_rows, x)) for x in grid])
        low, high = np.quantile(means, TAILS, axis=1)
        classes = response.classes if means.shape[2] > 1 else (response.positive or "",)
        parts = {"mean": means.mean(axis=1), "low": low, "high": high}
        at = lambda k: {key: values[:, k].tolist() for key, values in parts.items()}
        lines = [{"class": name, **at(k)} for k, name in enumerate(classes)]
        return {"name": feature.name, "x": grid.tolist(), "lines": lines}


def level_rows(group: GroupDraws, counts: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """Return the posterior of each deviation: level by level, one row for each effect."""
    low, high = np.quantile(group.deviations.reshape(-1, len(group.levels), len(group.columns)), TAILS, axis=0)
    rows = []
    for (i, level), (j, effect) in itertools.product(enumerate(group.levels), enumerate(group.columns)):
        about = {"level": level, "effect": effect, "rows": None if counts is None else int(counts[i])}
        moments = {"mean": float(group.mean[i, j]), "sd": float(group.sd[i, j])}
        rows.append({**about, **moments, "interval_95": [float(low[i, j]), float(high[i, j])]})
    return rows


def group_findings(fit: Fit, rows: DesignRows, y: np.ndarray) -> list[dict[str, Any]]:
    """Return the part of fit.json on groups: their levels, and the intraclass correlation (ICC) of each, its share of the
    variances of all groups, zᵀΣz averaged over rows, and of the noise."""
    between = {}
    for term in rows.groups:
        root = fit.groups[term.name].root
        between[term.name] = np.einsum("cdik,cdjk,ij->cd", root, root, term.Z.T @ term.Z / len(y))
    total = sum(between.values()) + _noise(fit, y)
    found = []
    for term in rows.groups:
        share = between[term.name] / total
        counts = np.bincount(term.index, minlength=len(term.levels)).tolist()
        about = {"name": term.name, "effects": list(term.columns), "levels": len(term.levels)}
        shares = {"mean": float(share.mean()), "interval_95": np.quantile(share, TAILS).tolist()}
        found.append({**about, "share": shares, "rows": level_rows(fit.groups[term.name], counts)})
    return found


def _noise(fit: Fit, y: np.ndarray) -> Any:
    """The variance of a response on the scale of the linear predictor (Nakagawa, Johnson and Schielzeth 2017): of classes that
    of the latent variable, of a logarithmic link that of a lognormal law with the same coefficient of variation."""
    posterior, mean, link = fit.posterior, np.mean(y), fit.posterior.likelihood.link
    shares = posterior.likelihood.response is ResponseKind.NUMBERS and link is LinkFunction.LOGIT
    if link in LATENT and not shares:
        return LATENT[link]
    variance = posterior.likelihood.variance(np.full(posterior.theta.shape[:2], mean), *posterior.given)
    if shares:  # of the log-odds, by the delta method
        return variance / (mean * (1 - mean)) ** 2
    return np.log1p(variance / mean**2) if link is LinkFunction.LOG else variance


def level_table(found: Mapping[str, Any]) -> Table:
    """Return the deviations of one group: of all levels, or of the lowest and highest of many."""
    columns = ["level", "rows", *(text for effect in found["effects"] for text in (effect, "95\u00a0% interval"))]
    levels: dict[str, list[Any]] = {}
    for row in found["rows"]:
        levels.setdefault(row["level"], []).append(row)
    order = sorted(levels.values(), key=lambda rows: rows[0]["mean"])
    many = len(order) > MOST_LEVELS
    shown = [*order[: MOST_LEVELS // 2], *order[-MOST_LEVELS // 2 :]] if many else order
    cells = lambda row: (readable(row["mean"]), bounds(row["interval_95"], text=readable))
    rows = [[some[0]["level"], str(some[0]["rows"]), *(text for row in some for text in cells(row))] for some in shown]
    first = f"the {MOST_LEVELS // 2} lowest and highest of {len(order)} levels; all are in groups.csv. " if many else ""
    low, high = (100 * end for end in found["share"]["interval_95"])
    icc = f"ICC: {100 * found['share']['mean']:.0f} % [{low:.0f} %, {high:.0f} %] of the variance about the common terms lies"
    share = f"{icc} between levels of {found['name']}, on the scale of the linear predictor."
    return Table(columns, rows, f"Deviations of the levels of {found['name']}", [f"{first}{share}"], style="simple")


def group_words(groups: Sequence[Any]) -> tuple[str, str]:
    """Return what a title and the sentence on a model say about its groups; empty texts where there are none."""
    if not groups:
        return "", ""
    every, parts = {group.name for group in groups}, []
    # `g.1` is the second term of the factor `g`.
    factor = lambda name: name.rpartition(".")[0] if name.rpartition(".")[0] in every else name
    names = list(dict.fromkeys(factor(group.name) for group in groups))
    for group in groups:
        own = [f"its own {'intercept' if name == 'intercept' else f'slope of {name}'}" for name in group.columns]
        levels = f"the {counted(len(group.levels), 'level')} of {factor(group.name)}"
        parts.append(f"each of {levels} has {' and '.join(own)}")
    law = "their deviations from the common ones are normal, with estimated standard deviations"
    return f" with groups of {listed(names, 3)}", f" {capital('; '.join(parts))}; {law}."
