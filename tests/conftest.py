"""Fixtures of every test, the folder of compiled programs, and the number of threads of BLAS."""

import gc
import os
import shutil
import signal
import tempfile

# The matrices are small: several threads of BLAS cost more in waiting for each other than the work itself. NumPy and SciPy read
# this when they are imported, here, in the workers and in the processes that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import pytest

import gyromc as gm
from support.browsing import browser  # noqa: F401  # a fixture


def pytest_configure(config):
    """Store what JAX compiles in a folder that is empty at the start and removed at the end.

    JAX looks a program up by its content: workers, processes that tests start, and functions that are equal without being the
    same object share it. Workers find the folder in their environment.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="gyromc-compiled-")
    config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    settings = {
        "compilation_cache_dir": folder,
        "persistent_cache_min_compile_time_secs": 0,
        "persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in settings.items():
        os.environ[f"JAX_{name.upper()}"] = str(value)
        jax.config.update(f"jax_{name}", value)  # JAX reads the environment when it is imported, which may be over


@pytest.fixture(autouse=True, scope="module")
def _what_stays_is_not_searched_for_garbage():
    """JAX keeps what it compiled; the collector would go over all of it again and again, a tenth of the time of all tests."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def compiled_quickly():
    """XLA without most of its optimisations, for programs that run for a moment; the numbers differ by rounding alone."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def sigint():
    """A function that sets the handler of SIGINT, which may be ignored (under nohup) or not; restored afterwards.

    A process started while there is a handler hears Ctrl-C; one started while SIGINT is ignored never does.
    """
    before = signal.getsignal(signal.SIGINT)
    yield lambda handler: signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def plan():
    """A small plan that runs in a blink."""
    return gm.Plan(
        target=gm.targets.Quadratic([1.0, 2.0]),
        dynamics=gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]]),
        observables={"x": gm.observables.linear([1.0, 0.0]), "y": gm.observables.tanh([0.0, 1.0])},
        step_size=0.1,
        num_chains=50,
    )
