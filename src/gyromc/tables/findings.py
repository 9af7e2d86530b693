"""The findings of a `Fit` as plain values: the parts of fit.json and the rows of its tables."""

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

from gyromc.regression.adequacy.assess import averaged, distribution, held_out_coverage
from gyromc.regression.draws import Predictive
from gyromc.regression.fit import Coefficient, Fit, robust_sd
from gyromc.regression.problem import GroupTerm, settable
from gyromc.regression.scores import calibration_of_classes, calibration_of_intervals, class_scores, number_scores
from gyromc.regression.standardised import INTERCEPT_SCALE, RowSums
from gyromc.show.numbers import counted, duration, listed, readable
from gyromc.show.pages import machine
from gyromc.tables.datatable import DataTable
from gyromc.tables.effects import group_words
from gyromc.tables.encoding import CategoricalColumn, DesignRows, Encoding
from gyromc.tables.preparation import Prepared
from gyromc.targets.families import FAMILIES, NormalNoise
from gyromc.targets.likelihoods import ResponseKind
from gyromc.targets.priors import Prior

MOST_ERROR = 0.15  # of a posterior standard deviation: a 95 % interval with such an error still covers 94.5 %
CHANCE = 0.001  # of a false alarm, over all coefficients
Rows = tuple[list[str], list[list[Any]]]
AT_ONCE = 500  # rows whose predictive mixtures are held at a time


def model_words(prepared: Prepared, prior_scale: float, noise_scale: float | None) -> dict[str, Any]:
    """Return the part of fit.json that describes the model; `noise_scale` is σ of a linear one, in the target's units."""
    response, groups = prepared.encoding.response, prepared.rows.groups
    fill, family = {"name": response.name, "positive": response.positive}, FAMILIES[response.model]
    target = {"target": response.name, "classes": list(response.classes), "positive": response.positive}
    words, (title, sentence) = family.words, group_words(groups)
    of_target = " and of the target" if family.measured else ""
    of_classes = ", for the difference of two classes" if family.vector else ""
    change, size = words.effect.of.format_map(fill), readable(noise_scale, 4)
    categories = any(isinstance(feature, CategoricalColumn) for feature in prepared.encoding.features)
    constant = prepared.encoding.intercept and not family.cutpoints
    of_constant = "N(0, 10²) for the intercept at the columns' means. " if constant else ""
    levels = "; that of a category is against its column's reference" if categories else ""
    noise = f"The noise has the standard deviation {size} (posterior mean); its uncertainty counts everywhere."
    return {
        "name": response.model,
        "title": f"{words.title}{title}",
        **target,
        "reason": response.reason,
        "sentence": f"{words.sentence.format_map(fill)}{sentence}",
        "reading": f"A coefficient is the change of {change} for one unit more of its column, the others unchanged{levels}.",
        "effect": words.effect.label.format_map(fill),
        "noise": None if noise_scale is None else noise,
        "noise_scale": noise_scale,
        "prior": f"Prior: N(0, {prior_scale:g}²) for a coefficient per standard deviation of its column{of_target}{of_classes}; "
        f"{of_constant}A column of two values counts as if both were equally frequent. "
        f"{prior_words(response.model, groups, prepared.priors)}",
    }


def prior_words(family: str, groups: Sequence[GroupTerm], asked: Mapping[str, Prior]) -> str:
    """Return the priors of all further parameters in sentences, then those that were asked for."""
    known, others = FAMILIES[family], settable(FAMILIES[family], (), False, groups)
    # σ of a linear model is integrated out over a wider prior where that can be done.
    integrated = not groups and all(prior.law == "normal" for name, prior in asked.items() if name not in others)
    further = NormalNoise.further if family == "linear" and not integrated else known.further
    sentences = [one.words for one in further if one.name not in asked]
    if family == "linear" and integrated and "sigma" not in asked:
        sentences.append("The logarithm of sigma: uniform.")
    if groups:
        mean = f"mean 1 per standard deviation of their column{' and of the target' if known.measured else ''}"
        usual = [
            name for group in groups for name in group.names[: len(group.columns)] if not {name, group.name} & {*asked}
        ]
        if usual and "sd" not in asked:
            sentences.append(f"Standard deviations of groups: exponential with {mean}.")
        if any(len(group.columns) > 1 for group in groups) and "cor" not in asked:
            sentences.append("Correlations of groups: LKJ(2).")
    if asked:
        laws = listed([f"{name} {prior}" for name, prior in asked.items()], 8)
        sentences.append(f"Asked for instead, in the units of the file: {laws}.")
    return " ".join(sentences)


