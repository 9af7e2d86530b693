"""The measures behind the claims, against laws that are known exactly."""

import math

import numpy as np
import pytest
from scipy import stats

from gyromc.paper import claims
from gyromc.paper.claims import (
    normality,
    quantile_band,
    rmse,
    rmse_ratio,
    slope,
)
from gyromc.paper.reproduction import predictive_reference
from gyromc.targets import LogisticRegression


def test_rmse_and_its_standard_error():
    """E e² = σ² + m² and Var e² = 2σ⁴ + 4σ²m² for N(m, σ²); four standard errors over 400 repetitions."""
    rng, m, s, R = np.random.default_rng(0), 0.3, 2.0, 1000
    found = np.array([rmse(m + s * rng.standard_normal(R)) for _ in range(400)])
    mse = s**2 + m**2
    se = math.sqrt((2 * s**4 + 4 * s**2 * m**2) / R) / (2 * math.sqrt(mse))
    assert abs(np.mean(found[:, 0]) / math.sqrt(mse) - 1) < 4 * se / math.sqrt(mse) / 20 + 1 / R
    assert abs(found[:, 1].mean() / se - 1) < 0.02
    assert abs(found[:, 0].std() / se - 1) < 4 / math.sqrt(2 * 400)


def test_intervals_of_ratios_are_paired_and_cover():
    """The ratio of RMSEs 1/2 of correlated errors: covered in 95 % of cases, up to four standard errors of a proportion."""
    rng, R, hits, widths = np.random.default_rng(1), 300, 0, []
    for _ in range(400):
        common = rng.standard_normal(R)
        ours, theirs = common + 0.1 * rng.standard_normal(R), 2 * (common + 0.1 * rng.standard_normal(R))
        _, low, high = rmse_ratio(ours, theirs)
        hits += low <= 0.5 <= high
        widths.append(high - low)
    assert abs(hits / 400 - 0.95) < 4 * math.sqrt(0.95 * 0.05 / 400)
    # Unpaired, the interval would have half-width 1.96·√(2/(2R))·0.5 = 0.057; paired it is several times narrower.
    assert np.mean(widths) < 0.04


def test_slope_of_a_power_law_and_its_standard_error():
    etas, rng, R = np.array([0.1, 0.05, 0.025]), np.random.default_rng(2), 500
    assert slope(etas, 3 * etas**0.5, np.zeros(3)) == pytest.approx((0.5, 0), abs=1e-12)
    found = []
    for _ in range(400):
        values, std_errors = zip(*(rmse(math.sqrt(eta) * rng.standard_normal(R)) for eta in etas), strict=True)
        found.append(slope(etas, values, std_errors))
    values, std_errors = np.transpose(found)
    assert abs(values.mean() - 0.5) < 4 * values.std() / 20
    assert abs(values.std() / std_errors.mean() - 1) < 4 / math.sqrt(2 * 400)


def test_p_values_are_uniform_under_normality():
    """Under the null p-values are uniform: 600 of them, Kolmogorov-Smirnov at 10⁻³."""
    rng = np.random.default_rng(3)
    samples = rng.standard_normal((600, 200))
    assert stats.kstest([normality(5 + 3 * z, False)["p"] for z in samples], "uniform").pvalue > 1e-3
    assert stats.kstest([normality(z, True)["p"] for z in samples], "uniform").pvalue > 1e-3


def test_normality_sees_scale_shift_and_shape():
    z = np.random.default_rng(4).standard_normal(2000)
    good = normality(z, True)
    assert good["slope_interval"][0] < 1 < good["slope_interval"][1]
    assert normality(1.2 * z, True)["p"] < 1e-3
    assert normality(1.2 * z, True)["slope"] == pytest.approx(1.2 * good["slope"])
    assert normality(z + 0.2, True)["intercept"] == pytest.approx(good["intercept"] + 0.2)
    assert normality(z + 0.2, True)["p"] < 1e-3
    assert normality(z**3, False)["p"] < 1e-3


def test_quantile_band_holds_all_points_with_its_probability():
    rng, n = np.random.default_rng(5), 300
    low, high = quantile_band(n)
    inside = np.mean([np.all((low <= z) & (z <= high)) for z in np.sort(rng.standard_normal((1500, n)), axis=1)])
    # The local level comes from 600 simulations, the coverage from 1500: four standard errors of both together.
    assert abs(inside - 0.95) < 4 * math.sqrt(0.95 * 0.05 * (1 / 600 + 1 / 1500))


def test_importance_sampling_agrees_with_quadrature():
    """One parameter: π(h) by dense quadrature, to five standard errors and better than 10⁻⁴."""
    rng = np.random.default_rng(6)
    X = rng.standard_normal((20, 1))
    y = (rng.random(20) < 1 / (1 + np.exp(-2 * X[:, 0]))).astype(float)
    points = np.array([[0.5], [-2.0]])
    reference = predictive_reference(LogisticRegression(X, y), points, num_draws=2**14, seed=0)
    theta = np.linspace(-8, 12, 40001)
    t = np.outer(theta, X[:, 0])
    density = np.exp(-np.sum(np.logaddexp(0, t) - y * t, axis=1) - theta**2 / 2)
    exact = [np.sum(density / (1 + np.exp(-theta * x))) / density.sum() for x in points[:, 0]]
    assert np.all(np.abs(reference.mean - exact) < 5 * reference.std_error + 1e-6)
    assert np.all(reference.std_error < 1e-4)
    assert reference.efficiency > 0.5


