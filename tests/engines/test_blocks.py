"""Chains in blocks: the size of a block; its random numbers are a part of all; its chains are those of one array."""

import jax
import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import scan
from gyromc.engines.meshes import read_mesh
from gyromc.engines.scan import layout as blocks
from support.on_devices import DIM, X, Y, plan

O = gm.oracles


def of_size(chains, dim):
    return plan(gm.targets.Quadratic(np.ones(dim)), dim=dim, dynamics=gm.dynamics.overdamped(dim), num_chains=chains)


SIZES = [(1, 3, 1), (1000, 2, 1000), (10**4, 2, 5000), (10**4, 10, 1429), (64, 1000, 32), (33, 1000, 17), (3, 5000, 1)]


@pytest.mark.parametrize(("chains", "dim", "size"), [*SIZES, (10**6, 2, 15625)])
def test_size_of_a_block(chains, dim, size):
    assert blocks.block_size(of_size(chains, dim)) == size


def test_chains_that_read_many_rows_are_in_small_blocks():
    """So that several processes have some of them: what a block costs is small beside the rows."""
    target = gm.targets.LogisticRegression(np.ones((9000, 10), np.float32), np.ones(9000))
    given = plan(target, dim=10, dynamics=gm.dynamics.overdamped(10), num_chains=400)
    assert blocks.block_size(given.replace(oracle=O.Exact())) == 31  # about 32
    assert blocks.block_size(given.replace(oracle=O.Gaussian(1.0))) == 31
    assert blocks.block_size(given.replace(oracle=O.Minibatch(1000))) == 200  # about 209
    assert blocks.block_size(given.replace(oracle=O.Minibatch(10))) == 400


class Own(O.Gaussian):
    """An oracle of a user."""

    def draw(self, key, target, num_chains, dim, dtype):
        return jax.random.laplace(key, (num_chains, dim), dtype)


def test_all_chains_are_one_block_where_an_oracle_draws_in_its_own_way():
    many = of_size(10**4, 10)
    assert blocks.block_size(many.replace(oracle=Own(1.0))) == 10**4
    assert blocks.block_size(many.replace(oracle=O.Gaussian(1.0))) < 10**4


ORACLES = [O.Exact(), O.Gaussian(1.0), O.ControlVariate(9), *(O.Minibatch(size, replace=False) for size in (9, 101))]


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
def test_randomness_of_a_block_is_a_part_of_all(dtype, monkeypatch):
    target = gm.targets.LogisticRegression(X, Y)
    shuffling = O.Minibatch(60, replace=False)
    with jax.enable_x64(dtype == "float64"):
        key, dtype = jax.random.key(5), np.dtype(dtype)
        for oracle in (*ORACLES, shuffling):
            if oracle is shuffling:
                for where in ("gyromc.engines.scan.layout", "gyromc.oracles"):
                    monkeypatch.setattr(f"{where}.MOST_COMPARED", 50)
            both = lambda first, oracle=oracle: (
                oracle.draw(key, target, 11, DIM, dtype),
                blocks.drawn(oracle, key, target, first, 4, DIM, dtype),
            )
            whole, part = jax.jit(both)(np.uint32(6))
            assert jax.tree.structure(whole) == jax.tree.structure(part)
            for all_chains, own in zip(jax.tree.leaves(whole), jax.tree.leaves(part), strict=True):
                assert all_chains.dtype == own.dtype
                assert (all_chains[6:10] == own).all(), oracle.name


def moved(given, steps=6):
    """The state after some steps, and the draws."""
    session = scan.Session(given, scan.initial_state(given), 1e8, 2, 3)
    session.advance(4)
    session.advance(steps - 4)
    return session.state(), session.kept(3), len(session.carries)


@pytest.mark.parametrize(
    "case", ["minibatch", *(pytest.param(case, marks=pytest.mark.slow) for case in ("gaussian", "refresh"))]
)
def test_blocks_are_the_chains_of_one_array(case, monkeypatch):
    """10 chains in blocks of 4, 4 and 2 and in one array on the mesh, up to the rounding of six steps."""
    oracle = {"minibatch": O.Minibatch(9), "gaussian": O.Gaussian(1.0), "refresh": O.ControlVariate(8, refresh=3)}[case]
    starts = np.linspace(-1, 1, 10 * DIM).reshape(10, DIM)
    with jax.enable_x64(True):
        given = plan(oracle=oracle, num_chains=10, start=starts)
        with monkeypatch.context() as patch:
            patch.setattr(blocks, "in_blocks", lambda plan, mesh: False)
            whole, draws, count = moved(given)
            assert count == 1
        monkeypatch.setattr(blocks, "block_size", lambda plan: 4)
        found, kept, count = moved(given)
    assert count == 3
    assert (found.step, found.clock) == (whole.step, whole.clock)
    assert found.failed_at.tolist() == [-1] * 10
    np.testing.assert_allclose(kept, draws, rtol=0, atol=1e-13)
    for name in ("z", "high", *(["anchors"] if case == "refresh" else [])):
        np.testing.assert_allclose(getattr(found, name), getattr(whole, name), rtol=0, atol=1e-12)


def test_a_chain_that_fills_the_last_block_cannot_fail(monkeypatch):
    """Three blocks of two for five chains. The chain that repeats the last one has other noise, and no say."""
    monkeypatch.setattr(blocks, "block_size", lambda plan: 2)
    given = of_size(5, 2).replace(dtype="float32")
    session = scan.Session(given, scan.initial_state(given), 1e8, None, 0)
    last = session.carries[-1]
    session.carries[-1] = last._replace(failed_at=last.failed_at.at[1].set(3))
    assert not session.failed()
    session.carries[-1] = last._replace(failed_at=last.failed_at.at[0].set(3))
    assert session.failed()
    assert session.state().failed_at.tolist() == [-1, -1, -1, -1, 3]


@pytest.mark.parametrize("count", [1, 2, 4, 7])
def test_processes_have_every_chain_once(count, monkeypatch):
    """Three blocks of ten, ten and four chains; process 0 always has one."""
    monkeypatch.setattr(blocks, "block_size", lambda plan: 10)
    monkeypatch.setattr(blocks.processes, "count", lambda: count)
    found = []
    for index in range(count):
        monkeypatch.setattr(blocks.processes, "index", lambda index=index: index)
        given = of_size(24, 2)
        layout = blocks.ChainLayout(given, None)
        assert [int(first) for first in layout.firsts] == [own.start for own in layout.slices]
        assert index > 0 or layout.firsts
        found += [chain for own in layout.slices for chain in range(own.start, own.stop)]
    assert found == list(range(24))


def test_shared_rows_are_not_in_blocks():
    mesh = read_mesh({"chains": 1})
    assert blocks.in_blocks(plan(), mesh)
    fake = type("Mesh", (), {"shape": {"chains": 1, "data": 2, "parameters": 1}, "devices": mesh.devices})()
    assert not blocks.in_blocks(plan(), fake)
