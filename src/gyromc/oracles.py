"""Gradient oracles: unbiased estimates ĝ of the gradient, E[ĝ | θ] = ∇U(θ).

The randomness ζ of ĝ(θ, ζ) is drawn separately (`draw`, then `gradient`), anew for every step and chain; an engine generates it.
"""

import abc
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gyromc.checks import EXTREME, explained, flag, leaves, numbers, one_of, require, shown, whole
from gyromc.errors import InvalidInput
from gyromc.operators import Dense, Diagonal, Operator
from gyromc.runtime.evaluation import over_rows
from gyromc.targets import GeneralizedLinear, SumOverData, Target
from gyromc.targets.regressions import KnownLikelihood

__all__ = ["Batch", "ControlVariate", "Exact", "Gaussian", "Minibatch", "Oracle"]

MOST_COMPARED = 256
"""Batches up to this size are made distinct by comparing their rows, larger ones by shuffling all the data."""
MOST_DENSE = 2000
"""Parameters up to which a control variate of order 2 computes K as a matrix."""


class Oracle(eqx.Module):
    """An unbiased gradient of U, and the randomness it uses."""

    def check(self, target: Target) -> None:
        """Raise `InvalidInput` when this oracle cannot be used with the target."""

    def prepared(self, model: Any) -> "Oracle":
        """The oracle with what it precomputes for a `gyromc.Model`."""
        return self

    @abc.abstractmethod
    def draw(self, key, target: Any, num_chains: int, dim: int, dtype) -> Any:
        """ζ for one step of every chain, chains along the first axis."""

    @abc.abstractmethod
    def gradient(self, target: Any, theta, zeta) -> Any:
        """ĝ(θ, ζ) for one chain."""

    @property
    def name(self) -> str:
        """The name in tables and messages."""
        return type(self).__name__

    def evaluations(self, target: Target) -> int:
        """How many data terms one gradient reads (1 for a target that is not a sum)."""
        return target.num_data if isinstance(target, SumOverData) else 1

    def gradients(self, steps: int) -> int:
        """How many gradients so many steps of one chain compute."""
        return steps

    @property
    def moving(self) -> bool:
        """Whether each chain has an anchor of its own, as with `refresh` of `ControlVariate`."""
        return False


class Exact(Oracle):
    """The full gradient ∇U.

    ```python
    import gyromc as gm
    oracle = gm.oracles.Exact()
    ```
    """

    def draw(self, key, target, num_chains, dim, dtype):
        return None

    def gradient(self, target, theta, zeta):
        return target.gradient(theta)


class Gaussian(Oracle):
    """∇U(θ) + τζ, ζ ~ N(0, I).

    **Arguments:**

    - `tau`: τ ≥ 0.

    ```python
    import gyromc as gm
    oracle = gm.oracles.Gaussian(1.0)
    ```
    """

    tau: Float[np.ndarray, ""]

    def __init__(self, tau: float):
        self.tau = numbers(tau, "tau")
        require(self.tau.ndim == 0 and self.tau >= 0, f"`tau` must be a number ≥ 0: got {shown(tau)}.")
        require(self.tau < EXTREME, f"`tau` must be below {EXTREME:g}, so that float64 holds τ²: got {shown(tau)}.")

    def draw(self, key, target, num_chains, dim, dtype):
        return jax.random.normal(key, (num_chains, dim), dtype)

    def gradient(self, target, theta, zeta):
        return target.gradient(theta) + self.tau * zeta


