"""The families of regressions, one class each: its name, its formulas, the priors of its parameters, its words.

Input and output: as `likelihoods` describes them. A new family is a class in one of the files here and an entry in its
`LIKELIHOODS`: fits, predictions, checks, reports, plan files and saved models read everything from it. Further parameters are
numbers u that are standard normal a priori; `natural` turns u into the parameters people know, by functions that give these
their priors:

- `sigma` (normal, Student-t), in standard deviations of y: exponential with mean 1, the default of rstanarm.
- `shape` (negative binomial, gamma) and `concentration` (beta-binomial): 1/√k is exponential with mean 1. No dispersion is the
  simplest case and has the largest density (a penalised-complexity prior): Poisson, a constant, binomial.
- `nu` (Student-t): ν = 2 + e^x, x ~ N(2.73, 0.8²), the mean and standard deviation that the gamma(2, 0.1) of brms gives
  log(ν - 2); ν > 2, so that y has a variance.
- `sigma` (lognormal), of log y: exponential with mean 1; `precision` (beta): as `concentration`; `zeros` (zero-inflated and
  hurdle Poisson): uniform; `nu` (Conway–Maxwell–Poisson): log ν ~ N(0, 1), about the Poisson law.
- `shape` (Weibull): 1/shape, the noise of log y, is exponential with mean 1.
- cutpoints (ordinal): at the columns' means the probabilities of the classes are Dirichlet(1, …, 1), the default of rstanarm.

So U grows as a square in every direction, whatever the family.
"""

from gyromc.targets.families import classes, counts, numbers, times
from gyromc.targets.families.classes import Bernoulli, Categorical, Cloglog, Ordinal, Probit
from gyromc.targets.families.counts import (
    BetaBinomial,
    Binomial,
    ConwayMaxwellPoisson,
    HurdlePoisson,
    NegativeBinomial,
    Poisson,
    ZeroInflatedPoisson,
)
from gyromc.targets.families.numbers import Beta, Gamma, Lognormal, Normal, NormalNoise, StudentT
from gyromc.targets.families.times import Exponential, Weibull
from gyromc.targets.likelihoods import Likelihood

__all__ = [
    "FAMILIES",
    "LIKELIHOODS",
    "Bernoulli",
    "Beta",
    "BetaBinomial",
    "Binomial",
    "Categorical",
    "Cloglog",
    "ConwayMaxwellPoisson",
    "Exponential",
    "Gamma",
    "HurdlePoisson",
    "Lognormal",
    "NegativeBinomial",
    "Normal",
    "NormalNoise",
    "Ordinal",
    "Poisson",
    "Probit",
    "StudentT",
    "Weibull",
    "ZeroInflatedPoisson",
    "family_named",
]

LIKELIHOODS = (*numbers.LIKELIHOODS, *classes.LIKELIHOODS, *counts.LIKELIHOODS, *times.LIKELIHOODS)
FAMILIES: dict[str, type[Likelihood]] = {}
"""The likelihood of each family, by its name: the first of a name (`NormalNoise` is `linear` too, with σ as a parameter)."""
for _known in LIKELIHOODS:
    FAMILIES.setdefault(_known.name, _known)


def family_named(text: str) -> str:
    """Return the family that a name stands for; an unknown one as it is.

    ```python
    from gyromc.targets.families import family_named
    assert family_named("Gaussian") == "linear" and family_named("my_family") == "my-family"
    ```
    """
    plain = text.strip().lower().replace("_", "-")
    aliases = {alias: known.name for known in LIKELIHOODS for alias in known.aliases}
    return aliases.get(plain.replace("-", ""), plain)