class TestVerdicts:
    """Claims on errors whose law is known: each verdict can be reached, also "refuted"."""

    etas = (0.1, 0.05, 0.025, 0.0125)

    def errors(self, constant: float, seed: int, power: float = 0.5, R: int = 1000):
        rng = np.random.default_rng(seed)
        return [constant * eta**power * rng.standard_normal(R) for eta in self.etas]

    def test_smaller_error(self):
        small, large = self.errors(1.0, 1), self.errors(2.0, 2)
        assert (
            claims.smaller_error({"nonreversible": small, "reversible": large}, self.etas).verdict == claims.CONFIRMED
        )
        refuted = claims.smaller_error({"nonreversible": large, "reversible": small}, self.etas)
        assert refuted.verdict == claims.REFUTED
        assert refuted.interval[0] > 1
        same = claims.smaller_error({"nonreversible": small, "reversible": self.errors(1.0, 3)}, self.etas)
        assert same.verdict == claims.UNRESOLVED
        assert len(same.items) == len(self.etas)

    def test_some_step_sizes_confirm_no_claim_about_all(self):
        """Confirmed becomes "holds here"; one step size refutes a claim about all, larger ones do not refute a limit."""
        small, large, steep = self.errors(1.0, 1), self.errors(2.0, 2), self.errors(1.0, 5, 1.0)
        published = (*self.etas, 0.00625)
        better = claims.smaller_error({"nonreversible": small, "reversible": large}, self.etas)
        worse = claims.smaller_error({"nonreversible": large, "reversible": small}, self.etas)
        half = claims.half_slope({"nonreversible": small}, self.etas, "paper", {})
        one = claims.half_slope({"nonreversible": steep}, self.etas, "paper", {})
        cell = claims.exact({("nonreversible", 0.1): 0.5}, {("nonreversible", 0.1): 1.0})
        for claim, part in (
            (better, claims.HOLDS_HERE),
            (worse, claims.REFUTED),
            (half, claims.HOLDS_HERE),
            (one, claims.UNRESOLVED),
            (cell, claims.CONFIRMED),
        ):
            assert claims.judged_at(claim, self.etas, self.etas).verdict == claim.verdict
            some = claims.judged_at(claim, self.etas, published)
            assert some.verdict == part
            assert some.value == claim.value
        assert claims.judged_at(one, self.etas, (0.2, *self.etas)).verdict == claims.REFUTED

    def test_asymptotic_ratio(self):
        errors = {"nonreversible": self.errors(math.sqrt(2), 1)}
        assert claims.asymptotic(errors, self.etas, {"nonreversible": 2.0}, "paper", {}).verdict == claims.CONFIRMED
        assert claims.asymptotic(errors, self.etas, {"nonreversible": 1.0}, "paper", {}).verdict == claims.REFUTED
        bent = [e * math.sqrt(1 + 40 * eta) for e, eta in zip(errors["nonreversible"], self.etas, strict=True)]
        approaching = claims.asymptotic({"nonreversible": bent}, self.etas, {"nonreversible": 2.0}, "paper", {})
        assert approaching.verdict == claims.UNRESOLVED

    def test_slope(self):
        for power, verdict in ((0.5, claims.CONFIRMED), (1.0, claims.REFUTED)):
            assert (
                claims.half_slope({"nonreversible": self.errors(1.0, 5, power)}, self.etas, "paper", {}).verdict
                == verdict
            )

    def test_what_the_exact_theory_foretells_does_not_refute_a_limit(self):
        """A slope of 1 at these step sizes refutes ½, unless exact theory says 1 there too; it does not excuse others."""
        errors = {"nonreversible": self.errors(1.0, 5, 1.0)}
        explained = claims.half_slope(errors, self.etas, "paper", {"nonreversible": [eta for eta in self.etas]})
        assert explained.verdict == claims.UNRESOLVED
        assert "exact theory at these step sizes: 1.000" in explained.items[0].note
        other = claims.half_slope(errors, self.etas, "paper", {"nonreversible": [eta**0.7 for eta in self.etas]})
        assert other.verdict == claims.REFUTED

    def test_exact_predictions(self):
        ratios = {("nonreversible", 0.1): 1.0, ("nonreversible", 0.05): 1.2}
        assert claims.exact({at: 0.5 for at in ratios}, ratios).verdict == claims.CONFIRMED
        refuted = claims.exact({("nonreversible", 0.1): 0.5, ("nonreversible", 0.05): 4.5}, ratios)
        assert refuted.verdict == claims.REFUTED
        assert refuted.value == 1.2

    def test_normality(self):
        z = np.random.default_rng(6).standard_normal(4000)

        def judge(x, known):
            found = {"nonreversible": {**normality(x, known), "by": "σ", "scale_known": known}}
            return claims.normal_errors(found)

        assert judge(z, True).verdict == claims.CONFIRMED
        assert judge(1.3 * z, True).verdict == claims.REFUTED
        assert judge(z[:100], True).verdict == claims.UNRESOLVED
        assert judge(np.expm1(z), False).verdict == claims.REFUTED
