"""Pages and pictures: the one style of every report gyromc writes, of the paper's §6 or of a user's own data.

Receives templates' names, figures and numbers; hands on self-contained HTML, images and texts. A page that extends
`page.html.j2` is readable in the light and in the dark, on a phone and on paper, and fetches nothing.
"""

import base64
import io
import math
import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import gyromc

__all__ = [
    "FIGURE_STYLE",
    "bounds",
    "data_uri",
    "duration",
    "environment",
    "machine",
    "number",
    "picture",
    "plus_minus",
    "signed",
]

FIGURE_STYLE = {
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "grid.color": "#B8B8B8",
    "grid.linewidth": 0.4,
    "grid.alpha": 0.5,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.3,
    "lines.markersize": 5,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "svg.hashsalt": "gyromc",
    "svg.fonttype": "path",
    "pdf.fonttype": 3,
}
"""Matplotlib's settings for every figure."""


def environment(package: str):
    """A Jinja environment that finds the package's own templates and the ones all pages share.

    **Arguments:**

    - `package`: one with a folder `templates`.
    """
    import jinja2

    loaders = [jinja2.PackageLoader(name, "templates") for name in (package, "gyromc.show")]
    found = jinja2.Environment(
        loader=jinja2.ChoiceLoader(loaders),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    found.filters |= {
        "num": number,
        "ci": bounds,
        "pm": plus_minus,
        "signed": signed,
        "duration": duration,
        "share": lambda x: f"{100 * x:.0f} %",
    }
    return found


def picture(figure, kind: str, **options: Any) -> bytes:
    """A Matplotlib figure as the content of a file."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, **options)
    return buffer.getvalue()


def data_uri(svg: bytes) -> str:
    """An SVG image as an address that a page can hold."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode()


def machine() -> dict[str, Any]:
    """What the numbers were made with."""
    import jax

    packages = {name: metadata.version(name) for name in ("jax", "numpy", "scipy")}
    return {
        "gyromc": gyromc.__version__,
        "python": platform.python_version(),
        **packages,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }


def _processor() -> str:
    lines = Path("/proc/cpuinfo")
    if lines.exists():
        for line in lines.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def number(value: float | None, digits: int = 3) -> str:
    """A few significant digits; a dash for what is not known."""
    return "–" if value is None else f"{value:.{digits}g}".replace("-", "−")


def signed(value: float | None, digits: int = 2) -> str:
    """With its sign and so many decimals."""
    return "–" if value is None else f"{value:+.{digits}f}".replace("-", "−")


def plus_minus(value: float | None, error: float | None) -> str:
    """A value with its standard error: two digits of the error, and as many decimals of the value as that leaves.

    ```python
    from gyromc.show.pages import plus_minus
    assert plus_minus(1.23456, 0.0381) == "1.235 ± 0.038"
    ```
    """
    if value is None or error is None or not error > 0:
        return number(value)
    decimals = max(0, 1 - math.floor(math.log10(error)))
    return f"{value:.{decimals}f} ± {error:.{decimals}f}".replace("-", "−")


def bounds(interval, digits: int = 3) -> str:
    """An interval in brackets."""
    return "" if interval is None else f"[{number(interval[0], digits)}, {number(interval[1], digits)}]"


def duration(seconds: float) -> str:
    """Seconds as people say them."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
