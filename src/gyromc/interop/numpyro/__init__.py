"""NumPyro models as targets: from a model to posterior expectations by site name, with mini-batches (E1, E3).

Receives a NumPyro model and its arguments; hands on a target over the unconstrained sites, a plan for it, and the results back
in the model's own terms. Needs the extra `numpyro`; the packages are imported with this module and not before.

```python
import numpy as np
import numpyro
from numpyro import distributions as dist
import gyromc as gm
from gyromc.interop import numpyro as gnp

def model(x, y):
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    with numpyro.plate("data", len(y), subsample_size=2) as index:
        numpyro.sample("count", dist.Poisson(rate * x[index]), obs=y[index])

target = gnp.target(model, np.array([1.0, 2.0, 1.0, 3.0]), np.array([2, 3, 0, 4]))
run = gm.run(gnp.plan(target, batch_size=2, num_steps=500, num_chains=16))
assert 0.7 < run.mean["rate"] < 2.5
```
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
