"""Posterior means from gyromc's mini-batch chains and from NumPyro's NUTS, on the four models of examples/numpyro_models.py.

Run as `PYTHONPATH=src python benchmarks/against_nuts.py [--out FILE] [--only NAME]`. Each model is run at two step sizes, so that
the step-size bias is measured; NUTS runs with full gradients. Output: one JSON record and one row of a table
per model.
"""

import sys
import time
from pathlib import Path

import jax
import numpy as np
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS

import gyromc as gm
from gyromc.interop import numpyro as gnp
from pages import study_of_models

sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
from numpyro_models import Example, examples


def by_element(values: dict) -> dict:
    """Draws of each element, chains × draws, by the name the observables have."""
    found = {}
    for site, value in values.items():
        for index in np.ndindex(value.shape[2:]):
            place = f"[{','.join(map(str, index))}]" if index else ""
            found[f"{site}{place}"] = value[(slice(None), slice(None), *index)]
    return found


def nuts(example: Example, sites: tuple, draws: int, warmup: int = 1000, chains: int = 4) -> dict:
    """NUTS on all data, in float64: mean, its standard error and the posterior sd of each element; gradients and seconds."""
    with jax.enable_x64(True):
        began = time.perf_counter()
        mcmc = MCMC(
            NUTS(example.model),
            num_warmup=warmup,
            num_samples=draws,
            num_chains=chains,
            chain_method="vectorized",
            progress_bar=False,
        )
        given = [jax.numpy.asarray(value) for value in example.args]
        mcmc.run(jax.random.key(0), *given, extra_fields=("num_steps",))
        samples = jax.device_get(mcmc.get_samples(group_by_chain=True))
        steps = float(np.sum(mcmc.get_extra_fields()["num_steps"]))
        seconds = time.perf_counter() - began
    elements = by_element({site: samples[site] for site in sites})
    rows = {}
    for name, x in elements.items():
        size = float(effective_sample_size(x))
        rows[name] = {"mean": float(x.mean()), "error": float(x.std() / np.sqrt(size)), "sd": float(x.std())}
    return {"rows": rows, "gradients": steps, "seconds": seconds}  # gradients of the kept draws, warm-up not counted


def predicted_bias(plan: gm.Plan, run: gm.Run) -> dict:
    """The predicted step-size bias; from the run's own draws where the Laplace approximation is too far off."""
    means = {name: h for name, h in plan.observables.items() if not name.endswith("^2")}
    plan = plan.replace(observables=means)
    found = gm.predict(plan).bias
    if None in found.values():
        draws = [np.reshape(x, (*x.shape[:2], -1)) for _, x in sorted(run.draws.items())]
        found = gm.predict(plan, sample=np.concatenate(draws, axis=2)).bias
    return found


def tuned_plan(target, observables: dict, num_steps: int, num_chains: int, rows: int | None = None) -> gm.Plan:
    """The plan that `gm.tune` chooses for so many steps; `rows`: of a mini-batch with a control variate."""
    oracle = None if rows is None else gm.oracles.ControlVariate(rows)
    share = 1.0 if oracle is None else oracle.evaluations(target) / target.num_data
    budget = {"gradients": num_steps * num_chains * share, "num_chains": num_chains}
    return gm.tune(target, observables, oracle=oracle, **budget).plan.replace(num_steps=num_steps)


def gyromc_run(plan: gm.Plan) -> tuple[dict, gm.Run]:
    """Mean and standard error of each element; gradients and seconds."""
    began = time.perf_counter()
    run = gm.run(plan, thin=50)
    means = {name: row for name, row in run.items() if not name.endswith("^2")}
    sd = {name: np.sqrt(run.mean[f"{name}^2"] - row.mean**2) for name, row in means.items()}
    return {
        "rows": {name: {"mean": row.mean, "error": row.std_error, "sd": sd[name]} for name, row in means.items()},
        "step_size": plan.step_size,
        "gradients": float(run.gradient_evaluations),
        "data_terms": float(run.gradient_evaluations) * plan.oracle.evaluations(plan.target),
        "seconds": time.perf_counter() - began,
        "compile_seconds": run.compile_time,
    }, run


