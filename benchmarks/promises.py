"""Whether tuned plans keep their promise: the error of runs about the truth, over the error that `gm.tune` said to expect.

    python benchmarks/promises.py [--only NAME ...] [--out docs/measured/promises.json] [--page docs/tuning.md]

Truths are exact: closed forms, or sums over a grid; of the heart data an importance sample with 2¹⁸ draws. Output: a JSON file,
and the table of the page.
"""

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from scipy import special

import gyromc as gm
from gyromc.approx.sample import expectation
from gyromc.datasets import heart_split
from pages import markdown, replace_between, write_measured

GRADIENTS = 20_000
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])

Problem = tuple[gm.targets.Target, dict, dict[str, float], np.ndarray]


def moments(d: int, places: range) -> dict:
    """Means and squares of some coordinates."""
    linear, square = gm.observables.linear, gm.observables.square
    return {f"m{i}": linear(np.eye(d)[i]) for i in places} | {f"s{i}": square(np.eye(d)[i]) for i in places}


def gaussian() -> Problem:
    """Condition number 50, 14 parameters; nobody says that it is Gaussian."""
    rng = np.random.default_rng(0)
    basis, mean = np.linalg.qr(rng.standard_normal((14, 14)))[0], rng.standard_normal(14)
    K = (basis * np.geomspace(1.0, 50.0, 14)) @ basis.T
    squares = mean**2 + np.diag(np.linalg.inv(K))
    truth = {f"m{i}": x for i, x in enumerate(mean)} | {f"s{i}": x for i, x in enumerate(squares)}
    return (
        gm.targets.LogDensity(lambda t: -0.5 * (t - mean) @ K @ (t - mean)),
        moments(14, range(14)),
        truth,
        np.zeros(14),
    )


def heart() -> Problem:
    """Logistic regression on the heart data."""
    split, observables = heart_split(0), moments(14, range(14))
    target = gm.targets.LogisticRegression(split.X_train, split.y_train)
    model = gm.Model(target)
    read = lambda rows: np.stack([model.values(h, rows) for h in observables.values()], axis=1)
    found = expectation(target, model.laplace, read, num_draws=2**18).mean
    return target, observables, dict(zip(observables, found, strict=True)), np.zeros(14)


def cosine() -> Problem:
    """Four wells, between which chains move."""
    t = np.linspace(-12, 12, 100_001)
    weight = np.exp(-0.5 * t**2 - 1.2 * np.cos(t))
    truth = {"m0": 0.0, "s0": float(np.sum(t**2 * weight) / np.sum(weight))}
    return gm.targets.CosinePerturbed(2, 1.2), moments(2, range(1)), truth, np.zeros(2)


def mixture() -> Problem:
    """Two Gaussians 5.7 standard deviations apart, with weights 2/3 and 1/3."""
    density = lambda t: jnp.logaddexp(-0.5 * jnp.sum((t - 2) ** 2), jnp.log(0.5) - 0.5 * jnp.sum((t + 2) ** 2))
    return gm.targets.LogDensity(density), moments(2, range(1)), {"m0": 2 / 3, "s0": 5.0}, np.zeros(2)


def log_gamma() -> Problem:
    """The logarithm of gamma variables with shape ½: one tail is exponential, the other doubly so."""
    mean, variance = special.digamma(0.5), special.polygamma(1, 0.5)
    truth = {"m0": float(mean), "s0": float(mean**2 + variance)}
    return gm.targets.LogDensity(lambda t: jnp.sum(0.5 * t - jnp.exp(t))), moments(2, range(1)), truth, np.zeros(2)


def funnel() -> Problem:
    """v ~ N(0, 1.5²), two x ~ N(0, exp v)."""
    density = lambda t: -(t[0] ** 2) / 4.5 - 0.5 * jnp.sum(t[1:] ** 2) * jnp.exp(-t[0]) - t[0]
    observables = moments(3, range(1)) | {"x": gm.observables.linear([0.0, 1.0, 0.0])}
    return gm.targets.LogDensity(density), observables, {"m0": 0.0, "s0": 2.25, "x": 0.0}, np.zeros(3)


