"""The figures of a fit, from fit.json: coefficients with intervals, calibration on held-out rows, traces of the chains.

Those of the model's checks are in `model_figures`.
"""

from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from gyromc.app.fit.model_figures import BLUE, GREY, ORANGE, axes_of, model_figures
from gyromc.show.pages import FIGURE_STYLE, Picture, lay_out

__all__ = ["pictures"]

CHAIN_COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7")
MOST_BARS = 25


def pictures(results: dict[str, Any]) -> list[Picture]:
    """Draw the pictures: `coefficients`, `calibration` where rows were held out, `trace`, and those of `model_figures`."""
    draw = {"coefficients": _coefficients, "calibration": _calibration, "trace": _trace, **model_figures(results)}
    if results["held_out"] is None:
        del draw["calibration"]
    style = {**FIGURE_STYLE, "text.parse_math": False}  # a $ in the name of a column is a $
    with matplotlib.rc_context(style):
        return [_picture(kind, *function(results)) for kind, function in draw.items()]


def _picture(kind: str, figure: Figure, alt: str, caption: str) -> Picture:
    lay_out(figure)
    return Picture.of(kind, figure, alt, caption)


def _coefficients(results: dict[str, Any]) -> tuple[Figure, str, str]:
    """Draw the effect of one standard deviation of each predictor, the largest first."""
    rows = [c for c in results["coefficients"] if c["standardised"] is not None]
    rows = sorted(rows, key=lambda c: -abs(c["standardised"]["mean"]))
    left_out, rows = len(rows) - len(rows[:MOST_BARS]), rows[:MOST_BARS]
    figure, (ax,) = axes_of((4.4, max(1.6, 0.9 + 0.22 * len(rows))), "effect of one standard deviation")
    places = np.arange(len(rows))[::-1]
    means = np.array([c["standardised"]["mean"] for c in rows])
    ends = np.array([c["standardised"]["interval_95"] for c in rows]).reshape(-1, 2)
    ax.axvline(0, color="#333333", linewidth=0.8)
    sure = (ends[:, 0] > 0) | (ends[:, 1] < 0)
    for mask, colour, marker in ((sure, BLUE, "o"), (~sure, GREY, "s")):
        if mask.any():
            bars = np.abs(ends[mask] - means[mask, None]).T
            ax.errorbar(means[mask], places[mask], xerr=bars, fmt=marker, color=colour, elinewidth=1.3, capsize=0)
    ax.set_yticks(places, [_short(c["label"]) for c in rows])
    ax.grid(axis="y", visible=False)
    ax.set_xlabel(results["model"]["effect"])
    ax.margins(y=0.5 / max(len(rows), 3))
    values = "; ".join(f"{c['label']} {c['standardised']['mean']:+.2g}" for c in rows[:3])
    alt = f"Coefficients with 95 % credible intervals, largest first: {values}."
    caption = "Posterior means and 95 % credible intervals, per standard deviation of the predictor, the largest first"
    caption += f"; {left_out} smaller ones are left out." if left_out else "."
    return figure, alt, caption + " Grey squares: the interval holds zero."


def _calibration(results: dict[str, Any]) -> tuple[Figure, str, str]:
    """Draw observed against predicted shares; perfect predictions lie on the diagonal."""
    found = results["held_out"]["calibration"]
    of_classes = found["kind"] == "classes"
    figure, (ax,) = axes_of((4.4, 3.7), "calibration on held-out rows")
    points = found["points"]
    x, y = np.array([p["predicted"] for p in points]), np.array([p["observed"] for p in points])
    ends = np.array([p["interval_95"] for p in points])
    ax.plot([0, 1], [0, 1], color="#333333", linewidth=0.8)
    ax.errorbar(x, y, np.maximum([y - ends[:, 0], ends[:, 1] - y], 0), fmt="o", color=BLUE, elinewidth=1, capsize=2.5)
    ax.set_xlim(-0.03, 1.03)
    ax.set_ylim(-0.03, 1.03)
    ax.set_xlabel("predicted probability" if of_classes else "nominal level of the predictive interval")
    ax.set_ylabel("how often it happened" if of_classes else "share of rows inside it")
    off = int(np.sum((ends[:, 0] > x) | (ends[:, 1] < x)))
    values = ", ".join(f"{a:.2f}: {b:.2f}" for a, b in zip(x, y, strict=True))
    alt = f"Calibration plot, predicted against observed: {values}. {off} of {len(points)} intervals miss the diagonal."
    missed = f"{off} of {len(points)} {'misses' if off == 1 else 'miss'} the diagonal."
    what = "Groups of like predicted probability" if of_classes else "Central predictive intervals"
    shared = "" if of_classes else ", which share the rows and so err together"
    pooled = ", all classes pooled" if of_classes and len(results["model"]["classes"]) > 2 else ""
    caption = f"{what}{pooled}{shared}; bars are 95 % intervals of the observed share. {missed}"
    return figure, alt, caption


def _trace(results: dict[str, Any]) -> tuple[Figure, str, str]:
    """Draw the stored states of a few chains, for the parameters that stand out most."""
    found = results["trace"]
    shown = found["parameters"]
    figure, axes = axes_of((4.4, 0.5 + 0.95 * len(shown)), "", rows=len(shown))
    for ax, parameter in zip(axes, shown, strict=True):
        for series, colour in zip(parameter["chains"], CHAIN_COLOURS, strict=False):
            ax.plot(found["steps"][: len(series)], series, color=colour, linewidth=0.7, alpha=0.85)
        ax.set_title(_short(parameter["label"], 50), loc="left", pad=2)
        ax.yaxis.set_major_locator(MaxNLocator(3))
        if ax is not axes[-1]:
            ax.tick_params(labelbottom=False)
    axes[-1].set_xlabel("step")
    names = ", ".join(p["label"] for p in shown)
    count = len(shown[0]["chains"])
    alt = f"Traces of {count} chains for {names}: each chain wanders over the same range when the run is long enough."
    chains = results["sampler"]["num_chains"]
    caption = f"Every {found['thin']}th state of {count} of the {chains} chains, in the units of the table."
    return figure, alt, caption


def _short(text: str, most: int = 24) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
