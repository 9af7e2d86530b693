"""Scores against worked examples, laws that are calibrated by construction, and laws that are not."""

import numpy as np
import pytest
from scipy import stats

from gyromc.errors import InvalidInput
from gyromc.regression import scores


def test_class_scores_by_hand():
    p = np.array([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4]])
    found = {s.name: s for s in scores.class_scores(p, np.array([0, 1, 1]), np.array([0, 0, 1, 1]))}
    brier = [2 * 0.2**2, 2 * 0.3**2, 2 * 0.6**2]
    assert found["Brier score"].value == pytest.approx(np.mean(brier))
    assert found["Brier score"].std_error == pytest.approx(np.std(brier, ddof=1) / np.sqrt(3))
    assert found["Brier score"].baseline == pytest.approx(0.5)
    assert found["Brier score"].difference_std_error == pytest.approx(np.std(brier, ddof=1) / np.sqrt(3))
    assert found["log score"].value == pytest.approx(np.mean(np.log([0.8, 0.7, 0.4])))
    assert found["log score"].baseline == pytest.approx(-np.log(2))
    assert found["log score"].better == "higher"
    assert found["accuracy"].value == pytest.approx(2 / 3)


def test_number_scores_by_hand():
    y, mean, sd = np.array([1.0, 2.0, 4.0]), np.array([1.5, 2.0, 3.0]), np.array([1.0, 2.0, 1.0])
    density = stats.norm.logpdf(y, mean, sd)
    rmse, log = scores.number_scores(mean, density, y, np.array([0.0, 2.0]))
    assert rmse.value == pytest.approx(np.sqrt((0.25 + 0 + 1) / 3))
    assert rmse.baseline == pytest.approx(np.sqrt((0 + 1 + 9) / 3))
    assert log.value == pytest.approx(np.mean(density))
    assert log.baseline == pytest.approx(np.mean(stats.norm.logpdf(y, 1, np.sqrt(2))))
    counts = scores.number_scores(mean, density, y, np.array([0.0, 2.0]), counts=True)[1]
    assert counts.baseline == pytest.approx(np.mean(stats.poisson.logpmf(y, 1)))
    assert counts.difference == pytest.approx(counts.value - counts.baseline)


def test_the_error_of_a_root_mean_square_is_the_spread_of_repeated_experiments():
    rng = np.random.default_rng(0)
    errors = rng.standard_normal((1500, 50))
    found = [scores.number_scores(np.zeros(50), np.ones(50), e, np.array([0.0, 1.0]))[0] for e in errors]
    spread = np.std([s.value for s in found])
    # the spread of 1500 is known to 1.8 % (one standard error); the delta method's own bias is about 1/n
    assert np.sqrt(np.mean([s.std_error**2 for s in found])) == pytest.approx(spread, rel=0.06)


def test_classes_that_are_calibrated_lie_on_the_diagonal_and_others_do_not():
    rng = np.random.default_rng(1)
    p = rng.uniform(size=4000)
    labels = (rng.uniform(size=4000) < p).astype(int)
    for power, misses in ((1.0, 1), (2.0, None)):
        found = scores.calibration_of_classes(np.column_stack([1 - p**power, p**power]), labels)["points"]
        off = sum(not (q["interval_95"][0] <= q["predicted"] <= q["interval_95"][1]) for q in found)
        assert sum(q["rows"] for q in found) == 4000
        assert off <= misses if misses is not None else off >= 5
    pooled = scores.calibration_of_classes(np.full((30, 3), 1 / 3), np.arange(30) % 3)["points"]
    assert sum(q["rows"] for q in pooled) == 90


@pytest.mark.parametrize("law", ["normal", "poisson"])
def test_intervals_of_the_true_law_hold_their_share(law):
    rng, n = np.random.default_rng(2), 4000
    if law == "normal":
        below = upto = stats.norm.cdf(rng.standard_normal(n))
        wide = stats.norm.cdf(rng.standard_normal(n), scale=1.3)
    else:
        y = rng.poisson(1.5, n)
        below, upto = stats.poisson.cdf(y - 1, 1.5), stats.poisson.cdf(y, 1.5)
        wide = None
    for point in scores.calibration_of_intervals(below, upto)["points"]:
        # 4 binomial standard errors; a 2 % error of the law's scale is caught below
        assert abs(point["observed"] - point["predicted"]) < 4 * np.sqrt(0.25 / n)
    if wide is not None:
        off = [p["observed"] - p["predicted"] for p in scores.calibration_of_intervals(wide, wide)["points"]]
        assert max(off) > 0.08


def test_every_class_keeps_its_share_and_a_row_in_the_training_part():
    labels = np.array([0] * 60 + [1] * 38 + [2] * 2 + [3])
    rows = scores.held_out_rows(labels, 101, 0.25, seed=3)
    assert list(np.bincount(labels[rows], minlength=4)) == [15, 10, 1, 0]
    assert np.array_equal(rows, scores.held_out_rows(labels, 101, 0.25, seed=3))
    assert not np.array_equal(rows, scores.held_out_rows(labels, 101, 0.25, seed=4))
    assert scores.held_out_rows(None, 9, 0.25, seed=0).size == 0
    assert scores.held_out_rows(None, 100, 0.0, seed=0).size == 0
    with pytest.raises(InvalidInput, match=r"between 0 .none. and 0.9: got 1"):
        scores.held_out_rows(None, 100, 1.0, seed=0)
