"""Which engine runs a plan.

`choose` takes a plan and an engine's name or `"auto"`, and returns the engine's name with the reason for it. The module of an
engine is imported when a plan needs it.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any, cast

from gyromc.checks import one_of
from gyromc.engines import suitability
from gyromc.engines.base import Engine
from gyromc.errors import InvalidInput, MissingExtra
from gyromc.extras import needs
from gyromc.plan import Plan


class _OnDemand:
    """An engine that is imported when a plan suits it; where a package is missing for it, it runs no plan and says so."""

    def __init__(self, module: str, unsuited: Callable[[Plan, Any], str | None]):
        self.module, self.unsuited = module, unsuited

    def load(self) -> Any:
        with needs("fast", "engine `lanes`"):
            return import_module(self.module)

    def why_not(self, plan: Plan, mesh: Any = None) -> str | None:
        reason = self.unsuited(plan, mesh)
        if reason is not None:
            return reason
        try:
            return self.load().why_not(plan, mesh)
        except MissingExtra as missing:
            text = str(missing)
            return f"it would be faster, but {text[0].lower()}{text[1:]}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.load(), name)


ENGINES: dict[str, Engine] = {
    "pallas": cast(Engine, _OnDemand("gyromc.engines.pallas", suitability.pallas)),
    "lanes": cast(Engine, _OnDemand("gyromc.engines.lanes", suitability.lanes)),
    "scan": cast(Engine, _OnDemand("gyromc.engines.scan", suitability.scan)),
}
"""The engines by name, the fastest first."""


def choose(plan: Plan, name: str = "auto", mesh: Any = None) -> tuple[str, str]:
    """The name of the engine that runs a plan, and the reason; raises `InvalidInput` when the engine asked for cannot.

    `"auto"` chooses the fastest that can run the plan, on the mesh if there is one.
    """
    one_of(name, ("auto", *ENGINES), "engine", " `auto` takes the fastest that can do the plan.")
    if name != "auto":
        reason = ENGINES[name].why_not(plan, mesh)
        if reason is None:
            return name, "asked for"
        able, _ = choose(plan, "auto", mesh)
        raise InvalidInput(f"Engine `{name}` cannot do this plan: {reason}. `{able}` can; `auto` would take it.")
    reasons = {}
    for candidate, engine in ENGINES.items():
        reason = engine.why_not(plan, mesh)
        if reason is None:
            said = "; ".join(f"not {other}: {why}" for other, why in reasons.items())
            return candidate, said or "the fastest that can do the plan"
        reasons[candidate] = reason
    others = "; ".join(f"{candidate}: {reason}" for candidate, reason in reasons.items())
    raise InvalidInput(f"No engine can do this plan. {others}.")
