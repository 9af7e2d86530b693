"""The martingale control variate (T9): subtract from an average the noise that was drawn on the way.

Input: a plan. Output: a `Martingale`, from which engines compute one increment ψ = φ(a + Cξ) - E_ξ φ(a + Cξ) per observable and
step, y⁺ = a + Cξ with a known before ξ is drawn: its mean is zero given the past. With φ the solution of the chain's own Poisson
equation, φ - E[φ(y⁺) | y] = h - π(h), only the boundary would be left; φ here is linear plus quadratic, from a Gaussian
approximation of the target. After Belomestny, Moulines and Samsonov (2019). `Residuals` says what it leaves on other targets.
"""

import dataclasses
import functools
import math
import warnings

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from gyromc.approx.modes import GaussianApproximation
from gyromc.approx.sample import Sample
from gyromc.checks import require
from gyromc.dynamics import augment
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.observables import Observable, Ridge
from gyromc.plan import Plan
from gyromc.prediction.answers import Number
from gyromc.prediction.poisson.plug_in import Fitted
from gyromc.schemes.moments import oracle_covariances

HELPS = 0.8  # a martingale is subtracted where that makes the variance smaller than this share


@dataclasses.dataclass(frozen=True)
class Settings:
    """The numbers of this module; all are conventions."""

    parameters: int = 1000  # the most, since full matrices are factored
    points: int = 256  # at which gradients of a general observable are averaged
    compared: int = 500  # at which the oracle's covariance is evaluated
    nodes: int = 64  # of Gauss-Hermite quadrature
    left_out: float = 1e-5  # share of a quadratic φ that its terms may leave out
    terms: int = 12  # the most of one observable, each two products per step
    curved: int = 60  # the most parameters for the mean Hessian of a general observable
    settled: float = 1e-14  # the relative size of the last term of a sum


SETTINGS = Settings()


class Martingale(eqx.Module):
    """ψ_j = c_jᵀξ + Σ_t λ_t [(q_tᵀξ)(2(p_tᵀy⁺ - o_t) - q_tᵀξ) - |q_t|²] over the terms t of observable j, q_t = Cᵀp_t.

    This is φ(y⁺) - E_ξ φ(y⁺) for φ(y) = v_jᵀy + Σ_t λ_t (p_tᵀy - o_t)², c_j = Cᵀv_j, written with y⁺ instead of a = y⁺ - Cξ.
    """

    slope: Float[np.ndarray, "observables size"]  # v
    linear: Float[np.ndarray, "observables n"]  # c
    weight: Float[np.ndarray, " terms"]  # λ; terms are ordered by observable
    direction: Float[np.ndarray, "terms size"]  # p
    offset: Float[np.ndarray, " terms"]  # o
    noise: Float[np.ndarray, "terms n"]  # q
    spread: Float[np.ndarray, " terms"]  # |q|²
    owner: Int[np.ndarray, " terms"]  # the observable of each term

    def increments(self, after, xi):
        """ψ for rows of y⁺ and of ξ: rows × observables; `after` and `xi` are JAX or NumPy arrays."""
        found = xi @ self.linear.T
        if not len(self.weight):
            return found
        drawn = xi @ self.noise.T
        terms = self.weight * (drawn * (2 * (after @ self.direction.T - self.offset) - drawn) - self.spread)  # T9
        members = (self.owner[:, None] == np.arange(len(self.linear))).astype(found.dtype)
        return found + terms @ members


def martingale(plan: Plan) -> Martingale:
    """The increments of every observable of a plan with a linear scheme and a constant step size."""
    most = f"for at most {SETTINGS.parameters} parameters: this plan has {plan.dim}"
    require(plan.dim <= SETTINGS.parameters, f"`martingale=True` uses full matrices, {most}.")
    known = plan.model.computed.find("martingale", (*plan.step_pieces, *plan.observables.values()))
    if known is not None:  # of a saved run
        return known
    fit, step, m = plan.model.gaussian_fit, plan.step_matrices, plan.state_size
    M = step.transition(augment(fit.precision, plan.augmented))
    found = {name: projection(plan, h, fit) for name, h in plan.observables.items()}
    slopes = np.array([np.zeros(plan.dim) if each is None else each[0] for each in found.values()])
    forms = {j: each[1] for j, each in enumerate(found.values()) if each is not None and each[1] is not None}
    if without := [name for name, each in found.items() if each is None]:
        why = "gradients are NaN or infinite at points around the mode. All others are corrected"
        remedy = "Write the function so that its gradient is finite, or ignore this"
        said = f"`martingale=True` does not correct the averages of {', '.join(without)}: {why}. {remedy}."
        warnings.warn(said, GyromcWarning, stacklevel=2)
    v = np.linalg.solve((np.eye(m) - M).T, np.pad(slopes, ((0, 0), (0, m - plan.dim))).T).T  # φ linear: (I - M)ᵀv = u
    directions, weight, owner = _terms(M, step.C, forms)
    noise, offset = directions @ step.C, directions[:, : plan.dim] @ fit.mean
    return Martingale(v, v @ step.C, weight, directions, offset, noise, np.sum(noise**2, axis=1), owner)


