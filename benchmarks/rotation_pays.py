"""Where rotation pays: the table of docs/concepts/rotation.md, with and without rotation at equal gradients.

`python benchmarks/rotation_pays.py` prints the table. Rows about dynamics are exact for a Gaussian with the precision named, at
steps where Euler's covariance is off by 10 % in its worst direction. Rows about the estimator use the same draws with and without
rotated fields, with Metropolis steps and so without bias; without, fields are gradients of quadratics and cubics. Their gain is
the ratio of squared standard errors, the geometric mean over observables, ± its standard error over seeds.
"""

import warnings

import jax.numpy as jnp
import numpy as np

import gyromc as gm
from concept_figures import eight_schools
from gyromc.prediction.rotations import compare_rotations

SEEDS = 16
GRADIENTS = 60_000


SCHOOLS = {"μ": lambda t: t[0], "τ": lambda t: jnp.exp(t[1])} | {
    f"effect {j + 1}": (lambda t, j=j: t[0] + jnp.exp(t[1]) * t[2 + j]) for j in range(8)
}


def estimator(target, observables, start=None) -> tuple[float, float]:
    """The gain of rotated fields on the same draws, and its standard error over seeds."""
    logs = []
    for seed in range(SEEDS):
        errors = []
        for rotations in (False, True):
            found = gm.expect(
                target,
                observables,
                error=1e-9,
                gradients=GRADIENTS,
                start=start,
                seed=seed,
                rotations=rotations,
                progress=False,
            )
            errors.append([row.std_error for row in found.values()])
        logs.append(np.mean(2 * np.log(np.array(errors[0]) / np.array(errors[1]))))
    gain = float(np.exp(np.mean(logs)))
    return gain, gain * float(np.std(logs, ddof=1)) / np.sqrt(SEEDS)


def dynamics(K, name: str, of: str = "linear") -> float:
    """The gain of a rotation over D = I at equal bias, exactly."""
    return compare_rotations(K).gain(name, of)


def main() -> None:
    """Print the rows."""
    warnings.simplefilter("ignore")
    data = gm.datasets.heart_split(0)
    logistic = gm.targets.LogisticRegression(data.X_train, data.y_train)
    risks = {f"patient {i}": gm.observables.predictive(x) for i, x in enumerate(data.X_test[:10])}
    K = gm.Model(logistic).precision
    geometric = lambda d, condition: np.exp(np.linspace(0, np.log(condition), d))
    schools = gm.targets.LogDensity(eight_schools)
    rows = [
        ("estimator: eight schools, μ, τ and effects", *estimator(schools, SCHOOLS, np.zeros(10))),
        ("estimator: heart disease, 10 predictive probabilities", *estimator(logistic, risks)),
    ]
    for text, precision in (
        ("D = I, Gaussian, d = 14, condition 50", geometric(14, 50)),
        ("D = I, Gaussian, d = 20, condition 10⁴", geometric(20, 1e4)),
        ("D = I, heart disease, Hessian at the mode", K),
        ("whitened (D = K⁻¹): any Gaussian", np.ones(14)),
    ):
        for of, kind in (("linear", "means"), ("squares", "squares")):
            rows.append((f"dynamics: {text}, {kind}", dynamics(precision, "equal bias", of), 0.0))
    print("| where | gain of the rotation |\n|---|---|")
    for text, gain, error in rows:
        print(f"| {text} | {gain:.3g} {f'± {error:.1g}' if error else '(exact)'} |")


if __name__ == "__main__":
    main()
