"""Optimal rotations against their bounds and formulas on thirty random targets, and against random rotations at equal bias."""

import numpy as np
import pytest
import scipy

import gyromc as gm
from gyromc import rotations
from gyromc.dynamics import augment

DIMENSIONS = [2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 15, 20, 27, 36, 50]
CASES = [(d, 10.0**power, i) for i, d in enumerate(DIMENSIONS) for power in (1.0 + i % 3, 6.0)]
EXACT = 1e-8  # relative: matrices of condition 10⁶ in double precision


def random_precision(d, condition, seed):
    """A random orthogonal basis with eigenvalues between 1 and the condition."""
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.standard_normal((d, d)))[0]
    eigenvalues = np.exp(np.log(condition) * rng.random(d))
    eigenvalues[[0, -1]] = 1.0, condition
    return (basis * eigenvalues) @ basis.T


def diffusions(K, seed):
    d, rng = len(K), np.random.default_rng(seed)
    return {
        "identity": None,
        "diagonal": np.exp(rng.standard_normal(d)),
        "hfhr": gm.dynamics.hfhr(d, 1.0, 2.0),
        "gaul": gm.dynamics.gaul(rng.uniform(0.7, 1.5, d), 1.0, 2.0),
    }


def whitened(K, dynamics):
    return rotations.whitened(augment(K, dynamics.size > len(K)), dynamics.D, dynamics.Q)


def linear_variance(A, U):
    """V(h)/Var(h) of the linear observables with the columns of U, in whitened coordinates."""
    return 2 * np.einsum("ij,ij->j", U, np.linalg.solve(A, U)) / np.einsum("ij,ij->j", U, U)


def white_direction(K, u, size):
    root = scipy.linalg.sqrtm(np.linalg.inv(K)).real
    return np.concatenate([root @ u, np.zeros(size - len(u))])[:, None]


@pytest.mark.parametrize(("d", "condition", "seed"), CASES)
def test_every_optimum_reaches_its_bound(d, condition, seed):
    K = random_precision(d, condition, seed)
    u = np.random.default_rng(seed + 1).standard_normal(d)
    for D in diffusions(K, seed).values():
        found = gm.dynamics.fastest(K, D)
        P = augment(K, found.size > d)
        bound = np.trace(found.D @ P) / len(P)  # Re λ averages to it for every Q, so its minimum is at most that
        np.testing.assert_allclose(np.linalg.eigvals(whitened(K, found)).real, bound, rtol=EXACT)

        found, v = gm.dynamics.least_variance(K, u, rate=3.0, D=D), white_direction(K, u, len(P))
        size = scipy.linalg.eigh(found.Q.T @ np.linalg.solve(found.D, found.Q), found.D, eigvals_only=True)[-1]
        np.testing.assert_allclose(size, 9.0, rtol=EXACT)
        before, after = (linear_variance(whitened(K, x), v) for x in (found.reversible(), found))
        np.testing.assert_allclose(after / before, 1 / 10, rtol=EXACT)  # V ≥ V₀/(1 + rate²) for every Q of that size


@pytest.mark.parametrize(("d", "condition", "seed"), CASES)
def test_pairing_and_equal_bias_have_their_formulas(d, condition, seed):
    K = random_precision(d, condition, seed)
    found = gm.dynamics.pairing(K)
    eigenvalues, basis = np.linalg.eigh(K)
    turned = basis.T @ found.Q @ basis
    expected = np.zeros((d, d))
    for i in range(0, d - 1, 2):
        rate = np.sqrt(max(0.0, eigenvalues[-1] / np.mean(eigenvalues[i : i + 2]) - 1))
        expected[i + 1, i], expected[i, i + 1] = rate, -rate
    # eigenvectors have no sign
    np.testing.assert_allclose(np.abs(turned), np.abs(expected), atol=EXACT * np.abs(expected).max())

    # `equal_bias` has the bias of Q = 0 times what was asked for, and V is 2 tr K⁻¹/(1 + ω²) in blocks
    for bias in (1.0, 1.7):
        A = whitened(K, gm.dynamics.equal_bias(K, bias=bias))
        E = rotations.bias_matrix(A)
        np.testing.assert_allclose(np.linalg.eigvalsh(E)[-1], bias * eigenvalues[-1] / 2, rtol=EXACT)
        np.testing.assert_allclose(2 * np.trace(np.linalg.inv(A)) / d, mean_variance(eigenvalues, bias), rtol=EXACT)


