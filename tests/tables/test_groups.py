"""Group effects: the deviations of the levels in the table, the file, the figure and the model; the intraclass correlation."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

import gyromc as gm
from gyromc.regression.draws import GroupDraws
from gyromc.regression.problem import GroupTerm
from gyromc.tables.effects import group_findings, level_table
from gyromc.tables.encoding import DesignRows
from gyromc.tables.request import Request
from gyromc.tables.study import study
from gyromc.targets.families import FAMILIES


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(4)
    level = np.repeat(np.arange(14), 8)
    x = rng.normal(size=level.size)
    y = 5 + 2 * x + 3 * rng.normal(size=14)[level] + rng.normal(size=level.size)
    return pd.DataFrame({"Score": 1000 * y, "x": x, "School": [f"s{i}" for i in level]})


@pytest.fixture(scope="module")
def fitted(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("groups")
    table.to_csv(folder / "schools.csv", index=False)
    request = Request(
        data=str(folder / "schools.csv"),
        formula="Score ~ x + (1 + x | School)",
        family="linear",
        test_fraction=0.0,
        out=str(folder / "out"),
        save=str(folder / "m.gyromc"),
    )
    return (*study(request), gm.load(folder / "m.gyromc"))


def test_title_and_sentence_name_the_groups(fitted):
    _, results, model = fitted
    assert results["model"]["title"] == "linear regression with groups of School"
    assert (
        "Each of the 14 levels of School has its own intercept and its own slope of x" in results["model"]["sentence"]
    )
    assert "Linear regression of Score with groups of School" in str(model)


def test_levels_are_the_same_in_every_place(fitted):
    folder, results, model = fitted
    (found,) = results["groups"]
    file = pd.read_csv(folder / "groups.csv")
    frame = model.groups["School"]
    draws = model.posterior.groups[0].deviations.reshape(-1, 14, 2)
    assert file["mean"].to_numpy() == pytest.approx(draws.mean(axis=0).ravel())
    assert frame["low_95"].to_numpy() == pytest.approx(np.quantile(draws, 0.025, axis=0).ravel())
    assert [row["mean"] for row in found["rows"]] == pytest.approx(frame["mean"].tolist())
    assert set(file["rows"]) == {8}
    shown = level_table(found)
    assert shown.columns[:3] == ["level", "rows", "intercept"]
    assert len(shown.rows) == 12
    assert "the 6 lowest and highest of 14 levels" in shown.notes[0]
    page = (folder / "report.html").read_text()
    assert "Deviations of the levels of School" in page
    assert page.count('alt="Deviations of the levels') == 1
    assert model.plot("groups").axes[0].get_title(loc="left") == "intercept | School"


def test_icc_is_the_share_of_the_variance_between_levels(fitted, table):
    _, results, model = fitted
    group, sigma = model.posterior.groups[0], model.posterior.given[0]
    Z = np.column_stack([np.ones(len(table)), table["x"]])
    covariance = group.root @ np.swapaxes(group.root, -1, -2)
    between = np.mean([np.einsum("i,cdij,j->cd", z, covariance, z) for z in Z], axis=0)
    exact = (between / (between + sigma**2)).mean()
    assert results["groups"][0]["share"]["mean"] == pytest.approx(exact)


@pytest.mark.parametrize(
    ("family", "given", "noise"),
    [
        ("poisson", (), np.log1p(1 / 4)),
        ("negative-binomial", (2.0,), np.log1p(1 / 4 + 1 / 2)),
        ("gamma", (5.0,), np.log1p(1 / 5)),
        ("logistic", (), np.pi**2 / 3),
        ("linear", (3.0,), 9.0),
    ],
)
def test_noise_of_each_link(family, given, noise):
    """With a standard deviation of 2 between levels the ICC is 4/(4 + noise), in closed form."""
    term = GroupTerm("g", ("intercept",), np.ones((4, 1)), np.array([0, 0, 1, 1]), ("a", "b"))
    draws = GroupDraws("g", ("intercept",), ("a", "b"), np.zeros((2, 3, 2, 1)), np.full((2, 3, 1, 1), 2.0))
    posterior = SimpleNamespace(
        likelihood=FAMILIES[family](), theta=np.zeros((2, 3, 1)), given=tuple(np.full((2, 3), g) for g in given)
    )
    fit = SimpleNamespace(groups={"g": draws}, posterior=posterior)
    (found,) = group_findings(fit, DesignRows(np.zeros((4, 0)), (term,)), np.array([2.0, 6.0, 3.0, 5.0]))
    assert found["share"]["mean"] == pytest.approx(4 / (4 + noise))
