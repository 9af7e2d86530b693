"""The assumptions of the paper's central limit theorem (§2), judged for a plan.

Input: a plan and its stability. Output: one `Verdict` per assumption, with a status, a sentence and the numbers behind it. The
published conditions are sufficient, not necessary: a condition that is not met gives "not certified", and a weaker condition is
tried as well (T6). `Bounds` are the constants L, m, M and b of U: ‖∇²U‖ ≤ L, ‖∇³U‖ ≤ M, ⟨∇U(x)-∇U(y), x-y⟩ ≥ m|x-y|² - b.
"""

import dataclasses
import enum
from collections.abc import Iterator, Mapping

import jax
import jax.numpy as jnp
import numpy as np

from gyromc.dynamics import augment
from gyromc.errors import InvalidInput
from gyromc.evaluation import over_rows
from gyromc.observables import Observable, Ridge
from gyromc.oracles import Exact, Gaussian
from gyromc.plan import Plan, paper_steps
from gyromc.prediction.stability import Stability
from gyromc.targets import CosinePerturbed, GeneralizedLinear, LinearRegression, LogisticRegression


@dataclasses.dataclass(frozen=True, eq=False)
class Bounds:
    """Constants of U; `certified` when they come from a formula rather than from sampled points."""

    L: float
    m: float
    M: float
    b: float
    source: str
    far: np.ndarray | None = None  # P with ∇U(θ) - Pθ bounded
    certified: bool = True
    quadratic: bool = False


def bounds(plan: Plan) -> Bounds | None:
    """The constants of a plan's target; None where its Hessian cannot be formed."""
    target, d = plan.flat_target, plan.dim
    known = target.gaussian()
    if known is not None:
        spectrum = np.linalg.eigvalsh(known[0])
        L, m = float(spectrum[-1]), float(spectrum[0])
        return Bounds(L, m, 0.0, 0.0, "the eigenvalues of the precision", known[0], quadratic=True)
    if isinstance(target, CosinePerturbed):
        beta = abs(float(target.beta))
        # 2|β||Δ| ≤ εΔ² + β²/ε in each coordinate: m = 1-ε costs b = dβ²/ε; for |β| < 1 convexity gives m = 1-|β|, b = 0.
        m, b = (1 - beta, 0.0) if beta < 1 else (0.5, 2 * d * beta**2)
        return Bounds(1 + beta, m, beta, b, "∇²U = 1 - β cos θ_i", np.eye(d))
    if isinstance(target, LogisticRegression):
        p, X = float(target.prior_precision), np.asarray(target.X, float)
        top = float(np.linalg.eigvalsh(X.T @ X)[-1])
        longest = float(np.max(np.linalg.norm(X, axis=1)))
        M = top * longest / (6 * np.sqrt(3))  # |σ″| ≤ 1/(6√3)
        return Bounds(p + top / 4, p, M, 0.0, "0 ≤ σ′ ≤ 1/4 and the prior", p * np.eye(d))
    return _sampled(plan)


def _third(target, pair):
    """The derivative of ∇²U at x in the direction v."""
    x, v = jnp.split(pair, 2)
    return jax.jvp(lambda t: jax.hessian(target.potential)(x + t * v), (0.0,), (1.0,))[1]


