"""report.html: one self-contained page with the paper's claims, the measurements and the predictions; and its figures.

Every number comes from results.json, so `gyromc report DIR` rebuilds everything without sampling.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gyromc
from gyromc.checks import require
from gyromc.datasets import HEART
from gyromc.extras import require_extra
from gyromc.paper import claims
from gyromc.paper.catalogue import ROLE_NAMES
from gyromc.paper.claims import normal_scores, quantile_band
from gyromc.paper.computation import WorkerTask, computed
from gyromc.runtime.machine import num_threads
from gyromc.show.files import ResultsFile, csv_text, require_writable, write_atomically
from gyromc.show.numbers import counted, duration
from gyromc.show.pages import FIGURE_STYLE, Picture, environment, image, lay_out
from gyromc.show.progress import Progress

RESULTS = ResultsFile("results.json", "gyromc.reproduction", 2, "gyromc reproduce --out {directory}")

COLUMNS = {
    "smaller-error": "(i) smaller RMSE",
    "asymptotic": "(ii) RMSE/√(ηV) → 1",
    "slope": "(iii) slope → ½",
    "normality": "(iv) normal errors",
    "exact": "RMSE = exact prediction",
    "smaller-error-sgld": "beats plain SGLD",
}
"""The verdict table: claim by column, the paper's four first."""
SIGNS = {claims.CONFIRMED: "✓", claims.HOLDS_HERE: "✓", claims.UNRESOLVED: "?", claims.REFUTED: "✗"}
CLASSES = {"✓": "yes", "?": "open", "✗": "no"}
STATUS_CLASSES = {"holds": "yes", "certified": "yes", "confirmed": "yes", "fails": "no", "violated": "no"}
SECONDS_PER_FIGURES = 1.4
"""Of one experiment, for the progress bar."""
FEW_EXPERIMENTS = 5
"""So many, and fewer, are drawn before another process has started."""
COLOURS = {"nonreversible": "#0072B2", "reversible": "#D55E00", "sgld": "#6B6B6B"}
"""Okabe and Ito's, and grey."""
MARKERS = {"nonreversible": "o", "reversible": "s", "sgld": "^"}
LINES = {"nonreversible": "-", "reversible": (0, (5, 2)), "sgld": (0, (1, 1.5))}
Panel = tuple[Any, str, str, Sequence[str], list[tuple]]
"""A figure, its alternative text, its caption, and the columns and rows of the table behind it."""
RATIO_TICKS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1.2, 1.5, 2, 3, 4, 5, 7, 10)


def write_report(results: Mapping[str, Any], directory: Path, shown: Progress | None = None) -> Path:
    """Draw the figures, in as many processes as are the fastest, and write report.html; return its path."""
    experiments = results["experiments"]
    for name in experiments:
        wrong = f"{RESULTS.name} has an experiment {name!r}; a name has letters, digits and hyphens only, as files are named"
        again = f"after it. Nothing was written. Run `{RESULTS.command.format(directory=directory)}` again."
        require(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name), f"{wrong} {again}")
    require_extra("report", "The report of a reproduction")
    require_writable(directory)
    tasks = [WorkerTask(f"{one[0]}: figures", drawn, one, SECONDS_PER_FIGURES) for one in experiments.items()]
    pictures: dict[str, list[Picture]] = {}
    workers = 1 if len(tasks) <= FEW_EXPERIMENTS else min(num_threads(), len(tasks))
    for i, (made, files) in computed(tasks, workers, shown):
        pictures[list(experiments)[i]] = made
        for file, content in files.items():
            write_atomically(directory / "figures" / file, content)
    path = directory / "report.html"
    write_atomically(path, render(results, pictures))
    return path


