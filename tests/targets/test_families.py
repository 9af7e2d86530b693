"""The record of each family: everything that other parts read of it is there, and consistent."""

import numpy as np
import pytest

import gyromc as gm
from gyromc.io.planfiles import KINDS
from gyromc.targets.families import FAMILIES, LIKELIHOODS, family_named
from gyromc.targets.likelihoods import ResponseKind
from support.values import ROOT

GOOD = {ResponseKind.NUMBERS: [0.5, 2.0], ResponseKind.COUNTS: [0.0, 3.0], ResponseKind.CLASSES: [0.0, 1.0]}
NOT_POSITIVE = dict.fromkeys(("gamma", "lognormal", "weibull", "exponential"), 0.0)
BAD = {"linear": np.inf, "student-t": np.nan, "beta": 1.0, "logistic": 2.0, **NOT_POSITIVE}
SHARES = [0.5, 0.01]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_record_is_complete(family):
    known = FAMILIES[family]
    made, words = known.made(3), known.words
    filled = [
        text.format(name="y", positive="yes")
        for text in (words.title, words.sentence, words.effect.of, words.effect.label)
    ]
    assert all(filled)
    assert words.law
    assert all(known.allowed(np.array(SHARES if family == "beta" else GOOD[known.response])))
    with pytest.raises(gm.InvalidInput, match=r"`y` must hold .*: row 0 has"):
        known.require(np.array([BAD.get(family, 0.5)]))
    assert made.discrete == (known.response is not ResponseKind.NUMBERS)
    assert known.wider is None or FAMILIES[known.wider].response is known.response
    assert all(family_named(alias) == family for alias in known.aliases)
    assert f"`{family}`" in (ROOT / "docs" / "fit.md").read_text()


def test_ranks_and_names_differ_and_plan_files_know_every_likelihood():
    assert len({known.rank for known in FAMILIES.values()}) == len(FAMILIES)
    assert set(KINDS["likelihood"].values()) == set(LIKELIHOODS)
    assert "binomial" in KINDS["likelihood"]
