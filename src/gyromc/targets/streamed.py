"""Regressions over rows that are not in memory: U(θ) = Σ_i loss(x_iᵀθ, y_i) + |θ|²/(2σ₀²), the rows read from a `RowSource`.

Sums over all rows are in float64 whatever the rows are stored in. A pass at one θ computes U, ∇U and ∇²U, so that a Newton step,
the anchor of a control variate and the curvature there take one pass together.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from gyromc.checks import one_of, positive, require
from gyromc.data import RowSource, over_blocks, random_access
from gyromc.errors import InvalidInput
from gyromc.targets.likelihoods import Canonical
from gyromc.targets.regressions import BY_FAMILY, KnownLikelihood, WithLikelihood, taylor_remainder

KEPT = 4  # points whose sums are kept
AT_ONCE = 2**21  # linear predictors of a block at several points that are held together
Sums = tuple[float, np.ndarray, np.ndarray]  # Σ_i ℓ_i, its gradient and its Hessian at one θ


@dataclasses.dataclass(eq=False)
class _Kept:
    """What passes over the rows have found: sums at the last points, a sample of rows, the copy that reads single rows."""

    points: dict[bytes, Sums] = dataclasses.field(default_factory=dict)
    samples: dict[int, tuple[np.ndarray, np.ndarray]] = dataclasses.field(default_factory=dict)
    by_row: RowSource | None = None


class StreamedRegression(KnownLikelihood):
    """A linear, logistic or Poisson regression over rows that stay where they are; everything else is as in memory.

    The rows are read once when this is made, to check them. The mode is found by Newton's method: from a sample of the rows,
    then with all of them, two to four passes. Mini-batches read the rows that are drawn; where the source cannot read single
    rows, it is first written to a temporary file (`gyromc.data.random_access`).

    **Arguments:**

    - `source`: a value of `gyromc.data`.
    - `family`: `"linear"` (unit noise), `"logistic"` (y is 0 or 1) or `"poisson"` (y is a count).
    - `prior_scale`: σ₀ > 0 of the prior N(0, σ₀² I).

    ```python
    import numpy as np
    import gyromc as gm
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((500, 2)), rng.integers(0, 2, 500)
    streamed = gm.targets.StreamedRegression(gm.data.Batches([(X[:300], y[:300]), (X[300:], y[300:])], 500), "logistic")
    print(np.allclose(gm.Model(streamed).mode, gm.Model(gm.targets.LogisticRegression(X, y)).mode))  # True
    ```
    """

    source: RowSource = eqx.field(static=True)
    family: str = eqx.field(static=True)
    kept: "_Kept" = eqx.field(static=True)
    prior_precision: Float[np.ndarray, ""]

    def __init__(self, source: RowSource, family: str, prior_scale: float = 1.0):
        what = f"such as `gyromc.data.Mapped(X, y)`: got {type(source).__name__}"
        in_memory = "Arrays in memory go to `LogisticRegression` and its like."
        require(isinstance(source, RowSource), f"`source` must be a value of `gyromc.data`, {what}. {in_memory}")
        self.source, self.family = source, one_of(family, BY_FAMILY, "family")
        self.prior_precision = np.asarray(positive(prior_scale, "prior_scale") ** -2)
        self.kept = _Kept()
        _check_rows(source, BY_FAMILY[family])

    def to_archive(self) -> dict[str, Any]:
        return {"source": self.source, "family": self.family, "prior_precision": self.prior_precision}

    @classmethod
    def from_archive(cls, source: RowSource, family: str, prior_precision: np.ndarray) -> "StreamedRegression":
        """The target of a stored plan, without a pass: its rows were checked when it was first made."""
        made = object.__new__(cls)
        fields = {"source": source, "family": family, "prior_precision": prior_precision, "kept": _Kept()}
        for name, value in fields.items():
            object.__setattr__(made, name, value)
        return made

    def known_sums(self) -> tuple[float, np.ndarray, np.ndarray] | None:
        """Of a linear regression, whose posterior they give: the sums at zero, if they were computed."""
        return self.kept.points.get(np.zeros(self.dim).tobytes()) if self.family == "linear" else None

    def remember_sums(self, loss: float, gradient: np.ndarray, hessian: np.ndarray) -> None:
        self.kept.points[np.zeros(self.dim).tobytes()] = loss, gradient, hessian

    @property
    def likelihood(self) -> Canonical:
        return BY_FAMILY[self.family].likelihood

    @property
    def dim(self) -> int:
        return self.source.num_columns

    @property
    def num_data(self) -> int:
        return self.source.num_rows

    def gaussian(self):
        if self.family != "linear":
            return None
        _, gradient, hessian = self.all_sums(np.zeros(self.dim))
        K = hessian + float(self.prior_precision) * np.eye(self.dim)
        return K, np.linalg.solve(K, -gradient)

    def sampled(self, count):
        count, N = min(count, self.num_data), self.num_data
        X, y = self._sampled_rows(count)
        return BY_FAMILY[self.family](X, y, float(self.prior_precision * count / N) ** -0.5)

    def start_point(self):
        return np.zeros(self.dim)

    def over_data(self, function, points):
        rows = max(256, min(AT_ONCE // self.dim // 2, AT_ONCE // points))
        exact = lambda X, y: function(np.asarray(X, float), np.asarray(y, float))
        return sum(over_blocks(self.source, exact, rows))

    def all_sums(self, theta: np.ndarray) -> Sums:
        """Loss, gradient and Hessian at one θ, from one pass; kept for the last few points."""
        points, model, d = self.kept.points, self.likelihood, self.dim
        if theta.tobytes() in points:
            return points[theta.tobytes()]

        def block(X: np.ndarray, y: np.ndarray) -> Sums:
            X, y = np.asarray(X, float), np.asarray(y, float)
            t = X @ theta
            return float(model.loss(t, y).sum()), model.slope(t, y) @ X, self.curved(X, model.curvature(t))

        loss, gradient, hessian = 0.0, np.zeros(d), np.zeros((d, d))
        for more, along, curved in over_blocks(self.source, block):
            loss += more
            gradient += along
            hessian += curved
        while len(points) >= KEPT:
            del points[next(iter(points))]
        points[theta.tobytes()] = loss, gradient, hessian
        return loss, gradient, hessian

    def loss_sums(self, points):
        return np.array([self.all_sums(points[0])[0]]) if len(points) == 1 else super().loss_sums(points)

    def slope_sums(self, points):
        return self.all_sums(points[0])[1][None] if len(points) == 1 else super().slope_sums(points)

    def mean_data_hessian(self, points):
        return self.all_sums(points[0])[2].copy() if len(points) == 1 else super().mean_data_hessian(points)

    def potential(self, params):
        return _at_rows(self.loss_sums, (), params) + 0.5 * self.prior_precision * jnp.vdot(params, params)

    def gradient(self, params):
        return _at_rows(self.slope_sums, params.shape, params) + self.prior_gradient(params)

    def data_product(self, theta, direction):
        product = lambda point, v: v @ self.all_sums(point)[2]
        return _at_rows(lambda *rows: np.stack(list(map(product, *rows))), theta.shape, theta, direction)

    @property
    def by_row(self) -> RowSource:
        """The source, or its copy on disk where it reads no single rows."""
        if self.kept.by_row is None:
            self.kept.by_row = self.source if self.source.reads_rows else random_access(self.source)
        return self.kept.by_row

    def _sampled_rows(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Random rows, without replacement, in memory; all rows in their order where `count` is N."""
        samples, N = self.kept.samples, self.num_data
        if count not in samples:
            index = np.arange(N) if count == N else np.sort(np.random.default_rng(0).choice(N, count, replace=False))
            by_row = self.kept.by_row or (self.source if self.source.reads_rows else None)
            if by_row is None or count == N:
                # In one pass: the source reads no single rows, or all are wanted.
                first, parts = 0, []
                for X, y in self.source.blocks(2**16):
                    own = index[np.searchsorted(index, first) : np.searchsorted(index, first + len(X))] - first
                    parts.append((X[own], y[own]))
                    first += len(X)
                X, y = (np.concatenate(column) for column in zip(*parts, strict=True))
            else:
                X, y = by_row.read(index)
            samples.clear()
            samples[count] = np.asarray(X, float), np.asarray(y, float)
        return samples[count]

    def rows(self, index, dtype) -> tuple[Any, Any]:
        """The rows with these numbers, read when a compiled function runs: b × d and b; rows that were read before stay."""
        if isinstance(index, tuple):
            return index
        source, d = self.by_row, self.dim

        def read(numbers):
            X, y = source.read(numbers)
            return np.concatenate([np.asarray(X, dtype), np.asarray(y, dtype)[..., None]], axis=-1)

        found = _on_host(read, (*index.shape, d + 1), dtype, index.astype(jnp.uint32))
        return found[..., :d], found[..., d]

    def batch_gradient(self, params, index):
        X, y = self.rows(index, params.dtype)
        return self.likelihood.slope(X @ params, y) @ X

    def remainder(self, theta, center, index, order):
        return taylor_remainder(self.likelihood.slope, *self.rows(index, theta.dtype), theta, center, order)


