"""Tables and a figure from the cells of the accuracy benchmark, and the pages they stand in.

Input: cells, as `accuracy.measured` returns them. Output: tables for a terminal, a figure, and the table of docs/accuracy.md.
"""

from pathlib import Path

from accuracy.measure import COMPETITORS, ROTATION
from accuracy.problems import KINDS, PROBLEMS
from gyromc.show.numbers import plus_minus
from gyromc.show.tables import Table
from pages import markdown, replace_between

__all__ = ["details", "plot", "rotation", "table", "write_pages"]

COLOURS = {
    "SGLD, best step": "#999999",
    "BlackJAX SGLD, best step": "#6B6B6B",
    "BlackJAX SGHMC, best step": "#8C6D31",
    "BlackJAX MCLMC": "#CC79A7",
    "NumPyro NUTS": "#E69F00",
    "importance sampling": "#009E73",
    "gyromc untuned": "#9ECAE1",
    "gyromc untuned, HFHR": "#6BAED6",
    "gyromc tuned, reversible": "#0072B2",
    "gyromc tuned": "#D55E00",
}


def _problems(cells: dict) -> list[str]:
    """The problems that have a cell, in the order of the list."""
    present = {cell["problem"] for cell in cells.values()}
    return [name for name in PROBLEMS if name in present]


def _short(value: float | None) -> str:
    """Two digits; a dash where there is none."""
    return "–" if value is None else f"{value:.2g}".replace("e-0", "e-").replace("e+0", "e")


def _value(cell: dict | None, kind: str, field: str) -> float | None:
    return None if cell is None or kind not in cell.get("kinds", {}) else cell["kinds"][kind].get(field)


def _with_error(cell: dict, kind: str, field: str) -> str:
    """A number with its standard error, relative where the number is far from 1."""
    value, error = _value(cell, kind, field), _value(cell, kind, f"{field}_error")
    return (
        _short(value)
        if value is None or error is None or not value
        else f"{_short(value)} ± {100 * error / value:.0f} %"
    )


def _columns() -> list[str]:
    names = [f"{kind}, per gradient" for kind in KINDS] + ["means, per row", "means, per second"]
    return ["problem", "competitor", *names, *(f"RMSE of {kind}, sd" for kind in KINDS), "preparation", "note"]


def _line(cell: dict) -> list[str]:
    """One competitor on one problem."""
    start = [cell["problem"], cell["competitor"]]
    if "left_out" in cell:
        return [*start, *["–"] * 9, f"left out: {cell['left_out']}"]
    draws = [_with_error(cell, kind, "per_gradient") for kind in KINDS]
    others = [_short(_value(cell, "means", "per_row")), _short(_value(cell, "means", "per_second"))]
    errors = [_with_error(cell, kind, "rmse") for kind in KINDS]
    note = cell["note"]
    if cell["step_sizes_tried"] > 1:
        note = f"step {cell['step_size']:.2g}, best of {cell['step_sizes_tried']}"
    smallest = min((_value(cell, kind, "rmse") or 1.0) for kind in cell["kinds"])
    if cell["competitor"] != "Laplace approximation" and smallest < 3 * cell["reference_error_in_sd"]:
        note = f"{note}; " if note else ""
        note += f"as exact as the reference ({cell['reference_error_in_sd']:.1g} sd)"
    return [*start, *draws, *others, *errors, _short(cell["preparation"]), note]


def details(cells: dict, problems: list[str]) -> list[list[str]]:
    """The rows of all competitors, problem by problem."""
    keys = [f"{name}: {label}" for name in problems for label in COMPETITORS]
    return [_line(cells[key]) for key in keys if key in cells]


def table(cells: dict) -> Table:
    """Everything, for the terminal."""
    rows = [row[:-1] for row in details(cells, _problems(cells))]
    titles = [
        "means",
        "squares",
        "predictive",
        "per row",
        "per second",
        *(f"RMSE {kind}" for kind in KINDS),
        "prepared",
    ]
    notes = [
        "means, squares, predictive: effective draws per gradient, that is posterior variance over mean squared error about the "
        "truth; medians over observables, bootstrap errors",
        "per row, per second: the same of means; RMSE: in posterior standard deviations, at the budget",
        "prepared: gradients before the first counted one (burn-in, warm-up, tuning); a potential is a third of a gradient",
    ]
    notes += [f"{key}: left out, {cell['left_out']}" for key, cell in cells.items() if "left_out" in cell]
    notes += [f"{row[0]}: rotation gains {row[1]} without and {row[4]} with the martingale" for row in rotation(cells)]
    return Table(["problem", "competitor", *titles], rows, "Accuracy", notes, ["problem", "competitor"], style="simple")


def rotation(cells: dict) -> list[list[str]]:
    """What the rotation alone gains at equal bias, problem by problem."""
    rows = []
    for name in _problems(cells):
        gains = cells.get(f"{name}: {ROTATION}", {}).get("gains")
        if gains is None:
            continue
        row = [name]
        for gain in (gains["plain"], gains["martingale"]):
            if gain["gain"] is None:
                row += [gain["why"], "–", "–"]
                continue
            bias = gain["bias_in_sd"]
            row += [
                plus_minus(gain["gain"], gain["error"]),
                f"{gain['reversible_step']:.2g} / {gain['rotating_step']:.2g} at {gain['rate']:g}",
                f"{bias['reversible']:.2g} / {bias['rotating']:.2g}",
            ]
        rows.append(row)
    return rows


def plot(cells: dict, path: str | Path) -> None:
    """Effective draws per gradient, a panel for each kind, a line for each problem, a dot for each competitor."""
    from matplotlib.figure import Figure

    problems = _problems(cells)
    figure = Figure(figsize=(11, 1.6 + 0.26 * len(problems)), layout="constrained")
    panels = figure.subplots(1, len(KINDS), sharey=True, squeeze=False)[0]
    for axes, kind in zip(panels, KINDS, strict=True):
        for label, colour in COLOURS.items():
            values = [_value(cells.get(f"{name}: {label}"), kind, "per_gradient") for name in problems]
            at = [(v, y) for y, v in enumerate(values) if v is not None]
            if at:
                marker = "D" if label.startswith("gyromc tuned") else "o"
                axes.scatter(*zip(*at, strict=True), color=colour, label=label, s=26, marker=marker, zorder=3)
        axes.set_xscale("log")
        axes.set_xlim(left=1e-6)
        axes.set_title(kind, fontsize=10)
        axes.set_xlabel("effective draws per gradient")
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0].set_yticks(range(len(problems)), problems, fontsize=8)
    panels[0].invert_yaxis()
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=5, frameon=False, fontsize=8
    )
    figure.savefig(path, dpi=150)


def write_pages(cells: dict, docs: Path) -> None:
    """Write the table of what the rotation alone gains into docs/accuracy.md."""
    lines = [[name, plain, martingale] for name, plain, _, _, martingale, _, _ in rotation(cells)]
    table = markdown(["problem", "without martingale", "with martingale"], lines)
    replace_between(docs / "accuracy.md", "rotation", table)
