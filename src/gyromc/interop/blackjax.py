"""gyromc's samplers as BlackJAX sampling algorithms, and BlackJAX's gradient estimators as targets of a plan.

Each sampler is a function of a gradient estimator, which estimates -∇U (`blackjax.sgmcmc.gradients`), and returns a
`SamplingAlgorithm`: `init(position, rng_key=None)` and `step(rng_key, state, minibatch, step_size, temperature=1)`.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from gyromc import dynamics as families
from gyromc import schemes
from gyromc.checks import numbers, positive, require
from gyromc.dynamics import Dynamics, augment
from gyromc.engines.scan import cast
from gyromc.errors import InvalidInput
from gyromc.extras import needs
from gyromc.flat import ravel, unraveler
from gyromc.operators import Operator, as_operator
from gyromc.prediction.stability import limit_of_mean
from gyromc.runtime.precision import owned, private
from gyromc.targets import FiniteSum, SumOverData

with needs("blackjax", "`gyromc.interop.blackjax`"):
    from blackjax.base import SamplingAlgorithm

__all__ = ["AugmentedState", "EstimatedTarget", "kernel", "sggaulmc", "sghfhrmc", "sgnlmc", "target"]


class AugmentedState(NamedTuple):
    """The state (θ, r) of dynamics with momentum; both are pytrees shaped like the parameters."""

    position: Any
    momentum: Any


def sgnlmc(grad_estimator: Callable, J, *, curvature=None) -> SamplingAlgorithm:
    """SGNLMC: Langevin dynamics with a skew-symmetric rotation J: D = I, Q = J.

    The state is the position itself, as in `blackjax.sgld`.

    **Arguments:**

    - `grad_estimator`: function of (position, minibatch), the gradient of the log density, as BlackJAX's are.
    - `J`: a skew-symmetric matrix, `gyromc.dynamics.rotations(…)`, or a number: the rate at which neighbouring coordinates
      rotate, applied without a matrix.
    - `curvature`: the Hessian of -log density near its mode: a matrix, a diagonal, or a number times the identity. With it, a
      step size beyond the largest stable one raises an error that names it, before the state is NaN. A rotation makes that one
      smaller, by 1 + J² where the curvature is the same in all directions.

    ```python
    import jax, jax.numpy as jnp
    from gyromc.interop.blackjax import sgnlmc
    sampler = sgnlmc(lambda position, minibatch: -position, J=[[0.0, -1.0], [1.0, 0.0]])
    state = sampler.step(jax.random.key(0), sampler.init(jnp.zeros(2)), None, 0.1)
    print(state.shape)  # (2,)
    ```
    """
    if isinstance(J, Operator) or np.ndim(J):
        return kernel(families.nonreversible(J), curvature=curvature)(grad_estimator)
    rate = float(numbers(J, "J"))
    family = lambda d: families.nonreversible(families.rotations(d, rate))
    return _algorithm(grad_estimator, family, curvature=curvature)


def sghfhrmc(grad_estimator: Callable, alpha: float, gamma: float, *, curvature=None) -> SamplingAlgorithm:
    """SGHFHRMC: Hessian-free high-resolution dynamics on (θ, r): D = diag(αI, γI), Q = [[0, -I], [I, 0]], α and γ positive.

    The state is an `AugmentedState`; `init(position)` sets r = 0 and `init(position, rng_key)` draws it from N(0, I). Its
    use is that of `sgnlmc`, and so is `curvature`.
    """
    alpha, gamma = positive(alpha, "alpha"), positive(gamma, "gamma")
    return _algorithm(grad_estimator, lambda d: families.hfhr(d, alpha, gamma), curvature=curvature)


def sggaulmc(grad_estimator: Callable, C, a: float, gamma: float, *, curvature=None) -> SamplingAlgorithm:
    """SGGAULMC: gradient-adjusted underdamped dynamics on (θ, r), with the D and Q of `gyromc.dynamics.gaul`, a and γ positive.

    `C` is symmetric positive definite; a number is a multiple of the identity, a vector a diagonal. The state is an
    `AugmentedState`, as for `sghfhrmc`; `curvature` as for `sgnlmc`.
    """
    if isinstance(C, Operator) or np.ndim(C):
        return kernel(families.gaul(C, a, gamma), curvature=curvature)(grad_estimator)
    family = lambda d: families.gaul(as_operator(C, "C", size=d), a, gamma)
    # Raises now, not at the first step.
    family(1)
    return _algorithm(grad_estimator, family, curvature=curvature)


def kernel(
    dynamics: Dynamics, scheme: str | schemes.Scheme = "euler", *, curvature=None
) -> Callable[[Callable], SamplingAlgorithm]:
    """Any dynamics (D, Q) as a replacement for `blackjax.sgld`: `kernel(dynamics)(grad_estimator)` is a sampling algorithm.

    On θ the state is the position itself; on (θ, r) it is an `AugmentedState`. One step with the key `k` draws ξ as
    `jax.random.normal(k, …)`, so `kernel(overdamped(d))(g)` makes the steps of `blackjax.sgld(g)`, up to rounding.

    **Arguments:**

    - `dynamics`: a value of `gyromc.dynamics`, for as many parameters as the position has.
    - `scheme`: the integrator, a value of `gyromc.schemes` or its name.
    - `curvature`: as for `sgnlmc`.

    ```python
    import jax, jax.numpy as jnp
    import gyromc as gm
    from gyromc.interop.blackjax import kernel
    position = {"w": jnp.zeros((2, 2)), "b": jnp.zeros(2)}
    gradient = lambda position, minibatch: jax.tree.map(jnp.negative, position)
    sampler = kernel(gm.dynamics.overdamped(position))(gradient)
    print(sampler.step(jax.random.key(0), sampler.init(position), None, 0.1)["w"].shape)  # (2, 2)
    ```
    """
    remedy = "The gradient estimator comes after it: `kernel(dynamics, scheme)(grad_estimator)`."
    given = type(dynamics).__name__
    require(isinstance(dynamics, Dynamics), f"`dynamics` must be a value of `gyromc.dynamics`: got {given}. {remedy}")
    found = schemes.find(scheme)
    remedy = f"`{found}` needs a memory or a plan. Use `gyromc.run` with it, or `euler` here."
    alone = not found.needs_prepared and not found.memory
    require(alone, f"`kernel` takes a scheme that needs nothing but the state and a gradient: {remedy}")
    return lambda grad_estimator: _algorithm(grad_estimator, lambda d: dynamics, found, curvature)


def _algorithm(
    grad_estimator: Callable, family: Callable[[int], Dynamics], scheme: schemes.Scheme = schemes.euler, curvature=None
) -> SamplingAlgorithm:
    """`init` and `step` for the dynamics `family(d)`, d the number of parameters."""
    _require_function(grad_estimator, "grad_estimator")
    P: Any = None if curvature is None else numbers(curvature, "curvature")
    family = functools.lru_cache(maxsize=8)(family)

    @functools.lru_cache(maxsize=8)
    def limits(d: int) -> tuple[float, float]:
        """The largest stable step sizes of the dynamics and of SGLD, on a Gaussian of the given curvature."""
        wanted = f"a number, {d} numbers or a {d} × {d} matrix"
        require(P.shape in ((), (d,), (d, d)), f"`curvature` must be {wanted}: got shape {P.shape}.")
        K = P if P.ndim == 2 else np.diag(np.broadcast_to(P, d))
        A = (family(d).D + family(d).Q) @ augment(K, family(d).has_momentum(d, "the position"))
        return limit_of_mean(np.linalg.eigvals(A)), limit_of_mean(np.linalg.eigvals(K))

    def init(position, rng_key=None):
        position = _checked_position(position)
        theta = ravel(position)
        if not family(theta.size).has_momentum(theta.size, "the position"):
            return position
        r = jnp.zeros_like(theta) if rng_key is None else jax.random.normal(rng_key, theta.shape, theta.dtype)
        return AugmentedState(position, _like(r, position))

    def step(rng_key, state, minibatch, step_size, temperature=1.0):
        position = _checked_position(state.position if isinstance(state, AugmentedState) else state)
        theta = ravel(position)
        dynamics = cast(family(theta.size), theta.dtype)
        with_momentum = dynamics.has_momentum(theta.size, "the position")
        wanted = "θ alone: its state is the position. Pass `state.position`"
        if with_momentum:
            wanted = "(θ, r): `state` must be the `AugmentedState` that `init(position)` returns"
        right = isinstance(state, AugmentedState) == with_momentum
        require(right, f"{dynamics.name} moves {wanted}; got {type(state).__name__}.")
        if with_momentum:
            _same_shapes(state.momentum, position, "`state.momentum`", "Start again from `init(position)`.")
        eta, T = _number(step_size, "step_size", theta.dtype), _number(temperature, "temperature", theta.dtype)
        if P is not None and scheme.is_euler and not isinstance(step_size, Tracer):
            limit, plain = limits(theta.size)
            beyond = f"is beyond the largest stable one of {dynamics.name} for the curvature given, {limit:.4g}"
            remedy = f"Take at most {limit / 2:.3g}. (SGLD is stable up to {plain:.4g}.)"
            said = f"`step_size` = {float(step_size):g} {beyond}: the state would grow until it is NaN. {remedy}"
            require(step_size < limit, said)
        log_gradient = grad_estimator(position, minibatch)
        _check_gradient(log_gradient, position)
        z = ravel(state, theta.dtype)
        # ∇H = (∇U, r); BlackJAX's gradient is that of log π = -U.
        gradient = jnp.concatenate([-ravel(log_gradient, theta.dtype), z[theta.size :]])
        xi = jnp.sqrt(T) * jax.random.normal(rng_key, z.shape, z.dtype)
        like = AugmentedState(position, position) if with_momentum else position
        return _like(scheme(dynamics, z, gradient, xi, eta), like)

    return SamplingAlgorithm(init, step)  # type: ignore[arg-type]  # BlackJAX's types have no mini-batch argument


def _require_function(value, name: str) -> None:
    require(callable(value), f"`{name}` must be a function of (position, minibatch): got {type(value).__name__}.")


def _checked_position(position):
    position = jax.tree.map(lambda x: jnp.asarray(x) if isinstance(x, bool | int | float | np.generic) else x, position)
    unraveler(position, "position")
    return jax.tree.map(jnp.asarray, position)


def _check_gradient(gradient, position) -> None:
    remedy = (
        "`grad_estimator(position, minibatch)` must return the gradient of the log density with respect to the position, as "
        "`blackjax.sgmcmc.gradients.grad_estimator(logprior, loglikelihood, data_size)` does."
    )
    _same_shapes(gradient, position, "The gradient", remedy)
    kinds = {str(jnp.result_type(leaf)) for leaf in jax.tree.leaves(gradient)}
    wrong = [kind for kind in kinds if not jnp.issubdtype(kind, jnp.floating)]
    require(not wrong, f"The gradient has dtype {', '.join(wrong)}, not real floating-point numbers. {remedy}")


def _same_shapes(tree, position, what: str, remedy: str) -> None:
    got, wanted = jax.tree.map(jnp.shape, tree), jax.tree.map(jnp.shape, position)
    require(got == wanted, f"{what} has the shapes {got}, but the position has {wanted}. {remedy}")


def _number(value, name: str, dtype):
    """One positive number. A traced value inside `jax.jit` cannot be checked; NaN there makes the state NaN."""
    require(jnp.shape(value) == (), f"`{name}` must be a single number: got shape {jnp.shape(value)}.")
    if not isinstance(value, Tracer):
        ok = np.isfinite(float(value)) and (value > 0 or (name == "temperature" and value == 0))
        require(ok, f"`{name}` must be positive and finite: got {float(value):g}.")
    return jnp.asarray(value, dtype)


def _like(vector, template):
    """The vector in the template's shapes and precisions."""
    return jax.tree.map(lambda x, t: x.astype(t.dtype), unraveler(template)[0](vector), template)


