"""Balanced noise (T7), and schemes of second order with one gradient per step (T5): Leimkuhler-Matthews, its form for Q ≠ 0, and
splittings of HFHR and GAUL.

Those of second order draw on noise twice: half of it in this step, the same half again in the next. That half is their memory.
With noisy gradients `prepared` of Leimkuhler-Matthews and of the splitting of HFHR takes the oracle's part off the noise that is
drawn, so that the covariance on a Gaussian stays exact.
"""

from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
import scipy

from gyromc.checks import require
from gyromc.dynamics import Dynamics
from gyromc.errors import InvalidInput
from gyromc.operators import Blocks, Dense, Diagonal, Operator, Rotations, Scaled, as_operator, symmetrised
from gyromc.oracles import Exact
from gyromc.schemes.base import Scheme
from gyromc.schemes.moments import MOST_DENSE, gradient_moments

MOST_BALANCED = 2000  # entries of z, up to which balanced noise has full matrices
AT_ONCE = 2**16  # coordinates computed together, so that what is held besides the result stays small


class Balanced(Scheme):
    """Balanced noise (T7): draw only the noise that the gradients do not already bring.

    z⁺ = z - ηGĝ + W^{1/2}ξ with G = D+Q, W = 2ηD - η²GSGᵀ and S = E[ĝĝᵀ] under the posterior. One step from the posterior keeps
    its covariance, for every target, unbiased oracle, constant (D, Q) and η with W ⪰ 0; on a Gaussian the stationary law is
    exact. With Q = 0 and D the inverse Fisher matrix this is stochastic gradient Fisher scoring (Ahn, Korattikara and Welling
    2012). `root` is W^{1/2}, which `prepared` computes for a plan.
    """

    needs_prepared: ClassVar[bool] = True

    second_moment: Operator | None
    root: Operator | None

    def __init__(self, second_moment: Operator | None = None, root: Operator | None = None):
        super().__init__("balanced", None, linear=True)
        self.second_moment, self.root = second_moment, root

    def why_not(self, dynamics, augmented):
        S = self.second_moment
        sizes = (dynamics.size // 2, dynamics.size) if augmented else (dynamics.size,)
        if S is None or S.size in sizes:
            return None
        return f"`S` acts on {S.size} numbers, and the gradient has {' or '.join(map(str, sizes))}: pass an `S` of that size"

    def prepared(self, plan):
        S, d = self.second_moment, plan.dim
        if S is None:
            S = as_operator(gradient_moments(plan).second, "S")
        if S.size < plan.dynamics.size:  # r is its own gradient
            S = Blocks(S, Scaled(0.0, d), Scaled(0.0, d), Scaled(1.0, d))
        return Balanced(self.second_moment, noise_root(plan.dynamics, S, plan.eta))

    def __call__(self, dynamics, y, gradient, xi, eta):
        root = self.root
        if root is None:
            raise InvalidInput("`balanced` needs a plan that says what D, Q and η are: use it in `gyromc.Plan`.")
        return y + (root(xi) - eta * dynamics.drift(gradient))  # T7


def balanced(S: Any = None) -> Scheme:
    """Euler's step with only the noise that the gradients do not already bring.

    **Arguments:**

    - `S`: E[ĝĝᵀ], the second moment of the stochastic gradients of U under the posterior: a number per parameter (a diagonal), or
      a matrix. Left out: computed from the model and the oracle when a plan is run or predicted, then frozen.

    **Returns:** a `Scheme`.

    ```python
    import gyromc as gm
    plan = gm.Plan(target=gm.targets.Quadratic([1.0, 4.0]), dynamics=gm.dynamics.general([1.0, 0.25], 0), step_size=0.8,
                   observables={"x²": gm.observables.square([1.0, 0.0])}, scheme=gm.schemes.balanced(), num_steps=200)
    print(abs(round(gm.predict(plan).bias["x²"], 6)))  # 0.005208
    ```
    """
    return Balanced(None if S is None else symmetrised(as_operator(S, "S"), +1, "S"))


def noise_root(dynamics: Dynamics, S: Operator, eta: float) -> Operator:
    """W^{1/2} for W = 2ηD - η²GSGᵀ; `InvalidInput` with the largest step where W is not ⪰ 0.

    Where D and S are diagonal and Q is 0, or pairs coordinates that S and D treat alike, it is numbers per coordinate.
    """
    D, Q, n = dynamics.diffusion, dynamics.rotation, dynamics.size
    d, s = D.entries(), S.entries()
    alike = lambda x: x is not None and np.array_equal(x[: n - n % 2 : 2], x[1:n:2])
    if d is not None and s is not None and (Q.is_zero() or (isinstance(Q, Rotations) and alike(d) and alike(s))):
        rates = np.concatenate([np.repeat(Q.rates, 2), np.zeros(n % 2)]) if isinstance(Q, Rotations) else np.zeros(n)
        W = 2 * eta * d - eta**2 * (d**2 + rates**2) * s
        if np.min(W) < -1e-12 * np.max(2 * eta * d):
            raise _too_large(eta, 2 / float(np.max((d + rates**2 / d) * s)))
        return Diagonal(np.sqrt(np.maximum(W, 0.0)))
    most = f"at most {MOST_BALANCED} numbers in the state: this one has {n}"
    remedy = "Give D, Q and S as diagonals, or Q as `gyromc.dynamics.rotations`."
    require(n <= MOST_BALANCED, f"Balanced noise with full matrices takes {most}. {remedy}")
    dense, G = dynamics.D, dynamics.D + dynamics.Q
    brought = G @ S.dense() @ G.T
    W = 2 * eta * dense - eta**2 * (brought + brought.T) / 2  # T7
    eigenvalues, basis = np.linalg.eigh(W)
    scale = 2 * eta * float(np.linalg.eigvalsh(dense)[-1])
    if eigenvalues[0] < -1e-12 * scale:
        raise _too_large(eta, 2 / float(scipy.linalg.eigh(brought, dense, eigvals_only=True)[-1]))
    if eigenvalues[0] > 1e-9 * scale:
        return Dense(np.linalg.cholesky(W))
    return Dense((basis * np.sqrt(np.maximum(eigenvalues, 0))) @ basis.T)


def _too_large(eta: float, largest: float) -> InvalidInput:
    why = f"step_size = {eta:g} is too large for it: the gradients bring more noise than the scheme may draw"
    remedy = f"Take `step_size` at most {largest:.4g}; larger batches or a control variate allow more."
    return InvalidInput(f"`balanced` needs W = 2ηD - η²GSGᵀ positive semidefinite, and {why}. {remedy}")


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
        require(plan.dim <= MOST_DENSE, _too_many(self, plan))
        eta, D = plan.eta, plan.dynamics.D
        P, Sigma = gradient_moments(plan).of_state(plan.augmented)
        half = np.eye(len(D)) / 2 - eta / 4 * D @ P
        taken = scipy.linalg.solve_continuous_lyapunov(half, eta**2 * D @ Sigma @ D)  # T7: what the oracle brings
        return LeimkuhlerMatthews(_root(2 * eta * D - taken, self))

    def __call__(self, dynamics, y, gradient, xi, eta):
        n = dynamics.size
        w = jnp.sqrt(2 * eta) * dynamics.noise(xi) if self.root is None else self.root(xi)
        moved = y[:n] + (y[n:] + 0.5 * w - eta * dynamics.diffusion(gradient))  # T5
        return jnp.concatenate([moved, 0.5 * w])


class LmAb2(Scheme):
    """Leimkuhler-Matthews with an Adams-Bashforth step for the rotation: second order for any D and Q.

    z⁺ = z - η[Dĝ_k + Q(1.5 ĝ_k - 0.5 ĝ_{k-1})] + ½√(2ηD)(ξ_k + ξ_{k+1}). The memory is half of the noise and ĝ_{k-1}, which is 0
    before the first step. It is a postprocessed integrator in the sense of Abdulle, Vilmart and Zygalakis (2015).
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

    With gradient noise the O-step draws less, so that the covariance of θ on a Gaussian stays exact; `root` is a root of the
    covariance of what it draws, which `prepared` computes. Above 512 parameters only the diagonals of P = E[∇²U] and of the
    noise's covariance Σ are used: then it is exact where both are diagonal, and so must C be.
    """

    root: Operator | None

    def __init__(self, root: Operator | None = None):
        super().__init__("hfhr_splitting", None, linear=True, memory=0.5, order=2)
        self.root = root

    def why_not(self, dynamics, augmented):
        other = "use `lm_ab2`, which takes any D and Q"
        if not augmented:
            return f"it needs a momentum, and {dynamics.name} has none: {other}"
        D, Q = dynamics.diffusion, dynamics.rotation
        if not isinstance(D, Blocks) or not isinstance(Q, Blocks) or not isinstance(D.lower_right, Scaled):
            return f"it splits `gyromc.dynamics.hfhr`, and the dynamics is {dynamics.name}: {other}"
        zero = [D.upper_right, D.lower_left, Q.upper_left, Q.lower_right]
        if all(block.is_zero() for block in zero) and _alpha(D.upper_left, Q.upper_right) is not None:
            return None
        return f"it needs D = diag(αEEᵀ, γI) and Q = [[0, -E], [Eᵀ, 0]], as `gyromc.dynamics.hfhr` makes them: {other}"

    def prepared(self, plan):
        if isinstance(plan.oracle, Exact):
            return self
        minus_E, found = plan.dynamics.rotation.upper_right, gradient_moments(plan)
        if plan.dim <= MOST_DENSE:
            E = minus_E.dense()
            whitened = lambda x: E.T @ x @ E  # in coordinates E⁻¹θ
        else:
            E = minus_E.entries()
            require(E is not None, _too_many(self, plan, "a diagonal preconditioner, "))
            whitened = lambda x: np.maximum(E**2 * (x if x.ndim == 1 else np.diag(x)), 0)
        drawn = kick(plan.dynamics, whitened(found.curvature), whitened(found.noise), plan.eta)
        return HfhrSplitting(_root(drawn, self))

    def __call__(self, dynamics, y, gradient, xi, eta):
        d = dynamics.size // 2
        D: Any = dynamics.diffusion
        Q: Any = dynamics.rotation
        E: Any = dynamics.root
        theta, r, half, g = y[:d], y[d : 2 * d], y[2 * d :], gradient[:d]
        theta, r = theta - eta * D.upper_left(g) + half, r - eta * Q.lower_left(g)
        decay = jnp.exp(-eta * D.lower_right.scale)
        drawn = jnp.sqrt(1 - decay**2) * xi[d:] if self.root is None else self.root(xi[d:])
        before, r = r, decay * r + drawn
        half = 0.5 * jnp.sqrt(2 * eta) * E.upper_left(xi[:d])
        theta = theta - 0.5 * eta * Q.upper_right(before + r) + half  # both A½ at once
        return jnp.concatenate([theta, r, half])  # T5


class GaulSplitting(Scheme):
    """The splitting A½ O A½ N½ G N½ of GAUL, D+Q = [[aC, -C], [I, γI]]: the covariance of θ on a Gaussian is exact.

    G, at the recorded θ = θ̂ + ν: θ ← θ̂ + (2-τq/N)ν + τ(1-κ)r - ηaCĝ and r ← κr + (q/N)ν - ηĝ; A½: θ ← θ + τr; O: r ← cr +
    √(1-c²)ζ; then ν ~ N(0, N) is drawn and θ + ν recorded. With τ = ηC/2 and q = η/2 - τκ the cross-covariance of θ and r is +τ
    before G and -τ after it for every Hessian exactly when N(1-κ²) = q² and N = ηaC/2 - τ²(1-κ) + τq; ν brings θ and r the
    correlated noise of D. C = I has κ = 1 and q = 0: the splitting of HFHR. The memory is ν.

    Gradient noise brings back a bias of first order. `parts`, of a plan: aηC, τ, τ(1-κ), κ, c, 1-τq/N, q/N, √N and √(1-c²).
    """

    needs_prepared: ClassVar[bool] = True

    parts: tuple[Operator, ...] | None

    def __init__(self, parts: tuple[Operator, ...] | None = None):
        super().__init__("gaul_splitting", None, linear=True, memory=0.5, order=2)
        self.parts = parts

    def why_not(self, dynamics, augmented):
        if augmented and _gaul(dynamics) is not None:
            return None
        return f"it splits `gyromc.dynamics.gaul`, and the dynamics is {dynamics.name}: use `lm_ab2`, which takes any D and Q"

    def prepared(self, plan):
        found = _gaul(plan.dynamics)
        assert found is not None
        basis, C, a, gamma = found
        eta, tau, half, own = plan.eta, plan.eta * C / 2, plan.eta / 2, plan.eta * a * C / 2
        lead = own + tau * half
        square = (half * tau) ** 2 - lead * (half**2 - lead + tau**2)
        kappa = (half * tau + np.sqrt(np.maximum(square, 0.0))) / lead
        q = half - tau * kappa
        N = own - tau**2 * (1 - kappa) + tau * q
        decay = np.exp(-gamma * eta) / np.where(kappa > 0, kappa, 1.0)
        possible = min(square.min(), kappa.min(), N.min(), 1 - decay.max()) >= 0 and kappa.min() * N.min() > 0
        why = "the noise that θ and r share leaves no friction to r"
        require(possible, f"`{self}` needs a smaller `step_size` than {eta:g}: {why}.")
        drawn = 1 - tau * q / N, q / N, np.sqrt(N), np.sqrt(1 - decay**2)
        make = Diagonal if basis is None else lambda x: Dense((basis * x) @ basis.T)
        return GaulSplitting(tuple(make(x) for x in (2 * own, tau, tau * (1 - kappa), kappa, decay, *drawn)))

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
        return jnp.concatenate([theta + tau(before + r) + nu, r, nu])  # T5


def _gaul(dynamics: Dynamics) -> tuple[np.ndarray | None, np.ndarray, float, float] | None:
    """An eigenbasis of C (None: the axes), its eigenvalues, a and γ of D+Q = [[aC, -C], [I, γI]]; None for other dynamics."""
    D, Q = dynamics.diffusion, dynamics.rotation
    if not isinstance(D, Blocks) or not isinstance(Q, Blocks) or not isinstance(D.lower_right, Scaled):
        return None
    pairs = [(D.upper_left, Q.upper_left), (D.upper_right, Q.upper_right), (D.lower_left, Q.lower_left)]
    numbers = [part.entries() for pair in pairs for part in pair]
    if all(part is not None for part in numbers):
        aC, minus_C, lower = np.reshape(np.array(numbers, float), (3, 2, -1)).sum(axis=1)
        basis, C, one = None, -minus_C, np.ones_like(aC)
    else:
        aC, minus_C, lower = (first.dense() + second.dense() for first, second in pairs)
        basis, C, one = np.linalg.eigh(-(minus_C + minus_C.T) / 2)[1], -minus_C, np.eye(len(aC))
    near = lambda x, y: np.allclose(x, y, rtol=1e-9, atol=1e-12)
    a = float(np.sum(aC * C) / np.sum(C * C)) if np.any(C) else 0.0
    if not (near(lower, one) and near(aC, a * C) and Q.upper_left.is_zero() and Q.lower_right.is_zero()):
        return None
    eigenvalues = C if basis is None else np.diag(basis.T @ C @ basis)
    return (basis, eigenvalues, a, float(D.lower_right.scale)) if np.min(eigenvalues) > 0 else None


def kick(dynamics: Dynamics, P: np.ndarray, Sigma: np.ndarray, eta: float) -> np.ndarray:
    """The covariance that O draws so that θ keeps P⁻¹ under gradient noise of covariance Σ; matrices, or diagonals."""
    D: Any = dynamics.diffusion
    Q: Any = dynamics.rotation
    alpha, gamma = _alpha(D.upper_left, Q.upper_right), float(D.lower_right.scale)
    assert alpha is not None  # the scheme fits
    drift = np.array([[1.0, eta / 2], [0.0, 1.0]])
    after = drift @ np.diag([1.0, np.exp(-gamma * eta)]) @ drift
    brought, drawn = after @ np.array([alpha, 1.0]) * eta, drift @ np.array([0.0, 1.0])
    entering = np.stack([np.kron(v, v) for v in (brought, drawn)], axis=1)

    def share(first, second):
        """How much less O draws per gradient noise, for pairs of eigenvalues of P.

        Each pair of coordinates is a chain of its own: with M_i the map of (θ_i, r_i), noise enters the covariance of
        (θ_i, r_i) and (θ_j, r_j) through the kick, at (α, 1)η before A½ O A½, and through O. One number makes its θθ entry 0.
        """
        maps = [after - x[..., None, None] * np.outer(brought, [1.0, 0.0]) for x in (first, second)]
        both = np.einsum("...ab,...cd->...acbd", *maps)  # M_i ⊗ M_j
        into = np.linalg.solve(np.eye(4) - both.reshape(*both.shape[:-4], 4, 4), entering)[..., 0, :]
        return into[..., 0] / into[..., 1]

    own = 1 - np.exp(-2 * gamma * eta)
    if P.ndim == 1:
        parts = np.split(np.asarray(P, float), range(AT_ONCE, len(P), AT_ONCE))
        return own - np.concatenate([share(x, x) for x in parts]) * Sigma  # T10
    eigenvalues, basis = np.linalg.eigh(P)
    shares = np.triu(share(eigenvalues[:, None], eigenvalues))
    shares += np.triu(shares, 1).T
    return own * np.eye(len(P)) - basis @ (shares * (basis.T @ Sigma @ basis)) @ basis.T


def _alpha(C: Operator, minus_E: Operator) -> float | None:
    """α where C = αEEᵀ, by products with one vector; None where C is not of that form."""
    v: Any = np.random.default_rng(0).standard_normal(C.size)
    one, square = np.asarray(C(v)), np.asarray(minus_E(minus_E.transposed()(v)))
    size = float(v @ square)
    alpha = float(v @ one) / size if size > 0 else 0.0
    return alpha if size > 0 and np.allclose(one, alpha * square, rtol=1e-6, atol=1e-9 * np.abs(one).max()) else None


def _too_many(scheme: Scheme, plan: Any, more: str = "") -> str:
    most = f"for at most {MOST_DENSE} parameters: this plan has {plan.dim}"
    remedy = f"Use {more}`Exact()` gradients, or `balanced()`."
    return f"`{scheme}` takes the noise of {plan.oracle.name} gradients off its own with full matrices {most}. {remedy}"


def _root(covariance: np.ndarray, scheme: Scheme) -> Operator:
    try:
        return as_operator(covariance, scheme.name).cholesky()
    except InvalidInput:
        smallest = float(np.min(covariance) if covariance.ndim == 1 else np.linalg.eigvalsh(covariance)[0])
        why = "the gradients bring more noise than it draws"
        why += f" (its noise would have the variance {smallest:.3g} in one direction)"
        remedy = "Take a smaller `step_size`, larger batches, a control variate, or more friction."
        raise InvalidInput(f"`{scheme}` cannot keep the covariance here: {why}. {remedy}") from None


leimkuhler_matthews = LeimkuhlerMatthews()
lm_ab2 = LmAb2()
hfhr_splitting = HfhrSplitting()
gaul_splitting = GaulSplitting()
