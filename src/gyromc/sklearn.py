"""Bayesian regressions as scikit-learn estimators, for pipelines, grid searches and cross-validation.

X and y are arrays, sparse matrices or data frames. A row of weight w counts as w rows; the order of rows does not matter.
"""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from gyromc.checks import flag, positive, require, whole
from gyromc.errors import GyromcWarning
from gyromc.extras import needs
from gyromc.io.archive import Archive, Codec, known_classes, write_archive
from gyromc.regression.draws import POSTERIOR_CLASSES, Draws, Predictions
from gyromc.regression.fit import Fit, fit, relative_error, solve
from gyromc.regression.standardised import RowSums

with needs("sklearn", "`gyromc.sklearn`"):
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.class_weight import compute_class_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted, check_random_state, validate_data

__all__ = [
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianNegativeBinomialRegression",
    "BayesianPoissonRegression",
]

KIND, CODEC = "estimator", Codec(POSTERIOR_CLASSES | known_classes(RowSums))


def dense(X: Any) -> np.ndarray:
    """X as a dense array; a sparse matrix that would be too large is refused."""
    if not sparse.issparse(X):
        return X
    rows, columns = X.shape
    size = f"{8 * rows * columns / 2**30:.1f} GiB. Take fewer columns."
    require(rows * columns <= 10**8, f"A sparse X of {rows} × {columns} would be made dense: {size}")
    return X.toarray()


class BayesianEstimator(BaseEstimator):
    """What all estimators share: their parameters, the fit, what is read off it, and files."""

    posterior_: Any  # `Draws`, or a tuple of them for several outputs
    coef_: np.ndarray
    intercept_: np.ndarray

    def __init__(
        self,
        *,
        prior_scale: float = 2.5,
        fit_intercept: bool = True,
        effort: str | float = "quick",
        num_draws: int = 2048,
        random_state: Any = 0,
    ):
        self.prior_scale = prior_scale
        self.fit_intercept = fit_intercept
        self.effort = effort
        self.num_draws = num_draws
        self.random_state = random_state

    @property
    def _options(self) -> dict[str, Any]:
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        return {"num_draws": self.num_draws, "seed": whole(seed, "random_state", least=0)}

    def _store(self, fits: Sequence[Fit], shape: tuple[int, ...]) -> None:
        """Store fits as arrays, with `coef_` and the like; `shape` is that of the outputs."""
        last = fits[-1]
        self.posterior_, self.reason_, self.warnings_ = last.posterior, last.reason, list(last.warnings)
        self.n_iter_ = 1 if last.account is None else last.account.gradients // last.account.chains
        for name in ("", "sd_", "std_error_"):
            values = np.array([[getattr(c, name[:-1] or "mean") for c in found.coefficients] for found in fits])
            table = values.reshape(*shape, -1)
            intercept = table[..., 0] if self.fit_intercept else np.zeros(shape)[()]  # one output: a number
            setattr(self, f"coef_{name}", table[..., int(self.fit_intercept) :])
            setattr(self, f"intercept_{name}", intercept)

    def save(self, path: str | Path) -> None:
        """Write the estimator to a file without pickle, which `gyromc.load` reads; a generator as `random_state` is lost."""
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        if not isinstance(parameters["random_state"], int | np.integer | None):
            parameters["random_state"] = None
        fitted = {name: value for name, value in vars(self).items() if name.endswith("_") and not name.startswith("_")}
        content = {"estimator": type(self).__name__, "parameters": parameters, "fitted": fitted}
        write_archive(path, KIND, content, CODEC)

    def predictions(self, X) -> Predictions:
        """Predictions at the rows of X: Monte Carlo error, posterior sd and noise apart (`gyromc.regression.draws`)."""
        check_is_fitted(self)
        rows = dense(validate_data(self, X, reset=False, dtype=np.float64, accept_sparse="csr"))
        if isinstance(self.posterior_, Draws):
            return self.posterior_.predict(rows)
        parts = [posterior.predict(rows) for posterior in self.posterior_]
        return Predictions(*(np.stack(c, axis=1) for c in zip(*(dataclasses.astuple(p) for p in parts), strict=True)))

    def predict(self, X, return_std: bool = False):
        """The posterior expectation of y at each row of X; with `return_std` also the predictive sd of one y, noise included."""
        found = self.predictions(X)
        return (found.mean, found.predictive_sd) if return_std else found.mean

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _rows(
        self, X, y, sample_weight, reset: bool = True, **options: Any
    ) -> tuple[np.ndarray, Any, np.ndarray | None]:
        """X dense, y and the weights, checked; rows of weight 0 are left out."""
        found: Any = validate_data(self, X, y, reset=reset, dtype=np.float64, accept_sparse="csr", **options)
        X, y = dense(found[0]), found[1]
        if sample_weight is None:
            return X, y, None
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        kept = weights > 0
        require(np.any(kept), "`sample_weight` must have at least one non-zero weight: all are 0.")
        return (X, y, weights) if kept.all() else (X[kept], y[kept], weights[kept])

    def _fit_family(self, X, y, family: str, weights, shape: tuple[int, ...]) -> Fit:
        """Fit a family; whole weights that are not too many are rows that come several times."""
        if weights is not None and np.all(weights == np.round(weights)) and weights.sum() <= 10 * len(weights):
            times = weights.astype(int)
            X, y, weights = np.repeat(X, times, axis=0), np.repeat(y, times), None
        model = {"prior_scale": self.prior_scale, "intercept": flag(self.fit_intercept, "fit_intercept")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GyromcWarning)  # they are stored in `warnings_`
            found = fit(X, y, family, effort=self.effort, weights=weights, **model, **self._options)
        self._store([found], shape)
        return found


