"""`gm.fit`: a formula and a data frame in, a model out that prints, predicts, draws, reports and saves."""

import numpy as np
import pandas as pd
import pytest

import gyromc as gm
from gyromc.regression.fit import fit as fit_arrays
from gyromc.tables.request import in_python


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x, level = rng.normal(size=150), rng.choice(["a", "b", "c"], 150)
    return pd.DataFrame(
        {"x": x, "level": level, "y": 1 + 2 * x + (level == "b") + rng.normal(size=150), "id": range(150)}
    )


@pytest.fixture(scope="module")
def model(data):
    return gm.fit("y ~ x + level", data, family="linear")


def test_coefficients_are_those_of_the_same_arrays(data, model):
    X = np.column_stack([data["x"], data["level"] == "b", data["level"] == "c"]).astype(float)
    direct = fit_arrays(X, data["y"], names=["x", "level[b]", "level[c]"])
    for c in direct.coefficients:
        assert (model[c.name].mean, model[c.name].sd) == pytest.approx((c.mean, c.sd), rel=1e-9)  # the columns' layout


def test_a_model_prints_predicts_draws_and_reports(data, model, tmp_path):
    assert "Linear regression of y" in str(model)
    assert model.summary() == str(model)
    assert "<table " in model._repr_html_()
    found = model.predict(data.head(4)[["level", "x"]])
    assert np.all(np.abs(found.mean - data["y"].head(4)) < 5 * found.predictive_sd)
    assert model.plot("residuals").axes
    assert model.plot().axes
    with pytest.raises(gm.InvalidInput, match="no figure 'pie' of this model: there are coefficients"):
        model.plot("pie")
    model.report(tmp_path / "out.html")
    assert "What predicts y?" in (tmp_path / "out.html").read_text()
    with pytest.raises(gm.InvalidInput, match=r"must be one of intercept, x.*got 'z'"):
        model["z"]


def test_a_saved_model_says_the_same(model, tmp_path):
    model.save(tmp_path / "line.gyromc")
    assert gm.load(tmp_path / "line.gyromc").summary() == model.summary()


def test_a_file_and_a_mapping_are_data_too(data, model, tmp_path):
    data.to_csv(tmp_path / "rows.csv", index=False)
    by_file = gm.fit("y ~ x + level", tmp_path / "rows.csv", family="linear")
    by_mapping = gm.fit("y ~ x + level", dict(data), family="linear")
    assert by_file["x"].mean == pytest.approx(model["x"].mean, rel=1e-9)
    assert by_mapping["x"].mean == model["x"].mean


def test_options_and_messages_are_pythons(data):
    found = gm.fit("y ~ x + level", data, "linear", reference={"level": "c"}, prior={"x": "normal(0, 0.001)"})
    assert abs(found["x"].mean) < 0.01
    assert "level[a]" in [c.name for c in found.coefficients]
    with pytest.raises(gm.InvalidInput, match="`fit` has no option colour: there are columns, drop"):
        gm.fit("y ~ x", data, colour="red")
    with pytest.raises(gm.InvalidInput, match="`impute=True`"):
        gm.fit("y ~ x", data.assign(x=[np.nan, *data["x"][1:]]))
    with pytest.raises(gm.InvalidInput, match="`formula` must be a text"):
        gm.fit(data, "y ~ x")
    command = "gyromc fit data --formula 'y ~ x' --family gamma --prior-scale 1"
    assert in_python(command) == "gm.fit('y ~ x', data, family='gamma', prior_scale=1)"


def test_a_held_out_fit_that_fails_is_left_out_with_a_sentence(data, monkeypatch):
    from gyromc.tables import study

    real, calls = study.regression.fit, []

    def fails_once(*args, **options):
        calls.append(args)
        if len(calls) == 1:
            raise gm.InvalidInput("no sampler suits it.")
        return real(*args, **options)

    monkeypatch.setattr(study.regression, "fit", fails_once)
    with pytest.warns(gm.GyromcWarning, match=r"the fit to the others failed \(no sampler suits it\.\)"):
        found = gm.fit("y ~ x", data, family="linear", test_fraction=0.25)
    assert found.results["held_out"] is None
    assert "not judged on held-out rows" in found.summary()


def test_draws_are_in_the_units_of_the_file(data, model, tmp_path):
    frame = model.draws
    assert list(frame) == ["chain", "draw", "intercept", "x", "level[b]", "level[c]", "sigma"]
    assert frame["x"].mean() == pytest.approx(model["x"].mean, abs=4 * model["x"].sd / len(frame) ** 0.5)
    model.save_draws(tmp_path / "draws.parquet")
    model.save_draws(tmp_path / "draws.csv")
    assert pd.read_parquet(tmp_path / "draws.parquet").equals(frame)
    assert pd.read_csv(tmp_path / "draws.csv")["sigma"].to_numpy() == pytest.approx(frame["sigma"], rel=1e-8)
    assert model.to_datatree().posterior["x"].shape == (64, 32)
    table = model.to_dataframe()
    assert table.loc["x", "mean"] == model["x"].mean
    assert table.loc["x", "high"] == model["x"].high
    assert list(table.index) == [one.label for one in model.coefficients]
    with pytest.raises(gm.InvalidInput, match=r"name a file \.csv or \.parquet"):
        model.save_draws(tmp_path / "draws.txt")


