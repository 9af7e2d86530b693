"""The figures of the checks of a model, from fit.json: predicted and observed responses, residuals, and the PIT histogram."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure

__all__ = ["BLUE", "GREY", "ORANGE", "axes_of", "model_figures"]

BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6B6B6B"  # Okabe and Ito's, and grey
BAND = "#9CC9E6"
SIZE = (4.4, 3.1)
Drawn = tuple[Figure, str, str]  # with a text in place of the figure, and a caption


def model_figures(results: dict[str, Any]) -> dict[str, Callable[[dict[str, Any]], Drawn]]:
    """Return the functions that draw what fit.json has numbers for: `predictive`, `residuals`, `pit`, `curve`."""
    known = {"predictive": _predictive, "residuals": _residuals, "pit": _pit, "curve": _curve}
    return {kind: draw for kind, draw in known.items() if kind in results["adequacy"]["figures"]}


def axes_of(size: tuple[float, float], title: str, rows: int = 1):
    """Return a figure and its axes, one below the other, with a title above the first."""
    figure = Figure(figsize=size)
    axes = figure.subplots(rows, squeeze=False).ravel()
    axes[0].set_title(title, loc="left")
    return figure, axes


def _predictive(results: dict[str, Any]) -> Drawn:
    """Draw how often each value came, and how often the model expects it; counts on the scale of square roots."""
    found, model = results["adequacy"]["figures"]["predictive"], results["model"]
    edges, observed = np.array(found["edges"]), np.array(found["observed"], float)
    expected, low, high = (np.array(found[key]) for key in ("expected", "low", "high"))
    middle, width = (edges[1:] + edges[:-1]) / 2, np.diff(edges)
    roots = found["kind"] == "counts"
    scale = np.sqrt if roots else np.asarray
    figure, (ax,) = axes_of(SIZE, "observed, and as the model predicts")
    ax.bar(middle, scale(observed), 0.85 * width, color=BLUE, alpha=0.75, label="observed")
    bars = np.maximum([scale(expected) - scale(low), scale(high) - scale(expected)], 0)
    ax.errorbar(
        middle, scale(expected), bars, fmt="o", color=ORANGE, markersize=3.5, elinewidth=1.2, label="predicted, 95 %"
    )
    if roots:
        top = ax.get_ylim()[1]
        ticks = [t for t in (0, 1, 4, 10, 25, 50, 100, 250, 500, 1000, 2500) if t <= top**2]
        ax.set_yticks(np.sqrt(ticks), [str(t) for t in ticks])
    if found["kind"] == "classes":
        ax.set_xticks(middle[: len(model["classes"])], [_short(name) for name in model["classes"]])
        ax.grid(axis="x", visible=False)
        ax.set_ylim(top=1.25 * ax.get_ylim()[1])  # the legend stands above the bars
    ax.set_xlabel(_short(model["target"], 40))
    ax.set_ylabel("rows, square roots" if roots else "rows")
    ax.legend(loc="upper right")
    off = int(np.sum((observed < low) | (observed > high)))
    alt = f"Histogram of {model['target']}, observed and replicated: {off} of {len(observed)} bars are outside 95 % intervals."
    what = "Rows in each bin: bars as observed, dots and 95 % intervals in data replicated from the model."
    return figure, alt, f"{what} {off} of {len(observed)} bars lie outside."


def _residuals(results: dict[str, Any]) -> Drawn:
    """Draw what is left against what is predicted."""
    found, model = results["adequacy"]["figures"]["residuals"], results["model"]
    figure, (ax,) = axes_of(SIZE, "residuals against predictions")
    ax.axhline(0, color="#333333", linewidth=0.8)
    if found["kind"] == "groups":
        x, gap, error = np.array(found["points"]).T
        ax.fill_between(*_band(x, error), color=BAND, alpha=0.6, linewidth=0)
        ax.plot(x, gap, "o", color=BLUE, markersize=4)
        ax.set_xlabel("predicted probability")
        ax.set_ylabel("observed less predicted share")
        off = int(np.sum(np.abs(gap) > error))
        alt = f"Observed less predicted share in groups of rows: {off} of {len(x)} groups lie outside two standard errors."
        caption = "Groups of rows with like predicted probability; the band is two standard errors."
        return figure, alt, f"{caption} {off} of {len(x)} lie outside."
    return figure, *_points(ax, found, f"predicted {_short(model['target'], 30)}")


def _curve(results: dict[str, Any]) -> Drawn:
    """Draw what is left against the column that wants a curve."""
    found = results["adequacy"]["figures"]["curve"]
    figure, (ax,) = axes_of(SIZE, f"residuals against {_short(found['column'], 30)}")
    ax.axhline(0, color="#333333", linewidth=0.8)
    return figure, *_points(ax, found, _short(found["column"], 40))


def _points(ax: Any, found: dict[str, Any], name: str) -> tuple[str, str]:
    """Draw residuals with their smooth; return the text in place of the figure, and the caption."""
    ax.plot(found["x"], found["residuals"], "o", color=GREY, markersize=3, alpha=0.55, markeredgewidth=0)
    ax.plot(found["grid"], found["smooth"], color=ORANGE, linewidth=2)
    ax.set_xlabel(name)
    ax.set_ylabel("residual, in standard deviations")
    far = 100 * float(np.mean(np.abs(found["residuals"]) > 3))
    bend = float(np.max(np.abs(found["smooth"])))
    shown = f"{len(found['x'])} of {found['rows']} rows" if len(found["x"]) < found["rows"] else "All rows"
    alt = f"Residuals against {name}: the smooth leaves zero by at most {bend:.2g} standard deviations; {far:.1f} % are beyond 3."
    line = "the line is a smooth through all of them, level where the model is right"
    return alt, f"{shown}; {line}. {far:.1f} % are beyond ±3."


def _band(x: np.ndarray, error: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    order = np.argsort(x)
    return x[order], -error[order], error[order]


def _pit(results: dict[str, Any]) -> Drawn:
    """Draw where responses lie in their predicted laws: level where the model is right."""
    found = results["adequacy"]["figures"]["pit"]
    counts = np.array(found["counts"], float)
    bins = len(counts)
    figure, (ax,) = axes_of(SIZE, "place in the predicted law")
    ax.axhspan(found["low"], found["high"], color=BAND, alpha=0.6, linewidth=0)
    ax.axhline(found["expected"], color="#333333", linewidth=0.8)
    ax.bar((np.arange(bins) + 0.5) / bins, counts, 0.85 / bins, color=BLUE, alpha=0.75)
    ax.set_xlim(0, 1)
    ax.set_xlabel("probability of a smaller response (PIT), the row left out")
    ax.set_ylabel("rows")
    off = int(np.sum((counts < found["low"]) | (counts > found["high"])))
    alt = f"PIT histogram with {bins} bars: {off} lie outside the band that holds 95 % of them by chance."
    shape = "High ends: predicted laws are too narrow; a hump: too wide; a slope: shifted."
    return figure, alt, f"Level within the band where the model is right. {shape} {off} of {bins} bars lie outside."


def _short(text: str, most: int = 14) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
