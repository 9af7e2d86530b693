"""Stability of a step size: y ← My must contract, for Euler M = I - ηA, A = (D+Q)P, and so must the second moments of y.

Input: a plan. Output: a `Stability`. A target that is not Gaussian is linearised at its mode and on rays from it, with mean
Hessians K̄ that have ∇U(m+s) = K̄s: far out where ∇U grows linearly, else at the edge of what a long chain visits.

Under noise Γ that grows with the state, Y = E[yyᵀ] becomes MYMᵀ + B_θΓ(Y)B_θᵀ (T1). The map is Φ₀ + Φ₁ with Φ₀(Y) = MYMᵀ, and
both parts keep matrices positive, so Φ₀ + Φ₁ has radius r exactly when (r - Φ₀)⁻¹Φ₁, which acts on d × d matrices, has radius 1.
"""

import contextlib
import dataclasses
import enum
import functools
import math
from typing import Any

import jax
import numpy as np
from scipy import linalg, optimize
from scipy.sparse import linalg as sparse

from gyromc.approx.modes import GaussianApproximation, inverse_root
from gyromc.dynamics import Dynamics, augment
from gyromc.errors import InvalidInput
from gyromc.oracles import Exact, Gaussian
from gyromc.plan import Plan
from gyromc.prediction.exact.chain import Noise, affordable, batch_noise, oracle_noise, why_not_linear
from gyromc.prediction.step_effects import noise_limit
from gyromc.schemes import Scheme, euler, step_matrices
from gyromc.targets import Target


@dataclasses.dataclass(frozen=True)
class StabilitySettings:
    """How far from the mode a target is linearised, and what is affordable."""

    rays: int = 16  # from the mode: ± the stiffest directions, and random ones
    edge: float = 20.0  # U above its minimum: a chain goes beyond with a probability of about e⁻²⁰
    far: tuple[float, ...] = (30.0, 100.0)  # radii against that edge
    linear: float = 1.5  # by which curvature along a ray may rise between them
    smaller: float = 1 - 1e-3  # share of the limit at the mode, below which one away from it counts
    max_dense: int = 1000  # numbers of a state whose matrices are formed
    small: int = 6  # parameters for which the map of second moments is
    defective: float = 1e6  # condition number of eigenvectors, above which they are not used
    longer: float = 1.25  # factor between step sizes on the way to the limit
    most_tried: int = 120  # of them


SETTINGS = StabilitySettings()


class Linearisation(enum.StrEnum):
    """Where the linear dynamics z ← (I - ηA) z come from."""

    EXACT = "exactly"
    EXACT_WITH_NOISE = "exact, with oracle noise"
    WITHOUT_NOISE = "for exact gradients: the oracle's noise is not counted"
    AT_MODE = "linearised at the mode"
    AT_MODE_WITH_NOISE = "linearised at the mode, with oracle noise"
    FAR = "linearised far from the mode"
    AT_EDGE = "linearised where a long chain gets to, ∇U growing faster than linearly"
    AT_START = "linearised at the start"

    @property
    def exact(self) -> bool:
        """Whether the chain itself is linear."""
        return self in (Linearisation.EXACT, Linearisation.EXACT_WITH_NOISE)

    @property
    def caveat(self) -> str:
        """A sentence on what the limit leaves out; empty where it leaves out nothing."""
        if self.exact:
            return ""
        if self is Linearisation.WITHOUT_NOISE:
            return " Noise that grows with the state lowers the limit: take a step size well below it."
        if self is Linearisation.AT_EDGE:
            return f"{_LEAVES}; the oracle's noise may lower the limit."
        noise = "" if self is Linearisation.AT_MODE_WITH_NOISE else " and the oracle's noise"
        return f" This is the limit of the linear chain; curvature elsewhere{noise} may lower it."


_LEAVES = " From far enough away the chain diverges at every step size"


