"""States that Orbax stores: the same promises as for states in archives."""

import contextlib
import os
import subprocess
import sys

import numpy as np
import pytest

import gyromc as gm
from damages import digest
from gyromc.engines import states
from gyromc.results import EngineState
from support.survivors import PLANS, small, start_and_kill

pytest.importorskip("orbax.checkpoint")
OPTIONS = {"engine": "lanes", "thin": 10, "every": 50, "checkpoint_format": "orbax"}


def stopped(monkeypatch, directory, plan=small, **options):
    start_and_kill(monkeypatch, plan(), 150, directory, **{**OPTIONS, **options})


def resumed(directory, plan=small, **options):
    return gm.run(plan(), progress=False, checkpoint=directory, **{**OPTIONS, **options})


def folders(directory):
    return sorted(path.name for path in directory.glob("state-*"))


def content(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def expected():
    return digest(gm.run(small(), "lanes", thin=10, progress=False))


def test_a_killed_run_goes_on_and_old_folders_are_removed(tmp_path, monkeypatch, expected):
    stopped(monkeypatch, tmp_path)
    (tmp_path / "state-000000000000200.orbax").mkdir()  # by a process that was killed
    assert digest(resumed(tmp_path, keep=1)) == expected
    assert folders(tmp_path) == ["state-000000000000207.orbax"]
    assert digest(resumed(tmp_path)) == expected
    with pytest.raises(gm.InvalidInput, match="another plan"):
        resumed(tmp_path, thin=5)


@pytest.mark.parametrize("formats", [("orbax", "archive"), ("archive", "orbax")])
def test_the_format_may_change(formats, tmp_path, monkeypatch, expected):
    stopped(monkeypatch, tmp_path, checkpoint_format=formats[0])
    assert digest(resumed(tmp_path, checkpoint_format=formats[1])) == expected


@pytest.mark.parametrize("damage", ["flipped", "missing", "added"])
def test_a_damaged_folder(damage, tmp_path, monkeypatch, expected):
    stopped(monkeypatch, tmp_path)
    newest = max(tmp_path.glob("state-*"))
    largest = max((path for path in newest.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)
    if damage == "flipped":
        data = bytearray(largest.read_bytes())
        data[len(data) // 2] ^= 1
        largest.write_bytes(data)
    elif damage == "missing":
        largest.unlink()
    else:
        (newest / "more").write_bytes(b"x")
    with pytest.warns(gm.GyromcWarning, match=r"orbax is damaged: .*\.damaged, and the run goes on from step-0+100"):
        assert digest(resumed(tmp_path)) == expected


def test_all_folders_damaged(tmp_path, monkeypatch):
    stopped(monkeypatch, tmp_path)
    for folder in tmp_path.glob("state-*"):
        next(path for path in folder.rglob("*") if path.is_file()).write_bytes(b"")
    before = content(tmp_path)
    with pytest.raises(gm.InvalidInput, match=r"None of the 3 checkpoints .* none was changed"):
        resumed(tmp_path)
    assert content(tmp_path) == before


class Full:
    """Orbax on a full disk: reading works, writing stops half way."""

    def __init__(self, real):
        self.restore = real.restore

    def save(self, folder, args):
        folder.mkdir()
        (folder / "half").write_bytes(b"x")
        raise ValueError("RESOURCE_EXHAUSTED: No space left on device")


def test_a_full_disk(tmp_path, monkeypatch, expected):
    stopped(monkeypatch, tmp_path)
    before, real = content(tmp_path), states._checkpointer

    @contextlib.contextmanager
    def full():
        with real() as checkpointer:
            yield Full(checkpointer)

    with monkeypatch.context() as patch:
        patch.setattr(states, "_checkpointer", full)
        with pytest.warns(gm.GyromcWarning, match="Orbax cannot write .* RESOURCE_EXHAUSTED"):
            assert digest(resumed(tmp_path)) == expected
    assert content(tmp_path) == before
    assert digest(resumed(tmp_path)) == expected


def test_a_name_from_elsewhere_and_a_wrong_format(tmp_path):
    with pytest.raises(gm.InvalidInput, match="no name of a folder"):
        states.read_state(states.StateFolder("../x", {}, (), None), tmp_path)
    with pytest.raises(gm.InvalidInput, match="`checkpoint_format` must be"):
        resumed(tmp_path, checkpoint_format="zarr")


def test_where_orbax_is_missing(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(gm.InvalidInput, match=r"pip install 'gyromc\[orbax\]'"):
        resumed(tmp_path)


ON_DEVICES = """
import sys
import jax
jax.config.update("jax_num_cpu_devices", int(sys.argv[2]))
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
import gyromc as gm
from damages import digest
from pathlib import Path
from gyromc.engines import states
from gyromc.results import EngineState
from support.survivors import PLANS
options = {"thin": 10, "progress": False, "every": 20, "checkpoint_format": "orbax"}
print(jax.device_count(), digest(gm.run(PLANS["minibatch"](), "scan", checkpoint=sys.argv[1], **options)))
spread = NamedSharding(Mesh(np.array(jax.devices()), ("parameters",)), PartitionSpec(None, "parameters"))
z = np.arange(3 * 40, dtype=np.float32).reshape(3, 40)
sums = np.ones((3, 1))
marks = {"snapshots": {4: 2 * sums}, "clocks": {4: 0.5}}
state = EngineState(7, jax.device_put(z, spread), sums, sums, (0.5, 0.0), np.full(3, -1), **marks)
folder = Path(sys.argv[1], f"spread-{sys.argv[2]}")
folder.mkdir()
store = states.WithOrbax(folder)
again = states.read_state(store.write(state), folder)
assert np.array_equal(again.z, z) and again.clock == (0.5, 0.0) and np.array_equal(again.snapshots[4], 2 * sums)
assert isinstance(again.z, np.ndarray) and again.anchors is None and again.high.dtype == np.float64
"""


@pytest.mark.slow
def test_spread_states_and_other_numbers_of_devices(tmp_path, monkeypatch):
    whole = digest(gm.run(PLANS["minibatch"](), "scan", thin=10, progress=False))
    options = {"engine": "scan", "thin": 10, "every": 20, "checkpoint_format": "orbax"}
    start_and_kill(monkeypatch, PLANS["minibatch"](), 100, tmp_path, **options)
    for number in ("4", "2"):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", ON_DEVICES, str(tmp_path), number]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split() == [number, whole]


def test_a_state_comes_back_bit_for_bit(tmp_path):
    rng = np.random.default_rng(2)
    arrays = {"z": rng.random((3, 4)), "high": rng.random((3, 1)), "low": rng.random((3, 1)).astype(np.float32)}
    arrays |= {"failed_at": np.full(3, -1, np.int32), "generator": rng.integers(0, 2**32, (4, 3), np.uint32)}
    marks = {"snapshots": {4: rng.random((3, 1)), 8: rng.random((3, 1))}, "clocks": {4: 0.1, 8: 0.2}}
    before = EngineState(9, clock=(0.25, 1e-20), checked=4, **arrays, **marks)
    after = states.read_state(states.WithOrbax(tmp_path).write(before), tmp_path)
    for name, array in arrays.items():
        assert np.array_equal(getattr(after, name), array)
        assert getattr(after, name).dtype == array.dtype
    assert all(np.array_equal(after.snapshots[k], sums) for k, sums in marks["snapshots"].items())
    same = ("step", "clock", "checked", "clocks", "anchors")
    assert [getattr(after, name) for name in same] == [getattr(before, name) for name in same]