def _terms(M: np.ndarray, C: np.ndarray, forms: dict[int, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Φ - MᵀΦM = H as Σ λ ppᵀ for each H: the largest terms under the chain's own covariance; p, λ and the number of H."""
    m = len(M)
    directions, weight, owner = [np.zeros((0, m))], [np.zeros(0)], [np.zeros(0, int)]
    if not forms:
        return directions[0], weight[0], owner[0]
    covariance = doubled_sum(M, C @ C.T)
    root = symmetric_root((covariance + covariance.T) / 2)
    inverse = np.linalg.pinv(root, rcond=1e-9, hermitian=True)
    for j, form in forms.items():
        Phi = doubled_sum(M.T, np.pad(form, (0, m - len(form))))
        sizes, basis = np.linalg.eigh(root @ Phi @ root)
        order = np.argsort(-np.abs(sizes))
        share = np.cumsum(sizes[order] ** 2) / max(np.sum(sizes**2), 1e-300)
        kept = order[: min(SETTINGS.terms, 1 + int(np.searchsorted(share, 1 - SETTINGS.left_out)))]
        # root Φ root = Σ s bbᵀ on the range of the covariance; Φ there is Σ s (root⁺b)(root⁺b)ᵀ
        directions.append((inverse @ basis[:, kept]).T)
        weight.append(sizes[kept])
        owner.append(np.full(len(kept), j))
    return np.concatenate(directions), np.concatenate(weight), np.concatenate(owner)


def symmetric_root(covariance: np.ndarray) -> np.ndarray:
    """The symmetric root of a covariance, which may be singular."""
    values, basis = np.linalg.eigh(covariance)
    return (basis * np.sqrt(np.maximum(values, 0.0))) @ basis.T


def doubled_sum(M: np.ndarray, W: np.ndarray) -> np.ndarray:
    """Σ_k M^k W (M^k)ᵀ by repeated squaring, M being the step of a stable chain; `InvalidInput` where it does not converge."""
    total, one_step = W.copy(), M
    for _ in range(60):
        with np.errstate(all="ignore"):  # of a chain that is not stable
            added = M @ total @ M.T
            total = total + added
        if not np.all(np.isfinite(total)):
            break
        if np.max(np.abs(added)) <= SETTINGS.settled * max(np.max(np.abs(total)), 1e-300):
            return total
        M = M @ M
    radius = np.max(np.abs(np.linalg.eigvals(one_step))) if np.all(np.isfinite(one_step)) else np.inf
    why = f"the spectral radius of a step is {radius:.4g}, so the step size is beyond its limit. Take a smaller one."
    raise InvalidInput(f"The chain is not stable on the Gaussian approximation: {why}")


def projection(plan: Plan, h: Observable, fit: GaussianApproximation) -> tuple[np.ndarray, np.ndarray | None] | None:
    """u and H with h ≈ const + uᵀ(θ-m) + (θ-m)ᵀH(θ-m) under the Gaussian, H None where it is 0; None where ∇h is not finite."""
    if isinstance(h, Ridge):
        a = np.asarray(h.direction, float)
        if h.is_linear:
            return a, None
        sigma = float(np.sqrt(a @ np.linalg.solve(fit.precision, a)))
        if sigma == 0:
            return np.zeros_like(a), None
        x, w = np.polynomial.hermite_e.hermegauss(SETTINGS.nodes)
        values = np.asarray(h.rho(float(a @ fit.mean) + sigma * x), float)
        w = w / w.sum()
        first, second = float(w @ (values * x)) / sigma, float(w @ (values * (x**2 - 1))) / (2 * sigma**2)
        flat = abs(second) * sigma <= 1e-12 * abs(first)
        return first * a, None if flat else second * np.outer(a, a)
    half = np.random.default_rng(0).standard_normal((SETTINGS.points // 2, plan.dim))
    root = np.linalg.cholesky(np.linalg.inv(fit.precision))
    rows = fit.mean + np.concatenate([half, -half]) @ root.T
    slopes = plan.model.value_gradients(h, rows)
    if not np.all(np.isfinite(slopes)):
        return None
    if plan.dim > SETTINGS.curved:
        return slopes.mean(axis=0), None
    away = (rows - fit.mean) @ fit.precision
    form = (away.T @ (slopes - slopes.mean(axis=0))) / len(rows) / 2  # Stein: E[∇²h] = E[P(θ-m)∇hᵀ]
    return slopes.mean(axis=0), (form + form.T) / 2


@dataclasses.dataclass(frozen=True, eq=False)
class Residuals:
    """What martingales leave of the error of averages of one plan, for a target that is not Gaussian, over a weighted sample.

    With y⁺ = Ay + B(∇H + δ) + Cξ and ȳ⁺ = Ay + B∇H it is h(y_k) - ψ_k = const + φ(y_k) - φ(y_{k+1}) + ρ(y_k) + χ_k, where
    ρ = h - φ(y) + φ(ȳ⁺) is 0 on a Gaussian, χ, what δ adds to φ(y⁺), is not correlated in time, and only the ends of φ are left.
    """

    plan: Plan
    sample: Sample
    fitted: Fitted  # the plug-in on the same sample

    @functools.cached_property
    def _states(self) -> tuple[np.ndarray, np.ndarray]:
        """y and ȳ⁺ at the sample's points, centred; a memory is drawn from its law given z on the nearest Gaussian."""
        plan, step, rng = self.plan, self.plan.step_matrices, np.random.default_rng(0)
        fit, theta, n = plan.model.gaussian_fit, self.sample.theta, plan.dynamics.size
        r = rng.standard_normal((len(theta), n - plan.dim))
        forces = np.concatenate([plan.flat_target.gradients(theta), r], axis=1)
        y = z = np.concatenate([theta - fit.mean, r], axis=1)
        if plan.state_size > n:
            X = doubled_sum(step.transition(augment(fit.precision, plan.augmented)), step.C @ step.C.T)
            onto = np.linalg.solve(X[:n, :n], X[:n, n:])
            root = symmetric_root(X[n:, n:] - X[n:, :n] @ onto)
            y = np.concatenate([z, z @ onto + rng.standard_normal((len(z), len(root))) @ root], axis=1)
        return y, y @ step.A.T + forces @ step.B.T

    @functools.cached_property
    def _noise(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the sample, drawn by weight, and the oracle's covariance at each."""
        rows = np.random.default_rng(0).choice(len(self.sample.theta), SETTINGS.compared, p=self.sample.weights)
        return rows, oracle_covariances(self.plan.flat_target, self.plan.prepared_oracle, self.sample.theta[rows])

    def left(self, name: str, values: np.ndarray) -> Number:
        """What is left of N·Var for one observable, given at the sample's points: of ρ, of χ and of both ends of a chain."""
        plan, found, w, (y, after) = self.plan, martingale(self.plan), self.sample.weights, self._states
        j = list(plan.observables).index(name)
        v, p, weight = found.slope[j], found.direction[found.owner == j], found.weight[found.owner == j]
        variance = lambda x: float(w @ (x - w @ x) ** 2)
        phi = y @ v + (y @ p.T) ** 2 @ weight
        rho = values - phi + after @ v + (after @ p.T) ** 2 @ weight  # T9
        # Of ρ as for one exponential: V/η for small η, Var ρ for large.
        size, of_rho = variance(rho), self.fitted.solve(rho).variance
        left, error = size, of_rho.error / plan.eta
        if size > 0 and of_rho.value > 0:
            left = size / math.tanh(plan.eta * size / of_rho.value)
            error = left * of_rho.error / of_rho.value
        # E[χ²]: fourth moments as of a Gaussian.
        rows, Sigma = self._noise
        B = plan.step_matrices.B[:, : plan.dim]
        slope = (v + 2 * ((after[rows] @ p.T) * weight) @ p) @ B
        bend = Sigma.mean(axis=0) @ ((B.T @ p.T) * weight) @ (p @ B)
        square = np.einsum("si,sij,sj->", slope, Sigma, slope, optimize=True) / len(rows)
        left += float(square + 2 * np.sum(bend * bend.T))
        ends = (2 if plan.burn_in else 1) * variance(phi) / plan.num_steps
        return Number(left + ends, error + ends)
