"""Stability of a step size: y ← My must contract, for Euler M = I - ηA, A = (D+Q)P, and so must the second moments of y.

Input: a plan. Output: a `Stability` with the contraction factor and the largest stable step size, from the scheme's own M; for
balanced noise also the step size up to which there is noise left to draw. A target that is not Gaussian is linearised at its mode
and away from it: with mean Hessians K̄ along rays from the mode, ∇U(m+s) = K̄s. Where ∇U grows linearly those far out decide; where
it grows faster, no step size is stable from everywhere, and those at the edge of what a long chain visits are used.

Under noise Γ that grows with the state, Y = E[yyᵀ] becomes MYMᵀ + B_θΓ(Y)B_θᵀ (T1). The map is Φ₀ + Φ₁ with Φ₀(Y) = MYMᵀ, and
both parts keep matrices positive, so Φ₀ + Φ₁ has radius r exactly when (r - Φ₀)⁻¹Φ₁, which acts on d × d matrices, has radius 1.
"""

import dataclasses
import enum
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import linalg, optimize
from scipy.sparse import linalg as sparse

from gyromc.approx.gaussian import GaussianApproximation, inverse_root
from gyromc.dynamics import Dynamics, augment
from gyromc.errors import InvalidInput
from gyromc.oracles import Exact, Gaussian
from gyromc.plan import Plan
from gyromc.prediction.exact.chain import Noise, affordable, batch_noise, oracle_noise, why_not_linear
from gyromc.prediction.step_effects import noise_limit
from gyromc.schemes import Scheme, step_matrices
from gyromc.targets import Target


@dataclasses.dataclass(frozen=True)
class StabilitySettings:
    """How far from the mode a target is linearised, and what is affordable."""

    rays: int = 16
    """From the mode: ± the stiffest directions, and random ones."""
    edge: float = 20.0
    """U above its minimum: a chain goes beyond with a probability of about e⁻²⁰."""
    far: tuple[float, ...] = (30.0, 100.0)
    """Radii against that edge."""
    linear: float = 1.5
    """By which curvature along a ray may rise between them."""
    max_dense: int = 1000
    """Numbers of a state whose matrices are formed."""
    rounding: float = 1e-12
    """Of the step size against its limit."""
    smaller: float = 1 - 1e-3
    """A limit away from the mode counts below this share of the limit at the mode."""


SETTINGS = StabilitySettings()


