"""The options of `gyromc fit` beside the target: formulas, weights and offsets, dates, priors, rare levels, --explain."""

import json

import numpy as np
import pandas as pd
import pytest

from gyromc.errors import InvalidInput
from gyromc.regression.fit import GroupTerm, fit, robust_sd
from gyromc.show import pages
from gyromc.tables.datatable import read_table
from gyromc.tables.encoding import learn_dates
from gyromc.tables.preparation import asked_priors, prepare
from gyromc.tables.request import Request
from gyromc.tables.study import fit as fit_table
from gyromc.tables.study import study
from gyromc.targets.families import FAMILIES
from support.commands import gyromc

ROWS = 90


@pytest.fixture(scope="module")
def frame():
    rng = np.random.default_rng(1)
    x, z = rng.standard_normal((2, ROWS))
    return pd.DataFrame(
        {
            "x": x,
            "z": z,
            "a": [*rng.choice(["u", "v", "w"], ROWS - 3), "x", "v", "v"],
            "g": rng.integers(0, 9, ROWS),
            "h": rng.choice(["p", "q"], ROWS),
            "t": rng.uniform(1, 3, ROWS),
            "m": rng.integers(3, 9, ROWS),
            "s": rng.integers(0, 3, ROWS),
            "w": rng.integers(1, 4, ROWS),
            "n": rng.poisson(2, ROWS),
            "y": x - z + x * z + 0.3 * rng.standard_normal(ROWS),
            "level": rng.choice(["low", "mid", "high"], ROWS),
        }
    )


@pytest.fixture
def data(frame, tmp_path):
    path = tmp_path / "data.csv"
    frame.to_csv(path, index=False)
    return path


def prepared(data, **options):
    return prepare(Request(data=str(data), **options))


def refused(message, data, **options):
    with pytest.raises(InvalidInput, match=message):
        prepared(data, **options)


# --- formulas


def test_a_formula_fits_what_its_columns_would(frame, data, tmp_path):
    """The same columns written into the file by hand: the same numbers, to the last digit."""
    options = {"effort": "0.3", "test_fraction": 0, "family": "poisson"}
    _, found = study(Request(data=str(data), formula="n ~ x*z + h", out=str(tmp_path / "f"), **options))
    by_hand = tmp_path / "hand.csv"
    frame.assign(product=frame["x"] * frame["z"])[["x", "z", "h", "product", "n"]].to_csv(by_hand, index=False)
    _, expected = study(Request(data=str(by_hand), target="n", out=str(tmp_path / "h"), **options))
    assert [c["name"] for c in found["coefficients"]] == ["intercept", "x", "z", "h[q]", "x:z"]
    assert [c["name"] for c in expected["coefficients"]] == ["intercept", "x", "z", "h[q]", "product"]
    means = [[c["mean"] for c in result["coefficients"]] for result in (found, expected)]
    np.testing.assert_allclose(*means, rtol=1e-6)
    assert found["encoding"]["formula"]["text"] == "n ~ x*z + h"
    assert "--formula 'n ~ x*z + h'" in found["command"]


def test_a_formula_reads_only_its_columns_and_knows_a_dot(data):
    found = prepared(data, formula="y ~ x + C(s)")
    assert set(found.table.columns) == {"y", "x", "s"}
    assert found.encoding.names == ("x", "s[1]", "s[2]")
    dot = prepared(data, formula="y ~ . - level - a - h", weights="w")
    assert dot.encoding.names == ("x", "z", "g", "t", "m", "s", "n")
    np.testing.assert_array_equal(dot.rows.weights, pd.read_csv(data)["w"])
    constant = data.with_name("constant.csv")
    pd.read_csv(data)[["x", "y"]].assign(c=1).to_csv(constant, index=False)
    assert prepared(constant, formula="y ~ .").encoding.names == ("x",)
    refused("Column 'c' of the formula is constant", constant, formula="y ~ x + c")


