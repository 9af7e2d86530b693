"""What is imported only when it is used: packages that an extra of gyromc installs, and functions of higher parts.

`function_above` is the one place from which an import may go upwards: a convenience method such as `run.to_datatree()` belongs to
the result, its code to the package behind it.
"""

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from gyromc.errors import MissingExtra

EXTRAS: dict[str, tuple[str, ...]] = {
    "fast": ("numba", "llvmlite"),
    "plots": ("matplotlib",),
    "report": ("jinja2", "matplotlib"),
    "fit": ("pandas", "pyarrow", "formulaic", "jinja2", "matplotlib"),
    "excel": ("openpyxl",),
    "data": ("pyarrow",),
    "arviz": ("arviz_base", "arviz_stats", "xarray"),
    **{name: (name,) for name in ("sklearn", "numpyro", "pymc", "blackjax")},
}
"""The modules that each extra of pyproject.toml installs, as gyromc imports them."""


@contextlib.contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Around imports: raise `MissingExtra` where a package of the extra is not installed; `what` begins the message."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if isinstance(error, MissingExtra) or package not in EXTRAS[extra]:
            raise
        raise MissingExtra(
            f"{what} needs the package {package}, which is not installed: pip install 'gyromc[{extra}]'", name=package
        ) from None


def require_extra(extra: str, what: str) -> None:
    """Raise `MissingExtra` unless every package of the extra is installed: before long work whose end needs them."""
    with needs(extra, what):
        for package in EXTRAS[extra]:
            # found and not imported: that takes a second, and not every fit needs all of them
            if importlib.util.find_spec(package) is None:
                raise ModuleNotFoundError(name=package)


def function_above(name: str) -> Callable[..., Any]:
    """Import the function of a higher part that has this name."""
    modules = {
        "to_datatree": "gyromc.interop.arviz",
        "save_run": "gyromc.io.runs",
        "save_posterior": "gyromc.io.posteriors",
        "restored_posterior": "gyromc.io.posteriors",
        "resume": "gyromc.engines.loop",
        "restored_model": "gyromc.tables.saved",
        "restored_estimator": "gyromc.sklearn",
        "posterior_datatree": "gyromc.interop.arviz",
    }
    return getattr(import_module(modules[name]), name)
