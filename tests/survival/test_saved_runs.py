"""`run.save` and `gm.load`: a run from a file is the run that was saved, and goes on as if it had never stopped."""

import dataclasses
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gyromc as gm
from damages import digest
from gyromc.engines import ENGINES
from gyromc.io.archive import Codec, read_archive, write_archive
from support import survivors
from support.survivors import PLANS, small

GOES_ON = """
import sys
import gyromc as gm
from damages import digest
for path in sys.argv[1:]:
    run = gm.load(path, allow_import=True)
    print(digest(run), digest(run.continue_(200)))
"""


LONG = ("coordinates", "following anchors", "mixed")  # they compile much


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in PLANS]
)
def test_every_piece_comes_back_and_goes_on_bit_for_bit(name, tmp_path):
    plan = PLANS[name]()
    run = gm.run(plan, "lanes" if ENGINES["lanes"].why_not(plan) is None else "scan", thin=10, progress=False)
    run.save(tmp_path / "run.gyromc")
    loaded = gm.load(tmp_path / "run.gyromc", allow_import=True)
    assert digest(loaded) == digest(run)
    assert loaded.to_dict() == run.to_dict()
    assert digest(loaded.continue_(200)) == digest(run.continue_(200))  # as many steps as before share their program
    loaded.save(tmp_path / "again.gyromc")
    assert (tmp_path / "again.gyromc").read_bytes() == (tmp_path / "run.gyromc").read_bytes()


def test_another_process_goes_on_bit_for_bit(tmp_path):
    runs = [gm.run(PLANS["balanced"](), engine, thin=10, progress=False) for engine in ("scan", "lanes")]
    paths = [tmp_path / "scan.gyromc", tmp_path / "lanes.gyromc"]
    for run, path in zip(runs, paths, strict=True):
        run.save(path)
    command = [sys.executable, "-c", GOES_ON, *map(str, paths)]
    more = {"PYTHONPATH": os.pathsep.join(sys.path)}
    where = {"cwd": Path(survivors.__file__).parents[1], "env": {**os.environ, **more}}
    done = subprocess.run(command, capture_output=True, text=True, **where)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [digest(r) for run in runs for r in (run, run.continue_(200))]


def test_engine_pallas_goes_on_bit_for_bit(tmp_path, monkeypatch):
    monkeypatch.setenv("GYROMC_PALLAS_INTERPRET", "1")
    run = gm.run(
        small(num_steps=12, num_chains=4, burn_in=2),
        "pallas",
        thin=4,
        progress=False,
        checkpoint=tmp_path / "c",
        every=5,
    )
    checkpoints = sorted((tmp_path / "c").glob("step-*"))
    assert len(checkpoints) == 3
    run.save(tmp_path / "run.gyromc")
    assert digest(gm.load(tmp_path / "run.gyromc").continue_(6)) == digest(run.continue_(6))
    checkpoints[-1].unlink()  # the last one: what is left stands at step 10
    again = gm.run(run.plan, "pallas", thin=4, progress=False, checkpoint=tmp_path / "c", every=5)
    assert digest(again) == digest(run)


def test_the_anchor_of_the_saved_run_is_used_not_a_new_one(tmp_path):
    """A mode that was found from another start differs in its last digits."""
    plan = PLANS["balanced"]()
    plan.model.__dict__["mode"] = plan.model.mode + 1e-3
    run = gm.run(plan, "lanes", progress=False)
    run.save(tmp_path / "run.gyromc")
    assert digest(gm.load(tmp_path / "run.gyromc").continue_(20)) == digest(run.continue_(20))
    assert digest(gm.run(PLANS["balanced"](), "lanes", progress=False)) != digest(run)


def test_a_run_pickles(tmp_path):
    run = gm.run(PLANS["balanced"](), "lanes", thin=10, progress=lambda steps: None)
    again = pickle.loads(pickle.dumps(run))
    assert digest(again.continue_(20)) == digest(run.continue_(20))


def test_an_interrupted_run_lacks_the_same_steps(tmp_path):
    run = gm.run(small(), "lanes", progress=False)
    state = dataclasses.replace(run, plan=small(num_steps=300), partial=True)
    state.save(tmp_path / "run.gyromc")
    assert digest(gm.load(tmp_path / "run.gyromc").continue_()) == digest(
        gm.run(small(num_steps=300), "lanes", progress=False)
    )


def test_functions_are_imported_only_where_that_is_allowed(tmp_path, monkeypatch):
    path = tmp_path / "run.gyromc"
    gm.run(PLANS["functions"](), "scan", progress=False).save(path)
    with pytest.raises(
        gm.InvalidInput, match=r"`support.survivors:log_density` would have to be imported.*allow_import=True"
    ):
        gm.load(path)
    names = ("log_density", "weighted", "start", "decreasing")
    given = {f"support.survivors:{name}": getattr(survivors, name) for name in names}
    assert gm.load(path, functions=given).mean
    monkeypatch.setattr(survivors, "SCALE", np.array([1.0, 3.0]))
    with pytest.raises(gm.InvalidInput, match=r"survivors:weighted` reads other arrays than when it was saved"):
        gm.load(path, allow_import=True)
    monkeypatch.delattr(survivors, "weighted")
    with pytest.raises(gm.InvalidInput, match=r"has no `weighted`: it was renamed or removed"):
        gm.load(path, allow_import=True)


def test_a_function_without_a_name_is_refused(tmp_path):
    run = gm.run(small(observables={"h": lambda t: t[0]}), "scan", progress=False)
    with pytest.raises(
        gm.InvalidInput, match=r"a lambda or a function inside another one has no name.*Define it at the top of a"
    ):
        run.save(tmp_path / "run.gyromc")
    assert not os.listdir(tmp_path)


def test_other_versions_are_said(tmp_path, monkeypatch):
    path = tmp_path / "run.gyromc"
    gm.run(small(), "lanes", progress=False).save(path)
    monkeypatch.setattr("gyromc.io.runs.__version__", "9.9")
    with pytest.warns(gm.GyromcWarning, match=rf"written by other programs \(gyromc {gm.__version__} → 9.9\)"):
        gm.load(path)


def test_a_file_with_other_content_is_refused(tmp_path):
    path = tmp_path / "run.gyromc"
    write_archive(path, "run", {"plan": 1}, Codec({}))
    with pytest.raises(gm.InvalidInput, match=r"holds what this gyromc .* does not know"):
        gm.load(path)
    assert read_archive(path).kind == "run"
