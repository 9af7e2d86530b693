"""Pages and their pictures, in one style for every report, from Jinja templates and Matplotlib figures."""

import base64
import contextlib
import dataclasses
import io
import os
import platform
import re
import warnings
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import gyromc
from gyromc.extras import needs
from gyromc.show.numbers import bounds, duration, number, plus_minus, signed

FIGURE_STYLE: dict[Any, Any] = {
    **dict.fromkeys(("font.size", "axes.titlesize", "axes.labelsize"), 9),
    **dict.fromkeys(("legend.fontsize", "xtick.labelsize", "ytick.labelsize"), 8),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **{"axes.grid": True, "grid.color": "#B8B8B8", "grid.linewidth": 0.4, "grid.alpha": 0.5},
    **{"axes.titlelocation": "left", "lines.linewidth": 1.3, "lines.markersize": 5, "svg.hashsalt": "gyromc"},
}
"""Matplotlib's settings for every figure."""


def environment(package: str):
    """Return a Jinja environment that finds the templates of the package of that name, and the shared ones."""
    with needs("report", "A page of results"):
        import jinja2

    loader = jinja2.ChoiceLoader([jinja2.PackageLoader(name, "templates") for name in (package, "gyromc.show")])
    options = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True, "undefined": jinja2.StrictUndefined}
    found = jinja2.Environment(loader=loader, **options)
    found.filters |= {"num": number, "ci": bounds, "pm": plus_minus, "signed": signed, "duration": duration}
    found.filters["share"] = lambda x: f"{100 * x:.0f} %"
    return found


@contextlib.contextmanager
def any_letters() -> Iterator[None]:
    """Inside, Matplotlib does not warn of a letter in a name that the font lacks."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def lay_out(figure) -> None:
    """Move the axes of a Matplotlib figure so that no text overlaps or is cut off."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with any_letters():
        ConstrainedLayoutEngine().execute(figure)


def image(figure, format: str, **options: Any) -> bytes:
    """Return a Matplotlib figure as the content of an image file."""
    buffer = io.BytesIO()
    with any_letters():
        figure.savefig(buffer, format=format, **options)
    return buffer.getvalue()


@dataclasses.dataclass(frozen=True, eq=False)
class Picture:
    """An SVG image on a page, with its name in the template (`kind`) and its size in pixels."""

    kind: str
    svg: bytes
    alt: str
    caption: str
    width: int
    height: int

    @classmethod
    def of(cls, kind: str, figure, alt: str, caption: str) -> "Picture":
        """Draw a Matplotlib figure."""
        width, height = (int(96 * inches) for inches in figure.get_size_inches())
        return cls(kind, image(figure, "svg", transparent=True, metadata={"Date": None}), alt, caption, width, height)

    @property
    def source(self) -> str:
        """The image as a data URI."""
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg).decode()


def machine() -> dict[str, Any]:
    """Return the versions, the processor and the device that the numbers were made with."""
    import jax

    known, processor = Path("/proc/cpuinfo"), platform.processor() or "unknown"
    if known.exists():
        named = re.search(r"^model name\s*: (.*)$", known.read_text(encoding="utf-8"), re.MULTILINE)
        processor = named[1].strip() if named else processor
    return {
        "gyromc": gyromc.__version__,
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("jax", "numpy", "scipy")},
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor,
        "device": jax.devices()[0].device_kind,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
    }
