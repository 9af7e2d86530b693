"""Chain-steps per second of the engines `pallas` and `scan` on one GPU, for the kinds of work in the paper.

Run as `PYTHONPATH=src python3 benchmarks/gpu.py --out DIR` on a machine with a CUDA GPU. Sections are independent: a failure
is printed with its traceback and the next section runs. Figures are medians over repeats, after a warm-up, without compiling.
"""

import argparse
import pathlib
import statistics
import sys
import time
import traceback

import jax
import numpy as np

import gyromc as gm
from gyromc.engines import pallas, scan
from gyromc.engines.pallas.threads import Layout
from pages import write_measured

J1 = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
U = np.array([1.0, -1, 0]) / np.sqrt(2)
SECONDS = 0.25  # of work per timed repeat
RUN_SECONDS = 0.2  # of the kernel in a whole run


def plans() -> dict[str, gm.Plan]:
    """The work: the paper's shapes, with synthetic data of the same sizes."""
    rng = np.random.default_rng(20)
    X = rng.uniform(-0.5, 0.5, (128, 3))
    y = X @ [1.0, -1.0, 0.5] + rng.normal(size=128)
    Xl = np.c_[np.ones(270), rng.normal(size=(270, 13))]
    yl = (rng.random(270) < 1 / (1 + np.exp(-Xl @ rng.normal(size=14) / 2))).astype(float)
    T, D, O, H = gm.targets, gm.dynamics, gm.oracles, gm.observables
    linear = dict(target=T.LinearRegression(X, y, prior_scale=2.0), oracle=O.Minibatch(16), step_size=0.00625)
    logistic = dict(target=T.LogisticRegression(Xl[:202], yl[:202]), oracle=O.Minibatch(32), step_size=0.00125)
    basic = dict(oracle=O.Gaussian(1.0), step_size=0.0125)
    u, rows = {"u": H.linear(U)}, {f"row {i}": H.predictive(Xl[202 + i]) for i in range(68)}
    one = {"row 0": rows["row 0"]}
    cosine, pairs = T.CosinePerturbed(3, 1.2), gm.dynamics.rotations(14, 1.0113)
    return {
        "nonquadratic nld": gm.Plan(target=cosine, dynamics=D.nonreversible(J1), observables={"t": H.tanh(U)}, **basic),
        "nonquadratic gaul": gm.Plan(
            target=cosine, dynamics=D.gaul([0.5, 1.5, 2.0], 1.0, 2.0), observables={"t": H.tanh(U)}, **basic
        ),
        "quadratic hfhr": gm.Plan(target=T.Quadratic(np.ones(3)), dynamics=D.hfhr(3, 1.0, 2.0), observables=u, **basic),
        "linear nld": gm.Plan(dynamics=D.nonreversible(0.3377 * J1), observables=u, **linear),
        "linear hfhr": gm.Plan(dynamics=D.hfhr(3, 0.5, 6.0), observables=u, **linear),
        "logistic nld": gm.Plan(dynamics=D.nonreversible(pairs), observables=one, **logistic),
        "logistic nld, distinct rows": gm.Plan(
            dynamics=D.nonreversible(pairs), observables=one, **{**logistic, "oracle": O.Minibatch(32, replace=False)}
        ),
        "logistic gaul": gm.Plan(dynamics=D.gaul(5 * np.ones(14), 0.1, 73.5), observables=one, **logistic),
        "logistic gaul 68 rows": gm.Plan(dynamics=D.gaul(5 * np.ones(14), 0.1, 73.5), observables=rows, **logistic),
    }


def measure(make, num_chains: int, repeats: int = 3) -> dict:
    """Chain-steps/s of a session: compile, warm up, find a long enough run, then time it."""
    began = time.perf_counter()
    session = make()
    compile_time = time.perf_counter() - began
    steps = 200
    while True:
        began = time.perf_counter()
        session.advance(steps)
        spent = time.perf_counter() - began
        if spent > SECONDS / 4:
            break
        steps *= 4
    steps = max(1, int(steps * SECONDS / spent))
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        session.advance(steps)
        times.append(time.perf_counter() - began)
    rates = sorted(num_chains * steps / t for t in times)
    return {
        "chain_steps_per_second": statistics.median(rates),
        "lowest": rates[0],
        "highest": rates[-1],
        "microseconds_per_step": statistics.median(times) / steps * 1e6,
        "compile_seconds": compile_time,
        "failed": session.failed(),
    }


def section(title: str, function, *args) -> dict | None:
    """Run and print one measurement; a failure is printed with its traceback."""
    try:
        result = function(*args)
    except Exception:
        print(f"{title}: FAILED", flush=True)
        traceback.print_exc(file=sys.stdout)
        return None
    print(
        f"{title:<62} {result['chain_steps_per_second'] / 1e9:9.3f} G/s [{result['lowest'] / 1e9:.3f}, "
        f"{result['highest'] / 1e9:.3f}]  {result['microseconds_per_step']:8.3f} us/step  compiled in "
        f"{result['compile_seconds']:.1f} s{'  CHAINS FAILED' if result['failed'] else ''}",
        flush=True,
    )
    return result


