"""`gyromc fit` on models that do not fit: the headline, what to try, and the page."""

import json
import re
import shlex

import numpy as np
import pytest
from typer.testing import CliRunner

from gyromc.app.cli import app
from gyromc.show.tables import text_of
from gyromc.tables.checks import Setting, headline
from gyromc.tables.figures import pictures
from gyromc.tables.preparation import prepare
from gyromc.tables.report import RESULTS, effect_table, tables
from gyromc.tables.request import Request
from support.browsing import assert_well_formed


def write(path, columns):
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def run(folder, columns, *options):
    """The content of fit.json, and what the terminal shows."""
    data = write(folder / "d.csv", columns)
    arguments = ["fit", data, "--out", folder / "out", "--effort", "quick", *options]
    done = CliRunner().invoke(app, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return RESULTS.load(folder / "out"), done.stdout


def by_name(results):
    return {check["name"]: check for check in results["adequacy"]["checks"]}


@pytest.fixture(scope="module")
def overdispersed(tmp_path_factory):
    """School absences as in the quine data: far more varied than a Poisson law allows."""
    rng, n = np.random.default_rng(4), 146
    age, sex = rng.choice(["F0", "F1", "F2", "F3"], n), rng.choice(["F", "M"], n)
    mean = np.exp(2.4 + 0.4 * (sex == "M"))
    days = rng.negative_binomial(1.3, 1.3 / (1.3 + mean))
    folder = tmp_path_factory.mktemp("absences")
    return folder, *run(folder, {"age": age, "sex": sex, "days": days}, "-t", "days", "--model", "poisson")


def test_overdispersion_changes_the_headline_and_says_what_to_try(overdispersed):
    _, results, shown = overdispersed
    found = results["adequacy"]
    assert all(check["good"] for check in results["checks"])  # the computation is right: the model is not
    assert found["verdict"] == "misfit"
    assert found["headline"].startswith("The model does not fit: Pearson's χ² per degree of freedom is")
    checks = by_name(results)
    assert checks["dispersion"]["verdict"] == checks["coverage"]["verdict"] == "misfit"
    assert checks["dispersion"]["statistic"] > 5
    command = checks["dispersion"]["command"]
    assert command == results["command"].replace("--family poisson", "--family negative-binomial")
    assert "--model" not in command
    assert "Can the computation be trusted?" in shown
    assert "Does the model fit?" in shown
    assert "Model: The model does not fit" in shown
    assert "Try: gyromc fit" in shown


def test_the_page_says_so_at_its_top_and_is_well_formed(overdispersed):
    folder, results, _ = overdispersed
    text = (folder / "out" / "report.html").read_text()
    assert_well_formed(text)
    top = text[text.index("<header>") : text.index("</header>")]
    assert "Does the model fit?" in top
    assert "The model does not fit" in top
    assert "--family negative-binomial" in top
    kinds = {picture.kind for picture in pictures(dict(results))}
    assert {"predictive", "residuals", "pit"} <= kinds
    assert all(picture.alt and picture.caption for picture in pictures(dict(results)))


def test_everything_people_quote_is_in_the_file(overdispersed):
    _, results, shown = overdispersed
    found = json.loads(json.dumps(results["adequacy"], allow_nan=False))
    assert found["loo"]["looic"] == pytest.approx(-2 * found["loo"]["elpd"])
    assert found["loo"]["std_error"] > 0
    assert found["waic"]["waic"] == pytest.approx(found["loo"]["looic"], rel=0.05)
    low, high = found["r_squared"]["interval_95"]
    assert 0 < low < found["r_squared"]["mean"] < high < 1
    assert found["deviance"]["mean"] > 0
    assert "Bayesian R²" in shown
    assert "LOO elpd" in shown


def test_a_curve_an_interaction_and_a_lone_row_are_named_with_a_formula(tmp_path):
    rng, n = np.random.default_rng(1), 250
    x, z, w = rng.uniform(-2, 2, (3, n))
    y = x + z**2 + 0.8 * x * w + 0.5 * rng.normal(size=n)
    y[20] = 40.0
    results, _ = run(tmp_path, {"x": x, "my z": z, "w": w, "y": y}, "-t", "y", "--test-fraction", "0")
    checks = by_name(results)
    assert checks["outliers"]["lines"] == [22]
    assert "line 22" in checks["outliers"]["sentence"]
    y[20] = 0.0
    results, shown = run(tmp_path, {"x": x, "my z": z, "w": w, "y": y}, "-t", "y", "--test-fraction", "0")
    checks = by_name(results)
    assert checks["linearity"]["verdict"] == "misfit"
    formula = shlex.quote("y ~ x + bs(`my z`, 4) + w")
    assert checks["linearity"]["command"] == results["command"].replace("--target y", f"--formula {formula}")
    assert checks["interactions"]["verdict"] == "look"
    assert "--formula 'y ~ x + `my z` + w + x:w'" in checks["interactions"]["command"]
    assert results["adequacy"]["figures"]["curve"]["column"] == "my z"
    assert re.search(r"a curve in my z would explain \d+ % of the residual variance", shown.replace("\n", " "))


def test_classes_that_a_column_splits_and_columns_that_go_together(tmp_path):
    rng, n = np.random.default_rng(2), 60
    x = rng.normal(size=n)
    columns = {"x": x, "twin": x + 0.01 * rng.normal(size=n), "y": np.where(x > 0, "b", "a")}
    results, _ = run(tmp_path, columns, "-t", "y", "--test-fraction", "0")
    checks = by_name(results)
    assert checks["separation"]["verdict"] == "look"
    assert "x" in checks["separation"]["sentence"]
    assert checks["collinearity"]["verdict"] == "look"
    assert re.search(" --drop (x|twin) ", checks["collinearity"]["command"])
    assert {picture.kind for picture in pictures(dict(results))} >= {"predictive", "residuals"}


def test_a_right_model_has_a_calm_headline_and_odd_names_do_no_harm(tmp_path):
    rng, n = np.random.default_rng(3), 120
    x, odd = rng.normal(size=(2, n))
    results, shown = run(tmp_path, {"x": x, "$^{<b>": odd, "y": 1 + x + rng.normal(size=n)}, "-t", "y")
    assert results["adequacy"]["verdict"] in ("fine", "look")
    assert results["adequacy"]["headline"].startswith("No problem found")
    assert "Try:" not in shown
    assert "misfit" not in shown
    assert_well_formed((tmp_path / "out" / "report.html").read_text())
    results["adequacy"]["rows"] = 100  # as with large data
    assert "checked on 100 of 120 rows" in " ".join(text_of(part) for part in tables(results) if part)


def test_options_are_replaced_in_commands(tmp_path):
    data = write(tmp_path / "my data.csv", {"x": range(20), "a": [5, 7] * 10, "y": [k**2 % 19 for k in range(20)]})
    request = Request(data=str(data), target="y", family="poisson", drop=["a"])
    found = prepare(request)
    setting = Setting(found.encoding, found.table, request, False)
    assert setting.command(family="gamma") == f"gyromc fit '{data}' --target y --family gamma --drop a"
    assert setting.formula("x:x") == f"gyromc fit '{data}' --formula 'y ~ x + x:x' --family poisson"
    checks = [{"verdict": "fine", "name": "a"}, {"verdict": "look", "name": "b"}]
    assert headline(checks) == f"No problem found, in {len(checks)} checks; look at b."


def test_ratios_close_to_one_show_how_far_they_are_from_it():
    row = {"name": "x + 1", "change": None, "change_interval_95": None}
    rows = [
        {**row, "ratio": 1.00000098, "ratio_interval_95": [0.9999997, 1.0000023]},
        {**row, "ratio": 1.2, "ratio_interval_95": [0.9, 1.5]},
        {**row, "ratio": 1.0275, "ratio_interval_95": [1.00354, 1.0521]},
        {**row, "ratio": 1, "ratio_interval_95": [0.99966, 1.5]},
    ]
    cells = effect_table({"rows": rows, "ratio": "rate ratio", "target": "y", "left_out": []}).rows
    assert [line[1:] for line in cells] == [
        ["1.00000098", "[0.99999970, 1.0000023]"],
        ["1.2", "[0.9, 1.5]"],
        ["1.03", "[1.0035, 1.05]"],
        ["1", "[0.99966, 1.5]"],
    ]


@pytest.mark.parametrize("given", [{"drop": ["a"]}, {"columns": ["t,x"]}])
def test_commands_that_are_advised_can_be_run(tmp_path, given):
    """A formula is not combined with `--drop`, and `--drop` names a column of the file, which a part of a date is not."""
    data = write(
        tmp_path / "d.csv",
        {
            "a": ["u", "v", "u", "w", "v", "w"] * 3,
            "t": [f"2024-0{k % 6 + 1}-1{k % 10}" for k in range(18)],
            "x": range(18),
            "y": [k**2 % 19 + 0.5 for k in range(18)],
        },
    )
    request = Request(data=str(data), target="y", dates=["t"], test_fraction=0.0, **given)
    found = prepare(request)
    setting = Setting(found.encoding, found.table, request, True)
    advised = setting.formula(change=lambda name: "bs(x, 4)" if name == "x" else name)
    assert advised is not None
    done = CliRunner().invoke(app, [*shlex.split(advised)[1:], "--explain"], catch_exceptions=False)
    assert done.exit_code == 0
    assert setting.without("t_days") is None
    start = f"gyromc fit {data} --target y --drop a"
    assert setting.without("x") == (None if "columns" in given else f"{start} --drop x --dates t --test-fraction 0.0")


def test_the_level_of_a_column_is_dropped_with_its_column(tmp_path):
    data = write(
        tmp_path / "d.csv", {"a": ["u", "v", "u", "w"] * 5, "x": range(20), "y": [k**2 % 19 for k in range(20)]}
    )
    request = Request(data=str(data), target="y", family="linear")
    found = prepare(request)
    assert Setting(found.encoding, found.table, request, True).without("a[v]") == f"{request.command} --drop a"
    asked = Request(data=str(data), formula="y ~ a + x", family="linear")
    assert Setting(found.encoding, found.table, asked, True).without("x") is None


def test_weights_that_are_not_whole_are_said_to_leave_the_model_unchecked(tmp_path):
    rng = np.random.default_rng(6)
    x = rng.normal(size=60).round(3)
    y = (1 + x + rng.standard_t(1.5, 60)).round(3)
    whole, _ = run(tmp_path, {"x": x, "y": y, "w": rng.integers(1, 4, 60)}, "-t", "y", "--weights", "w")
    assert whole["adequacy"]["verdict"] == "misfit"
    assert whole["adequacy"]["of_rows"] > 100  # observations
    parts, shown = run(tmp_path, {"x": x, "y": y, "w": rng.uniform(1, 4, 60).round(2)}, "-t", "y", "--weights", "w")
    assert parts["adequacy"]["headline"].startswith("The model was not checked: a weight is")
    assert {"dispersion", "calibration", "coverage", "outliers"}.isdisjoint(by_name(parts))
    assert "The model was not checked" in shown
