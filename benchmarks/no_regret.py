"""Is a tuned plan ever worse than plain SGLD with its own best step size? Forty problems, equal gradients.

    python benchmarks/no_regret.py [--only NAME ...] [--out docs/measured/no-regret.json] [--page docs/tuning.md]

For every problem: `gm.tune` with a budget of gradients, several runs of its plan, and plain SGLD (D = I, Euler) from the mode
with the best step size of a grid, which is chosen by the error itself. Root mean squared errors over observables and repetitions,
in posterior standard deviations, about truths from closed forms, quadrature or importance sampling. Also: wherever a mean is off
by more than four claimed errors, whether the tuner had warned. Results are stored after each problem, so that a second call goes
on.
"""

import argparse
import dataclasses
import math
import warnings
from collections.abc import Callable
from pathlib import Path

import jax.numpy as jnp
import numpy as np

import gyromc as gm
from gyromc.shape.gaussian import nearest_gaussian
from gyromc.shape.importance import expectation
from pages import markdown, measured_rows, replace_between, write_measured

BUDGET, BUDGET_OF_BATCHES, CHAINS, REPETITIONS = 20_000, 1000, 20, 12
GRID = np.geomspace(1.5, 0.003, 9)  # step sizes of SGLD, over the inverse of the largest curvature
FAR = 4.0  # claimed errors


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """A target over vectors, and the means of θ_i and θ_i² for the first coordinates."""

    name: str
    target: gm.targets.Target
    dim: int
    truth: Callable[["Case"], tuple[np.ndarray, np.ndarray]]  # means and second moments
    batch: int | None = None  # rows of mini-batches, where both have to use them

    @property
    def oracle(self) -> gm.oracles.Oracle | None:
        return None if self.batch is None else gm.oracles.Minibatch(self.batch)

    @property
    def gradients(self) -> int:
        """The budget, over all the data."""
        return BUDGET if self.batch is None else BUDGET_OF_BATCHES

    @property
    def steps(self) -> int:
        """What the budget pays for."""
        return self.gradients if self.batch is None else self.gradients * self.target.num_data // self.batch

    @property
    def shown(self) -> int:
        return min(self.dim, 8)

    @property
    def observables(self) -> dict:
        rows = np.eye(self.dim)[: self.shown]
        return {f"m{i}": gm.observables.linear(row) for i, row in enumerate(rows)} | {
            f"s{i}": gm.observables.square(row) for i, row in enumerate(rows)
        }

    def plan(self, **fields) -> gm.Plan:
        chosen = {"step_size": 0.1, "num_steps": 1, "num_chains": CHAINS, "start": np.zeros(self.dim)}
        return gm.Plan(
            target=self.target,
            dynamics=gm.dynamics.overdamped(self.dim),
            observables=self.observables,
            **{**chosen, **fields},
        )


def alike(second: float):
    """Means 0 and the same second moment in every coordinate."""
    return lambda case: (np.zeros(case.shown), np.full(case.shown, second))


def quadrature(log_density) -> float:
    """E t² of a symmetric density of one variable."""
    t = np.linspace(-60, 60, 400_001)
    weight = np.exp(log_density(t) - np.max(log_density(t)))
    return float(np.sum(t**2 * weight) / np.sum(weight))


