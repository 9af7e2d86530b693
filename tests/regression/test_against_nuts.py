"""`gyromc fit` on the heart data beside NumPyro's NUTS: the same posterior, sampled by another package in another way."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from gyromc.app.cli import app
from gyromc.datasets import heart
from support.posterior import standardised


def nuts(Z, y, prior):
    """Draws of θ, and how many independent ones each coordinate is worth."""
    import jax
    import numpyro
    import numpyro.distributions as dist
    from numpyro.diagnostics import effective_sample_size
    from numpyro.infer import MCMC, NUTS

    def model():
        theta = numpyro.sample("theta", dist.Normal(0, np.asarray(prior)).to_event(1))
        numpyro.sample("y", dist.Bernoulli(logits=Z @ theta), obs=y)

    mcmc = MCMC(
        NUTS(model), num_warmup=1000, num_samples=5000, num_chains=4, chain_method="vectorized", progress_bar=False
    )
    mcmc.run(jax.random.key(11))
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["theta"], float)
    return draws, effective_sample_size


@pytest.mark.slow
def test_heart_coefficients_agree_with_nuts_within_the_stated_error(tmp_path):
    table = heart()
    rows = [
        ",".join([*(f"{x:g}" for x in row), str(y)]) for row, y in zip(table.predictors, table.disease, strict=True)
    ]
    (tmp_path / "heart.csv").write_text("\n".join([",".join([*table.columns, "disease"]), *rows]) + "\n")
    Z, back = standardised(table.predictors)
    draws, effective_sample_size = nuts(Z, table.disease, [10.0] + [2.5] * 13)
    draws = draws @ back.T
    mean, sd = draws.mean(axis=(0, 1)), draws.std(axis=(0, 1))
    error = sd / np.sqrt(effective_sample_size(draws))
    for effort in ("standard", "thorough"):
        arguments = ["fit", str(tmp_path / "heart.csv"), "-t", "disease", "--out", str(tmp_path / effort), "--json"]
        result = CliRunner().invoke(app, [*arguments, "--effort", effort], catch_exceptions=False)
        found = json.loads(result.stdout)["coefficients"]
        stated = np.array([c["std_error"] for c in found])
        assert np.all(stated < 1.5 * {"standard": 0.02, "thorough": 0.005}[effort] * sd)
        z = (np.array([c["mean"] for c in found]) - mean) / np.hypot(stated, error)
        spread = np.array([c["sd"] for c in found]) / sd
        ends = np.array([c["interval_95"] for c in found]).T
        inside = np.mean((draws > ends[0]) & (draws < ends[1]), axis=(0, 1))
        print(
            f"{effort}: |z| at most {np.abs(z).max():.2f}, mean z² {np.mean(z**2):.2f}; spreads {spread.min():.3f} to "
        )
        print(f"{spread.max():.3f} of NUTS's; its draws inside the intervals {inside.min():.3f} to {inside.max():.3f}")
        assert np.abs(z).max() < 4  # 14 coefficients
        assert np.mean(z**2) < 2.6
        np.testing.assert_allclose(spread, 1, atol=0.1)  # 2048 kept draws
        np.testing.assert_allclose(inside.mean(), 0.95, atol=0.01)
