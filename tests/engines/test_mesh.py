"""Runs spread over a mesh of devices equal those on one: bit for bit where only chains are spread, else up to rounding."""

import json
import math
import os
import subprocess
import sys
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import gyromc as gm
from gyromc.engines import choose, lanes, pallas
from gyromc.engines.meshes import Slices, read_mesh
from gyromc.engines.scan import layout
from support import compiling, on_devices
from support.on_devices import DIM, ETA, ROWS, STEPS, X, plan

EVERY = "chains+data+parameters+all+8 of chains"
DEFAULT = ["bits of minibatch@33 in 7", "minibatch@all"]
BITS = [f"bits of {case}@7+10+33" for case in on_devices.BITS]
SLOW = ["distinct rows", "every row", "order 1", "order 2", "diagonal", "matrix-free", "refresh", "dense dynamics",
        "martingale", "splitting", "softmax", "mixed", "mixed batches", "network", "exact", "minibatch", "streamed"]  # fmt: skip


def found_on_eight_devices(arguments: list[str]) -> dict:
    flags = {
        "XLA_FLAGS": compiling.flags("--xla_force_host_platform_device_count=8"),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "JAX_PLATFORMS": "cpu",  # the eight devices are virtual ones of the processor, on a machine with a GPU too
    }
    command = [sys.executable, on_devices.__file__, *arguments]
    done = subprocess.run(command, env={**os.environ, **flags}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def tolerance() -> float:
    """How far two runs can be apart whose sums over rows are added in another order.

    A sum of N terms in any order is off by at most (N-1)u Σ|g_i|, so two of them differ by twice that, here with |g_i| ≤ |x_i|.
    A step adds η|D+Q| times this to the distance, and multiplies the distance by at most 1 + η|D+Q|L, L ≤ λ_max(XᵀX)/4 + 1.
    Models other than logistic regression have gradients and curvatures up to three times as large.
    """
    u, matrix = np.finfo(float).eps / 2, 3.0  # |D+Q| ≤ 2 + 1
    sums = 3 * np.abs(X).sum(axis=0).max()
    L = 3 * np.linalg.eigvalsh(X.T @ X)[-1] / 4 + 1
    return 2 * ROWS * u * sums * STEPS * ETA * matrix * math.exp(STEPS * ETA * matrix * L)


@pytest.fixture(scope="module")
def found():
    return found_on_eight_devices(DEFAULT)


def test_chains_on_any_number_of_devices_have_the_same_bits(found):
    """3 and 8 devices, to which no number of chains is fair; the size of a block is part of the plan, not of the mesh."""
    assert found["bits of minibatch"] == {"33 in 7": 0}


def test_rows_and_parameters_on_several_devices_give_the_same_chains(found):
    """101 rows, 7 parameters, 5 chains: no axis divides them. A row that is lost or counted twice moves a chain by about η."""
    assert tolerance() < 1e-4 * ETA
    assert max(found["minibatch"].values()) <= tolerance()


@pytest.mark.slow
def test_every_kind_of_target_has_the_same_bits_on_any_number_of_devices():
    found = found_on_eight_devices(BITS)
    assert len(found) == len(BITS)
    assert all(len(counts) == 5 for counts in found.values())  # 7 chains are one block of 7 both times
    assert {case: counts for case, counts in found.items() if any(counts.values())} == {}


@pytest.mark.slow
def test_every_oracle_target_and_scheme_on_every_mesh():
    found = found_on_eight_devices([f"{case}@{EVERY}" for case in SLOW] + ["continued"])
    of_chains = ("chains", "8 of chains")
    assert {case: apart for case, apart in found.items() if any(apart.get(mesh, 0.0) for mesh in of_chains)} == {}
    assert {case: max(apart.values()) for case, apart in found.items() if max(apart.values()) > tolerance()} == {}


@pytest.mark.slow
def test_chains_without_a_matrix_have_the_same_bits():
    found = found_on_eight_devices(["no matrix@2 of chains+4 of chains+8 of chains"])
    assert found["no matrix"] == dict.fromkeys(("2 of chains", "4 of chains", "8 of chains"), 0.0)


@pytest.mark.slow
def test_a_device_holds_its_share_of_the_rows_and_of_the_states():
    """XLA leaves the rows where they are: what a step needs beside them does not depend on their number."""
    found = found_on_eight_devices(["memory"])["memory"]
    (arguments, temporary), (more, same) = found["rows"]
    assert more - arguments == pytest.approx((20_000 - 10_001) / 4 * (DIM + 1) * 8, rel=0.01)
    assert same == pytest.approx(temporary, rel=0.1)
    # eight parts of seven parameters with momenta: of two numbers
    assert found["states"] == [6 * 2 * 8, 6 * 2 * DIM * 8]


@pytest.mark.parametrize(
    ("mesh", "message"),
    [
        ({"rows": 2}, "may have the axes `chains`, `data`, `parameters`: got 'rows'"),
        (
            {"chains": 10**6},
            r"needs 1000000 = 1000000 devices, and JAX has .*xla_force_host_platform_device_count=1000000",
        ),
        ({"data": 0}, "mesh"),
        ({}, "at least one of the axes"),
        (4, "`mesh` must be a `jax.sharding.Mesh` or a dictionary"),
    ],
)
def test_a_wrong_mesh_is_refused(mesh, message):
    with pytest.raises(gm.InvalidInput, match=message):
        gm.run(plan(), mesh=mesh)


def test_a_mesh_of_jax_in_any_order_of_axes():
    given = Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "chains"))
    assert dict(read_mesh(given).shape) == {"chains": 1, "data": 1, "parameters": 1}
    assert read_mesh(None) is None


