"""Engines: run a plan's chains and average its observables.

`loop` picks an engine by `suitability` and runs it in chunks; `base` has what an engine provides. The engines are `scan` (any
target that JAX can differentiate), `lanes` (CPU, Numba) and `pallas` (GPU).
"""

from gyromc.engines.loop import ENGINES, choose, draws_bytes, run

__all__ = ["ENGINES", "choose", "draws_bytes", "run"]
