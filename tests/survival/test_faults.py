"""The short version of `make faults`: every fault a few times, every promise kept, and a harness that can tell."""

import signal

import numpy as np
import pytest

import damages
import faults
from gyromc.engines import checkpoints as module


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_that_is_killed_loses_at_most_an_interval(number):
    row = faults.killed("lanes", 3, number, steps=40_000, seed=1)
    assert (row.tries, row.broken) == (3, 0), row


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return damages.Files(tmp_path_factory.mktemp("faults"))


@pytest.mark.parametrize("name", damages.FAULTS)
def test_promises_are_kept(name, files):
    rng = np.random.default_rng(7)
    assert all(damages.FAULTS[name](files, rng) for _ in range(2))


def test_a_broken_promise_is_noticed(files, monkeypatch):
    """One bit of the position of the random numbers changed gives other numbers."""
    real = module.unpack

    def forgetful(*arguments):
        content = real(*arguments)
        content["state"].generator[0, 0] ^= 1
        return content

    monkeypatch.setattr(module, "unpack", forgetful)
    monkeypatch.setattr(module, "read_archive", writable(module.read_archive))
    assert not damages.clock(files, np.random.default_rng(7))


def writable(read):
    def wrapped(path):
        found = read(path)
        return type(found)(found.kind, found.written_by, found.content, {k: v.copy() for k, v in found.arrays.items()})

    return wrapped
