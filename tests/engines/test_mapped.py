"""Engine `lanes` over mapped files: the chains of the same rows in memory, whatever the files' types and the pages given back."""

import mmap

import numpy as np
import pytest

import gyromc as gm
from gyromc.data import Mapped, Sequenced
from gyromc.engines import lanes
from gyromc.engines.lanes import program
from gyromc.engines.lanes.gradients import Part, fits_in_place
from gyromc.targets.regressions import BY_FAMILY
from gyromc.targets.streamed import StreamedRegression
from support.values import chunks_of

RNG = np.random.default_rng(1)
N, D = 3000, 5
X = (RNG.standard_normal((N, D)) / 2).astype(np.float32)
T = X @ np.linspace(-1, 1, D)
RESPONSES = {
    "linear": T + RNG.standard_normal(N),
    "logistic": RNG.random(N) < 1 / (1 + np.exp(-T)),
    "poisson": RNG.poisson(np.exp(T)),
}


def averages(target, oracle, dtype="float32", **options):
    plan = gm.Plan(
        target=target, dynamics=gm.dynamics.overdamped(D), oracle=oracle, step_size=1e-4, num_steps=40, num_chains=5, dtype=dtype,
        observables={"first": gm.observables.linear(np.eye(D)[0]), "sum": gm.observables.linear(np.ones(D))},
    )  # fmt: skip
    run = gm.run(plan, "lanes", progress=False, **options)
    return np.stack([run.averages[name] for name in ("first", "sum")])


def mapped(folder, family, X=X, kind=np.float32, **options):
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", np.asarray(RESPONSES[family], kind))
    return StreamedRegression(Mapped(folder / "X.npy", folder / "y.npy", **options), family, 2.0)


def memory(family, X=X, kind=np.float32):
    return BY_FAMILY[family](X, np.asarray(RESPONSES[family], kind), 2.0)


@pytest.mark.parametrize(
    "oracle", [gm.oracles.Minibatch(21), gm.oracles.Minibatch(16, replace=False)], ids=lambda o: o.name
)
@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_chains_are_those_in_memory_bit_for_bit(family, oracle, tmp_path):
    assert np.array_equal(averages(mapped(tmp_path, family), oracle), averages(memory(family), oracle))


@pytest.mark.parametrize(
    "oracle", [gm.oracles.ControlVariate(9), gm.oracles.ControlVariate(9, order=2)], ids=lambda o: o.name
)
@pytest.mark.parametrize("family", ["linear", "logistic", "poisson"])
def test_control_variates_are_those_in_memory_up_to_rounding(family, oracle, tmp_path):
    found, wanted = averages(mapped(tmp_path, family), oracle), averages(memory(family), oracle)
    plain = averages(memory(family), gm.oracles.Minibatch(9))
    assert np.allclose(found, wanted, atol=2e-6)
    assert np.abs(plain - wanted).max() > 1e-4  # so that another oracle would be seen


def test_pages_given_back_after_every_step_change_nothing(tmp_path, monkeypatch):
    wanted, given = averages(mapped(tmp_path, "logistic", resident=None), gm.oracles.Minibatch(21)), []
    monkeypatch.setattr("gyromc.data.mapped.KEEP", 1e9)
    monkeypatch.setattr(Mapped, "release", lambda self, own=Mapped.release: (given.append(1), own(self)))
    target = mapped(tmp_path, "logistic", resident=2**21)
    given.clear()
    with chunks_of(10):
        assert np.array_equal(averages(target, gm.oracles.Minibatch(21)), wanted)
    assert len(given) == 40


def test_a_plan_that_reads_many_rows_keeps_the_pages(tmp_path):
    target = mapped(tmp_path, "logistic", resident=2**21)
    plan = gm.Plan(
        target=target, dynamics=gm.dynamics.overdamped(D), oracle=gm.oracles.Minibatch(21), step_size=1e-4, num_steps=400,
        observables={"x": gm.observables.linear(np.eye(D)[0])}, num_chains=5,
    )  # fmt: skip
    state = lanes.initial_state(plan)
    assert lanes.Session(plan, state, 1e8, None, 0).until_release is None
    assert lanes.Session(plan.replace(num_steps=2), state, 1e8, None, 0).until_release == 1


@pytest.mark.parametrize(
    "oracle", [gm.oracles.Minibatch(70), gm.oracles.ControlVariate(70, order=2)], ids=lambda o: o.name
)
def test_rows_that_are_copied_and_rows_in_place_give_the_same_bits(oracle, tmp_path, monkeypatch):
    target = mapped(tmp_path, "logistic")
    plan = gm.Plan(
        target=target, dynamics=gm.dynamics.overdamped(D), oracle=oracle, step_size=1e-4, num_steps=40, num_chains=5,
        observables={"x": gm.observables.linear(np.eye(D)[0])},
    )  # fmt: skip
    assert program.compile_program(plan, 1e8, None).part == Part.IN_PLACE_BATCH
    found = averages(target, oracle)
    monkeypatch.setattr("gyromc.engines.lanes.gradients.fits_in_place", lambda source, width: False)
    assert program.compile_program(plan, 1e8, None).part == Part.MAPPED_BATCH
    assert np.array_equal(averages(target, oracle), found)


def test_rows_are_read_in_place_where_the_last_page_holds_what_follows_them(tmp_path):
    page = mmap.PAGESIZE // 4  # numbers; the header of a file has 32
    for left, fits in ((16, True), (15, True), (14, False), (0, False)):
        np.save(tmp_path / "X.npy", np.zeros((page - 32 - left, 1), np.float32))
        np.save(tmp_path / "y.npy", np.zeros(page - 32 - left, np.float32))
        assert fits_in_place(Mapped(tmp_path / "X.npy", tmp_path / "y.npy"), 16) is fits, left


@pytest.mark.slow
def test_a_file_of_doubles_is_rounded_row_by_row(tmp_path):
    wide, oracle = X.astype(float) * (1 + 1e-9), gm.oracles.Minibatch(21)
    found = averages(mapped(tmp_path, "logistic", wide, np.int8), oracle)
    assert np.array_equal(found, averages(memory("logistic", wide, np.int8), oracle))


@pytest.mark.slow
def test_double_precision(tmp_path):
    oracle = gm.oracles.Minibatch(21)
    found = averages(mapped(tmp_path, "logistic"), oracle, "float64")
    assert np.array_equal(found, averages(memory("logistic"), oracle, "float64"))


def test_what_it_cannot_run_is_said(tmp_path):
    records = StreamedRegression(
        Sequenced([(x, float(y)) for x, y in zip(X[:50], RESPONSES["logistic"][:50], strict=True)]), "logistic"
    )
    with pytest.raises(gm.InvalidInput, match="reads mapped files"):
        averages(records, gm.oracles.Minibatch(5))
    target = mapped(tmp_path, "logistic")
    with pytest.raises(gm.InvalidInput, match="not all of them"):
        averages(target, gm.oracles.Exact())
    with pytest.raises(gm.InvalidInput, match="at most 512 distinct ones"):
        averages(target, gm.oracles.Minibatch(600, replace=False))
