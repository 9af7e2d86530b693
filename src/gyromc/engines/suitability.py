"""Which plans suit which engine, as far as that can be said without importing the engine.

Each function returns the first reason against a plan on a mesh, or None. `lanes` and `pallas` ask their compilers afterwards.
"""

import dataclasses
import os
from typing import Any

import jax
import numpy as np

from gyromc import targets
from gyromc.data import Mapped
from gyromc.engines.meshes import shares
from gyromc.flat import identity
from gyromc.observables import PROFILES, Ridge, ridge_of
from gyromc.oracles import Batch, ControlVariate, Exact, Gaussian, Minibatch
from gyromc.plan import Plan
from gyromc.runtime.machine import why_no_jax

KNOWN_ORACLES = (Exact, Gaussian, Minibatch, ControlVariate)  # of the fused engines


@dataclasses.dataclass(frozen=True)
class EngineLimits:
    """The largest plans that the engines take."""

    # Of `scan`, which counts in int32; `pallas` needs one number more, for chains that never fail.
    steps: int = 2**31 - 1
    # Observables that are functions of the user's: each takes some 20 ms to compile (measured).
    scan_functions: int = 2000
    lanes_state: int = 256  # entries of z: beyond, matrix products over all chains at once are faster (measured)
    lanes_batch: int = 4096  # rows of a mini-batch, whose offsets have to stay in the cache
    lanes_distinct: int = 512  # distinct rows of a batch: each is compared with all others
    lanes_rows: int = 2**32 - 1  # of a file: a word of 32 random bits chooses one
    pallas_state: int = 32  # entries of z: a thread has so many registers to spare


LIMITS = EngineLimits()


def scan(plan: Plan, mesh: Any = None) -> str | None:
    """Why engine `scan` cannot run the plan."""
    steps, functions = plan.num_steps + plan.burn_in, sum(ridge_of(h) is None for h in plan.observables.values())
    if reason := why_no_jax():
        return reason
    if "data" in shares(mesh) and not _has_rows(plan):
        which = "rows of data in memory or of mini-batches"
        none = f"{type(plan.target).__name__} with {plan.oracle.name} has none"
        return f"the axis `data` of a mesh shares {which}, of which {none}: leave the axis out"
    if steps > LIMITS.steps:
        return f"it counts at most {LIMITS.steps} steps and the plan has {steps}: continue a shorter run"
    if functions > LIMITS.scan_functions:
        remedy = "write those of the form ρ(aᵀθ) with `gyromc.observables`, of which there may be any number"
        most = f"it compiles at most {LIMITS.scan_functions} functions as observables"
        return f"{most} and the plan has {functions}: {remedy}, or make several plans"
    return None


def _has_rows(plan: Plan) -> bool:
    target, oracle = plan.flat_target, plan.oracle
    if any(np.shape(leaf)[:1] == (getattr(target, "num_data", None),) for leaf in jax.tree.leaves(target)):
        return True
    # Of a source, those of batches, where no sum of all rows is computed.
    batches = isinstance(oracle, Batch) and oracle.evaluations(target) <= 2 * oracle.size
    return isinstance(target, targets.StreamedRegression) and batches


