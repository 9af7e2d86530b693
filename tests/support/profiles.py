"""Profiles of the reproduction that take seconds, with and without variants; cells computed in this process."""

import dataclasses

from gyromc.paper.cache import obtain
from gyromc.paper.catalogue import Profile
from gyromc.paper.computation import Outcome, piece_jobs
from gyromc.paper.workers import Here
from gyromc.show.progress import Progress

FAMILIES = ("quadratic", "nonquadratic", "linear", "logistic")
TINY = Profile(
    name="tiny",
    num_chains=dict.fromkeys(FAMILIES, 40),
    num_step_sizes=dict.fromkeys(FAMILIES, 2),
    reference_draws=2**12,
    digits=3,
    bootstrap=200,
)
VARIED = dataclasses.replace(
    TINY, name="varied", sensitivity=dataclasses.replace(TINY, num_step_sizes=dict.fromkeys(FAMILIES, 1))
)


def execute(todo, cache, engine="auto", fresh=False):
    """Compute the cells that are not in the cache, or all of them: the pieces, and how many were computed and reused."""
    jobs = piece_jobs(todo, engine, fresh)
    found = obtain(jobs.values(), cache, Here(), Progress())
    pieces = {at: found.values[job.key] for at, job in jobs.items()}
    return Outcome(pieces, {}, len(found.computed), len(found.values) - len(found.computed), ())