def drawn(name: str, found: dict[str, Any]) -> tuple[list[Picture], dict[str, str | bytes]]:
    """Draw one experiment's panels; return the pictures of the page, and by name the files in every format."""
    import matplotlib

    pictures, files = [], {}
    panels = {"rmse": _rmse_panel, "qq": _qq_panel}
    panels |= {"bias": _bias_panel} if "even" in found["cells"]["nonreversible"][0] else {}
    panels |= {"rows": _rows_panel} if "rows" in found else {}
    for kind, draw in panels.items():
        with matplotlib.rc_context(FIGURE_STYLE):
            figure, alt, caption, columns, rows = draw(name, found)
            # The legend is below the axes, where it hides no point.
            handles, labels = figure.axes[0].get_legend_handles_labels()
            style = {"ncols": 2 if len(handles) in (2, 4) else 3, "handlelength": 1.6, "columnspacing": 1.2}
            figure.legend(handles, labels, loc="outside lower center", **style)
            lay_out(figure)
            pictures.append(Picture.of(kind, figure, alt, caption))
            stem = f"{name}-{kind}"
            files |= {f"{stem}.csv": csv_text(columns, rows), f"{stem}.svg": pictures[-1].svg}
            files |= {f"{stem}.png": image(figure, "png", dpi=160)}
            files |= {f"{stem}.pdf": image(figure, "pdf", metadata={"CreationDate": None})}
    return pictures, files


def render(results: Mapping[str, Any], pictures: Mapping[str, list[Picture]]) -> str:
    """The page as text, with the pictures of each experiment."""
    experiments = results["experiments"]
    counts = {source: dict.fromkeys(SIGNS, 0) for source in ("paper", "beyond")}
    for claim in (claim for found in experiments.values() for claim in found["claims"]):
        counts[claim["source"]][claim["verdict"]] += 1
    heart = HEART.citation if any(f["family"] == "logistic" for f in experiments.values()) else None
    said = {"answer": answer(experiments), "heart": heart, "version": gyromc.__version__, "counts": counts}
    names = {"role_names": ROLE_NAMES, "signs": SIGNS, "classes": CLASSES, "status_classes": STATUS_CLASSES}
    return _filled("report.html.j2", results, pictures=pictures, tolerances=claims, **said, **names)


def answer(experiments: Mapping[str, Any]) -> str:
    """The answer to the page's title in a sentence: where claim (i) holds, by how much, and why not elsewhere."""
    found = {name: next(c for c in one["claims"] if c["key"] == "smaller-error") for name, one in experiments.items()}
    lower = {name: c for name, c in found.items() if c["verdict"] in (claims.CONFIRMED, claims.HOLDS_HERE)}
    refuted = [name for name, c in found.items() if c["verdict"] == claims.REFUTED]
    unclear = [name for name in found if name not in lower and name not in refuted]
    gains = [100 * (1 - c["value"]) for c in lower.values()]
    by = f", by {min(gains):.0f} to {max(gains):.0f} %" if gains else ""
    parts = [f"Rotation lowers the error in {len(lower)} of {counted(len(found), 'experiment')}{by}"]

    def is_biased(name: str) -> bool:
        """Whether, where the rotation does worst, its standard deviation is smaller than the baseline's and its bias larger."""
        both = (experiments[name]["cells"][role] for role in ("nonreversible", "reversible"))
        ours, theirs = max(zip(*both, strict=True), key=lambda cells: cells[0]["rmse"] / cells[1]["rmse"])
        return ours["std"] < theirs["std"] and abs(ours["bias"]) > abs(theirs["bias"])

    if refuted:
        why = ", because its larger bias outweighs its smaller variance" if all(map(is_biased, refuted)) else ""
        parts.append(f"in {len(refuted)} it does not ({', '.join(refuted)}){why}")
    if unclear:
        parts.append(f"in {len(unclear)} the sample is too small to tell ({', '.join(unclear)})")
    return "; ".join(parts) + "."


def took(times: Mapping[str, Any]) -> str:
    """The time by the clock, and the time that all processes and devices took together, as text."""
    clock, devices = duration(times["wall"]), duration(times["sampling"])
    text = f"{clock} by the clock; {devices} of device time, added over all pieces"
    reused = times.get("pieces", {}).get("reused", 0)
    return text + (f"; {counted(reused, 'piece')} computed by an earlier run" if reused else "")


