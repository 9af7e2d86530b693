"""The twelve experiments of the paper's §6 as values.

`CATALOGUE` maps names to experiments; `select` returns experiments by name and suggests near names. Step sizes and sampler
parameters are the paper's; every other choice is a recorded field.
"""

import dataclasses
import difflib
from collections.abc import Iterable, Mapping

from gyromc.checks import whole
from gyromc.errors import InvalidInput
from gyromc.paper.experiment import Experiment, Sampler, gradient_adjusted, high_resolution, rotation
from gyromc.paper.problems import Bowl, HeartDisease, PaperProblem, SyntheticRegression

__all__ = ["CATALOGUE", "select"]


def _halvings(first: float, count: int) -> tuple[float, ...]:
    return tuple(first / 2**k for k in range(count))


_WHERE = {
    "quadratic": "on a quadratic potential",
    "nonquadratic": "on a non-quadratic potential",
    "linear": "for Bayesian linear regression",
    "logistic": "for Bayesian logistic regression",
}


def _entry(name: str, problem: PaperProblem, sampler: Sampler, step_sizes: tuple[float, ...]) -> Experiment:
    title = f"{sampler.label} {_WHERE[problem.family]}"
    return Experiment(name=name, title=title, problem=problem, sampler=sampler, step_sizes=step_sizes)


_BASIC = {
    "nld": rotation(scale=1.0),
    "hfhr": high_resolution(alpha=1.0, gamma=2.0),
    "gaul": gradient_adjusted(a=1.0, gamma=2.0, C=(0.5, 1.5, 2.0)),
}
_LINEAR = {
    "nld": (rotation(scale=0.3377), _halvings(0.05, 6)),
    "hfhr": (high_resolution(alpha=0.5, gamma=6.0), _halvings(0.025, 6)),
    "gaul": (gradient_adjusted(a=0.3, gamma=4.0, C=2.0), _halvings(0.025, 5)),
}
_LOGISTIC = {
    "nld": rotation(scale=1.0113, blocks=True),
    "hfhr": high_resolution(alpha=0.1, gamma=40.0),
    "gaul": gradient_adjusted(a=0.1, gamma=73.5, C=5.0),
}

CATALOGUE: Mapping[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        *(_entry(f"{s}-quadratic", Bowl(), sampler, _halvings(0.1, 7)) for s, sampler in _BASIC.items()),
        *(_entry(f"{s}-nonquadratic", Bowl(beta=1.2), sampler, _halvings(0.1, 7)) for s, sampler in _BASIC.items()),
        *(_entry(f"linear-{s}", SyntheticRegression(), sampler, etas) for s, (sampler, etas) in _LINEAR.items()),
        *(_entry(f"logistic-{s}", HeartDisease(), sampler, _halvings(0.01, 4)) for s, sampler in _LOGISTIC.items()),
    )
}
"""The experiments by name, in the paper's order."""


def select(names: Iterable[str] = (), seed: int = 0) -> tuple[Experiment, ...]:
    """Return the experiments with these names (default: all) in the catalogue's order, with noise derived from `seed`."""
    wanted = list(names)
    for name in wanted:
        if name not in CATALOGUE:
            near = difflib.get_close_matches(name, CATALOGUE, n=1, cutoff=0.4)
            hint = f" Did you mean `{near[0]}`?" if near else ""
            raise InvalidInput(f"Unknown experiment {name!r}.{hint} There are: {', '.join(CATALOGUE)}.")
    seed = whole(seed, "seed", least=0, most=10**12)
    return tuple(dataclasses.replace(e, seed=seed) for e in CATALOGUE.values() if not wanted or e.name in wanted)
