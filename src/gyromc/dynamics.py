"""The dynamics (E1) dz = -(D+Q) ∇H(z) dt + √(2D) dB, as values (D, Q).

Every engine and every formula uses a `Dynamics`. A new sampler is one function in this module that returns `Dynamics(D, Q)`.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np

from gyromc import rotations as best
from gyromc.checks import leaves, numbers, positive, require, shown, whole
from gyromc.errors import InvalidInput
from gyromc.operators import Blocks, Dense, Diagonal, LowRank, Operator, Rotations, Scaled, as_operator, symmetrised
from gyromc.runtime.machine import require_memory

__all__ = ["Dynamics", "gaul", "general", "hfhr", "nonreversible", "overdamped", "rotations"]
# Rotations that are best in a stated sense.
__all__ += ["equal_bias", "fastest", "least_variance", "pairing"]


class Dynamics(eqx.Module):
    """A constant pair (D, Q): D symmetric positive definite, Q skew-symmetric, both on the state space Rⁿ.

    `augmented`: whether the state is (θ, r) rather than θ; `None`: the plan decides by the target's dimension.
    """

    diffusion: Operator
    rotation: Operator
    root: Operator
    name: str = eqx.field(static=True)
    augmented: bool | None = eqx.field(static=True)

    def __init__(self, diffusion: Operator, rotation: Operator, name: str = "general", augmented: bool | None = None):
        for letter, value in (("diffusion", diffusion), ("rotation", rotation)):
            if not isinstance(value, Operator):  # `require` would have an operator's text written every time
                wanted = f"`{letter}` must be a map of `gyromc.operators`: got {shown(value)}."
                raise InvalidInput(f"{wanted} `general(D, Q)` takes matrices.")
        self.diffusion, self.rotation = symmetrised(diffusion, +1, "D"), symmetrised(rotation, -1, "Q")
        n, m = diffusion.size, rotation.size
        require(n == m, f"`D` and `Q` must act on the same space: D is {n} × {n}, Q is {m} × {m}.")
        try:
            self.root = self.diffusion.cholesky()
        except InvalidInput as error:
            remedy = "Add a multiple of the identity to it."
            raise InvalidInput(f"`D` must be positive definite. {error} {remedy}") from None
        self.name, self.augmented = name, augmented

    @property
    def size(self) -> int:
        """The dimension n of the state z."""
        return self.diffusion.size

    @property
    def D(self) -> np.ndarray:
        """D as an n × n matrix."""
        return self.diffusion.dense()

    @property
    def Q(self) -> np.ndarray:
        """Q as an n × n matrix."""
        return self.rotation.dense()

    @property
    def is_reversible(self) -> bool:
        """Whether Q = 0."""
        return self.rotation.is_zero()

    def has_momentum(self, dim: int, owner: str) -> bool:
        """Whether the state is (θ, r) rather than θ; raises unless it fits the `dim` parameters of `owner`."""
        n = self.size
        if self.augmented is None:
            spaces = f"θ ({dim} × {dim}) or on (θ, r) ({2 * dim} × {2 * dim}), {owner} having {dim} parameters"
            require(n in (dim, 2 * dim), f"`dynamics` must act on {spaces}: got {n} × {n}.")
            return n == 2 * dim
        made_for = n // 2 if self.augmented else n
        other = f"`dynamics` ({self.name}) is made for {made_for} parameters, but {owner} has {dim}. Build it for {dim}"
        count = "`overdamped`, `hfhr` and `rotations` take the parameters themselves and count"
        require(made_for == dim, f"{other}; {count}.")
        return self.augmented

    def reversible(self) -> "Dynamics":
        """The reversible baseline: the same D, and Q = 0.

        ```python
        import gyromc as gm
        print(gm.dynamics.hfhr(3, alpha=1.0, gamma=2.0).reversible().Q.any())  # False
        ```
        """
        if self.is_reversible:
            return self
        return Dynamics(self.diffusion, Scaled(0.0, self.size), f"{self.name}, reversible", self.augmented)  # E5

    def drift(self, gradient):
        """(D+Q) applied to the gradient of H."""
        return self.diffusion(gradient) + self.rotation(gradient)  # E1

    def noise(self, xi):
        """√D ξ: with ξ standard normal, its covariance is D exactly."""
        return self.root(xi)


def overdamped(dim) -> Dynamics:
    """Overdamped Langevin dynamics, SGLD: D = I, Q = 0.

    **Arguments:**

    - `dim`: the number of parameters, or the parameters themselves (any pytree), whose sizes are counted.

    ```python
    import gyromc as gm
    print(gm.dynamics.overdamped(3).D.shape)  # (3, 3)
    ```
    """
    d = _dimension(dim)
    return Dynamics(Scaled(1.0, d), Scaled(0.0, d), "SGLD", augmented=False)


def nonreversible(J) -> Dynamics:
    """Non-reversible Langevin dynamics, SGNLMC: D = I, Q = J.

    **Arguments:**

    - `J`: a skew-symmetric matrix, `rotations(dim, rate)` for 2 × 2 blocks applied without a matrix, or a `Dynamics` for its Q.

    ```python
    import gyromc as gm
    dyn = gm.dynamics.nonreversible([[0.0, -1.0], [1.0, 0.0]])
    print(dyn.reversible().name)  # SGNLMC, reversible
    ```
    """
    rotation = J.rotation if isinstance(J, Dynamics) else symmetrised(as_operator(J, "J"), -1, "J")
    return Dynamics(Scaled(1.0, rotation.size), rotation, "SGNLMC", augmented=False)


def hfhr(dim, alpha: float, gamma: float, preconditioner=None) -> Dynamics:
    """Hessian-free high-resolution dynamics, SGHFHRMC, on (θ, r): D = diag(αI, γI), Q = [[0, -I], [I, 0]].

    With a preconditioner C = EEᵀ it is the same dynamics in the coordinates E⁻¹θ: D = diag(αC, γI), Q = [[0, -E], [Eᵀ, 0]].

    **Arguments:**

    - `dim`: the number of parameters, or the parameters themselves (any pytree), whose sizes are counted.
    - `alpha`, `gamma`: both positive.
    - `preconditioner`: C, symmetric positive definite, an approximation of the posterior's covariance; a vector is a diagonal,
      applied without a matrix. Left out: the identity.

    ```python
    import gyromc as gm
    print(gm.dynamics.hfhr(2, alpha=1.0, gamma=2.0, preconditioner=[4.0, 1.0]).Q[2, 0])  # 2.0
    ```
    """
    d = _dimension(dim)
    alpha, gamma = positive(alpha, "alpha"), positive(gamma, "gamma")
    name = "SGHFHRMC" if preconditioner is None else "SGHFHRMC, preconditioned"
    C = as_operator(1.0 if preconditioner is None else preconditioner, "preconditioner", size=d)
    require(C.size == d, f"`preconditioner` acts on {C.size} numbers: pass one for the {d} parameters.")
    C = symmetrised(C, +1, "preconditioner")
    try:
        E = C.cholesky()
    except InvalidInput as error:
        raise InvalidInput(f"`preconditioner` must be positive definite. {error}") from None
    zero = Scaled(0.0, d)
    D, Q = Blocks(C.times(alpha), zero, zero, Scaled(gamma, d)), Blocks(zero, E.times(-1.0), E.transposed(), zero)
    return Dynamics(D, Q, name, augmented=True)


def gaul(C, a: float, gamma: float) -> Dynamics:
    """Gradient-adjusted underdamped Langevin dynamics, SGGAULMC, on (θ, r).

    D = [[aC, (I-C)/2], [(I-C)/2, γI]], Q = [[0, -(I+C)/2], [(I+C)/2, 0]]. D is positive definite exactly when
    S = aC - (I-C)²/(4γ) is; its noise is correlated between θ and r.

    **Arguments:**

    - `C`: symmetric positive definite matrix; a vector is a diagonal, applied without a matrix.
    - `a`, `gamma`: both positive.

    ```python
    import gyromc as gm
    print(gm.dynamics.gaul([0.5, 1.5, 2.0], a=1.0, gamma=2.0).size)  # 6
    ```
    """
    matrix = symmetrised(as_operator(C, "C"), +1, "C")
    a, gamma = positive(a, "a"), positive(gamma, "gamma")
    d, c = matrix.size, matrix.entries()
    if c is None:
        full = matrix.dense()
        c, affine = np.linalg.eigvalsh(full), lambda x, y: Dense(x * full + y * np.eye(d))
    else:
        affine = lambda x, y: Diagonal(x * c + y)
    smallest = f"its smallest eigenvalue is {c.min():.6g}"
    require(c.min() > 0, f"`C` must be positive definite: {smallest}. Add a multiple of the identity.")
    least = np.max((1 - c) ** 2 / (4 * c))
    S = a * c - (1 - c) ** 2 / (4 * gamma)
    remedy = f"Take a > {least / gamma:.6g} or gamma > {least / a:.6g}, or C closer to the identity."
    why = "GAUL needs S = aC - (I-C)²/(4γ) positive definite, so that D is"
    require(S.min() > 0, f"{why}: its smallest eigenvalue is {S.min():.6g} (a = {a:g}, gamma = {gamma:g}). {remedy}")
    D = Blocks(affine(a, 0), affine(-0.5, 0.5), affine(-0.5, 0.5), Scaled(gamma, d))
    Q = Blocks(Scaled(0.0, d), affine(-0.5, -0.5), affine(0.5, 0.5), Scaled(0.0, d))
    return Dynamics(D, Q, "SGGAULMC", augmented=True)


def general(D, Q) -> Dynamics:
    """Any constant (D, Q): on θ when D is d × d, on (θ, r) when it is 2d × 2d, d being the target's dimension.

    **Arguments:**

    - `D`: symmetric positive definite matrix; a vector is a diagonal.
    - `Q`: skew-symmetric matrix, `rotations(…)`, or 0.

    ```python
    import gyromc as gm
    print(gm.dynamics.general([1.0, 2.0], [[0.0, -3.0], [3.0, 0.0]]).size)  # 2
    ```
    """
    diffusion = as_operator(D, "D")
    return Dynamics(diffusion, as_operator(Q, "Q", size=diffusion.size), "general")


def pairing(K, D=None, dim: int | None = None, count: int = 20) -> Dynamics:
    """Rotate pairs of neighbouring eigenvectors of K by a closed form, near `equal_bias` where neighbours are alike.

    A pair with the eigenvalues λ_a, λ_b turns with the rate ω, ω² = max(0, λ_max/mean(λ_a, λ_b) - 1); with an odd number the
    largest eigenvalue is left alone. Posterior means in slow directions gain up to λ_max/λ over D = I without a rotation.
    At its bias `equal_bias` has a smaller V of means, far smaller where neighbours differ by large factors.

    **Arguments:**

    - `K`: the target's precision, or ∇²U at its mode: a matrix, a vector for a diagonal, or a function x ↦ Kx with `dim`.
    - `D`: the diffusion that the rotation is for: a vector, a matrix, or a `Dynamics` such as `hfhr(…)`, whose D is kept. Left
      out: the identity. Where K is a function, D is a vector.
    - `dim`, `count`: where K is a function, the number of parameters, and how many of the smallest eigenvalues are paired.

    ```python
    import gyromc as gm
    dyn = gm.dynamics.pairing([1.0, 1.0, 4.0])
    print(abs(dyn.Q[0, 1]).round(3), dyn.Q[2, 2])  # 1.732 0.0
    ```
    """
    return _rotated(_hessian(K, dim), D, "pairing", lambda P, _: best.pairing(P, count))


def fastest(K, D=None) -> Dynamics:
    """The rotation with the fastest decay: every eigenvalue of (D+Q)K has the real part tr(DK)/n, the most that any Q reaches.

    After Lelièvre, Nier and Pavliotis (2013). It usually makes the step-size bias larger: see `equal_bias`.

    **Arguments:** `K` and `D` as in `pairing`, but K no function: all eigenvalues move, so that Q is a full matrix.

    ```python
    import gyromc as gm, numpy as np
    rates = np.linalg.eigvals((np.eye(2) + gm.dynamics.fastest([1.0, 9.0]).Q) @ np.diag([1.0, 9.0])).real
    print(rates.round(6).tolist())  # [5.0, 5.0]
    ```
    """
    why = "it moves all eigenvalues of K, so that its Q is a full matrix, which products K·x do not give"
    others = "`pairing`, `equal_bias` and `least_variance` take them."
    require(not _is_function(K), f"`fastest` needs `K` as a matrix: {why}. {others}")
    return _rotated(_hessian(K), D, "fastest decay", lambda P, _: Dense(best.fastest(P)))


def least_variance(K, directions, rate: float = 1.0, D=None, dim: int | None = None) -> Dynamics:
    """The rotation with the least V of given linear observables, among those with ‖D^{-1/2}QD^{-1/2}‖ = `rate`.

    V falls by 1 + rate², and no Q of that size does better.

    **Arguments:** `K`, `D` and `dim` as in `pairing`; `directions`: a vector u of the observable uᵀθ, or rows of them; `rate`:
    positive. Where K is a function, K⁻¹u is found by conjugate gradients.

    ```python
    import gyromc as gm
    print(abs(gm.dynamics.least_variance([1.0, 4.0, 9.0], [1.0, 0.0, 0.0], rate=2.0).Q).max())  # 2.0
    ```
    """
    rate, rows = positive(rate, "rate"), np.atleast_2d(numbers(directions, "directions"))

    def turned(P: Any, root: np.ndarray) -> Operator:
        fit = rows.ndim == 2 and rows.shape[1] == len(root) and np.all(np.any(rows != 0, axis=1))
        wanted = f"rows of {len(root)} numbers, like θ, none of them 0"
        require(fit, f"`directions` must hold {wanted}: got shape {rows.shape}.")
        across = rows * root if root.ndim == 1 else rows @ root
        return best.least_variance(best.solved(P, across.T), rate)

    return _rotated(_hessian(K, dim), D, "least variance", turned)


def equal_bias(K, D=None, bias: float = 1.0, dim: int | None = None, count: int = 20) -> Dynamics:
    """The rotation with the least V of linear observables at equal step-size bias, among those that turn pairs of eigenvectors.

    Every pair turns as fast as the bias allows, so all posterior means gain at once. It is not the best for squares: other
    rotations have a fraction of its V at the same bias. With the D of `hfhr`, and of `gaul` where C and K have common
    eigenvectors, each eigenvector turns with its own momentum, and only the bias of θ counts.

    **Arguments:** `K`, `D`, `dim` and `count` as in `pairing`, and where K is a function D may also be `hfhr(dim, …)`, or `gaul`
    with C a multiple of the identity; `bias`: the first-order error of Euler's covariance in its worst direction, in multiples of
    what it is without a rotation; at least 1.

    ```python
    import gyromc as gm
    dyn = gm.dynamics.equal_bias([1.0, 1.0, 16.0])  # the same step size and bias as without, posterior means 16 times as fast
    print(abs(dyn.Q[0, 1]).round(3))  # 3.873
    ```
    """
    bias = positive(bias, "bias")
    require(bias >= 1, f"`bias` must be at least 1, the reversible dynamics' own: got {bias:g}.")
    hessian = _hessian(K, dim)
    if isinstance(D, Dynamics) and D.augmented:
        Q = _coupled(hessian, D, count, bias)
        if Q is not None:
            return Dynamics(D.diffusion, Q, f"{D.name}, equal bias", augmented=True)
    return _rotated(hessian, D, "equal bias", lambda P, _: best.equal_bias(P, bias, count))


def _is_function(K) -> bool:
    return callable(K) and not isinstance(K, Operator)


def _hessian(K, dim: int | None = None) -> Any:
    """The Hessian over θ: a matrix, or products with it where K is a function."""
    if _is_function(K):
        require(dim is not None, "`K` is a function, so its dimension is unknown: pass `dim`.")
        return best.products(K, whole(dim, "dim", least=4, most=10**8))
    hessian = symmetrised(as_operator(K, "K"), +1, "K").dense()
    smallest = float(np.linalg.eigvalsh(hessian)[0])
    found = f"its smallest eigenvalue is {smallest:.6g}"
    require(smallest > 0, f"`K` must be positive definite: {found}. Take it at a mode of the target.")
    return hessian


def _rotated(hessian: Any, D, name: str, turned: Callable[[Any, np.ndarray], Operator]) -> Dynamics:
    """D = RRᵀ, Q = RJRᵀ; `turned` finds J from RᵀPR, P the Hessian over the state, and R's rows, or entries, for θ."""
    d = hessian.shape[0]
    kept = D if isinstance(D, Dynamics) else general(np.ones(d) if D is None else D, 0)
    name = name if D is None else f"{kept.name}, {name}"
    if isinstance(hessian, np.ndarray):
        augmented, R = kept.has_momentum(d, "`K`"), kept.root.dense()
        Q = R @ turned(R.T @ augment(hessian, augmented) @ R, R[:d]).dense() @ R.T
        return Dynamics(kept.diffusion, Dense((Q - Q.T) / 2), name, augmented)
    entries = kept.diffusion.entries()
    if entries is None or kept.size != d:
        these = "a diagonal D or, of `equal_bias`, for `hfhr` without preconditioner and `gaul` with a number times the identity"
        remedy = f"Pass {d} numbers, leave `D` out, or pass K as a matrix."
        why = "others need not have the eigenvectors of K"
        raise InvalidInput(f"With products K·x the rotation is for {these}: {why}. {remedy}")
    R = np.sqrt(entries)
    J: Any = turned(best.products(lambda x: R * (hessian @ (R * x)), d), R)
    return Dynamics(kept.diffusion, LowRank(R[:, None] * J.left, J.weights, R[:, None] * J.right), name, False)


