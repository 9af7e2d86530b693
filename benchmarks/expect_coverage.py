"""Coverage of the 95 % intervals of `gyromc.expect`, whose length depends on its own error: five problems, 500 runs each.

    python benchmarks/expect_coverage.py [--runs 500] [--out docs/measured/expect-coverage.json] [--page docs/intervals.md]

Each problem is tuned ten times, with its own seeds; every run takes the plan and the bias of one of these tunings, begins at its
first stage with its own seed and decides for itself how long it is. Writes the JSON file, and the table between the two markers
of the page.
"""

import dataclasses
import json
import math
import time
import warnings

import jax.numpy as jnp
import numpy as np
from gyromc.expectation.expect import attain
from gyromc.expectation.pursuit import FEWEST

import gyromc as gm
from accuracy.hierarchies import eight_schools
from gyromc import datasets
from gyromc.shape.importance import expectation
from interval_coverage import cosine_square, shares
from pages import coverage_options, replace_between, save_rows

TUNINGS = 10
REFERENCE = 2**19  # draws around the mode, for the truth of a regression
SCHOOLS = eight_schools()
EFFECTS, ERRORS = SCHOOLS.y, SCHOOLS.noise


class EightSchools(gm.targets.Target):
    """μ ~ N(0, 5²), τ ~ half-Cauchy(5), y_j ~ N(μ + τ z_j, s_j²), non-centred: θ = (μ, log τ, z)."""

    @property
    def dim(self):
        return 10

    def potential(self, params):
        mu, tau, z = params[0], jnp.exp(params[1]), params[2:]
        prior = 0.5 * (mu / 5) ** 2 + jnp.log1p((tau / 5) ** 2) - params[1] + 0.5 * jnp.sum(z**2)
        y, s = jnp.asarray(EFFECTS, params.dtype), jnp.asarray(ERRORS, params.dtype)
        return prior + 0.5 * jnp.sum(((y - mu - tau * z) / s) ** 2)


@dataclasses.dataclass(frozen=True)
class Problem:
    """A target with known expectations, and the error asked for."""

    name: str
    target: gm.targets.Target
    observables: dict
    truth: dict[str, float]
    error: float


def gaussian() -> Problem:
    """What is not linear or quadratic, so that the control variate leaves something to chance."""
    e, t = np.eye(5)[0], np.linspace(-10, 10, 100_001)
    weight = np.exp(-0.5 * t**2) / np.sum(np.exp(-0.5 * t**2))
    observables = {"tanh": gm.observables.tanh(3 * e), "p": gm.observables.predictive(2 * e)}
    truth = {"tanh": 0.0, "p": float(np.sum(weight / (1 + np.exp(-2 * t))))}
    target = gm.targets.Quadratic([1.0, 2.0, 4.0, 8.0, 16.0])
    return Problem("Gaussian, d = 5", target, observables, truth, error=0.004)


def by_importance(name: str, target, observables: dict, error: float) -> Problem:
    """A regression, its truth from importance sampling around the mode."""
    model = gm.Model(target)
    values = lambda rows: np.stack([model.values(h, rows) for h in observables.values()], axis=1)
    found = expectation(target, model.laplace, values, num_draws=REFERENCE)
    truth = dict(zip(observables, map(float, found.mean), strict=True))
    return Problem(name, target, observables, truth, error)


def heart() -> Problem:
    split = datasets.heart_split(0)
    e = np.eye(split.X_train.shape[1])[0]
    observables = {"θ₁": gm.observables.linear(e), "p": gm.observables.predictive(split.X_test[0])}
    target = gm.targets.LogisticRegression(split.X_train, split.y_train)
    return by_importance("heart, logistic", target, observables, error=0.003)


def counts() -> Problem:
    rng = np.random.default_rng(3)
    X = np.column_stack([np.ones(60), rng.standard_normal((60, 2))])
    y = rng.poisson(np.exp(X @ [0.3, 0.5, -0.4]))
    e = np.eye(3)[1]
    observables = {"θ₂": gm.observables.linear(e), "θ₂²": gm.observables.square(e)}
    return by_importance(
        "Poisson regression", gm.targets.PoissonRegression(X, y, prior_scale=2.0), observables, error=0.002
    )