class BayesianLinearRegression(RegressorMixin, BayesianEstimator):
    """Bayesian linear regression: y = Xβ + β₀ + N(0, σ²), with credible intervals and predictive standard deviations.

    The prior is N(0, prior_scale²) for each coefficient per standard deviation of its column and of y, N(0, 10²) for the
    intercept in standard deviations of y; σ is unknown, log σ uniform a priori, and integrated out.

    **Arguments:**

    - `prior_scale`: the prior's standard deviation; `fit_intercept`: whether there is an intercept.
    - `effort`: `"quick"`, `"standard"`, `"thorough"`, or the error of means to aim at, in posterior standard deviations.
    - `num_draws`: how many posterior draws predictions are averaged over, at least; `random_state`: a seed, a generator or None.

    **Attributes:** `coef_`, `intercept_` (posterior means), `coef_sd_`, `intercept_sd_` (posterior standard deviations),
    `coef_std_error_` (Monte Carlo errors), `noise_scale_` (mean of σ), `posterior_` (draws), `reason_` (the sampler and why),
    `warnings_` (what could not be known), `n_iter_`, `n_features_in_`.

    ```python
    import numpy as np
    from gyromc.sklearn import BayesianLinearRegression
    X = np.arange(20.0)[:, None]
    model = BayesianLinearRegression().fit(X, 3.0 + 0.5 * X[:, 0] + np.cos(X[:, 0]))
    mean, sd = model.predict([[30.0]], return_std=True)
    print(mean.round(1), sd.round(1))  # [18.1] [1.]
    ```
    """

    def fit(self, X, y, sample_weight=None):
        """Sample the posterior given X and y; each of several columns of y has a posterior, and a row of `coef_`, of its own."""
        return self._add(X, y, sample_weight, fresh=True)

    def partial_fit(self, X, y, sample_weight=None):
        """Go on with more rows: the posterior given all rows so far, of which only sums like XᵀX are kept."""
        return self._add(X, y, sample_weight, fresh=not hasattr(self, "sums_"))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _add(self, X, y, sample_weight, fresh: bool):
        X, y, weights = self._rows(X, y, sample_weight, reset=fresh, y_numeric=True, multi_output=True)
        columns = np.asarray(y, float).reshape(len(y), -1).T
        before = (RowSums.empty(X.shape[1]),) * len(columns) if fresh else self.sums_
        fits = len(before) == len(columns)
        require(fits, f"`y` must have {len(before)} columns, as in the rows before: got {len(columns)}.")
        self.sums_ = tuple(sums.add(X, column, weights) for sums, column in zip(before, columns, strict=True))
        scale, intercept = positive(self.prior_scale, "prior_scale"), flag(self.fit_intercept, "fit_intercept")
        names, aim = [f"x{j}" for j in range(X.shape[1])], relative_error(self.effort)
        fits = [solve(sums.standardised(scale, intercept), names, aim, **self._options) for sums in self.sums_]
        self._store(fits, np.shape(y)[1:])
        self.noise_scale_ = fits[0].noise_scale
        if np.ndim(y) == 2:
            self.noise_scale_ = np.array([one.noise_scale for one in fits])
            self.posterior_ = tuple(one.posterior for one in fits)
        return self


