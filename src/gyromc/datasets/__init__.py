"""Data with checksum and licence: the tables of `example:NAME`, and the arrays of the paper's experiments.

The logistic experiments use the Statlog heart data: 270 patients, 13 predictors, disease yes or no, in a stratified split into
202 training and 68 test rows, standardised by the training rows. The linear ones draw x_ij ~ Unif[-½, ½], y = xᵀβ* + N(0, 1).
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from gyromc.checks import numbers, read_path, require, whole
from gyromc.data.csvfile import read_numbers
from gyromc.runtime.machine import require_memory
from gyromc.show.numbers import did_you_mean

__all__ = ["EXAMPLES", "HEART", "Example", "HeartTable", "Split"]
__all__ += ["heart", "heart_split", "linear_regression", "located"]

FOLDER = Path(__file__).parent
PREFIX = "example:"


@dataclasses.dataclass(frozen=True)
class Example:
    """A table in the package: what its rows are, where it comes from, and the options that fit it."""

    file: str
    rows: int
    about: str
    options: str
    source: str
    licence: str
    sha256: str

    @property
    def citation(self) -> str:
        """The attribution that the licence asks for."""
        return f"{self.source}, {self.licence}"

    @property
    def path(self) -> Path:
        """The file, after its checksum was compared.

        ```python
        import gyromc as gm
        print(gm.datasets.EXAMPLES["penguins"].path.read_text().splitlines()[0])
        ```
        """
        path = FOLDER / self.file
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        damaged = f"{path} is damaged: SHA-256 is {found}, expected {self.sha256}. Reinstall the package."
        require(found == self.sha256, damaged)
        return path


EXAMPLES = {name: Example(**one) for name, one in json.loads((FOLDER / "examples.json").read_bytes()).items()}
"""By name: the tables of the package."""
HEART = EXAMPLES["heart"]


def located(data: str | Path) -> Path:
    """Return the path of a file of data; `example:NAME` is a file of the package.

    ```python
    from gyromc.datasets import located
    print(located("example:heart").name)
    ```
    """
    path = read_path(data)
    if not str(path).startswith(PREFIX):
        return path
    name = str(path).removeprefix(PREFIX)
    require(name in EXAMPLES, f"There is no example {name!r}. {did_you_mean(name, list(EXAMPLES), 'There are:')}")
    return EXAMPLES[name].path


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
    print(heart().predictors.shape)  # (270, 13)
    ```
    """
    columns, table = read_numbers(HEART.path.read_bytes(), HEART.file)
    return HeartTable(columns[:-1], table[:, :-1], table[:, -1].astype(int))


def heart_split(seed: int = 0, num_test: int = 68, ddof: int = 0) -> Split:
    """Split the table by class, in proportion; standardise both parts by the mean and standard deviation of the training rows.

    `seed` selects the split, of which `num_test` rows are for tests; the standard deviation divides by n - `ddof`. The designs of
    the `Split` have 14 columns, the first of ones.

    ```python
    from gyromc.datasets import heart_split
    print(heart_split(seed=0).X_train.shape)  # (202, 14)
    ```
    """
    table = heart()
    seed, ddof = whole(seed, "seed", least=0), whole(ddof, "ddof", least=0, most=1)
    num_rows = table.disease.size
    num_test = whole(num_test, "num_test", least=2, most=num_rows - 2)
    values, counts = np.unique(table.disease, return_counts=True)
    exact = num_test * counts / num_rows
    shares = np.floor(exact).astype(int)
    # the largest remainders first
    shares[np.argsort(shares - exact, kind="stable")[: num_test - shares.sum()]] += 1
    rng, places = np.random.default_rng(seed), [np.flatnonzero(table.disease == label) for label in values]
    test = [rng.choice(some, size=count, replace=False) for some, count in zip(places, shares, strict=True)]
    test_rows = np.sort(np.concatenate(test))
    train_rows = np.setdiff1d(np.arange(num_rows), test_rows)
    train = table.predictors[train_rows]
    mean, scale = train.mean(axis=0), train.std(axis=0, ddof=ddof)
    constant = "A predictor is constant in the training rows: pass another `seed` or a smaller `num_test`."
    require(np.all(scale > 0), constant)
    design = np.column_stack([np.ones(num_rows), (table.predictors - mean) / scale])
    y = table.disease
    parts = (design[train_rows], y[train_rows], design[test_rows], y[test_rows])
    return Split(*parts, train_rows, test_rows, mean, scale)


def linear_regression(seed: int = 0, num_data: int = 128, coefficients=(1.0, -1.0, 0.5)) -> tuple[Any, Any]:
    """Draw data for Bayesian linear regression: X (N × d), uniform on [-½, ½], and y = Xβ* + N(0, 1), with β* = `coefficients`.

    `seed` selects the data set, of `num_data` = N rows.

    ```python
    from gyromc.datasets import linear_regression
    X, y = linear_regression(seed=0)
    print(X.shape)  # (128, 3)
    ```
    """
    beta = numbers(coefficients, "coefficients")
    require(beta.ndim == 1 and beta.size > 0, f"`coefficients` must be a vector: got shape {beta.shape}.")
    rng, rows = np.random.default_rng(whole(seed, "seed", least=0)), whole(num_data, "num_data", least=1)
    require_memory(8 * rows * beta.size, f"`num_data` = {rows:,} rows", "Take fewer.")
    X = rng.uniform(-0.5, 0.5, (rows, beta.size))
    return X, X @ beta + rng.standard_normal(len(X))
