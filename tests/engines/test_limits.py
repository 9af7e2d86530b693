"""Where kernels are stored, and what is refused before a run starts: memory, years, settings that are no numbers."""

import os
import shutil
import stat
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import gyromc as gm
from gyromc.engines import lanes, loop
from gyromc.engines.lanes import num_threads
from gyromc.prediction.predict import _check_size
from gyromc.runtime import machine
from support.kernels import ON_GPU
from support.values import in_chunks

CHILD = """
import sys
import tracemalloc
import gyromc as gm
plan = gm.Plan(target=gm.targets.Quadratic([1.0, 4.0]), dynamics=gm.dynamics.overdamped(2), num_steps=10, num_chains=3,
               observables={"sum": gm.observables.linear([1.0, 1.0])}, step_size=0.1)
for engine in ("scan", "lanes", "lanes"):
    print(gm.run(plan, engine, progress=False).mean["sum"])
print(gm.run(plan.replace(target=gm.targets.CosinePerturbed(2, 0.5)), "lanes", progress=False).mean["sum"])
"""

AGAIN = """
import gyromc as gm
from gyromc.engines import lanes, loop
from gyromc.engines.lanes.program import compile_program
plan = gm.Plan(target=gm.targets.Quadratic([1.0, 4.0]), dynamics=gm.dynamics.overdamped(2), num_steps=10, num_chains=3,
               observables={"sum": gm.observables.linear([1.0, 1.0])}, step_size=0.1)
gm.run(plan, "lanes", progress=False)
stats = lanes.loop_of(plan, compile_program(plan, 1e8, None)).stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


def test_another_process_loads_the_loop_that_this_one_stored():
    exec(AGAIN, {})
    done = subprocess.run([sys.executable, "-c", AGAIN], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1 0"


@pytest.mark.slow
def test_a_second_process_loads_the_loop_that_the_first_compiled(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", AGAIN]
    for expected in ("0 1", "1 0"):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


OVER_ROWS = """
import sys
import tracemalloc
import numpy as np
import gyromc as gm
from gyromc.engines import lanes, loop
from gyromc.engines.lanes.program import compile_program
target = gm.targets.StreamedRegression(gm.data.Mapped("X.npy", "y.npy"), "logistic")
more = {"oracle": gm.oracles.ControlVariate(2, order=2), "scheme": gm.schemes.balanced([10.0, 10.0]), "martingale": True}
plan = gm.Plan(target=target, dynamics=gm.dynamics.overdamped(2), num_steps=10, num_chains=3, step_size=0.01,
               observables={"sum": gm.observables.linear([1.0, 1.0])}, **more)
