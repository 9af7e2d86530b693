"""Engine `lanes` over mapped files: the chains of the same rows in memory, whatever the files' types."""

import numpy as np
import pytest

import gyromc as gm
from gyromc.data import Mapped, Sequenced
from gyromc.targets.regressions import BY_FAMILY
from gyromc.targets.streamed import StreamedRegression

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


def test_a_file_that_ends_with_its_last_row_is_read_to_its_end(tmp_path):
    rows, oracle = X[: 1024 - 32], gm.oracles.Minibatch(9)  # its numbers and the header fill whole pages
    RESPONSES["few"] = RESPONSES["logistic"][: 1024 - 32]
    np.save(tmp_path / "X.npy", rows)
    np.save(tmp_path / "y.npy", np.asarray(RESPONSES["few"], np.float32))
    target = StreamedRegression(Mapped(tmp_path / "X.npy", tmp_path / "y.npy"), "logistic", 2.0)
    memory = gm.targets.LogisticRegression(rows, RESPONSES["few"].astype(float), 2.0)
    assert np.array_equal(averages(target, oracle), averages(memory, oracle))


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
    with pytest.raises(gm.InvalidInput, match="at most 512 distinct rows"):
        averages(target, gm.oracles.Minibatch(600, replace=False))
