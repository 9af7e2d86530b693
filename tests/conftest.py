"""Fixtures of every test, how programs are compiled, and the number of threads of BLAS."""

import gc
import os
import signal

# The matrices are small: several threads of BLAS cost more in waiting for each other than the work itself. NumPy and SciPy read
# this when they are imported, here, in the workers and in the processes that tests start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest

import gyromc as gm
from support import compiling, tiers
from support.browsing import browser  # noqa: F401  # a fixture


def pytest_configure(config):
    for name, (meaning, _) in tiers.TIERS.items():
        config.addinivalue_line("markers", f"{name}: {meaning}")
    compiling.share(config.add_cleanup)
    compiling.with_the_older_generator(config.getoption("markexpr"))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Every test gets the marker of its tier before `-m` chooses among them."""
    for item in items:
        item.add_marker(tiers.tier(item.path))


def pytest_collection_finish():
    """What was imported stays: a fit calls the collector at each of its stages, which would go over all of it."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def _compiled_as_is_best_for_the_file(request):
    compiling.in_the_way_of(request.path, request.config.getoption("markexpr"))


@pytest.fixture(autouse=True, scope="module")
def _what_stays_is_not_searched_for_garbage():
    """JAX keeps what it compiled; the collector would go over all of it again and again, a tenth of the time of all tests."""
    yield
    compiling.forget_many()
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
