"""What all tests share is there: compiled programs go to the folder of the session, in this process and in those it starts."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp


def cos_times_a_number_of_its_own(x):
    return jnp.cos(x) * 0.98765


def test_what_is_compiled_is_stored():
    folder = Path(os.environ["JAX_COMPILATION_CACHE_DIR"])
    assert str(folder) == jax.config.jax_compilation_cache_dir
    jax.jit(cos_times_a_number_of_its_own)(1.0)
    assert list(folder.glob("*cos_times_a_number_of_its_own*"))


def test_a_process_that_a_test_starts_uses_the_same_folder():
    command = [sys.executable, "-c", "import jax; print(jax.config.jax_compilation_cache_dir)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == os.environ["JAX_COMPILATION_CACHE_DIR"]
