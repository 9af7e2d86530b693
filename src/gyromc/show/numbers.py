"""Numbers as text and as JSON: a few digits for people, plain values for machines."""

import difflib
import math
import re
from collections.abc import Callable, Sequence

# letters that control a terminal or the direction of writing; not the end of a line, nor the tabulator
CONTROLS = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff\\ufffe\\uffff]"
)


def plain(value) -> float | int | None:
    """Return a number for JSON; None for None, NaN and infinity."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if isinstance(value, int) else float(value)


def printable(text: str) -> str:
    """Return a text for a terminal or a picture: what would control it, or is no letter at all, is spelled out."""
    return CONTROLS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def is_number(text: str) -> bool:
    """Whether a text is a finite number, without the underscores that Python would skip."""
    try:
        return "_" not in text and math.isfinite(float(text))
    except ValueError:
        return False


def number(value: float | None, digits: int = 3) -> str:
    """Return a few significant digits; a dash for None."""
    return "–" if value is None else f"{value:.{digits}g}".replace("-", "−")


def readable(value: float | None, digits: int = 3) -> str:
    """Return a number as `number` does, but sizes that people say in full without an exponent: 78881.2 as "78,880"."""
    text = number(value, digits)
    if value is None or not math.isfinite(value) or abs(value) >= 1e12 or (abs(value) < 1000 and "e+" not in text):
        return text
    rounded = float(f"{value:.{digits - 1}e}")
    places = max(0, digits - 1 - math.floor(math.log10(abs(rounded))))
    text = f"{rounded:,.{places}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text).replace("-", "−")


def capital(text: str) -> str:
    """Return a text with a capital first letter, and all others as they are: names of columns keep theirs."""
    return text[:1].upper() + text[1:]


def signed(value: float | None, digits: int = 2) -> str:
    """Return a number with its sign and the given number of decimals."""
    return "–" if value is None else f"{value:+.{digits}f}".replace("-", "−")


def plus_minus(value: float | None, error: float | None) -> str:
    """Return a value with its standard error, and decimals for two digits of the error: "1.235 ± 0.038"."""
    if value is None or error is None or not error > 0:
        return number(value)
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}".replace("-", "−")


def bounds(interval, digits: int = 3, text: Callable[[float, int], str] = number) -> str:
    """Return an interval in brackets, its ends written by `text`."""
    return "" if interval is None else f"[{text(interval[0], digits)}, {text(interval[1], digits)}]"


def duration(seconds: float) -> str:
    """Return seconds as seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def listed(texts: Sequence[str], most: int = 6) -> str:
    """Return the first texts, and how many more there are: "a, b and 3 more"."""
    return ", ".join(texts[:most]) + (f" and {len(texts) - most} more" if len(texts) > most else "")


def did_you_mean(name: str, known: Sequence[str], otherwise: str, near: int = 3, cutoff: float = 0.5) -> str:
    """Return the known names that are near to a name as a question; where none is, the first of all of them."""
    found = difflib.get_close_matches(name, known[:5000], near, cutoff)  # comparing with a million names takes minutes
    return f"Did you mean {' or '.join(map(repr, found))}?" if found else f"{otherwise} {listed(known, 12)}."


def counted(number: int, noun: str) -> str:
    """Return a count with its noun: "1 row", "2 rows", "3 categories"."""
    plural = noun[:-1] + "ies" if noun.endswith("y") else noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"