def schools() -> Problem:
    """Eight schools, centred: (μ, log τ, θ); θ and μ are integrated given τ, and τ over a grid."""

    def density(p):
        mu, log_tau, theta = p[0], p[1], p[2:]
        tau, rest = jnp.exp(log_tau), jnp.sum(((EFFECTS - theta) / ERRORS) ** 2)
        return (
            -(mu**2) / 50 - jnp.log1p((tau / 5) ** 2) - 7 * log_tau - 0.5 * (jnp.sum(((theta - mu) / tau) ** 2) + rest)
        )

    log_tau = np.linspace(-12, 6, 4001)
    tau = np.exp(log_tau)[:, None]
    V = ERRORS**2 + tau**2
    precision = 1 / 25 + np.sum(1 / V, axis=1)
    mu = np.sum(EFFECTS / V, axis=1) / precision
    fit = np.sum(np.log(V) + EFFECTS**2 / V, axis=1) - mu**2 * precision + np.log(precision)
    log_weight = -np.log1p((tau[:, 0] / 5) ** 2) + log_tau - 0.5 * fit
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    first = mu + (tau**2 / V)[:, 0] * (EFFECTS[0] - mu)
    truth = {"m0": weight @ mu, "m1": weight @ log_tau, "s1": weight @ log_tau**2, "school": weight @ first}
    observables = {name: h for name, h in moments(10, range(2)).items() if name != "s0"}
    observables["school"] = gm.observables.linear(np.eye(10)[2])
    return gm.targets.LogDensity(density), observables, {name: float(x) for name, x in truth.items()}, np.zeros(10)


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "Gaussian, κ = 50, d = 14": gaussian,
    "heart data, logistic, d = 14": heart,
    "cosine, β = 1.2, d = 2": cosine,
    "two Gaussians 5.7 apart, d = 2": mixture,
    "log-gamma, shape ½, d = 2": log_gamma,
    "funnel, scale 1.5, d = 3": funnel,
    "eight schools, centred, d = 10": schools,
}


def measured(name: str, tunings: int, runs: int) -> dict:
    """Tune and run a problem several times."""
    target, observables, truth, start = PROBLEMS[name]()
    ratios, expected, biases, warned, chosen = [], [], [], 0, {}
    for seed in range(tunings):
        tuned = gm.tune(target, observables, gradients=GRADIENTS, seed=seed, start=None if target.dim else start)
        warned += bool(tuned.warnings)
        chosen[f"{tuned.plan.scheme}"] = None
        expected.append([row.relative**2 for row in tuned.values()])
        biases.append([(row.bias**2 + row.bias_error**2) / row.sd**2 for row in tuned.values()])
        for again in range(runs):
            run = gm.run(tuned.plan.replace(seed=1000 + 100 * seed + again).knowing(tuned.plan.model), progress=False)
            ratios.append([((run.mean[h] - truth[h]) / tuned.expected[h]) ** 2 for h in observables])
    root = lambda squares: float(np.sqrt(np.mean(squares)))
    worst = float(np.sqrt(np.max(np.mean(ratios, axis=0))))
    found = {"problem": name, "ratio": root(ratios), "worst": worst, "expected": root(expected), "bias": root(biases)}
    return found | {"chosen": " or ".join(chosen), "warned": warned / tunings}


def table(rows: list[dict]) -> str:
    """The rows as Markdown."""
    columns = [
        "problem",
        "error / expected",
        "worst observable",
        "expected RMSE in posterior sds",
        "of it bias",
        "chosen",
        "warned",
    ]
    cells = [
        [
            row["problem"],
            *(f"{row[key]:.2g}" for key in ("ratio", "worst", "expected", "bias")),
            row["chosen"],
            f"{row['warned']:.0%}",
        ]
        for row in rows
    ]
    return markdown(columns, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--tunings", type=int, default=3)
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args()
    rows = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gm.GyromcWarning)
        for name in asked.only:
            rows.append(measured(name, asked.tunings, asked.runs))
            print(table(rows[-1:]).splitlines()[-1], flush=True)
    if asked.out:
        write_measured(asked.out, rows)
    if asked.page:
        replace_between(asked.page, "promises", table(rows))


if __name__ == "__main__":
    main()
