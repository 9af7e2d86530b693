"""The compilation cache: on where a private folder can be written, never in place of the user's own, bounded in size."""

import os
import subprocess
import sys

import jax
import pytest

from gyromc.runtime import machine
from gyromc.runtime.machine import CacheSettings, keep_compiled

NAMES = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")


@pytest.fixture
def home(tmp_path, monkeypatch):
    """No cache set, and an empty folder for caches."""
    before = {name: jax.config.values[name] for name in NAMES}
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", raising=False)
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)


def test_it_is_on_in_a_folder_of_the_user_alone(home):
    folder = keep_compiled()
    assert folder is not None
    assert folder.parent == home / "gyromc-programs"
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert jax.config.values["jax_compilation_cache_dir"] == str(folder)
    assert jax.config.values["jax_persistent_cache_min_compile_time_secs"] == CacheSettings().seconds


def test_the_users_own_cache_stays(home):
    jax.config.update("jax_compilation_cache_dir", "/elsewhere")
    assert keep_compiled() is None
    assert jax.config.values["jax_compilation_cache_dir"] == "/elsewhere"


def test_it_can_be_switched_off(home, monkeypatch):
    monkeypatch.setenv("GYROMC_NO_CACHE", "1")
    assert keep_compiled() is None
    assert not list(home.iterdir())


@pytest.mark.parametrize("fault", ["a file", "anybody's"])
def test_it_is_off_without_a_private_folder(home, monkeypatch, fault):
    if fault == "a file":
        (home / "gyromc-programs").write_text("")
    else:
        (home / "gyromc-programs").mkdir()
        (home / "gyromc-programs").chmod(0o777)
    assert keep_compiled() is None
    assert jax.config.values["jax_compilation_cache_dir"] is None


def test_the_programs_not_used_for_the_longest_time_go(home, monkeypatch):
    monkeypatch.setattr(machine, "SETTINGS", CacheSettings(most_bytes=1000))
    folder = keep_compiled()
    assert folder is not None
    folder.mkdir()
    for age in range(6):
        (folder / f"{age}").write_bytes(bytes(200))
        os.utime(folder / f"{age}", (1e9 - age, 1e9 - age))
    jax.config.update("jax_compilation_cache_dir", None)
    keep_compiled()
    assert sorted(path.name for path in folder.iterdir()) == ["0", "1"]


def test_a_program_is_stored_by_the_first_process_and_read_by_the_next(tmp_path):
    script = """
import jax
import gyromc as gm
seen = [gm.targets]
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.monitoring.register_event_listener(lambda name, **more: seen.append(name))
gm.targets.Quadratic([1.0, 2.0]).gradients([[0.0, 1.0]])
print(sum(str(name).endswith("cache_hits") for name in seen))
"""
    keep = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    environment = {**keep, "XDG_CACHE_HOME": str(tmp_path)}
    run = lambda: subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    )
    assert int(run().stdout) == 0
    assert int(run().stdout) > 0