def checkup(fit: Fit, X: np.ndarray, prior_scale: float) -> list[dict[str, Any]]:
    """Check a fit to the design matrix X; return dictionaries with `name`, `good` and `sentence`."""
    every = (*fit.coefficients, *fit.auxiliary)
    error, worst = max(((c.std_error / max(c.sd, 1e-300), c) for c in every), key=lambda pair: pair[0])
    # Beyond a million independent draws their number says nothing more.
    size = f"; effective sample size {readable(worst.ess, 2)}" if worst.ess < 1e6 else ""
    errors = f"at most {100 * error:.2g} % of a posterior standard deviation ({label(worst)}){size}."
    scale = dict(zip(fit.names, X.std(axis=0) / fit.posterior.units.y_scale, strict=True))
    vague = [c.name for c in fit.coefficients if c.name in scale and c.sd * scale[c.name] > 0.5 * prior_scale]
    names = listed(list(dict.fromkeys(vague)), 5)
    prior = "the data narrow every coefficient to less than half its prior."
    prior = f"the data hardly inform {names}: the classes are separated, or columns are collinear." if vague else prior
    # An ordinal model without columns has cutpoints alone.
    count, more = len(fit.coefficients) or len(fit.auxiliary), "Pass `--effort thorough`."
    rows = f"{counted(len(X), 'row')} for {counted(count, 'coefficient')}."
    return [
        _check("Monte Carlo error", error < MOST_ERROR, errors if error else "none: the means are integrals.", more),
        *([] if fit.account is None else [_halves(fit)]),
        _check("weight of the prior", not vague, prior, "Compare with another `--prior-scale`."),
        _check("rows per coefficient", len(X) >= 5 * count, rows, "Intervals are wide and depend on the prior."),
    ]


def _check(name: str, good: bool, sentence: str, remedy: str) -> dict[str, Any]:
    return {"name": name, "good": bool(good), "sentence": sentence if good else f"{sentence} {remedy}"}


def label(c: Coefficient) -> str:
    """Return the name of a coefficient, after its class where there are several."""
    return c.name if c.output is None else f"{c.output}: {c.name}"


def _halves(fit: Fit) -> dict[str, Any]:
    """Compare the halves of the chains, and R-hat with the value that chains this short should have."""
    draws = np.concatenate([fit.draws, fit.posterior.further()], axis=-1)
    every, chains, half = (*fit.coefficients, *fit.auxiliary), draws.shape[0], draws.shape[1] // 2
    halves = draws[:, :half], draws[:, half : 2 * half]
    parts = np.stack([some.mean(axis=1) for some in halves])
    drift = parts[0] - parts[1]
    z = np.abs(drift.mean(axis=0)) / np.maximum(drift.std(axis=0, ddof=1) / math.sqrt(chains), 1e-300)
    worst, limit = int(np.argmax(z)), float(-special.stdtrit(chains - 1, CHANCE / 2 / z.size))
    within = np.mean([some.var(axis=1, ddof=1) for some in halves], axis=(0, 1))
    between = parts.reshape(2 * chains, -1).var(axis=0, ddof=1)
    r_hat = float(np.sqrt(np.max((half - 1) / half + between / np.maximum(within, 1e-300))))
    expected = math.sqrt((half - 1) / half + 1 / max(half - 1, 1e-9))
    most = f"{z[worst]:.1f} standard errors ({label(every[worst])}; chance allows {limit:.1f})"
    text = f"in {chains} parts of the chains, first and second halves of the draws differ by at most {most}."
    text = f"{text} R-hat is at most {r_hat:.2f}; that of independent draws in halves of {half} is {expected:.2f}."
    remedy = "The start is still visible: pass `--effort thorough`."
    return _check("agreement of the chains", z[worst] < limit, text, remedy)


