"""`gyromc run` from a plan file, as a user calls it."""

import json
import signal
import subprocess
import sys
import time

import pytest

import gyromc as gm
from gyromc.app import cli
from gyromc.engines import loop
from gyromc.results import Run
from gyromc.show import progress as interruption
from support.commands import gyromc, interruptible_command, refused

PLAN = """
step_size = 0.1
num_chains = 40
seed = 3

[target]
kind = "Quadratic"
precision = [[2.0, 0.5], [0.5, 1.0]]

[dynamics]
kind = "nonreversible"
J = [[0.0, -1.0], [1.0, 0.0]]

[oracle]
kind = "gaussian"
tau = 1.0

[observables.x]
kind = "linear"
u = [1.0, 0.0]
"""


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN)
    return str(path)


def test_a_plan_file_runs_in_a_process_of_its_own(plan_file):
    command = [sys.executable, "-m", "gyromc", "run", plan_file, "--engine", "scan", "--num-chains", "30", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["num_chains"] == 30
    assert result["num_steps"] == 100
    low, high = result["observables"]["x"]["interval_95"]
    assert low < result["observables"]["x"]["mean"] < high
    assert done.stderr == ""


def test_the_table_and_the_baseline(plan_file):
    done = gyromc("run", plan_file, "--engine", "scan", "--reversible", "--step-size", "0.2")
    assert "SGNLMC, reversible on Quadratic" in done.stdout
    assert "40 chains × 25 steps" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--engine", "warp"], "`engine` must be one of auto"),
        (["--step-size", "-1"], "`step_size` must be positive"),
        (["--num-chains", "0"], "`num_chains` must be"),
        (["--step-size", "0.98", "--num-steps", "5000", "--engine", "scan"], "exceeds the stability limit"),
    ],
)
def test_errors_are_sentences(plan_file, arguments, message):
    assert message in refused("run", plan_file, *arguments)


def test_a_run_is_saved_and_continued(plan_file, tmp_path):
    saved, longer = tmp_path / "run.gyromc", tmp_path / "longer.gyromc"
    done = gyromc("run", plan_file, "--engine", "lanes", "--thin", "10", "--save", saved, "--json")
    assert done.returncode == 0, done.stderr
    assert f"wrote {saved}" in done.stderr
    more = gyromc("continue", saved, "--steps", "50", "--save", longer, "--json")
    whole = gyromc("run", plan_file, "--engine", "lanes", "--num-steps", "150", "--json")
    assert json.loads(more.stdout)["observables"] == json.loads(whole.stdout)["observables"]
    assert gm.load(longer).draws.shape == (40, 15, 2)
    assert "This run is complete: say with `--steps` how many" in refused("continue", saved)
    assert "there is no directory" in refused("run", plan_file, "--save", tmp_path / "none" / "run.gyromc")


def test_a_run_that_cannot_be_written_is_printed(plan_file, tmp_path, monkeypatch):
    def full(run, path):
        raise gm.InvalidInput(f"Cannot write {path}: No space left on device.")

    monkeypatch.setattr(gm.Run, "save", full)
    done = gyromc("run", plan_file, "--engine", "lanes", "--save", tmp_path / "run.gyromc", "--json")
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "observables" in json.loads(done.stdout)


def test_checkpoints_from_the_command_line(plan_file, tmp_path):
    options = ["--engine", "lanes", "--checkpoint", tmp_path / "saved", "--every", "40", "--keep", "2", "--json"]
    first = gyromc("run", plan_file, *options)
    assert sorted(path.name for path in (tmp_path / "saved").iterdir()) == [
        "step-000000000000080.gyromc",
        "step-000000000000100.gyromc",
    ]
    again = json.loads(gyromc("run", plan_file, *options).stdout)
    assert again["observables"] == json.loads(first.stdout)["observables"]
    assert "seed: 3 → 4" in refused("run", plan_file, *options, "--seed", "4")
    assert "`every` must be a time" in refused("run", plan_file, *options[:4], "--every", "soon")


LONG = PLAN.replace("step_size = 0.1", "step_size = 0.1\nnum_steps = 2_000_000_000")


