"""How JAX compiles in the tests: what is compiled is stored for all processes of a session; some tests are compiled quickly.

Programs that take longer to compile than to run are compiled without optimisations; the numbers differ by rounding alone. The
slow tests run long, and are compiled as for a user.
"""

import os
import shutil
import tempfile

import jax

# The folders and files whose default tests are compiled quickly.
QUICK = frozenset(
    (
        "core",
        "estimation",
        "prediction",
        "regression",
        "schemes",
        "shape",
        "targets",
        "tuning",
        "test_accuracy.py",
        "test_blocks.py",
        "test_contract.py",
        "test_density.py",
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
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="gyromc-compiled-")
    add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    _set("compilation_cache_dir", folder)
    _set("persistent_cache_min_compile_time_secs", 0)
    _set("persistent_cache_min_entry_size_bytes", -1)


def in_the_way_of(path, marks: str) -> None:
    """Compile as the tests of a file are, in this process and in those it starts; `marks` is the expression of `-m`."""
    quick = "not slow" in marks and not QUICK.isdisjoint((path.name, path.parent.name))
    _set("disable_most_optimizations", quick and jax.default_backend() == "cpu")


def _set(name: str, value) -> None:
    os.environ[f"JAX_{name.upper()}"] = str(value)
    jax.config.update(f"jax_{name}", value)  # JAX reads the environment when it is imported, which may be over
