"""What checkpoints cost: time and bytes of a run that keeps draws, and of states of many chains in an archive and with Orbax.

    python benchmarks/checkpoints.py draws [--out docs/measured/checkpoints.json] [--page docs/scale.md]
    python benchmarks/checkpoints.py state [--out docs/measured/checkpoint-state.json] [--page docs/scale.md]

`draws` runs 10⁴ draws of 64 chains in ten dimensions with 100 and with 400 checkpoints, with draws in pieces, and with all
draws written again in each checkpoint (pieces without an end). Time is that of the calls that save, bytes are those that were
written. `state` saves and restores states of 2·10³, 10⁵ and 10⁶ chains in ten dimensions, spread over the chains, and of four
chains of a network with 10⁷ parameters, spread over the parameters, on eight virtual devices. Both ways write to the disk and
compute checksums; both begin and end with arrays on the devices. Medians of three.
"""

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import gyromc as gm
from gyromc.archive import read_archive, unpack, write_archive
from gyromc.engines import pieces
from gyromc.engines.checkpoints import Checkpoints
from gyromc.engines.states import STORES, StateFolder, read_state, state_store
from gyromc.results import EngineState
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


class Counting(Checkpoints):
    """Checkpoints whose time and bytes are added up."""

    seconds_spent, written = 0.0, 0

    def save(self, run, kept):
        before = {path.name for path in self.directory.iterdir()}
        began = time.perf_counter()
        super().save(run, kept)
        Counting.seconds_spent += time.perf_counter() - began
        Counting.written += sum(path.stat().st_size for path in self.directory.iterdir() if path.name not in before)


def draws(total: int = DRAWS) -> list[dict[str, Any]]:
    """Rows: the number of checkpoints, and seconds and bytes with pieces and without."""
    from gyromc.engines import loop

    rows, usual = [], (pieces.PIECE, loop.Checkpoints)
    try:
        loop.Checkpoints = Counting  # type: ignore[misc]
        for count in COUNTS:
            row: dict[str, Any] = {"draws": total, "checkpoints": count}
            for name, size in (("in_pieces", usual[0]), ("all_again", 2**62)):
                pieces.PIECE = size
                Counting.seconds_spent, Counting.written = 0.0, 0
                with tempfile.TemporaryDirectory() as folder:
                    gm.run(plan_of(total), "lanes", thin=1, progress=False, checkpoint=folder, every=total // count)
                row |= {f"seconds_{name}": Counting.seconds_spent, f"bytes_{name}": Counting.written}
            rows.append(row)
            print(json.dumps(row), flush=True)
    finally:
        pieces.PIECE, loop.Checkpoints = usual  # type: ignore[misc]
    return rows


def draws_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        [
            f"{row['checkpoints']}",
            f"{row['seconds_in_pieces']:.1f} s",
            f"{row['bytes_in_pieces'] / 1e6:,.0f} MB",
            f"{row['seconds_all_again']:.1f} s",
            f"{row['bytes_all_again'] / 1e6:,.0f} MB",
        ]
        for row in rows
    ]
    head = ["checkpoints", "time, in pieces", "written, in pieces", "time, all again", "written, all again"]
    return markdown(head, lines, left=0)


STATES = {  # chains, parameters, the axis that is spread over the devices
    "2·10³ chains, d = 10": (2_000, 10, 0),
    "10⁵ chains, d = 10": (100_000, 10, 0),
    "10⁶ chains, d = 10": (1_000_000, 10, 0),
    "4 chains, d = 10⁷": (4, 10_000_000, 1),
}
DEVICES, REPEATS = 8, 3


def state(cases: dict[str, tuple[int, int, int]]) -> list[dict[str, Any]]:
    """Rows: seconds to save and to restore, and bytes on disk, of each state in an archive and with Orbax."""
    import jax

    jax.config.update("jax_num_cpu_devices", DEVICES)
    rows = []
    for name, (chains, dim, axis) in cases.items():
        before = _state(chains, dim, axis)
        row: dict[str, Any] = {"state": name, "chains": chains, "parameters": dim}
        with tempfile.TemporaryDirectory() as folder:
            _cycle(Path(folder), "orbax", before)  # imports it
            for store in STORES:
                times = [_cycle(Path(folder), store, before) for _ in range(REPEATS)]
                for k, what in enumerate(("save_seconds", "restore_seconds", "bytes")):
                    row[f"{store}_{what}"] = statistics.median(found[k] for found in times)
        rows.append(row)
        print(json.dumps(row, ensure_ascii=False), flush=True)
    return rows


def _state(chains: int, dim: int, axis: int) -> EngineState:
    """A state with two observables and eight blocks, on the devices."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    rng, mesh = np.random.default_rng(0), Mesh(np.array(jax.devices()), ("devices",))
    spread = lambda at: NamedSharding(mesh, PartitionSpec(*(None,) * at, "devices"))
    z = jax.device_put(rng.standard_normal((chains, dim), np.float32), spread(axis))
    on = (lambda a: a) if axis else (lambda a: jax.device_put(a, spread(0)))
    sums = lambda: on(rng.standard_normal((chains, 2), np.float32))
    marks = {"snapshots": {k: sums() for k in range(8)}, "clocks": {k: float(k) for k in range(8)}}
    return EngineState(0, z, sums(), sums(), (0.0, 0.0), on(np.full(chains, -1, np.int32)), **marks)


def _cycle(folder: Path, store: str, before: EngineState) -> tuple[float, float, int]:
    """Save and restore one state, checksums included; seconds of both, and bytes."""
    import jax

    path, kinds = folder / "step.gyromc", {"EngineState": EngineState, "StateFolder": StateFolder}
    began = time.perf_counter()
    write_archive(path, "checkpoint", state_store(store, folder).write(before), kinds, gm.__version__)
    saved = time.perf_counter() - began
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    began = time.perf_counter()
    archive = read_archive(path)
    after = read_state(unpack(archive.content, archive.arrays, kinds), folder)
    jax.block_until_ready(jax.device_put(after.z, before.z.sharding))  # type: ignore[attr-defined]
    restored = time.perf_counter() - began
    assert np.array_equal(after.z, before.z)
    for left in folder.glob("state-*"):
        shutil.rmtree(left)
    path.unlink()
    return saved, restored, size


def state_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        [row["state"]]
        + [f"{1e3 * row[f'{store}_{what}_seconds']:,.0f} ms" for what in ("save", "restore") for store in STORES]
        + [f"{row[f'{store}_bytes'] / 1e6:,.1f} MB" for store in STORES]
        for row in rows
    ]
    names = ("archive", "Orbax")
    return markdown(["state", *(f"{what}, {n}" for what in ("save", "restore", "size") for n in names)], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("draws", "state"))
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--page", type=Path, help="a Markdown page with the markers of the table")
    options = parser.parse_args()
    rows = draws() if options.what == "draws" else state(STATES)
    if options.out:
        write_measured(options.out, rows)
    if options.page:
        table = draws_table(rows) if options.what == "draws" else state_table(rows)
        replace_between(options.page, f"checkpoint-{options.what}", table)


if __name__ == "__main__":
    main()