def limit_of_mean(rates: np.ndarray) -> float:
    """sup of the η for which ρ(I - ηA) < 1, from the eigenvalues of A; 0 when one has a real part ≤ 0."""
    real = np.real(rates)
    return 0.0 if real.min() <= 0 else float(np.min(2 * real / np.abs(rates) ** 2))  # |1 - ηλ| < 1


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """y ← M(η)y + B(η)δ of a linear scheme on H with the Hessian P; `noise`: that of δ where it grows with the state."""

    scheme: Scheme
    dynamics: Dynamics
    P: np.ndarray
    how: Linearisation
    noise: Noise | None = None
    superlinear: bool = False

    @functools.cached_property
    def rates(self) -> np.ndarray:
        """The eigenvalues of A = (D+Q)P."""
        return np.linalg.eigvals((self.dynamics.D + self.dynamics.Q) @ self.P)

    def radius(self, step_size: float) -> float:
        """The factor by which second moments change per step: stable below 1."""
        least = self._matrices(step_size)[2]
        if self.noise is None:
            return least
        least = (least + 1e-14) * (1 + 1e-9)
        most = least
        while self._excess(step_size, most) > 0:
            most *= 2
        return least if most == least else _root(lambda r: self._excess(step_size, r), least, most)

    @functools.cached_property
    def limit(self) -> float:
        """The largest step size at which second moments stay bounded; 0 where A does not contract."""
        low, longer = limit_of_mean(self.rates), SETTINGS.longer
        if low == 0 or (self.scheme.is_euler and self.noise is None):
            return low
        while self._excess(low) >= 0 and low > 1e-300:
            low /= 2
        for _ in range(SETTINGS.most_tried):
            if self._excess(longer * low) >= 0:
                return _root(self._excess, low, longer * low)
            low *= longer
        return math.inf

    def _matrices(self, step_size: float) -> tuple[np.ndarray, np.ndarray, float]:
        """M, B and ρ(M)²."""
        step = step_matrices(self.scheme, self.dynamics, step_size)
        M = step.transition(self.P)
        return M, step.B, float(np.max(np.abs(np.linalg.eigvals(M))) ** 2)

    def _excess(self, step_size: float, r: float = 1.0) -> float:
        """Negative where second moments grow by less than r per step: the radius of (r - Φ₀)⁻¹Φ₁ is then below 1."""
        M, B, of_mean = self._matrices(step_size)
        if self.noise is None or of_mean >= r:
            return math.log(max(of_mean / r, 1e-300)) if self.noise is None else 1.0
        noise, d = self.noise, len(self.noise.constant)
        m, V = np.linalg.eig(M)
        inverse = None if np.linalg.cond(V) > SETTINGS.defective else np.linalg.inv(V)

        def apply(flat: np.ndarray) -> np.ndarray:
            Y = flat.reshape(d, d)
            added = B[:, :d] @ noise.growth((Y + Y.T) / 2) @ B[:, :d].T  # T1
            if inverse is None:
                return linalg.solve_discrete_lyapunov(M / np.sqrt(r), added / r, method="bilinear")[:d, :d].ravel()
            inner = (inverse @ added @ inverse.conj().T) / (r - m[:, None] * m.conj())
            return (V[:d] @ inner @ V[:d].conj().T).real.ravel()

        if d <= SETTINGS.small:
            found = np.linalg.eigvals(np.array([apply(column) for column in np.eye(d * d)]))
        else:
            map_: Any = sparse.LinearOperator((d * d, d * d), matvec=apply, dtype=float)  # type: ignore[call-issue]  # incomplete stubs
            # It begins with a positive matrix, as the eigenvector is.
            options: Any = {"v0": np.eye(d).ravel(), "tol": 1e-10, "return_eigenvectors": False}
            found = sparse.eigs(map_, 1, **options)
        return 1 - 1 / max(float(np.max(np.abs(found))), 1e-300)