def mean_variance(eigenvalues, bias):
    """V̄₁ of `equal_bias`, for one bias or many."""
    a, b = (x[:, None] for x in rotations.neighbours(eigenvalues))
    rates = rotations.rates_at_bias(a, b, np.atleast_1d(bias) * eigenvalues[-1] / 2)
    alone = 2 / eigenvalues[-1] if len(eigenvalues) % 2 else 0.0
    return (np.sum(2 * (1 / a + 1 / b) / (1 + rates**2), axis=0) + alone) / len(eigenvalues)


@pytest.mark.parametrize(("d", "condition", "seed"), CASES)
def test_momentum_couplings_have_equal_bias(d, condition, seed):
    K = random_precision(d, condition, seed)
    for D in (gm.dynamics.hfhr(d, 1.0, 2.0), gm.dynamics.gaul(0.8 * np.eye(d), 1.0, 2.0)):
        found = gm.dynamics.equal_bias(K, D=D)
        A, reversible = whitened(K, found), whitened(K, found.reversible())
        largest = np.linalg.eigvalsh(rotations.bias_matrix(reversible)[:d, :d])[-1]
        np.testing.assert_allclose(np.linalg.eigvalsh(rotations.bias_matrix(A)[:d, :d]), largest, rtol=EXACT)
        every = np.eye(2 * d)[:, :d]
        native = whitened(K, D)
        slower = np.linalg.eigvalsh(rotations.bias_matrix(native)[:d, :d])[-1] / largest  # HFHR's own Q at equal bias
        V = [linear_variance(x, every).mean() for x in (A, native, reversible)]
        assert V[0] <= slower * V[1] * (1 + EXACT)
        assert V[0] <= V[2] * (1 + EXACT)


@pytest.mark.parametrize(("d", "condition", "seed"), CASES)
def test_no_random_rotation_is_better_at_equal_bias(d, condition, seed):
    """V̄₁ of `equal_bias` against 1,000 random J of all sizes, each at its own λ_max(E), D = I.

    Computed by eigenvectors, all J at once: with Ã = XMX⁻¹ the Lyapunov equation is diagonal.
    """
    K = random_precision(d, condition, seed)
    rng = np.random.default_rng(seed)
    eigenvalues, basis = np.linalg.eigh(K)
    root, inverse = ((basis * eigenvalues**power) @ basis.T for power in (0.5, -0.5))
    skew = rng.standard_normal((1000, d, d)) * np.exp(rng.uniform(-5, 3, (1000, 1, 1)))
    J = (skew - np.swapaxes(skew, 1, 2)) / np.sqrt(d)
    half = rng.random(1000) < 0.5  # half of them turn the whitened target, half θ itself
    J[half] = eigenvalues[-1] * inverse @ J[half] @ inverse
    A = root @ (np.eye(d) + J) @ root
    mu, X = np.linalg.eig(A)
    back = np.linalg.inv(X)
    middle = back @ (A @ np.swapaxes(A, 1, 2)) @ np.conj(np.swapaxes(back, 1, 2))
    E = (X @ (middle / (mu[:, :, None] + np.conj(mu[:, None, :]))) @ np.conj(np.swapaxes(X, 1, 2))).real
    bias = np.linalg.eigvalsh((E + np.swapaxes(E, 1, 2)) / 2)[:, -1] / (eigenvalues[-1] / 2)
    assert bias.min() >= 1 - EXACT  # no rotation has less bias than none
    V = 2 * np.trace(np.linalg.inv(A), axis1=1, axis2=2) / d
    assert np.all(mean_variance(eigenvalues, np.maximum(bias, 1.0)) <= V * (1 + EXACT))
    # `fastest`: none of them decays faster
    assert np.max(np.min(mu.real, axis=1)) <= np.trace(K) / d * (1 + EXACT)
    # `least_variance`: none of them has a smaller V, once it has the same size
    J *= 3 / np.linalg.norm(J, 2, axis=(1, 2))[:, None, None]
    u = rng.standard_normal(d)
    w = np.linalg.solve(K, u)
    assert np.min(
        np.linalg.solve(np.eye(d) + J, np.broadcast_to(w, (1000, d))[..., None])[..., 0] @ w
    ) >= w @ w / 10 * (1 - EXACT)


def test_pairing_is_no_better_than_equal_bias():
    """At the bias that `pairing` has, `equal_bias` has no larger V of means, and a far smaller one where neighbours differ."""
    ratios = []
    for d, condition, seed in CASES:
        K = random_precision(d, condition, seed)
        A = whitened(K, gm.dynamics.pairing(K))
        eigenvalues = np.linalg.eigvalsh(K)
        bias = np.linalg.eigvalsh(rotations.bias_matrix(A))[-1] / (eigenvalues[-1] / 2)
        V = 2 * np.trace(np.linalg.inv(A)) / d
        ratios.append(V / mean_variance(eigenvalues, max(bias, 1.0))[0])
    assert min(ratios) >= 1 - EXACT
    assert max(ratios) > 1000


