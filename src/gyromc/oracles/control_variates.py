"""Control variates: mini-batches whose rows' gradients are reduced by their Taylor polynomials around an anchor c.

Input: b, an anchor, the order of the polynomial and, for order 2, how K = Σ_i ∇²ℓ_i(c) is applied. Output: an oracle.
What the polynomials of all rows sum to is computed once, when the oracle is prepared for a model, so the estimate is unbiased
wherever the anchor is; only the size of its noise depends on it.
"""

import enum
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.checks import cause, leaves, numbers, one_of, require, whole
from gyromc.errors import InvalidInput
from gyromc.evaluation import doubled, over_rows
from gyromc.operators import Dense, Diagonal, Operator
from gyromc.oracles.base import Batch
from gyromc.targets import GeneralizedLinear, SumOverData
from gyromc.targets.regressions import KnownLikelihood

MOST_DENSE = 2000  # parameters up to which K is computed as a matrix

# For `over_rows`, which compiles each once.
_data_gradient = lambda target, center: target.gradient(center) - target.prior_gradient(center)
_data_product = lambda target, center, direction: target.data_product(center, direction)


class Curvature(enum.StrEnum):
    """What is subtracted from a row's gradient at second order, and how its sum over all rows is applied."""

    FULL = "full"
    DIAGONAL = "diagonal"
    MATRIX_FREE = "matrix-free"


