"""Regressions over a source against the same rows in memory: sums, mode, oracles, chains; and how often the rows are read."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.approx.modes import ModeSettings
from gyromc.data import Batches, Mapped, Sequenced
from gyromc.runtime.evaluation import doubled
from gyromc.targets.regressions import BY_FAMILY
from gyromc.targets.streamed import StreamedRegression

RNG = np.random.default_rng(0)
X = RNG.standard_normal((600, 3))
T = X @ [0.5, -0.3, 0.2]
RESPONSES = {
    "linear": T + RNG.standard_normal(600),
    "logistic": RNG.random(600) < 1 / (1 + np.exp(-T)),
    "poisson": RNG.poisson(np.exp(T)),
}
ROWS = RNG.standard_normal((4, 3))


class Counted(Sequenced):
    """Rows that count how often they were all read."""

    passes = 0

    def blocks(self, size):
        self.passes += 1
        return super().blocks(size)


def pair(family, kind=Counted):
    y = np.asarray(RESPONSES[family], float)
    source = kind(list(zip(X, y, strict=True)))
    return StreamedRegression(source, family, 1.5), BY_FAMILY[family](X, y, 1.5)


@pytest.mark.parametrize("family", BY_FAMILY)
def test_sums_are_those_in_memory(family, monkeypatch):
    monkeypatch.setattr("gyromc.data.source.BLOCK_NUMBERS", 100)  # 19 blocks
    streamed, memory = pair(family)
    for rows in (ROWS, ROWS[:1]):
        assert np.allclose(streamed.potentials(rows), memory.potentials(rows), rtol=1e-12)
        assert np.allclose(streamed.gradients(rows), memory.gradients(rows), rtol=1e-10)
        assert np.allclose(streamed.mean_hessian(rows), memory.mean_hessian(rows), rtol=1e-10)
    one, other = gm.Model(streamed), gm.Model(memory)
    assert np.allclose(one.mode, other.mode, atol=1e-9)
    assert np.allclose(one.precision, other.precision, rtol=1e-9)


@pytest.mark.parametrize("order", [1, 2])
def test_mode_anchor_and_curvature_take_few_passes(order, monkeypatch):
    monkeypatch.setattr("gyromc.approx.modes.SETTINGS", ModeSettings(enough=200, per_parameter=10))
    streamed, memory = pair("logistic")
    streamed.source.passes = 0
    model = gm.Model(streamed)
    assert model.precision.shape == (3, 3)
    assert streamed.source.passes <= 5
    before = streamed.source.passes
    oracle, same = (gm.oracles.ControlVariate(8, order=order).prepared(gm.Model(t)) for t in (streamed, memory))
    gm.oracles.ControlVariate(8, order=order).prepared(model)
    assert np.allclose(oracle.anchor, same.anchor, atol=1e-8)
    assert order == 1 or np.allclose(oracle.operator.dense(), same.operator.dense(), rtol=1e-9)
    assert gm.oracles.ControlVariate(8, order=order).prepared(model).anchor is not None
    streamed.source.passes = 0
    gm.oracles.ControlVariate(8, order=order).prepared(model)
    assert streamed.source.passes == 0 < before


ORACLES = {
    "minibatch": gm.oracles.Minibatch(1),
    "order 1": gm.oracles.ControlVariate(1),
    "order 2": gm.oracles.ControlVariate(1, order=2),
    "matrix-free": gm.oracles.ControlVariate(1, order=2, curvature="matrix-free"),
}


@pytest.mark.parametrize("name", ORACLES)
def test_mean_and_covariance_of_an_oracle_over_all_rows_are_exact(name):
    streamed, memory = pair("poisson")
    found = []
    for target in (streamed, memory):
        oracle = ORACLES[name].prepared(gm.Model(target))
        with jax.enable_x64(True):
            each = jax.jit(
                jax.vmap(
                    lambda i, t=target, o=oracle: doubled(o).gradient(doubled(t), jnp.asarray(ROWS[0] / 4), i[None])
                )
            )
            found.append(np.asarray(each(jnp.arange(600))))
    assert np.allclose(found[0].mean(axis=0), memory.gradients(ROWS[:1] / 4)[0], rtol=1e-9)
    assert np.allclose(found[0], found[1], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    "oracle",
    [
        pytest.param(gm.oracles.Minibatch(4), marks=pytest.mark.slow),  # its rows are drawn and read as those below
        gm.oracles.ControlVariate(4, replace=False),
        gm.oracles.Exact(),
    ],
)
def test_chains_of_scan_are_those_in_memory(oracle):
    averages = []
    for target in pair("logistic"):
        plan = gm.Plan(
            target=target, dynamics=gm.dynamics.overdamped(3), oracle=oracle, step_size=1e-3, num_steps=5, num_chains=3,
            observables={"x": gm.observables.linear([1.0, 0.0, 0.0])}, dtype="float64",
        )  # fmt: skip
        averages.append(gm.run(plan, "scan", progress=False).averages["x"])
    assert np.allclose(*averages, rtol=1e-12)


def test_rows_that_are_wrong_are_named():
    y = np.asarray(RESPONSES["logistic"], float)
    holed = X.copy()
    holed[417, 2] = np.nan
    with pytest.raises(gm.InvalidInput, match=r"Row 417 .* missing or infinite"):
        StreamedRegression(Batches([(holed, y)], 600), "logistic")
    with pytest.raises(gm.InvalidInput, match="0 or 1"):
        StreamedRegression(Batches([(X, y + 1)], 600), "logistic")
    with pytest.raises(gm.InvalidInput, match="counts"):
        StreamedRegression(Batches([(X, y - 0.5)], 600), "poisson")
    with pytest.raises(gm.InvalidInput, match=r"gyromc\.data"):
        StreamedRegression(X, "logistic")


def test_expect_over_mapped_rows_is_the_linear_posterior(tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", RESPONSES["linear"])
    target = StreamedRegression(Mapped(tmp_path / "X.npy", tmp_path / "y.npy"), "linear", 1.5)
    K, mean = target.gaussian()
    assert np.allclose(K, X.T @ X + np.eye(3) / 1.5**2)
    assert np.allclose(mean, np.linalg.solve(K, X.T @ RESPONSES["linear"]))
