"""The figures of docs/concepts: one SVG each, with transparent ground and colours that are legible on light and on dark pages.

`python benchmarks/concept_figures.py [NAME …]` writes docs/figures/concept-NAME.svg, all of them when no name is given.
`--png DIR` writes PNG files on a white and on a dark ground there as well, to look at.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.figure import Figure

import gyromc as gm
from gyromc.checks import require
from gyromc.fields import FieldRegression, Fields, Sharpened

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
INK, REVERSIBLE, ROTATING, THIRD = "#757b84", "#3d82c4", "#d4622a", "#2f9268"  # about 4:1 on white and on #0d1117
STYLE = {
    "svg.fonttype": "none",  # text stays text: small files, any size
    "svg.hashsalt": "gyromc",  # the same bytes every time
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


def panels(count: int, height: float = 2.9) -> tuple[Figure, list]:
    """A figure with panels side by side, as wide as a page."""
    figure, axes = plt.subplots(1, count, figsize=(7.6, height), squeeze=False, layout="constrained")
    return figure, list(axes[0])


def rotation(rate: float) -> list[list[float]]:
    return [[0.0, -rate], [rate, 0.0]]


def gaussian_plan(rate: float, precision=(1.0, 1.0), **fields) -> gm.Plan:
    """A plan on a Gaussian in two dimensions, with a rotation at this rate."""
    return gm.Plan(
        target=gm.targets.Quadratic(list(precision)), dynamics=gm.dynamics.nonreversible(rotation(rate)), **fields
    )


def known(value: float | None) -> float:
    """The number; an error where `predict` does not know it."""
    require(
        value is not None, "A figure needs a number that `predict` does not know: take another step size or target."
    )
    assert value is not None
    return value


def reversibility() -> Figure:
    """One chain of each kind on a Gaussian, with the same noise."""
    figure, axes = panels(2, 3.2)
    xi = np.random.default_rng(4).standard_normal((400, 2))
    angle = np.linspace(0, 2 * np.pi, 200)
    for axis, rate, title, colour in zip(
        axes, (0.0, 6.0), ("reversible", "rotating"), (REVERSIBLE, ROTATING), strict=True
    ):
        G, eta, z = np.eye(2) + np.array(rotation(rate)), 0.005, np.array([1.5, 0.0])
        path = [z]
        for kick in xi:
            path.append(path[-1] - eta * G @ path[-1] + np.sqrt(2 * eta) * kick)
        for radius in (1, 2):
            axis.plot(radius * np.cos(angle), radius * np.sin(angle), color=INK, linewidth=0.7, alpha=0.6)
        axis.plot(*np.array(path).T, color=colour, linewidth=1.0)
        axis.plot(*path[0], "o", color=INK, markersize=5)
        axis.set(title=title, aspect="equal", xlim=(-3.6, 3.6), ylim=(-2.9, 2.9), xlabel="θ₁", ylabel="θ₂")
    return figure


def fluctuation_constant() -> Figure:
    """Correlations over time with their areas; measured errors on the lines √(ηV)."""
    figure, (left, right) = panels(2)
    t = np.linspace(0, 5, 120)
    steps = (0.1, 0.05, 0.025, 0.0125)
    for rate, name, colour in ((0.0, "reversible", REVERSIBLE), (2.0, "rotating", ROTATING)):
        rho = np.exp(-t) * np.cos(rate * t)
        left.plot(t, rho, color=colour, label=f"{name}, V = {2 / (1 + rate**2):.1f}")
        left.fill_between(t, rho, color=colour, alpha=0.18, linewidth=0)
        plans = [
            gaussian_plan(rate, observables={"h": gm.observables.linear([1.0, 0.0])}, step_size=step) for step in steps
        ]
        V = gm.predict(plans[0]).variance["h"]
        measured = [np.sqrt(np.mean(gm.run(plan, progress=False).averages["h"] ** 2)) for plan in plans]
        right.loglog(steps, np.sqrt(V * np.array(steps)), color=colour)
        right.loglog(steps, measured, "o", color=colour, markersize=5, label=name)
    left.axhline(0, color=INK, linewidth=0.7)
    left.set(xlabel="time t", ylabel="correlation of θ₁ with itself")
    right.set(xlabel="step size η", ylabel="error of the average of θ₁")
    right.set_xticks(steps, [f"{step:g}" for step in steps])
    right.set_yticks([0.1, 0.2, 0.4], ["0.1", "0.2", "0.4"])
    right.minorticks_off()
    left.legend()
    right.legend(title="points: measured; lines: √(ηV)", title_fontsize=9)
    return figure


def bias_and_variance() -> Figure:
    """Bias, standard deviation and error of a square against the step size, 10,000 gradients, exact."""
    figure, axes = panels(2)
    steps = np.geomspace(0.003, 0.25, 24)
    for axis, rate, title in zip(axes, (0.0, 1.0), ("reversible", "rotating"), strict=True):
        square = {"h": gm.observables.square([1.0, 0.0])}
        fields = {"observables": square, "num_steps": 10_000, "burn_in": 2000}
        found = [gm.predict(gaussian_plan(rate, step_size=step, **fields)) for step in steps]
        rmse = np.array([one.rmse["h"] for one in found])
        axis.loglog(steps, [one.std["h"] for one in found], color=REVERSIBLE, label="standard deviation")
        axis.loglog(steps, [abs(known(one.bias["h"])) for one in found], color=ROTATING, label="bias")
        axis.loglog(steps, rmse, color=INK, linewidth=2.4, label="error")
        best = int(np.argmin(rmse))
        axis.plot(steps[best], rmse[best], "o", color=INK)
        axis.annotate(f"{rmse[best]:.3f}", (steps[best], rmse[best]), (0, 9), textcoords="offset points", ha="center")
        axis.set(title=title, xlabel="step size η", ylim=(1e-3, 1))
        axis.set_xticks([0.003, 0.01, 0.03, 0.1], ["0.003", "0.01", "0.03", "0.1"])
        axis.minorticks_off()
    axes[0].set_ylabel("for θ₁², in units of θ₁²")
    axes[1].legend(loc="lower right", fontsize=9)
    return figure


def _variance_error(plan: gm.Plan, scheme: str, truth: float) -> float:
    """The relative error of the variance at the plan's step size, in per cent."""
    return 100 * known(gm.predict(plan.replace(scheme=scheme)).bias["h"]) / truth


