"""The figure of the front page: one posterior mean, one number of gradients, four error bars.

    python benchmarks/landing_figure.py [--repetitions 64] [--out docs/measured/landing.json] [--docs docs] [--drawn]

The mean is the probability of heart disease of one patient: logistic regression on the heart data, the paper's split and its
first test row. A gradient reads all rows; a mini-batch counts by the rows it reads. The budget is what the paper's run at
η = 0.0025 costs; warm-up, burn-in and tuning are part of it. Given for nothing: the best of SGLD's six step sizes and of the
paper's three samplers, both found by the truth from the same repetitions; and a start in the posterior's bulk for SGLD and NUTS.
Output: a JSON file of estimates; in docs/ the table of index.md, and figures/landing-light and -dark as SVG and PNG. `--drawn`
reads the stored file and measures nothing.
"""

import argparse
import dataclasses
import json
import math
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import gyromc as gm
from accuracy import ours, peers
from accuracy.problems import Problem, problem
from gyromc.paper import CATALOGUE
from gyromc.tuning.trials import cost_of_a_gradient
from pages import markdown, replace_between, write_measured

ROOT = Path(__file__).parents[1]
PAPER, STEP = ("logistic-nld", "logistic-hfhr", "logistic-gaul"), 0.0025
BATCH, SHOWN, TUNINGS = 32, "p0", 4
BURN_IN = 1 + peers.BURN_IN  # steps of a run over its counted ones
COLOURS = {"light": ("#52606d", "#8a5a00", "#1d5fd1", "#c2410c"), "dark": ("#a9b4c0", "#e0a83e", "#7fb0ff", "#ff9a62")}
INK = {"light": ("#1f2933", "#5b6773"), "dark": ("#e6e9ee", "#a9b4c0")}


@dataclasses.dataclass(frozen=True, eq=False)
class Bar:
    """One sampler: independent estimates of all observables, and what one of them cost in gradients over all rows."""

    label: str
    detail: str
    estimates: np.ndarray  # repetitions × observables
    gradients: float
    preparation: float  # the part of them spent before the first counted state
    plain: np.ndarray | None = None  # the estimates without the martingale control variate


def budget_of(heart: Problem) -> float:
    """Gradients over all rows of the paper's ⌊η⁻²⌋ mini-batches."""
    return round(STEP**-2) * BATCH / heart.rows


def sgld(heart: Problem, budget: float, repetitions: int) -> Bar:
    """Plain SGLD with mini-batches of 32; the step size with the least error of the shown mean."""
    steps = int(budget * heart.rows / BATCH / BURN_IN)
    outcomes = ours.sgld(heart, steps, repetitions, seed=1)
    best = min(outcomes, key=lambda one: float(np.mean(errors(heart, one.estimates)[:, place(heart)] ** 2)))
    share = BATCH / heart.rows
    detail = f"mini-batches of {BATCH}, best of {len(outcomes)} step sizes: η = {best.step_size:.2g}"
    total = (best.gradients + best.preparation) * share
    return Bar("SGLD", detail, best.estimates, total, best.preparation * share)


def nuts(heart: Problem, budget: float, repetitions: int) -> Bar:
    """NumPyro's NUTS with its default warm-up of 1000 draws and a dense mass matrix."""
    (short,) = peers.nuts(heart, 4 * peers.LEAVES * peers.TOGETHER, repetitions, seed=1)
    per_draw = short.gradients / (4 * peers.TOGETHER)
    (one,) = peers.nuts(heart, int((budget - short.preparation) * peers.LEAVES / per_draw), repetitions, seed=1)
    total = one.gradients + one.preparation
    return Bar("NUTS", f"NumPyro, {peers.WARM_UP} draws of warm-up", one.estimates, total, one.preparation)


def untuned(heart: Problem, budget: float, repetitions: int) -> Bar:
    """The paper's samplers with its parameters, step size, start and batches; the one with the least error of the shown mean."""
    found = {}
    for name in PAPER:
        plan = CATALOGUE[name].plan(STEP, num_chains=repetitions, observables=heart.observables)
        run = gm.run(plan, progress=False)
        found[name] = np.stack([run.averages[h] for h in heart.observables], axis=1), plan
    best = min(found, key=lambda name: float(np.mean(errors(heart, found[name][0])[:, place(heart)] ** 2)))
    estimates, plan = found[best]
    label = CATALOGUE[best].sampler.label
    detail = f"the paper's {label}, {CATALOGUE[best].sampler.formula}, η = {STEP:g}: the best of its three"
    return Bar("gyromc, the paper's settings", detail, estimates, plan.num_steps * cost_of_a_gradient(plan), 0.0)