def _sampled(plan: Plan, points: int = 64) -> Bounds | None:
    """Extremes of ∇²U and ∇³U over points spread around the mode: estimates, from below for L and M, from above for m."""
    if plan.dim > 200:
        return None
    center = plan.model.laplace
    rng = np.random.default_rng(0)
    spread = np.linalg.inv(np.linalg.cholesky(center.precision)).T
    scale = rng.choice([0.5, 1.0, 3.0, 10.0], (points, 1))
    rows = center.mean + scale * rng.standard_normal((points, plan.dim)) @ spread.T
    spectra = np.linalg.eigvalsh(plan.flat_target.hessians(rows))
    finite = spectra[np.all(np.isfinite(spectra), axis=1)]
    directions = rng.standard_normal((points, plan.dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    jerk = over_rows(_third, np.concatenate([rows, directions], axis=1), plan.flat_target, chunk=64)
    jerk = np.abs(np.linalg.eigvalsh(jerk[np.all(np.isfinite(jerk), axis=(1, 2))]))
    L, m, M = float(np.abs(finite).max()), float(finite.min()), float(np.max(jerk, initial=0.0))
    return Bounds(L, m, M, 0.0, f"Hessians at {points} points", certified=False)


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
    """Check every assumption of the theorem for a plan, given its stability.

    ```python
    import gyromc as gm
    from gyromc.prediction.assumptions import verdicts
    plan = gm.Plan(target=gm.targets.Quadratic([1.0, 2.0]), dynamics=gm.dynamics.overdamped(2),
                   observables={"x": gm.observables.linear([1.0, 0.0])}, step_size=0.1)
    assert {v.status for v in verdicts(plan, None)} == {"holds", "not certified"}
    ```
    """
    try:
        known = bounds(plan)
        reason = "its Hessian is too large to form"
    except InvalidInput as error:
        known, reason = None, str(error)
    if known is None:
        sentence = f"Nothing is known about the target's curvature: {reason}."
        curvature = [Verdict(name, NOT_CERTIFIED, sentence) for name in ("smoothness", "dissipativity", "drift")]
    else:
        curvature = [*_target(plan, known), *_drift(plan, known)]
    return [
        *curvature,
        _oracle(plan),
        *(_observable(plan, name, h) for name, h in plan.observables.items()),
        _length(plan),
        _step(stable),
    ]


def _target(plan: Plan, known: Bounds) -> Iterator[Verdict]:
    L, M = max(known.L, 1.0 if plan.augmented else 0.0), known.M
    status, source = (HOLDS, known.source) if known.certified else (NOT_CERTIFIED, f"{known.source}, an estimate")
    yield Verdict("smoothness", status, f"‖∇²H‖ ≤ {L:.6g} and ‖∇³H‖ ≤ {M:.6g}, from {source}.", {"L": L, "M": M})
    m = min(known.m, 1.0) if plan.augmented else known.m
    sentence = f"⟨∇H(x)-∇H(y), x-y⟩ ≥ {m:.6g}|x-y|² - {known.b:.6g}, from {source}."
    if m <= 0:
        status, sentence = NOT_CERTIFIED, f"The smallest curvature is {m:.6g}, from {source}: not convex there."
    yield Verdict("dissipativity", status, sentence, {"m": m, "b": known.b})


def _drift(plan: Plan, known: Bounds) -> Iterator[Verdict]:
    """One-sided dissipativity of -(D+Q)∇H: the paper's condition, then the weaker one from the growth of ∇H far out."""
    published = _published_condition(plan, known)
    if published is not None:
        yield published
    if known.far is None:
        yield Verdict("drift", NOT_CERTIFIED, "The growth of ∇U far out is not known, so the drift cannot be judged.")
        return
    G, P = plan.dynamics.D + plan.dynamics.Q, augment(known.far, plan.augmented)
    A = G @ P
    K1 = float(np.linalg.eigvalsh((A + A.T) / 2)[0])
    in_norm = float(np.linalg.eigvalsh(plan.dynamics.D)[0]) * float(np.linalg.eigvalsh(P)[0])
    law = "∇H = Pz" if known.quadratic else "∇H = Pz + bounded"
    numbers = {"K_1": K1, "K_1 in the P-norm": in_norm}
    sentence = f"{law}, and λ_min of the symmetric part of (D+Q)P is {K1:.6g} {'>' if K1 > 0 else '≤'} 0"
    if K1 > 0:
        yield Verdict("drift", HOLDS, f"{sentence}.", numbers)
    else:
        sentence += (
            ": not dissipative in the Euclidean norm. In the norm of P it is, since D is positive definite (constant at least "
            f"{in_norm:.3g}): a change of coordinates restores it."
        )
        yield Verdict("drift", NOT_CERTIFIED, sentence, numbers)


def _published_condition(plan: Plan, known: Bounds) -> Verdict | None:
    """The sufficient condition the paper gives for the plan's sampler, or None where it gives none."""
    D, Q, d, L = plan.dynamics.D, plan.dynamics.Q, plan.dim, known.L
    if not plan.augmented:
        if np.any(np.eye(len(D)) != D):
            return None
        left, right = _preconditioned(np.eye(d), known), float(np.linalg.norm(Q, 2)) * L
        names = ("m", "‖J‖L")
    else:
        G = D + Q
        C, gamma = -G[:d, d:], float(G[d, d])
        shaped = np.allclose(G[d:, :d], np.eye(d)) and np.allclose(G[d:, d:], gamma * np.eye(d))
        a = float(np.trace(G[:d, :d]) / np.trace(C)) if np.trace(C) else 0.0
        if not shaped or not np.allclose(G[:d, :d], a * C) or np.linalg.eigvalsh((C + C.T) / 2)[0] <= 0:
            return None
        m_C = _preconditioned(C, known)
        left, right = a * gamma * m_C, float(np.linalg.norm(C, 2) + L) ** 2 / 4
        names = ("αγm", "(1+L)²/4") if np.allclose(C, np.eye(d)) else ("aγm_C", "(‖C‖+L)²/4")
    met = left > right
    status = HOLDS if met and known.certified else NOT_CERTIFIED
    truth = f"which is {'true' if met else 'false'}{'' if known.certified else ' (L and m are estimates)'}"
    sentence = f"The paper's sufficient condition {' > '.join(names)} reads {left:.6g} > {right:.6g}, {truth}."
    return Verdict("drift, published condition", status, sentence, dict(zip(names, (left, right), strict=True)))


def _preconditioned(C: np.ndarray, known: Bounds) -> float:
    """m_C with ⟨C(∇U(x)-∇U(y)), x-y⟩ ≥ m_C|x-y|² - b_C, from the growth of ∇U far out where that is known."""
    if known.far is None:
        return float(np.linalg.eigvalsh(C)[0]) * known.m
    far = C @ known.far
    return float(np.linalg.eigvalsh((far + far.T) / 2)[0])  # the supremum of such m_C: bounded terms go into b_C


def _oracle(plan: Plan) -> Verdict:
    if isinstance(plan.oracle, Exact):
        return Verdict("oracle", HOLDS, "The gradient is exact: no oracle noise.")
    if isinstance(plan.oracle, Gaussian):
        tau = float(plan.oracle.tau)
        return Verdict("oracle", HOLDS, f"Unbiased, Gaussian with τ = {tau:g}: all moments are bounded.", {"tau": tau})
    size = int(getattr(plan.oracle, "size", 0))
    drawn = f"{type(plan.oracle).__name__} of {size}{'' if getattr(plan.oracle, 'replace', True) else ' distinct rows'}"
    if type(plan.flat_target) in (LinearRegression, LogisticRegression):
        status, rest = HOLDS, ": unbiased, and its error grows at most linearly in θ, so every moment bound holds."
    elif isinstance(plan.flat_target, GeneralizedLinear):
        rest = (
            " is unbiased; that its error grows at most linearly in θ is known for linear and logistic regression only. "
            "Where the slope of the loss grows faster, as e^{xᵀθ} does for counts, the moment bounds fail."
        )
        status = NOT_CERTIFIED
    else:
        rest = " is unbiased; that its p-th moment (p > 4) grows no faster than |θ|^p is not known here."
        status = NOT_CERTIFIED
    return Verdict("oracle", status, drawn + rest, {"batch size": size})


def _observable(plan: Plan, name: str, h: Observable) -> Verdict:
    label = f"observable {name}"
    if isinstance(h, Ridge) and h.bounded:
        return Verdict(label, HOLDS, f"{h.profile}: bounded with bounded first and second derivatives.")
    quadratic = plan.flat_target.gaussian() is not None
    if isinstance(h, Ridge) and h.is_linear and quadratic:
        return Verdict(
            label, HOLDS, "Linear on a quadratic potential: not bounded, but covered by the Gaussian calculation."
        )
    if isinstance(h, Ridge):
        why = "on a potential that is not quadratic" if not quadratic else "beyond the linear case"
        return Verdict(label, NOT_CERTIFIED, f"{h.profile} is unbounded, and {why} the theorem does not cover it.")
    why = "A user-defined function: whether it is bounded with bounded derivatives is not known."
    return Verdict(label, NOT_CERTIFIED, why)


def _length(plan: Plan) -> Verdict:
    if plan.scheduled:
        return Verdict("number of steps", NOT_CERTIFIED, "The theorem is for a constant step size; this is a schedule.")
    N, own, time = plan.num_steps, paper_steps(plan.eta), plan.num_steps * plan.eta
    numbers = {"N": N, "floor(1/η²)": own, "time Nη": time}
    if own == N and plan.burn_in == 0:
        return Verdict("number of steps", HOLDS, f"N = ⌊η⁻²⌋ = {N}, the theorem's own scaling.", numbers)
    sentence = (
        f"N = {N}, burn-in {plan.burn_in}, where the theorem has ⌊η⁻²⌋ = {own} and none: the variance V/(Nη) is used for "
        f"the time Nη = {time:.6g}; for N far above η⁻² the bias dominates."
    )
    return Verdict("number of steps", NOT_CERTIFIED, sentence, numbers)


def _step(stable: Stability | None) -> Verdict:
    if stable is None:
        return Verdict(
            "step size", NOT_CERTIFIED, "The target's curvature cannot be formed, so stability is not known."
        )
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