def _check_rows(source: RowSource, family: Callable[..., WithLikelihood]) -> None:
    """One pass: every number finite, every response one that the family has."""

    def check(X: np.ndarray, y: np.ndarray) -> tuple[int, str]:
        with np.errstate(over="ignore"):
            odd = ~np.isfinite(np.asarray(X, float).sum(axis=1)) | ~np.isfinite(np.asarray(y, float))
        if odd.any():
            return int(np.argmax(odd)), "has a value that is missing or infinite. Drop or fill such rows."
        try:
            family(np.zeros((len(y), 1)), y)
        except InvalidInput as error:
            return 0, f"begins a block that was refused: {error}"
        return -1, ""

    first = 0
    for (at, why), size in over_blocks(source, lambda X, y: (check(X, y), len(y))):
        require(at < 0, f"Row {first + at} of {source.name} {why}")
        first += size
    require(first == source.num_rows, f"{source.name} has {first:,} rows, and {source.num_rows:,} were declared.")


def _at_rows(function, shape, *arrays):
    """A function of rows of θ (and of directions), evaluated by NumPy when a compiled function runs."""

    def evaluated(*given):
        rows = [np.asarray(a, float).reshape(-1, a.shape[-1]) for a in given]
        return np.asarray(function(*rows)).reshape(*given[0].shape[:-1], *shape)

    return _on_host(evaluated, shape, jnp.result_type(*arrays), *arrays)


def _on_host(function, shape, dtype, *arrays):
    """`function(*arrays)`, called by a compiled function with NumPy arrays; leading axes may be added to all of them."""
    # Numbers of 64 bits go there and back as pairs of 32: a callback runs in a thread of its own, where JAX may be set to single
    # precision and would round them.
    dtype = np.dtype(dtype)
    wide = [x.dtype == np.float64 for x in arrays]
    words = [jax.lax.bitcast_convert_type(x, jnp.uint32) if w else x for x, w in zip(arrays, wide, strict=True)]
    double = dtype == np.float64
    out = jax.ShapeDtypeStruct((*shape, 2) if double else shape, jnp.uint32 if double else dtype)

    def called(*given):
        given = [np.ascontiguousarray(np.asarray(x)) for x in given]
        given = [x.view(np.float64)[..., 0] if w else x for x, w in zip(given, wide, strict=True)]
        found = np.ascontiguousarray(np.asarray(function(*given), dtype))
        return found[..., None].view(np.uint32) if double else found

    found = jax.pure_callback(called, out, *words, vmap_method="broadcast_all")
    return jax.lax.bitcast_convert_type(found, jnp.float64) if double else found