def tuned(heart: Problem, budget: float, repetitions: int) -> Bar:
    """What `gyromc.tune` chooses from the target alone, run with the gradients that tuning left; several tunings."""
    estimates, plain, spent, totals, details = [], [], [], [], []
    each = repetitions // TUNINGS
    for seed in range(TUNINGS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gm.GyromcWarning)
            found = gm.tune(heart.target, observables=heart.observables, gradients=budget, seed=seed)
        plan, cost = found.plan, cost_of_a_gradient(found.plan)
        left = int((budget - found.spent) / cost / plan.num_chains) - plan.burn_in
        chains = plan.num_chains * each  # every repetition starts where the tuning says
        start = plan.start if callable(plan.start) else np.resize(plan.start, (chains, heart.dim))
        again = plan.replace(num_steps=left, num_chains=chains, start=start, seed=100 + seed)
        run = gm.run(again.knowing(plan.model), progress=False)
        estimates.append(_repetitions([run.averages[h] for h in heart.observables], each))
        plain.append(_repetitions([run[h].plain.averages for h in heart.observables], each))
        ahead = found.spent + plan.num_chains * plan.oracle.gradients(plan.burn_in) * cost
        spent.append(ahead)
        totals.append(found.spent + plan.num_chains * plan.oracle.gradients(plan.burn_in + left) * cost)
        details.append(_chosen(found))
    detail = f"{TUNINGS} tunings; they chose {' or '.join(dict.fromkeys(details))}"
    costs = float(np.mean(totals)), float(np.mean(spent))
    return Bar("gyromc, tuned", detail, np.concatenate(estimates), *costs, np.concatenate(plain))


def _repetitions(averages: list[np.ndarray], count: int) -> np.ndarray:
    """Averages of chains by observable as those of repetitions, each of which has the same number of chains."""
    table = np.stack(averages, axis=1)
    return table.reshape(count, -1, table.shape[1]).mean(axis=1)


def _chosen(found: gm.Tuned) -> str:
    """The sampler of a tuned plan in words."""
    plan = found.plan
    rotates = "with rotation" if np.any(plan.dynamics.Q) else "without rotation"
    return f"{plan.dynamics.name}, scheme {plan.scheme}, {rotates}{', martingale' if plan.martingale else ''}"


def errors(heart: Problem, estimates: np.ndarray) -> np.ndarray:
    """Errors in posterior standard deviations, repetitions × observables."""
    return (estimates - heart.truth) / np.sqrt(heart.spread)


def place(heart: Problem) -> int:
    """The column of the shown mean."""
    return list(heart.observables).index(SHOWN)


def record(heart: Problem, bar: Bar) -> dict:
    """One bar for JSON: the shown mean's estimates and their RMSE with its standard error, and the RMSE of all kinds of means."""
    shown = bar.estimates[:, place(heart)]
    squares = (shown - heart.truth[place(heart)]) ** 2
    rmse = math.sqrt(float(squares.mean()))
    truth = heart.truth[place(heart)]
    plain = None if bar.plain is None else math.sqrt(float(np.mean((bar.plain[:, place(heart)] - truth) ** 2)))
    all_squares = np.mean(errors(heart, bar.estimates) ** 2, axis=0)
    return {
        "label": bar.label,
        "detail": bar.detail,
        "gradients": bar.gradients,
        "preparation": bar.preparation,
        "mean": float(shown.mean()),
        "rmse": rmse,
        "rmse_error": float(squares.std(ddof=1) / math.sqrt(len(squares)) / 2 / rmse),
        "rmse_without_martingale": plain,
        "rmse_in_sd_by_kind": {
            kind: math.sqrt(float(np.median(all_squares[at]))) for kind, at in heart.columns.items()
        },
        "estimates": [float(x) for x in shown],
    }


def measured(repetitions: int) -> dict:
    """All four samplers on the heart data."""
    heart = problem("heart")
    budget, at = budget_of(heart), place(heart)
    bars = [make(heart, budget, repetitions) for make in (sgld, nuts, untuned, tuned)]
    return {
        "command": "python benchmarks/landing_figure.py",
        "problem": heart.description,
        "observable": "predictive probability at the first test row",
        "truth": float(heart.truth[at]),
        "truth_error": float(heart.truth_error[at]),
        "posterior_sd": math.sqrt(float(heart.spread[at])),
        "budget": budget,
        "repetitions": repetitions,
        "bars": [record(heart, bar) for bar in bars],
    }


