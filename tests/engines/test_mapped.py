"""Engine `lanes` over mapped files: the chains of the same rows in memory, whatever the files' types and the pages given back."""

import os
import subprocess
import sys

import numpy as np
import pytest

import gyromc as gm
from gyromc.data import Mapped, Sequenced
from gyromc.data.files import FileSettings
from gyromc.engines.lanes import ahead
from gyromc.targets.regressions import BY_FAMILY
from gyromc.targets.streamed import StreamedRegression

RNG = np.random.default_rng(1)
N, D = 3000, 5
X = (RNG.standard_normal((N, D)) / 2).astype(np.float32)
T = X @ np.linspace(-1, 1, D)
RESPONSES = {
    "linear": T + RNG.standard_normal(N),
    "logistic": RNG.random(N) < 1 / (1 + np.exp(-T)),
    "poisson": RNG.poisson(np.exp(T)),
}


def averages(target, oracle, dtype="float32", **options):
    plan = gm.Plan(
        target=target, dynamics=gm.dynamics.overdamped(D), oracle=oracle, step_size=1e-4, num_steps=40, num_chains=5, dtype=dtype,
        observables={"first": gm.observables.linear(np.eye(D)[0]), "sum": gm.observables.linear(np.ones(D))},
    )  # fmt: skip
    run = gm.run(plan, "lanes", progress=False, **options)
    return np.stack([run.averages[name] for name in ("first", "sum")])


def mapped(folder, family, X=X, kind=np.float32, **options):
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", np.asarray(RESPONSES[family], kind))
    return StreamedRegression(Mapped(folder / "X.npy", folder / "y.npy", **options), family, 2.0)


def memory(family, X=X, kind=np.float32):
    return BY_FAMILY[family](X, np.asarray(RESPONSES[family], kind), 2.0)


@pytest.mark.parametrize(
    "oracle", [gm.oracles.Minibatch(21), gm.oracles.Minibatch(16, replace=False)], ids=lambda o: o.name
)
@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_chains_are_those_in_memory_bit_for_bit(family, oracle, tmp_path):
    assert np.array_equal(averages(mapped(tmp_path, family), oracle), averages(memory(family), oracle))


@pytest.mark.parametrize(
    "oracle", [gm.oracles.ControlVariate(9), gm.oracles.ControlVariate(9, order=2)], ids=lambda o: o.name
)
@pytest.mark.parametrize("family", ["linear", "logistic", "poisson"])
def test_control_variates_are_those_in_memory_up_to_rounding(family, oracle, tmp_path):
    found, wanted = averages(mapped(tmp_path, family), oracle), averages(memory(family), oracle)
    plain = averages(memory(family), gm.oracles.Minibatch(9))
    assert np.allclose(found, wanted, atol=2e-6)
    assert np.abs(plain - wanted).max() > 1e-4  # so that another oracle would be seen


@pytest.fixture
def passes(monkeypatch):
    """The numbers of blocks and of steps of each pass that reads rows ahead."""
    read, found = ahead.Ahead.read, []

    def noted(self, pool, threads, task):
        found.append((task[1] - task[0], task[3]))
        read(self, pool, threads, task)

    monkeypatch.setattr(ahead.Ahead, "read", noted)
    return found


@pytest.mark.parametrize(
    ("kind", "call"), [(np.float32, 2**13), (np.float32, 0), pytest.param(np.float64, 2**13, marks=pytest.mark.slow)]
)
def test_rows_that_are_read_ahead_change_nothing(kind, call, tmp_path, monkeypatch, passes):
    """From windows of 256 rows that are read as a whole, or row by row (0); of both precisions."""
    rows, oracle = X.astype(kind), gm.oracles.ControlVariate(9, order=2)
    wanted = averages(mapped(tmp_path, "logistic", rows), oracle)
    monkeypatch.setattr("gyromc.data.files.SETTINGS", FileSettings(resident=2**14))
    monkeypatch.setattr(ahead, "SETTINGS", ahead.AheadSettings(window=256 * D * kind().itemsize, call=call))
    found = averages(mapped(tmp_path, "logistic", rows), oracle, thin=7, checkpoint=tmp_path / "c", every=13)
    assert np.array_equal(found, wanted)
    assert sum(steps for blocks, steps in passes if blocks) == 40


