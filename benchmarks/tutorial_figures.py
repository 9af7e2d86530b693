"""The figures of tutorials and how-to pages: each shows what the code of its page computed.

`python benchmarks/tutorial_figures.py [NAME …]` runs the code of a page and writes docs/figures/NAME, all when no name is given.
`report-heart.png` is the first screen of the report that the first command of the first tutorial writes.
"""

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "benchmarks")]

import gyromc as gm  # noqa: E402
from concept_figures import FIGURES, INK, REVERSIBLE, ROTATING, STYLE, THIRD, panels  # noqa: E402
from support.pages import blocks, run_commands  # noqa: E402

Space = dict[str, Any]


def computed(page: str) -> Space:
    """The variables after the Python code of a page has run, up to the first block that reads what a command has written."""
    space: Space = {"__name__": "__main__"}
    code = [block.text for block in blocks((ROOT / "docs" / page).read_text()) if block.language == "python"]
    for text in code:
        if "gm.load(" in text:
            break
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(text, page, "exec"), space)
    return space


def start_coefficients(space: Space) -> Figure:
    return space["model"].plot()


def posterior(space: Space) -> Figure:
    """What `found.plot()` draws of the page's posterior."""
    return space["found"].plot()


def jax_model(space: Space) -> Figure:
    """Measurements with the posterior band of the curve; the posterior of the half-life with the grid's."""
    figure, (left, right) = panels(2)
    time, found = np.linspace(0, 10, 60), space["found"]
    draws = found.resampled(2000)
    curves = np.exp(draws[:, :1] - np.exp(draws[:, 1:]) * time)
    low, middle, high = np.quantile(curves, [0.025, 0.5, 0.975], axis=0)
    left.fill_between(time, low, high, color=REVERSIBLE, alpha=0.25, linewidth=0)
    left.plot(time, middle, color=REVERSIBLE)
    left.plot(space["time"], space["measured"], ".", color=INK)
    left.set(title="measured, and the posterior of the curve", xlabel="time", ylabel="amount")
    right.hist(np.log(2) / np.exp(draws[:, 1]), 40, density=True, color=REVERSIBLE, alpha=0.5)
    right.axvline(np.log(2) / 0.4, color=ROTATING, label="truth")
    right.axvline(found.mean["half-life"], color=INK, label="posterior mean")
    right.set(title="half-life", yticks=[])
    right.legend(fontsize=8)
    return figure


def network_band(space: Space) -> Figure:
    """The mean of the network's function with a band of two posterior standard deviations, from kept draws."""
    plan = space["plan"].replace(observables={"bias": lambda w: w["bias"]})
    draws = gm.run(plan, thin=50, progress=False).draws
    x = np.linspace(-2.6, 3.2, 120)
    flat = {name: np.asarray(v).reshape(-1, *np.shape(v)[2:]) for name, v in draws.items()}
    hidden = np.tanh(x[:, None, None] * flat["in"] + flat["shift"])
    curves = np.einsum("xnk,nk->xn", hidden, flat["out"]) + flat["bias"]
    mean, sd = curves.mean(1), curves.std(1)
    figure, (ax,) = panels(1)
    ax.fill_between(
        x, mean - 2 * sd, mean + 2 * sd, color=REVERSIBLE, alpha=0.25, linewidth=0, label="± 2 posterior sd"
    )
    ax.plot(x, mean, color=REVERSIBLE, label="posterior mean")
    ax.plot(x, np.sin(2 * x), color=ROTATING, linewidth=1, linestyle="--", label="truth")
    ax.plot(space["x"], space["y"], ".", color=INK)
    ax.set(xlabel="x", ylim=(-3, 3))
    ax.legend(fontsize=8, loc="lower left", ncols=3)
    return figure


def error_bars(space: Space) -> Figure:
    """Standard error, bias and total error against gradients; plain and corrected intervals of twenty runs."""
    plan = space["plan"]
    figure, (left, right) = panels(2)
    steps = np.geomspace(300, 30_000, 9).astype(int)
    found = [gm.predict(plan.replace(num_steps=int(n), burn_in=200)) for n in steps]
    chains = plan.num_chains
    bias, sd = (np.array([getattr(one, field)["θ₁²"] for one in found]) for field in ("bias", "std"))
    error = sd / np.sqrt(chains)
    for y, colour, label in (
        (error, REVERSIBLE, "standard error"),
        (bias, ROTATING, "bias"),
        (np.hypot(bias, error), INK, "RMSE"),
    ):
        left.loglog(steps * chains, y, color=colour, label=label)
    left.set(title="θ₁²: error against gradients", xlabel="gradients")
    left.legend(fontsize=8)
    for seed in range(20):
        row = gm.estimate(gm.run(plan.replace(seed=seed, num_steps=5000), progress=False))["θ₁²"]
        plain = right.plot([seed - 0.15] * 2, row.interval, color=ROTATING)
        corrected = right.plot([seed + 0.15] * 2, row.corrected, color=REVERSIBLE)
    right.axhline(1, color=INK, linewidth=0.9)
    right.set(title="θ₁²: 95 % intervals of 20 runs", xlabel="run", xticks=[])
    right.legend([*plain, *corrected], ["interval", "corrected"], fontsize=8, ncols=2, loc="upper center")
    right.margins(y=0.15)
    return figure


