"""Runs that two processes compute together: the same bits as in one process, before and after one of them is killed."""

import json
import os
import signal
import sys
import time

import numpy as np
import pytest

import gyromc as gm
from damages import digest
from gyromc.engines.scan import layout as blocks
from gyromc.io import planfiles
from gyromc.processes import LOST
from support import compiling
from support.launch import ended, free_port, started, together
from support.survivors import PLANS, balanced

DEVICES = {"XLA_FLAGS": compiling.flags("--xla_force_host_platform_device_count=2")}  # compiling as this process does
TOGETHER = """
import json, sys
import numpy as np
from gyromc import processes
index, count, port = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
processes.start(f"localhost:{port}", count, index, timeout=250)
assert (processes.count(), processes.index()) == (count, index)
for value in (index, float(index) / 3, f"é{index}", None, [index, {"a": index}], True, ""):
    assert processes.everyone(value if index == 0 else 7) == [processes.agree(value), *[7] * (count - 1)]
for i in range(50):
    assert processes.agree(i + index) == i
rows = processes.joined(np.full((index + 1, 2), index + 1 / 3))
assert np.array_equal(rows, np.repeat([1 / 3, 4 / 3], [1, 2])[:, None].repeat(2, axis=1)), rows
large = processes.joined(np.arange(10_000.0)[:, None] + index)
assert np.array_equal(large[:, 0], np.concatenate([np.arange(10_000.0) + i for i in range(count)]))
assert processes.joined(np.zeros((0, 3))).shape == (0, 3)
assert processes.joined(np.zeros((index, 0, 3))).shape == (1, 0, 3)

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
assert (jax.device_count(), jax.local_device_count()) == (4, 2)
sharding = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
whole = np.arange(8.0).reshape(4, 2) + 1e-12
with jax.enable_x64(True):
    parts = jax.make_array_from_callback((4, 2), sharding, lambda part: whole[part])
assert np.array_equal(processes.gathered(parts), whole)
assert np.array_equal(processes.gathered(jax.numpy.ones(3)), np.ones(3))

import gyromc as gm
from damages import digest
from support.survivors import PLANS, balanced
from gyromc.engines.scan import layout as blocks
found = {}
for engine, name, size in json.loads(sys.argv[4]):
    blocks.block_size = lambda plan: size
    found[f"{engine} {size}"] = digest(gm.run(PLANS[name](), engine, thin=10, progress=False))
if "minibatch" in sys.argv[4]:
    run = gm.run(balanced(dtype="float64"), "scan", mesh={"chains": 2, "data": 2}, progress=False)
    found["averages"] = {name: run.averages[name].tolist() for name in run.averages}
print(json.dumps(found))
"""


def found_together(*chosen):
    """What two processes with two devices each find: digests by engine, of plans by name; the size of a block comes last."""
    first, second = together(TOGETHER, 2, json.dumps(chosen), environments=[DEVICES] * 2)
    assert (first.status, second.status) == (0, 0), first.err + second.err
    found = json.loads(first.out.splitlines()[-1])
    assert found == json.loads(second.out.splitlines()[-1])
    for engine, name, size in chosen:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(blocks, "block_size", lambda plan, size=size: size)
            alone = digest(gm.run(PLANS[name](), engine, thin=10, progress=False))
        assert found[f"{engine} {size}"] == alone, engine
    return found


def test_two_processes_with_two_devices_each():
    assert found_together(("lanes", "gaussian", 0))


@pytest.mark.slow
def test_blocks_of_scan_in_two_processes():
    """24 chains in blocks of ten: two for the first process, one, with four chains, for the second."""
    assert found_together(("scan", "gaussian", 10))


