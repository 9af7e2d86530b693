"""The posteriors of the race in seconds: `POSTERIORS` maps names to functions that build them, `posterior(name)` builds one.

Input: a name. Output: a `Posterior`, a plain JAX log density over a vector with its observables. Data come from fixed seeds
and from the package; nothing is downloaded. `PYTHONPATH=src:benchmarks python -m accuracy.posteriors` lists them.
"""

from collections.abc import Callable

from accuracy.models import groups, latent, regressions, series, shapes
from accuracy.models.record import KINDS, Moments, Posterior

__all__ = ["KINDS", "POSTERIORS", "Moments", "Posterior", "posterior"]

POSTERIORS: dict[str, Callable[[], Posterior]] = {
    "heart": regressions.heart,
    "nes": regressions.nes,
    "poisson": regressions.poisson,
    "softmax": regressions.softmax,
    "ordered": regressions.ordered,
    "weibull": regressions.weibull,
    "ar5": groups.ar5,
    "eight-schools": groups.eight_schools,
    "radon": groups.radon,
    "crossed": groups.crossed,
    "slopes": groups.slopes,
    "item-response": groups.item_response,
    "negative-binomial": groups.negative_binomial,
    "glmm": groups.glmm,
    "car": groups.car,
    "horseshoe": regressions.horseshoe,
    "gaussian-50-14": shapes.gaussian,
    "gaussian-process": series.gaussian_process,
    "gp-counts": series.gaussian_process_counts,
    "volatility": series.volatility,
    "garch": series.garch,
    "mixture": latent.mixture,
    "factors": latent.factors,
    "network": latent.network,
    "banana": shapes.banana,
    "product": shapes.product,
    "cosine": shapes.cosine,
    "student": shapes.student,
    "mild-funnel": shapes.mild_funnel,
    "funnel": shapes.funnel,
}
"""Functions that build the posteriors, by name."""


def posterior(name: str) -> Posterior:
    """One posterior; `ValueError` for a name that is not in `POSTERIORS`.

    ```python
    from accuracy.posteriors import posterior
    found = posterior("banana")
    assert found.dim == 2 and found.names[:3] == ("x", "y", "x²")
    ```
    """
    if name not in POSTERIORS:
        raise ValueError(f"No posterior is named {name}. There is: {', '.join(POSTERIORS)}.")
    return POSTERIORS[name]()


def main() -> None:
    """Print one line for each posterior."""
    for name, build in POSTERIORS.items():
        one = build()
        truth = "exact" if one.exact else "by sampling"
        print(f"{name:18} {one.kind:10} d = {one.dim:3}, {len(one.names):3} observables, {truth:11}  {one.about}")


if __name__ == "__main__":
    main()
