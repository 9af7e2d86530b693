"""Tuning for many parameters: effective draws per gradient on Gaussians, and time and memory on a network with 10⁶ weights.

    python benchmarks/large.py gaussians [--quick] [--out docs/measured/large.json]
    python benchmarks/large.py stiff [--out docs/measured/large-stiff.json]
    python benchmarks/large.py network [--gradients 4000] [--out docs/measured/large-network.json]

Gaussians have eigenvalues from 1/κ to 1, hidden by a rotation, so that no diagonal whitens them: a random one for d = 1000, signs
and a Walsh-Hadamard transform for d = 131072. The worst direction is looked at: its mean and its square, beside the best that
plain SGLD can do there (η = 1/λ_max: 1/(2κ) and 1/κ effective draws per gradient, whatever the bias). `stiff` has Gaussians with
five stiff directions that no diagonal shows, whitened with and without low rank. Prints tables, writes JSON.
"""

import argparse
import json
import math
import resource
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from gyromc.tuning.large import large_plan

import gyromc as gm
from gyromc.tuning import preconditioning
from pages import write_measured
from speed.peers import WORK

CASES = (  # d, κ, gradients, chains
    (1000, 50.0, 100_000, 32),
    (1000, 1e3, 200_000, 32),
    (1000, 1e4, 400_000, 32),
    (2**17, 50.0, 8_000, 8),
    (2**17, 1e3, 24_000, 8),
    (2**17, 1e4, 80_000, 8),
)


STIFF = (1e2, 1e4)  # the largest curvature of the stiff directions


def hadamard(x):
    """The orthonormal Walsh-Hadamard transform of a vector whose length is a power of two."""
    d = x.shape[0]
    for k in range(d.bit_length() - 1):
        x = x.reshape(-1, 2, 2**k)
        x = jnp.stack([x[:, 0] + x[:, 1], x[:, 0] - x[:, 1]], axis=1)
    return x.reshape(d) / jnp.sqrt(jnp.asarray(d, x.dtype))


def problem(d: int, condition: float):
    """A Gaussian target and two observables: along its widest direction, and the square of it."""
    rng, spectrum = np.random.default_rng(0), np.geomspace(1 / condition, 1.0, d)
    if d <= 2000:
        basis, _ = np.linalg.qr(rng.standard_normal((d, d)))
        K, u = (basis * spectrum) @ basis.T, basis[:, 0]
        return gm.Model(gm.targets.Quadratic((K + K.T) / 2)), u
    signs = rng.choice([-1.0, 1.0], d).astype(np.float32)
    shuffled = rng.permutation(spectrum).astype(np.float32)
    target = gm.targets.LogDensity(lambda x: -0.5 * jnp.sum(shuffled * hadamard(signs * x) ** 2))
    u = np.zeros(d, np.float32)
    u[int(np.argmin(shuffled))] = 1.0
    return gm.Model(target, np.zeros(d, np.float32)), signs * np.asarray(hadamard(jnp.asarray(u)))


def gaussian(d: int, condition: float, gradients: int, chains: int) -> dict:
    """Tune and run one Gaussian."""
    model, u = problem(d, condition)
    h = {"mean": gm.observables.linear(u), "square": gm.observables.square(u)}
    plan, account = large_plan(model, h, None, gradients, chains)
    run = gm.run(plan, "scan", progress=False)
    steps = plan.num_chains * plan.num_steps
    truth, spread = {"mean": 0.0, "square": condition}, {"mean": condition, "square": 2 * condition**2}
    plain = {"mean": 0.5 / condition, "square": 1 / condition}
    row: dict = {"d": d, "condition": condition, "chains": chains, "gradients": gradients}
    row |= {"tuning_gradients": account.gradients, "tuning_seconds": account.seconds, "run_seconds": run.wall_time}
    row |= {"found_condition": account.condition, "step_size": account.step_size, "friction": account.friction}
    row |= {"agrees": account.agrees, "notes": account.notes}
    for name in h:
        draws = spread[name] / run.std_error[name] ** 2 / steps
        z = (run.mean[name] - truth[name]) / run.std_error[name]
        row[name] = {"draws_per_gradient": draws, "gain_over_sgld": draws / plain[name], "z": z}
    print(
        f"d = {d}, κ = {condition:g}: found κ {account.condition:.4g}; draws a gradient {row['mean']['draws_per_gradient']:.3g} "
        f"and {row['square']['draws_per_gradient']:.3g} (1/√κ = {condition**-0.5:.3g}), {row['mean']['gain_over_sgld']:.3g} and "
        f"{row['square']['gain_over_sgld']:.3g} times SGLD; z {row['mean']['z']:.1f}, {row['square']['z']:.1f}; tuning "
        f"{account.gradients} of {gradients} gradients, {account.seconds:.0f} s, run {run.wall_time:.0f} s",
        flush=True,
    )
    return row


