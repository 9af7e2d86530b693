"""The martingale control variate (T9): subtract from an average the noise that was drawn on the way.

Input: a plan. Output: a `Martingale`, from which engines compute one increment ψ = φ(a + Cξ) - E_ξ φ(a + Cξ) per observable and
step, y⁺ = a + Cξ with a known before ξ is drawn: its mean is zero given the past. With φ the solution of the chain's own Poisson
equation, φ - E[φ(y⁺) | y] = h - π(h), only the boundary would be left; φ here is linear plus quadratic, from a Gaussian
approximation of the target. After Belomestny, Moulines and Samsonov (2019).
"""

import dataclasses
import warnings

import equinox as eqx
import numpy as np
from jaxtyping import Float, Int

from gyromc.approx.gaussian import GaussianApproximation
from gyromc.checks import require
from gyromc.dynamics import augment
from gyromc.errors import GyromcWarning, InvalidInput
from gyromc.observables import Observable, Ridge
from gyromc.plan import Plan

__all__ = ["HELPS", "Martingale", "martingale"]

HELPS = 0.8  # a martingale is subtracted where that makes the variance smaller than this share


@dataclasses.dataclass(frozen=True)
class Settings:
    """The numbers of this module; all are conventions."""

    parameters: int = 1000  # the most, since full matrices are factored
    points: int = 256  # at which gradients of a general observable are averaged
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
    require(
        plan.dim <= SETTINGS.parameters,
        f"`martingale=True` uses full matrices, for at most {SETTINGS.parameters} parameters: this plan has {plan.dim}.",
    )
    known = plan.model.computed.find("martingale", (*plan.step_pieces, *plan.observables.values()))
    if known is not None:  # of a saved run
        return known
    fit, step, m = plan.model.gaussian_fit, plan.step_matrices, plan.state_size
    M = step.transition(augment(fit.precision, plan.augmented))
    slopes, forms, without = np.zeros((len(plan.observables), plan.dim)), {}, []
    for j, (name, h) in enumerate(plan.observables.items()):
        found = projection(plan, h, fit)
        if found is None:
            without.append(name)
            continue
        slopes[j] = found[0]
        if found[1] is not None:
            forms[j] = found[1]
    if without:
        warnings.warn(
            f"`martingale=True` does not correct the averages of {', '.join(without)}: gradients are NaN or infinite at points "
            "around the mode. All others are corrected. Write the function so that its gradient is finite, or ignore this.",
            GyromcWarning,
            stacklevel=2,
        )
    v = np.linalg.solve((np.eye(m) - M).T, np.pad(slopes, ((0, 0), (0, m - plan.dim))).T).T  # φ linear: (I - M)ᵀv = u
    directions, weight, owner = _terms(M, step.C, forms)
    noise = directions @ step.C
    return Martingale(
        slope=v,
        linear=v @ step.C,
        weight=weight,
        direction=directions,
        offset=directions[:, : plan.dim] @ fit.mean,
        noise=noise,
        spread=np.sum(noise**2, axis=1),
        owner=owner,
    )


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
    raise InvalidInput(
        f"The chain is not stable on the Gaussian approximation: the spectral radius of a step is {radius:.4g}, so the step size "
        "is beyond its limit. Take a smaller one."
    )


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