def test_only_scan_shares_rows_and_parameters():
    chains, rows = (SimpleNamespace(shape={"chains": 4, "data": k, "parameters": 1}) for k in (1, 2))
    assert choose(plan(), "auto", chains)[0] == choose(plan(), "auto")[0]
    assert choose(plan(), "auto", rows)[0] == "scan"
    with pytest.raises(gm.InvalidInput, match="only `scan` shares the axis `data` of a mesh"):
        choose(plan(), "lanes", rows)
    with pytest.raises(gm.InvalidInput, match=r"of which CosinePerturbed with .* has none"):
        choose(on_devices.CASES["no matrix"](), "scan", rows)


def test_chains_that_fill_the_last_device_repeat_the_last_one(plan, monkeypatch):
    monkeypatch.setattr(layout, "in_blocks", lambda plan, mesh: False)
    mesh = SimpleNamespace(shape={"chains": 4, "data": 1, "parameters": 1})
    found = layout.ChainLayout(plan.replace(num_chains=6), mesh)  # type: ignore[arg-type]
    assert found.size == 8
    assert found.fill(np.arange(6)).tolist() == [0, 1, 2, 3, 4, 5, 5, 5]


def assert_slices_are_the_whole(engine, given, count):
    arguments = given, engine.initial_state(given), 1e8, 2, 5
    whole = engine.Session(*arguments)
    first = {} if engine is lanes else {"first_chain": 0}

    def make(part, state, number):
        return engine.Session(part, state, 1e8, 2, 5, **{name: number for name in first})

    slices = Slices(make, given, engine.initial_state(given), [None] * count)
    for session in (whole, slices):
        session.advance(9)
    for name in ("z", "high", "low", "failed_at", "generator"):
        np.testing.assert_array_equal(getattr(slices.state(), name), getattr(whole.state(), name))
    np.testing.assert_array_equal(slices.kept(5), whole.kept(5))
    assert np.array_equal(slices.state().sums, whole.state().sums)
    assert sum(slices.state().clock) == sum(whole.state().clock)
    assert slices.failed() is whole.failed() is False


@pytest.mark.parametrize("count", [3, 8])
def test_slices_of_lanes_are_the_whole(count):
    starts = np.linspace(-1, 1, 6 * DIM).reshape(6, DIM)  # a row for each chain; eight slices of six chains
    # in float32: the same loop as elsewhere
    assert_slices_are_the_whole(lanes, plan(oracle=gm.oracles.Minibatch(4), start=starts, dtype="float32"), count)


def test_slices_of_pallas_are_the_whole(kernels):
    small = plan(gm.targets.Quadratic(np.ones(2)), gm.oracles.Gaussian(1.0), dim=2, dtype="float32")
    assert_slices_are_the_whole(pallas, small, 2)
