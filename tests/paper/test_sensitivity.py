"""Claim (i) over other data, test rows and starts: which variants there are, and how their ratios are computed."""

import numpy as np
import pytest
from typer.testing import CliRunner

import gyromc as gm
from gyromc.app.cli import app
from gyromc.paper import CATALOGUE
from gyromc.paper.catalogue import PROFILES, variants
from gyromc.paper.claims import rmse_ratio


def test_variants_differ_in_data_noise_and_start():
    for name, count in (("logistic-nld", 10), ("linear-nld", 20), ("nld-nonquadratic", 2)):
        made = variants(CATALOGUE[name])
        assert len(made) == len({e.name for e in made}) == count
        assert {e.start for e in made} == {0.0, 1.0}
        assert made[0].choices == CATALOGUE[name].choices
    first, second = variants(CATALOGUE["logistic-nld"])[:2]
    assert (first.problem.split_seed, second.problem.split_seed) == (0, 1)
    assert first.noise_seed(0.01) != second.noise_seed(0.01)
    assert not np.array_equal(first.problem.split.X_test, second.problem.split.X_test)
    assert np.all(np.asarray(variants(CATALOGUE["linear-nld"])[-1].plan(0.05).starts.theta) == 1.0)


def test_ratios_of_many_observables_are_those_of_each():
    rng = np.random.default_rng(0)
    ours, theirs = rng.standard_normal((50, 3)), 2 * rng.standard_normal((50, 3))
    ours[4, 1] = np.nan
    together = rmse_ratio(ours, theirs)
    for j in range(3):
        alone = rmse_ratio(ours[:, j], theirs[:, j])
        np.testing.assert_allclose([part[j] for part in together], alone, rtol=1e-5)
    kept = np.arange(50) != 4
    assert together[0][1] == pytest.approx(np.sqrt(np.mean(ours[kept, 1] ** 2) / np.mean(theirs[kept, 1] ** 2)))


def test_only_the_paper_profile_has_the_study():
    assert PROFILES["quick"].sensitivity is None
    study = PROFILES["paper"].sensitivity
    for experiment in CATALOGUE.values():
        assert study.step_sizes(experiment) == experiment.step_sizes


@pytest.mark.parametrize(("arguments", "studied"), [([], True), (["--no-sensitivity"], False)])
def test_the_study_can_be_left_out(arguments, studied, monkeypatch, tmp_path):
    seen = []

    def stop(experiments, profile, *_):
        seen.append(profile.sensitivity is not None)
        raise gm.InvalidInput("enough")

    monkeypatch.setattr("gyromc.paper.reproduction.Computation", stop)
    command = ["reproduce", "nld-quadratic", "--profile", "paper", "--out", str(tmp_path), *arguments]
    CliRunner().invoke(app, command)
    assert seen == [studied]
