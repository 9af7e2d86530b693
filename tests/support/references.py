"""Reference means of the models in `models.py`, by NumPyro's NUTS in float64: written to `references.json`.

Run as `PYTHONPATH=tests python tests/support/references.py [NAME …]`; names left out: all models. 4 chains of 1000 warm-up steps
and 5000 draws, target acceptance 0.9, 0.99 for the centred hierarchy. Each element has a mean, the standard error of it (from
the effective sample size), a standard deviation and R-hat; an element with R-hat above 1.01 stops the script.
"""

import json
import sys
import time
from pathlib import Path

import jax
import numpy as np
from numpyro.diagnostics import effective_sample_size, split_gelman_rubin
from numpyro.infer import MCMC, NUTS

from support.models import models

FILE = Path(__file__).with_name("references.json")
CHAINS, WARMUP, DRAWS = 4, 1000, 5000


def reference(name: str) -> dict[str, dict[str, float]]:
    """{element: mean, error, sd, r_hat} of one model."""
    posed = models()[name]
    with jax.enable_x64(True):
        kernel = NUTS(posed.model, target_accept_prob=0.99 if "centred" in name else 0.9)
        sampler = MCMC(
            kernel,
            num_warmup=WARMUP,
            num_samples=DRAWS,
            num_chains=CHAINS,
            chain_method="vectorized",
            progress_bar=False,
        )
        sampler.run(jax.random.key(0), *posed.args)
        draws = {site: np.asarray(x) for site, x in sampler.get_samples(group_by_chain=True).items()}
    rows = {}
    for site in posed.sites:
        for index in np.ndindex(draws[site].shape[2:]):
            x = draws[site][(slice(None), slice(None), *index)]
            size, r_hat = float(effective_sample_size(x)), float(split_gelman_rubin(x))
            element = site + (f"[{','.join(map(str, index))}]" if index else "")
            if r_hat > 1.01:
                sys.exit(f"{name}: R-hat of {element} is {r_hat:.3f}")
            rows[element] = {
                "mean": float(x.mean()),
                "error": float(x.std() / np.sqrt(size)),
                "sd": float(x.std()),
                "r_hat": r_hat,
            }
    return rows


def main(names: list[str]) -> None:
    """Compute the models named and put them into the file."""
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    for name in names or list(models()):
        began = time.perf_counter()
        known[name] = reference(name)
        print(f"{name}: {time.perf_counter() - began:.0f} s", flush=True)
        FILE.write_text(json.dumps({key: known[key] for key in models() if key in known}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
