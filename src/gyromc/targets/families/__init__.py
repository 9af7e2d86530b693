"""The families of regressions, one class each: its name, its formulas, the priors of its parameters, its words.

A new family is a class in one of the files here and an entry in `LIKELIHOODS`: fits, predictions, checks, reports, plan files and
saved models read everything from it. Further parameters are numbers u that are standard normal a priori; `natural` makes of u the
parameters people know, which gives these their priors. So U grows as a square in every direction, whatever the family.
"""

from gyromc.targets.families.classes import Bernoulli, Categorical, Cloglog, Ordinal, Probit
from gyromc.targets.families.counts import (
    BetaBinomial,
    Binomial,
    ConwayMaxwellPoisson,
    HurdlePoisson,
    NegativeBinomial,
    Poisson,
    ZeroInflatedNegativeBinomial,
    ZeroInflatedPoisson,
)
from gyromc.targets.families.numbers import Beta, Exponential, Gamma, Lognormal, Normal, NormalNoise, StudentT, Weibull
from gyromc.targets.likelihoods import Likelihood

OF_NUMBERS = (Normal, NormalNoise, StudentT, Gamma, Lognormal, Beta)
OF_CLASSES = (Bernoulli, Categorical, Ordinal, Probit, Cloglog)
WITH_ZEROS = ZeroInflatedPoisson, HurdlePoisson, ZeroInflatedNegativeBinomial
OF_COUNTS = Poisson, NegativeBinomial, Binomial, BetaBinomial, *WITH_ZEROS, ConwayMaxwellPoisson
LIKELIHOODS: tuple[type[Likelihood], ...] = (*OF_NUMBERS, *OF_CLASSES, *OF_COUNTS, Exponential, Weibull)
FAMILIES = {known.name: known for known in LIKELIHOODS if known is not NormalNoise}
"""The likelihood of each family, by its name; `NormalNoise` is `linear` too, with σ as a parameter."""


def family_named(text: str) -> str:
    """Return the family that a name stands for; an unknown one as it is."""
    plain = text.strip().lower().replace("_", "-")
    aliases = {alias: known.name for known in LIKELIHOODS for alias in known.aliases}
    return aliases.get(plain.replace("-", ""), plain)