# By default the signal is sent to this process, by `survival/test_checkpoints.py`.
@pytest.mark.slow
def test_sigterm_saves_and_has_its_own_status(tmp_path):
    (tmp_path / "long.toml").write_text(LONG)
    saved = tmp_path / "saved"
    command = ["run", tmp_path / "long.toml", "--engine", "lanes", "--checkpoint", saved, "--every", "0.1s"]
    process = subprocess.Popen(interruptible_command(*command), stderr=subprocess.PIPE, text=True)
    while not list(saved.glob("step-*.gyromc")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 143, said
    assert "SIGTERM: saving, then ending" in said
    assert "Traceback" not in said
    assert not list(saved.glob(".step*"))


def test_ctrl_c_saves_and_has_its_own_status(tmp_path, sigint, monkeypatch):
    """Ctrl-C after the first chunk; the patience of the command line ends while the run is being saved."""
    sigint(signal.default_int_handler)
    monkeypatch.setattr(cli, "PATIENCE", 600)
    chunk, save = loop._Loop.chunk, Run.save

    def pressed(self, *arguments):
        count = chunk(self, *arguments)
        signal.raise_signal(signal.SIGINT)
        return count

    def slow(self, path):
        monkeypatch.setattr(interruption, "_by_patience", True)
        signal.raise_signal(signal.SIGINT)
        save(self, path)

    monkeypatch.setattr(loop._Loop, "chunk", pressed)
    monkeypatch.setattr(Run, "save", slow)
    (tmp_path / "long.toml").write_text(LONG)
    saving = ["--checkpoint", tmp_path / "saved", "--save", tmp_path / "run.gyromc"]
    done = gyromc("run", tmp_path / "long.toml", "--engine", "lanes", *saving)
    assert done.returncode == 130, done.stderr
    assert "PARTIAL: interrupted after" in done.stdout
    assert f"{gm.load(tmp_path / 'run.gyromc').state.step:015d}" in next((tmp_path / "saved").iterdir()).name


def test_functions_of_a_plan_file_need_permission(plan_file, tmp_path):
    text = PLAN.replace('kind = "linear"\nu = [1.0, 0.0]', 'kind = "function"\nf = "support.survivors:weighted"')
    (tmp_path / "own.toml").write_text(text)
    assert (
        "own.toml, line 20, key `observables.x.f`: The function `support.survivors:weighted` would have to be"
        in refused("run", tmp_path / "own.toml")
    )
    done = gyromc("run", tmp_path / "own.toml", "--allow-import", "--engine", "scan", "--save", tmp_path / "run.gyromc")
    assert done.returncode == 0, done.stderr
    assert "--allow-import" in refused("continue", tmp_path / "run.gyromc", "--steps", "10")
    assert gyromc("continue", tmp_path / "run.gyromc", "--steps", "10", "--allow-import").returncode == 0


def test_warnings_are_messages_without_the_line_of_code(tmp_path):
    """Of the process itself; a warning that is not gyromc's stays as Python prints it."""
    program = (
        "import warnings; from gyromc.app import cli; from gyromc.errors import GyromcWarning; "
        "cli.command_line = lambda: (warnings.warn('too few', GyromcWarning), warnings.warn('other', UserWarning)); cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "warning: too few\n" in done.stderr.splitlines(keepends=True)
    assert "UserWarning: other" in done.stderr


def test_outputs_do_not_overwrite_inputs(plan_file, tmp_path):
    data = tmp_path / "data.csv"
    data.write_text("a,y\n" + "".join(f"{i},{2 * i + i % 3}\n" for i in range(30)))
    model = tmp_path / "m.gyromc"
    fitted = gyromc("fit", data, "-t", "y", "--save", model, "--effort", "quick", "--out", tmp_path / "out")
    assert fitted.returncode == 0, fitted.stderr
    before = {path: path.read_bytes() for path in (data, model, tmp_path / "plan.toml")}
    for arguments in (
        ["run", plan_file, "--save", plan_file],
        ["tune", plan_file, "--save", plan_file, "--gradients", "100"],
        ["tune", plan_file, "--html", plan_file, "--gradients", "100"],
        ["fit", data, "--target", "y", "--save", data],
        ["fit", data, "--target", "y", "--predict", model, "--save", model],
        ["apply", model, data, "--out", data],
        ["apply", model, data, "--out", model],
    ):
        assert "would overwrite" in " ".join(refused(*arguments).split()), arguments
    assert {path: path.read_bytes() for path in before} == before
