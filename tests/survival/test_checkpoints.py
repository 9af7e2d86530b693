"""Checkpoints: a run that was stopped anywhere goes on to the same numbers; damaged, foreign and missing files are said."""

import dataclasses
import errno
import os
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

import gyromc as gm
from damages import digest
from gyromc.engines import loop
from gyromc.io.checkpoints import Checkpoints, _interval
from gyromc.show.files import locked
from gyromc.show.progress import Interruption
from support import compiling
from support.survivors import PLANS, balanced, killed_at, names, small, start_and_kill


@pytest.mark.parametrize(
    ("name", "engine"),
    [("following anchors", "scan"), ("balanced", "lanes"), pytest.param("balanced", "scan", marks=pytest.mark.slow)],
)
def test_a_killed_run_goes_on_to_the_same_numbers(name, engine, tmp_path, monkeypatch):
    plan = PLANS[name]()
    monkeypatch.setattr(loop, "SETTINGS", dataclasses.replace(loop.SETTINGS, first=9, longest=9))
    options = {"engine": engine, "thin": 10, "every": 20}
    whole = gm.run(plan, engine, thin=10, progress=False)
    for step in (5, 90, 150):
        start_and_kill(monkeypatch, PLANS[name](), step, tmp_path, **options)
    resumed = gm.run(PLANS[name](), progress=False, checkpoint=tmp_path, **options)
    assert digest(resumed) == digest(whole)
    assert digest(resumed.continue_(200)) == digest(whole.continue_(200))  # as many steps as before share their program
    assert names(tmp_path) == [f"step-{step:015d}.gyromc" for step in (180, 200, 207)]


def test_a_checkpoint_before_the_first_draw(tmp_path, monkeypatch):
    options = {"engine": "lanes", "thin": 10}
    start_and_kill(monkeypatch, small(), 5, tmp_path, every=2, **options)
    assert names(tmp_path) == [f"step-{step:015d}.gyromc" for step in (2, 4, 6)]
    resumed = gm.run(small(), progress=False, checkpoint=tmp_path, **options)
    assert digest(resumed) == digest(gm.run(small(), progress=False, **options))


def test_a_finished_run_is_returned_at_once(tmp_path, monkeypatch):
    whole = gm.run(small(), "lanes", progress=False, checkpoint=tmp_path)
    with monkeypatch.context() as patch:
        killed_at(patch, 0)
        again = gm.run(small(), "lanes", progress=False, checkpoint=tmp_path)
    assert digest(again) == digest(whole)
    assert again.partial is False


def test_the_anchor_of_the_first_process_is_used(tmp_path, monkeypatch):
    """A mode that is found anew, with other threads say, may differ in its last digits."""
    plan = balanced()
    plan.model.__dict__["mode"] = plan.model.mode + 1e-3
    start_and_kill(monkeypatch, plan, 60, tmp_path, engine="lanes", every=20)
    resumed = gm.run(balanced(), "lanes", progress=False, checkpoint=tmp_path)
    assert digest(resumed) == digest(gm.run(plan, "lanes", progress=False))
    assert digest(resumed) != digest(gm.run(balanced(), "lanes", progress=False))


def test_the_newest_that_is_not_damaged_is_used(tmp_path, monkeypatch):
    whole = gm.run(small(), "lanes", progress=False)
    start_and_kill(monkeypatch, small(), 80, tmp_path, engine="lanes", every=20)
    newest = max(tmp_path.iterdir())
    newest.write_bytes(newest.read_bytes()[:-100])
    with pytest.warns(gm.GyromcWarning, match=r"is damaged .* goes on from step-000000000000060\.gyromc"):
        resumed = gm.run(small(), "lanes", progress=False, checkpoint=tmp_path)
    assert digest(resumed) == digest(whole)
    assert newest.with_suffix(".damaged").exists()


