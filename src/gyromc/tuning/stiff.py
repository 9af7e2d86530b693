"""The few directions in which a law is much narrower than its diagonal shows, from gradients alone, in O(rd) memory.

Input: exact gradients, points of the law, and a diagonal preconditioner. Output: a `DiagonalLowRank` E, so that EᵀPE
has neither those directions nor the diagonal; None where no direction stands out. Directions are found by subspace iteration with
products of Hessians; then the diagonal of what is left without them is measured anew.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from gyromc.stretches import DiagonalLowRank
from gyromc.tuning.matrix_free import PRODUCT, Diagonals, Gradients, diagonals, shrunk

__all__ = ["stiff_directions", "stretched"]

MOST = 20  # directions looked for
LEAST = 4
MOST_NUMBERS = 2**22  # in all directions together: 16 MB in single precision
ROUNDS = 3  # of the iteration; one more measures
SAME = 1.1  # curvatures this near to the smallest one found do not stand out
PAYS = 1.2  # in √curvature: less is not worth another look
PROBES = 64  # at most, for the diagonal that is left


def stretched(gradients: Gradients, points, used: int, C: np.ndarray, allowed: int, key, groups: tuple[int, ...]):
    """E for the law near the points, and how many gradients that took; (None, cost) where no direction stands out.

    Only the first `used` points are used. `C` is the diagonal preconditioner; `groups` are the sizes of the model's arrays.
    """
    key_directions, key_diagonal = jax.random.split(key)
    count = min(MOST, gradients.dim - 1, MOST_NUMBERS // gradients.dim, allowed * 3 // 4 // (PRODUCT * (ROUNDS + 1)))
    if count < LEAST:
        return None, 0
    values, basis = stiff_directions(
        gradients, points, jnp.asarray(np.sqrt(C), points.dtype), key_directions, count, used
    )
    cost, level = PRODUCT * count * (ROUNDS + 1), SAME * float(values[-1])
    if not np.all(np.isfinite(values)) or level <= 0 or math.sqrt(values[0] / level) < PAYS:
        return None, cost
    values, basis = values[values > level], basis[values > level]
    rows = basis / np.sqrt(C).astype(
        basis.dtype
    )  # in θ: P is about R + Σ (λ_i - level) u_i u_iᵀ, R with no stiff direction
    rows *= np.sqrt(values - level)[:, None].astype(basis.dtype)
    probes = max(LEAST, min(allowed // 4 // PRODUCT, PROBES))
    found = diagonals(gradients, points, key_diagonal, probes, without=jnp.asarray(rows))
    return _root(found, rows, groups), cost + PRODUCT * probes


def _root(found: Diagonals, rows: np.ndarray, groups: tuple[int, ...]) -> DiagonalLowRank:
    """E from the diagonal of R and the stiff part, rowsᵀ·rows: (I + WWᵀ)^{-½} after 1/√diag R."""
    scale = 1 / np.sqrt(shrunk(found, groups))
    basis, sizes, _ = np.linalg.svd((rows * scale.astype(rows.dtype)).T, full_matrices=False)
    return DiagonalLowRank(scale, basis, 1 / np.sqrt(1 + np.asarray(sizes, float) ** 2) - 1)


def stiff_directions(
    gradients: Gradients, points, scale, key, count: int, used: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """The largest curvatures in the coordinates θ/scale, over the first `used` points, and their directions in rows.

    ```python
    import jax, jax.numpy as jnp, numpy as np
    import gyromc as gm
    from gyromc.tuning.matrix_free import Gradients
    from gyromc.tuning.stiff import stiff_directions
    target = gm.targets.Quadratic(np.r_[400.0, 90.0, np.ones(28)])
    gradients = Gradients(target, gm.oracles.Exact(), 30)
    values, directions = stiff_directions(gradients, jnp.zeros((1, 30)), jnp.ones(30), jax.random.key(0), 4)
    assert np.allclose(values[:3], [400, 90, 1], rtol=1e-3) and abs(directions[0, 0]) > 0.999
    ```
    """
    values, rows = _iterated(gradients, points, scale, key, count, jnp.asarray(used))
    return np.asarray(values, float)[::-1], np.asarray(rows)[::-1]


@eqx.filter_jit
def _iterated(gradients: Gradients, points, scale, key, count: int, used):
    """Ritz values and directions, smallest first."""
    key_start, key_batches = jax.random.split(key)
    orthonormal = lambda rows: jnp.linalg.qr(rows.T)[0].T

    def product(rows, k):
        theta = points[k % used]
        zeta = gradients.draw(jax.random.fold_in(key_batches, k), theta.dtype)
        return jax.lax.map(lambda v: scale * gradients.product(theta, zeta, scale * v)[1], rows)

    rows = orthonormal(jax.random.normal(key_start, (count, gradients.dim), points.dtype))
    rows = jax.lax.fori_loop(0, ROUNDS, lambda k, rows: orthonormal(product(rows, k)), rows)
    inside = product(rows, ROUNDS) @ rows.T
    values, turn = jnp.linalg.eigh((inside + inside.T) / 2)
    return values, turn.T @ rows
