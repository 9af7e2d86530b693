"""Saved models: they predict as the fit did, from files and data frames, and refuse what they cannot predict for."""

import csv
import gzip
import io
import json

import numpy as np
import pandas as pd
import pytest

import gyromc as gm
from gyromc.errors import InvalidInput
from gyromc.tables.study import Request, study
from support.commands import gyromc

ROWS = 120
FORMULAS = {
    "linear": "y ~ x * a + bs(z, 4)",
    "logistic": "k ~ x + C(code) + poly(z, 2)",
    "softmax": "a ~ x + scale(z)",
    "poisson": "n ~ x + (1 + z | code) + offset(log(t))",
    "negative-binomial": "n ~ log(t) + a:x",
}


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(3)
    x, z = rng.standard_normal((2, ROWS))
    a = rng.choice(["u", "v", "w"], ROWS)
    return pd.DataFrame(
        {
            "x": x,
            "z": z,
            "a": a,
            "t": rng.uniform(1, 3, ROWS),
            "code": rng.integers(1, 9, ROWS),
            "when": pd.date_range("2024-01-05", periods=ROWS).strftime("%Y-%m-%d"),
            "y": x + (a == "v") + np.sin(z) + 0.3 * rng.standard_normal(ROWS),
            "k": np.where(x + rng.standard_normal(ROWS) > 0, "yes", "no"),
            "n": rng.poisson(np.exp(0.5 + 0.3 * x)),
        }
    )


@pytest.fixture(scope="module")
def data(frame, tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "data.csv"
    frame.to_csv(path, index=False)
    return path


def fitted(data, **options):
    """Fit, save and predict for the same rows; return the predictions of the fit and the path of the model."""
    folder = data.parent / options.get("family", "target")
    path = folder.with_suffix(".gyromc")
    if not path.exists():
        study(Request(data=str(data), predict=str(data), save=str(path), out=str(folder), effort="1", **options))
    with (folder / "predictions.csv").open() as file:
        return list(csv.reader(file)), path


LONG = (
    "logistic",
    "softmax",
    "negative-binomial",
)  # they compile much; the further parameter of a law is saved with a linear model, too


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in FORMULAS]
)
def test_a_saved_model_predicts_as_the_fit_did(data, frame, family):
    expected, path = fitted(data, formula=FORMULAS[family], family=family, test_fraction=0)
    done = gyromc("apply", path, data)
    assert done.returncode == 0, done.stderr
    assert list(csv.reader(io.StringIO(done.stdout))) == expected
    model = gm.load(path)
    few = frame.iloc[[5, 3, 40]]  # alone, with other knots, means and levels
    whole, part = model.predict(data), model.predict(few)
    # Predictions are averaged in single precision, in an order that depends on the number of rows: 2⁻²⁴ times a few.
    np.testing.assert_allclose(part.mean, whole.mean[[5, 3, 40]], rtol=1e-6)
    np.testing.assert_allclose(part.sd, whole.sd[[5, 3, 40]], rtol=1e-5)
    assert model.about["formula"] == FORMULAS[family]
    assert model.about["rows"] == ROWS
    assert str(frame["x"].iloc[0]) not in path.read_bytes().decode("latin-1")  # no data in the file


def test_without_a_formula_and_with_dates_and_missing_values(data, frame, tmp_path):
    expected, path = fitted(data, target="y", dates=["when"], impute=True, categorical=["code"], drop=["k"])
    new = tmp_path / "new.csv.gz"
    new.write_bytes(gzip.compress(frame.to_csv(index=False).encode()))
    out = tmp_path / "p.csv"
    done = gyromc("apply", path, new, "--out", out, "--draws", tmp_path / "draws.csv")
    assert done.returncode == 0, done.stderr
    assert list(csv.reader(out.open())) == expected
    drawn, (names, *rows) = pd.read_csv(tmp_path / "draws.csv"), expected
    assert drawn["line"].tolist() == [int(row[0]) for row in rows]
    mean, sd, noise = (np.array([float(row[names.index(name)]) for row in rows]) for name in ("mean", "sd", "noise"))
    z = (drawn.iloc[:, 1:].mean(axis=1) - mean) / (np.hypot(sd, noise) / np.sqrt(1000))
    assert drawn.shape[1] == 1001
    assert np.all(np.abs(z) < 5)
    holes = frame.head(4).assign(x=[None, 1.0, 2.0, 3.0])
    model = gm.load(path)
    filled = frame.head(4).assign(x=[frame["x"].median(), 1.0, 2.0, 3.0])
    assert model.predict(holes).mean[1:] == pytest.approx(model.predict(filled).mean[1:])
    assert np.isfinite(model.predict(holes).mean).all()


def test_what_cannot_be_predicted_for_is_refused_and_what_is_doubtful_is_said(data, frame, tmp_path):
    _, path = fitted(data, formula=FORMULAS["linear"], family="linear", test_fraction=0)
    model = gm.load(path)
    assert set(model.encoding.needs) == {"x", "a", "z"}
    with pytest.raises(InvalidInput, match=r"no column 'z' \(needed by the model\)"):
        model.predict(frame[["x", "a"]])
    with pytest.raises(InvalidInput, match=r"row 1: column 'a' has the category 'new'.*Known: 'u', 'v', 'w'"):
        model.predict({"x": [1.0], "a": ["new"], "z": [0.0]})
    with pytest.raises(InvalidInput, match="column 'x' lacks 1 value"):
        model.predict({"x": [None], "a": ["u"], "z": [0.0]})
    with pytest.raises(InvalidInput, match="must be a file, a data frame or a mapping"):
        model.predict(3)
    far = tmp_path / "far.csv"
    far.write_text("x,a,z\n0,u,99\n")
    done = gyromc("apply", path, far, "--json")
    assert "1 new row lies outside the fitted range of 'z'" in done.stderr
    assert json.loads(done.stdout)["columns"][0] == "line"
    done = gyromc("apply", data, far)
    assert done.returncode == 2
    assert "no file that gyromc saved" in done.stderr
    done = gyromc("fit", data, "-t", "y", "--save", tmp_path / "no" / "m.gyromc")
    assert done.returncode == 2
    assert "there is no directory" in done.stderr


def test_a_formula_in_a_foreign_file_runs_no_code(data, tmp_path):
    """The content is changed and its checksum made right, as someone who wants to do harm would."""
    import hashlib
    import zipfile

    _, path = fitted(data, formula=FORMULAS["linear"], family="linear", test_fraction=0)
    mark, evil = tmp_path / "ran", tmp_path / "evil.gyromc"
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    text = members["content.json"].decode()
    changed = text.replace("y ~ x * a + bs(z, 4)", f"y ~ x * a + I(open('{mark}', 'w'))").encode()
    assert changed != text.encode()
    header = json.loads(members["header.json"])
    header["sha256"]["content.json"] = hashlib.sha256(changed).hexdigest()
    with zipfile.ZipFile(evil, "w") as archive:
        for name, content in {**members, "content.json": changed, "header.json": json.dumps(header).encode()}.items():
            archive.writestr(name, content)
    with pytest.raises(InvalidInput, match="not allowed"):
        gm.load(evil).predict(data)
    assert not mark.exists()
