"""Schemes of second order with one gradient per step (T5): Leimkuhler-Matthews, its form for Q ≠ 0, splittings of HFHR and GAUL.

All draw on noise twice: half of it in this step, the same half again in the next. That half is their memory. With noisy gradients
`prepared` of Leimkuhler-Matthews and of the splitting of HFHR takes the oracle's part off the noise that is drawn, so that the
covariance on a Gaussian stays exact.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import scipy

from gyromc.checks import require
from gyromc.dynamics import Dynamics
from gyromc.errors import InvalidInput
from gyromc.operators import Blocks, Dense, Diagonal, Operator, Scaled, as_operator
from gyromc.oracles import Exact, Gaussian
from gyromc.schemes.base import Scheme
from gyromc.schemes.moments import gradient_moments
from gyromc.targets import Quadratic

MOST_DENSE = 512  # parameters, up to which the noise of gradients is taken off with full matrices
AT_ONCE = 2**16  # coordinates computed together, so that what is held besides the result stays small


class LeimkuhlerMatthews(Scheme):
    """z⁺ = z - ηDĝ + ½(w_k + w_{k+1}), w = √(2ηD)ξ less the oracle's part; the memory is ½w_k.

    On a Gaussian with exact gradients the covariance of z is exact at every step size. With gradient noise of covariance Σ
    the covariance N of w solves N - ¼η(DPN + NPD) = 2ηD - η²DPD - η²DΣD, P the mean Hessian, and it is exact again.
    """

    root: Operator | None

    def __init__(self, root: Operator | None = None):
        super().__init__("leimkuhler_matthews", None, linear=True, memory=1, order=2)
        self.root = root

    def why_not(self, dynamics, augmented):
        if dynamics.is_reversible:
            return None
        return f"it is of second order for Q = 0 only, and {dynamics.name} has a rotation Q: use `lm_ab2`"

    def prepared(self, plan):
        if isinstance(plan.oracle, Exact):
            return self
        require(
            plan.dim <= MOST_DENSE,
            f"`{self}` takes the noise of {plan.oracle.name} gradients off its own with full matrices, for at most {MOST_DENSE} "
            f"parameters: this plan has {plan.dim}. Use `Exact()` gradients, or `balanced()`.",
        )
        eta, D = plan.eta, plan.dynamics.D
        P, Sigma = gradient_moments(plan).of_state(plan.augmented)
        half = np.eye(len(D)) / 2 - eta / 4 * D @ P
        taken = scipy.linalg.solve_continuous_lyapunov(half, eta**2 * D @ Sigma @ D)  # T7: what the oracle brings
        return LeimkuhlerMatthews(_root(2 * eta * D - taken, self.name))

    def __call__(self, dynamics, y, gradient, xi, eta):
        n = dynamics.size
        w = jnp.sqrt(2 * eta) * dynamics.noise(xi) if self.root is None else self.root(xi)
        moved = y[:n] + (y[n:] + 0.5 * w - eta * dynamics.diffusion(gradient))  # T5
        return jnp.concatenate([moved, 0.5 * w])


class LmAb2(Scheme):
    """Leimkuhler-Matthews with an Adams-Bashforth step for the rotation: second order for any D and Q.

    z⁺ = z - η[Dĝ_k + Q(1.5 ĝ_k - 0.5 ĝ_{k-1})] + ½√(2ηD)(ξ_k + ξ_{k+1}). The memory is half of the noise and ĝ_{k-1}, which is 0
    before the first step. It is a postprocessed integrator in the sense of Abdulle, Vilmart and Zygalakis (2015): the hidden
    chain Y = z - ½w_k + ½ηQĝ_{k-1} makes the step Y⁺ = Y - ηGĝ(z) + w_k, and what is recorded is z = Y + ½w_k - ½ηQĝ_{k-1},
    half a step of noise and rotation ahead, with the last gradient in place of a second one.
    """

    def __init__(self):
        super().__init__("lm_ab2", None, linear=True, memory=2, order=2)

    def __call__(self, dynamics, y, gradient, xi, eta):
        n = dynamics.size
        w = 0.5 * jnp.sqrt(2 * eta) * dynamics.noise(xi)
        turned = dynamics.rotation(1.5 * gradient - 0.5 * y[2 * n :])
        moved = y[:n] + (y[n : 2 * n] + w - eta * (dynamics.diffusion(gradient) + turned))  # T5
        return jnp.concatenate([moved, w, gradient])


class HfhrSplitting(Scheme):
    """The splitting O A½ N½ G N½ A½ of HFHR, D = diag(αEEᵀ, γI), Q = [[0, -E], [Eᵀ, 0]] (E = I without preconditioner).

    O: r ← e^{-γη}r + √(1-e^{-2γη})ζ; A½: θ ← θ + ½ηEr; N½: θ ← θ + ½√(2αη)Eξ, the same ξ on both sides; then θ is recorded and
    the gradient taken, and G: θ ← θ - ηαEEᵀĝ, r ← r - ηEᵀĝ. The memory is what N½ adds. On a Gaussian the covariance of θ is
    exact, and where whitening is incomplete it needs √κ steps for what takes κ steps without momentum.

    With gradient noise the O-step draws less, so that the covariance of θ on a Gaussian stays exact; `kick` is a root of the
    covariance of what it draws, which `prepared` computes. Above 512 parameters only the diagonals of P = E[∇²U] and of the
    noise's covariance Σ are used: then it is exact where both are diagonal, and so must C be.
    """

    kick: Operator | None

    def __init__(self, kick: Operator | None = None):
        super().__init__("hfhr_splitting", None, linear=True, memory=0.5, order=2)
        self.kick = kick

    def why_not(self, dynamics, augmented):
        other = "use `lm_ab2`, which takes any D and Q"
        if not augmented:
            return f"it needs a momentum, and {dynamics.name} has none: {other}"
        D, Q = dynamics.diffusion, dynamics.rotation
        if not isinstance(D, Blocks) or not isinstance(Q, Blocks) or not isinstance(D.lower_right, Scaled):
            return f"it splits `gyromc.dynamics.hfhr`, and the dynamics is {dynamics.name}: {other}"
        zero = [D.upper_right, D.lower_left, Q.upper_left, Q.lower_right]
        if not all(block.is_zero() for block in zero) or _alpha(D.upper_left, Q.upper_right) is None:
            return (
                f"it needs D = diag(αEEᵀ, γI) and Q = [[0, -E], [Eᵀ, 0]], as `gyromc.dynamics.hfhr` makes them: {other}"
            )
        return None

    def prepared(self, plan):
        if isinstance(plan.oracle, Exact):
            return self
        D, Q = plan.dynamics.diffusion, plan.dynamics.rotation
        alpha, gamma = _alpha(D.upper_left, Q.upper_right), float(D.lower_right.scale)
        assert alpha is not None  # the scheme fits
        if plan.dim > MOST_DENSE:
            return HfhrSplitting(_diagonal_kick(plan, self, alpha, gamma))
        found, E = gradient_moments(plan), -Q.upper_right.dense()
        P, Sigma = E.T @ found.curvature @ E, E.T @ found.noise @ E  # in coordinates E⁻¹θ
        return HfhrSplitting(_root(_less_kick(P, Sigma, alpha, gamma, plan.eta), self.name))

    def __call__(self, dynamics, y, gradient, xi, eta):
        d = dynamics.size // 2
        D: Any = dynamics.diffusion
        Q: Any = dynamics.rotation
        root: Any = dynamics.root
        theta, r, half, g = y[:d], y[d : 2 * d], y[2 * d :], gradient[:d]
        theta, r = theta - eta * D.upper_left(g) + half, r - eta * Q.lower_left(g)
        decay = jnp.exp(-eta * D.lower_right.scale)
        drawn = jnp.sqrt(1 - decay**2) * xi[d:] if self.kick is None else self.kick(xi[d:])
        before, r = r, decay * r + drawn
        half = 0.5 * jnp.sqrt(2 * eta) * root.upper_left(xi[:d])
        theta = theta - 0.5 * eta * Q.upper_right(before + r) + half  # both A½ at once
        return jnp.concatenate([theta, r, half])  # T5


class GaulSplitting(Scheme):
    """The splitting A½ O A½ N½ G N½ of GAUL, D+Q = [[aC, -C], [I, γI]]: the covariance of θ on a Gaussian is exact.

    G, at the recorded θ = θ̂ + ν: θ ← θ̂ + (2-τq/N)ν + τ(1-κ)r - ηaCĝ and r ← κr + (q/N)ν - ηĝ; A½: θ ← θ + τr; O: r ← cr +
    √(1-c²)ζ; then ν ~ N(0, N) is drawn and θ + ν recorded. With τ = ηC/2 and q = η/2 - τκ the cross-covariance of θ and r is +τ
    before G and -τ after it for every Hessian exactly when N(1-κ²) = q² and N = ηaC/2 - τ²(1-κ) + τq; ν brings θ and r the
    correlated noise of D. C = I has κ = 1 and q = 0: the splitting of HFHR. The memory is ν.

    Gradient noise brings back a bias of first order.
    """

    parts: tuple[Operator, ...] | None
    """Of a plan: aηC, τ, τ(1-κ), κ, c, 1-τq/N, q/N, √N and √(1-c²), each a function of C."""

    def __init__(self, parts: tuple[Operator, ...] | None = None):
        super().__init__("gaul_splitting", None, linear=True, memory=0.5, order=2, needs_prepared=True)
        self.parts = parts

    def why_not(self, dynamics, augmented):
        if augmented and _gaul(dynamics) is not None:
            return None
        return f"it splits `gyromc.dynamics.gaul`, and the dynamics is {dynamics.name}: use `lm_ab2`, which takes any D and Q"

    def prepared(self, plan):
        found = _gaul(plan.dynamics)
        assert found is not None
        basis, C, a, gamma = found
        parts = _gaul_parts(C, a, gamma, plan.eta)
        require(
            parts is not None,
            f"`{self}` needs a smaller `step_size` than {plan.eta:g}: the noise that θ and r share leaves no friction to r.",
        )
        make = Diagonal if basis is None else lambda x: Dense((basis * x) @ basis.T)
        return GaulSplitting(tuple(make(x) for x in parts))  # type: ignore[union-attr]  # required above

    def __call__(self, dynamics, y, gradient, xi, eta):
        if self.parts is None:
            raise InvalidInput("`gaul_splitting` needs a plan that says what C and η are: use it in `gyromc.Plan`.")
        step, tau, drag, kept, decay, again, shared, root, drawn = self.parts
        d = dynamics.size // 2
        theta, r, nu, g = y[:d], y[d : 2 * d], y[2 * d :], gradient[:d]
        theta = theta + (again(nu) + drag(r) - step(g))
        r = kept(r) + shared(nu) - eta * g
        before, r = r, decay(r) + drawn(xi[d:])
        nu = root(xi[:d])
        return jnp.concatenate([theta + tau(before + r) + nu, r, nu])


def _gaul(dynamics: Dynamics) -> tuple[np.ndarray | None, np.ndarray, float, float] | None:
    """An eigenbasis of C (None: the axes), its eigenvalues, a and γ of D+Q = [[aC, -C], [I, γI]]; None for other dynamics."""
    D, Q = dynamics.diffusion, dynamics.rotation
    if not isinstance(D, Blocks) or not isinstance(Q, Blocks) or not isinstance(D.lower_right, Scaled):
        return None
    d, near = dynamics.size // 2, lambda x, y: np.allclose(x, y, rtol=1e-9, atol=1e-12)
    found = D.coordinates(), Q.coordinates()
    if found[0] is not None and found[1] is not None:
        aC, C, lower = (sign * np.broadcast_to(found[0][i] + found[1][i], (d,)) for i, sign in enumerate((1, -1, 1)))
        basis, one = None, np.ones(d)
    else:
        G = D.dense() + Q.dense()
        aC, C, lower, one = G[:d, :d], -G[:d, d:], G[d:, :d], np.eye(d)
        basis = np.linalg.eigh((C + C.T) / 2)[1]
    a = float(np.sum(aC * C) / np.sum(C * C)) if np.any(C) else 0.0
    if not (near(lower, one) and near(aC, a * C) and Q.upper_left.is_zero() and Q.lower_right.is_zero()):
        return None
    eigenvalues = C if basis is None else np.diag(basis.T @ C @ basis)
    return (basis, eigenvalues, a, float(D.lower_right.scale)) if np.min(eigenvalues) > 0 else None


def _gaul_parts(C: np.ndarray, a: float, gamma: float, eta: float) -> tuple[np.ndarray, ...] | None:
    """The coefficients of `GaulSplitting` for the eigenvalues of C; None where the step is too large for them."""
    tau, half, own = eta * C / 2, eta / 2, eta * a * C / 2
    lead = own + tau * half
    square = (half * tau) ** 2 - lead * (half**2 - lead + tau**2)
    kappa = (half * tau + np.sqrt(np.maximum(square, 0.0))) / lead
    q = half - tau * kappa
    N = own - tau**2 * (1 - kappa) + tau * q
    decay = np.exp(-gamma * eta) / np.where(kappa > 0, kappa, 1.0)
    if np.min(square) < 0 or np.min(kappa) <= 0 or np.min(N) <= 0 or np.max(decay) > 1:
        return None
    shared = q / N
    return (
        *(2 * own, tau, tau * (1 - kappa), kappa, decay),
        *(1 - tau * shared, shared, np.sqrt(N), np.sqrt(1 - decay**2)),
    )


def _less_kick(P: np.ndarray, Sigma: np.ndarray, alpha: float, gamma: float, eta: float) -> np.ndarray:
    """The covariance that O draws so that θ keeps P⁻¹ under gradient noise of covariance Σ.

    In the eigenbasis of P each pair (i, j) of coordinates is a chain of its own: with M_i the map of (θ_i, r_i), noise enters
    Cov((θ_i, r_i), (θ_j, r_j)) through the kick, at (α, 1)η before A½ O A½, and through O. One number per pair makes the θθ entry
    0.
    """
    eigenvalues, basis = np.linalg.eigh(P)
    decay, d = np.exp(-gamma * eta), len(P)
    drift = np.array([[1.0, eta / 2], [0.0, 1.0]])
    after = drift @ np.diag([1.0, decay]) @ drift
    steps = np.array([after @ (np.eye(2) - eta * lam * np.outer([alpha, 1.0], [1.0, 0.0])) for lam in eigenvalues])
    brought = after @ np.array([alpha, 1.0]) * eta
    drawn = drift @ np.array([0.0, 1.0])
    products = np.einsum("iab,jcd->ijacbd", steps, steps).reshape(d, d, 4, 4)  # M_i ⊗ M_j
    entering = np.stack([np.kron(v, v) for v in (brought, drawn)], axis=1)
    kicks, draws = np.moveaxis(np.linalg.solve(np.eye(4) - products, entering)[:, :, 0], 2, 0)
    share = np.triu(kicks / draws)
    share += np.triu(share, 1).T
    taken = basis @ (share * (basis.T @ Sigma @ basis)) @ basis.T
    return (1 - decay**2) * np.eye(d) - taken  # T10


def kick_variances(P: np.ndarray, Sigma: np.ndarray, alpha: float, gamma: float, eta: float) -> np.ndarray:
    """The variances that O draws where P and Σ are diagonal: d numbers, negative where the noise is more than O draws.

    X = MXMᵀ + vvᵀ has, by Cramer's rule, an X_θθ that is quadratic in v: for the noise a kick brings, and for what O draws.
    """
    drift = np.array([[1.0, eta / 2], [0.0, 1.0]])
    after = drift @ np.diag([1.0, np.exp(-gamma * eta)]) @ drift
    brought, kicked = after @ np.array([alpha, 1.0]) * eta, drift @ np.array([0.0, 1.0])
    drawn = np.empty(len(P))
    for first in range(0, len(P), AT_ONCE):
        part = slice(first, first + AT_ONCE)
        curvature = np.asarray(P[part], float)
        # M = [[a, b], [c, e]]
        a, b, c, e = after[0, 0] - brought[0] * curvature, after[0, 1], -brought[1] * curvature, after[1, 1]
        cross = 1 - a * e - b * c
        of_tt, of_rr = cross * (1 - e**2) - 2 * b * c * e**2, b**2 * (cross + 2 * a * e)
        of_tr = 2 * b * (a * (1 - e**2) + b * c * e)
        brings, draws = (of_tt * v[0] ** 2 + of_tr * v[0] * v[1] + of_rr * v[1] ** 2 for v in (brought, kicked))
        drawn[part] = 1 - np.exp(-2 * gamma * eta) - brings / draws * Sigma[part]  # T10
    return drawn


def _diagonal_kick(plan: Any, scheme: "HfhrSplitting", alpha: float, gamma: float) -> Operator:
    """A root of what O draws, from the diagonals of P and Σ, in O(d) memory."""
    minus_E = plan.dynamics.rotation.upper_right.entries()
    if minus_E is None:
        raise InvalidInput(
            f"`{scheme}` takes the noise of {plan.oracle.name} gradients off its own with full matrices for at most {MOST_DENSE} "
            f"parameters: this plan has {plan.dim}. Use a diagonal preconditioner, `Exact()` gradients, or `balanced()`."
        )
    P, Sigma = (np.maximum(minus_E**2 * x, 0) for x in _diagonal_moments(plan))
    variances = kick_variances(P, Sigma, alpha, gamma, plan.eta)
    worst = int(np.argmin(variances))
    require(
        variances[worst] > 0,
        f"`{scheme}` cannot keep the covariance here: the gradients bring more noise than the O-step draws in "
        f"{np.sum(variances <= 0):,} of {plan.dim:,} coordinates (in coordinate {worst}, "
        f"{1 - variances[worst] / (1 - np.exp(-2 * gamma * plan.eta)):.3g} times as much). Take a smaller `step_size`, larger "
        "batches, a control variate, or more friction.",
    )
    return Diagonal(np.sqrt(variances, out=variances))


def _diagonal_moments(plan: Any) -> tuple[np.ndarray, np.ndarray]:
    """The diagonals of P and Σ: known for a Gaussian target with Gaussian noise, else from a pilot run."""
    target, oracle = plan.flat_target, plan.oracle
    if isinstance(target, Quadratic) and isinstance(oracle, Gaussian):
        K = np.asarray(target.precision, float)
        return np.diag(K) if K.ndim == 2 else K, np.full(plan.dim, float(oracle.tau) ** 2)
    found = gradient_moments(plan)
    return tuple(x if x.ndim == 1 else np.diag(x) for x in (found.curvature, found.noise))  # type: ignore[return-value]


def _alpha(C: Operator, minus_E: Operator) -> float | None:
    """α where C = αEEᵀ, by products with one vector; None where C is not of that form."""
    v: Any = np.random.default_rng(0).standard_normal(C.size)
    one, square = np.asarray(C(v)), np.asarray(minus_E(minus_E.transposed()(v)))
    size = float(v @ square)
    alpha = float(v @ one) / size if size > 0 else 0.0
    return alpha if size > 0 and np.allclose(one, alpha * square, rtol=1e-6, atol=1e-9 * np.abs(one).max()) else None


def _root(covariance: np.ndarray, name: str) -> Operator:
    try:
        return as_operator(covariance, name).cholesky()
    except InvalidInput:
        smallest = float(np.linalg.eigvalsh(covariance)[0])
        raise InvalidInput(
            f"`{name}` cannot keep the covariance here: the gradients bring more noise than it draws (its noise would have the "
            f"variance {smallest:.3g} in one direction). Take a smaller `step_size`, larger batches, or a control variate."
        ) from None


leimkuhler_matthews = LeimkuhlerMatthews()
"""Leimkuhler-Matthews, for Q = 0."""

lm_ab2 = LmAb2()
"""Leimkuhler-Matthews with an Adams-Bashforth step for the rotation, for any D and Q."""

hfhr_splitting = HfhrSplitting()
"""The splitting of HFHR, with or without preconditioner."""

gaul_splitting = GaulSplitting()
"""The splitting of GAUL."""
