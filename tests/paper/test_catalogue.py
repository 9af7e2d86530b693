"""The twelve experiments are the paper's: step sizes, matrices, dimensions and constants that are known in closed form."""

import dataclasses
import json

import numpy as np
import pytest
from typer.testing import CliRunner

import gyromc as gm
from gyromc.app.cli import app
from gyromc.errors import InvalidInput
from gyromc.paper import CATALOGUE, PROFILES
from gyromc.paper.catalogue import select
from gyromc.paper.computation import fingerprint
from support.values import ROOT

NAMES = [
    "nld-quadratic", "hfhr-quadratic", "gaul-quadratic", "nld-nonquadratic", "hfhr-nonquadratic", "gaul-nonquadratic",
    "linear-nld", "linear-hfhr", "linear-gaul", "logistic-nld", "logistic-hfhr", "logistic-gaul",
]  # fmt: skip


def test_twelve_experiments_with_the_published_step_sizes():
    assert list(CATALOGUE) == NAMES
    basic, linear = CATALOGUE["gaul-nonquadratic"].step_sizes, [CATALOGUE[n].step_sizes for n in NAMES[6:9]]
    np.testing.assert_allclose(basic, [0.1 / 2**k for k in range(7)], rtol=1e-15)
    assert linear[0] == (0.05, 0.025, 0.0125, 0.00625, 0.003125, 0.0015625)
    assert linear[1] == (0.025, 0.0125, 0.00625, 0.003125, 0.0015625, 0.00078125)
    assert linear[2] == (0.025, 0.0125, 0.00625, 0.003125, 0.0015625)
    assert CATALOGUE["logistic-nld"].step_sizes == (0.01, 0.005, 0.0025, 0.00125)
    # 3 × 7 + 6 + 6 + 5 step sizes on Gaussian targets, two dynamics each: the 76 cells with exact answers.
    gaussian = [e for e in CATALOGUE.values() if e.problem.gaussian]
    assert 2 * sum(len(e.step_sizes) for e in gaussian) == 76
    assert PROFILES["paper"].num_chains[CATALOGUE["logistic-nld"].problem.family] == 2000


@pytest.mark.parametrize("name", NAMES)
def test_plans_follow_the_paper(name):
    experiment = CATALOGUE[name]
    eta = experiment.step_sizes[-1]
    plan = experiment.plan(eta)
    assert plan.num_steps == round(eta**-2)
    assert plan.num_chains == 2000
    assert not plan.dynamics.is_reversible
    baseline = experiment.plan(eta, "reversible")
    assert not baseline.dynamics.Q.any()
    np.testing.assert_array_equal(baseline.dynamics.D, plan.dynamics.D)
    sgld = experiment.plan(eta, "sgld")
    np.testing.assert_array_equal(sgld.dynamics.D, np.eye(plan.dim))
    assert baseline.seed == plan.seed == sgld.seed
    assert {"start", "seed", "dtype"} <= set(experiment.choices)


@pytest.mark.parametrize(
    ("name", "V", "V0"),
    [
        ("nld-quadratic", 0.5, 2.0),
        ("hfhr-quadratic", 4 / 3, 2.0),
        ("gaul-quadratic", 16 / 9, 1 / 0.46875 + 1 / 1.46875),
    ],
)
def test_quadratic_constants(name, V, V0):
    """The paper's §5: to 12 digits."""
    plan = CATALOGUE[name].plan(0.05, num_chains=1)
    predicted = gm.predict(plan.replace(observables={"h": plan.observables["h"]}))
    assert predicted.variance["h"] == pytest.approx(V, rel=1e-12)
    assert predicted.reversible_variance["h"] == pytest.approx(V0, rel=1e-12)
    assert predicted.expectation["h"] == 0


def test_logistic_plans_watch_every_test_row():
    experiment = CATALOGUE["logistic-hfhr"]
    plan = experiment.plan(0.01)
    assert plan.dim == 14
    assert plan.dynamics.size == 28
    assert len(plan.observables) == 68
    assert experiment.problem.primary == "row 0"
    assert {"split_seed", "test_row", "ddof"} <= set(experiment.choices)
    other = dataclasses.replace(experiment, problem=dataclasses.replace(experiment.problem, split_seed=1))
    assert fingerprint(other.plan(0.01), "scan") != fingerprint(plan, "scan")
    with pytest.raises(InvalidInput, match="test_row"):
        dataclasses.replace(experiment.problem, test_row=68)


def test_equal_plans_have_equal_names_and_different_ones_do_not():
    hfhr, gaul = CATALOGUE["hfhr-quadratic"], CATALOGUE["gaul-quadratic"]
    one = fingerprint(hfhr.plan(0.1, "sgld", num_chains=10), "scan")
    assert one == fingerprint(gaul.plan(0.1, "sgld", num_chains=10), "scan")
    assert one == fingerprint(CATALOGUE["nld-quadratic"].plan(0.1, "reversible", num_chains=10), "scan")
    others = {
        fingerprint(hfhr.plan(0.1, "sgld", num_chains=10), "lanes"),
        fingerprint(hfhr.plan(0.1, "sgld", num_chains=11), "scan"),
        fingerprint(hfhr.plan(0.05, "sgld", num_chains=10), "scan"),
        fingerprint(hfhr.plan(0.1, "reversible", num_chains=10), "scan"),
        fingerprint(hfhr.plan(0.1, "sgld", num_chains=10, seed=5), "scan"),
        fingerprint(CATALOGUE["hfhr-nonquadratic"].plan(0.1, "sgld", num_chains=10), "scan"),
    }
    assert one not in others
    assert len(others) == 6
    with pytest.raises(InvalidInput, match="function"):
        fingerprint(hfhr.plan(0.1).replace(observables={"f": lambda theta: theta[0]}), "scan")


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(InvalidInput, match="Did you mean 'linear-hfhr'"):
        select(["linear-hfrh"])
    assert len(select()) == 12
    assert [e.seed for e in select(["nld-quadratic"], seed=3)] == [3]
    with pytest.raises(InvalidInput, match="seed"):
        select(seed=-1)


def test_list_shows_costs():
    result = CliRunner().invoke(app, ["list", "--json"])
    assert result.exit_code == 0
    rows = json.loads(result.stdout)
    assert [row["name"] for row in rows] == NAMES
    by_name = {row["name"]: row["cost"]["paper"]["chain_steps"] for row in rows}
    # Two dynamics, 2000 chains, 100·(1 + 4 + … + 4⁶) steps.
    assert by_name["nld-quadratic"] == 2 * 2000 * 546_100
    assert "nld-quadratic" in CliRunner().invoke(app, ["list"]).stdout


def test_the_quick_step_sizes_show_every_comparison_that_the_paper_profile_refutes():
    """Every RMSE comparison that fails at some published step size fails at one that the quick profile runs."""
    experiments = json.loads((ROOT / "docs" / "reproduction" / "results.json").read_text())["experiments"]
    refuted = 0
    for name, found in experiments.items():
        run = {f"η = {eta:g}" for eta in PROFILES["quick"].step_sizes(CATALOGUE[name])}
        for claim in found["claims"]:
            if claim["key"].startswith("smaller-error") and claim["verdict"] == "refuted":
                refuted += 1
                assert any(item["verdict"] == "refuted" for item in claim["items"] if item["where"] in run), name
    assert refuted == 6
    assert PROFILES["paper"].step_sizes(CATALOGUE["logistic-hfhr"]) == CATALOGUE["logistic-hfhr"].step_sizes
