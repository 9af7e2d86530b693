"""Data larger than memory: a logistic regression over mapped files, its posterior means, its memory, and the speed of its steps.

    python benchmarks/large_data.py make FOLDER [--rows 20000000] [--columns 20] [--parquet]
    python benchmarks/large_data.py means FOLDER [--out docs/measured/large-data.json]
    python benchmarks/large_data.py speed FOLDER [--rows 2000000] [--out docs/measured/large-data-speed.json]
    python benchmarks/large_data.py feed FOLDER [--out docs/measured/large-data-feed.json]

`make` writes X.npy and y.npy (float32), and rows.parquet with `--parquet`, a million rows at a time. `means` runs `gm.expect`
for all coefficients to 1 % of a posterior standard deviation, and compares with the mean to second order,
m - ½K⁻¹Σᵢ ℓ'''ᵢ xᵢ(xᵢᵀK⁻¹xᵢ), whose own error is smaller by another factor of about d/√N. `speed` times steps with b = 256 on the
first rows in memory and on the same rows mapped, in turn, and takes the median of the ratios. `feed` times steps of engine `scan`
on JAX's default device whose rows are read from the files ahead of them, beside the same steps with rows that are already there,
and beside how many rows a second the host reads. Prints JSON. Delete the folder afterwards.
"""

import argparse
import json
import os
import resource
import statistics
import time
from pathlib import Path

import numpy as np

import gyromc as gm
from gyromc.data import Mapped, over_blocks
from pages import write_measured

CHUNK = 1_000_000
BATCH, CHAINS, STEPS, PAIRS = 256, 64, 300, 7


def chunks(rows: int, columns: int):
    """Rows of a logistic model whose coefficients are between -0.5 and 0.5."""
    rng, beta = np.random.default_rng(0), np.linspace(-0.5, 0.5, columns, dtype=np.float32)
    for first in range(0, rows, CHUNK):
        X = rng.standard_normal((min(CHUNK, rows - first), columns), dtype=np.float32)
        X[:, 0] = 1.0
        yield X, (rng.random(len(X), dtype=np.float32) < 1 / (1 + np.exp(-X @ beta))).astype(np.float32)


def make(folder: Path, rows: int, columns: int, parquet: bool) -> dict:
    """Write the files."""
    folder.mkdir(parents=True, exist_ok=True)
    gm.data.store(gm.data.Batches(lambda: chunks(rows, columns), rows), folder)
    if parquet:
        import pyarrow as pa
        from pyarrow import parquet as pq

        names = [f"x{j}" for j in range(1, columns)]
        with pq.ParquetWriter(
            folder / "rows.parquet", pa.schema([(n, pa.float32()) for n in names] + [("y", pa.int8())])
        ) as file:
            for X, y in chunks(rows, columns):
                table = {name: X[:, j] for j, name in enumerate(names, start=1)} | {"y": y.astype(np.int8)}
                file.write_table(pa.table(table))
    return {"rows": rows, "columns": columns, "bytes": sum(path.stat().st_size for path in folder.iterdir())}


def means(folder: Path) -> dict:
    """Posterior means of all coefficients to 1 %, with time and memory."""
    began = time.perf_counter()
    target = gm.targets.StreamedRegression(Mapped(folder / "X.npy", folder / "y.npy"), "logistic", prior_scale=1.0)
    checked = time.perf_counter() - began
    model = gm.Model(target)
    K = model.precision
    found_mode = time.perf_counter() - began - checked
    d = target.dim
    observables = {f"theta[{i}]": gm.observables.linear(row) for i, row in enumerate(np.eye(d))}
    plan = gm.Plan(
        target=target, dynamics=gm.dynamics.overdamped(d), observables=observables, step_size=0.1, num_steps=1
    )
    found = gm.expect(plan.knowing(model), observables, error=0.01, progress=False)
    wall, usage = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF)
    C = np.linalg.inv(K)

    def third(X, y):
        X = X.astype(float)
        p = 1 / (1 + np.exp(-X @ model.mode))
        return (p * (1 - p) * (1 - 2 * p) * np.einsum("ni,ni->n", X @ C, X)) @ X

    exact = model.mode - 0.5 * C @ sum(over_blocks(target.source, third))
    sd = np.sqrt(np.diag(C))
    mean = np.array([found[name].mean for name in observables])
    away = (mean - exact) / sd
    claimed = np.array([found[name].total_error for name in observables]) / sd
    return {
        "rows": target.num_data,
        "columns": d,
        "wall_seconds": wall,
        "checking_seconds": checked,
        "mode_seconds": found_mode,
        "cpu_seconds": usage.ru_utime + usage.ru_stime,
        "cores": len(os.sched_getaffinity(0)),
        "peak_resident_mb": usage.ru_maxrss / 1024,
        "gradients": found.gradient_evaluations,
        "largest_error_claimed_sd": float(claimed.max()),
        "largest_error_found_sd": float(np.abs(away).max()),
        "mode_from_mean_sd": float(np.abs((model.mode - exact) / sd).max()),
        "warnings": list(found.warnings),
    }


