"""Functions of higher layers that a lower layer calls, listed by name and imported when first called.

This is the one place from which an import may go upwards: a convenience method such as `run.to_datatree()` belongs to the
result, its code to the package behind it; a file names what it holds, and whoever reads it calls what makes that. `load(name)`
imports the module and returns the function.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

EXTENSIONS = {
    "to_datatree": "gyromc.interop.arviz",
    "save_run": "gyromc.io.saved",
    "resume": "gyromc.engines.loop",
    "restored_model": "gyromc.tables.saved",
    "restored_estimator": "gyromc.interop.sklearn",
    "posterior_datatree": "gyromc.interop.arviz",
}
"""The module of each function."""


def load(name: str) -> Callable[..., Any]:
    """Import the function of that name."""
    return getattr(import_module(EXTENSIONS[name]), name)