def test_a_response_may_be_computed_and_a_value_that_cannot_is_placed(data):
    found = prepared(data, formula="log(t) ~ x")
    np.testing.assert_allclose(found.y, np.log(pd.read_csv(data)["t"]), rtol=1e-9)
    assert found.encoding.response.name == "log(t)"
    refused(r"line \d+: the response `log\(n\)` is -inf there", data, formula="log(n) ~ x")
    refused(r"line \d+: `log\(s\)` is -inf there \(s = 0", data, formula="y ~ log(s)")
    refused("computes with 'a', which holds categories", data, formula="y ~ log(a)")


def test_group_terms_become_columns_and_levels(frame, data):
    rows = prepared(data, formula="n ~ x + (1 + z | g) + (x || h) + (1 | h/g) + offset(log(t))", family="poisson").rows
    assert [(g.name, g.columns) for g in rows.groups] == [
        ("g", ("intercept", "z")),
        ("h", ("intercept",)),
        ("h.1", ("x",)),
        ("h.2", ("intercept",)),
        ("h:g", ("intercept",)),
    ]
    np.testing.assert_allclose(rows.groups[0].Z, np.column_stack([np.ones(ROWS), frame["z"]]))
    assert [rows.groups[0].levels[i] for i in rows.groups[0].index] == list(frame["g"].astype(str))
    assert [rows.groups[4].levels[i] for i in rows.groups[4].index] == list(frame["h"] + ":" + frame["g"].astype(str))
    np.testing.assert_allclose(rows.offset, np.log(frame["t"]))
    part = rows.take(np.array([4, 2]))
    assert part.groups[0].index.tolist() == rows.groups[0].index[[4, 2]].tolist()
    assert part.offset.tolist() == rows.offset[[4, 2]].tolist()


def test_a_level_that_was_not_fitted_is_noted_for_groups(data, tmp_path):
    new = tmp_path / "new.csv"
    new.write_text("x,g\n0,3\n99,77\n")
    found = prepared(data, formula="y ~ x + (1 | g)", predict=str(new))
    term = found.new[1].groups[0]
    assert term.places(found.rows.groups[0].levels).tolist() == [3, -1]
    assert any("1 new row has a level of 'g' that the fitted rows do not have" in note for note in found.notes)
    assert any("1 new row lies outside the fitted range of 'x'" in note for note in found.notes)


def test_what_to_predict_is_said_once(data):
    refused("Say what to predict: either `--target COLUMN`", data)
    refused("Say what to predict.*got both, 'y' and 'y ~ x'", data, target="y", formula="y ~ x")
    refused("`--columns` and `--drop` go with `--target`", data, formula="y ~ x", drop=["z"])


# --- weights, offsets, trials, families


def test_roles_are_read_checked_and_no_predictors(frame, data):
    found = prepared(data, target="n", family="poisson", exposure="t", offset="z", weights="w", cluster="g", drop=["y"])
    np.testing.assert_allclose(found.rows.offset, frame["z"] + np.log(frame["t"]))
    np.testing.assert_array_equal(found.rows.clusters, frame["g"])
    assert not {"t", "z", "w", "g"} & set(found.encoding.names)
    assert {"z", "t", "w", "g"} & set(found.encoding.needs) == {"z", "t"}
    refused("`--exposure x` must be a positive number, but is", data, target="n", family="poisson", exposure="x")
    refused("`--weights x` must be a number of 0 or more", data, target="y", weights="x")
    refused("`--weights a` must be a number", data, target="y", weights="a")
    refused(
        "it suits gamma, lognormal, poisson, .*, weibull, not linear",
        data,
        target="y",
        exposure="t",
    )
    refused("that is the target itself", data, target="y", weights="y")
    refused("pass `--trials COLUMN`", data, target="s", family="beta-binomial")
    refused("pass `--family binomial` or `--family beta-binomial`", data, target="n", family="poisson", trials="m")
    refused(r"line \d+: \d successes of \d trials", data, target="m", family="beta-binomial", trials="w", drop=["y"])
    assert prepared(data, target="s", family="beta-binomial", trials="m").rows.trials.max() == 8


