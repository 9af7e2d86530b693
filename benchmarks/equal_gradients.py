"""RMSE of posterior means at equal gradients: default plans for NumPyro models against preconditioned SGLD at its best step size.

Run as `PYTHONPATH=src python benchmarks/equal_gradients.py [--only NAME] [--gradients N] [--out FILE]`. Three models with exact
means: eight schools (non-centred) and AR(5) by quadrature, a logistic regression by importance sampling. SGLD gets every
advantage: D is the posterior covariance of a NUTS run, chains start at its draws and need no burn-in, and its step size is the
best of a grid for the same repetitions. Output: the rows of the table in docs/numpyro.md, and one JSON record per model.
"""

import dataclasses
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from numpyro import distributions as dist
from numpyro.infer import MCMC, NUTS

import gyromc as gm
from gyromc.approx.sample import expectation
from gyromc.evaluation import doubled
from gyromc.interop import numpyro as gnp
from gyromc.targets import LogisticRegression
from pages import study_of_models

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from numpyro_models import examples

REPETITIONS, TUNINGS, CHAINS = 40, 4, 20
GRID = np.geomspace(0.01, 1.3, 12)
LAGS = 5


@dataclasses.dataclass(frozen=True)
class Problem:
    """A model with its data and its exact means: {element: (mean, sd)}."""

    model: Callable
    args: tuple
    truth: dict[str, tuple[float, float]]


