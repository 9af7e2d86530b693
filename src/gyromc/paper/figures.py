"""The figures of one experiment: RMSE against η, a normal Q-Q plot, and those that the paper does not have.

Colours are distinguishable for colour-blind readers; each dynamics has its own marker and line style, for greyscale print.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from gyromc.paper.catalogue import ROLE_NAMES
from gyromc.paper.claims import normal_scores, quantile_band
from gyromc.show.pages import FIGURE_STYLE, lay_out

COLOURS = {"nonreversible": "#0072B2", "reversible": "#D55E00", "sgld": "#6B6B6B"}
"""Okabe and Ito's, and grey."""
MARKERS = {"nonreversible": "o", "reversible": "s", "sgld": "^"}
LINES = {"nonreversible": "-", "reversible": (0, (5, 2)), "sgld": (0, (1, 1.5))}
RATIO_TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4, 5, 7, 10)
SIZE = (4.4, 3.5)


@dataclasses.dataclass(frozen=True, eq=False)
class Panel:
    """A figure, its alternative text, and the table behind it."""

    name: str
    kind: str
    figure: Figure
    alt: str
    caption: str
    columns: tuple[str, ...]
    rows: list[tuple]


def panels(name: str, found: dict[str, Any]) -> Iterator[Panel]:
    """Draw the panels of one experiment from its part of results.json: `rmse`, `qq` and, where known, `bias` and `rows`."""
    even = "even" in found["cells"]["nonreversible"][0]
    more = [_bias_panel] * even + [_rows_panel] * ("rows" in found)
    for draw in (_rmse_panel, _qq_panel, *more):
        with matplotlib.rc_context(FIGURE_STYLE):
            panel = draw(name, found)
            lay_out(panel.figure)
            yield panel


def _axes(title: str, ylabel: str, etas: Sequence[float] | None = None, xlabel: str = "step size η"):
    """A figure with its axes; `etas` are the ticks of a logarithmic axis."""
    figure = Figure(figsize=SIZE)
    ax = figure.add_subplot()
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
    if etas is not None:
        ax.set_xscale("log", base=2)
        ax.set_xticks(etas)
        ax.xaxis.set_minor_locator(NullLocator())
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:.3g}".replace("0.", ".", 1)))
        ax.margins(x=0.08)
    return figure, ax


def _rmse_panel(name: str, found: dict[str, Any]) -> Panel:
    etas, own = found["step_sizes"], "rows" in found
    figure, ax = _axes(f"{name}: RMSE against step size", "RMSE of a time average", etas)
    key = "paper_rmse" if own else "rmse"
    rows, ends = [], []
    for role, cells in found["cells"].items():
        values = np.array([c[key] for c in cells])
        low, high = np.array([c[f"{key}_interval"] for c in cells]).T
        style = {"color": COLOURS[role], "zorder": 3}
        _points(ax, etas, values, [values - low, high - values], role)
        if None not in (asymptotic := [c["asymptotic_rmse"] for c in cells]):
            ax.plot(etas, asymptotic, linestyle=(0, (2, 2)), linewidth=0.9, alpha=0.8, **style)
        if cells[0]["z"] is not None:
            ax.plot(etas, [c["predicted"]["rmse"] for c in cells], linestyle=LINES[role], linewidth=1.1, **style)
        if own:
            ax.plot(etas, [c["rmse"] for c in cells], MARKERS[role], markerfacecolor="none", markersize=8, **style)
        rows += [
            (role, *(c[x] for x in ("step_size", "num_steps", "num_chains", key)), *c[f"{key}_interval"], c["bias"], c["std"],
             c["predicted"]["rmse"], c["asymptotic_rmse"], c["z"], c["rmse"] if own else None)
            for c in cells
        ]  # fmt: skip
        last = f"{values[-1]:.3g} at η = {etas[-1]:g}"
        ends.append(f"{ROLE_NAMES[role]} {values[0]:.3g} at η = {etas[0]:g} and {last}")
    ax.set_yscale("log")
    ax.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.3g}"))
    ax.yaxis.set_minor_formatter(NullFormatter())
    # A line of slope ½ in the lower right corner.
    low, high = ax.get_ylim()
    ax.set_ylim(low := low / (high / low) ** 0.12, high)
    guide = np.array([etas[1] if len(etas) > 1 else etas[0] / 2, etas[0]])
    base = low * (high / low) ** 0.08
    ax.plot(guide, base * np.sqrt(guide / guide[0]), color="#333333", linewidth=1)
    place = {"xytext": (3, -3), "textcoords": "offset points", "ha": "left", "va": "top"}
    ax.annotate("slope ½", (guide[0], base), fontsize=7, **place)
    _legend(ax)
    alt = f"Log-log plot of RMSE against step size for {name}. RMSE: {'; '.join(ends)}."
    first = found["cells"]["nonreversible"][0]
    lines = "Dotted: √(ηV) from theory."
    lines += " Filled: about the paper's own reference; open: about the independent one." if own else ""
    lines += " Solid: exact for finite η." if first["z"] is not None else ""
    caption = f"RMSE of {first['num_chains']} chains with 95 % intervals. {lines}"
    columns = "dynamics step_size num_steps num_chains rmse low high bias std predicted_rmse asymptotic_rmse z"
    return Panel(name, "rmse", figure, alt, caption, (*columns.split(), "rmse_independent_reference"), rows)


