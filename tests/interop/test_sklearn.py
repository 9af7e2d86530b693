"""The estimators under scikit-learn's own checks, in its own tools, and against the conjugate posterior."""

import importlib
import pickle
import sys

import joblib
import numpy as np
import pytest
from scipy import sparse, special
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import check_estimator

import gyromc as gm
from gyromc.regression.fit import fit
from gyromc.sklearn import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianNegativeBinomialRegression,
    BayesianPoissonRegression,
)

ESTIMATORS = [
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianPoissonRegression,
    BayesianNegativeBinomialRegression,
]


def classes(rows=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 2))
    return X, np.where(rng.random(rows) < special.expit(2 * X[:, 0]), "yes", "no")


NO_COUNTS = {
    name: "its responses are no counts"
    for name in (
        "check_n_features_in_after_fitting",
        "check_regressors_train",
        "check_regressor_data_not_an_array",
        "check_regressors_no_decision_function",
        "check_fit_idempotent",
        "check_fit_check_is_fitted",
        "check_n_features_in",
    )
}
CHECKED = [
    pytest.param(BayesianLinearRegression, {}, id="linear"),
    pytest.param(BayesianLogisticRegression, {}, id="logistic", marks=pytest.mark.slow),
    pytest.param(BayesianNegativeBinomialRegression, NO_COUNTS, id="negative-binomial", marks=pytest.mark.slow),
]


@pytest.mark.slow
def test_scikit_learns_checks_of_its_interface():
    """Those without the ones that it calls legacy, which fit many times: those of counts are made of the other regression."""
    found = check_estimator(
        BayesianPoissonRegression(effort=0.2, num_draws=512),
        legacy=False,
        expected_failed_checks=NO_COUNTS,
        on_skip=None,
        on_fail=None,
    )
    assert len(found) >= 8
    assert {r["status"] for r in found} <= {"passed", "xfail"}


@pytest.mark.parametrize(("estimator", "expected"), CHECKED)
def test_scikit_learns_own_checks(estimator, expected):
    """None fails but those named, and none is skipped but the one that scikit-learn skips unless the environment asks for it."""
    model = estimator(effort=0.2, num_draws=512)
    found = check_estimator(model, expected_failed_checks=expected, on_skip=None, on_fail=None)
    bad = {r["check_name"]: r["exception"] for r in found if r["status"] not in ("passed", "skipped", "xfail")}
    assert not bad
    assert len(found) > 45
    skipped = [r for r in found if r["status"] == "skipped"]
    assert {r["check_name"] for r in skipped} <= {"check_array_api_input"}
    assert all("SCIPY_ARRAY_API is not set" in str(r["exception"]) for r in skipped)


def test_linear_against_the_conjugate_posterior():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((50, 2)) * [1.0, 100.0]
    y = 3 + X @ [1.0, 0.02] + rng.standard_normal(50)
    model = BayesianLinearRegression(effort=0.01, num_draws=2**15).fit(X, y)
    s, sigma = X.std(axis=0), model.noise_scale_
    A = np.column_stack([np.ones(50), X - X.mean(axis=0)])
    prior = np.diag([1 / (10 * y.std()) ** 2, *(s / (2.5 * y.std())) ** 2])
    covariance = np.linalg.inv(A.T @ A / sigma**2 + prior)
    mean = covariance @ A.T @ (y - y.mean()) / sigma**2
    sd = np.sqrt(np.diag(covariance))
    assert np.all(model.coef_std_error_ < 0.005 * sd[1:])
    assert np.all(np.abs(model.coef_ - mean[1:]) < 4 * model.coef_std_error_ + 1e-4 * sd[1:])
    assert np.allclose(model.coef_sd_, sd[1:], rtol=0.015)
    new = np.array([[0.5, 50.0], [3.0, -200.0]])
    B = np.column_stack([np.ones(2), new - X.mean(axis=0)])
    expected, deviation = model.predict(new, return_std=True)
    spread = np.sqrt(np.einsum("ni,ij,nj->n", B, covariance, B))
    assert np.all(np.abs(expected - y.mean() - B @ mean) < 4 * model.predictions(new).std_error)
    assert np.allclose(
        deviation, np.hypot(spread, sigma), rtol=0.01
    )  # without the noise the first would be a fifth of it
    assert np.allclose(model.intercept_ + new @ model.coef_, expected, atol=0.02)


