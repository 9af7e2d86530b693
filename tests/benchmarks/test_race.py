"""The race: its statistics on made-up answers, its references against known moments, and one competitor in a new process."""

import json
import math

import numpy as np
import pytest

from accuracy import make_references, race
from accuracy.models.record import Posterior, normal
from accuracy.posteriors import POSTERIORS

TRUTH = {
    "names": ["a", "b"],
    "mean": np.array([1.0, -2.0]),
    "sd": np.array([2.0, 0.5]),
    "error": np.zeros(2),
}


def rows(score_of_ours: float) -> list[dict]:
    """Two methods on two posteriors: NUTS takes 10 s with an error of 0.1, gyromc scores as given."""
    common = {"wall": 1.0, "gradients": None, "warnings": [], "seed": 0, "asked": 0.01}
    common |= {"median": 0.1, "worst": 0.1, "claimed": 0.1, "z2": 1.0, "largest_z": 1.0, "silent": 0}
    found = []
    for name in ("heart", "radon"):
        found.append({**common, "posterior": name, "method": "nuts", "processor": 10.0, "mean_square": 0.01})
        found.append({**common, "posterior": name, "method": "gyromc", "processor": 1.0, "mean_square": score_of_ours})
    return found


def test_answers_are_judged_in_posterior_deviations_and_claimed_errors():
    found = race.judged(np.array([1.2, -2.0]), np.array([0.05, 0.01]), TRUTH, [])
    assert found["worst"] == pytest.approx(0.1)
    assert found["worst_name"] == "a"
    assert found["mean_square"] == pytest.approx(0.005)
    assert found["largest_z"] == pytest.approx(4.0)
    assert found["z2"] == pytest.approx(8.0)
    assert found["silent"] == 0
    off = race.judged(np.array([1.21, -2.0]), np.array([0.05, 0.01]), TRUTH, [])
    assert off["silent"] == 1
    assert race.judged(np.array([1.21, -2.0]), np.array([0.05, 0.01]), TRUTH, ["not mixed"])["silent"] == 0


def test_the_error_of_the_reference_is_subtracted_and_counts_in_z():
    doubtful = TRUTH | {"error": 0.05 * TRUTH["sd"]}
    found = race.judged(TRUTH["mean"] + 0.1 * TRUTH["sd"], 0.0 * TRUTH["sd"], doubtful, [])
    assert found["mean_square"] == pytest.approx(0.01 - 0.0025)
    assert found["largest_z"] == pytest.approx(2.0)
    assert race.judged(TRUTH["mean"], TRUTH["sd"], doubtful, [])["mean_square"] == race.TINY


def test_a_missing_claim_is_no_excuse():
    found = race.judged(np.array([2.0, -2.0]), np.array([math.nan, 0.01]), TRUTH, [])
    assert found["silent"] == 1
    assert found["without_error"] == 1
    assert "failed" in race.judged(np.array([math.nan, 0.0]), np.ones(2), TRUTH, [])


def test_ratios_and_their_geometric_means():
    # NUTS scores 10 s × 0.01 = 0.1, gyromc 1 s × 0.001
    ratios = race.standing(rows(0.001), "gyromc", 0.01)
    assert ratios == pytest.approx({"heart": 100.0, "radon": 100.0})
    assert race.means({"heart": 4.0, "radon": 9.0}) == pytest.approx({"regression": 4.0, "hierarchy": 9.0, "all": 6.0})
    assert "| heart | regression | 14 |" in race.text(rows(0.001))
    assert (
        race.standing([{"posterior": "heart", "method": "gyromc", "seed": 0, "asked": 0.01, "failed": "x"}], "gyromc")
        == {}
    )


def test_one_stuck_run_does_not_decide_a_ratio():
    stuck = [
        row | {"seed": 1, "mean_square": 10_000 * row["mean_square"]} for row in rows(0.001) if row["method"] == "nuts"
    ]
    good = [row | {"seed": 1} for row in rows(0.001)]
    # scores of NUTS 0.1 and 1000: their geometric mean is 10
    assert race.standing(rows(0.001) + stuck, "gyromc", 0.01)["heart"] == pytest.approx(1e4)
    assert race.standing(rows(0.001) + good, "gyromc", 0.01)["heart"] == pytest.approx(100.0)


