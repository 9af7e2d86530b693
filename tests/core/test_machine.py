"""What the machine is asked for: threads of the linear algebra."""

import ctypes
from pathlib import Path

import numpy as np
import pytest

from gyromc.runtime.machine import one_blas_thread


def test_linear_algebra_has_one_thread_inside_and_as_many_as_before_outside():
    found = [*Path(np.__file__).parent.parent.glob("numpy*libs/*scipy_openblas64_*")]
    if not found:
        pytest.skip("this NumPy has another library for linear algebra")
    library = ctypes.CDLL(str(found[0]))
    library.scipy_openblas_set_num_threads64_(2)
    with one_blas_thread():
        assert library.scipy_openblas_get_num_threads64_() == 1
    assert library.scipy_openblas_get_num_threads64_() == 2
    library.scipy_openblas_set_num_threads64_(1)


def test_another_library_changes_nothing(monkeypatch, tmp_path):
    monkeypatch.setattr(np, "__file__", str(tmp_path / "numpy" / "__init__.py"))
    with one_blas_thread():
        assert np.linalg.eigvalsh(np.eye(3)).sum() == pytest.approx(3.0)