def judged(found: Mapping[str, Any]) -> str:
    """The step sizes at which an experiment's claims were judged, as text."""
    run = found["step_sizes"]
    if set(found["published_step_sizes"]) <= set(run):
        return f"all {counted(len(run), 'step size')}"
    return f"at η = {', '.join(f'{eta:g}' for eta in run)}"


def markdown(results: Mapping[str, Any]) -> str:
    """The verdict table as Markdown, with the command and the machine that made it."""
    return _filled("verdicts.md.j2", results)


def _filled(template: str, results: Mapping[str, Any], **more: Any) -> str:
    """A template with the results, their verdicts by experiment and claim, and what both kinds of report say of them."""
    experiments = results["experiments"]
    verdicts = {name: {c["key"]: c for c in found["claims"]} for name, found in experiments.items()}
    # How far the RMSEs of the paper's dynamics are from their exact predictions, where these are known.
    roles = [cells for found in experiments.values() for role, cells in found["cells"].items() if role != "sgld"]
    exact = ""
    if z := [cell["z"] for cells in roles for cell in cells if cell["z"] is not None]:
        sizes = f"the largest |z| is {max(map(abs, z)):.2f}, the mean of z² {np.mean(np.square(z)):.2f}"
        exact = f"In {len(z)} cells with an exact prediction {sizes}."
    known = {"results": results, "verdicts": verdicts, "exact": exact, "columns": COLUMNS}
    return environment("gyromc.paper").get_template(template).render(known | more, judged=judged, took=took)