@pytest.mark.parametrize(("d", "condition", "seed"), [case for case in CASES if case[0] <= 8])
@pytest.mark.parametrize("name", ["hfhr", "gaul"])
def test_no_random_rotation_with_momenta_is_better_at_equal_bias(d, condition, seed, name):
    """The same for D of HFHR and of GAUL with C ∝ I: 1,000 random Q on (θ, r), half of them near the paper's own."""
    K = random_precision(d, condition, seed)
    D = gm.dynamics.hfhr(d, 1.0, 2.0) if name == "hfhr" else gm.dynamics.gaul(0.8 * np.eye(d), 1.0, 2.0)
    rng = np.random.default_rng(seed)
    skew = rng.standard_normal((1000, 2 * d, 2 * d)) * np.exp(rng.uniform(-5, 3, (1000, 1, 1)))
    Q = (skew - np.swapaxes(skew, 1, 2)) / np.sqrt(d)
    Q[::2] = D.Q * np.exp(rng.uniform(-2, 3, (500, 1, 1))) + 0.1 * rng.random((500, 1, 1)) * Q[::2]
    eigenvalues, basis = np.linalg.eigh(K)
    root = augment((basis * eigenvalues**0.5) @ basis.T, True)
    A = root @ (D.D + Q) @ root
    mu, X = np.linalg.eig(A)
    back = np.linalg.inv(X)
    middle = back @ (A @ np.swapaxes(A, 1, 2)) @ np.conj(np.swapaxes(back, 1, 2))
    E = (X @ (middle / (mu[:, :, None] + np.conj(mu[:, None, :]))) @ np.conj(np.swapaxes(X, 1, 2))).real[:, :d, :d]
    V = 2 * np.trace(np.linalg.inv(A)[:, :d, :d], axis1=1, axis2=2) / d
    # blocks [[p, q - n], [q + n, r]] in the eigenbasis: V/Var of θ is 2r/(pr - q² + n²), and the bias fixes n
    p, q, r = D.D[0, 0] * eigenvalues, D.D[0, d] * np.sqrt(eigenvalues), D.D[-1, -1]
    bias = np.maximum(np.linalg.eigvalsh((E + np.swapaxes(E, 1, 2)) / 2)[:, -1], p.max() / 2)
    n = (q + np.sqrt(q**2 + 4 * (p + r) * (bias[:, None] - p / 2))) / 2
    best = np.mean(2 * r / (p * r - q**2 + n**2), axis=1)
    np.testing.assert_allclose(
        2 * np.trace(np.linalg.inv(whitened(K, gm.dynamics.equal_bias(K, D=D, bias=3.0)))[:d, :d]) / d,
        np.mean(2 * r / (p * r - q**2 + ((q + np.sqrt(q**2 + 4 * (p + r) * (1.5 * p.max() - p / 2))) / 2) ** 2)),
        rtol=EXACT,
    )
    assert np.all(best <= V * (1 + EXACT))


def test_for_squares_other_rotations_are_better():
    """`equal_bias` is the best for means alone: of 300 random J at equal bias some have half its V̄₂ of squares."""
    K = random_precision(8, 100.0, 1)
    rng, largest, ratios = np.random.default_rng(0), 100.0, []
    for _ in range(300):
        skew = rng.standard_normal((8, 8)) * np.exp(rng.uniform(-5, 3))
        A = rotations.whitened(K, np.eye(8), (skew - skew.T) / np.sqrt(8))
        bias = max(1.0, np.linalg.eigvalsh(rotations.bias_matrix(A))[-1] / (largest / 2))
        ours = whitened(K, gm.dynamics.equal_bias(K, bias=bias))
        ratios.append(rotations.all_squares_variance(A) / rotations.all_squares_variance(ours))
    assert min(ratios) < 0.5


