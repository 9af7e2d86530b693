"""Packages that only an extra of gyromc installs: what needs them, and one message where they are missing.

Input: the name of an extra and what needs it. Output: nothing, or `MissingExtra` with the command that installs it.
"""

import contextlib
import importlib.util
from collections.abc import Iterator

from gyromc.errors import MissingExtra

__all__ = ["EXTRAS", "needs", "require_extra"]

EXTRAS: dict[str, tuple[str, ...]] = {
    "fast": ("numba", "llvmlite"),
    "plots": ("matplotlib",),
    "report": ("jinja2", "matplotlib"),
    "fit": ("pandas", "pyarrow", "formulaic", "jinja2", "matplotlib"),
    "excel": ("openpyxl",),
    "data": ("pyarrow",),
    "sklearn": ("sklearn",),
    "numpyro": ("numpyro",),
    "pymc": ("pymc",),
    "blackjax": ("blackjax",),
    "arviz": ("arviz_base", "arviz_stats", "xarray"),
}
"""The modules that each extra of pyproject.toml installs, as gyromc imports them."""


@contextlib.contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Around imports: raise `MissingExtra` where a package of the extra is not installed; `what` begins the message.

    ```python
    from gyromc.extras import needs
    with needs("fast", "Engine `lanes`"):
        import numba
    ```
    """
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