def stiff(condition: float, gradients: int = 16_000, d: int = 1200, count: int = 5) -> dict:
    """Five stiff directions over a diagonal between 0.5 and 1.5: draws of the widest direction with and without low rank."""
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.standard_normal((d, count)))
    K = np.diag(rng.uniform(0.5, 1.5, d)) + (basis * (condition * np.geomspace(0.3, 1.0, count))) @ basis.T
    values, vectors = np.linalg.eigh((K + K.T) / 2)
    model, h = gm.Model(gm.targets.Quadratic((K + K.T) / 2)), {"square": gm.observables.square(vectors[:, 0])}
    row: dict = {"d": d, "condition": condition, "gradients": gradients}
    pays = preconditioning.PAYS
    for name, least in (("low rank", pays), ("diagonal", math.inf)):
        preconditioning.PAYS = least
        plan, account = large_plan(model, h, None, gradients, 8)
        run = gm.run(plan, "scan", progress=False)
        draws = 2 / values[0] ** 2 / run.std_error["square"] ** 2 / run.gradient_evaluations
        z = (run.mean["square"] - 1 / values[0]) / run.std_error["square"]
        row[name] = {"rank": account.rank, "left": account.condition, "draws_per_gradient": draws, "z": z}
        row[name] |= {"tuning_gradients": account.gradients}
    preconditioning.PAYS = pays
    print(json.dumps(row, indent=1), flush=True)
    return row


def network(gradients: int) -> dict:
    """Tune the network of `gyromc bench network`: seconds against the run's, peak memory in states of a chain."""
    given = next(work for work in WORK if work.name == "network").plan
    gm.run(given.replace(num_steps=3), "scan", progress=False)
    before, state = _peak(), 4 * 3 * given.dim
    model = gm.Model(given.target, given.model.template, given.model.start)
    plan, account = large_plan(model, dict(given.observables), given.oracle, gradients, 1, free_batches=True)
    after = _peak()
    run = gm.run(plan.replace(num_steps=50, burn_in=0), "scan", progress=False)
    expected = (run.wall_time - run.compile_time) / 50 * (plan.num_steps + plan.burn_in)
    row: dict = {
        "d": given.dim,
        "gradients": gradients,
        "oracle": plan.oracle.name,
        "tuning_gradients": account.gradients,
        "notes": account.notes,
    }
    row |= {"tuning_seconds": account.seconds, "run_seconds_expected": expected, "share": account.seconds / expected}
    row |= {
        "memory_in_states": (after - before) / state,
        "condition": account.condition,
        "step_size": account.step_size,
    }
    print(json.dumps(row, indent=1))
    return row


def _peak() -> int:
    """The most memory this process has held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("gaussians", "stiff", "network"))
    parser.add_argument("--quick", action="store_true", help="the first case only")
    parser.add_argument("--cases", type=int, nargs="*", help="which cases, from 0")
    parser.add_argument("--gradients", type=int, default=4000, help="budget for the network")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    picked = [CASES[k] for k in options.cases] if options.cases else CASES[: 1 if options.quick else None]
    found = {
        "network": lambda: network(options.gradients),
        "stiff": lambda: [stiff(condition) for condition in STIFF],
        "gaussians": lambda: [gaussian(*case) for case in picked],
    }[options.what]()
    if options.out:
        write_measured(options.out, found)
    assert options.what != "gaussians" or all(math.isfinite(row["mean"]["z"]) for row in found)


if __name__ == "__main__":
    main()
