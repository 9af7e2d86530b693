"""Which compiler makes the kernel: Pallas' Triton lowering or its Mosaic GPU lowering.

`choose` takes what was asked for and returns a `Lowering`; `why_none` says why there is none on this machine.
"""

import enum
import functools
import importlib.util
import os
import warnings

import jax

from gyromc.checks import one_of
from gyromc.engines.pallas.instructions import Instructions, Triton
from gyromc.errors import GyromcWarning


class Lowering(enum.StrEnum):
    """The compilers."""

    TRITON = "triton"
    MOSAIC = "mosaic"


CAPABILITY = {Lowering.TRITON: 8.0, Lowering.MOSAIC: 9.0}
"""The least compute capability of a GPU that each compiler supports."""
VARIABLE = "GYROMC_PALLAS_LOWERING"
_MODULES = {
    Lowering.TRITON: "jax.experimental.pallas.triton",
    Lowering.MOSAIC: "jax.experimental.pallas.mosaic_gpu",
}


def instructions(lowering: Lowering, interpret: bool) -> Instructions:
    """The instructions of a compiler, or plain JAX for an interpreted kernel."""
    if interpret:
        return Instructions()
    if lowering is Lowering.TRITON:
        return Triton()
    from gyromc.engines.pallas.mosaic import Mosaic

    return Mosaic()


def in_this_jax(lowering: Lowering) -> bool:
    """Whether the installed JAX has this lowering."""
    return importlib.util.find_spec(_MODULES[lowering]) is not None


def choose(asked: str | Lowering | None = None) -> Lowering:
    """The lowering asked for, here or by the environment variable; left out: Triton where JAX has it, else Mosaic."""
    asked = asked or os.environ.get(VARIABLE) or None
    if asked is None and in_this_jax(Lowering.TRITON):
        return Lowering.TRITON
    if asked is None:
        _say_once(jax.__version__)
        return Lowering.MOSAIC
    return Lowering(one_of(asked, tuple(Lowering), f"lowering` or `{VARIABLE}"))


@functools.cache
def _say_once(version: str) -> None:
    """Warn, once in a process, that the default lowering is not there."""
    warnings.warn(
        f"JAX {version} has no Triton lowering of Pallas: the engine `pallas` compiles its kernels with Mosaic GPU. "
        f"Chains are the same up to rounding. Set `{VARIABLE}=mosaic` to turn this warning off.",
        GyromcWarning,
        stacklevel=2,
    )


def why_none(asked: str | Lowering | None = None) -> str | None:
    """Why no kernel can be compiled for JAX's default GPU, or None."""
    lowering = choose(asked)
    others = "" if in_this_jax(Lowering.TRITON) else f"JAX {jax.__version__} has no Triton lowering, and "
    if not in_this_jax(lowering):
        return f"JAX {jax.__version__} has no Pallas lowering `{lowering}`"
    capability = float(getattr(jax.devices()[0], "compute_capability", 0))
    if capability < CAPABILITY[lowering]:
        return f"{others}the lowering `{lowering}` needs compute capability {CAPABILITY[lowering]}, and the GPU has {capability}"
    return None
