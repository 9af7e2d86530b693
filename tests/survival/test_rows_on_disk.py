"""Runs over rows that stay on disk: stored by names and fingerprints of the files, resumed to the same bits without a pass."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gyromc as gm
from damages import digest
from gyromc.data import Batches, Mapped, Parquet, Sequenced
from gyromc.data.source import PRINT_BLOCKS, PRINT_BYTES
from gyromc.engines import loop
from gyromc.engines.scan.layout import is_fed
from gyromc.targets import streamed
from gyromc.targets.streamed import StreamedRegression
from support import survivors
from support.survivors import small, start_and_kill

RNG = np.random.default_rng(2)
X = RNG.standard_normal((300, 2)).astype(np.float32)
Y = (RNG.random(300) < 1 / (1 + np.exp(-X @ [0.5, -0.5]))).astype(np.float32)

KILLED = """
import os, signal, sys
import gyromc as gm
from gyromc.io.checkpoints import Checkpoints
from test_rows_on_disk import mapped, over
save = Checkpoints.save
def saved(self, run, kept):
    save(self, run, kept)
    if run.state.step >= 40:
        os.kill(os.getpid(), signal.SIGKILL)
Checkpoints.save = saved
gm.run(over(mapped(sys.argv[1])), sys.argv[2], progress=False, thin=10, checkpoint=sys.argv[3], every=20)
"""


def written(folder, X=X, y=Y):
    np.save(Path(folder, "X.npy"), X)
    np.save(Path(folder, "y.npy"), y)
    return mapped(folder)


def mapped(folder, **options):
    return Mapped(Path(folder, "X.npy"), Path(folder, "y.npy"), **options)


def over(source, family="logistic", **changes):
    """A plan whose anchor is the mode, found by passes over all rows."""
    more = {"oracle": gm.oracles.ControlVariate(4), "step_size": 1e-3, "num_steps": 80, "num_chains": 6}
    target = StreamedRegression(source, family, 2.0)
    return small(target=target, dynamics=gm.dynamics.overdamped(2), **{**more, **changes})


@pytest.fixture
def passes(monkeypatch):
    """The number of passes over all rows so far, in a list."""
    made, own = [], streamed.over_blocks
    monkeypatch.setattr(streamed, "over_blocks", lambda *given: (made.append(1), own(*given))[1])
    return made


@pytest.mark.parametrize("engine", ["scan", "lanes"])
def test_a_killed_run_goes_on_to_the_same_bits(engine, tmp_path, monkeypatch, passes):
    """And no mode is looked for again."""
    source = written(tmp_path)
    assert is_fed(over(source))  # the rows of `scan` are read ahead by a thread
    monkeypatch.setattr(loop, "SETTINGS", dataclasses.replace(loop.SETTINGS, first=9, longest=9))
    options = {"thin": 10, "every": 20}
    whole = gm.run(over(source), engine, thin=10, progress=False)
    assert len(passes) > 2
    start_and_kill(monkeypatch, over(source), 50, tmp_path / "c", engine=engine, **options)
    plan = over(mapped(tmp_path))  # with the pass that checks the rows
    passes.clear()
    resumed = gm.run(plan, engine, progress=False, checkpoint=tmp_path / "c", **options)
    assert not passes
    assert digest(resumed) == digest(whole)
    resumed.save(tmp_path / "run.gyromc")
    loaded = gm.load(tmp_path / "run.gyromc")
    assert digest(loaded) == digest(whole)
    assert digest(loaded.continue_(80)) == digest(whole.continue_(80))
    assert not passes
    assert X[7].tobytes() not in (tmp_path / "run.gyromc").read_bytes()  # no row is stored


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["scan", "lanes"])
def test_a_process_that_was_killed(engine, tmp_path):
    whole = gm.run(over(written(tmp_path)), engine, thin=10, progress=False)
    more = {"PYTHONPATH": os.pathsep.join(sys.path)}
    where = {"cwd": Path(__file__).parent, "env": {**os.environ, **more}}
    command = [sys.executable, "-c", KILLED, str(tmp_path), engine, str(tmp_path / "c")]
    done = subprocess.run(command, capture_output=True, text=True, **where)
    assert done.returncode == -9, done.stderr
    assert "step-000000000000040.gyromc" in survivors.names(tmp_path / "c")
    resumed = gm.run(over(mapped(tmp_path)), engine, thin=10, progress=False, checkpoint=tmp_path / "c")
    assert digest(resumed) == digest(whole)


def test_the_sums_of_a_linear_regression_are_stored(tmp_path, passes):
    plan = over(written(tmp_path), "linear", oracle=gm.oracles.Exact())
    run = gm.run(plan, "lanes", progress=False, checkpoint=tmp_path / "c", every=40)
    run.save(tmp_path / "run.gyromc")
    max((tmp_path / "c").glob("step-*")).unlink()
    again = over(mapped(tmp_path), "linear", oracle=gm.oracles.Exact())
    passes.clear()
    assert digest(gm.run(again, "lanes", progress=False, checkpoint=tmp_path / "c", every=40)) == digest(run)
    assert digest(gm.load(tmp_path / "run.gyromc").continue_(5)) == digest(run.continue_(5))
    assert not passes


def test_a_parquet_file(tmp_path, capsys):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = lambda y: pa.table({"a": X[:, 0], "b": X[:, 1], "y": y})
    pq.write_table(table(Y), tmp_path / "rows.parquet")
    run = gm.run(over(Parquet(tmp_path / "rows.parquet", "y")), "lanes", progress=False)
    run.save(tmp_path / "run.gyromc")
    loaded = gm.load(tmp_path / "run.gyromc")
    assert loaded.plan.target.source.columns == ("a", "b")
    assert digest(loaded.continue_(10)) == digest(run.continue_(10))
    pq.write_table(table(1 - Y), tmp_path / "rows.parquet")
    with pytest.raises(
        gm.InvalidInput, match=r"rows\.parquet is not the file that the stored plan read: .*sha256 \w+ → "
    ):
        gm.load(tmp_path / "run.gyromc")


@pytest.fixture
def saved(tmp_path):
    """A folder with rows, and a run over them: saved, and with checkpoints."""
    run = gm.run(over(written(tmp_path)), "lanes", progress=False, checkpoint=tmp_path / "c", every=40)
    run.save(tmp_path / "run.gyromc")
    return run


def test_a_missing_file_is_named_and_can_be_elsewhere(saved, tmp_path):
    before, now = tmp_path / "X.npy", tmp_path / "moved.npy"
    before.rename(now)
    with pytest.raises(gm.InvalidInput, match=rf"There is no file {before}, .*data={{\"{before}\": \"…\"}}"):
        gm.load(tmp_path / "run.gyromc")
    loaded = gm.load(tmp_path / "run.gyromc", data={str(before): now})
    assert digest(loaded.continue_(10)) == digest(saved.continue_(10))
    with pytest.raises(
        gm.InvalidInput, match=r"`data` names /nowhere, which the stored plan does not read. It reads .*X\.npy"
    ):
        gm.load(tmp_path / "run.gyromc", data={"/nowhere": now})
    moved = over(Mapped(now, tmp_path / "y.npy"))
    assert digest(gm.run(moved, "lanes", progress=False, checkpoint=tmp_path / "c", every=40)) == digest(saved)


CHANGES = {
    "a number": (X + np.float32(1e-3) * (np.arange(600) == 599).reshape(300, 2), r"sha256 \w+ → \w+"),
    "the type": (X.astype(float), r"size 2528 → 4928, dtype float32 → float64, sha256"),
    "the rows": (X[:299], r"size 2528 → 2520, shape \(300, 2\) → \(299, 2\), sha256"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_file_that_was_changed_is_refused_with_the_difference(name, saved, tmp_path):
    rows, shown = CHANGES[name]
    np.save(tmp_path / "X.npy", rows)
    with pytest.raises(gm.InvalidInput, match=rf"X\.npy is not the file that the stored plan read: {shown}"):
        gm.load(tmp_path / "run.gyromc")
    plan = over(written(tmp_path, rows, Y[: len(rows)]))
    with pytest.raises(gm.InvalidInput, match=r"another plan. What differs:\n(.*\n)*  target\.source\.X\.sha256: "):
        gm.run(plan, "lanes", progress=False, checkpoint=tmp_path / "c", every=40)


def test_which_changes_a_fingerprint_notices(tmp_path):
    """The first byte of the numbers, the last one and one in the middle block, not one between two blocks."""
    rows = np.zeros((PRINT_BYTES * PRINT_BLOCKS, 2), np.float32)
    print_of = lambda: written(tmp_path, rows, rows[:, 0]).to_archive()["X"].sha256
    before = print_of()
    found = {}
    size = 128 + rows.nbytes
    for name, byte in {
        "first": 128,
        "last": size - 4,
        "block": 31 * (size - PRINT_BYTES) // 63,
        "between": 2 * PRINT_BYTES,
    }.items():
        rows.flat[(byte - 128 + 3) // 4] = 1.0
        found[name] = print_of() != before
        rows[:] = 0.0
    assert found == {"first": True, "last": True, "block": True, "between": False}


@pytest.mark.parametrize(
    "source", [Sequenced(list(zip(X, Y, strict=True))), Batches([(X, Y)], 300)], ids=["sequence", "batches"]
)
def test_python_objects_are_refused_with_what_to_do(source, tmp_path):
    refused = pytest.raises(
        gm.InvalidInput, match=r"cannot be saved or checkpointed: a .* `source = gyromc\.data\.store\("
    )
    with refused:
        gm.run(over(source), "scan", progress=False, checkpoint=tmp_path / "c")
    kept = gm.data.store(source, tmp_path)
    run = gm.run(over(kept), "lanes", progress=False, checkpoint=tmp_path / "c")
    assert digest(gm.run(over(mapped(tmp_path)), "lanes", progress=False, checkpoint=tmp_path / "c")) == digest(run)


def test_a_file_that_is_written_to_before_the_run_is_refused(tmp_path):
    plan = over(written(tmp_path), oracle=gm.oracles.Minibatch(4))
    np.save(tmp_path / "X.npy", X[::-1])
    for engine in ("lanes", "scan"):
        with pytest.raises(gm.InvalidInput, match=r"X\.npy was written to since the target was made. Make the target"):
            gm.run(plan, engine, progress=False)


def test_a_file_that_is_written_to_during_the_run_is_said(tmp_path):
    plan = over(written(tmp_path), oracle=gm.oracles.Minibatch(4))
    change = lambda steps: os.utime(tmp_path / "y.npy", ns=(1, 1))
    with pytest.warns(gm.errors.GyromcWarning, match=r"y\.npy was written to while the run read rows"):
        gm.run(plan, "lanes", progress=change)


def test_another_file_under_the_same_name_is_not_read(tmp_path):
    changes = {"oracle": gm.oracles.Minibatch(70), "num_steps": 10}  # large batches are read from the map
    expected = digest(gm.run(over(written(tmp_path), **changes), "lanes", progress=False))
    plan = over(mapped(tmp_path), **changes)
    np.save(tmp_path / "other.npy", X[::-1])
    (tmp_path / "other.npy").replace(tmp_path / "X.npy")
    assert digest(gm.run(plan, "lanes", progress=False)) == expected
    (tmp_path / "X.npy").unlink()
    assert digest(gm.run(plan, "lanes", progress=False)) == expected