class EstimatedTarget(SumOverData):
    """A target given by BlackJAX's estimator of the gradient of its log density; made by `target`.

    The estimate from a batch is the mean of ∇log prior + N ∇log likelihood_i over its rows: each ℓ_i contains 1/N of the prior,
    and the prior term of `SumOverData` is zero.
    """

    grad_estimator: Callable
    data: Any
    logdensity_estimator: Callable | None

    @property
    def num_data(self) -> int:
        return jax.tree.leaves(self.data)[0].shape[0]

    def potential(self, params):
        if self.logdensity_estimator is None:
            example = "`blackjax.sgmcmc.gradients.logdensity_estimator(logprior, loglikelihood, data_size)`"
            what = "This target has only a gradient, and U itself is needed here."
            raise InvalidInput(f"{what} Pass `logdensity_estimator`, for example {example}.")
        return -private(self.logdensity_estimator)(params, self.data)

    def gradient(self, params):
        return self._estimate(params, self.data, 1.0)

    def batch_gradient(self, params, index):
        batch = jax.tree.map(lambda x: jnp.asarray(x)[index], self.data)
        return self._estimate(params, batch, index.shape[0] / self.num_data)

    def prior_gradient(self, params):
        return jax.tree.map(jnp.zeros_like, params)

    def _estimate(self, params, minibatch, share):
        log_gradient = private(self.grad_estimator)(params, minibatch)
        _check_gradient(log_gradient, params)
        return jax.tree.map(lambda g: -share * g, log_gradient)