def robust_findings(fit: Fit, rows: DesignRows, y: np.ndarray, cluster: str | None) -> dict[str, Any]:
    """Return the robust sd and interval of each coefficient, with a sentence on how to read them."""
    deviations = robust_sd(fit, rows.X, y, rows.clusters, rows.weights, **rows.beside())
    found = []
    for c, s in zip(fit.coefficients, map(float, deviations), strict=True):
        interval = [c.mean - 1.96 * s, c.mean + 1.96 * s]
        found.append({"name": c.name, "sd": s, "interval_95": interval, "ratio": s / c.sd})
    of = f" with clusters {cluster!r} ({len(np.unique(rows.clusters))} of them)" if rows.clusters is not None else ""
    ratio = "Where they are much larger than the model's (a ratio far above 1), the model's intervals are too narrow."
    sentence = f"Sandwich standard deviations{of}: valid also where the variance of y is not the model's. {ratio}"
    return {"coefficients": found, "cluster": cluster, "sentence": sentence}


def results(fit: Fit, prepared: Prepared, prior_scale: float) -> dict[str, Any]:
    """Return the parts of fit.json that come from the fit to all rows."""
    encoding, table, X = prepared.encoding, prepared.table, prepared.rows.X
    scales = dict(zip(encoding.names, X.std(axis=0), strict=True))
    scaled = lambda c, scale: {"mean": scale * c.mean, "interval_95": [scale * c.low, scale * c.high]}
    per_sd = lambda c: scaled(c, scales[c.name]) if c.name in scales else None
    rows = [{**_row(c), "standardised": per_sd(c)} for c in fit.coefficients]
    slopes = [c for c in rows if c["name"] != "intercept"]
    sure = sum(c["interval_95"][0] > 0 or c["interval_95"][1] < 0 for c in slopes)
    data = {"file": Path(table.path).name, "path": table.path, "rows": table.num_rows}
    sampler = {"num_chains": len(fit.draws), "gradient_evaluations": 0, "reason": fit.reason}
    work, trace = f"{fit.posterior.count} independent draws in closed form", {"steps": [], "parameters": []}
    if fit.account is not None:
        sampler |= {**dataclasses.asdict(fit.account), "gradient_evaluations": fit.account.gradients}
        work = f"{fit.account.gradients:,} gradients in {duration(fit.account.seconds)}"
        # Stored states of four chains, for the four coefficients that stand out most.
        clarity = lambda c: math.inf if c["name"] == "intercept" else abs(c["mean"]) / max(c["sd"], 1e-300)
        kept, states = sorted(range(len(rows)), key=lambda i: -clarity(rows[i]))[:4], fit.draws[:4]
        traced = [{"label": rows[i]["label"], "chains": np.round(states[:, :, i], 9).tolist()} for i in kept]
        trace = {"steps": list(range(states.shape[1])), "parameters": traced}
    sampler["shown"] = {"sampler": fit.reason, "work": work}
    computed = {"sampler": sampler, "checks": checkup(fit, X, prior_scale), "trace": trace, "environment": machine()}
    return {
        "data": {**data, "predictors": len(encoding.names)},
        "model": model_words(prepared, prior_scale, fit.noise_scale),
        "encoding": {**dataclasses.asdict(encoding), "notes": []},  # nothing notes rows here; schema 1 has the key
        "columns": encoding.rows(),
        "coefficients": rows,
        "parameters": [_row(c) for c in fit.auxiliary],
        "summary": {"coefficients": len(slopes), "sure": sure},
        **computed,
    }


def _row(c: Coefficient) -> dict[str, Any]:
    same = {name: getattr(c, name) for name in ("name", "mean", "sd", "std_error", "sd_error")}
    ends = {"interval_95": [c.low, c.high], "interval_std_error": [c.low_error, c.high_error]}
    size = c.ess if math.isfinite(c.ess) else None
    return {"label": label(c), "class": c.output, **same, **ends, "effective_size": size}


def coefficient_table(coefficients: Sequence[Coefficient], robust: dict[str, Any] | None = None) -> Rows:
    """Return columns and rows of coefficients.csv; those beyond the robust ones have no robust standard deviations."""
    renamed = {"class": "output", "low_95": "low", "high_95": "high", "monte_carlo_error": "std_error"}
    columns = ["name", "mean", "sd", "low_95", "high_95", "monte_carlo_error", "sd_error", "low_error", "high_error"]
    columns[1:1] = [] if coefficients[0].output is None else ["class"]
    rows = [[getattr(c, renamed.get(name, name)) for name in columns] for c in coefficients]
    if robust is None:
        return columns, rows
    more = [[c["sd"], *c["interval_95"]] for c in robust["coefficients"]]
    pairs = itertools.zip_longest(rows, more, fillvalue=[None] * 3)
    return [*columns, "robust_sd", "robust_low_95", "robust_high_95"], [[*row, *cells] for row, cells in pairs]