def test_nothing_is_overwritten_where_all_are_damaged(tmp_path, monkeypatch):
    start_and_kill(monkeypatch, small(), 80, tmp_path, engine="lanes", every=20)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:-100])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(gm.InvalidInput, match=r"None of the 3 checkpoints .* can be read, and none was changed"):
        gm.run(small(), "lanes", progress=False, checkpoint=tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


CHANGES = {
    "step size": ({"step_size": 0.05}, {}, r"step_size: 0\.1 → 0\.05"),
    "seed": ({"seed": 4}, {}, "seed: 3 → 4"),
    "length": ({"num_steps": 400}, {}, "num_steps: 200 → 400"),
    "target": (
        {"target": gm.targets.Quadratic([[2.0, 0.5], [0.5, 1.5]], mean=[1.0, -1.0])},
        {},
        r"target\.precision: ",
    ),
    "oracle": ({"oracle": gm.oracles.Gaussian(1.0)}, {}, "oracle: Exact → Gaussian"),
    "observable": ({"observables": {"x": gm.observables.linear([1.0, 1.0])}}, {}, r"observables\.x\.direction: "),
    "order of observables": (
        {"observables": dict(reversed(small().observables.items()))},
        {},
        "observables: x, y → y, x",
    ),
    "start": ({"start": [1.0, 1.0]}, {}, r"start\.vector: "),
    "draws": ({}, {"thin": 5}, "thin: None → 5"),
    "engine": ({}, {"engine": "scan"}, "engine: 'lanes' → 'scan'"),
}


def test_another_plan_is_refused_and_the_difference_shown(tmp_path):
    gm.run(small(), "lanes", progress=False, checkpoint=tmp_path)
    before = names(tmp_path)
    for changes, options, shown in CHANGES.values():
        with pytest.raises(gm.InvalidInput, match=rf"another plan. What differs:\n(.*\n)*  {shown}"):
            gm.run(small(**changes), **{"engine": "lanes", **options}, progress=False, checkpoint=tmp_path)
    assert names(tmp_path) == before


def test_a_function_is_another_one_when_its_code_is(tmp_path):
    plan = lambda factor: small(observables={"h": lambda t: factor * t[0]})
    gm.run(plan(2.0), "scan", progress=False, checkpoint=tmp_path)
    assert gm.run(plan(2.0), "scan", progress=False, checkpoint=tmp_path).mean
    with pytest.raises(gm.InvalidInput, match=r"observables\.h\.fn: function .*<lambda>, code"):
        gm.run(plan(3.0), "scan", progress=False, checkpoint=tmp_path)
    other = small(observables={"h": lambda t: t[0] - 2.0})
    with pytest.raises(gm.InvalidInput, match="another plan"):
        gm.run(other, "scan", progress=False, checkpoint=tmp_path)


def test_other_versions_are_said_and_used(tmp_path, monkeypatch):
    gm.run(small(), "lanes", progress=False, checkpoint=tmp_path)
    monkeypatch.setattr("gyromc.io.runs.__version__", "9.9")
    with pytest.warns(gm.GyromcWarning, match=rf"other programs \(gyromc {re.escape(gm.__version__)} → 9\.9\)"):
        gm.run(small(), "lanes", progress=False, checkpoint=tmp_path)


LONG = small(num_steps=300_000_000, num_chains=16)


def once(number):
    """A function of progress that sends this process a signal when it is called first."""
    sent = []

    def advance(steps):
        if not sent:
            sent.append(steps)
            os.kill(os.getpid(), number)

    return advance


def test_sigterm_saves_and_then_ends(tmp_path):
    ended, before = [], signal.getsignal(signal.SIGTERM)
    signal.signal(signal.SIGTERM, lambda number, frame: ended.append(number))
    try:
        with pytest.warns(gm.GyromcWarning, match="Interrupted"):
            run = gm.run(LONG, "lanes", progress=once(signal.SIGTERM), checkpoint=tmp_path, every="1h")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended == [signal.SIGTERM]
    assert names(tmp_path) == [f"step-{run.state.step:015d}.gyromc"]


def test_ctrl_c_saves(tmp_path, sigint):
    sigint(signal.default_int_handler)
    with pytest.warns(gm.GyromcWarning, match="Interrupted"):
        run = gm.run(LONG, "lanes", progress=once(signal.SIGINT), checkpoint=tmp_path, every="1h")
    assert names(tmp_path) == [f"step-{run.state.step:015d}.gyromc"]


def test_times_between_checkpoints(tmp_path):
    assert (_interval("30s"), _interval(" 1.5 min"), _interval("2h")) == ((30.0, None), (90.0, None), (7200.0, None))
    assert _interval(500) == (None, 500)
    for wrong in ("30", "s", "-1s", "1e3s", "nans", "soon", 0, 2.5, None):
        with pytest.raises(gm.InvalidInput, match="`every` must be"):
            _interval(wrong)
    with pytest.raises(gm.InvalidInput, match="`keep` must be"):
        gm.run(small(), "lanes", progress=False, checkpoint=tmp_path, keep=0)
    with pytest.raises(gm.InvalidInput, match="`checkpoint` must be a directory"):
        gm.run(small(), "lanes", progress=False, checkpoint=3)


def test_a_directory_belongs_to_one_process(tmp_path):
    with locked(tmp_path), pytest.raises(gm.InvalidInput, match="Another process saves checkpoints"):
        gm.run(small(), "lanes", progress=False, checkpoint=tmp_path)
    assert gm.run(small(), "lanes", progress=False, checkpoint=tmp_path).mean


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks(number, tmp_path, monkeypatch, capsys):
    fcntl = pytest.importorskip("fcntl")

    def flock(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with Checkpoints(tmp_path, small(), gm.run(small(), "lanes", progress=False).options, "1s", 1, Interruption()):
        assert "has no locks" in capsys.readouterr().err


def test_a_clock_that_jumps_changes_nothing(tmp_path, monkeypatch):
    start_and_kill(monkeypatch, small(), 80, tmp_path, engine="lanes", every=20)
    for age, path in enumerate(sorted(tmp_path.iterdir())):  # the newest by step is the oldest by date
        os.utime(path, (4e9 - age * 1e8,) * 2)
    monkeypatch.setattr(time, "time", lambda: 0.0)
    resumed = gm.run(small(), "lanes", progress=False, checkpoint=tmp_path)
    assert digest(resumed) == digest(gm.run(small(), "lanes", progress=False))


def test_failed_chains_stay_failed(tmp_path, monkeypatch):
    def steep(theta):
        return -0.5 * (theta @ theta) - 0.3 * (theta**4).sum()

    far = np.repeat([[20.0, 0.0], [0.0, 0.0]], [7, 17], axis=0)  # where a step of this size overshoots
    plan = lambda: small(target=gm.targets.LogDensity(steep), step_size=0.05, start=far)
    options = {"engine": "scan", "on_divergence": "report"}
    with pytest.warns(gm.GyromcWarning, match="chains failed"):
        whole = gm.run(plan(), progress=False, **options)
    assert len(whole.failures) == 7
    start_and_kill(monkeypatch, plan(), 150, tmp_path, every=20, **options)
    with pytest.warns(gm.GyromcWarning, match="chains failed"):
        resumed = gm.run(plan(), progress=False, checkpoint=tmp_path, **options)
    assert resumed.failures == whole.failures
    assert np.array_equal(resumed.averages["x"], whole.averages["x"], equal_nan=True)


def test_parameters_of_any_shape_and_their_draws(tmp_path, monkeypatch):
    target = gm.targets.LogDensity(lambda p: -0.5 * (p["a"] @ p["a"] + p["b"] ** 2))
    make = lambda: gm.Plan(
        target=target,
        dynamics=gm.dynamics.overdamped(3),
        observables={"b": lambda p: p["b"]},
        start={"a": np.ones(2), "b": np.float64(0.5)},
        step_size=0.1,
        num_steps=60,
        num_chains=8,
    )
    whole = gm.run(make(), "scan", thin=7, progress=False)
    start_and_kill(monkeypatch, make(), 30, tmp_path, engine="scan", thin=7, every=10)
    resumed = gm.run(make(), "scan", thin=7, progress=False, checkpoint=tmp_path)
    assert jax.tree.map(np.shape, resumed.draws) == {"a": (8, 9, 2), "b": (8, 9)}
    assert digest(resumed) == digest(whole)


ON_DEVICES = """
import sys
import jax
import gyromc as gm
from damages import digest
from support.survivors import PLANS
run = gm.run(PLANS["minibatch"](), "scan", thin=10, progress=False, checkpoint=sys.argv[1], every=20)
print(jax.device_count(), digest(run))
"""


@pytest.mark.slow
def test_a_run_goes_on_on_another_number_of_devices(tmp_path, monkeypatch):
    whole = gm.run(PLANS["minibatch"](), "scan", thin=10, progress=False)
    start_and_kill(monkeypatch, PLANS["minibatch"](), 100, tmp_path, engine="scan", thin=10, every=20)
    more = {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "XLA_FLAGS": compiling.flags("--xla_force_host_platform_device_count=4"),
    }
    command = [sys.executable, "-c", ON_DEVICES, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **more})
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["4", digest(whole)]