@pytest.mark.parametrize("held", [2, 6])
@pytest.mark.parametrize("replace", [True, False])
def test_three_blocks_of_chains_read_ahead(replace, held, tmp_path, monkeypatch, passes):
    """A pass has the rows of two blocks in a step, or of three in two steps, with an odd number of normals in each."""
    plan = gm.Plan(
        target=memory("logistic"), dynamics=gm.dynamics.overdamped(D), oracle=gm.oracles.Minibatch(2, replace=replace),
        step_size=1e-4, num_steps=40, num_chains=130, observables={"sum": gm.observables.linear(np.ones(D))},
    )  # fmt: skip
    wanted = gm.run(plan, "lanes", progress=False).averages["sum"]
    monkeypatch.setattr("gyromc.data.files.SETTINGS", FileSettings(resident=2 * held * 64 * 2 * (4 * (D + 1) + 8)))
    found = gm.run(plan.replace(target=mapped(tmp_path, "logistic")), "lanes", progress=False).averages["sum"]
    assert np.array_equal(found, wanted)
    assert max(passes) == ((2, 1) if held == 2 else (3, 2))


LARGE = """
import sys
import re
from pathlib import Path
import numpy as np
import gyromc as gm
from gyromc.data import Mapped, files
files.SETTINGS = files.FileSettings(resident=2**25)
size = lambda name: int(re.search(name + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) / 1024
target = gm.targets.StreamedRegression(Mapped("X.npy", "y.npy"), "logistic")
for batch in (8, 256):
    plan = gm.Plan(target=target, dynamics=gm.dynamics.overdamped(20), oracle=gm.oracles.Minibatch(batch), num_steps=20,
                   step_size=1e-9, num_chains=64, observables={"x": gm.observables.linear(np.eye(20)[0])})
    gm.run(plan.replace(num_steps=1), sys.argv[1], progress=False)  # compiles
    target.source.release()
    before = size("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    gm.run(plan, sys.argv[1], progress=False)
    print(size("VmHWM") - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("engine", ["lanes", "scan"])
def test_chains_over_a_large_file_keep_little_of_it_resident(engine, tmp_path):
    """A file of 400 MB, of which at most 32 MB may stay; 16,384 rows a step would make all of it resident."""
    rows = 5_000_000
    np.lib.format.open_memmap(tmp_path / "X.npy", "w+", np.float32, (rows, 20))[:, :2] = 1.0
    np.save(tmp_path / "y.npy", np.arange(rows) % 2 == 0)
    done = subprocess.run(
        [sys.executable, "-c", LARGE, engine], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert max(map(float, done.stdout.split())) < 100


def test_a_file_that_ends_with_its_last_row_is_read_to_its_end(tmp_path):
    rows, oracle = X[: 1024 - 32], gm.oracles.Minibatch(9)  # its numbers and the header fill whole pages
    RESPONSES["few"] = RESPONSES["logistic"][: 1024 - 32]
    np.save(tmp_path / "X.npy", rows)
    np.save(tmp_path / "y.npy", np.asarray(RESPONSES["few"], np.float32))
    target = StreamedRegression(Mapped(tmp_path / "X.npy", tmp_path / "y.npy"), "logistic", 2.0)
    memory = gm.targets.LogisticRegression(rows, RESPONSES["few"].astype(float), 2.0)
    assert np.array_equal(averages(target, oracle), averages(memory, oracle))


@pytest.mark.slow
def test_a_file_of_doubles_is_rounded_row_by_row(tmp_path):
    wide, oracle = X.astype(float) * (1 + 1e-9), gm.oracles.Minibatch(21)
    found = averages(mapped(tmp_path, "logistic", wide, np.int8), oracle)
    assert np.array_equal(found, averages(memory("logistic", wide, np.int8), oracle))


@pytest.mark.slow
def test_double_precision(tmp_path):
    oracle = gm.oracles.Minibatch(21)
    found = averages(mapped(tmp_path, "logistic"), oracle, "float64")
    assert np.array_equal(found, averages(memory("logistic"), oracle, "float64"))


def test_what_it_cannot_run_is_said(tmp_path):
    records = StreamedRegression(
        Sequenced([(x, float(y)) for x, y in zip(X[:50], RESPONSES["logistic"][:50], strict=True)]), "logistic"
    )
    with pytest.raises(gm.InvalidInput, match="reads mapped files"):
        averages(records, gm.oracles.Minibatch(5))
    target = mapped(tmp_path, "logistic")
    with pytest.raises(gm.InvalidInput, match="not all of them"):
        averages(target, gm.oracles.Exact())
    with pytest.raises(gm.InvalidInput, match="at most 512 distinct rows"):
        averages(target, gm.oracles.Minibatch(600, replace=False))