class Batch(Oracle):
    """The base of oracles that read b of N rows: the rows are drawn anew for every step and chain.

    With `replace=False` they are distinct, all sets of b rows equally likely. The noise then has (N-b)/(N-1) times the
    covariance it has with replacement, at every θ.
    """

    size: int = eqx.field(static=True)
    replace: bool = eqx.field(static=True)

    def __init__(self, size: int, replace: bool = True):
        self.size = whole(size, "size", least=1, most=10**9)
        self.replace = flag(replace, "replace")

    name = property(lambda self: f"{type(self).__name__}({self.size}{'' if self.replace else ', replace=False'})")

    def check(self, target):
        name = type(self).__name__
        needed = "a target that is a sum over data (LinearRegression, LogisticRegression, FiniteSum)"
        remedy = "Use `Exact()` or `Gaussian(tau)`, or write the target as a FiniteSum."
        require(isinstance(target, SumOverData), f"`{name}` needs {needed}: got {type(target).__name__}. {remedy}")
        rows = target.num_data  # type: ignore[attr-defined]  # a sum over data: required above
        remedy = f"Pass a `size` of at most {rows}, or `replace=True`."
        many = f"`{name}` draws {self.size} distinct rows, but the data have {rows}. {remedy}"
        require(self.replace or self.size <= rows, many)

    def draw(self, key, target, num_chains, dim, dtype):
        if self.replace:
            return jax.random.randint(key, (num_chains, self.size), 0, target.num_data)
        return distinct_rows(key, num_chains, self.size, target.num_data)

    def terms(self, target: Any, theta, index):
        """The part of the estimate that varies: its sum over the rows in `index`, not scaled by N/b."""
        return target.batch_gradient(theta, index)

    def noise_factor(self, num_data: int) -> float:
        """The ratio of the noise covariance to that with replacement: (N-b)/(N-1) for distinct rows."""
        return 1.0 if self.replace else (num_data - self.size) / max(1, num_data - 1)  # T1


class Minibatch(Batch):
    """(N/b) Σ_{i∈B} ∇ℓ_i(θ) + ∇prior(θ), B drawn uniformly; the prior's gradient is exact.

    **Arguments:**

    - `size`: b, from 1 to 10⁹.
    - `replace`: `True`: a row can be drawn twice, as in the paper; `False`: b distinct rows, which gives less noise.

    ```python
    import gyromc as gm
    oracle = gm.oracles.Minibatch(32, replace=False)
    print(round(oracle.noise_factor(202), 3))  # 0.846
    ```
    """

    def gradient(self, target, theta, zeta):
        return target.weighted_gradient(theta, zeta, target.num_data / self.size)

    def evaluations(self, target):
        return self.size