def _points(ax, etas, values, bars, role: str) -> None:
    """Draw the points of one dynamics with their 95 % intervals."""
    style = {"fmt": MARKERS[role], "color": COLOURS[role], "label": ROLE_NAMES[role]}
    ax.errorbar(etas, values, bars, capsize=2.5, elinewidth=1, zorder=3, **style)


def _legend(ax) -> None:
    """Put the legend below the axes, where it hides no point."""
    handles, labels = ax.get_legend_handles_labels()
    columns = 2 if len(handles) in (2, 4) else 3
    ax.figure.legend(handles, labels, loc="outside lower center", ncols=columns, handlelength=1.6, columnspacing=1.2)


def _qq_panel(name: str, found: dict[str, Any]) -> Panel:
    rows, summary, by = [], [], found["qq"]["nonreversible"]["by"]
    title, ylabel = f"{name}: normal Q-Q at η = {found['step_sizes'][-1]:g}", f"error / {by.removeprefix('the ')}"
    figure, ax = _axes(title, ylabel, xlabel="standard normal quantile")
    for role in ("reversible", "nonreversible"):
        q = found["qq"][role]
        z = (np.array(q["averages"]) - q["center"]) / q["scale"]
        scores = normal_scores(z.size)
        if role == "reversible":
            low, high = quantile_band(z.size)
            ax.fill_between(scores, low, high, color="#999999", alpha=0.25, linewidth=0, label="95 % simultaneous band")
            ax.plot(scores[[0, -1]], scores[[0, -1]], color="#333333", linewidth=0.9, label="y = x")
        # All of both tails, and enough of the middle.
        tails = [np.arange(30), np.arange(z.size - 30, z.size)]
        shown = np.unique(
            np.concatenate([*tails, np.linspace(0, z.size - 1, 120).round()]).clip(0, z.size - 1).astype(int)
        )
        ax.plot(
            scores[shown], z[shown], MARKERS[role], color=COLOURS[role], markersize=3.2, markerfacecolor="none",
            markeredgewidth=0.8, label=ROLE_NAMES[role],
        )  # fmt: skip
        rows += [(role, float(s), float(v)) for s, v in zip(scores, z, strict=True)]
        summary.append(f"{ROLE_NAMES[role]}: slope {q['slope']:.3f}, intercept {q['intercept']:+.3f}")
    _legend(ax)
    alt = f"Normal Q-Q plot of normalised errors for {name}. Line through the points, {'; '.join(summary)}."
    caption = f"Errors divided by {by}; the grey band holds all points of a normal sample with probability 95 %."
    return Panel(name, "qq", figure, alt, caption, ("dynamics", "normal_quantile", "normalised_error"), rows)