def around_the_mode(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """By importance sampling around the Gaussian nearest to the posterior, for regressions."""
    model, k = gm.Model(case.target), case.shown
    center = nearest_gaussian(case.target, model.laplace, 256)
    read = lambda rows: np.concatenate([rows[:, :k], rows[:, :k] ** 2], axis=1)
    found = expectation(case.target, center, read, num_draws=2**18).mean
    return found[:k], found[k:]


def gaussian(condition: float, d: int) -> Case:
    spectrum = np.geomspace(1.0, condition, d) if d > 1 else np.array([condition])
    truth = lambda case: (np.zeros(case.shown), 1 / spectrum[: case.shown])
    return Case(f"Gaussian, κ = {condition:g}, d = {d}", gm.targets.Quadratic(spectrum), d, truth)


def student(freedom: float, d: int) -> Case:
    density = lambda t: -(freedom + 1) / 2 * jnp.log1p(t**2 / freedom)
    target = gm.targets.LogDensity(lambda theta: jnp.sum(density(theta)))
    return Case(f"independent t, {freedom:g} degrees, d = {d}", target, d, alike(freedom / (freedom - 2)))


def mixture(apart: float, d: int) -> Case:
    a = apart / math.sqrt(d)
    target = gm.targets.LogDensity(
        lambda t: jnp.logaddexp(-0.5 * jnp.sum((t - a) ** 2), jnp.log(0.5) - 0.5 * jnp.sum((t + a) ** 2))
    )
    truth = lambda case: (np.full(case.shown, a / 3), np.full(case.shown, 1 + a**2))
    return Case(f"two Gaussians {2 * apart:g} apart, d = {d}", target, d, truth)


def cosine(beta: float, d: int) -> Case:
    second = quadrature(lambda t: -0.5 * t**2 - beta * np.cos(t))
    return Case(f"cosine, β = {beta:g}, d = {d}", gm.targets.CosinePerturbed(d, beta), d, alike(second))


def steep(d: int) -> Case:
    target = gm.targets.LogDensity(lambda t: -jnp.sum(t**4) / 4)
    return Case(f"quartic, d = {d}", target, d, alike(quadrature(lambda t: -(t**4) / 4)))


def banana(bend: float) -> Case:
    target = gm.targets.LogDensity(lambda t: -(t[0] ** 2) / 2 - 2 * (t[1] - bend * (t[0] ** 2 - 1)) ** 2)
    return Case(f"banana, bend {bend:g}", target, 2, lambda case: (np.zeros(2), np.array([1.0, 0.25 + 2 * bend**2])))


def funnel(scale: float) -> Case:
    target = gm.targets.LogDensity(
        lambda t: -(t[0] ** 2) / (2 * scale**2) - 2 * t[0] - 0.5 * jnp.exp(-t[0]) * jnp.sum(t[1:] ** 2)
    )
    truth = lambda case: (np.zeros(5), np.array([scale**2, *[math.exp(scale**2 / 2)] * 4]))
    return Case(f"funnel, scale {scale:g}", target, 5, truth)


def logistic(n: int, d: int, size: float = 1.5) -> Case:
    rng = np.random.default_rng(n + d)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, d - 1))])
    y = rng.random(n) < 1 / (1 + np.exp(-X @ rng.standard_normal(d) * size / math.sqrt(d)))
    return Case(f"logistic, {n} rows, d = {d}", gm.targets.LogisticRegression(X, y), d, around_the_mode)


def batches(n: int, d: int, size: int) -> Case:
    case = logistic(n, d)
    return dataclasses.replace(case, name=f"{case.name}, batches of {size}", batch=size)


def poisson(n: int, d: int) -> Case:
    rng = np.random.default_rng(n + d)
    X = np.column_stack([np.ones(n), rng.standard_normal((n, d - 1))])
    y = rng.poisson(np.exp(X @ rng.standard_normal(d) * 0.4))
    return Case(f"Poisson, {n} rows, d = {d}", gm.targets.PoissonRegression(X, y), d, around_the_mode)


CASES = [
    *(gaussian(k, d) for k, d in [(1, 1), (1, 5), (1, 100), (10, 2), (50, 14), (1000, 5), (1e4, 20), (50, 100)]),
    *(gaussian(k, d) for k, d in [(1, 1000), (1e4, 300)]),
    *(student(f, d) for f, d in [(4.5, 1), (4.5, 5), (8, 3), (8, 20)]),
    *(mixture(a, d) for a, d in [(0.8, 1), (1.5, 2), (2.5, 2), (2.0, 10), (3.5, 1)]),
    *(cosine(b, d) for b, d in [(0.5, 1), (1.2, 3), (1.2, 20), (3.0, 2)]),
    *(steep(d) for d in [1, 5]),
    *(banana(b) for b in [0.2, 0.6]),
    *(funnel(s) for s in [0.7, 2.0]),
    *(
        logistic(n, d)
        for n, d in [(20, 3), (60, 2), (200, 10), (1000, 5), (1000, 40), (5000, 5), (20_000, 10), (300, 60)]
    ),
    *(batches(5000, 5, size) for size in (2, 50, 1000)),
    *(poisson(n, d) for n, d in [(30, 3), (100, 5), (500, 10), (5000, 4)]),
]


