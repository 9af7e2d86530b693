"""What the scikit-learn estimators share: parameters, checks of rows and weights, the fit, predictions, files."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, check_random_state, validate_data

from gyromc.checks import positive, require
from gyromc.io.archive import write_archive
from gyromc.io.codec import Codec, known_classes
from gyromc.regression.draws import POSTERIOR_CLASSES, Draws, Predictions
from gyromc.regression.fit import relative_error
from gyromc.regression.problem import read
from gyromc.regression.sampling import Sampled, sample
from gyromc.regression.standardised import RowSums, Standardised, standardise

__all__ = ["CODEC", "STACKED", "BayesianEstimator", "dense"]

KIND, CODEC = "estimator", Codec(POSTERIOR_CLASSES | known_classes(RowSums))
LARGEST = 10**8  # numbers of a dense matrix made of a sparse one
MOST_REPEATED = 10  # times that a row comes on average before weights are used instead
STACKED = tuple(f"{kind}_{of}" for kind in ("coef", "intercept") for of in ("", "sd_", "std_error_", "bias_"))


def dense(X: Any) -> np.ndarray:
    """X as a dense array; a sparse matrix that would be too large is refused."""
    if not sparse.issparse(X):
        return X
    rows, columns = X.shape
    require(
        rows * columns <= LARGEST,
        f"A sparse X of {rows} × {columns} would be made dense: {8 * rows * columns / 2**30:.1f} GiB. Take fewer columns, for "
        "example with `SelectKBest` or `TruncatedSVD`.",
    )
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

    def _sample(self, standard: Standardised, shape: tuple[int, ...]) -> Sampled:
        """Sample the posterior, store it as arrays with `coef_` and the like, and return it; `shape` is that of the outputs."""
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31 - 1)
        names = [f"{i}" for i in range(len(standard.units.coefficients(standard.target.likelihood.basis)[0]))]
        found = sample(standard, names, relative_error(self.effort), num_draws=self.num_draws, seed=int(seed))
        self.posterior_, self.reason_, self.warnings_ = found.posterior, found.reason, list(found.warnings)
        self.n_iter_ = 1 if found.account is None else found.account.gradients // found.account.chains
        columns = {"": found.mean, "sd_": found.sd, "std_error_": found.std_error, "bias_": found.bias}
        for name, values in columns.items():
            table = values.reshape(*shape, -1)
            intercept = table[..., 0] if self.fit_intercept else np.zeros(shape)[()]  # one output: a number
            setattr(self, f"coef_{name}", table[..., int(self.fit_intercept) :])
            setattr(self, f"intercept_{name}", intercept)
        return found

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
        write_archive(path, KIND, content, CODEC)

    def predictions(self, X) -> Predictions:
        """Predictions at the rows of X: Monte Carlo error, posterior sd and noise apart (`gyromc.regression.draws`)."""
        check_is_fitted(self)
        rows = dense(validate_data(self, X, reset=False, dtype=np.float64, accept_sparse="csr"))
        if isinstance(self.posterior_, Draws):
            return self.posterior_.predict(rows)
        parts = [posterior.predict(rows) for posterior in self.posterior_]
        return Predictions(*(np.stack(c, axis=1) for c in zip(*(dataclasses.astuple(p) for p in parts), strict=True)))

    def __sklearn_tags__(self):
        """Sparse matrices are taken, and made dense."""
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
        return (X, y, weights) if kept.all() else (X[kept], y[kept], weights[kept])

    def _fit_family(self, X, y, family: str, weights, shape: tuple[int, ...]) -> Sampled:
        """Fit a family; whole weights that are not too many are rows that come several times."""
        if (
            weights is not None
            and np.all(weights == np.round(weights))
            and weights.sum() <= MOST_REPEATED * len(weights)
        ):
            times = weights.astype(int)
            X, y, weights = np.repeat(X, times, axis=0), np.repeat(y, times), None
        beside = {"groups": (), "offset": None, "weights": weights, "trials": None, "priors": None}
        scale, intercept = positive(self.prior_scale, "prior_scale"), bool(self.fit_intercept)
        problem = read(X, y, family, names=None, classes=None, intercept=intercept, prior_scale=scale, **beside)
        return self._sample(standardise(problem), shape)
