"""The memory of runs beside the formula by which they are refused before they start.

    python benchmarks/memory.py [--out docs/measured/memory.json] [--page docs/scale.md]

Every case is run twice in a process of its own: the first run compiles, the second is measured. Its memory is the most that was
resident, less what was resident before it. The exit status is 1 where a run takes more than the formula and `BUFFERS` bytes.
"""

import argparse
import ctypes
import dataclasses
import gc
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

import gyromc as gm
from gyromc.engines import loop
from pages import markdown, replace_between, write_measured

BUFFERS = 2**24
"""Bytes that do not grow with the number of chains."""
STEPS = 64
USUAL: dict[str, Any] = {"d": 10, "h": 2, "dtype": "float32", "scheme": "euler", "martingale": False, "oracle": "exact"}
CASES: list[dict[str, Any]] = [
    {"engine": "scan", "chains": 1},
    {"engine": "lanes", "chains": 1_000, "d": 100},
    {"engine": "lanes", "chains": 1_000_000, "d": 4},
    {"engine": "scan", "chains": 1_000_000, "d": 4},
    {"engine": "lanes", "chains": 100_000, "d": 50},
    {"engine": "scan", "chains": 100_000, "d": 50},
    {"engine": "lanes", "chains": 100_000, "dtype": "float64"},
    {"engine": "scan", "chains": 100_000, "h": 12},
    {"engine": "lanes", "chains": 100_000, "blocks": 64},
    {"engine": "lanes", "chains": 100_000, "martingale": True},
    {"engine": "scan", "chains": 100_000, "martingale": True, "dtype": "float64"},
    {"engine": "lanes", "chains": 100_000, "scheme": "lm_ab2"},
    {"engine": "scan", "chains": 100_000, "scheme": "hfhr_splitting"},
    {"engine": "scan", "chains": 100_000, "oracle": "refresh"},
]


def plan_of(case: dict[str, Any]) -> gm.Plan:
    """Independent Gaussian coordinates, or a regression where the oracle needs rows."""
    full = USUAL | case
    d, rng = full["d"], np.random.default_rng(0)
    target = gm.targets.Quadratic(np.ones(d))
    oracle: Any = gm.oracles.Exact()
    if full["oracle"] == "refresh":
        target = gm.targets.LogisticRegression(rng.standard_normal((50, d)), rng.random(50) < 0.5)
        oracle = gm.oracles.ControlVariate(4, refresh=16)
    augmented = full["scheme"] == "hfhr_splitting"
    directions = rng.standard_normal((full["h"], d))
    return gm.Plan(
        target=target,
        oracle=oracle,
        dynamics=gm.dynamics.hfhr(d, 1.0, 2.0) if augmented else gm.dynamics.overdamped(d),
        observables={f"h{i}": gm.observables.linear(u) for i, u in enumerate(directions)},
        scheme=full["scheme"],
        martingale=full["martingale"],
        dtype=full["dtype"],
        step_size=0.01,
        num_steps=STEPS,
        num_chains=full["chains"],
    )


def _resident(field: str) -> int:
    """VmRSS, what is resident, or VmHWM, the most since the mark was reset; in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Bytes by the formula and found, of one case, in this process."""
    plan = plan_of(case)
    options = {"engine": case["engine"], "progress": False}
    loop.SETTINGS = dataclasses.replace(loop.SETTINGS, blocks=(case.get("blocks", 8),) * 2)
    assert gm.run(plan, **options).mean
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the most that was resident is counted from here on
    before = _resident("VmRSS")
    assert gm.run(plan, **options).mean
    return case | {"formula_bytes": loop.run_bytes(plan), "bytes": _resident("VmHWM") - before}


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """The same in a new process."""
    command = [sys.executable, __file__, "--case", json.dumps(case)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def kept(row: dict[str, Any]) -> bool:
    """Whether a run took at most what the formula says, and its buffers."""
    return row["bytes"] <= row["formula_bytes"] + BUFFERS


def table(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        full = USUAL | row
        names = {"scheme": "{}", "martingale": "martingale", "blocks": "B = {}", "oracle": "anchors"}
        more = [text.format(row[name]) for name, text in names.items() if name in row]
        sizes = [f"{row[name] / 1e6:,.1f} MB" for name in ("formula_bytes", "bytes")]
        words = [row["engine"], f"{row['chains']:,}", str(full["d"]), str(full["h"]), full["dtype"], ", ".join(more)]
        lines.append(words + sizes)
    return markdown(["engine", "chains", "d", "h", "type", "besides", "formula", "measured"], lines, left=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", help="measure this one here, and print it")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--page", type=Path, help="a Markdown page with the markers of the table")
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(json.loads(options.case))))
        return
    rows = []
    for case in CASES:
        rows.append(measured(case))
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        write_measured(options.out, rows)
    if options.page:
        replace_between(options.page, "memory", table(rows))
    raise SystemExit(not all(map(kept, rows)))


if __name__ == "__main__":
    main()