def test_pages_have_the_tables(tmp_path):
    page, readme = tmp_path / "accuracy.md", tmp_path / "README.md"
    markers = "<!-- {0}: begin -->\n<!-- {0}: end -->\n"
    page.write_text("".join(map(markers.format, ("race", "race seconds", "calibration"))))
    readme.write_text(markers.format("race"))
    race.write_pages(rows(0.001), 0.01, tmp_path, readme)
    assert "| heart | 1.0 |" in page.read_text()
    assert "| 1 s, " in readme.read_text()


def test_a_second_run_measures_only_what_is_missing(tmp_path, monkeypatch):
    asked = []
    answer = rows(0.001)[0]

    def one(method, name, seed, error, cores=None, limit=0.0):
        asked.append((method, name))
        return {**answer, "method": method, "posterior": name, "seed": seed, "asked": error, "worst_name": "a"}

    monkeypatch.setattr(race, "run_one", one)
    path = tmp_path / "race.json"
    race.race(["heart"], ["nuts"], 1, [0.01], path, say=lambda text: None)
    found = race.race(["heart", "radon"], ["nuts"], 1, [0.01], path, say=lambda text: None)
    assert asked == [("nuts", "heart"), ("nuts", "radon")]
    assert [row["posterior"] for row in found] == ["heart", "radon"]
    assert len(json.loads(path.read_text())["rows"]) == 2


def made_up() -> Posterior:
    """A Gaussian with standard deviations 1 and 2 around (1, -1)."""

    def density(x):
        return normal((x - np.array([1.0, -1.0])) / np.array([1.0, 2.0]))

    return Posterior("made-up", "other", "", {"x": (2,)}, density, lambda x: {"square": x**2})


def test_importance_sampling_finds_the_moments_of_a_gaussian(monkeypatch):
    monkeypatch.setattr(make_references, "SETTINGS", make_references.Settings(points=2**10))
    import jax

    with jax.enable_x64(True):
        found = make_references.by_importance(made_up())
    known = np.array([1.0, -1.0, 2.0, 5.0])
    # 16 scramblings: t with 15 degrees of freedom, |t| > 5 once in 6000
    assert np.all(np.abs(found["mean"] - known) <= 5 * found["error"])
    assert np.all(found["error"] < 0.01 * np.array([1.0, 2.0, 2.4, 6.6]))
    np.testing.assert_allclose(found["sd"][:2], [1.0, 2.0], rtol=0.01)


def test_control_variates_are_exact_for_quadratics_of_a_gaussian():
    rng, chains, count = np.random.default_rng(3), 4, 200
    draws = rng.standard_normal((chains, count, 2)) * [1.0, 2.0] + [1.0, -1.0]
    gradients = -(draws - [1.0, -1.0]) / [1.0, 4.0]
    values = np.concatenate([draws, draws**2], axis=-1)
    _, (mean, error) = make_references._corrected(draws, gradients, values)
    np.testing.assert_allclose(mean, [1.0, -1.0, 2.0, 5.0], atol=1e-6)
    assert np.all(error < 1e-6)


def test_parts_are_weighted_by_their_precision():
    part = {
        "names": ["a"],
        "method": "m",
        "sd": [1.0],
        "r_hat": 1.0,
        "divergences": 0,
        "least_effective_draws": 1.0,
        "seconds": 1.0,
    }
    found = make_references.combined([part | {"mean": [0.0], "error": [0.1]}, part | {"mean": [1.0], "error": [0.2]}])
    assert found["mean"] == pytest.approx([0.2])
    assert found["error"] == pytest.approx([(100 + 25) ** -0.5])


def test_stored_references_are_of_the_present_observables():
    if not make_references.REFERENCES.exists():
        pytest.skip("no references stored")
    entries = json.loads(make_references.REFERENCES.read_text())["posteriors"]
    for name, entry in entries.items():
        assert tuple(entry["names"]) == POSTERIORS[name]().names
        assert np.all(np.array(entry["sd"]) > 0)


@pytest.mark.slow
def test_nuts_in_a_process_of_its_own(monkeypatch):
    exact = POSTERIORS["banana"]()
    moments = exact.exact()
    truth = {"names": list(exact.names), "mean": moments.mean, "sd": moments.sd, "error": moments.error}
    monkeypatch.setattr(race, "read_reference", lambda name: truth)
    found = race.run_one("nuts", "banana", 0, 0.01)
    assert found["processor"] > 0
    assert found["z2"] < 10
