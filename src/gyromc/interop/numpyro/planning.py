"""A plan for a posterior: the Laplace approximation (E8) makes it round, then one (D, Q) serves all models (E10, T1).

Receives a posterior; hands on a `Plan` that starts at the mode, moves by HFHR dynamics in coordinates where the posterior is
round, and has the step size at which the variances of a Gaussian with the same curvature and oracle noise are wrong by `bias`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy import linalg

from gyromc import dynamics as families
from gyromc.checks import positive, require, whole
from gyromc.dynamics import Dynamics
from gyromc.errors import InvalidInput
from gyromc.interop.numpyro.posterior import Posterior, SubsampledPosterior
from gyromc.interop.numpyro.sites import observables as site_observables
from gyromc.model import Model
from gyromc.oracles import ControlVariate, Exact, Oracle
from gyromc.plan import Plan
from gyromc.prediction.corrections import oracle_covariances
from gyromc.prediction.stability import largest_stable_step
from gyromc.shape.laplace import Laplace

__all__ = ["plan"]

ALPHA, GAMMA = 2.0, 0.2
"""HFHR on a standard Gaussian: against SGLD with the same bias, means cost 0.42 and squares 1.36 times the gradients."""
MOST_PARAMETERS = 500
NOISE_POINTS = 16


def plan(
    target: Posterior,
    *,
    batch_size: int | None = None,
    num_steps: int = 4000,
    num_chains: int = 32,
    bias: float = 0.02,
    sites: Sequence[str] | None = None,
    squares: bool = True,
    observables: Mapping[str, Any] | None = None,
    **fields: Any,
) -> Plan:
    """A plan for a posterior, ready to run: dynamics, step size, burn-in and start chosen from its mode and curvature there.

    **Arguments:**

    - `target`: from `gyromc.interop.numpyro.target`.
    - `batch_size`: rows of the subsampled plate per gradient, by a control variate anchored at the mode; left out: all rows.
    - `num_steps`, `num_chains`: how long, and how many independent chains.
    - `bias`: the relative error of posterior variances that the step size may cause, on a Gaussian of the same curvature; the
      bias on your model is in `gm.predict(plan).bias`, or shows when `bias` is halved.
    - `sites`, `squares`: which sites to average, and whether their squares too; see `observables`.
    - `observables`: more observables by name, functions of {site: unconstrained array}.
    - `fields`: any other field of `gm.Plan`, in place of what would be chosen.

    **Returns:** a `Plan`.

    ```python
    import numpy as np
    import numpyro
    from numpyro import distributions as dist
    from gyromc.interop import numpyro as gnp

    def model(y):
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        numpyro.sample("y", dist.Normal(0.0, scale), obs=y)

    plan = gnp.plan(gnp.target(model, np.array([0.3, -1.2])))
    assert plan.dynamics.name == "SGHFHRMC, preconditioned"
    ```
    """
    require(isinstance(target, Posterior), f"`target` must be a posterior of a model: got {type(target).__name__}.")
    bias = positive(bias, "bias")
    require(bias < 1, f"`bias` is a fraction of the posterior variance, below 1: got {bias:g}.")
    center = _center(target)
    mode = target.unravel(center.mode)
    chosen: dict[str, Any] = {
        "dynamics": preconditioned_hfhr(center.precision),
        "oracle": _oracle(target, batch_size, mode),
        "observables": {**site_observables(target, sites, squares=squares), **(observables or {})},
        "start": mode,
        "num_steps": num_steps,
        "num_chains": num_chains,
        **fields,
    }
    step_size = chosen.pop("step_size", None)
    draft = Plan(target=target, step_size=1e-3 if step_size is None else step_size, **chosen)
    if step_size is None:
        draft = draft.replace(step_size=gaussian_step(draft, center, bias))
    if "burn_in" not in fields and not draft.scheduled:
        draft = draft.replace(burn_in=_relaxation_steps(draft, center))
    return draft


def preconditioned_hfhr(precision: np.ndarray, alpha: float = ALPHA, gamma: float = GAMMA) -> Dynamics:
    """HFHR in coordinates where the precision matrix is the identity: D = diag(αC, γI), Q = [[0, -C^½], [C^½, 0]], C = K⁻¹."""
    eigenvalues, basis = np.linalg.eigh(precision)
    C, root = (basis / eigenvalues) @ basis.T, (basis / np.sqrt(eigenvalues)) @ basis.T
    zero, one = np.zeros_like(C), np.eye(len(C))
    found = families.general(
        np.block([[alpha * C, zero], [zero, gamma * one]]), np.block([[zero, -root], [root, zero]])
    )
    return Dynamics(found.diffusion, found.rotation, "SGHFHRMC, preconditioned", augmented=True)


def gaussian_step(plan: Plan, center: Laplace, bias: float) -> float:
    """η at which the chain's stationary θ-covariance exceeds K⁻¹ by the factor 1 + bias in its worst direction (T1)."""
    d, K = plan.dim, center.precision
    D, Q = plan.dynamics.D, plan.dynamics.Q
    P = linalg.block_diag(K, np.eye(d)) if plan.augmented else K
    G = D + Q
    A, root = G @ P, linalg.cholesky(K)
    rng = np.random.default_rng(0)
    rows = center.mode + linalg.solve_triangular(root, rng.standard_normal((d, NOISE_POINTS))).T
    noise = G[:, :d] @ oracle_covariances(plan, rows).mean(axis=0) @ G[:, :d].T

    def excess(eta: float) -> float:
        M = np.eye(len(A)) - eta * A
        covariance = linalg.solve_discrete_lyapunov(M, 2 * eta * D + eta**2 * noise)[:d, :d]  # T1
        return float(np.linalg.eigvalsh(root @ covariance @ root.T)[-1]) - 1

    low, high = 0.0, 0.99 * largest_stable_step(A)
    require(
        high > 0,
        "The dynamics do not contract at the mode: A = (D+Q)P has an eigenvalue with real part ≤ 0. Pass others.",
    )
    while high - low > 1e-3 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < bias else (low, middle)
    return float(f"{low:.3g}")


