"""Ratios and contrasts, average slopes and differences under interactions, curves and classes; predictions with intervals."""

import numpy as np
import pandas as pd
import pytest
from scipy import special

import gyromc as gm
from gyromc.regression.problem import GroupTerm
from gyromc.tables.effects import changeable, group_words
from gyromc.tables.findings import prior_words
from gyromc.tables.preparation import prepare
from gyromc.tables.request import Request
from gyromc.targets.priors import Prior


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


@pytest.fixture(scope="module")
def patients():
    rng = np.random.default_rng(4)
    frame = pd.DataFrame({"age": rng.normal(50, 10, 300), "site": rng.choice(["a", "b", "c"], 300)})
    frame["smokes"] = (rng.random(300) < 0.4).astype(int)
    t = -3 + 0.05 * frame["age"] + 0.5 * (frame["site"] == "b") - 0.5 * (frame["site"] == "c") + 0.8 * frame["smokes"]
    frame["ill"] = (rng.random(300) < special.expit(t)).astype(int)
    frame["score"] = t + rng.normal(0, 0.1, 300)
    return frame


def test_odds_ratios_and_changes_are_those_of_the_draws(patients):
    model = gm.fit("ill ~ age + site + smokes", patients, family="logistic", effort="quick")
    found = effects(model)
    assert list(found) == [
        "age + 1",
        "site: b against a",
        "site: c against a",
        "site: c against b",
        "smokes: 1 against 0",
    ]
    for name, column in {"age + 1": "age", "site: b against a": "site[b]", "smokes: 1 against 0": "smokes"}.items():
        assert found[name]["ratio_interval_95"] == pytest.approx(np.exp(model[column].interval).tolist())
    draws = model.draws
    between = draws["site[c]"] - draws["site[b]"]
    contrast = found["site: c against b"]
    assert contrast["ratio"] == pytest.approx(np.exp(np.median(between)))
    ends = np.exp(np.quantile(between, [0.025, 0.975], method="hazen"))
    assert contrast["ratio_interval_95"] == pytest.approx(ends.tolist())
    b = draws[["intercept", "age", "site[b]", "site[c]", "smokes"]].to_numpy()[:: len(draws) // 400]
    site = patients["site"]
    rows = np.column_stack([np.ones(300), patients["age"], site == "b", site == "c", patients["smokes"]]).astype(float)

    def p(**to):
        columns = ["one", "age", "b", "c", "smokes"]
        X = np.column_stack([to.get(name, rows[:, j]) * np.ones(300) for j, name in enumerate(columns)])
        return special.expit(b @ X.T).mean(axis=1)

    spread = 4 / np.sqrt(len(b))  # two sets of draws
    for name, change in {
        "age + 1": p(age=rows[:, 1] + 1) - p(),
        "site: c against b": p(b=0.0, c=1.0) - p(b=1.0, c=0.0),
        "smokes: 1 against 0": p(smokes=1.0) - p(smokes=0.0),
    }.items():
        low, high = found[name]["change_interval_95"]
        assert abs(found[name]["change"] - change.mean()) < 2 * spread * change.std()
        assert low < found[name]["change"] < high


def test_linear_models_have_contrasts_only(patients):
    found = effects(gm.fit("score ~ age + site + smokes", patients, family="linear"))
    assert list(found) == ["site: c against b"]
    assert found["site: c against b"]["ratio"] is None
    assert abs(found["site: c against b"]["change"] + 1.0) < 0.08


def test_a_transformed_column_has_a_ratio_and_its_column_a_slope(patients):
    # As many columns as above: the program is compiled already.
    found = effects(gm.fit("ill ~ log(age) + site + smokes", patients, family="logistic", effort="quick"))
    assert [name for name in found if "site" not in name] == ["slope of age", "smokes: 1 against 0", "log(age) + 1"]


@pytest.mark.parametrize(
    ("formula", "alone"),
    [
        ("score ~ age * smokes + site + poly(w, 2)", {"site": [2, 3]}),
        ("score ~ age:smokes + w", {"w": [0]}),
        ("score ~ age + I(age**2) + w", {"w": [2]}),
        ("score ~ log(age) + age + site", {"site": [2, 3]}),
        ("score ~ age + w + offset(log(age))", {"w": [1]}),
        ("score ~ log(age) + w", {"log(age)": [0], "w": [1]}),
        ("score ~ `a: b` + w", {"a: b": [0], "w": [1]}),
    ],
)
def test_only_terms_whose_column_no_other_term_reads_can_be_changed_alone(patients, formula, alone):
    table = patients.assign(w=np.sin(patients["age"]), **{"a: b": np.cos(patients["age"])})
    prepared = prepare(Request(data="data", formula=formula, family="linear"), table)
    assert changeable(prepared.encoding) == alone


def test_a_square_of_a_column_gives_it_a_slope_and_a_curve(data):
    """Of y = … + b x + c x² the average slope is b + 2 c x̄, and b alone is no effect: x² changes with x."""
    found = gm.fit("y ~ x + I(x**2) + z", data, family="linear")
    (row,) = found.results["effects"]["rows"]
    assert row["name"] == "slope of x"
    expected = found["x"].mean + 2 * found["I(x ** 2)"].mean * data["x"].mean()
    assert row["change"] == pytest.approx(expected, abs=4 * found["x"].sd / np.sqrt(400))
    assert [curve["name"] for curve in found.results["effects"]["curves"]] == ["x"]
    ill = gm.fit(
        "class ~ x + I(x**2)", data.assign(**{"class": data["class"] > "0"}), family="logistic", effort="quick"
    )
    assert [row["ratio"] for row in ill.results["effects"]["rows"]] == [None]


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


@pytest.mark.slow
@pytest.mark.parametrize("family", ["ordinal", "softmax"])
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


def test_words_on_groups_name_the_column_and_the_priors_in_force():
    index, ones = np.array([0, 1, 2]), np.ones((3, 1))
    terms = [
        GroupTerm(name, (effect,), ones, index, ("a", "b", "c")) for name, effect in (("g", "intercept"), ("g.1", "x"))
    ]
    title, sentence = group_words(terms)
    assert title == " with groups of g"
    assert "exponential with mean 1" in prior_words(
        "poisson", terms, {"sd(x | g.1)": Prior.read("half_normal(1)", "x")}
    )
    assert "exponential with mean 1" not in prior_words("poisson", terms, {"sd": Prior.read("half_normal(1)", "x")})
    assert (
        "Each of the 3 levels of g has its own intercept; each of the 3 levels of g has its own slope of x" in sentence
    )
