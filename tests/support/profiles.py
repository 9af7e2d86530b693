"""A profile of the reproduction that takes seconds."""

from gyromc.paper.profiles import Profile

FAMILIES = ("quadratic", "nonquadratic", "linear", "logistic")
TINY = Profile(
    name="tiny",
    num_chains=dict.fromkeys(FAMILIES, 40),
    num_step_sizes=dict.fromkeys(FAMILIES, 2),
    reference_draws=2**12,
    digits=3,
    bootstrap=200,
)