def _seconds(plan: gm.Plan) -> tuple[float, float]:
    """Of a step of all chains, without compilation: by the clock, and of the processor, which other programs do not change."""
    busy = time.process_time()
    short = gm.run(plan.replace(num_steps=1), "lanes", progress=False)
    before = time.process_time()
    run = gm.run(plan, "lanes", progress=False)
    used = (time.process_time() - before) - (before - busy)  # less what a run of one step takes
    return (run.wall_time - run.compile_time) / plan.num_steps, used / (plan.num_steps - short.plan.num_steps)


def speed(folder: Path, rows: int) -> dict:
    """Steps with b = 256 in memory and mapped, the pages warm."""
    X, y = (np.load(folder / name, mmap_mode="r")[:rows] for name in ("X.npy", "y.npy"))
    part = folder / f"first-{len(X)}"
    part.mkdir(exist_ok=True)
    np.save(part / "X.npy", X)
    np.save(part / "y.npy", y)
    plans = []
    for target in (
        gm.targets.LogisticRegression(X, y),
        gm.targets.StreamedRegression(Mapped(part / "X.npy", part / "y.npy"), "logistic"),
    ):
        d = target.dim
        plan = gm.Plan(
            target=target,
            dynamics=gm.dynamics.overdamped(d),
            oracle=gm.oracles.Minibatch(BATCH),
            observables={"first": gm.observables.linear(np.eye(d)[0])},
            step_size=1e-9,
            num_steps=STEPS,
            num_chains=CHAINS,
        )
        _seconds(plan)  # compiles, and touches the pages
        plans.append(plan)
    del X, y
    pairs = [(_seconds(plans[0]), _seconds(plans[1])) for _ in range(PAIRS)]
    same = np.array_equal(*(gm.run(plan, "lanes", progress=False).averages["first"] for plan in plans))
    row = {"rows": rows, "batch": BATCH, "chains": CHAINS, "pairs": pairs, "same_chains": bool(same)}
    for k, name in enumerate(("by_the_clock", "by_processor_time")):
        ratios = [memory[k] / mapped[k] for memory, mapped in pairs]
        row |= {f"speed_mapped_over_memory_{name}": statistics.median(ratios), f"ratios_{name}": ratios}
    return row


FED = ((4, 32), (16, 32), (64, 32), (16, 256), (64, 256), (256, 32), (1024, 32), (1024, 256))  # chains, b


def feed(folder: Path) -> dict:
    """How long a device waits for rows: steps with rows from the files over steps with rows that are on the device."""
    import jax

    from gyromc.engines import scan

    source = Mapped(folder / "X.npy", folder / "y.npy")
    target, rng, rows = gm.targets.StreamedRegression(source, "logistic"), np.random.default_rng(0), []
    for chains, batch in FED:
        plan = gm.Plan(
            target=target,
            dynamics=gm.dynamics.overdamped(target.dim),
            oracle=gm.oracles.Minibatch(batch),
            observables={"first": gm.observables.linear(np.eye(target.dim)[0])},
            step_size=1e-9,
            num_steps=10**8,
            num_chains=chains,
        )
        session = scan.Session(plan, scan.initial_state(plan), 1e8, None, 0)
        assert session.feed is not None
        length = session.feed.length
        session.advance(3 * length)  # compiles, and fills what is read ahead
        began = time.perf_counter()
        session.advance(12 * length)
        fed = (time.perf_counter() - began) / (12 * length)
        ready, (none, all_steps) = session.feed.rows, [jax.numpy.asarray(k, jax.numpy.int32) for k in (0, length)]
        session.feed.chunks.close()  # nothing is read any more
        with jax.default_matmul_precision("highest"):  # as in the session
            for repetitions in (1, 12):  # the first compiles
                began = time.perf_counter()
                for _ in range(repetitions):
                    session._move(all_steps, none, ready, none)
                jax.block_until_ready(session.carries)
        there = (time.perf_counter() - began) / (12 * length)
        index = rng.integers(0, source.num_rows, (length, chains, batch))
        began = time.perf_counter()
        source.read(index)
        reads = index.size / (time.perf_counter() - began)
        row = {
            "chains": chains,
            "batch": batch,
            "fed_us": 1e6 * fed,
            "rows_there_us": 1e6 * there,
            "ratio": fed / there,
        }
        row |= {"rows_needed_a_second": chains * batch / there, "rows_read_a_second": reads}
        rows.append(row)
        print(json.dumps(row), flush=True)
    return {"device": jax.devices()[0].device_kind, "cores": len(os.sched_getaffinity(0)), "steps": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "means", "speed", "feed"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int)
    parser.add_argument("--columns", type=int, default=20)
    parser.add_argument("--parquet", action="store_true")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args()
    if options.what == "make":
        found = make(options.folder, options.rows or 20_000_000, options.columns, options.parquet)
    elif options.what == "means":
        found = means(options.folder)
    elif options.what == "feed":
        found = feed(options.folder)
    else:
        found = speed(options.folder, options.rows or 2_000_000)
    print(json.dumps(found, indent=1))
    if options.out:
        write_measured(options.out, found)


if __name__ == "__main__":
    main()
