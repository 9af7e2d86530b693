"""What the columns of a table are taken for, how they become numbers, and what is refused."""

import numpy as np
import pytest

from gyromc.errors import InvalidInput
from gyromc.tables.datatable import read_table
from gyromc.tables.recognition import Wishes, complete_rows, recognise


def table_of(tmp_path, name="data.csv", **columns):
    rows = zip(*columns.values(), strict=True)
    path = tmp_path / name
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return read_table(path)


def numbers(n=24, seed=0):
    return np.round(np.random.default_rng(seed).normal(size=n), 3)


def test_every_kind_of_column_becomes_the_matrix_it_should(tmp_path):
    n = 12
    x, place, flag = numbers(n), ["north", "south", "East"] * 4, [True, False] * 6
    table = table_of(tmp_path, x=x, place=place, flag=flag, code=[3, 6, 7] * 4, same=["k"] * n, y=[*"ab"] * 6)
    encoding = recognise(table, "y", Wishes(categorical=("code",)))
    assert encoding.names == ("x", "place[north]", "place[south]", "flag[True]", "code[6]", "code[7]")
    assert encoding.dropped == (("same", "constant ('k' in every row)"),)
    expected = np.column_stack(
        [x, [p == "north" for p in place], [p == "south" for p in place], flag]
        + [[c == k for c in [3, 6, 7] * 4] for k in (6, 7)]
    )
    np.testing.assert_array_equal(encoding.rows_of(table, fitted=False).X, expected)
    assert encoding.response.model == "logistic"
    assert encoding.response.positive == "b"
    np.testing.assert_array_equal(encoding.response.encode(table), [0, 1] * 6)
    kinds = {name: kind for name, kind, _ in encoding.rows()}
    assert kinds == {
        "x": "numeric",
        "place": "categorical",
        "flag": "categorical",
        "code": "categorical",
        "same": "dropped",
    }


def test_an_encoding_applies_to_another_order_of_columns(tmp_path):
    table = table_of(tmp_path, x=numbers(), place=["u", "v"] * 12, y=numbers(seed=1))
    encoding = recognise(table, "y", Wishes(reference={"place": "v"}))
    assert encoding.names == ("x", "place[u]")
    new = table_of(tmp_path, "new.csv", place=["v", "u"], other=["?", 1], x=[7, 8.0])
    np.testing.assert_array_equal(encoding.rows_of(new, fitted=False).X, [[7, 0], [8, 1]])


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"x": [1]}, "new.csv has no column 'place' .needed by the fit"),
        ({"x": ["1", "abc"], "place": ["u", "u"]}, "new.csv, line 3: column 'x' is numeric, but holds 'abc'"),
        ({"x": [1, 2], "place": ["u", "w"]}, "new.csv, line 3: column 'place' has the category 'w'.*Known: 'u', 'v'"),
        ({"x": [1, ""], "place": ["u", "v"]}, "new.csv: column 'x' lacks 1 value, the first at line 3.*--impute"),
        ({"x": [1, 2], "place": ["u", "NA"]}, "column 'place' lacks 1 value"),
    ],
)
def test_new_rows_that_do_not_fit_are_refused(tmp_path, columns, message):
    encoding = recognise(table_of(tmp_path, x=numbers(), place=["u", "v"] * 12, y=numbers(seed=1)), "y", Wishes())
    with pytest.raises(InvalidInput, match=message):
        encoding.rows_of(table_of(tmp_path, "new.csv", **columns), fitted=False)


def test_missing_values_are_refused_with_counts_or_imputed_from_the_training_rows(tmp_path):
    x, kind = [1, "", 3, 100, 5, 6], ["u", "u", "", "v", "v", "v"]
    table = table_of(tmp_path, x=x, kind=kind, full=[1, 2, 3, 4, 5, 7], hollow=[""] * 6, y=[0.5, 1, 2, 3, 4, 5])
    with pytest.raises(InvalidInput, match=r"2 columns \(of 6 rows\): x \(1\), kind \(1\); the first of 'x' at line 3"):
        recognise(table, "y", Wishes())
    encoding = recognise(table, "y", Wishes(impute=True), train=np.array([0, 1, 2, 4]))
    assert encoding.dropped == (("hollow", "empty"),)
    np.testing.assert_array_equal(
        encoding.rows_of(table, fitted=False).X[:, 0], [1, 3, 3, 100, 5, 6]
    )  # the median of 1, 3, 5
    np.testing.assert_array_equal(
        encoding.rows_of(table, fitted=False).X[:, 1], [0, 0, 0, 1, 1, 1]
    )  # the mode of u, u, v
    notes = dict((name, what) for name, _, what in encoding.rows())
    assert "1 missing value replaced by 3, the median" in notes["x"]
    assert "replaced by 'u', the most frequent" in notes["kind"]


