"""What checkpoints cost: time and bytes of a run that keeps draws.

    python benchmarks/checkpoints.py [--out docs/measured/checkpoints.json] [--page docs/scale.md]

10⁴ draws of 64 chains in ten dimensions with 100 and with 400 checkpoints. Time is that of the calls that save, bytes are those
that were written.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gyromc as gm
from gyromc.engines import loop
from gyromc.io import checkpoints
from pages import markdown, replace_between, write_measured

DRAWS, CHAINS, DIM = 10_000, 64, 10
COUNTS = (100, 400)


def plan_of(draws: int) -> gm.Plan:
    """Independent Gaussian coordinates, one draw a step."""
    return gm.Plan(
        target=gm.targets.Quadratic(np.ones(DIM)),
        dynamics=gm.dynamics.overdamped(DIM),
        observables={"x": gm.observables.linear(np.eye(DIM)[0])},
        step_size=0.1,
        num_steps=draws,
        num_chains=CHAINS,
    )


class Counting(checkpoints.Checkpoints):
    """Checkpoints whose time and bytes are added up."""

    seconds_spent, written = 0.0, 0

    def save(self, run, kept):
        draws, began = self.draws.count, time.perf_counter()
        super().save(run, kept)
        Counting.seconds_spent += time.perf_counter() - began
        Counting.written += (self.draws.count - draws) * self.draws.row + self._files()[-1].stat().st_size


def measured(total: int = DRAWS) -> list[dict[str, Any]]:
    """Rows: the number of checkpoints, and seconds and bytes."""
    rows, usual = [], loop.Checkpoints
    try:
        loop.Checkpoints = Counting  # type: ignore[misc]
        for count in COUNTS:
            Counting.seconds_spent, Counting.written = 0.0, 0
            with tempfile.TemporaryDirectory() as folder:
                gm.run(plan_of(total), "lanes", thin=1, progress=False, checkpoint=folder, every=total // count)
            spent = {"seconds": Counting.seconds_spent, "bytes": Counting.written}
            rows.append({"draws": total, "checkpoints": count, **spent})
            print(json.dumps(rows[-1]), flush=True)
    finally:
        loop.Checkpoints = usual  # type: ignore[misc]
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [[f"{row['checkpoints']}", f"{row['seconds']:.1f} s", f"{row['bytes'] / 1e6:,.0f} MB"] for row in rows]
    return markdown(["checkpoints", "time", "written"], lines, left=0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--page", type=Path, help="a Markdown page with the markers of the table")
    options = parser.parse_args()
    rows = measured()
    if options.out:
        write_measured(options.out, rows)
    if options.page:
        replace_between(options.page, "checkpoint-draws", table(rows))


if __name__ == "__main__":
    main()