@pytest.mark.parametrize("fit_intercept", [True, False])
def test_rows_in_pieces_give_the_posterior_of_all(fit_intercept):
    """Also against `fitting`, which standardises the rows themselves; the same seed, so that only rounding is left."""
    rng = np.random.default_rng(2)
    X = rng.standard_normal((40, 3)) * [1.0, 1e3, 1e-3] + [0.0, 5e3, 1.0]
    y = X @ [1.0, 1e-3, 100.0] + rng.standard_normal(40)
    whole = BayesianLinearRegression(fit_intercept=fit_intercept).fit(X, y)
    pieces = BayesianLinearRegression(fit_intercept=fit_intercept)
    for part in (slice(0, 1), slice(1, 7), slice(7, 40)):
        pieces.partial_fit(X[part], y[part])
    assert np.allclose(pieces.coef_, whole.coef_, atol=1e-3 * whole.coef_sd_.min())
    assert np.allclose(pieces.coef_sd_, whole.coef_sd_, rtol=1e-4)
    assert np.isclose(pieces.noise_scale_, whole.noise_scale_)
    direct = fit(X, y, effort="quick", intercept=fit_intercept)
    assert np.isclose(direct.noise_scale, whole.noise_scale_, rtol=1e-5)
    slopes = direct.coefficients[int(fit_intercept) :]
    assert np.allclose([c.sd for c in slopes], whole.coef_sd_, rtol=1e-3)
    assert np.allclose([c.mean for c in slopes], whole.coef_, atol=1e-2 * whole.coef_sd_.min())


def test_logistic_attributes_and_probabilities():
    X, y = classes()
    model = BayesianLogisticRegression(effort=0.02).fit(X, y)
    assert list(model.classes_) == ["no", "yes"]
    assert model.coef_.shape == model.coef_sd_.shape == (1, 2)
    assert model.intercept_.shape == (1,)
    assert model.n_features_in_ == 2
    p, spread = model.predict_proba(X, return_std=True)
    labels, of_them = model.predict(X, return_std=True)
    assert np.allclose(p.sum(axis=1), 1)
    assert np.array_equal(labels, model.classes_[p.argmax(axis=1)])
    assert np.array_equal(of_them, spread[np.arange(60), p.argmax(axis=1)])
    assert np.allclose(special.expit(model.decision_function(X)), p[:, 1])
    point = LogisticRegression(C=2.5**2).fit(X / X.std(axis=0), y)  # the same prior: its mode
    assert np.allclose(model.coef_ * X.std(axis=0), point.coef_, atol=0.5 * np.max(model.coef_sd_ * X.std(axis=0)))
    averaged = special.expit(X @ model.coef_[0] + model.intercept_[0])
    assert np.all(
        (np.abs(p[:, 1] - 0.5) < np.abs(averaged - 0.5))[np.abs(averaged - 0.5) > 0.3]
    )  # less sure, as it must be


@pytest.mark.slow
def test_softmax_singles_out_no_class():
    X, y = load_iris(return_X_y=True)
    model = BayesianLogisticRegression(effort=0.05).fit(X, y)
    assert model.coef_.shape == (3, 4)
    assert np.allclose(model.coef_.sum(axis=0), 0, atol=1e-6)
    assert model.score(X, y) > 0.95
    renamed = BayesianLogisticRegression(effort=0.05).fit(X, (2 - y).astype(str))
    assert np.allclose(model.predict_proba(X), renamed.predict_proba(X)[:, ::-1], atol=0.05)


def test_in_scikit_learns_tools():
    X, y = classes()
    pipeline = make_pipeline(StandardScaler(), BayesianLogisticRegression(effort=0.2, num_draws=256))
    assert cross_val_score(pipeline, X, y, cv=2, scoring="neg_log_loss").mean() > -0.69
    search = GridSearchCV(
        pipeline, {"bayesianlogisticregression__prior_scale": [0.01, 2.5]}, cv=2, scoring="neg_log_loss"
    )
    assert search.fit(X, y).best_params_["bayesianlogisticregression__prior_scale"] == 2.5
    assert clone(search.best_estimator_[-1]).get_params()["effort"] == 0.2