def _coupled(hessian: Any, kept: Dynamics, count: int, bias: float) -> Operator | None:
    """Q on (θ, r) that turns eigenvectors of K with their own momenta; None where D does not keep these apart."""
    D, d = kept.diffusion, hessian.shape[0]
    kept.has_momentum(d, "`K`")
    # Of products only the slowest are found, so that the D of θ must be a number times the identity.
    if not isinstance(D, Blocks) or not (isinstance(hessian, np.ndarray) or isinstance(D.upper_left, Scaled)):
        return None
    eigenvalues, basis, largest = best.spectrum(hessian, count)
    blocks = D.upper_left, D.upper_right, D.lower_right
    images = [np.stack([np.asarray(block(v)) for v in basis.T], axis=1) for block in blocks]
    parts = [np.sum(basis * image, axis=0) for image in images]
    gap = max(np.max(np.abs(image - part * basis)) for image, part in zip(images, parts, strict=True))
    if gap > 1e-9 * np.max(np.abs(parts)):
        return None
    steepest = max(np.max(parts[0] * eigenvalues), parts[0][-1] * largest)
    coupling, zero = LowRank(basis, best.coupling_rates(eigenvalues, parts, steepest, bias), basis), Scaled(0.0, d)
    return Blocks(zero, coupling.times(-1.0), coupling, zero)