def balanced_noise() -> Figure:
    """The error of the variance: on a Gaussian with exact and noisy gradients, and on a target with two wells."""
    figure, (left, right) = panels(2)
    fields = {"observables": {"h": gm.observables.square([1.0])}, "num_steps": 10**6, "burn_in": 10**4}
    steps = np.linspace(0.05, 0.6, 12)
    for scheme, colour in (("euler", REVERSIBLE), ("balanced", ROTATING)):
        for oracle, line, text in (
            (gm.oracles.Exact(), "-", ""),
            (gm.oracles.Gaussian(1.0), "--", ", noisy gradients"),
        ):
            plans = [
                gm.Plan(
                    target=gm.targets.Quadratic([1.0]),
                    dynamics=gm.dynamics.overdamped(1),
                    oracle=oracle,
                    step_size=step,
                    **fields,
                )
                for step in steps
            ]
            errors = [_variance_error(plan, scheme, 1.0) for plan in plans]
            left.plot(steps, errors, line, color=colour, label=scheme + text)
        wells = [
            gm.Plan(
                target=gm.targets.CosinePerturbed(1, 1.2), dynamics=gm.dynamics.overdamped(1), step_size=step, **fields
            )
            for step in steps[::2]
        ]
        truth = known(gm.predict(wells[0]).expectation["h"])
        right.plot(steps[::2], [_variance_error(plan, scheme, truth) for plan in wells], color=colour, label=scheme)
    for axis, title in ((left, "Gaussian"), (right, "two wells: ½θ² + 1.2 cos θ")):
        axis.axhline(0, color=INK, linewidth=0.7)
        axis.set(title=title, xlabel="step size η", ylabel="error of the variance, %")
    left.legend(fontsize=9)
    right.legend(fontsize=9)
    return figure


