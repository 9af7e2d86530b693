"""`gyromc fit` as users call it: numbers against exact and independent references, files whole, errors as sentences."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from scipy import special, stats
from typer.testing import CliRunner

from gyromc.app.cli import app
from gyromc.datasets import heart
from gyromc.errors import InvalidInput
from support.commands import interruptible_command
from support.posterior import Reference, standardised
from support.zscores import score

EFFORT = 0.01  # Monte Carlo error, in posterior sds: a strong coefficient that is 2 % off is 9 standard errors off


def write(path, columns, rows):
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def read(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def fit(*arguments):
    """The content of fit.json, by way of the command line."""
    result = CliRunner().invoke(app, ["fit", *map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def z_scores(found, means, errors):
    """Standard errors between coefficients and a reference."""
    got = np.array([[c["mean"], c["std_error"]] for c in found["coefficients"]])
    return score(got[:, 0], means, got[:, 1], errors)


@pytest.fixture(scope="module")
def heart_fit(tmp_path_factory):
    """The heart data from a CSV file, ten of its rows to predict for, and what came of it."""
    folder = tmp_path_factory.mktemp("heart")
    table = heart()
    rows = [
        [*(f"{x:g}" for x in row), ("absent", "present")[y]]
        for row, y in zip(table.predictors, table.disease, strict=True)
    ]
    data = write(folder / "heart.csv", [*table.columns, "disease"], rows)
    new = write(folder / "new.csv", table.columns[::-1], [row[-2::-1] for row in rows[:10]])
    found = fit(data, "--target", "disease", "--predict", new, "--out", folder / "out", "--effort", EFFORT)
    return folder, table, found


@pytest.fixture(scope="module")
def heart_reference():
    table = heart()
    Z, back = standardised(table.predictors)
    signs = 2 * table.disease - 1
    return Z, back, Reference(Z, lambda t: special.log_expit(signs * t), [10.0] + [2.5] * 13)


def test_heart_coefficients_agree_with_importance_sampling(heart_fit, heart_reference):
    _, table, found = heart_fit
    _, back, reference = heart_reference
    assert reference.efficiency > 0.2
    draws = reference.draws @ back.T
    mean, error = reference.mean(draws)
    assert [c["name"] for c in found["coefficients"]] == ["intercept", *table.columns]
    z = z_scores(found, mean, error)
    assert np.abs(z).max() < 4.5, z  # 14 coefficients
    assert np.mean(z**2) < 2.6  # chance exceeds this once in 1000, were the errors independent
    sd = np.sqrt(reference.mean((draws - mean) ** 2)[0])
    assert [c["sd"] for c in found["coefficients"]] == pytest.approx(list(sd), rel=0.12)  # from 2048 kept draws
    low, high = np.array([c["interval_95"] for c in found["coefficients"]]).T
    below = [reference.weights[draws[:, j] < low[j]].sum() for j in range(14)]
    above = [reference.weights[draws[:, j] > high[j]].sum() for j in range(14)]
    assert np.mean(below) == pytest.approx(0.025, abs=0.006)
    assert np.mean(above) == pytest.approx(0.025, abs=0.006)


def test_heart_predictions_agree_and_keep_error_and_spread_apart(heart_fit, heart_reference):
    folder, _, _ = heart_fit
    Z, _, reference = heart_reference
    rows = read(folder / "out" / "predictions.csv")
    assert list(rows[0]) == ["line", "predicted", "probability", "sd", "monte_carlo_error", "low_95", "high_95"]
    assert [row["line"] for row in rows] == [str(2 + i) for i in range(10)]
    p, spread, error = (np.array([float(row[k]) for row in rows]) for k in list(rows[0])[2:5])
    values = special.expit(reference.draws @ Z[:10].T)
    mean, own = reference.mean(values)
    z = score(p, mean, error, own)
    assert np.abs(z).max() < 4.5, z
    expected = np.sqrt(reference.mean((values - mean) ** 2)[0])
    # four standard errors of a standard deviation from 2048 draws of chains, which have the information of 1000 at least
    kurtosis = reference.mean((values - mean) ** 4)[0] / expected**4
    assert np.all(np.abs(spread / expected - 1) < 4 * np.sqrt((kurtosis - 1) / 4000))
    assert np.all(error < 0.08 * spread)
    assert [row["predicted"] for row in rows] == [("absent", "present")[int(x > 0.5)] for x in p]
    low, high = (np.array([float(row[k]) for row in rows]) for k in ("low_95", "high_95"))
    assert np.all((low < p) & (p < high))


def test_held_out_scores_are_those_of_the_held_out_rows(heart_fit):
    folder, table, found = heart_fit
    rows = read(folder / "out" / "held_out.csv")
    assert len(rows) == found["held_out"]["rows"] == 68
    p = np.array([float(row["probability"]) for row in rows])
    y = np.array([row["observed"] == "present" for row in rows]).astype(float)
    np.testing.assert_array_equal(y, table.disease[[int(row["line"]) - 2 for row in rows]])
    scores = {s["name"]: s for s in found["held_out"]["scores"]}
    assert scores["Brier score"]["value"] == pytest.approx(np.mean(2 * (p - y) ** 2), rel=1e-6)
    assert scores["log score"]["value"] == pytest.approx(np.mean(np.log(np.where(y == 1, p, 1 - p))), rel=1e-5)
    assert scores["accuracy"]["value"] == pytest.approx(np.mean((p > 0.5) == y))
    assert scores["Brier score"]["value"] < 0.3 < scores["Brier score"]["baseline"]
    assert all(s["verdict"] == "better" for s in scores.values())


def test_the_folder_holds_everything_and_nothing_else(heart_fit):
    folder, table, found = heart_fit
    out = folder / "out"
    assert sorted(os.listdir(out)) == sorted(found["files"])
    assert sorted(os.listdir(folder)) == ["heart.csv", "new.csv", "out"]
    saved = json.loads((out / "fit.json").read_text())
    assert {**saved, "out": str(out)} == found
    assert saved["schema"] == "gyromc.fit"
    assert tuple(feature["name"] for feature in saved["encoding"]["features"]) == table.columns
    assert saved["model"]["positive"] == "present"
    assert saved["settings"]["seed"] == 0
    assert {"gyromc", "jax", "numpy", "python"} <= set(saved["environment"])
    assert all(check["good"] for check in saved["checks"]), saved["checks"]
    assert {"step_size", "num_chains", "gradients", "seconds", "reason"} <= set(saved["sampler"])
    table_rows = read(out / "coefficients.csv")
    for row, c in zip(table_rows, saved["coefficients"], strict=True):
        assert row["name"] == c["name"]
        assert float(row["mean"]) == pytest.approx(c["mean"], rel=1e-7)
        assert float(row["monte_carlo_error"]) == pytest.approx(c["std_error"], rel=1e-7)
        assert float(row["sd"]) == pytest.approx(c["sd"], rel=1e-7)


def linear_data(scale=1.0, n=80):
    rng = np.random.default_rng(5)
    x, kind = rng.normal(3, 2, n), rng.choice(["u", "v", "w"], n)
    y = 1 + 2 * x - 3 * (kind == "v") + rng.normal(size=n)
    return [[float(scale * a), b, float(c)] for a, b, c in zip(x, kind, y, strict=True)]


def test_a_linear_fit_is_the_conjugate_posterior_whatever_the_units(tmp_path):
    results = []
    for scale in (1.0, 1e12):
        data = write(tmp_path / "d.csv", ["x", "kind", "y"], linear_data(scale))
        results.append(fit(data, "--target", "y", "--out", tmp_path / "out", "--effort", EFFORT, "--test-fraction", 0))
    found, scaled = results
    rows = linear_data()
    X = np.array([[float(a), b == "v", b == "w"] for a, b, _ in rows], float)
    y = np.array([float(c) for _, _, c in rows])
    Z, back = standardised(X)
    unit = y.std()
    sigma = found["model"]["noise_scale"] / unit
    precision = Z.T @ Z / sigma**2 + np.diag([1 / 10**2] + [1 / 2.5**2] * 3)
    mean = back @ np.linalg.solve(precision, Z.T @ (y - y.mean()) / unit) / sigma**2 * unit
    mean[0] += y.mean()
    sd = unit * np.sqrt(np.diag(back @ np.linalg.inv(precision) @ back.T))
    away = np.array([c["mean"] for c in found["coefficients"]]) - mean
    assert np.all(np.abs(away) < 0.02 * sd)  # with σ at its mean; the fit integrates over it
    assert [c["sd"] for c in found["coefficients"]] == pytest.approx(list(sd), rel=0.02)
    residual = y - X @ np.array([c["mean"] for c in found["coefficients"]][1:]) - found["coefficients"][0]["mean"]
    assert found["model"]["noise_scale"] == pytest.approx(np.sqrt(residual @ residual / (len(y) - 4)), rel=0.02)
    for a, b in zip(found["coefficients"], scaled["coefficients"], strict=True):
        factor = 1e12 if a["name"] == "x" else 1
        assert b["mean"] * factor == pytest.approx(a["mean"], rel=1e-6)
        assert b["sd"] * factor == pytest.approx(a["sd"], rel=1e-6)
        assert a["std_error"] == b["std_error"] == 0
    assert found["held_out"] is None
    assert found["predictions"] == []


def test_counts_agree_with_importance_sampling(tmp_path):
    rng, n = np.random.default_rng(7), 150
    x = rng.normal(size=n)
    y = rng.poisson(np.exp(0.4 + 0.6 * x))
    data = write(tmp_path / "d.csv", ["x", "count"], zip(x, y, strict=True))
    out = tmp_path / "out"
    found = fit(data, "--target", "count", "--model", "poisson", "--out", out, "--effort", 0.02)
    Z, back = standardised(x[:, None])
    reference = Reference(Z, lambda t: y * t - np.exp(t), [10.0, 2.5], num_draws=40_000)
    z = z_scores(found, *reference.mean(reference.draws @ back.T))
    assert np.abs(z).max() < 4
    rows = read(out / "held_out.csv")
    noise, mean = (np.array([float(row[k]) for row in rows]) for k in ("noise", "mean"))
    np.testing.assert_allclose(noise, np.sqrt(mean), rtol=1e-6)
    # the log score of a Poisson law at the mean differs from that of the mixture by the spread's square
    log_score = next(s for s in found["held_out"]["scores"] if s["name"] == "log score")["value"]
    observed = np.array([float(row["observed"]) for row in rows])
    assert log_score == pytest.approx(stats.poisson.logpmf(observed, mean).mean(), abs=0.02)
    assert found["held_out"]["calibration"]["kind"] == "intervals"


@pytest.mark.slow
def test_three_classes(tmp_path):
    rng, n = np.random.default_rng(9), 90
    k = rng.integers(0, 3, n)
    x = rng.normal(size=(n, 2)) + np.array([[0, 0], [2, 0], [0, 2]])[k]
    data = write(tmp_path / "d.csv", ["a", "b", "kind"], [(*row, "xyz"[i]) for row, i in zip(x, k, strict=True)])
    found = fit(data, "-t", "kind", "--out", tmp_path / "out", "--effort", "quick")
    assert found["model"]["name"] == "softmax"
    assert {c["class"] for c in found["coefficients"]} == {"x", "y", "z"}
    by_name = {c["label"]: c["mean"] for c in found["coefficients"]}
    assert by_name["x: a"] + by_name["y: a"] + by_name["z: a"] == pytest.approx(0, abs=1e-4)
    assert by_name["y: a"] > max(by_name["x: a"], by_name["z: a"])
    rows = read(tmp_path / "out" / "held_out.csv")
    p = np.array([[float(row[f"probability[{c}]"]) for c in "xyz"] for row in rows])
    np.testing.assert_allclose(p.sum(axis=1), 1, atol=1e-6)
    assert found["predictions"][0]["columns"][-3:] == ["probability", "sd", "monte_carlo_error"]
    assert found["predictions"][0]["first"][0][-3] == pytest.approx(p[0].max(), rel=1e-6)


GOOD = "x,kind,y\n" + "".join(f"{i % 7}.5,{'uv'[i % 2]},{'no' if i % 3 else 'yes'}\n" for i in range(30))
TROUBLE = {
    "wrong target": (GOOD, ["-t", "Y"], "no column 'Y'.*'y'"),
    "one class": (GOOD.replace("yes", "no"), ["-t", "y"], "only one value, 'no'"),
    "text among numbers": (GOOD + "abc,u,no\n", ["-t", "y"], "line 32: column 'x' is numeric.*'abc'"),
    "empty file": ("", ["-t", "y"], "is empty"),
    "missing values": (GOOD + ",u,no\n", ["-t", "y"], r"x \(1\).*--impute"),
    "duplicate header": (GOOD.replace("x,kind", "x,x"), ["-t", "y"], "must differ: 'x'"),
    "new category": (GOOD, ["-t", "y", "--predict", "{new}"], "new.csv, line 2: column 'kind' has the category 'w'"),
    "new rows lack a column": (GOOD, ["-t", "y", "--predict", "{lacking}"], "no column 'x' .needed by the fit"),
    "effort": (GOOD, ["-t", "y", "--effort", "much"], "`effort` is one of quick, standard, thorough"),
    "prior": (GOOD, ["-t", "y", "--prior-scale", "-1"], "`prior_scale` must be positive"),
    "fraction": (GOOD, ["-t", "y", "--test-fraction", "2"], "test fraction must lie between"),
    "reference": (GOOD, ["-t", "y", "--reference", "kind"], "takes COLUMN=LEVEL"),
}


@pytest.mark.parametrize("case", TROUBLE)
def test_trouble_is_a_sentence_and_leaves_nothing_behind(tmp_path, case):
    content, options, message = TROUBLE[case]
    (tmp_path / "d.csv").write_text(content)
    (tmp_path / "new.csv").write_text("kind,x\nw,1\n")
    (tmp_path / "lacking.csv").write_text("kind,z\nu,1\n")
    options = [text.format(new=tmp_path / "new.csv", lacking=tmp_path / "lacking.csv") for text in options]
    with pytest.raises(InvalidInput, match=message):
        CliRunner().invoke(
            app, ["fit", str(tmp_path / "d.csv"), *options, "--out", str(tmp_path / "out")], catch_exceptions=False
        )
    assert sorted(os.listdir(tmp_path)) == ["d.csv", "lacking.csv", "new.csv"]


def test_a_process_imports_nothing_heavy_before_it_is_used_and_says_errors_in_a_sentence(tmp_path):
    """One process for a file that does not exist, then for a package that lacks."""
    (tmp_path / "d.csv").write_text(GOOD)
    script = """
