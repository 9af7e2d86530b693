"""The memory of a run follows the formula that it is checked by before it starts."""

import subprocess
import sys

import pytest

MEASURE = """
import resource, sys
import gyromc as gm
from gyromc.engines.loop import run_bytes
engine, chains, d = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
peak = lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
u = [1.0] + [0.0] * (d - 1)
plan = gm.Plan(target=gm.targets.Quadratic([1.0] * d), dynamics=gm.dynamics.overdamped(d), num_steps=64, num_chains=1000,
               observables={"x": gm.observables.linear(u), "y": gm.observables.square(u)}, step_size=0.1)
assert gm.run(plan, engine, progress=False).mean
before, many = peak(), plan.replace(num_chains=chains)
assert gm.run(many, engine, progress=False).mean
print((peak() - before) / run_bytes(many, 8))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("chains", "d"), [(1_000_000, 4), (200_000, 50)])
@pytest.mark.parametrize("engine", ["lanes", "scan"])
def test_memory_follows_the_formula(engine, chains, d):
    command = [sys.executable, "-c", MEASURE, engine, str(chains), str(d)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 0.5 < float(done.stdout) < 1
