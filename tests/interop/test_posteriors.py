"""`expect` on models of the kinds found in collections of posteriors: within four claimed errors of NUTS, or warned.

The references are long NUTS runs (`support/references.py` says how they were made).
"""

import json
import time
import warnings
from pathlib import Path

import numpy as np
import pytest

import gyromc as gm
import support
from gyromc.interop import numpyro as gnp
from support.models import models

REFERENCES = json.loads((Path(next(iter(support.__path__))) / "references.json").read_text())
MOST_SECONDS = 120


def compared(name: str) -> dict:
    """A default call: parameters, seconds, the largest |z| over the elements, and what was warned of."""
    posed, began = models()[name], time.perf_counter()
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", gm.GyromcWarning)
        target = gnp.target(posed.model, *posed.args)
        table = gm.expect(target, seconds=MOST_SECONDS / 2)
    seconds = time.perf_counter() - began
    own = [*table.warnings, *(str(w.message) for w in heard if issubclass(w.category, gm.GyromcWarning))]
    z = {
        element: (table[element].mean - row["mean"]) / np.hypot(table[element].std_error, row["error"])
        for element, row in REFERENCES[name].items()
    }
    worst = max(z, key=lambda element: abs(z[element]))
    return {
        "parameters": target.dim,
        "seconds": seconds,
        "gradients": table.gradient_evaluations,
        "worst": worst,
        "z": abs(z[worst]),
        "elements": len(z),
        "warned": own,
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", REFERENCES)
def test_a_default_call_is_right_or_says_that_it_may_not_be(name):
    found = compared(name)
    assert found["z"] < 4 or found["warned"], found
    assert found["seconds"] < MOST_SECONDS, found


def test_every_model_has_a_reference():
    assert list(REFERENCES) == list(models())
    assert len(REFERENCES) >= 12
