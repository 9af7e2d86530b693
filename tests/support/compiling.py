"""How JAX compiles in the tests: what is compiled is stored for all processes of a session; default tests are compiled quickly.

Most programs of the tests take longer to compile than to run. All default tests are compiled with the older of XLA's two
generators of code for the CPU, which is the faster compiler; those of the files listed here also without optimisations. The
numbers differ by rounding alone. The slow tests run long, and are compiled as for a user.
"""

import os
import shutil
import tempfile
from pathlib import Path

import jax
import jaxlib
from jax._src import lru_cache, xla_bridge

from gyromc.show.files import private_folder

# XLA ends the process when it does not know a flag: this one is known to the releases of jaxlib that start with `KNOWN_TO`.
KNOWN_TO = "0.10."
OLDER_GENERATOR = "--xla_cpu_use_fusion_emitters=false"

MOST_MAPS = 20_000

# The folders and files whose default tests are compiled quickly.
QUICK = frozenset(
    (
        "approx",
        "core",
        "estimation",
        "prediction",
        "schemes",
        "targets",
        "test_accuracy.py",
        "test_arviz.py",
        "test_blackjax.py",
        "test_blocks.py",
        "test_checkpoints.py",
        "test_contract.py",
        "test_density.py",
        "test_draws.py",
        "test_execution.py",
        "test_extras.py",
        "test_numpyro_plans.py",
        "test_numpyro_runs.py",
        "test_numpyro_targets.py",
        "test_pages.py",
        "test_pallas.py",
        "test_pallas_schemes.py",
        "test_rows_on_disk.py",
        "test_run.py",
        "test_saved_runs.py",
        "test_shared_runs.py",
    )
)


def share(add_cleanup) -> None:
    """Store what JAX compiles in a folder that is empty at the start and removed at the end.

    JAX looks a program up by its content: workers, processes that tests start, and functions that are equal without being the
    same object share it. Workers find the folder in their environment.
    """
    lru_cache.LRUCache.put = _put_whole
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="gyromc-compiled-")
    add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    # Where the home cannot be written, the loops of `lanes` are stored there too: a warning would fail the tests.
    if isinstance(private_folder("gyromc-kernels", os.environ.get("NUMBA_CACHE_DIR")), str):
        os.environ["NUMBA_CACHE_DIR"] = folder
    _set("compilation_cache_dir", folder)
    _set("persistent_cache_min_compile_time_secs", 0)
    _set("persistent_cache_min_entry_size_bytes", -1)


def with_the_older_generator(marks: str) -> None:
    """Set the flags of XLA for default tests, here and in processes that tests start; XLA reads them when it starts."""
    assert not xla_bridge.backends_are_initialized(), "a conftest.py has asked JAX for its devices: do it in a fixture"
    if "not slow" in marks and jaxlib.__version__.startswith(KNOWN_TO):
        os.environ["XLA_FLAGS"] = flags(OLDER_GENERATOR)


def flags(*more: str) -> str:
    """The value of `XLA_FLAGS` with these flags added to those that are set."""
    before = os.environ.get("XLA_FLAGS", "").split()
    return " ".join([*before, *(flag for flag in more if flag not in before)])


def _put_whole(cache, key: str, value: bytes) -> None:
    """Store a program under its name when all of it is written: JAX writes it there, and another process reads half of it."""
    path = Path(f"{cache.path / key}{lru_cache._CACHE_SUFFIX}")
    if not path.exists():
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            file.write(value)
        os.replace(file.name, path)


def in_the_way_of(path, marks: str) -> None:
    """Compile as the tests of a file are, in this process and in those it starts; `marks` is the expression of `-m`.

    JAX would go on with programs that were compiled in the other way, whose last digits differ: they are forgotten.
    """
    quick = (
        "not slow" in marks and not QUICK.isdisjoint((path.name, path.parent.name)) and jax.default_backend() == "cpu"
    )
    if quick != jax.config.values["jax_disable_most_optimizations"]:
        jax.clear_caches()
    _set("disable_most_optimizations", quick)


def forget_many() -> None:
    """Forget what is compiled once it takes a third of the 65,530 memory maps that Linux allows a process.

    The interpreted kernels of one test take some 280 of them, and keep them. Where none is left XLA ends the process with a
    segmentation fault while it compiles.
    """
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()


def _set(name: str, value) -> None:
    os.environ[f"JAX_{name.upper()}"] = str(value)
    jax.config.update(f"jax_{name}", value)  # JAX reads the environment when it is imported, which may be over
