"""Profiles of the reproduction that take seconds, with and without variants; cells computed in this process."""

import dataclasses

from gyromc.paper.catalogue import Profile
from gyromc.paper.computation import Outcome, obtain, piece_job

FAMILIES = ("quadratic", "nonquadratic", "linear", "logistic")
TINY = Profile(
    name="tiny",
    num_chains=dict.fromkeys(FAMILIES, 40),
    num_step_sizes=dict.fromkeys(FAMILIES, 2),
    reference_draws=2**12,
    digits=3,
)
VARIED = dataclasses.replace(
    TINY, name="varied", sensitivity=dataclasses.replace(TINY, num_step_sizes=dict.fromkeys(FAMILIES, 1))
)


def execute(todo, cache, engine="auto", fresh=False):
    """Compute the cells that are not in the cache, or all of them: the pieces, and how many were computed and reused."""
    jobs = {cell.place: piece_job(cell, engine) for cell in todo}
    values, computed = obtain(jobs.values(), cache, fresh=fresh)
    return Outcome({at: values[key] for at, (key, _) in jobs.items()}, {}, len(computed), len(values) - len(computed))
