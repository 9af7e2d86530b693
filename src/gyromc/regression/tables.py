"""The rows of a fit's table: coefficients and further parameters, each with its errors, from a sampled posterior."""

import numpy as np

from gyromc.regression.draw_errors import quantile_errors, spread_errors
from gyromc.regression.fitted import Coefficient
from gyromc.regression.reading import Problem
from gyromc.regression.sampled import Sampled
from gyromc.targets.families import Ordinal

__all__ = ["auxiliary", "coefficients", "labels"]

Rows = list[tuple[str, str | None]]  # the coefficients' names and outputs


def labels(problem: Problem) -> Rows:
    """The coefficients' names and outputs, in the table's order."""
    one = [*(["intercept"] if problem.intercept else []), *problem.names]
    several = problem.classes is not None and problem.likelihood.outputs > 1
    outputs = problem.classes if several and problem.classes is not None else [None]
    return [(name, output) for output in outputs for name in one]


def coefficients(sampled: Sampled, rows: Rows, level: float) -> tuple[Coefficient, ...]:
    """The table of coefficients."""
    posterior, ends = sampled.posterior, ((1 - level) / 2, (1 + level) / 2)
    if sampled.exact is None:
        spreads, (low, high) = posterior.spreads(), posterior.quantiles(ends)
        errors = _errors(sampled, posterior.coefficients(), ends)
    else:
        offset = posterior.units.coefficients(posterior.likelihood.basis)[1]
        spreads, (low, high) = sampled.exact.moments()[1], (sampled.exact.quantiles(end) + offset for end in ends)
        errors = np.zeros((3, len(rows)))
    columns = sampled.mean, spreads, low, high, sampled.std_error, sampled.bias, *errors
    return tuple(
        Coefficient(name, output, *(float(v) for v in values))
        for (name, output), *values in zip(rows, *columns, strict=True)
    )


def _errors(sampled: Sampled, draws: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
    """The Monte Carlo errors of spread, low and high end of draws, chains × draws × numbers: 3 × numbers."""
    return sampled.scarcity * np.concatenate([spread_errors(draws)[None], quantile_errors(draws, ends)])


def auxiliary(sampled: Sampled, problem: Problem, level: float) -> tuple[Coefficient, ...]:
    """The further parameters: σ of a linear model, those of other families, standard deviations and correlations of groups."""
    ends = (1 - level) / 2, (1 + level) / 2
    if sampled.exact is not None:
        unit = sampled.posterior.units.y_scale
        mean, sd, low, high = (unit * v for v in sampled.exact.sigma(ends))
        return (Coefficient("sigma", None, mean, sd, low, high, std_error=0.0, bias=0.0),)
    found = []
    for i, (name, (draws, bias)) in enumerate(sampled.beside.items()):
        mean, error = sampled.averages.get(name) or sampled.posterior.average(draws)
        if isinstance(problem.likelihood, Ordinal) and problem.classes is not None and i < len(problem.classes) - 1:
            name = f"{problem.classes[i]} | {problem.classes[i + 1]}"
        sd, (low, high) = float(draws.std()), np.quantile(draws, ends, method="hazen")
        errors = _errors(sampled, draws[..., None], ends)[:, 0].tolist()
        found.append(
            Coefficient(name, None, float(mean), sd, float(low), float(high), float(error), bias * sd, *errors)
        )
    return tuple(found)
