"""What all tests share is there, in this process and in those it starts: the folder of compiled programs, the way to compile."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax._src.lru_cache import LRUCache

from support import compiling, tiers
from support.launch import free_port


def cos_times_a_number_of_its_own(x):
    return jnp.cos(x) * 0.98765


def test_what_is_compiled_is_stored():
    folder = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    assert str(folder) == jax.config.jax_compilation_cache_dir
    jax.jit(cos_times_a_number_of_its_own)(1.0)
    assert list(folder.glob("*cos_times_a_number_of_its_own*"))


def test_a_stored_program_is_there_whole_or_not_at_all(tmp_path, monkeypatch):
    """The other worker looks for it at any moment."""
    cache, seen, replace = LRUCache(str(tmp_path), max_size=-1), [], os.replace
    monkeypatch.setattr(os, "replace", lambda *names: (seen.append(cache.get("program")), replace(*names)))
    for content in (b"whole", b"of another worker"):
        cache.put("program", content)
    assert seen == [None]
    assert cache.get("program") == b"whole"


def test_a_port_is_given_to_one_test_which_can_listen_there():
    ports = [free_port() for _ in range(20)]
    assert len(set(ports)) == 20
    with pytest.raises(OSError, match="in use"):
        free_port(ports[0])
    socket.create_server(("", ports[0])).close()


SETTINGS = (
    "import jax; print(*map(jax.config.values.get, ['jax_compilation_cache_dir', 'jax_disable_most_optimizations']))"
)


def test_flags_are_added_once_to_those_that_are_set(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--a=1 --b=2")
    assert compiling.flags("--b=2", "--c=3") == "--a=1 --b=2 --c=3"
    monkeypatch.delenv("XLA_FLAGS")
    assert compiling.flags("--c=3") == "--c=3"


@pytest.mark.parametrize(
    ("version", "marks", "known"),
    [
        ("0.10.2", "not slow", True),
        ("0.10.2", "slow", False),
        ("0.11.2", "not slow", False),
        ("0.100.0", "not slow", False),
    ],
)
def test_only_releases_that_know_the_flag_get_it_and_only_default_tests(version, marks, known, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "")
    monkeypatch.setattr("jaxlib.__version__", version)
    monkeypatch.setattr("jax._src.xla_bridge.backends_are_initialized", lambda: False)
    compiling.with_the_older_generator(marks)
    assert (compiling.OLDER_GENERATOR in os.environ["XLA_FLAGS"]) == known


def test_a_process_that_a_test_starts_compiles_like_this_one():
    done = subprocess.run([sys.executable, "-c", SETTINGS], capture_output=True, text=True, check=True)
    folder, quickly = done.stdout.split()
    assert folder == os.environ["JAX_COMPILATION_CACHE_DIR"]
    assert quickly == str(jax.config.values["jax_disable_most_optimizations"])


@pytest.mark.parametrize(
    ("path", "marks", "quick"),
    [
        ("tests/core/test_plan.py", "not slow", True),
        ("tests/core/test_plan.py", "slow", False),
        ("tests/survival/test_saved_runs.py", "not slow", True),
        ("tests/survival/test_memory.py", "not slow", False),
        ("tests/explore/test_server.py", "not slow", False),
    ],
)
def test_only_default_tests_of_listed_files_are_compiled_quickly(path, marks, quick, request):
    compiling.in_the_way_of(Path(path), marks)
    found = jax.config.values["jax_disable_most_optimizations"]
    compiling.in_the_way_of(request.path, "not slow")
    assert found == (quick and jax.default_backend() == "cpu")
    assert not jax.config.values["jax_disable_most_optimizations"]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs the memory maps of Linux")
def test_programs_are_forgotten_where_their_memory_maps_are_many(monkeypatch):
    forgotten = []
    monkeypatch.setattr(jax, "clear_caches", lambda: forgotten.append(True))
    compiling.forget_many()
    assert not forgotten
    monkeypatch.setattr(compiling, "MOST_MAPS", 10)
    compiling.forget_many()
    assert forgotten


def test_every_test_has_one_tier_and_every_place_named_is_there(request):
    """A place that was renamed would send its tests to another tier without a word."""
    for item in request.session.items:
        assert sum(item.get_closest_marker(name) is not None for name in tiers.TIERS) == 1
    folder = Path(__file__).parent
    places = [place for _, places in tiers.TIERS.values() for place in places]
    assert len(places) == len(set(places))
    assert [place for place in places if not (folder / place).exists()] == []
    assert [name for name in compiling.QUICK if not list(folder.glob(f"**/{name}"))] == []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("tests/core/test_plan.py", "unit"),
        ("tests/core/test_oracles.py", "statistical"),
        ("tests/regression/test_fit.py", "statistical"),
        ("tests/regression/test_against_nuts.py", "end_to_end"),
        ("tests/tables/test_fit.py", "end_to_end"),
        ("tests/test_suite.py", "unit"),
    ],
)
def test_the_tier_is_that_of_the_file_before_that_of_its_folder(path, name):
    assert tiers.tier(Path(path)) == name
