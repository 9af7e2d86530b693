"""Samples that do not represent their law are refused with the reason; what is not refused has the law's moments."""

import jax.numpy as jnp
import numpy as np
import pytest

import gyromc as gm
from gyromc.approx import sample as samples
from gyromc.approx.sample import Sample
from gyromc.approx.secondmoments import curvature, gradient_square, sums
from support.values import spd

X = np.random.default_rng(3).standard_normal((60, 3))
LOGISTIC = gm.targets.LogisticRegression(X, (X[:, 0] > 0.3).astype(int), prior_scale=1.0)


def mixture(gap, width=1.0, share=0.4):
    """Two round Gaussians in the plane, the second with its own width and share."""

    def density(t):
        left = jnp.log(1 - share) - 0.5 * jnp.sum((t + gap) ** 2)
        right = jnp.log(share) - 0.5 * jnp.sum(((t - gap) / width) ** 2) - 2 * jnp.log(width)
        return jnp.logaddexp(left, right)

    return gm.Model(gm.targets.LogDensity(density), template=np.zeros(2), start=[-gap, -gap])


def funnel(t):
    return -(t[0] ** 2) / 18 - t[0] / 2 - t[1] ** 2 * jnp.exp(-t[0]) / 2


def student(t):
    return -2 * jnp.sum(jnp.log1p(t**2 / 3))


@pytest.mark.parametrize("draws", [2000, 20_000])
@pytest.mark.parametrize(
    ("model", "reasons"),
    [
        (lambda: mixture(5.0), ("2 modes",)),
        (lambda: gm.Model(gm.targets.LogDensity(student), template=np.zeros(2)), ("tail",)),
        (lambda: gm.Model(gm.targets.LogDensity(funnel), template=np.zeros(2)), ("the effective sample size of",)),
    ],
    ids=["two modes", "heavy tails", "funnel"],
)
def test_what_does_not_represent_the_law_is_refused(model, reasons, draws):
    model = model()
    assert model.trusted_sample_of(draws) is None
    assert any(reason in model.why_not_trusted(draws) for reason in reasons)
    if draws == 20_000:
        assert model.trusted_sample is None


def test_without_the_search_a_missed_mode_is_not_seen(monkeypatch):
    """The effective size alone says that all is well: what the search adds."""
    model = mixture(7.0)
    sample = model.importance_sample(2000)
    assert sample.effective_size > 1000
    assert "miss one of them" in model.why_not_trusted(2000)
    monkeypatch.setattr(samples, "why_a_mode_is_missed", lambda *_: None)
    assert mixture(7.0).why_not_trusted(2000) is None


def test_a_narrow_mode_among_the_draws_must_have_its_share():
    """Points of the wide component only, in whose midst the narrow one lies."""
    model = mixture(1.0, width=0.02, share=0.4)
    wide = np.random.default_rng(0).standard_normal((4000, 2)) - 1
    assert "hold" in samples.why_a_mode_is_missed(_equal(wide), model.modes)
    narrow = 1 + 0.02 * np.random.default_rng(1).standard_normal((2667, 2))
    assert samples.why_a_mode_is_missed(_equal(np.concatenate([wide, narrow])), model.modes) is None


def trusted(model, draws):
    sample = model.trusted_sample_of(draws)
    assert sample is not None, model.why_not_trusted(draws)
    return sample


def _equal(rows):
    return Sample(rows, np.full(len(rows), 1 / len(rows)), float(len(rows)), "draws")


@pytest.mark.parametrize("draws", [1000, 20_000])
def test_a_good_sample_has_the_laws_moments_within_its_errors(draws):
    """Covariance and mean curvature of a separable target against quadrature; the curvature in standard errors."""
    target = gm.targets.CosinePerturbed(2, 0.5)
    t = np.linspace(-10, 10, 20_001)
    w = np.exp(-(0.5 * t**2 + 0.5 * np.cos(t)))
    w /= w.sum()
    sample = trusted(gm.Model(target), draws)
    estimate, exact = sample.mean_curvature(), w @ (1 - 0.5 * np.cos(t))
    errors = np.sqrt(np.sum(np.diagonal(estimate.deviations, axis1=1, axis2=2) ** 2, axis=0))
    assert np.max(np.abs(np.diag(estimate.matrix) - exact) / errors) < 4
    assert estimate.relative_error < 3 * np.sqrt(2 / draws)
    root = sample.moments()[1]
    np.testing.assert_allclose(np.diag(root @ root.T), w @ t**2, rtol=4 * np.sqrt(2 / sample.effective_size))


def test_the_curvature_of_a_gaussian_is_exact():
    found = trusted(gm.Model(gm.targets.Quadratic([1.0, 4.0])), 1000).mean_curvature()
    np.testing.assert_allclose(found.matrix, np.diag([1.0, 4.0]), rtol=1e-9, atol=1e-9)


def test_a_gaussian_is_exact_from_any_points():
    """Quotients do not need points of the law; plain means do."""
    K, rng = spd(3, 2), np.random.default_rng(0)
    theta = 0.3 * rng.standard_normal((4, 50, 3)) + 2
    found = sums(theta, theta @ K)
    np.testing.assert_allclose(curvature(found).matrix, K, rtol=1e-9)
    assert curvature(found).relative_error < 1e-9
    assert not np.allclose(gradient_square(found).matrix, K, rtol=0.1)


def test_relative_errors_are_those_of_repetitions():
    """The stated error of a second moment, against its spread over 200 samples: within a fifth."""
    rng = np.random.default_rng(0)
    drawn = (rng.standard_normal((20, 20, 1)) for _ in range(200))
    estimates = [gradient_square(sums(theta, theta)) for theta in drawn]
    stated = np.sqrt(np.mean([e.relative_error**2 for e in estimates]))
    assert stated == pytest.approx(np.std([e.matrix[0, 0] for e in estimates]), rel=0.2)


def test_few_draws_for_many_parameters_are_refused_and_wrong_numbers_named():
    model = gm.Model(gm.targets.Quadratic(np.ones(20)))
    assert "20 parameters need 400" in model.why_not_trusted(400)
    assert model.trusted_sample_of(2000) is not None
    for draws in (10, 1001, 1e3):
        with pytest.raises(gm.InvalidInput, match="`draws` must be an even number"):
            model.trusted_sample_of(draws)
    large = gm.Model(gm.targets.CosinePerturbed(61, 0.1))
    assert "61 parameters are too many" in large.why_not_trusted()


@pytest.mark.slow
def test_a_law_without_a_mode_is_not_trusted():
    without = gm.Model(gm.targets.LogDensity(lambda x: jnp.exp(x[0])), template=np.zeros(1))
    assert "No mode was found" in without.why_not_trusted()


def test_a_regression_is_trusted_without_a_search():
    few, reference = (trusted(gm.Model(LOGISTIC), draws).mean_curvature() for draws in (2000, 20_000))
    gap = np.diag(few.matrix - reference.matrix) / np.diag(reference.matrix)
    assert np.max(np.abs(gap)) < 4 * (few.relative_error + reference.relative_error)
    assert few.relative_error < 0.05
