"""`gyromc predict`: tables and JSON on standard output, sentences and status 2 for wrong input."""

import json
import subprocess
import sys

import pytest

from support.commands import gyromc, refused

PLAN = """
step_size = 0.1
[target]
kind = "quadratic"
precision = [1.0, 1.0]
[dynamics]
kind = "nonreversible"
J = [[0.0, -1.0], [1.0, 0.0]]
[observables.first]
kind = "linear"
u = [1.0, 0.0]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans")
    (path / "plan.toml").write_text(PLAN)
    (path / "wrong.toml").write_text(PLAN.replace("quadratic", "quadradic"))
    return path


def test_table(folder):
    done = gyromc("predict", "plan.toml", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "closed form" in done.stdout
    assert "exact finite-step" in done.stdout
    assert "holds" in done.stdout


def test_json(folder):
    done = gyromc("predict", "plan.toml", "--json", "--step-size", "0.05", cwd=folder)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["num_steps"] == 400
    assert abs(answer["observables"]["first"]["variance"] - 1) < 1e-12


def test_wrong_input(folder):
    said = refused("predict", "wrong.toml", cwd=folder)
    assert said.startswith("error: wrong.toml, line ")
    assert "Did you mean 'quadratic'" in said
    assert "plan file" in refused("predict", "no-such-experiment", cwd=folder)


def test_help_imports_nothing_heavy():
    code = "import sys, gyromc.app.cli; assert not {'jax', 'scipy', 'numpy', 'equinox'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    done = gyromc("--help")
    assert done.returncode == 0
    assert "predict" in done.stdout
    assert gyromc("--version").stdout.startswith("gyromc ")
