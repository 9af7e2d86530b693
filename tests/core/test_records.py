"""Results by row and by column, and names that have changed."""

import copy
import dataclasses
import pickle

import numpy as np
import pytest

import gyromc as gm
from gyromc.prediction.answers import Kind, Method
from gyromc.show.records import Column, Records


@dataclasses.dataclass(frozen=True)
class Row:
    mean: float
    std_error: float


@dataclasses.dataclass(frozen=True, eq=False)
class Table(Records[Row]):
    rows: dict[str, Row]
    mean = Column[float]("The mean.")
    std_error = Column[float]("Its error.")
    _entry, _result = "row", "table"


def test_rows_and_columns_are_the_same_numbers():
    table = Table({"x": Row(1.0, 0.1), "y": Row(2.0, 0.2)})
    assert table.mean == {"x": 1.0, "y": 2.0}
    assert table["y"].std_error == table.std_error["y"]
    assert list(table) == ["x", "y"]
    assert len(table) == 2
    assert table.mean is table.mean  # computed once
    assert Table.mean.__doc__ == "The mean."


def test_a_missing_name_is_an_error_that_lists_the_others():
    table = Table({"x": Row(1.0, 0.1)})
    assert "z" not in table
    assert table.get("z") is None
    with pytest.raises(gm.InvalidInput, match=r"^No row 'z' in this table: it has x\.$"):
        table["z"]


def test_results_are_compared_by_identity():
    table = Table({"x": Row(1.0, 0.1)})
    assert table != copy.copy(table)
    assert len({table, copy.copy(table)}) == 2


def test_a_method_is_its_text_with_a_kind():
    method = pickle.loads(pickle.dumps(Method(Kind.GALERKIN, "galerkin (degree 12)")))
    assert method == "galerkin (degree 12)"
    assert method.kind is Kind.GALERKIN
    assert Method(Kind.EXACT).exact
    assert not Method(Kind.GAUSSIAN_LAW).exact


def test_prediction_run_and_estimates_share_their_vocabulary():
    """What is predicted is what comes out: mean and standard error, within 5 standard errors (10 % for the error itself)."""
    plan = gm.Plan(
        target=gm.targets.Quadratic([1.0, 4.0]),
        dynamics=gm.dynamics.overdamped(2),
        observables={"x": gm.observables.linear([1.0, 0.0]), "x²": gm.observables.square([1.0, 0.0])},
        step_size=0.05,
        num_chains=2000,
    )
    pred, run = gm.predict(plan), gm.run(plan, progress=False)
    found = gm.estimate(run)
    assert found.warnings == []
    for result in (pred, run, found):
        assert list(result) == ["x", "x²"]
        for field in ("mean", "std_error", "variance"):
            for name in result:
                assert getattr(result, field)[name] == getattr(result[name], field)
        for text in (repr(result), result._repr_html_()):
            assert "x²" in text
    for name in plan.observables:
        assert abs(run.mean[name] - pred.mean[name]) < 5 * pred.std_error[name]
        assert run.std_error[name] == pytest.approx(pred.std_error[name], rel=0.1)
        np.testing.assert_array_equal(run[name].averages, run.averages[name])
    assert repr(run["x"]).startswith("<Average: ")
    assert "by replicate chains" in repr(found["x"])
