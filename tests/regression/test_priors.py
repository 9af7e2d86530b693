"""Priors that the user asks for, against quadrature and against densities written a second time."""

import jax
import numpy as np
import pytest
from scipy import special, stats

import gyromc as gm
from gyromc.regression.draws import prior_responses
from gyromc.regression.fit import GroupTerm, fit
from gyromc.regression.problem import read
from gyromc.targets import Group, MixedRegression, Prior
from gyromc.targets.families import LIKELIHOODS, NegativeBinomial, Ordinal, StudentT
from gyromc.targets.priors import LAWS, Domain

NUMBERS = {
    "normal": (0.4, 1.7),
    "student_t": (3.0, 0.4, 1.7),
    "cauchy": (-0.3, 0.8),
    "half_normal": (1.3,),
    "exponential": (0.6,),
    "gamma": (2.5, 1.4),
    "lognormal": (0.3, 0.7),
    "beta": (2.0, 5.0),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_densities_and_draws_are_those_of_scipy(name):
    prior = Prior(name, NUMBERS[name])
    law = LAWS[name].frozen(stats, *NUMBERS[name])
    x = np.array([0.1, 0.3, 0.9]) if name == "beta" else np.array([0.2, 1.0, 4.0])
    for unit in (1.0, 3.0) if name != "beta" else (1.0,):
        np.testing.assert_allclose(
            np.diff(prior.scaled(unit).log_density(x * unit)), np.diff(law.logpdf(x)), rtol=1e-10, atol=1e-12
        )
    least = 0.25
    drawn = prior.draw(np.random.default_rng(1), 20_000, least)
    assert stats.kstest(drawn, lambda x: (law.cdf(x) - law.cdf(least)) / law.sf(least)).pvalue > 1e-3
    assert Prior.read(str(prior)) == prior


FURTHER = [(known, one) for known in LIKELIHOODS for one in known.further if one.domain is not Domain.CUTPOINTS]


@pytest.mark.parametrize(("known", "one"), FURTHER, ids=lambda x: getattr(x, "name", None))
def test_log_densities_of_usual_priors_are_those_that_normal_numbers_give(known, one):
    """φ(u) = p(v) dv/du."""
    u = np.linspace(-2.5, 2.5, 21)
    slope = (one.natural(u + 1e-5) - one.natural(u - 1e-5)) / 2e-5
    found = one.log_density(one.natural(u)) + np.log(np.abs(slope)) + 0.5 * u**2
    np.testing.assert_allclose(found - found[0], 0.0, atol=1e-6)
    rng = np.random.default_rng(2)
    asked = Prior("beta", (2.0, 5.0)) if one.domain is Domain.SHARE else Prior("gamma", (2.0, 0.5))
    place = [x.name for x in known.further].index(one.name)
    drawn = known.made(3).drawn(rng, (20_000,), {one.name: asked})[place]
    law = stats.beta(2, 5) if one.domain is Domain.SHARE else stats.gamma(2, 0, 2)
    assert stats.kstest(drawn, lambda x: (law.cdf(x) - law.cdf(one.least)) / law.sf(one.least)).pvalue > 1e-3


@pytest.mark.parametrize("prior", ["dirichlet(3)", "normal(0.2, 1.5)", "student_t(3, 0, 2.5)"])
def test_priors_of_cutpoints(prior):
    """U less the log of the determinant of cutpoints by u is minus the log density of the cutpoints."""
    X, y = np.zeros((0, 1)), np.zeros(0)
    target = MixedRegression(X, y, Ordinal(4), 1.0, priors={"cutpoints": prior})
    u = np.random.default_rng(0).standard_normal((5, 3))
    cuts = lambda u: np.stack(target.likelihood.natural(u), axis=-1)
    jacobian = np.stack([(cuts(u + step) - cuts(u - step)) / 2e-5 for step in 1e-5 * np.eye(3)], axis=-1)
    c = cuts(u)
    if prior.startswith("dirichlet"):
        shares = np.diff(special.expit(c), axis=1, prepend=0, append=1)
        exact = np.sum(2 * np.log(shares), axis=1) + np.sum(np.log(special.expit(c) * special.expit(-c)), axis=1)
    else:
        law = stats.norm(0.2, 1.5) if prior.startswith("normal") else stats.t(3, 0, 2.5)
        exact = law.logpdf(c).sum(axis=1)
    U = np.array([target.potential(np.concatenate([[0.0], row])) for row in u])
    found = -U - np.linalg.slogdet(jacobian)[1]
    np.testing.assert_allclose(found - found[0], exact - exact[0], atol=1e-4)
    drawn = np.stack(target.likelihood.drawn(np.random.default_rng(1), (20_000,), dict(target.priors)), axis=-1)
    if prior.startswith("dirichlet"):
        assert stats.kstest(special.expit(drawn[:, 0]), stats.beta(3, 9).cdf).pvalue > 1e-3
    else:
        assert stats.kstest(drawn[:, 2], lambda x: law.cdf(x) ** 3).pvalue > 1e-3  # the largest of three


@pytest.mark.parametrize("eta", [0.7, 2.0, 6.0])
def test_correlations_have_the_law_lkj(eta):
    """-log p(u) less the log of the determinant of R by u is (1 - η) log det R, for three columns."""
    group = Group(np.ones((0, 3)), [], 4, np.ones(3), correlations=f"lkj({eta})")
    u, sd = np.random.default_rng(3).standard_normal((6, 3)), np.zeros((6, 3))

    def matrix(u):
        L = group.correlation_root(u)
        return L @ np.swapaxes(L, -1, -2)

    below = np.tril_indices(3, -1)
    entries = lambda u: matrix(u)[..., below[0], below[1]]
    jacobian = np.stack([(entries(u + step) - entries(u - step)) / 2e-5 for step in 1e-5 * np.eye(3)], axis=-1)
    found = -group.law_energy(sd, u) - np.linalg.slogdet(jacobian)[1]
    exact = (eta - 1) * np.linalg.slogdet(matrix(u))[1]
    np.testing.assert_allclose(found - found[0], exact - exact[0], atol=1e-6)
    root = group.drawn(np.random.default_rng(4), (20_000,))[0]
    covariance = root @ np.swapaxes(root, -1, -2)
    r = covariance[:, 2, 0] / np.sqrt(covariance[:, 2, 2] * covariance[:, 0, 0])
    assert stats.kstest((r + 1) / 2, stats.beta(eta + 0.5, eta + 0.5).cdf).pvalue > 1e-3


def moments(points, logs):
    """Mean and standard deviation of points with log densities, on an even grid."""
    w = special.softmax(logs)
    mean = np.sum(w * points)
    return mean, np.sqrt(np.sum(w * (points - mean) ** 2))


def assert_near(row, mean, sd):
    """Within 4 stated errors, which are below 2 % of a posterior sd."""
    assert row.std_error < 0.02 * sd
    assert abs(row.mean - mean) < 4 * row.std_error + 1e-3 * sd
    assert abs(row.sd / sd - 1) < 0.06


@pytest.mark.parametrize(
    ("prior", "law"), [("cauchy(0, 0.05)", stats.cauchy(0, 0.05)), ("student_t(4, 1, 0.1)", stats.t(4, 1, 0.1))]
)
def test_priors_of_coefficients_that_are_not_normal(prior, law):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(25)
    y = rng.poisson(np.exp(0.4 * x))
    found = fit(x[:, None], y, "poisson", intercept=False, names=["x"], priors={"x": prior})
    b = np.linspace(-1.5, 2.0, 4001)
    logs = stats.poisson(np.exp(np.outer(x, b))).logpmf(y[:, None]).sum(axis=0) + law.logpdf(b)
    exact = moments(b, logs)
    assert_near(found["x"], *exact)
    # The same prior as a normal one would be seen.
    usual = moments(b, logs - law.logpdf(b) + stats.norm(*(law.args[-2:])).logpdf(b))
    assert abs(usual[0] - exact[0]) > 0.05 * exact[1]


@pytest.mark.parametrize(
    ("prior", "law"),
    [
        ("half_normal(3)", stats.halfnorm(0, 3)),
        ("student_t(3, 0, 2)", stats.t(3, 0, 2)),
        ("gamma(9, 2)", stats.gamma(9, 0, 0.5)),
    ],
)
def test_priors_of_the_noise_of_a_linear_model(prior, law):
    rng = np.random.default_rng(1)
    x = rng.standard_normal(6)
    y = 7 * x + 5 * rng.standard_normal(6)
    found = fit(x[:, None], y, intercept=False, names=["x"], priors={"sigma": prior, "x": "normal(0, 20)"})
    sigma = np.exp(np.linspace(-6, 8, 6001))
    covariance = sigma[:, None, None] ** 2 * np.eye(6) + 400 * np.outer(x, x)
    evidence = -0.5 * (np.linalg.slogdet(covariance)[1] + np.einsum("i,sij,j->s", y, np.linalg.inv(covariance), y))
    mean, sd = moments(sigma, evidence + law.logpdf(sigma) + np.log(sigma))
    assert found["sigma"].mean == pytest.approx(mean, rel=2e-3)
    assert found["sigma"].sd == pytest.approx(sd, rel=5e-3)


@pytest.mark.parametrize(
    ("prior", "law"),
    [
        ("student_t(3, 0, 1)", stats.t(3, 0, 1)),
        ("gamma(4, 8)", stats.gamma(4, 0, 1 / 8)),
        ("half_normal(0.5)", stats.halfnorm(0, 0.5)),
    ],
)
def test_priors_of_the_standard_deviations_of_groups(prior, law):
    """A group of a linear model, in the units of y: σ and τ on a grid."""
    rng = np.random.default_rng(2)
    index = np.arange(24) % 6
    y = 2 * rng.standard_normal(6)[index] + 3 * rng.standard_normal(24)
    term = GroupTerm("g", ("intercept",), np.ones((24, 1)), index, tuple("abcdef"))
    about = {"intercept": False, "priors": {"g": prior, "sigma": "exponential(0.5)", "x0": 1e-6}}
    found = fit(np.ones((24, 1)), y, groups=[term], num_draws=8192, **about)
    s, t = np.meshgrid(np.linspace(0.5, 9, 300), np.linspace(1e-4, 12, 1200), indexing="ij")
    sums, size = np.bincount(index, y), 4
    v, w = s**2, t**2
    log_det = (24 - 6) * np.log(v) + 6 * np.log(v + size * w)
    squares = (y @ y) / v - (sums @ sums) * w / (v * (v + size * w))
    logs = -0.5 * (log_det + squares) - 0.5 * s + law.logpdf(t)
    mean, sd = moments(t.ravel(), logs.ravel())
    row = found["sd(intercept | g)"]
    assert row.std_error < 0.03 * sd
    assert abs(row.mean - mean) < 4 * row.std_error
    assert row.sd == pytest.approx(sd, rel=0.06)


def test_a_prior_of_the_shape_of_counts():
    rng = np.random.default_rng(3)
    x = rng.standard_normal(30)
    y = rng.negative_binomial(2.0, 2.0 / (2.0 + np.exp(1 + 0.3 * x)))
    found = fit(
        x[:, None], y, "negative-binomial", intercept=False, priors={"shape": "gamma(6, 2)", "x0": "normal(0, 1)"}
    )
    b, k = np.meshgrid(np.linspace(-1.5, 2.5, 161), np.linspace(0.02, 9, 400), indexing="ij")
    mu = np.exp(b[..., None] * x)
    logs = stats.nbinom(k[..., None], k[..., None] / (k[..., None] + mu)).logpmf(y).sum(axis=-1)
    logs += stats.norm().logpdf(b) + stats.gamma(6, 0, 0.5).logpdf(k)
    assert_near(found["shape"], *moments(k.ravel(), logs.ravel()))
    assert_near(found["x0"], *moments(b.ravel(), logs.ravel()))


@pytest.mark.slow
def test_a_prior_of_the_degrees_of_freedom():
    rng = np.random.default_rng(4)
    y = stats.t(3).rvs(40, random_state=rng)
    about = {"sigma": "half_normal(1)", "nu": "exponential(0.1)", "x0": 1e-6}
    found = fit(np.ones((40, 1)), y, "student-t", intercept=False, priors=about)
    s, nu = np.meshgrid(np.linspace(0.2, 3, 200), 2 + np.geomspace(1e-3, 150, 700), indexing="ij")
    logs = stats.t(nu[..., None], 0, s[..., None]).logpdf(y).sum(axis=-1)
    logs += stats.halfnorm().logpdf(s) - 0.1 * nu + np.log(nu - 2)  # even in log(ν - 2)
    assert_near(found["nu"], *moments(nu.ravel(), logs.ravel()))
    assert_near(found["sigma"], *moments(s.ravel(), logs.ravel()))


@pytest.mark.parametrize(
    ("family", "priors", "says"),
    [
        ("linear", {"sigma": "normal(0, 1, 2)"}, "must be one of normal"),
        ("linear", {"sigma": "lkj(2)"}, "sigma is a positive number, whose prior is normal, student_t"),
        ("linear", {"x0": "gamma(1, 1)"}, "x0 is any number, whose prior is normal, student_t, cauchy: got gamma"),
        ("linear", {"x0": "student_t(-3, 0, 1)"}, "nu of student_t.* must be"),
        ("linear", {"shape": "gamma(1, 1)"}, "no parameter 'shape': there are sigma, x0, intercept"),
        ("poisson", {"sigma": 2.0}, "no parameter 'sigma'"),
        ("softmax", {"x0": "cauchy(0, 1)"}, "softmax are normal"),
        ("linear", {"cor": "lkj(2)"}, "no parameter 'cor'"),
    ],
)
def test_wrong_priors(family, priors, says):
    with pytest.raises(gm.InvalidInput, match=says):
        fit([[1.0], [2.0], [4.0]], [0, 1, 2], family, priors=priors)


def test_targets_with_priors_are_saved_and_refuse_what_they_do_not_have(tmp_path):
    group = Group(np.ones((3, 2)), [0, 1, 0], 2, [1, 1], priors=[None, "gamma(2, 1)"], correlations="lkj(4)")
    given = {"priors": {"shape": "gamma(2, 0.5)", "0": "cauchy(0, 1)"}, "groups": (group,)}
    target = MixedRegression(np.ones((3, 1)), [0, 3, 1], NegativeBinomial(), 2.0, **given)
    from gyromc.io.runs import PLAIN

    again = PLAIN.unpack(PLAIN.pack(target))
    theta = np.linspace(-1, 1, target.dim)
    assert again.priors == target.priors
    (energy, slope), (same, _) = (jax.jit(jax.value_and_grad(one.potential))(theta) for one in (target, again))
    assert same == energy
    assert np.all(np.isfinite(slope))
    with pytest.raises(gm.InvalidInput, match="`priors` has no parameter 'nu': there are shape, 0"):
        MixedRegression(np.ones((3, 1)), [0, 3, 1], NegativeBinomial(), priors={"nu": "gamma(1, 1)"})
    with pytest.raises(gm.InvalidInput, match="one entry for each of 2"):
        Group(np.ones((3, 2)), [0, 1, 0], 2, [1, 1], priors=["gamma(2, 1)"])
    with pytest.raises(gm.InvalidInput, match="a table from names"):
        MixedRegression(np.ones((3, 1)), [0, 3, 1], StudentT(), priors=["gamma(1, 1)"])


def test_responses_drawn_from_the_prior():
    """Var y = s₀² + s₁²(x - x̄)² + E τ² + E σ², and rows of a level go together by E τ²; shares of classes are uniform."""
    x, index = np.array([0.0, 1.0, 2.0, 3.0]), np.array([0, 0, 1, 1])
    term = GroupTerm("g", ("intercept",), np.ones((4, 1)), index, ("a", "b"))
    priors = {"intercept": "normal(5, 2)", "x0": "student_t(9, 1, 3)", "sigma": "half_normal(4)", "g": "gamma(4, 2)"}
    about = {"names": None, "classes": None, "intercept": True, "prior_scale": 2.5, "priors": priors}
    beside = {"groups": (term,), "offset": None, "weights": None, "trials": None}
    y = prior_responses(read(x[:, None], [1.0, 3.0, 2.0, 7.0], "linear", **about, **beside), 200_000)
    away = x - x.mean()
    slope, tau = 9 * 9 / 7, stats.gamma(4, 0, 0.5).moment(2)
    exact = 4 + slope * np.outer(away, away) + tau * (index[:, None] == index) + 16 * np.eye(4)
    np.testing.assert_allclose(y.mean(axis=0), 5 + away, atol=4 * np.sqrt(exact.max() / len(y)))
    np.testing.assert_allclose(np.cov(y.T), exact, atol=0.03 * exact.max())
    about |= {"classes": ["a", "b", "c"], "priors": {"x0": 1e-6}}
    shares = prior_responses(read(x[:, None], [0, 1, 2, 1], "ordinal", **about, **beside | {"groups": ()}), 50_000)
    np.testing.assert_allclose([np.mean(shares == c) for c in range(3)], 1 / 3, atol=0.01)
