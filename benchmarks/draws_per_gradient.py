"""Effective draws per gradient: schemes, oracles and the martingale control variate, side by side.

    python benchmarks/draws_per_gradient.py [--quick] [--only PART …] [--out docs/measured/draws-per-gradient.json]
                                            [--page docs/schemes.md]

Three problems: logistic regression on the heart data (14 parameters; NumPyro's NUTS beside it), logistic regression with 200,000
rows and 20 parameters, and a Gaussian with condition number 10⁴ that is not whitened. One effective draw has the variance of an
independent draw from the posterior. Prints the table, writes the JSON file, the table between the two markers of the page, and
the figure on it.
"""

import argparse
import functools
import json
import math
import time
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import gyromc as gm
from accuracy.peers import nuts
from accuracy.problems import problem, regression_observables
from gyromc import datasets
from gyromc.approx.sample import expectation
from gyromc.prediction.exact.closed_forms import ridge_moments
from pages import replace_between, write_measured

ROOT = Path(__file__).parent.parent
KINDS = {"m": "means", "s": "squares", "p": "predictive"}
COLOURS = ("#6B6B6B", "#D55E00", "#0072B2", "#009E73")


def observables(d: int, rows: np.ndarray) -> dict:
    """θ_i, θ_i² and the predictive probabilities of the rows."""
    return {name: h for group in regression_observables(d, rows, d).values() for name, h in group.items()}


def measure(label: str, plan: gm.Plan, spread: dict[str, float], truth: dict[str, float] | None = None) -> dict:
    """Effective draws per gradient, plain and corrected: medians over the observables of each kind, and the worst bias."""
    began = time.perf_counter()
    run = gm.run(plan, progress=False)
    gradients = plan.num_chains * plan.num_steps
    row: dict = {"case": label, "step_size": plan.eta, "engine": run.engine, "seconds": time.perf_counter() - began}
    row["rows_per_gradient"] = plan.oracle.evaluations(plan.target)
    for letter, kind in KINDS.items():
        names = [name for name in plan.observables if name.startswith(letter)]
        if not names:
            continue
        plain = [spread[name] / run[name].plain.std_error ** 2 / gradients for name in names]
        best = [spread[name] / run[name].std_error ** 2 / gradients for name in names]
        row[kind] = {"plain": float(np.median(plain)), "corrected": float(np.median(best)), "worst": float(min(best))}
        if truth is not None:
            off = [abs(run[name].mean - truth[name]) / math.sqrt(spread[name]) for name in names]
            row[kind]["bias_in_sd"] = float(max(off))
    if truth is not None and "s0" in truth:
        pairs = [(f"m{i}", f"s{i}") for i in range(plan.dim) if f"s{i}" in truth]
        found = [(run.mean[s] - run.mean[m] ** 2) / (truth[s] - truth[m] ** 2) for m, s in pairs]
        row["variance_error"] = float(max(abs(ratio - 1) for ratio in found))
    print(_line(row), flush=True)
    return row


def _line(row: dict) -> str:
    cells = [
        f"{kind} {row[kind]['plain']:.3g} → {row[kind]['corrected']:.3g}" for kind in KINDS.values() if kind in row
    ]
    return f"{row['case']:44s} η = {_step(row):5} {'; '.join(cells)} ({row['engine']}, {row['seconds']:.1f} s)"


def _step(row: dict) -> str:
    return "–" if row["step_size"] is None else f"{row['step_size']:g}"


@functools.cache
def heart_setting(quick: bool) -> dict:
    """The heart data: target, Gaussian fit, observables with their truth and spread, and the whitened dynamics."""
    split = datasets.heart_split(0)
    target = gm.targets.LogisticRegression(split.X_train, split.y_train)
    model = gm.Model(target)
    fit, chosen = model.gaussian_fit, observables(model.dim, split.X_test)
    found = expectation(
        target,
        model.laplace,
        lambda rows: np.stack([model.values(h, rows) for h in chosen.values()], axis=1),
        num_draws=2**17 if quick else 2**20,
    )
    return {
        "target": target,
        "fit": fit,
        "test": split.X_test,
        "observables": chosen,
        "truth": dict(zip(chosen, found.mean, strict=True)),
        "spread": {name: ridge_moments(h, fit.precision, fit.mean)[1] for name, h in chosen.items()},
        "whitened": gm.dynamics.general(np.linalg.inv(fit.precision), 0),
    }


