"""`gyromc fit` on Parquet files that are read in pieces: the answers of the ordinary fit, and what is refused."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

import gyromc as gm
from gyromc.app.output import answer
from gyromc.data import Batches
from gyromc.regression.fit import fit
from gyromc.regression.streamed import fit_streamed, learn
from gyromc.tables import study
from gyromc.tables.request import Request

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

RNG = np.random.default_rng(0)
N = 4000
X = np.stack([RNG.normal(2000, 5, N), RNG.exponential(3, N), (RNG.random(N) < 0.1).astype(float)], axis=1)
T = 0.05 * (X[:, 0] - 2000) - 0.2 * X[:, 1] + X[:, 2]
Y = {"linear": 3 + T + RNG.normal(0, 2, N), "logistic": (RNG.random(N) < 1 / (1 + np.exp(-T))).astype(int)}
Y["poisson"] = RNG.poisson(np.exp(0.3 * T))
NAMES = ["year", "size", "sick"]


@pytest.fixture(autouse=True)
def _small_files_are_large(monkeypatch):
    monkeypatch.setattr(study, "LARGE", 1000)


def written(folder, family, **more):
    path = folder / "rows.parquet"
    columns = {name: X[:, j] for j, name in enumerate(NAMES)} | {"y": Y[family]} | more
    pq.write_table(pa.table(columns), path, row_group_size=1500)
    return str(path)


def test_one_pass_learns_the_columns(monkeypatch):
    monkeypatch.setattr("gyromc.data.source.BLOCK_NUMBERS", 333)
    found = learn(Batches([(X[:1700], Y["linear"][:1700]), (X[1700:], Y["linear"][1700:])], N), sample=50)
    every = np.concatenate([X, Y["linear"][:, None]], axis=1)
    mean, sd = found.sums.moments()
    assert np.allclose(mean, every.mean(axis=0), rtol=1e-12)
    assert np.allclose(sd, every.std(axis=0), rtol=1e-9)
    assert found.sums.two_values.tolist() == [False, False, True, False]
    assert {tuple(row) for row in found.sample[0]} <= {tuple(row) for row in X}
    assert len({tuple(row) for row in found.sample[0]}) == 50


@pytest.mark.parametrize("family", ["linear", pytest.param("poisson", marks=pytest.mark.slow)])
def test_coefficients_are_those_of_the_ordinary_fit(family):
    y = np.asarray(Y[family], float)
    found = fit_streamed(Batches([(X[:1700], y[:1700]), (X[1700:], y[1700:])], N), family, names=NAMES)
    wanted = fit(X, y, family, names=NAMES)
    for one, other in zip(found.coefficients, wanted.coefficients, strict=True):
        assert one.name == other.name
        assert abs(one.mean - other.mean) < 5 * np.hypot(one.std_error, other.std_error) + 1e-6 * other.sd
        assert one.sd == pytest.approx(other.sd, rel=1e-6 if family == "linear" else 0.05)
        assert one.std_error <= 0.021 * one.sd


class AtTheMode(dict):
    """In the place of `expect`, whose chains take long to compile: every mean is the value at the mode, with no error."""

    def __init__(self, plan, observables, error, **options):
        at = {name: float(h(plan.model.mode)) for name, h in observables.items()}
        super().__init__({name: SimpleNamespace(mean=x, std_error=0.0) for name, x in at.items()})
        self.account, self.warnings = SimpleNamespace(sentence=lambda: "none"), []


@pytest.mark.parametrize("chains", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["mode", "chains"])
def test_a_large_file_is_fitted_in_pieces_and_checked_on_a_sample(chains, tmp_path, monkeypatch, capsys):
    if not chains:
        monkeypatch.setattr("gyromc.regression.streamed.expect", AtTheMode)
    monkeypatch.setattr("gyromc.tables.datatable.read_table", lambda *a, **k: pytest.fail("read into memory"))
    monkeypatch.setattr(
        study, "_check_sample", lambda *given: {"rows": 7, "verdicts": ["Model: fine."], "held_out": None}
    )
    request = Request(
        data=written(tmp_path, "logistic", id=np.arange(N)), target="y", drop=["id"], out=str(tmp_path / "out")
    )
    assert study.is_large(request)
    said = []
    directory, results = study.large_study(request, said.append)
    assert results == json.loads((directory / "fit.json").read_text())
    assert results["model"]["family"] == "logistic"
    assert [c["name"] for c in results["coefficients"]] == ["intercept", *NAMES]
    assert any("sample" in line for line in said)
    mode, sd = _mode_and_spread()
    for one, where, width in zip(results["coefficients"], mode, sd, strict=True):
        assert one["mean"] == pytest.approx(
            where, abs=(0.2 if chains else 0.001) * width
        )  # the mean is not the mode, but near it
        assert one["sd"] == pytest.approx(width, rel=1e-4)
    shown = study.large_tables(results)
    assert "On a sample of 7 rows" in shown[-1]
    assert all(name in shown[1].html() for name in ("intercept", *NAMES))
    answer(False, results, *shown)
    assert "year" in capsys.readouterr().out


def _mode_and_spread():
    """Of the same model in memory, in the user's units."""
    from gyromc.regression.problem import Problem
    from gyromc.regression.standardised import standardise
    from gyromc.targets.families import Bernoulli

    names = tuple(NAMES)
    standard = standardise(Problem("logistic", Bernoulli(), X, Y["logistic"].astype(float), names, None, True, 2.5, {}))
    model, (T, offset) = gm.Model(standard.target), standard.units.coefficients(np.eye(1))
    return T @ model.mode + offset, np.sqrt(np.diag(T @ np.linalg.inv(model.precision) @ T.T))


