"""Values that hardly any argument can be, and what is wrong with the answer to a call that gets one.

`VALUES` by name; `answer` makes a call and returns a text where it was not refused in a sentence of this package's own.
"""

import contextlib
import datetime
import decimal
import re
import signal
import time
import warnings

import numpy as np

import gyromc as gm

MOST_LETTERS = 400
PATIENCE = 10  # seconds of processor time of one call


class Unreadable:
    """Raises without a message wherever NumPy or a message looks at it."""

    def __array__(self, *arguments, **options):
        raise RuntimeError

    def __repr__(self):
        raise RuntimeError


def nested(depth):
    found: list = []
    for _ in range(depth):
        found = [found]
    return found


VALUES = {
    "NaN": float("nan"),
    "infinity": float("inf"),
    "negative": -1.5,
    "zero": 0,
    "true": True,
    "text": "abc",
    "long text": "x" * 100_000,
    "half a letter": "\ud800",
    "bytes": b"1",
    "none": None,
    "complex": 1 + 2j,
    "complexes": [1j, 2j],
    "masked": np.ma.masked_array([1.0, 2.0], [0, 1]),
    "empty": [],
    "cube": np.ones((2, 2, 2)),
    "ragged": [[1.0], [1.0, 2.0]],
    "nested": nested(2000),
    "NaNs": [float("nan"), 1.0],
    "texts": ["a", "b"],
    "object": object(),
    "objects": np.array([object(), 1.0], dtype=object),
    "unreadable": Unreadable(),
    "dict": {"a": 1},
    "set": {1.0},
    "type": int,
    "function": lambda *arguments: "x",
    "huge whole": 10**400,
    "more digits than are printed": 10**5000,
    "1e308": 1e308,
    "1e-320": 1e-320,
    "2**62": 2**62,
    "date": np.datetime64("2024-01-01"),
    "dates": [datetime.date(2024, 1, 1)] * 2,
    "decimal NaN": decimal.Decimal("NaN"),
}


@contextlib.contextmanager
def within(seconds):
    """Raise `TimeoutError` in a block that takes longer."""

    def late(*_):
        raise TimeoutError(f"not ended after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def answer(call, value, message, taken):
    """What is wrong with the answer to a call, or None."""
    try:
        call(value)
    except gm.InvalidInput as error:
        if taken:
            return f"refused: {error}"
        text = str(error)
        if not re.search(message, text, re.DOTALL) or len(text) > MOST_LETTERS or "\n" in text:
            return f"a message that does not fit: {text[:500]}"
        return None
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:500]
    return None if taken else "accepted"


def single(call, message):
    """What is wrong with one call, or None: it must be refused or warned about in the words `message`, and in time."""
    began = time.process_time()
    try:
        with within(6 * PATIENCE), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", gm.GyromcWarning)
            found = answer(lambda _: call(), None, message, taken=False)
    except TimeoutError as error:
        return str(error)
    said = " ".join(str(one.message) for one in caught if issubclass(one.category, gm.GyromcWarning))
    if found == "accepted" and re.search(message, said, re.DOTALL):
        found = None
    seconds = time.process_time() - began
    return found if seconds < PATIENCE or found else f"it took {seconds:.0f} s"