def test_models_of_the_same_rows_are_compared(data, model):
    nothing = gm.fit("y ~ 1", data, family="linear")
    half = gm.fit("y ~ x", data, family="linear")
    found = model.compare(half, nothing)
    assert [one.name for one in found.models] == ["y ~ x + level", "y ~ x", "y ~ 1"]
    points = {one.about["formula"]: one.results["adequacy"]["pointwise"]["elpd"] for one in (model, half, nothing)}
    gap = np.array(points["y ~ 1"]) - points["y ~ x + level"]
    assert found["y ~ 1"].difference == pytest.approx(gap.sum())
    assert found["y ~ 1"].difference_std_error == pytest.approx(gap.std() * len(gap) ** 0.5)
    assert sum(one.weight for one in found.models) == pytest.approx(1)
    assert found["y ~ 1"].weight < 0.05
    assert found["y ~ 1"].r_squared < 0.01 < found["y ~ x"].r_squared
    assert "clearly worse" in str(found)
    with pytest.raises(gm.InvalidInput, match="not fitted to the same rows"):
        model.compare(gm.fit("y ~ x", data.head(100), family="linear"))
    with pytest.raises(gm.InvalidInput, match="different responses cannot be compared"):
        model.compare(gm.fit("x ~ y", data, family="linear"))


def test_loo_r_squared_is_that_of_predictions_from_the_other_rows(data):
    """Of a straight line with a wide prior, leave-one-out residuals are e_i/(1 - h_i)."""
    rows = data.head(40)
    found = gm.fit("y ~ x", rows, family="linear", prior_scale=100.0).results["adequacy"]["loo_r_squared"]
    X, y = np.column_stack([np.ones(40), rows["x"]]), rows["y"].to_numpy()
    H = X @ np.linalg.pinv(X)
    left = (y - H @ y) / (1 - np.diag(H))
    assert found == pytest.approx(1 - np.sum(left**2) / np.sum((y - y.mean()) ** 2), abs=0.01)


def test_notation_of_r_is_read(data):
    number = data.assign(code=data["level"].map({"a": 1, "b": 2, "c": 3}))
    ours = gm.fit("y ~ C(code) + I(x**2)", number, family="linear")
    theirs = gm.fit("y ~ as.factor(code) + I(x^2)", number, family="linear")
    assert [c.name for c in theirs.coefficients] == [c.name for c in ours.coefficients]
    assert theirs["code[2]"].mean == ours["code[2]"].mean
    assert "code[2]" in [c.name for c in gm.fit("y ~ factor(code)", number, family="linear").coefficients]


def test_rows_with_missing_values_are_left_out_and_counted(data):
    holes = data.assign(x=[np.nan, *data["x"][1:]], level=[*data["level"][:-2], None, None])
    found = gm.fit("y ~ x + level", holes, family="linear", missing="drop")
    same = gm.fit("y ~ x + level", holes.dropna(), family="linear")
    assert found["x"].mean == same["x"].mean
    assert "3 rows of 150 left out, since values are missing: level (2), x (1)." in found.results["data"]["notes"]
    with pytest.raises(gm.InvalidInput, match="takes drop"):
        gm.fit("y ~ x", data, missing="mean")


def test_an_ordinal_model_without_columns_is_a_model(tmp_path):
    """Its cutpoints are the logits of the cumulated shares; it has no coefficients, so that they carry all sentences."""
    rng = np.random.default_rng(0)
    model = gm.fit("grade ~ 1", {"grade": rng.integers(0, 3, 150).astype(str)}, family="ordinal", effort="quick")
    shares = np.cumsum(np.bincount(np.random.default_rng(0).integers(0, 3, 150)) / 150)[:2]
    assert [one.mean for one in model.coefficients] == pytest.approx(np.log(shares / (1 - shares)), abs=0.05)
    assert model.results["adequacy"]["r_squared"]["mean"] == 0
    text = model.summary()
    assert "Monte Carlo error is at most" in text
    assert "for the intercept" not in text
    model.report(tmp_path / "page.html")
    assert 'id="parameter-table"' in (tmp_path / "page.html").read_text()


def test_slips_of_formulas_are_answered_with_what_to_type(data):
    with pytest.raises(gm.errors.InvalidInput, match=r"neither a column nor an intercept: .* write y ~ 1"):
        gm.fit("y ~ 0", data, family="linear")
    with pytest.raises(gm.errors.InvalidInput, match="pass `family='binomial'` and `trials='COLUMN'`"):
        gm.fit("cbind(y, id) ~ x", data)