def held_out(fit: Fit, encoding: Encoding, rows: DesignRows, y: np.ndarray, train: np.ndarray) -> dict[str, Any]:
    """Compute scores and calibration on rows that the fit has not seen."""
    X, beside = rows.X, rows.beside()
    mean = fit.predict(X, **beside).mean
    covered = held_out_coverage(fit.posterior, X, y, beside, weights=rows.weights)
    if encoding.response.classes:
        p, baseline = _probabilities(mean), "how frequent the classes are"
        scores, calibration = class_scores(p, y, train), calibration_of_classes(p, y)
    else:
        counts = fit.posterior.likelihood.response is ResponseKind.COUNTS
        baseline = "the mean count" if counts else "mean and standard deviation"
        scores = number_scores(mean, fit.posterior.log_densities(X, y, **beside), y, train, counts)
        parts = [averaged(distribution(law, y[some])) for some, law in _laws(fit.posterior, rows)]
        calibration = calibration_of_intervals(*np.concatenate(parts, axis=1))
    judged = []
    for score in scores:
        # against the baseline, at two standard errors of the paired difference
        gain, error = score.difference * (1 if score.better == "higher" else -1), score.difference_std_error
        clear = math.isfinite(error) and abs(gain) > 2 * error
        side = "better" if gain > 0 or (gain == 0 and not clear) else "worse"
        judged.append({**score.to_dict(), "verdict": side if clear else f"not clearly {side}"})
    said = {"rows": int(y.size), "trained_on": int(train.size), "baseline": f"{baseline} in the training rows"}
    coverage = covered and {"share": covered.statistic, "p": covered.p, "large": covered.large, **covered.details}
    return {**said, "scores": judged, "calibration": calibration, "coverage": coverage}


def _probabilities(mean: np.ndarray) -> np.ndarray:
    """Return rows × classes, also for a logistic model, which predicts one probability."""
    return mean if mean.ndim == 2 else np.column_stack([1 - mean, mean])