@pytest.mark.slow
def test_the_sample_has_its_own_report(tmp_path, monkeypatch):
    monkeypatch.setattr("gyromc.regression.streamed.SAMPLE", 900)
    request = Request(data=written(tmp_path, "linear"), target="y", family="linear", out=str(tmp_path / "out"))
    directory, results = study.large_study(request)
    assert results["sample"]["verdicts"]
    assert (directory / "sample_report.html").stat().st_size > 1000


@pytest.mark.parametrize(
    "option", [{"weights": "size"}, {"impute": True}, {"formula": "y ~ size"}, {"predict": "new.csv"}]
)
def test_options_that_need_all_rows_are_refused(option, tmp_path):
    request = Request(data=written(tmp_path, "logistic"), out=str(tmp_path / "out"), **{"target": "y"} | option)
    with pytest.raises(gm.InvalidInput, match=f"read in pieces, and `--{next(iter(option))}` needs all rows"):
        study.large_study(request)


def test_what_is_not_numbers_or_has_no_family_is_refused(tmp_path):
    given = {"out": str(tmp_path / "out"), "target": "y"}
    with pytest.raises(gm.InvalidInput, match=r"'name' of .* holds string"):
        study.large_study(Request(data=written(tmp_path, "logistic", name=["a"] * N), **given))
    with pytest.raises(gm.InvalidInput, match="linear or poisson"):
        study.large_study(Request(data=written(tmp_path, "poisson"), **given))
    with pytest.raises(gm.InvalidInput, match="only linear, logistic, poisson"):
        study.large_study(Request(data=written(tmp_path, "poisson"), family="gamma", **given))
    with pytest.raises(gm.InvalidInput, match="no column salary"):
        study.large_study(Request(data=written(tmp_path, "poisson"), columns=["salary"], **given))
    assert not (tmp_path / "out").exists()


def test_small_files_and_few_columns_are_read_as_before(tmp_path, monkeypatch):
    monkeypatch.setattr(study, "LARGE", 4 * N)
    path = written(tmp_path, "logistic")
    assert study.is_large(Request(data=path, target="y"))
    assert not study.is_large(Request(data=path, target="y", columns=["size,year"]))
    assert not study.is_large(Request(data=str(tmp_path / "none.parquet"), target="y"))
    (tmp_path / "rows.csv").write_text("a,y\n1,2\n")
    assert not study.is_large(Request(data=str(tmp_path / "rows.csv"), target="y"))
    monkeypatch.setattr(study, "free_memory", lambda: 10)
    with pytest.raises(gm.InvalidInput, match="Write it as Parquet"):
        study.is_large(Request(data=str(tmp_path / "rows.csv"), target="y"))
