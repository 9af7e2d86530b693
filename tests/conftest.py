"""Fixtures of every test, and settings of libraries for the processes that run the tests."""

import atexit
import gc
import os
import shutil
import signal
import tempfile

import pytest

import gyromc as gm
from support.browsing import browser  # noqa: F401  # a fixture


def _settings():
    """One thread for BLAS, and one folder of compiled JAX programs for all processes of the tests; a setting from outside stays.

    The matrices are small: several threads of BLAS cost more in waiting for each other than the work itself. The folder starts
    empty and is removed, so that no test depends on what an earlier session compiled. JAX and SciPy read these variables when
    they are imported, which `import gyromc` does not do.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:  # also in workers and in processes that tests start
        return
    folder = tempfile.mkdtemp(prefix="gyromc-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = folder
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


_settings()


@pytest.fixture(autouse=True, scope="module")
def _what_stays_is_not_searched_for_garbage():
    """JAX keeps what it compiled; the collector would go over all of it again and again, a tenth of the time of all tests."""
    yield
    gc.collect()
    gc.freeze()


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
