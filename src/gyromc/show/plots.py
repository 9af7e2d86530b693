"""Figures of posteriors and predictions, from arrays, as Matplotlib's `Figure`."""

from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gyromc.show.numbers import printable
from gyromc.show.pages import FIGURE_STYLE, image, lay_out

KINDS = ("density", "forest", "trace", "rank")
BLUE, ORANGE, GREY = "#0072B2", "#D55E00", "#6B6B6B"  # Okabe and Ito's, and grey
COLOURS = (BLUE, ORANGE, "#009E73", "#CC79A7")  # of the chains of a trace
MOST_POINTS = 4000  # of a density: enough for a smooth curve
MOST_LARGE = 40  # points of a forest that are large
BINS = 20  # of ranks, as ArviZ draws them


def figure_style() -> Any:
    """Matplotlib's settings; a $ in the name of a column is a $, and titles need not make way for ticks above the axes."""
    return matplotlib.rc_context({**FIGURE_STYLE, "text.parse_math": False, "axes.titley": 1.0})


class NotebookFigure(Figure):
    """A figure without a window that notebooks show by themselves."""

    def _repr_png_(self) -> bytes:
        return image(self, "png", dpi=90)


def posterior_plot(
    kind: str, names: Sequence[str], values: np.ndarray, weights: np.ndarray, ends: np.ndarray, means: np.ndarray
) -> Figure:
    """Draw observables by the weighted draws: densities, a forest of intervals, traces, or ranks of chains."""
    names = [printable(name) for name in names]
    if kind == "forest":
        return interval_plot(names, means, ends)
    with figure_style():
        columns = min(3, len(names))
        rows = -(-len(names) // columns)
        figure = NotebookFigure(figsize=(3.2 * columns, 2.2 * rows))
        axes = figure.subplots(rows, columns, squeeze=False).ravel()
        for place, (ax, name) in enumerate(zip(axes, names, strict=False)):
            column = values[..., place]
            if kind == "density":
                _density(ax, column, weights, ends[place], means[place])
            elif kind == "trace":
                for chain, colour in zip(column, COLOURS, strict=False):
                    ax.plot(chain, color=colour, linewidth=0.7, alpha=0.85)
                ax.set_xlabel("draw")
            else:
                _ranks(ax, column)
            ax.set_title(name, loc="left")
        for ax in axes[len(names) :]:
            ax.set_visible(False)
        lay_out(figure)
    return figure


def interval_plot(names: Sequence[str], means: np.ndarray, ends: np.ndarray, inner: np.ndarray | None = None) -> Figure:
    """Draw a point and an interval for each name, the first at the top; `inner` are shorter intervals, drawn thicker."""
    with figure_style():
        figure = NotebookFigure(figsize=(5.2, max(1.6, 0.8 + 0.26 * len(names))))
        ax = figure.subplots()
        intervals(ax, names, means, ends)
        if inner is not None:
            ax.hlines(np.arange(len(names))[::-1], inner[:, 0], inner[:, 1], color=BLUE, linewidth=3.5)
        lay_out(figure)
    return figure


def intervals(ax: Axes, names: Sequence[str], means: np.ndarray, ends: np.ndarray, clear: Any = True) -> None:
    """Draw a point and an interval for each name, the first at the top; those that are not `clear` as grey squares."""
    places, clear = np.arange(len(means))[::-1], np.broadcast_to(clear, len(means))
    for kept, colour, marker in ((clear, BLUE, "o"), (~clear, GREY, "s")):
        if kept.any():
            ax.hlines(places[kept], ends[kept, 0], ends[kept, 1], color=colour, linewidth=1.2)
            ax.plot(means[kept], places[kept], marker, color=colour, markersize=5 if len(means) <= MOST_LARGE else 3)
    ax.set_yticks(places if len(names) else [], list(names))
    ax.grid(axis="y", visible=False)
    ax.margins(y=0.5 / max(len(means), 3))


def _density(ax: Axes, values: np.ndarray, weights: np.ndarray, ends: np.ndarray, mean: float) -> None:
    """A smoothed density with its interval shaded and its mean marked; a line where all values are equal."""
    # When it is used: reports, which have no densities, take a second less.
    from scipy.stats import gaussian_kde

    x, w = values.ravel(), weights.ravel()
    every = max(1, len(x) // MOST_POINTS)
    x, w = x[::every], w[::every]
    if np.ptp(x) > 0:
        density = gaussian_kde(x, weights=w / w.sum())
        low, high = np.quantile(x, [0.001, 0.999])
        grid = np.linspace(low, high, 200)
        height = density(grid)
        ax.plot(grid, height, color=BLUE)
        inside = (grid >= ends[0]) & (grid <= ends[1])
        ax.fill_between(grid[inside], height[inside], color=BLUE, alpha=0.2, linewidth=0)
    ax.axvline(mean, color=ORANGE, linewidth=1.2)
    ax.set_yticks([])
    ax.set_ylim(bottom=0)


def _ranks(ax: Axes, values: np.ndarray) -> None:
    """How often each chain has each rank among all draws: level where the chains agree."""
    from scipy.stats import rankdata

    chains, draws = values.shape
    ranks = rankdata(values, axis=None).reshape(values.shape)
    edges = np.linspace(0.5, values.size + 0.5, BINS + 1)
    for chain in ranks:
        ax.stairs(np.histogram(chain, edges)[0], edges, color=BLUE, alpha=max(0.15, 1 / chains), linewidth=1)
    ax.axhline(draws / BINS, color=ORANGE, linewidth=1.2)
    ax.set_xlabel("rank among all draws")
    ax.set_ylim(bottom=0)