def _root(excess: Any, low: float, high: float) -> float:
    """Where a function that changes its sign once is 0, to nine digits."""
    return float(optimize.brentq(excess, low, high, xtol=1e-9 * low))  # type: ignore[arg-type]  # a number: `full_output` is off


@dataclasses.dataclass(frozen=True)
class Stability:
    """Whether second moments stay bounded: they are multiplied by `radius` in each step, and the chain is stable below 1."""

    radius: float
    largest_step_size: float
    how: Linearisation
    rate: float  # the slowest, per unit of time, of the linear dynamics
    superlinear: bool  # whether ∇U grows faster than linearly: then the chain leaves from far enough away
    noise_limit: float = math.inf  # of the step size: beyond it balanced noise has no W ⪰ 0 to draw
    drawable: bool = True  # whether it can at this one

    @property
    def stable(self) -> bool:
        """Whether the chain's second moments converge, and its noise can be drawn."""
        return self.radius < 1 and self.drawable

    @property
    def where(self) -> str:
        """What the limit is that of."""
        if self.noise_limit <= self.largest_step_size:
            return "beyond it balanced noise has a negative variance, W = 2ηD - η²GSGᵀ"
        return str(self.how)

    @property
    def caveat(self) -> str:
        """Sentences on what the limit leaves out; empty where it leaves out nothing."""
        elsewhere = self.superlinear and self.how is not Linearisation.AT_EDGE
        return f"{self.how.caveat}{_LEAVES}." if elsewhere else self.how.caveat

    def __str__(self) -> str:
        verdict = "stable" if self.stable else "UNSTABLE" if self.drawable else "IMPOSSIBLE"
        limit = f"largest step size {self.largest_step_size:.4g} ({self.where})"
        return f"{verdict}: second moments × {self.radius:.6g} per step, {limit}"


def stability(plan: Plan) -> Stability | None:
    """Second-moment stability of a plan; None where its Hessian cannot be formed.

    Exact for Gaussian targets, including the noise of mini-batches; for others the smallest limit of those linearised at the
    mode, with that noise where it is known, and away from the mode, without it. A schedule is judged by its largest step size.
    """
    try:
        steps = _steps(plan)
    except InvalidInput:  # a target whose mode or Hessian cannot be found
        return None
    if steps is None:
        return None
    eta = plan.step_size
    if callable(eta):
        with jax.enable_x64(True):
            eta = max(float(eta(int(k))) for k in np.linspace(0, plan.num_steps + plan.burn_in - 1, 1000))
    noise = math.inf
    with contextlib.suppress(InvalidInput):  # S cannot be had
        noise = noise_limit(plan)
    rate, limit, drawable = float(np.min(np.real(steps.rates))), min(steps.limit, noise), eta <= noise * (1 + 1e-12)
    return Stability(steps.radius(eta), limit, steps.how, rate, steps.superlinear, noise, drawable)


def _steps(plan: Plan) -> Steps | None:
    """The linear chain that decides: at the mode, or away from it where that allows smaller steps only; None if there is none."""
    known, additive = plan.flat_target.gaussian(), isinstance(plan.oracle, Exact | Gaussian)
    if plan.dynamics.size > SETTINGS.max_dense or (known is None and plan.starts.theta is None):
        return None
    # Euler's for a scheme that is not linear, and for balanced noise.
    scheme = plan.scheme if plan.scheme.linear and not plan.scheme.needs_prepared else euler
    steps = lambda K, *how: Steps(scheme, plan.dynamics, augment(K, plan.augmented), *how)
    if known is not None:
        if not additive and not (why_not_linear(plan) is None and affordable(plan)):
            return steps(known[0], Linearisation.WITHOUT_NOISE)
        if additive or (noise := oracle_noise(plan, known[1])).additive:
            return steps(known[0], Linearisation.EXACT)
        return steps(known[0], Linearisation.EXACT_WITH_NOISE, noise)
    try:
        center = plan.model.laplace
    except InvalidInput:  # a target without a mode
        K = plan.flat_target.hessians(plan.model.start[None])[0]
        return steps(K, Linearisation.AT_START) if np.all(np.isfinite(K)) else None
    if not np.all(np.isfinite(center.precision)):
        return None
    hessians, faster = _growth(plan.flat_target, center)
    noise, where = batch_noise(plan, center.mean), Linearisation.AT_EDGE if faster else Linearisation.FAR
    how = Linearisation.AT_MODE if noise is None else Linearisation.AT_MODE_WITH_NOISE
    mode = steps(center.precision, how, noise, faster)
    others = [steps(K, where, None, faster) for K in hessians]
    without_noise = lambda other: limit_of_mean(other.rates)  # of Euler: quick to compute
    found = min((other for other in others if without_noise(other) > 0), key=without_noise, default=mode)
    return found if found.limit < SETTINGS.smaller * mode.limit else mode


