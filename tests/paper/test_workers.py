"""A reproduction gives the same numbers wherever its pieces are computed, and no piece is computed twice."""

import dataclasses
import json
import pickle
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from gyromc.errors import InvalidInput
from gyromc.io.runs import SentPlan
from gyromc.paper import reproduce
from gyromc.paper.catalogue import PROFILES, select
from gyromc.paper.computation import Cache, Computation, WorkerTask, cells, compute, fingerprint, obtain
from gyromc.show.progress import Progress
from support import chores
from support.profiles import FAMILIES, TINY, VARIED

FEWER = dataclasses.replace(
    VARIED.sensitivity, num_chains=dict.fromkeys(FAMILIES, 24), num_step_sizes=TINY.num_step_sizes
)
SMALL = dataclasses.replace(VARIED, name="small", num_chains=dict.fromkeys(FAMILIES, 70), sensitivity=FEWER)


def timeless(directory):
    results = json.loads((directory / "results.json").read_text())
    assert results.pop("times")
    assert results.pop("sha256")
    return results


@pytest.mark.slow
def test_two_processes_compute_what_one_does(tmp_path):
    """Pieces and predictions, bit for bit."""
    few, made, one = select(["nld-quadratic"]), [], dict.fromkeys(FAMILIES, 1)
    profile = dataclasses.replace(SMALL, num_step_sizes=one, sensitivity=VARIED.sensitivity)
    for workers in (1, 2):
        work = Computation(few, profile, Cache(tmp_path / f"{workers}"), "scan", workers=workers)
        made.append(work.outcome(Progress()))
    one, two = made
    assert (one.computed, one.reused) == (two.computed, two.reused) == (2, 0)
    assert one.predicted == two.predicted
    assert len(one.predicted) == 6  # two dynamics of the experiment and of two variants
    assert list(one.pieces) == list(two.pieces)
    for at, piece in one.pieces.items():
        np.testing.assert_array_equal(piece.averages, two.pieces[at].averages)
    stored = [{path.name: path for path in (tmp_path / name).iterdir()} for name in ("1", "2")]
    assert stored[0].keys() == stored[1].keys()
    for name, path in stored[0].items():
        assert not name.startswith("prediction") or path.read_bytes() == stored[1][name].read_bytes()


@pytest.mark.slow
def test_two_processes_give_the_same_results(tmp_path):
    for workers in (1, 2):
        done = reproduce(["linear-nld", "logistic-nld"], SMALL, out=tmp_path / f"{workers}", workers=workers)
    assert done.results["times"]["workers"] == 2
    assert timeless(tmp_path / "1") == timeless(tmp_path / "2")


@pytest.mark.parametrize("name", ["nld-quadratic", "hfhr-nonquadratic", "linear-gaul", "logistic-gaul"])
def test_a_plan_that_is_sent_arrives_with_the_same_content(name):
    for cell in cells(select([name]), TINY)[::2]:
        arrived = pickle.loads(pickle.dumps(SentPlan(cell.plan))).plan
        assert arrived is not cell.plan
        assert fingerprint(arrived, "lanes") == fingerprint(cell.plan, "lanes")
        np.testing.assert_array_equal(arrived.dynamics.Q, cell.plan.dynamics.Q)


def _job(key="ab" * 16, function=chores.square, arguments=(3,)):
    return key, WorkerTask("three", function, arguments)


def test_two_processes_do_not_compute_for_one_cache(tmp_path):
    with Cache(tmp_path / "cache").alone(), pytest.raises(InvalidInput, match="Another process computes in"):
        reproduce(["nld-quadratic"], TINY, out=tmp_path)


def test_an_error_names_the_piece_and_nothing_finished_is_lost(tmp_path):
    cache = Cache(tmp_path)
    todo = [_job(), _job("cd" * 16, chores.refusing, ())]
    with pytest.raises(InvalidInput, match=r"^three: `x` must be positive"):
        obtain(todo, cache)
    assert cache.load("ab" * 16) == 9


def test_where_pieces_are_computed(tmp_path, monkeypatch):
    """By default one process for each processor for long work, this one for short work and where nothing is left to do."""
    monkeypatch.setenv("GYROMC_THREADS", "4")
    cache, few = Cache(tmp_path), select(["nld-quadratic"])
    assert Computation(few, TINY, cache, "scan").workers == 1
    long = Computation(few, dataclasses.replace(PROFILES["paper"], sensitivity=None), cache, "scan")
    assert 1 < long.workers <= 4
    for key in long.jobs:
        cache.path(key).touch()
    done = Computation(few, dataclasses.replace(PROFILES["paper"], sensitivity=None), cache, "scan")
    assert done.workers == 1
    assert Computation(few, TINY, cache, "scan", workers=3).workers == 3
    with pytest.raises(InvalidInput, match="workers"):
        Computation(few, TINY, cache, "scan", workers=0)


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["a killed worker", "Ctrl-C"])
def test_what_is_finished_is_kept_where_several_processes_end(ends, tmp_path, sigint):
    """Of the command line, with engine `lanes`."""
    sigint(signal.default_int_handler)
    command = [sys.executable, "-m", "gyromc", "reproduce", "nld-quadratic", "--profile", "paper", "--workers", "2"]
    running = subprocess.Popen([*command, "--out", str(tmp_path)], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 200
    while len(list((tmp_path / "cache").glob("[!p]*.gyromc"))) < 3 and time.monotonic() < deadline:
        assert running.poll() is None, running.communicate()[1]
        time.sleep(0.05)
    if ends == "Ctrl-C":
        running.send_signal(signal.SIGINT)
    else:
        search = ["pgrep", "-P", str(running.pid), "-f", "spawn_main"]
        child = subprocess.run(search, capture_output=True, text=True).stdout.split()[0]
        subprocess.run(["kill", "-9", child], check=True)
    said = running.communicate(timeout=100)[1]
    assert running.returncode == (130 if ends == "Ctrl-C" else 2), said
    assert ("The same command goes on from there" if ends == "Ctrl-C" else "a worker process ended") in said
    assert len(list((tmp_path / "cache").glob("[!p]*.gyromc"))) >= 3
    assert not list((tmp_path / "cache").glob(".*.gyromc.*"))


def test_failed_chains_are_returned_with_a_piece(recwarn):
    cell = cells(select(["nld-quadratic"]), TINY)[0]
    piece = compute(SentPlan(cell.plan.replace(step_size=2.5, num_steps=200, start=[1e7] * 3)), "scan")
    assert np.isnan(piece.averages).all()
    assert not recwarn
