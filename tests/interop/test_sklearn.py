"""The estimators under scikit-learn's own checks, in its own tools, and against the conjugate posterior."""

import importlib
import pickle
import sys
import types

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
from gyromc.regression.draws import Draws
from gyromc.regression.fit import fit
from gyromc.shape.laplace import inverse_root
from gyromc.sklearn import BayesianLinearRegression, BayesianLogisticRegression


def classes(rows=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 2))
    return X, np.where(rng.random(rows) < special.expit(2 * X[:, 0]), "yes", "no")


ESTIMATORS = pytest.mark.parametrize(
    "estimator", [BayesianLinearRegression, BayesianLogisticRegression], ids=lambda e: e.__name__
)


def drawn_around_the_mode(posed, names, relative_error, num_draws, seed):
    """What `sample` returns, as far as an estimator reads it, with draws of the Gaussian around the mode instead of a run."""
    shape, likelihood = gm.Model(posed.target).laplace, posed.target.likelihood
    root = inverse_root(shape.precision)
    theta = shape.mode + np.random.default_rng(seed).standard_normal((8, num_draws // 8, len(root))) @ root.T
    T, offset = posed.units.coefficients(likelihood.basis)
    assert len(names) == len(offset)
    return types.SimpleNamespace(
        tuned=types.SimpleNamespace(reason="around the mode", warnings=[]),
        run=types.SimpleNamespace(steps_done=1, plan=types.SimpleNamespace(burn_in=0)),
        posterior=Draws(likelihood, posed.units, theta),
        mean=T @ theta.mean(axis=(0, 1)) + offset,
        std_error=np.full(len(offset), relative_error),
        bias=np.zeros(len(offset)),
    )


def assert_all_checks_pass(estimator):
    """None fails and none is skipped but the one that scikit-learn skips unless the environment asks for it."""
    found = check_estimator(estimator(effort=0.2, num_draws=512), on_skip=None, on_fail=None)
    bad = {r["check_name"]: r["exception"] for r in found if r["status"] not in ("passed", "skipped")}
    assert not bad
    assert len(found) > 45
    skipped = [r for r in found if r["status"] == "skipped"]
    assert {r["check_name"] for r in skipped} <= {"check_array_api_input"}
    assert all("SCIPY_ARRAY_API is not set" in str(r["exception"]) for r in skipped)


@ESTIMATORS
def test_scikit_learns_own_checks_of_the_interface(estimator, monkeypatch):
    """All that is not sampling: a hundred fits would compile a hundred programs."""
    monkeypatch.setattr("gyromc.interop.sklearn.sample", drawn_around_the_mode)
    assert_all_checks_pass(estimator)


@pytest.mark.slow
@ESTIMATORS
def test_scikit_learns_own_checks(estimator):
    assert_all_checks_pass(estimator)


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
    assert np.allclose(model.coef_std_, sd[1:], rtol=0.015)
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
    assert np.allclose(pieces.coef_, whole.coef_, atol=1e-3 * whole.coef_std_.min())
    assert np.allclose(pieces.coef_std_, whole.coef_std_, rtol=1e-4)
    assert np.isclose(pieces.noise_scale_, whole.noise_scale_)
    direct = fit(X, y, effort="quick", intercept=fit_intercept)
    assert np.isclose(direct.noise_scale, whole.noise_scale_, rtol=1e-5)
    slopes = direct.coefficients[int(fit_intercept) :]
    assert np.allclose([c.sd for c in slopes], whole.coef_std_, rtol=1e-3)
    assert np.allclose([c.mean for c in slopes], whole.coef_, atol=1e-2 * whole.coef_std_.min())


def test_logistic_attributes_and_probabilities():
    X, y = classes()
    model = BayesianLogisticRegression(effort=0.02).fit(X, y)
    assert list(model.classes_) == ["no", "yes"]
    assert model.coef_.shape == model.coef_std_.shape == (1, 2)
    assert model.intercept_.shape == (1,)
    assert model.n_features_in_ == 2
    p, spread = model.predict_proba(X, return_std=True)
    labels, of_them = model.predict(X, return_std=True)
    assert np.allclose(p.sum(axis=1), 1)
    assert np.array_equal(labels, model.classes_[p.argmax(axis=1)])
    assert np.array_equal(of_them, spread[np.arange(60), p.argmax(axis=1)])
    assert np.allclose(special.expit(model.decision_function(X)), p[:, 1])
    point = LogisticRegression(C=2.5**2).fit(X / X.std(axis=0), y)  # the same prior: its mode
    assert np.allclose(model.coef_ * X.std(axis=0), point.coef_, atol=0.5 * np.max(model.coef_std_ * X.std(axis=0)))
    averaged = special.expit(X @ model.coef_[0] + model.intercept_[0])
    assert np.all(
        (np.abs(p[:, 1] - 0.5) < np.abs(averaged - 0.5))[np.abs(averaged - 0.5) > 0.3]
    )  # less sure, as it must be


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
    assert cross_val_score(pipeline, X, y, cv=3, scoring="neg_log_loss").mean() > -0.69
    search = GridSearchCV(
        pipeline, {"bayesianlogisticregression__prior_scale": [0.01, 2.5]}, cv=2, scoring="neg_log_loss"
    )
    assert search.fit(X, y).best_params_["bayesianlogisticregression__prior_scale"] == 2.5
    assert clone(search.best_estimator_[-1]).get_params()["effort"] == 0.2


@pytest.mark.parametrize("way", ["pickle", "joblib"])
def test_saved_and_read_back(way, tmp_path):
    X, y = classes()
    model = BayesianLogisticRegression(effort=0.2, num_draws=256).fit(X, y)
    if way == "pickle":
        copy = pickle.loads(pickle.dumps(model))
    else:
        copy = joblib.load(joblib.dump(model, tmp_path / "model.joblib")[0])
    assert np.array_equal(copy.predict_proba(X), model.predict_proba(X))


def test_the_seed_decides():
    X, y = classes()
    make = lambda seed: BayesianLogisticRegression(effort=0.2, num_draws=256, random_state=seed).fit(X, y)
    assert np.array_equal(make(1).coef_, make(1).coef_)
    assert not np.array_equal(make(1).coef_, make(2).coef_)
    generator = np.random.RandomState(3)
    assert not np.array_equal(make(generator).coef_, make(generator).coef_)


def test_errors():
    X, y = classes()
    with pytest.warns(DeprecationWarning, match="chosen by `gyromc.tune`"):
        BayesianLinearRegression(effort=0.2, num_draws=64, dynamics="rotating").fit(X, X[:, 0])
    with pytest.raises(gm.InvalidInput, match="must be one of reversible, rotating"):
        BayesianLinearRegression(dynamics="fast").fit(X, X[:, 0])
    with pytest.raises(gm.InvalidInput, match="at least 2 classes: got 1 class"):
        BayesianLogisticRegression().fit(X, np.full(60, "yes"))
    with pytest.raises(TypeError, match="Sparse data was passed"):
        BayesianLogisticRegression().fit(sparse.csr_matrix(X), y)
    with pytest.raises(NotFittedError):
        BayesianLinearRegression().predict(X)
    with pytest.raises(gm.InvalidInput, match="`prior_scale` must be positive"):
        BayesianLinearRegression(prior_scale=-1.0).fit(X, X[:, 0])


def test_without_scikit_learn_there_is_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    for module in ("gyromc.sklearn", "gyromc.interop.sklearn"):
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(ImportError, match=r"pip install 'gyromc\[sklearn\]'"):
        importlib.import_module("gyromc.sklearn")
