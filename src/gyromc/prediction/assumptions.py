"""The assumptions of the paper's central limit theorem (§2), judged for a plan.

Input: a plan and its stability. Output: one `Verdict` per assumption. The published conditions are sufficient, not necessary: one
that is not met gives "not certified", and a weaker condition is tried as well (T6).
"""

import dataclasses
import enum
from collections.abc import Iterator, Mapping

import numpy as np

from gyromc.dynamics import augment
from gyromc.errors import InvalidInput
from gyromc.observables import Observable, Ridge
from gyromc.oracles import Exact, Gaussian
from gyromc.plan import Plan, paper_steps
from gyromc.prediction.stability import Stability
from gyromc.targets import CosinePerturbed, GeneralizedLinear, LinearRegression, LogisticRegression

POINTS = 64  # at which Hessians are looked at where no formula bounds them
MOST_SAMPLED = 200  # parameters


@dataclasses.dataclass(frozen=True, eq=False)
class Bounds:
    """Constants of U: ‖∇²U‖ ≤ L, ‖∇³U‖ ≤ M, ⟨∇U(x)-∇U(y), x-y⟩ ≥ m|x-y|² - b; P with ∇U(θ) - Pθ bounded, None for estimates."""

    L: float
    m: float
    M: float
    b: float
    source: str
    P: np.ndarray | None


def bounds(plan: Plan) -> Bounds | None:
    """The constants of a plan's target, by a formula or from Hessians around the mode; None where there is neither."""
    target, d = plan.flat_target, plan.dim
    known = target.gaussian()
    if known is not None:
        spectrum = np.linalg.eigvalsh(known[0])
        L, m = float(spectrum[-1]), float(spectrum[0])
        return Bounds(L, m, 0.0, 0.0, "the eigenvalues of the precision", known[0])
    if isinstance(target, CosinePerturbed):
        beta = abs(float(target.beta))
        # 2|β||Δ| ≤ εΔ² + β²/ε in each coordinate: m = 1-ε costs b = dβ²/ε; for |β| < 1 convexity gives m = 1-|β|, b = 0.
        m, b = (1 - beta, 0.0) if beta < 1 else (0.5, 2 * d * beta**2)
        return Bounds(1 + beta, m, beta, b, "∇²U = 1 - β cos θ_i", np.eye(d))
    if isinstance(target, LogisticRegression):
        p, X = float(target.prior_precision), np.asarray(target.X, float)
        top = float(np.linalg.eigvalsh(X.T @ X)[-1])
        M = top * float(np.max(np.linalg.norm(X, axis=1))) / (6 * np.sqrt(3))  # |σ″| ≤ 1/(6√3)
        return Bounds(p + top / 4, p, M, 0.0, "0 ≤ σ′ ≤ 1/4 and the prior", p * np.eye(d))
    if d > MOST_SAMPLED:
        return None
    rng = np.random.default_rng(0)
    scale = rng.choice([0.5, 1.0, 3.0, 10.0], (POINTS, 1))
    spectra = np.linalg.eigvalsh(target.hessians(plan.model.laplace.points(scale * rng.standard_normal((POINTS, d)))))
    finite = spectra[np.all(np.isfinite(spectra), axis=1)]
    L, m = float(np.abs(finite).max()), float(finite.min())
    return Bounds(L, m, np.nan, 0.0, f"Hessians at {POINTS} points, an estimate", None)


class Status(enum.StrEnum):
    """The result of checking one assumption."""

    HOLDS = "holds"
    NOT_CERTIFIED = "not certified"
    FAILS = "fails"


HOLDS, NOT_CERTIFIED, FAILS = Status


@dataclasses.dataclass(frozen=True)
class Verdict:
    """One assumption: its name, its status, the reason and the numbers."""

    name: str
    status: Status
    sentence: str
    numbers: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.name}: {self.status}. {self.sentence}"


def verdicts(plan: Plan, stable: Stability | None) -> list[Verdict]:
    """Check every assumption of the theorem for a plan, given its stability."""
    known, reason = None, "its Hessian is too large to form"
    try:
        known = bounds(plan)
    except InvalidInput as error:
        reason = str(error)
    sentence = f"Nothing is known about the target's curvature: {reason}."
    unknown = (Verdict(name, NOT_CERTIFIED, sentence) for name in ("smoothness", "dissipativity", "drift"))
    curvature = unknown if known is None else _curvature(plan, known)
    observed = [_observable(plan, name, h) for name, h in plan.observables.items()]
    return [*curvature, _oracle(plan), *observed, _length(plan), _step(stable)]