def rates_of(made):
    """The rates of the planes that turn."""
    weights = made.rotation.weights
    return weights[: len(weights) // 2]


def test_products_alone_are_enough():
    d, few = 3000, 10
    values = np.concatenate([np.linspace(1.0, 3.0, few), np.linspace(50.0, 400.0, d - few)])
    made = gm.dynamics.pairing(lambda x: values * x, dim=d, count=few)
    expected = np.sqrt(400.0 / (values[:few:2] + values[1:few:2]) * 2 - 1)
    np.testing.assert_allclose(rates_of(made), expected, rtol=EXACT)
    best = gm.dynamics.equal_bias(lambda x: values * x, dim=d, count=few)
    pairs = values[:few:2], values[1:few:2]
    np.testing.assert_allclose(rates_of(best), rotations.rates_at_bias(*pairs, 200.0), rtol=EXACT)
    x = np.zeros(d)
    x[0] = 1.0
    np.testing.assert_allclose(np.abs(made.rotation(x)[1]), expected[0], rtol=EXACT)


@pytest.mark.parametrize("name", ["pairing", "equal_bias", "least_variance"])
@pytest.mark.parametrize("D", [None, "diagonal"])
def test_products_give_the_same_rotation_as_matrices(name, D):
    """Where all eigenvectors but two are paired; those that are left out have the largest eigenvalues."""
    rng = np.random.default_rng(3)
    K = random_precision(12, 1e4, 5)
    D = None if D is None else rng.uniform(0.5, 2.0, 12)
    more = {"directions": rng.standard_normal((2, 12)), "rate": 2.0} if name == "least_variance" else {}
    make = getattr(gm.dynamics, name)
    given = make(K, D=D, **more)
    found = make(lambda x: K @ x, D=D, dim=12, **more, **({} if more else {"count": 10}))
    np.testing.assert_array_equal(found.D, given.D)
    if more:  # planes through the same vectors: V is what counts
        w = np.linalg.solve(K, more["directions"].T)
        V = [np.einsum("ik,ij,jk->k", w, np.linalg.inv(x.D + x.Q), w) for x in (found, given, found.reversible())]
        np.testing.assert_allclose(V[0], V[1], rtol=1e-6)
        np.testing.assert_allclose(V[0], V[2] / 5, rtol=1e-6)
        return
    R = np.sqrt(found.D)
    basis = np.linalg.eigh(R @ K @ R)[1]
    inner = lambda Q: np.abs(basis.T @ np.linalg.solve(R, np.linalg.solve(R, Q).T) @ basis)[:10, :10]
    np.testing.assert_allclose(inner(found.Q), inner(given.Q), atol=1e-6 * np.abs(inner(given.Q)).max())


@pytest.mark.parametrize("D", [gm.dynamics.hfhr(40, 1.0, 2.0), gm.dynamics.gaul(np.full(40, 0.8), 1.0, 2.0)])
def test_momenta_by_products(D):
    """The bias is that without a rotation, in each direction that turns; with all of them Q would be that of the matrix."""
    K = random_precision(40, 1e4, 2)
    D = (
        D
        if D.name == "SGHFHRMC"
        else gm.dynamics.Dynamics(
            gm.operators.Blocks(*(gm.operators.Scaled(x, 40) for x in (0.8, 0.1, 0.1, 2.0))), D.rotation, D.name, True
        )
    )
    found = gm.dynamics.equal_bias(lambda x: K @ x, D=D, dim=40, count=10)
    A, none = whitened(K, found), whitened(K, found.reversible())
    largest = np.linalg.eigvalsh(rotations.bias_matrix(none)[:40, :40])[-1]
    slow = np.linalg.eigh(K)[1][:, :10]
    E = rotations.bias_matrix(A)[:40, :40]
    np.testing.assert_allclose(np.linalg.eigvalsh(slow.T @ E @ slow), largest, rtol=1e-6)
    assert np.linalg.eigvalsh(E)[-1] <= largest * (1 + 1e-6)
    ours, full = (
        linear_variance(x, np.pad(slow, ((0, 40), (0, 0)))) for x in (A, whitened(K, gm.dynamics.equal_bias(K, D=D)))
    )
    np.testing.assert_allclose(ours, full, rtol=1e-6)


def test_bad_input_is_refused():
    with pytest.raises(gm.InvalidInput, match="positive definite"):
        gm.dynamics.pairing([1.0, -1.0])
    with pytest.raises(gm.InvalidInput, match="pass `dim`"):
        gm.dynamics.pairing(lambda x: x)
    with pytest.raises(gm.InvalidInput, match="moves all eigenvalues"):
        gm.dynamics.fastest(lambda x: x)
    with pytest.raises(gm.InvalidInput, match="eigenvectors of K"):
        gm.dynamics.equal_bias(lambda x: x, D=gm.dynamics.hfhr(6, 1.0, 1.0, preconditioner=np.ones(6)), dim=6)
    with pytest.raises(gm.InvalidInput, match="rows of 6 numbers"):
        gm.dynamics.least_variance(lambda x: x, [1.0, 0.0], dim=6)
    with pytest.raises(gm.InvalidInput, match="rows of 2 numbers"):
        gm.dynamics.least_variance([1.0, 2.0], [1.0, 0.0, 0.0])