def measure(case: Case, repetitions: int = REPETITIONS) -> dict:
    """One row of the table."""
    means, seconds = case.truth(case)
    truth = np.concatenate([means, seconds])
    spread = np.sqrt(seconds - means**2)
    spread = np.concatenate(
        [spread, np.sqrt(2) * spread * np.sqrt(spread**2 + 2 * means**2)]
    )  # of squares, as of a Gaussian
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tuned = gm.tune(case.plan(), gradients=case.gradients, oracle=case.oracle)
        ours, far = [], 0
        for seed in range(repetitions):
            run = gm.run(
                tuned.plan.replace(seed=seed).knowing(tuned.plan.model), progress=False, on_divergence="report"
            )
            found, claimed = (np.array(list(x.values())) for x in (run.mean, run.std_error))
            ours.append((found - truth) / spread)
            claimed = np.hypot(claimed, [row.largest_bias for row in tuned.values()])
            far += int(np.any(np.abs(found - truth) > FAR * claimed))
        step, theirs = plain(case, truth, spread, repetitions)
    rmse = float(np.sqrt(np.mean(np.square(ours))))
    return {
        "problem": case.name,
        "tuned": rmse,
        "expected": float(np.sqrt(np.mean(np.square(np.array(list(tuned.expected.values())) / spread)))),
        "sgld": theirs,
        "ratio": rmse / theirs,
        "sampler": tuned.reason.split(", whitened")[0],
        "step_size": tuned.plan.eta,
        "sgld_step_size": step,
        "tuning_gradients": tuned.spent,
        "far_off": far / repetitions,
        "warned": bool(tuned.warnings),
    }


def plain(case: Case, truth: np.ndarray, spread: np.ndarray, repetitions: int) -> tuple[float, float]:
    """SGLD at its best step size: from the mode, a tenth of the steps burn-in, the errors of several repetitions."""
    model = case.plan().model
    try:
        start, top = model.mode, float(np.linalg.eigvalsh(model.precision)[-1])
        top = max(top, 1 / float(np.min(spread[: case.shown])) ** 2)  # the curvature at a mode can be 0
    except gm.InvalidInput:
        start, top = np.zeros(case.dim), 1.0
    steps, best = case.steps // CHAINS, (math.inf, math.nan)
    for scale in GRID:
        plan = case.plan(
            start=start,
            step_size=scale / top,
            num_steps=steps - steps // 10,
            burn_in=steps // 10,
            num_chains=CHAINS * repetitions,
            oracle=case.oracle,
        )
        run = gm.run(plan, progress=False, on_divergence="report")
        if np.any(run.diverged):
            continue
        averages = np.stack(list(run.averages.values()), axis=1).reshape(repetitions, CHAINS, -1).mean(axis=1)
        best = min(best, (float(np.sqrt(np.mean(((averages - truth) / spread) ** 2))), scale / top))
    return best[1], best[0]


def table(rows: list[dict]) -> str:
    """As Markdown."""
    columns = [
        "problem",
        "tuned",
        "expected",
        "SGLD, best step",
        "tuned / SGLD",
        "tuning",
        "off by > 4 errors",
        "warned",
    ]
    cells = [
        [
            row["problem"],
            *(f"{row[key]:.3g}" for key in ("tuned", "expected", "sgld", "ratio")),
            f"{row['tuning_gradients']:,.0f}",
            f"{100 * row['far_off']:.0f} %",
            "yes" if row["warned"] else "no",
        ]
        for row in rows
    ]
    return markdown(columns, cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names that contain one of these")
    parser.add_argument("--repetitions", type=int, default=REPETITIONS)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    given = parser.parse_args()
    rows = measured_rows(given.out)
    for case in CASES:
        wanted = not given.only or any(text in case.name for text in given.only)
        if not wanted or case.name in {row["problem"] for row in rows}:
            continue
        rows.append(measure(case, given.repetitions))
        print(table(rows[-1:]).splitlines()[-1], flush=True)
        if given.out:
            write_measured(given.out, rows, extended=True)
    if given.page:
        replace_between(given.page, "no regret", table(rows))
    worst = max(rows, key=lambda row: row["ratio"])
    print(f"{len(rows)} problems; the worst ratio {worst['ratio']:.2g} ({worst['problem']})")


if __name__ == "__main__":
    main()