def martingale() -> Figure:
    """Errors of 100 averages against the averages of their martingale increments; what is left."""
    figure, (left, right) = panels(2)
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    y = rng.random(300) < 1 / (1 + np.exp(-X @ [1.0, -1.0]))
    target = gm.targets.LogisticRegression(X, y)
    model = gm.Model(target)
    plan = gm.Plan(
        target=target,
        dynamics=gm.dynamics.general(np.linalg.inv(model.precision), 0),
        scheme="balanced",
        martingale=True,
        observables={"h": gm.observables.linear([1.0, 0.0])},
        step_size=0.8,
        num_steps=200,
        num_chains=100,
        burn_in=20,
        start=model.mode,
    )
    run = gm.run(plan, progress=False)
    plain, corrected = np.asarray(run.plain["h"].averages), np.asarray(run.averages["h"])
    centre = corrected.mean()
    left.plot(plain - corrected, plain - centre, "o", color=REVERSIBLE, markersize=3, alpha=0.8)
    ends = np.array([(plain - corrected).min(), (plain - corrected).max()])
    left.plot(ends, ends, color=INK, linewidth=0.9)
    left.set(xlabel="average of the increments", ylabel="plain average, less the mean")
    order = np.arange(len(plain))
    right.plot(order, plain - centre, "o", color=REVERSIBLE, markersize=3, alpha=0.8, label="plain")
    right.plot(order, corrected - centre, "o", color=ROTATING, markersize=2, label="corrected")
    right.set(xlabel="chain", ylabel="average, less the mean")
    right.legend(loc="upper right", ncols=2, fontsize=9)
    low, high = right.get_ylim()
    right.set_ylim(low, high + 0.2 * (high - low))
    return figure


EFFECTS = [28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]
ERRORS = [15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]
SCHOOLS = {
    "mean μ": lambda t: t[0],
    "log τ": lambda t: t[1],
    "effect of school 1": lambda t: t[0] + jnp.exp(t[1]) * t[2],
}


def eight_schools(t):
    """The log density of μ, log τ and eight standardised effects z, with θ_j = μ + τ z_j."""
    mu, log_tau, z = t[0], t[1], t[2:]
    tau = jnp.exp(log_tau)
    prior = -0.5 * (mu / 5) ** 2 - jnp.log1p((tau / 5) ** 2) + log_tau - 0.5 * jnp.sum(z**2)
    return prior - 0.5 * jnp.sum(((jnp.array(EFFECTS) - mu - tau * z) / jnp.array(ERRORS)) ** 2)


def _sharpened_twice(draws: gm.Posterior) -> tuple[Sharpened, Sharpened]:
    """The kept draws regressed on linear fields, and on quadratic fields too."""
    theta, d = draws.draws.swapaxes(0, 1), draws.draws.shape[2]
    flat, values = theta.reshape(-1, d), draws.values_at_draws.swapaxes(0, 1)
    gradient = draws.model.flat_target.gradients(flat).reshape(theta.shape)
    triples = np.stack(np.meshgrid(*[np.arange(d)] * 3, indexing="ij")).reshape(3, -1)
    found = []
    for chosen in (np.zeros((3, 0), int), triples[:, triples[0] <= triples[1]]):
        fields = Fields(flat.mean(axis=0), flat.std(axis=0), np.stack(np.triu_indices(d)), chosen)
        sums = FieldRegression(fields, theta.shape[1], values.mean(axis=(0, 1)))
        sums.add(theta, gradient, values)
        found.append(sums.sharpened())
    return found[0], found[1]


