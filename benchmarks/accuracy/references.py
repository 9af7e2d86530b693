"""Means and variances of the observables under the posterior, one JSON file per problem.

    PYTHONPATH=src:benchmarks python -m accuracy.references [NAME …] [--out docs/measured/references]

Hierarchies by quadrature over their scales; regressions by importance sampling with scrambled Sobol points around the mode; the
regression with a million rows by Gaussian draws with weights: their Gaussian expectation is known, only the rest is simulated;
the network by long NUTS chains.
"""

import argparse
import dataclasses
import math
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from accuracy.peers import LEAVES, MANY_ROWS, nuts
from accuracy.problems import PROBLEMS, REFERENCES, Draft, Problem, Rows, draft
from gyromc.approx.modes import inverse_root
from gyromc.approx.sample import expectation
from gyromc.prediction.exact.closed_forms import ridge_moments
from gyromc.show.files import json_text, write_atomically

DRAWS = 2**20
WEIGHTED = 8192
CHAINS, WARM_UP, LENGTH = 16, 200, 400  # of NUTS


def by_sobol(problem: Draft, draws: int = DRAWS) -> tuple[Rows, str]:
    """Means and variances by importance sampling with Sobol points; errors from independent scramblings."""
    hs, model = list(problem.observables.values()), problem.model
    both = lambda rows: np.concatenate([(v := np.stack([model.values(h, rows) for h in hs], axis=1)), v**2], axis=1)
    found = expectation(model.flat_target, model.laplace, both, num_draws=draws)
    first, second = np.split(found.mean, 2)
    rows = zip(first, second - first**2, found.std_error[: len(hs)], strict=True)
    method = f"importance sampling, {found.num_draws} scrambled Sobol points, {found.efficiency:.0%} of them effective"
    return dict(zip(problem.observables, rows, strict=True)), method


def by_weights(problem: Draft, draws: int = WEIGHTED) -> tuple[Rows, str]:
    """E h = E_G h + E_G[(w - 1)(h - E_G h)]/E_G w for the Laplace approximation G: w is near 1, so little is left to simulate."""
    model = problem.model
    center = model.laplace
    half = np.random.default_rng(0).standard_normal((draws // 2, problem.dim))
    away = np.concatenate([half, -half]) @ inverse_root(center.precision).T
    theta = center.mean + away
    logs = 0.5 * np.sum((away @ center.precision) * away, axis=1) - _potentials(problem, theta)
    weights = np.exp(logs - logs.mean())
    weights /= weights.mean()
    rows: Rows = {}
    for name, h in problem.observables.items():
        mean, variance = ridge_moments(h, center.precision, center.mean)  # type: ignore[arg-type]  # all are ridge functions
        terms = (weights - 1) * (model.values(h, theta) - mean)
        pairs = (terms[: draws // 2] + terms[draws // 2 :]) / 2
        rows[name] = mean + float(terms.mean()), variance, float(pairs.std(ddof=1) / math.sqrt(draws // 2))
    return (
        rows,
        f"{draws} draws of the Laplace approximation with weights of deviation {weights.std():.3f}, as a correction",
    )


class _WithSquares(Problem):
    """A problem whose observables are followed by their squares."""

    def evaluate(self, theta):
        values = super().evaluate(theta)
        return jnp.concatenate([values, values**2])


def by_nuts(problem: Draft, chains: int = CHAINS, warmup: int = WARM_UP, length: int = LENGTH) -> tuple[Rows, str]:
    """Means and variances from long chains of NUTS; errors from the spread between chains."""
    fields = {field.name: getattr(problem, field.name) for field in dataclasses.fields(Draft)}
    doubled = _WithSquares(**fields, truth=np.zeros(2 * len(problem.observables)))
    (found,) = nuts(doubled, LEAVES * length, chains, 5, warmup)
    first, second = np.split(found.estimates.mean(axis=0), 2)
    errors = found.estimates[:, : len(first)].std(axis=0, ddof=1) / math.sqrt(chains)
    method = f"{chains} chains of NUTS, {length} draws each after {warmup}, {found.gradients:.3g} gradients each"
    return dict(zip(problem.observables, zip(first, second - first**2, errors, strict=True), strict=True)), method


def _potentials(problem: Draft, theta: np.ndarray) -> np.ndarray:
    """U at the rows of θ, a few at a time: all data are read for each."""
    target = problem.target
    with jax.enable_x64(True):
        X, y = (jnp.asarray(a) for a in target.design)  # type: ignore[attr-defined]  # a regression

        @jax.jit
        def some(rows):
            t = X @ rows.T
            return jnp.sum(jnp.logaddexp(0.0, t) - y[:, None] * t, axis=0)

        parts = [np.asarray(some(jnp.asarray(part))) for part in np.array_split(theta, max(1, len(theta) // 8))]
    return np.concatenate(parts) + 0.5 * float(target.prior_precision) * np.sum(theta**2, axis=1)  # type: ignore[attr-defined]


def reference(problem: Draft) -> dict:
    """What is stored: the method, and mean, variance and error of the mean of every observable."""
    if problem.exact is not None:
        rows, method = problem.exact(), "quadrature over the scales, Gaussian given them"
    else:
        many = problem.rows >= MANY_ROWS
        rows, method = (by_nuts if problem.near is not None else by_weights if many else by_sobol)(problem)
    names = ("mean", "variance", "error")
    worst = max(row[2] / math.sqrt(row[1]) for row in rows.values())
    return {
        "problem": problem.name,
        "command": f"PYTHONPATH=src:benchmarks python -m accuracy.references {problem.name}",
        "method": method,
        "largest_error_in_sd": worst,
        "rows": {name: dict(zip(names, map(float, row), strict=True)) for name, row in rows.items()},
    }


def main() -> None:
    """Write the files of the problems named; of all that need one where none is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=REFERENCES)
    asked = parser.parse_args()
    needed = [name for name in PROBLEMS if name != "cosine" and not name.startswith("gaussian")]
    for name in asked.names or needed:
        began = time.perf_counter()
        found = reference(draft(name))
        write_atomically(asked.out / f"{name}.json", json_text(found, indent=1) + "\n")
        spent = time.perf_counter() - began
        print(
            f"{name}: {found['method']}; errors up to {found['largest_error_in_sd']:.1e} sd; {spent:.0f} s", flush=True
        )


if __name__ == "__main__":
    main()