def test_families_and_their_targets(data):
    refused("Unknown family 'magic': there are linear, student-t", data, target="y", family="magic")
    refused(r"needs positive numbers, but the target 'y' is -", data, target="y", family="gamma")
    refused("are texts .*say their order, as in `--order low,middle,high`", data, target="level", family="ordinal")
    refused("must list each class of 'level' once", data, target="level", family="ordinal", order="low,high")
    found = prepared(data, target="level", family="ordinal", order="low,mid,high")
    assert found.encoding.response.classes == ("low", "mid", "high")
    assert prepared(data, target="level", family="multinomial").encoding.response.model == "softmax"
    assert prepared(data, target="y", family="auto").encoding.response.model == "linear"
    for name in FAMILIES:
        assert name in gyromc("fit", "--help").stdout.replace("│", " ")


# --- priors


def asked(*texts, intercept=True, families=("linear",)):
    sources = {"x": "x", "a[u]": "a", "a[v]": "a", "bs(z, 4)[1]": "bs(z, 4)"}
    term = GroupTerm("g", ("intercept", "x"), np.ones((2, 2)), [0, 1], ("m", "n"))
    found = asked_priors(texts, sources, [term], intercept, families)
    return {name: str(prior) for name, prior in found.items()}


def test_priors_by_coefficient_term_group_and_for_all():
    assert asked("a[u]=normal(1, 2)", "all = normal(0, 5)", "a=student_t(3, 0,3)", "g=exponential(4)") == {
        "x": "normal(0, 5)",
        "a[u]": "normal(1, 2)",
        "a[v]": "student_t(3, 0, 3)",
        "bs(z, 4)[1]": "normal(0, 5)",
        "g": "exponential(4)",
    }
    assert asked("intercept=normal(-3, 1e2)") == {"intercept": "normal(-3, 100)"}
    every = ["sigma=cauchy(0, 2)", "sd(x | g)=gamma(2, 1)", "cor(g)=lkj(4)", "sd=half_normal(2)", "cor=lkj(1)"]
    assert len(asked(*every)) == 5
    assert asked("nu=gamma(2, 0.1)", families=("linear", "student-t")) == {"nu": "gamma(2, 0.1)"}
    assert asked("cutpoints=dirichlet(2)", families=("ordinal",)) == {"cutpoints": "dirichlet(2)"}


@pytest.mark.parametrize(
    ("text", "message"),
    {
        "x": "takes NAME=LAW",
        "x=normal(0)": "must be one of normal",
        "x=normal(0, -1)": "scale of normal.* must be",
        "x=laplace(0, 1)": "must be one of normal",
        "x=normal(0, __import__('os'))": "must be one of normal",
        "b=normal(0, 1)": "no coefficient, parameter, term or group. There are",
        "a[w]=normal(0, 1)": "Did you mean",
        "g=lkj(1)": "g is a positive number, whose prior is",
        "x=exponential(1)": r"x is any number, whose prior is normal, student_t, cauchy: got exponential\(1\)",
        "cor=normal(0, 1)": r"cor is a matrix of correlations, whose prior is lkj: got normal\(0, 1\). Write it as lkj",
        "nu=gamma(2, 0.1)": "no coefficient, parameter, term or group",
    }.items(),
)
def test_wrong_priors(text, message):
    with pytest.raises(InvalidInput, match=message):
        asked(text)


def test_priors_are_named_once_and_need_what_they_name():
    with pytest.raises(InvalidInput, match="names x twice"):
        asked("x=normal(0,1)", "x=normal(0,2)")
    with pytest.raises(InvalidInput, match="no coefficient"):
        asked("intercept=normal(0,1)", intercept=False)


IMAGE = pages.image  # before the tests of this folder replace it


