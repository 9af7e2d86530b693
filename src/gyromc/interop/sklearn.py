"""Bayesian regressions as scikit-learn estimators.

Arrays or data frames in, as scikit-learn passes them; out estimators for pipelines, grid searches and cross-validation, pickled
as plain arrays. The computation is in `gyromc.regression`.
"""

from pathlib import Path
from typing import Any

import numpy as np

from gyromc import __version__
from gyromc.archive import Archive, unpack, write_archive
from gyromc.checks import positive, require
from gyromc.errors import InvalidInput
from gyromc.records import Renamed
from gyromc.regression.draws import Draws, Predictions
from gyromc.regression.fit import check_dynamics, relative_error
from gyromc.regression.posing import Posed, pose
from gyromc.regression.sampling import Sampled, sample
from gyromc.regression.stored import POSTERIOR_CLASSES
from gyromc.regression.sums import RowSums
from gyromc.targets.likelihoods import Bernoulli, Categorical

try:
    from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import check_is_fitted, check_random_state, validate_data
except ImportError as error:
    raise ImportError(
        "`gyromc.interop.sklearn` needs scikit-learn. Install it with: pip install 'gyromc[sklearn]'"
    ) from error

__all__ = ["BayesianLinearRegression", "BayesianLogisticRegression"]


KIND = "estimator"