def test_saved_and_read_back_and_the_seed_decides(tmp_path):
    X, y = classes()
    make = lambda seed: BayesianLogisticRegression(effort=0.2, num_draws=256, random_state=seed).fit(X, y)
    model = make(1)
    read = joblib.load(joblib.dump(model, tmp_path / "model.joblib")[0])
    for copy in (pickle.loads(pickle.dumps(model)), read):
        assert np.array_equal(copy.predict_proba(X), model.predict_proba(X))
    assert np.array_equal(model.coef_, make(1).coef_)
    generator = np.random.RandomState(3)
    others = [make(generator).coef_ for _ in range(2)]
    assert not np.array_equal(model.coef_, others[0])
    assert not np.array_equal(*others)


def test_errors():
    X, _ = classes()
    with pytest.raises(gm.InvalidInput, match="at least 2 classes: got 1 class"):
        BayesianLogisticRegression().fit(X, np.full(60, "yes"))
    with pytest.raises(gm.InvalidInput, match=r"would be made dense: 7\.5 GiB\. Take fewer columns"):
        BayesianLogisticRegression().fit(sparse.csr_matrix((100, 10**7)), np.arange(100) % 2)
    with pytest.raises(gm.InvalidInput, match="must hold counts"):
        BayesianPoissonRegression().fit(X, X[:, 0])
    with pytest.raises(NotFittedError):
        BayesianLinearRegression().predict(X)
    with pytest.raises(gm.InvalidInput, match="`prior_scale` must be positive"):
        BayesianLinearRegression(prior_scale=-1.0).fit(X, X[:, 0])


def test_without_scikit_learn_there_is_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "gyromc.sklearn")
    with pytest.raises(ImportError, match=r"pip install 'gyromc\[sklearn\]'"):
        importlib.import_module("gyromc.sklearn")


def counts(rows=150, seed=4):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 2))
    return X, rng.poisson(np.exp(0.5 + 0.4 * X[:, 0]) * rng.gamma(2, 0.5, rows))


@pytest.mark.parametrize(
    ("estimator", "family"),
    [
        (BayesianPoissonRegression, "poisson"),
        pytest.param(BayesianNegativeBinomialRegression, "negative-binomial", marks=pytest.mark.slow),
    ],
)
def test_counts_are_those_of_the_regression(estimator, family):
    X, y = counts()
    model = estimator(effort=0.2).fit(X, y)
    direct = fit(X, y, family, effort=0.2)
    assert np.allclose(model.coef_, [direct.mean["x0"], direct.mean["x1"]], rtol=1e-6)
    mean, sd = model.predict(X[:5], return_std=True)
    assert np.allclose(mean, direct.predict(X[:5]).mean, rtol=1e-6)
    assert np.allclose(sd, direct.predict(X[:5]).predictive_sd, rtol=1e-6)
    if family == "negative-binomial":
        assert 1 < model.auxiliary_["shape"] < 5


def data_for(estimator):
    X, y = counts()
    if estimator is BayesianLogisticRegression:
        return X, np.where(y > 1, "many", "few")
    return X, y


@pytest.mark.parametrize(
    "estimator",
    [
        pytest.param(e, id=e.__name__, marks=[pytest.mark.slow] if "Poisson" in str(e.__mro__) else [])
        for e in ESTIMATORS
    ],
)
def test_weights_are_rows_that_come_several_times(estimator):
    X, y = data_for(estimator)
    times = np.arange(len(y)) % 3  # some not at all
    weighted = estimator(effort=0.1).fit(X, y, sample_weight=times)
    repeated = estimator(effort=0.1).fit(np.repeat(X, times, axis=0), np.repeat(y, times))
    assert np.allclose(weighted.coef_, repeated.coef_, atol=1e-3 * repeated.coef_sd_.min())
    order = np.random.default_rng(0).permutation(len(y))
    shuffled = estimator(effort=0.1).fit(X[order], y[order], sample_weight=times[order])
    assert np.allclose(shuffled.coef_, repeated.coef_, atol=1e-3 * repeated.coef_sd_.min())
    with pytest.raises(ValueError, match="at least one non-zero"):
        estimator().fit(X, y, sample_weight=np.zeros(len(y)))