def _growth(target: Target, center: GaussianApproximation) -> tuple[list[np.ndarray], bool]:
    """Mean Hessians on rays from the mode, ± the stiffest directions and random ones; whether ∇U rises faster than linearly."""
    d = len(center.mean)
    stiff = np.linalg.eigh(center.precision)[1][:, ::-1][:, : SETTINGS.rays // 4].T
    drawn = np.random.default_rng(0).standard_normal((SETTINGS.rays // 4, d)) @ inverse_root(center.precision).T
    v = np.concatenate([stiff, drawn])
    v = np.concatenate([v, -v]) / np.linalg.norm(np.concatenate([v, v]), axis=1, keepdims=True)
    edge = _edges(target, center, v)
    near, *far = (_secants(target, center, s * edge * v) for s in (1.0, *SETTINGS.far))
    rises = [b > SETTINGS.linear * max(a, 1e-12) for (a, _), (b, _) in zip(*far, strict=True)]
    chosen = near if any(rises) else far[-1]
    return [K for _, K in chosen if np.all(np.isfinite(K))], any(rises)


def _edges(target: Target, center: GaussianApproximation, v: np.ndarray) -> np.ndarray:
    """How far along each ray U is `SETTINGS.edge` above the mode, one column, by bisection."""
    bottom = target.potentials(center.mean[None])[0]
    low, high = np.zeros(len(v)), np.full(len(v), 1e-3 / np.sqrt(np.linalg.eigvalsh(center.precision)[-1]))
    rise = lambda r: np.nan_to_num(target.potentials(center.mean + r[:, None] * v) - bottom, nan=np.inf, neginf=np.inf)
    for _ in range(60):
        inside = rise(high) < SETTINGS.edge
        if not np.any(inside):
            break
        low, high = np.where(inside, high, low), np.where(inside, 2 * high, high)
    for _ in range(20):
        middle = (low + high) / 2
        inside = rise(middle) < SETTINGS.edge
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return low[:, None]


def _secants(target: Target, center: GaussianApproximation, s: np.ndarray) -> list[tuple[float, np.ndarray]]:
    """Curvature along each s, and the Hessian at the mode with the least change (of rank one) that has K̄s = ∇U(m+s)."""
    with np.errstate(all="ignore"):
        g = target.gradients(center.mean + s)
        found = []
        for step, slope in zip(s, g, strict=True):
            missing = slope - center.precision @ step
            along = float(missing @ step)
            K = center.precision + (np.outer(missing, missing) / along if along else 0.0)
            found.append((float(slope @ step / (step @ step)), K))
    return found


SMALL = 6  # parameters: the map is formed as a matrix
SAME = 1e-10  # relative error of the largest eigenvalue, where the map is not formed
DEFECTIVE = 1e6  # condition number of the eigenvectors of M, above which they are not used
LONGER = 1.25  # factor between step sizes that are tried on the way to the limit
MOST_TRIED = 120


def limit_of_mean(rates: np.ndarray) -> float:
    """sup of the η for which ρ(I - ηA) < 1, from the eigenvalues of A; 0 when one has a real part ≤ 0."""
    real = np.real(rates)
    return 0.0 if real.min() <= 0 else float(np.min(2 * real / np.abs(rates) ** 2))  # |1 - ηλ| < 1


@dataclasses.dataclass(frozen=True, eq=False)
class Steps:
    """y ← M(η)y + B(η)δ of a linear scheme on H with the Hessian P; Euler's for one that is not linear, and for balanced noise.

    For Euler, M = I - ηA, and the eigenvalues of A are enough for every η. `noise`: that of δ where it grows with the state.
    """

    scheme: Scheme
    dynamics: Dynamics
    P: np.ndarray
    noise: Noise | None = None

    @property
    def euler(self) -> bool:
        """Whether the steps are Euler's."""
        return self.scheme.is_euler or not self.scheme.linear or self.scheme.needs_prepared

    @functools.cached_property
    def A(self) -> np.ndarray:
        """The drift of the diffusion, (D+Q)P."""
        return (self.dynamics.D + self.dynamics.Q) @ self.P

    @functools.cached_property
    def rates(self) -> np.ndarray:
        """The eigenvalues of A."""
        return np.linalg.eigvals(self.A)

    @functools.cached_property
    def _frame(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues and eigenvectors of A."""
        return np.linalg.eig(self.A)

    def _of_mean(self, step_size: float) -> float:
        """ρ(M)²."""
        if self.euler:
            return float(np.max(np.abs(1 - step_size * self.rates)) ** 2)
        M = step_matrices(self.scheme, self.dynamics, step_size).transition(self.P)
        return float(np.max(np.abs(np.linalg.eigvals(M))) ** 2)

    def radius(self, step_size: float) -> float:
        """The factor by which second moments change per step: stable below 1."""
        least = self._of_mean(step_size)
        if self.noise is None:
            return least
        least = (least + 1e-14) * (1 + 1e-9)
        if self._gain(step_size, least) <= 1:
            return least
        most = 2 * least
        while self._gain(step_size, most) > 1:
            most *= 2
        return _root(lambda r: 1 / self._gain(step_size, r) - 1, least, most)

    @functools.cached_property
    def limit(self) -> float:
        """The largest step size at which second moments stay bounded; 0 where A does not contract.

        Tried in growing steps from Euler's for exact gradients, then by bisection.
        """
        low = limit_of_mean(self.rates)
        if low == 0 or (self.euler and self.noise is None):
            return low
        for _ in range(MOST_TRIED):
            if self._excess(low) < 0:
                break
            low /= 2
        for _ in range(MOST_TRIED):
            if self._excess(LONGER * low) >= 0:
                return _root(self._excess, low, LONGER * low)
            low *= LONGER
        return math.inf

    def _excess(self, step_size: float) -> float:
        """Negative where second moments stay bounded."""
        mean = self._of_mean(step_size)
        if self.noise is None or mean >= 1:
            return math.log(max(mean, 1e-300)) if self.noise is None else 1.0
        return 1 - 1 / max(self._gain(step_size, 1.0), 1e-300)

    def _gain(self, step_size: float, r: float) -> float:
        """The radius of (r - Φ₀)⁻¹Φ₁."""
        assert self.noise is not None
        d, apply = len(self.noise.constant), self._map(step_size, r)
        if d <= SMALL:
            columns = [apply(E).ravel() for E in np.eye(d * d).reshape(-1, d, d)]
            return float(np.max(np.abs(np.linalg.eigvals(np.array(columns)))))
        flat = lambda y: apply(y.reshape(d, d)).ravel()
        map_: Any = sparse.LinearOperator((d * d, d * d), matvec=flat, dtype=float)  # type: ignore[call-issue]  # incomplete stubs
        start = np.eye(d).ravel()  # positive, as the eigenvector is
        options: Any = {"v0": start, "tol": SAME, "return_eigenvectors": False}
        return float(np.abs(sparse.eigs(map_, 1, **options)[0]))

    def _map(self, step_size: float, r: float) -> Callable[[np.ndarray], np.ndarray]:
        """(r - Φ₀)⁻¹Φ₁ on second moments of θ, in a basis of eigenvectors of M where it has one."""
        noise = self.noise
        assert noise is not None
        if self.euler:
            M, B = np.eye(len(self.A)) - step_size * self.A, -step_size * (self.dynamics.D + self.dynamics.Q)
            m, V = 1 - step_size * self._frame[0], self._frame[1]
        else:
            step = step_matrices(self.scheme, self.dynamics, step_size)
            M, B = step.transition(self.P), step.B
            m, V = np.linalg.eig(M)
        inverse = None if np.linalg.cond(V) > DEFECTIVE else np.linalg.inv(V)

        def apply(Y: np.ndarray) -> np.ndarray:
            d = len(Y)
            added = B[:, :d] @ noise.growth((Y + Y.T) / 2) @ B[:, :d].T  # T1
            if inverse is None:
                return linalg.solve_discrete_lyapunov(M / np.sqrt(r), added / r, method="bilinear")[:d, :d]
            inner = (inverse @ added @ inverse.conj().T) / (r - m[:, None] * m.conj())
            return (V[:d] @ inner @ V[:d].conj().T).real

        return apply


def _root(excess: Callable[[float], float], low: float, high: float) -> float:
    """Where a function that changes its sign once is 0, to nine digits."""
    return float(optimize.brentq(excess, low, high, xtol=1e-9 * low))  # type: ignore[arg-type]  # a number: `full_output` is off


NO_NOISE_LEFT = "beyond it balanced noise has a negative variance, W = 2ηD - η²GSGᵀ"


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
        return _CAVEATS.get(self, "")


_LEAVES = " From far enough away the chain diverges at every step size"
_CAVEATS = {
    Linearisation.WITHOUT_NOISE: " Noise that grows with the state lowers the limit: take a step size well below it.",
    Linearisation.AT_MODE_WITH_NOISE: " This is the limit of the linear chain; curvature elsewhere may lower it.",
    Linearisation.AT_EDGE: f"{_LEAVES}; the oracle's noise may lower the limit.",
    **dict.fromkeys(
        (Linearisation.AT_MODE, Linearisation.FAR, Linearisation.AT_START),
        " This is the limit of the linear chain; curvature elsewhere and the oracle's noise may lower it.",
    ),
}


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
        return NO_NOISE_LEFT if self.noise_limit <= self.largest_step_size else str(self.how)

    @property
    def caveat(self) -> str:
        """Sentences on what the limit leaves out; empty where it leaves out nothing."""
        elsewhere = self.superlinear and self.how is not Linearisation.AT_EDGE
        return f"{self.how.caveat}{_LEAVES}." if elsewhere else self.how.caveat

    def __str__(self) -> str:
        verdict = "stable" if self.stable else "UNSTABLE" if self.drawable else "IMPOSSIBLE"
        return (
            f"{verdict}: second moments × {self.radius:.6g} per step, "
            f"largest step size {self.largest_step_size:.4g} ({self.where})"
        )


def stability(plan: Plan) -> Stability | None:
    """Second-moment stability of a plan; None where its Hessian cannot be formed.

    Exact for Gaussian targets, including the noise of mini-batches; for others the smallest limit of those linearised at the
    mode, with that noise where it is known, and away from the mode, without it. A schedule is judged by its largest step size.

    ```python
    import gyromc as gm
    from gyromc.prediction.stability import stability
    plan = gm.Plan(target=gm.targets.Quadratic([4.0]), dynamics=gm.dynamics.overdamped(1),
                   observables={"x": gm.observables.linear([1.0])}, step_size=0.1)
    assert abs(stability(plan).radius - 0.36) < 1e-12 and stability(plan).largest_step_size == 0.5
    ```
    """
    try:
        known = _linear(plan)
    except InvalidInput:  # a target whose mode or Hessian cannot be found
        return None
    if known is None:
        return None
    rate, eta = float(np.min(np.real(known.steps.rates))), plan.step_size
    if callable(eta):
        with jax.enable_x64(True):
            steps = np.unique(np.linspace(0, plan.num_steps + plan.burn_in - 1, 1000).astype(int))
            eta = max(float(eta(k)) for k in steps)
    try:
        noise = noise_limit(plan)
    except InvalidInput:  # S cannot be had
        noise = math.inf
    limit = min(known.steps.limit, noise)
    drawable = eta <= noise * (1 + SETTINGS.rounding)
    return Stability(known.steps.radius(eta), limit, known.how, rate, known.superlinear, noise, drawable)


class _Linear(NamedTuple):
    """A linear chain, and where it comes from."""

    steps: Steps
    how: Linearisation
    superlinear: bool


def _linear(plan: Plan) -> _Linear | None:
    """The linear chain that decides; None where nothing can be formed."""
    if plan.dynamics.size > SETTINGS.max_dense:
        return None
    known = plan.flat_target.gaussian()
    if known is None:
        return _linearised(plan)
    if isinstance(plan.oracle, Exact | Gaussian):
        return _chain(plan, known[0], Linearisation.EXACT)
    if why_not_linear(plan) is None and affordable(plan):
        noise = oracle_noise(plan, known[1])
        how = Linearisation.EXACT if noise.additive else Linearisation.EXACT_WITH_NOISE
        return _chain(plan, known[0], how, noise)
    return _chain(plan, known[0], Linearisation.WITHOUT_NOISE)


def _linearised(plan: Plan) -> _Linear | None:
    """At the mode, with its noise where that is known; or away from it where that allows smaller steps only."""
    if plan.starts.theta is None:
        return None
    try:
        center = plan.model.laplace
    except InvalidInput:  # a target without a mode
        K = plan.flat_target.hessians(plan.model.start[None])[0]
        return _chain(plan, K, Linearisation.AT_START) if np.all(np.isfinite(K)) else None
    if not np.all(np.isfinite(center.precision)):
        return None
    hessians, faster = _growth(plan.flat_target, center)
    noise, where = batch_noise(plan, center.mean), Linearisation.AT_EDGE if faster else Linearisation.FAR
    how = Linearisation.AT_MODE if noise is None else Linearisation.AT_MODE_WITH_NOISE
    mode = _chain(plan, center.precision, how, noise, faster)
    others = [_chain(plan, K, where, None, faster) for K in hessians]
    without_noise = lambda other: limit_of_mean(other.steps.rates)  # of Euler: quick to compute
    found = min((other for other in others if without_noise(other) > 0), key=without_noise, default=mode)
    return found if found.steps.limit < SETTINGS.smaller * mode.steps.limit else mode


def _chain(
    plan: Plan, K: np.ndarray, how: Linearisation, noise: Noise | None = None, superlinear: bool = False
) -> _Linear:
    """The linear chain where U has the Hessian K."""
    growing = None if noise is None or noise.additive else noise
    return _Linear(Steps(plan.scheme, plan.dynamics, augment(K, plan.augmented), growing), how, superlinear)


def advice(plan: Plan) -> str:
    """A sentence that compares the step size with the stability limit."""
    try:
        found = None if plan.scheduled else stability(plan)
    except Exception:  # a user's target that has no Hessian: the advice stays general
        found = None
    if found is None:
        return "Likely cause: the step size is too large for the target's curvature; take a smaller `step_size`."
    limit, where, eta = found.largest_step_size, found.where, plan.eta
    if limit == 0:
        return f"Likely cause: the drift is not contracting there ({where}, A = (D+Q)P has an eigenvalue with real part ≤ 0)."
    if eta >= limit:
        return (
            f"Likely cause: step_size = {eta:g} exceeds the stability limit {limit:.4g} ({where}). "
            f"Take `step_size` at most {limit / 2:.3g}."
        )
    return (
        f"step_size = {eta:g} is below the stability limit {limit:.4g} ({where}): suspect oracle noise "
        "that grows with θ, curvature away from there, or a target without a finite integral; try a smaller `step_size`."
    )