class BayesianLogisticRegression(ClassifierMixin, BayesianEstimator):
    """Bayesian logistic regression, for two classes or more (softmax): probabilities averaged over the posterior.

    The prior is N(0, prior_scale²) for each coefficient per standard deviation of its column, N(0, 10²) for the intercept; for
    more than two classes that is the prior of the difference between any two.

    **Arguments:** as for `BayesianLinearRegression`, and

    - `class_weight`: `"balanced"`, or a weight by class: rows count as if there were so many more of them. That changes the
      posterior: probabilities are then those of a population with other shares.

    **Attributes:** `classes_`; `coef_`, `coef_sd_`, `coef_std_error_`: one row, or one per class where there are
    more than two (rows that sum to zero); `intercept_`, `intercept_sd_`; `posterior_`, `reason_`, `n_iter_`, `n_features_in_`.

    ```python
    import numpy as np
    from gyromc.sklearn import BayesianLogisticRegression
    X = np.linspace(-2, 2, 40)[:, None]
    model = BayesianLogisticRegression().fit(X, np.where(X[:, 0] + 0.3 * np.sin(9 * X[:, 0]) > 0, "up", "down"))
    print(model.predict([[1.5]]), model.predict_proba([[1.5]])[0, 1].round(1))  # ['up'] 1.0
    ```
    """

    def __init__(
        self,
        *,
        prior_scale: float = 2.5,
        fit_intercept: bool = True,
        class_weight: Any = None,
        effort: str | float = "quick",
        num_draws: int = 2048,
        random_state: Any = 0,
    ):
        usual: Any = {"effort": effort, "num_draws": num_draws, "random_state": random_state}
        super().__init__(prior_scale=prior_scale, fit_intercept=fit_intercept, **usual)
        self.class_weight = class_weight

    def fit(self, X, y, sample_weight=None):
        X, y, weights = self._rows(X, y, sample_weight)
        check_classification_targets(y)
        self.classes_, code = np.unique(y, return_inverse=True)
        count = len(self.classes_)
        one = f"BayesianLogisticRegression needs samples of at least 2 classes: got 1 class, {self.classes_[0]!r}."
        require(count > 1, f"{one} Add rows of another class.")
        if self.class_weight is not None:
            of_class = compute_class_weight(self.class_weight, classes=self.classes_, y=y)
            weights = of_class[code] * (1.0 if weights is None else weights)
        family, outputs = ("logistic", 1) if count == 2 else ("softmax", count)
        self._fit_family(X, code.astype(float), family, weights, (outputs,))
        return self

    def predict_proba(self, X, return_std: bool = False):
        """The probability of each class at each row of X, as in `classes_`; with `return_std` also their posterior sd."""
        found = self.predictions(X)
        if len(self.classes_) > 2:
            p, sd = found.mean / found.mean.sum(axis=1, keepdims=True), found.sd
        else:
            p, sd = np.stack([1 - found.mean, found.mean], axis=1), np.stack([found.sd] * 2, axis=1)
        return (p, sd) if return_std else p

    def predict_log_proba(self, X):
        return np.log(np.maximum(self.predict_proba(X), np.finfo(float).tiny))

    def decision_function(self, X):
        """A score per row, positive for the second class, or one per class: the log odds, or logarithms, of `predict_proba`."""
        log_p = self.predict_log_proba(X)
        return log_p[:, 1] - log_p[:, 0] if len(self.classes_) == 2 else log_p

    def predict(self, X, return_std: bool = False):
        """The most probable class at each row of X; with `return_std` also the posterior sd of its probability."""
        p, sd = self.predict_proba(X, return_std=True)
        best = p.argmax(axis=1)
        labels = self.classes_[best]
        return (labels, sd[np.arange(len(best)), best]) if return_std else labels


class BayesianPoissonRegression(RegressorMixin, BayesianEstimator):
    """Bayesian Poisson regression: y is a count with the expectation exp(Xβ + β₀).

    Use, arguments and attributes are those of `BayesianLinearRegression`, on the scale of the logarithm, without `noise_scale_`.
    """

    _family = "poisson"

    def fit(self, X, y, sample_weight=None):
        X, y, weights = self._rows(X, y, sample_weight, y_numeric=True)
        posterior = self._fit_family(X, np.asarray(y, float), self._family, weights, ()).posterior
        named = zip(posterior.likelihood.auxiliary, posterior.given, strict=True)
        self.auxiliary_ = {name: float(np.mean(values)) for name, values in named}
        return self

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.positive_only = True
        tags.regressor_tags.poor_score = True  # of responses that are no counts of a logarithmic mean
        return tags


class BayesianNegativeBinomialRegression(BayesianPoissonRegression):
    """Bayesian negative binomial regression: a count with the expectation μ = exp(Xβ + β₀) and the variance μ + μ²/shape.

    As `BayesianPoissonRegression`; `auxiliary_` has the posterior mean of `shape`.
    """

    _family = "negative-binomial"


def restored_estimator(archive: Archive) -> Any:
    """Return the estimator of an archive that was read."""
    content = CODEC.unpack(archive)
    require(content["estimator"] in __all__, f"There is no estimator {content['estimator']!r}.")
    found: Any = globals()[content["estimator"]](**content["parameters"])
    for name, value in content["fitted"].items():
        if not name.endswith("_") or name.startswith("_"):
            raise ValueError(f"{name!r} is no fitted attribute")
        setattr(found, name, value)
    # One row shows whether the parts fit each other; that it has no names of columns does not matter.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found.predict(np.zeros((1, found.n_features_in_)))
    return found