def _curvature(plan: Plan, known: Bounds) -> Iterator[Verdict]:
    """Smoothness and dissipativity of ∇H, and of -(D+Q)∇H: the paper's condition, then one from the growth of ∇H far out."""
    L, M = max(known.L, 1.0 if plan.augmented else 0.0), known.M
    status, third = HOLDS if known.P is not None else NOT_CERTIFIED, f"{M:.6g}" if known.P is not None else "?"
    sentence = f"‖∇²H‖ ≤ {L:.6g} and ‖∇³H‖ ≤ {third}, from {known.source}."
    yield Verdict("smoothness", status, sentence, {"L": L, "M": M})
    m = min(known.m, 1.0) if plan.augmented else known.m
    sentence = f"⟨∇H(x)-∇H(y), x-y⟩ ≥ {m:.6g}|x-y|² - {known.b:.6g}, from {known.source}."
    if m <= 0:
        sentence = f"The smallest curvature is {m:.6g}, from {known.source}: not convex there."
    yield Verdict("dissipativity", status, sentence, {"m": m, "b": known.b})
    if known.P is None:
        yield Verdict("drift", NOT_CERTIFIED, "The growth of ∇U far out is not known, so the drift cannot be judged.")
        return
    if (published := _published_condition(plan, known, known.P)) is not None:
        yield published
    P = augment(known.P, plan.augmented)
    A = (plan.dynamics.D + plan.dynamics.Q) @ P
    K1 = float(np.linalg.eigvalsh((A + A.T) / 2)[0])
    in_norm = float(np.linalg.eigvalsh(plan.dynamics.D)[0]) * float(np.linalg.eigvalsh(P)[0])
    law = "∇H = Pz" if plan.flat_target.gaussian() is not None else "∇H = Pz + bounded"
    sentence = f"{law}, and λ_min of the symmetric part of (D+Q)P is {K1:.6g} {'>' if K1 > 0 else '≤'} 0"
    if K1 <= 0:
        restored = f"D is positive definite (constant at least {in_norm:.3g}): a change of coordinates restores it"
        sentence += f": not dissipative in the Euclidean norm. In the norm of P it is, since {restored}"
    numbers = {"K_1": K1, "K_1 in the P-norm": in_norm}
    yield Verdict("drift", HOLDS if K1 > 0 else NOT_CERTIFIED, f"{sentence}.", numbers)


def _published_condition(plan: Plan, known: Bounds, P: np.ndarray) -> Verdict | None:
    """The sufficient condition the paper gives for the plan's sampler, or None where it gives none."""
    D, Q, d, L = plan.dynamics.D, plan.dynamics.Q, plan.dim, known.L
    # m_C with ⟨C(∇U(x)-∇U(y)), x-y⟩ ≥ m_C|x-y|² - b_C: the supremum, bounded terms going into b_C.
    preconditioned = lambda C: float(np.linalg.eigvalsh((C @ P + P @ C.T) / 2)[0])
    if not plan.augmented:
        if np.any(np.eye(len(D)) != D):
            return None
        left, right, names = preconditioned(np.eye(d)), float(np.linalg.norm(Q, 2)) * L, ("m", "‖J‖L")
    else:
        G = D + Q
        C, gamma = -G[:d, d:], float(G[d, d])
        shaped = np.allclose(G[d:, :d], np.eye(d)) and np.allclose(G[d:, d:], gamma * np.eye(d))
        a = float(np.trace(G[:d, :d]) / np.trace(C)) if np.trace(C) else 0.0
        if not shaped or not np.allclose(G[:d, :d], a * C) or np.linalg.eigvalsh((C + C.T) / 2)[0] <= 0:
            return None
        left, right = a * gamma * preconditioned(C), float(np.linalg.norm(C, 2) + L) ** 2 / 4
        names = ("αγm", "(1+L)²/4") if np.allclose(C, np.eye(d)) else ("aγm_C", "(‖C‖+L)²/4")
    met = left > right
    reads = f"{left:.6g} > {right:.6g}, which is {str(met).lower()}"
    sentence = f"The paper's sufficient condition {' > '.join(names)} reads {reads}."
    numbers = dict(zip(names, (left, right), strict=True))
    return Verdict("drift, published condition", HOLDS if met else NOT_CERTIFIED, sentence, numbers)