class _BayesianRegression(BaseEstimator):
    """What both estimators share: their parameters, the fit and what is read off it."""

    posterior_: Draws
    coef_: np.ndarray
    intercept_: np.ndarray

    def __init__(
        self,
        *,
        prior_scale: float = 2.5,
        fit_intercept: bool = True,
        effort: str | float = "quick",
        num_draws: int = 2048,
        dynamics: str | None = None,
        random_state: Any = 0,
    ):
        self.prior_scale = prior_scale
        self.fit_intercept = fit_intercept
        self.effort = effort
        self.num_draws = num_draws
        self.dynamics = dynamics
        self.random_state = random_state

    def _sample(self, posed: Posed, shape: tuple[int, ...]) -> Sampled:
        """Sample the posterior, store it as arrays with `coef_` and the like, and return it; `shape` is that of the outputs."""
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        names = [f"{i}" for i in range(len(posed.units.coefficients(posed.target.likelihood.basis)[0]))]
        check_dynamics(self.dynamics, stacklevel=4)  # the caller of `fit`
        found = sample(posed, names, relative_error(self.effort), num_draws=self.num_draws, seed=int(seed))
        self.posterior_, self.reason_, self.warnings_ = found.posterior, found.reason, found.warnings
        self.n_iter_ = 1 if found.run is None else found.run.steps_done + found.run.plan.burn_in
        spreads = found.posterior.spreads() if found.exact is None else found.exact.moments()[1]
        columns = {"": found.mean, "std_": spreads, "std_error_": found.std_error, "bias_": found.bias}
        for name, values in columns.items():
            table = values.reshape(*shape, -1)
            intercept = table[..., 0] if self.fit_intercept else np.zeros(shape)[()]  # one output: a number
            setattr(self, f"coef_{name}", table[..., int(self.fit_intercept) :])
            setattr(self, f"intercept_{name}", intercept)
        return found

    coef_mc_error_ = Renamed("coef_std_error_")

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to a file without pickle, which `gyromc.load` reads.

        A generator as `random_state` is not kept: the estimator that is read has None in its place.
        """
        check_is_fitted(self)
        parameters = self.get_params(deep=False)
        if not isinstance(parameters["random_state"], int | np.integer | None):
            parameters["random_state"] = None
        fitted = {name: value for name, value in vars(self).items() if name.endswith("_") and not name.startswith("_")}
        content = {"estimator": type(self).__name__, "parameters": parameters, "fitted": fitted}
        write_archive(path, KIND, content, POSTERIOR_CLASSES, __version__)

    def predictions(self, X) -> Predictions:
        """Predictions at the rows of X: Monte Carlo error, posterior spread and noise apart (`gyromc.regression.draws`)."""
        check_is_fitted(self)
        return self.posterior_.predict(validate_data(self, X, reset=False, dtype=np.float64))


class BayesianLinearRegression(RegressorMixin, _BayesianRegression):
    """Bayesian linear regression: y = Xβ + β₀ + N(0, σ²), with credible intervals and predictive standard deviations.

    The prior is N(0, prior_scale²) for each coefficient per standard deviation of its column and of y, N(0, 10²) for the
    intercept in standard deviations of y; σ is unknown, log σ uniform a priori, and integrated out.

    **Arguments:**

    - `prior_scale`: the prior's standard deviation.
    - `fit_intercept`: whether there is an intercept.
    - `effort`: `"quick"`, `"standard"`, `"thorough"`, or the error of each coefficient's mean to aim at, in posterior standard
      deviations.
    - `num_draws`: how many posterior draws predictions are averaged over, at least.
    - `dynamics`: not used any more; the sampler is chosen by `gyromc.tune`.
    - `random_state`: a seed, a generator or None.

    **Attributes:** `coef_`, `intercept_` (posterior means), `coef_std_`, `intercept_std_` (posterior standard deviations),
    `coef_std_error_`, `coef_bias_` (Monte Carlo errors, and how large the discretisation bias is), `noise_scale_` (mean of σ),
    `posterior_` (draws), `reason_` (the sampler and why), `warnings_` (what could not be known), `n_iter_`, `n_features_in_`.

    ```python
    import numpy as np
    from gyromc.sklearn import BayesianLinearRegression
    X = np.arange(20.0)[:, None]
    model = BayesianLinearRegression().fit(X, 3.0 + 0.5 * X[:, 0] + np.cos(X[:, 0]))
    mean, sd = model.predict([[30.0]], return_std=True)
    assert abs(mean[0] - 18.0) < 3 * sd[0]
    ```
    """

    def fit(self, X, y):
        """Sample the posterior of the coefficients given the rows of X and their responses y."""
        return self._add(X, y, fresh=True)

    def partial_fit(self, X, y):
        """Go on with more rows: the posterior given all rows so far, the same as if they had come at once.

        What is kept of earlier rows has the size of XᵀX, so memory does not grow; the draws are made anew.
        """
        return self._add(X, y, fresh=not hasattr(self, "sums_"))

    def _add(self, X, y, fresh: bool):
        rows: Any = validate_data(self, X, y, reset=fresh, dtype=np.float64, y_numeric=True)
        before = RowSums.empty(rows[0].shape[1]) if fresh else self.sums_
        self.sums_ = before.add(rows[0], np.asarray(rows[1], float))
        posed = self.sums_.pose(positive(self.prior_scale, "prior_scale"), bool(self.fit_intercept))
        self.noise_scale_ = self._sample(posed, ()).noise_scale
        return self

    def predict(self, X, return_std: bool = False):
        """The posterior expectation of y at each row of X.

        With `return_std` (mean, standard deviation), the predictive standard deviation, noise included.
        """
        found = self.predictions(X)
        return (found.mean, found.sd) if return_std else found.mean


class BayesianLogisticRegression(ClassifierMixin, _BayesianRegression):
    """Bayesian logistic regression, for two classes or more (softmax): probabilities averaged over the posterior.

    The prior is N(0, prior_scale²) for each coefficient per standard deviation of its column, N(0, 10²) for the intercept; for
    more than two classes that is the prior of the difference between any two.

    **Arguments:** as for `BayesianLinearRegression`.

    **Attributes:** `classes_`; `coef_`, `coef_std_`, `coef_std_error_`, `coef_bias_`: one row, or one per class where there are
    more than two (rows that sum to zero); `intercept_`, `intercept_std_`; `posterior_`, `reason_`, `n_iter_`, `n_features_in_`.

    ```python
    import numpy as np
    from gyromc.sklearn import BayesianLogisticRegression
    X = np.linspace(-2, 2, 40)[:, None]
    model = BayesianLogisticRegression().fit(X, np.where(X[:, 0] + 0.3 * np.sin(9 * X[:, 0]) > 0, "up", "down"))
    assert model.predict([[1.5]]) == "up" and 0.9 < model.predict_proba([[1.5]])[0, 1] < 1
    ```
    """

    def fit(self, X, y):
        """Sample the posterior of the coefficients given the rows of X and their classes y."""
        rows: Any = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(rows[1])
        self.classes_, code = np.unique(rows[1], return_inverse=True)
        count = len(self.classes_)
        require(
            count > 1,
            f"BayesianLogisticRegression needs samples of at least 2 classes: got 1 class, {self.classes_[0]!r}. "
            "Add rows of another class.",
        )
        likelihood, scale = Bernoulli() if count == 2 else Categorical(count), positive(self.prior_scale, "prior_scale")
        posed = pose(rows[0], code.astype(float), likelihood, scale, bool(self.fit_intercept))
        self._sample(posed, (1 if count == 2 else count,))
        return self

    def predict_proba(self, X, return_std: bool = False):
        """The posterior predictive probability of each class at each row of X: rows × classes, in the order of `classes_`.

        With `return_std` (probabilities, their posterior standard deviations).
        """
        found = self.predictions(X)
        if len(self.classes_) > 2:
            p, spread = found.mean / found.mean.sum(axis=1, keepdims=True), found.spread
        else:
            p, spread = np.stack([1 - found.mean, found.mean], axis=1), np.stack([found.spread] * 2, axis=1)
        return (p, spread) if return_std else p

    def predict_log_proba(self, X):
        """The logarithms of `predict_proba`."""
        return np.log(self.predict_proba(X))

    def decision_function(self, X):
        """A score per row, positive for the second class, or one per class: the log odds, or logarithms, of `predict_proba`."""
        p = np.maximum(self.predict_proba(X), np.finfo(float).tiny)
        return np.log(p[:, 1]) - np.log(p[:, 0]) if len(self.classes_) == 2 else np.log(p)

    def predict(self, X, return_std: bool = False):
        """The most probable class at each row of X.

        With `return_std` (classes, posterior standard deviations of their probabilities).
        """
        p, spread = self.predict_proba(X, return_std=True)
        best = p.argmax(axis=1)
        labels = self.classes_[best]
        return (labels, spread[np.arange(len(best)), best]) if return_std else labels


ESTIMATORS = {known.__name__: known for known in (BayesianLinearRegression, BayesianLogisticRegression)}


def restored(archive: Archive, path: str | Path) -> Any:
    """Return the estimator of an archive that was read."""
    try:
        content = unpack(archive.content, archive.arrays, POSTERIOR_CLASSES)
        found = ESTIMATORS[content["estimator"]](**content["parameters"])
        for name, value in content["fitted"].items():
            if not name.endswith("_") or name.startswith("_"):
                raise ValueError(f"{name!r} is no fitted attribute")
            setattr(found, name, value)
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidInput(
            f"{path} was written by gyromc {archive.written_by} and holds what this gyromc ({__version__}) does not know "
            f"({type(error).__name__}: {error}). Use the gyromc that wrote it, or fit again."
        ) from None
    return found
