"""`--family auto` and lists of families: the candidates for each kind of target, and what terminal, page and JSON say."""

import numpy as np
import pytest

from gyromc.errors import InvalidInput
from gyromc.show.tables import text_of
from gyromc.tables.preparation import prepare
from gyromc.tables.report import family_table, tables
from gyromc.tables.request import Request
from gyromc.tables.study import chosen_family, study

ROWS = 80


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    rng = np.random.default_rng(0)
    x = rng.normal(size=ROWS)
    columns = {
        "x": x,
        "number": x + rng.normal(size=ROWS),
        "positive": np.exp(0.5 * x) * rng.gamma(3, 1 / 3, ROWS),
        "count": rng.poisson(np.exp(2 + 0.5 * x) * rng.gamma(1.5, 1 / 1.5, ROWS)),
        "few": rng.integers(1, 6, ROWS),
        "two": rng.integers(0, 2, ROWS),
        "size": rng.choice(["small", "middle", "large"], ROWS),
        "trials": rng.integers(5, 9, ROWS),
        "wins": rng.integers(0, 5, ROWS),
        "years": rng.uniform(1, 2, ROWS),
        "plain": rng.poisson(np.exp(1 + 0.8 * x)),
    }
    path = tmp_path_factory.mktemp("choosing") / "d.csv"
    rows = ["\n".join(",".join(str(values[i]) for values in columns.values()) for i in range(ROWS))]
    path.write_text("\n".join([",".join(columns), *rows]) + "\n")
    return path


def families(data, family="auto", **options):
    options.setdefault("formula", f"{options.pop('target')} ~ x")
    options.pop("target", None)
    return prepare(Request(data=str(data), family=family, **options)).families


@pytest.mark.parametrize(
    ("target", "asked", "family"),
    [
        ("number", "gaussian", "linear"),
        ("two", "binomial", "logistic"),
        ("size", "multinomial", "softmax"),
        ("count", "negative_binomial", "negative-binomial"),
        ("positive", "Gamma", "gamma"),
    ],
)
def test_names_that_r_has_for_families(data, target, asked, family):
    found = prepare(Request(data=str(data), formula=f"{target} ~ x", family=asked)).encoding.response
    assert found.model == family
    assert asked in found.reason


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"target": "number"}, ("linear", "student-t")),
        ({"target": "positive"}, ("linear", "gamma", "student-t")),
        ({"target": "count"}, ("poisson", "negative-binomial", "linear", "student-t")),
        ({"target": "count", "exposure": "years"}, ("poisson", "negative-binomial")),
        ({"target": "wins", "trials": "trials"}, ("binomial", "beta-binomial")),
        ({"target": "size", "order": "small,middle,large"}, ("ordinal", "softmax")),
        ({"target": "size"}, ("softmax",)),
        ({"target": "two"}, ("logistic",)),
        ({"target": "few", "family": "negative-binomial,poisson"}, ("poisson", "negative-binomial")),
        ({"target": "few", "family": "softmax, ordinal"}, ("ordinal", "softmax")),
        ({"target": "few", "family": "poisson"}, ()),
        ({"target": "number", "family": None}, ()),
    ],
)
def test_candidates(data, options, expected):
    assert families(data, **options) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "few"}, "5 different whole numbers.*`--family poisson,negative-binomial` compares both"),
        ({"target": "few", "family": "poisson,ordinal"}, "poisson predict numbers, the others classes"),
        ({"target": "few", "family": "poisson,poison"}, "Unknown family 'poison'"),
        ({"target": "few", "family": "poisson,poisson"}, "names a family twice"),
        ({"target": "few", "family": "auto,poisson"}, "auto stands alone"),
        ({"target": "few", "family": "quasipoisson"}, "no law of the target.*`--family negative-binomial`"),
        ({"target": "size", "family": None, "robust": True}, "one linear predictor; a softmax"),
        (
            {"target": "count", "family": "poisson", "formula": "count ~ x + (1 | few)", "robust": True},
            "`--cluster few`",
        ),
        ({"target": "count", "family": "poisson", "formula": "count ~ s(x)"}, r"For a curve write bs\(…, 4\)"),
        ({"target": "wins", "family": "binomial", "formula": "cbind(wins, trials) ~ x"}, "--trials COLUMN"),
        ({"target": "number", "family": "linear,gamma"}, r"line \d+: a gamma regression needs positive numbers"),
    ],
)
def test_refusals(data, options, message):
    with pytest.raises(InvalidInput, match=message):
        families(data, **options)


def test_the_answer_in_terminal_page_and_json(data, tmp_path):
    families = "linear,poisson"  # fewer than `auto` compares, by the same code
    request = Request(data=str(data), formula="plain ~ x", family=families, out=str(tmp_path / "out"), effort="quick")
    directory, results = study(request)
    found = results["families"]
    assert results["model"]["name"] == found["chosen"] == "poisson"
    assert "poisson predicts rows that are left out clearly better than" in results["model"]["reason"]
    assert results["settings"]["family"] == families
    assert f"--family {families}" in results["command"]
    assert found["of_rows"] == results["held_out"]["trained_on"] < ROWS  # held-out rows have no part in the choice
    best = next(one for one in found["candidates"] if one["family"] == "poisson")
    linear = next(one for one in found["candidates"] if one["family"] == "linear")
    assert best["difference"] == 0
    assert linear["difference"] == pytest.approx(linear["elpd"] - best["elpd"])
    assert linear["clearly_worse"]
    assert -linear["difference"] > 2 * linear["difference_std_error"]
    shown = "\n".join(part if isinstance(part, str) else text_of(part) for part in tables(results))
    page = (directory / "report.html").read_text()
    for row in family_table(found).rows:
        assert all(cell in shown for cell in row)
        assert all(cell.replace(">", "&gt;") in page for cell in row)
    assert "within ½" in family_table(found).notes[0]
    assert family_table(found).notes[0] in page


def test_one_natural_family_needs_no_comparison(data):
    request = Request(data=str(data), formula="two ~ x", family="auto")
    prepared, comparison = chosen_family(request, prepare(request))
    assert comparison is None
    assert prepared.encoding.response.model == "logistic"
    assert prepared.encoding.response.reason == "the only natural family for 'two'"


@pytest.mark.slow
def test_what_a_family_lacks_is_said_in_the_table(data):
    """Softmax has no group terms: it is listed as not fitted, and ordinal is chosen."""
    options = {"family": "auto", "order": "small,middle,large", "test_fraction": 0.0}
    request = Request(data=str(data), formula="size ~ x + (1 | trials)", **options)
    prepared, found = chosen_family(request, prepare(request))
    assert prepared.encoding.response.model == found["chosen"] == "ordinal"
    rows = {row[0]: row for row in family_table(found).rows}
    assert rows["softmax"][1] == "–"
    assert "Groups are not available for the family softmax" in rows["softmax"][-1]