def _oracle(plan: Plan) -> Verdict:
    if isinstance(plan.oracle, Exact):
        return Verdict("oracle", HOLDS, "The gradient is exact: no oracle noise.")
    if isinstance(plan.oracle, Gaussian):
        tau = float(plan.oracle.tau)
        return Verdict("oracle", HOLDS, f"Unbiased, Gaussian with τ = {tau:g}: all moments are bounded.", {"tau": tau})
    size, status = int(getattr(plan.oracle, "size", 0)), NOT_CERTIFIED
    drawn = f"{type(plan.oracle).__name__} of {size}{'' if getattr(plan.oracle, 'replace', True) else ' distinct rows'}"
    if plan.oracle.moving:
        rest = "its error depends on where the chain's anchor is, and no bound is known."
    elif type(plan.flat_target) in (LinearRegression, LogisticRegression):
        status, rest = HOLDS, "its error grows at most linearly in θ, so every moment bound holds."
    elif isinstance(plan.flat_target, GeneralizedLinear):
        rest = "that its error grows at most linearly in θ is known for linear and logistic regression only. "
        rest += "Where the slope of the loss grows faster, as e^{xᵀθ} does for counts, the moment bounds fail."
    else:
        rest = "that its p-th moment (p > 4) grows no faster than |θ|^p is not known here."
    return Verdict("oracle", status, f"{drawn} is unbiased; {rest}", {"batch size": size})


def _observable(plan: Plan, name: str, h: Observable) -> Verdict:
    quadratic, holds = plan.flat_target.gaussian() is not None, isinstance(h, Ridge) and h.bounded
    if not isinstance(h, Ridge):
        why = "A user-defined function: whether it is bounded with bounded derivatives is not known."
    elif holds:
        why = f"{h.profile}: bounded with bounded first and second derivatives."
    elif h.is_linear and quadratic:
        holds, why = True, "Linear on a quadratic potential: not bounded, but covered by the Gaussian calculation."
    else:
        where = "on a potential that is not quadratic" if not quadratic else "beyond the linear case"
        why = f"{h.profile} is unbounded, and {where} the theorem does not cover it."
    return Verdict(f"observable {name}", HOLDS if holds else NOT_CERTIFIED, why)


def _length(plan: Plan) -> Verdict:
    if plan.scheduled:
        return Verdict("number of steps", NOT_CERTIFIED, "The theorem is for a constant step size; this is a schedule.")
    N, own, time = plan.num_steps, paper_steps(plan.eta), plan.num_steps * plan.eta
    numbers = {"N": N, "floor(1/η²)": own, "time Nη": time}
    if own == N and plan.burn_in == 0:
        return Verdict("number of steps", HOLDS, f"N = ⌊η⁻²⌋ = {N}, the theorem's own scaling.", numbers)
    used = f"the variance V/(Nη) is used for the time Nη = {time:.6g}; for N far above η⁻² the bias dominates"
    sentence = f"N = {N}, burn-in {plan.burn_in}, where the theorem has ⌊η⁻²⌋ = {own} and none: {used}."
    return Verdict("number of steps", NOT_CERTIFIED, sentence, numbers)


def _step(stable: Stability | None) -> Verdict:
    if stable is None:
        return Verdict("step size", NOT_CERTIFIED, "The target's curvature cannot be formed: stability is not known.")
    numbers = {"radius": stable.radius, "largest step size": stable.largest_step_size}
    limit = f"second moments are multiplied by {stable.radius:.6g} per step; the limit is η < {stable.largest_step_size:.6g}"
    limit += f" ({stable.where})" if stable.where != stable.how else ""
    if not stable.drawable:
        why = f"The step size exceeds {stable.noise_limit:.6g}: {stable.where}."
        return Verdict("step size", FAILS, f"The scheme cannot draw its noise. {why}", numbers)
    if not stable.stable:
        grows = "Second moments grow without bound; a single chain may stay bounded for long."
        return Verdict("step size", FAILS, f"Unstable ({stable.how}): {limit}. {grows}{stable.caveat}", numbers)
    status = HOLDS if stable.how.exact else NOT_CERTIFIED
    return Verdict("step size", status, f"Stable ({stable.how}): {limit}.{stable.caveat}", numbers)
