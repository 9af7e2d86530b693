"""`gyromc.sklearn`: the scikit-learn estimators under the name their users expect; they live in `gyromc.interop.sklearn`."""

from gyromc.interop.sklearn import (
    BayesianLinearRegression,
    BayesianLogisticRegression,
    BayesianNegativeBinomialRegression,
    BayesianPoissonRegression,
)

__all__ = [
    "BayesianLinearRegression",
    "BayesianLogisticRegression",
    "BayesianNegativeBinomialRegression",
    "BayesianPoissonRegression",
]
