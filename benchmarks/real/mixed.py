"""Models with groups beside NumPyro's NUTS: fixed effects, standard deviations and the correlation.

Input: real files. Output: for each parameter what gyromc and NUTS say, with their errors. The models of NumPyro are written by
hand: priors as documented, y and columns in the units of the file.
"""

import contextlib
import dataclasses
import io
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from real.files import fetch

__all__ = ["MIXED", "Mixed", "mixed_record"]

CHAINS, WARMUP, DRAWS = 4, 1000, 4000


@dataclasses.dataclass(frozen=True)
class Mixed:
    """A linear model with one column x and a group: y ~ x + (1 | group), or with a slope of its own for each level."""

    source: str
    response: str
    column: str
    group: str
    slopes: bool

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.source.rpartition("/")[2].rpartition(":")[2]

    @property
    def formula(self) -> str:
        """The model in R's notation."""
        return f"{self.response} ~ {self.column} + ({f'1 + {self.column}' if self.slopes else '1'} | {self.group})"

    @property
    def key(self) -> str:
        """The file and the model."""
        return f"{self.name}: {self.formula}"


MIXED = (
    Mixed("lme4/sleepstudy", "Reaction", "Days", "Subject", slopes=True),
    Mixed("lme4/sleepstudy", "Reaction", "Days", "Subject", slopes=False),
    Mixed("pymc3:radon", "log_radon", "floor", "county", slopes=False),
    Mixed("pymc3:radon", "log_radon", "floor", "county", slopes=True),
)


def mixed_record(case: Mixed) -> dict:
    """All parameters of one model, from both."""
    from gyromc.tables.study import Request, study

    path = fetch(case.source, Path("results/real-files"))
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        request = Request(data=str(path), formula=case.formula, family="linear", out=f"{folder}/fit")
        found = study(request)[1]
    theirs = nuts(case, pd.read_csv(path))
    rows = []
    for c in [*found["coefficients"], *found["parameters"]]:
        name = c["name"].replace(" ", "")
        mean, error, sd = theirs[name]
        combined = float(np.hypot(np.hypot(c["std_error"], c["bias"]), error))
        z = (c["mean"] - mean) / combined
        rows.append(
            {
                "name": c["name"],
                "ours": c["mean"],
                "theirs": mean,
                "error": combined,
                "z": z,
                "spread_ratio": c["sd"] / sd,
            }
        )
    assert len(rows) == len(theirs), (list(theirs), [r["name"] for r in rows])
    return {"file": case.name, "formula": case.formula, "verdict": found["adequacy"]["verdict"], "rows": rows}


def nuts(case: Mixed, frame: pd.DataFrame) -> dict[str, tuple[float, float, float]]:
    """Mean, its error and the spread of every parameter, in the units of the file."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.diagnostics import effective_sample_size
    from numpyro.infer import MCMC, NUTS

    x, y = frame[case.column].to_numpy(float), frame[case.response].to_numpy(float)
    index, levels = pd.factorize(frame[case.group])
    two = len(np.unique(x)) == 2
    unit, y_unit = (np.ptp(x) / 2 if two else x.std()), y.std()
    k, count = 1 + case.slopes, len(levels)

    def model():
        mid = numpyro.sample("mid", dist.Normal(y.mean(), 10 * y_unit))
        slope = numpyro.sample("slope", dist.Normal(0, 2.5 * y_unit / unit))
        sigma = numpyro.sample("sigma", dist.Exponential(1 / y_unit))
        tau = numpyro.sample("tau", dist.Exponential(jnp.array([1.0, unit][:k]) / y_unit).to_event(1))
        z = numpyro.sample("z", dist.Normal(0, 1).expand([count, k]).to_event(2))
        t = mid + slope * (x - x.mean()) + (tau[0] * z[:, 0])[index]
        if case.slopes:
            r = 2 * numpyro.sample("half", dist.Beta(2, 2)) - 1  # LKJ(2)
            t = t + (tau[1] * (r * z[:, 0] + jnp.sqrt(1 - r**2) * z[:, 1]))[index] * x
        numpyro.sample("y", dist.Normal(t, sigma), obs=y)

    kernel = NUTS(model, target_accept_prob=0.9)
    mcmc = MCMC(
        kernel, num_warmup=WARMUP, num_samples=DRAWS, num_chains=CHAINS, chain_method="vectorized", progress_bar=False
    )
    with jax.enable_x64(True):
        mcmc.run(jax.random.key(5))
        draws = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
    found = {
        "intercept": draws["mid"] - draws["slope"] * x.mean(),
        case.column: draws["slope"],
        "sigma": draws["sigma"],
        f"sd(intercept|{case.group})": draws["tau"][..., 0],
    }
    if case.slopes:
        found[f"sd({case.column}|{case.group})"] = draws["tau"][..., 1]
        found[f"cor(intercept,{case.column}|{case.group})"] = 2 * draws["half"] - 1
    errors = {name: v.std() / np.sqrt(effective_sample_size(v)) for name, v in found.items()}
    return {name: (float(v.mean()), float(errors[name]), float(v.std())) for name, v in found.items()}