def test_rows_without_a_target_are_left_out_only_when_asked(tmp_path):
    table = table_of(tmp_path, x=[1, 2, 3, 4], y=[1.5, "", 2.5, "NA"])
    with pytest.raises(InvalidInput, match=r"target 'y' lacks 2 values, the first at line 3.*--impute"):
        complete_rows(table, "y", impute=False)
    complete, notes = complete_rows(table, "y", impute=True)
    assert complete.num_rows == 2
    assert notes == ("2 rows without a target left out.",)
    both = table_of(tmp_path, x=[1, "", 3, 4], z=[1, 2, 3, 4], y=[1.5, "", 2.5, 3.5])
    with pytest.raises(InvalidInput, match=r"target 'y' lacks 1 value.*lacks values in 1 column .*x \(1\)"):
        complete_rows(both, "y", impute=False)
    with pytest.raises(InvalidInput, match="no values at all"):
        complete_rows(table_of(tmp_path, x=[1, 2], y=["", ""]), "y", impute=True)


@pytest.mark.parametrize(
    ("values", "model", "expected"),
    [
        (["no", "yes"] * 12, None, ("logistic", ("no", "yes"))),
        ([1, 2] * 12, None, ("logistic", ("1", "2"))),
        (["1.0", "0"] * 12, None, ("logistic", ("0", "1"))),
        (["r", "g", "b"] * 8, None, ("softmax", ("b", "g", "r"))),
        ([2, 10, 1] * 8, "logistic", ("softmax", ("1", "2", "10"))),
        (["u", "v"] * 12, "softmax", ("logistic", ("u", "v"))),
        (numbers(), None, ("linear", ())),
        (list(range(24)), None, ("linear", ())),
        (list(range(24)), "poisson", ("poisson", ())),
        ([0, 1] * 12, "linear", ("linear", ())),
    ],
)
def test_the_model_follows_the_target(tmp_path, values, model, expected):
    response = recognise(table_of(tmp_path, x=numbers(), y=values), "y", Wishes(model=model)).response
    assert (response.model, response.classes) == expected
    assert response.reason


def test_the_positive_class_can_be_chosen(tmp_path):
    table = table_of(tmp_path, x=numbers(), y=["no", "yes"] * 12)
    response = recognise(table, "y", Wishes(positive="no")).response
    assert response.positive == "no"
    np.testing.assert_array_equal(response.encode(table), [1, 0] * 12)


