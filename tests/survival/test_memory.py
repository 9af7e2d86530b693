"""The memory of a run follows the formula that it is checked by before it starts."""

import pytest

import memory

CASES = {
    "lanes": {"engine": "lanes", "chains": 100_000},
    "scan": {"engine": "scan", "chains": 100_000},
    "martingale": {"engine": "lanes", "chains": 100_000, "martingale": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_memory_follows_the_formula(name):
    row = memory.measured(CASES[name])
    assert memory.kept(row)
    assert row["bytes"] > 0.4 * row["formula_bytes"]  # no more is refused than must be


def test_every_case_of_the_table_is_a_plan_that_can_run():
    for case in memory.CASES:
        assert memory.loop.run_bytes(memory.plan_of(case)) > 0


def test_too_much_is_noticed():
    row = {"formula_bytes": 10**8, "bytes": 10**8 + memory.BUFFERS}
    assert memory.kept(row)
    assert not memory.kept(row | {"bytes": row["bytes"] + 1})