gm.run(plan, "lanes", progress=False)
stats = lanes.loop_of(plan, compile_program(plan, 1e8, None)).stats
print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()))
"""


@pytest.mark.slow
def test_a_second_process_loads_the_loop_over_mapped_rows(tmp_path):
    """With control variates of order 2, a martingale and responses of another type: the loop that takes longest to compile."""
    np.save(tmp_path / "X.npy", np.random.default_rng(0).standard_normal((200, 2)).astype(np.float32))
    np.save(tmp_path / "y.npy", np.arange(200) % 3 == 0)
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", OVER_ROWS]
    for expected in ("0 1", "1 0"):
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == expected


NOTHING = ("nothing", "LANES", "known_slope", "no_increments")
MAPPED = ("mapped_batch", "p.row_width", "known_slope", "add_increments")
USERS = ("scalar", "LANES", "users_slope", "no_increments")


@pytest.mark.parametrize("parts", [NOTHING, MAPPED, USERS])
def test_what_a_stored_loop_depends_on_is_the_same_in_every_process(parts):
    """Numba looks a stored function up by its variables: numbers are equal everywhere, compiled functions are not."""
    loop = lanes.compiled_loop(parts, "float32").py_func
    assert [cell.cell_contents for cell in loop.__closure__] == [lanes.STAMP]


def test_single_and_double_precision_are_stored_in_files_of_their_own():
    """Two processes that add to one file at once can store the one under the name of the other."""
    single, double = (lanes.compiled_loop(NOTHING, name) for name in ("float32", "float64"))
    assert single.py_func.__qualname__ != double.py_func.__qualname__


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs permission bits that bind")
def test_engines_run_where_nothing_can_be_written(tmp_path):
    """Package and home are read-only; root gives up the right to write there."""
    drop = []
    if os.getuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root can write anywhere, and there is no setpriv")
        drop = ["setpriv", "--bounding-set", "-all", "--inh-caps", "-all"]
    source = Path(gm.__file__).parent
    shutil.copytree(source, tmp_path / "src" / "gyromc", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "home").mkdir()
    folders = [tmp_path / "home", *(p for p in (tmp_path / "src").rglob("*") if p.is_dir()), tmp_path / "src"]
    for folder in folders:
        folder.chmod(0o500)
    keep = {k: v for k, v in os.environ.items() if k not in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}
    environment = {**keep, "HOME": str(tmp_path / "home"), "PYTHONPATH": str(tmp_path / "src")}
    command = [*drop, sys.executable, "-B", "-c", CHILD]
    try:
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
    finally:
        for folder in folders:
            folder.chmod(0o700)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 4
    assert done.stderr.count("GyromcWarning") == 1
    assert "cannot be written" in done.stderr


@pytest.fixture
def base(tmp_path, monkeypatch):
    """A fresh place for the cache."""
    monkeypatch.setattr(lanes.numba.config, "CACHE_DIR", str(tmp_path / "base"))
    lanes.kernel_folder.cache_clear()
    yield tmp_path / "base"
    lanes.kernel_folder.cache_clear()


def test_kernels_are_stored_in_a_folder_of_the_user_alone(base):
    folder = lanes.kernel_folder()
    assert folder is not None
    assert Path(folder).parent == base
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700
    loop = lanes.stored(lambda x: x + 1)
    assert loop(1) == 2
    assert list(Path(folder).rglob("*.nbi"))
    assert str(base) == lanes.numba.config.CACHE_DIR


@pytest.mark.parametrize("fault", ["open", "link", "parent", "foreign"])
def test_kernels_are_not_stored_where_others_can_write(base, fault, monkeypatch):
    base.mkdir()
    folder = base / "gyromc-kernels"
    if fault == "link":
        (base / "elsewhere").mkdir()
        folder.symlink_to(base / "elsewhere")
    else:
        folder.mkdir()
    if fault == "open":
        folder.chmod(0o777)
    if fault == "parent":
        base.chmod(0o777)
    if fault == "foreign":
        monkeypatch.setattr(os, "getuid", lambda: folder.stat().st_uid + 1)
    with pytest.warns(gm.GyromcWarning, match="others can write"):
        assert lanes.kernel_folder() is None
    assert lanes.stored(lambda x: x + 1)(1) == 2
    assert not list(base.rglob("*.nbi"))


def plan_of(oracle, **options):
    X = np.random.default_rng(0).normal(size=(50, 2))
    return gm.Plan(
        target=gm.targets.LogisticRegression(X, (X[:, 0] > 0).astype(float), 1.0),
        dynamics=gm.dynamics.overdamped(2),
        observables={"x": gm.observables.linear([1.0, 0.0])},
        oracle=oracle,
        **{"step_size": 1e-3, "num_steps": 10, "num_chains": 4, **options},
    )


# on a GPU "auto" is `pallas`, which reads the rows of a batch one after the other
@pytest.mark.parametrize("engine", ["scan", pytest.param("auto", marks=pytest.mark.skipif(ON_GPU, reason="a GPU"))])
def test_batches_that_do_not_fit_into_memory_are_refused(engine, monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 2**32)
    with pytest.raises(gm.InvalidInput, match=r"Minibatch\(1000000000\).* GiB.*smaller batches"):
        gm.run(plan_of(gm.oracles.Minibatch(10**9), num_chains=2000), engine, progress=False)


@pytest.mark.parametrize("engine", ["auto", "scan", "lanes"])
def test_runs_of_years_are_refused(engine):
    with pytest.raises(gm.InvalidInput, match=r"4 chains × 9223372036854775807 steps would take 1,16\d\.\d years"):
        gm.run(plan_of(gm.oracles.Exact(), num_steps=2**63 - 1), engine, progress=False)


def test_a_run_is_not_continued_for_years():
    # not "auto", which on a GPU is `pallas`: it counts at most 2³¹ steps, and says so first
    run = gm.run(plan_of(gm.oracles.Exact()), "lanes", progress=False)
    with pytest.raises(gm.InvalidInput, match="years"):
        run.continue_(10**17)


def test_a_number_of_threads_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setenv("GYROMC_THREADS", "abc")
    with pytest.raises(gm.InvalidInput, match=r"`GYROMC_THREADS` must be a whole number: got 'abc'"):
        num_threads()
    with pytest.raises(gm.InvalidInput, match="GYROMC_THREADS"):
        gm.run(plan_of(gm.oracles.Exact()), "lanes", progress=False)


@pytest.mark.parametrize("engine", ["auto", "scan", "lanes"])
def test_chains_that_do_not_fit_into_memory_are_refused(engine, monkeypatch):
    monkeypatch.setattr(machine, "free_memory", lambda: 2**30)
    plan = plan_of(gm.oracles.Exact(), num_chains=10**7)  # 80 MB of states; with gradients, noise and blocks 1 GB
    with pytest.raises(gm.InvalidInput, match=r"10,000,000 chains, each with 2 numbers .* GiB.*Take fewer chains"):
        gm.run(plan, engine, progress=False)


GROUPS = {  # the process's group, and the limit, use and cache of files of each group there is: what is free
    "version 2, the job's limit": ("0::/job/step\n", {"job": (1000, 300, 50), "job/step": ("max", 200, 0)}, 750),
    "version 2, the step's limit": ("0::/job/step\n", {"job": (1000, 300, 50), "job/step": (500, 200, 0)}, 300),
    "version 2, seen from a container": ("0::/far/away\n", {".": (800, 100, 0)}, 700),
    "version 1": ("5:cpu,cpuacct:/x\n4:memory:/job\n0::/\n", {"memory/job": (900, 100, 20)}, 820),
    "version 1, more than the limit": ("4:memory:/job\n", {"memory/job": (900, 1000, 20)}, 0),
    "no limit": ("0::/\n", {}, sys.maxsize),
}


@pytest.mark.parametrize("name", GROUPS)
def test_memory_that_a_job_may_have(name, tmp_path):
    lines, groups, free = GROUPS[name]
    (tmp_path / "cgroup").write_text(lines)
    for folder, numbers in groups.items():
        files = machine.GROUP_FILES["memory" if folder.startswith("memory") else ""]
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        for file, number in zip(files[:2], numbers[:2], strict=True):
            (tmp_path / folder / file).write_text(f"{number}\n")
        (tmp_path / folder / "memory.stat").write_text(f"anon 7\n{files[2]} {numbers[2]}\n")
    assert machine._free_in_group(tmp_path / "cgroup", tmp_path) == free
    assert machine._free_in_group(tmp_path / "absent", tmp_path) == sys.maxsize


@pytest.mark.parametrize("kind", ["Gaussian", "not Gaussian", "with momentum"])
def test_a_prediction_that_does_not_fit_into_memory_is_refused(kind):
    d = 10**6
    target = gm.targets.CosinePerturbed(d, 0.5) if kind == "not Gaussian" else gm.targets.Quadratic(np.ones(d))
    plan = gm.Plan(
        target=target,
        dynamics=gm.dynamics.hfhr(d, 1.0, 1.0) if kind == "with momentum" else gm.dynamics.overdamped(d),
        observables={"x": gm.observables.function(lambda t: t[0])},
        step_size=0.1,
        num_chains=1,
    )
    with pytest.raises(gm.InvalidInput, match=r"A prediction for a state of [12],000,000 numbers .* GiB.*smaller plan"):
        gm.predict(plan)


def test_the_time_of_a_long_prediction_is_said_beforehand():
    with pytest.warns(gm.GyromcWarning, match=r"a state of 3,000 numbers takes about 2 min and 0.4 GiB"):
        _check_size(3000)


def test_draws_are_in_memory_twice_at_most(monkeypatch):
    # a run whose draws fit does not fail at its end, when they are put together
    plan = gm.Plan(
        target=gm.targets.Quadratic(np.ones(8)),
        dynamics=gm.dynamics.overdamped(8),
        observables={"x": gm.observables.linear(np.eye(8)[0])},
        step_size=0.1,
        num_steps=4000,
        num_chains=50,
    )
    own, peaks = loop._Loop.draws, []

    def measured(self):
        tracemalloc.start()
        before = sum(part.nbytes for part in self.kept)
        found = own(self)
        peaks.append((tracemalloc.get_traced_memory()[1], before))
        tracemalloc.stop()
        assert not self.kept
        return found

    monkeypatch.setattr(loop._Loop, "draws", measured)
    run = in_chunks(100, plan, "lanes", progress=False, thin=1)
    assert run.draws.shape == (50, 4000, 8)
    ((peak, size),) = peaks
    assert size == run.draws.nbytes
    assert peak < 1.1 * size  # besides what was kept
    monkeypatch.setattr(loop, "free_memory", lambda: int(2.4 * size))
    with pytest.raises(gm.InvalidInput, match=r"twice at the end, does not fit .* Pass `thin=2` or more"):
        gm.run(plan, "lanes", progress=False, thin=1)