def _axes(title: str, ylabel: str, etas: Sequence[float] | None = None, xlabel: str = "step size η"):
    """A figure with its axes; `etas` are the ticks of a logarithmic axis."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.4, 3.5))
    ax = figure.add_subplot()
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
    if etas is not None:
        ax.set_xscale("log", base=2)
        ax.set_xticks(etas)
        ax.xaxis.minorticks_off()
        ax.xaxis.set_major_formatter(lambda x, _: f"{x:.3g}".replace("0.", ".", 1))
        ax.margins(x=0.08)
    return figure, ax


def _rmse_panel(name: str, found: dict[str, Any]) -> Panel:
    from matplotlib.ticker import LogLocator

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
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:.3g}")
    ax.yaxis.set_minor_formatter(lambda y, _: "")
    # A line of slope ½ in the lower right corner.
    low, high = ax.get_ylim()
    ax.set_ylim(low := low / (high / low) ** 0.12, high)
    guide = np.array([etas[1] if len(etas) > 1 else etas[0] / 2, etas[0]])
    base = low * (high / low) ** 0.08
    ax.plot(guide, base * np.sqrt(guide / guide[0]), color="#333333", linewidth=1)
    place = {"xytext": (3, -3), "textcoords": "offset points", "ha": "left", "va": "top"}
    ax.annotate("slope ½", (guide[0], base), fontsize=7, **place)
    alt = f"Log-log plot of RMSE against step size for {name}. RMSE: {'; '.join(ends)}."
    first = found["cells"]["nonreversible"][0]
    lines = "Dotted: √(ηV) from theory."
    lines += " Filled: about the paper's own reference; open: about the independent one." if own else ""
    lines += " Solid: exact for finite η." if first["z"] is not None else ""
    caption = f"RMSE of {first['num_chains']} chains with 95 % intervals. {lines}"
    columns = "dynamics step_size num_steps num_chains rmse low high bias std predicted_rmse asymptotic_rmse z"
    return figure, alt, caption, (*columns.split(), "rmse_independent_reference"), rows


def _points(ax, etas, values, bars, role: str) -> None:
    """Draw the points of one dynamics with their 95 % intervals."""
    style = {"fmt": MARKERS[role], "color": COLOURS[role], "label": ROLE_NAMES[role], "capsize": 2.5, "elinewidth": 1}
    ax.errorbar(etas, values, bars, zorder=3, **style)


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
        kept = [np.arange(30), np.linspace(0, z.size - 1, 120).round(), np.arange(z.size - 30, z.size)]
        shown = np.unique(np.concatenate(kept).clip(0, z.size - 1).astype(int))
        style = {"color": COLOURS[role], "markersize": 3.2, "markerfacecolor": "none", "markeredgewidth": 0.8}
        ax.plot(scores[shown], z[shown], MARKERS[role], label=ROLE_NAMES[role], **style)
        rows += [(role, float(s), float(v)) for s, v in zip(scores, z, strict=True)]
        summary.append(f"{ROLE_NAMES[role]}: slope {q['slope']:.3f}, intercept {q['intercept']:+.3f}")
    alt = f"Normal Q-Q plot of normalised errors for {name}. Line through the points, {'; '.join(summary)}."
    caption = f"Errors divided by {by}; the grey band holds all points of a normal sample with probability 95 %."
    return figure, alt, caption, ("dynamics", "normal_quantile", "normalised_error"), rows


def _bias_panel(name: str, found: dict[str, Any]) -> Panel:
    """Draw the bias of the even observable against η."""
    even, etas = found["formulas"]["even observable"], found["step_sizes"]
    figure, ax = _axes(f"{name}: bias of {even}", f"mean of {even} less its expectation", etas)
    ax.axhline(0, color="#333333", linewidth=0.8)
    rows, summary, lines = [], [], ""
    for role, cells in found["cells"].items():
        bias, se, predicted = ([c["even"][key] for c in cells] for key in ("bias", "bias_std_error", "predicted_bias"))
        _points(ax, etas, bias, 1.96 * np.array(se), role)
        if None not in predicted:
            ax.plot(etas, predicted, linestyle=LINES[role], color=COLOURS[role], linewidth=1.1)
            lines = ", lines predictions"
        rows += [(role, *row) for row in zip(etas, bias, se, predicted, strict=True)]
        summary.append(f"{ROLE_NAMES[role]} {bias[0]:+.3g} at η = {etas[0]:g}")
    caption = f"An even observable shows the O(η) bias that odd ones hide; bars are 95 % intervals{lines}."
    alt = f"Bias of {even} against step size for {name}: {'; '.join(summary)}."
    return figure, alt, caption, ("dynamics", "step_size", "bias", "std_error", "predicted_bias"), rows


def _rows_panel(name: str, found: dict[str, Any]) -> Panel:
    """Draw RMSE ratios over all test rows, one column of points per step size, the chosen row marked."""
    from matplotlib.ticker import FixedLocator

    etas, chosen, table = found["step_sizes"], found["reference"]["chosen"], found["rows"]
    title, ylabel = f"{name}: RMSE ratio at every test row", "RMSE ratio (below 1: non-reversible wins)"
    figure, ax = _axes(title, ylabel, etas)
    ax.axhline(1, color="#333333", linewidth=0.8)
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_locator(FixedLocator(RATIO_TICKS))
    ax.yaxis.minorticks_off()
    ax.yaxis.set_major_formatter(lambda y, _: f"{y:.3g}")
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
        label = None if j else "chosen row"
        ax.plot(places[:, chosen], ratios[:, chosen], "*", color="black", markersize=8, label=label)
        rows += [(rival, eta, i, float(r)) for eta, at in zip(etas, ratios, strict=True) for i, r in enumerate(at)]
    share = found["wins"][rivals[0]]["rmse"]
    summary = ", ".join(f"{100 * s:.0f} % at η = {eta:g}" for eta, s in zip(etas, share, strict=True))
    alt = f"RMSE ratios over all test rows for {name}. The non-reversible sampler beats its baseline in {summary} of the rows."
    caption = "Ratio of RMSEs about the independent reference, one point per test row; the star is the row of the paper's panels."
    return figure, alt, caption, ("against", "step_size", "test_row", "rmse_ratio"), rows
