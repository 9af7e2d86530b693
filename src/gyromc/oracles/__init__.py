"""Gradient oracles: unbiased estimates ĝ of the gradient, E[ĝ | θ] = ∇U(θ).

Input: a target and a point θ. Output: ĝ(θ, ζ). The randomness ζ is drawn separately (`draw`, then `gradient`): it is new for
every step and chain, and the engine chooses the generator. `base` has the interface, the oracles that read all the data and those
that read some rows, `control_variates` those anchored at a point.
"""

from gyromc.oracles.base import Batch, Exact, Gaussian, Minibatch, Oracle
from gyromc.oracles.control_variates import ControlVariate

__all__ = ["Batch", "ControlVariate", "Exact", "Gaussian", "Minibatch", "Oracle"]
