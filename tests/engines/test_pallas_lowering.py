"""The compilers of the engine `pallas`: the choice between them, and Mosaic GPU beside Triton.

Without a GPU the kernels are only lowered for one: that every operation has a rule is checked, not what it computes.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import pallas
from gyromc.engines.pallas import kernel, threads
from gyromc.engines.pallas.threads import Layout, Lowering
from support.kernels import ON_GPU

T, D, O, H = gm.targets, gm.dynamics, gm.oracles, gm.observables


def plan(num_chains=200, num_steps=10, **changes):
    """Mini-batches, teams of two threads, a burn-in and an observable with functions that Pallas does not lower itself."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(20, 2))
    given = dict(
        target=T.LogisticRegression(X, (rng.random(20) < 0.5).astype(float)),
        dynamics=D.nonreversible([[0.0, -1.0], [1.0, 0.0]]),
        oracle=O.Minibatch(8),
        observables={"h": lambda x: jnp.log1p(x[0] ** 2) + jnp.arctan2(x[1], 2.0) + jnp.cbrt(2 + x[0] ** 2)},
        step_size=0.05,
        burn_in=3,
    )
    return gm.Plan(num_chains=num_chains, num_steps=num_steps, **{**given, **changes})


def test_the_default_is_triton_while_jax_has_it(monkeypatch):
    monkeypatch.delenv(threads.VARIABLE, raising=False)
    assert threads.choose_lowering() is Lowering.TRITON
    assert threads.choose_lowering("mosaic") is Lowering.MOSAIC
    monkeypatch.setenv(threads.VARIABLE, "mosaic")
    assert threads.choose_lowering() is Lowering.MOSAIC
    assert threads.choose_lowering(Lowering.TRITON) is Lowering.TRITON
    monkeypatch.setenv(threads.VARIABLE, "cuda")
    with pytest.raises(gm.InvalidInput, match=r"GYROMC_PALLAS_LOWERING` must be one of triton, mosaic: got 'cuda'"):
        threads.choose_lowering()


def test_without_triton_mosaic_is_used_and_said_once(monkeypatch):
    monkeypatch.delenv(threads.VARIABLE, raising=False)
    monkeypatch.setattr(threads, "in_this_jax", lambda which: which is Lowering.MOSAIC)
    threads._say_once.cache_clear()
    with pytest.warns(gm.GyromcWarning, match="has no Triton lowering of Pallas"):
        assert threads.choose_lowering() is Lowering.MOSAIC
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert threads.choose_lowering() is Lowering.MOSAIC
    layout = pallas.default_layout(plan(), 2)
    assert (layout.lowering, layout.chains, layout.warps) == (Lowering.MOSAIC, 64, 4)


@pytest.mark.parametrize(("capability", "asked", "reason"), [
    ("8.6", "mosaic", r"`mosaic` needs compute capability 9.0, and the GPU has 8.6"),
    ("8.6", "triton", None),
    ("7.5", "triton", r"`triton` needs compute capability 8.0, and the GPU has 7.5"),
    ("9.0", "mosaic", None),
    ("12.1", "mosaic", None),
])  # fmt: skip
def test_an_old_gpu_is_refused_with_the_reason(monkeypatch, capability, asked, reason):
    class Device:
        compute_capability = capability

    monkeypatch.setattr(jax, "devices", lambda *_: [Device()])
    found = threads.why_no_lowering(asked)
    assert found is None if reason is None else reason in found


def test_a_jax_without_the_lowering_is_named(monkeypatch):
    monkeypatch.setattr(threads, "in_this_jax", lambda which: False)
    assert threads.why_no_lowering("triton") == f"JAX {jax.__version__} has no Pallas lowering `triton`"


def test_a_block_of_mosaic_is_a_warpgroup():
    made, _ = pallas.make_recipe(plan(), 2)
    with pytest.raises(gm.InvalidInput, match=r"lowering `mosaic` has 4 warps: got 1"):
        kernel.compiled(made, Layout(16, 1, lowering=Lowering.MOSAIC), 1)


@pytest.mark.skipif(
    jax.__version_info__ >= (0, 11) and not ON_GPU, reason="this version needs the GPU plugin to lower for one"
)
def test_mosaic_lowers_the_kernel():
    """Every operation of a kernel with mini-batches, a burn-in and a user's functions has a rule for CUDA."""
    work = plan()
    with jax.enable_x64(False):
        team = pallas.team_size(work)
        made, tables = pallas.make_recipe(work, team)
        layout = Layout(128 // team, 4, lowering=Lowering.MOSAIC)
        blocks = -(-work.num_chains // layout.chains)
        inputs = kernel.Inputs(np.zeros(4, np.int32), np.zeros(2, np.uint32), np.ones(1, np.float32), **tables)
        arrays = pallas._to_device(pallas.initial_state(work), made, blocks * layout.chains)
        move = kernel.compiled(made, layout, blocks)
        lowered = move.trace(inputs, arrays, np.int32(1)).lower(lowering_platforms=("cuda",))
    assert "mosaic_gpu" in lowered.as_text()


@pytest.mark.skipif(not ON_GPU, reason="compiles for a GPU")
@pytest.mark.parametrize("changes", [{}, {"oracle": O.Minibatch(8, replace=False)}, {"martingale": True}])
def test_both_lowerings_make_the_same_chains_up_to_rounding(changes):
    """A single different random word would move a chain by about √(2η) = 0.3."""
    work = plan(**changes)
    states = []
    for which in Lowering:
        session = pallas.Session(work, pallas.initial_state(work), 1e8, None, 0, lowering=which)
        session.advance(work.num_steps + work.burn_in)
        states.append(session.state())
    assert np.abs(states[0].z - states[1].z).max() < 3e-6
    assert np.abs(states[0].sums - states[1].sums).max() < 1e-4
    assert np.abs(states[0].z).min() > 0
