"""The data of the paper's experiments, the same for the same seed."""

import dataclasses

import numpy as np

from gyromc.checks import numbers, require, whole
from gyromc.data.csvfile import read_numbers
from gyromc.datasets.examples import HEART
from gyromc.machine import require_memory

__all__ = ["HeartTable", "Split", "heart", "heart_split", "linear_regression"]


@dataclasses.dataclass(frozen=True, eq=False)
class HeartTable:
    """The data as published: one row per patient, `disease` 1 where heart disease is present."""

    columns: tuple[str, ...]
    predictors: np.ndarray
    disease: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Split:
    """Design matrices with the intercept first, responses, rows of the table, and the mean and scale of the standardisation."""

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray
    train_rows: np.ndarray
    test_rows: np.ndarray
    mean: np.ndarray
    scale: np.ndarray


def heart() -> HeartTable:
    """Return the 270 × 13 heart table; a file with another checksum raises `InvalidInput`.

    ```python
    from gyromc.datasets import heart
    assert heart().predictors.shape == (270, 13)
    ```
    """
    columns, table = read_numbers(HEART.path.read_bytes(), HEART.file)
    return HeartTable(columns[:-1], table[:, :-1], table[:, -1].astype(int))


def heart_split(seed: int = 0, num_test: int = 68, ddof: int = 0) -> Split:
    """Split the table by class; standardise both parts with the mean and standard deviation of the training rows.

    **Arguments:**

    - `seed`: selects the split.
    - `num_test`: test rows, classes in proportion (68: 38 of class 0 and 30 of class 1).
    - `ddof`: the standard deviation divides by n - ddof.

    **Returns:** a `Split` with designs of 14 columns, the first of ones.

    ```python
    from gyromc.datasets import heart_split
    assert heart_split(seed=0).X_train.shape == (202, 14)
    ```
    """
    table = heart()
    seed, ddof = whole(seed, "seed", least=0), whole(ddof, "ddof", least=0, most=1)
    num_rows = table.disease.size
    num_test = whole(num_test, "num_test", least=2, most=num_rows - 2)
    rng = np.random.default_rng(seed)
    test = []
    for label, count in _shares(table.disease, num_test).items():
        test.append(rng.choice(np.flatnonzero(table.disease == label), size=count, replace=False))
    test_rows = np.sort(np.concatenate(test))
    train_rows = np.setdiff1d(np.arange(num_rows), test_rows)
    train = table.predictors[train_rows]
    mean, scale = train.mean(axis=0), train.std(axis=0, ddof=ddof)
    require(
        np.all(scale > 0), "A predictor is constant in the training rows: pass another `seed` or a smaller `num_test`."
    )
    design = np.column_stack([np.ones(num_rows), (table.predictors - mean) / scale])
    return Split(
        X_train=design[train_rows],
        y_train=table.disease[train_rows],
        X_test=design[test_rows],
        y_test=table.disease[test_rows],
        train_rows=train_rows,
        test_rows=test_rows,
        mean=mean,
        scale=scale,
    )


def _shares(labels: np.ndarray, total: int) -> dict[int, int]:
    """The number of rows of each class among `total`: in proportion, largest remainders first."""
    values, counts = np.unique(labels, return_counts=True)
    exact = total * counts / labels.size
    shares = np.floor(exact).astype(int)
    shares[np.argsort(shares - exact, kind="stable")[: total - shares.sum()]] += 1
    return {int(value): int(share) for value, share in zip(values, shares, strict=True)}


def linear_regression(
    seed: int = 0, num_data: int = 128, coefficients=(1.0, -1.0, 0.5)
) -> tuple[np.ndarray, np.ndarray]:
    """Draw a data set for Bayesian linear regression.

    **Arguments:**

    - `seed`: selects the data set.
    - `num_data`: N.
    - `coefficients`: β*.

    **Returns:** X (N × d) and y (N).

    ```python
    from gyromc.datasets import linear_regression
    X, y = linear_regression(seed=0)
    assert X.shape == (128, 3) and abs(X).max() <= 0.5
    ```
    """
    beta = numbers(coefficients, "coefficients")
    require(beta.ndim == 1 and beta.size > 0, f"`coefficients` must be a vector: got shape {beta.shape}.")
    rng, rows = np.random.default_rng(whole(seed, "seed", least=0)), whole(num_data, "num_data", least=1)
    require_memory(8 * rows * beta.size, f"`num_data` = {rows:,} rows", "Take fewer.")
    X = rng.uniform(-0.5, 0.5, (rows, beta.size))
    return X, X @ beta + rng.standard_normal(len(X))
