"""Modes of a target, and Gaussian approximations of its law there or with E[∇U] = 0 and E[∇²U] = K under N(m, K⁻¹).

A target over vectors and a start in, a minimiser of U out (`find_mode`): by Newton's method for regressions with a known
likelihood, which are convex, by L-BFGS first for others. `find_modes` starts descents at dispersed points, more of them the fewer
the parameters, and returns a `Modes`; a mode that no descent reaches is not found. With many rows of data mode and curvature
describe the law; of a skewed posterior (separable classes, counts of zero) the mean curvature says much more.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from gyromc.checks import require
from gyromc.errors import InvalidInput
from gyromc.runtime.evaluation import compiled, doubled
from gyromc.targets import SumOverData, Target
from gyromc.targets.regressions import KnownLikelihood, WithLikelihood


@dataclasses.dataclass(frozen=True)
class ModeSettings:
    """The numbers of descents and of the search for further modes."""

    many: float = 1e7  # rows × columns, from which on `enough` rows, or `per_parameter`, stand for all at first
    enough: int = 40_000
    per_parameter: int = 400
    most_for_newton: int = 500  # parameters whose Hessian is formed
    most_steps: int = 200  # of Newton's method
    farthest: float = 1e11  # from the start, in units of its size or 1; a descent that goes further has no end
    # Of the fall of U that a Newton step promised; if less is left, the Hessian is kept for the next.
    nearer: float = 1e-4
    most_searched: int = 200  # parameters, beyond which one descent costs too much to make a dozen
    radii: tuple[float, float] = (2.0, 64.0)  # of the nearest and the farthest start, in standard deviations
    around_origin: float = 2.0  # the same for starts around the origin
    fewest: int = 6  # starts with many parameters …
    most: int = 64  # … and with few
    cheap: int = 10_000  # rows of data up to which a descent costs little
    least_share: float = 1e-6  # of the law, that a mode must hold
    same: float = 1.0  # modes closer than so many standard deviations are one


SETTINGS = ModeSettings()


@dataclasses.dataclass(frozen=True, eq=False)
class GaussianApproximation:
    """N(mean, precision⁻¹); `source` says where both come from."""

    mean: np.ndarray
    precision: np.ndarray
    source: str

    def points(self, standard: np.ndarray) -> np.ndarray:
        """Points of the approximation from standard normal ones, in rows."""
        return self.mean + standard @ inverse_root(self.precision).T


def inverse_root(K: np.ndarray) -> np.ndarray:
    """Upper triangular R with RRᵀ = K⁻¹."""
    return scipy.linalg.solve_triangular(scipy.linalg.cholesky(K, lower=True), np.eye(len(K)), lower=True).T


def laplace(target: Target, mode: np.ndarray) -> GaussianApproximation:
    """Mode and Hessian there; `InvalidInput` where the Hessian is not positive definite."""
    known = target.gaussian()
    if known is not None:
        return GaussianApproximation(known[1], known[0], "exact")
    K = target.hessians(mode[None])[0]
    smallest = float(np.linalg.eigvalsh(K)[0])
    found = f"not positive definite (smallest eigenvalue {smallest:.3g})"
    require(smallest > 0, f"The Hessian at the mode is {found}: no Laplace approximation.")
    return GaussianApproximation(mode, K, "the curvature at the mode")


def mean_curvature_fit(target: Target, center: GaussianApproximation, points: int) -> GaussianApproximation:
    """The Gaussian whose precision is the law's mean curvature over it, from an even number of points."""
    half = np.random.default_rng(0).standard_normal((points // 2, len(center.mean)))
    x, source = np.concatenate([half, -half]), f"mean curvature over {points} points"
    for _ in range(2):
        at = center.points(x)
        K = target.mean_hessian(at)
        smallest = float(np.linalg.eigvalsh(K)[0]) if np.isfinite(K).all() else math.nan
        found = f"its mean curvature around the mode is not positive definite (smallest eigenvalue {smallest:.3g})"
        remedy = "Leave out what needs one, such as `martingale=True`, or use `gyromc.expect`."
        require(smallest > 1e-14 * np.abs(K).max(), f"No Gaussian describes this law: {found}. {remedy}")
        mean = center.mean - scipy.linalg.solve(K, target.gradients(at).mean(axis=0), assume_a="pos")
        center = GaussianApproximation(mean, K, source)
    return center


def find_mode(target: Target, start: np.ndarray, tolerance: float = 1e-6) -> np.ndarray:
    """A minimiser of U near `start`; `InvalidInput` where none is found."""
    known = target.gaussian()
    if known is not None:
        return known[1]
    if isinstance(target, KnownLikelihood):
        part = some_rows(target)
        assert isinstance(part, KnownLikelihood)
        first = part.start_point() if part is target else find_mode(part, start)
        # A pass over rows on disk has the Hessian anyway.
        reuse = isinstance(target, WithLikelihood) and part is not target
        potential = lambda x: float(target.potentials(x[None])[0])
        gradient = lambda x: target.gradients(x[None])[0]
        return newton(potential, gradient, lambda x: target.mean_hessian(x[None]), first, reuse)
    start = np.asarray(start, float)
    with jax.enable_x64(True):
        found, at = descend(target, start)
        first, x = float(np.abs(at(start)[1]).max()), found.x
        if x.size <= SETTINGS.most_for_newton and np.all(np.isfinite(x)):
            x = newton(lambda x: at(x)[0], lambda x: at(x)[1], lambda x: target.hessians(x[None])[0], x)
        left = float(np.abs(at(x)[1]).max())
    what = f"No mode was found: |∇U| is still {left:.3g} after {found.nit} iterations"
    arrived = np.all(np.isfinite(x)) and left <= tolerance * max(1.0, first)
    require(arrived, f"{what}. Pass `center`, or check that the target has a maximum.")
    return x


@compiled  # once for a target, whatever the number of descents
def _value_and_gradient(target: Target, x):
    return jax.value_and_grad(target.potential)(x)


def descend(target: Target, start: np.ndarray, iterations: int = 2000, gradient: float = 1e-10):
    """L-BFGS from a start, and the function of θ that returns U and ∇U: (SciPy's result, function)."""
    pieces = doubled(target)

    def at(x) -> tuple[float, np.ndarray]:
        with jax.enable_x64(True):
            value, slope = _value_and_gradient(pieces, jnp.asarray(x))
        return float(value), np.asarray(slope, float)

    def end_far_away(x) -> None:
        if np.max(np.abs(x - start)) > SETTINGS.farthest * (1 + np.max(np.abs(start))):
            raise StopIteration

    options = {"maxiter": iterations, "ftol": 1e-15, "gtol": gradient}
    return scipy.optimize.minimize(at, start, jac=True, method="L-BFGS-B", options=options, callback=end_far_away), at


def newton(
    potential: Callable[[np.ndarray], float],
    gradient: Callable[[np.ndarray], np.ndarray],
    hessian: Callable[[np.ndarray], np.ndarray],
    theta: np.ndarray,
    reuse: bool = False,
) -> np.ndarray:
    """Newton's method with halved steps, while the Hessian is positive definite; `reuse`: keep a Hessian while it serves."""
    value, factor, before = potential(theta), None, 0.0
    for _ in range(SETTINGS.most_steps):
        g = gradient(theta)
        step = scipy.linalg.cho_solve(factor, g) if reuse and factor else None
        # else the Hessian of an earlier point does
        if step is None or g @ step > SETTINGS.nearer * before:
            try:
                factor = scipy.linalg.cho_factor(hessian(theta))
                step = scipy.linalg.cho_solve(factor, g)
            except (scipy.linalg.LinAlgError, ValueError):  # not positive definite, or not finite
                return theta
        before = fall = float(g @ step)
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
    remedy = "Take a smaller `prior_scale`, and look for columns or responses of extreme size."
    raise InvalidInput(f"No posterior mode was found in {SETTINGS.most_steps} Newton steps (U = {value:.6g}). {remedy}")


def some_rows(target: Target) -> Target:
    """A regression with many rows, or rows on disk, with a random sample of them and as much less prior; others as they are."""
    if not isinstance(target, KnownLikelihood) or target.dim is None:
        return target
    count, rows = max(SETTINGS.enough, SETTINGS.per_parameter * target.dim), target.num_data
    small = rows * target.dim <= SETTINGS.many or 4 * count >= rows
    return target if small and isinstance(target, WithLikelihood) else target.sampled(count)


@dataclasses.dataclass(frozen=True, eq=False)
class Modes:
    """The modes found, the heaviest first, with the share of the law that a Gaussian at each of them holds."""

    found: tuple[GaussianApproximation, ...]
    shares: np.ndarray

    @property
    def several(self) -> bool:
        """Whether there is more than one."""
        return len(self.found) > 1

    def starts(self, count: int, seed: int) -> np.ndarray:
        """Points of θ distributed over the modes by their shares, at least one at each where `count` allows: count × dim."""
        owed = self.shares * count
        numbers = np.maximum(owed.astype(int), 1)
        while numbers.sum() > count:
            numbers[np.argmax(numbers)] -= 1
        for i in np.argsort(numbers - owed)[: count - numbers.sum()]:
            numbers[i] += 1
        standard = np.random.default_rng(seed).standard_normal((count, len(self.found[0].mean)))
        parts = np.split(standard, np.cumsum(numbers)[:-1])
        return np.concatenate([center.points(part) for center, part in zip(self.found, parts, strict=True)])


def find_modes(target: Target, first: GaussianApproximation, seed: int = 0) -> Modes:
    """All modes that descents from dispersed starts reach; above 200 parameters no search is made."""
    single = target.gaussian() is not None or isinstance(target, KnownLikelihood)
    if single or len(first.mean) > SETTINGS.most_searched:
        return Modes((first,), np.ones(1))
    # Around the first mode, at distances spread evenly over their logarithms, and around the origin.
    rng, d, found = np.random.default_rng(seed), len(first.mean), [first]
    cheap = not isinstance(target, SumOverData) or target.num_data <= SETTINGS.cheap
    count = max(SETTINGS.fewest, SETTINGS.most // d) if cheap else SETTINGS.fewest
    directions = rng.standard_normal((count, d))
    directions *= np.sqrt(d) / np.linalg.norm(directions, axis=1, keepdims=True)
    away = np.geomspace(*SETTINGS.radii, count)[:, None] * directions @ inverse_root(first.precision).T
    half = SETTINGS.around_origin * rng.standard_normal((count // 3, d))
    distance = lambda theta, center: math.sqrt((theta - center.mean) @ center.precision @ (theta - center.mean))
    for start in np.concatenate([first.mean + away, first.mean - away, half, -half, -first.mean[None]]):
        rough = descend(target, start, iterations=150, gradient=1e-4)[0].x
        if not np.all(np.isfinite(rough)) or any(distance(rough, c) < SETTINGS.same for c in found):
            continue
        # a descent to infinity or onto a ridge: no mode there
        with contextlib.suppress(InvalidInput, np.linalg.LinAlgError, FloatingPointError):
            center = laplace(target, find_mode(target, rough))
            if all(distance(center.mean, known) > SETTINGS.same for known in found):
                found.append(center)
    volumes = -0.5 * np.linalg.slogdet([center.precision for center in found])[1]
    shares = scipy.special.softmax(volumes - target.potentials(np.array([center.mean for center in found])))
    order = [i for i in np.argsort(-shares) if shares[i] > SETTINGS.least_share]
    return Modes(tuple(found[i] for i in order), shares[order] / shares[order].sum())
