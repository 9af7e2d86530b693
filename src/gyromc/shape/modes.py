"""The mode of a target: the θ with ∇U(θ) = 0 that a descent from a start reaches, in float64.

A target over vectors and a start in, a minimiser of U out. Regressions with a known likelihood are convex and go straight to
Newton's method; every other target first descends by L-BFGS, from gradients alone.
"""

import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy

from gyromc.errors import InvalidInput
from gyromc.evaluation import POTENTIAL, doubled, spend
from gyromc.targets import Target
from gyromc.targets.regressions import KnownLikelihood, WithLikelihood

__all__ = ["descend", "find_mode", "newton", "some_rows"]

MANY = 1e7  # rows × columns, from which on some of the rows stand for all
ENOUGH = 40_000  # rows, or
PER_PARAMETER = 400  # for each parameter
MOST_FOR_NEWTON = 500  # parameters whose Hessian is formed
MOST_STEPS = 200
FARTHEST = 1e11  # from the start, in units of its size or 1: a descent that goes further has no end
NEARER = 1e-4  # of the fall of U that a Newton step promised: if less is left, the Hessian is kept for the next


def find_mode(target: Target, start: np.ndarray, tolerance: float = 1e-6) -> np.ndarray:
    """A minimiser of U near `start`; `InvalidInput` where none is found."""
    known = target.gaussian()
    if known is not None:
        return known[1]
    if isinstance(target, KnownLikelihood):
        part = some_rows(target)
        assert isinstance(part, KnownLikelihood)
        first = part.start_point() if part is target else find_mode(part, start)
        return newton(
            lambda x: float(target.potentials(x[None])[0]),
            lambda x: target.gradients(x[None])[0],
            lambda x: target.mean_hessian(x[None]),
            first,
            reuse=isinstance(target, WithLikelihood)
            and part is not target,  # a pass over a source has the Hessian anyway
        )
    return _descend(target, np.asarray(start, float), tolerance)


@eqx.filter_jit  # compiled once for a target, whatever the number of descents
def _value_and_gradient(target: Target, x):
    return jax.value_and_grad(target.potential)(x)


def descend(target: Target, start: np.ndarray, iterations: int = 2000, gradient: float = 1e-10):
    """L-BFGS from a start, and the function of θ that returns U and ∇U: (SciPy's result, function)."""
    pieces = doubled(target)

    def at(x) -> tuple[float, np.ndarray]:
        spend(1 + POTENTIAL)
        with jax.enable_x64(True):
            value, slope = _value_and_gradient(pieces, jnp.asarray(x))
        return float(value), np.asarray(slope, float)

    def end_far_away(x) -> None:
        if np.max(np.abs(x - start)) > FARTHEST * (1 + np.max(np.abs(start))):
            raise StopIteration

    options = {"maxiter": iterations, "ftol": 1e-15, "gtol": gradient}
    return scipy.optimize.minimize(at, start, jac=True, method="L-BFGS-B", options=options, callback=end_far_away), at


def _descend(target: Target, start: np.ndarray, tolerance: float) -> np.ndarray:
    """L-BFGS, then Newton's method where the Hessian is small enough to form."""
    with jax.enable_x64(True):
        found, at = descend(target, start)
        first, x = float(np.abs(at(start)[1]).max()), found.x
        if x.size <= MOST_FOR_NEWTON and np.all(np.isfinite(x)):
            hessian = lambda x: target.hessians(x[None])[0]
            x = newton(lambda x: at(x)[0], lambda x: at(x)[1], hessian, x)
        left = float(np.abs(at(x)[1]).max())
    if not np.all(np.isfinite(x)) or not left <= tolerance * max(1.0, first):
        raise InvalidInput(
            f"No mode was found: |∇U| is still {left:.3g} after {found.nit} iterations. "
            "Pass `center`, or check that the target has a maximum."
        )
    return x


def newton(
    potential: Callable[[np.ndarray], float],
    gradient: Callable[[np.ndarray], np.ndarray],
    hessian: Callable[[np.ndarray], np.ndarray],
    theta: np.ndarray,
    reuse: bool = False,
) -> np.ndarray:
    """Newton's method with steps halved until U falls enough; it stops where the Hessian is not positive definite.

    `reuse`: keep a Hessian while it serves, where computing one costs much more than a step.
    """
    value, factor, before = potential(theta), None, 0.0
    for _ in range(MOST_STEPS):
        g = gradient(theta)
        step, fall = np.zeros_like(g), math.inf
        if factor is not None:
            step = scipy.linalg.cho_solve(factor, g)
            fall = float(g @ step)
        if not (reuse and fall <= NEARER * before):  # else the Hessian of an earlier point does
            try:
                factor = scipy.linalg.cho_factor(hessian(theta))
                step = scipy.linalg.cho_solve(factor, g)
            except (scipy.linalg.LinAlgError, ValueError):  # not positive definite, or not finite
                return theta
            fall = float(g @ step)
        before = fall
        if fall <= 1e-14 * max(1.0, abs(value)):
            last = theta - step  # the step is known and squares what error is left
            return last if potential(last) <= value + 1e-12 * max(1.0, abs(value)) else theta
        length = 1.0
        while length > 1e-12:
            with np.errstate(over="ignore"):
                moved = potential(theta - length * step)
            if moved <= value - 0.25 * length * fall:
                break
            length /= 2
        else:
            return theta
        theta, value = theta - length * step, moved
    raise InvalidInput(
        f"No posterior mode was found in {MOST_STEPS} Newton steps (U = {value:.6g}). Take a smaller `prior_scale`, "
        "and look for columns or responses of extreme size."
    )


def some_rows(target: Target) -> Target:
    """A regression with many rows, with a random sample of them and as much less prior; any other target as it is.

    Rows that are not in memory are always sampled: all of them where they are few.
    """
    if not isinstance(target, KnownLikelihood):
        return target
    count = max(ENOUGH, PER_PARAMETER * target.dim)
    if isinstance(target, WithLikelihood) and (target.num_data * target.dim <= MANY or 4 * count >= target.num_data):
        return target
    return target.sampled(count)