def autoregression(past, y):
    """AR(5) with an intercept: b ~ N(0, 10²), σ ~ HalfCauchy(2.5)."""
    b = numpyro.sample("b", dist.Normal(0.0, 10.0).expand([LAGS + 1]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    numpyro.sample("y", dist.Normal(past @ b, sigma), obs=y)


def logistic(X, y):
    """Logistic regression without a plate, β ~ N(0, 1)."""
    beta = numpyro.sample("beta", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    numpyro.sample("y", dist.Bernoulli(logits=X @ beta), obs=y)


def schools_exactly(effects, errors) -> dict[str, tuple[float, float]]:
    """Given μ and τ the z_j are normal and independent: a sum over a grid of μ and log τ is all that is left."""
    mu, log_tau = np.meshgrid(np.linspace(-25, 35, 601), np.linspace(-16, 8, 2401), indexing="ij")
    tau = np.exp(log_tau)
    log_weight = -(mu**2) / 50 - np.log1p((tau / 5) ** 2) + log_tau
    means, spreads = [], []
    for effect, error in zip(effects, errors, strict=True):
        variance = 1 / (1 + (tau / error) ** 2)
        means.append(variance * tau * (effect - mu) / error**2)
        spreads.append(variance)
        log_weight = log_weight + 0.5 * np.log(variance) - 0.5 * (effect - mu) ** 2 / (error**2 + tau**2)
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()

    def law(mean, variance=0.0):
        first = float(np.sum(weight * mean))
        return first, float(np.sqrt(np.sum(weight * (mean**2 + variance)) - first**2))

    found = {"mu": law(mu), "tau": law(tau)}
    for j, (mean, variance) in enumerate(zip(means, spreads, strict=True)):
        found[f"z[{j}]"] = law(mean, variance)
        found[f"theta[{j}]"] = law(mu + tau * mean, tau**2 * variance)
    return found


def autoregression_exactly(past, y) -> dict[str, tuple[float, float]]:
    """Given σ the coefficients are normal: a sum over a grid of log σ is all that is left."""
    log_sigma = np.linspace(-3.0, 2.0, 4001)
    weights, means, seconds = [], [], []
    for s in log_sigma:
        K = past.T @ past / np.exp(2 * s) + np.eye(LAGS + 1) / 100
        right = past.T @ y / np.exp(2 * s)
        mean = np.linalg.solve(K, right)
        fitted = 0.5 * right @ mean - 0.5 * y @ y / np.exp(2 * s)
        weights.append(
            fitted - len(y) * s - 0.5 * np.linalg.slogdet(K)[1] - np.log1p((np.exp(s) / 2.5) ** 2) + s
        )  # the last: σ = e^s
        means.append(mean)
        seconds.append(mean**2 + np.diag(np.linalg.inv(K)))
    w = np.exp(np.array(weights) - max(weights))
    w /= w.sum()
    first, second = w @ np.array(means), w @ np.array(seconds)
    found = {
        f"b[{i}]": (float(m), float(np.sqrt(q - m**2))) for i, (m, q) in enumerate(zip(first, second, strict=True))
    }
    sigma, square = float(w @ np.exp(log_sigma)), float(w @ np.exp(2 * log_sigma))
    return {**found, "sigma": (sigma, float(np.sqrt(square - sigma**2)))}


def logistic_exactly(X, y) -> dict[str, tuple[float, float]]:
    """By importance sampling around the mode, 2¹⁸ draws."""
    target = LogisticRegression(X, y, prior_scale=1.0)
    read = lambda rows: np.concatenate([rows, rows**2], axis=1)
    found, d = expectation(target, gm.Model(target).laplace, read, num_draws=2**18).mean, X.shape[1]
    return {f"beta[{i}]": (float(found[i]), float(np.sqrt(found[d + i] - found[i] ** 2))) for i in range(d)}


def problems(only: str | None = None) -> dict[str, Problem]:
    """The three models with their data and exact means, by name, or one of them."""
    rng = np.random.default_rng(5)
    series = np.zeros(200)
    for t in range(LAGS, len(series)):
        series[t] = 0.1 + series[t - LAGS : t][::-1] @ [0.6, -0.2, 0.1, 0.05, 0.1] + rng.normal(0, 0.5)
    past = np.column_stack([np.ones(195), *(series[LAGS - k - 1 : len(series) - k - 1] for k in range(LAGS))])
    columns = [
        rng.integers(1, 6, 1200) / 2,
        rng.random(1200) < 0.12,
        rng.integers(1, 5, 1200) / 2,
        rng.random(1200) < 0.5,
    ]
    X = np.column_stack([np.ones(1200), *columns, *rng.normal(size=(4, 1200))])
    y = (rng.random(1200) < 1 / (1 + np.exp(-X @ [-1.4, 0.65, -1.0, 0.2, 0.1, 0.5, -0.3, 0.1, 0.0]))).astype(int)
    schools = examples()["eight schools"]
    makers = {
        "eight schools": lambda: Problem(schools.model, schools.args, schools_exactly(*schools.args)),
        "AR(5)": lambda: Problem(autoregression, (past, series[LAGS:]), autoregression_exactly(past, series[LAGS:])),
        "logistic": lambda: Problem(logistic, (X, y), logistic_exactly(X, y)),
    }
    return {name: make() for name, make in makers.items() if only in (None, name)}


def nuts_draws(target: gnp.Posterior) -> np.ndarray:
    """Unconstrained draws of NUTS, in rows."""
    with jax.enable_x64(True):
        pieces = doubled(target)
        kernel = NUTS(potential_fn=lambda theta: pieces.potential(theta))
        sampler = MCMC(
            kernel, num_warmup=500, num_samples=1000, num_chains=8, chain_method="vectorized", progress_bar=False
        )
        sampler.run(jax.random.key(0), init_params=jnp.zeros((8, target.dim)))
        return np.asarray(sampler.get_samples(), float)


def repeated(plan: gm.Plan, repetitions: int, seed: int, starts: np.ndarray | None = None) -> gm.Run:
    """So many repetitions of a plan as chains of one run: chains are independent of each other."""
    chains = plan.num_chains * repetitions
    again = plan.replace(num_chains=chains, seed=seed, start=plan.start if starts is None else starts[:chains])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", gm.GyromcWarning)  # of chains that diverge: such a step size is not taken
        return gm.run(again.knowing(plan.model) if starts is None else again, progress=False, on_divergence="report")


def squared_errors(run: gm.Run, repetitions: int, truth: dict[str, tuple[float, float]]) -> np.ndarray:
    """Squared errors in posterior sds, averaged over elements, one for each repetition; infinite where a chain diverged."""
    if np.any(run.diverged):
        return np.full(repetitions, np.inf)
    errors = [
        (np.asarray(run.averages[name]).reshape(repetitions, -1).mean(axis=1) - mean) / sd
        for name, (mean, sd) in truth.items()
    ]
    return np.mean(np.square(errors), axis=0)


def sgld(
    target: gnp.Posterior, draws: np.ndarray, gradients: int, truth: dict[str, tuple[float, float]]
) -> dict[float, float]:
    """RMSE of SGLD with D the covariance of the draws, from starts among them, by step size."""
    dynamics = gm.dynamics.general(np.cov(draws.T), np.zeros((target.dim, target.dim)))
    rng, grid = np.random.default_rng(1), {}
    for eta in GRID:
        plan = gm.Plan(
            target=target, dynamics=dynamics, observables=gnp.observables(target), step_size=float(eta),
            num_steps=gradients // CHAINS, num_chains=CHAINS, start=draws[:CHAINS],
        )  # fmt: skip
        starts = rng.permutation(draws)[: CHAINS * REPETITIONS]
        squares = squared_errors(repeated(plan, REPETITIONS, 7, starts), REPETITIONS, truth)
        grid[float(eta)] = float(np.sqrt(np.mean(squares)))
    return grid


def measured(name: str, problem: Problem, gradients: int) -> dict:
    """Both samplers on one problem; SGLD also with the gradients that the tunings took."""
    target = gnp.target(problem.model, *problem.args)
    squares, tunings = [], []
    for seed in range(TUNINGS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", gm.GyromcWarning)
            tuned = gnp.tune(target, gradients=gradients, seed=seed)
        count = REPETITIONS // TUNINGS
        found = squared_errors(repeated(tuned.plan, count, 100 + seed), count, problem.truth)
        squares.append(found)
        of_means = [tuned[element].relative ** 2 for element in problem.truth]
        tunings.append(
            {
                "plan": tuned.plan.summary(),
                "spent": tuned.spent,
                "expected": float(np.sqrt(np.mean(of_means))),
                "measured": float(np.sqrt(np.mean(found))),
                "warnings": tuned.warnings,
            }
        )
    own, draws = np.concatenate(squares), nuts_draws(target)
    spent = round(float(np.mean([one["spent"] for one in tunings])))
    record = {
        "model": name,
        "gradients": gradients,
        "tuned_rmse": float(np.sqrt(np.mean(own))),
        "tuned_error": float(np.std(own) / np.sqrt(len(own)) / 2 / np.sqrt(np.mean(own))),
        "spent": spent,
        "tunings": tunings,
    }
    for key, budget in (("sgld", gradients), ("sgld_with_spent", gradients + spent)):
        grid = sgld(target, draws, budget, problem.truth)
        best = min(grid, key=lambda eta: grid[eta])
        record[key] = {"gradients": budget, "rmse": grid[best], "step_size": best, "grid": _finite(grid)}
    return record


def _finite(grid: dict[float, float]) -> dict[str, float | None]:
    """The grid for JSON: None where chains diverged."""
    return {f"{eta:.4g}": value if np.isfinite(value) else None for eta, value in grid.items()}


def line(record: dict) -> str:
    """A row of the table in docs/numpyro.md."""
    plan, plain, more = record["tunings"][0]["plan"], record["sgld"], record["sgld_with_spent"]
    cells = (
        record["model"],
        f"{plan['scheme']}, η = {plan['step_size']:.3g}",
        f"{record['tuned_rmse']:.4f} ± {record['tuned_error']:.4f}",
        f"{np.sqrt(np.mean([one['expected'] ** 2 for one in record['tunings']])):.4f}",
        f"{plain['rmse']:.4f} (η = {plain['step_size']:.3g})",
        f"{plain['rmse'] / record['tuned_rmse']:.1f}",
        f"{record['spent']}",
        f"{more['rmse']:.4f} (η = {more['step_size']:.3g})",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Every model, or one."""
    record = lambda name, problem, options: measured(name, problem, options.gradients)
    study_of_models(__doc__, {"gradients": 4000}, problems, record, line)


if __name__ == "__main__":
    main()
