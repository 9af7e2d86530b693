"""Integration schemes as values. To add a scheme, write its step (see `base`) and an entry in `SCHEMES`."""

from gyromc.checks import one_of
from gyromc.schemes.base import Scheme, StepMatrices, euler, step_matrices
from gyromc.schemes.integrators import Balanced, balanced, gaul_splitting, hfhr_splitting, leimkuhler_matthews, lm_ab2

__all__ = [
    "SCHEMES", "Balanced", "Scheme", "StepMatrices", "balanced", "euler", "find", "gaul_splitting", "hfhr_splitting",
    "leimkuhler_matthews", "lm_ab2", "step_matrices",
]  # fmt: skip

SCHEMES = {
    scheme.name: scheme for scheme in (euler, balanced(), leimkuhler_matthews, lm_ab2, hfhr_splitting, gaul_splitting)
}
"""The schemes by name; `balanced` estimates its S."""


def find(scheme: str | Scheme) -> Scheme:
    """The scheme of that name, or the scheme itself; raises `InvalidInput` for anything else."""
    if isinstance(scheme, Scheme):
        return scheme
    return SCHEMES[one_of(scheme, SCHEMES, "scheme", " A value of `gyromc.schemes` works too.")]