def test_the_data_beside_draws_from_the_prior(data, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "image", IMAGE)
    path = tmp_path / "prior.png"
    given = ["fit", str(data), "--formula", "y ~ x", "--family", "linear", "--prior-predictive"]
    done = gyromc(*given, str(path), "--json")
    assert done.returncode == 0, done.stderr
    assert path.read_bytes()[:4] == b"\x89PNG"
    found = json.loads(done.stdout)
    assert len(found["draws"]) == 40
    assert 0 <= found["inside"] <= 1
    assert "draws a .png, .svg or .pdf" in gyromc(*given, "prior.gif").stderr
    model = fit_table("y ~ x", str(data), family="linear", priors={"x": "normal(0, 1)"})
    assert model.plot("prior").axes[0].get_title(loc="left") == "observed, and in 40 draws from the prior"


# --- notes, dates, --explain, --robust


def test_levels_with_few_rows_are_named(data):
    notes = prepared(data, formula="y ~ a * h").notes
    assert len(notes) == 1
    assert notes[0].startswith("fewer than 3 rows have 'a': 'x' (1 row); combinations a[x]:h[q]")
    assert "reference" not in notes[0]
    assert not prepared(data, formula="y ~ h").notes
    (note,) = prepared(data, formula="y ~ a", reference=["a=x"]).notes
    assert "'x' is the reference of 'a', so that all its coefficients are uncertain: pass `--reference a=v`." in note


def test_dates_become_four_columns_and_the_same_for_new_rows(tmp_path):
    path = tmp_path / "dates.csv"
    days = pd.date_range("2023-12-30", periods=20, freq="9D")
    text = "\n".join(f"{d:%d.%m.%Y} 10:30,{i * 1.5 + i % 3}" for i, d in enumerate(days))
    path.write_text(f"when,y\n{text}\n")
    refused("holds dates or times.*--dates when", path, target="y")
    found = prepared(path, target="y", dates=["when"])
    table = found.table.columns
    assert table["when_year"].tolist() == [float(d.year) for d in days]
    assert table["when_month"].tolist() == [f"{d:%b}" for d in days]
    assert table["when_weekday"].tolist() == [f"{d:%a}" for d in days]
    assert table["when_days"].tolist() == [9.0 * i for i in range(20)]
    months = next(f for f in found.encoding.features if f.name == "when_month")
    assert months.levels[:2] == ("Jan", "Feb")  # by the calendar
    assert found.encoding.needs == ("when",)
    np.testing.assert_array_equal(found.encoding.rows_of(read_table(path), fitted=False).X, found.rows.X)
    assert prepared(path, formula="y ~ when_days + when_month", dates=["when"]).encoding.names[0] == "when_days"
    for dates, message in {
        "03/04/2024\n05/06/2024": "could be read as %d/%m/%Y or %m/%d/%Y",
        "2024-02-01\n2024-02-31": "line 3: `--dates when` reads '2024-02-31' there .*It is no date",
        "1\n2": "holds numbers|no date",
    }.items():
        path.write_text(f"when\n{dates}\n")
        with pytest.raises(InvalidInput, match=message):
            learn_dates(read_table(path), ["when"])


