"""`gyromc tune`: the account on standard output, a line per stage on standard error, the plan as a file that runs."""

import json
from typing import NamedTuple

import numpy as np
import pytest

import gyromc as gm
from gyromc.io import planfiles
from gyromc.tuning import tune as tuning
from gyromc.tuning.tune import tune
from support.commands import Done, gyromc, refused

PLAN = """
step_size = 0.1
num_steps = 100
num_chains = 20

[target]
kind = "logistic_regression"
csv = "data.csv"
response = "y"
intercept = true
prior_scale = 1.0

[dynamics]
kind = "overdamped"

[observables."the \\"slope\\""]
kind = "linear"
u = [0.0, 1.0]

[observables.square]
kind = "square"
u = [0.0, 1.0]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans")
    rng = np.random.default_rng(0)
    x = rng.normal(size=60)
    y = (rng.random(60) < 1 / (1 + np.exp(-x))).astype(int)
    (path / "data.csv").write_text("x,y\n" + "".join(f"{a:.6f},{b}\n" for a, b in zip(x, y, strict=True)))
    (path / "plan.toml").write_text(PLAN)
    (path / "out").mkdir()
    return path


class Tuned(NamedTuple):
    """What the command printed, the value that `gyromc.tune` returned to it, and the lines that were said."""

    done: Done
    value: gm.Tuned
    lines: list[str]


@pytest.fixture(scope="module")
def tuned(folder):
    found, lines = [], []

    def kept(plan, say, **options):
        found.append(tune(plan, say=lambda line: (lines.append(line), say(line)), **options))
        return found[0]

    options = "--gradients", "3000", "--save", "out/tuned.toml", "--html", "out/tuned.html"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tuning, "tune", kept)
        done = gyromc("tune", "plan.toml", *options, cwd=folder)
    assert done.returncode == 0, done.stderr
    return Tuned(done, found[0], lines)


def test_a_plan_file_is_tuned_saved_and_runs(folder, tuned):
    done = tuned.done
    assert "What was tried" in done.stdout
    assert "untuned plan" in done.stdout
    for stage in ("reference: ", "gradients: from all rows", "trials of leimkuhler_matthews", "wrote out/tuned.toml"):
        assert f"gyromc: {stage}" in done.stderr
    page = (folder / "out" / "tuned.html").read_text()
    assert "<title>gyromc tune: plan.toml</title>" in page
    assert "the &quot;slope&quot;" in page
    plan = planfiles.load(folder / "out" / "tuned.toml")
    assert plan.gradients <= 1.01 * 3000
    assert list(plan.observables) == ['the "slope"', "square"]
    assert plan.martingale
    again = gyromc("run", "out/tuned.toml", "--json", cwd=folder)
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["num_steps"] == plan.num_steps


@pytest.mark.parametrize(("scheme", "turn"), [("balanced", 0.1), ("leimkuhler_matthews", 0.0)])
def test_a_saved_plan_is_the_same_plan(folder, scheme, turn):
    """Dynamics, balanced noise, control variate and starts come back to the last digit."""
    given = planfiles.load(folder / "plan.toml")
    rows = np.random.default_rng(1).normal(size=(4, 2))
    changes = {
        "dynamics": gm.dynamics.general([[0.3, 0.1], [0.1, 0.2]], [[0.0, turn], [-turn, 0.0]]),
        "scheme": gm.schemes.balanced([[3.0, 0.5], [0.5, 2.0]]) if scheme == "balanced" else scheme,
        "oracle": gm.oracles.ControlVariate(7, center=np.array([0.1, 0.2]), order=2),
        "num_chains": 4,
        "start": rows,
        "step_size": 1 / 3,
    }
    plan = given.replace(**changes, dtype="float64")
    read = planfiles.loads(planfiles.text_of(plan, folder / "plan.toml", folder / "out" / "x.toml"), folder / "out")
    np.testing.assert_array_equal(read.step_matrices.A, plan.step_matrices.A)
    np.testing.assert_array_equal(read.step_matrices.C, plan.step_matrices.C)
    np.testing.assert_array_equal(read.starts.theta, rows)
    np.testing.assert_array_equal(read.target.X, plan.target.X)
    assert (read.eta, read.dtype, read.oracle.name) == (plan.eta, "float64", plan.oracle.name)


def test_an_experiment_is_tuned_and_prints_json(tuned, monkeypatch):
    """What the command asks of `gyromc.tune`, and that it prints the answer; another tuning stands for the answer."""
    answer, asked = tuned.value, []
    monkeypatch.setattr(tuning, "tune", lambda plan, **options: asked.append((plan, options)) or answer)
    done = gyromc("tune", "nld-quadratic", "--gradients", "2000", "--seed", "3", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads(json.dumps(answer.to_dict()))
    ((plan, options),) = asked
    assert plan.dynamics.name == "SGNLMC"
    options.pop("say")
    assert options == {"gradients": 2000, "error": None, "seconds": None, "seed": 3}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plan.toml", "--gradients", "10", "--error", "0.1"], "Pass one of `gradients`, `error` and `seconds`"),
        (["plan.toml", "--error", "-1"], "`error` must be positive"),
        (["plan.toml", "--html", "out"], "`--html` takes a file: out is a directory"),
        (["plan.toml", "--save", "nowhere/x.toml"], "there is no directory nowhere"),
        (["nld-quadratic", "--save", "x.toml"], "`--save` needs a plan file"),
        (["nothing"], "neither a plan file"),
    ],
)
def test_errors_are_sentences(folder, arguments, message):
    assert message in refused("tune", *arguments, cwd=folder)


def test_a_line_is_said_after_each_stage(tuned):
    first, second, *trials = [line.split(":")[0] for line in tuned.lines]
    assert (first, second, trials[0]) == ("reference", "gradients", "trials of leimkuhler_matthews, reversible")
    assert len(set(trials)) == len(trials) > 1
    assert all(name.startswith("trials of ") for name in trials)