def rotations(dim, rate: float | Sequence[float] = 1.0) -> Operator:
    """The skew map blockdiag(rate_i [[0, -1], [1, 0]]) for `nonreversible` and `general`, in O(d) memory.

    **Arguments:**

    - `dim`: the number of parameters, or the parameters themselves (any pytree).
    - `rate`: one number, or one for each of the ⌊d/2⌋ pairs.

    **Returns:** an operator; with d odd the last coordinate does not rotate.

    ```python
    import gyromc as gm
    dyn = gm.dynamics.nonreversible(gm.dynamics.rotations(14, 1.0113))
    print(dyn.Q[1, 0])  # 1.0113
    ```
    """
    d = _dimension(dim)
    require(d >= 2, f"A rotation needs at least two coordinates: got dim = {d}. Use `overdamped(1)`.")
    require_memory(8 * (d // 2), f"The rates of {d // 2:,} pairs", "Take fewer parameters.")
    rates, wanted = numbers(rate, "rate"), f"a finite number or {d // 2} of them, one per pair of coordinates"
    require(rates.shape in ((), (d // 2,)), f"`rate` must be {wanted}: got shape {rates.shape}.")
    return Rotations(np.broadcast_to(rates, (d // 2,)).copy(), d)


def augment(K: np.ndarray, augmented: bool, of_momenta: float = 1.0) -> np.ndarray:
    """A matrix over θ as one over the state: K itself, or diag(K, of_momenta·I) on (θ, r). With 1: the Hessian of U + ½|r|²."""
    if not augmented:
        return K
    zero = np.zeros_like(K)
    return np.block([[K, zero], [zero, of_momenta * np.eye(len(K))]])


def _dimension(dim) -> int:
    if isinstance(dim, int | float | np.integer | np.floating):  # np.float64(2.0) is a number, not a parameter
        return whole(dim, "dim", least=1)
    found, wanted = [leaf for _, leaf in leaves(dim, "dim")], "a pytree of arrays of floating-point parameters"
    good = found and all(jnp.issubdtype(getattr(leaf, "dtype", int), jnp.floating) for leaf in found)
    require(good, f"`dim` must be a positive integer or {wanted}: got {shown(dim)}.")
    return whole(sum(int(np.prod(leaf.shape)) for leaf in found), "dim", least=1)