def test_explain_shows_the_design_and_fits_nothing(data, tmp_path):
    formula = "n ~ x*a + bs(z, 4) + (1 | g) + offset(log(t))"
    arguments = ["fit", data, "--formula", formula, "--family", "poisson", "--prior", "x=normal(0, 2)", "--explain"]
    done = gyromc(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for text in (
        "Design matrix",
        "bs(z, 4)[3]",
        "x:a[w]",
        "0 or 1, against 'u'",
        "normal(0, 2), asked for",
        "Group terms",
    ):
        assert text in done.stdout
    assert not (tmp_path / "results").exists()
    found = json.loads(gyromc(*arguments, "--json", cwd=tmp_path).stdout)
    X = prepared(data, formula=formula, family="poisson").rows.X
    np.testing.assert_allclose(found["first_rows"], X[:5])
    assert [c["name"] for c in found["columns"]][:2] == ["x", "a[v]"]


def test_the_priors_that_explain_shows_are_those_of_the_fit(frame, data):
    found = json.loads(gyromc("fit", data, "--formula", "y ~ x + h", "--explain", "--json").stdout)
    deviation = [float(c["prior"][len("normal(0, ") : -1]) for c in found["columns"]]
    y = frame["y"].std(ddof=0)
    assert deviation == pytest.approx([2.5 * y / frame["x"].std(ddof=0), 2.5 * y / 0.5], rel=1e-3)


def test_robust_spreads_against_the_sandwich_of_least_squares(frame):
    X, y = frame[["x", "z"]].to_numpy(), frame["y"].to_numpy()
    found = fit(X, y, effort="quick")
    A = np.column_stack([np.ones(ROWS), X])
    inverse = np.linalg.inv(A.T @ A)
    scores = A * (y - A @ (inverse @ A.T @ y))[:, None]
    single = np.sqrt(np.diag(inverse @ scores.T @ scores @ inverse) * ROWS / (ROWS - 3))
    np.testing.assert_allclose(robust_sd(found, X, y), single, rtol=0.01)  # the prior is weak
    g = frame["g"].to_numpy()
    summed = np.array([scores[g == level].sum(axis=0) for level in np.unique(g)])
    factor = 9 / 8 * (ROWS - 1) / (ROWS - 3)
    clustered = np.sqrt(np.diag(inverse @ summed.T @ summed @ inverse) * factor)
    np.testing.assert_allclose(robust_sd(found, X, y, clusters=g), clustered, rtol=0.01)
    assert np.abs(clustered / single - 1).max() > 0.05


def test_robust_spreads_stand_beside_the_models(data, tmp_path):
    options = {"data": str(data), "formula": "n ~ x", "family": "poisson", "effort": "0.3", "test_fraction": 0}
    folder, found = study(Request(**options, cluster="g", out=str(tmp_path / "r")))
    assert [c["name"] for c in found["robust"]["coefficients"]] == ["intercept", "x"]
    assert (folder / "coefficients.csv").read_text().splitlines()[0].endswith("robust_sd,robust_low_95,robust_high_95")
    plain = {**options, "formula": "y ~ x", "family": "linear"}
    assert study(Request(**plain, out=str(tmp_path / "s")))[1]["robust"] is None


# --- censored times


def test_times_with_events_are_read_in_both_notations(tmp_path):
    rng, n = np.random.default_rng(3), 120
    x = rng.normal(size=n)
    time = np.exp(1 + 0.5 * x) * rng.weibull(1.5, n)
    event = (time < 4).astype(int)
    time = np.minimum(time, 4.0)
    rows = "\n".join(f"{t},{e},{1 - e},{a}" for t, e, a in zip(time, event, x, strict=True))
    path = tmp_path / "data.csv"
    path.write_text(f"time,seen,lost,x\n{rows}\n")
    prepared = [
        prepare(Request(data=str(path), **options))
        for options in (
            {"formula": "Surv(time, seen) ~ x"},
            {"formula": "time ~ x", "censored": "lost"},
            {"target": "time", "event": "seen", "drop": ["lost"]},
        )
    ]
    for one in prepared:
        assert one.encoding.response.model == "weibull"
        assert one.encoding.names == ("x",)
        np.testing.assert_array_equal(one.rows.beside()["censored"], 1 - event)
        assert any("censored" in note for note in one.notes)
    with pytest.raises(InvalidInput, match="are for times"):
        prepare(Request(data=str(path), formula="Surv(time, seen) ~ x", family="gamma"))
    with pytest.raises(InvalidInput, match="must be 0 or 1"):
        prepare(Request(data=str(path), formula="Surv(time, x) ~ lost"))
    model = fit_table("Surv(time, seen) ~ x", str(path), "weibull", effort="quick")
    assert abs(model["x"].mean - 0.5) < 4 * model["x"].sd
    assert abs(model["shape"].mean - 1.5) < 4 * model["shape"].sd
    assert model.results["adequacy"]["verdict"] != "misfit"