def compare(name: str, example: Example, num_steps: int, num_chains: int, draws: int) -> dict:
    """One model: gyromc at two step sizes, NUTS, and how far apart they are in posterior standard deviations and in errors."""
    began = time.perf_counter()
    target = gnp.target(example.model, *example.args, **example.kwargs)
    plan = tuned_plan(target, gnp.observables(target, squares=True), num_steps, num_chains, example.rows)
    prepared = time.perf_counter() - began
    coarse, _ = gyromc_run(plan)
    halved = plan.replace(step_size=plan.step_size / 2, num_steps=2 * num_steps, burn_in=2 * plan.burn_in, seed=1)
    fine, run = gyromc_run(halved)
    bias = predicted_bias(plan, run)
    sites = (*target.sites, *target.structure.deterministic)
    reference = nuts(example, sites, draws)
    elements = {}
    for key, row in coarse["rows"].items():
        truth, half = reference["rows"][key], fine["rows"][key]
        extrapolated = 2 * half["mean"] - row["mean"]
        spread = np.sqrt(4 * half["error"] ** 2 + row["error"] ** 2 + truth["error"] ** 2)
        elements[key] = {
            "gap": (row["mean"] - truth["mean"]) / truth["sd"],
            "gap_error": float(np.hypot(row["error"], truth["error"])) / truth["sd"],
            "predicted_bias": None if bias[key] is None else bias[key] / truth["sd"],
            "bias": 2 * (row["mean"] - half["mean"]) / truth["sd"],
            "bias_error": 2 * float(np.hypot(row["error"], half["error"])) / truth["sd"],
            "extrapolated_z": (extrapolated - truth["mean"]) / spread,
            "sd_ratio": row["sd"] / truth["sd"],
            "fine_gap": (half["mean"] - truth["mean"]) / truth["sd"],
            "fine_z": (half["mean"] - truth["mean"]) / float(np.hypot(half["error"], truth["error"])),
        }
    return {
        "model": name,
        "rows": example.rows,
        "num_data": target.structure.num_data,
        "dim": target.dim,
        "prepare_seconds": prepared,
        "gyromc": coarse,
        "gyromc_half_step": fine,
        "nuts": reference,
        "elements": elements,
    }


def _excess(x: dict) -> float:
    """The gap to NUTS that the predicted bias does not explain, in standard errors."""
    return max(0.0, abs(x["gap"] - (x["predicted_bias"] or 0.0)) / x["gap_error"])


def line(record: dict) -> str:
    """A row of a Markdown table."""
    e = record["elements"].values()
    coarse, reference = record["gyromc"], record["nuts"]
    batch = f"{record['rows']} of {record['num_data']}" if record["rows"] else "all"
    error = max(row["error"] / reference["rows"][k]["sd"] for k, row in coarse["rows"].items())
    cells = (
        record["model"],
        str(record["dim"]),
        batch,
        f"{coarse['step_size']:.3g}",
        f"{max(abs(x['gap']) for x in e):.3f}",
        f"{error:.3f}",
        f"{max(abs(x['predicted_bias'] or np.nan) for x in e):.3f}",
        f"{max(abs(x['bias']) for x in e):.3f} ± {max(x['bias_error'] for x in e):.3f}",
        f"{max(_excess(x) for x in e):.1f} of {len(e)}",
        f"{min(x['sd_ratio'] for x in e):.3f}–{max(x['sd_ratio'] for x in e):.3f}",
        f"{coarse['gradients']:.2g}",
        f"{coarse['seconds']:.0f} ({coarse['compile_seconds']:.0f})",
        f"{reference['gradients']:.2g}",
        f"{reference['seconds']:.0f}",
    )
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    """Every model, or one."""
    models = lambda only: {name: one for name, one in examples().items() if only in (None, name)}
    record = lambda name, one, options: compare(name, one, options.steps, options.chains, options.draws)
    study_of_models(__doc__, {"steps": 10_000, "chains": 32, "draws": 4000}, models, record, line)


if __name__ == "__main__":
    main()
