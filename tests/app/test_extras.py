"""What works with the core alone, and what is said where an extra is missing. Packages are blocked, as if not installed."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from gyromc.errors import InvalidInput, MissingExtra
from gyromc.extras import EXTRAS, needs, require_extra
from support.blocking import run_without

ROOT = Path(__file__).parents[2]
OPTIONAL = sorted({package for packages in EXTRAS.values() for package in packages})
MODULES = {
    "scikit-learn": "sklearn",
    "arviz-base": "arviz_base",
    "arviz-stats": "arviz_stats",
}
APART = {"pymc"}  # needs other versions of packages than the other extras
NEVER_IMPORTED = {"arviz-plots", "matplotlib"}  # of the extra `arviz`: its users' plots

CORE = """
import json, sys
import gyromc as gm
plan = gm.Plan(target=gm.targets.Quadratic([1.0, 2.0]), dynamics=gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]]),
               observables={"x": gm.observables.linear([1.0, 0.0])}, step_size=0.1, num_chains=50)
run = gm.run(plan)
own = plan.replace(observables={"x": gm.observables.function(lambda z: z[0])})
target = gm.targets.LogisticRegression([[1.0], [2.0], [-1.0], [0.5]], [1, 1, 0, 0])
found = {"variance": gm.predict(plan).variance["x"], "error": gm.estimate(run).std_error["x"], "engine": run.engine,
         "reason": run.engine_reason, "own": gm.run(own).engine_reason, "tuned": gm.tune(target, gradients=200).plan.num_steps,
         "expected": gm.expect(target, {"slope": gm.observables.linear([1.0])}, error=0.2).mean["slope"]}
try:
    gm.run(plan, "lanes")
except gm.InvalidInput as error:
    found["asked"] = str(error)
print(json.dumps(found))
"""


def test_the_core_alone_plans_predicts_runs_estimates_tunes_and_expects():
    done = run_without(OPTIONAL, CORE)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["variance"] == pytest.approx(
        1.0
    )  # 2 uᵀP⁻¹(I + J)⁻¹P⁻¹u, with P = diag(1, 2) and (I + J)⁻¹ = (I - J)/2
    assert found["error"] > 0
    assert found["tuned"] > 0
    assert 0 < found["expected"] < 1.5  # three of four rows pull the slope up, a standard normal prior holds it down
    assert found["engine"] == "scan"
    advice = "not lanes: it would be faster, but engine `lanes` needs the package numba, which is not installed: "
    assert f"{advice}pip install 'gyromc[fast]'" in found["reason"]
    assert "pip install" not in found["own"]  # another engine would not help here
    assert "pip install 'gyromc[fast]'" in found["asked"]


COMMANDS = """
import contextlib, io, json, sys
from gyromc.app.cli import command_line
found = []
for arguments in json.loads(sys.argv[1]):
    sys.argv, out, errors = ["gyromc", *arguments], io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            command_line()
            code = 0
        except SystemExit as end:
            code = end.code or 0
    found.append([code, errors.getvalue()])
print(json.dumps(found))
"""
WITHOUT_EXTRA = [["--help"], ["fit", "--help"], ["explore", "--help"], ["list", "--json"]]
WITH_EXTRA = {
    "fit": ["fit", "a.csv", "--target", "y"],
    "report": ["reproduce", "nld-quadratic"],
    "report ": ["tune", "nld-quadratic", "--html", "page.html"],
}


def test_commands_say_at_once_which_extra_they_need(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = run_without(OPTIONAL, COMMANDS, json.dumps([*WITHOUT_EXTRA, *WITH_EXTRA.values()]))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found[: len(WITHOUT_EXTRA)] == [[0, ""]] * len(WITHOUT_EXTRA)
    for extra, (code, message) in zip(WITH_EXTRA, found[len(WITHOUT_EXTRA) :], strict=True):
        assert code == 2
        assert re.fullmatch(rf"error: .* needs the package \w+, .*: pip install 'gyromc\[{extra.strip()}\]'\n", message)
    assert not list(tmp_path.iterdir())


def test_the_modules_of_the_extras_are_those_of_pyproject():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, modules in EXTRAS.items():
        names = [re.split(r"[<>=\[]", line)[0] for line in declared[extra] if not line.startswith("gyromc[")]
        inner = [one for line in declared[extra] if line.startswith("gyromc[") for one in line[7:-1].split(",")]
        installed = {MODULES.get(name, name) for name in names} | {module for one in inner for module in EXTRAS[one]}
        assert set(modules) - {"llvmlite"} == installed - (NEVER_IMPORTED if extra == "arviz" else set()), extra
    assert set(EXTRAS) - APART <= {one for line in declared["all"] for one in line[7:-1].split(",")}


def test_a_module_that_no_extra_has_is_not_blamed_on_one():
    with pytest.raises(ModuleNotFoundError, match="No module named 'nowhere'") as caught, needs("fast", "This"):
        import nowhere  # type: ignore[import-not-found]  # noqa: F401
    assert not isinstance(caught.value, MissingExtra)
    require_extra("fast", "This")


def test_the_message_is_both_an_import_error_and_an_invalid_input():
    message = r"^This needs the package numba, which is not installed: pip install 'gyromc\[fast\]'$"
    with pytest.raises(MissingExtra, match=message) as caught, needs("fast", "This"):
        raise ModuleNotFoundError("No module named 'numba.core'", name="numba.core")
    assert isinstance(caught.value, InvalidInput)
    assert isinstance(caught.value, ImportError)
    assert caught.value.name == "numba"
