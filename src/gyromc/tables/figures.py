"""The figures of a fit, from fit.json: coefficients, calibration, traces, predicted and observed responses, residuals, PIT."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gyromc.checks import cause, require, shown
from gyromc.errors import GyromcWarning
from gyromc.show.numbers import printable
from gyromc.show.pages import Picture, lay_out
from gyromc.show.plots import BLUE, COLOURS, GREY, ORANGE, NotebookFigure, figure_style, intervals

BAND, INK = "#9CC9E6", "#333333"
MOST_LEVEL = 8  # classes whose names stand level side by side
MOST_BARS, MOST_PANELS, MOST_NAMED = 25, 4, 45
SIZE = (4.8, 3.3)
Results = dict[str, Any]
Drawn = tuple[Figure, str, str]  # with what it is, and a caption; together they are the text in place of the figure


def pictures(results: Results) -> list[Picture]:
    """Draw all pictures of a fit."""
    found, results = [], _printable(results)
    for kind, function in _drawings(results).items():
        try:
            with figure_style():
                figure, what, caption = function(results)
                lay_out(figure)
                found.append(Picture.of(kind, figure, f"{what}: {caption}", caption))
        except Exception as error:  # whatever Matplotlib raises: a figure never costs the answer
            message = f"The figure `{kind}` is left out of the report, since it cannot be drawn: {cause(error)}."
            warnings.warn(message, GyromcWarning, stacklevel=2)
    return found


def drawn(kind: str, results: Results) -> Figure:
    """Draw one of the pictures as a figure."""
    known = (_drawings(results) if "adequacy" in results else {}) | ({"prior": _prior} if "prior" in results else {})
    require(
        isinstance(kind, str) and kind in known,
        f"There is no figure {shown(kind)} of this model: there are {', '.join(known)}.",
    )
    with figure_style():
        figure = known[kind](_printable(results))[0]
        lay_out(figure)
    return figure


def _printable(found: Any) -> Any:
    """The same numbers with names that a picture can show: an SVG with a control character is not valid."""
    if isinstance(found, str):
        return printable(found)
    if isinstance(found, dict):
        return {key: _printable(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_printable(value) for value in found]
    return found


def _drawings(results: Results) -> dict[str, Callable[[Results], Drawn]]:
    """The function that draws each picture that fit.json has numbers for."""
    numbers = results["adequacy"]["figures"]
    known = [
        ("coefficients", _coefficients, any(c["standardised"] is not None for c in results["coefficients"])),
        ("calibration", _calibration, results["held_out"] is not None),
        ("trace", _trace, results["trace"]["parameters"]),
        ("predictive", _predictive, "predictive" in numbers),
        ("residuals", _residuals, "residuals" in numbers),
        ("pit", _pit, "pit" in numbers),
        ("curve", lambda _: _points(numbers["curve"], _short(numbers["curve"]["column"], 36)), "curve" in numbers),
        ("groups", _groups, results.get("groups")),
        ("effects", _effects, (results.get("effects") or {}).get("curves")),
    ]
    return {kind: draw for kind, draw, there in known if there}


def _prior(results: Results) -> Drawn:
    """Data beside data drawn from the prior: shares of classes, else distribution functions."""
    found, name = results["prior"], _short(results["model"]["target"], 40)
    draws, observed = np.array(found["draws"]), np.array(found["observed"])
    figure, (ax,) = axes_of(SIZE, f"observed, and in {len(draws)} draws from the prior")
    share, classes = "", "classes" in found
    if classes:
        places = np.arange(len(observed))
        ax.plot(np.tile(places, (len(draws), 1)).T, draws.T, "_", color=BLUE, alpha=0.35, markersize=18)
        ax.plot(places, observed, "o", color=ORANGE, label="observed")
        ax.set_xticks(places, [_short(text, 14) for text in found["classes"]])
        # the legend stands above
        ax.set(xlim=(-0.6, len(observed) - 0.4), ylim=(-0.03, 1.25), ylabel="share of the rows")
    else:
        ax.plot(draws.T, found["levels"], color=BLUE, alpha=0.25, linewidth=0.8)
        ax.plot(observed, found["levels"], color=ORANGE, linewidth=2, label="observed")
        # Priors are wide: beyond the power of ten that holds the data, the scale is logarithmic.
        size = 10.0 ** np.ceil(np.log10(max(float(np.abs(observed).max()), 1e-12)))
        ax.set_xscale("symlog", linthresh=size)
        ax.xaxis.get_major_locator().set_params(numticks=7)
        ax.xaxis.set_major_formatter("{x:g}")
        ax.minorticks_off()
        ax.set_ylabel("share of the rows below")
        share = f" {100 * found['inside']:.0f} % of the drawn values lie in the range of the data."
    ax.set_xlabel(name)
    ax.legend(loc="upper left" if classes else "lower right")
    what = f"{name}, observed and drawn from the prior"
    return figure, what, f"Each blue line is a data set drawn from the prior, the orange one the data.{share}"


def axes_of(size: tuple[float, float], title: str, rows: int = 1, columns: int = 1):
    """Return a figure and its axes, with a title above the first."""
    figure = NotebookFigure(figsize=size)
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    axes[0].set_title(title, loc="left")
    return figure, axes


def _panel(title: str, across: str, up: str, level: float | None = None) -> tuple[Figure, Any]:
    figure, (ax,) = axes_of(SIZE, title)
    ax.set(xlabel=across, ylabel=up)
    if level is not None:
        ax.axhline(level, color=INK, linewidth=0.8)
    return figure, ax


def _predictive(results: Results) -> Drawn:
    found, model = results["adequacy"]["figures"]["predictive"], results["model"]
    keys = ("edges", "observed", "expected", "low", "high")
    edges, observed, expected, low, high = (np.array(found[key], float) for key in keys)
    middle, width, roots = (edges[1:] + edges[:-1]) / 2, np.diff(edges), found["kind"] == "counts"
    scale, up = (np.sqrt, "rows, square roots") if roots else (np.asarray, "rows")
    figure, ax = _panel("observed and predicted", _short(model["target"], 40), up)
    ax.bar(middle, scale(observed), 0.85 * width, color=BLUE, alpha=0.75, label="observed")
    bars = np.maximum([scale(expected) - scale(low), scale(high) - scale(expected)], 0)
    style = {"fmt": "o", "color": ORANGE, "markersize": 3.5, "elinewidth": 1.2}
    ax.errorbar(middle, scale(expected), bars, label="predicted, 95 %", **style)
    if roots:
        ticks = [t for t in (0, 1, 4, 10, 25, 50, 100, 250, 500, 1000, 2500) if t <= ax.get_ylim()[1] ** 2]
        ax.set_yticks(np.sqrt(ticks), [str(t) for t in ticks])
    elif found["kind"] == "numbers":
        ax.xaxis.set_major_locator(MaxNLocator(6, prune="upper"))
        ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    else:
        names = [_short(name, 14) for name in model["classes"][: len(middle)]]
        turned = {"rotation": 90, "fontsize": 5} if len(names) > MOST_LEVEL else {}
        ax.set_xticks(middle[: len(names)], names, **turned)
        ax.grid(axis="x", visible=False)
        ax.set_ylim(top=1.25 * ax.get_ylim()[1])  # the legend stands above the bars
    ax.legend(loc="upper right")
    off = int(np.sum((observed < low) | (observed > high)))
    shown = "bars as observed, dots and 95 % intervals in data replicated from the model"
    caption = f"Rows in each bin: {shown}. {off} of {len(observed)} bars lie outside."
    return figure, f"Histogram of {model['target']}", caption


def _residuals(results: Results) -> Drawn:
    found, target = results["adequacy"]["figures"]["residuals"], _short(results["model"]["target"], 30)
    if found["kind"] != "groups":
        return _points(found, f"predicted {target}")
    figure, ax = _panel("residuals against predictions", "predicted probability", "observed − predicted share", 0)
    x, gap, error = np.array(sorted(found["points"])).T
    ax.fill_between(x, -error, error, color=BAND, alpha=0.6, linewidth=0)
    ax.plot(x, gap, "o", color=BLUE, markersize=4)
    off = int(np.sum(np.abs(gap) > error))
    caption = "Groups of rows with similar predicted probability; the band is two standard errors."
    return figure, "Observed less predicted share", f"{caption} {off} of {len(x)} lie outside."


def _points(found: dict[str, Any], name: str) -> Drawn:
    figure, ax = _panel(f"residuals against {name}", name, "residual, in standard deviations", 0)
    ax.plot(found["x"], found["residuals"], "o", color=GREY, markersize=3, alpha=0.55, markeredgewidth=0)
    ax.plot(found["grid"], found["smooth"], color=ORANGE, linewidth=2)
    far = 100 * float(np.mean(np.abs(found["residuals"]) > 3))
    shown = f"{len(found['x'])} of {found['rows']} rows" if len(found["x"]) < found["rows"] else "All rows"
    line = "the line is a smooth through all of them, level where the model is right"
    return figure, f"Residuals against {name}", f"{shown}; {line}. {far:.1f} % are beyond ±3."


def _pit(results: Results) -> Drawn:
    found = results["adequacy"]["figures"]["pit"]
    counts, bins = np.array(found["counts"], float), len(found["counts"])
    across = "probability of a smaller response (PIT), the row left out"
    figure, ax = _panel("place in the predictive distribution", across, "rows", found["expected"])
    ax.axhspan(found["low"], found["high"], color=BAND, alpha=0.6, linewidth=0)
    ax.bar((np.arange(bins) + 0.5) / bins, counts, 0.85 / bins, color=BLUE, alpha=0.75)
    ax.set_xlim(0, 1)
    off = int(np.sum((counts < found["low"]) | (counts > found["high"])))
    shape = "High ends: predictive distributions too narrow; a hump: too wide; a slope: shifted."
    caption = f"Level within the band where the model is right. {shape} {off} of {bins} bars lie outside."
    return figure, "PIT histogram", caption


def _coefficients(results: Results) -> Drawn:
    every = [c for c in results["coefficients"] if c["standardised"] is not None]
    rows = sorted(every, key=lambda c: -abs(c["standardised"]["mean"]))[:MOST_BARS]
    figure, (ax,) = axes_of((SIZE[0], max(1.6, 0.9 + 0.22 * len(rows))), "effect of one standard deviation")
    means = np.array([c["standardised"]["mean"] for c in rows])
    ends = np.array([c["standardised"]["interval_95"] for c in rows]).reshape(-1, 2)
    ax.axvline(0, color=INK, linewidth=0.8)
    intervals(ax, [_short(c["label"]) for c in rows], means, ends, (ends[:, 0] > 0) | (ends[:, 1] < 0))
    ax.set_xlabel(results["model"]["effect"])
    values = "; ".join(f"{c['label']} {c['standardised']['mean']:+.2g}" for c in rows[:3])
    caption = "Posterior means and 95 % credible intervals, per standard deviation of the predictor, the largest first"
    caption += f"; {len(every) - len(rows)} smaller ones are left out." if len(every) > len(rows) else "."
    return figure, f"Coefficients, {values}", f"{caption} Grey squares: the interval contains zero."


def _effects(results: Results) -> Drawn:
    found, model = results["effects"]["curves"], results["model"]
    figure, axes = axes_of((max(SIZE[0], min(3.2 * len(found), 9.6)), 2.9), "", columns=len(found))
    for ax, curve in zip(axes, found, strict=True):
        for line, colour in zip(curve["lines"], COLOURS * 4, strict=False):
            ax.fill_between(curve["x"], line["low"], line["high"], color=colour, alpha=0.2, linewidth=0)
            ax.plot(curve["x"], line["mean"], color=colour, label=_short(str(line["class"]), 16))
        ax.set_xlabel(_short(curve["name"], 30))
    what = f"P({model['target']} = {model['positive']})" if model["positive"] else f"expected {model['target']}"
    several = len(found[0]["lines"]) > 1
    axes[0].set_ylabel("probability" if several else _short(what, 34))
    if several:
        axes[0].legend(loc="best")
    how = "The average prediction over the rows with the column set to each value, all else as it is, and 95 % bands."
    return figure, f"Adjusted predictions along {', '.join(curve['name'] for curve in found)}", how


def _groups(results: Results) -> Drawn:
    effects = [(one, effect) for one in results["groups"] for effect in one["effects"]][:MOST_PANELS]
    most = max(min(one["levels"], MOST_NAMED) for one, _ in effects)
    size = (max(SIZE[0], min(3.2 * len(effects) + 1.4, 9.6)), max(1.8, 0.9 + 0.17 * most))
    figure, axes = axes_of(size, "", columns=len(effects))
    for ax, (one, effect) in zip(axes, effects, strict=True):
        rows = sorted((row for row in one["rows"] if row["effect"] == effect), key=lambda row: -row["mean"])
        names = [_short(row["level"], 18) for row in rows] if len(rows) <= MOST_NAMED else []
        ax.axvline(0, color=INK, linewidth=0.8)
        intervals(ax, names, np.array([row["mean"] for row in rows]), np.array([row["interval_95"] for row in rows]))
        ax.set_ylabel("" if names else f"{len(rows)} levels, the lowest first")
        ax.set_title(_short(f"{effect} | {one['name']}", 34), loc="left")
    what = ", ".join(f"{effect} by {one['name']}" for one, effect in effects)
    caption = "How far each level is from the common coefficient: posterior means and 95 % credible intervals."
    return figure, f"Deviations of the levels, {what}", caption


def _calibration(results: Results) -> Drawn:
    found = results["held_out"]["calibration"]
    of_classes, points = found["kind"] == "classes", found["points"]
    across = "predicted probability" if of_classes else "nominal level of the predictive interval"
    up = "how often it happened" if of_classes else "share of rows inside it"
    figure, ax = _panel("calibration on held-out rows", across, up)
    x, y = np.array([p["predicted"] for p in points]), np.array([p["observed"] for p in points])
    ends = np.array([p["interval_95"] for p in points])
    ax.plot([0, 1], [0, 1], color=INK, linewidth=0.8)
    ax.errorbar(x, y, np.maximum([y - ends[:, 0], ends[:, 1] - y], 0), fmt="o", color=BLUE, elinewidth=1, capsize=2.5)
    ax.set(xlim=(-0.03, 1.03), ylim=(-0.03, 1.03))
    off = int(np.sum((ends[:, 0] > x) | (ends[:, 1] < x)))
    missed = f"{off} of {len(points)} intervals {'misses' if off == 1 else 'miss'} the diagonal."
    pooled = ", all classes pooled" if len(results["model"]["classes"]) > 2 else ""
    what = "Central predictive intervals, which share the rows and so err together"
    what = f"Groups of rows with similar predicted probability{pooled}" if of_classes else what
    return figure, "Calibration", f"{what}; bars are 95 % intervals of the observed share. {missed}"


def _trace(results: Results) -> Drawn:
    found, shown = results["trace"], results["trace"]["parameters"]
    figure, axes = axes_of((6.6, 0.84 + 1.0 * len(shown)), "", rows=len(shown))
    for ax, parameter in zip(axes, shown, strict=True):
        for series, colour in zip(parameter["chains"], COLOURS, strict=False):
            ax.plot(found["steps"][: len(series)], series, color=colour, linewidth=0.7, alpha=0.85)
        ax.set_title(_short(parameter["label"], 50), loc="left", pad=2)
        ax.yaxis.set_major_locator(MaxNLocator(3))
        ax.tick_params(labelbottom=ax is axes[-1])
    axes[-1].set_xlabel("draw")
    names, count = ", ".join(p["label"] for p in shown), len(shown[0]["chains"])
    caption = f"Draws in {count} of {results['sampler']['num_chains']} groups, in the units of the table."
    return figure, f"Traces of {names}", caption


def _short(text: str, most: int = 24) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