@pytest.mark.parametrize(
    "estimator", [pytest.param(e, id=e.__name__, marks=[pytest.mark.slow] * (e in ESTIMATORS[1:])) for e in ESTIMATORS]
)
def test_half_a_weight_is_half_an_observation(estimator):
    """Weights that are no whole numbers reach a linear model as sums, all others as factors of their losses."""
    X, y = data_for(estimator)
    times = np.arange(len(y)) % 3
    halves = estimator(effort=0.05).fit(X, y, sample_weight=times + 0.5)
    full = estimator(effort=0.05).fit(np.repeat(X, 2 * times + 1, axis=0), np.repeat(y, 2 * times + 1))
    assert np.allclose(halves.coef_sd_ / full.coef_sd_, np.sqrt(2), rtol=0.12)  # half as many observations
    assert np.all(np.abs(halves.coef_ - full.coef_) < 0.5 * full.coef_sd_)


# By default weights of rows, which these become, are tested with the same regression.
@pytest.mark.slow
def test_class_weights_move_the_shares():
    X, y = classes()
    rare = np.r_[np.flatnonzero(y == "no"), np.flatnonzero(y == "yes")[:6]]
    plain = BayesianLogisticRegression(effort=0.1).fit(X[rare], y[rare])
    balanced = BayesianLogisticRegression(effort=0.1, class_weight="balanced").fit(X[rare], y[rare])
    assert balanced.predict_proba(X)[:, 1].mean() > plain.predict_proba(X)[:, 1].mean() + 0.05
    whole = BayesianLogisticRegression(effort=0.1, class_weight={"no": 1, "yes": 4}).fit(X[rare], y[rare])
    four = BayesianLogisticRegression(effort=0.1).fit(X[rare], y[rare], sample_weight=np.where(y[rare] == "yes", 4, 1))
    assert np.array_equal(whole.coef_, four.coef_)


def test_sparse_rows_and_several_responses():
    X, y = counts()
    X = np.where(np.abs(X) < 0.7, 0.0, X)
    dense = BayesianPoissonRegression(effort=0.2).fit(X, y)
    thin = BayesianPoissonRegression(effort=0.2).fit(sparse.csr_matrix(X), y)
    assert np.array_equal(dense.coef_, thin.coef_)
    assert np.array_equal(dense.predict(X), thin.predict(sparse.csc_matrix(X)))
    Y = np.column_stack([y, 3 * X[:, 0] - y])
    both = BayesianLinearRegression().fit(X, Y)
    alone = [BayesianLinearRegression().fit(X, column) for column in Y.T]
    assert np.array_equal(both.coef_, [model.coef_ for model in alone])
    mean, sd = both.predict(X, return_std=True)
    assert mean.shape == sd.shape == Y.shape
    assert np.array_equal(mean[:, 1], alone[1].predict(X))
    pieces = BayesianLinearRegression().partial_fit(X[:70], Y[:70]).partial_fit(X[70:], Y[70:])
    assert np.allclose(pieces.coef_, both.coef_, atol=1e-3 * both.coef_sd_.min())


@pytest.mark.parametrize(
    "estimator",
    [BayesianLinearRegression, pytest.param(BayesianNegativeBinomialRegression, marks=pytest.mark.slow)],
    ids=lambda e: e.__name__,
)
def test_saved_without_pickle_and_read_back(estimator, tmp_path):
    X, y = data_for(estimator)
    model = estimator(effort=0.3, random_state=np.random.RandomState(3)).fit(X, y)
    model.save(tmp_path / "model.gyromc")
    copy = gm.load(tmp_path / "model.gyromc")
    assert type(copy) is estimator
    assert np.array_equal(copy.predict(X), model.predict(X))
    assert copy.get_params()["effort"] == 0.3
    assert copy.random_state is None
    assert np.array_equal(copy.coef_sd_, model.coef_sd_)
    assert b"pickle" not in (tmp_path / "model.gyromc").read_bytes()
    if estimator is BayesianLinearRegression:  # rows can still be added
        assert copy.partial_fit(X, y).sums_[0].count == 2 * len(y)
    with pytest.raises(NotFittedError):
        estimator().save(tmp_path / "none.gyromc")
