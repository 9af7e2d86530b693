"""Models with groups of lme4 and MASS beside NumPyro's NUTS: fixed effects, standard deviations, correlations, processor time.

Input: real files. Output: for each parameter what `gyromc fit` and NUTS say, with their errors, and the processor seconds of the
command from a cold start: a new process, nothing compiled before. The models of NumPyro are written by hand from the documented
priors, y and columns in the units of the file.
"""

import dataclasses
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from real.files import fetch

__all__ = ["MIXED", "Mixed", "mixed_record"]

CHAINS, WARMUP, DRAWS = 4, 1000, 2500
PRIOR, INTERCEPT = 2.5, 10.0


@dataclasses.dataclass(frozen=True)
class Mixed:
    """A model with groups; `family` and `options` as `gyromc fit` takes them."""

    source: str
    formula: str
    family: str = "linear"
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.source.rpartition("/")[2].rpartition(":")[2]

    @property
    def key(self) -> str:
        """The file and the model."""
        return f"{self.name}: {self.formula}, {self.family}"


MIXED = (
    Mixed("lme4/sleepstudy", "Reaction ~ Days + (1 + Days | Subject)"),
    Mixed("lme4/sleepstudy", "Reaction ~ Days + (1 | Subject)"),
    Mixed("pymc3:radon", "log_radon ~ floor + (1 | county)"),
    Mixed("lme4/Dyestuff", "Yield ~ 1 + (1 | Batch)"),
    Mixed("lme4/cake", "angle ~ recipe * temp + (1 | recipe:replicate)"),
    Mixed("MASS/oats", "Y ~ N + V + (1 | B) + (1 | B:V)"),
    Mixed("lme4/cbpp", "incidence ~ factor(period) + (1 | herd)", "binomial", {"trials": "size"}),
    Mixed("MASS/bacteria", "y ~ trt + week + (1 | ID)", "logistic"),
    Mixed("lme4/grouseticks", "TICKS ~ factor(YEAR) + HEIGHT + (1 | BROOD)", "poisson"),
    Mixed("lme4/grouseticks", "TICKS ~ factor(YEAR) + HEIGHT + (1 | BROOD)", "negative-binomial"),
    Mixed("lme4/grouseticks", "TICKS ~ factor(YEAR) + cHEIGHT + (1 | BROOD) + (1 | INDEX) + (1 | LOCATION)", "poisson"),
    Mixed("lme4/VerbAgg", "r2 ~ Anger + Gender + btype + situ + (1 | id) + (1 | item)", "logistic"),
)


def mixed_record(case: Mixed) -> dict:
    """All parameters of one model, from both."""
    path = fetch(case.source, Path("results/real-files"))
    found, seconds = fitted(case, path)
    theirs = nuts(case, path)
    rows = []
    for c in [*found["coefficients"], *found["parameters"]]:
        mean, error, sd = theirs[c["name"]]
        combined = float(np.hypot(c["std_error"], error))
        parts = {"ours": c["mean"], "theirs": mean, "error": combined, "z": (c["mean"] - mean) / combined}
        rows.append({"name": c["name"], **parts, "sd_ratio": c["sd"] / sd})
    assert len(rows) == len(theirs), (list(theirs), [r["name"] for r in rows])
    about = {"file": case.name, "formula": case.formula, "family": case.family, "data_rows": found["data"]["rows"]}
    return {**about, "verdict": found["adequacy"]["verdict"], "processor_seconds": seconds, "rows": rows}