class ControlVariate(Batch):
    """A mini-batch anchored at a point c: each row's gradient is reduced by its Taylor polynomial around c.

    Order 1: ∇L(c) + (N/b) Σ_{i∈B} [∇ℓ_i(θ) - ∇ℓ_i(c)] + ∇prior(θ), L = Σ_i ℓ_i. The noise vanishes at c, so it is small over
    the posterior when c is the mode.

    Order 2 (T8): ∇L(c) + K(θ-c) + (N/b) Σ_{i∈B} [∇ℓ_i(θ) - ∇ℓ_i(c) - ∇²ℓ_i(c)(θ-c)] + ∇prior(θ), K = ∇²L(c). The noise is
    quadratic in θ-c, about d/N times that of order 1 over the posterior, and none on linear regression.

    Both are unbiased for every c, and the prior's gradient is exact. Far from c order 2 has as much noise as order 1: with small
    batches and large steps, start the chains at c, or they can diverge.

    With `refresh=m`, each chain has its own anchor: at the steps k = 0, m, 2m, … it is set to the chain's state, and the full
    gradient there is computed (SVRG). Far from the mode, or where there are several, the noise stays as small as the distance of
    m steps. An anchor depends on the past only, so that every step is unbiased. On average a step reads 2b + N/m rows.

    **Arguments:**

    - `size`: b, from 1 to 10⁹.
    - `center`: c, shaped like the parameters; default: the mode, found by optimisation.
    - `replace`: as for `Minibatch`.
    - `order`: 1 or 2.
    - `curvature`: for order 2, how K is applied. Left out: as a matrix, for at most 2000 parameters. `"matrix-free"` computes
      K(θ-c) anew in every step, which reads all the data: N rows more a step. `"diagonal"`, for generalized linear models, uses
      only the diagonals of K and of every ∇²ℓ_i(c), which is still unbiased and needs no matrix, with less of the gain.
    - `refresh`: m, the number of steps after which a chain takes its state for its new anchor; left out: the anchor is fixed. For
      order 1 only, and engine `scan` only.

    ```python
    import gyromc as gm
    oracle = gm.oracles.ControlVariate(32, order=2)
    print(oracle.name)  # ControlVariate(32, order=2)
    ```
    """

    order: int = eqx.field(static=True)
    curvature: Literal["diagonal", "matrix-free"] | None = eqx.field(static=True)
    refresh: int | None = eqx.field(static=True)
    center: Any
    anchor: Any
    operator: Operator | None

    def __init__(
        self,
        size: int,
        center=None,
        replace: bool = True,
        *,
        order: int = 1,
        curvature: str | None = None,
        refresh: int | None = None,
    ):
        super().__init__(size, replace)
        for _, leaf in leaves(center, "center"):
            numbers(leaf, "center")
        self.order = whole(order, "order", least=1, most=2)
        used = curvature is None or self.order == 2
        require(used, "`curvature` is used by order 2 only: pass `order=2`, or leave `curvature` out.")
        self.curvature = None if curvature is None else one_of(curvature, ("diagonal", "matrix-free"), "curvature")
        self.refresh = None if refresh is None else whole(refresh, "refresh", least=1, most=2**31 - 1)
        why = "`refresh` works with order 1: at order 2 every new anchor would need a new matrix K for each chain."
        require(refresh is None or self.order == 1, f"{why} Pass `order=1`, or leave `refresh` out.")
        why = "`refresh` takes each chain's own states for its anchors"
        require(refresh is None or center is None, f"{why}: leave `center` out, or `refresh`.")
        self.center, self.anchor, self.operator = center, None, None

    @property
    def name(self) -> str:
        given = {"order": self.order if self.order > 1 else None, "curvature": self.curvature, "refresh": self.refresh}
        more = "".join(f", {key}={value!r}" for key, value in given.items() if value is not None)
        return super().name.replace(")", f"{more})")

    moving = property(lambda self: self.refresh is not None)

    def prepared(self, model):
        if self.moving:
            return self
        target, dim = model.flat_target, model.dim
        parts = [np.ravel(numbers(x, "center")) for _, x in leaves(self.center, "center")]
        center = model.mode if self.center is None else np.concatenate([np.zeros(0), *parts])
        fits = center.shape == (dim,)
        require(fits, f"`center` must hold {dim} finite numbers, like the parameters: got {center.size}.")
        # in NumPy without compiling, and the data stay where they are
        if isinstance(target, KnownLikelihood):
            anchor = target.gradients(center[None])[0] - float(target.prior_precision) * center
        else:
            anchor = over_rows(_data_gradient, center[None], target, chunk=1)[0]
        return self._at(center, anchor, self._operator(target, center) if self.order == 2 else None)

    def _operator(self, target: SumOverData, center: np.ndarray) -> Operator | None:
        """K, or its diagonal; None where it is applied without being formed."""
        d, full = len(center), self.curvature is None
        if self.curvature == "diagonal":
            needed = "A diagonal `curvature` needs a generalized linear model, where a row's diagonal is known"
            remedy = 'Leave `curvature` out, or pass "matrix-free".'
            require(isinstance(target, GeneralizedLinear), f"{needed}: got {type(target).__name__}. {remedy}")
            return Diagonal(over_rows(_diagonal, center[None], target, chunk=1)[0])
        many = f"K has {d:,} × {d:,} entries: at most {MOST_DENSE} parameters are taken."
        remedy = '`curvature="diagonal"` (generalized linear models) or `curvature="matrix-free"`, or use `order=1`'
        require(not full or d <= MOST_DENSE, f"{many} Pass {remedy}.")
        needed = "`ControlVariate` of order 2 needs the derivative of each row's gradient"
        with explained(f"{needed}, and that of {type(target).__name__} cannot be computed", "Use `order=1`."):
            K = target.data_hessian(center) if full else over_rows(_product, np.ones((1, d)), target, center, chunk=1)
        require(np.all(np.isfinite(K)), "The Hessian of the data's terms is not finite at `center`: move it.")
        return Dense((K + K.T) / 2) if full else None

    def anchor_at(self, target, theta):
        """What a chain keeps of an anchor at θ: θ itself and ∇L(θ), which reads all the data."""
        return jnp.concatenate([theta, _data_gradient(target, theta)])

    def anchored(self, kept) -> "ControlVariate":
        """The oracle at an anchor as `anchor_at` returns it."""
        center, anchor = jnp.split(kept, 2)
        return self._at(center, anchor, None)

    def _at(self, center: Any, anchor: Any, operator: Operator | None) -> "ControlVariate":
        fields = lambda o: (o.center, o.anchor, o.operator)
        return eqx.tree_at(fields, self, (center, anchor, operator), is_leaf=lambda x: x is None)

    def terms(self, target, theta, index):
        if self.anchor is None:
            why = "it belongs to a chain; pass a fixed one" if self.moving else "call `prepared(model)` first"
            raise InvalidInput(f"{self.name} has no anchor here: {why}.")
        if self.curvature != "diagonal":
            return target.remainder(theta, self.center, index, self.order)
        along = target.diagonal_product(self.center, theta - self.center, index)
        return target.remainder(theta, self.center, index, 1) - along

    def gradient(self, target, theta, zeta):
        estimate = self.anchor + target.num_data / self.size * self.terms(target, theta, zeta)
        if self.order == 2:
            away = theta - self.center
            product = target.data_product(self.center, away) if self.operator is None else self.operator(away)
            estimate = estimate + product  # T8
        return estimate + target.prior_gradient(theta)

    def evaluations(self, target):
        everything = super(Batch, self).evaluations(target)
        if self.refresh is not None:
            return 2 * self.size + -(-everything // self.refresh)  # on average
        return 2 * self.size + (everything if self.curvature == "matrix-free" else 0)

    def gradients(self, steps):
        return steps + (0 if self.refresh is None else -(-steps // self.refresh))


# for `over_rows`, which compiles each once
_data_gradient = lambda target, center: target.gradient(center) - target.prior_gradient(center)
_diagonal = lambda target, center: target.diagonal_product(center, jnp.ones_like(center), jnp.arange(target.num_data))
_product = lambda target, center, direction: target.data_product(center, direction)


def distinct_rows(key, num_chains: int, size: int, num_data: int):
    """`size` different row numbers for each chain; all sets are equally likely."""
    # Floyd's algorithm: for j = N-b … N-1 draw from 0 … j, and take j itself if that number was taken before.
    if size == num_data:
        return jnp.broadcast_to(jnp.arange(size), (num_chains, size))
    if size > MOST_COMPARED:
        return shuffled(jax.random.split(key, num_chains), size, num_data)
    return settled(jax.random.randint(key, (num_chains, size), 0, bounds(size, num_data)), num_data)


def shuffled(keys, size: int, num_data: int):
    """The first `size` of all row numbers, shuffled with the key of each chain."""
    return jax.vmap(lambda k: jax.random.permutation(k, num_data)[:size])(keys)


def bounds(size: int, num_data: int):
    """For j = N-b … N-1, the number of choices 0 … j."""
    return jnp.arange(num_data - size, num_data) + 1


def settled(drawn, num_data: int):
    """Floyd's algorithm on what was drawn, chains × b: different row numbers for each chain."""
    size = drawn.shape[1]
    last = bounds(size, num_data) - 1

    def settle(j, taken):
        again = jnp.any((taken == drawn[:, j, None]) & (jnp.arange(size) < j), axis=1)
        return taken.at[:, j].set(jnp.where(again, last[j], drawn[:, j]))

    return jax.lax.fori_loop(0, size, settle, drawn)
