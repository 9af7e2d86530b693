"""gyromc: non-reversible stochastic-gradient Langevin Monte Carlo.

A `Plan` describes a computation: target, oracle, dynamics, observables, step size, chains, start, seed. `predict(plan)` returns
its expected error without sampling, `tune(target)` chooses a plan by it, `run(plan)` samples, `estimate(run)` returns means with
errors; `expect(target, observables, error)` does all of it for a stated error. Submodules are imported on first use, so `import
gyromc` takes milliseconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_PIECES = ("coordinates", "dynamics", "observables", "oracles", "schemes", "targets")
_MODULES = (*_PIECES, "data", "datasets", "prediction", "processes")
_PLACES = {
    "gyromc.solve.draws": ("check", "sharpen"),
    "gyromc.engines": ("run",),
    "gyromc.errors": ("DivergenceError", "GyromcWarning", "InvalidInput"),
    "gyromc.estimation.estimate": ("Estimates", "estimate"),
    "gyromc.io.runs": ("load",),
    "gyromc.model": ("Model",),
    "gyromc.plan": ("Plan",),
    "gyromc.posterior": ("Posterior",),
    "gyromc.prediction.predict": ("Prediction", "predict"),
    "gyromc.results": ("Run",),
    "gyromc.solve.expect": ("expect",),
    "gyromc.tables.study": ("fit",),
    "gyromc.tuning.tune": ("Tuned", "tune"),
}
_NAMES = {name: module for module, names in _PLACES.items() for name in names}

__all__ = ["__version__", *_MODULES, *_NAMES]

if TYPE_CHECKING:
    from gyromc import (
        coordinates,
        data,
        datasets,
        dynamics,
        observables,
        oracles,
        prediction,
        processes,
        schemes,
        targets,
    )
    from gyromc.engines import run
    from gyromc.errors import DivergenceError, GyromcWarning, InvalidInput
    from gyromc.estimation.estimate import Estimates, estimate
    from gyromc.io.runs import load
    from gyromc.model import Model
    from gyromc.plan import Plan
    from gyromc.posterior import Posterior
    from gyromc.prediction.predict import Prediction, predict
    from gyromc.results import Run
    from gyromc.solve.draws import check, sharpen
    from gyromc.solve.expect import expect
    from gyromc.tables.study import fit
    from gyromc.tuning.tune import Tuned, tune


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"gyromc.{name}")
    if name in _NAMES:
        value = getattr(import_module(_NAMES[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'gyromc' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
