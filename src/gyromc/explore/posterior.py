"""The real posterior of the page: logistic regression of heart disease on two columns of the heart data.

Input: the data in the package. Output: `data/logistic.json`, with equal rows counted together, the mode and the standard
deviations at the mode. `python -m gyromc.explore.posterior` writes it.
"""

import json
from pathlib import Path

import numpy as np

from gyromc.datasets import heart
from gyromc.model import Model
from gyromc.targets import LogisticRegression

__all__ = ["COMMAND", "FILE", "content", "design"]

COMMAND = "python -m gyromc.explore.posterior"
FILE = Path(__file__).with_name("data") / "logistic.json"
COLUMNS = ("st_depression", "st_slope")


def design() -> tuple[np.ndarray, np.ndarray]:
    """The two columns with mean 0 and standard deviation 1, and the response 0 or 1.

    ```python
    from gyromc.explore.posterior import design
    X, y = design()
    assert X.shape == (270, 2) and set(y) == {0.0, 1.0}
    ```
    """
    table = heart()
    X = table.predictors[:, [table.columns.index(name) for name in COLUMNS]]
    return (X - X.mean(axis=0)) / X.std(axis=0), np.asarray(table.disease, float)


def content() -> dict:
    """What the page needs: rows x₁, x₂ with how often they occur and how many have the disease; mode and scale of θ."""
    X, y = design()
    laplace = Model(LogisticRegression(X, y)).laplace
    rows, place = np.unique(X, axis=0, return_inverse=True)
    count, ones = np.bincount(place), np.bincount(place, weights=y)
    return {
        "command": COMMAND,
        "source": "Statlog (Heart), UCI Machine Learning Repository, doi:10.24432/C57303, CC BY 4.0",
        "columns": list(COLUMNS),
        "rows": [[float(a), float(b), int(n), int(k)] for (a, b), n, k in zip(rows, count, ones, strict=True)],
        "mode": laplace.mean.tolist(),
        "scale": np.sqrt(np.diag(np.linalg.inv(laplace.precision))).tolist(),
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(content()) + "\n", encoding="utf-8")