def _laws(posterior: Any, rows: DesignRows) -> Iterator[tuple[np.ndarray, Predictive]]:
    """Yield some rows at a time, and the predictive laws there."""
    for chosen in np.array_split(np.arange(len(rows.X)), max(1, -(-len(rows.X) // AT_ONCE))):
        some = rows.take(chosen)
        yield chosen, Predictive.of(posterior, some.X, **some.beside())


def predictions(fit: Any, encoding: Encoding, table: DataTable, design: DesignRows, y: np.ndarray | None) -> Rows:
    """Return columns and rows of a table of predictions; `y` where it was observed. `fit` may be a posterior alone."""
    found, classes = fit.predict(design.X, **design.beside()), encoding.response.classes
    columns: dict[str, Any] = {table.unit: table.lines}
    if y is not None:
        columns["observed"] = np.array(classes, object)[y] if classes else y
    if classes:
        columns["predicted"] = np.array(classes, object)[_probabilities(found.mean).argmax(axis=1)]
    kinds = {"probability" if classes else "mean": found.mean, "sd": found.sd, "monte_carlo_error": found.std_error}
    if found.mean.ndim == 1:
        columns |= kinds
    for k, name in enumerate(classes if found.mean.ndim > 1 else ()):
        columns |= {f"{kind}[{name}]": values[:, k] for kind, values in kinds.items()}
    if not classes:
        columns["noise"] = found.noise
    if encoding.response.model == "linear":
        columns["low_95"] = found.mean - 1.96 * found.predictive_sd
        columns["high_95"] = found.mean + 1.96 * found.predictive_sd
    elif found.mean.ndim == 1:
        # Of a response drawn from its law, or of the mean where that is a probability.
        rng, method = np.random.default_rng(0), "hazen" if classes else "inverted_cdf"
        laws = (law for _, law in _laws(getattr(fit, "posterior", fit), design))
        values = (law.mean if classes else law.replicate(rng) for law in laws)
        ends = [np.quantile(some, [0.025, 0.975], axis=0, method=method) for some in values]
        columns["low_95"], columns["high_95"] = np.concatenate(ends, axis=1)
    if design.trials is not None:
        columns |= {"probability": found.mean / design.trials, "probability_sd": found.sd / design.trials}
    return list(columns), [list(row) for row in zip(*(c.tolist() for c in columns.values()), strict=True)]


def part(file: str, encoding: Encoding, table: Rows, fitted: int, new: bool) -> dict[str, Any]:
    """Return what a page shows of a table of predictions: of several classes only the likeliest."""
    response, (columns, rows) = encoding.response, table
    what = f"the probability of {response.positive or 'the likeliest class'}" if response.classes else "the mean"
    first = rows[:10]
    if len(response.classes) > 2:
        kept, kinds = [name for name in columns if not name.endswith("]")], ["probability", "sd", "monte_carlo_error"]
        cells = [dict(zip(columns, row, strict=True)) for row in first]
        first = [[*(c[n] for n in kept), *(c[f"{kind}[{c['predicted']}]"] for kind in kinds)] for c in cells]
        columns = [*kept, *kinds]
    title = f"Predictions for {counted(len(rows), 'new row' if new else 'held-out row')}"
    sentence = f"From the fit to {counted(fitted, 'row')}{'' if new else ' that did not include them'}."
    about = {"title": title, "file": file, "sentence": sentence, "what": what, "noise_shown": "noise" in columns}
    return {**about, "rows": len(rows), "columns": columns, "first": first}


def explained(prepared: Prepared, prior_scale: float) -> dict[str, Any]:
    """Return what `gyromc fit --explain` shows: columns of X with coding, range and prior; group terms; the first 5 rows."""
    encoding, rows, y = prepared.encoding, prepared.rows, prepared.y
    response, measured = encoding.response, FAMILIES[encoding.response.model].measured
    units = RowSums.of(rows.X, y, rows.weights).units(prior_scale, encoding.intercept, measured)
    deviations = prior_scale * units.y_scale / units.scale
    usual, asked = f"normal({units.y_center:.4g}, {INTERCEPT_SCALE * units.y_scale:.4g})", prepared.priors
    prior = lambda usual, *names: next((f"{asked[name]}, asked for" for name in names if name in asked), usual)
    columns, kinds = [], {feature.name: feature for feature in encoding.features}
    for (name, source), values, deviation in zip(encoding.sources.items(), rows.X.T, deviations, strict=True):
        size = {"least": float(values.min()), "mean": float(values.mean()), "most": float(values.max())}
        parts = {source: ""} if encoding.formula is None else {part: f"{part}: " for part in source.split(":")}
        levels = {part: one for part in parts if isinstance(one := kinds.get(part), CategoricalColumn)}
        coding = "; ".join(f"{parts[part]}0 or 1, against {one.reference!r}" for part, one in levels.items())
        coding = coding or ("as it is" if source in kinds else "computed")
        law = prior(f"normal(0, {deviation:.4g})", name)
        columns.append({"name": name, "source": source, "coding": coding, **size, "prior": law})
    groups = []
    for group in rows.groups:
        names, levels = list(group.columns), group.levels
        laws = [f"{name}: {prior('the default', name, group.name, 'sd')}" for name in group.names[: len(names)]]
        laws += [f"correlations: {prior('lkj(2)', f'cor({group.name})', 'cor')}"] if len(names) > 1 else []
        about = {"name": group.name, "columns": names, "levels": len(levels), "first": list(levels[:5])}
        groups.append({**about, "prior": "; ".join(laws)})
    constant = encoding.intercept and not FAMILIES[response.model].cutpoints
    about = {"file": prepared.table.path, "rows": len(y), "target": response.name, "family": response.model}
    return {
        **about,
        "reason": response.reason,
        "classes": list(response.classes),
        "formula": None if encoding.formula is None else encoding.formula.text,
        "intercept": f"{prior(usual, 'intercept')} at the columns' means" if constant else None,
        "columns": columns,
        "groups": groups,
        "other": encoding.roles.given,
        "offset": None if rows.offset is None else rows.offset[:5].tolist(),
        "first_rows": (rows.X[:5] + 0.0).tolist(),
        "lines": prepared.table.lines[:5].tolist(),
        "observed": [response.classes[int(k)] for k in y[:5]] if response.classes else y[:5].tolist(),
        "further": prior_words(response.model, rows.groups, prepared.priors),
        "notes": prepared.notes,
    }