FINE = list(numbers())
REFUSED = {
    "text-in-numbers": (dict(x=[*FINE[:-1], "abc"], y=FINE), {}, "line 25: column 'x' is numeric in 23 rows.*'abc'.*--cat"),
    "infinite": (dict(x=[*FINE[:-1], "inf"], y=FINE), {}, "line 25: column 'x' .*'inf'"),
    "thousands": (dict(x=[f'"1,{i:03d}"' for i in range(24)], y=FINE), {}, "'1,000', which looks like a number.*--decimal"),
    "percent": (dict(x=[f"{i}%" for i in range(24)], y=FINE), {}, "'0%', which looks like a number"),
    "huge": (dict(x=[f"{v}e40" for v in FINE], y=FINE), {}, "Column 'x' runs from .* too large to compute with.*other"),
    "tiny": (dict(x=[f"{v}e-40" for v in FINE], y=FINE), {}, "too small to compute with"),
    "offset": (dict(x=[1700000000000000000 + i for i in range(24)], y=FINE), {}, "after its first nine digits. Subtract"),
    "huge-target": (dict(x=FINE, y=[f"{v}e40" for v in FINE]), {}, "The target 'y' runs from .* too large"),
    "dates": (dict(x=[f"2024-01-{i + 1:02d}" for i in range(24)], y=FINE), {}, "dates or times.*--drop x"),
    "ids": (dict(x=[f"id{i}" for i in range(24)], y=FINE), {}, "different text in every row.*--drop x"),
    "many-levels": (
        dict(x=[f"t{i % 70}" for i in range(140)], y=list(numbers(140))), {}, "70 different texts in 140 rows.*--categorical x",
    ),
    "constants": (dict(x=[3] * 24, y=FINE), {}, "No column is left to predict 'y' from: x is constant"),
    "target-alone": (dict(y=FINE), {}, "no column besides the target"),
    "one-class": (dict(x=FINE, y=["yes"] * 24), {}, "only one value, 'yes', in 24 rows"),
    "ambiguous": (dict(x=FINE, y=[0, 1, 2] * 8), {}, "classes .*softmax.*ordinal.*, counts .*poisson.* or measurements"),
    "target-text": (dict(x=FINE, y=[*FINE[:-1], "abc"]), {}, "line 25: the target 'y' must be a finite number.*'abc'"),
    "target-ids": (dict(x=list(numbers(60)), y=[f"id{i}" for i in range(60)]), {}, "60 different texts.*right column"),
    "target-dates": (dict(x=FINE, y=[f"2024-01-{i + 1:02d}" for i in range(24)]), {}, "target 'y' holds dates"),
    "linear-classes": (dict(x=FINE, y=["u", "v"] * 12), {"model": "linear"}, "line 2: the target.*--family logistic"),
    "negative-counts": (dict(x=FINE, y=[*range(23), -1]), {"model": "poisson"}, "line 25: .* needs counts.* is -1"),
    "fractions": (dict(x=FINE, y=[*range(23), 0.5]), {"model": "poisson"}, "needs counts.* is 0.5"),
    "too-many-classes": (dict(x=list(numbers(60)), y=list(range(60))), {"model": "logistic"}, "60 different values; at most"),
    "unknown-model": (dict(x=FINE, y=FINE), {"model": "forest"}, "Unknown family 'forest': there are linear, student"),
    "unknown-positive": (dict(x=FINE, y=["u", "v"] * 12), {"positive": "w"}, "'w' is no class.*'u', 'v' are"),
    "positive-of-three": (dict(x=FINE, y=["u", "v", "w"] * 8), {"positive": "w"}, "for two classes; 'y' has 3"),
    "positive-number": (dict(x=FINE, y=FINE), {"positive": "1"}, "names a class, but a linear regression has none"),
    "unknown-categorical": (dict(x=FINE, y=FINE), {"categorical": ("z",)}, "no column 'z' .--categorical"),
    "unknown-reference": (dict(x=["u", "v"] * 12, y=FINE), {"reference": {"x": "w"}}, "no such level.*'u', 'v'"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_encoded_is_refused_with_place_and_remedy(tmp_path, case):
    columns, wishes, message = REFUSED[case]
    with pytest.raises(InvalidInput, match=f"(?s){message}"):
        recognise(table_of(tmp_path, **columns), "y", Wishes(**wishes))


def test_all_problems_are_said_at_once(tmp_path):
    columns = dict(id=[f"p{i}" for i in range(24)], day=["2024-01-01", "2024-01-02"] * 12, x=[*FINE[:-1], ""], y=FINE)
    with pytest.raises(InvalidInput) as caught:
        recognise(table_of(tmp_path, **columns), "y", Wishes())
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("3 problems with")
    assert [word in line for word, line in zip(("--drop id", "--drop day", "--impute"), lines[1:], strict=True)] == [
        True
    ] * 3


def test_hints_for_what_may_not_be_meant(tmp_path):
    table = table_of(tmp_path, code=[1, 2, 3] * 8, row=list(range(24)), y=list(range(3, 27)))
    notes = {name: what for name, _, what in recognise(table, "y", Wishes()).rows()}
    assert "--categorical code" in notes["code"]
    assert "--drop row" in notes["row"]
    assert "--family poisson" in recognise(table, "y", Wishes()).response.reason


def test_parquet_and_csv_give_the_same_encoding(tmp_path):
    import pandas as pd

    frame = pd.DataFrame({"x": FINE, "code": [1, 2, 3] * 8, "flag": [True, False] * 12, "y": ["u", "v"] * 12})
    frame.to_csv(tmp_path / "d.csv", index=False)
    frame.assign(flag=frame["flag"].map({True: "True", False: "False"})).to_parquet(tmp_path / "d.parquet")
    tables = [read_table(tmp_path / f"d.{kind}") for kind in ("csv", "parquet")]
    first, second = (recognise(t, "y", Wishes(categorical=("code",))) for t in tables)
    assert first == second
    np.testing.assert_array_equal(first.rows_of(tables[0], fitted=False).X, second.rows_of(tables[1], fitted=False).X)
