"""The sizes of the work whose scaling is measured."""

import scaling


def test_the_work_of_a_weak_row_grows_with_the_devices():
    full, batches = (work for work in scaling.WORK if work.name in ("full gradients, weak", "mini-batches, weak"))
    assert (full.on(4).rows, full.on(4).chains) == (4 * full.rows, full.chains)
    assert (batches.on(4).rows, batches.on(4).batch) == (4 * batches.rows, 4 * batches.batch)