def csv_families(space: Space) -> Figure:
    """95 % predictive intervals of both families by expected count, with the observed counts."""
    figure, axes = panels(2)
    rng = np.random.default_rng(0)
    data = {"staff": space["staff"], "region": space["region"], "calls": space["calls"]}
    for ax, family in zip(axes, ("poisson", "negative-binomial"), strict=True):
        model = gm.fit("calls ~ staff + region", data, family=family, effort="quick")
        found = model.predict(data)
        order = np.argsort(found.mean)
        mean, noise = found.mean[order], found.predictive_sd[order]
        size = mean**2 / np.maximum(noise**2 - mean, 1e-9)
        law = rng.negative_binomial(size, size / (size + mean), (4000, len(mean)))
        if family == "poisson":
            law = rng.poisson(mean, (4000, len(mean)))
        low, high = np.quantile(law, [0.025, 0.975], axis=0)
        y = space["calls"][order]
        outside = (y < low) | (y > high)
        ax.fill_between(range(len(y)), low, high, color=REVERSIBLE, alpha=0.25, linewidth=0, step="mid")
        ax.plot(np.flatnonzero(~outside), y[~outside], ".", color=INK, markersize=3)
        ax.plot(np.flatnonzero(outside), y[outside], ".", color=ROTATING, markersize=4)
        ax.set(
            title=f"{family}: {100 * np.mean(~outside):.0f} % inside", xlabel="shops, by expected calls", ylim=(-1, 60)
        )
    axes[0].set_ylabel("calls")
    return figure


def large_data_errors(space: Space) -> Figure:
    """The standard error of β₀ against rows read, for three ways to use mini-batches."""
    plan = space["plan"]
    cases = {
        "plain, 256 rows": (gm.oracles.Minibatch(256), 0.01, 256, THIRD),
        "order 1, 32 rows": (gm.oracles.ControlVariate(32), 0.3, 64, ROTATING),
        "order 2, 2 rows": (gm.oracles.ControlVariate(2, order=2), 0.8, 4, REVERSIBLE),
    }
    figure, (ax,) = panels(1)
    for label, (oracle, step, rows, colour) in cases.items():
        at, errors = [], []
        for steps in (100, 200, 400, 800):
            run = gm.run(plan.replace(oracle=oracle, step_size=step, num_steps=steps), progress=False)
            at.append(rows * (steps + plan.burn_in) * plan.num_chains)
            errors.append(run.std_error["β0"])
        ax.loglog(at, errors, "o-", color=colour, label=label)
    ax.set(xlabel="rows read by all chains", ylabel="standard error of β₀")
    ax.legend(fontsize=8)
    return figure


def race_in_seconds(space: Space) -> Figure:
    """Every method on every posterior of the race: processor seconds and error."""
    from accuracy import race

    rows = [row for row in race.stored(ROOT / "docs" / "measured" / "race.json") if row["seed"] < race.FRESH]
    colours = {"gyromc": ROTATING, "nuts": REVERSIBLE, "mclmc": THIRD, "nuts-sharpen": INK}
    figure, (ax,) = panels(1)
    for method, colour in colours.items():
        found = [race.summary(rows, name, method) for name in race.POSTERIORS]
        good = [(one["processor"], one["rmse"]) for one in found if one and "score" in one]
        ax.loglog(*zip(*good, strict=True), "o", color=colour, markersize=4, label=race.LABELS[method])
    ax.set(xlabel="processor seconds, from the start of Python", ylabel="error of a mean, in posterior sd")
    ax.set_xticks([5, 10, 20, 50], ["5", "10", "20", "50"])
    ax.xaxis.minorticks_off()
    ax.legend(fontsize=8)
    return figure


DRAWN: dict[str, tuple[str, Callable[[Space], Figure]]] = {
    "start-coefficients.png": ("tutorials/start-here.md", start_coefficients),
    "expect-posterior.png": ("expect.md", posterior),
    "numpyro-posterior.png": ("numpyro.md", posterior),
    "jax-model.svg": ("tutorials/own-jax-model.md", jax_model),
    "network-band.svg": ("networks.md", network_band),
    "error-bars.svg": ("intervals.md", error_bars),
    "csv-families.svg": ("tutorials/csv-file.md", csv_families),
    "large-data-errors.svg": ("large_data.md", large_data_errors),
    "race-in-seconds.svg": ("accuracy.md", race_in_seconds),
}
"""By file: the page whose code is run, and the function that draws from its variables."""
REPORT = "report-heart.png"


def draw(name: str) -> None:
    """Run the code of a page and write its figure."""
    page, function = DRAWN[name]
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        space = computed(page)
        if name.endswith(".png"):
            function(space).savefig(FIGURES / name, dpi=130)
            return
        with plt.rc_context(STYLE):
            figure = function(space)
            figure.savefig(FIGURES / name, transparent=True, metadata={"Date": None})


def photograph() -> None:
    """The first screen of the report of the heart data, in headless Chromium."""
    from playwright.sync_api import sync_playwright

    from support.browsing import CHROMIUM, FLAGS

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), sync_playwright() as playwright:
        run_commands("gyromc fit example:heart --target disease\n")
        (report,) = Path(folder).rglob("report.html")
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        page = browser.new_page(viewport={"width": 720, "height": 1400}, device_scale_factor=1.4)
        page.goto(report.as_uri())
        # Down to the end of the first figure.
        end = page.locator("figcaption").first.bounding_box()
        assert end is not None
        page.screenshot(
            path=str(FIGURES / REPORT), clip={"x": 0, "y": 0, "width": 720, "height": end["y"] + end["height"] + 12}
        )
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[[], *DRAWN, REPORT])
    for name in parser.parse_args().names or [*DRAWN, REPORT]:
        photograph() if name == REPORT else draw(name)
        print(FIGURES / name)


if __name__ == "__main__":
    main()
