"""The short version of `make faults`: every fault a few times, every promise kept, and a harness that can tell."""

import dataclasses
import signal
import warnings

import numpy as np
import pytest

import damages
import faults
import gyromc as gm
import pairs
from gyromc.engines import lanes
from gyromc.io import checkpoints as module


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_process_that_is_killed_loses_at_most_an_interval(number):
    row = faults.killed("lanes", 3, number, steps=40_000, seed=1)
    assert (row.tries, row.broken) == (3, 0), row


@pytest.mark.slow
def test_one_of_two_processes_is_killed():
    row = pairs.one_killed("lanes", 2, steps=20_000, every=1000, seed=1)
    assert (row.tries, row.broken) == (2, 0), row


def test_a_loop_is_used_whether_or_not_it_can_be_stored(tmp_path, monkeypatch):
    """The disk is full when a compiled loop is stored, or the file that is read back is damaged."""
    function = lambda x: x + 1
    with damages.empty_caches(tmp_path / "caches"):
        loop = lanes.stored(function)
        save = loop._cache._cache_file.save
        monkeypatch.setattr(loop._cache._cache_file, "save", lambda *_: save("no directory", "is", "full"))
        with pytest.warns(gm.GyromcWarning, match=r"not stored in .*: it cannot be written"):
            assert loop(1) == 2
        assert lanes.stored(function)(1) == 2  # stored this time
        for path in (tmp_path / "caches").rglob("*.nbi"):
            path.write_bytes(path.read_bytes()[:-20])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert lanes.stored(function)(1) == 2
        assert "a file there cannot be read" in str(caught[0].message)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return damages.Files(tmp_path_factory.mktemp("faults"))


SLOW = ("read-only or full caches",)  # compiles a loop each time


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in damages.FAULTS]
)
def test_promises_are_kept(name, files):
    rng = np.random.default_rng(7)
    assert all(damages.FAULTS[name](files, rng) for _ in range(2))


def test_a_broken_promise_is_noticed(files, monkeypatch):
    """One bit of the position of the random numbers changed gives other numbers."""
    real = module.read_archive

    def forgetful(path):
        found = real(path)
        if found.kind == "checkpoint":
            stored = dict(next(entry for name, entry in found.content["pairs"] if name == "state")["fields"])
            name = stored["generator"]["array"]
            generator = found.arrays[name].copy()
            generator[0, 0] ^= 1
            found = dataclasses.replace(found, arrays={**found.arrays, name: generator})
        return found

    monkeypatch.setattr(module, "read_archive", forgetful)
    assert not damages.clock(files, np.random.default_rng(7))
