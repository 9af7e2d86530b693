"""Weak and strong scaling over devices.

    python benchmarks/scaling.py --out docs/measured/scaling.json --page docs/scale.md
    python benchmarks/scaling.py --here --out docs/measured/scaling-gpu.json    # on the devices JAX has, such as one GPU

Seconds a step of engine `scan` on 1, 2, 4 and 8 virtual devices of this machine's processors and on two processes of one device:
chains, and rows of data for full gradients and for mini-batches. In a strong row the work stays the same, in a weak
one it grows with the devices. Every number of devices is measured in a process of its own, with one thread a device.
"""

import argparse
import json
import math
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

DEVICES = (1, 2, 4, 8)
SECONDS = 1.0  # that each timing takes, at least; the best of three is used


class Work(NamedTuple):
    """One row of the table: what is shared, and the sizes on `count` devices."""

    name: str
    axis: str
    chains: int
    rows: int
    dim: int
    batch: int | None = None  # None: full gradients
    weak: bool = False

    def on(self, count: int) -> "Work":
        """The work on so many devices: as it is, or as many times larger."""
        if not self.weak:
            return self
        field = {"chains": "chains", "data": "rows"}[self.axis]
        grown = {field: count * getattr(self, field)}
        if self.batch is not None and self.axis == "data":
            grown["batch"] = count * self.batch
        return self._replace(**grown)


WORK = (
    Work("chains, strong", "chains", 512, 2048, 32),
    Work("chains, weak", "chains", 64, 2048, 32, weak=True),
    Work("full gradients, strong", "data", 4, 2**17, 32),
    Work("full gradients, weak", "data", 4, 2**14, 32, weak=True),
    Work("mini-batches, strong", "data", 16, 2**16, 32, batch=4096),
    Work("mini-batches, weak", "data", 16, 2**13, 32, batch=512, weak=True),
)


def plan_of(work: Work):
    """A logistic regression."""
    import gyromc as gm

    rng = np.random.default_rng(0)
    oracle = None if work.batch is None else gm.oracles.Minibatch(work.batch)
    common = dict(oracle=oracle, step_size=1e-7, num_steps=10**6, num_chains=work.chains, dtype="float32")
    X = rng.standard_normal((work.rows, work.dim)).astype(np.float32)
    target = gm.targets.LogisticRegression(X, rng.random(work.rows) < 0.5)
    h = {"h": gm.observables.linear(np.eye(work.dim)[0])}
    return gm.Plan(target=target, dynamics=gm.dynamics.overdamped(work.dim), observables=h, **common)


def seconds_a_step(work: Work, count: int) -> dict:
    """Seconds a step on `count` devices, and what a step holds on each of them."""
    from gyromc import processes
    from gyromc.engines import scan
    from gyromc.engines.meshes import read_mesh

    plan, mesh = plan_of(work.on(count)), read_mesh({work.axis: count})
    session, steps, best = scan.Session(plan, scan.initial_state(plan), 1e8, None, 0, mesh), 1, math.inf
    while True:
        began = time.perf_counter()
        session.advance(steps)
        if processes.agree(time.perf_counter() - began) > SECONDS / 3:
            break
        steps *= 2
    for _ in range(3):
        began = time.perf_counter()
        session.advance(steps)
        best = min(best, (time.perf_counter() - began) / steps)
    return {"work": work.name, "axis": work.axis, "devices": count, "seconds": best}


def worker(count: int, address: str | None, index: int) -> None:
    """Measure all work on `count` devices, here or on as many processes, and print JSON."""
    if address is not None:
        from gyromc import processes

        processes.start(address, count, index)
    rows = [seconds_a_step(work, count) for work in WORK]
    if index == 0:
        print(json.dumps(rows), flush=True)


def measured(count: int, num_processes: int = 1) -> list[dict]:
    """The rows of a process with `count` virtual devices, or of so many processes with one each."""
    own = count // num_processes
    threads = f"--xla_cpu_multi_thread_eigen=false --xla_force_host_platform_device_count={own}"
    flags = {"XLA_FLAGS": threads, "NPROC": str(own), "JAX_PLATFORMS": "cpu"}  # XLA has as many threads as `NPROC` says
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [sys.executable, __file__, "--worker", str(count)]
    started = []
    for index in range(num_processes):
        more = [] if num_processes == 1 else ["--address", address, "--index", str(index)]
        started.append(subprocess.Popen(command + more, env={**os.environ, **flags}, stdout=subprocess.PIPE, text=True))
    output = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        sys.exit(f"the measurement on {count} devices in {num_processes} processes failed")
    return [{**row, "processes": num_processes} for row in json.loads(output[0].splitlines()[-1])]


def page(rows: list[dict], cores: int) -> str:
    """The measured table."""
    from pages import markdown

    def cell(work: Work, count: int, num_processes: int) -> str:
        found = [r for r in rows if (r["work"], r["devices"], r["processes"]) == (work.name, count, num_processes)]
        return f"{1e6 * found[0]['seconds']:.0f}" if found else "–"

    measured_on = [(count, 1) for count in DEVICES] + [(2, 2)]
    head = ["µs per step"] + [f"{c} device{'s' if c > 1 else ''}" for c in DEVICES] + ["2 processes"]
    table = markdown(head, [[work.name, *(cell(work, *where) for where in measured_on)] for work in WORK])
    return f"{table}\n\nMeasured on {cores} cores."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--page", type=Path)
    parser.add_argument("--here", action="store_true", help="on the devices that JAX has, in this process")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    parser.add_argument("--index", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        worker(options.worker, options.address, options.index)
        return
    if options.here:
        import jax

        counts = [count for count in DEVICES if count <= len(jax.devices())]
        rows = [{**seconds_a_step(work, count), "processes": 1} for count in counts for work in WORK]
        result = {"device": jax.devices()[0].device_kind, "rows": rows}
    else:
        rows = [row for count in DEVICES for row in measured(count)] + measured(2, num_processes=2)
        cores = len(os.sched_getaffinity(0))
        result = {"cores": cores, "rows": rows}
        if options.page:
            from pages import replace_between

            replace_between(options.page, "scaling", page(rows, cores))
    print(json.dumps(result, indent=1))
    if options.out:
        from pages import write_measured

        write_measured(options.out, result)


if __name__ == "__main__":
    main()
