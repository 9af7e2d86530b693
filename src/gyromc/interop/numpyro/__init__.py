"""NumPyro models as targets: from a model to posterior expectations by site name, with mini-batches (E1, E3).

Receives a NumPyro model and its arguments; hands on a target over the unconstrained sites, a plan for it, and the results back
in the model's own terms. Needs the extra `numpyro`; the packages are imported with this module and not before.
"""

try:
    import numpyro as _numpyro  # noqa: F401
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "gyromc.interop.numpyro needs NumPyro, which is not installed: pip install 'gyromc[numpyro]'"
    ) from error

from gyromc.interop.numpyro.planning import plan
from gyromc.interop.numpyro.posterior import Posterior, SubsampledPosterior, target
from gyromc.interop.numpyro.sites import draws, observables, predictive
from gyromc.interop.numpyro.summaries import Summary, summary

__all__ = [
    "Posterior",
    "SubsampledPosterior",
    "Summary",
    "draws",
    "observables",
    "plan",
    "predictive",
    "summary",
    "target",
]