@pytest.mark.slow
def test_scan_in_two_processes():
    """Chains that are shared have the same bits; where data are, sums of 60 rows are added in another order.

    Each sum then differs by at most 60 roundings of 10⁻¹⁶; 200 steps of a contracting chain add up less than 200 of them.
    """
    found = found_together(
        ("scan", "minibatch", blocks.SETTINGS.numbers), ("scan", "minibatch", 1)
    )  # in one block, and in three
    alone = gm.run(balanced(dtype="float64"), "scan", progress=False)
    for name, averages in found["averages"].items():
        assert np.allclose(alone.averages[name], averages, rtol=0, atol=200 * 60 * 1e-16 * 10), name


# --- the command line

PLAN = """
step_size = 0.1
num_chains = 16
num_steps = 400_000
seed = 1
target = {kind = "quadratic", precision = [1.0, 4.0]}
dynamics = {kind = "overdamped"}
observables.x = {kind = "linear", u = [1.0, 0.0]}
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    return tmp_path


def commands(*options, count=2):
    port = free_port()
    who = ["--coordinator", f"localhost:{port}", "--processes", str(count), "--wait", "250"]
    command = [sys.executable, "-m", "gyromc", "run", "plan.toml", "--json", "--engine", "lanes", *options, *who]
    return [[*command, "--process-id", str(i)] for i in range(count)]


def first_checkpoint(folder, pair):
    """Wait until there is one, or a process has ended; the limit only guards against hanging."""
    end = time.monotonic() + 250
    while time.monotonic() < end and not list((folder / "saved").glob("step-*.gyromc")):
        if any(process.poll() is not None for process in pair):
            return
        time.sleep(0.01)
    time.sleep(0.3)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("who", [0, 1])
def test_a_signal_to_one_of_two(who, number, folder):
    saving = ("--checkpoint", "saved", "--every", "400000", "--num-steps", "8000000")
    alone = gm.run(planfiles.load(folder / "plan.toml").replace(num_steps=8_000_000), "lanes", progress=False)
    pair = started(commands(*saving), cwd=folder)
    first_checkpoint(folder, pair)
    os.kill(pair[who].pid, number)
    found = ended(pair)
    assert found[1 - who].seconds < 120  # JAX notices within 20 seconds; a busy machine takes longer
    if number == signal.SIGKILL:
        assert found[who].status == -signal.SIGKILL
        assert found[1 - who].status in (LOST, -signal.SIGABRT)  # whether gyromc or JAX notices first
        assert "another one is lost" in found[1 - who].err or "another task died" in found[1 - who].err
    else:
        assert [process.status for process in found] == [143, 143]
    assert all(process.out == "" for process in found)
    again = ended(started(commands(*saving, "--save", "run.gyromc"), cwd=folder))
    assert [process.status for process in again] == [0, 0], again
    assert again[1].out == ""
    assert json.loads(again[0].out)["steps_done"] == 8_000_000
    assert digest(gm.load(folder / "run.gyromc")) == digest(alone)


@pytest.mark.slow
def test_other_plans_are_refused(folder):
    first, second = commands()
    found = ended(started([first, [*second, "--seed", "2", "--step-size", "0.05"]], cwd=folder))
    for process, before in zip(found, ("", "process 1: "), strict=True):
        assert process.status == 2
        assert f"{before}error: Process 1 computes something else than process 0" in process.err
        assert "seed: 1 → 2" in process.err
        assert "step_size: 0.1 → 0.05" in process.err


@pytest.mark.slow
def test_a_saved_run_goes_on_in_two_processes(folder):
    plan = planfiles.load(folder / "plan.toml").replace(num_steps=300)
    run = gm.run(plan, "lanes", progress=False)
    run.save(folder / "run.gyromc")
    more = ["run.gyromc", "--steps", "100", "--save", "longer.gyromc"]
    pair = [[*c[:3], "continue", *more, *c[c.index("--coordinator") :]] for c in commands()]
    found = ended(started(pair, cwd=folder))
    assert [process.status for process in found] == [0, 0], found
    assert digest(gm.load(folder / "longer.gyromc")) == digest(run.continue_(100))