def heart(quick: bool) -> tuple[list[dict], dict]:
    """The heart data: every scheme with full gradients, and mini-batches with control variates; and the setting."""
    setting = heart_setting(quick)
    fit, whitened = setting["fit"], setting["whitened"]
    covariance = np.linalg.inv(fit.precision)
    root = np.linalg.cholesky(covariance)
    turn = gm.dynamics.general(covariance, root @ gm.dynamics.rotations(len(root), 1.0).dense() @ root.T)
    base = {
        "target": setting["target"],
        "observables": setting["observables"],
        "num_chains": 200 if quick else 1000,
        "num_steps": 1500,
        "start": fit.mean,
        "martingale": True,
        "seed": 1,
    }
    first, second = (lambda b, k=k: gm.oracles.ControlVariate(b, order=k) for k in (1, 2))
    cases = [
        ("Euler", "euler", whitened, 0.04, None),
        ("Leimkuhler-Matthews", "leimkuhler_matthews", whitened, 1.0, None),
        ("balanced", "balanced", whitened, 0.8, None),
        ("balanced, rotating", "balanced", turn, 0.4, None),
        ("balanced, order 1, b = 64", "balanced", whitened, 0.5, first(64)),
        ("balanced, order 2, b = 64", "balanced", whitened, 0.8, second(64)),
    ]
    rows = []
    for label, scheme, dynamics, eta, oracle in cases:
        plan = gm.Plan(
            **base, scheme=scheme, dynamics=dynamics, step_size=eta, oracle=oracle, burn_in=math.ceil(20 / eta)
        )
        rows.append(measure(f"heart, {label}", plan, setting["spread"], setting["truth"]))
    return rows, setting


def nuts_on_heart(quick: bool) -> list[dict]:
    """NumPyro's NUTS with a dense mass matrix on the heart data: draws from the spread of chain means about the truth."""
    one, chains = problem("heart"), 16 if quick else 128
    began = time.perf_counter()
    (found,) = nuts(one, 1000 if quick else 4000, chains, 1)
    row: dict = {"case": "heart, NumPyro NUTS", "step_size": None, "engine": "NumPyro", "rows_per_gradient": one.rows}
    row["seconds"] = time.perf_counter() - began
    squares = (found.estimates - one.truth) ** 2 / one.spread
    bias = np.abs(found.estimates.mean(axis=0) - one.truth) / np.sqrt(one.spread)
    for kind, place in one.columns.items():
        draws = 1 / squares.mean(axis=0)[place] / found.gradients
        row[kind] = {"plain": float(np.median(draws)), "corrected": float(np.median(draws)), "worst": float(min(draws))}
        row[kind]["bias_in_sd"] = float(max(bias[place]))
    print(_line(row), flush=True)
    return [row]


def many_rows(quick: bool) -> list[dict]:
    """200,000 rows, 20 parameters: a few rows per gradient with a control variate of second order."""
    rng, (N, d) = np.random.default_rng(11), (200_000, 20)
    X = np.column_stack([np.ones(N), rng.standard_normal((N, d - 1)) * np.exp(0.5 * rng.standard_normal(d - 1))])
    y = rng.random(N) < 1 / (1 + np.exp(-X @ (rng.standard_normal(d) * 0.7 / math.sqrt(d))))
    target = gm.targets.LogisticRegression(X, y.astype(float), prior_scale=5.0)
    began = time.perf_counter()
    model = gm.Model(target)
    fit = model.gaussian_fit
    print(f"200,000 rows: mode and mean curvature in {time.perf_counter() - began:.1f} s")
    chosen = observables(d, X[:0])
    spread = {name: ridge_moments(h, fit.precision, fit.mean)[1] for name, h in chosen.items()}
    truth = {name: ridge_moments(h, fit.precision, fit.mean)[0] for name, h in chosen.items()}
    rows = []
    for order, size, eta in ((1, 64, 0.3), (2, 8, 0.8), (2, 2, 0.8)):
        plan = gm.Plan(
            target=target,
            dynamics=gm.dynamics.general(np.linalg.inv(fit.precision), 0),
            oracle=gm.oracles.ControlVariate(size, order=order),
            scheme="balanced",
            observables=chosen,
            step_size=eta,
            num_chains=200 if quick else 400,
            num_steps=1500,
            burn_in=60,
            start=fit.mean,
            martingale=True,
            seed=1,
        )
        rows.append(measure(f"200,000 rows, balanced, order {order}, b = {size}", plan, spread, truth))
    return rows


def not_whitened(quick: bool) -> list[dict]:
    """A Gaussian with eigenvalues from 10⁻⁴ to 1 and scalar parameters: the slowest and the fastest direction."""
    d = 10
    precision = np.geomspace(1e-4, 1, d)
    rows = []
    for label, dynamics, scheme, eta, tau in (
        ("overdamped, balanced", gm.dynamics.overdamped(d), "balanced", 1.0, 0.0),
        ("HFHR splitting", gm.dynamics.hfhr(d, 1e-6, 0.01), "hfhr_splitting", 1.9, 0.0),
        ("HFHR splitting, noisy gradients", gm.dynamics.hfhr(d, 1e-6, 0.01), "hfhr_splitting", 1.4, 0.05),
    ):
        chosen = {"m0": gm.observables.linear(np.eye(d)[0]), "s0": gm.observables.square(np.eye(d)[0])}
        spread = {"m0": 1 / precision[0], "s0": 2 / precision[0] ** 2}
        plan = gm.Plan(
            target=gm.targets.Quadratic(precision),
            dynamics=dynamics,
            scheme=scheme,
            oracle=gm.oracles.Gaussian(tau) if tau else None,
            observables=chosen,
            step_size=eta,
            num_steps=20_000 if quick else 50_000,
            num_chains=400,
            start=lambda key: jax.random.normal(key, (d,)) / np.sqrt(precision),
        )
        rows.append(measure(f"κ = 10⁴, {label}", plan, spread, {"m0": 0.0, "s0": 1 / precision[0]}))
    return rows


