"""The neural-network example: it runs as a user runs it, and the full comparison says what the documentation says."""

import importlib.util
import json
import sys

import numpy as np
import pytest

import gyromc as gm
from support.values import ROOT


@pytest.fixture(scope="module")
def digits():
    spec = importlib.util.spec_from_file_location("digits_example", ROOT / "examples" / "digits.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_quick_run_learns_and_writes_its_results(digits, tmp_path, capsys):
    digits.main(["--quick", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "digits.json").read_text())
    assert (tmp_path / "digits.png").stat().st_size > 10_000
    [split] = result["splits"]
    for who in ("bayes", "mode", "point", "ensemble"):
        assert split[who]["log_score"] < 0.8 * np.log(8), who  # guessing scores log 8
        assert split[who]["entropy_unseen"] > split[who]["entropy_seen"], who
    for value in split["observables"].values():
        low, high = value["interval_95"]
        assert low <= value["mean"] <= high
    assert 0.7 < split["momentum_temperature"] < 1.3
    assert "posterior expectations by HFHR" in capsys.readouterr().out


def test_scores_are_what_they_are_called(digits):
    """Against numbers worked out by hand, for two images and eight classes."""
    p = np.full((2, 8), 0.5 / 7)
    p[0, 3] = p[1, 4] = 0.5
    m = digits.measure(p, np.full((3, 8), 1 / 8), np.array([3, 5]))
    wrong = 7 * (0.5 / 7) ** 2
    assert m["brier"] == pytest.approx((0.25 + wrong + 0.25 + 6 * (0.5 / 7) ** 2 + (1 - 0.5 / 7) ** 2) / 2)
    assert m["log_score"] == pytest.approx(-(np.log(0.5) + np.log(0.5 / 7)) / 2)
    assert m["accuracy"] == 0.5
    assert m["calibration_error"] == pytest.approx(0.0)  # half of those said with 0.5 are right
    assert m["entropy_unseen"] == pytest.approx(np.log(8))
    assert m["unseen_auroc"] == 1.0


def test_documented_figures_are_the_measured_ones():
    """The table in docs/networks.md is the one in docs/measured/digits.json."""
    page = (ROOT / "docs" / "networks.md").read_text()
    summary = json.loads((ROOT / "docs" / "measured" / "digits.json").read_text())["summary"]
    for name in ("brier", "log_score", "accuracy", "calibration_error", "unseen_auroc"):
        for who in ("bayes", "mode", "point", "ensemble", "bayes - mode", "bayes - point"):
            value = summary[name][who]
            assert f"{value['mean']:.3f} ± {value['std_error']:.3f}".replace("-", "−") in page, (name, who)


@pytest.mark.slow
def test_the_average_beats_the_point_estimate(digits, tmp_path):
    """Over the splits: better than the posterior's mode on both scores, and at what was never shown, by two standard errors."""
    digits.main(["--out", str(tmp_path)])
    summary = json.loads((tmp_path / "digits.json").read_text())["summary"]
    for name, sign in (("brier", -1), ("log_score", -1), ("unseen_auroc", 1)):
        difference = summary[name]["bayes - mode"]
        assert sign * difference["mean"] > 2 * difference["std_error"], (name, difference)


def test_the_table_of_the_tuned_sampler_is_made_from_json(tmp_path):
    """The page's command on the stored figures: every number of the table is one of the JSON; what is missing is named."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    import digits_page

    stored = json.loads((ROOT / "docs" / "measured" / "digits.json").read_text())
    for split in stored["splits"]:
        split["plan"] = {"oracle": "Exact"}
    text = digits_page.table(stored, stored)
    value = stored["summary"]["brier"]["bayes"]
    assert text.count(f"{value['mean']:.3f} ± {value['std_error']:.3f}") == 2  # both samplers are the stored one here
    assert "| – |" in text  # the stored runs have no standard errors of observables
    with pytest.raises(gm.InvalidInput, match="make it with"):
        digits_page.read(tmp_path / "none.json", "python examples/digits.py --tuned")


@pytest.mark.slow
def test_a_network_is_tuned_and_its_errors_are_measured(digits):
    model = digits.Model(digits.Settings())
    given = digits.posterior_plan(model, digits.load(0, model.settings), 0)
    given = given.replace(start=model.draw(digits.jax.random.key(0), 0.1))
    tuned = gm.tune(given, gradients=given.gradients * 32 / 200, num_chains=32)
    assert str(tuned.plan.scheme) == "hfhr_splitting"
    assert tuned.gradients <= 1.001 * given.gradients * 32 / 200
    assert all(0 < tuned[name].relative < 1 for name in given.observables)
