"""Engines: run a plan's chains and average its observables.

`run` takes a `Plan` and returns a `Run`. `base` defines what an engine provides and holds what the engines share, `suitability`
and `choice` pick one, `loop` runs it in chunks. The engines are `scan` (any target that JAX can differentiate), `lanes` (CPU,
Numba) and `pallas` (GPU).
"""

from gyromc.engines.choice import ENGINES, choose
from gyromc.engines.loop import draws_bytes, run

__all__ = ["ENGINES", "choose", "draws_bytes", "run"]
