"""Which engine runs a plan.

`choose` takes a plan and an engine's name or `"auto"`, and returns the engine's name with the reason for it.
"""

from typing import Any

from gyromc.checks import one_of, require
from gyromc.engines import pallas, scan
from gyromc.engines.protocol import Engine
from gyromc.engines.slices import why_not_on_mesh
from gyromc.engines.suitable import WithoutNumba
from gyromc.errors import MissingExtra
from gyromc.extras import needs
from gyromc.plan import Plan

__all__ = ["ENGINES", "choose"]


def _lanes() -> Engine:
    """The engine `lanes`, or what stands in its place where Numba is not installed."""
    try:
        with needs("fast", "engine `lanes`"):
            from gyromc.engines import lanes
    except MissingExtra as missing:
        return WithoutNumba(missing)
    return lanes


ENGINES: dict[str, Engine] = {"pallas": pallas, "lanes": _lanes(), "scan": scan}
"""The engines by name, the fastest first."""


def choose(plan: Plan, name: str = "auto", mesh: Any = None) -> tuple[str, str]:
    """The name of the engine that runs a plan, and the reason; raises `InvalidInput` when the engine asked for cannot.

    `"auto"` chooses the fastest that can run the plan, on the mesh if there is one.
    """
    one_of(name, ("auto", *ENGINES), "engine", " `auto` takes the fastest that can do the plan.")
    reasons = {
        candidate: why_not_on_mesh(engine, mesh) or engine.why_not(plan) for candidate, engine in ENGINES.items()
    }
    able = [candidate for candidate, reason in reasons.items() if reason is None]
    others = "; ".join(f"{candidate}: {reason}" for candidate, reason in reasons.items() if reason is not None)
    require(able, f"No engine can do this plan. {others}.")
    if name == "auto":
        faster = list(ENGINES)[: list(ENGINES).index(able[0])]
        reason = "; ".join(f"not {candidate}: {reasons[candidate]}" for candidate in faster)
        return able[0], reason or "the fastest that can do the plan"
    require(
        name in able, f"Engine `{name}` cannot do this plan: {reasons[name]}. `{able[0]}` can; `auto` would take it."
    )
    return name, "asked for"