def _relaxation_steps(plan: Plan, center: Laplace) -> int:
    """Ten times the slowest relaxation time at the mode, in steps."""
    P = linalg.block_diag(center.precision, np.eye(plan.dim)) if plan.augmented else center.precision
    slowest = float(np.linalg.eigvals((plan.dynamics.D + plan.dynamics.Q) @ P).real.min())
    assert not plan.scheduled
    return int(np.ceil(10 / (slowest * plan.step_size)))


def _center(target: Posterior) -> Laplace:
    require(
        target.dim <= MOST_PARAMETERS,
        f"This model has {target.dim} parameters: a preconditioner is formed for up to {MOST_PARAMETERS}. Build the plan "
        "yourself, for example `gm.Plan(target=target, start=target.start, dynamics=gm.dynamics.hfhr(target.dim, 1.0, 2.0), "
        "observables=gnp.observables(target), step_size=…)`.",
    )
    try:
        return Model(target, target.start).laplace
    except InvalidInput as error:
        raise InvalidInput(
            f"The posterior has no mode to start from. {error} Build the plan yourself with `gm.Plan`, or give weak priors to "
            "the sites the data leave open."
        ) from error


def _oracle(target: Posterior, batch_size: int | None, mode: dict[str, Any]) -> Oracle:
    if batch_size is None:
        return Exact()
    batch_size = whole(batch_size, "batch_size", least=1, most=10**9)
    require(
        isinstance(target, SubsampledPosterior),
        f"`batch_size={batch_size}` needs a model with a subsampled plate: write the likelihood as `with numpyro.plate(name, N, "
        f"subsample_size={batch_size}) as index: numpyro.sample(…, obs=y[index])`. "
        f"Observed here: {', '.join(map(repr, target.structure.observed))}.",
    )
    assert isinstance(target, SubsampledPosterior)
    return ControlVariate(batch_size, center=mode, replace=batch_size > target.num_data)
