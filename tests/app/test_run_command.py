"""`gyromc run` from a plan file, as a user calls it."""

import json
import subprocess
import sys

import pytest

from support.commands import gyromc, refused

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