def draw(found: dict, folder: Path) -> None:
    """The figure for a light and for a dark page, each as SVG and PNG."""
    for theme in COLOURS:
        with plt.rc_context({"font.family": "DejaVu Sans", "font.size": 12, "svg.hashsalt": "gyromc"}):
            figure = _figure(found, theme)
            for kind, options in (("svg", {"metadata": {"Date": None}}), ("png", {"dpi": 160})):
                figure.savefig(folder / f"landing-{theme}.{kind}", transparent=kind == "svg", **options)
            plt.close(figure)


def _figure(found: dict, theme: str):
    """A line for each sampler: every estimate as a stroke, mean ± RMSE as a bar; names stand above, to fit on phones."""
    ink, faint = INK[theme]
    figure, axis = plt.subplots(
        figsize=(5.4, 4.3), layout="constrained", facecolor="#1e2129" if theme == "dark" else "white"
    )
    axis.set_facecolor("none")
    axis.axvline(found["truth"], color=ink, lw=1, ls=(0, (4, 3)), zorder=1)
    low = min(min(bar["estimates"]) for bar in found["bars"])
    high = max(max(bar["estimates"]) for bar in found["bars"])
    for k, (bar, colour) in enumerate(zip(found["bars"], COLOURS[theme], strict=True)):
        y = -k
        dots = np.asarray(bar["estimates"])
        axis.plot(dots, np.full(len(dots), y), "|", color=colour, alpha=0.35, ms=13, mew=1, zorder=2)
        axis.errorbar(
            [bar["mean"]], [y], xerr=[bar["rmse"]], fmt="o", color=colour, capsize=6, lw=2.6, ms=4.5, zorder=3
        )
        axis.text(low, y + 0.33, bar["label"], color=colour, weight="bold", ha="left", va="center")
        axis.text(high, y + 0.33, f"± {bar['rmse']:.4f}", color=colour, weight="bold", ha="right", va="center")
    axis.text(found["truth"], 0.72, "truth", color=ink, ha="center", va="bottom", fontsize=11)
    margin = 0.03 * (high - low)
    axis.set(xlim=(low - margin, high + margin), ylim=(-3.45, 0.7), yticks=[])
    axis.set_xlabel("probability of heart disease, one patient", color=ink)
    axis.tick_params(colors=faint)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.spines["bottom"].set_color(faint)
    return figure


def table(found: dict) -> str:
    """The table of the front page."""
    rows = [
        [
            bar["label"],
            f"{bar['rmse']:.5f} ± {bar['rmse_error']:.5f}",
            f"{bar['gradients']:,.0f}",
            f"{bar['preparation']:,.0f}",
            bar["detail"],
        ]
        for bar in found["bars"]
    ]
    columns = [
        "sampler",
        f"RMSE, {found['repetitions']} repetitions",
        "gradients",
        "warm-up and tuning",
        "what it is",
    ]
    text = markdown(columns, rows).replace("---: |\n", "--- |\n", 1)  # the last column is text
    plain = found["bars"][-1]["rmse_without_martingale"]
    known = f"True value {found['truth']:.5f} ± {found['truth_error']:.0e}; posterior sd {found['posterior_sd']:.3f}."
    return f"{text}\n\n{known} Without its martingale control variate the tuned plan has RMSE {plain:.5f}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=64)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "measured" / "landing.json")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    parser.add_argument("--drawn", action="store_true", help="draw the stored file, measure nothing")
    asked = parser.parse_args()
    if not asked.drawn:
        write_measured(asked.out, measured(asked.repetitions))
    found = json.loads(asked.out.read_text(encoding="utf-8"))
    draw(found, asked.docs / "figures")
    replace_between(asked.docs / "index.md", "landing", table(found))
    for bar in found["bars"]:
        text = f"{bar['label']}: {bar['mean']:.5f} ± {bar['rmse']:.2g}, {bar['gradients']:.0f} gradients"
        print(f"{text}, {bar['preparation']:.0f} of them before the first counted one ({bar['detail']})")


if __name__ == "__main__":
    main()
