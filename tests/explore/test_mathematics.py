"""The page's mathematics against the package, to four digits, on a table of settings; and its chains against exact moments."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from gyromc.explore.server import FOLDER
from support import explorer as vectors

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="no Node.js on this machine")
CHECK = Path(__file__).with_name("check.mjs")
TABLE = json.loads(vectors.FILE.read_text())
FOUR_DIGITS = 1e-4
ROUNDING = 1e-9


def in_javascript(what, folder=FOLDER, cases=()):
    """What the functions in the folder give for some cases of the table, or for all."""
    command = [
        str(NODE),
        str(CHECK),
        str(folder),
        str(vectors.FILE),
        what,
        *([",".join(map(str, cases))] if cases else []),
    ]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout)


def disagreements(what, folder=FOLDER, cases=()):
    """The numbers of the page that differ from the table in the fourth digit."""
    found = []
    expected_of = [TABLE[what][k] for k in cases] if cases else TABLE[what]
    for asked, values in zip(expected_of, in_javascript(what, folder, cases), strict=True):
        for name, expected in asked["expected"].items():
            if name == "largest_step_size" and _noise_decides(asked):
                assert values[name] < expected
            elif not abs(values[name] - expected) <= FOUR_DIGITS * abs(expected) + ROUNDING:
                found.append((asked["settings"]["dynamics"], asked["scheme"], name, expected, values[name]))
    return found


def _noise_decides(asked):
    """The page's limit also asks that the scheme can draw its noise; the package raises for such a step instead."""
    return asked["tau"] > 0 and asked["scheme"] in ("leimkuhler_matthews", "hfhr_splitting")


ON_COSINE = [0, 2]  # one in two dimensions and one with momentum, both with noise; the others only with the slow tests


@needs_node
@pytest.mark.parametrize(
    ("what", "cases"),
    [
        pytest.param("gaussian", (), id="gaussian"),
        pytest.param("cosine", ON_COSINE, id="cosine"),
        pytest.param("bent", (), id="bent"),
        pytest.param("cosine", (), marks=pytest.mark.slow, id="cosine-all"),
    ],
)
def test_v_bias_and_errors_equal_those_of_predict(what, cases):
    assert [TABLE["cosine"][k]["settings"]["dynamics"] for k in ON_COSINE] == ["rotation", "hfhr"]
    assert disagreements(what, cases=cases) == []


@needs_node
def test_the_chains_on_the_screen_have_their_exact_moments():
    scores = [abs(z) for pair in in_javascript("chains") for z in pair]
    assert max(scores) < 4  # 34 standard normals: beyond 4 once in 500 times


MUTANTS = {
    "E8": ("gaussian.mjs", "return 2 * dot(w, apply(D, w));", "return 2.001 * dot(w, apply(D, w));"),
    "E6": ("gaussian.mjs", "return 8 * inner(times(Psi, D)", "return 8.004 * inner(times(Psi, D)"),
    "oracle's noise": (
        "gaussian.mjs",
        "times(spread, transpose(spread)), tau ** 2)",
        "times(spread, transpose(spread)), tau)",
    ),
    "balanced": (
        "schemes.mjs",
        "secondMoment(dynamics, K, tau)), -(eta ** 2));",
        "secondMoment(dynamics, K, 0)), -(eta ** 2));",
    ),
    "Adams-Bashforth": ("schemes.mjs", "add(D, Q, 1.5), -eta)", "add(D, Q, 1.49), -eta)"),
    "splitting": ("schemes.mjs", "const reach = (eta / 2) * (1 + decay);", "const reach = eta;"),
    "GAUL": ("dynamics.mjs", "c.map((v) => (1 + v) / 2)", "c.map((v) => (1.001 + v) / 2)"),
}


@needs_node
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_wrong_formula_is_seen(mutant, tmp_path):
    file, right, wrong = MUTANTS[mutant]
    shutil.copytree(FOLDER / "js", tmp_path / "js")
    text = (tmp_path / "js" / file).read_text()
    assert text.count(right) == 1
    (tmp_path / "js" / file).write_text(text.replace(right, wrong))
    assert disagreements("gaussian", tmp_path)


def same(first, second):
    assert first.keys() == second.keys()
    for name in first:
        assert first[name] == pytest.approx(second[name], rel=1e-7, abs=1e-10)


@pytest.mark.parametrize("place", [0, 4, 9, 14])
def test_the_table_is_what_predict_says_today(place):
    assert TABLE["gaussian"][place] == {**vectors.GAUSSIANS[place], "expected": TABLE["gaussian"][place]["expected"]}
    same(vectors.on_gaussian(vectors.GAUSSIANS[place]), TABLE["gaussian"][place]["expected"])


@pytest.mark.slow
def test_the_whole_table_is_what_predict_says_today():
    today = vectors.table()
    assert today["command"] == TABLE["command"]
    for what in ("gaussian", "cosine", "bent"):
        for now, stored in zip(today[what], TABLE[what], strict=True):
            same(now.pop("expected"), stored["expected"])
            assert now == {name: value for name, value in stored.items() if name != "expected"}


@pytest.mark.slow
@pytest.mark.parametrize(("what", "predicted"), [("cosine", vectors.on_ripples), ("bent", vectors.on_banana)])
def test_what_predict_says_beyond_gaussians_is_right_within_its_errors(what, predicted):
    for case in TABLE[what]:
        row, exact = predicted(case), case["expected"]
        assert abs(row.variance - exact["variance"]) <= 4 * row.variance_error < 0.3 * row.variance
        assert abs(row.reversible_variance - exact["reversible_variance"]) <= 4 * row.reversible_variance_error
        if "std" in exact:
            assert abs(row.bias - exact["bias"]) <= row.bias_error + row.expectation_error
            assert abs(row.std - exact["std"]) <= 2 * row.std_uncertainty
            assert row.std == pytest.approx(exact["std"], rel=0.25)


def test_the_posterior_of_the_page_is_that_of_the_heart_data():
    stored, today = json.loads(vectors.POSTERIOR.read_text()), vectors.posterior()
    assert stored["command"] == vectors.COMMAND
    for name in ("mode", "scale"):
        assert stored[name] == pytest.approx(today[name], rel=1e-6)
    assert sum(row[2] for row in stored["rows"]) == 270
    assert [row[2:] for row in stored["rows"]] == [row[2:] for row in today["rows"]]
