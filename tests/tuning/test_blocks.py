"""Samplers in whitened coordinates against dense formulas."""

import numpy as np
import pytest
from gyromc.tuning.blocks import REVERSIBLE, ROTATING, merits


def test_merit_of_a_block_is_that_of_theory():
    """Φ and V, against dense formulas."""
    assert REVERSIBLE.merit == pytest.approx(1.0)
    spectrum = np.array([1.0, 4.0])
    E, V1, V2 = spectrum[-1] / 2, 2 * np.mean(1 / spectrum), 2 * np.mean([1 / 2, 1 / 5, 1 / 8])
    assert merits(spectrum)["SGLD (D = I)"] == pytest.approx(E * (V1 + 2 * V2) / 2)
    assert merits(np.full(3, 7.0))["SGNLMC (D = I, J pairing neighbours)"] == pytest.approx(1.0)  # isotropic: no gain
    assert ROTATING.linear == pytest.approx(2 * 0.2 / (1 + 2 * 0.2))  # E10: 2γ/(1+αγ)
    assert 0.2 < merits(spectrum)["SGGAULMC, preconditioned"] < 1.0  # momentum gains for means, and loses nothing
