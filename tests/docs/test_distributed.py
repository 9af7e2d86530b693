"""The commands for several processes of docs/scale.md, run as two processes here with the environment that each launcher sets."""

import contextlib
import json
import re
import shlex
import sys

import pytest

from support.launch import ended, free_port, started
from support.values import ROOT

PAGE = (ROOT / "docs" / "scale.md").read_text().split("\n## Several processes\n", 1)[1].split("\n## ", 1)[0]
PLAN = """
step_size = 0.1
num_chains = 8
num_steps = 200
target = {kind = "quadratic", precision = [1.0, 4.0]}
dynamics = {kind = "overdamped"}
observables.x = {kind = "linear", u = [1.0, 0.0]}
"""


def section(title):
    return PAGE.split(f"\n### {title}\n", 1)[1].split("\n### ", 1)[0]


def line(title, launcher):
    """The command that a launcher starts, from the line of a section that begins with the launcher's words."""
    (found,) = re.findall(rf"^{launcher} (gyromc .*)$", section(title), re.MULTILINE)
    return shlex.split(found)


def ours(command, port):
    """A command as it runs here: this Python, and a port of this machine."""
    assert command[0] == "gyromc"
    places = [re.sub(r"^[\w.-]+:29500$", f"localhost:{port}", word) for word in command[1:]]
    return [sys.executable, "-m", "gyromc", *places]


def by_hand():
    port = free_port()
    lines = re.findall(r"^(gyromc run .*)$", section("By hand"), re.MULTILINE)
    assert len(lines) == 2
    return [[*ours(shlex.split(text), port), "--json"] for text in lines], [{}, {}]


def slurm():
    job = free_port_of_slurm()
    shared = {"SLURM_JOB_ID": job, "SLURM_STEP_NODELIST": "localhost", "SLURM_NTASKS": 2, "SLURM_STEP_NUM_NODES": 1}
    command = ours(line("SLURM", "srun"), 0)
    return [command] * 2, [{**shared, "SLURM_PROCID": i, "SLURM_LOCALID": i} for i in (0, 1)]


def free_port_of_slurm():
    """A number of a job, from which JAX computes a port that is free: 61440 and the last twelve bits."""
    for job in range(1000, 1100):
        with contextlib.suppress(OSError):
            free_port(61440 + job % 4096)
            return job
    raise AssertionError("no port is free")


def open_mpi():
    command = ours(line("Open MPI and MPICH", "mpirun -np 2"), free_port())
    return [command] * 2, [{"OMPI_COMM_WORLD_SIZE": 2, "OMPI_COMM_WORLD_RANK": i} for i in (0, 1)]


def kubernetes():
    port, text = free_port(), section("Kubernetes")
    command = ours(json.loads(re.search(r"command: (\[.*\])", text)[1]), port)
    given = dict(re.findall(r'\{name: (GYROMC_\w+), value: "(.*?)"\}', text))
    assert given.pop("GYROMC_COORDINATOR") == "gyromc-0.gyromc:29500"
    given["GYROMC_COORDINATOR"] = f"localhost:{port}"
    assert f"completions: {given['GYROMC_PROCESSES']}\n" in text
    assert f"parallelism: {given['GYROMC_PROCESSES']}\n" in text
    return [command] * 2, [{**given, "JOB_COMPLETION_INDEX": i} for i in (0, 1)]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [by_hand, slurm, open_mpi, kubernetes])
def test_the_commands_of_the_page(launcher, tmp_path):
    (tmp_path / "plan.toml").write_text(PLAN)
    first, second = ended(started(*launcher(), cwd=tmp_path))
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert second.out == ""
    assert json.loads(first.out)["steps_done"] == 200
    if launcher in (slurm, kubernetes):
        assert (tmp_path / "run.gyromc").exists()
        assert list((tmp_path / "saved").glob("step-*.gyromc"))


@pytest.mark.slow
def test_the_script_of_the_page(tmp_path):
    (code,) = re.findall(r"```py\n(.*?)```", section("Python"), re.DOTALL)
    given = {"GYROMC_COORDINATOR": f"localhost:{free_port()}", "GYROMC_PROCESSES": 2}
    both = [{**given, "GYROMC_PROCESS_ID": i} for i in (0, 1)]
    first, second = ended(started([[sys.executable, "-c", code]] * 2, both, cwd=tmp_path))
    assert (first.status, second.status) == (0, 0), first.err + second.err
    assert abs(float(first.out.split()[-1])) < 0.5