def lanes(plan: Plan, mesh: Any = None) -> str | None:
    """Why engine `lanes` cannot run the plan."""
    target, oracle = plan.flat_target, plan.oracle
    if reason := _only_scan(plan, mesh):
        return reason
    if os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0"):
        return "NUMBA_DISABLE_JIT is set, and without Numba's compiler its loop would be interpreted"
    if plan.unravel is not identity:
        return "the parameters are a pytree, not a vector"
    if plan.dynamics.size > LIMITS.lanes_state:
        return f"the state has {plan.dynamics.size} entries, more than {LIMITS.lanes_state}"
    if plan.scheduled:
        return "the step size is a schedule"
    if not plan.scheme.linear:
        return f"the scheme is {plan.scheme}, which is not linear in its noise"
    for name, h in plan.observables.items():
        if not isinstance(h, Ridge):
            return f"observable {name!r} is a general {type(h).__name__}, not one of {', '.join(PROFILES)} of aᵀθ"
    if type(oracle) not in KNOWN_ORACLES:
        return f"the oracle is a {type(oracle).__name__}"
    if isinstance(oracle, ControlVariate) and oracle.curvature is not None:
        return "it has control variates of order 2 with whole matrices only, not with their diagonals or matrix-free"
    if isinstance(oracle, Batch) and oracle.size > LIMITS.lanes_batch:
        return f"the mini-batch has {oracle.size} rows, more than {LIMITS.lanes_batch}"
    if isinstance(oracle, Batch) and not oracle.replace and oracle.size > LIMITS.lanes_distinct:
        return f"it draws at most {LIMITS.lanes_distinct} distinct rows, and the batch has {oracle.size}"
    if isinstance(target, targets.StreamedRegression):
        if target.family == "linear" and (isinstance(oracle, Exact) or getattr(oracle, "order", 1) == 2):
            return None  # the gradient is linear: no row is read
        if not isinstance(oracle, Batch):
            return "it reads drawn rows of data that are not in memory, not all of them in every step"
        if not isinstance(target.by_row, Mapped):
            return f"it reads mapped files, and {target.source.name} is none (`gyromc.data.store` writes one)"
        most = f"it chooses from {LIMITS.lanes_rows} rows at most, and the data have {target.num_data}"
        return most if target.num_data > LIMITS.lanes_rows else None
    # Classes derived from the first two are not known.
    exactly = type(target) in (targets.Quadratic, targets.CosinePerturbed)
    known = exactly or isinstance(target, targets.GeneralizedLinear | targets.Separable)
    return None if known else f"target is a general {type(target).__name__}"


def interpreting() -> bool:
    """Whether kernels of `pallas` are interpreted on the CPU, for tests."""
    return os.environ.get("GYROMC_PALLAS_INTERPRET") == "1"


def pallas(plan: Plan, mesh: Any = None) -> str | None:
    """Why engine `pallas` cannot run the plan, by what can be found without tracing a function."""
    steps, most, n = plan.num_steps + plan.burn_in, LIMITS.steps - 1, plan.dynamics.size
    if reason := why_no_jax() or _only_scan(plan, mesh):
        return reason
    device = jax.devices()[0]
    if not interpreting() and "cuda" not in device.client.platform_version.lower():
        return f"it needs a CUDA GPU (its kernels hold PTX instructions), and JAX's default device is {device.platform}"
    reasons = {
        f"it works in float32 and the plan asks for {plan.dtype}": plan.dtype != "float32",
        "it takes a constant step size and the plan has a schedule": plan.scheduled,
        "it weights all states alike and the plan weights them by step size": plan.weighting != "uniform",
        f"it takes schemes that are linear in their noise and the plan asks for {plan.scheme}": not plan.scheme.linear,
        f"it has no {type(plan.oracle).__name__} oracle": not isinstance(plan.oracle, KNOWN_ORACLES),
        f"it holds states of at most {LIMITS.pallas_state} numbers and the plan's has {n}": n > LIMITS.pallas_state,
        f"it counts at most {most} steps and the plan has {steps}: continue a shorter run": steps > most,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _only_scan(plan: Plan, mesh: Any) -> str | None:
    """Why the plan or the mesh needs `scan`: the mesh shares more than the chains, or these move in other coordinates."""
    if plan.coordinates is not None:
        return "only `scan` moves chains in other coordinates"
    if plan.oracle.moving:
        return f"it keeps no anchors between steps, which {plan.oracle.name} needs"
    wanted = " and ".join(f"`{axis}`" for axis in shares(mesh))
    return f"only `scan` shares the axis {wanted} of a mesh" if wanted else None
