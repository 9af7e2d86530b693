"""The cost model of scaling: it finds the constants that times were made with, and its table on paper is its formula."""

import math

import numpy as np
import pytest

import scaling


def test_the_fit_finds_the_constants_of_times_made_by_the_model():
    """With errors of 5 % in each of 34 times; bytes are too few in them to be seen."""
    true = dict(zip(scaling.CONSTANTS, [2e-10, 5e-9, 3e-9, 1e-9, 3e-5, 2e-5, 1e-10], strict=True))
    rng, rows = np.random.default_rng(0), []
    for count, processes in [*((count, 1) for count in scaling.DEVICES), (2, 2)]:
        for work in scaling.WORK:
            row = {"work": work.name, "devices": count, "processes": processes}
            seconds = scaling.features(row, 2) @ np.array(list(true.values())) * np.exp(0.05 * rng.standard_normal())
            rows.append({**row, "seconds": seconds})
    constants, predicted = scaling.fitted(rows, 2)
    for name in ("row", "drawn", "weight", "step", "latency"):
        assert constants[name] == pytest.approx(true[name], rel=0.2)
    assert max(abs(math.log(row["predicted"] / row["seconds"])) for row in predicted) < 0.2


def test_on_paper_long_messages_pay_up_to_a_number_that_does_not_depend_on_the_parameters():
    wide = scaling.pays(1e7, 1e8)
    assert scaling.pays(1e7, 1e9) == wide
    limit = 1e7 * scaling.PAPER["bandwidth"] / (8 * scaling.PAPER["rate"])
    assert limit / 2 <= wide <= limit


def test_the_work_of_a_weak_row_grows_with_the_devices():
    full, batches = (work for work in scaling.WORK if work.name in ("full gradients, weak", "mini-batches, weak"))
    assert (full.on(4).rows, full.on(4).chains) == (4 * full.rows, full.chains)
    assert (batches.on(4).rows, batches.on(4).batch) == (4 * batches.rows, 4 * batches.batch)
