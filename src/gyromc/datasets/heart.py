"""The Statlog heart data: 270 patients, 13 predictors, disease yes or no, as the paper's logistic experiments use them.

Input: the seed of a split. Output: a stratified split into 202 training and 68 test rows, standardised by the training rows,
intercept first. The file is checked against its SHA-256 whenever it is read.

Source: "Statlog (Heart)", UCI Machine Learning Repository, doi:10.24432/C57303, licensed under CC BY 4.0; the values are the
repository's, the column names and the 0/1 coding of the response are ours.
"""

import dataclasses
import hashlib
from importlib import resources
from pathlib import Path

import numpy as np

from gyromc.checks import read_path, require, whole
from gyromc.data.csvfile import read_numbers

__all__ = ["HEART", "HeartTable", "Source", "Split", "heart", "heart_split"]


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a data set comes from, its licence, and the checksum that shows it is intact."""

    title: str
    doi: str
    licence: str
    sha256: str
    shape: tuple[int, int]

    @property
    def citation(self) -> str:
        """The attribution that the licence asks for."""
        return f"{self.title}, doi:{self.doi}, {self.licence}"


HEART = Source(
    title="Statlog (Heart), UCI Machine Learning Repository",
    doi="10.24432/C57303",
    licence="CC BY 4.0",
    sha256="e70ec53e0327b6d56e1285ece947bfba67416c2c16e0b7b89d174853785c2be7",
    shape=(270, 13),
)


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


def heart(path: str | Path | None = None) -> HeartTable:
    """Return the 270 × 13 heart table.

    **Arguments:**

    - `path`: another copy of the same file; the one in the package when left out.

    **Returns:** a `HeartTable`; a file with another checksum raises `InvalidInput`.

    ```python
    from gyromc.datasets import heart
    assert heart().predictors.shape == (270, 13)
    ```
    """
    file = resources.files("gyromc.datasets").joinpath("statlog_heart.csv") if path is None else read_path(path)
    require(file.is_file(), f"There is no file {file}. Leave `path` out for the one in the package.")
    content = file.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    require(
        found == HEART.sha256,
        f"The heart data differ from the published file: SHA-256 is {found}, expected {HEART.sha256}. "
        "Reinstall the package, or fetch the file again.",
    )
    columns, table = read_numbers(content, "statlog_heart.csv")
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
