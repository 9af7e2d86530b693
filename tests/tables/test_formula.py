"""Formulas: what they mean, the matrix that they make, the same for new rows, and that they run no code."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import BSpline

from gyromc.errors import InvalidInput
from gyromc.tables.formula import FUNCTIONS, FormulaDesign, evaluate, read_formula, response_of

COLUMNS = ["y", "a", "b", "c", "x", "z", "my col", "g", "h", "t"]


def frame_of(rows=60, seed=0):
    rng = np.random.default_rng(seed)
    return {
        "a": pd.Categorical(rng.choice(["u", "v", "w"], rows), categories=["v", "u", "w"]),
        "b": pd.Categorical(rng.choice(["p", "q"], rows), categories=["p", "q"]),
        "x": rng.uniform(1, 5, rows),
        "z": rng.standard_normal(rows),
        "my col": rng.standard_normal(rows),
        "t": rng.uniform(0.5, 2, rows),
    }


def design_of(text, frame):
    formula = read_formula(text, COLUMNS)
    design = FormulaDesign.learn(formula, COLUMNS, frame)
    return design, design.matrix(frame)


# --- what a formula means

MEANINGS = {
    "y ~ x + z": (["x", "z"], True),
    "y ~ x * z": (["x", "z", "x:z"], True),
    "y ~ x:z - 1": (["x:z"], False),
    "y ~ 0 + x": (["x"], False),
    "y ~ splines::bs(x, 4) + stats::poly(z, 2)": (["bs(x, 4)", "poly(z, 2)"], True),
    "y ~ (a + b + c)**2": (["a", "b", "c", "a:b", "a:c", "b:c"], True),
    "y ~ a / b": (["a", "a:b"], True),
    "y ~ a*b - a:b": (["a", "b"], True),
    "y ~ . - x": (["a", "b", "c", "z", "my col", "g", "h", "t"], True),
    "y ~ C(x) + log(z)": (["x", "log(z)"], True),
    "y ~ `my col` + I(x**2)": (["my col", "I(x ** 2)"], True),
    "y~x+(1|g)": (["x"], True),
    "y ~ (1 | g) + x": (["x"], True),
    "y ~ (1 | g) - 1 + x": (["x"], False),
    "y ~ 1": ([], True),
    "log(y) ~ x + offset(log(t))": (["x"], True),
}


@pytest.mark.parametrize("text", MEANINGS)
def test_the_terms_of_a_formula(text):
    found = read_formula(text, COLUMNS)
    assert ([str(term) for term in found.terms[0].terms], found.terms[0].intercept) == MEANINGS[text]
    assert found.response.columns == ("y",)


def test_group_terms_and_offsets():
    found = read_formula("y ~ x + (1 + t | g) + (0 + x || h) + (1 | g/h) + offset(log(t)) + offset(z)", COLUMNS)
    groups = [(g.factor, [str(t) for t in g.terms.terms], g.terms.intercept, g.correlated) for g in found.groups]
    assert groups == [
        (("g",), ["t"], True, True),
        (("h",), ["x"], False, False),
        (("g",), [], True, True),
        (("g", "h"), [], True, True),
    ]
    assert [(o.text, o.columns) for o in found.offsets] == [("log(t)", ("t",)), ("z", ("z",))]
    assert found.predictors == ("x", "t", "z")
    assert found.grouping == ("g", "h")
    assert read_formula("y ~ (x | g:h)", COLUMNS).groups[0].factor == ("g", "h")
    assert response_of("`my col` ~ x") == "my col"


# --- what a formula may not do

CODE = [
    "__import__('os').system('touch {0}')",
    "I(__import__('os').system('touch {0}'))",
    "{{__import__('os').system('touch {0}')}}",
    "{{open('{0}', 'w')}}",
    "log(open('{0}', 'w'))",
    "I(x.__class__.__mro__)",
    "I(().__class__)",
    "I([q for q in x])",
    "I((lambda: 1)())",
    "I(x if 1 else z)",
    "I(f'{{x}}')",
    "I(x[0])",
    "I(x and z)",
    "I(x := 3)",
    "np.fromfile('{0}')",
    "np.log.__class__(x)",
    "hashed(a)",
    "C(a, contr.treatment('u'))",
    "lag(x)",
    "eval('1')",
    "bs(x, df=open('{0}', 'w'))",
    "bs(x, knots=[open('{0}', 'w')])",
    "offset(open('{0}', 'w'))",
    "(1 + open('{0}', 'w') | g)",
    "(1 | open('{0}', 'w'))",
    "I(x**10**10)",
    "I(9**9**9 * x)",
    "I(x ** z)",
    "Q('x')",
    "I('text')",
    "I(x, z)",
    "log(x, base=2)",
]


@pytest.mark.parametrize("code", CODE)
def test_no_code_runs(code, tmp_path):
    mark = tmp_path / "ran"
    with pytest.raises(InvalidInput) as caught:
        design_of(f"y ~ {code.format(mark)}", frame_of())
    assert not mark.exists()
    assert "formula" in str(caught.value)
    with pytest.raises(InvalidInput):
        read_formula(f"{code.format(mark)} ~ x", COLUMNS)
    assert not mark.exists()


def test_a_refused_function_is_answered_with_those_that_are_allowed():
    with pytest.raises(InvalidInput) as caught:
        read_formula("y ~ sin(x)", COLUMNS)
    assert "`sin(x)` in the formula: sin(…) is not allowed" in str(caught.value)
    assert all(name in str(caught.value) for name in FUNCTIONS)


REFUSED = {
    "y ~ x q": "Missing operator",
    "y ~ x +": "cannot be read",
    "y ~ ": "one `~` between",
    "y = x": "one `~` between",
    "y ~ x ~ z": "one `~` between",
    "y ~ xx": "uses 'xx', which is no column of the data. Did you mean 'x'",
    "y ~ log(y)": "'y' stands on both sides",
    "y ~ x^2": r"is x itself: for its square write I\(x\*\*2\)",
    "y ~ (x": "not closed",
    "y ~ x)": "never opened",
    "y ~ `x": "not closed",
    "y ~ 1 | g": "in brackets with the grouping column",
    "y ~ x:(1|g)": r"is added with `\+`",
    "y ~ ((1|g))": "a term of their own",
    "y ~ (1|g+h)": "write two terms",
    "y ~ (1|q)": "groups by 'q'",
    "y ~ (|g)": "something left of the bar",
    "y ~ (1|g|h)": "one bar",
    "y ~ (offset(t)|g)": "offset cannot differ",
    "y ~ (0|g)": "has no terms",
    "y ~ bs(x)": r"how many columns, such as bs\(x, 4\)",
    "y ~ bs(x, 1000)": "whole number from 1 to 50",
    "y ~ bs(x, 2.5)": "whole number",
    "y ~ bs(x, knots=3)": "list of numbers",
    "y ~ log(bs(x, 4))": "outermost",
    "y ~ C(a):C(log(x))": r"write `C\(column\)`",
    "y ~ log": "is a function",
    "y ~ x + C(x) + log(x)": "as categories and as numbers",
    "y ~ 'x'": "String literals",
    "y ~ offset(x, z)": "takes one expression",
    "y ~ I(3)": "reads no column",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_cannot_be_read_is_refused_with_a_remedy(text):
    with pytest.raises(InvalidInput, match=REFUSED[text]):
        read_formula(text, COLUMNS)


SIGNS = "~ + - * : / ** ^ | ( ) [ ] { } ` ' \" , . = == \\ %in% é 0 1 2 1e9 log( bs( C( offset( I( poly("
PIECES = ["y", "x", "z", "a", "g", "my col", "`my col`", " ", *SIGNS.split()]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(PIECES), min_size=1, max_size=14))
def test_any_text_is_read_or_refused(pieces):
    """Nothing but `InvalidInput` ever comes out, whatever is typed."""
    try:
        formula = read_formula("y ~ x + " + "".join(pieces), COLUMNS)
    except InvalidInput:
        return
    assert set(formula.predictors) <= set(COLUMNS) - {"y"}


# --- the matrix


def test_numbers_categories_and_their_products():
    frame = frame_of()
    design, X = design_of("y ~ x * a + b + x:z + I(x > 2) + log(x) + {x / 2}", frame)
    u, w, q = (np.asarray(frame[name] == level, float) for name, level in (("a", "u"), ("a", "w"), ("b", "q")))
    x, z = frame["x"], frame["z"]
    expected = {
        "x": x,
        "a[u]": u,
        "a[w]": w,
        "b[q]": q,
        "I(x > 2)": x > 2,
        "log(x)": np.log(x),
        "x / 2": x / 2,
        "x:a[u]": x * u,
        "x:a[w]": x * w,
        "x:z": x * z,
    }
    assert design.names == tuple(expected)
    np.testing.assert_array_equal(X, np.column_stack(list(expected.values())))
    assert design.intercept


def test_categories_stay_of_full_rank_and_span_the_cells():
    frame = frame_of()
    for text, rank in {"y ~ a*b": 6, "y ~ 0 + a*b": 6, "y ~ 0 + a + x:a": 6, "y ~ a:b": 6, "y ~ 0 + a:b": 6}.items():
        design, X = design_of(text, frame)
        full = np.column_stack([np.ones(len(X)), X]) if design.intercept else X
        assert full.shape[1] == np.linalg.matrix_rank(full) == rank, text


def test_bases_against_their_definitions():
    frame = frame_of(200)
    x = frame["x"]
    _, X = design_of("y ~ poly(x, 3)", frame)
    np.testing.assert_allclose(
        X.T @ np.column_stack([np.ones(200), X]), np.eye(4)[1:], atol=1e-10
    )  # orthonormal, as in R
    powers = np.vander(x, 4)
    assert np.linalg.lstsq(powers, X, rcond=None)[1].max() < 1e-16
    _, B = design_of("y ~ bs(x, 5)", frame)
    inner = np.quantile(x, [1 / 3, 2 / 3])
    knots = np.r_[[x.min()] * 4, inner, [x.max()] * 4]
    np.testing.assert_allclose(B, BSpline.design_matrix(x, knots, 3).toarray()[:, 1:], atol=1e-12)  # R drops the first
    _, N = design_of("y ~ ns(x, 4)", frame)
    assert N.shape[1] == 4
    grid = np.linspace(x.max() + 1, x.max() + 3, 5)
    beyond = design_of("y ~ ns(x, 4)", frame)[0].matrix({**{k: v[:5] for k, v in frame.items()}, "x": grid})
    assert np.abs(np.diff(beyond, 2, axis=0)).max() < 1e-9  # natural: straight outside the knots
    _, S = design_of("y ~ scale(x) + center(z)", frame)
    np.testing.assert_allclose(
        S, np.column_stack([(x - x.mean()) / x.std(ddof=1), frame["z"] - frame["z"].mean()]), atol=1e-12
    )


EVERYTHING = (
    "y ~ a * x + b:z + bs(x, 5) + ns(t, 3) + poly(z, 3) + scale(x) + center(t) + log(t) + `my col` + (1 + poly(t, 2) | g) "
    "+ (b || h) + offset(log(t))"
)


def test_new_rows_get_the_same_columns_also_after_json():
    """Three rows alone: their knots, means and levels would be others."""
    frame = frame_of()
    design, X = design_of(EVERYTHING, frame)
    stored = json.loads(json.dumps(dataclasses.asdict(design)))
    stored["group_columns"] = tuple(map(tuple, stored["group_columns"]))
    again = FormulaDesign(**{key: tuple(v) if isinstance(v, list) else v for key, v in stored.items()})
    few = {name: values[10:13] for name, values in frame.items()}
    np.testing.assert_array_equal(again.matrix(few), X[10:13])
    for (*_, whole), (*_, part) in zip(design.group_matrices(frame), again.group_matrices(few), strict=True):
        np.testing.assert_array_equal(part, whole[10:13])
    np.testing.assert_allclose(again.offsets(few), [np.log(few["t"])])
    assert design.group_columns == (("intercept", "poly(t, 2)[1]", "poly(t, 2)[2]"), ("intercept", "b[q]"))
    fresh = FormulaDesign.learn(read_formula(EVERYTHING, COLUMNS), COLUMNS, few)
    assert not np.allclose(fresh.matrix(few), X[10:13])  # a mutant that learns anew would show


def test_a_response_can_be_computed():
    formula = read_formula("log(y) ~ x", COLUMNS)
    np.testing.assert_allclose(evaluate(formula.response, {"y": np.array([1.0, np.e])}), [0.0, 1.0])