def schools() -> Problem:
    """The z_j integrate out: a sum over a grid of (μ, log τ), which is exact to rounding."""
    mu, t = np.linspace(-35, 45, 1601)[:, None], np.linspace(-14, 7, 2101)[None, :]
    tau = np.exp(t)
    log = -0.5 * (mu / 5) ** 2 - np.log1p((tau / 5) ** 2) + t
    for y, s in zip(EFFECTS, ERRORS, strict=True):
        log = log - 0.5 * (y - mu) ** 2 / (s**2 + tau**2) - 0.5 * np.log(s**2 + tau**2)
    weight = np.exp(log - log.max())
    weight /= weight.sum()
    truth = {"μ": float((weight * mu).sum()), "log τ": float((weight * t).sum())}
    observables = {name: gm.observables.linear(np.eye(10)[i]) for i, name in enumerate(truth)}
    return Problem("eight schools", EightSchools(), observables, truth, error=0.04)


def cosine() -> Problem:
    e = np.eye(2)[0]
    observables = {"tanh": gm.observables.tanh(e), "θ₁²": gm.observables.square(e)}
    truth = {"tanh": 0.0, "θ₁²": cosine_square(1.2)}
    return Problem("cosine, d = 2", gm.targets.CosinePerturbed(2, 1.2), observables, truth, error=0.02)


PROBLEMS = {"gaussian": gaussian, "heart": heart, "counts": counts, "schools": schools, "cosine": cosine}


def study(problem: Problem, runs: int, seconds: float) -> list[dict]:
    """One row per observable, over `runs` runs or as many as fit into the time."""
    found = {name: [] for name in problem.observables}
    began, steps, etas = time.perf_counter(), [], []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for k in range(TUNINGS):
            tuned = gm.tune(problem.target, observables=problem.observables, error=problem.error, seed=k)
            until = began + seconds * (k + 1) / TUNINGS
            for seed in range(k, runs, TUNINGS):
                own = tuned.plan.replace(seed=1000 + seed).knowing(tuned.plan.model)
                estimates = attain(own, problem.error, tuning=tuned, progress=False)
                steps.append(estimates.run.steps_done)
                etas.append(estimates.run.plan.eta)
                for name, row in estimates.items():
                    found[name].append(row)
                if time.perf_counter() > until:
                    break
    spent = time.perf_counter() - began
    return [summary(problem, name, rows, steps, etas, spent) for name, rows in found.items()]


def summary(problem: Problem, name: str, rows: list, steps: list[int], etas: list[float], seconds: float) -> dict:
    truth, runs = problem.truth[name], len(rows)
    spread = math.sqrt(rows[0].average.posterior_variance)
    off = np.array([row.mean for row in rows]) - truth
    return {
        "problem": problem.name,
        "observable": name,
        "error": problem.error,
        "runs": runs,
        **shares(rows, truth),
        "rmse": float(math.sqrt(np.mean(off**2)) / spread),
        "bias": float(off.mean() / spread),
        "stated": float(math.sqrt(np.mean([row.relative_error**2 for row in rows]))),
        "reached": sum(row.relative_error <= problem.error * (1 + 1e-6) for row in rows) / runs,
        "steps": [int(q) for q in np.quantile(steps, [0.0, 0.5, 1.0])],
        "step_sizes": sorted(set(etas)),
        "second_stage": sum(n > FEWEST for n in steps) / runs,
        "seconds": round(seconds, 1),
    }


def table(rows: list[dict]) -> str:
    """The rows as Markdown."""
    lines = [
        "| problem | observable | runs | error asked for | stated | true | steps, least to most | coverage |",
        "|---|---|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        low, middle, high = row["steps"]
        lines.append(
            f"| {row['problem']} | {row['observable']} | {row['runs']} | {row['error']:g} | {row['stated']:.2g} "
            f"| {row['rmse']:.2g} | {low} / {middle} / {high} | {100 * row['coverage']:.1f} % |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = coverage_options(__doc__, 500)
    parser.add_argument("--only", nargs="*", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--seconds", type=float, default=math.inf, help="the most time for the runs of one problem")
    options = parser.parse_args()
    rows: list[dict] = []
    for name in options.only:
        found = study(PROBLEMS[name](), options.runs, options.seconds)
        for row in found:
            print(json.dumps(row, ensure_ascii=False), flush=True)
        rows = save_rows(options.out, found, ("problem", "observable")) if options.out else rows + found
    if options.page:
        replace_between(options.page, "expect coverage", table(rows))


if __name__ == "__main__":
    main()
