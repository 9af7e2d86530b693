"""Average slopes and differences under interactions, curves and classes, against closed forms; predictions with intervals."""

import numpy as np
import pandas as pd
import pytest

import gyromc as gm


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    x, z, arm = rng.normal(size=160), rng.normal(size=160), rng.choice(["a", "b"], 160)
    t = 0.5 + 0.8 * x + 0.3 * z + 0.5 * x * z
    return pd.DataFrame(
        {
            "x": x,
            "z": z,
            "arm": arm,
            "y": t + 0.4 * (arm == "b") * x + 0.3 * rng.normal(size=160),
            "class": np.digitize(x + rng.logistic(size=160), [-1, 1]).astype(str),
            "wins": rng.binomial(12, 1 / (1 + np.exp(-x))),
            "of": 12,
        }
    )


def effects(model):
    return {row["name"]: row for row in model.results["effects"]["rows"]}


def test_slopes_under_interactions_and_polynomials_are_derivatives(data):
    """Of y = … + b x + c xz + d x·arm the average slope in x is b + c z̄ + d share, draw by draw: linear in the coefficients."""
    model = gm.fit("y ~ x * z + x:arm + arm", data, family="linear")
    found = effects(model)
    slope = (
        model["x"].mean + model["x:z"].mean * data["z"].mean() + model["x:arm[b]"].mean * (data["arm"] == "b").mean()
    )
    error = model["x"].sd / 400**0.5  # 400 of the draws
    assert found["slope of x"]["change"] == pytest.approx(slope, abs=4 * error)
    difference = model["arm[b]"].mean + model["x:arm[b]"].mean * data["x"].mean()
    assert found["arm: b against a"]["change"] == pytest.approx(difference, abs=4 * model["arm[b]"].sd / 400**0.5)
    assert [curve["name"] for curve in model.results["effects"]["curves"]] == ["x", "z"]
    assert len(model.plot("effects").axes) == 2


def test_a_curve_has_an_average_slope_and_a_picture(data):
    model = gm.fit("y ~ bs(x, 4) + z", data, family="linear")
    low, high = effects(model)["slope of x"]["change_interval_95"]
    assert low < 0.9 < high
    (curve,) = model.results["effects"]["curves"]
    (line,) = curve["lines"]
    assert np.all(np.diff(line["mean"]) > -0.2)
    assert np.all(np.array(line["low"]) < line["mean"])


@pytest.mark.parametrize("family", [pytest.param("ordinal", marks=pytest.mark.slow), "softmax"])
def test_probabilities_of_classes_change_by_nothing_in_sum(data, family):
    found = effects(gm.fit("class ~ x + arm", data, family=family, effort="quick"))
    changes = [found[f"slope of x, P(class = {k})"]["change"] for k in "012"]
    assert sum(changes) == pytest.approx(0, abs=1e-6)
    assert changes[0] < 0 < changes[2]


def test_predictions_of_counts_and_trials_have_intervals(data):
    model = gm.fit("wins ~ x", data, family="binomial", trials="of", test_fraction=0.25, effort="quick")
    part = next(part for part in model.results["predictions"] if part["file"] == "held_out.csv")
    rows = [dict(zip(part["columns"], row, strict=True)) for row in part["first"]]
    for row in rows:
        assert row["low_95"] <= row["mean"] <= row["high_95"]
        assert row["low_95"] == int(row["low_95"])
        assert row["probability"] == pytest.approx(row["mean"] / 12)
    drawn = model.simulate({"x": [0.0, 3.0], "of": [12, 12]}, draws=500)
    assert drawn.shape == (2, 500)
    assert drawn.max() <= 12
    expected = model.predict({"x": [0.0, 3.0], "of": [12, 12]})
    assert np.all(np.abs(drawn.mean(axis=1) - expected.mean) < 4 * expected.predictive_sd / 500**0.5)


def test_priors_are_all_stated(data):
    text = gm.fit("y ~ x + (1 + x | arm)", data, family="linear", effort="quick").results["model"]["prior"]
    for part in ("two values", "sigma: exponential", "Standard deviations of groups: exponential", "LKJ(2)"):
        assert part in text
