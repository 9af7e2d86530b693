"""What it costs that engine `scan` computes chains in blocks on a CPU: steps of all chains in blocks, and as one array.

    python benchmarks/blocks.py [--out docs/measured/blocks.json]

Both are measured in turn, on the machine as it is; the ratios are medians over the turns. Wall time uses all processors, on which
blocks are computed side by side; processor time counts what all of them did.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import gyromc as gm
from gyromc.engines import scan
from gyromc.engines.scan import layout as blocks
from pages import write_measured

CHAINS = (1000, 10_000)  # fewer are one block
WORK = {
    "Gaussian, d = 2": 2,
    "Gaussian, d = 10": 10,
    "Gaussian, d = 64": 64,
    "mini-batches, d = 10": 10,
    "all rows, d = 10": 10,
}
SECONDS, TURNS, ROWS = 0.1, 5, 500


def plan_of(name: str, chains: int) -> gm.Plan:
    """A Gaussian target with a dense matrix, or a logistic regression with mini-batches of 32 or with all rows."""
    d, rng = WORK[name], np.random.default_rng(0)
    root = rng.standard_normal((d, d))
    target: Any = gm.targets.Quadratic(np.eye(d) + root @ root.T / d)
    if not name.startswith("Gaussian"):
        target = gm.targets.LogisticRegression(rng.standard_normal((ROWS, d)), rng.random(ROWS) < 0.5)
    return gm.Plan(
        target=target,
        dynamics=gm.dynamics.nonreversible((root - root.T) / d),
        oracle=gm.oracles.Minibatch(32) if name.startswith("mini") else None,
        observables={"linear": gm.observables.linear(np.ones(d)), "tanh": gm.observables.tanh(np.ones(d))},
        step_size=1e-3,
        num_chains=chains,
        dtype="float32",
    )


def session_of(plan: gm.Plan, whole: bool) -> scan.ScanSession:
    """The chains of a plan in blocks, or as one array."""
    usual = blocks.in_blocks
    blocks.in_blocks = (lambda plan, spread: False) if whole else usual
    try:
        return scan.Session(plan, scan.initial_state(plan), 1e8, None, 0)
    finally:
        blocks.in_blocks = usual


def spent(session: scan.ScanSession, steps: int) -> np.ndarray:
    """Wall time and processor time of so many steps, in seconds."""
    began = time.perf_counter(), time.process_time()
    session.advance(steps)
    return np.array([time.perf_counter() - began[0], time.process_time() - began[1]])


def measure(name: str, chains: int) -> dict[str, Any]:
    """Chain-steps a second of both, and the ratios of their times."""
    plan, steps = plan_of(name, chains), 1
    pair = [session_of(plan, whole) for whole in (True, False)]
    while spent(pair[0], steps)[1] < SECONDS:
        steps *= 2
    spent(pair[1], steps)
    turns = np.array([[spent(session, steps) for session in pair] for _ in range(TURNS)])  # turns × both × both clocks
    wall, processor = (statistics.median(turns[:, 1, clock] / turns[:, 0, clock]) for clock in (0, 1))
    rates = [chains * steps / turns[:, which, 0].min() for which in (0, 1)]
    sizes = {"chains": chains, "block": blocks.block_size(plan), "blocks": len(pair[1].carries)}
    return {"work": name} | sizes | {"whole": rates[0], "in_blocks": rates[1], "wall": wall, "processor": processor}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--chains", type=int, nargs="*", default=CHAINS)
    options = parser.parse_args()
    rows = []
    for name in WORK:
        for chains in options.chains:
            rows.append(measure(name, chains))
            print(json.dumps(rows[-1]), flush=True)
    if options.out:
        write_measured(options.out, rows)


if __name__ == "__main__":
    main()
