"""Exact moments of a chain on a Gaussian target, by the plainest recursions: what predictions and engines are tested against.

Input: a plan with the Euler step, a constant step size and a linear observable. Output: mean and variance of a chain's average,
the second moments of the last state, the mean of squares; or the joint law of all states. On a line also the mean of a chain's
average for any force (`line_average`). `written_out` takes every linear scheme and the martingale. No code is shared with
`gyromc.prediction`: only the definitions of the step and of the average are.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gyromc.oracles import ControlVariate, Gaussian, Minibatch
from gyromc.prediction.martingale import martingale

MOST_BATCHES = 300  # with more of them, their covariance is written down instead


class Moments(NamedTuple):
    """Of the average a = N⁻¹ Σ uᵀθ_k over the kept states: E[a], Var[a], E[z zᵀ] after the last step, N⁻¹ Σ E[(uᵀθ_k)²]."""

    mean: float
    variance: float
    second: np.ndarray
    square: float


class Gradient(NamedTuple):
    """ĝ(θ) = H θ + g."""

    H: np.ndarray
    g: np.ndarray


def line_average(force, values, start, *, step_size, num_steps, box, burn_in=0, nodes=600) -> float:
    """E of the average of `values` over a chain θ⁺ ~ N(θ - η·force(θ), 2η) on a line, by its density at evenly spaced nodes.

    Sums over nodes much closer than a step are exact to rounding as long as the chain stays in the box.
    """
    x, deviation = np.linspace(*box, nodes), math.sqrt(2 * step_size)

    def after(theta):
        away = (x - (theta - step_size * force(theta))[:, None]) / deviation
        return np.exp(-(away**2) / 2) * (x[1] - x[0]) / (deviation * math.sqrt(2 * math.pi))

    P, law, h = after(x), after(np.array([float(start)]))[0], values(x)
    total = float(values(np.array([float(start)]))[0]) if burn_in == 0 else 0.0
    for k in range(1, burn_in + num_steps):
        total += float(law @ h) if k >= burn_in else 0.0
        law = law @ P
    assert abs(law.sum() - 1) < 1e-6
    return total / num_steps


def moments(plan, u=None, most_batches: int = MOST_BATCHES) -> Moments:
    """The moments of the average of uᵀθ (the plan's only observable unless given), exact for any oracle.

    With y = (z, s, 1), s the running sum of uᵀθ, a step is y⁺ = F y + noise, so E[y yᵀ] obeys Y⁺ = E[F Y Fᵀ] + noise.
    """
    if u is None:
        [h] = plan.observables.values()
        u = h.direction
    n, d, eta = plan.dynamics.size, plan.dim, plan.step_size
    listed = num_batches(plan) <= most_batches
    steps = [_step(plan, u, gradient) for gradient in (gradients(plan) if listed else [full_gradient(plan)])]
    noise = langevin_noise(plan)
    oracle = eta * (plan.dynamics.D + plan.dynamics.Q)[:, :d]
    Y, squares = _start(plan), 0.0
    for k in range(plan.burn_in + plan.num_steps):
        if k == plan.burn_in:  # the sum begins here
            Y[n, :], Y[:, n] = 0, 0
        squares += u @ Y[:d, :d] @ u if k >= plan.burn_in else 0.0
        extra = 0 if listed else oracle @ _batch_covariance(plan, Y) @ oracle.T
        Y = sum(F @ Y @ F.T for F in steps) / len(steps)
        Y[:n, :n] += noise + extra
    mean = Y[n, -1] / plan.num_steps
    return Moments(mean, Y[n, n] / plan.num_steps**2 - mean**2, Y[:n, :n], squares / plan.num_steps)


def trajectory(plan, start, sequence: Sequence[Gradient] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Means (T × n) and covariances (T × T × n × n) of the states z_burn_in … z_{burn_in+N-1}, from one start.

    `sequence` has the gradient of each step; the full gradient unless given.
    """
    n, total = plan.dynamics.size, plan.burn_in + plan.num_steps
    G, W = plan.dynamics.D + plan.dynamics.Q, langevin_noise(plan)
    sequence = sequence or [full_gradient(plan)] * (total - 1)
    means, covariances = np.zeros((total, n)), np.zeros((total, total, n, n))
    means[0, : len(start)] = start
    for k, gradient in enumerate(sequence):
        H, g = extended(plan, gradient)
        M = np.eye(n) - plan.step_size * G @ H
        means[k + 1] = M @ means[k] - plan.step_size * G @ g
        for j in range(k + 1):
            covariances[k + 1, j] = M @ covariances[k, j]
            covariances[j, k + 1] = covariances[k + 1, j].T
        covariances[k + 1, k + 1] = M @ covariances[k, k] @ M.T + W
    return means[plan.burn_in :], covariances[plan.burn_in :, plan.burn_in :]


def full_gradient(plan) -> Gradient:
    P, mean = plan.target.gaussian()
    return Gradient(P, -P @ mean)


def gradients(plan) -> list[Gradient]:
    """The gradients of all equally likely mini-batches; the full gradient alone where there are none."""
    oracle = plan.oracle
    if not isinstance(oracle, Minibatch | ControlVariate):
        return [full_gradient(plan)]
    X, y = plan.target.X, plan.target.y
    scale, prior = len(X) / oracle.size, float(plan.target.prior_precision) * np.eye(plan.dim)
    rows = range(len(X))
    found = []
    for batch in (
        itertools.product(rows, repeat=oracle.size) if oracle.replace else itertools.combinations(rows, oracle.size)
    ):
        x, t = X[list(batch)], y[list(batch)]
        if isinstance(oracle, ControlVariate):  # the full gradient at the centre, and the batch's difference from there
            c = np.asarray(oracle.center)
            g = X.T @ (X @ c - y) - scale * x.T @ x @ c
        else:
            g = -scale * x.T @ t
        found.append(Gradient(scale * x.T @ x + prior, g))
    return found


def num_batches(plan) -> int:
    if not isinstance(plan.oracle, Minibatch | ControlVariate):
        return 1
    rows, size = plan.target.num_data, plan.oracle.size
    return rows**size if plan.oracle.replace else math.comb(rows, size)


def langevin_noise(plan) -> np.ndarray:
    """The covariance a step adds whatever the state: √(2ηD) ξ and a Gaussian oracle's noise."""
    G, eta = plan.dynamics.D + plan.dynamics.Q, plan.step_size
    noise = 2 * eta * plan.dynamics.D
    if isinstance(plan.oracle, Gaussian):
        noise = noise + (eta * float(plan.oracle.tau)) ** 2 * G[:, : plan.dim] @ G[:, : plan.dim].T
    return noise


def extended(plan, gradient: Gradient) -> Gradient:
    """The gradient of U(θ) + ½|r|² from that of U(θ)."""
    n, d = plan.dynamics.size, plan.dim
    H, g = np.eye(n), np.zeros(n)
    H[:d, :d], g[:d] = gradient
    return Gradient(H, g)


def _step(plan, u, gradient: Gradient) -> np.ndarray:
    """F of y⁺ = F y + noise for one gradient."""
    n, d, eta = plan.dynamics.size, plan.dim, plan.step_size
    G, (H, g) = plan.dynamics.D + plan.dynamics.Q, extended(plan, gradient)
    F = np.eye(n + 2)
    F[:n, :n] -= eta * G @ H
    F[:n, -1] = -eta * G @ g
    F[n, :d] = u
    return F


def _start(plan) -> np.ndarray:
    """E[y yᵀ] over the starts, which are fixed: one for all chains or one each."""
    d, n = plan.dim, plan.dynamics.size
    y = np.zeros((len(plan.starts.theta), n + 2))
    y[:, :d], y[:, -1] = plan.starts.theta, 1
    if plan.starts.r is not None:
        y[:, d:n] = plan.starts.r
    return y.T @ y / len(y)


def _batch_covariance(plan, Y: np.ndarray) -> np.ndarray:
    """E[Cov(ĝ | θ)] of mini-batches: (N²/b) (mean of x xᵀ e² - ḡ ḡᵀ) with e = xᵀθ - y, times (N-b)/(N-1) for distinct rows."""
    assert isinstance(plan.oracle, Minibatch)
    X, y = plan.target.X, plan.target.y
    (N, d), b = X.shape, plan.oracle.size
    errors = np.zeros((N, len(Y)))
    errors[:, :d], errors[:, -1] = X, -y
    squares = np.einsum("ia,ab,ib->i", errors, Y, errors)
    mean_gradient = X.T @ errors / N
    one_row = N**2 * ((X.T * squares) @ X / N - mean_gradient @ Y @ mean_gradient.T)
    return one_row / b * (1 if plan.oracle.replace else (N - b) / (N - 1))


class Average(NamedTuple):
    """Mean of a chain's average, and its variance without and with its martingale subtracted."""

    mean: float
    variance: float
    corrected: float


def written_out(plan, name: str) -> Average:
    """One observable of a short plan with one start, linear or a square: every normal that is drawn is a column of a matrix.

    For mini-batches every sequence of batches is listed; given one, all is linear and Gaussian.
    """
    steps = plan.burn_in + plan.num_steps
    found = [_given(plan, name, sequence) for sequence in itertools.product(gradients(plan), repeat=steps)]
    means = np.array([[one[0][0], one[1][0]] for one in found])
    variances = np.array([[one[0][1], one[1][1]] for one in found]).mean(axis=0) + means.var(axis=0)
    assert abs(means[:, 0].mean() - means[:, 1].mean()) < 1e-12 * (1 + np.abs(means).max())  # ψ has mean 0
    return Average(float(means[:, 0].mean()), *map(float, variances))


def _given(plan, name: str, sequence: Sequence[Gradient]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Mean and variance of the average and of the corrected average for given gradients."""
    j, h = list(plan.observables).index(name), plan.observables[name]
    found, size = martingale(plan), None
    plain = corrected = 0.0
    for k, (y, after, xi) in enumerate(_states(plan, sequence)):
        if k < plan.burn_in:
            continue
        size, x = y.shape[1], h.direction @ y[: plan.dim]
        one = np.eye(size)[0]
        value = np.outer(x, x) if h.is_square else np.outer(one, x)
        psi = np.outer(one, found.linear[j] @ xi)
        for t in np.flatnonzero(found.owner == j):
            q, p = found.noise[t] @ xi, found.direction[t] @ after - found.offset[t] * one
            psi = psi + found.weight[t] * (np.outer(q, 2 * p - q) - found.spread[t] * np.outer(one, one))
        plain, corrected = plain + value, corrected + value - psi
    return _law(plain / plan.num_steps), _law(corrected / plan.num_steps)


def _states(plan, sequence: Sequence[Gradient]) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """y_k, y_{k+1} and ξ_k of every step, as maps of (1, all normals that are drawn)."""
    step, n, d = plan.step_matrices, plan.dynamics.size, plan.dim
    tau = float(plan.oracle.tau) if isinstance(plan.oracle, Gaussian) else 0.0
    drawn = np.eye(1 + len(sequence) * (n + d))
    y = np.zeros((plan.state_size, len(drawn)))
    y[:d, 0] = plan.starts.theta[0]
    if plan.starts.r is not None:
        y[d:n, 0] = plan.starts.r[0]
    for k, gradient in enumerate(sequence):
        H, g = extended(plan, gradient)
        first = 1 + k * (n + d)
        xi, zeta = drawn[first : first + n], drawn[first + n : first + n + d]
        ghat = H @ y[:n] + np.outer(g, drawn[0])
        ghat[:d] += tau * zeta
        after = step.A @ y + step.B @ ghat + step.C @ xi
        yield y, after, xi
        y = after


def _law(form) -> tuple[float, float]:
    """Mean and variance of ŵᵀFŵ, ŵ = (1, w), w standard normal."""
    F = (form + form.T) / 2
    return F[0, 0] + np.trace(F[1:, 1:]), 4 * F[0, 1:] @ F[0, 1:] + 2 * np.sum(F[1:, 1:] ** 2)
