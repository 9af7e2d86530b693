"""The effect of float32 on averages: runs in both precisions against exact moments, in standard errors.

Run as `PYTHONPATH=src python3 benchmarks/float32.py [--steps N] [--chains R] [--engines lanes scan]`. A Gaussian target whose
mean m is far from 0 makes the state large compared with its steps, where rounding shows. Runs of one engine and precision
share their random numbers, so the average minus that of m = 0 is pure rounding, without Monte Carlo error. It is printed
beside the last place of m, the smallest change that float32 can represent there.
"""

import argparse
import json
from pathlib import Path

import numpy as np

import gyromc as gm
from gyromc.prediction.exact.moments import exact_moments
from pages import write_measured

STEP_SIZES = (0.01, 0.001)
MEANS = (0.0, 1.0, 100.0, 1e4, 1e6)


def averages(mean: float, step_size: float, steps: int, chains: int, dtype: str, engine: str) -> dict:
    """The averages' errors, and the exact standard errors of their means over chains."""
    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0, 2.0], [mean, 0.0]),
        dynamics=gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]]),
        oracle=gm.oracles.Gaussian(1.0),
        observables={"x": gm.observables.linear([1.0, 0.0]), "y²": gm.observables.square([0.0, 1.0])},
        step_size=step_size,
        num_steps=steps,
        num_chains=chains,
        start=[mean, 0.0],
        dtype=dtype,
        seed=5,
    )
    run, exact = gm.run(plan, engine, progress=False), exact_moments(plan)
    found = {}
    for name, moments in exact.items():
        found[f"error of {name}"] = float(np.mean(run.averages[name] - moments.mean))
        found[f"standard error of {name}"] = float(np.sqrt(moments.variance / chains))
    return found


def study(engine: str, dtype: str, step_size: float, steps: int, chains: int):
    """A row for each mean."""
    at_zero: dict = {}
    for mean in MEANS:
        found = averages(mean, step_size, steps, chains, dtype, engine)
        at_zero = at_zero or found
        yield {
            "engine": engine,
            "dtype": dtype,
            "step_size": step_size,
            "steps": steps,
            "chains": chains,
            "mean": mean,
            **found,
            "rounding of x": found["error of x"] - at_zero["error of x"],
            "rounding of y²": found["error of y²"] - at_zero["error of y²"],
            "last place": float(np.spacing(np.float32(mean))) if mean else 0.0,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--chains", type=int, default=1024)
    parser.add_argument("--engines", nargs="+", default=["lanes", "scan"])
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    rows = []
    for engine in options.engines:
        for dtype in ("float32", "float64"):
            for step_size in STEP_SIZES:
                for row in study(engine, dtype, step_size, options.steps, options.chains):
                    rows.append(row)
                    print(json.dumps(row, ensure_ascii=False), flush=True)
    if options.out:
        write_measured(options.out, rows)


if __name__ == "__main__":
    main()
