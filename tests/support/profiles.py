"""Profiles of the reproduction that take seconds, with and without variants."""

import dataclasses

from gyromc.paper.catalogue import Profile

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