import sys, gyromc.app.cli
print([m for m in ("jax", "pandas", "scipy", "matplotlib") if m in sys.modules])
sys.argv = ["gyromc", "fit", "none.csv", "--target", "y"]
try:
    gyromc.app.cli.main()
except SystemExit as end:
    print(end.code)
sys.modules["pandas"] = None
sys.argv = ["gyromc", "fit", "d.csv", "-t", "y"]
gyromc.app.cli.main()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "[]\n2\n"
    assert done.stderr.startswith("error: There is no file")
    assert done.returncode == 2
    assert "pip install 'gyromc[fit]'" in done.stderr


def test_the_tables_say_what_was_done(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [*GOOD.splitlines()[1:], "2.5,v,no", "2.5,v,no", "2.5,,no"]
    lines = [f"{row},{'1' if row.endswith('yes') else '0'}" for row in rows]
    header = "h [cm] $,=[/x] $,y,copy"  # no Rich markup, no Mathtext, no formula
    (tmp_path / "d.csv").write_text("\n".join([header, *lines]) + "\n")
    result = CliRunner().invoke(
        app, ["fit", "d.csv", "-t", "y", "--effort", "quick", "--impute"], catch_exceptions=False
    )
    assert result.exit_code == 0
    for words in (
        "Logistic regression of y, chosen because 'y' has two values",
        "2 levels: 'u', 'v'; reference 'u'; 1 missing value replaced by 'v', the most frequent",
        "probabilities are those of y = yes",
        "h [cm] $",
        "=[/x] $[v]",
        "'copy' has only one value of the target with each of its own. If that comes from 'y' itself",
        "Monte Carlo error",
        "posterior standard deviation",
        "held-out",
        "Can the computation be trusted?",
        "Does the model fit?",
    ):
        assert words in result.stdout
    assert "gyromc: warning: 'copy' has only one value of the target" in result.stderr
    names = [row["name"] for row in read(tmp_path / "results" / "fit-d" / "coefficients.csv")]
    assert names == ["intercept", "h [cm] $", "'=[/x] $[v]", "copy"]
    assert result.stdout.rstrip().endswith("results/fit-d/report.html")
    assert (tmp_path / "results" / "fit-d" / "fit.json").exists()


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_writes_nothing_and_keeps_what_was_there(tmp_path):
    (tmp_path / "d.csv").write_text(GOOD)
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "fit.json").write_text("earlier")
    command = interruptible_command("fit", "d.csv", "-t", "y", "--out", "out", "--effort", "0.0001")
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "fitting" in line:
                break
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(300) == 130
    assert "interrupted: nothing was written" in rest
    assert "Traceback" not in rest
    assert os.listdir(tmp_path / "out") == ["fit.json"]
    assert (tmp_path / "out" / "fit.json").read_text() == "earlier"
    assert sorted(os.listdir(tmp_path)) == ["d.csv", "out"]