def pallas_session(plan: gm.Plan, team: int | None, layout: Layout | None):
    return pallas.Session(plan, pallas.initial_state(plan), 1e8, None, 0, team=team, layout=layout)


def scan_session(plan: gm.Plan):
    return scan.Session(plan, scan.initial_state(plan), 1e8, None, 0)


def layouts(plan: gm.Plan, wide: bool) -> list[tuple[int, int, int]]:
    """(team, chains per block, warps) worth trying."""
    team = pallas.team_size(plan)
    if not wide:
        return [(team, max(1, 32 // team), 1)]
    tried = [(team, 32 * w // team, w) for w in (1, 2, 4, 8)]
    if team > 1:
        tried += [(t, 32 // t, 1) for t in (1, 4, 8, 16) if t != team]
    return tried


def compare(name: str, plan: gm.Plan, options, results: dict) -> None:
    """All layouts of `pallas`, then `scan`, then the ratio of the best to it."""
    key = f"{name}, {plan.num_chains} chains"
    best = None
    for team, chains, warps in layouts(plan, options.tune):
        layout = Layout(chains, warps, pallas.interpreting())
        title = f"{key}: pallas, team {team}, {chains} chains/block, {warps} warps"
        result = section(title, measure, lambda t=team, l=layout: pallas_session(plan, t, l), plan.num_chains)
        results[title] = result
        if result and (best is None or result["chain_steps_per_second"] > best["chain_steps_per_second"]):
            best = result
    if options.only_pallas:
        return
    reference = section(f"{key}: scan", measure, lambda: scan_session(plan), plan.num_chains)
    results[f"{key}: scan"] = reference
    if best and reference:
        ratio = best["chain_steps_per_second"] / reference["chain_steps_per_second"]
        results[f"{key}: ratio"] = ratio
        print(f"{key}: pallas / scan = {ratio:.1f}", flush=True)


def whole_runs(plan: gm.Plan, rate: float, repeats: int = 15) -> dict:
    """Chain-steps/s of `gm.run` for a run whose kernel takes a fifth of a second, and its ratio to the kernel's rate."""
    steps = int(RUN_SECONDS * rate / plan.num_chains)
    plan = plan.replace(num_steps=steps)
    gm.run(plan, engine="pallas", progress=False)
    times = []
    for seed in range(repeats):
        other = plan.replace(seed=seed)
        began = time.perf_counter()
        gm.run(other, engine="pallas", progress=False)
        times.append(time.perf_counter() - began)
    rates = sorted(plan.num_chains * steps / t for t in times)
    return {
        "chain_steps_per_second": statistics.median(rates),
        "lowest": rates[0],
        "highest": rates[-1],
        "of_the_kernel": statistics.median(rates) / rate,
        "steps": steps,
    }


def compare_runs(name: str, plan: gm.Plan, results: dict) -> None:
    """`gm.run` beside its kernel; what a run does besides the kernel is the difference."""
    try:
        rate = measure(lambda: pallas_session(plan, None, None), plan.num_chains)["chain_steps_per_second"]
        result = whole_runs(plan, rate)
    except Exception:
        traceback.print_exc(file=sys.stdout)
        return
    title = f"{name}, {plan.num_chains} chains: gm.run, kernel of {RUN_SECONDS} s"
    results[title] = result
    print(f"{title:<62} {result['chain_steps_per_second'] / 1e9:9.3f} G/s, {result['of_the_kernel']:.3f} of its kernel")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--tune", action="store_true", help="try several layouts")
    parser.add_argument("--only-pallas", action="store_true")
    parser.add_argument("--cases", nargs="*", help="parts of the names of the cases wanted")
    parser.add_argument("--chains", nargs="*", type=int, default=[2000, 200_000])
    options = parser.parse_args()
    print(f"JAX {jax.__version__} on {jax.devices()}, Python {sys.version.split()[0]}", flush=True)
    results: dict = {"jax": jax.__version__, "device": str(jax.devices()[0])}
    began = time.perf_counter()
    for name, plan in plans().items():
        if options.cases and not any(part in name for part in options.cases):
            continue
        for chains in options.chains:
            if chains > 10_000 and not name.startswith("nonquadratic nld"):
                continue
            long = plan.replace(num_chains=chains, num_steps=2**30)
            compare(name, long, options, results)
            if name.startswith("nonquadratic nld"):
                compare_runs(name, long, results)
            write_measured(options.out / "gpu.json", results)
    print(f"all in {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