def _bias_panel(name: str, found: dict[str, Any]) -> Panel:
    """Draw the bias of the even observable against η."""
    even, etas, columns = (
        found["formulas"]["even observable"],
        found["step_sizes"],
        ("bias", "bias_std_error", "predicted_bias"),
    )
    figure, ax = _axes(f"{name}: bias of {even}", f"mean of {even} less its expectation", etas)
    ax.axhline(0, color="#333333", linewidth=0.8)
    rows, summary, lines = [], [], ""
    for role, cells in found["cells"].items():
        bias, se, predicted = ([c["even"][key] for c in cells] for key in columns)
        _points(ax, etas, bias, 1.96 * np.array(se), role)
        if None not in predicted:
            ax.plot(etas, predicted, linestyle=LINES[role], color=COLOURS[role], linewidth=1.1)
            lines = ", lines predictions"
        rows += [(role, *row) for row in zip(etas, bias, se, predicted, strict=True)]
        summary.append(f"{ROLE_NAMES[role]} {bias[0]:+.3g} at η = {etas[0]:g}")
    _legend(ax)
    caption = f"An even observable shows the O(η) bias that odd ones hide; bars are 95 % intervals{lines}."
    alt = f"Bias of {even} against step size for {name}: {'; '.join(summary)}."
    return Panel(
        name, "bias", figure, alt, caption, ("dynamics", "step_size", "bias", "std_error", "predicted_bias"), rows
    )


def _rows_panel(name: str, found: dict[str, Any]) -> Panel:
    """Draw RMSE ratios over all test rows, one column of points per step size, the chosen row marked."""
    etas, chosen, table = found["step_sizes"], found["reference"]["chosen"], found["rows"]
    title, ylabel = f"{name}: RMSE ratio at every test row", "RMSE ratio (below 1: non-reversible wins)"
    figure, ax = _axes(title, ylabel, etas)
    ax.axhline(1, color="#333333", linewidth=0.8)
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_locator(FixedLocator(RATIO_TICKS))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.3g}"))
    rivals = [role for role in found["roles"] if role != "nonreversible"]
    rows = []
    for j, rival in enumerate(rivals):
        ratios = np.array(table["nonreversible"]["rmse"]) / np.array(table[rival]["rmse"])
        # Beside the step size, in factors of 2.
        middle = 0.28 * (j - (len(rivals) - 1) / 2)
        scatter = np.random.default_rng(0).uniform(-0.09, 0.09, ratios.shape)
        places = np.array(etas)[:, None] * 2 ** (middle + scatter)
        style = {"color": COLOURS[rival], "markersize": 3, "alpha": 0.6}
        label = f"against {ROLE_NAMES[rival].removesuffix(' baseline')}"
        ax.plot(places.ravel(), ratios.ravel(), MARKERS[rival], label=label, **style)
        stars = {"color": "black", "markersize": 8, "label": None if j else "chosen row"}
        ax.plot(places[:, chosen], ratios[:, chosen], "*", **stars)
        rows += [(rival, eta, i, float(r)) for eta, at in zip(etas, ratios, strict=True) for i, r in enumerate(at)]
    _legend(ax)
    share = found["wins"][rivals[0]]["rmse"]
    summary = ", ".join(f"{100 * s:.0f} % at η = {eta:g}" for eta, s in zip(etas, share, strict=True))
    alt = f"RMSE ratios over all test rows for {name}. The non-reversible sampler beats its baseline in {summary} of the rows."
    caption = "Ratio of RMSEs about the independent reference, one point per test row; the star is the row of the paper's panels."
    return Panel(name, "rows", figure, alt, caption, ("against", "step_size", "test_row", "rmse_ratio"), rows)