def zero_mean_functions() -> Figure:
    """The same draws of eight schools, averaged plainly and with more and more zero-mean functions."""
    figure, (left, right) = panels(2, 3.2)
    draws = gm.expect(gm.targets.LogDensity(eight_schools), SCHOOLS, start=np.zeros(10), progress=False)
    linear, quadratic = _sharpened_twice(draws)
    rows = {
        "plain average": linear.plain,
        "gradient fields": linear.without_rotations,
        "+ rotations": linear.corrected,
        "+ quadratic fields": quadratic.corrected,
    }
    shown = list(SCHOOLS).index("effect of school 1")
    colours = (INK, REVERSIBLE, ROTATING, THIRD)
    for i, (averages, colour) in enumerate(zip(rows.values(), colours, strict=True)):
        left.plot(averages[:, shown], np.full(len(averages), i), "o", color=colour, markersize=4, alpha=0.7)
    left.set_yticks(range(len(rows)), list(rows))
    left.invert_yaxis()
    left.set(title="effect of school 1", xlabel="average of one chain")
    for name, marker in zip(SCHOOLS, ("o", "s", "D"), strict=True):
        k = list(SCHOOLS).index(name)
        sizes = [averages[:, k].std(ddof=1) / linear.sd[k] for averages in rows.values()]
        right.semilogy(range(len(rows)), sizes, marker + "-", color=INK, markersize=4, linewidth=0.8, label=name)
        for i, (size, colour) in enumerate(zip(sizes, colours, strict=True)):
            right.plot(i, size, marker, color=colour, markersize=5)
    right.set_xticks(range(len(rows)), ["plain", "gradient", "+ rotat.", "+ quadr."])
    right.set_yticks([0.01, 0.03, 0.1], ["0.01", "0.03", "0.1"])
    right.minorticks_off()
    right.set(title="sd between chains, in posterior sds")
    right.legend(fontsize=9)
    return figure


def rotation_gain() -> Figure:
    """What the rotation alone gains, problem by problem: the stored table of docs/accuracy.md."""
    path = ROOT / "docs" / "measured" / "accuracy.json"
    require(path.exists(), f"{path} is missing: make it with `gyromc bench accuracy --out docs/measured`.")
    cells = json.loads(path.read_text())["cells"]
    gains = {name.partition(":")[0]: cell["gains"] for name, cell in cells.items() if "gains" in cell}
    figure, [axis] = panels(1, 4.6)
    for kind, text, shift, colour in (
        ("plain", "without martingale", -0.15, REVERSIBLE),
        ("martingale", "with martingale", 0.15, ROTATING),
    ):
        rows = [(i, one[kind]) for i, one in enumerate(gains.values()) if one[kind]["gain"] is not None]
        axis.errorbar(
            [gain["gain"] for _, gain in rows],
            [i + shift for i, _ in rows],
            xerr=[1.96 * gain["error"] for _, gain in rows],
            fmt="o",
            color=colour,
            markersize=4,
            linewidth=1.2,
            label=text,
        )
    axis.axvline(1, color=INK, linewidth=0.9)
    axis.set_xscale("log")
    axis.set_xticks([0.5, 0.7, 1, 1.5, 2, 3], ["0.5", "0.7", "1", "1.5", "2", "3"])
    axis.minorticks_off()
    axis.set_yticks(range(len(gains)), list(gains))
    axis.invert_yaxis()
    axis.set_xlabel("how many times fewer gradients the rotation needs (95 % intervals)")
    axis.legend(loc="upper right")
    return figure


DRAWN: dict[str, Callable[[], Figure]] = {
    "reversibility": reversibility,
    "fluctuation-constant": fluctuation_constant,
    "bias-and-variance": bias_and_variance,
    "balanced-noise": balanced_noise,
    "martingale": martingale,
    "zero-mean-functions": zero_mean_functions,
    "rotation-gain": rotation_gain,
}


def write(name: str, folder: Path, png: Path | None = None) -> Path:
    """Draw one figure and write it; return the path of the SVG."""
    with plt.rc_context(STYLE):
        figure = DRAWN[name]()
        path = folder / f"concept-{name}.svg"
        figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
        for ground, colour in (("light", "white"), ("dark", "#0d1117")) if png else ():
            assert png is not None
            figure.savefig(png / f"{name}-{ground}.png", facecolor=colour, dpi=110)
        plt.close(figure)
    return path


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(DRAWN))
    parser.add_argument("--out", type=Path, default=FIGURES)
    parser.add_argument("--png", type=Path, help="a folder for PNG files, on a white and on a dark ground")
    asked = parser.parse_args(arguments)
    for name in asked.names or DRAWN:
        require(name in DRAWN, f"There is no figure {name!r}. There are: {', '.join(DRAWN)}.")
        print(write(name, asked.out, asked.png))


if __name__ == "__main__":
    main()