class ControlVariate(Batch):
    """A mini-batch anchored at a point c: each row's gradient is reduced by its Taylor polynomial around c.

    Order 1: ∇L(c) + (N/b) Σ_{i∈B} [∇ℓ_i(θ) - ∇ℓ_i(c)] + ∇prior(θ), L = Σ_i ℓ_i. The noise vanishes at c, so it is small over
    the posterior when c is the mode.

    Order 2 (T8): ∇L(c) + K(θ-c) + (N/b) Σ_{i∈B} [∇ℓ_i(θ) - ∇ℓ_i(c) - ∇²ℓ_i(c)(θ-c)] + ∇prior(θ), K = ∇²L(c). The noise is
    quadratic in θ-c; for a generalized linear model its covariance is smaller than that of order 1 by about |x_iᵀ(θ-c)|², which
    is about d/N over the posterior. On linear regression there is no noise.

    Both are unbiased for every c. The prior's gradient is exact. Far from c, where |x_iᵀ(θ-c)| is 1 or more, order 2 has as much
    noise as order 1: with small batches and large steps, start the chains at c, or they can diverge.

    With `refresh=m`, each chain has its own anchor: at the steps k = 0, m, 2m, … it is set to the chain's state, and the full
    gradient there is computed (SVRG). Far from the mode, or where there are several, the noise stays as small as the distance of
    m steps. An anchor depends on the past only, so that every step is unbiased. On average a step reads 2b + N/m rows.

    **Arguments:**

    - `size`: b, from 1 to 10⁹.
    - `center`: c, shaped like the parameters; default: the mode, found by optimisation.
    - `replace`: as for `Minibatch`.
    - `order`: 1 or 2.
    - `curvature`: for order 2, how K is applied. Left out: computed as a matrix, for at most 2000 parameters. `"matrix-free"`
      computes K(θ-c) anew in every step, which reads all the data: N rows more a step. `"diagonal"`, for generalized linear
      models, uses only the diagonals of K and of every ∇²ℓ_i(c), which is still unbiased and needs no matrix, with less of the
      gain.
    - `refresh`: m, the number of steps after which a chain takes its state for its new anchor; left out: the anchor is fixed. For
      order 1 only, and engine `scan` only.

    ```python
    import numpy as np
    import gyromc as gm
    from gyromc.schemes.moments import oracle_covariances
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2000, 3))
    target = gm.targets.LogisticRegression(X, rng.random(2000) < 0.5)
    model, near = gm.Model(target), gm.Model(target).mode + 0.02
    noise = lambda oracle: np.trace(oracle_covariances(target, oracle.prepared(model), near[None])[0])
    first, second = gm.oracles.ControlVariate(32), gm.oracles.ControlVariate(32, order=2)
    assert second.name == "ControlVariate(32, order=2)" and noise(second) < 1e-3 * noise(first)
    ```
    """

    order: int = eqx.field(static=True)
    curvature: Curvature = eqx.field(static=True)
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
        require(
            curvature is None or self.order == 2,
            "`curvature` is used by order 2 only: pass `order=2`, or leave `curvature` out.",
        )
        kinds = [Curvature.DIAGONAL.value, Curvature.MATRIX_FREE.value]
        self.curvature = Curvature.FULL if curvature is None else Curvature(one_of(curvature, kinds, "curvature"))
        self.refresh = None if refresh is None else whole(refresh, "refresh", least=1, most=2**31 - 1)
        require(
            refresh is None or self.order == 1,
            "`refresh` works with order 1: at order 2 every new anchor would need a new matrix K for each chain. Pass `order=1`, "
            "or leave `refresh` out.",
        )
        require(
            refresh is None or center is None,
            "`refresh` takes each chain's own states for its anchors: leave `center` out, or `refresh`.",
        )
        self.center = center
        self.anchor = self.operator = None

    @property
    def name(self) -> str:
        more = ", order=2" if self.order == 2 else ""
        if self.curvature is not Curvature.FULL:
            more += f", curvature={self.curvature.value!r}"
        if self.refresh is not None:
            more += f", refresh={self.refresh}"
        return super().name.replace(")", f"{more})")

    @property
    def complete(self) -> bool:
        """Whether a row's whole Taylor polynomial of this order is subtracted, not only the diagonal of its second term."""
        return self.curvature is not Curvature.DIAGONAL

    def prepared(self, model):
        if self.refresh is not None:
            return self
        target, dim = model.flat_target, model.dim
        if self.center is None:
            center = model.mode
        else:
            parts = [np.ravel(numbers(x, "center")) for _, x in leaves(self.center, "center")]
            center = np.concatenate(parts) if parts else np.zeros(0)
        require(
            center.shape == (dim,),
            f"`center` must hold {dim} finite numbers, like the parameters: got {center.size}.",
        )
        # in NumPy without compiling, and the data stay where they are
        if isinstance(target, KnownLikelihood):
            anchor = target.gradients(center[None])[0] - float(target.prior_precision) * center
        else:
            anchor = over_rows(_data_gradient, center[None], target, chunk=1)[0]
        operator = self._operator(target, center) if self.order == 2 else None
        fields = lambda o: (o.center, o.anchor, o.operator)
        return eqx.tree_at(fields, self, (center, anchor, operator), is_leaf=lambda x: x is None)

    def _operator(self, target: SumOverData, center: np.ndarray) -> Operator | None:
        """K, or its diagonal; None where it is applied without being formed."""
        if self.curvature is Curvature.DIAGONAL:
            if not isinstance(target, GeneralizedLinear):
                raise InvalidInput(
                    "A diagonal `curvature` needs a generalized linear model, where a row's diagonal is known: got "
                    f'{type(target).__name__}. Leave `curvature` out, or pass "matrix-free".'
                )
            X, y = target.design
            with jax.enable_x64(True):
                wide = doubled(target)
                w = np.asarray(wide.curvatures(jnp.asarray(center), jnp.asarray(X, float), jnp.asarray(y, float)))
            return Diagonal(np.einsum("i,ij,ij->j", w, X, X))
        full = self.curvature is Curvature.FULL
        require(
            not full or len(center) <= MOST_DENSE,
            f"K has {len(center):,} × {len(center):,} entries: at most {MOST_DENSE} parameters are taken. Pass "
            '`curvature="diagonal"` (generalized linear models) or `curvature="matrix-free"`, or use `order=1`.',
        )
        try:
            tried = np.ones((1, len(center)))
            K = target.data_hessian(center) if full else over_rows(_data_product, tried, target, center, chunk=1)
        except Exception as error:  # of a user's function
            raise InvalidInput(
                f"`ControlVariate` of order 2 needs the derivative of each row's gradient, and that of {type(target).__name__} "
                f"cannot be computed: {cause(error)}. Use `order=1`."
            ) from error
        require(np.all(np.isfinite(K)), "The Hessian of the data's terms is not finite at `center`: move it.")
        return Dense((K + K.T) / 2) if full else None

    def memory(self, dim):
        return 0 if self.refresh is None else 2 * dim

    def anchor_at(self, target, theta):
        """What a chain keeps of an anchor at θ: θ itself and ∇L(θ), which reads all the data."""
        return jnp.concatenate([theta, target.gradient(theta) - target.prior_gradient(theta)])

    def anchored(self, kept) -> "ControlVariate":
        """The oracle at an anchor as `anchor_at` returns it."""
        d = kept.shape[0] // 2
        return eqx.tree_at(lambda o: (o.center, o.anchor), self, (kept[:d], kept[d:]), is_leaf=lambda x: x is None)

    def terms(self, target, theta, index):
        center = self.center
        if center is None or self.anchor is None:
            why = "it belongs to a chain" if self.refresh else "call `prepared(model)` first"
            raise InvalidInput(
                f"{self.name} has no anchor here: {why}. What needs one before any chain runs takes `ControlVariate` without "
                "`refresh`."
            )
        if self.curvature is Curvature.DIAGONAL and hasattr(target, "diagonal_product"):
            first = target.remainder(theta, center, index, 1)
            return first - target.diagonal_product(center, theta - center, index)
        return target.remainder(theta, center, index, self.order)

    def gradient(self, target, theta, zeta):
        terms = self.terms(target, theta, zeta)
        estimate = self.anchor + target.num_data / self.size * terms
        if self.order == 2:
            away = theta - self.center
            product = self.operator(away) if self.operator is not None else target.data_product(self.center, away)
            estimate = estimate + product  # T8
        return estimate + target.prior_gradient(theta)

    def evaluations(self, target):
        everything = super(Batch, self).evaluations(target)
        if self.refresh is not None:
            return 2 * self.size + -(-everything // self.refresh)  # on average
        return 2 * self.size + (everything if self.curvature is Curvature.MATRIX_FREE else 0)

    def gradients(self, steps):
        return steps + (0 if self.refresh is None else -(-steps // self.refresh))