def figure(setting: dict, path: Path) -> None:
    """The same target, the same number of gradients, four error bars."""
    fit, truth, d = setting["fit"], setting["truth"], len(setting["fit"].mean)
    coordinate, patient = 3, 5
    names = {
        f"m{coordinate}": "a coefficient",
        f"s{coordinate}": "its square",
        f"p{patient}": "a predictive probability",
    }
    chosen = {name: h for name, h in observables(d, setting["test"]).items() if name in names}
    base = gm.Plan(
        target=setting["target"],
        dynamics=setting["whitened"],
        observables=chosen,
        step_size=0.04,
        num_chains=20,
        num_steps=250,
        burn_in=0,
        start=lambda key: fit.mean + np.linalg.cholesky(np.linalg.inv(fit.precision)) @ jax.random.normal(key, (d,)),
    )
    plans = {
        "Euler": base,
        "Leimkuhler–\nMatthews": base.replace(scheme="leimkuhler_matthews", step_size=1.0),
        "balanced\nnoise": base.replace(scheme="balanced", step_size=0.8),
        "balanced noise\n+ martingale": base.replace(scheme="balanced", step_size=0.8, martingale=True),
    }
    runs = {label: gm.run(plan.replace(seed=k), progress=False) for k, (label, plan) in enumerate(plans.items())}
    drawn, axes = plt.subplots(1, 3, figsize=(10.5, 3.4), layout="constrained")
    for axis, (name, title) in zip(axes, names.items(), strict=True):
        for k, (run, colour) in enumerate(zip(runs.values(), COLOURS, strict=True)):
            low, high = run.interval(name)
            axis.errorbar(
                [k],
                [run.mean[name]],
                [[run.mean[name] - low], [high - run.mean[name]]],
                fmt="o",
                color=colour,
                capsize=5,
            )
        axis.axhline(truth[name], color="black", lw=0.8, ls=(0, (4, 3)))
        axis.set_xticks(range(4), list(runs), fontsize=7.5)
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("estimate, 95 % interval")
    drawn.savefig(path, dpi=160)
    plt.close(drawn)


def table(rows: list[dict]) -> str:
    """The rows as Markdown."""
    lines = [
        "| problem and sampler | η | rows per gradient | means | squares | predictive | error of a mean, in sd | of a variance |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells = [
            f"{row[kind]['plain']:.2g} → **{row[kind]['corrected']:.3g}**"
            if kind in row and row[kind]["corrected"] != row[kind]["plain"]
            else (f"{row[kind]['plain']:.2g}" if kind in row else "–")
            for kind in KINDS.values()
        ]
        bias, wrong = row["means"].get("bias_in_sd"), row.get("variance_error")
        lines.append(
            f"| {row['case']} | {_step(row)} | {row['rows_per_gradient']} | {' | '.join(cells)} | "
            f"{'–' if bias is None else f'{bias:.2g}'} | {'–' if wrong is None else f'{100 * wrong:.2g} %'} |"
        )
    return "\n".join(lines)


PARTS = {
    "heart": lambda quick: heart(quick)[0],
    "nuts": nuts_on_heart,
    "many-rows": many_rows,
    "not-whitened": not_whitened,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer chains and a smaller reference")
    parser.add_argument("--only", nargs="+", choices=PARTS, help="these parts; the others are read from the JSON file")
    parser.add_argument("--out", type=Path, default=None, help="write the numbers to this JSON file")
    parser.add_argument("--page", type=Path, default=None, help="write table and figure to this page")
    asked = parser.parse_args()
    if asked.only and (asked.out is None or not asked.out.exists()):
        parser.error("--only needs --out with the JSON file of all parts")
    kept = json.loads(asked.out.read_text()) if asked.only else {}
    found = {
        part: run(asked.quick) if part in (asked.only or PARTS) else kept.get(part, []) for part, run in PARTS.items()
    }
    rows = [row for part in found.values() for row in part]
    print(table(rows))
    if asked.out:
        write_measured(asked.out, found, extended=bool(asked.only))
    if asked.page:
        replace_between(asked.page, "draws per gradient", table(rows))
    if asked.page and "heart" in (asked.only or PARTS):
        figure(heart_setting(asked.quick), asked.page.parent / "figures" / "four-error-bars.png")


if __name__ == "__main__":
    main()