def _growth(target: Target, center: GaussianApproximation) -> tuple[list[np.ndarray], bool]:
    """Mean Hessians on rays from the mode, of least change from the one there, and whether ∇U rises faster than linearly."""
    m, P, count = center.mean, center.precision, SETTINGS.rays // 4
    sizes, basis = np.linalg.eigh(P)
    drawn = np.random.default_rng(0).standard_normal((count, len(m))) @ inverse_root(P).T
    v = np.concatenate([basis[:, ::-1][:, :count].T, drawn])
    v = np.concatenate([v, -v]) / np.linalg.norm(np.concatenate([v, v]), axis=1, keepdims=True)
    # How far along each ray U reaches the edge: doubled, then by bisection.
    r, low, high = np.full(len(v), 1e-3 / np.sqrt(sizes[-1])), np.zeros(len(v)), np.full(len(v), np.inf)
    bottom = target.potentials(m[None])[0]
    for _ in range(60):
        rise = np.nan_to_num(target.potentials(m + r[:, None] * v) - bottom, nan=np.inf, neginf=np.inf)
        low, high = np.where(rise < SETTINGS.edge, r, low), np.where(rise < SETTINGS.edge, high, r)
        r = np.where(np.isinf(high), 2 * low, (low + np.minimum(high, 1e300)) / 2)
    along, hessians = [], []
    with np.errstate(all="ignore"):
        for radius in (1.0, *SETTINGS.far):
            s = radius * low[:, None] * v
            g = target.gradients(m + s)
            along.append(np.sum(g * s, axis=1) / np.sum(s**2, axis=1))
            missing = g - s @ P
            scale = np.sum(missing * s, axis=1)
            scale = np.where(scale == 0, np.inf, scale)[:, None, None]
            hessians.append(P + missing[:, :, None] * missing[:, None] / scale)
    rises = bool(np.any(along[-1] > SETTINGS.linear * np.maximum(along[-2], 1e-12)))
    return [K for K in hessians[0 if rises else -1] if np.all(np.isfinite(K))], rises


def advice(plan: Plan) -> str:
    """A sentence that compares the step size with the stability limit."""
    found = None
    with contextlib.suppress(Exception):  # a user's target that has no Hessian: the advice stays general
        found = None if plan.scheduled else stability(plan)
    if found is None:
        return "Likely cause: the step size is too large for the target's curvature; take a smaller `step_size`."
    limit, where, eta = found.largest_step_size, found.where, plan.eta
    if limit == 0:
        return f"Likely cause: the drift is not contracting there ({where}, A = (D+Q)P has an eigenvalue with real part ≤ 0)."
    if eta >= limit:
        remedy = f"Take `step_size` at most {limit / 2:.3g}."
        return f"Likely cause: step_size = {eta:g} exceeds the stability limit {limit:.4g} ({where}). {remedy}"
    suspect = "oracle noise that grows with θ, curvature away from there, or a target without a finite integral"
    below = f"step_size = {eta:g} is below the stability limit {limit:.4g} ({where})"
    return f"{below}: suspect {suspect}; try a smaller `step_size`."
