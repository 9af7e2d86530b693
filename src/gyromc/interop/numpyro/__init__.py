"""NumPyro models as targets.

Input: a NumPyro model and its arguments. Output: a target over the unconstrained sites (`target`), a plan for it (`plan`), and
results by site name (`summary`, `draws`, `predictive`). Needs the extra `numpyro`, which is imported with this module only.
"""

from gyromc.extras import needs

with needs("numpyro", "`gyromc.interop.numpyro`"):
    import numpyro as _numpyro  # noqa: F401  # only to see whether it is installed

from gyromc.interop.numpyro.posterior import NumPyroPosterior as Posterior
from gyromc.interop.numpyro.posterior import SubsampledPosterior, target
from gyromc.interop.numpyro.results import draws, observables, plan, predictive, summary, tune

__all__ = [
    "Posterior",
    "SubsampledPosterior",
    "draws",
    "observables",
    "plan",
    "predictive",
    "summary",
    "target",
    "tune",
]