def target(grad_estimator: Callable, data, logdensity_estimator: Callable | None = None) -> EstimatedTarget:
    """A BlackJAX gradient estimator as the target of a `gyromc.Plan`: ∇U = -grad_estimator(θ, data).

    With `gyromc.oracles.Minibatch(b)` each step of each chain calls the estimator on its own b rows; one of BlackJAX's
    `control_variates` works too. The parameters have the structure of the plan's `start`.

    **Arguments:**

    - `grad_estimator`: function of (position, minibatch) that averages over the minibatch's rows, as BlackJAX's do, made with
      `data_size` equal to the number of rows of `data`.
    - `data`: an array or a pytree of arrays; the first axis of each leaf runs over the data.
    - `logdensity_estimator`: the log density, likewise; for `predict`, and a control variate that finds the mode.

    ```python
    import jax.numpy as jnp
    import gyromc as gm
    from blackjax.sgmcmc.gradients import grad_estimator
    from gyromc.interop.blackjax import target
    data = jnp.arange(4.0)
    gradient = grad_estimator(lambda mu: -0.5 * mu**2, lambda mu, x: -0.5 * (x - mu) ** 2, data_size=4)
    plan = gm.Plan(target=target(gradient, data), oracle=gm.oracles.Minibatch(2), dynamics=gm.dynamics.overdamped(1),
                   observables={"mu": lambda mu: mu}, step_size=0.05, num_chains=10, start=jnp.zeros(()))
    print(gm.run(plan).engine)  # scan
    ```
    """
    _require_function(grad_estimator, "grad_estimator")
    if logdensity_estimator is not None:
        _require_function(logdensity_estimator, "logdensity_estimator")
        logdensity_estimator = owned(logdensity_estimator)
    # Runs the same checks of the data.
    rows = FiniteSum(grad_estimator, grad_estimator, data).data
    return EstimatedTarget(owned(grad_estimator), rows, logdensity_estimator)
