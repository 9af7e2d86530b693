"""A fixture for the tests of the engine `pallas`."""

import jax
import pytest


@pytest.fixture
def kernels(monkeypatch):
    """Interpreted kernels where there is no GPU, and matrix products in full precision."""
    from support.kernels import ON_GPU  # asks JAX for its devices, which is too early when this file is read

    if not ON_GPU:
        monkeypatch.setenv("GYROMC_PALLAS_INTERPRET", "1")
    with jax.default_matmul_precision("highest"):  # a GPU's own choice, tf32, has three digits: too few for a reference
        yield