def fitted(case: Mixed, path: Path) -> tuple[dict, float]:
    """The content of fit.json, and the processor seconds of the command."""
    with tempfile.TemporaryDirectory() as folder:
        options = [part for name, value in case.options.items() for part in (f"--{name}", value)]
        given = ["fit", str(path), "--formula", case.formula, "--family", case.family, "--out", f"{folder}/fit"]
        cold = {"JAX_ENABLE_COMPILATION_CACHE": "false", "GYROMC_NO_CACHE": "1"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        command = [sys.executable, "-m", "gyromc", *given, *options]
        subprocess.run(command, env=os.environ | cold, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return json.loads(Path(f"{folder}/fit/fit.json").read_text()), round(seconds, 1)


def nuts(case: Mixed, path: Path) -> dict[str, tuple[float, float, float]]:
    """Mean, its error and the standard deviation of every parameter, in the units of the file."""
    import jax
    import jax.numpy as jnp
    import numpyro
    import numpyro.distributions as dist
    from numpyro.diagnostics import effective_sample_size
    from numpyro.infer import MCMC, NUTS

    from gyromc.tables.preparation import prepare
    from gyromc.tables.request import Request

    given = prepare(Request(data=str(path), formula=case.formula, family=case.family, **case.options))
    X, y, groups, names = given.rows.X, given.y, given.rows.groups, given.encoding.names
    trials = given.rows.trials
    two = np.array([len(np.unique(column)) == 2 for column in X.T], bool)
    unit = np.where(two, np.ptp(X, axis=0) / 2, X.std(axis=0)) if X.size else np.zeros(0)
    y_unit, y_mean = (y.std(), y.mean()) if case.family == "linear" else (1.0, 0.0)
    center = X.mean(axis=0)

    def model():
        mid = numpyro.sample("mid", dist.Normal(y_mean, INTERCEPT * y_unit))
        slopes = numpyro.sample("slopes", dist.Normal(0, PRIOR * y_unit / unit).to_event(1)) if X.size else np.zeros(0)
        t = mid + (X - center) @ slopes
        for g, term in enumerate(groups):
            k, count = term.Z.shape[1], len(term.levels)
            sds = np.array([1.0 if np.ptp(z) == 0 else z.std() for z in term.Z.T])
            tau = numpyro.sample(f"tau{g}", dist.Exponential(jnp.asarray(sds / y_unit)).to_event(1))
            z = numpyro.sample(f"z{g}", dist.Normal(0, 1).expand([count, k]).to_event(2))
            if k > 1:
                z = z @ numpyro.sample(f"root{g}", dist.LKJCholesky(k, 2.0)).T
            t = t + jnp.sum(term.Z * (tau * z)[term.index], axis=1)
        if case.family == "linear":
            law = dist.Normal(t, numpyro.sample("sigma", dist.Exponential(1 / y_unit)))
        elif case.family == "negative-binomial":
            law = dist.NegativeBinomial2(jnp.exp(t), numpyro.sample("noise", dist.Exponential(1.0)) ** -2.0)
        elif case.family == "binomial":
            law = dist.Binomial(trials, logits=t)
        else:
            law = dist.BernoulliLogits(t) if case.family == "logistic" else dist.Poisson(jnp.exp(t))
        numpyro.sample("y", law, obs=jnp.asarray(y))

    kernel = NUTS(model, target_accept_prob=0.9)
    options = {"num_chains": CHAINS, "chain_method": "vectorized", "progress_bar": False}
    mcmc = MCMC(kernel, num_warmup=WARMUP, num_samples=DRAWS, **options)
    with jax.enable_x64(True):
        mcmc.run(jax.random.key(5))
        draws = {name: np.asarray(value) for name, value in mcmc.get_samples(group_by_chain=True).items()}
    found = {"intercept": draws["mid"]}
    if X.size:
        found["intercept"] = draws["mid"] - draws["slopes"] @ center
        found |= {name: draws["slopes"][..., j] for j, name in enumerate(names)}
    if case.family == "linear":
        found["sigma"] = draws["sigma"]
    if case.family == "negative-binomial":
        found["shape"] = draws["noise"] ** -2.0
    for g, term in enumerate(groups):
        k = len(term.columns)
        found |= {name: draws[f"tau{g}"][..., j] for j, name in enumerate(term.names[:k])}
        if k > 1:
            R = draws[f"root{g}"] @ np.swapaxes(draws[f"root{g}"], -1, -2)
            pairs = [(i, j) for i in range(k) for j in range(i + 1, k)]
            found |= {name: R[..., i, j] for name, (i, j) in zip(term.names[k:], pairs, strict=True)}
    errors = {name: v.std() / np.sqrt(effective_sample_size(v)) for name, v in found.items()}
    return {name: (float(v.mean()), float(errors[name]), float(v.std())) for name, v in found.items()}
